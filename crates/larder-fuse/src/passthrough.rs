//! Which way the data of each open file takes, and the local files that the kernel uses by itself.
//!
//! The kernel keeps a registered local file under a *backing id*, and holds each inode to one mode
//! (`fuse_file_io_open` in `fs/fuse/iomode.c`): while one of its opens is passthrough, every other open
//! must carry the same backing id, and while one is cached, none may be passthrough. An open
//! that breaks the rule fails with EIO. The file system cannot keep it: it learns of a release
//! later than the kernel. So it is kept here, by the way that always works: an open with
//! `FOPEN_DIRECT_IO` reads and writes through the file system, and may carry a backing id, which
//! it then does not use.
//!
//! | the inode's other opens | wanted | answered |
//! |---|---|---|
//! | none | anything | as wanted; direct if the kernel refuses the local file |
//! | passthrough | passthrough of the same file | as wanted |
//! | passthrough | anything else | direct, with the id in use |
//! | cached or direct | cached or direct | as wanted |
//! | cached or direct | passthrough | direct |
//!
//! The last line is needed for direct opens too, since mapping one into memory makes the inode cached.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use fuser::BackingId;
use larder_vfs::{DataPath, Ino, LocalFile, OpenId};
use rustix::fs::{Mode, OFlags};

/// `f_type` of stacked file systems, whose files lie one level deeper (`include/uapi/linux/magic.h`).
const STACKED: [i64; 2] = [0x794c_7630 /* overlayfs */, 0xf15f /* ecryptfs */];

/// How an open is answered. `T` is a registration, a [`BackingId`] but for tests.
#[derive(Debug)]
pub(crate) enum Way<T = BackingId> {
    /// Through the page cache.
    Cached {
        /// Whether the kernel keeps the pages it has.
        keep: bool,
    },
    /// Each read and write is a request.
    Direct,
    /// The kernel uses the local file.
    Backed(Arc<T>),
    /// As [`Way::Direct`], while other opens of the inode are [`Way::Backed`] by this.
    DirectBeside(Arc<T>),
}

/// The open files, by inode.
pub(crate) struct Ways<T = BackingId> {
    inodes: Mutex<HashMap<Ino, Opens<T>>>,
}

struct Opens<T> {
    /// What the first open, and so all of them, are bound to.
    backing: Option<Backing<T>>,
    open: HashSet<OpenId>,
}

struct Backing<T> {
    file: LocalFile,
    id: Arc<T>,
}

impl<T> Default for Ways<T> {
    fn default() -> Self {
        Ways { inodes: Mutex::default() }
    }
}

impl<T> Ways<T> {
    /// The way of an open for which the file system wants `wanted`. `register` hands a local file to
    /// the kernel. The answer stands until [`Ways::release`].
    pub(crate) fn choose(
        &self,
        ino: Ino,
        open: OpenId,
        wanted: &DataPath,
        register: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> Way<T> {
        let mut inodes = self.inodes.lock().unwrap_or_else(PoisonError::into_inner);
        let opens = inodes.entry(ino).or_insert_with(|| Opens {
            backing: match wanted {
                DataPath::Passthrough(file) => Backing::register(ino, file, register),
                DataPath::Cached { .. } | DataPath::Direct => None,
            },
            open: HashSet::new(),
        });
        opens.open.insert(open);
        match (&opens.backing, wanted) {
            (Some(backing), DataPath::Passthrough(file)) if backing.is(file) => {
                Way::Backed(Arc::clone(&backing.id))
            }
            (Some(backing), _) => Way::DirectBeside(Arc::clone(&backing.id)),
            (None, DataPath::Cached { keep }) => Way::Cached { keep: *keep },
            (None, DataPath::Direct | DataPath::Passthrough(_)) => Way::Direct,
        }
    }

    /// `open` is gone; the inode's last one gives the local file back.
    pub(crate) fn release(&self, ino: Ino, open: OpenId) {
        let mut inodes = self.inodes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(opens) = inodes.get_mut(&ino) else { return };
        opens.open.remove(&open);
        if opens.open.is_empty() {
            inodes.remove(&ino);
        }
    }
}

impl<T> Backing<T> {
    fn register(
        ino: Ino,
        file: &LocalFile,
        register: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> Option<Backing<T>> {
        let id = register(file.as_fd())
            .inspect_err(|error| tracing::warn!(ino = ino.0, %error, "local file is refused"))
            .ok()?;
        Some(Backing { file: Arc::clone(file), id: Arc::new(id) })
    }

    fn is(&self, file: &LocalFile) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.file), Arc::as_ptr(file))
    }
}

/// How deep the file systems may be stacked, ours included, so that files of `dir` can back ours.
///
/// 1 leaves room for an overlay on top of our mount; a `dir` that is on an overlay itself takes it.
pub(crate) fn stack_depth(dir: &Path) -> u32 {
    let stacked = rustix::fs::statfs(dir).is_ok_and(|fs| STACKED.contains(&fs.f_type));
    if stacked { 2 } else { 1 }
}

/// Whether the kernel takes files of `dir`: registers a nameless one and gives it back.
///
/// # Errors
/// What the kernel, or the file system of `dir`, says against it.
pub(crate) fn probe(fuse: BorrowedFd<'_>, dir: &Path) -> io::Result<()> {
    let file = nameless_file(dir)?;
    let id = BackingId::create_raw(fuse, &file)?;
    close_backing(fuse, id)
}

fn nameless_file(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)?)
}

#[allow(unsafe_code)]
fn close_backing(fuse: BorrowedFd<'_>, id: u32) -> io::Result<()> {
    /// `FUSE_DEV_IOC_BACKING_CLOSE`: `_IOW(229, 2, uint32_t)` of `include/uapi/linux/fuse.h`.
    const BACKING_CLOSE: libc::Ioctl = 0x4004_e502;
    // SAFETY: the request reads four bytes through the pointer, which points to a live `u32`.
    let done = unsafe { libc::ioctl(fuse.as_raw_fd(), BACKING_CLOSE, &raw const id) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Id(u32, Arc<Mutex<Vec<u32>>>);

    impl Drop for Id {
        fn drop(&mut self) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    fn file() -> LocalFile {
        Arc::new(nameless_file(&std::env::temp_dir()).unwrap())
    }

    /// Answers in short: letters of the way, and the number of the registration.
    fn told(way: &Way<Id>) -> (char, u32) {
        match way {
            Way::Cached { .. } => ('c', 0),
            Way::Direct => ('d', 0),
            Way::Backed(id) => ('b', id.0),
            Way::DirectBeside(id) => ('x', id.0),
        }
    }

    #[test]
    fn an_inode_has_one_mode_and_one_backing_file() {
        let closed = Arc::new(Mutex::new(Vec::new()));
        let ways = Ways::default();
        let (first, second) = (file(), file());
        let choose = |open, wanted: &DataPath| {
            let register = |_: BorrowedFd<'_>| Ok(Id(open as u32, Arc::clone(&closed)));
            told(&ways.choose(Ino(7), OpenId(open), wanted, register))
        };
        let passthrough = |file: &LocalFile| DataPath::Passthrough(Arc::clone(file));
        let cached = DataPath::Cached { keep: true };

        assert_eq!(choose(1, &passthrough(&first)), ('b', 1));
        assert_eq!(choose(2, &passthrough(&first)), ('b', 1));
        assert_eq!(choose(3, &passthrough(&second)), ('x', 1));
        assert_eq!(choose(4, &DataPath::Direct), ('x', 1));
        assert_eq!(choose(5, &cached), ('x', 1));
        for open in 1..5 {
            ways.release(Ino(7), OpenId(open));
        }
        assert!(closed.lock().unwrap().is_empty());
        ways.release(Ino(7), OpenId(5));
        assert_eq!(*closed.lock().unwrap(), [1]);

        for (open, wanted, way) in [(6, &cached, 'c'), (8, &DataPath::Direct, 'd')] {
            assert_eq!(choose(open, wanted), (way, 0));
            assert_eq!(choose(open + 1, &passthrough(&second)), ('d', 0));
            ways.release(Ino(7), OpenId(open));
            ways.release(Ino(7), OpenId(open + 1));
        }
        assert_eq!(choose(10, &passthrough(&second)), ('b', 10));
    }

    #[test]
    fn a_refused_file_is_served_directly() {
        let ways = Ways::<Id>::default();
        let refuse = |_: BorrowedFd<'_>| Err(io::Error::from(io::ErrorKind::PermissionDenied));
        let way = ways.choose(Ino(1), OpenId(1), &DataPath::Passthrough(file()), refuse);
        assert_eq!(told(&way), ('d', 0));
        ways.release(Ino(1), OpenId(1));
        assert!(ways.inodes.lock().unwrap().is_empty());
    }
}

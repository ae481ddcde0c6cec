//! Local files that the kernel reads and writes by itself.
//!
//! The kernel keeps a registered file under a *backing id*. All passthrough opens of an inode must
//! name one id: a second one fails with EIO. So the first open registers the file, later ones share
//! the id, and the last release gives it back. An open that comes with another file while the first
//! is in use, or whose registration fails, is answered as direct I/O, which may stand beside
//! passthrough and goes through the file system's own read and write: slower, never wrong.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use fuser::BackingId;
use larder_vfs::{Ino, LocalFile, OpenId};
use rustix::fs::{Mode, OFlags};

/// `f_type` of stacked file systems, whose files lie one level deeper (`include/uapi/linux/magic.h`).
const STACKED: [i64; 2] = [0x794c_7630 /* overlayfs */, 0xf15f /* ecryptfs */];

/// Backing files in use, by inode. `T` is the registration, a [`BackingId`] but for tests.
pub(crate) struct Backings<T = BackingId> {
    in_use: Mutex<HashMap<Ino, Backing<T>>>,
}

struct Backing<T> {
    file: LocalFile,
    id: Arc<T>,
    opens: HashSet<OpenId>,
}

impl<T> Default for Backings<T> {
    fn default() -> Self {
        Backings { in_use: Mutex::default() }
    }
}

impl<T> Backings<T> {
    /// The id under which `open` uses `file`; `None` if it must go another way. `register` hands the
    /// file to the kernel.
    pub(crate) fn share(
        &self,
        ino: Ino,
        open: OpenId,
        file: &LocalFile,
        register: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> Option<Arc<T>> {
        let mut in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(backing) = in_use.get_mut(&ino) {
            if !std::ptr::addr_eq(Arc::as_ptr(&backing.file), Arc::as_ptr(file)) {
                tracing::debug!(ino = ino.0, "another local file is in use: direct I/O");
                return None;
            }
            backing.opens.insert(open);
            return Some(Arc::clone(&backing.id));
        }
        match register(file.as_fd()) {
            Ok(id) => {
                let id = Arc::new(id);
                let backing = Backing {
                    file: Arc::clone(file),
                    id: Arc::clone(&id),
                    opens: HashSet::from([open]),
                };
                in_use.insert(ino, backing);
                Some(id)
            }
            Err(error) => {
                tracing::warn!(ino = ino.0, %error, "kernel refuses a local file: direct I/O");
                None
            }
        }
    }

    /// `open` is gone; the last one gives the file back.
    pub(crate) fn release(&self, ino: Ino, open: OpenId) {
        let mut in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(backing) = in_use.get_mut(&ino) else { return };
        if backing.opens.remove(&open) && backing.opens.is_empty() {
            in_use.remove(&ino);
        }
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

    #[test]
    fn one_inode_has_one_backing_file() {
        let closed = Arc::new(Mutex::new(Vec::new()));
        let backings = Backings::default();
        let (ino, first, second) = (Ino(7), file(), file());
        let register = |number| {
            let closed = Arc::clone(&closed);
            move |_: BorrowedFd<'_>| Ok(Id(number, closed))
        };
        let unused = |_: BorrowedFd<'_>| -> io::Result<Id> { panic!("registered twice") };

        let id = backings.share(ino, OpenId(1), &first, register(10)).unwrap();
        assert_eq!(backings.share(ino, OpenId(2), &Arc::clone(&first), unused).unwrap().0, 10);
        assert!(backings.share(ino, OpenId(3), &second, unused).is_none());
        drop(id);

        backings.release(ino, OpenId(3));
        backings.release(ino, OpenId(1));
        assert!(closed.lock().unwrap().is_empty());
        backings.release(ino, OpenId(2));
        assert_eq!(*closed.lock().unwrap(), [10]);

        assert_eq!(backings.share(ino, OpenId(4), &second, register(11)).unwrap().0, 11);
    }

    #[test]
    fn a_refused_file_is_not_remembered() {
        let backings = Backings::<Id>::default();
        let refuse = |_: BorrowedFd<'_>| Err(io::Error::from(io::ErrorKind::PermissionDenied));
        assert!(backings.share(Ino(1), OpenId(1), &file(), refuse).is_none());
        assert!(backings.in_use.lock().unwrap().is_empty());
    }
}

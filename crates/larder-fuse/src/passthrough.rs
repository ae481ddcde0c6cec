//! The I/O mode of each open file, and the local files that the kernel itself uses.
//!
//! The kernel keeps a registered local file under a *backing id*, and holds each inode to one mode
//! (`fuse_file_io_open` in `fs/fuse/iomode.c`): while one of its opens is passthrough, every other
//! open must carry the same backing id, and while one is cached, none may be passthrough. An open
//! that breaks the rule fails with EIO. The file system cannot obey it, because it learns of a
//! release later than the kernel. So this module does, with the mode that always works: an open
//! with `FOPEN_DIRECT_IO` reads and writes through the file system, and may carry a backing id,
//! which it then does not use.
//!
//! | the inode's other opens | wanted | answered |
//! |---|---|---|
//! | none | anything | as wanted; direct if the kernel refuses the local file |
//! | passthrough | passthrough of the same file | as wanted |
//! | passthrough | anything else | direct, with the id in use |
//! | cached or direct | cached or direct | as wanted |
//! | cached or direct | passthrough | direct |
//!
//! The last line is needed for direct opens too, since mapping one into memory makes the inode
//! cached.
//!
//! The mode and backing id of each open file are also written to a ledger, which survives our
//! process: the next process that serves the mount must obey the rule for opens that it did not
//! see.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use larder_vfs::{DataPath, Ino, LocalFile, OpenId};
use rustix::fs::{Mode, OFlags};

use crate::abi::fopen;
use crate::backing::BackingId;
use crate::ledger::{FileId, Ledger, Record};

/// `f_type` of stacked file systems, whose files are on one more level
/// (`include/uapi/linux/magic.h`).
const STACKED: [i64; 2] = [0x794c_7630 /* overlayfs */, 0xf15f /* ecryptfs */];

/// How an open is answered. `T` is a registration: a [`BackingId`] except in tests.
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

impl<T> Way<T> {
    /// The flags of the open (`FOPEN_*`). With `FOPEN_PASSTHROUGH` the kernel uses the backing id.
    pub(crate) fn flags(&self) -> u32 {
        let direct = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
        match self {
            Way::Cached { keep: true } => fopen::KEEP_CACHE,
            Way::Cached { keep: false } => 0,
            Way::Direct => direct,
            Way::Backed(_) => fopen::PASSTHROUGH,
            Way::DirectBeside(_) => direct | fopen::PASSTHROUGH,
        }
    }
}

impl Way {
    /// The backing id to answer with; 0 without one.
    pub(crate) fn backing(&self) -> i32 {
        match self {
            Way::Cached { .. } | Way::Direct => 0,
            Way::Backed(id) | Way::DirectBeside(id) => id.number() as i32,
        }
    }
}

/// Numbers and ends of registrations.
pub(crate) trait Registered {
    /// The kernel's number of it.
    fn number(&self) -> u32;
}

type Register<T> = Box<dyn Fn(BorrowedFd<'_>) -> io::Result<T> + Send + Sync>;

/// The open files, by inode.
pub(crate) struct Ways<T = BackingId> {
    /// Registers a local file with the kernel; `None` where passthrough does not work: then all
    /// modes are compatible, and nothing has to be remembered.
    register: Option<Register<T>>,
    opens: Mutex<Opens<T>>,
}

struct Opens<T> {
    inodes: HashMap<Ino, Inode<T>>,
    ledger: Option<Ledger>,
}

struct Inode<T> {
    /// The registration that the first open, and so all of them, use.
    backing: Option<Backing<T>>,
    open: HashSet<OpenId>,
}

struct Backing<T> {
    file: FileId,
    id: Arc<T>,
}

impl<T: Registered> Ways<T> {
    /// Without passthrough.
    pub(crate) fn without() -> Ways<T> {
        let opens = Opens { inodes: HashMap::new(), ledger: None };
        Ways { register: None, opens: Mutex::new(opens) }
    }

    /// With passthrough: `register` registers a local file with the kernel. Opens in `ledger`, made
    /// by earlier processes, count; `known` makes the registration for an id that the kernel has
    /// already.
    pub(crate) fn with(
        register: Register<T>,
        ledger: Option<(Ledger, Vec<Record>)>,
        known: impl Fn(u32) -> T,
    ) -> Ways<T> {
        let (ledger, records) =
            ledger.map_or((None, Vec::new()), |(ledger, records)| (Some(ledger), records));
        let mut inodes: HashMap<Ino, Inode<T>> = HashMap::new();
        for record in records {
            let inode = inodes.entry(Ino(record.ino)).or_insert_with(|| Inode {
                backing: (record.backing != 0)
                    .then(|| Backing { file: record.file, id: Arc::new(known(record.backing)) }),
                open: HashSet::new(),
            });
            inode.open.insert(OpenId(record.open));
        }
        Ways { register: Some(register), opens: Mutex::new(Opens { inodes, ledger }) }
    }

    /// The I/O mode of an open for which the file system wants `wanted`. It stays until
    /// [`Ways::release`].
    pub(crate) fn choose(&self, ino: Ino, open: OpenId, wanted: &DataPath) -> Way<T> {
        let Some(register) = &self.register else {
            return match wanted {
                DataPath::Cached { keep } => Way::Cached { keep: *keep },
                DataPath::Direct | DataPath::Passthrough(_) => Way::Direct,
            };
        };
        let mut opens = self.opens.lock().unwrap_or_else(PoisonError::into_inner);
        let opens = &mut *opens;
        let mut is_first = false;
        let inode = opens.inodes.entry(ino).or_insert_with(|| {
            is_first = true;
            let backing = match wanted {
                DataPath::Passthrough(file) => Backing::register(ino, file, register),
                DataPath::Cached { .. } | DataPath::Direct => None,
            };
            Inode { backing, open: HashSet::new() }
        });
        inode.open.insert(open);
        if let Some(ledger) = &mut opens.ledger {
            let (backing, file) = inode
                .backing
                .as_ref()
                .map_or((0, FileId::default()), |backing| (backing.id.number(), backing.file));
            ledger.opened(Record { ino: ino.0, open: open.0, backing, file });
        }
        match (&inode.backing, wanted) {
            (Some(backing), DataPath::Passthrough(file)) if is_first || backing.is(file) => {
                Way::Backed(Arc::clone(&backing.id))
            }
            (Some(backing), _) => Way::DirectBeside(Arc::clone(&backing.id)),
            (None, DataPath::Cached { keep }) => Way::Cached { keep: *keep },
            (None, DataPath::Direct | DataPath::Passthrough(_)) => Way::Direct,
        }
    }

    /// `open` is gone; the inode's last open gives the local file back.
    pub(crate) fn release(&self, ino: Ino, open: OpenId) {
        let mut opens = self.opens.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(inode) = opens.inodes.get_mut(&ino) else { return };
        inode.open.remove(&open);
        let gone = inode.open.is_empty().then(|| opens.inodes.remove(&ino));
        if let Some(ledger) = &mut opens.ledger {
            ledger.released(ino.0, open.0);
        }
        drop(opens);
        // If it was the last one, this tells the kernel.
        drop(gone);
    }
}

impl<T> Backing<T> {
    fn register(ino: Ino, file: &LocalFile, register: &Register<T>) -> Option<Backing<T>> {
        let registered =
            FileId::of((**file).as_fd()).and_then(|id| Ok((id, register((**file).as_fd())?)));
        let (file, id) = registered
            .inspect_err(|error| tracing::warn!(ino = ino.0, %error, "local file is refused"))
            .ok()?;
        Some(Backing { file, id: Arc::new(id) })
    }

    /// A registered file is open, so its number is not given to another one.
    fn is(&self, file: &LocalFile) -> bool {
        FileId::of((**file).as_fd()).is_ok_and(|id| id == self.file)
    }
}

/// How deep the file systems may be stacked, ours included, so that files of `dir` can back files
/// of ours.
///
/// 1 leaves room for an overlay on top of our mount; a `dir` on an overlay needs that level itself.
pub(crate) fn stack_depth(dir: &Path) -> u32 {
    let stacked = rustix::fs::statfs(dir).is_ok_and(|fs| STACKED.contains(&fs.f_type));
    if stacked { 2 } else { 1 }
}

/// A nameless file in `dir`, to test whether the kernel accepts files from there.
///
/// # Errors
/// Those of the file system of `dir`.
pub(crate) fn nameless_file(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Id(u32, Arc<Mutex<Vec<u32>>>);

    impl Registered for Id {
        fn number(&self) -> u32 {
            self.0
        }
    }

    impl Drop for Id {
        fn drop(&mut self) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    fn file() -> LocalFile {
        Arc::new(nameless_file(&std::env::temp_dir()).unwrap())
    }

    /// An answer in short: letters of the I/O mode, and the number of the registration.
    fn shown(way: &Way<Id>) -> (char, u32) {
        match way {
            Way::Cached { .. } => ('c', 0),
            Way::Direct => ('d', 0),
            Way::Backed(id) => ('b', id.0),
            Way::DirectBeside(id) => ('x', id.0),
        }
    }

    /// Registrations are numbered from 1 on; those given back are recorded in `closed`.
    fn register(closed: &Arc<Mutex<Vec<u32>>>) -> Register<Id> {
        let (closed, next) = (Arc::clone(closed), Mutex::new(0));
        Box::new(move |_| {
            let mut next = next.lock().unwrap();
            *next += 1;
            Ok(Id(*next, Arc::clone(&closed)))
        })
    }

    fn passthrough(file: &LocalFile) -> DataPath {
        DataPath::Passthrough(Arc::clone(file))
    }

    #[test]
    fn an_inode_has_one_mode_and_one_backing_file() {
        let closed = Arc::new(Mutex::new(Vec::new()));
        let ways = Ways::with(register(&closed), None, |_| unreachable!());
        let (first, second) = (file(), file());
        let choose = |open, wanted: &DataPath| shown(&ways.choose(Ino(7), OpenId(open), wanted));
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
        assert_eq!(choose(10, &passthrough(&second)), ('b', 2));
    }

    #[test]
    fn the_next_worker_keeps_the_rule() {
        let closed = Arc::new(Mutex::new(Vec::new()));
        let (memory, wanted, other) = (Ledger::memory().unwrap(), file(), file());
        let before = {
            let ledger = Ledger::open(memory.try_clone().unwrap()).unwrap();
            Ways::with(register(&closed), Some(ledger), |_| unreachable!())
        };
        before.choose(Ino(1), OpenId(1), &passthrough(&wanted));
        before.choose(Ino(2), OpenId(2), &DataPath::Cached { keep: false });
        before.choose(Ino(3), OpenId(3), &passthrough(&other));
        before.release(Ino(3), OpenId(3));
        // A process that is killed drops nothing.
        std::mem::forget(before);
        closed.lock().unwrap().clear();

        let known = |id| Id(id, Arc::clone(&closed));
        let ledger = Ledger::open(memory).unwrap();
        let after = Ways::with(register(&Arc::default()), Some(ledger), known);
        let choose =
            |ino, open, wanted: &DataPath| shown(&after.choose(Ino(ino), OpenId(open), wanted));
        assert_eq!(choose(1, 4, &passthrough(&wanted)), ('b', 1));
        assert_eq!(choose(1, 5, &DataPath::Cached { keep: true }), ('x', 1));
        assert_eq!(choose(2, 6, &passthrough(&wanted)), ('d', 0));
        assert_eq!(choose(3, 7, &passthrough(&other)), ('b', 1), "the first of this process");
        for open in [1, 4, 5] {
            after.release(Ino(1), OpenId(open));
        }
        assert_eq!(*closed.lock().unwrap(), [1]);
    }

    #[test]
    fn a_refused_file_is_served_directly() {
        let refuse = |_: BorrowedFd<'_>| Err(io::Error::from(io::ErrorKind::PermissionDenied));
        let ways = Ways::<Id>::with(Box::new(refuse), None, |_| unreachable!());
        let way = ways.choose(Ino(1), OpenId(1), &passthrough(&file()));
        assert_eq!(shown(&way), ('d', 0));
        ways.release(Ino(1), OpenId(1));
        assert!(ways.opens.lock().unwrap().inodes.is_empty());
    }

    #[test]
    fn without_passthrough_all_modes_go_together() {
        let ways = Ways::<Id>::without();
        assert_eq!(shown(&ways.choose(Ino(1), OpenId(1), &DataPath::Direct)), ('d', 0));
        assert_eq!(
            shown(&ways.choose(Ino(1), OpenId(2), &DataPath::Cached { keep: true })),
            ('c', 0)
        );
    }
}

//! [`FileSystem`]: what a front door asks of us.
//!
//! An answer from the cache is returned on the calling thread ([`Answer::Now`]); an answer that
//! needs a server, or a slow disk, is a future that the front door hands to its runtime
//! ([`Answer::Later`]).
//!
//! There are two kinds of front doors. The kernel opens files and can be told for how long to trust
//! an answer ([`Fresh::ttl`]); an NFS client opens nothing and names files by handles that must
//! survive our restart ([`FileSystem::handle`], [`FileSystem::resolve`]).

use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::future::Future;
use std::ops::Range;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{
    Access, Attr, Change, Cred, Error, GivenUp, Handle, Ino, Kind, Lock, LockOwner, New, Removal,
    Result, Seek, SetAttr, SetXattr, SpaceChange, Stability, StatFs, Verifier,
};

/// An answer that is ready, or a future of one.
pub enum Answer<T> {
    /// It was answered on the caller's thread.
    Now(Result<T>),
    /// A future for the caller's runtime to drive.
    Later(Pin<Box<dyn Future<Output = Result<T>> + Send + 'static>>),
}

impl<T> Answer<T> {
    /// An error that is known at once.
    pub fn fail(error: Error) -> Answer<T> {
        Answer::Now(Err(error))
    }

    /// An answer that is known at once.
    pub fn ok(value: T) -> Answer<T> {
        Answer::Now(Ok(value))
    }

    /// An answer that `future` will give.
    pub fn later(future: impl Future<Output = Result<T>> + Send + 'static) -> Answer<T> {
        Answer::Later(Box::pin(future))
    }

    /// Waits for the answer as a future.
    pub async fn wait(self) -> Result<T> {
        match self {
            Answer::Now(result) => result,
            Answer::Later(future) => future.await,
        }
    }
}

/// A file system as a kernel or an NFS client sees it.
///
/// Every operation on a file takes the caller's credentials; rights are decided by the server, or
/// from what the server said before. Names are single components, never empty, without `/` and NUL;
/// only [`FileSystem::lookup`] understands `..`.
pub trait FileSystem: Send + Sync + 'static {
    /// Gives the file system the interface through which it can drop what the kernel caches. Called
    /// once, before any other operation; front doors without a cache of their own never call it.
    fn attach(&self, _kernel: Arc<dyn Kernel>) {}

    /// Looks up `name` (or `..`) in `parent`.
    fn lookup(&self, cred: &Cred, parent: Ino, name: &OsStr) -> Answer<Lookup>;

    /// The kernel drops `count` references to `ino`, gained by lookup, make, create, link and
    /// listing. It drops them together, when it lets go of the inode. The number stays the file's.
    fn forget(&self, _ino: Ino, _count: u64) {}

    /// Attributes of `ino`.
    fn getattr(&self, cred: &Cred, ino: Ino) -> Answer<Fresh>;

    /// Attributes of `ino` for a process that asks for them (stat(2), fstat(2)): unless another
    /// process changes the file, those that it will find once it has closed it.
    /// [`FileSystem::getattr`] is for a kernel that needs them for itself.
    fn stat(&self, cred: &Cred, ino: Ino) -> Answer<Fresh> {
        self.getattr(cred, ino)
    }

    /// Sets attributes. Durable at the server on return. `open` is the open file through which
    /// ftruncate(2) came, if it did: then the right to write was checked at open. Also returns how
    /// the file changed, as far as that is known.
    fn setattr(
        &self,
        cred: &Cred,
        ino: Ino,
        open: Option<OpenId>,
        set: SetAttr,
    ) -> Answer<(Fresh, Change)>;

    /// Which of the rights in `wanted` the caller has.
    fn access(&self, cred: &Cred, ino: Ino, wanted: Access) -> Answer<Access>;

    /// Target of a symbolic link.
    fn readlink(&self, cred: &Cred, ino: Ino) -> Answer<OsString>;

    /// Makes an object that is not opened: directory, symbolic link, special file, or regular file
    /// (for front doors that do not open).
    fn make(&self, cred: &Cred, parent: Ino, name: &OsStr, new: New, set: SetAttr)
    -> Answer<Entry>;

    /// Removes an entry. An open file lives on until its last release.
    fn remove(&self, cred: &Cred, parent: Ino, name: &OsStr, what: Removal) -> Answer<()>;

    /// Renames, replacing an existing target unless `flags` forbid it.
    fn rename(
        &self,
        cred: &Cred,
        from: (Ino, &OsStr),
        to: (Ino, &OsStr),
        flags: RenameFlags,
    ) -> Answer<()>;

    /// Gives `ino` another name.
    fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: &OsStr) -> Answer<Entry>;

    /// Opens a regular file: checks rights, and freshness as the coherence model requires.
    fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Answer<Opened>;

    /// Creates a regular file and opens it; an existing one is opened unless `flags.exclusive`.
    fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &OsStr,
        set: SetAttr,
        flags: OpenFlags,
    ) -> Answer<(Entry, Opened)>;

    /// Reads up to `len` bytes at `offset`; fewer only at the end of the file.
    fn read(
        &self,
        cred: &Cred,
        ino: Ino,
        open: Option<OpenId>,
        offset: u64,
        len: u32,
    ) -> Answer<Bytes>;

    /// Writes `data` at `offset`, at least as durably as `stability` says.
    fn write(
        &self,
        cred: &Cred,
        ino: Ino,
        open: Option<OpenId>,
        offset: u64,
        data: &[u8],
        stability: Stability,
    ) -> Answer<Written>;

    /// A descriptor of the open file was closed: what close-to-open promises is done on return, and
    /// `owner`, if given, has no locks on the file any more.
    fn flush(&self, cred: &Cred, ino: Ino, open: OpenId, owner: Option<LockOwner>) -> Answer<()>;

    /// Locks a range of the file through an open file, for as long as that is open. Parts of the
    /// range that the owner already has change their mode. If another owner has part of it in a
    /// conflicting mode, waits until that is released or the caller gives up; without `wait`, fails
    /// with [`Error::Locked`]. The new holder sees what the previous holder has written.
    /// [`Error::NotSupported`] by default, for front doors that keep locks to themselves then.
    fn lock(&self, _ino: Ino, _open: OpenId, _lock: Lock, _wait: Option<GivenUp>) -> Answer<()> {
        Answer::fail(Error::NotSupported)
    }

    /// Unlocks what `owner` has of the range. What was written so far is at the server before
    /// others can lock the range; if that fails, the error says why, and the range is unlocked all
    /// the same.
    fn unlock(
        &self,
        _ino: Ino,
        _open: OpenId,
        _owner: LockOwner,
        _range: Range<u64>,
    ) -> Answer<()> {
        Answer::fail(Error::NotSupported)
    }

    /// A lock that now conflicts with `lock`, if there is one. Of another mount's lock only the
    /// mode is known: it is reported with the range that was asked for, and process 0.
    fn test_lock(&self, _ino: Ino, _open: OpenId, _lock: Lock) -> Answer<Option<Lock>> {
        Answer::fail(Error::NotSupported)
    }

    /// Whether files have extended attributes. A kernel that learns so also asks for some before
    /// writes, so this should be true only if they are wanted.
    fn has_xattrs(&self) -> bool {
        false
    }

    /// Value of the extended attribute `name` (without `user.`), or `None` if there is none.
    /// [`Error::NotSupported`] by default, as for the other two.
    fn xattr(&self, _cred: &Cred, _ino: Ino, _name: &OsStr) -> Answer<Option<Bytes>> {
        Answer::fail(Error::NotSupported)
    }

    /// Names of all extended attributes.
    fn xattrs(&self, _cred: &Cred, _ino: Ino) -> Answer<Vec<OsString>> {
        Answer::fail(Error::NotSupported)
    }

    /// Sets or removes an extended attribute.
    fn set_xattr(&self, _cred: &Cred, _ino: Ino, _set: SetXattr) -> Answer<()> {
        Answer::fail(Error::NotSupported)
    }

    /// Makes what is written by an open file from now on as durable as files of this class, which
    /// is named as the file system names it. A class that was set for the file itself has priority:
    /// then this changes nothing. [`Error::InvalidArgument`] if there is no such class,
    /// [`Error::NotSupported`], by default too, if there are no classes.
    fn hint_class(&self, _cred: &Cred, _ino: Ino, _open: OpenId, _class: String) -> Answer<()> {
        Answer::fail(Error::NotSupported)
    }

    /// Gives room to a range of a file that is open for writing, or makes it read as zeros
    /// (fallocate(2)). All earlier writes of the file, and this change, are durable at the server
    /// on return, and every client sees them.
    ///
    /// [`Error::NotSupported`], by default too, if the server cannot do it; [`Error::NoSpace`] if
    /// there is not room for all of the range: some of it may have room then.
    fn change_space(
        &self,
        _cred: &Cred,
        _ino: Ino,
        _open: OpenId,
        _change: SpaceChange,
    ) -> Answer<()> {
        Answer::fail(Error::NotSupported)
    }

    /// The first byte of data or of a hole from `offset` on in a file that is open (lseek(2)). All
    /// earlier writes of this mount count.
    ///
    /// [`Error::NoData`] if there is none. [`Error::NotSupported`], by default too, if holes are
    /// not known for any file: the caller may treat all of every file as data from then on.
    fn seek(
        &self,
        _cred: &Cred,
        _ino: Ino,
        _open: OpenId,
        _offset: u64,
        _what: Seek,
    ) -> Answer<u64> {
        Answer::fail(Error::NotSupported)
    }

    /// Whether [`FileSystem::copy_range`] may copy anything. If this is false, the kernel reads and
    /// writes itself, and does not ask again.
    fn copies(&self) -> bool {
        false
    }

    /// Copies up to `len` bytes from a file that is open for reading to one that is open for
    /// writing (copy_file_range(2)), at the server; answers how many. Fewer at the end of the
    /// source, and none beyond it; fewer also if the server copies no more in one call. All earlier
    /// writes of both files count, and what was copied is durable at the server on return.
    ///
    /// [`Error::NotSupported`], by default too, if nothing was copied: then the caller had better
    /// read and write.
    fn copy_range(
        &self,
        _cred: &Cred,
        _from: OpenOffset,
        _to: OpenOffset,
        _len: u64,
    ) -> Answer<u64> {
        Answer::fail(Error::NotSupported)
    }

    /// Makes all earlier changes of names in a directory durable before it returns, if its class
    /// requires that. `None`, by default, if each change is durable when it is answered, so that
    /// there is nothing to ask for.
    fn sync_names(&self, _cred: &Cred, _dir: Ino) -> Option<Answer<()>> {
        None
    }

    /// All earlier writes of the file are durable at the server on return. `open` is the open file
    /// of the caller, if it has one: the failure of a delayed write is reported to each open file
    /// once.
    fn fsync(&self, cred: &Cred, ino: Ino, open: Option<OpenId>) -> Answer<Verifier>;

    /// The last descriptor of the open file is closed, and all locks that were taken through it
    /// end.
    fn release(&self, ino: Ino, open: OpenId) -> Answer<()>;

    /// Checks that the caller may list the directory.
    fn opendir(&self, cred: &Cred, ino: Ino) -> Answer<()>;

    /// Lists entries after the position `offset` (0 is the beginning) until `bytes_max` bytes of
    /// reply are about full; an empty answer is the end. `.` and `..` are left out. With
    /// `plus`, entries carry [`Entry`]s where they can, and each such entry counts as one
    /// lookup.
    fn readdir(
        &self,
        cred: &Cred,
        ino: Ino,
        offset: u64,
        bytes_max: u32,
        plus: bool,
    ) -> Answer<Vec<DirEntry>>;

    /// Space and limits.
    fn statfs(&self, cred: &Cred, ino: Ino) -> Answer<StatFs>;

    /// A name of the file that survives our restart, at most 64 bytes (NFSv3's limit).
    fn handle(&self, ino: Ino) -> Answer<Handle>;

    /// The file that `handle` names.
    fn resolve(&self, handle: &Handle) -> Answer<Ino>;
}

/// Resolves once the kernel has dropped what it was asked to drop, or will never drop it.
pub type Told = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What [`Kernel::hold`] returns: it holds until it is dropped.
pub type Hold = Box<dyn Any + Send + Sync>;

/// What a file system may ask of the kernel that it serves. A call only queues and never waits for
/// the kernel, so it may be made with a lock held.
pub trait Kernel: Send + Sync + 'static {
    /// Whether [`DataPath::Passthrough`] works at this front door.
    fn passthrough(&self) -> bool;

    /// Drops cached attributes and, unless `attributes_only`, cached pages of `ino`.
    fn invalidate(&self, ino: Ino, attributes_only: bool);

    /// Waits until the kernel has dropped what [`Kernel::invalidate`] has asked for `ino` so far;
    /// `None` if it already has. The kernel drops a page once the read or write that holds it is
    /// answered, so an answer that waits for this must not be one that the kernel needs for that:
    /// an open may wait. A create must not wait, because it holds the lock of its directory, for
    /// which [`Kernel::invalidate_entry`] waits.
    fn told(&self, _ino: Ino) -> Option<Told> {
        None
    }

    /// Puts off what [`Kernel::invalidate`] asks for `ino` from now on, until the returned value is
    /// dropped: the kernel is to get an answer first. For moments: what is asked for other files
    /// waits as well.
    fn hold(&self, _ino: Ino) -> Hold {
        Box::new(())
    }

    /// Drops the cached entry `name` of `parent`.
    fn invalidate_entry(&self, parent: Ino, name: &OsStr);

    /// Makes the kernel look up every name again before it trusts it, in all directories. `false`
    /// if the kernel cannot do this: then it trusts names for as long as they were given.
    fn distrust_names(&self) -> bool {
        false
    }

    /// Calls `then` once everything requested before has taken effect, except for single names.
    fn after(&self, then: Box<dyn FnOnce() + Send>) {
        then();
    }
}

/// Attributes, and for how long the caller may use them without asking again.
#[derive(Clone, Copy, Debug)]
pub struct Fresh {
    /// The attributes.
    pub attr: Attr,
    /// How long they may be trusted.
    pub ttl: Duration,
}

/// The file that a name stands for.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The file.
    pub ino: Ino,
    /// Its attributes.
    pub fresh: Fresh,
    /// How long the name may be trusted.
    pub ttl: Duration,
}

/// Answer of [`FileSystem::lookup`].
#[derive(Clone, Copy, Debug)]
pub enum Lookup {
    /// The name stands for this file.
    Found(Entry),
    /// There is no such name, and the caller may believe it for `ttl`.
    Absent {
        /// How long the absence may be trusted; zero: not at all.
        ttl: Duration,
    },
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Cut to length zero (`O_TRUNC`).
    pub truncate: bool,
    /// Every write goes to the end (`O_APPEND`).
    pub append: bool,
    /// Past the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Each write is durable when it returns (`O_SYNC`, `O_DSYNC`).
    pub sync: bool,
    /// Only if it does not exist yet (`O_EXCL`).
    pub exclusive: bool,
    /// For execution (`FMODE_EXEC`): the right to execute suffices.
    pub execute: bool,
}

impl OpenFlags {
    /// As the default, which is no constant.
    const NONE: OpenFlags = OpenFlags {
        read: false,
        write: false,
        truncate: false,
        append: false,
        direct: false,
        sync: false,
        exclusive: false,
        execute: false,
    };
    /// For reading (`O_RDONLY`).
    pub const READ: OpenFlags = OpenFlags { read: true, ..OpenFlags::NONE };
    /// For writing (`O_WRONLY`).
    pub const WRITE: OpenFlags = OpenFlags { write: true, ..OpenFlags::NONE };
    /// For both (`O_RDWR`).
    pub const READ_WRITE: OpenFlags = OpenFlags { write: true, ..OpenFlags::READ };
}

/// Number of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpenId(pub u64);

/// An offset in an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOffset {
    /// The file.
    pub ino: Ino,
    /// The open file.
    pub open: OpenId,
    /// Offset in bytes.
    pub offset: u64,
}

/// Answer of [`FileSystem::open`].
#[derive(Clone)]
pub struct Opened {
    /// Names the open file in later calls.
    pub id: OpenId,
    /// The path that the data takes.
    pub path: DataPath,
}

/// A file on the local disk that the kernel may read and write itself. It is open while it is held;
/// opens of one inode that share it are answered with clones of one `Arc`.
pub type LocalFile = Arc<dyn AsFd + Send + Sync>;

/// The path that the data of an open file takes.
#[derive(Clone)]
pub enum DataPath {
    /// The kernel reads and writes the local file itself (FUSE passthrough). Only returned to a
    /// front door whose [`Kernel::passthrough`] is true. The file system does not see such writes
    /// until [`FileSystem::flush`], [`FileSystem::fsync`] or [`FileSystem::release`].
    Passthrough(LocalFile),
    /// Through the page cache; `keep` says that earlier pages are still valid.
    Cached {
        /// Whether the kernel keeps the pages it has.
        keep: bool,
    },
    /// Past the page cache: every read and write is a call.
    Direct,
}

/// How a rename treats an existing target (renameat2(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// Fail with [`Error::Exists`] if the target exists.
    pub no_replace: bool,
    /// Swap the two.
    pub exchange: bool,
}

/// Answer of [`FileSystem::write`].
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// Bytes taken: all of them.
    pub len: u32,
    /// How durable they are.
    pub stability: Stability,
    /// To compare with that of [`FileSystem::fsync`].
    pub verifier: Verifier,
    /// How the file changed, as far as that is known.
    pub change: Change,
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    /// Its name.
    pub name: OsString,
    /// The server's inode number.
    pub fileid: u64,
    /// Its type, if known.
    pub kind: Option<Kind>,
    /// Position after this entry.
    pub offset: u64,
    /// What the name stands for, if known and requested.
    pub entry: Option<Entry>,
    /// Only another client knows the attributes: who asks for them waits for that client, so
    /// nobody asks before a process does.
    pub is_elsewhere: bool,
}

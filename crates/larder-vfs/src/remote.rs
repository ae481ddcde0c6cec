//! [`Remote`]: what we ask of a server.
//!
//! The methods are those that network file protocols share, in the form that serves a cache best:
//! attributes that come with a reply are passed up, and so are the attributes that the server saw
//! just before the operation, if it reports them (weak cache consistency, RFC 1813, 2.6).
//!
//! Contract of every implementation, checked by [`crate::conformance`]:
//! - Calls may be made from many tasks at once; each carries the caller's credentials, and the
//!   server checks them.
//! - A call ends: with an answer, or with [`crate::Error::TimedOut`] after the mount's limit
//!   ([`Remote::call_limit`]), and not after [`Cred::deadline`]. While the server is known to be
//!   away for longer than the limit, it ends at once. Dropping the future abandons the answer; the
//!   server may still carry the call out.
//! - Answers are never older than the call.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;

use crate::{
    Access, Attr, Change, Cookie, CopyEnd, Cred, Deferring, Error, Handle, InArchive, Intent,
    Lease, Listing, LockChange, LockMode, Made, New, RemoteCopied, RemoteOpened, Removal,
    ReservedLock, Result, Seek, SetAttr, SetXattr, SpaceChange, StatFs, StoredPart, Time, Token,
    Watcher,
};

/// A future answer. Boxing costs nothing compared with an RPC.
pub type Future<'a, T> = Pin<Box<dyn std::future::Future<Output = Result<T>> + Send + 'a>>;

/// A server, or something that stands for one.
pub trait Remote: Send + Sync + 'static {
    /// The root of the export.
    fn root(&self) -> Future<'_, Found>;

    /// Limits and preferences of the server.
    fn limits(&self) -> RemoteLimits;

    /// Attributes of `file`.
    fn getattr<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, Attr>;

    /// Sets attributes. With `guard`, only if the file's ctime is still that
    /// ([`crate::Error::TryAgain`] if not).
    fn setattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        set: SetAttr,
        guard: Option<Time>,
    ) -> Future<'a, Changed>;

    /// Which of the rights in `wanted` the caller has, in the server's judgement; and, from a
    /// server that grants [leases](Remote::gives_leases), a lease if it is available.
    fn access<'a>(&'a self, cred: &'a Cred, file: &'a Handle, wanted: Access)
    -> Future<'a, Judged>;

    /// Whether [`Remote::access`] may return a lease, so that it is worth more than
    /// [`Remote::getattr`].
    fn gives_leases(&self) -> bool {
        false
    }

    /// Excludes other clients from `file`, and describes it as it is then: from now on, a call of
    /// theirs that reads or changes its bytes, or of a directory its names, waits until
    /// [`Watcher::write_back`] has ended, except in the first moments after a restart of the
    /// server. `None` if that cannot be had now.
    fn exclude<'a>(&'a self, _cred: &'a Cred, _file: &'a Handle) -> Future<'a, Option<Attr>> {
        Box::pin(async { Ok(None) })
    }

    /// Whether other clients are excluded from `file`, and none of them waits.
    fn is_excluding(&self, _file: &Handle) -> bool {
        false
    }

    /// Whether other clients are excluded from `file` still, although one of them may wait: what it
    /// gets to see includes everything that is sent before [`Watcher::write_back`] has ended.
    fn still_excludes(&self, file: &Handle) -> bool {
        self.is_excluding(file)
    }

    /// Tells the server that this machine alone has `bytes` bytes of a file, which is empty at the
    /// server, and from which other clients are excluded: who asks for the file makes
    /// [`Watcher::write_back`] be called, and waits until [`Remote::release`] says that the bytes
    /// are at the server. If this client is gone before, they count as lost there. Returns whether
    /// the server has taken note: else the bytes must be sent.
    fn retain<'a>(&'a self, _: &'a Cred, _file: &'a Handle, _bytes: u64) -> Future<'a, bool> {
        Box::pin(async { Ok(false) })
    }

    /// Whether the server was told that this machine alone has bytes of a file, and not since that
    /// it does not.
    fn retains(&self, _file: &Handle) -> bool {
        false
    }

    /// What was retained of a file is at the server now, or is kept otherwise. `by_others`: an
    /// earlier process of this mount may have retained it.
    fn release<'a>(&'a self, _: &'a Cred, _: &'a Handle, _by_others: bool) -> Future<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    /// This server with names for which this machine answers, if it has such names.
    fn deferring(&self) -> Option<&dyn Deferring> {
        None
    }

    /// Sets the watcher that is notified when leases end. To be called once, before the first call;
    /// without a watcher leases end all the same.
    fn watch(&self, _watcher: std::sync::Weak<dyn Watcher>) {}

    /// Opens `file`: checks the rights of the caller, describes the file, grants a lease if one is
    /// available, and returns a token if the server has opens, all in one round trip where the
    /// protocol allows. A missing right is no error here: `granted` says which rights the caller
    /// has.
    ///
    /// As long as the token is open, the file keeps its identity: its handle is given to no other
    /// file, and it is found whatever another client does to its names. The client passes the token
    /// with reads, writes and commits of this file by every user to whom it allows them; the server
    /// may check them by the rights of the user who opened. A token that is no longer valid
    /// (closed, or lost with the connection or the server) counts as none: the call is carried out
    /// all the same, by a new open or without one.
    ///
    /// By default the answer of [`Remote::access`], without a token, for servers that have no
    /// opens.
    fn open<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        intent: Intent,
    ) -> Future<'a, RemoteOpened> {
        Box::pin(async move {
            if intent.rights == Access::NONE {
                return Ok(RemoteOpened::unknown());
            }
            let Judged { granted, attr, lease } = self.access(cred, file, intent.rights).await?;
            Ok(RemoteOpened { granted, attr, lease, token: None })
        })
    }

    /// Closes the open that a token identifies, whichever clones of it are left. Closing it again
    /// does nothing. Nothing that was written depends on it: what was committed is durable.
    ///
    /// # Errors
    /// Whatever prevents informing the server; the open is given up all the same.
    fn close<'a>(&'a self, _cred: &'a Cred, _token: Token) -> Future<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Locks or unlocks bytes of `file` on behalf of this mount, which is one holder to the server:
    /// all of `changes`, which do not overlap, or none. Does not wait for others. A server that
    /// cannot unlock part of an exclusive lock at once may keep all of it until none of it is to be
    /// exclusive. Locks last until they are changed, the server forgets `file`, or the mount ends;
    /// if the connection is lost, the implementation takes them again or reports their loss
    /// ([`Watcher::locks_lost`]). While they are held, they do not hinder reads and writes of this
    /// mount. Returns attributes from after the locks were taken.
    ///
    /// # Errors
    /// [`Error::Locked`] if another holder has part of a range; nothing has changed then. An unlock
    /// cannot fail for good: if the server cannot be told now, the range is no longer held once it
    /// is reached. [`Error::NotSupported`] by default.
    fn lock<'a>(
        &'a self,
        _cred: &'a Cred,
        _file: &'a Handle,
        _changes: &'a [LockChange],
    ) -> Future<'a, Attr> {
        Box::pin(std::future::ready(Err(Error::NotSupported)))
    }

    /// Waits until `changes`, which were refused with [`Error::Locked`], are available: then the
    /// server reserves them for this mount until [`Remote::lock`] has been called, the answer is
    /// dropped, or a time that the server sets is over. The longest waiter is served first.
    /// Dropping the future ends the wait.
    ///
    /// `None` at once, by default too, if the server does not notify waiters: then the caller must
    /// ask repeatedly.
    fn await_lock<'a>(
        &'a self,
        _cred: &'a Cred,
        _file: &'a Handle,
        _changes: &'a [LockChange],
    ) -> Future<'a, Option<ReservedLock>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// How another holder has part of `range`, if that prevents this mount from having it in
    /// `mode`. Ranges that this mount itself has locked may be left out: not every server can be
    /// asked about them.
    fn test_lock<'a>(
        &'a self,
        _cred: &'a Cred,
        _file: &'a Handle,
        _range: Range<u64>,
        _mode: LockMode,
    ) -> Future<'a, Option<LockMode>> {
        Box::pin(std::future::ready(Err(Error::NotSupported)))
    }

    /// Value of the extended attribute `name` (without `user.`), or `None` if there is none.
    ///
    /// # Errors
    /// [`Error::NotSupported`], by default too, if the server has no extended attributes.
    fn xattr<'a>(
        &'a self,
        _cred: &'a Cred,
        _file: &'a Handle,
        _name: &'a OsStr,
    ) -> Future<'a, Option<Bytes>> {
        Box::pin(std::future::ready(Err(Error::NotSupported)))
    }

    /// Names of all extended attributes that the caller may see, in any order.
    ///
    /// # Errors
    /// As of [`Remote::xattr`].
    fn xattrs<'a>(&'a self, _cred: &'a Cred, _file: &'a Handle) -> Future<'a, Vec<OsString>> {
        Box::pin(std::future::ready(Err(Error::NotSupported)))
    }

    /// Sets or removes an extended attribute. As durable at the server as a change of attributes.
    ///
    /// # Errors
    /// As of [`Remote::xattr`]; [`Error::Exists`] and [`Error::NoAttribute`] as `set` asks for
    /// them; [`Error::TooLarge`] or [`Error::NoSpace`] if it is more than the server accepts.
    fn set_xattr<'a>(
        &'a self,
        _cred: &'a Cred,
        _file: &'a Handle,
        _set: SetXattr,
    ) -> Future<'a, Change> {
        Box::pin(std::future::ready(Err(Error::NotSupported)))
    }

    /// Looks `name` up in `dir`. That a name does not exist is an answer, not an error.
    fn lookup<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, LookedUp>;

    /// Target of a symbolic link, and its attributes if the reply has them.
    fn readlink<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
    ) -> Future<'a, (OsString, Option<Attr>)>;

    /// Reads `len` bytes at `offset`; fewer only at the end of the file. `len` may exceed
    /// [`RemoteLimits::read_max`]: the implementation cuts it then. Through `open`, if there is
    /// one.
    fn read<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        offset: u64,
        len: u32,
    ) -> Future<'a, RemoteRead>;

    /// Writes all of `data` at `offset`, at least as durably as `stability` says on return. Through
    /// `open`, if there is one for writing.
    fn write<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Future<'a, RemoteWritten>;

    /// Makes earlier [`Stability::Unstable`] writes in `range` durable; an empty range means the
    /// whole file. If the verifier differs from a write's, the server may have lost that write.
    fn commit<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        range: Range<u64>,
    ) -> Future<'a, Committed>;

    /// Gives room to a range of a regular file, or makes it read as zeros. Durable at the server on
    /// return; earlier unstable writes count as written. Through `open`, if there is one for
    /// writing.
    ///
    /// # Errors
    /// [`Error::NotSupported`], by default too, if the server cannot do that, with this file or
    /// with any; nothing has changed then. [`Error::NoSpace`] if there is not room for all of it:
    /// some of it may have room then, and the size is as before.
    fn change_space<'a>(
        &'a self,
        _cred: &'a Cred,
        _file: &'a Handle,
        _open: Option<&'a Token>,
        _change: &'a SpaceChange,
    ) -> Future<'a, Change> {
        Box::pin(std::future::ready(Err(Error::NotSupported)))
    }

    /// Whether [`Remote::seek`] may find holes: if not, callers need not ask.
    fn tells_holes(&self) -> bool {
        false
    }

    /// The first byte of data or of a hole from `offset` on, as in [`Seek`]. Bytes written through
    /// this mount are data. Through `open`, if there is one for reading.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is none, and if `offset` is not in the file.
    /// [`Error::NotSupported`], by default too, if the server does not report holes.
    fn seek<'a>(
        &'a self,
        _cred: &'a Cred,
        _file: &'a Handle,
        _open: Option<&'a Token>,
        _offset: u64,
        _what: Seek,
    ) -> Future<'a, u64> {
        Box::pin(std::future::ready(Err(Error::NotSupported)))
    }

    /// Whether bytes of a file were in memory of machines alone and are lost: reading them fails
    /// with [`crate::Error::Lost`]. Through `open`, if there is one for reading.
    fn is_lost<'a>(
        &'a self,
        _cred: &'a Cred,
        _file: &'a Handle,
        _open: Option<&'a Token>,
    ) -> Future<'a, bool> {
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Has the bytes of a file that are in memory of machines moved to the server's disk: within
    /// this time, or before the answer if it is zero. The file does not change. A server that keeps
    /// all bytes on its disk has nothing to do.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; [`Error::Lost`] if some bytes are lost: the others are moved. After any
    /// error the server may still move them later.
    fn leave_memory<'a>(
        &'a self,
        _cred: &'a Cred,
        _file: &'a Handle,
        _within: Duration,
    ) -> Future<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// What is written to a file from now on is to be in the archive within this time of the write.
    /// To be called before each such write; makes no request of its own, and fails as a write does.
    /// A server without an archive has nothing to do.
    fn archive_within<'a>(
        &'a self,
        _cred: &'a Cred,
        _file: &'a Handle,
        _within: Duration,
    ) -> Future<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Whether the archive has a file's present version, or when that is due there: within this
    /// time, if one is given. `None`: it need not be there. Fails as the server answers.
    fn in_archive<'a>(
        &'a self,
        _cred: &'a Cred,
        _file: &'a Handle,
        _within: Option<Duration>,
    ) -> Future<'a, Option<InArchive>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Where the bytes of a file are now, for a caller who may read it: one part for each way in
    /// which some are kept.
    ///
    /// # Errors
    /// [`crate::Error::NotSupported`] if the server does not tell.
    fn stored<'a>(&'a self, _cred: &'a Cred, _file: &'a Handle) -> Future<'a, Vec<StoredPart>> {
        Box::pin(std::future::ready(Err(Error::NotSupported)))
    }

    /// Whether [`Remote::copy_range`] may copy anything.
    fn copies(&self) -> bool {
        false
    }

    /// Copies `len` bytes at the server, durably: fewer at the end of the source, or if it takes no
    /// more at once. A gap before the copy reads as zeros. Unstable writes count. Fails as
    /// [`CopyEnd::check`], or with [`Error::NotSupported`], after which nothing has changed. After
    /// other errors any part of the target's range may have been written.
    fn copy_range<'a>(
        &'a self,
        _cred: &'a Cred,
        _from: CopyEnd<'a>,
        _to: CopyEnd<'a>,
        _len: u64,
    ) -> Future<'a, RemoteCopied> {
        Box::pin(std::future::ready(Err(Error::NotSupported)))
    }

    /// Makes a new object called `name` in `dir`. Durable at the server on return.
    fn make<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        new: New,
        set: SetAttr,
    ) -> Future<'a, Made>;

    /// Removes the entry `name` of `dir`. Durable at the server on return.
    fn remove<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        what: Removal,
    ) -> Future<'a, Change>;

    /// Renames; an existing target is replaced as rename(2) has it. Returns the changes of the
    /// source and of the target directory.
    fn rename<'a>(
        &'a self,
        cred: &'a Cred,
        from: (&'a Handle, &'a OsStr),
        to: (&'a Handle, &'a OsStr),
    ) -> Future<'a, (Change, Change)>;

    /// Gives `file` another name. Returns its attributes, if the reply has them, and the change of
    /// `dir`.
    fn link<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, (Option<Attr>, Change)>;

    /// Lists entries of `dir` from `cookie` on, with attributes and handles where the server can,
    /// in replies of about `bytes_max` bytes. `.` and `..` are left out.
    fn readdir<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        cookie: Cookie,
        bytes_max: u32,
    ) -> Future<'a, Listing>;

    /// Space and limits of the file system that holds `file`.
    fn statfs<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, StatFs>;

    /// How long a call waits for a server that does not answer; `None`: without limit, or calls
    /// never wait.
    fn call_limit(&self) -> Option<std::time::Duration> {
        None
    }

    /// Whether the server answered last time; `false` while it is known to be out of reach.
    fn reachable(&self) -> bool {
        true
    }

    /// Ends all calls with [`crate::Error::Shutdown`], now and later. Does not block.
    fn shutdown(&self) {}
}

/// Limits and preferences of a server.
#[derive(Clone, Copy, Debug)]
pub struct RemoteLimits {
    /// Most bytes in one read request.
    pub read_max: u32,
    /// Most bytes in one write request.
    pub write_max: u32,
    /// Preferred size of a directory reply in bytes.
    pub readdir_preferred: u32,
    /// Largest file, in bytes.
    pub file_size_max: u64,
    /// Longest name, in bytes.
    pub name_max: u32,
    /// Resolution of the server's times, in nanoseconds.
    pub time_delta_ns: u64,
    /// Whether hard links exist.
    pub links: bool,
    /// Whether symbolic links exist.
    pub symlinks: bool,
    /// Whether names that differ in case only are the same name.
    pub case_insensitive: bool,
    /// Whether files are opened at the server: [`Remote::open`] returns tokens.
    pub opens: bool,
    /// Whether the handle of a file alone does not reach it: a name of it must be known here.
    pub by_name: bool,
}

/// A file that a server named.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its handle.
    pub handle: Handle,
    /// Its attributes.
    pub attr: Attr,
}

/// Answer of [`Remote::access`].
#[derive(Clone, Debug)]
pub struct Judged {
    /// Those of the requested rights that the caller has.
    pub granted: Access,
    /// Attributes, if the reply has them.
    pub attr: Option<Attr>,
    /// A lease on the file, under which `attr` is true. Only together with `attr`.
    pub lease: Option<Lease>,
}

impl Judged {
    /// The answer of a server that granted no lease.
    pub fn new(granted: Access, attr: Option<Attr>) -> Judged {
        Judged { granted, attr, lease: None }
    }
}

/// Answer of [`Remote::lookup`].
#[derive(Clone, Debug)]
pub struct LookedUp {
    /// What the name stands for, or `None` if it does not exist.
    pub found: Option<Found>,
    /// Attributes of the directory after the call, if the reply has them.
    pub dir: Option<Attr>,
}

/// Answer of [`Remote::setattr`].
pub type Changed = Change;

/// Answer of [`Remote::read`].
#[derive(Clone, Debug)]
pub struct RemoteRead {
    /// The bytes; shorter than asked for only at the end of the file.
    pub data: Bytes,
    /// Whether the end of the file was reached.
    pub eof: bool,
    /// Attributes after the last request that this read needed, if the reply has them.
    pub attr: Option<Attr>,
}

/// How durable a write must be when it is answered (RFC 1813, `stable_how`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// In the server's memory.
    Unstable,
    /// Part of the file, on disk or in memory of machines ([`crate::Error::Lost`]).
    Shared(crate::Volatile),
    /// On the server's disk, with the metadata needed to find it.
    DataSync,
    /// On the server's disk, with all metadata.
    FileSync,
}

/// Identifies a boot of the server: if it changed, unstable writes may be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Verifier(pub u64);

/// Answer of [`Remote::write`].
#[derive(Clone, Copy, Debug)]
pub struct RemoteWritten {
    /// How durable the data is: at least as asked.
    pub stability: Stability,
    /// To compare with the verifier of the commit.
    pub verifier: Verifier,
    /// How the file changed: `before` of the first and `after` of the last request it took.
    pub change: Change,
}

/// Answer of [`Remote::commit`].
#[derive(Clone, Copy, Debug)]
pub struct Committed {
    /// To compare with the verifiers of the writes.
    pub verifier: Verifier,
    /// How the file changed.
    pub change: Change,
}

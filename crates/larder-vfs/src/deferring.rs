//! [`Deferring`]: a server for some of whose names this machine answers.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use crate::{Change, Cred, Error, Future, Handle, Remote, Result, SetAttr, Time};

/// A server whose changes of names can be answered on this machine, and be made at the server
/// later, because its only writer is here.
pub trait Deferring: Send + Sync {
    /// The same server, with changes of names answered here where that is possible. Such a change
    /// survives the process. A change that cannot be answered here is made at the server first,
    /// after everything that it depends on, as by the [`Remote`] itself.
    fn names(&self) -> &dyn Remote;

    /// Sets by when, counted from now, the server must have `file`, which was made here.
    fn promise(&self, file: &Handle, within: Duration);

    /// Sets attributes of `file` if that can be answered here; otherwise it does nothing. The
    /// result survives the process. The server has no byte of `file` at that time, so to it a size
    /// is a size of zeros; if the size is not 0, the caller keeps the bytes. A modification time is
    /// *given over* bytes that the caller keeps in a local file that was last written at
    /// `written_ns` (nanoseconds since 1970). Does not block.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] and others of setattr: in `Some`.
    fn set_here(
        &self,
        cred: &Cred,
        file: &Handle,
        set: &SetAttr,
        written_ns: Option<i64>,
    ) -> Option<Result<Change>>;

    /// The modification time that was set on `file` over such bytes, if its local file was last
    /// written at `written_ns`, and not after that.
    fn given_time(&self, file: &Handle, written_ns: i64) -> Option<Time>;

    /// Makes all changes of names so far survive a crash of the machine.
    ///
    /// # Errors
    /// [`Error::Io`] if the local disk has failed: then [`Deferring::settle`] helps.
    fn keep(&self) -> Future<'_, ()>;

    /// Makes `file`, or everything that was made here, at the server, durably.
    ///
    /// # Errors
    /// The server's error for the first object that it refused: that object stays waiting, and the
    /// others were tried too. [`Error::TimedOut`] for a single file, whatever the server's error
    /// was.
    fn settle<'a>(&'a self, file: Option<&'a Handle>) -> Future<'a, ()>;

    /// Whether `file` was made here and is removed, so that its bytes are of no use.
    fn is_removed(&self, file: &Handle) -> bool;

    /// Objects that the server does not have yet, and objects that have another name there than
    /// they were to have.
    fn deferred(&self) -> Vec<Deferred>;

    /// The same for one file, if it is one of these.
    fn awaited(&self, file: &Handle) -> Option<Deferred>;
}

/// An object that was made here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deferred {
    /// Which.
    pub file: Handle,
    /// When it will be made at the server, if it is not there.
    pub due: Option<Instant>,
    /// Whether it survives a crash of the machine that it is to be made.
    pub is_kept: bool,
    /// The server's error when it was last asked to make it.
    pub failure: Option<Error>,
    /// Its last known name.
    pub name: OsString,
    /// The name that it was to have, if another client had made that name.
    pub wanted: Option<OsString>,
}

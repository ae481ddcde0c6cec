//! [`Deferring`]: a server with names for which this machine answers.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use crate::{Change, Cred, Error, Future, Handle, Remote, Result, SetAttr, Time};

/// A server whose changes of names can be answered on this machine, and be made at the server
/// later: its only writer is here.
pub trait Deferring: Send + Sync {
    /// The same server, with changes of names answered here where that can be. Such a change
    /// survives the process. What cannot be answered here is made at the server first, with
    /// whatever it depends on, as by the [`Remote`] itself.
    fn names(&self) -> &dyn Remote;

    /// By when, counted from now, the server is to have what was made here as `file`.
    fn promise(&self, file: &Handle, within: Duration);

    /// Sets attributes of `file` if that can be answered here; else nothing has happened. What is
    /// set survives the process. No byte of `file` is at the server then, so a size is one of
    /// zeros: of another one than 0 the caller keeps the bytes. A modification time is *given over*
    /// such bytes if there are some, in a local file that was last written at `written_ns`
    /// (nanoseconds since 1970). Does not block.
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

    /// The time that `file` was given over such bytes, if its local file was last written at
    /// `written_ns`, and not after that.
    fn given_time(&self, file: &Handle, written_ns: i64) -> Option<Time>;

    /// All changes of names so far outlive a crash of the machine.
    ///
    /// # Errors
    /// [`Error::Io`] if the local disk has failed: then [`Deferring::settle`] helps.
    fn keep(&self) -> Future<'_, ()>;

    /// The server has `file`, or everything that was made here, by name, durably.
    ///
    /// # Errors
    /// What the server said to the first that it did not take: that waits on, and the others were
    /// tried too. [`Error::TimedOut`] for a single file, whatever the server said.
    fn settle<'a>(&'a self, file: Option<&'a Handle>) -> Future<'a, ()>;

    /// Whether `file` was made here and is removed: its bytes are nobody's.
    fn is_removed(&self, file: &Handle) -> bool;

    /// What the server does not have yet, and what has another name there than it was to have.
    fn deferred(&self) -> Vec<Deferred>;

    /// The same of one file, if it is one of these.
    fn awaited(&self, file: &Handle) -> Option<Deferred>;
}

/// An object that was made here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deferred {
    /// Which.
    pub file: Handle,
    /// When it is made at the server, if it is not there.
    pub due: Option<Instant>,
    /// That it is to be made outlives a crash of the machine.
    pub is_kept: bool,
    /// What the server said when it was last asked to make it.
    pub failure: Option<Error>,
    /// Its last known name.
    pub name: OsString,
    /// The name that it was to have, if somebody else had made that.
    pub wanted: Option<OsString>,
}

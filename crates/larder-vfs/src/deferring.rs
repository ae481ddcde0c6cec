//! [`Deferring`]: a server with names for which this machine answers.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use crate::{Error, Future, Handle, Remote};

/// A server whose changes of names can be answered on this machine, and be made at the server
/// later: its only writer is here.
pub trait Deferring: Send + Sync {
    /// The same server, with changes of names answered here where that can be. Such a change
    /// survives the process. What cannot be answered here is made at the server first, with
    /// whatever it depends on, as by the [`Remote`] itself.
    fn names(&self) -> &dyn Remote;

    /// By when, counted from now, the server is to have what was made here as `file`.
    fn promise(&self, file: &Handle, within: Duration);

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

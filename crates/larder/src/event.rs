//! Events of a served mount, and how serving it ends.

use std::sync::mpsc::SyncSender;

use anyhow::Result;

/// What a daemon reacts to.
pub(crate) enum Event {
    /// A signal asks us to end.
    Signal,
    /// A command asks us to end.
    Unmount {
        /// Although files are open.
        lazy: bool,
        /// Where the answer goes: what was lost, if something was.
        answer: SyncSender<Result<Option<String>>>,
    },
    /// The kernel closed its end: somebody else unmounted.
    Gone,
    /// The door cannot serve any more, for this reason.
    Broken(String),
    /// A command asks us to let a newer program go on.
    Leave {
        /// Where the answer goes, before we are gone.
        answer: SyncSender<Result<()>>,
    },
}

/// How serving a mount came to its end.
pub(crate) enum End {
    /// The mount is gone.
    Gone,
    /// It is there, and everything is answered: another process is to go on.
    Left,
}

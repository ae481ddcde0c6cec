//! Events of a served mount, and how serving it ends.

use std::sync::mpsc::SyncSender;

use anyhow::Result;

/// The events of a daemon.
pub(crate) enum Event {
    /// A signal asks us to end.
    Signal,
    /// A command asks us to end.
    Unmount {
        /// Although files are open.
        lazy: bool,
        /// Unsent data stays in the cache, for the next mount.
        detach: bool,
        /// The receiver of the answer: what the server lacks, if anything.
        answer: SyncSender<Result<Option<String>>>,
    },
    /// The kernel closed its end: another process unmounted.
    Gone,
    /// The front door cannot serve any more, for this reason.
    Broken(String),
    /// A command asks us to let a newer program go on.
    Leave {
        /// The receiver of the answer, before this process ends.
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

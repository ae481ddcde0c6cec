//! What happens to the unsent data of a file.

use std::time::Duration;

use larder_vfs::{Cred, Error, Result, Time};

use super::super::local_end::LocalEnd;

/// What happened to a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event<'a> {
    /// A caller's bytes are in the local file.
    Written {
        /// The end of the file now.
        end: LocalEnd,
        /// On whose behalf.
        writer: &'a Cred,
        /// They are the first ones, and the bytes below them do not belong to the version that the
        /// server reported last.
        is_over_another: bool,
    },
    /// The kernel has changed the local file, as its stamp shows.
    KernelWrote(LocalEnd),
    /// The local file, which the kernel may write, was compared.
    Compared {
        /// How long it took.
        took: Duration,
        /// If bytes are unsent: how the file ended, if that could be determined.
        found: Option<Option<LocalEnd>>,
    },
    /// The kernel no longer writes the file; what it wrote last is unsent if there is an end.
    KernelEnded(Option<LocalEnd>),
    /// The server has truncated or extended the file; what is still unsent ends here.
    Cut(Option<LocalEnd>),
    /// A caller has set a modification time, which counts until the file is written again.
    TimeGiven {
        /// Which.
        time: Time,
        /// The local file has this one.
        over: Time,
    },
    /// A file was opened or released: perhaps the kernel writes it now, or no longer does.
    OpensChanged,
    /// Everything is at the server.
    Sent,
    /// Nothing is to be sent: the data was discarded or set aside, or the file is gone.
    GivenUp,
    /// An earlier process left changes, based on the version that the server reported last or on
    /// another one.
    Recovered {
        /// The end of the file.
        end: LocalEnd,
        /// They are over another version.
        is_over_another: bool,
    },
    /// A close returned, reporting that the data is late.
    ToldLate,
    /// The server did not accept data, and a later close or fsync is to report it.
    Failed(Error),
    /// So much is unsent that it is sent at once.
    TooMuch,
    /// The time may have come.
    Due,
    /// No process that has the file open will send it.
    Left {
        /// For how long it may wait.
        wait: Duration,
    },
    /// The engine's write-back has ended.
    Ended {
        /// How.
        sent: Result<()>,
        /// Whether the file is open for writing: these processes will be told.
        is_written: bool,
    },
}

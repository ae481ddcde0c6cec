//! What the worker of the archive asks the committer, and reports to it.

use std::ops::Range;

use tokio::sync::oneshot;

use crate::archive::{Error, Receipt, Version};
use crate::live::archiving::{Part, Unread, Work};

/// Receives what the worker is to do; nothing if there is nothing now.
pub(crate) type WorkWaiter = oneshot::Sender<Option<Work>>;

/// What the worker asks or reports.
pub(crate) enum ToArchive {
    /// Asks for something to do.
    Next(WorkWaiter),
    /// Asks where bytes of a version are that it puts.
    Part(Version, Range<u64>, oneshot::Sender<Result<Part, Unread>>),
    /// A version was put, or not.
    Put(Version, Result<Receipt, Error>),
    /// A version was deleted, or not.
    Deleted(Version, Result<(), Error>),
}

//! What the worker of the archive asks the committer, and reports to it; and what clients ask about
//! the archive.

use std::ops::Range;

use larder_wire::meta::words::FileId;
use tokio::sync::oneshot;

use crate::archive::{Error, Receipt, Version};
use crate::change::Reply;
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

/// A client asks what the archive has of a file; with a time, its present version is to be there
/// within so many ms.
pub(crate) struct ArchiveAsked {
    pub(crate) file: FileId,
    pub(crate) within_ms: Option<u32>,
    pub(crate) waiter: oneshot::Sender<Reply>,
}

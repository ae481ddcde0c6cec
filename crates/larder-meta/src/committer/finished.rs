//! What is answered once its group is committed, and the disks know of it.

use larder_wire::capability::KeyEpoch;
use larder_wire::meta::Status;
use larder_wire::meta::words::{DiskId, Sequence};
use tokio::sync::oneshot;

use super::archiving::WorkWaiter;
use super::ended::Ended;
use crate::change::Reply;
use crate::live::Doing;
use crate::live::archiving::Work;
use crate::live::destaging::Copying;
use crate::volume::{DisksChanged, VolumeError};

/// The receiver of a reply.
pub(crate) type Waiter = oneshot::Sender<Reply>;

/// Receives what became of a request about disks.
pub(crate) type DisksWaiter = oneshot::Sender<Result<DisksChanged, VolumeError>>;

/// What is to be done for disks with stale blocks.
#[derive(Debug)]
pub(crate) enum NextStale {
    /// This, for this disk.
    Do(DiskId, Box<Doing>),
    /// To ask again.
    Ask,
    /// Nothing, for now.
    Rest,
}

/// Waits until another key epoch is on record.
pub(crate) type KeysWaiter = oneshot::Sender<Result<KeyEpoch, VolumeError>>;

/// A call that was carried out, or a session that expired.
pub(super) struct Finished {
    /// The call, if it is to be remembered.
    pub(super) sequence: Option<Sequence>,
    pub(super) reply: Option<(Waiter, Reply)>,
    pub(super) task: Option<(oneshot::Sender<NextStale>, NextStale)>,
    pub(super) copying: Option<Copying>,
    pub(super) work: Option<(WorkWaiter, Option<Work>)>,
    pub(super) disks: Option<(Option<DisksWaiter>, DisksChanged)>,
    pub(super) keys: Option<(KeysWaiter, KeyEpoch)>,
    pub(super) ended: Ended,
    /// The number of its commit, if that was late.
    pub(super) late: u64,
}

impl Finished {
    pub(super) fn nobody_asked(ended: Ended) -> Finished {
        Finished {
            sequence: None,
            reply: None,
            task: None,
            copying: None,
            work: None,
            disks: None,
            keys: None,
            ended,
            late: 0,
        }
    }

    /// The same after its commit has failed.
    pub(super) fn spoiled(self, status: Status) -> Finished {
        let Finished { sequence, reply, late, .. } = self;
        let reply = reply.map(|(waiter, _)| (waiter, Reply::refused(status)));
        Finished { sequence, reply, late, ..Finished::nobody_asked(Ended::default()) }
    }
}

//! What is answered once its group is committed, and the disks know of it.

use larder_wire::capability::KeyEpoch;
use larder_wire::meta::Status;
use larder_wire::meta::words::Sequence;
use tokio::sync::oneshot;

use super::archiving::WorkWaiter;
use super::{DisksWaiter, Ended, KeysWaiter, NextStale, Waiter};
use crate::change::Reply;
use crate::live::archiving::Work;
use crate::live::destaging::Copying;
use crate::volume::DisksChanged;

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

    /// It was not committed.
    pub(super) fn spoil(&mut self, status: Status) {
        self.ended = Ended::default();
        (self.task, self.copying, self.work, self.disks) = (None, None, None, None);
        self.keys = None;
        if let Some((_, reply)) = &mut self.reply {
            *reply = Reply::refused(status);
        }
    }
}

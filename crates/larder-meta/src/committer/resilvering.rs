//! The committer's part of bringing stale blocks of disks up to date, and of adding and replacing
//! disks.

use std::collections::BTreeMap;
use std::ops::Range;

use larder_wire::meta::Status;
use larder_wire::meta::words::DiskId;
use tokio::sync::oneshot;

use super::{Committer, Ended, Event, Finished, Group};
use crate::engine::{EngineError, View};
use crate::live::{Cleared, Doing};
use crate::resilver::{Source, Step, Task};
use crate::store::Txn;
use crate::store::txn::Revoked;
use crate::volume::{Enrolment, VolumeError};

/// Who waits for a disk to be used.
pub(crate) type Enrolled = oneshot::Sender<Result<DiskId, VolumeError>>;

/// What is to be done for disks that have something stale.
#[derive(Debug)]
pub(crate) enum NextStale {
    /// This, for this disk.
    Do(DiskId, Box<Doing>),
    /// To ask again.
    Ask,
    /// Nothing, for now.
    Rest,
}

impl Committer {
    /// Has the disks clear blocks, which are free then.
    pub(super) fn clear(&mut self, draining: Vec<(DiskId, Range<u64>)>) {
        let mut by_set: BTreeMap<DiskId, Vec<Range<u64>>> = BTreeMap::new();
        for (set, blocks) in draining {
            by_set.entry(set).or_default().push(blocks);
        }
        // Each set by itself: what one clears is free although disks of another are away.
        for (set, blocks) in by_set {
            let disks = self.live.disks_of(set);
            let (there, away): (Vec<DiskId>, Vec<DiskId>) =
                disks.iter().partition(|disk| self.disks.is_there(**disk));
            let (asked, missed) = if there.is_empty() { (away, there) } else { (there, away) };
            let of = |disk: DiskId| blocks.iter().map(move |bytes| (disk, bytes.clone()));
            let cleared = self.disks.clear(asked.into_iter().flat_map(of).collect());
            let blocks = blocks.iter().map(|bytes| Cleared {
                set,
                bytes: bytes.clone(),
                missed: missed.clone(),
            });
            (self.await_disks)(cleared, Event::Cleared(blocks.collect()));
        }
    }

    /// Says what is to be done for disks that have something stale, once nobody else can write
    /// there any more.
    pub(super) fn next_stale(
        &mut self,
        view: &dyn View,
        group: &mut Group,
        asked: oneshot::Sender<NextStale>,
    ) {
        let step = self.live.next_stale(&Txn::new(view, &group.writes));
        let next = match step {
            _ if self.failed.is_some() => NextStale::Rest,
            Ok(Step::Begin(task)) => return self.begin_task(view, group, &task, asked),
            Ok(Step::Look) => NextStale::Ask,
            // What cannot be read is logged.
            Ok(Step::Rest) | Err(_) => NextStale::Rest,
        };
        let _ = asked.send(next);
    }

    fn begin_task(
        &mut self,
        view: &dyn View,
        group: &mut Group,
        task: &Task,
        asked: oneshot::Sender<NextStale>,
    ) {
        let mut ended = Ended::default();
        let Some((doing, capabilities)) = self.live.begin_task(task, self.clock.instant()) else {
            self.internal(view, group, |live, txn| live.end_task(txn, task.to, false));
            let _ = asked.send(NextStale::Rest);
            return;
        };
        if let Source::Copy(_, file) = task.source {
            ended.revoked.insert(Revoked::File(file));
        }
        ended.capabilities = capabilities;
        tracing::debug!(disk = task.to.0, bytes = ?task.bytes, source = ?task.source, "resilvering");
        let task = Some((asked, NextStale::Do(task.to, Box::new(doing))));
        // After what the group has written: it may give the blocks up.
        group.finished.push(Finished { task, ..Finished::nobody_asked(ended) });
    }

    /// Frees what the disks have cleared. What cannot be read now is tried again at the next tick.
    pub(super) fn free_cleared(&mut self, view: &dyn View, group: &mut Group) {
        if self.cleared.is_empty() {
            return;
        }
        let blocks = std::mem::take(&mut self.cleared);
        let is_done = self.internal(view, group, |live, txn| {
            blocks.iter().try_for_each(|cleared| live.free(txn, cleared))
        });
        if !is_done {
            self.cleared = blocks;
        }
    }

    /// Adds a disk, which is answered when that is durable; if it replaces another one, when no
    /// capability on that is good any more.
    pub(super) fn enrol(
        &mut self,
        view: &dyn View,
        group: &mut Group,
        enrolment: &Enrolment,
        waiter: Enrolled,
    ) {
        let mut txn = Txn::new(view, &group.writes);
        let done = match self.failed {
            Some(status) => Err(EngineError::Failed(format!("{status:?}")).into()),
            None => enrolment.carry_out(&mut txn),
        };
        let done = done.and_then(|disk| {
            let ended = self.live.disks_changed(&txn, enrolment.old);
            Ok((disk, ended.map_err(|_: Status| VolumeError::Unreadable)?))
        });
        let (disk, capabilities) = match done {
            Ok(done) => done,
            Err(error) => {
                // Who has gone does not wait.
                let _ = waiter.send(Err(error));
                return;
            }
        };
        let (mut writes, _) = txn.finish();
        group.writes.append(&mut writes);
        let mut ended = Ended::default();
        for taken in &capabilities {
            let (session, file) = taken.on;
            ended.revoked.insert(Revoked::Session(session, file));
        }
        ended.capabilities = capabilities;
        let enrolled = Some((waiter, disk));
        group.finished.push(Finished { enrolled, ..Finished::nobody_asked(ended) });
    }
}

//! The committer's part of bringing stale blocks of disks up to date, of moving bytes to other
//! disks, of adding, replacing and removing disks, and of putting versions of files into the
//! archive.

use std::collections::BTreeSet;

use larder_wire::meta::Status;
use larder_wire::meta::words::{DiskId, FileId};
use tokio::sync::oneshot;

use super::archiving::ToArchive;
use super::waiting::answer;
use super::{Committer, Ended, Finished, Group, Waiter, wall};
use crate::change::Reply;
use crate::disks::{Limits, Stores};
use crate::engine::{EngineError, View};
use crate::live::archiving::Unread;
use crate::live::{Doing, Live};
use crate::resilver::{Source, Step, Task};
use crate::store::Txn;
use crate::store::txn::Revoked;
use crate::volume::{DisksChange, DisksChanged, VolumeError};

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

impl Committer {
    /// Determines what is to be done for disks with stale blocks, once no one else can write there.
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
            // An error of reading is logged where it occurs.
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
        // After what the group has written: the group may give the blocks up.
        group.finished.push(Finished { task, ..Finished::nobody_asked(ended) });
    }

    /// Looks for stores that are not on record, and for memory disks that were started again.
    pub(super) fn look_at_disks(&mut self, view: &dyn View, group: &mut Group) {
        self.internal(view, group, Live::note_stores);
        self.live.look_for_restarts();
        self.note_restarts(view, group);
    }

    /// The same on behalf of a client, which is answered when what is noticed is on record.
    pub(super) fn look_for(&mut self, view: &dyn View, group: &mut Group, waiter: Waiter) {
        if let Some(status) = self.failed {
            return answer(waiter, Reply::refused(status));
        }
        self.look_at_disks(view, group);
        let reply = Some((waiter, Reply::of(&Ok::<(), Status>(()))));
        group.finished.push(Finished { reply, ..Finished::nobody_asked(Ended::default()) });
    }

    /// Memory disks have reported how much they can hold, which they do first after a start.
    pub(super) fn note_limits(&mut self, view: &dyn View, group: &mut Group, limits: Limits) {
        self.internal(view, group, |live, txn| live.limits_told(txn, limits));
        self.live.look_for_restarts();
        self.note_restarts(view, group);
    }

    /// Disks have reported their stores.
    pub(super) fn note_stores(&mut self, view: &dyn View, group: &mut Group, stores: Stores) {
        self.live.stores_told(stores);
        self.internal(view, group, Live::note_stores);
    }

    /// Records what restarted memory disks have lost.
    pub(super) fn note_restarts(&mut self, view: &dyn View, group: &mut Group) {
        if self.live.has_restarts() {
            let now = wall(&*self.clock);
            self.internal(view, group, |live, txn| live.note_restarts(txn, now));
        }
    }

    /// Adds, replaces, removes or keeps a disk, and answers when that is durable; if a disk is
    /// gone, when no capability on it is valid any more.
    pub(super) fn change_disks(
        &mut self,
        view: &dyn View,
        group: &mut Group,
        change: &DisksChange,
        waiter: Option<DisksWaiter>,
    ) {
        let mut txn = Txn::new(view, &group.writes);
        let done = match self.failed {
            Some(status) => Err(EngineError::Failed(format!("{status:?}")).into()),
            None => change.carry_out(&mut txn),
        };
        let done = done.and_then(|done| {
            let ended = self.live.disks_changed(&mut txn, done.gone);
            Ok((done, ended.map_err(|_: Status| VolumeError::Unreadable)?))
        });
        let (done, capabilities) = match done {
            Ok(done) => done,
            Err(error) => {
                if let Some(waiter) = waiter {
                    // A caller that is gone does not wait.
                    let _ = waiter.send(Err(error));
                }
                return;
            }
        };
        let (mut writes, effects) = txn.finish();
        group.writes.append(&mut writes);
        let mut ended = self.ended(effects);
        for taken in &capabilities {
            let (session, file) = taken.on;
            ended.revoked.insert(Revoked::Session(session, file));
        }
        ended.capabilities.extend(capabilities);
        group
            .finished
            .push(Finished { disks: Some((waiter, done)), ..Finished::nobody_asked(ended) });
    }

    /// Removes the disks that leave and are empty.
    pub(super) fn remove_emptied(&mut self, view: &dyn View, group: &mut Group) {
        // What cannot be read now is tried again at the next tick.
        let emptied = self.live.emptied(&Txn::new(view, &group.writes)).unwrap_or_default();
        for disk in emptied {
            self.change_disks(view, group, &DisksChange::Emptied(disk), None);
        }
    }

    /// Begins moves of bytes that are due, as many as may be in progress at a time.
    pub(super) fn begin_moves(&mut self, view: &dyn View, group: &mut Group) {
        let now = self.clock.instant();
        // What cannot be read now is tried again.
        let _ = self.live.look_for_leaving(&Txn::new(view, &group.writes), now);
        while self.failed.is_none()
            && let Some((set, file, now_ms)) = self.live.next_due(now)
        {
            // What can be free is.
            self.free_cleared(view, group);
            let mut begun = Ok(None);
            self.internal(view, group, |live, txn| {
                begun = live.begin_move(txn, (set, file, now_ms), now);
                begun.as_ref().map(drop).map_err(|status| *status)
            });
            match begun {
                Ok(Some(copying)) => {
                    // The bytes are copied after the commit of the group, which takes the blocks,
                    // and when nobody can write them any more where they are.
                    let revoked = BTreeSet::from([Revoked::File(copying.file)]);
                    let nobody = Finished::nobody_asked(Ended { revoked, ..Ended::default() });
                    group.finished.push(Finished { copying: Some(copying), ..nobody });
                }
                // What is left there cannot be read or written now.
                Ok(None) => self.tell_left(view, group, file, Some(Status::Later)),
                Err(status) => {
                    self.live.cannot_move(set, file, now);
                    // What gathered is free by the next try.
                    if status == Status::NoSpace && self.clear_gathered() {
                        return;
                    }
                    self.tell_left(view, group, file, Some(status));
                    if status == Status::NoSpace {
                        self.tell_no_room(view, group);
                    }
                    return;
                }
            }
        }
    }

    /// Finds more files to be moved from memory disks that hold more than they can. What cannot be
    /// read now is tried again at the next tick.
    pub(super) fn make_room(&mut self, view: &dyn View, group: &Group) {
        let _ = self.live.make_room(&Txn::new(view, &group.writes));
    }

    /// A file's bytes were copied, except to the disks that failed.
    pub(super) fn end_move(
        &mut self,
        view: &dyn View,
        group: &mut Group,
        file: FileId,
        failed: &BTreeSet<DiskId>,
    ) {
        let (now, mut must_wait) = (self.clock.instant(), true);
        let is_done = self.internal(view, group, |live, txn| {
            must_wait = live.end_move(txn, file, failed, now)?;
            Ok(())
        });
        if !is_done {
            tracing::error!(file = file.0, "it cannot be noted that bytes were moved");
        }
        self.tell_left(view, group, file, must_wait.then_some(Status::Later));
    }

    /// The worker asks or reports.
    pub(super) fn archive(&mut self, view: &dyn View, group: &mut Group, asked: ToArchive) {
        let now = self.clock.instant();
        if self.failed.is_some() {
            // A worker that gets no answer ends.
            return;
        }
        match asked {
            ToArchive::Next(waiter) => {
                let mut work = None;
                let is_begun = self.internal(view, group, |live, txn| {
                    work = live.next_to_archive(txn, now)?;
                    Ok(())
                });
                let work = work.filter(|_| is_begun);
                // After the commit of the group, by which what may be put there is on record.
                let nobody = Finished::nobody_asked(Ended::default());
                group.finished.push(Finished { work: Some((waiter, work)), ..nobody });
            }
            ToArchive::Part(version, range, waiter) => {
                let mut part = Err(Unread::Away);
                self.internal(view, group, |live, txn| {
                    part = live.part_to_archive(txn, version, range, now);
                    Ok::<_, Status>(())
                });
                // A worker that is gone reads nothing.
                let _ = waiter.send(part);
            }
            ToArchive::Put(version, put) => {
                let is_noted =
                    self.internal(view, group, |live, txn| live.put_ended(txn, version, &put, now));
                if !is_noted {
                    tracing::error!(file = version.ino, "it cannot be noted that it was archived");
                }
            }
            ToArchive::Deleted(version, deleted) => {
                self.internal(view, group, |live, txn| {
                    live.delete_ended(txn, version, &deleted, now)
                });
            }
        }
    }
}

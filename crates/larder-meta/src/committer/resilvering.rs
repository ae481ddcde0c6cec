//! The committer's part of what transactions end: blocks are cleared and freed. The same of
//! bringing stale blocks of disks up to date, of moving bytes to other disks, of adding, replacing
//! and removing disks, and of putting versions of files into the archive.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use larder_wire::meta::Status;
use larder_wire::meta::words::{DiskId, FileId};
use tokio::sync::oneshot;

use super::archiving::ToArchive;
use super::waiting::{Lateness, answer};
use super::{
    Committer, DisksWaiter, Ended, Event, Finished, Group, KeysWaiter, NextStale, Waiter, Wake,
    wall,
};
use crate::change::{Change, Reply};
use crate::disks::{Failed, Limits, Stores};
use crate::engine::{EngineError, View};
use crate::leases::CallNumber;
use crate::live::archiving::Unread;
use crate::live::{Cleared, Live};
use crate::resilver::{Source, Step, Task};
use crate::store::Txn;
use crate::store::txn::{Effects, Revoked};
use crate::volume::{DisksChange, VolumeError, keys};

impl Committer {
    /// A transaction that no client requested. Returns whether it was carried out.
    pub(super) fn internal(
        &mut self,
        view: &dyn View,
        group: &mut Group,
        run: impl FnOnce(&mut Live, &mut Txn<'_>) -> Result<(), Status>,
    ) -> bool {
        let mut txn = Txn::new(view, &group.writes);
        let run = run(&mut self.live, &mut txn);
        let now = self.clock.instant();
        if run.and_then(|()| self.live.follow_archived(&mut txn, now)).is_err() {
            return false;
        }
        let standing = self.judge(&mut txn, None);
        let (writes, effects) = txn.finish();
        group.take(writes, standing);
        let ended = self.ended(effects);
        group.finished.push(Finished::nobody_asked(ended));
        true
    }

    /// The consequences of a transaction at the disks.
    pub(super) fn ended(&mut self, effects: Effects) -> Ended {
        let Effects { revoked, untaken, draining, gone, due } = effects;
        let (mut sessions, mut left) = (Vec::new(), Vec::new());
        for one in &revoked {
            left.extend(self.live.left_with(one));
            if let Revoked::All(session) = one {
                self.slots.end(*session);
                sessions.push(*session);
            }
        }
        for file in gone {
            self.leaving.is_gone(file);
            self.live.file_is_gone(file);
        }
        for (set, file, due_ms) in due {
            self.live.is_due(set, file, due_ms);
        }
        self.freeing.drains(&draining);
        Ended { revoked, capabilities: self.live.end(untaken), draining, sessions, left }
    }

    /// Has the disks clear blocks that nobody can reach any more, soon.
    pub(super) fn clear(&mut self, draining: Vec<(DiskId, Range<u64>)>) {
        let (memory, others): (Vec<_>, Vec<_>) =
            draining.into_iter().partition(|(set, _)| self.live.is_memory(*set));
        self.clear_now(memory);
        let due = self.freeing.gather(others);
        self.clear_now(due);
    }

    /// Has the disks clear blocks.
    fn clear_now(&self, blocks: Vec<(DiskId, Range<u64>)>) {
        let mut by_set: BTreeMap<DiskId, Vec<Range<u64>>> = BTreeMap::new();
        for (set, blocks) in blocks {
            by_set.entry(set).or_default().push(blocks);
        }
        // Set by set: blocks that one set has cleared are free although disks of another are away.
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

    /// The disks have cleared blocks, all of one set.
    pub(super) fn are_cleared(&mut self, view: &dyn View, group: &mut Group, blocks: Vec<Cleared>) {
        let due = match blocks.iter().any(|one| self.live.is_memory(one.set)) {
            true => blocks,
            false => self.freeing.are_cleared(blocks),
        };
        self.free(view, group, due);
    }

    /// A wait is over.
    pub(super) fn wake(&mut self, view: &dyn View, group: &mut Group, wake: Wake) {
        self.ready.extend(self.freeing.woken(wake));
        match wake {
            Wake::Clear => {
                let gathered = self.freeing.take_gathered();
                self.clear_now(gathered);
            }
            Wake::Free => drop(self.free_cleared(view, group)),
            Wake::Room(_) => {}
        }
    }

    /// Frees what the disks have cleared. Returns whether anything is free now; what cannot be read
    /// now is tried again at the next tick.
    pub(super) fn free_cleared(&mut self, view: &dyn View, group: &mut Group) -> bool {
        let blocks = self.freeing.take_cleared();
        self.free(view, group, blocks)
    }

    fn free(&mut self, view: &dyn View, group: &mut Group, blocks: Vec<Cleared>) -> bool {
        let is_done = !blocks.is_empty()
            && self.internal(view, group, |live, txn| {
                blocks.iter().try_for_each(|cleared| live.free(txn, cleared))
            });
        if is_done {
            self.ready.extend(self.freeing.are_free(&blocks));
            self.remove_emptied(view, group);
        } else {
            self.freeing.put_off(blocks);
        }
        is_done
    }

    /// Whether a call that finds no room may be carried out again when there is more.
    pub(super) fn may_get_room(&self, call: CallNumber) -> bool {
        self.freeing.may_wait(call) && self.comes_room()
    }

    /// Whether blocks are on their way. A disk that is away may not clear any soon.
    fn comes_room(&self) -> bool {
        let is_there = |disk: &DiskId| self.disks.is_there(*disk);
        self.freeing.comes_room(|set| self.live.disks_of(set).iter().any(is_there))
    }

    /// A call has found no room. Returns whether it is to be set aside; then it will be ready.
    pub(super) fn waits_for_room(
        &mut self,
        view: &dyn View,
        group: &mut Group,
        (call, change): (CallNumber, &Change),
    ) -> bool {
        use Change::{Alloc, AllocNear, Open, Preallocate};
        let takes_blocks = matches!(change, Open(_) | Alloc(_) | AllocNear(_) | Preallocate(_));
        if !takes_blocks || !self.freeing.may_wait(call) {
            return false;
        }
        if self.live.is_release_due() {
            self.internal(view, group, Live::release_closed);
        }
        if !self.comes_room() {
            return false;
        }
        self.freeing.is_short(call);
        if !self.free_cleared(view, group) {
            let gathered = self.freeing.take_gathered();
            self.clear_now(gathered);
        }
        true
    }
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

    /// Puts another key epoch on record, and answers when that is durable: only then may a disk be
    /// told, so that the next server uses none that a disk knows already.
    pub(super) fn rotate_keys(&mut self, view: &dyn View, group: &mut Group, waiter: KeysWaiter) {
        let mut txn = Txn::new(view, &group.writes);
        let rotated = match self.failed {
            Some(status) => Err(EngineError::Failed(format!("{status:?}")).into()),
            None => keys::rotate(&mut txn),
        };
        match rotated {
            Ok(key) => {
                let (writes, _) = txn.finish();
                group.take(writes, Lateness::Durable);
                let nobody = Finished::nobody_asked(Ended::default());
                group.finished.push(Finished { keys: Some((waiter, key)), ..nobody });
            }
            // A caller that is gone does not wait.
            Err(error) => drop(waiter.send(Err(error))),
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
                    let gathered = match status {
                        Status::NoSpace => self.freeing.take_gathered(),
                        _ => Vec::new(),
                    };
                    if !gathered.is_empty() {
                        // They are free by the next try.
                        return self.clear_now(gathered);
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
        failed: &Failed,
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

//! Work that waits. Replies wait until the disks have revoked what their calls end. Commits wait
//! until the disks report the bytes on their way as durable, calls until leases of other sessions
//! are returned. So do new data versions of files that a writer changed in place and will no longer
//! commit ([`crate::in_place`]), after its capabilities are revoked and the disks have made durable
//! what it wrote. A client that raises the class of a file waits until the file's bytes have left
//! the memory disks; if they cannot be moved now it is told, and need not wait for the next try.
//!
//! A group is committed durably; or late, if a crash of the machine may undo all of it. A sync
//! follows late commits soon; until it has ended, blocks that they gave up are not cleared.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_wire::meta::words::{DiskId, FileId, LeaseKind, SessionId};
use larder_wire::meta::{BLOCK_BYTES, FILE_BYTES_MAX, Status};
use larder_wire::xdr::Opaque;

use super::{
    ArchiveAsked, Aside, Committer, Destaged, Ended, Event, Finished, Group, Pending, Waiter, wall,
};
use crate::alone::Alone;
use crate::change::{Change, Reply};
use crate::data::memory::Standing;
use crate::engine::{EngineError, View, Writes};
use crate::held::{Revoking, Ticket};
use crate::in_place::Mark;
use crate::leases::{CallNumber, Demand, demands};
use crate::live::Live;
use crate::store::records::Late;
use crate::store::{Record, Txn, key};

/// A session that left something has no leases any more, or must ask again like the others.
const NOBODY: SessionId = SessionId([0; 16]);

/// Sends a reply.
pub(super) fn answer(waiter: Waiter, reply: Reply) {
    // A caller that is gone asks again.
    let _ = waiter.send(reply);
}

/// How something may be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lateness {
    /// There is nothing.
    Nothing,
    Late,
    Durable,
}

impl Group {
    /// A transaction has written something.
    pub(super) fn take(&mut self, mut writes: Writes, standing: Lateness) {
        self.writes.append(&mut writes);
        match standing {
            Lateness::Nothing => {}
            Lateness::Late => self.late += 1,
            Lateness::Durable => self.is_durable = true,
        }
    }

    /// Whether its commit syncs.
    pub(super) fn is_synced(&self) -> bool {
        let is_not_late = self.late == 0 && !self.writes.is_empty();
        self.is_durable || self.renews || is_not_late
    }
}

impl Committer {
    /// The write leases, for calls that are answered beside this.
    pub(crate) fn alone(&self) -> Arc<Alone> {
        self.live.alone()
    }

    /// Whether there is something to commit.
    pub(super) fn is_work(&self, group: &Group) -> bool {
        let promises = group.is_durable && !self.live.late().are_durable();
        !group.writes.is_empty() || group.renews || promises
    }

    /// Commits a group, and answers or has the disks revoke.
    pub(super) fn commit(&mut self, group: Group) {
        let mut late = 0;
        if self.is_work(&group) && self.failed.is_none() {
            let begun = self.clock.instant();
            match self.write(&group) {
                Ok(number) => {
                    late = number;
                    // With a late commit the store may forget the term that it has begun.
                    if number == 0 {
                        self.ownership.committed(begun);
                    }
                    self.live.log_losses();
                }
                Err(error) => self.fail(&error),
            }
        }
        if self.failed.is_none() {
            self.live.accept_stores();
        }
        for finished in group.finished {
            let finished = match self.failed {
                Some(status) => finished.spoiled(status),
                None => finished,
            };
            self.answer_or_revoke(Finished { late, ..finished });
        }
        if let Some(done) = group.end {
            // Before another server can begin.
            self.ownership.end();
            if self.failed.is_none() {
                self.end_late();
                self.volume.release(&*self.engine);
            }
            self.failed = Some(Status::Later);
            // A caller that is gone does not wait.
            let _ = done.send(());
        }
        self.refuse_leaving();
    }

    pub(super) fn fail(&mut self, error: &EngineError) {
        if self.failed.is_some() {
            return;
        }
        tracing::error!("nothing is changed any more: {error}");
        self.failed = Some(error.status());
        // An owner without a term has the store exclusively, and can continue to read.
        if self.engine.term().is_some() {
            self.ownership.end();
            self.over.send_replace(Some(error.to_string()));
        }
    }

    /// Gives a group's writes to the engine. Returns the number of the commit, if it is late.
    fn write(&mut self, group: &Group) -> Result<u64, EngineError> {
        let (writes, owner) = (&group.writes, &self.volume.owner);
        if group.is_durable || group.renews || group.late == 0 {
            self.engine.commit(writes, owner)?;
            self.all_durable();
            if !self.live.late().is_settled() {
                self.sync_soon();
            }
            return Ok(0);
        }
        self.engine.commit_late(writes, owner)?;
        let number = self.live.late_mut().committed(group.late);
        self.last_late.store(number, Ordering::Release);
        self.sync_soon();
        Ok(number)
    }

    /// Ends sessions that have expired, and removes files that were not opened again.
    pub(super) fn tick(&mut self, view: &dyn View, group: &mut Group) {
        let now = self.clock.instant();
        group.renews = self.engine.term().is_some();
        self.free_cleared(view, group);
        self.remove_emptied(view, group);
        for session in self.sessions.over(now) {
            tracing::info!(?session, "a client has not called for too long: its session ends");
            let wall = wall(&*self.clock);
            self.internal(view, group, |live, txn| live.end_session(txn, session, None, wall));
        }
        self.internal(view, group, Live::release_closed);
        self.internal(view, group, Live::forget_committed);
        self.look_at_disks(view, group);
        self.live.look_at_pressure(now);
        self.make_room(view, group);
        self.live.time_has_passed(now);
        self.act();
        if self.grace_until.is_some_and(|until| now >= until) {
            self.live.end_grace();
            if self.internal(view, group, Live::forget_orphans) {
                self.grace_until = None;
            }
        }
    }

    /// Has the engine make late commits durable, unless it does.
    fn sync_soon(&mut self) {
        if !self.syncs {
            self.syncs = true;
            (self.await_synced)(Arc::clone(&self.last_late));
        }
    }

    /// Everything is durable.
    fn all_durable(&mut self) {
        let late = self.live.late_mut();
        let blocks = late.synced(late.last());
        self.clear(blocks);
    }

    /// The engine has made late commits durable, or has failed. Once nothing is late any more, it
    /// is noted that the files that were changed are settled.
    pub(super) fn synced(&mut self, group: &mut Group, done: Result<u64, EngineError>) {
        self.syncs = false;
        match done {
            Ok(number) => {
                let late = self.live.late_mut();
                late.end_span();
                let blocks = late.synced(number);
                self.clear(blocks);
            }
            Err(error) => return self.fail(&error),
        }
        if self.failed.is_some() {
            return;
        }
        if !self.live.late().are_durable() {
            return self.sync_soon();
        }
        if let (Some(span), Some(boot)) = (self.live.late_mut().settle(), &self.volume.boot) {
            let record = Late { boot: Opaque(boot.clone().into()), span };
            group.writes.insert(key::late(), Some(record.to_bytes()));
            group.late += 1;
        }
    }

    /// The server ends: nothing is late after that.
    fn end_late(&mut self) {
        if self.volume.boot.is_none() {
            return;
        }
        let writes = Writes::from([(key::late(), None)]);
        match self.engine.commit(&writes, &self.volume.owner) {
            Ok(()) => self.all_durable(),
            Err(error) => self.fail(&error),
        }
    }

    /// A number for something that may have to wait.
    pub(super) fn next_number(&mut self) -> CallNumber {
        let number = self.next_call;
        self.next_call = CallNumber(number.0 + 1);
        number
    }

    /// The store cannot be read, so nothing is carried out.
    pub(super) fn refuse(&mut self, group: &mut Group, event: Event) {
        match event {
            Event::Call(called) => {
                let status = self.failed.unwrap_or(Status::Io);
                answer(called.waiter, Reply::refused(status));
            }
            Event::End(done) => group.end = Some(done),
            Event::Destage(asked) => {
                answer(asked.waiter, Reply::refused(self.failed.unwrap_or(Status::Io)));
            }
            Event::AskArchive(asked) => {
                answer(asked.waiter, Reply::refused(self.failed.unwrap_or(Status::Io)));
            }
            Event::Look(waiter) => {
                answer(waiter, Reply::refused(self.failed.unwrap_or(Status::Io)));
            }
            // No further work is done.
            Event::Revoked(_)
            | Event::Written(..)
            | Event::Cleared(_)
            | Event::Flushed(_)
            | Event::Synced(_)
            | Event::NextStale(_)
            | Event::TaskEnded(..)
            | Event::Due(_)
            | Event::Archive(_)
            | Event::Moved(..)
            | Event::Disks(..)
            | Event::RotateKeys(_)
            | Event::Activity(_)
            | Event::Reached(_)
            | Event::Limits(_)
            | Event::Stores(_)
            | Event::Begun
            | Event::Wake(_)
            | Event::Tick => {}
        }
    }

    /// Carries out what no longer has to wait.
    pub(super) fn go_on(&mut self, view: &dyn View, group: &mut Group) {
        while let Some(number) = self.ready.pop_front() {
            let pending = match self.aside.remove(&number) {
                Some(Aside::Call(pending)) => *pending,
                Some(Aside::Mend(mark)) => {
                    self.mend_now(view, group, mark);
                    continue;
                }
                None => continue,
            };
            let session = pending.called.change.bearer().session();
            let is_there = session.map(|session| self.sessions.is_there(session));
            if self.failed.is_some() || is_there == Some(false) {
                self.freeing.is_not_short(number);
            }
            match is_there {
                _ if self.failed.is_some() => {
                    let status = self.failed.unwrap_or(Status::Io);
                    answer(pending.called.waiter, Reply::refused(status));
                }
                Some(false) => answer(pending.called.waiter, Reply::refused(Status::BadSession)),
                _ => self.begin(view, group, number, pending),
            }
        }
        self.flush_left(view, group);
        self.tell_gone(view, group);
    }

    /// Carries a call out, or sets it aside until other sessions have returned leases.
    pub(super) fn begin(
        &mut self,
        view: &dyn View,
        group: &mut Group,
        number: CallNumber,
        pending: Pending,
    ) {
        let change = &pending.called.change;
        let session = change.bearer().session();
        if let Some(session) = session.filter(|session| self.live.others_have_leases(*session)) {
            // A read error occurs again when the call is carried out.
            let demands = demands::of(&Txn::new(view, &group.writes), change).unwrap_or_default();
            let goes = self.live.demand(number, session, demands, self.clock.instant());
            self.act();
            if !goes {
                self.freeing.is_not_short(number);
                self.aside.insert(number, Aside::Call(Box::new(pending)));
                return;
            }
        }
        self.carry_out(view, group, number, pending);
    }

    /// The blocks of a call that may still be in flight to disks: whole blocks. None if the call
    /// says that none is.
    pub(super) fn on_way(&self, change: &Change) -> Option<Vec<(DiskId, Range<u64>)>> {
        let Change::CommitExtents(commit) = change else { return None };
        let mut blocks = Vec::new();
        for part in commit.on_way.then_some(&commit.written.0)? {
            // An extent that makes no sense is beyond the end of every disk, which has not written
            // it.
            let end = part.position.saturating_add(part.length).min(FILE_BYTES_MAX);
            let start = part.position / BLOCK_BYTES * BLOCK_BYTES;
            let whole = start..end.next_multiple_of(BLOCK_BYTES);
            let disks = self.live.disks_of(part.disk).iter();
            let asked = disks.filter(|disk| commit.copies.0.contains(disk));
            blocks.extend(asked.map(|disk| (*disk, whole.clone())));
        }
        Some(blocks)
    }

    /// Sets a commit aside until the disks have the blocks that it names. Only then does it get its
    /// place in the order of changes: its blocks may no longer belong to its session, as with a
    /// late commit.
    pub(super) fn await_written(
        &mut self,
        number: CallNumber,
        blocks: Vec<(DiskId, Range<u64>)>,
        pending: Pending,
    ) {
        self.aside.insert(number, Aside::Call(Box::new(pending)));
        (self.await_written)(self.disks.await_written(blocks), number);
    }

    /// The disks have the blocks that a commit names, or the commit is refused.
    pub(super) fn witnessed(&mut self, number: CallNumber, is_there: bool) {
        if is_there {
            self.ready.push_back(number);
            return;
        }
        let Some(Aside::Call(pending)) = self.aside.remove(&number) else { return };
        let Pending { called, sequence } = *pending;
        let reply = Some((called.waiter, Reply::refused(Status::NotWritten)));
        let finished = Finished { sequence, reply, ..Finished::nobody_asked(Ended::default()) };
        self.finish(finished);
    }

    /// Has the disks make durable what was left.
    pub(super) fn flush_left(&mut self, view: &dyn View, group: &Group) {
        let mut by_disks: BTreeMap<Vec<DiskId>, Vec<Mark>> = BTreeMap::new();
        for mark in std::mem::take(&mut self.left) {
            match self.live.disks_with(&Txn::new(view, &group.writes), mark.0) {
                Ok(disks) => by_disks.entry(disks).or_default().push(mark),
                // What cannot be read now is tried again with the next event.
                Err(_) => drop(self.left.insert(mark)),
            }
        }
        for (disks, marks) in by_disks {
            (self.await_disks)(self.disks.flush(disks), Event::Flushed(marks));
        }
    }

    /// Gives a file a new data version, now or when others have returned their leases.
    pub(super) fn mend(&mut self, view: &dyn View, group: &mut Group, mark: Mark) {
        let number = self.next_number();
        if self.live.others_have_leases(NOBODY) {
            let demands = vec![Demand { file: mark.0, keep: LeaseKind::None }];
            let goes = self.live.demand(number, NOBODY, demands, self.clock.instant());
            self.act();
            if !goes {
                self.aside.insert(number, Aside::Mend(mark));
                return;
            }
        }
        self.mend_now(view, group, mark);
    }

    pub(super) fn mend_now(&mut self, view: &dyn View, group: &mut Group, mark: Mark) {
        let now = wall(&*self.clock);
        if self.failed.is_none()
            && !self.internal(view, group, |live, txn| live.mend(txn, mark, now))
        {
            self.left.insert(mark);
        }
    }

    /// Answers a call, or first has the disks revoke the capabilities that it ends.
    pub(super) fn answer_or_revoke(&mut self, mut finished: Finished) {
        let capabilities = std::mem::take(&mut finished.ended.capabilities);
        if !capabilities.is_empty() {
            let on = capabilities.iter().map(|taken| taken.on).collect();
            let ticket = self.held.begin(Revoking::On(on));
            let names = capabilities.iter().map(|taken| taken.capability).collect();
            (self.await_disks)(self.disks.revoke(names), Event::Revoked(ticket));
        }
        let ends = std::mem::take(&mut finished.ended.revoked);
        if let Some(finished) = self.held.hold(&ends, finished) {
            self.finish(finished);
        }
    }

    /// The disks have acknowledged a revocation.
    pub(super) fn revoked(&mut self, ticket: Ticket) {
        for finished in self.held.revoked(ticket) {
            self.finish(finished);
        }
    }

    /// Answers a call.
    pub(super) fn finish(&mut self, finished: Finished) {
        for session in finished.ended.sessions {
            self.live.session_is_over(session, self.clock.instant());
        }
        self.act();
        if let Some(draining) = self.live.late_mut().hold(finished.late, finished.ended.draining) {
            self.clear(draining);
        }
        self.left.extend(finished.ended.left);
        if let Some((asked, next)) = finished.task {
            // If the driver is gone nothing is done, and the blocks stay stale.
            let _ = asked.send(next);
        }
        if let Some((waiter, work)) = finished.work {
            // A worker that is gone asks for nothing.
            let _ = waiter.send(work);
        }
        if let Some(copying) = finished.copying {
            let file = copying.file;
            (self.await_moved)(self.live.copy(copying), file);
        }
        match finished.disks {
            // A caller that is gone finds the disk in the list.
            Some((Some(waiter), done)) => drop(waiter.send(Ok(done))),
            Some((None, done)) => self.left_disks.send_modify(|left| left.extend(done.gone)),
            None => {}
        }
        if let Some((waiter, key)) = finished.keys {
            // For a caller that is gone the disks are told with the next epoch.
            let _ = waiter.send(Ok(key));
        }
        let Some((waiter, reply)) = finished.reply else { return };
        let others = finished.sequence.map(|call| match reply.is_not_yet() {
            true => self.slots.put_off(call),
            false => self.slots.finish(call, reply.bytes.clone()),
        });
        for waiter in others.into_iter().flatten().chain([waiter]) {
            // A caller that is gone asks again.
            let _ = waiter.send(reply.clone());
        }
    }

    /// Makes a file's bytes in memory due, and answers when they are on other disks, or at once if
    /// there is time for that.
    pub(super) fn destage(&mut self, view: &dyn View, group: &mut Group, asked: Destaged) {
        let Destaged { file, due_ms, .. } = asked;
        if let Some(status) = self.failed {
            return answer(asked.waiter, Reply::refused(status));
        }
        let (now, mut due) = (self.clock.instant(), Err(Status::Io));
        // What a class promised that was stronger, or weaker, is durable with the answer.
        group.is_durable = true;
        self.internal(view, group, |live, txn| {
            due = live.hasten(txn, file, due_ms, now);
            due.map(drop)
        });
        match due {
            Ok(due) if due_ms == 0 => {
                self.leaving.wait(file, (due, asked.waiter));
                self.tell_left(view, group, file, None);
            }
            due => reply(group, asked.waiter, &due.map(drop)),
        }
    }

    /// Answers what the archive has of a file.
    pub(super) fn tell_archived(
        &mut self,
        view: &dyn View,
        group: &mut Group,
        asked: ArchiveAsked,
    ) {
        let ArchiveAsked { file, within_ms, waiter } = asked;
        if let Some(status) = self.failed {
            return answer(waiter, Reply::refused(status));
        }
        let (now, mut told) = (self.clock.instant(), Err(Status::Io));
        self.internal(view, group, |live, txn| {
            told = live.archive_told(txn, file, within_ms, now);
            told.map(drop)
        });
        let reply = Some((waiter, Reply::of(&told)));
        group.finished.push(Finished { reply, ..Finished::nobody_asked(Ended::default()) });
    }

    /// Answers the calls that wait for a file's bytes which have left the memory disks, or are
    /// lost; and if there is an `otherwise`, the others by that.
    pub(super) fn tell_left(
        &mut self,
        view: &dyn View,
        group: &mut Group,
        file: FileId,
        otherwise: Option<Status>,
    ) {
        for (due, waiter) in self.leaving.take(file) {
            let txn = Txn::new(view, &group.writes);
            let told = match (self.live.standing(&txn, file, due), otherwise) {
                (Ok(Standing::Left), _) => Ok(()),
                (Ok(Standing::Lost), _) => Err(Status::Lost),
                (Ok(Standing::Leaves), Some(status)) | (Err(status), _) => Err(status),
                (Ok(Standing::Leaves), None) => {
                    self.leaving.wait(file, (due, waiter));
                    continue;
                }
            };
            reply(group, waiter, &told);
        }
    }

    /// No disk has room: nobody waits for the next try.
    pub(super) fn tell_no_room(&mut self, view: &dyn View, group: &mut Group) {
        for file in self.leaving.files() {
            // What is being moved has its room.
            if !self.live.is_moving(file) {
                self.tell_left(view, group, file, Some(Status::NoSpace));
            }
        }
    }

    /// Answers the calls that wait for files which were removed.
    pub(super) fn tell_gone(&mut self, view: &dyn View, group: &mut Group) {
        for file in self.leaving.take_gone() {
            self.tell_left(view, group, file, None);
        }
    }

    /// If nothing is changed any more, nothing is moved either.
    pub(super) fn refuse_leaving(&mut self) {
        let Some(status) = self.failed else { return };
        for (_, waiter) in self.leaving.take_all() {
            answer(waiter, Reply::refused(status));
        }
    }
}

/// Answers after the group's commit.
fn reply(group: &mut Group, waiter: Waiter, result: &Result<(), Status>) {
    let reply = Some((waiter, Reply::of(result)));
    group.finished.push(Finished { reply, ..Finished::nobody_asked(Ended::default()) });
}

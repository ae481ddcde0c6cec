//! Locks: which session has locked which bytes of which file.
//!
//! A pure state machine: it uses no clock and no store, and calls no client ([`Locks::take_free`]
//! says which to call). A session is one holder, whichever of its client's processes asks: its
//! client distinguishes those. So a session's ranges never conflict with each other, and a change
//! of several ranges is carried out whole or not at all. Locks are not stored; they end with the
//! session.
//!
//! After a restart of the server sessions exist, and locks do not. In the *grace period* earlier
//! sessions claim their locks, and no other lock is granted: until each of those sessions has said
//! that it is done, or has ended, or the time is over. A client that continues in another process
//! has a new session; it takes over the locks of the previous one, and loses those on files for
//! which it asks for none in time.
//!
//! A session that was refused may wait. Waiters queue, file by file, in order of arrival. What a
//! waiter waits for is *kept* for it as soon as it is free: its client is notified, and no other
//! session gets it until the waiter has asked for it, has given up, or lets too much time pass;
//! then it moves to the end of the queue. So the longest waiter is not overtaken by later ones, and
//! no waiter asks in vain. A request that conflicts with nothing held or kept is granted, whoever
//! waits: making it wait too could make it wait for a session that waits for it.
//!
//! Invariants, each after any sequence of events:
//! - what one session has exclusively, or is kept exclusively for it, no other session has at all;
//! - no waiter waits for something that is free;
//! - every waiter was notified of what is kept for it;
//! - a session that has nothing of a file and does not wait is not among those of the file, and a
//!   file without sessions is not in the table.

mod ranges;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use larder_wire::meta::recall::LockFree;
use larder_wire::meta::words::{FileId, LockChange, LockFound, LockMode, SessionId, WaiterNumber};
use larder_wire::meta::{LOCK_END, Status};

use ranges::Ranges;

/// Most ranges of one session: bounds the memory that its locks take at the server.
const RANGES_MAX: usize = 1 << 16;
/// Most waiters of one session.
const WAITERS_MAX: usize = 1 << 12;

/// Bytes of a file, not empty, and how they are to be locked from now on; `None`: not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    range: Range<u64>,
    mode: Option<LockMode>,
}

impl Change {
    /// The range and mode of a request.
    ///
    /// # Errors
    /// [`Status::Invalid`] if the range cannot be locked.
    pub(crate) fn of(change: &LockChange) -> Result<Change, Status> {
        let range = change.range.lockable().ok_or(Status::Invalid)?;
        Ok(Change { range, mode: change.mode })
    }
}

/// A caller of a client that waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Waiter {
    session: SessionId,
    number: WaiterNumber,
    /// The changes for which it waits.
    changes: Vec<Change>,
    /// Since when they are reserved for it.
    reserved_since: Option<Instant>,
}

impl Waiter {
    fn is(&self, session: SessionId, number: WaiterNumber) -> bool {
        (self.session, self.number) == (session, number)
    }

    /// The changes that are reserved for it.
    fn reserved(&self) -> impl Iterator<Item = (Range<u64>, LockMode)> + '_ {
        let changes = self.reserved_since.iter().flat_map(|_| &self.changes);
        changes.filter_map(|change| Some((change.range.clone(), change.mode?)))
    }
}

/// The locks of a file.
#[derive(Clone, Debug, Default)]
struct File {
    holders: BTreeMap<SessionId, Ranges>,
    /// In line.
    waiters: Vec<Waiter>,
}

impl File {
    /// The lock that prevents `session` from having the range in this mode: of the strongest mode.
    fn conflict(
        &self,
        session: SessionId,
        range: &Range<u64>,
        mode: LockMode,
    ) -> Option<(Range<u64>, LockMode)> {
        let others = self.holders.iter().filter(|(holder, _)| **holder != session);
        let held = others.flat_map(|(_, held)| held.overlapping(range));
        let waiters = self.waiters.iter().filter(|waiter| waiter.session != session);
        let reserved = waiters.flat_map(Waiter::reserved);
        let reserved = reserved
            .filter(|(reserved, _)| reserved.start < range.end && range.start < reserved.end);
        let in_the_way = held.chain(reserved).filter(|(_, held)| !goes_with(*held, mode));
        in_the_way.max_by_key(|(_, held)| *held)
    }

    /// Whether a session could make these changes.
    fn allows(&self, session: SessionId, changes: &[Change]) -> bool {
        let is_refused = |change: &Change| {
            let mode = change.mode?;
            self.conflict(session, &change.range, mode)
        };
        changes.iter().all(|change| is_refused(change).is_none())
    }

    /// Reserves free ranges for waiters, first come, first served. Returns the waiters for which
    /// that is new.
    fn serve(&mut self, now: Instant) -> Vec<(SessionId, WaiterNumber)> {
        let mut served = Vec::new();
        for at in 0..self.waiters.len() {
            let waiter = &self.waiters[at];
            if waiter.reserved_since.is_none() && self.allows(waiter.session, &waiter.changes) {
                served.push((waiter.session, waiter.number));
                self.waiters[at].reserved_since = Some(now);
            }
        }
        served
    }
}

/// The locks of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Own {
    /// Files of which it has locked or waits for some range.
    files: BTreeSet<FileId>,
    /// How many ranges, in all files.
    ranges: usize,
    /// How many of its client's callers wait.
    waiters: usize,
}

/// The session that requests a change, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) session: SessionId,
    pub(crate) file: FileId,
    /// The session had that before the server was started.
    pub(crate) claim: bool,
}

/// The locks that a session took over from the session of its client's earlier life.
#[derive(Clone, Debug)]
struct TakenOver {
    since: Instant,
    /// Files for which it has not requested locks since.
    files: BTreeSet<FileId>,
}

/// The locks of all sessions.
#[derive(Clone, Debug)]
pub(crate) struct Locks {
    files: BTreeMap<FileId, File>,
    sessions: BTreeMap<SessionId, Own>,
    /// Sessions that may claim what they had before the server was restarted: empty after the
    /// grace period.
    claimants: BTreeSet<SessionId>,
    taken_over: BTreeMap<SessionId, TakenOver>,
    /// Notifications to be sent.
    free: Vec<LockFree>,
    /// How long a range stays reserved for a waiter that does not ask for it.
    patience: Duration,
    /// How long a client may take to request what it has taken over.
    lease: Duration,
}

impl Locks {
    /// None yet.
    pub(crate) fn new(patience: Duration, lease: Duration) -> Locks {
        Locks {
            files: BTreeMap::new(),
            sessions: BTreeMap::new(),
            claimants: BTreeSet::new(),
            taken_over: BTreeMap::new(),
            free: Vec::new(),
            patience,
            lease,
        }
    }

    /// A session exists from before the server's start, and may claim what it had.
    pub(crate) fn expect_claims(&mut self, session: SessionId) {
        self.claimants.insert(session);
    }

    /// It has.
    pub(crate) fn claimed(&mut self, session: SessionId) {
        self.claimants.remove(&session);
    }

    /// The time for claims is over.
    pub(crate) fn end_grace(&mut self) {
        self.claimants.clear();
    }

    /// # Errors
    /// [`Status::Later`] in the grace period.
    pub(crate) fn need_no_grace(&self) -> Result<(), Status> {
        if self.claimants.is_empty() { Ok(()) } else { Err(Status::Later) }
    }

    /// The clients to be notified, since the last call of this, that something is reserved for
    /// them.
    pub(crate) fn take_free(&mut self) -> Vec<LockFree> {
        std::mem::take(&mut self.free)
    }

    /// A lock that another session has, or that is reserved for it, and that prevents `session`
    /// from having the range in this mode: the one of the strongest mode.
    pub(crate) fn conflict(
        &self,
        session: SessionId,
        file: FileId,
        range: &Range<u64>,
        mode: LockMode,
    ) -> Option<LockFound> {
        let (range, mode) = self.files.get(&file)?.conflict(session, range, mode)?;
        Some(LockFound { range: range.into(), mode })
    }

    /// Makes all changes, in order, or none.
    ///
    /// # Errors
    /// [`Status::Locked`] if it conflicts with another session, or it is too late for a claim;
    /// [`Status::Later`] in the grace period, except for claims and for changes that only unlock;
    /// [`Status::NoSpace`] if the session would have too many ranges.
    pub(crate) fn change(
        &mut self,
        asked: Asked,
        changes: &[Change],
        now: Instant,
    ) -> Result<(), Status> {
        let Asked { session, file, claim } = asked;
        if claim && !self.claimants.contains(&session) {
            return Err(Status::Locked);
        }
        if !claim && changes.iter().any(|change| change.mode.is_some()) {
            self.need_no_grace()?;
        }
        if self.files.get(&file).is_some_and(|there| !there.allows(session, changes)) {
            return Err(Status::Locked);
        }
        if !self.has_room(session, file, changes) {
            return Err(Status::NoSpace);
        }
        if let Some(taken) = self.taken_over.get_mut(&session) {
            taken.files.remove(&file);
        }
        self.set(session, file, changes);
        self.end_waits(session, file, |waiter, held| {
            let mut wanted = waiter.changes.iter();
            wanted.all(|change| change.mode.is_none_or(|mode| held.have(&change.range, mode)))
        });
        self.serve(file, now);
        Ok(())
    }

    /// A caller waits for changes. Returns whether they are free, and reserved for it, already;
    /// otherwise it is notified later. Repeating the request changes nothing.
    ///
    /// # Errors
    /// [`Status::NoSpace`] if too many callers of the session wait, [`Status::Later`] in the grace
    /// period.
    pub(crate) fn wait(
        &mut self,
        session: SessionId,
        file: FileId,
        number: WaiterNumber,
        changes: Vec<Change>,
        now: Instant,
    ) -> Result<bool, Status> {
        self.need_no_grace()?;
        let own = self.sessions.entry(session).or_default();
        let there = self.files.entry(file).or_default();
        if let Some(waiter) = there.waiters.iter().find(|waiter| waiter.is(session, number)) {
            return Ok(waiter.reserved_since.is_some());
        }
        if own.waiters >= WAITERS_MAX {
            self.tidy(session, file);
            return Err(Status::NoSpace);
        }
        own.waiters += 1;
        own.files.insert(file);
        there.waiters.push(Waiter { session, number, changes, reserved_since: None });
        self.serve(file, now);
        let told = self.free.len();
        self.free.retain(|free| (free.session, free.number) != (session, number));
        Ok(self.free.len() < told)
    }

    /// A caller does not wait any more, and does not want what is reserved for it.
    pub(crate) fn forgo(
        &mut self,
        session: SessionId,
        file: FileId,
        number: WaiterNumber,
        now: Instant,
    ) {
        self.end_waits(session, file, |waiter, _| waiter.number == number);
        self.serve(file, now);
    }

    /// A session can be called again after it could not: the notifications of what is reserved for
    /// it are repeated.
    pub(crate) fn reached(&mut self, session: SessionId) {
        let Some(own) = self.sessions.get(&session).filter(|own| own.waiters > 0) else { return };
        for file in &own.files {
            let waiters = self.files.get(file).into_iter().flat_map(|there| &there.waiters);
            let reserved =
                waiters.filter(|one| one.session == session && one.reserved_since.is_some());
            let told = reserved.map(|one| LockFree { session, file: *file, number: one.number });
            self.free.extend(told);
        }
    }

    /// Some time has passed.
    pub(crate) fn ticked(&mut self, now: Instant) {
        let files: Vec<FileId> = self.files.keys().copied().collect();
        for file in files {
            let Some(there) = self.files.get_mut(&file) else { continue };
            let is_late = |waiter: &Waiter| {
                let reserved =
                    waiter.reserved_since.map(|since| now.saturating_duration_since(since));
                reserved.is_some_and(|reserved| reserved >= self.patience)
            };
            let (late, in_time) = there.waiters.drain(..).partition(is_late);
            there.waiters = in_time;
            let late: Vec<Waiter> = late;
            let again = late.into_iter().map(|waiter| Waiter { reserved_since: None, ..waiter });
            there.waiters.extend(again);
            self.serve(file, now);
        }
        self.drop_unasked(now);
    }

    /// The client of a session has begun another one, in another life: its locks belong to that one
    /// now.
    pub(crate) fn take_over(&mut self, before: SessionId, session: SessionId, now: Instant) {
        let files = self.sessions.get(&before).map(|own| own.files.clone()).unwrap_or_default();
        let mut taken = TakenOver { since: now, files: BTreeSet::new() };
        for file in files {
            self.end_waits(before, file, |_, _| true);
            let there = self.files.get(&file);
            let Some(held) = there.and_then(|there| there.holders.get(&before)) else { continue };
            let held: Vec<Change> = held
                .overlapping(&(0..LOCK_END))
                .map(|(range, mode)| Change { range, mode: Some(mode) })
                .collect();
            self.set(before, file, &[Change { range: 0..LOCK_END, mode: None }]);
            self.set(session, file, &held);
            self.serve(file, now);
            taken.files.insert(file);
        }
        if !taken.files.is_empty() {
            self.taken_over.insert(session, taken);
        }
    }

    /// Unlocks what was taken over and not requested in time.
    fn drop_unasked(&mut self, now: Instant) {
        let is_over = |taken: &TakenOver| now.saturating_duration_since(taken.since) >= self.lease;
        let over = self.taken_over.iter().filter(|(_, taken)| is_over(taken));
        let over: Vec<SessionId> = over.map(|(session, _)| *session).collect();
        for session in over {
            for file in
                self.taken_over.remove(&session).map(|taken| taken.files).unwrap_or_default()
            {
                self.set(session, file, &[Change { range: 0..LOCK_END, mode: None }]);
                self.serve(file, now);
            }
        }
    }

    /// A session is over: its locks are released, and its waiters removed.
    pub(crate) fn end(&mut self, session: SessionId, now: Instant) {
        self.claimants.remove(&session);
        self.taken_over.remove(&session);
        for file in self.sessions.get(&session).map(|own| own.files.clone()).unwrap_or_default() {
            self.set(session, file, &[Change { range: 0..LOCK_END, mode: None }]);
            self.end_waits(session, file, |_, _| true);
            self.serve(file, now);
        }
    }

    /// A file is removed. Waiters are notified, and learn of that when they ask.
    pub(crate) fn forget(&mut self, file: FileId) {
        let Some(there) = self.files.remove(&file) else { return };
        for (session, held) in there.holders {
            if let Some(own) = self.sessions.get_mut(&session) {
                own.ranges -= held.len();
            }
            self.tidy(session, file);
        }
        for Waiter { session, number, .. } in there.waiters {
            if let Some(own) = self.sessions.get_mut(&session) {
                own.waiters -= 1;
            }
            self.tidy(session, file);
            self.free.push(LockFree { session, file, number });
        }
    }

    /// Whether a session may have this many ranges.
    fn has_room(&self, session: SessionId, file: FileId, changes: &[Change]) -> bool {
        let all = self.sessions.get(&session).map_or(0, |own| own.ranges);
        // Each change may cut one range in two, and add one.
        if all + 2 * changes.len() <= RANGES_MAX {
            return true;
        }
        let held = self.files.get(&file).and_then(|there| there.holders.get(&session));
        let mut after = held.cloned().unwrap_or_default();
        let before = after.len();
        changes.iter().for_each(|change| after.set(&change.range, change.mode));
        after.len() <= before || all - before + after.len() <= RANGES_MAX
    }

    /// Makes changes of a session.
    fn set(&mut self, session: SessionId, file: FileId, changes: &[Change]) {
        let own = self.sessions.entry(session).or_default();
        let there = self.files.entry(file).or_default();
        let held = there.holders.entry(session).or_default();
        own.files.insert(file);
        own.ranges -= held.len();
        changes.iter().for_each(|change| held.set(&change.range, change.mode));
        own.ranges += held.len();
        if held.is_empty() {
            there.holders.remove(&session);
        }
        self.tidy(session, file);
    }

    /// Removes the waiters of a session for a file, where `ends` says so of them and of the
    /// session's locks.
    fn end_waits(
        &mut self,
        session: SessionId,
        file: FileId,
        ends: impl Fn(&Waiter, &Ranges) -> bool,
    ) {
        let Some(there) = self.files.get_mut(&file) else { return };
        if there.waiters.iter().all(|waiter| waiter.session != session) {
            return;
        }
        let held = there.holders.get(&session).cloned().unwrap_or_default();
        let before = there.waiters.len();
        there.waiters.retain(|waiter| waiter.session != session || !ends(waiter, &held));
        let ended = before - there.waiters.len();
        if let Some(own) = self.sessions.get_mut(&session) {
            own.waiters -= ended;
        }
        self.tidy(session, file);
    }

    /// Reserves free ranges of a file for its waiters.
    fn serve(&mut self, file: FileId, now: Instant) {
        let Some(there) = self.files.get_mut(&file) else { return };
        let served = there.serve(now).into_iter();
        self.free.extend(served.map(|(session, number)| LockFree { session, file, number }));
    }

    /// Removes empty entries.
    fn tidy(&mut self, session: SessionId, file: FileId) {
        let there = self.files.get(&file);
        let has_some = there.is_some_and(|there| {
            let waits = there.waiters.iter().any(|waiter| waiter.session == session);
            there.holders.contains_key(&session) || waits
        });
        if there.is_some_and(|there| there.holders.is_empty() && there.waiters.is_empty()) {
            self.files.remove(&file);
        }
        if let Some(own) = self.sessions.get_mut(&session) {
            if !has_some {
                own.files.remove(&file);
            }
            if own.files.is_empty() {
                self.sessions.remove(&session);
            }
        }
    }
}

/// Whether two sessions may have one byte in these modes.
fn goes_with(one: LockMode, other: LockMode) -> bool {
    (one, other) == (LockMode::Shared, LockMode::Shared)
}

#[cfg(test)]
mod tests;

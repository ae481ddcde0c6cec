//! Leases: which session has which lease on which file, and which calls wait for leases to end.
//!
//! A pure state machine ([`Leases::apply`]): events in, actions out. A call's *demands* say how
//! much of a lease on a file other sessions may keep. A call whose demands conflict waits; the
//! conflicting leases are recalled, and it proceeds when they were returned or their sessions have
//! ended.
//!
//! Invariants, each after any sequence of events:
//! - a call proceeds only when no other session has more than its demands allow;
//! - every lease that a waiting call waits for is recalled, or belongs to a session from before a
//!   restart;
//! - no lease is granted that a waiting call of another session would have to wait for;
//! - a write lease is the only lease on its file.
//!
//! Absent on purpose: calling clients, and carrying out calls, which the committer does;
//! [`demands`] computes what calls demand.

pub(crate) mod demands;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use larder_wire::meta::calls::Entries;
use larder_wire::meta::words::{FileId, LeaseGiven, LeaseKind, LeaseNumber, Returned, SessionId};

/// Most leases of one session. Beyond them it gets no more.
const HELD_MAX: usize = 1 << 18;

/// Identifies a call that demands something; later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallNumber(pub(crate) u64);

/// The part of other sessions' leases on a file with which a call is compatible: they may keep this
/// much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) file: FileId,
    pub(crate) keep: LeaseKind,
}

/// The events.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A session wants a lease of this kind at most.
    Asked { session: SessionId, file: FileId, kind: LeaseKind },
    /// A call begins, or checks again whether it may proceed.
    Demanded { call: CallNumber, session: SessionId, demands: Vec<Demand>, now: Instant },
    /// A session gives a lease back.
    Returned { session: SessionId, returned: Returned },
    /// A session can be called again after it could not.
    Reached { session: SessionId },
    /// There is no such file any more.
    Gone { file: FileId },
    /// A session exists from before the server's start, and may have any leases from then.
    FromBefore { session: SessionId },
    /// It knows of the start.
    Resumed { session: SessionId },
    /// A client has another session in place of one, and in it the write lease on this file.
    Inherited { from: SessionId, to: SessionId, file: FileId, now: Instant },
    /// A session is over, and its capabilities are revoked.
    Ended { session: SessionId },
    /// Some time has passed.
    Ticked { now: Instant },
}

/// The actions that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The lease that was asked for is given.
    Give(LeaseGiven),
    /// Tell a session that a lease is wanted back.
    Recall { session: SessionId, file: FileId, number: LeaseNumber, keep: LeaseKind },
    /// A call may be carried out now.
    Go(CallNumber),
    /// A session does not return what was recalled: it is not renewed any more.
    Condemn(SessionId),
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    session: SessionId,
    number: LeaseNumber,
    kind: LeaseKind,
    /// It is wanted back but for this, since then.
    recalled: Option<(LeaseKind, Instant)>,
}

#[derive(Clone, Debug)]
struct Waiting {
    session: SessionId,
    demands: Vec<Demand>,
}

/// All leases.
#[derive(Clone, Debug)]
pub(crate) struct Leases {
    files: HashMap<FileId, Vec<Lease>>,
    /// The files on which sessions have leases; a session without any is not in it.
    held: BTreeMap<SessionId, BTreeSet<FileId>>,
    /// Leases that are recalled and not given back.
    recalled: BTreeMap<LeaseNumber, FileId>,
    waiting: BTreeMap<CallNumber, Waiting>,
    from_before: BTreeSet<SessionId>,
    /// How long a session may take to return a recalled lease.
    patience: Duration,
    next: u64,
}

impl Leases {
    /// None yet. `epoch`: no two lives of the volume's server have the same.
    pub(crate) fn new(epoch: u64, patience: Duration) -> Leases {
        Leases {
            files: HashMap::new(),
            held: BTreeMap::new(),
            recalled: BTreeMap::new(),
            waiting: BTreeMap::new(),
            from_before: BTreeSet::new(),
            patience,
            next: epoch << 32 | 1,
        }
    }

    /// Whether some other session may have any lease: if not, no call conflicts.
    pub(crate) fn others_have_some(&self, session: SessionId) -> bool {
        let mut all = self.held.keys().chain(&self.from_before);
        all.any(|other| *other != session)
    }

    /// The session that has a write lease on a file.
    pub(crate) fn alone(&self, file: FileId) -> Option<SessionId> {
        let is_alone = |lease: &&Lease| lease.kind == LeaseKind::Write;
        Some(self.files.get(&file)?.iter().find(is_alone)?.session)
    }

    /// Whether this is the write lease that a session has on a file.
    pub(crate) fn is_alone_by(&self, session: SessionId, returned: &Returned) -> bool {
        let Returned { file, number, .. } = returned;
        let is_it = |lease: &Lease| {
            lease.session == session && lease.number == *number && lease.kind == LeaseKind::Write
        };
        self.files.get(file).is_some_and(|leases| leases.iter().any(is_it))
    }

    /// Leaves out what a listing tells a session of files whose bytes another one alone may know:
    /// whoever wants to know looks at the file, and waits for them.
    pub(crate) fn hide_others(&self, session: SessionId, mut listed: Entries) -> Entries {
        let is_others = |file| self.alone(file).is_some_and(|of| of != session);
        for entry in listed.entries.0.iter_mut().filter(|entry| is_others(entry.file)) {
            entry.attributes = None;
        }
        listed
    }

    /// How many leases sessions have, and how many calls wait for leases to be returned.
    pub(crate) fn count(&self) -> (usize, usize) {
        (self.held.values().map(BTreeSet::len).sum(), self.waiting.len())
    }

    /// What follows from an event.
    pub(crate) fn apply(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Asked { session, file, kind } => {
                self.asked(session, file, kind).map(Action::Give).into_iter().collect()
            }
            Event::Demanded { call, session, demands, now } => {
                self.demanded(call, Waiting { session, demands }, now)
            }
            Event::Returned { session, returned } => {
                self.returned(session, returned);
                self.go_on()
            }
            Event::Reached { session } => self.recall_again(session),
            Event::Gone { file } => {
                for lease in self.files.remove(&file).unwrap_or_default() {
                    self.forget(file, &lease);
                }
                self.go_on()
            }
            Event::FromBefore { session } => {
                self.from_before.insert(session);
                Vec::new()
            }
            Event::Resumed { session } => {
                self.from_before.remove(&session);
                self.go_on()
            }
            Event::Inherited { from, to, file, now } => {
                self.inherited((from, to), file, now).into_iter().collect()
            }
            Event::Ended { session } => self.ended(session),
            Event::Ticked { now } => self.ticked(now),
        }
    }

    fn asked(&mut self, session: SessionId, file: FileId, kind: LeaseKind) -> Option<LeaseGiven> {
        let kind = self.wanted_by_others(session, file).fold(kind, LeaseKind::min);
        let leases = self.files.get(&file).map_or(&[][..], Vec::as_slice);
        let others = leases.iter().filter(|lease| lease.session != session);
        let kind = match others.map(|lease| lease.kind).max() {
            None => kind,
            Some(LeaseKind::Write) => LeaseKind::None,
            Some(LeaseKind::Read | LeaseKind::None) => kind.min(LeaseKind::Read),
        };
        if let Some(own) = leases.iter().position(|lease| lease.session == session) {
            let own = &mut self.files.get_mut(&file)?[own];
            if own.recalled.is_some() || kind == LeaseKind::None {
                return None;
            }
            own.kind = own.kind.max(kind);
            return Some(LeaseGiven { kind: own.kind, number: own.number });
        }
        let held = self.held.get(&session).map_or(0, BTreeSet::len);
        if kind == LeaseKind::None || held >= HELD_MAX {
            return None;
        }
        let number = LeaseNumber(self.next);
        self.next += 1;
        self.files.entry(file).or_default().push(Lease { session, number, kind, recalled: None });
        self.held.entry(session).or_default().insert(file);
        Some(LeaseGiven { kind, number })
    }

    /// How much of a lease on a file the waiting calls of other sessions let be kept.
    fn wanted_by_others(
        &self,
        session: SessionId,
        file: FileId,
    ) -> impl Iterator<Item = LeaseKind> + '_ {
        let others = self.waiting.values().filter(move |waiting| waiting.session != session);
        let demands = others.flat_map(|waiting| &waiting.demands);
        demands.filter(move |demand| demand.file == file).map(|demand| demand.keep)
    }

    fn demanded(&mut self, call: CallNumber, waiting: Waiting, now: Instant) -> Vec<Action> {
        self.waiting.remove(&call);
        if !self.conflicts(&waiting) {
            return vec![Action::Go(call)];
        }
        let mut actions = Vec::new();
        for Demand { file, keep } in &waiting.demands {
            for lease in self.files.get_mut(file).into_iter().flatten() {
                let is_told = lease.recalled.is_some_and(|(told, _)| told <= *keep);
                if lease.session == waiting.session || lease.kind <= *keep || is_told {
                    continue;
                }
                let since = lease.recalled.map_or(now, |(_, since)| since);
                lease.recalled = Some((*keep, since));
                self.recalled.insert(lease.number, *file);
                actions.push(recall(*file, lease, *keep));
            }
        }
        self.waiting.insert(call, waiting);
        actions
    }

    /// Whether a call has to wait for a lease.
    fn conflicts(&self, call: &Waiting) -> bool {
        let others_from_before = self.from_before.iter().any(|one| *one != call.session);
        call.demands.iter().any(|demand| {
            let in_the_way =
                |lease: &Lease| lease.session != call.session && lease.kind > demand.keep;
            // Sessions from before the restart may rely on anything except that no other session
            // reads.
            (others_from_before && demand.keep == LeaseKind::None)
                || self.files.get(&demand.file).is_some_and(|leases| leases.iter().any(in_the_way))
        })
    }

    /// Lets calls proceed that no longer have to wait.
    fn go_on(&mut self) -> Vec<Action> {
        let free = self.waiting.iter().filter(|(_, waiting)| !self.conflicts(waiting));
        let free: Vec<CallNumber> = free.map(|(call, _)| *call).collect();
        for call in &free {
            self.waiting.remove(call);
        }
        free.into_iter().map(Action::Go).collect()
    }

    fn returned(&mut self, session: SessionId, returned: Returned) {
        let Returned { file, number, keep } = returned;
        let Some(leases) = self.files.get_mut(&file) else { return };
        let is_meant = |lease: &Lease| (lease.session, lease.number) == (session, number);
        let Some(at) = leases.iter().position(is_meant) else { return };
        let lease = &mut leases[at];
        if keep == LeaseKind::None {
            let lease = leases.swap_remove(at);
            self.forget(file, &lease);
        } else {
            lease.kind = lease.kind.min(keep);
            if lease.recalled.is_some_and(|(wanted, _)| lease.kind <= wanted) {
                lease.recalled = None;
                self.recalled.remove(&number);
            }
        }
    }

    /// A lease is not among those of its file any more.
    fn forget(&mut self, file: FileId, lease: &Lease) {
        self.recalled.remove(&lease.number);
        if self.files.get(&file).is_some_and(Vec::is_empty) {
            self.files.remove(&file);
        }
        if let Some(held) = self.held.get_mut(&lease.session) {
            held.remove(&file);
            if held.is_empty() {
                self.held.remove(&lease.session);
            }
        }
    }

    fn recall_again(&self, session: SessionId) -> Vec<Action> {
        let recalled = self.recalled_leases().filter(|(_, lease)| lease.session == session);
        let again = |(file, lease): (FileId, &Lease)| {
            lease.recalled.map(|(keep, _)| recall(file, lease, keep))
        };
        recalled.filter_map(again).collect()
    }

    fn recalled_leases(&self) -> impl Iterator<Item = (FileId, &Lease)> {
        self.recalled.iter().filter_map(|(number, file)| {
            let leases = self.files.get(file)?;
            let lease = leases.iter().find(|lease| lease.number == *number)?;
            Some((*file, lease))
        })
    }

    /// The client's next process knows nothing of a recall: it is told again, and has as long as
    /// the one before.
    fn inherited(
        &mut self,
        (from, to): (SessionId, SessionId),
        file: FileId,
        now: Instant,
    ) -> Option<Action> {
        let leases = self.files.get_mut(&file)?;
        let is_it = |lease: &&mut Lease| lease.session == from && lease.kind == LeaseKind::Write;
        let lease = leases.iter_mut().find(is_it)?;
        lease.session = to;
        lease.recalled = lease.recalled.map(|(keep, _)| (keep, now));
        let recalled = lease.recalled.map(|(keep, _)| recall(file, lease, keep));
        if let Some(held) = self.held.get_mut(&from) {
            held.remove(&file);
            if held.is_empty() {
                self.held.remove(&from);
            }
        }
        self.held.entry(to).or_default().insert(file);
        recalled
    }

    fn ended(&mut self, session: SessionId) -> Vec<Action> {
        self.from_before.remove(&session);
        for file in self.held.remove(&session).unwrap_or_default() {
            let Some(leases) = self.files.get_mut(&file) else { continue };
            let own = leases.iter().position(|lease| lease.session == session);
            if let Some(lease) = own.map(|at| leases.swap_remove(at)) {
                self.forget(file, &lease);
            }
        }
        // Its own calls have nothing to wait for: they are refused.
        let own = self.waiting.values_mut().filter(|waiting| waiting.session == session);
        own.for_each(|waiting| waiting.demands.clear());
        self.go_on()
    }

    fn ticked(&self, now: Instant) -> Vec<Action> {
        let is_late = |lease: &Lease| {
            let since = lease.recalled.map(|(_, since)| since);
            since.is_some_and(|since| now.saturating_duration_since(since) >= self.patience)
        };
        let late = self.recalled_leases().filter(|(_, lease)| is_late(lease));
        let late: BTreeSet<SessionId> = late.map(|(_, lease)| lease.session).collect();
        late.into_iter().map(Action::Condemn).collect()
    }
}

fn recall(file: FileId, lease: &Lease, keep: LeaseKind) -> Action {
    Action::Recall { session: lease.session, file, number: lease.number, keep }
}

#[cfg(test)]
mod tests;

//! Calls that were carried out, and are answered when the disks have revoked the capabilities that
//! they end.
//!
//! A call waits for every revocation of a capability that it ends, including those that an earlier
//! call began: capabilities that an earlier call revokes are no longer in the table when a later
//! one looks. So it does not wait for revocations of capabilities on other files, which may be at a
//! disk that is away.
//!
//! A pure state machine: the caller asks the disks, and reports when they have finished the work of
//! a ticket.

use std::collections::{BTreeMap, BTreeSet};

use larder_wire::meta::words::{FileId, SessionId};

use crate::store::txn::Revoked;

/// Names a question to the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// Capabilities that the disks are asked to revoke.
#[derive(Clone, Debug)]
pub(crate) enum Revoking {
    /// All that was made before the server began.
    FromBefore,
    /// Capabilities of these sessions on these files.
    On(BTreeSet<(SessionId, FileId)>),
}

impl Revoking {
    /// Whether one of these capabilities may be among those that end.
    fn meets(&self, ends: &BTreeSet<Revoked>) -> bool {
        let Revoking::On(capabilities) = self else { return !ends.is_empty() };
        ends.iter().any(|end| {
            capabilities.iter().any(|(session, file)| match end {
                Revoked::File(of) => of == file,
                Revoked::Session(whose, of) => whose == session && of == file,
                Revoked::All(whose) => whose == session,
            })
        })
    }
}

/// Calls that wait, and the revocations for which they wait.
#[derive(Debug)]
pub(crate) struct Held<T> {
    next_ticket: u64,
    next_call: u64,
    /// The revocations that the disks have not acknowledged, and the calls that wait for them.
    outstanding: BTreeMap<Ticket, (Revoking, Vec<u64>)>,
    /// Calls in their order, and for how many tickets each waits.
    calls: BTreeMap<u64, (usize, T)>,
}

impl<T> Default for Held<T> {
    fn default() -> Held<T> {
        let (outstanding, calls) = (BTreeMap::new(), BTreeMap::new());
        Held { next_ticket: 0, next_call: 0, outstanding, calls }
    }
}

impl<T> Held<T> {
    /// The disks are being asked to revoke something.
    pub(crate) fn begin(&mut self, revoking: Revoking) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.outstanding.insert(ticket, (revoking, Vec::new()));
        ticket
    }

    /// A call ends capabilities. It is returned if it need not wait for any revocation that was
    /// begun so far.
    pub(crate) fn hold(&mut self, ends: &BTreeSet<Revoked>, call: T) -> Option<T> {
        self.hold_if(|_, revoking| revoking.meets(ends), call)
    }

    /// Something must wait until the disks have revoked the capabilities of `ticket`.
    pub(crate) fn hold_for(&mut self, ticket: Ticket, call: T) -> Option<T> {
        self.hold_if(|other, _| other == ticket, call)
    }

    fn hold_if(&mut self, waits_for: impl Fn(Ticket, &Revoking) -> bool, call: T) -> Option<T> {
        let number = self.next_call;
        let mut waits = 0;
        for (ticket, (revoking, waiting)) in &mut self.outstanding {
            if waits_for(*ticket, revoking) {
                waiting.push(number);
                waits += 1;
            }
        }
        if waits == 0 {
            return Some(call);
        }
        self.next_call += 1;
        self.calls.insert(number, (waits, call));
        None
    }

    /// The disks have revoked the capabilities of a ticket. Returns the calls that no longer wait,
    /// in their order.
    pub(crate) fn revoked(&mut self, ticket: Ticket) -> Vec<T> {
        let Some((_, waiting)) = self.outstanding.remove(&ticket) else { return Vec::new() };
        let mut free = Vec::new();
        for number in waiting {
            if let Some((waits, _)) = self.calls.get_mut(&number) {
                *waits -= 1;
                if *waits == 0 {
                    free.extend(self.calls.remove(&number).map(|(_, call)| call));
                }
            }
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: SessionId = SessionId([1; 16]);
    const TWO: SessionId = SessionId([2; 16]);

    /// Everything that two calls can end of two sessions and two files.
    fn ends() -> Vec<Revoked> {
        let mut all = vec![Revoked::All(ONE), Revoked::All(TWO)];
        for file in [FileId(1), FileId(2)] {
            all.extend([
                Revoked::File(file),
                Revoked::Session(ONE, file),
                Revoked::Session(TWO, file),
            ]);
        }
        all
    }

    fn ended(end: Revoked, capability: (SessionId, FileId)) -> bool {
        match end {
            Revoked::File(file) => file == capability.1,
            Revoked::Session(session, file) => (session, file) == capability,
            Revoked::All(session) => session == capability.0,
        }
    }

    /// Three calls in every combination of what they end, and the disks' answers in every order: a
    /// call is released when the last capability that it ends is revoked, and not later.
    #[test]
    fn a_call_waits_for_the_capabilities_that_it_ends_and_for_no_others() {
        let capabilities = [(ONE, FileId(1)), (ONE, FileId(2)), (TWO, FileId(1)), (TWO, FileId(2))];
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        for first in ends() {
            for second in ends() {
                for third in ends() {
                    for order in orders {
                        all_in_order([first, second, third], &capabilities, order);
                    }
                }
            }
        }
    }

    fn all_in_order(calls: [Revoked; 3], capabilities: &[(SessionId, FileId)], order: [usize; 3]) {
        let mut held = Held::default();
        let mut left: BTreeSet<_> = capabilities.iter().copied().collect();
        // For each call: its ticket, and what that revokes.
        let mut asked: Vec<(Ticket, BTreeSet<_>)> = Vec::new();
        let mut waiting: BTreeSet<usize> = BTreeSet::new();
        for (number, call) in calls.into_iter().enumerate() {
            let (taken, rest): (BTreeSet<_>, _) =
                left.into_iter().partition(|one| ended(call, *one));
            left = rest;
            let revoking = Revoking::On(taken.clone());
            asked.push((held.begin(revoking), taken));
            if held.hold(&BTreeSet::from([call]), number).is_none() {
                waiting.insert(number);
            }
        }
        let mut outstanding: BTreeSet<_> = capabilities.iter().copied().collect();
        outstanding.retain(|one| !left.contains(one));
        let is_due = |call: usize, outstanding: &BTreeSet<_>| {
            !asked[..=call].iter().any(|(_, taken)| {
                taken.iter().any(|one| outstanding.contains(one) && ended(calls[call], *one))
            })
        };
        for at in order {
            for call in 0..3 {
                assert_eq!(!waiting.contains(&call), is_due(call, &outstanding), "{calls:?}");
            }
            let (ticket, taken) = &asked[at];
            for call in held.revoked(*ticket) {
                assert!(waiting.remove(&call));
            }
            outstanding.retain(|one| !taken.contains(one));
        }
        assert!(waiting.is_empty());
        assert!(held.calls.is_empty() && held.outstanding.is_empty());
    }

    #[test]
    fn what_was_made_before_the_start_is_waited_for_by_all_that_end_something() {
        let mut held = Held::default();
        let void = held.begin(Revoking::FromBefore);
        assert_eq!(held.hold(&BTreeSet::new(), 0), Some(0));
        let file = BTreeSet::from([Revoked::File(FileId(1))]);
        assert_eq!(held.hold(&file, 1), None);
        assert_eq!(held.hold(&BTreeSet::from([Revoked::All(TWO)]), 2), None);
        assert_eq!(held.revoked(void), [1, 2]);
        assert!(held.revoked(void).is_empty());
        assert_eq!(held.hold(&file, 3), Some(3));
    }
}

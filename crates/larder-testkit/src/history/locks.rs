//! Locks: of a part of a file, by an owner of a client.
//!
//! An owner has a lock from its answer until the owner gives it back, or until its client has died;
//! when the lock ends then is unknown. A lock may be refused at any time.

use std::collections::{BTreeMap, BTreeSet};

use super::Timed;
use super::linear::{self, Model, Verdict};

/// The owner of a lock, as the server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// The life of the client.
    pub client: u64,
    /// The number of the owner within that client.
    pub number: u64,
}

/// A file, and a numbered part of it. Parts with the same number are the same bytes; other parts do
/// not overlap.
pub type Part = (u64, u8);

/// A lock call and its outcome.
#[derive(Clone, Debug)]
pub enum Call {
    /// The owner has been granted a lock.
    Lock {
        /// The owner of the lock.
        owner: Owner,
        /// The locked parts.
        parts: Vec<Part>,
        /// Whether no other owner may lock these parts at the same time.
        exclusive: bool,
    },
    /// The owner has released a lock.
    Unlock {
        /// The owner of the lock.
        owner: Owner,
        /// The released parts.
        parts: Vec<Part>,
    },
    /// The client has died: the server releases its locks at some later time.
    End {
        /// The life of the client.
        client: u64,
    },
}

/// Whether one order explains all calls; see [`linear::explain`].
pub fn explain(calls: &[Timed<Call>], states_max: usize) -> Verdict {
    linear::explain(&Locks, calls, states_max)
}

/// Locks, initially none.
struct Locks;

impl Model for Locks {
    type Call = Call;
    /// Which owner has which part, and whether exclusively.
    type State = BTreeMap<(Part, Owner), bool>;

    fn first(&self) -> Self::State {
        BTreeMap::new()
    }

    fn after(&self, state: &Self::State, call: &Call) -> Option<Self::State> {
        let mut next = state.clone();
        match call {
            Call::Lock { owner, parts, exclusive } => {
                let parts: BTreeSet<&Part> = parts.iter().collect();
                let collides = |((part, other), alone): (&(Part, Owner), &bool)| {
                    other != owner && parts.contains(part) && (*alone || *exclusive)
                };
                if state.iter().any(collides) {
                    return None;
                }
                next.extend(parts.into_iter().map(|part| ((*part, *owner), *exclusive)));
            }
            Call::Unlock { owner, parts } => {
                next.retain(|(part, other), _| other != owner || !parts.contains(part));
            }
            Call::End { client } => next.retain(|(_, owner), _| owner.client != *client),
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Span;
    use super::*;

    fn owner(client: u64) -> Owner {
        Owner { client, number: 1 }
    }

    fn lock(client: u64, parts: &[u8], exclusive: bool) -> Call {
        Call::Lock { owner: owner(client), parts: of(parts), exclusive }
    }

    fn unlock(client: u64, parts: &[u8]) -> Call {
        Call::Unlock { owner: owner(client), parts: of(parts) }
    }

    fn of(parts: &[u8]) -> Vec<Part> {
        parts.iter().map(|part| (1, *part)).collect()
    }

    /// Whether these calls can be explained. An end of 0 stands for a call without an answer.
    fn is_explained(calls: &[(u64, u64, Call)]) -> bool {
        let calls = calls.iter().map(|(made, end, call)| {
            let answered = (*end > 0).then_some(*end);
            Timed { span: Span { made: *made, answered }, call: call.clone() }
        });
        explain(&calls.collect::<Vec<_>>(), 10_000) == Verdict::Explained
    }

    #[test]
    fn locks_exclude() {
        let two = |first: Call, second: Call| is_explained(&[(1, 2, first), (3, 4, second)]);
        assert!(two(lock(1, &[0], true), lock(2, &[1], true)));
        assert!(two(lock(1, &[0, 1], false), lock(2, &[1], false)));
        assert!(two(lock(1, &[0], true), lock(1, &[0], false)), "his own he changes");
        assert!(!two(lock(1, &[0, 1], true), lock(2, &[1, 2], true)));
        assert!(!two(lock(1, &[0], true), lock(2, &[0], false)));
        assert!(!two(lock(1, &[0], false), lock(2, &[0], true)));
    }

    #[test]
    fn a_lock_is_had_from_its_answer_to_the_call_that_gives_it_back() {
        let second = |from, to, unlocked| {
            is_explained(&[
                (1, 2, lock(1, &[0, 1], true)),
                (5, unlocked, unlock(1, &[1])),
                (from, to, lock(2, &[1], true)),
            ])
        };
        assert!(second(7, 8, 6) && second(3, 6, 9) && second(7, 8, 0));
        assert!(!second(3, 4, 6));
        let other =
            [(1, 2, lock(1, &[0, 1], true)), (3, 4, unlock(1, &[1])), (5, 6, lock(2, &[0], true))];
        assert!(!is_explained(&other), "he keeps the rest");
    }

    #[test]
    fn a_dead_client_keeps_its_locks_for_an_unknown_time() {
        let after = |died| {
            is_explained(&[
                (1, 2, lock(1, &[0], true)),
                (died, 0, Call::End { client: 1 }),
                (5, 6, lock(2, &[0], true)),
            ])
        };
        assert!(after(3) && !after(7));
    }
}

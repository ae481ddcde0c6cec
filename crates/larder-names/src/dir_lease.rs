//! The write lease on a directory of the server, under which this machine answers for its names: a
//! pure state machine for each directory, without I/O.
//!
//! A change of names asks for the lease. While it is held, no other client looks into the
//! directory. When the server recalls it, or it is lost with the session, no further change is
//! answered here; what waits in the directory is made at the server, and only then is the lease
//! returned. Changes that come meanwhile are made at the server.
//!
//! Invariant: a change is answered here only if the directory was held under one grant from before
//! anything was learned for it until it was recorded.

use std::collections::HashMap;

use crate::object::Dir;

/// Numbers the times at which leases were granted. What is learned under one grant says nothing
/// under another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant(u64);

/// The lease on one directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DirLease {
    /// Nobody has asked for it.
    #[default]
    Free,
    /// The server was asked, and has not answered.
    Asked,
    Held(Grant),
    /// It is over, and the server does not have yet what waits in the directory.
    Returning,
}

/// What happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A change is to be answered here.
    Wanted,
    /// The server has given it.
    Granted(Grant),
    /// The server has not.
    Refused,
    /// It was recalled, or the session is over.
    Ended,
    /// What waited in the directory is at the server, or the time for that is over.
    Returned,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The server is to be asked.
    Ask,
    /// Somebody else has asked.
    Await,
    /// The change may be answered here.
    AnswerHere(Grant),
    /// The change is made at the server.
    GoThere,
    /// What waits is to be made at the server.
    Replay,
    Nothing,
}

impl DirLease {
    pub(crate) fn apply(self, event: Event) -> (DirLease, Then) {
        use DirLease::{Asked, Free, Held, Returning};
        match (self, event) {
            (Free, Event::Wanted) => (Asked, Then::Ask),
            (Asked, Event::Wanted) => (Asked, Then::Await),
            (Held(grant), Event::Wanted) => (self, Then::AnswerHere(grant)),
            (Returning, Event::Wanted) => (Returning, Then::GoThere),
            (Asked, Event::Granted(grant)) => (Held(grant), Then::AnswerHere(grant)),
            (Asked, Event::Refused) => (Free, Then::GoThere),
            // It ended before it was known that it had begun.
            (_, Event::Granted(_) | Event::Refused) => (self, Then::GoThere),
            (Held(_) | Returning, Event::Ended) => (Returning, Then::Replay),
            (Asked | Free, Event::Ended) => (Free, Then::Nothing),
            (Returning, Event::Returned) => (Free, Then::Nothing),
            (_, Event::Returned) => (self, Then::Nothing),
        }
    }
}

/// The leases on all directories: of those that are not in it, nobody has asked for one.
#[derive(Debug, Default)]
pub(crate) struct DirLeases {
    all: HashMap<Dir, DirLease>,
    granted: u64,
}

impl DirLeases {
    /// What follows from an event.
    pub(crate) fn apply(&mut self, dir: &Dir, event: Event) -> Then {
        let (next, then) = self.get(dir).apply(event);
        match next {
            DirLease::Free => drop(self.all.remove(dir)),
            next => drop(self.all.insert(dir.clone(), next)),
        }
        then
    }

    pub(crate) fn get(&self, dir: &Dir) -> DirLease {
        self.all.get(dir).copied().unwrap_or_default()
    }

    /// There is no such directory any more.
    pub(crate) fn forget(&mut self, dir: &Dir) {
        self.all.remove(dir);
    }

    /// A number for a lease that the server has given.
    pub(crate) fn next_grant(&mut self) -> Grant {
        self.granted += 1;
        Grant(self.granted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is known of a lease from outside: what the server thinks, and what was acknowledged.
    #[derive(Clone, Copy, Debug, Default)]
    struct World {
        lease: DirLease,
        grants: u64,
        /// The server was asked, and has not answered.
        is_asked: bool,
        /// The server has given it and was not told that it is over.
        has: Option<Grant>,
        /// Something that was answered here waits.
        waits: bool,
    }

    const STEPS: [&str; 6] = ["change", "grant", "refuse", "recall", "lose", "return"];

    fn step(mut world: World, what: &str) -> Option<World> {
        let event = match what {
            "change" => Event::Wanted,
            "grant" if world.is_asked => {
                world.grants += 1;
                world.has = Some(Grant(world.grants));
                Event::Granted(Grant(world.grants))
            }
            "refuse" if world.is_asked => Event::Refused,
            "recall" | "lose" => {
                world.has = None;
                Event::Ended
            }
            // Everything that waits was made at the server before.
            "return" if world.lease == DirLease::Returning => {
                world.waits = false;
                Event::Returned
            }
            _ => return None,
        };
        let was = world.lease;
        let (lease, then) = world.lease.apply(event);
        world.lease = lease;
        match then {
            Then::Ask => {
                assert!(!world.is_asked || was == DirLease::Free, "{was:?}");
                world.is_asked = true;
            }
            Then::AnswerHere(grant) => {
                assert_eq!(world.has, Some(grant), "others are excluded");
                world.waits = true;
            }
            Then::Replay => assert!(matches!(was, DirLease::Held(_) | DirLease::Returning)),
            Then::Await => assert!(world.is_asked),
            Then::GoThere | Then::Nothing => {}
        }
        if matches!(event, Event::Granted(_) | Event::Refused) {
            world.is_asked = false;
        }
        if world.waits {
            let is_on_its_way = matches!(world.lease, DirLease::Held(_) | DirLease::Returning);
            assert!(is_on_its_way, "what waits is replayed: {world:?}");
        }
        if let DirLease::Held(grant) = world.lease {
            assert_eq!(world.has, Some(grant));
        }
        Some(world)
    }

    fn all(world: World, left: u32, tried: &mut u64) {
        for next in STEPS.iter().filter_map(|what| step(world, what)) {
            *tried += 1;
            if left > 1 {
                all(next, left - 1, tried);
            }
        }
    }

    /// Over every sequence of nine events: nothing is answered here without the lease, and what was
    /// is made at the server after its end.
    #[test]
    fn a_change_is_answered_under_the_lease_and_replayed_after_it() {
        let mut tried = 0;
        all(World::default(), 9, &mut tried);
        assert!(tried > 100_000, "{tried}");
    }

    #[test]
    fn a_lease_that_ends_while_it_is_asked_for_is_not_used() {
        let (mut leases, dir) = (DirLeases::default(), Dir::Made(crate::object::ObjectNo(1)));
        assert_eq!(leases.apply(&dir, Event::Wanted), Then::Ask);
        assert_eq!(leases.apply(&dir, Event::Ended), Then::Nothing);
        let grant = leases.next_grant();
        assert_eq!(leases.apply(&dir, Event::Granted(grant)), Then::GoThere);
        assert!(leases.all.is_empty());
        assert_eq!(leases.apply(&dir, Event::Wanted), Then::Ask);
        let grant = leases.next_grant();
        assert_eq!(leases.apply(&dir, Event::Granted(grant)), Then::AnswerHere(grant));
        assert_eq!(leases.apply(&dir, Event::Wanted), Then::AnswerHere(grant));
        assert_eq!(leases.apply(&dir, Event::Ended), Then::Replay);
        assert_eq!(leases.apply(&dir, Event::Wanted), Then::GoThere);
        leases.apply(&dir, Event::Returned);
        assert!(leases.all.is_empty());
    }
}

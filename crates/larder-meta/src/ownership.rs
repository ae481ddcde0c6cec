//! Until when this process knows that it is the only owner of the volume.
//!
//! Commits of an owner are refused once another process has taken the volume; answers from memory,
//! or from what it read before, would not be. So each commit that succeeds, with or without writes,
//! proves that the volume was ours when it was sent, and that no other process takes it within the
//! store's term from then on. Outside that time nothing is answered. An owner that was stopped, or
//! is cut off from its store, is silent before the next one begins, and no clocks are compared:
//! each side counts the term on its own, and ours is shorter by the possible difference in rate of
//! two clocks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use larder_io::Clock;

/// Clocks of two machines differ in rate by at most one part in this many.
const DRIFT: u32 = 100;
/// Renewals of a term within its duration.
const RENEWALS_PER_TERM: u32 = 4;

/// What this process knows of the owner's term. Shared by all code that answers calls.
#[derive(Debug)]
pub(crate) struct Ownership {
    /// `None`: no other process can have the store open.
    term: Option<Duration>,
    until: Mutex<Option<Instant>>,
    clock: Arc<dyn Clock>,
}

impl Ownership {
    /// Nothing is known yet.
    pub(crate) fn new(term: Option<Duration>, clock: Arc<dyn Clock>) -> Ownership {
        Ownership { term, until: Mutex::new(None), clock }
    }

    /// A commit that was begun then has succeeded.
    pub(crate) fn committed(&self, begun: Instant) {
        if let Some(term) = self.term {
            self.set(Some(begun + (term - term / DRIFT)));
        }
    }

    /// The volume is given up.
    pub(crate) fn end(&self) {
        self.set(None);
    }

    /// Whether no other process owns the volume now.
    pub(crate) fn is_ours(&self) -> bool {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        self.term.is_none() || until.is_some_and(|until| self.clock.instant() < until)
    }

    /// How often something is to be committed.
    pub(crate) fn renewal(&self) -> Option<Duration> {
        self.term.map(|term| term / RENEWALS_PER_TERM)
    }

    fn set(&self, until: Option<Instant>) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_io::SimClock;

    #[test]
    fn a_volume_is_ours_for_a_term_from_the_begin_of_a_commit() {
        let (clock, second) = (Arc::new(SimClock::new()), Duration::from_secs(1));
        let ours = Ownership::new(Some(10 * second), Arc::clone(&clock) as Arc<dyn Clock>);
        assert!(!ours.is_ours(), "nothing was committed");
        let begun = clock.instant();
        clock.advance(4 * second);
        ours.committed(begun);
        clock.advance(5 * second);
        assert!(ours.is_ours());
        clock.advance(second);
        assert!(!ours.is_ours());
        ours.committed(clock.instant());
        assert!(ours.is_ours());
        ours.end();
        assert!(!ours.is_ours());
        assert_eq!(ours.renewal(), Some(second * 5 / 2));
    }

    #[test]
    fn what_no_other_process_can_open_is_ours() {
        let ours = Ownership::new(None, Arc::new(SimClock::new()));
        assert!(ours.is_ours() && ours.renewal().is_none());
    }
}

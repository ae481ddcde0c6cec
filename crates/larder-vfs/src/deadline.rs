//! [`Deadline`]: until when a caller waits for its server.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The latest time at which a call ends, whatever it still needs: every request, retry and lock
/// that it waits for ends by then. It is computed once, from the moment the call was made.
///
/// A call that carries data may take longer than the limit as long as the data moves; see
/// [`Deadline::moved`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    /// Of a call that is made `now`, and may wait for `limit`.
    pub fn new(now: Instant, limit: Duration) -> Deadline {
        Deadline { at: now + limit, limit }
    }

    /// When the call ends.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// The same call, extended by the time for which it did other work than waiting for its server.
    #[must_use]
    pub fn extended(self, busy: Duration) -> Deadline {
        Deadline { at: self.at + busy, ..self }
    }

    /// The same call, after something that it waits for made progress at `when`: from then on the
    /// limit counts again.
    #[must_use]
    pub fn moved(self, when: Instant) -> Deadline {
        Deadline { at: self.at.max(when + self.limit), ..self }
    }
}

/// When something that callers wait for last made progress: their limits count again from then, so
/// that a call ends in vain only if for as long as its limit there was none.
#[derive(Debug, Default)]
pub struct Progress(Mutex<Option<Instant>>);

impl Progress {
    /// It has made progress now.
    pub fn note(&self, now: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// `deadline`, counted again from then.
    pub fn extend(&self, deadline: Deadline) -> Deadline {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.map_or(deadline, |when| deadline.moved(when))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_never_shortens_what_is_left() {
        let begun = Instant::now();
        let second = Duration::from_secs(1);
        let deadline = Deadline::new(begun, 6 * second);
        assert_eq!(deadline.at(), begun + 6 * second);
        for (moved, ends) in [(0, 6), (1, 7), (6, 12), (20, 26)] {
            assert_eq!(deadline.moved(begun + moved * second).at(), begun + ends * second);
        }
        assert_eq!(deadline.extended(second).at(), begun + 7 * second);
        let before = deadline.moved(begun + 3 * second).moved(begun);
        assert_eq!(before.at(), begun + 9 * second);
    }
}

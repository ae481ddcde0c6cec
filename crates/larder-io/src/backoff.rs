//! Pauses between attempts: one rule for all code that retries.

use std::time::Duration;

/// Pauses that double from a first one up to a longest one. Pure: the caller brings the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    next: Duration,
    max: Duration,
}

impl Backoff {
    /// Pauses from `first` to `max`.
    pub const fn new(first: Duration, max: Duration) -> Backoff {
        Backoff { first, next: first, max }
    }

    /// The pause before the next attempt.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next.min(self.max);
        self.next = pause.saturating_mul(2).min(self.max);
        pause
    }

    /// The last attempt succeeded: the next pause is the first one again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn pauses_double_up_to_the_limit() {
        let mut backoff = Backoff::new(ms(100), ms(350));
        assert_eq!([(); 4].map(|()| backoff.pause()), [ms(100), ms(200), ms(350), ms(350)]);
        backoff.reset();
        assert_eq!(backoff.pause(), ms(100));
        let mut endless = Backoff::new(Duration::MAX, Duration::MAX);
        assert_eq!([(); 2].map(|()| endless.pause()), [Duration::MAX; 2]);
        assert_eq!(Backoff::new(ms(5), ms(3)).pause(), ms(3));
    }
}

//! A limit on bytes per second, for a disk that is to be as slow as another one (`--rate`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use larder_io::Clock;

/// Lets bytes pass one after the other, as a wire would.
#[derive(Debug)]
pub(crate) struct Rate {
    bytes_per_second: u64,
    clock: Arc<dyn Clock>,
    /// When the bytes that were let pass are through.
    free_at: Mutex<Instant>,
}

impl Rate {
    /// At most this many bytes a second, and at least one.
    pub(crate) fn new(bytes_per_second: u64, clock: Arc<dyn Clock>) -> Rate {
        let free_at = Mutex::new(clock.instant());
        Rate { bytes_per_second: bytes_per_second.max(1), clock, free_at }
    }

    /// Resolves when this many bytes have passed, after those of all earlier callers.
    pub(crate) async fn pass(&self, bytes: u64) {
        let through = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
            let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            *free_at = self.clock.instant().max(*free_at) + takes;
            *free_at
        };
        self.clock.sleep_until(through).await;
    }
}

#[cfg(test)]
mod tests {
    use larder_io::SimClock;

    use super::*;

    #[tokio::test]
    async fn bytes_pass_one_after_the_other() {
        let clock = Arc::new(SimClock::new());
        let rate = Arc::new(Rate::new(1000, Arc::clone(&clock) as Arc<dyn Clock>));
        let pass = |bytes| {
            let rate = Arc::clone(&rate);
            tokio::spawn(async move { rate.pass(bytes).await })
        };
        let first = pass(500);
        clock.asleep(1).await;
        let second = pass(1000);
        clock.asleep(2).await;
        clock.advance(Duration::from_millis(500));
        first.await.unwrap();
        assert!(!second.is_finished());
        clock.advance(Duration::from_millis(1000));
        second.await.unwrap();
    }
}

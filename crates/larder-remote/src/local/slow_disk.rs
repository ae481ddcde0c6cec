//! A disk that is slower than the machine's, for measuring what a server with such a disk would do.
//!
//! Its operations take a stated time each, one after the other, as those of a disk with one arm do.
//! An operation is a sync of a file or a directory, or a read that the page cache cannot answer.
//! The machine's own disk does the work as well, before the time is over or after.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use larder_io::Clock;
use tokio::runtime::Handle;

/// The time that operations of a disk take.
#[derive(Debug)]
pub(super) struct SlowDisk {
    takes: Duration,
    clock: Arc<dyn Clock>,
    /// When the operations that were begun will have ended.
    free_at: Mutex<Instant>,
}

impl SlowDisk {
    /// A disk whose operations take this long; zero: the machine's own time.
    pub(super) fn new(takes: Duration, clock: Arc<dyn Clock>) -> SlowDisk {
        let free_at = Mutex::new(clock.instant());
        SlowDisk { takes, clock, free_at }
    }

    /// Blocks until an operation that begins after all earlier ones has ended.
    ///
    /// # Panics
    /// If operations take time, and this thread is not one of tokio's blocking threads.
    pub(super) fn operate(&self) {
        if self.takes.is_zero() {
            return;
        }
        let over = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            *free_at = self.clock.instant().max(*free_at) + self.takes;
            *free_at
        };
        Handle::current().block_on(self.clock.sleep_until(over));
    }
}

#[cfg(test)]
mod tests {
    use larder_io::SimClock;

    use super::*;

    #[tokio::test]
    async fn operations_of_a_slow_disk_follow_one_another() {
        let clock = Arc::new(SimClock::new());
        let takes = Duration::from_millis(10);
        let disk = Arc::new(SlowDisk::new(takes, Arc::clone(&clock) as Arc<dyn Clock>));
        let operate = || {
            let disk = Arc::clone(&disk);
            tokio::task::spawn_blocking(move || disk.operate())
        };
        let (one, other) = (operate(), operate());
        clock.asleep(2).await;
        assert_eq!(clock.next_wake(), Some(clock.instant() + takes));
        clock.advance(takes);
        assert_eq!(clock.next_wake(), Some(clock.instant() + takes), "the other waits its turn");
        clock.advance(takes);
        one.await.unwrap();
        other.await.unwrap();
    }

    #[test]
    fn the_machines_own_disk_waits_for_no_clock() {
        SlowDisk::new(Duration::ZERO, Arc::new(SimClock::new())).operate();
    }
}

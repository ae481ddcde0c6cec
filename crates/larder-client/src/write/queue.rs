//! The queue of the engine: the times of all files that have one, and the places among those that are sent at once.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use larder_vfs::Ino;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::schedule::Schedule;

/// Files that are sent at once without anybody waiting.
const FILES_AT_ONCE: usize = 8;

/// The times of all files that have one.
pub(crate) struct Queue {
    times: Mutex<BTreeSet<(Instant, Ino)>>,
    /// There is a new first one.
    earlier: Notify,
    places: Semaphore,
}

impl Default for Queue {
    fn default() -> Queue {
        let (times, earlier) = (Mutex::default(), Notify::new());
        Queue { times, earlier, places: Semaphore::new(FILES_AT_ONCE) }
    }
}

impl Queue {
    fn times(&self) -> MutexGuard<'_, BTreeSet<(Instant, Ino)>> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a new first time.
    pub(super) async fn earlier(&self) {
        self.earlier.notified().await;
    }

    /// Waits for a place among the files that are sent at once.
    pub(super) async fn place(&self) -> Option<SemaphorePermit<'_>> {
        self.places.acquire().await.ok()
    }

    /// Follows a file's schedule.
    pub(super) fn replan(&self, ino: Ino, before: Schedule, after: Schedule) {
        if before == after {
            return;
        }
        let mut times = self.times();
        if let Schedule::Dirty { due } = before {
            times.remove(&(due, ino));
        }
        if let Schedule::Dirty { due } = after {
            times.insert((due, ino));
            if times.first() == Some(&(due, ino)) {
                self.earlier.notify_one();
            }
        }
    }

    /// Takes the files whose time has come, and tells the next time.
    pub(super) fn take_due(&self, now: Instant) -> (Vec<Ino>, Option<Instant>) {
        let mut times = self.times();
        let due: Vec<_> = times.iter().take_while(|(at, _)| *at <= now).copied().collect();
        due.iter().for_each(|time| {
            times.remove(time);
        });
        (due.into_iter().map(|(_, ino)| ino).collect(), times.first().map(|(at, _)| *at))
    }
}

//! Stores fetched bytes: the bytes of one file go into the cache one after the other.
//!
//! A thread that may wait for the disk stores them. Waking one takes as long as a good part of the
//! copy, and two that write one file wait for each other in the kernel. So each file has at most
//! one storing thread, and it continues while there is something to store: a stream keeps it busy.
//!
//! What waits to be stored is in memory, so there is an end to it ([`StoringBudget`]). If the
//! cache's disk is slower than the server, a stream waits for the disk; what is read here and there
//! is not cached then, and nothing is while the disk stands still. Short files, which are stored in
//! memory, need no room.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_io::Clock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A disk that stores nothing of a stream's turn for so long counts as standing still.
const STANDS_STILL: Duration = Duration::from_secs(1);

/// Limits how many KiB wait to be stored.
pub(crate) struct StoringBudget {
    room: Arc<Semaphore>,
    kib_max: u32,
}

/// Room for the bytes of a flight until they are stored. Free again when dropped.
pub(super) struct StoringRoom {
    _permit: Option<OwnedSemaphorePermit>,
}

impl StoringRoom {
    /// For bytes that are stored at once.
    pub(super) const NOT_NEEDED: StoringRoom = StoringRoom { _permit: None };
}

impl StoringBudget {
    /// Room for so many KiB.
    pub(crate) fn new(kib: u32) -> StoringBudget {
        StoringBudget { room: Arc::new(Semaphore::new(kib as usize)), kib_max: kib }
    }

    /// Room for `kib`, or for all there is; `None` if there is none now, or, with `waits`, none
    /// for [`STANDS_STILL`].
    pub(super) async fn take(
        &self,
        clock: &dyn Clock,
        kib: u32,
        waits: bool,
    ) -> Option<StoringRoom> {
        let (room, kib) = (self.room.clone(), kib.min(self.kib_max));
        let permit = match waits {
            true => clock.timeout(STANDS_STILL, room.acquire_many_owned(kib)).await.ok()?.ok()?,
            false => room.try_acquire_many_owned(kib).ok()?,
        };
        Some(StoringRoom { _permit: Some(permit) })
    }
}

/// Stores the bytes of one flight.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// The items of one file that wait to be stored.
pub(crate) struct Storing<T = Job>(Mutex<Waiting<T>>);

struct Waiting<T> {
    items: VecDeque<T>,
    /// A thread is storing, and comes back for the next item.
    is_busy: bool,
}

impl<T> Default for Storing<T> {
    fn default() -> Storing<T> {
        Storing(Mutex::new(Waiting { items: VecDeque::new(), is_busy: false }))
    }
}

impl<T> Storing<T> {
    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends an item. Returns whether no thread is storing: then the caller must have a thread
    /// call [`Storing::next`] until nothing is left.
    #[must_use]
    pub(super) fn push(&self, item: T) -> bool {
        let mut waiting = self.lock();
        debug_assert!(
            waiting.is_busy || waiting.items.is_empty(),
            "no item waits without a thread"
        );
        waiting.items.push_back(item);
        !std::mem::replace(&mut waiting.is_busy, true)
    }

    /// The next item for the storing thread; if there is none, no thread is storing any more.
    pub(super) fn next(&self) -> Option<T> {
        let mut waiting = self.lock();
        debug_assert!(waiting.is_busy, "one thread stores at a time, until nothing is left");
        let item = waiting.items.pop_front();
        waiting.is_busy = item.is_some();
        item
    }
}

#[cfg(test)]
mod tests {
    use larder_io::SimClock;

    use super::*;

    /// A read that is no stream's goes on at once; a stream waits until something is stored, and
    /// for a disk that stands still only so long. More than there is room for takes all of it.
    #[tokio::test]
    async fn a_stream_waits_for_room_and_other_reads_do_not() {
        let (clock, budget) = (SimClock::new(), StoringBudget::new(8));
        let first = budget.take(&clock, 3, false).await.expect("there is room");
        assert!(budget.take(&clock, 6, false).await.is_none());
        let stored = async {
            clock.asleep(1).await;
            drop(first);
        };
        let (whole, ()) = tokio::join!(budget.take(&clock, 100, true), stored);
        assert!(whole.is_some());
        let stands_still = async {
            clock.asleep(1).await;
            clock.advance(STANDS_STILL);
        };
        let (none, ()) = tokio::join!(budget.take(&clock, 1, true), stands_still);
        assert!(none.is_none());
        drop(whole);
        assert!(budget.take(&clock, 8, false).await.is_some(), "who gave up holds nothing");
    }

    /// Over all sequences of ten pushes and steps of the storing thread: items come out once, in
    /// order, one thread stores at a time, and no item waits while none does.
    #[test]
    fn items_are_stored_once_and_in_order_by_one_at_a_time() {
        const STEPS: u32 = 10;
        for choices in 0_u32..1 << STEPS {
            let storing = Storing::default();
            let (mut pushed, mut stored, mut is_storing) = (0, 0, false);
            for step in 0..STEPS {
                if choices >> step & 1 == 1 {
                    let begins = storing.push(pushed);
                    assert_eq!(begins, !is_storing, "{choices:b}");
                    (pushed, is_storing) = (pushed + 1, true);
                } else if is_storing {
                    let item = storing.next();
                    assert_eq!(item, (stored < pushed).then_some(stored), "{choices:b}");
                    stored += u32::from(item.is_some());
                    is_storing = item.is_some();
                }
                assert!(is_storing || stored == pushed, "{choices:b}");
            }
        }
    }
}

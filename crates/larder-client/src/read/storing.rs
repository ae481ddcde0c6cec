//! Stores fetched bytes: the bytes of one file go into the cache one after the other.
//!
//! A thread that may wait for the disk stores them. Waking one takes as long as a good part of the
//! copy, and two that write one file wait for each other in the kernel. So each file has at most
//! one storing thread, and it continues while there is something to store: a stream keeps it busy.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    use super::*;

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

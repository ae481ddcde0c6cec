//! Stores fetched bytes: the bytes of one file go into the cache one after the other.
//!
//! A thread stores them that may wait for the disk. Waking one takes as long as a good part of the
//! copy, and two that write one file wait for each other in the kernel. So each file has at most
//! one storing thread, and it continues while there is something to store: a stream keeps it busy.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Stores the bytes of one flight.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// What waits to be stored of one file.
pub(crate) struct Storing<T = Job>(Mutex<Waiting<T>>);

struct Waiting<T> {
    items: VecDeque<T>,
    /// Somebody stores, and comes back for the next item.
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

    /// Puts an item behind those that wait. Answers whether nobody stores: then the caller must see
    /// to it that somebody calls [`Storing::next`] until there is nothing left.
    #[must_use]
    pub(super) fn push(&self, item: T) -> bool {
        let mut waiting = self.lock();
        waiting.items.push_back(item);
        !std::mem::replace(&mut waiting.is_busy, true)
    }

    /// The next item for whoever stores; if there is none, nobody stores any more.
    pub(super) fn next(&self) -> Option<T> {
        let mut waiting = self.lock();
        let item = waiting.items.pop_front();
        waiting.is_busy = item.is_some();
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Over all sequences of ten pushes and steps of whoever stores: items come out once, in
    /// order, one stores at a time, and none waits while nobody does.
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

//! Operations in flight, and waiting until they are done.
//!
//! A capability that is revoked may have admitted a write that is still being carried out. The
//! revocation waits here for everything that was admitted before, and for nothing that comes later.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Counts operations in flight. Clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Underway(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    lot: Mutex<Lot>,
    /// An operation has ended.
    left: Notify,
}

#[derive(Debug, Default)]
struct Lot {
    /// Number of the next one.
    next: u64,
    /// Numbers of the operations in flight.
    inside: BTreeSet<u64>,
}

/// An operation in flight, until it is dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    shared: Arc<Shared>,
    number: u64,
}

impl Underway {
    /// An operation begins. The state on which it depends must be checked after this.
    pub(crate) fn enter(&self) -> Entered {
        let mut lot = self.0.lock();
        let number = lot.next;
        lot.next += 1;
        lot.inside.insert(number);
        Entered { shared: Arc::clone(&self.0), number }
    }

    /// Resolves when everything has ended that began before the call.
    pub(crate) async fn settled(&self) {
        let end = self.0.lock().next;
        loop {
            let left = self.0.left.notified();
            if self.0.lock().inside.first().is_none_or(|first| *first >= end) {
                return;
            }
            left.await;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Lot> {
        self.lot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.shared.lock().inside.remove(&self.number);
        self.shared.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn is_ready(future: Pin<&mut impl Future<Output = ()>>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn a_wait_covers_those_before_it_and_no_other() {
        let underway = Underway::default();
        assert!(is_ready(pin!(underway.settled())));
        let (first, second) = (underway.enter(), underway.enter());
        let mut wait = pin!(underway.settled());
        assert!(!is_ready(wait.as_mut()));
        let later = underway.enter();
        drop(second);
        assert!(!is_ready(wait.as_mut()));
        drop(first);
        assert!(is_ready(wait.as_mut()));
        drop(later);
    }

    /// A waiter that gives up does not take away what the next one waits for.
    #[test]
    fn a_wait_after_another_gave_up_waits_for_all() {
        let underway = Underway::default();
        let first = underway.enter();
        {
            let mut wait = pin!(underway.settled());
            assert!(!is_ready(wait.as_mut()));
        }
        let mut wait = pin!(underway.settled());
        assert!(!is_ready(wait.as_mut()));
        drop(first);
        assert!(is_ready(wait.as_mut()));
    }
}

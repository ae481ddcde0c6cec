//! A watch on one directory: a lease that the server's notices end, but for those that our own
//! changes cause.

use super::expected::Expected;
use super::files::ServerOpen;
use super::link::Reply;
use super::notices;
use larder_io::{Clock, Monotonic};
use larder_vfs::Lease;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// A watch on one directory.
pub(super) struct Watch {
    lease: Lease,
    /// The directory is open by this while it holds.
    pub(super) open: Weak<ServerOpen>,
    expected: Mutex<Expected>,
    /// It held until another client's change, or what may have been one.
    is_disturbed: AtomicBool,
    /// Wakes the task that attends to it.
    stirred: Notify,
    /// The leases of the directories above, since before its path was last found right.
    above: Mutex<Option<Vec<Lease>>>,
    clock: Arc<dyn Clock>,
}

impl Watch {
    /// The watch that this lease stands for.
    pub(super) fn new(lease: Lease, open: &Arc<ServerOpen>, clock: Arc<dyn Clock>) -> Watch {
        let (expected, is_disturbed, stirred, above) = Default::default();
        let open = Arc::downgrade(open);
        Watch { lease, open, expected, is_disturbed, stirred, above, clock }
    }

    fn expected(&self) -> MutexGuard<'_, Expected> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn above(&self) -> MutexGuard<'_, Option<Vec<Lease>>> {
        self.above.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease that stands for it.
    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Whether it held until another client's change, or what may have been one.
    pub(super) fn is_disturbed(&self) -> bool {
        self.is_disturbed.load(Ordering::Acquire)
    }

    /// The present time on the clock that it goes by.
    pub(super) fn now(&self) -> Monotonic {
        self.clock.now()
    }

    /// Whether it holds.
    pub(super) fn holds(&self) -> bool {
        self.lease.holds()
    }

    /// The path of the directory was found right since these leases were held, which are those of
    /// all directories above.
    pub(super) fn place(&self, leases: Vec<Lease>) {
        *self.above() = Some(leases);
    }

    /// Whether the path of the directory is known to be right.
    pub(super) fn is_placed(&self) -> bool {
        self.holds() && self.above().as_ref().is_some_and(|above| above.iter().all(Lease::holds))
    }

    /// Changes what is expected. If that shows that another client changed the directory, the lease
    /// has ended when this returns, and the watcher will be told.
    pub(super) fn expect<T>(&self, change: impl FnOnce(&mut Expected) -> T) -> T {
        let mut expected = self.expected();
        let result = change(&mut expected);
        if expected.is_over() && self.holds() {
            self.is_disturbed.store(true, Ordering::Release);
            self.lease.end();
        }
        drop(expected);
        self.stirred.notify_one();
        result
    }

    /// Takes in what the server has told. Returns whether the watch goes on.
    pub(super) fn told(&self, reply: Option<Reply>) -> bool {
        let told = reply.and_then(|reply| notices::read(&reply));
        self.expect(|expected| match told {
            Some(notices) => notices.iter().for_each(|(name, event)| expected.told(name, *event)),
            // Perhaps there were too many.
            None => expected.end(),
        });
        self.holds()
    }

    /// Waits until it is over.
    pub(super) async fn over(&self) {
        while self.holds() {
            let late_in = self.expected().late_in(self.now());
            match late_in {
                Some(Duration::ZERO) => {
                    tracing::debug!("the server has not told of a change of ours");
                    self.expect(Expected::end);
                }
                Some(late_in) => tokio::select! {
                    () = self.stirred.notified() => (),
                    () = self.clock.sleep(late_in) => (),
                },
                None => self.stirred.notified().await,
            }
        }
    }
}

//! [`Lease`]: a server's promise to tell us before it lets somebody else change a file.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Handle;

/// While it holds, what the reply that brought it said of the file is still true, but for our own
/// changes; no request is needed to know that.
///
/// Clones are the same lease. It ends when the server withdraws it, when the connection that it was
/// given on is lost, or when whoever took it gives it back; it never holds again afterwards.
#[derive(Clone)]
pub struct Lease {
    state: Arc<State>,
    keeps_name: bool,
}

struct State {
    holds: AtomicBool,
    ends_late: AtomicBool,
}

impl Lease {
    /// A lease that holds.
    #[allow(clippy::new_without_default, reason = "a lease is granted, not made up")]
    pub fn new() -> Lease {
        let state = State { holds: AtomicBool::new(true), ends_late: AtomicBool::new(false) };
        Lease { state: Arc::new(state), keeps_name: true }
    }

    /// A lease that holds, but does not end when somebody else renames or removes the file: by its
    /// name another one may be found.
    pub fn of_bytes() -> Lease {
        Lease { keeps_name: false, ..Lease::new() }
    }

    /// The same lease of a server that does not wait until it is given back: the word of its end
    /// may come after the change that ended it, and after answers from after that change.
    #[must_use]
    pub fn ending_late(self) -> Lease {
        self.set_ends_late(true);
        self
    }

    /// From now on the server waits until it is given back, or no longer does. Whoever took it says
    /// so: the former when nobody has changed the file since it was given, the latter before the
    /// server hears that somebody else may go on.
    pub fn set_ends_late(&self, ends_late: bool) {
        self.state.ends_late.store(ends_late, Ordering::Release);
    }

    /// Whether somebody else may have changed the file while it still holds. Who wants to know of a
    /// change of ours whether it was the only one asks after that was answered, and then whether it
    /// still holds.
    pub fn ends_late(&self) -> bool {
        self.state.ends_late.load(Ordering::Acquire)
    }

    /// Whether it still holds.
    pub fn holds(&self) -> bool {
        self.state.holds.load(Ordering::Acquire)
    }

    /// Whether it ends before somebody else renames or removes the file.
    pub fn keeps_name(&self) -> bool {
        self.keeps_name
    }

    /// Ends it. Whoever took it calls this before [`Watcher::broken`] and before the server hears
    /// that the lease was given up.
    pub fn end(&self) {
        self.state.holds.store(false, Ordering::Release);
    }

    /// Whether both are the same lease.
    pub fn is(&self, other: &Lease) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.holds() { "Lease(holds)" } else { "Lease(ended)" })
    }
}

/// Ends when what was told is done.
pub type LeaseTold<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Who is told that leases ended.
pub trait Watcher: Send + Sync + 'static {
    /// The lease on `file` has ended (it does not hold any more when this is called). When the
    /// future ends nobody believes any more what depended on it, the kernel neither. It waits for
    /// nothing that may wait for the server.
    fn distrust<'a>(&'a self, file: &'a Handle) -> LeaseTold<'a>;

    /// Changes of ours that the server does not have are written. To be called after
    /// [`Watcher::distrust`].
    fn write_back<'a>(&'a self, file: &'a Handle) -> LeaseTold<'a>;

    /// The lease on `file` has ended: both of these. A server that waits for that goes on then; one
    /// that lends for reading only does not wait.
    fn broken<'a>(&'a self, file: &'a Handle) -> LeaseTold<'a> {
        Box::pin(async move {
            self.distrust(file).await;
            self.write_back(file).await;
        })
    }

    /// The locks that were held on `file` ([`crate::Remote::lock`]) are lost, all of them: the
    /// connection was, and somebody else was faster when they were to be taken again. Does not
    /// wait.
    fn locks_lost(&self, _file: &Handle) {}
}

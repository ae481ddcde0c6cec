//! [`Lease`]: a server's promise to tell us before it lets another client change a file.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Handle;

/// While it holds, what the reply that granted it stated about the file is still true, except for
/// our own changes; no request is needed to know that.
///
/// Clones are the same lease. It ends when the server withdraws it, when the connection on which it
/// was granted is lost, or when its owner returns it; it never holds again afterwards.
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

    /// A lease that holds, but does not end when another client renames or removes the file: the
    /// name may then lead to another file.
    pub fn of_bytes() -> Lease {
        Lease { keeps_name: false, ..Lease::new() }
    }

    /// The same lease of a server that does not wait until it is returned: the message that ends it
    /// may arrive after the change that ended it, and after answers from after that change.
    #[must_use]
    pub fn ending_late(self) -> Lease {
        self.set_ends_late(true);
        self
    }

    /// Sets whether the server waits until the lease is returned. The lease's owner calls this:
    /// with `false` when no other client has changed the file since the lease was granted, with
    /// `true` before the server learns that another client may continue.
    pub fn set_ends_late(&self, ends_late: bool) {
        self.state.ends_late.store(ends_late, Ordering::Release);
    }

    /// Whether another client may have changed the file while the lease still holds. To find out
    /// whether a change of ours was the only one, ask this after the change was answered, and then
    /// ask whether the lease still holds.
    pub fn ends_late(&self) -> bool {
        self.state.ends_late.load(Ordering::Acquire)
    }

    /// Whether it still holds.
    pub fn holds(&self) -> bool {
        self.state.holds.load(Ordering::Acquire)
    }

    /// Whether it ends before another client renames or removes the file.
    pub fn keeps_name(&self) -> bool {
        self.keeps_name
    }

    /// Ends it. The lease's owner calls this before [`Watcher::broken`] and before the server
    /// learns that the lease was given up.
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

/// Resolves when the end of the lease has been handled.
pub type LeaseHandled<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Gets notified when leases end.
pub trait Watcher: Send + Sync + 'static {
    /// The lease on `file` has ended (it no longer holds when this is called). When the future
    /// ends, nothing that depended on the lease is trusted any more, neither here nor in the
    /// kernel. The future waits for nothing that may wait for the server.
    fn distrust<'a>(&'a self, file: &'a Handle) -> LeaseHandled<'a>;

    /// Writes our changes that the server does not have. To be called after [`Watcher::distrust`].
    fn write_back<'a>(&'a self, file: &'a Handle) -> LeaseHandled<'a>;

    /// The lease on `file` has ended: both of these. A server that waits for that continues then;
    /// one that grants leases only for reading does not wait.
    fn broken<'a>(&'a self, file: &'a Handle) -> LeaseHandled<'a> {
        Box::pin(async move {
            self.distrust(file).await;
            self.write_back(file).await;
        })
    }

    /// All locks that were held on `file` ([`crate::Remote::lock`]) are lost: the connection was
    /// lost, and another client took one of them before they could be taken again. Does not wait.
    fn locks_lost(&self, _file: &Handle) {}
}

//! What a lease on a file vouches for.

use larder_io::Monotonic;
use larder_vfs::Lease;

use super::State;
use crate::node::leasing::Leasing;

impl State {
    pub(in crate::node) fn leasing(&self) -> &Leasing {
        &self.leasing
    }

    pub(in crate::node) fn leasing_mut(&mut self) -> &mut Leasing {
        &mut self.leasing
    }

    /// Whether the server would notify us before the file or its name changes.
    pub(crate) fn leased(&self) -> bool {
        self.leasing.held().is_some_and(Lease::keeps_name)
    }

    /// The lease, if no other client changes the file or its name before it has ended.
    pub(crate) fn early_lease(&self) -> Option<&Lease> {
        self.leasing.held().filter(|lease| lease.keeps_name() && !lease.ends_late())
    }

    /// Whether what the server said in reply to a request of `asked` is true now, by this lease.
    pub(crate) fn vouched_since(&self, lease: &Lease, asked: Monotonic) -> bool {
        self.early_lease().is_some_and(|held| held.is(lease)) && !self.changed_since(asked)
    }

    /// Whether what is cached is what the server has: leased, and no change of ours lacks a
    /// description.
    pub(crate) fn is_vouched_for(&self) -> bool {
        self.leased() && !self.ctime_is_old()
    }
}

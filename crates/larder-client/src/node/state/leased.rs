//! What a lease on a file vouches for.

use std::time::Duration;

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

    /// Directories: whether all that changed the names since the last description are our own
    /// changes that it did not come with. To be asked once, with the next description.
    pub(super) fn take_vouched(&mut self) -> bool {
        let vouched = self.changes.vouched.take();
        vouched.is_some_and(|lease| self.early_lease().is_some_and(|held| held.is(&lease)))
    }

    /// Directories: for how long the names may still be trusted; zero if they may not. A lease
    /// vouches for them also when a change of ours has moved the directory's times.
    pub(crate) fn names_fresh_for(&self, session: u64, now: Monotonic) -> Duration {
        match self.early_lease() {
            Some(_) if self.known.session == session => self.known.ttl,
            _ => self.fresh_for(session, now),
        }
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

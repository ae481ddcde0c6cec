//! What is known of the lease on one file. Pure: when to ask, and what follows from an answer, is
//! [`super::lease`]'s.

use std::time::Duration;

use larder_io::Monotonic;
use larder_vfs::Lease;

/// For so long a server that gave no lease on a file is not asked for one again.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// The lease on one file, and whether the server was asked for one.
#[derive(Default)]
pub(crate) struct Leasing {
    /// The server's promise to tell us first, if it gave one with the attributes.
    lease: Option<Lease>,
    /// When it was asked for one and gave none.
    refused: Option<Monotonic>,
    /// It is being asked for one that nobody waits for.
    is_asked: bool,
}

impl Leasing {
    /// The lease, if it holds.
    pub(super) fn held(&self) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| lease.holds())
    }

    /// Whether to ask for one at `now`: there is none, and the server did not refuse one lately.
    pub(super) fn is_wanted(&self, now: Monotonic) -> bool {
        self.held().is_none() && self.refused.is_none_or(|at| now.since(at) >= REFUSED_FOR)
    }

    /// The server gave this one.
    pub(super) fn take(&mut self, lease: Lease) {
        self.lease = Some(lease);
    }

    /// The server gave none.
    pub(super) fn refuse(&mut self, now: Monotonic) {
        self.refused = Some(now);
    }

    /// The server has withdrawn it.
    pub(super) fn end(&mut self) {
        self.lease = None;
    }

    /// The server is to be asked for one that nobody waits for. Answers whether somebody asks
    /// already.
    pub(super) fn begin_asking(&mut self) -> bool {
        std::mem::replace(&mut self.is_asked, true)
    }

    /// It was asked.
    pub(super) fn end_asking(&mut self) {
        self.is_asked = false;
    }
}

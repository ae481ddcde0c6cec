//! What the server's status shows.

use std::time::Instant;

use super::Live;
use crate::activity::Activity;

impl Live {
    /// The server's activity.
    pub(crate) fn activity(&self, now: Instant) -> Activity {
        let (leases, calls_waiting) = self.leases.count();
        let (sessions, resilvering) = (self.sessions.len(), self.resilver.progress(now));
        let mut destaging = self.destage.activity(now);
        destaging.files = destaging.files.saturating_sub(self.leaving.files());
        (destaging.yielded_bytes, destaging.yielded_to_memory_bytes) = self.yielding.moved_bytes();
        let (leaving, instead) = (self.leaving.progress(now), self.noticed.shown());
        let archiving = self.archive.activity(now);
        Activity {
            sessions,
            leases,
            calls_waiting,
            resilvering,
            destaging,
            instead,
            leaving,
            archiving,
        }
    }
}

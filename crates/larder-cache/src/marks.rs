//! How much of what was put into the index is durable.

use std::sync::atomic::{AtomicU64, Ordering};

/// A moment between two puts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark(u64);

/// Counts the puts, and up to which of them all are durable.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    put: AtomicU64,
    durable: AtomicU64,
}

impl Marks {
    /// Something was put. The caller holds the log, whose order this is.
    pub(crate) fn put(&self) {
        self.put.fetch_add(1, Ordering::AcqRel);
    }

    /// After all that was put so far.
    pub(crate) fn now(&self) -> Mark {
        Mark(self.put.load(Ordering::Acquire))
    }

    /// All that was put before the mark is durable.
    pub(crate) fn reach(&self, mark: Mark) {
        debug_assert!(mark <= self.now(), "nothing is durable before it was put");
        self.durable.fetch_max(mark.0, Ordering::AcqRel);
    }

    pub(crate) fn has_reached(&self, mark: Mark) -> bool {
        self.durable.load(Ordering::Acquire) >= mark.0
    }
}

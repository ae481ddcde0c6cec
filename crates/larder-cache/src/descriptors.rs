//! The budget of descriptors: how many data files may be open, and for what.
//!
//! Who holds a descriptor of a data file is either the pool ([`crate::pool`]), which can open it
//! again, or the kernel by way of a [`crate::BackingFile`], which cannot give it back before the
//! last close. What neither may take is left to the rest of the process: index, session log,
//! sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Descriptors that are left to the rest of the process, unless the limit is too low: at least, and
/// at most.
const RESERVED_MIN: usize = 56;
const RESERVED_MAX: usize = 1024;
/// More in the pool than this brings nothing: opening a file again costs some microseconds.
const POOLED_MAX: usize = 512;
const POOLED_MIN: usize = 4;

/// How many descriptors of data files there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// Kept open to be used again, at most.
    pub pooled_max: usize,
    /// In the kernel's hands, at most: further files are read and written through us.
    pub handed_out_max: usize,
}

impl Descriptors {
    /// A budget within a process's `limit` of descriptors.
    pub fn within(limit: usize) -> Descriptors {
        let reserved = (limit / 2).clamp(RESERVED_MIN, RESERVED_MAX);
        let ours = limit.saturating_sub(reserved);
        let pooled_max = (ours / 4).clamp(POOLED_MIN, POOLED_MAX);
        Descriptors { pooled_max, handed_out_max: ours.saturating_sub(pooled_max) }
    }
}

/// Counts the data files in the kernel's hands.
#[derive(Debug)]
pub(crate) struct HandedOut {
    count: AtomicUsize,
    max: usize,
}

/// A data file in the kernel's hands.
#[derive(Debug)]
pub(crate) struct Place(Arc<HandedOut>);

impl HandedOut {
    pub(crate) fn new(max: usize) -> Arc<HandedOut> {
        Arc::new(HandedOut { count: AtomicUsize::new(0), max })
    }

    /// Whether no more can be handed out for now.
    pub(crate) fn is_full(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= self.max
    }

    /// Counts one more, also beyond the limit: two who ask at once both get the last place, and
    /// what the kernel has already counts whatever the limit is.
    pub(crate) fn take(self: &Arc<Self>) -> Place {
        self.count.fetch_add(1, Ordering::Relaxed);
        Place(Arc::clone(self))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (limit of the process, in the pool, in the kernel's hands)
    #[test]
    fn a_budget_leaves_descriptors_to_the_rest_of_the_process() {
        for (limit, pooled_max, handed_out_max) in [
            (0, 4, 0),
            (64, 4, 4),
            (256, 32, 96),
            (1024, 128, 384),
            (20_000, 512, 18_464),
            (1 << 20, 512, (1 << 20) - 1536),
        ] {
            let budget = Descriptors { pooled_max, handed_out_max };
            assert_eq!(Descriptors::within(limit), budget, "{limit}");
        }
    }
}

//! Detects changes of a directory that overlap in time.
//!
//! The attributes from before and after a change tell a client "nothing else happened in between"
//! (RFC 1813, 2.6). The file system reports those of a directory by separate calls, so this is true
//! only if no other change was in flight between them. Overlap is detected rather than prevented:
//! making changes wait for each other would cost a slow file system its parallelism.
//!
//! Directories share counters by hash: a directory that shares one with a busy directory sees
//! overlaps that do not exist.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use larder_vfs::Ino;

/// Number of counters. With this many, two directories that change at the same moment rarely share
/// one.
const SLOTS: usize = 1024;

/// The changes in progress.
#[derive(Debug)]
pub(crate) struct Overlaps {
    slots: Vec<Slot>,
}

/// How many changes have begun and ended. If they are equal, none is in progress.
#[derive(Debug, Default)]
struct Slot {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A change in progress; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Mark<'a> {
    slot: &'a Slot,
    begun: u64,
    /// Whether no other change was in progress at its beginning.
    alone: bool,
}

impl Overlaps {
    pub(crate) fn new() -> Overlaps {
        Overlaps { slots: std::iter::repeat_with(Slot::default).take(SLOTS).collect() }
    }

    /// The entries of a directory begin to change. To be called before the attributes are read.
    pub(crate) fn begin(&self, ino: Ino) -> Mark<'_> {
        // Inode numbers are assigned in sequence, so the remainder spreads them best.
        let slot = &self.slots[(ino.0 % SLOTS as u64) as usize];
        let begun = slot.begun.fetch_add(1, SeqCst);
        Mark { slot, begun, alone: slot.ended.load(SeqCst) == begun }
    }
}

impl Mark<'_> {
    /// Whether no other change was in progress since the beginning. To be called after the
    /// attributes are read.
    pub(crate) fn alone(&self) -> bool {
        self.alone && self.slot.begun.load(SeqCst) == self.begun + 1
    }
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        self.slot.ended.fetch_add(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_alone_if_no_other_overlaps_it() {
        let overlaps = Overlaps::new();
        let (one, other) = (Ino(5), Ino(6));
        let first = overlaps.begin(one);
        let elsewhere = overlaps.begin(other);
        assert!(first.alone() && elsewhere.alone());
        let second = overlaps.begin(one);
        assert!(!first.alone() && !second.alone());
        drop(first);
        assert!(!second.alone(), "it was not alone at its beginning");
        drop(second);
        assert!(overlaps.begin(one).alone());
        assert!(elsewhere.alone());
    }
}

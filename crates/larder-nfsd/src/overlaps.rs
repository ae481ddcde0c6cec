//! Which changes of a file overlap in time.
//!
//! The attributes from before a change and those from after it say "nothing else happened between"
//! to a client (RFC 1813, 2.6). The file system tells the two by separate calls, so it is true only
//! if no other change was under way between them. That is noticed here rather than prevented: to
//! make changes wait for each other would cost a slow file system its parallelism.
//!
//! Files share counters by hash: who shares one with a busy file is told of overlaps that are none.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use larder_vfs::Ino;

/// Counters. Collisions of two files that change at the same moment are rare with this many.
const SLOTS: usize = 1024;

/// The changes under way.
#[derive(Debug)]
pub(crate) struct Overlaps {
    slots: Vec<Slot>,
    /// Changes of a file's data of which it is not known beforehand which file it is.
    any_file: Slot,
}

/// Changes that began and that ended. Equal: none is under way.
#[derive(Debug, Default)]
struct Slot {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A change under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Mark<'a> {
    slot: &'a Slot,
    begun: u64,
    /// [`Overlaps::any_file`] and what had begun there, where it matters.
    any_file: Option<(&'a Slot, u64)>,
    /// Whether nothing else was under way at the beginning.
    alone: bool,
}

impl Overlaps {
    pub(crate) fn new() -> Overlaps {
        let slots = std::iter::repeat_with(Slot::default).take(SLOTS).collect();
        Overlaps { slots, any_file: Slot::default() }
    }

    /// The entries of a directory begin to change. Call it before looking at the attributes.
    pub(crate) fn begin_directory(&self, ino: Ino) -> Mark<'_> {
        let slot = self.slot(ino);
        let begun = slot.begun.fetch_add(1, SeqCst);
        Mark { slot, begun, any_file: None, alone: slot.ended.load(SeqCst) == begun }
    }

    /// A file's data or attributes begin to change. Call it before looking at the attributes.
    pub(crate) fn begin_file(&self, ino: Ino) -> Mark<'_> {
        let any_begun = self.any_file.begun.load(SeqCst);
        let mut mark = self.begin_directory(ino);
        mark.any_file = Some((&self.any_file, any_begun));
        mark.alone &= self.any_file.ended.load(SeqCst) == any_begun;
        mark
    }

    /// The data of nobody knows which file begins to change.
    pub(crate) fn begin_any_file(&self) -> Mark<'_> {
        let begun = self.any_file.begun.fetch_add(1, SeqCst);
        Mark { slot: &self.any_file, begun, any_file: None, alone: false }
    }

    fn slot(&self, ino: Ino) -> &Slot {
        // Numbers are given one after the other, so the remainder spreads them best.
        &self.slots[(ino.0 % SLOTS as u64) as usize]
    }
}

impl Mark<'_> {
    /// Whether no other change was under way since the beginning. Call it after looking at the
    /// attributes.
    pub(crate) fn alone(&self) -> bool {
        self.alone
            && self.slot.begun.load(SeqCst) == self.begun + 1
            && self.any_file.is_none_or(|(slot, begun)| slot.begun.load(SeqCst) == begun)
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
    fn alone_is_who_nobody_overlaps() {
        let overlaps = Overlaps::new();
        let (one, other) = (Ino(5), Ino(6));
        let first = overlaps.begin_file(one);
        let elsewhere = overlaps.begin_directory(other);
        assert!(first.alone() && elsewhere.alone());
        let second = overlaps.begin_file(one);
        assert!(!first.alone() && !second.alone());
        drop(first);
        assert!(!second.alone(), "it was not alone at its beginning");
        drop(second);
        assert!(overlaps.begin_file(one).alone());
        assert!(elsewhere.alone());
    }

    #[test]
    fn a_change_of_any_file_overlaps_those_of_files() {
        let overlaps = Overlaps::new();
        let before = overlaps.begin_file(Ino(5));
        let directory = overlaps.begin_directory(Ino(6));
        let any = overlaps.begin_any_file();
        let during = overlaps.begin_file(Ino(7));
        assert!(!before.alone() && !during.alone() && directory.alone());
        drop(any);
        assert!(!before.alone() && !during.alone());
        assert!(overlaps.begin_file(Ino(9)).alone());
    }
}

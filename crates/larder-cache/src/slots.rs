//! Counted slots, for things of which only a limited number may exist at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the slots that are taken.
#[derive(Debug)]
pub(crate) struct Slots {
    count: AtomicUsize,
    max: usize,
}

/// One of them; free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Slot(Arc<Slots>);

impl Slots {
    /// So many of them, all free.
    pub(crate) fn new(max: usize) -> Arc<Slots> {
        Arc::new(Slots { count: AtomicUsize::new(0), max })
    }

    /// Whether none is free now.
    pub(crate) fn are_taken(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= self.max
    }

    /// Takes one more, even beyond the limit: two concurrent callers both get the last slot, and
    /// some things are counted regardless of the limit.
    pub(crate) fn take(self: &Arc<Self>) -> Slot {
        self.count.fetch_add(1, Ordering::Relaxed);
        Slot(Arc::clone(self))
    }

    /// One that is free, if any is.
    pub(crate) fn take_free(self: &Arc<Self>) -> Option<Slot> {
        (!self.are_taken()).then(|| self.take())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let before = self.0.count.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "each slot was taken");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_free_again_when_its_process_is_gone() {
        let slots = Slots::new(2);
        let (one, two) = (slots.take_free(), slots.take_free());
        assert!(one.is_some() && two.is_some() && slots.are_taken());
        assert!(slots.take_free().is_none());
        let beyond = slots.take();
        drop(one);
        assert!(slots.take_free().is_none(), "there are two still");
        drop((two, beyond));
        assert!(slots.take_free().is_some());
    }
}

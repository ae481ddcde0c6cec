//! Access to a local file: many callers that fill parts of it, or one that changes it.

use std::ops::Range;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use crate::lock;
use crate::ranges::RangeSet;

/// Either many that add to something, or one that changes it.
#[derive(Debug, Default)]
pub(crate) struct Turns(RwLock<()>);

impl Turns {
    /// One of many.
    pub(crate) fn shared(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exclusive access. Waits for the others to end.
    pub(crate) fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no caller has access just now.
    pub(crate) fn is_free(&self) -> bool {
        !matches!(self.0.try_write(), Err(TryLockError::WouldBlock))
    }
}

/// The fills of one file.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    /// Taken before the state of the file.
    pub(crate) turns: Turns,
    /// Taken after it.
    taken: Mutex<Taken>,
}

/// The parts of a local file that fills have taken. Those of an older one, which is gone, are
/// forgotten.
#[derive(Debug, Default)]
struct Taken {
    serial: u64,
    ranges: RangeSet,
}

impl Filling {
    /// The parts of a local file among these that no fill has taken.
    pub(crate) fn without(&self, serial: u64, parts: Vec<Range<u64>>) -> Vec<Range<u64>> {
        let taken = lock(&self.taken);
        if taken.serial != serial {
            return parts;
        }
        parts.into_iter().flat_map(|part| taken.ranges.gaps(part)).collect()
    }

    /// A fill takes parts of a local file that no fill has taken.
    pub(crate) fn begin(&self, serial: u64, parts: &[Range<u64>]) {
        let mut taken = lock(&self.taken);
        if taken.serial != serial {
            *taken = Taken { serial, ranges: RangeSet::default() };
        }
        for part in parts {
            debug_assert!(!taken.ranges.intersects(part.clone()), "what a fill takes no other has");
            taken.ranges.insert(part.clone());
        }
    }

    /// It gives them back.
    pub(crate) fn end(&self, serial: u64, parts: &[Range<u64>]) {
        let mut taken = lock(&self.taken);
        if taken.serial == serial {
            for part in parts {
                debug_assert!(taken.ranges.contains(part.clone()), "what is given back was taken");
                taken.ranges.remove(part.clone());
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        lock(&self.taken).ranges.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const END: u64 = 12;

    proptest! {
        /// However many fills of however many local files there are: a fill gets what it asks for
        /// and no other fill has, and what all give back can be taken again.
        #[test]
        fn what_fills_take_is_disjoint_and_comes_back(
            steps in proptest::collection::vec((any::<bool>(), 1..3_u64, 0..END, 1..END), 1..40),
        ) {
            let filling = Filling::default();
            let mut open: Vec<(u64, Vec<Range<u64>>)> = Vec::new();
            let mut present = 0;
            for (begins, serial, start, len) in steps {
                if !begins && !open.is_empty() {
                    let at = usize::try_from(start).unwrap() % open.len();
                    let (serial, parts) = open.swap_remove(at);
                    filling.end(serial, &parts);
                    continue;
                }
                // A local file with a lower number is gone.
                let serial = serial.max(present);
                present = serial;
                let wanted = start..(start + len).min(END);
                let parts = filling.without(serial, vec![wanted.clone()]);
                let of_others: BTreeSet<u64> = open
                    .iter()
                    .filter(|(other, _)| *other == serial)
                    .flat_map(|(_, parts)| parts.iter().cloned().flatten())
                    .collect();
                let free: Vec<u64> = wanted.filter(|byte| !of_others.contains(byte)).collect();
                prop_assert!(parts.iter().cloned().flatten().eq(free));
                filling.begin(serial, &parts);
                open.push((serial, parts));
            }
            for (serial, parts) in open {
                filling.end(serial, &parts);
            }
            prop_assert!(filling.is_idle());
        }
    }

    #[test]
    fn many_may_fill_or_one_be_alone() {
        let turns = Turns::default();
        let first = turns.shared();
        drop(turns.shared());
        assert!(!turns.is_free(), "one is at it");
        drop(first);
        assert!(turns.is_free());
        let alone = turns.alone();
        assert!(!turns.is_free());
        drop(alone);
        assert!(turns.is_free());
    }
}

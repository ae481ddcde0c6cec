//! Whether a disk may serve from its store, and whether clients may use it: the volume remembers
//! from which store, and in which generation of it, each disk served last.
//!
//! A disk raises its store's generation in each boot in which it is let serve, before it does. So a
//! copy that was made before that boot is of an earlier generation than the volume remembers, and
//! stays so: it is never let serve. What a disk reports is on record before clients may use it. A
//! pure state machine.

use larder_wire::disk::words::StoreState;

/// What is known of a disk's store.
#[derive(Debug)]
pub(super) enum StoreCheck {
    /// Of a memory disk: its store is made anew at each boot, which is on record instead.
    OfMemory,
    /// Of others: what is on record, as far as that was said; what the disk reported, and whether
    /// it did so when it was let serve.
    Lasting { accepted: Option<StoreState>, found: Option<StoreState>, serves: bool },
}

impl StoreCheck {
    pub(super) fn new(is_memory: bool) -> StoreCheck {
        match is_memory {
            true => StoreCheck::OfMemory,
            false => StoreCheck::Lasting { accepted: None, found: None, serves: false },
        }
    }

    /// The disk has reported its store, as it was let serve or before. Returns it if the volume has
    /// to know.
    pub(super) fn found(&mut self, store: StoreState, is_let_serve: bool) -> Option<StoreState> {
        let StoreCheck::Lasting { found, serves, .. } = self else { return None };
        (*found, *serves) = (Some(store), is_let_serve);
        *found
    }

    /// This is on record. Returns whether it makes a difference.
    pub(super) fn accept(&mut self, store: StoreState) -> bool {
        match self {
            StoreCheck::OfMemory => false,
            StoreCheck::Lasting { accepted, .. } => accepted.replace(store) != Some(store),
        }
    }

    /// Whether the volume has said what is on record.
    pub(super) fn is_known(&self) -> bool {
        !matches!(self, StoreCheck::Lasting { accepted: None, .. })
    }

    /// Whether the disk may serve: its store is the one on record, and not from before.
    pub(super) fn may_serve(&self) -> bool {
        match self {
            StoreCheck::OfMemory => true,
            StoreCheck::Lasting { accepted: Some(known), found: Some(found), .. } => {
                continues(*known, *found)
            }
            StoreCheck::Lasting { .. } => false,
        }
    }

    /// Whether clients may use the disk: exactly what it serves from is on record.
    pub(super) fn may_be_used(&self) -> bool {
        match self {
            StoreCheck::OfMemory => true,
            StoreCheck::Lasting { accepted, found, serves } => *serves && accepted == found,
        }
    }
}

/// Whether a store that was found is the known one, at that time or later.
pub(crate) fn continues(known: StoreState, found: StoreState) -> bool {
    found.id == known.id && found.generation >= known.generation
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(id: u8, generation: u64) -> StoreState {
        StoreState { id: [id; 16], generation }
    }

    /// All reports and records of two stores in three generations.
    #[test]
    fn a_disk_serves_from_the_store_on_record_and_is_used_when_that_is_exact() {
        let all: Vec<StoreState> =
            [1, 2].into_iter().flat_map(|id| (0..3).map(move |at| store(id, at))).collect();
        let some = || [None].into_iter().chain(all.iter().copied().map(Some));
        let both = || some().flat_map(|found| [(found, false), (found, true)]);
        for known in some() {
            for (found, serves) in both() {
                let (mut check, mut memory) = (StoreCheck::new(false), StoreCheck::new(true));
                if let Some(found) = found {
                    assert_eq!(check.found(found, serves), Some(found));
                    assert_eq!(memory.found(found, serves), None);
                }
                if let Some(known) = known {
                    assert!(check.accept(known) && !check.accept(known) && !memory.accept(known));
                }
                let is_later = known.zip(found).is_some_and(|(known, found)| {
                    known.id == found.id && known.generation <= found.generation
                });
                assert_eq!(check.may_serve(), is_later, "{known:?} {found:?}");
                let is_exact = serves && known.is_some() && known == found;
                assert_eq!((check.may_be_used(), check.is_known()), (is_exact, known.is_some()));
                assert!(memory.may_serve() && memory.may_be_used());
            }
        }
    }
}

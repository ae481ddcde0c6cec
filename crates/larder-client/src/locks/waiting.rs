//! Which owner of this mount waits for which, to find deadlocks: fcntl(2) refuses with EDEADLK a
//! request that would wait for ever.
//!
//! Only locks of ranges take part, as in the kernel: flock(2) does not detect deadlocks. Cycles
//! that involve other mounts cannot be found.

use std::collections::{BTreeSet, HashMap};

use larder_vfs::{LockKind, LockOwner};

/// Owners that wait, each with the owners of the conflicting locks.
#[derive(Debug, Default)]
pub(super) struct Waiting(HashMap<LockOwner, BTreeSet<LockOwner>>);

impl Waiting {
    /// `owner` is about to wait for `others`. Returns `false`, and it does not wait, if one of them
    /// waits for it, directly or indirectly.
    pub(super) fn begin(&mut self, owner: LockOwner, others: BTreeSet<LockOwner>) -> bool {
        if owner.kind == LockKind::Range && self.leads_to(owner, &others) {
            return false;
        }
        self.0.insert(owner, others);
        true
    }

    /// `owner` waits no more.
    pub(super) fn end(&mut self, owner: LockOwner) {
        self.0.remove(&owner);
    }

    fn leads_to(&self, target: LockOwner, from: &BTreeSet<LockOwner>) -> bool {
        let (mut seen, mut next) = (BTreeSet::new(), from.iter().copied().collect::<Vec<_>>());
        while let Some(owner) = next.pop() {
            if owner == target {
                return true;
            }
            if seen.insert(owner) {
                next.extend(self.0.get(&owner).into_iter().flatten());
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(id: u64) -> LockOwner {
        LockOwner { kind: LockKind::Range, id }
    }

    #[test]
    fn a_circle_of_any_length_is_found_and_nothing_else() {
        for length in 1..6_u64 {
            let mut waiting = Waiting::default();
            for id in 0..length {
                assert!(waiting.begin(owner(id), BTreeSet::from([owner(id + 1), owner(100)])));
            }
            assert!(!waiting.begin(owner(length), BTreeSet::from([owner(50), owner(0)])));
            waiting.end(owner(length / 2));
            assert!(waiting.begin(owner(length), BTreeSet::from([owner(50), owner(0)])));
        }
    }

    #[test]
    fn flock_looks_for_no_circles() {
        let whole = |id| LockOwner { kind: LockKind::Whole, id };
        let mut waiting = Waiting::default();
        assert!(waiting.begin(whole(1), BTreeSet::from([whole(2)])));
        assert!(waiting.begin(whole(2), BTreeSet::from([whole(1)])));
    }
}

//! The table of the locks that owners of this mount have on one file: the rules of fcntl(2) and
//! flock(2), pure.
//!
//! - Locks of ranges conflict with those of other owners of ranges, those of whole files with those
//!   of other owners of whole files; the two kinds ignore each other, as on a local file.
//! - When an owner locks a range again, its mode changes; when it unlocks a range, exactly that
//!   range is unlocked.
//! - To the server all owners are one holder, which has each byte in the strongest mode that one of
//!   them has ([`Table::changes`]).
//!
//! Invariant: an owner without locks is not in the table.

use std::collections::BTreeSet;
use std::ops::Range;

use larder_vfs::{LOCK_END, Lock, LockChange, LockMap, LockMode, LockOwner, OpenId};

/// What one owner has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) owner: LockOwner,
    pub(crate) pid: u32,
    pub(crate) held: LockMap,
    /// The open files through which it locked: those of an open file description, or of flock(2),
    /// end with theirs.
    pub(crate) opens: BTreeSet<OpenId>,
    /// The server has given another client what this owner believes to have locked.
    pub(crate) lost: bool,
}

/// The locks of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table(Vec<Holder>);

impl Table {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All owners that have locks.
    pub(crate) fn holders(&self) -> &[Holder] {
        &self.0
    }

    /// What an owner has.
    pub(crate) fn holder(&self, owner: LockOwner) -> Option<&Holder> {
        self.0.iter().find(|holder| holder.owner == owner)
    }

    /// A lock of another owner of this mount that conflicts with `wanted`.
    pub(crate) fn conflict(&self, wanted: &Lock) -> Option<Lock> {
        let others = self.0.iter().filter(|other| {
            other.owner != wanted.owner && other.owner.kind == wanted.owner.kind && !other.lost
        });
        let mut found = others.filter_map(|other| {
            let in_the_way = |(_, mode): &(_, LockMode)| !mode.allows(wanted.mode);
            let (part, _) = other.held.within(&wanted.range).find(in_the_way)?;
            // The whole of it, as it was locked.
            let (range, mode) = other.held.iter().find(|(range, _)| range.contains(&part.start))?;
            Some(Lock { owner: other.owner, pid: other.pid, range, mode })
        });
        found.next()
    }

    /// Every owner that has such a lock.
    pub(crate) fn in_the_way(&self, wanted: &Lock) -> BTreeSet<LockOwner> {
        let others = self.0.iter().filter(|other| {
            let same_kind = other.owner != wanted.owner && other.owner.kind == wanted.owner.kind;
            same_kind && other.held.within(&wanted.range).any(|(_, mode)| !mode.allows(wanted.mode))
        });
        others.map(|other| other.owner).collect()
    }

    /// The owner locks the range in this mode, through this open file; `None` unlocks it.
    pub(crate) fn set(
        &mut self,
        owner: LockOwner,
        range: Range<u64>,
        lock: Option<(LockMode, u32, OpenId)>,
    ) {
        debug_assert!(range.start < range.end, "a lock is of some bytes");
        debug_assert!(
            lock.is_none_or(|(mode, pid, _)| {
                self.conflict(&Lock { owner, pid, range: range.clone(), mode }).is_none()
            }),
            "no other owner has what is locked"
        );
        let at = self.0.iter().position(|holder| holder.owner == owner);
        match (at, lock) {
            (Some(at), lock) => {
                let holder = &mut self.0[at];
                holder.held.set(range, lock.map(|(mode, ..)| mode));
                if let Some((_, pid, open)) = lock {
                    holder.pid = pid;
                    holder.opens.insert(open);
                }
                if holder.held.is_empty() {
                    self.0.swap_remove(at);
                }
            }
            (None, Some((mode, pid, open))) => {
                let mut held = LockMap::default();
                held.set(range, Some(mode));
                self.0.push(Holder {
                    owner,
                    pid,
                    held,
                    opens: BTreeSet::from([open]),
                    lost: false,
                });
            }
            (None, None) => {}
        }
    }

    /// Restores what an earlier process had on record.
    pub(crate) fn restore(&mut self, holder: Holder) {
        debug_assert!(self.holder(holder.owner).is_none(), "an owner has one entry");
        debug_assert!(!holder.held.is_empty(), "an owner without locks is not in the table");
        self.0.push(holder);
    }

    /// The open file is gone, and with it the locks of owners that locked through it.
    pub(crate) fn close(&mut self, open: OpenId) {
        self.0.retain(|holder| !holder.opens.contains(&open));
    }

    /// The server no longer has any of these locks.
    pub(crate) fn lose(&mut self) {
        self.0.iter_mut().for_each(|holder| holder.lost = true);
    }

    /// Whether an owner that locked through this open file has lost its locks.
    pub(crate) fn is_lost(&self, open: OpenId) -> bool {
        self.0.iter().any(|holder| holder.lost && holder.opens.contains(&open))
    }

    /// What the server is to hold for all of them.
    pub(crate) fn wanted(&self) -> LockMap {
        let mut all = LockMap::default();
        // The stronger mode last.
        for mode in [LockMode::Shared, LockMode::Exclusive] {
            for holder in self.0.iter().filter(|holder| !holder.lost) {
                for (range, _) in holder.held.iter().filter(|(_, held)| *held == mode) {
                    all.set(range, Some(mode));
                }
            }
        }
        all
    }

    /// What is to be changed at the server to get from this table to `after`.
    pub(crate) fn changes(&self, after: &Table) -> Vec<LockChange> {
        let (old, new) = (self.wanted(), after.wanted());
        let mut ends: Vec<u64> = [&old, &new]
            .iter()
            .flat_map(|map| map.iter())
            .flat_map(|(range, _)| [range.start, range.end])
            .collect();
        ends.sort_unstable();
        ends.dedup();
        let mut changes: Vec<LockChange> = Vec::new();
        for (start, end) in ends.iter().zip(ends.iter().skip(1)) {
            let (was, mode) = (old.at(*start), new.at(*start));
            if was == mode {
                continue;
            }
            match changes.last_mut() {
                Some(last) if last.mode == mode && last.range.end == *start => {
                    last.range.end = *end;
                }
                _ => changes.push(LockChange { range: *start..*end, mode }),
            }
        }
        debug_assert!(changes.iter().all(|change| change.range.end <= LOCK_END));
        debug_assert!(
            {
                let mut reached = old;
                changes.iter().for_each(|change| reached.set(change.range.clone(), change.mode));
                reached == new
            },
            "the server is asked for all that it is to hold, and for nothing else"
        );
        changes
    }
}

#[cfg(test)]
mod tests {
    use larder_vfs::LockKind;

    use super::*;

    fn owner(kind: LockKind, id: u64) -> LockOwner {
        LockOwner { kind, id }
    }

    fn lock(owner: LockOwner, range: Range<u64>, mode: LockMode) -> Lock {
        Lock { owner, pid: 1, range, mode }
    }

    const MODES: [Option<LockMode>; 3] = [None, Some(LockMode::Shared), Some(LockMode::Exclusive)];

    /// Every sequence of three calls of three owners, of which two are of one kind, on three bytes:
    /// each byte is locked as the granted calls say, no owner has a lock that conflicts with
    /// another owner's of its kind, and the server's locks follow from the changes alone.
    #[test]
    fn every_sequence_of_calls_is_as_fcntl_and_flock_have_it() {
        let owners =
            [owner(LockKind::Range, 1), owner(LockKind::Range, 2), owner(LockKind::Whole, 1)];
        let ranges: Vec<Range<u64>> =
            (0..3).flat_map(|start| (start + 1..=3).map(move |end| start..end)).collect();
        let mut calls = Vec::new();
        for who in owners {
            for range in &ranges {
                calls.extend(MODES.map(|mode| (who, range.clone(), mode)));
            }
        }
        let mut count = 0;
        for first in &calls {
            for second in &calls {
                for third in &calls {
                    check(&owners, [first, second, third]);
                    count += 1;
                }
            }
        }
        assert_eq!(count, 157_464);
    }

    type Call = (LockOwner, Range<u64>, Option<LockMode>);

    fn check(owners: &[LockOwner; 3], calls: [&Call; 3]) {
        let mut table = Table::default();
        let (mut bytes, mut server) = ([[None; 3]; 3], LockMap::default());
        for (who, range, mode) in calls {
            let at = owners.iter().position(|one| one == who).unwrap();
            let span = range.start as usize..range.end as usize;
            let is_free = |mode: LockMode| {
                owners
                    .iter()
                    .enumerate()
                    .filter(|(_, other)| *other != who && other.kind == who.kind)
                    .all(|(other, _)| {
                        bytes[other][span.clone()]
                            .iter()
                            .flatten()
                            .all(|held: &LockMode| mode.allows(*held))
                    })
            };
            if let Some(mode) = *mode {
                let refused = table.conflict(&lock(*who, range.clone(), mode));
                assert_eq!(refused.is_none(), is_free(mode));
                if refused.is_some() {
                    continue;
                }
            }
            let before = table.clone();
            table.set(*who, range.clone(), mode.map(|mode| (mode, 1, OpenId(9))));
            bytes[at][span].fill(*mode);
            for change in before.changes(&table) {
                server.set(change.range, change.mode);
            }
            for byte in 0..3 {
                let strongest = bytes.iter().filter_map(|held| held[byte]).max();
                assert_eq!(server.at(byte as u64), strongest);
            }
            assert!(table.holders().iter().all(|holder| !holder.held.is_empty()));
        }
    }

    #[test]
    fn locks_end_with_the_open_files_that_they_came_by() {
        let mut table = Table::default();
        let (one, two) = (owner(LockKind::Whole, 1), owner(LockKind::Range, 2));
        table.set(one, 0..LOCK_END, Some((LockMode::Shared, 1, OpenId(1))));
        table.set(two, 0..5, Some((LockMode::Shared, 2, OpenId(2))));
        table.lose();
        assert!(table.is_lost(OpenId(1)) && !table.is_lost(OpenId(3)));
        assert!(table.wanted().is_empty());
        table.close(OpenId(1));
        assert!(table.holder(one).is_none() && table.holder(two).is_some());
    }
}

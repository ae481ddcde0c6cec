//! The copies of blocks: sets of disks that have the same blocks, and which blocks of a disk are
//! stale.
//!
//! A *set* is as many disks as the volume keeps copies. Blocks are named by the number of their set
//! and lie at the same position on each of its disks; on a volume that keeps one copy each disk is
//! a set. *Memory disks*, whose bytes go with their processes, are sets of their own, of as many
//! disks as were enrolled beside each other, and ordinary files have no blocks there. Blocks of one
//! disk are *stale* if they differ from those of the other disks of its set: the disk was away when
//! they were written or cleared, or is new, or is a memory disk that was started again
//! ([`crate::live`] finds that by the disk's boot). No capability covers stale blocks, except those
//! of the task that brings them up to date ([`crate::resilver`]).
//!
//! Blocks of a set of memory disks that are stale on each of them are *lost*.
//!
//! With copies or memory disks, and while a disk leaves, a committed block is never written again:
//! a writer gets other blocks, and the commit puts them in its place. So copies of a committed
//! block that are not stale are equal, whatever died meanwhile: uncommitted blocks are never read
//! by others.
//!
//! Invariant, checked by [`crate::check`]: some disk has a copy of each committed block that is not
//! stale, except on memory disks. The same holds for free blocks: a disk has cleared them.

use std::collections::BTreeMap;
use std::ops::Range;

use larder_wire::meta::words::{DiskId, Medium};
use larder_wire::meta::{BLOCK_BYTES, Status};

use crate::disks::Limits;
use crate::store::records::{Blocks, Disk, MemoryBoot, Volume};
use crate::store::{Txn, key};

/// The sets of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sets {
    copies: usize,
    sets: BTreeMap<DiskId, Set>,
    /// How many bytes memory disks can hold, as they said last. The store does not have that.
    limits: Limits,
}

/// Stale blocks, and the key of their record.
type Stale = (Range<u64>, Vec<u8>);

/// Disks that have the same blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Set {
    /// In their order.
    pub(crate) disks: Vec<DiskId>,
    /// The size of each.
    pub(crate) bytes: u64,
    /// For memory disks: the boot of each to which the blocks belong.
    pub(crate) boots: BTreeMap<DiskId, u64>,
    /// Whether it leaves the volume: it gets no new blocks.
    pub(crate) leaves: bool,
}

impl Set {
    pub(crate) fn is_memory(&self) -> bool {
        !self.boots.is_empty()
    }

    /// Whether its blocks may be stale: for a single memory disk, those that are lost.
    pub(crate) fn may_be_stale(&self) -> bool {
        self.is_memory() || self.disks.len() > 1
    }
}

impl Sets {
    /// Those of the volume.
    pub(crate) fn load(txn: &Txn<'_>) -> Result<Sets, Status> {
        let volume = txn.get::<Volume>(&key::volume())?.ok_or(Status::Io)?;
        let copies = usize::try_from(volume.copies).map_err(|_| Status::Io)?;
        let mut sets: BTreeMap<DiskId, Set> = BTreeMap::new();
        for (number, disk) in all(txn)? {
            let set = sets.entry(set_of(number, &disk)).or_default();
            let bytes = disk.blocks * BLOCK_BYTES;
            set.bytes = if set.disks.is_empty() { bytes } else { set.bytes.min(bytes) };
            set.disks.push(number);
            set.leaves |= disk.leaves;
            if disk.is_memory {
                let boot = txn.get::<MemoryBoot>(&key::memory_boot(number))?;
                set.boots.insert(number, boot.map_or(0, |record| record.boot));
            }
        }
        Ok(Sets { copies, sets, limits: Limits::new() })
    }

    /// Memory disks can hold so many bytes from now on.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// As was said last.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether a memory disk of a set can hold less than it has.
    pub(crate) fn is_limited(&self, set: DiskId) -> bool {
        let about = self.sets.get(&set).filter(|about| about.is_memory());
        about.is_some_and(|about| {
            about
                .disks
                .iter()
                .filter_map(|disk| self.limits.get(disk))
                .any(|one| *one < about.bytes)
        })
    }

    /// How many copies the volume keeps.
    pub(crate) fn copies(&self) -> usize {
        self.copies
    }

    /// Whether that is more than one.
    pub(crate) fn are_mirrored(&self) -> bool {
        self.copies > 1
    }

    /// The most disks of a set.
    pub(crate) fn copies_max(&self) -> usize {
        self.sets.values().map(|set| set.disks.len()).max().unwrap_or(1)
    }

    /// Whether a committed block is never written again: with copies, if what is written may be on
    /// another medium than what it replaces, and while committed blocks are moved.
    pub(crate) fn are_written_anew(&self) -> bool {
        self.are_mirrored() || self.memory().next().is_some() || self.leaving().next().is_some()
    }

    /// The sets that leave the volume.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = (DiskId, &Set)> {
        self.complete().filter(|(_, set)| set.leaves)
    }

    /// Whether a set leaves the volume.
    pub(crate) fn leaves(&self, set: DiskId) -> bool {
        self.sets.get(&set).is_some_and(|set| set.leaves)
    }

    /// The disks of a set.
    pub(crate) fn disks(&self, set: DiskId) -> &[DiskId] {
        self.sets.get(&set).map_or(&[], |set| &set.disks)
    }

    /// Sets that have all their disks: others have no blocks yet.
    pub(crate) fn complete(&self) -> impl Iterator<Item = (DiskId, &Set)> {
        let is_complete = |set: &Set| set.is_memory() || set.disks.len() >= self.copies;
        self.sets
            .iter()
            .filter(move |(_, set)| is_complete(set))
            .map(|(number, set)| (*number, set))
    }

    /// The sets without memory disks: ordinary files have their blocks there.
    pub(crate) fn lasting(&self) -> impl Iterator<Item = (DiskId, &Set)> {
        self.complete().filter(|(_, set)| !set.is_memory())
    }

    /// Those of them that are memory disks.
    pub(crate) fn memory(&self) -> impl Iterator<Item = (DiskId, &Set)> {
        self.complete().filter(|(_, set)| set.is_memory())
    }

    /// The sets from which blocks are taken for a medium: for memory all memory disks, however many
    /// copies are wanted. None that leaves.
    pub(crate) fn on(&self, medium: Medium) -> Vec<DiskId> {
        let is_on = |(_, set): &(DiskId, &Set)| set.is_memory() == (medium != Medium::Disk);
        self.complete()
            .filter(|(_, set)| !set.leaves)
            .filter(is_on)
            .map(|(number, _)| number)
            .collect()
    }

    /// Whether a set is as good as a medium, or better: it is durable, or has as many memory disks
    /// as are wanted.
    pub(crate) fn suits(&self, set: DiskId, medium: Medium) -> bool {
        match medium {
            Medium::Disk => !self.is_memory(set),
            Medium::Memory(copies) => {
                !self.is_memory(set) || self.disks(set).len() >= copies as usize
            }
        }
    }

    /// Whether a set is one of memory disks.
    pub(crate) fn is_memory(&self, set: DiskId) -> bool {
        self.sets.get(&set).is_some_and(Set::is_memory)
    }

    /// The set that a disk is of.
    pub(crate) fn of(&self, disk: DiskId) -> Option<(DiskId, &Set)> {
        let of = self.sets.iter().find(|(_, set)| set.disks.contains(&disk));
        of.map(|(number, set)| (*number, set))
    }

    /// Whether blocks of a set may be stale.
    pub(crate) fn may_be_stale(&self, set: DiskId) -> bool {
        self.sets.get(&set).is_some_and(Set::may_be_stale)
    }

    /// The boot of a memory disk to which its blocks belong, 0 if it was never used; `None` for
    /// others.
    pub(crate) fn boot(&self, disk: DiskId) -> Option<u64> {
        self.sets.values().find_map(|set| set.boots.get(&disk)).copied()
    }

    /// Its blocks are of another boot.
    pub(crate) fn set_boot(&mut self, disk: DiskId, boot: u64) {
        if let Some(known) = self.sets.values_mut().find_map(|set| set.boots.get_mut(&disk)) {
            *known = boot;
        }
    }

    /// The set to which another disk is added, if one is incomplete.
    pub(crate) fn incomplete(&self) -> Option<DiskId> {
        let lacks = |set: &Set| !set.is_memory() && set.disks.len() < self.copies;
        self.sets.iter().find(|(_, set)| lacks(set)).map(|(number, _)| *number)
    }
}

/// The set that a disk is of.
pub(crate) fn set_of(number: DiskId, disk: &Disk) -> DiskId {
    if disk.set == 0 { number } else { DiskId(disk.set) }
}

/// The disks of the volume.
pub(crate) fn all(txn: &Txn<'_>) -> Result<Vec<(DiskId, Disk)>, Status> {
    let disks = txn.scan_all::<Disk>(&key::disk(DiskId(0))[..1])?;
    let number = |key: &[u8]| key.last_chunk().map(|id| DiskId(u32::from_be_bytes(*id)));
    disks.into_iter().map(|(key, disk)| Ok((number(&key).ok_or(Status::Io)?, disk))).collect()
}

/// The stale parts of a range of a disk.
pub(crate) fn stale(
    txn: &Txn<'_>,
    disk: DiskId,
    bytes: &Range<u64>,
) -> Result<Vec<Range<u64>>, Status> {
    let within =
        |(stale, _): (Range<u64>, _)| stale.start.max(bytes.start)..stale.end.min(bytes.end);
    Ok(overlapping(txn, disk, bytes)?.into_iter().map(within).collect())
}

/// The first stale blocks of a disk that end beyond `from`.
pub(crate) fn first_stale(
    txn: &Txn<'_>,
    disk: DiskId,
    from: u64,
) -> Result<Option<Range<u64>>, Status> {
    Ok(overlapping(txn, disk, &(from..u64::MAX))?.into_iter().next().map(|(bytes, _)| bytes))
}

/// How many bytes of a disk are stale.
pub(crate) fn stale_bytes(txn: &Txn<'_>, disk: DiskId) -> Result<u64, Status> {
    let stale = stale(txn, disk, &(0..u64::MAX))?;
    Ok(stale.iter().map(|bytes| bytes.end - bytes.start).sum())
}

/// The parts of these ranges that are not stale.
pub(crate) fn whole(
    txn: &Txn<'_>,
    disk: DiskId,
    ranges: &[Range<u64>],
) -> Result<Vec<Range<u64>>, Status> {
    let mut whole = Vec::new();
    for range in ranges {
        whole.extend(without(std::slice::from_ref(range), &stale(txn, disk, range)?));
    }
    Ok(whole)
}

/// The parts of a range of a set that none of its disks has: stale on all of them.
pub(crate) fn lost(
    txn: &Txn<'_>,
    set: &[DiskId],
    bytes: &Range<u64>,
) -> Result<Vec<Range<u64>>, Status> {
    let mut lost = vec![bytes.clone()];
    for disk in set {
        let whole = whole(txn, *disk, &lost)?;
        lost = without(&lost, &whole);
    }
    Ok(lost)
}

/// The parts of `ranges` that are in none of `others`. Both are in order, and do not overlap.
pub(crate) fn without(ranges: &[Range<u64>], others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    for range in ranges {
        let mut at = range.start;
        for other in others.iter().filter(|other| other.end > range.start) {
            let end = other.start.min(range.end);
            if at < end {
                left.push(at..end);
            }
            at = at.max(other.end);
        }
        if at < range.end {
            left.push(at..range.end);
        }
    }
    left
}

/// Blocks of a disk are stale from now on.
pub(crate) fn add_stale(txn: &mut Txn<'_>, disk: DiskId, bytes: &Range<u64>) -> Result<(), Status> {
    // Neighbours become one.
    let around = bytes.start.saturating_sub(1)..bytes.end.saturating_add(1);
    let mut all = bytes.clone();
    for (stale, key) in overlapping(txn, disk, &around)? {
        all = all.start.min(stale.start)..all.end.max(stale.end);
        txn.delete(key);
    }
    put(txn, disk, all);
    Ok(())
}

/// Blocks of a disk are as the others have them.
pub(crate) fn remove_stale(
    txn: &mut Txn<'_>,
    disk: DiskId,
    bytes: &Range<u64>,
) -> Result<(), Status> {
    for (stale, key) in overlapping(txn, disk, bytes)? {
        txn.delete(key);
        put(txn, disk, stale.start..bytes.start.min(stale.end));
        put(txn, disk, bytes.end.max(stale.start)..stale.end);
    }
    Ok(())
}

fn put(txn: &mut Txn<'_>, disk: DiskId, bytes: Range<u64>) {
    if !bytes.is_empty() {
        let length = bytes.end - bytes.start;
        txn.put(key::stale(disk, bytes.end), &Blocks { length });
    }
}

/// Records of stale blocks that have some of a range.
fn overlapping(txn: &Txn<'_>, disk: DiskId, bytes: &Range<u64>) -> Result<Vec<Stale>, Status> {
    let start = key::stale(disk, bytes.start.saturating_add(1));
    let until = key::after(&key::stale(disk, u64::MAX));
    let mut found = Vec::new();
    for (key, blocks) in txn.scan::<Blocks>(&start, &until, usize::MAX)? {
        let end = key::last_number(&key).ok_or(Status::Io)?;
        let start = end.checked_sub(blocks.length).ok_or(Status::Io)?;
        if start >= bytes.end {
            break;
        }
        found.push((start..end, key));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::memory::MemoryEngine;
    use crate::engine::{Engine, Writes};

    const B: u64 = BLOCK_BYTES;

    /// All orders of two additions and a removal in six blocks, against a model with one bit per
    /// block.
    #[test]
    fn stale_blocks_are_those_that_were_added_and_not_removed() {
        let engine = MemoryEngine::new();
        let view = engine.view().unwrap();
        let none = Writes::new();
        let disk = DiskId(3);
        let spans: Vec<Range<u64>> =
            (0..6).flat_map(|a| (a + 1..=6).map(move |b| a * B..b * B)).collect();
        for first in &spans {
            for second in &spans {
                for gone in &spans {
                    let mut txn = Txn::new(&*view, &none);
                    // Another disk's make no difference.
                    add_stale(&mut txn, DiskId(2), &(0..6 * B)).unwrap();
                    add_stale(&mut txn, disk, first).unwrap();
                    remove_stale(&mut txn, disk, gone).unwrap();
                    add_stale(&mut txn, disk, second).unwrap();
                    let is_stale = |at: u64| {
                        second.contains(&at) || (first.contains(&at) && !gone.contains(&at))
                    };
                    let blocks: Vec<u64> = (0..7).map(|block| block * B).collect();
                    for at in &blocks {
                        let one = *at..at + B;
                        let found = stale(&txn, disk, &one).unwrap();
                        let whole = whole(&txn, disk, std::slice::from_ref(&one)).unwrap();
                        let (is_stale, all) = (is_stale(*at), vec![one]);
                        let none = Vec::new();
                        let expected = if is_stale { (&all, &none) } else { (&none, &all) };
                        assert_eq!((&found, &whole), expected, "{first:?} {gone:?} {second:?}");
                    }
                    let count = blocks.iter().filter(|at| is_stale(**at)).count() as u64;
                    assert_eq!(stale_bytes(&txn, disk).unwrap(), count * B);
                    let records = overlapping(&txn, disk, &(0..u64::MAX)).unwrap();
                    let apart = |two: &[Stale]| two[0].0.end < two[1].0.start;
                    assert!(records.windows(2).all(apart), "{records:?}");
                }
            }
        }
    }
}

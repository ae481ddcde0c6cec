//! The copies of blocks: sets of disks that have the same blocks, and which blocks of a disk are
//! stale.
//!
//! A *set* is as many disks as the volume keeps copies. Blocks are named by the number of their set
//! and lie at the same place on each of its disks; on a volume that keeps one copy each disk is a
//! set. Blocks of one disk are *stale* if they differ from those of the other disks of its set: the
//! disk was away when they were written or cleared, or is new. No capability covers stale blocks,
//! except those of the task that brings them up to date ([`crate::resilver`]).
//!
//! With copies, a committed block is never written again: a writer gets other blocks, and the
//! commit puts them in its place. So copies of a committed block that are not stale are equal,
//! whatever died meanwhile: uncommitted blocks are never read by others.
//!
//! Invariant, checked by [`crate::check`]: some disk has a copy of each committed block that is not
//! stale. The same holds for free blocks: a disk has cleared them.

use std::collections::BTreeMap;
use std::ops::Range;

use larder_wire::meta::words::DiskId;
use larder_wire::meta::{BLOCK_BYTES, Status};

use crate::store::records::{Blocks, Disk, Volume};
use crate::store::{Txn, key};

/// The sets of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sets {
    copies: usize,
    sets: BTreeMap<DiskId, Set>,
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
        }
        Ok(Sets { copies, sets })
    }

    /// How many copies the volume keeps.
    pub(crate) fn copies(&self) -> usize {
        self.copies
    }

    /// Whether that is more than one: then a committed block is never written again.
    pub(crate) fn are_mirrored(&self) -> bool {
        self.copies > 1
    }

    /// The disks of a set.
    pub(crate) fn disks(&self, set: DiskId) -> &[DiskId] {
        self.sets.get(&set).map_or(&[], |set| &set.disks)
    }

    /// Sets that have all their disks: others have no blocks yet.
    pub(crate) fn complete(&self) -> impl Iterator<Item = (DiskId, &Set)> {
        let is_complete = |set: &Set| set.disks.len() >= self.copies;
        self.sets
            .iter()
            .filter(move |(_, set)| is_complete(set))
            .map(|(number, set)| (*number, set))
    }

    /// The set to which another disk is added, if one lacks some.
    pub(crate) fn incomplete(&self) -> Option<DiskId> {
        let lacks = |set: &Set| set.disks.len() < self.copies;
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

/// What of a range of a disk is stale.
pub(crate) fn stale(
    txn: &Txn<'_>,
    disk: DiskId,
    bytes: &Range<u64>,
) -> Result<Vec<Range<u64>>, Status> {
    let within =
        |(stale, _): (Range<u64>, _)| stale.start.max(bytes.start)..stale.end.min(bytes.end);
    Ok(overlapping(txn, disk, bytes)?.into_iter().map(within).collect())
}

/// The first stale blocks of a disk that end behind `from`.
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

/// What of these ranges is not stale.
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

/// What of `ranges` is in none of `others`. Both are in order, and do not overlap.
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

    /// All orders of two additions and a removal in six blocks, against a bit for each block.
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

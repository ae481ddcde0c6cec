//! Chooses the disk for the next bytes of a file.
//!
//! Disks take turns, in proportion to their share of the free bytes. A turn is [`STRIPE_BYTES`] of
//! a file: a large file lies on all disks, so that it is read and written at the speed of all, and
//! a small one on one disk, so that it needs one capability. Pure: the owners of blocks are
//! elsewhere.

use larder_wire::meta::words::DiskId;

/// This many bytes of a file are on one disk before it is the next disk's turn: the largest
/// request.
pub(crate) const STRIPE_BYTES: u64 = 1 << 20;

/// The disk with the most free bytes has this many turns in a round.
const TURNS_MAX: u64 = 16;

/// Whose turn it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turns {
    /// One round.
    round: Vec<DiskId>,
    /// Disks without a turn: they are as good as full.
    rest: Vec<DiskId>,
}

impl Turns {
    /// From the free bytes of each disk.
    pub(crate) fn new(free: impl IntoIterator<Item = (DiskId, u64)>) -> Turns {
        let free: Vec<(DiskId, u64)> = free.into_iter().collect();
        let most = free.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let weight = |bytes: u64| {
            let turns = u128::from(bytes) * u128::from(TURNS_MAX);
            turns.div_ceil(u128::from(most.max(1))) as i64
        };
        let weights: Vec<i64> = free.iter().map(|(_, bytes)| weight(*bytes)).collect();
        let all: i64 = weights.iter().sum();
        // Smooth weighted round robin: in each turn every disk gains its weight as credit, and the
        // one with the most credit pays for the turn. So the turns of a disk are spread over the
        // round.
        let mut credit = vec![0; weights.len()];
        let mut round = Vec::new();
        for _ in 0..all {
            credit.iter_mut().zip(&weights).for_each(|(credit, weight)| *credit += weight);
            let richest = (0..credit.len()).rev().max_by_key(|at| credit[*at]).unwrap_or(0);
            credit[richest] -= all;
            round.push(free[richest].0);
        }
        let is_full = |(_, weight): &(&(DiskId, u64), &i64)| **weight == 0;
        let rest = free.iter().zip(&weights).filter(is_full).map(|((disk, _), _)| *disk).collect();
        Turns { round, rest }
    }

    /// The disk whose turn it is, then the others in the order in which they are asked if it has no
    /// room.
    pub(crate) fn at(&self, turn: u64) -> Vec<DiskId> {
        let first = turn.checked_rem(self.round.len() as u64).unwrap_or(0) as usize;
        let mut order: Vec<DiskId> = Vec::new();
        let all = self.round[first..].iter().chain(&self.round[..first]).chain(&self.rest);
        for disk in all {
            if !order.contains(disk) {
                order.push(*disk);
            }
        }
        order
    }
}

/// How many of `wanted` bytes from `offset` of a file lie together.
pub(crate) fn together(offset: u64, wanted: u64, disks: usize) -> u64 {
    match disks {
        0 | 1 => wanted,
        _ => wanted.min(STRIPE_BYTES - offset % STRIPE_BYTES),
    }
}

/// Whether the bytes at `offset` of a file are on the disk of those before them.
pub(crate) fn follows(offset: u64) -> bool {
    !offset.is_multiple_of(STRIPE_BYTES)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn turns(free: &[u64]) -> Turns {
        Turns::new((1..).map(DiskId).zip(free.iter().copied()))
    }

    fn first(turns: &Turns, count: u64) -> Vec<u32> {
        (0..count).map(|turn| turns.at(turn)[0].0).collect()
    }

    #[test]
    fn equal_disks_take_turns() {
        assert_eq!(first(&turns(&[500]), 3), [1, 1, 1]);
        assert_eq!(first(&turns(&[9 << 40; 3]), 7), [1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(turns(&[7; 3]).at(4), [DiskId(2), DiskId(3), DiskId(1)]);
    }

    /// For each distribution of free bytes over four disks: the turns are proportional to the
    /// bytes, every disk is asked eventually, and no disk has many turns in a row that others could
    /// have.
    #[test]
    fn a_disk_with_more_room_takes_more_turns() {
        let sizes = [0, 1, 100, 250, 1000];
        for code in 0..5_usize.pow(4) {
            let free: Vec<u64> = (0..4).map(|at| sizes[code / 5_usize.pow(at) % 5]).collect();
            let turns = turns(&free);
            let mut counted: BTreeMap<u32, u64> = BTreeMap::new();
            let round = turns.round.len() as u64;
            for turn in 0..round {
                let order = turns.at(turn);
                assert_eq!(order.len(), 4);
                *counted.entry(order[0].0).or_default() += 1;
            }
            let most = *free.iter().max().unwrap();
            for (disk, bytes) in (1..).zip(&free) {
                let expected = (bytes * TURNS_MAX).checked_div(most).unwrap_or(0);
                let had = counted.get(&disk).copied().unwrap_or(0);
                assert!((expected..=expected + 1).contains(&had), "{free:?} {counted:?}");
            }
            if free.iter().all(|bytes| *bytes == most) && most > 0 {
                assert!(turns.round.windows(2).all(|two| two[0] != two[1]));
            }
        }
        assert_eq!(turns(&[]).at(5), []);
        assert_eq!(turns(&[0, 0]).at(5), [DiskId(1), DiskId(2)]);
    }

    #[test]
    fn a_turn_ends_with_a_stripe() {
        let (block, stripe) = (4096, STRIPE_BYTES);
        for (offset, wanted, disks, expected) in [
            (0, 5 * stripe, 1, 5 * stripe),
            (0, 5 * stripe, 2, stripe),
            (0, block, 2, block),
            (stripe - block, 2 * block, 2, block),
            (3 * stripe + block, stripe, 7, stripe - block),
        ] {
            assert_eq!(together(offset, wanted, disks), expected);
        }
        assert!(!follows(0) && follows(block) && !follows(stripe) && follows(stripe + block));
    }
}

//! Chooses the disk for the next bytes of a file.
//!
//! Disks take turns, in proportion to their share of the free bytes. A turn is [`STRIPE_BYTES`] of
//! a file: a large file lies on all disks, so that it is read and written at the speed of all, and
//! a small one on one disk, so that it needs one capability. Pure: the owners of blocks are
//! elsewhere.
//!
//! A client that copies says where the bytes are that it copies: the copy should be on the same
//! disks, which then make it themselves. They have it without a turn, except those that are much
//! fuller than others.

use std::ops::Range;

use larder_wire::meta::words::{DiskId, Near};
use larder_wire::meta::{BLOCK_BYTES, EXTENTS_MAX, Status};

/// This many bytes of a file are on one disk before it is the next disk's turn: the largest
/// request.
pub(crate) const STRIPE_BYTES: u64 = 1 << 20;

/// The disk with the most free bytes has this many turns in a round.
const TURNS_MAX: u64 = 16;

/// A disk gets more than its turns if it has at least this part of the free bytes of the disk with
/// most.
const MORE_PART: u64 = 4;

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

/// On which disk bytes of a file should be: ranges in order, of whole blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NearBy(Vec<(Range<u64>, DiskId)>);

impl NearBy {
    /// What a client asks for, as far as the disks are among these.
    ///
    /// # Errors
    /// [`Status::Invalid`], if the ranges overlap, are not in order or are not whole blocks.
    pub(crate) fn new(asked: &[Near], disks: &[DiskId]) -> Result<NearBy, Status> {
        debug_assert!(asked.len() <= EXTENTS_MAX);
        let (mut near, mut end) = (Vec::new(), 0);
        for Near { range, disk } in asked {
            let range = range.get().filter(|range| range.start >= end).ok_or(Status::Invalid)?;
            end = range.end;
            if [range.start, range.end].iter().any(|at| !at.is_multiple_of(BLOCK_BYTES)) {
                return Err(Status::Invalid);
            }
            if disks.contains(disk) {
                near.push((range, *disk));
            }
        }
        Ok(NearBy(near))
    }

    /// The disk for the byte at `offset`, if one is asked for, and the end of the bytes for which
    /// the same holds.
    pub(crate) fn at(&self, offset: u64) -> (Option<DiskId>, u64) {
        match self.0.iter().find(|(range, _)| offset < range.end) {
            Some((range, disk)) if range.start <= offset => (Some(*disk), range.end),
            Some((range, _)) => (None, range.start),
            None => (None, u64::MAX),
        }
    }

    /// All of it.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Range<u64>, DiskId)> {
        self.0.iter()
    }
}

/// Whether a disk with this many free bytes may get more than its turns, if the disk with most has
/// `most`.
pub(crate) fn may_have_more(free: u64, most: u64) -> bool {
    free > 0 && free >= most / MORE_PART
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

    use larder_wire::meta::words::ByteRange;

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
    fn a_disk_that_is_much_fuller_than_others_has_its_turns_alone() {
        for (free, most, expected) in [
            (1000, 1000, true),
            (250, 1000, true),
            (249, 1000, false),
            (0, 1000, false),
            (0, 0, false),
            (u64::MAX, u64::MAX, true),
        ] {
            assert_eq!(may_have_more(free, most), expected, "{free} {most}");
        }
    }

    fn near(ranges: &[(u64, u64, u32)]) -> Result<NearBy, Status> {
        let one = |(offset, length, disk): &(u64, u64, u32)| {
            let range = ByteRange { offset: offset * BLOCK_BYTES, length: length * BLOCK_BYTES };
            Near { range, disk: DiskId(*disk) }
        };
        let all: Vec<Near> = ranges.iter().map(one).collect();
        NearBy::new(&all, &[1, 2, 3].map(DiskId))
    }

    /// All pairs of ranges in six blocks: each block should be where its range says, and on no disk
    /// that there is not.
    #[test]
    fn each_block_should_be_near_what_its_range_names() {
        let spans: Vec<(u64, u64)> =
            (0..6).flat_map(|a| (1..=6 - a).map(move |length| (a, length))).collect();
        for first in &spans {
            for second in &spans {
                for disks in [[1, 2], [9, 3], [2, 9]] {
                    let asked = [(first.0, first.1, disks[0]), (second.0, second.1, disks[1])];
                    let Ok(near) = near(&asked) else {
                        assert!(second.0 < first.0 + first.1, "{asked:?}");
                        continue;
                    };
                    assert!(second.0 >= first.0 + first.1, "{asked:?}");
                    let of = |block: u64| {
                        let holds = |(from, length, disk): &&(u64, u64, u32)| {
                            (*from..from + length).contains(&block) && *disk != 9
                        };
                        asked.iter().find(holds).map(|(.., disk)| DiskId(*disk))
                    };
                    for block in 0..7 {
                        let (disk, end) = near.at(block * BLOCK_BYTES);
                        assert_eq!(disk, of(block), "{asked:?} {block}");
                        let next = (block..7).find(|next| of(*next) != disk).unwrap_or(7);
                        // Beside each other the two may name the same disk.
                        assert!(end > block * BLOCK_BYTES, "{asked:?} {block}");
                        assert!(end.min(7 * BLOCK_BYTES) <= next * BLOCK_BYTES, "{asked:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn ranges_that_make_no_sense_are_refused() {
        let asked = |offset, length| {
            let range = ByteRange { offset, length };
            NearBy::new(&[Near { range, disk: DiskId(1) }], &[DiskId(1)])
        };
        assert_eq!(asked(0, BLOCK_BYTES).map(|near| near.0.len()), Ok(1));
        for (offset, length) in
            [(0, 0), (1, BLOCK_BYTES), (0, 4097), (u64::MAX - 4095, 4096), (1 << 60, 4096)]
        {
            assert_eq!(asked(offset, length), Err(Status::Invalid), "{offset} {length}");
        }
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

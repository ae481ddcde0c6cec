//! Checksums of the chunks of one file, in groups that are stored as one record each.
//!
//! A checksum says that the whole chunk, up to the end of file, is held and what its bytes are. It
//! is *verified* once this run has read those bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

use larder_io::DiskFile;

use crate::CHUNK_BYTES;

/// Chunks in a record: 16 MiB of file, 4 KiB of checksums.
pub(crate) const GROUP_CHUNKS: u64 = 1024;

/// The sums of up to [`GROUP_CHUNKS`] neighbouring chunks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    sums: Vec<Option<u32>>,
    verified: Vec<bool>,
}

impl Group {
    /// All slots up to the last one ever used.
    pub(crate) fn sums(&self) -> &[Option<u32>] {
        &self.sums
    }

    pub(crate) fn get(&self, slot: usize) -> Option<u32> {
        self.sums.get(slot).copied().flatten()
    }

    pub(crate) fn set(&mut self, slot: usize, sum: u32, verified: bool) {
        assert!((slot as u64) < GROUP_CHUNKS, "a slot lies within its group");
        if self.sums.len() <= slot {
            self.sums.resize(slot + 1, None);
            self.verified.resize(slot + 1, false);
        }
        self.sums[slot] = Some(sum);
        self.verified[slot] = verified;
    }

    fn clear(&mut self, slot: usize) {
        if let Some(sum) = self.sums.get_mut(slot) {
            *sum = None;
            self.verified[slot] = false;
        }
        while self.sums.last().is_some_and(Option::is_none) {
            self.sums.pop();
            self.verified.pop();
        }
    }
}

/// The sums of a file by chunk number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    groups: BTreeMap<u32, Group>,
}

fn slot_of(chunk: u64) -> (u32, usize) {
    (group_of(chunk), usize::try_from(chunk % GROUP_CHUNKS).unwrap_or(0))
}

/// The group of a chunk.
pub(crate) fn group_of(chunk: u64) -> u32 {
    // 2^32 groups of 16 MiB are 64 PiB; state.rs keeps larger files out of the cache.
    u32::try_from(chunk / GROUP_CHUNKS).unwrap_or(u32::MAX)
}

impl Sums {
    pub(crate) fn get(&self, chunk: u64) -> Option<u32> {
        let (group, slot) = slot_of(chunk);
        self.groups.get(&group)?.get(slot)
    }

    pub(crate) fn is_verified(&self, chunk: u64) -> bool {
        let (group, slot) = slot_of(chunk);
        self.groups.get(&group).and_then(|group| group.verified.get(slot)).is_some_and(|&is| is)
    }

    pub(crate) fn set_verified(&mut self, chunk: u64, sum: u32) {
        let (group, slot) = slot_of(chunk);
        self.groups.entry(group).or_default().set(slot, sum, true);
    }

    pub(crate) fn clear(&mut self, chunks: Range<u64>) {
        let groups = group_of(chunks.start)..=group_of(chunks.end);
        for (&number, group) in self.groups.range_mut(groups) {
            for slot in 0..group.sums.len() {
                if chunks.contains(&(u64::from(number) * GROUP_CHUNKS + slot as u64)) {
                    group.clear(slot);
                }
            }
        }
        self.groups.retain(|_, group| !group.sums.is_empty());
    }

    /// Whether this run has verified all chunks.
    pub(crate) fn are_verified(&self) -> bool {
        self.chunks().all(|chunk| self.is_verified(chunk))
    }

    pub(crate) fn insert_group(&mut self, number: u32, group: Group) {
        debug_assert!(
            group.sums.len() as u64 <= GROUP_CHUNKS && group.sums.len() == group.verified.len(),
            "a group has a slot for each of its chunks"
        );
        self.groups.insert(number, group);
    }

    pub(crate) fn group(&self, number: u32) -> Option<&Group> {
        self.groups.get(&number)
    }

    pub(crate) fn group_numbers(&self) -> BTreeSet<u32> {
        self.groups.keys().copied().collect()
    }

    /// Chunks with a sum, in order.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = u64> + '_ {
        self.groups.iter().flat_map(|(&number, group)| {
            let first = u64::from(number) * GROUP_CHUNKS;
            let slots = group.sums.iter().enumerate().filter(|(_, sum)| sum.is_some());
            slots.map(move |(slot, _)| first + slot as u64)
        })
    }

    /// Number of chunks with a sum.
    pub(crate) fn count(&self) -> u64 {
        self.chunks().count() as u64
    }
}

/// The bytes of a chunk in a file of `size` bytes; empty past the end.
pub(crate) fn chunk_range(chunk: u64, size: u64) -> Range<u64> {
    let start = (chunk * CHUNK_BYTES).min(size);
    start..(start + CHUNK_BYTES).min(size)
}

/// Adjacent chunks, as many as are read between two checks of a file's state.
pub(crate) fn pieces_of(chunks: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let starts = chunks.clone().step_by(GROUP_CHUNKS as usize);
    starts.map(move |start| start..(start + GROUP_CHUNKS).min(chunks.end))
}

/// Sums chunks of local files as the disk has them, with one buffer for all.
pub(crate) struct Summer {
    buffer: Vec<u8>,
    /// Bytes of the last chunk.
    len: usize,
}

impl Summer {
    pub(crate) fn new() -> Summer {
        Summer { buffer: vec![0; usize::try_from(CHUNK_BYTES).unwrap_or(0)], len: 0 }
    }

    /// The checksum of a chunk in a file of `size` bytes.
    pub(crate) fn sum(&mut self, file: &dyn DiskFile, chunk: u64, size: u64) -> io::Result<u32> {
        let range = chunk_range(chunk, size);
        debug_assert!(!range.is_empty(), "a chunk that is summed lies within its file");
        self.len = usize::try_from(range.end - range.start).unwrap_or(0);
        let bytes = &mut self.buffer[..self.len];
        file.read_exact_at(bytes, range.start)?;
        Ok(crc32c::crc32c(bytes))
    }

    /// The bytes of the chunk that was summed last.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

/// The chunks that a range of bytes touches.
pub(crate) fn chunks_of(range: &Range<u64>) -> Range<u64> {
    if range.is_empty() {
        return 0..0;
    }
    range.start / CHUNK_BYTES..range.end.div_ceil(CHUNK_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn chunks_cover_their_range() {
        assert_eq!(chunks_of(&(0..0)), 0..0);
        assert_eq!(chunks_of(&(0..1)), 0..1);
        assert_eq!(chunks_of(&(CHUNK_BYTES - 1..CHUNK_BYTES + 1)), 0..2);
        assert_eq!(chunk_range(1, CHUNK_BYTES + 5), CHUNK_BYTES..CHUNK_BYTES + 5);
        assert!(chunk_range(7, CHUNK_BYTES).is_empty());
    }

    #[test]
    fn clear_reaches_across_groups() {
        let mut sums = Sums::default();
        for chunk in [0, 1, GROUP_CHUNKS - 1, GROUP_CHUNKS, 5 * GROUP_CHUNKS] {
            sums.set_verified(chunk, 7);
        }
        assert_eq!(sums.count(), 5);
        sums.clear(1..GROUP_CHUNKS + 1);
        assert_eq!(sums.chunks().collect::<Vec<_>>(), [0, 5 * GROUP_CHUNKS]);
        sums.clear(1..u64::MAX);
        assert_eq!(sums.group_numbers(), BTreeSet::from([0]));
        assert!(sums.is_verified(0) && !sums.is_verified(1));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Set(u64, u32),
        /// As an index has it: the bytes were not checked.
        Insert(u64, u32),
        Clear(Range<u64>),
    }

    /// Chunks around the edges of groups.
    fn chunk() -> impl Strategy<Value = u64> {
        (0..4_u64, 0..6_u64).prop_map(|(group, at)| (group * GROUP_CHUNKS + at).saturating_sub(3))
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (chunk(), any::<u32>()).prop_map(|(at, sum)| Step::Set(at, sum)),
            1 => (chunk(), any::<u32>()).prop_map(|(at, sum)| Step::Insert(at, sum)),
            2 => (chunk(), chunk()).prop_map(|(a, b)| Step::Clear(a.min(b)..a.max(b))),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_map(steps in proptest::collection::vec(step(), 1..40)) {
            let (mut sums, mut model) = (Sums::default(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Set(chunk, sum) => {
                        sums.set_verified(chunk, sum);
                        model.insert(chunk, (sum, true));
                    }
                    Step::Insert(chunk, sum) => {
                        let (number, slot) = slot_of(chunk);
                        let mut group = sums.group(number).cloned().unwrap_or_default();
                        group.set(slot, sum, false);
                        sums.insert_group(number, group);
                        model.insert(chunk, (sum, false));
                    }
                    Step::Clear(chunks) => {
                        sums.clear(chunks.clone());
                        model.retain(|chunk, _| !chunks.contains(chunk));
                    }
                }
                prop_assert!(sums.chunks().eq(model.keys().copied()));
                prop_assert_eq!(sums.count(), model.len() as u64);
                for (chunk, (sum, verified)) in &model {
                    prop_assert_eq!(sums.get(*chunk), Some(*sum));
                    prop_assert_eq!(sums.is_verified(*chunk), *verified);
                }
                prop_assert_eq!(sums.are_verified(), model.values().all(|(_, verified)| *verified));
                let groups: BTreeSet<u32> = model.keys().map(|chunk| group_of(*chunk)).collect();
                prop_assert_eq!(sums.group_numbers(), groups, "no group is kept without a sum");
            }
        }
    }

    /// Pieces are all chunks, once, in order, and none is longer than the maximum.
    #[test]
    fn pieces_are_all_chunks_in_order() {
        for chunks in
            [0..0, 3..4, 5..GROUP_CHUNKS + 5, 0..3 * GROUP_CHUNKS, 1..2 * GROUP_CHUNKS + 2]
        {
            let pieces: Vec<_> = pieces_of(chunks.clone()).collect();
            assert!(pieces.iter().all(|piece| piece.end - piece.start <= GROUP_CHUNKS));
            assert!(pieces.into_iter().flatten().eq(chunks));
        }
    }
}

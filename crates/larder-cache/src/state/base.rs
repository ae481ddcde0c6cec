//! What the chunks of a local file were before the kernel changed them: compared with these, a
//! change is found to the byte.
//!
//! Invariant: a chunk that is here equals the local file's at the last comparison, except for what
//! was done to it here since. So what differs from the local file was written by the kernel, and is
//! not dirty yet.
//!
//! Only the beginning of a file is kept, and only for a limited number of files at once, because it
//! is in memory.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::CHUNK_BYTES;
use crate::slots::Slot;
use crate::sums::chunks_of;

/// Chunks at the beginning of a file that are kept: a MiB.
const CHUNKS_MAX: u64 = 64;

/// For this many files at once: 64 MiB of memory at most.
pub(crate) const BASES_MAX: usize = 64;

/// Fewer unchanged bytes than this between two changed ones count as written: rewritten text has
/// many by chance, and each gap costs a request.
pub(crate) const GAP_BYTES_MIN: usize = 4;

/// Most ranges of one chunk that are sent separately. If there are more, those closest to each
/// other are joined.
const RANGES_MAX: usize = 16;

/// The first chunks of one local file.
#[derive(Debug, Default)]
pub(crate) struct Base {
    chunks: BTreeMap<u64, Vec<u8>>,
    /// Without a slot nothing is kept.
    slot: Option<Slot>,
}

impl Base {
    /// The base of a file that has a slot.
    pub(crate) fn new(slot: Slot) -> Base {
        Base { chunks: BTreeMap::new(), slot: Some(slot) }
    }

    /// Whether a chunk is to be kept, or is kept.
    pub(crate) fn wants(&self, chunk: u64) -> bool {
        !self.wanted_of(&(chunk..chunk + 1)).is_empty()
    }

    /// The chunks among these that are to be kept.
    pub(crate) fn wanted_of(&self, chunks: &Range<u64>) -> Range<u64> {
        let end = if self.slot.is_some() { CHUNKS_MAX } else { 0 };
        chunks.start.min(end)..chunks.end.min(end)
    }

    /// The local file has these bytes in a chunk now, and what the kernel changed in it is dirty.
    pub(crate) fn keep(&mut self, chunk: u64, bytes: &[u8]) {
        debug_assert!(bytes.len() as u64 <= CHUNK_BYTES, "a chunk is no longer than a chunk");
        if self.wants(chunk) {
            let kept = self.chunks.entry(chunk).or_default();
            kept.clear();
            kept.extend_from_slice(bytes);
        }
    }

    /// These bytes were written here.
    pub(crate) fn write(&mut self, start: u64, bytes: &[u8]) {
        self.change(start..start + bytes.len() as u64, |part, at| {
            part.copy_from_slice(&bytes[at..at + part.len()]);
        });
    }

    /// This range reads as zeros.
    pub(crate) fn zero(&mut self, range: Range<u64>) {
        self.change(range, |part, _| part.fill(0));
    }

    /// The file is no longer than this.
    pub(crate) fn cut(&mut self, size: u64) {
        self.chunks.split_off(&size.div_ceil(CHUNK_BYTES));
        if let Some(last) = self.chunks.get_mut(&(size / CHUNK_BYTES)) {
            last.truncate(usize::try_from(size % CHUNK_BYTES).expect("less than a chunk"));
        }
    }

    /// The ranges, in bytes from its start, where the kernel changed a chunk that has these bytes
    /// now; and how much of it could be compared. `None` if nothing is known of it.
    pub(crate) fn changes(&self, chunk: u64, now: &[u8]) -> Option<(Vec<Range<usize>>, usize)> {
        let before = self.chunks.get(&chunk)?;
        let compared = before.len().min(now.len());
        Some((changes(before, now), compared))
    }

    /// Changes the kept bytes of a range: `change` gets a part of it, and where that is in the
    /// range.
    fn change(&mut self, range: Range<u64>, mut change: impl FnMut(&mut [u8], usize)) {
        let index = |bytes: u64| usize::try_from(bytes).expect("what is kept is in memory");
        for (&chunk, kept) in self.chunks.range_mut(chunks_of(&range)) {
            let start = chunk * CHUNK_BYTES;
            let from = range.start.max(start);
            let part =
                index(from - start)..kept.len().min(index((range.end - start).min(CHUNK_BYTES)));
            // What did not exist at the comparison is found as new.
            if !part.is_empty() {
                change(&mut kept[part], index(from - range.start));
            }
        }
    }
}

/// Where two runs of bytes differ, as far as both go.
fn changes(before: &[u8], now: &[u8]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (at, _) in before.iter().zip(now).enumerate().filter(|(_, (old, new))| old != new) {
        match ranges.last_mut() {
            Some(last) if at - last.end < GAP_BYTES_MIN => last.end = at + 1,
            _ => ranges.push(at..at + 1),
        }
    }
    join_closest(ranges)
}

/// Joins ranges until there are few enough of them.
fn join_closest(ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    if ranges.len() <= RANGES_MAX {
        return ranges;
    }
    let mut gaps: Vec<usize> = ranges.windows(2).map(|pair| pair[1].start - pair[0].end).collect();
    // The gaps that stay are longer than any that does not.
    let (_, longest_joined, _) = gaps.select_nth_unstable(ranges.len() - RANGES_MAX - 1);
    let longest_joined = *longest_joined;
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start - last.end <= longest_joined => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::slots::Slots;

    fn base() -> Base {
        Base::new(Slots::new(1).take())
    }

    /// All pairs of runs of ten bytes of two values: the result contains everything that differs,
    /// begins and ends with a difference, and omits each gap that is long enough.
    #[test]
    fn what_differs_is_told_to_the_byte() {
        const LEN: usize = 10;
        let bytes = |bits: u32| (0..LEN).map(|at| (bits >> at & 1) as u8).collect::<Vec<_>>();
        for bits in 0..1_u32 << LEN {
            let (before, now) = (bytes(0), bytes(bits));
            let found = changes(&before, &now);
            let differs = |at: &usize| before[*at] != now[*at];
            let told: Vec<usize> = found.iter().cloned().flatten().collect();
            assert!((0..LEN).filter(differs).all(|at| told.contains(&at)), "{bits:b}");
            for range in &found {
                assert!(differs(&range.start) && differs(&(range.end - 1)), "{bits:b}");
            }
            for pair in found.windows(2) {
                assert!(pair[1].start - pair[0].end >= GAP_BYTES_MIN, "{bits:b}");
            }
            for gap in told.windows(2).map(|pair| pair[0] + 1..pair[1]) {
                assert!(gap.is_empty() || !gap.clone().any(|at| differs(&at)), "{bits:b}");
            }
            let unchanged = told.iter().filter(|at| !differs(at)).count();
            let runs = (0..LEN).filter(|at| differs(at)).count();
            assert!(unchanged <= runs.saturating_sub(1) * (GAP_BYTES_MIN - 1), "{bits:b}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Of many ranges the closest are joined, and nothing that differs is left out.
        #[test]
        fn many_ranges_are_joined_where_they_are_closest(
            starts in proptest::collection::btree_set(0..800_usize, 0..60),
        ) {
            let ranges: Vec<_> = starts.iter().map(|at| at * 2..at * 2 + 1).collect();
            let joined = join_closest(ranges.clone());
            prop_assert!(joined.len() <= RANGES_MAX.max(1));
            if ranges.len() <= RANGES_MAX {
                prop_assert_eq!(&joined, &ranges);
            }
            for range in &ranges {
                prop_assert!(joined.iter().any(|one| one.start <= range.start && range.end <= one.end));
            }
            let gap = |pair: &[Range<usize>]| pair[1].start - pair[0].end;
            let kept = joined.windows(2).map(gap).min();
            let lost = ranges.windows(2).filter(|pair| {
                joined.iter().any(|one| one.contains(&pair[0].start) && one.contains(&pair[1].start))
            });
            if let (Some(kept), Some(lost)) = (kept, lost.map(gap).max()) {
                prop_assert!(lost < kept);
            }
        }

        /// A file that is written, zeroed, truncated and extended here, and written by the kernel:
        /// what is found is what the kernel wrote and was not overwritten here afterwards.
        #[test]
        fn what_was_done_here_is_no_change(
            steps in proptest::collection::vec((0..5_u8, 0..90_usize, 1..40_usize, 1..9_u8), 1..30),
        ) {
            // A file across the edge of two chunks; the bytes before that are not examined.
            let first = usize::try_from(CHUNK_BYTES).unwrap() - 50;
            let mut base = base();
            let mut local = vec![0; first + 100];
            let mut by_kernel = vec![false; local.len()];
            let chunk = |at: usize| at / usize::try_from(CHUNK_BYTES).unwrap();
            let part = |local: &[u8], number: usize| {
                let start = number * usize::try_from(CHUNK_BYTES).unwrap();
                local[start..(start + usize::try_from(CHUNK_BYTES).unwrap()).min(local.len())].to_vec()
            };
            (0..2).for_each(|number| base.keep(number as u64, &part(&local, number)));
            for (what, at, len, value) in steps {
                let (start, end) = (first + at, (first + at + len).min(local.len()));
                if start >= end {
                    continue;
                }
                match what {
                    0 => {
                        local[start..end].fill(value);
                        base.write(start as u64, &vec![value; end - start]);
                        by_kernel[start..end].fill(false);
                    }
                    1 => {
                        local[start..end].fill(0);
                        base.zero(start as u64..end as u64);
                        by_kernel[start..end].fill(false);
                    }
                    2 => {
                        local[start..end].fill(value + 10);
                        by_kernel[start..end].fill(true);
                    }
                    3 => {
                        local.truncate(end);
                        by_kernel.truncate(end);
                        base.cut(end as u64);
                    }
                    _ => {
                        for number in 0..=chunk(local.len() - 1) {
                            base.keep(number as u64, &part(&local, number));
                        }
                        by_kernel.fill(false);
                    }
                }
                for number in 0..=chunk(local.len() - 1) {
                    let now = part(&local, number);
                    let (found, compared) = base.changes(number as u64, &now).unwrap();
                    prop_assert_eq!(compared, now.len());
                    let start = number * usize::try_from(CHUNK_BYTES).unwrap();
                    for at in 0..now.len() {
                        let is_told = found.iter().any(|range| range.contains(&at));
                        let near = found.iter().any(|range| {
                            range.contains(&at) && (at - range.start >= 1 && range.end - at > 1)
                        });
                        // The kernel may have written the bytes that were there.
                        prop_assert!(!is_told || by_kernel[start + at] || near);
                    }
                    let told = |at: usize| found.iter().any(|range| range.contains(&at));
                    let kept = &base.chunks[&(number as u64)];
                    for at in 0..now.len() {
                        prop_assert!(told(at) || kept[at] == now[at]);
                    }
                }
            }
        }
    }

    #[test]
    fn only_the_beginning_of_a_file_is_kept_and_only_with_a_slot() {
        let mut base = base();
        assert!(base.wants(CHUNKS_MAX - 1) && !base.wants(CHUNKS_MAX));
        base.keep(CHUNKS_MAX, b"far");
        assert_eq!(base.changes(CHUNKS_MAX, b"far"), None);
        let mut without = Base::default();
        without.keep(0, b"bytes");
        assert!(!without.wants(0) && without.changes(0, b"bytes").is_none());
    }
}

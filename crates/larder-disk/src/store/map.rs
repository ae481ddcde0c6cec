//! The map: for each block, whether it was written. In memory; it keeps track of pages that
//! changed.

use std::collections::BTreeSet;
use std::ops::Range;

/// Unit in which the map is written, in bytes: the bits of 128 MiB.
pub(super) const PAGE_BYTES: usize = 4096;
const WORD_BITS: u64 = 64;
const PAGE_BITS: u64 = PAGE_BYTES as u64 * 8;

/// A page of the map, as it is on the medium.
pub(super) type Page = Box<[u8; PAGE_BYTES]>;

/// The map.
#[derive(Debug)]
pub(super) struct Map {
    words: Vec<u64>,
    /// How many blocks were written.
    count: u64,
    /// Pages that are other than on the medium.
    unsaved: BTreeSet<u64>,
    /// Whether one of these may say of a block that it was written, and the page on the medium
    /// not.
    vouches: bool,
}

/// Pages that are to be written to the medium.
pub(super) struct Unsaved {
    /// With their numbers.
    pub(super) pages: Vec<(u64, Page)>,
    /// Whether they say that blocks were written of which the medium does not say so: the bytes of
    /// these must be there first.
    pub(super) vouches: bool,
}

impl Map {
    /// As it is on the medium: whole pages, bit 0 of each byte first.
    pub(super) fn from_bytes(bytes: &[u8]) -> Map {
        assert_eq!(bytes.len() % PAGE_BYTES, 0);
        let (words, _) = bytes.as_chunks();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let count = words.iter().map(|word| u64::from(word.count_ones())).sum();
        Map { words, count, unsaved: BTreeSet::new(), vouches: false }
    }

    pub(super) fn has(&self, block: u64) -> bool {
        self.words[(block / WORD_BITS) as usize] & (1 << (block % WORD_BITS)) != 0
    }

    /// Whether all of them were written.
    pub(super) fn all(&self, blocks: Range<u64>) -> bool {
        masks(blocks).all(|(at, mask)| self.words[at] & mask == mask)
    }

    /// Runs of written blocks, in order.
    pub(super) fn runs(&self, blocks: Range<u64>) -> Vec<Range<u64>> {
        if self.all(blocks.clone()) {
            return vec![blocks];
        }
        let mut runs: Vec<Range<u64>> = Vec::new();
        for block in blocks.filter(|block| self.has(*block)) {
            match runs.last_mut() {
                Some(last) if last.end == block => last.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
        runs
    }

    /// Runs of blocks that were not written, in order.
    pub(super) fn gaps(&self, blocks: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut from = blocks.start;
        for run in self.runs(blocks.clone()) {
            gaps.push(from..run.start);
            from = run.end;
        }
        gaps.push(from..blocks.end);
        gaps.retain(|gap| !gap.is_empty());
        gaps
    }

    pub(super) fn set(&mut self, blocks: Range<u64>) {
        self.touch(&blocks);
        for (at, mask) in masks(blocks) {
            let new = (mask & !self.words[at]).count_ones();
            self.count += u64::from(new);
            self.vouches |= new > 0;
            self.words[at] |= mask;
        }
    }

    pub(super) fn clear(&mut self, blocks: Range<u64>) {
        self.touch(&blocks);
        for (at, mask) in masks(blocks) {
            self.count -= u64::from((mask & self.words[at]).count_ones());
            self.words[at] &= !mask;
        }
    }

    /// How many blocks were written.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// How many of these blocks were written.
    pub(super) fn count_in(&self, blocks: Range<u64>) -> u64 {
        masks(blocks).map(|(at, mask)| u64::from((self.words[at] & mask).count_ones())).sum()
    }

    /// The pages that differ from the medium. They count as saved from now on.
    pub(super) fn take_unsaved(&mut self) -> Unsaved {
        let numbers = std::mem::take(&mut self.unsaved);
        let pages = numbers.into_iter().map(|number| (number, self.page(number))).collect();
        Unsaved { pages, vouches: std::mem::take(&mut self.vouches) }
    }

    fn page(&self, number: u64) -> Page {
        let mut page = Box::new([0; PAGE_BYTES]);
        let first = number as usize * PAGE_BYTES / 8;
        for (bytes, word) in page.as_chunks_mut().0.iter_mut().zip(&self.words[first..]) {
            *bytes = word.to_le_bytes();
        }
        page
    }

    fn touch(&mut self, blocks: &Range<u64>) {
        if !blocks.is_empty() {
            self.unsaved.extend(blocks.start / PAGE_BITS..=(blocks.end - 1) / PAGE_BITS);
        }
    }
}

/// The words with the bits of these blocks, and the bits in each.
fn masks(blocks: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let words = blocks.start / WORD_BITS..blocks.end.max(blocks.start).div_ceil(WORD_BITS);
    words.map(move |word| {
        let first = word * WORD_BITS;
        let from = blocks.start.max(first) - first;
        let count = blocks.end.min(first + WORD_BITS).saturating_sub(first + from);
        let mask = match count {
            WORD_BITS => u64::MAX,
            count => ((1 << count) - 1) << from,
        };
        (word as usize, mask)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every range of a map of three words, against a list of truths.
    #[test]
    fn every_range_does_what_each_bit_says() {
        let ends = [0, 1, 2, 63, 64, 65, 127, 128, 129, 191, 192];
        for (start, end) in ends.iter().flat_map(|start| ends.map(|end| (*start, end))) {
            if start > end {
                continue;
            }
            for begin_set in [false, true] {
                let mut map = Map::from_bytes(&[if begin_set { 0xff } else { 0 }; PAGE_BYTES]);
                let change = if begin_set { Map::clear } else { Map::set };
                change(&mut map, start..end);
                let inside = |block| (start..end).contains(&block) != begin_set;
                assert!((0..256).all(|block| map.has(block) == inside(block)), "{start} {end}");
                let all = PAGE_BITS;
                assert_eq!(map.count(), (0..all).filter(|block| inside(*block)).count() as u64);
                for (from, to) in ends.iter().flat_map(|from| ends.map(|to| (*from, to))) {
                    if from <= to {
                        assert_eq!(map.all(from..to), (from..to).all(inside));
                        let counted = (from..to).filter(|block| inside(*block)).count() as u64;
                        assert_eq!(map.count_in(from..to), counted);
                        let runs = map.runs(from..to);
                        let listed: Vec<u64> = runs.into_iter().flatten().collect();
                        let truth: Vec<u64> = (from..to).filter(|block| inside(*block)).collect();
                        assert_eq!(listed, truth);
                        let gaps: Vec<u64> = map.gaps(from..to).into_iter().flatten().collect();
                        let truth: Vec<u64> = (from..to).filter(|block| !inside(*block)).collect();
                        assert_eq!(gaps, truth);
                    }
                }
                let Unsaved { pages, vouches } = map.take_unsaved();
                assert_eq!(vouches, start < end && !begin_set, "{start} {end}");
                assert_eq!(pages.len(), usize::from(start < end));
                for (number, page) in pages {
                    assert_eq!(number, 0);
                    assert_eq!(Map::from_bytes(&page[..]).words, map.words);
                }
                let Unsaved { pages, vouches } = map.take_unsaved();
                assert!(pages.is_empty() && !vouches);
            }
        }
    }
}

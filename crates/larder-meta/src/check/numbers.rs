//! Sets of numbers of files, and counts by them, in a few bits for each.
//!
//! Numbers are given in order, so files that were made together, and stay, have numbers that are
//! close to each other.

use std::collections::BTreeMap;

use larder_wire::meta::words::FileId;

/// Numbers in a part of a set.
const PART: u64 = 256;

/// A set of files: about two bits for each if few of the numbers between them are unused, else up
/// to 80 bytes.
#[derive(Debug, Default)]
pub(super) struct Numbers(BTreeMap<u64, [u64; 4]>);

/// Where the bit of a file is: its part, its word in that, and its bit.
fn place(file: FileId) -> (u64, usize, u64) {
    let within = file.0 % PART;
    (file.0 / PART, (within / 64) as usize, 1 << (within % 64))
}

impl Numbers {
    /// Whether the file is new in it.
    pub(super) fn insert(&mut self, file: FileId) -> bool {
        let (part, word, bit) = place(file);
        let word = &mut self.0.entry(part).or_default()[word];
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    pub(super) fn contains(&self, file: FileId) -> bool {
        let (part, word, bit) = place(file);
        self.0.get(&part).is_some_and(|words| words[word] & bit != 0)
    }

    /// All of them in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = FileId> {
        self.0.iter().flat_map(|(part, words)| {
            let first = FileId(part * PART);
            let is_there = |within: &u64| words[(within / 64) as usize] >> (within % 64) & 1 != 0;
            (0..PART).filter(is_there).map(move |within| FileId(first.0 + within))
        })
    }
}

/// How many names files have.
#[derive(Debug, Default)]
pub(super) struct Names {
    named: Numbers,
    /// Of those with more than one.
    several: BTreeMap<FileId, u32>,
}

impl Names {
    pub(super) fn add(&mut self, file: FileId) {
        if !self.named.insert(file) {
            *self.several.entry(file).or_insert(1) += 1;
        }
    }

    pub(super) fn of(&self, file: FileId) -> u32 {
        let once = || u32::from(self.named.contains(file));
        self.several.get(&file).copied().unwrap_or_else(once)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![0..600_u64, Just(u64::MAX), any::<u64>()]
    }

    proptest! {
        /// A set is the set of what was put in, and counts are how often.
        #[test]
        fn sets_and_counts_are_exact(numbers in proptest::collection::vec(number(), 0..400)) {
            let (mut set, mut names) = (Numbers::default(), Names::default());
            let (mut model, mut counts) = (BTreeSet::new(), BTreeMap::<u64, u32>::new());
            for number in &numbers {
                prop_assert_eq!(set.insert(FileId(*number)), model.insert(*number));
                names.add(FileId(*number));
                *counts.entry(*number).or_default() += 1;
            }
            prop_assert!(set.iter().map(|file| file.0).eq(model.iter().copied()));
            for number in numbers.iter().flat_map(|number| [*number, number.wrapping_add(1)]) {
                prop_assert_eq!(set.contains(FileId(number)), model.contains(&number));
                let count = counts.get(&number).copied().unwrap_or(0);
                prop_assert_eq!(names.of(FileId(number)), count);
            }
        }
    }
}

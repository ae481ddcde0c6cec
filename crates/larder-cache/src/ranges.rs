//! A set of numbers kept as ranges: which bytes are known, which are dirty.
//!
//! Invariant, checked by `agrees_with_a_set_of_numbers`: ranges are not empty and do not touch.

use std::collections::BTreeMap;
use std::ops::Range;

/// Sorted, disjoint ranges that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    /// Start to end.
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }

    /// How many numbers there are.
    pub(crate) fn len(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }

    /// Ranges that overlap `wanted`, cut to it.
    pub(crate) fn clip(&self, wanted: Range<u64>) -> Vec<Range<u64>> {
        self.overlapping(wanted.clone())
            .map(|range| range.start.max(wanted.start)..range.end.min(wanted.end))
            .collect()
    }

    /// The parts of `wanted` that are not in the set.
    pub(crate) fn gaps(&self, wanted: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = wanted.start;
        for range in self.clip(wanted.clone()) {
            if at < range.start {
                gaps.push(at..range.start);
            }
            at = range.end;
        }
        if at < wanted.end {
            gaps.push(at..wanted.end);
        }
        gaps
    }

    pub(crate) fn contains(&self, wanted: Range<u64>) -> bool {
        wanted.is_empty()
            || self
                .ranges
                .range(..=wanted.start)
                .next_back()
                .is_some_and(|(_, &end)| wanted.end <= end)
    }

    pub(crate) fn intersects(&self, wanted: Range<u64>) -> bool {
        self.overlapping(wanted).next().is_some()
    }

    /// Ranges that overlap `wanted` or touch it: those that a change of it can change.
    pub(crate) fn around(&self, wanted: &Range<u64>) -> BTreeMap<u64, u64> {
        let first = self.ranges.range(..wanted.start).next_back();
        let from = first.filter(|(_, end)| **end >= wanted.start).map_or(wanted.start, |(s, _)| *s);
        self.ranges.range(from..=wanted.end).map(|(&start, &end)| (start, end)).collect()
    }

    /// Where the last range ends; 0 without one.
    pub(crate) fn end(&self) -> u64 {
        self.ranges.last_key_value().map_or(0, |(_, &end)| end)
    }

    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // Ranges that overlap or touch become one with it.
        while let Some((&other_start, &other_end)) = self.ranges.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            self.ranges.remove(&other_start);
            start = start.min(other_start);
            end = end.max(other_end);
        }
        debug_assert!(
            self.ranges.range(start..=end).next().is_none(),
            "no other range overlaps or touches a new one"
        );
        self.ranges.insert(start, end);
    }

    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&start, &end)) = self.ranges.range(..range.end).next_back() {
            if end <= range.start {
                break;
            }
            self.ranges.remove(&start);
            if range.end < end {
                self.ranges.insert(range.end, end);
            }
            if start < range.start {
                self.ranges.insert(start, range.start);
                break;
            }
        }
    }

    fn overlapping(&self, wanted: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        // Only the last range that starts before `wanted` may reach into it.
        let first = self.ranges.range(..=wanted.start).next_back();
        let from = first.filter(|(_, end)| **end > wanted.start).map_or(wanted.start, |(s, _)| *s);
        let until = if wanted.is_empty() { from } else { wanted.end };
        self.ranges.range(from..until.max(from)).map(|(&start, &end)| start..end)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const END: u64 = 16;

    fn to_ranges(numbers: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for number in numbers {
            match ranges.last_mut() {
                Some(last) if last.end == number => last.end += 1,
                _ => ranges.push(number..number + 1),
            }
        }
        ranges
    }

    proptest! {
        #[test]
        fn agrees_with_a_set_of_numbers(
            steps in proptest::collection::vec((any::<bool>(), 0..END, 0..END), 1..25),
        ) {
            let mut set = RangeSet::default();
            let mut model = BTreeSet::new();
            for (inserts, start, end) in steps {
                if inserts {
                    set.insert(start..end);
                    model.extend(start..end);
                } else {
                    set.remove(start..end);
                    model.retain(|number| !(start..end).contains(number));
                }
                prop_assert_eq!(set.iter().collect::<Vec<_>>(), to_ranges(model.iter().copied()));
                prop_assert_eq!(set.len(), model.len() as u64);
                for start in 0..END {
                    for end in start..END {
                        let all = (start..end).all(|number| model.contains(&number));
                        let any = (start..end).any(|number| model.contains(&number));
                        prop_assert_eq!(set.contains(start..end), all);
                        prop_assert_eq!(set.intersects(start..end), any);
                        let held = (start..end).filter(|number| model.contains(number));
                        prop_assert_eq!(set.clip(start..end), to_ranges(held));
                        let gaps = (start..end).filter(|number| !model.contains(number));
                        prop_assert_eq!(set.gaps(start..end), to_ranges(gaps));
                    }
                }
            }
        }
    }
}

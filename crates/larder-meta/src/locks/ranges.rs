//! Which bytes of a file one holder has locked, and how.

use std::collections::BTreeMap;
use std::ops::Range;

use larder_wire::meta::words::LockMode;

/// Locked ranges of one holder, by their beginning. They do not overlap, and neighbours differ in
/// mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(BTreeMap<u64, (u64, LockMode)>);

impl Ranges {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Those that have bytes of `range`, whole.
    pub(super) fn overlapping(
        &self,
        range: &Range<u64>,
    ) -> impl Iterator<Item = (Range<u64>, LockMode)> + '_ {
        let (start, end) = (range.start, range.end);
        let before = self.0.range(..start).next_back().into_iter();
        let found = before.chain(self.0.range(start..end));
        let found = found.map(|(from, (to, mode))| (*from..*to, *mode));
        found.filter(move |(held, _)| held.end > start && held.start < end)
    }

    /// Whether each byte of `range` is locked in this mode or a stronger one.
    pub(super) fn have(&self, range: &Range<u64>, mode: LockMode) -> bool {
        let mut end = range.start;
        for (held, held_mode) in self.overlapping(range) {
            if held.start > end || held_mode < mode {
                return false;
            }
            end = held.end;
        }
        end >= range.end
    }

    /// From now on the bytes of `range` are locked in this mode, whatever they were before.
    ///
    /// # Panics
    /// If it is empty.
    pub(super) fn set(&mut self, range: &Range<u64>, mode: Option<LockMode>) {
        assert!(!range.is_empty(), "an empty range");
        // Neighbours are included: they may become one range with what is set.
        let around = range.start.saturating_sub(1)..range.end.saturating_add(1);
        let held: Vec<_> = self.overlapping(&around).collect();
        let mut new = range.clone();
        for (held, held_mode) in held {
            self.0.remove(&held.start);
            if mode == Some(held_mode) {
                new = new.start.min(held.start)..new.end.max(held.end);
                continue;
            }
            let (before, after) =
                (held.start..held.end.min(range.start), held.start.max(range.end)..held.end);
            for part in [before, after] {
                if !part.is_empty() {
                    self.0.insert(part.start, (part.end, held_mode));
                }
            }
        }
        if let Some(mode) = mode {
            self.0.insert(new.start, (new.end, mode));
        }
    }
}

//! Which bytes of a file no server has, and which of these facts must still be recorded in the
//! index.
//!
//! Invariants:
//! - Ranges that were handed out for sending stay dirty where they are written again.
//! - A dirty byte that is written after [`Dirty::begin_sync`] handed it out is handed out again.
//! - Applying all [`Dirty::take_unnoted`] to the previous ranges gives the present ones.

use std::ops::Range;

use crate::ranges::RangeSet;

/// The start of a dirty range, and its end; or that no range starts there any more.
pub(crate) type Note = (u64, Option<u64>);

/// Dirty ranges.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    ranges: RangeSet,
    /// What became dirty since the dirty bytes were handed out for sending.
    rewritten: Option<RangeSet>,
    /// Those bytes that the local file's disk may lack.
    unsynced: RangeSet,
    /// What must still be recorded in the index.
    unnoted: Vec<Note>,
}

impl Dirty {
    /// The ranges.
    pub(crate) fn ranges(&self) -> &RangeSet {
        &self.ranges
    }

    /// Ranges that the index has already.
    pub(crate) fn restore(&mut self, range: Range<u64>) {
        debug_assert!(
            self.unnoted.is_empty() && self.rewritten.is_none(),
            "what the index has is restored before anything changes"
        );
        self.unsynced.insert(range.clone());
        self.ranges.insert(range);
    }

    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if let Some(rewritten) = &mut self.rewritten {
            rewritten.insert(range.clone());
        }
        self.unsynced.insert(range.clone());
        if !self.ranges.contains(range.clone()) {
            self.change(range, RangeSet::insert);
        }
    }

    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if !range.is_empty() {
            self.unsynced.remove(range.clone());
            self.change(range, RangeSet::remove);
        }
    }

    /// The ranges, to be sent. What is written from now on stays dirty.
    pub(crate) fn begin_sending(&mut self) -> Vec<Range<u64>> {
        self.rewritten = Some(RangeSet::default());
        self.ranges.iter().collect()
    }

    /// The parts of a range that were not written since they were handed out for sending.
    pub(crate) fn sent(&self, range: Range<u64>) -> Vec<Range<u64>> {
        match &self.rewritten {
            Some(rewritten) => rewritten.gaps(range),
            None => vec![range],
        }
    }

    /// Dirty bytes that the local file's disk may lack: they are being synced from now on.
    pub(crate) fn begin_sync(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.unsynced).iter().collect()
    }

    /// These were not synced after all.
    pub(crate) fn not_synced(&mut self, ranges: Vec<Range<u64>>) {
        for part in ranges.into_iter().flat_map(|range| self.ranges.clip(range)) {
            self.unsynced.insert(part);
        }
    }

    /// What changed since the last call, oldest first.
    pub(crate) fn take_unnoted(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.unnoted)
    }

    fn change(&mut self, range: Range<u64>, change: impl FnOnce(&mut RangeSet, Range<u64>)) {
        let before = self.ranges.around(&range);
        change(&mut self.ranges, range.clone());
        debug_assert!(
            self.ranges.contains(range.clone()) || !self.ranges.intersects(range.clone()),
            "a range is wholly dirty after a change, or not at all"
        );
        let start = before.first_key_value().map_or(range.start, |(&first, _)| first);
        let end = before.last_key_value().map_or(range.end, |(_, &last)| last.max(range.end));
        let after = self.ranges.around(&(start..end));
        let gone = before.keys().filter(|start| !after.contains_key(start));
        self.unnoted.extend(gone.map(|&start| (start, None)));
        let new = after.iter().filter(|(start, end)| before.get(start) != Some(end));
        self.unnoted.extend(new.map(|(&start, &end)| (start, Some(end))));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    const END: u64 = 12;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(Range<u64>),
        Remove(Range<u64>),
        BeginSending,
        /// The server has a part of what was to be sent.
        Sent(Range<u64>),
        /// The local file is synced, or that fails.
        Sync(bool),
        TakeUnnoted,
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = || (0..END, 0..END).prop_map(|(start, len)| start..(start + len).min(END));
        prop_oneof![
            3 => range().prop_map(Step::Insert),
            2 => range().prop_map(Step::Remove),
            1 => Just(Step::BeginSending),
            3 => range().prop_map(Step::Sent),
            2 => any::<bool>().prop_map(Step::Sync),
            1 => Just(Step::TakeUnnoted),
        ]
    }

    proptest! {
        /// The ranges can be rebuilt from what was recorded in the index, nothing that was written
        /// while it was sent counts as sent, and what was written since a sync is synced.
        #[test]
        fn notes_rebuild_the_ranges_and_what_is_rewritten_stays(
            steps in proptest::collection::vec(step(), 1..40),
        ) {
            let mut dirty = Dirty::default();
            let mut model = BTreeSet::new();
            let mut rewritten = None::<BTreeSet<u64>>;
            let mut unsynced = BTreeSet::new();
            let mut index = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Insert(range) => {
                        model.extend(range.clone());
                        unsynced.extend(range.clone());
                        rewritten.iter_mut().for_each(|set| set.extend(range.clone()));
                        dirty.insert(range);
                    }
                    Step::Remove(range) => {
                        model.retain(|byte| !range.contains(byte));
                        dirty.remove(range);
                    }
                    Step::BeginSending => {
                        let told: Vec<u64> = dirty.begin_sending().into_iter().flatten().collect();
                        prop_assert!(told.iter().eq(&model));
                        rewritten = Some(BTreeSet::new());
                    }
                    Step::Sent(range) => {
                        let is_new = |byte: &u64| rewritten.as_ref().is_some_and(|set| set.contains(byte));
                        model.retain(|byte| !range.contains(byte) || is_new(byte));
                        dirty.sent(range).into_iter().for_each(|part| dirty.remove(part));
                    }
                    Step::Sync(succeeds) => {
                        let synced = dirty.begin_sync();
                        prop_assert!(synced.iter().cloned().flatten().eq(unsynced.iter().copied()));
                        if succeeds {
                            unsynced.clear();
                        } else {
                            dirty.not_synced(synced);
                        }
                    }
                    Step::TakeUnnoted => note(&mut index, &mut dirty),
                }
                unsynced.retain(|byte| model.contains(byte));
                let found: Vec<u64> = dirty.ranges().iter().flatten().collect();
                prop_assert!(found.iter().eq(&model), "{found:?} {model:?}");
            }
            note(&mut index, &mut dirty);
            let ranges: Vec<_> = index.into_iter().map(|(start, end)| start..end).collect();
            prop_assert_eq!(ranges, dirty.ranges().iter().collect::<Vec<_>>());
        }
    }

    fn note(index: &mut BTreeMap<u64, u64>, dirty: &mut Dirty) {
        for (start, end) in dirty.take_unnoted() {
            match end {
                Some(end) => index.insert(start, end),
                None => index.remove(&start),
            };
        }
    }

    #[test]
    fn restored_ranges_are_not_told_again() {
        let mut dirty = Dirty::default();
        dirty.restore(3..7);
        assert_eq!(dirty.take_unnoted(), []);
        dirty.insert(4..5);
        assert_eq!(dirty.take_unnoted(), [], "it was dirty already");
        dirty.insert(7..9);
        assert_eq!(dirty.take_unnoted(), [(3, Some(9))]);
    }
}

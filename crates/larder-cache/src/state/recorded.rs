//! What the index has of a file, and what must still be put into it.
//!
//! Invariants:
//! - While the record *vouches* for bytes of the local file, these do not change: a change first
//!   puts a dirty mark, and commits it.
//! - A mark is removed only with the save that makes the record right again.
//! - A file with a record or a mark that is wrong is in the list of files to save.

use std::collections::BTreeSet;

use crate::kept_record::Keeping;
use crate::local_record::LocalRecord;
use crate::records::FileRecord;

/// The records of one file.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// The index has, or may soon have, a record of this file.
    is_there: bool,
    /// The record vouches for bytes of the present local file.
    vouches: bool,
    /// The index has a dirty mark.
    is_marked: bool,
    /// Groups of sums that the index has.
    groups: BTreeSet<u32>,
    /// The record's content, for accounting and for trust.
    record: FileRecord,
    /// What the index records of the local changes.
    noted: Option<LocalRecord>,
    /// Whether the index has a record of local changes that were kept.
    keeping: Keeping,
    /// Of how many changes it is, if this run put it there.
    kept_changes: Option<u64>,
    /// It is in the list of files to save.
    is_queued: bool,
    /// Something that the record says has changed since the last save.
    is_stale: bool,
}

impl Recorded {
    /// From the content of an index.
    pub(crate) fn found(record: FileRecord, groups: BTreeSet<u32>) -> Recorded {
        Recorded { is_there: true, vouches: true, groups, record, ..Recorded::default() }
    }

    pub(crate) fn is_there(&self) -> bool {
        self.is_there
    }

    /// What it records of kept local changes, and as of which count.
    pub(crate) fn keeping(&self) -> (Keeping, Option<u64>) {
        (self.keeping, self.kept_changes)
    }

    /// Sets that. Returns the previous value.
    pub(crate) fn set_keeping(&mut self, keeping: Keeping, changes: Option<u64>) -> Keeping {
        self.kept_changes = changes.or(self.kept_changes.filter(|_| keeping != Keeping::Nothing));
        std::mem::replace(&mut self.keeping, keeping)
    }

    pub(crate) fn vouches(&self) -> bool {
        self.vouches
    }

    pub(crate) fn is_marked(&self) -> bool {
        self.is_marked
    }

    pub(crate) fn groups(&self) -> &BTreeSet<u32> {
        &self.groups
    }

    pub(crate) fn record(&self) -> &FileRecord {
        &self.record
    }

    pub(crate) fn noted(&self) -> Option<&LocalRecord> {
        self.noted.as_ref()
    }

    pub(crate) fn is_queued(&self) -> bool {
        self.is_queued
    }

    /// Whether the record or the mark must be removed, now that the bytes are gone.
    pub(crate) fn is_owed(&self) -> bool {
        self.is_there || self.is_marked
    }

    /// A mark was put into the index, which a commit has yet to make durable.
    pub(crate) fn mark(&mut self) {
        self.is_marked = true;
    }

    /// The mark is durable: the record vouches for nothing any more.
    pub(crate) fn take_back(&mut self) {
        debug_assert!(self.is_marked || !self.vouches, "the mark comes first");
        self.vouches = false;
    }

    /// The local file that the record vouches for is gone; the record will be removed, too.
    pub(crate) fn drop_content(&mut self) {
        self.vouches = false;
        self.noted = None;
        self.is_stale = true;
    }

    /// What an earlier run recorded of local changes overrides the record, which vouches for
    /// nothing then.
    pub(crate) fn take_up(&mut self, noted: LocalRecord, is_marked: bool) {
        self.vouches = false;
        self.is_marked = is_marked;
        self.noted = Some(noted);
    }

    /// The index is given this record of the local changes.
    pub(crate) fn note(&mut self, record: Option<LocalRecord>) {
        self.noted = record;
    }

    /// Something that the record says has changed.
    pub(crate) fn change(&mut self) {
        self.is_stale = true;
    }

    /// The record that the index has, or one of no bytes, is put again with another pin.
    pub(crate) fn pin(&mut self, is_pinned: bool) -> FileRecord {
        self.is_there = true;
        self.record.pinned = is_pinned;
        self.record.clone()
    }

    /// It is in the list of files to save.
    pub(crate) fn queue(&mut self) {
        self.is_queued = true;
    }

    /// A save begins, of the file as it is now.
    pub(crate) fn begin_save(&mut self) {
        debug_assert!(self.is_queued, "a file is saved because it is in the list");
        self.is_stale = false;
    }

    /// This record, or none, was put into the index, and these groups were added or removed.
    pub(crate) fn end_save(
        &mut self,
        record: Option<FileRecord>,
        groups: impl IntoIterator<Item = (u32, bool)>,
    ) {
        for (number, has) in groups {
            if has {
                self.groups.insert(number);
            } else {
                self.groups.remove(&number);
            }
        }
        debug_assert!(
            record.is_some() || self.groups.is_empty(),
            "the sums of a file go with its record"
        );
        self.is_marked = false;
        self.is_there = record.is_some();
        self.record = record.unwrap_or_default();
        self.vouches |= self.record.held_bytes > 0;
    }

    /// Removes the file from the list of those to save, unless something has changed since the save
    /// began. Returns whether it did.
    pub(crate) fn leave_queue(&mut self) -> bool {
        debug_assert!(self.is_queued, "a file that was saved is still in the list");
        if !self.is_stale {
            self.is_queued = false;
        }
        !self.is_stale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH_MAX: u32 = 6;

    /// The steps of the files of [`crate::file`] and [`crate::save`], each in its order.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Step {
        /// A local change: a mark and a commit where the record vouches.
        Change,
        /// The mark was put, but its commit failed: nothing is changed.
        FailToChange,
        /// Saves the bytes as they are.
        Save,
        /// Something changes during a save, which is undone.
        SaveInVain,
        /// Saves a file that has no bytes any more.
        SaveNothing,
        Drop,
    }

    const STEPS: [Step; 6] = [
        Step::Change,
        Step::FailToChange,
        Step::Save,
        Step::SaveInVain,
        Step::SaveNothing,
        Step::Drop,
    ];

    /// The index, and the local file that it was told of.
    #[derive(Debug, Default)]
    struct Index {
        record: Option<u64>,
        is_marked: bool,
    }

    fn record(content: u64) -> FileRecord {
        FileRecord { serial: content, held_bytes: 1, ..FileRecord::default() }
    }

    /// `content` is another number after each change.
    fn apply(found: &mut Recorded, index: &mut Index, content: &mut u64, step: Step) {
        match step {
            Step::Change | Step::FailToChange => {
                if found.vouches() {
                    index.is_marked = true;
                    found.mark();
                    if step == Step::FailToChange {
                        return;
                    }
                    found.take_back();
                }
                if step == Step::Change {
                    *content += 1;
                    found.change();
                    found.queue();
                }
            }
            Step::Save | Step::SaveNothing if found.is_queued() => {
                found.begin_save();
                let saved = (step == Step::Save).then(|| record(*content));
                *index =
                    Index { record: saved.as_ref().map(|record| record.serial), is_marked: false };
                found.end_save(saved, [(0, step == Step::Save)]);
                assert!(found.leave_queue());
            }
            Step::SaveInVain if found.is_queued() => {
                found.begin_save();
                found.change();
                assert!(!found.leave_queue());
            }
            Step::Drop => {
                *content += 1;
                found.drop_content();
                if found.is_owed() {
                    found.queue();
                }
            }
            _ => (),
        }
    }

    /// Every history up to [`LENGTH_MAX`] steps. Without a mark, the index never records anything
    /// false about a local file that was only changed; and what it records falsely is in the list
    /// to save.
    #[test]
    fn no_history_leaves_a_record_that_vouches_for_changed_bytes() {
        for length in 0..=LENGTH_MAX {
            for number in 0..STEPS.len().pow(length) {
                let places = 0..length;
                let history: Vec<Step> =
                    places.map(|at| STEPS[number / STEPS.len().pow(at) % STEPS.len()]).collect();
                let (mut found, mut index) = (Recorded::default(), Index::default());
                let mut content = 1;
                let mut is_dropped = false;
                for &step in &history {
                    is_dropped = step == Step::Drop || (is_dropped && step != Step::Save);
                    apply(&mut found, &mut index, &mut content, step);
                    let is_right = index.record.is_none_or(|record| record == content);
                    // A record of a local file that is gone is a miss, and is not false.
                    assert!(is_right || index.is_marked || is_dropped, "{history:?}");
                    assert!(is_right || found.is_queued(), "{history:?}");
                    assert_eq!(found.is_there(), index.record.is_some(), "{history:?}");
                    assert_eq!(found.is_marked(), index.is_marked, "{history:?}");
                    assert!(!found.vouches() || index.record == Some(content), "{history:?}");
                    assert_eq!(found.groups().contains(&0), index.record.is_some());
                }
            }
        }
    }

    #[test]
    fn changes_of_an_earlier_run_stand_above_the_record() {
        let mut found = Recorded::found(record(1), BTreeSet::from([0]));
        assert!(found.vouches() && found.is_there() && !found.is_marked());
        let noted = LocalRecord::decode(&[0; 20]).unwrap();
        found.take_up(noted.clone(), true);
        assert_eq!(
            (found.vouches(), found.is_marked(), found.noted()),
            (false, true, Some(&noted))
        );
        found.drop_content();
        assert!(found.noted().is_none() && found.is_owed());
    }

    #[test]
    fn a_record_of_a_pin_alone_vouches_for_nothing() {
        let mut found = Recorded::default();
        found.change();
        found.queue();
        found.begin_save();
        found.end_save(Some(FileRecord { pinned: true, ..FileRecord::default() }), []);
        assert!(found.is_there() && !found.vouches() && found.leave_queue());
    }
}

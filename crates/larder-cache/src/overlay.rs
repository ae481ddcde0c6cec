//! Changes that wait in memory for the next commit of the index.
//!
//! Two layers: `pending` takes changes, `committing` is the batch that a commit is writing. A
//! reader searches both, newest first, so a change is visible from the moment it is put until the
//! database has it.
//!
//! Records of one session come and go, and most are gone before a commit begins. So the overlay
//! knows which of them the database has: the removal of any other leaves nothing to be written.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::records::tag;

/// Key to value; `None` deletes.
pub(crate) type Batch = BTreeMap<Box<[u8]>, Option<Box<[u8]>>>;

/// Cost of an entry besides its bytes: two allocations and its share of a half-full tree node.
const ENTRY_BYTES: usize = 112;

/// Changes that the database does not have yet.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    pending: Batch,
    pending_bytes: usize,
    committing: Arc<Batch>,
    committing_bytes: usize,
    /// Keys of [`OF_A_SESSION`] that the database has.
    stored: BTreeSet<Box<[u8]>>,
}

/// Tables whose records are of one session.
pub(crate) const OF_A_SESSION: [u8; 3] = [tag::LOCAL, tag::DIRTY_RANGE, tag::SESSION];

impl Overlay {
    /// Over a database that has the records `stored` of [`OF_A_SESSION`].
    pub(crate) fn new(stored: impl IntoIterator<Item = Vec<u8>>) -> Overlay {
        let stored = stored.into_iter().map(Vec::into_boxed_slice).collect();
        Overlay { stored, ..Overlay::default() }
    }

    /// The newest change of a key, if there is one.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        let change = self.pending.get(key).or_else(|| self.committing.get(key))?;
        Some(change.as_deref())
    }

    pub(crate) fn put(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        let key = key.into_boxed_slice();
        let cost = cost(&key, value.as_deref());
        let key_len = key.len();
        let old = self.pending.insert(key, value.map(Vec::into_boxed_slice));
        self.pending_bytes += cost;
        if let Some(old) = old {
            self.pending_bytes -= ENTRY_BYTES + key_len + old.map_or(0, |value| value.len());
        }
    }

    /// Removes a record: by a change, or by dropping a change that no commit has begun to write, if
    /// the database has no such record.
    pub(crate) fn remove(&mut self, key: Vec<u8>) {
        let is_of_session = key.first().is_some_and(|tag| OF_A_SESSION.contains(tag));
        if !is_of_session || self.stored.contains(&*key) || self.committing.contains_key(&*key) {
            return self.put(key, None);
        }
        if let Some((key, value)) = self.pending.remove_entry(&*key) {
            self.pending_bytes -= cost(&key, value.as_deref());
        }
    }

    /// Newest changes of keys from `start` on that begin with `prefix`, up to `last` if given.
    pub(crate) fn scan(&self, prefix: &[u8], start: &[u8], last: Option<&[u8]>) -> Batch {
        let mut found = Batch::new();
        for layer in [&*self.committing, &self.pending] {
            let from = (Bound::Included(start), Bound::Unbounded);
            let inside = layer
                .range::<[u8], _>(from)
                .take_while(|(key, _)| key.starts_with(prefix))
                .take_while(|(key, _)| last.is_none_or(|last| ***key <= *last));
            found.extend(inside.map(|(key, value)| (key.clone(), value.clone())));
        }
        found
    }

    /// Moves what is pending into the batch to commit.
    pub(crate) fn begin_commit(&mut self) -> Arc<Batch> {
        debug_assert!(self.committing.is_empty(), "commits take turns");
        self.committing = Arc::new(std::mem::take(&mut self.pending));
        self.committing_bytes = std::mem::take(&mut self.pending_bytes);
        Arc::clone(&self.committing)
    }

    /// The database has the batch.
    pub(crate) fn end_commit(&mut self) {
        for tag in OF_A_SESSION {
            let table = (Bound::Included(&[tag][..]), Bound::Excluded(&[tag + 1][..]));
            for (key, value) in self.committing.range::<[u8], _>(table) {
                match value {
                    Some(_) => self.stored.insert(key.clone()),
                    None => self.stored.remove(key),
                };
            }
        }
        self.forget_batch();
    }

    fn forget_batch(&mut self) {
        self.committing = Arc::default();
        self.committing_bytes = 0;
    }

    /// The database will never have these changes: keeps only those that `keeps` selects, for this
    /// run.
    pub(crate) fn keep_only(&mut self, keeps: impl Fn(&[u8]) -> bool) {
        let mut all = (*self.committing).clone();
        all.append(&mut self.pending);
        all.retain(|key, _| keeps(key));
        self.forget_batch();
        self.pending_bytes = all.iter().map(|(key, value)| cost(key, value.as_deref())).sum();
        self.pending = all;
    }

    /// Entries and bytes in both layers.
    pub(crate) fn total(&self) -> (usize, usize) {
        let entries = self.pending.len() + self.committing.len();
        (entries, self.pending_bytes + self.committing_bytes)
    }

    /// Entries and bytes that no commit has begun to write.
    pub(crate) fn pending(&self) -> (usize, usize) {
        (self.pending.len(), self.pending_bytes)
    }
}

fn cost(key: &[u8], value: Option<&[u8]>) -> usize {
    ENTRY_BYTES + key.len() + value.map_or(0, <[u8]>::len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Put(u8, u8),
        Remove(u8),
        BeginCommit,
        /// The database has what a commit began to write.
        EndCommit,
        /// The commit failed: only records of numbers are kept.
        Fail,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..8_u8, any::<u8>()).prop_map(|(key, value)| Step::Put(key, value)),
            3 => (0..8_u8).prop_map(Step::Remove),
            2 => Just(Step::BeginCommit),
            2 => Just(Step::EndCommit),
            1 => Just(Step::Fail),
        ]
    }

    /// Half of the keys are of a session.
    fn key(number: u8) -> Vec<u8> {
        vec![if number.is_multiple_of(2) { tag::SESSION } else { tag::NAME }, number]
    }

    /// A value of as many bytes as it says.
    fn value(value: u8) -> Vec<u8> {
        vec![value; usize::from(value)]
    }

    type Records = BTreeMap<Vec<u8>, Vec<u8>>;

    /// A database with an overlay, beside the records as they should be.
    #[derive(Default)]
    struct Run {
        overlay: Overlay,
        database: Records,
        committing: Option<Arc<Batch>>,
        all: Records,
    }

    impl Run {
        fn apply(&mut self, step: Step) {
            match step {
                Step::Put(at, written) => {
                    self.overlay.put(key(at), Some(value(written)));
                    self.all.insert(key(at), value(written));
                }
                Step::Remove(at) => {
                    self.overlay.remove(key(at));
                    self.all.remove(&key(at));
                }
                Step::BeginCommit if self.committing.is_none() => {
                    self.committing = Some(self.overlay.begin_commit());
                }
                Step::EndCommit => {
                    for (key, value) in self.committing.take().iter().flat_map(|batch| batch.iter())
                    {
                        match value {
                            Some(value) => self.database.insert(key.to_vec(), value.to_vec()),
                            None => self.database.remove(&key.to_vec()),
                        };
                    }
                    self.overlay.end_commit();
                }
                Step::Fail => {
                    let keeps = |key: &[u8]| key[0] == tag::NAME;
                    self.committing = None;
                    self.overlay.keep_only(keeps);
                    let lost = std::mem::take(&mut self.all);
                    self.all = self.database.clone();
                    self.all.retain(|key, _| !keeps(key));
                    self.all.extend(lost.into_iter().filter(|(key, _)| keeps(key)));
                }
                Step::BeginCommit => (),
            }
        }

        fn check(&self) {
            let mut found = self.database.clone();
            for (key, change) in self.overlay.scan(&[], &[], None) {
                match change {
                    Some(value) => found.insert(key.into_vec(), value.into_vec()),
                    None => found.remove(&*key),
                };
            }
            assert_eq!(found, self.all, "a scan");
            for at in 0..8 {
                let change = self.overlay.get(&key(at)).map(|change| change.map(<[u8]>::to_vec));
                let found = change.unwrap_or_else(|| self.database.get(&key(at)).cloned());
                assert_eq!(found.as_ref(), self.all.get(&key(at)), "{at}");
            }
            let size = |batch: &Batch| {
                let bytes = batch.iter().map(|(key, value)| cost(key, value.as_deref())).sum();
                (batch.len(), bytes)
            };
            let (pending, committing) =
                (size(&self.overlay.pending), size(&self.overlay.committing));
            assert_eq!(self.overlay.pending(), pending);
            assert_eq!(self.overlay.total(), (pending.0 + committing.0, pending.1 + committing.1));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        /// Whatever is pending, being written or written: a reader sees the newest value, and the
        /// pending bytes are counted exactly.
        #[test]
        fn a_reader_sees_what_was_put_last(steps in proptest::collection::vec(step(), 1..40)) {
            let mut run = Run::default();
            for step in steps {
                run.apply(step);
                run.check();
            }
        }
    }

    /// (the earlier history of a session's record, changes that its removal leaves)
    #[test]
    fn a_record_that_came_and_went_between_two_commits_is_never_written() {
        type Happen = fn(&mut Overlay);
        let nothing: Happen = |_| ();
        let put: Happen = |overlay| overlay.put(key(0), Some(vec![1]));
        let begun: Happen = |overlay| {
            overlay.put(key(0), Some(vec![1]));
            overlay.begin_commit();
        };
        let ended: Happen = |overlay| {
            overlay.put(key(0), Some(vec![1]));
            overlay.begin_commit();
            overlay.end_commit();
        };
        let removed: Happen = |overlay| {
            overlay.put(key(0), Some(vec![1]));
            overlay.begin_commit();
            overlay.end_commit();
            overlay.remove(key(0));
            overlay.begin_commit();
            overlay.end_commit();
        };
        for (name, happen, changes) in [
            ("nothing", nothing, 0),
            ("put", put, 0),
            ("a commit has begun", begun, 1),
            ("a commit has ended", ended, 1),
            ("it was removed by a commit", removed, 0),
        ] {
            let mut overlay = Overlay::default();
            happen(&mut overlay);
            overlay.remove(key(0));
            assert_eq!(overlay.pending().0, changes, "{name}");
            assert!(overlay.get(&key(0)).is_none_or(|change| change.is_none()), "{name}");
        }
        let mut overlay = Overlay::new([key(0)]);
        overlay.remove(key(0));
        assert_eq!(overlay.pending().0, 1, "an earlier run has written it");
        overlay.remove(key(1));
        assert_eq!(
            overlay.pending().0,
            2,
            "of other records nobody knows whether they are written"
        );
    }
}

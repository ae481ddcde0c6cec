//! What waits in memory for the next commit of the index.
//!
//! Two layers: `pending` takes changes, `committing` is the batch that a commit is writing. A
//! reader looks into both, newest first, so a change is seen from the moment it is put until the
//! database has it.
//!
//! Records of one session come and go, and most are gone before a commit begins. So it is known
//! here which of them the database has: the removal of any other leaves nothing to be written.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::records::tag;

/// Key to value; `None` deletes.
pub(crate) type Batch = BTreeMap<Box<[u8]>, Option<Box<[u8]>>>;

/// What an entry costs beside its bytes: two allocations and its share of a half-full tree node.
const ENTRY_BYTES: usize = 112;

/// Changes on their way to the database.
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

    /// Removes a record: as a change, or by taking back what no commit has begun to write, if that
    /// is all.
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

    /// The database will never have it: keeps only what `keeps` picks, for this run.
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

//! Local changes that survive a crash of the machine: the journal of data.
//!
//! Code that acknowledges local changes as safe on this disk first has them *kept*: they are synced
//! in the local file, and then a [`KeptRecord`] becomes durable, which lists what is dirty in it.
//! It exists beside the records of [`crate::local`], which follow each later change and are valid
//! in one boot. In another boot, the changes are those that were kept last, and later changes are
//! lost. A byte that was kept and then written again may be the older or the newer one then.
//!
//! A record is removed with the changes that it describes, in the same commit or a later one: a
//! crash in between brings back changes that the server already has.
//!
//! Short changes are within the record ([`crate::kept_bytes`]), so that one sync of the session log
//! keeps them. Concurrent callers share it.

use std::io;
use std::sync::Arc;

use larder_io::FsKind;

use crate::file::CachedFile;
use crate::kept_record::{Keeping, KeptRecord, kept_key};
use crate::local_record::LocalRecord;
use crate::lock;
use crate::marks::Mark;
use crate::pool::data_dir;
use crate::state::State;
use crate::state::syncing::sync_ranges;
use crate::store::Store;

/// Most dirty ranges of a kept file: the record is one value of the index.
const RANGES_MAX: usize = 1 << 16;

/// Local changes that are on record, and survive a crash of the machine once somebody has waited.
#[must_use = "they are not durable before the wait"]
pub struct BegunKeeping {
    store: Arc<Store>,
    /// `None`: there is nothing to wait for.
    mark: Option<Mark>,
}

impl BegunKeeping {
    /// Waits for the disk. Of several, the first wait syncs for all that were begun before it.
    ///
    /// # Errors
    /// The disk's. Then nothing is promised.
    pub fn wait(self) -> io::Result<()> {
        let Some(mark) = self.mark else { return Ok(()) };
        let durable = self.store.index.make_durable(mark);
        durable.map_err(|error| io::Error::other(error.to_string()))
    }
}

impl CachedFile {
    /// Makes all local changes so far survive a crash of the machine: they are durable on return,
    /// until they are at the server or are given up. What the kernel itself wrote counts as far as
    /// it was collected. Waits for the disk; the file must not be sent at the same time.
    ///
    /// # Errors
    /// The disk's; `Unsupported` for a cache that does not outlive the process, or without
    /// [`crate::Config::boot`]; `FileTooLarge` for too many ranges. Then nothing is promised.
    pub fn keep(&self) -> io::Result<()> {
        self.begin_keeping()?.wait()
    }

    /// The same but for the last sync, which many files share: what is returned waits for that.
    ///
    /// # Errors
    /// As [`CachedFile::keep`].
    pub fn begin_keeping(&self) -> io::Result<BegunKeeping> {
        let begun = |mark| Ok(BegunKeeping { store: self.store.clone(), mark });
        let store = &self.store;
        store.keeps()?;
        self.leave_memory()?;
        let (file, kept, changes, unsynced) = {
            let mut state = self.state();
            if state.dirty().is_empty() {
                return begun(None);
            }
            // Of what is being sent a part may be clean by now.
            let is_kept = state.keeping() == Keeping::Kept && state.is_all_kept();
            if let Some(mark) = store.mark_of_kept(self.number()).filter(|_| is_kept) {
                return begun(Some(mark));
            }
            let kept = record_of(&state)?;
            let (file, changes) = (self.local(&state)?, state.changes().count());
            if let Some(kept) = self.with_bytes(&kept, &*file) {
                return begun(Some(self.put_kept(&mut state, &kept, changes)));
            }
            (file, kept, changes, state.begin_sync())
        };
        if let Err(error) = sync_ranges(&*file, &unsynced) {
            self.state().not_synced(unsynced);
            return Err(error);
        }
        store.sync_name_in(data_dir(self.number()))?;
        let mut state = self.state();
        if state.serial() != kept.local.serial || state.dirty().is_empty() {
            return begun(None);
        }
        begun(Some(self.put_kept(&mut state, &kept, changes)))
    }

    /// Puts a record, as of this number of changes.
    fn put_kept(&self, state: &mut State, kept: &KeptRecord, changes: u64) -> Mark {
        let (store, no) = (&self.store, self.number());
        let keeping = if kept.is_sent { Keeping::Sending } else { Keeping::Kept };
        state.set_keeping(keeping, Some(changes));
        store.index.put(kept_key(no), Some(kept.encode()));
        let mark = store.index.mark();
        store.note_kept(no, kept.bytes_len(), Some(mark));
        mark
    }

    /// What is kept is over the version of `state` from now on.
    pub(crate) fn carry_kept(&self, state: &State) {
        let (index, key) = (&self.store.index, kept_key(self.number()));
        let held = index.get(&key);
        if let Some(kept) = held.as_deref().and_then(KeptRecord::decode) {
            let version = state.local_record().version;
            let kept = KeptRecord { local: LocalRecord { version, ..kept.local }, ..kept };
            index.put(key, Some(kept.encode()));
        }
    }

    fn make_durable(&self, mark: Mark) -> io::Result<()> {
        BegunKeeping { store: self.store.clone(), mark: Some(mark) }.wait()
    }

    /// Whether local changes are kept. Later changes count as well.
    pub fn keeping(&self) -> Keeping {
        self.state().keeping()
    }

    /// Whether all local changes are kept, as far as they are known.
    pub fn is_all_kept(&self) -> bool {
        self.state().is_all_kept()
    }

    /// Whether a crash of the machine may bring back changes that were kept and are not unsent any
    /// more: they would be sent again.
    pub fn may_come_back(&self) -> bool {
        let (index, no) = (&self.store.index, self.number());
        // In an index that has failed no key is found any more, and gets another number.
        let key = || index.is_poisoned().then(|| self.store.key_of(no))?;
        let gone = lock(&self.store.kept).removal(no, key);
        match gone {
            None => false,
            Some(None) => self.keeping() == Keeping::Nothing,
            Some(Some(mark)) => !index.is_durable(mark),
        }
    }

    /// Nothing comes back, from now on ([`CachedFile::may_come_back`]). Waits for the disk.
    ///
    /// # Errors
    /// The disk's.
    pub fn forget_kept(&self) -> io::Result<()> {
        if !self.may_come_back() {
            return Ok(());
        }
        self.make_durable(self.store.index.mark())
    }

    /// Kept changes will be sent from now on, in one request or, if that `is_durable`, several:
    /// then a crash of the machine leaves a record of it. Does nothing if nothing is kept. Waits
    /// for the disk.
    ///
    /// # Errors
    /// The disk's.
    pub fn keep_until_sent(&self, is_durable: bool) -> io::Result<()> {
        let index = &self.store.index;
        let mark = {
            let mut state = self.state();
            let held = index.get(&kept_key(self.number()));
            let Some(kept) = held.as_deref().and_then(KeptRecord::decode) else { return Ok(()) };
            state.set_keeping(Keeping::Sending, None);
            let kept = KeptRecord { is_sent: true, ..kept };
            index.put(kept_key(self.number()), Some(kept.encode()));
            index.mark()
        };
        if is_durable { self.make_durable(mark) } else { Ok(()) }
    }
}

impl Store {
    /// Fails unless what is committed survives a crash of the machine, and the death of the process
    /// before that: for a cache in memory, and without [`crate::Config::boot`].
    pub(crate) fn keeps(&self) -> io::Result<()> {
        let is_memory = self.disk.kind()? == FsKind::TMPFS;
        if is_memory || !self.index.is_logged() || !self.disk.outlives_process() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(())
    }
}

fn record_of(state: &State) -> io::Result<KeptRecord> {
    let ranges: Vec<_> = state.dirty().iter().collect();
    if ranges.len() > RANGES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    // A part of it may be at the server, and only this record shows that.
    let is_sent = state.keeping() == Keeping::Sending;
    Ok(KeptRecord { local: state.local_record(), is_sent, ranges, bytes: None })
}

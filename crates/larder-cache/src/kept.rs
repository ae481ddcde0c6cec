//! Local changes that outlive a crash of the machine: the journal of data.
//!
//! Whoever acknowledges local changes as safe on this disk has them *kept* first: the local file is
//! synced, and then a [`KeptRecord`] is committed, which says what is dirty in it. The record
//! stands beside those of [`crate::local`], which follow each later change and hold in one boot: in
//! another one, the changes are what was kept last, and what was changed since is lost. A byte
//! that was kept and is written again may be the older or the newer one then.
//!
//! A record goes with the changes that it is about, in the same commit or a later one: a crash in
//! between brings changes back that the server has already.
//!
//! Commits are made one after the other, and each takes what waits: callers who come together
//! share one.

use std::io;

use larder_io::FsKind;

use crate::file::CachedFile;
use crate::kept_record::{Keeping, KeptRecord, kept_key};
use crate::pool::data_dir;
use crate::state::State;
use crate::store::Store;

/// Most dirty ranges of a file that is kept: the record is one value of the index.
const RANGES_MAX: usize = 1 << 16;

impl CachedFile {
    /// Makes all local changes so far outlive a crash of the machine: they are durable on return,
    /// until they are at the server or are given up. What the kernel wrote by itself counts as far
    /// as it was collected. Waits for the disk; nobody may send the file meanwhile.
    ///
    /// # Errors
    /// What the disk says; `Unsupported` of a cache that does not outlive the process, or without
    /// [`crate::Config::boot`]; `FileTooLarge` of too many ranges. Then nothing is promised.
    pub fn keep(&self) -> io::Result<()> {
        let (store, index) = (&self.store, &self.store.index);
        store.keeps()?;
        let (file, kept, changes) = {
            let state = self.state();
            if state.dirty().is_empty() {
                return Ok(());
            }
            (self.local(&state)?, record_of(&state)?, state.changes().count())
        };
        file.sync_data()?;
        // Always: who else syncs them may still be at it.
        for dir in [String::new(), "data".to_owned(), data_dir(self.number())] {
            store.disk.sync_dir(&dir)?;
        }
        {
            let mut state = self.state();
            if state.serial() != kept.local.serial || state.dirty().is_empty() {
                return Ok(());
            }
            let keeping = if kept.is_sent { Keeping::Sending } else { Keeping::Kept };
            state.set_keeping(keeping, Some(changes));
            index.put(kept_key(self.number()), Some(kept.encode()));
        }
        index.commit().map_err(|error| io::Error::other(error.to_string()))
    }

    /// Whether local changes are kept. What was changed since counts as well.
    pub fn keeping(&self) -> Keeping {
        self.state().keeping()
    }

    /// Whether all local changes are kept, as far as they are known.
    pub fn is_all_kept(&self) -> bool {
        self.state().is_all_kept()
    }

    /// What was kept is sent from now on, in one request or, if that `is_durable`, several: then a
    /// crash of the machine leaves a record of it. Does nothing if nothing is kept. Waits for the
    /// disk.
    ///
    /// # Errors
    /// What the disk says.
    pub fn keep_until_sent(&self, is_durable: bool) -> io::Result<()> {
        let index = &self.store.index;
        {
            let mut state = self.state();
            let held = index.get(&kept_key(self.number()));
            let Some(kept) = held.as_deref().and_then(KeptRecord::decode) else { return Ok(()) };
            state.set_keeping(Keeping::Sending, None);
            let kept = KeptRecord { is_sent: true, ..kept };
            index.put(kept_key(self.number()), Some(kept.encode()));
        }
        if !is_durable {
            return Ok(());
        }
        index.commit().map_err(|error| io::Error::other(error.to_string()))
    }
}

impl Store {
    /// Fails unless what is committed outlives a crash of the machine, and the process before that:
    /// of a cache in memory, and without [`crate::Config::boot`].
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
    // A part of it may be at the server, and that shows nowhere else.
    let is_sent = state.keeping() == Keeping::Sending;
    Ok(KeptRecord { local: state.local_record(), is_sent, ranges })
}

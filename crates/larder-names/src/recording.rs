//! Writes the journal's changes to the cache's disk, and knows what of it a crash would lose.
//!
//! A change that is acknowledged survives the process: it is in the session log, or the disk has
//! refused to log it and it is committed before the answer. A disk that refuses that too has failed
//! for this run ([`Cache::keeps_names`]), and keeps the journal as it was at the last commit. From
//! then on nothing that waits is changed here or made at the server: callers are refused. Other
//! names go on at the server, except those that the next process would take for waiting ones.

use std::ffi::OsStr;

#[cfg(doc)]
use larder_cache::Cache;
use larder_vfs::{Error, Handle, Result};

use crate::shared::Shared;
use crate::state::State;

/// Most objects that are known at all: they are in memory. Beyond that, names are made at the
/// server at once.
const OBJECTS_MAX: usize = 1 << 20;

impl Shared {
    /// Writes the changes of the journal. They survive the process on return, if the disk logs
    /// them.
    pub(crate) fn record(&self, state: &mut State) {
        let changes = state.journal_mut().take_changes();
        let met = state.journal_mut().take_met().into_iter();
        let met: Vec<_> = met.map(|one| one.conflict(state.journal(), &self.cache)).collect();
        if !changes.is_empty() || !met.is_empty() {
            state.set_recorded(self.cache.put_names(changes, met));
        }
        state.note_left(|mark| self.cache.has_kept_names(mark));
    }

    /// The same, for a caller who is told of the changes: they survive the process. Waits for the
    /// disk only if that has refused to log them.
    ///
    /// # Errors
    /// [`Error::Io`] if the disk has failed: the changes may be lost with the process.
    pub(crate) fn record_for_caller(&self, state: &mut State) -> Result<()> {
        self.record(state);
        if self.cache.names_outlive_process() {
            return Ok(());
        }
        self.cache.keep_names(state.recorded()).map_err(|error| {
            tracing::error!(%error, "a change of names that is not recorded is refused");
            Error::Io
        })
    }

    /// Whether changes can be recorded: the disk has not failed.
    pub(crate) fn can_record(&self) -> bool {
        self.cache.keeps_names()
    }

    /// What waited under a name does not come back with a crash: the server is changed under that
    /// name next.
    ///
    /// # Errors
    /// [`Error::Io`] if that cannot be promised.
    pub(crate) async fn keep_left(&self, dir: &Handle, name: &OsStr) -> Result<()> {
        let left = {
            let state = self.state();
            state.left(&state.dentry(dir, name))
        };
        match left {
            Some(mark) if !self.cache.has_kept_names(mark) => self.keep().await,
            _ => Ok(()),
        }
    }

    /// All that was recorded outlives a crash of the machine on return.
    pub(crate) async fn keep(&self) -> Result<()> {
        let recorded = self.state().recorded();
        if self.cache.has_kept_names(recorded) {
            return Ok(());
        }
        let cache = self.cache.clone();
        let kept = tokio::task::spawn_blocking(move || cache.keep_names(recorded)).await;
        if !matches!(kept, Ok(Ok(()))) {
            tracing::error!("the cache's disk does not keep names");
            return Err(Error::Io);
        }
        self.state().forget_kept(|mark| self.cache.has_kept_names(mark));
        Ok(())
    }

    /// Whether one more object may be made here.
    pub(crate) fn has_room(&self) -> bool {
        self.has_room_in(&self.state())
    }

    /// The same, for a caller that holds the state.
    pub(crate) fn has_room_in(&self, state: &State) -> bool {
        let (waiting, all) = state.journal().counts();
        waiting < self.waiting_max && all < OBJECTS_MAX && self.can_record()
    }

    /// Whether a crash of the machine would make us forget that the server has this.
    pub(crate) fn is_unkept(&self, handle: &Handle) -> bool {
        let state = self.state();
        let named = state.journal().number_in(handle).and_then(|no| state.unkept(no));
        named.is_some_and(|named| !self.cache.has_kept_names(named))
    }
}

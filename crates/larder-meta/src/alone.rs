//! Which sessions have a write lease, for calls that are answered beside the committer.
//!
//! A session with a write lease on a directory may know names in it that the server lacks, and with
//! one on a file bytes. So a call of another session that looks into the directory, or describes
//! the file, has its turn in the committer, which recalls the lease first ([`crate::leases`]). All
//! other calls that only read find here, without waiting, that they need no turn.
//!
//! The committer adds a lease before its holder learns of it, and removes it after its holder has
//! returned it. A reader must look here before it takes its view: what a holder sent before it
//! returned a lease is then in that view. What a reader may learn of files only from the view, it
//! checks [later](Before::are_free).

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use larder_wire::meta::words::{FileId, SessionId};

/// All write leases.
#[derive(Debug, Default)]
pub(crate) struct Alone {
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    files: HashMap<FileId, SessionId>,
    /// How many leases were removed.
    removed: u64,
}

/// The moment before a reader took its view.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    removed: u64,
}

impl Alone {
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session has a write lease on a file, or nobody has one.
    pub(crate) fn set(&self, file: FileId, session: Option<SessionId>) {
        if self.read().files.get(&file).copied() == session {
            return;
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        match session {
            Some(session) => drop(state.files.insert(file, session)),
            None => {
                state.files.remove(&file);
                state.removed += 1;
            }
        }
    }

    /// A session is over.
    pub(crate) fn forget(&self, session: SessionId) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let count = state.files.len();
        state.files.retain(|_, of| *of != session);
        state.removed += (count - state.files.len()) as u64;
    }

    /// A reader is about to take its view.
    pub(crate) fn before(&self) -> Before {
        Before { removed: self.read().removed }
    }

    /// Whether a session other than `session` has a write lease on a file.
    pub(crate) fn is_others(&self, file: FileId, session: SessionId) -> bool {
        self.read().files.get(&file).is_some_and(|of| *of != session)
    }
}

impl Before {
    /// Whether none of the files was written under a write lease of another session at any time
    /// since.
    pub(crate) fn are_free(
        self,
        alone: &Alone,
        session: SessionId,
        files: impl IntoIterator<Item = FileId>,
    ) -> bool {
        let state = alone.read();
        let is_others = |file| state.files.get(&file).is_some_and(|of| *of != session);
        state.removed == self.removed && !files.into_iter().any(is_others)
    }
}

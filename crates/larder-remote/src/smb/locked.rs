//! The files with locked ranges. A file is in the table exactly as long as ranges of it are to be
//! locked, or a call is about to change that.

use super::files::ServerOpen;
use super::pieces::Pieces;
use larder_vfs::Handle;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A file with locked ranges.
pub(super) struct LockedFile {
    pub(super) handle: Handle,
    pub(super) held: tokio::sync::Mutex<HeldLocks>,
}

/// The locked ranges, and the open that has them. Its lock is held during each change.
#[derive(Default)]
pub(super) struct HeldLocks {
    pub(super) open: Option<Arc<ServerOpen>>,
    pub(super) pieces: Pieces,
}

/// Every file with locked ranges.
#[derive(Default)]
pub(super) struct LockedFiles(Mutex<HashMap<Handle, Arc<LockedFile>>>);

impl LockedFiles {
    fn by_file(&self) -> MutexGuard<'_, HashMap<Handle, Arc<LockedFile>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, file: &Handle) -> Option<Arc<LockedFile>> {
        self.by_file().get(file).cloned()
    }

    pub(super) fn enter(&self, file: &Handle) -> Arc<LockedFile> {
        let mut by_file = self.by_file();
        let new = || {
            let held = tokio::sync::Mutex::default();
            Arc::new(LockedFile { handle: file.clone(), held })
        };
        Arc::clone(by_file.entry(file.clone()).or_insert_with(new))
    }

    /// Removes a file without locked ranges, unless another call is about to change that.
    pub(super) fn leave(&self, file: &Arc<LockedFile>) {
        let mut by_file = self.by_file();
        let is_unlocked = file.held.try_lock().is_ok_and(|held| held.pieces.is_empty());
        // Ours and the table's.
        if is_unlocked
            && Arc::strong_count(file) <= 2
            && by_file.get(&file.handle).is_some_and(|it| Arc::ptr_eq(it, file))
        {
            by_file.remove(&file.handle);
        }
    }

    /// Whether something of the file is locked, or about to be.
    pub(super) fn has(&self, file: &Handle) -> bool {
        self.by_file().contains_key(file)
    }

    /// Those that `chosen` names.
    pub(super) fn all(&self, chosen: impl Fn(&Handle) -> bool) -> Vec<Handle> {
        self.by_file().keys().filter(|file| chosen(file)).cloned().collect()
    }
}

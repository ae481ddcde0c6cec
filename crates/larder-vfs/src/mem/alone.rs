//! Exclusion of other clients by the model. The model does not see to it itself: a test recalls
//! what another client is about to look at.

use std::collections::BTreeSet;

use super::MemRemote;
use crate::Handle;

/// What a connection has, if it is given any.
#[derive(Default)]
pub(super) struct Alone {
    is_given: bool,
    files: BTreeSet<Handle>,
    returning: BTreeSet<Handle>,
    /// Files of which the server was told that this connection's machine alone has the bytes.
    retained: BTreeSet<Handle>,
}

impl Alone {
    /// Others are excluded from a file from now on, if that is given. Returns whether they are.
    pub(super) fn take(&mut self, file: &Handle) -> bool {
        let has_none = self.is_given && !self.returning.contains(file);
        if has_none {
            self.files.insert(file.clone());
        }
        self.is_given
    }

    pub(super) fn has(&self, file: &Handle) -> bool {
        self.files.contains(file)
    }

    /// Notes that a file of this size at the server is retained, if it may be.
    pub(super) fn retain(&mut self, file: &Handle, size: u64) -> bool {
        let may_be = self.has(file) && size == 0;
        if may_be {
            self.retained.insert(file.clone());
        }
        may_be
    }

    pub(super) fn retains(&self, file: &Handle) -> bool {
        self.retained.contains(file)
    }

    pub(super) fn release(&mut self, file: &Handle) {
        self.retained.remove(file);
    }

    pub(super) fn has_still(&self, file: &Handle) -> bool {
        self.has(file) || self.returning.contains(file)
    }
}

impl MemRemote {
    /// Says whether this connection may exclude other clients from files.
    pub fn set_excludes(&self, excludes: bool) {
        self.connection().alone.is_given = excludes;
    }

    /// Another client is about to look at a file. When the future ends it may.
    pub async fn recall(&self, file: &Handle) {
        let watcher = {
            let mut connection = self.connection();
            if !connection.alone.files.remove(file) {
                return;
            }
            connection.alone.returning.insert(file.clone());
            connection.watcher.clone()
        };
        let watcher = watcher.and_then(|watcher| watcher.upgrade());
        if let Some(watcher) = &watcher {
            watcher.broken(file).await;
        }
        self.connection().alone.returning.remove(file);
        if let Some(watcher) = &watcher {
            watcher.write_back(file).await;
        }
    }

    /// The session is lost: nobody is excluded any more. When the future ends, that was reported.
    pub async fn lose_exclusion(&self) {
        let (files, watcher) = {
            let mut connection = self.connection();
            (std::mem::take(&mut connection.alone.files), connection.watcher.clone())
        };
        let Some(watcher) = watcher.and_then(|watcher| watcher.upgrade()) else { return };
        for file in &files {
            watcher.broken(file).await;
        }
    }
}

//! Which calls wait until what a file has on memory disks is on other disks.

use std::collections::{BTreeMap, BTreeSet};

use larder_wire::meta::words::FileId;
use tokio::sync::oneshot;

use crate::change::Reply;

/// A client's request: what this file has on memory disks is to be on others within `due_ms`; with
/// 0, the answer comes after that.
pub(crate) struct Destaged {
    pub(crate) file: FileId,
    pub(crate) due_ms: u32,
    pub(crate) waiter: oneshot::Sender<Reply>,
}

/// When a file's bytes were due, and who waits for them to leave.
pub(super) type Wait = (u64, oneshot::Sender<Reply>);

/// The calls that wait.
#[derive(Default)]
pub(super) struct Leaving {
    waiting: BTreeMap<FileId, Vec<Wait>>,
    /// Files among them that were removed.
    gone: BTreeSet<FileId>,
}

impl Leaving {
    /// A call waits.
    pub(super) fn wait(&mut self, file: FileId, wait: Wait) {
        let waiting = self.waiting.entry(file).or_default();
        // A client that has lost its connection asks again.
        waiting.retain(|(_, waiter)| !waiter.is_closed());
        waiting.push(wait);
    }

    /// The calls that wait for a file. None waits any more.
    pub(super) fn take(&mut self, file: FileId) -> Vec<Wait> {
        self.waiting.remove(&file).unwrap_or_default()
    }

    /// All of them. None waits any more.
    pub(super) fn take_all(&mut self) -> Vec<Wait> {
        std::mem::take(&mut self.waiting).into_values().flatten().collect()
    }

    /// The files for which calls wait.
    pub(super) fn files(&self) -> Vec<FileId> {
        self.waiting.keys().copied().collect()
    }

    /// A file is no more.
    pub(super) fn is_gone(&mut self, file: FileId) {
        if self.waiting.contains_key(&file) {
            self.gone.insert(file);
        }
    }

    /// The files for which calls wait and that were removed since the last call of this.
    pub(super) fn take_gone(&mut self) -> BTreeSet<FileId> {
        std::mem::take(&mut self.gone)
    }
}

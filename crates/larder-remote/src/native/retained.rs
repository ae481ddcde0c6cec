//! Which files the server was told of that this machine alone has ([`super::retaining`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_wire::meta::words::FileId;

/// The files of which the server was told, and not since that it need not wait for them.
#[derive(Debug, Default)]
pub(super) struct Retained {
    /// With how many bytes, as far as the server has answered.
    files: Mutex<HashMap<FileId, Option<u64>>>,
    /// The server is of a version that knows nothing of this.
    is_unknown: AtomicBool,
}

impl Retained {
    fn files(&self) -> MutexGuard<'_, HashMap<FileId, Option<u64>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the server waits for this machine if somebody asks for a file.
    pub(super) fn has(&self, file: FileId) -> bool {
        self.files().contains_key(&file)
    }

    /// Whether it is so for any file.
    pub(super) fn has_any(&self) -> bool {
        !self.files().is_empty()
    }

    /// Whether the server has taken note of so many bytes of a file, and was not told of others
    /// since.
    pub(super) fn has_bytes(&self, file: FileId, bytes: u64) -> bool {
        self.files().get(&file) == Some(&Some(bytes))
    }

    /// The server is being told. Returns whether it was not told before.
    pub(super) fn note(&self, file: FileId) -> bool {
        self.files().insert(file, None).is_none()
    }

    /// The server has taken note of so many bytes, unless it was told since that it need not wait.
    pub(super) fn noted(&self, file: FileId, bytes: u64) {
        if let Some(told) = self.files().get_mut(&file) {
            *told = Some(bytes);
        }
    }

    /// Whether the server is known not to know what it would be told.
    pub(super) fn is_unknown(&self) -> bool {
        self.is_unknown.load(Ordering::Relaxed)
    }

    pub(super) fn note_unknown(&self) {
        self.is_unknown.store(true, Ordering::Relaxed);
    }

    /// There is no such file any more, or the server need not wait for it.
    pub(super) fn forget(&self, file: FileId) {
        self.files().remove(&file);
    }
}

//! One open file: who opened it, how, and how it was read so far.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_cache::{CachedFile, InUse};
use larder_vfs::{Cred, KeptOpen, OpenFlags};

use super::mode::Mode;
use crate::node::Node;
use crate::read::Stream;

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) node: Arc<Node>,
    pub(crate) cred: Cred,
    pub(crate) flags: OpenFlags,
    /// So that its data is not culled, and what is known of it stays in memory, while it is open.
    _file: InUse,
    pub(crate) mode: Mode,
    stream: Mutex<Stream>,
    /// A descriptor of it was closed: the last one, unless it was duplicated or inherited.
    flushed: AtomicBool,
    /// A close or fsync reported that the server refuses the data.
    refused: AtomicBool,
    /// Where the server needs that to find the file whatever becomes of its names.
    kept: Mutex<KeptOpen>,
}

impl OpenFile {
    /// An open file that nobody has read yet.
    pub(crate) fn new(
        node: Arc<Node>,
        file: Arc<CachedFile>,
        cred: Cred,
        flags: OpenFlags,
        mode: Mode,
    ) -> OpenFile {
        let (stream, kept) = (Mutex::default(), Mutex::default());
        let [flushed, refused] = Default::default();
        OpenFile { node, cred, flags, _file: file.hold(), mode, stream, flushed, refused, kept }
    }

    pub(super) fn set_kept(&self, kept: KeptOpen) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = kept;
    }

    /// Whether a descriptor of it was closed.
    pub(crate) fn is_flushed(&self) -> bool {
        self.flushed.load(Ordering::Relaxed)
    }

    pub(super) fn set_flushed(&self, is_flushed: bool) {
        self.flushed.store(is_flushed, Ordering::Relaxed);
    }

    /// Whether a close or fsync reported that the server refuses the data.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    pub(super) fn set_refused(&self, is_refused: bool) {
        self.refused.store(is_refused, Ordering::Relaxed);
    }

    pub(crate) fn stream(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

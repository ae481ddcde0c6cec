//! One open file: its credentials and flags, and how it has been read so far.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_cache::{CachedFile, InUse};
use larder_class::Class;
use larder_vfs::{Cred, Error, Intent, OpenFlags, Token};

use super::mode::Mode;
use crate::node::Node;
use crate::read::Stream;

/// The intent at the server of a file that is opened with these flags.
pub(super) fn intent(flags: &OpenFlags) -> Intent {
    Intent { read: flags.read, write: flags.write, ..Intent::LOOK }
}

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) node: Arc<Node>,
    pub(crate) cred: Cred,
    pub(crate) flags: OpenFlags,
    /// While the file is open, its data is not culled, and its node stays in memory.
    _file: InUse,
    pub(crate) mode: Mode,
    /// How durable bytes written through it are to be.
    class: Mutex<Arc<Class>>,
    stream: Mutex<Stream>,
    /// A descriptor of it was closed: the last one, unless it was duplicated or inherited.
    flushed: AtomicBool,
    /// A close or fsync reported that the server refuses the data.
    refused: AtomicBool,
    /// A failure of a delayed write that was reported to another open file, and not to this one
    /// yet.
    owed: Mutex<Option<Error>>,
    /// The server's open, if it knows opens and this was opened there.
    token: Mutex<Option<Token>>,
}

impl OpenFile {
    /// An open file from which nothing was read yet.
    pub(crate) fn new(
        node: Arc<Node>,
        file: Arc<CachedFile>,
        cred: Cred,
        flags: OpenFlags,
        mode: Mode,
        class: Arc<Class>,
    ) -> OpenFile {
        debug_assert!(
            !mode.passes_through() || (mode == Mode::Bypass) == flags.write,
            "the kernel writes a local file only through an open for writing"
        );
        let (stream, token, class) = (Mutex::default(), Mutex::default(), Mutex::new(class));
        let owed = Mutex::default();
        let [flushed, refused] = Default::default();
        let _file = file.hold();
        OpenFile { node, cred, flags, _file, mode, class, stream, flushed, refused, owed, token }
    }

    /// How durable bytes written through it are to be.
    pub(crate) fn class(&self) -> Arc<Class> {
        self.class.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets another class. Returns the previous one.
    pub(crate) fn set_class(&self, class: Arc<Class>) -> Arc<Class> {
        std::mem::replace(&mut *self.class.lock().unwrap_or_else(PoisonError::into_inner), class)
    }

    /// Whether a write through it is to be on the server's disk when it is answered.
    pub(crate) fn is_synchronous(&self) -> bool {
        self.flags.sync
            || self.class.lock().unwrap_or_else(PoisonError::into_inner).is_synchronous()
    }

    /// The server's open.
    pub(super) fn token(&self) -> Option<Token> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets another token. Returns the previous one.
    pub(super) fn replace_token(&self, token: Option<Token>) -> Option<Token> {
        std::mem::replace(&mut *self.token.lock().unwrap_or_else(PoisonError::into_inner), token)
    }

    /// The intent with which it is opened at the server.
    pub(super) fn intent(&self) -> Intent {
        intent(&self.flags)
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

    /// Its next fsync or close is to report this.
    pub(crate) fn owe(&self, error: Error) {
        *self.owed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// The failure that its fsync or close reports now.
    pub(crate) fn take_owed(&self) -> Option<Error> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn stream(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

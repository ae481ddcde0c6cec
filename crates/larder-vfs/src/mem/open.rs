//! Opens of the model: counted, and without any other effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::Handle;

/// An open of one connection.
pub(super) struct Open {
    /// Those of the connection.
    count: Arc<AtomicUsize>,
    file: Handle,
    closed: AtomicBool,
}

impl Open {
    /// Counts the open.
    pub(super) fn new(count: &Arc<AtomicUsize>, file: &Handle) -> Open {
        count.fetch_add(1, Ordering::SeqCst);
        Open { count: Arc::clone(count), file: file.clone(), closed: AtomicBool::default() }
    }

    /// Whether it is an open of this file, and not closed.
    pub(super) fn is_of(&self, file: &Handle) -> bool {
        self.file == *file && !self.closed.load(Ordering::SeqCst)
    }

    /// Uncounts the open, once.
    pub(super) fn close(&self) {
        if !self.closed.swap(true, Ordering::SeqCst) {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.close();
    }
}

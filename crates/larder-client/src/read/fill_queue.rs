//! What idle fill-in remembers: files that were closed and may lack something, and when the link
//! was last used.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use larder_io::Monotonic;
use larder_vfs::Cred;

use crate::node::Node;

/// Files remembered; the oldest is forgotten.
const FILES_MAX: usize = 256;

/// Files that may be worth completing, and when the link was last used.
#[derive(Default)]
pub(crate) struct FillQueue {
    files: Mutex<VecDeque<(Weak<Node>, Cred)>>,
    last_use_ns: AtomicU64,
    filled_bytes: AtomicU64,
}

/// What `larder status` shows of idle fill-in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// Files up to this size are completed; `None` if none are.
    pub bytes_max: Option<u64>,
    /// Files that lack something.
    pub waiting: u64,
    /// Bytes that were fetched so.
    pub filled_bytes: u64,
}

impl FillQueue {
    /// Remembers a file that was closed. Walks over all that are remembered.
    pub(super) fn offer(&self, node: &Arc<Node>, cred: &Cred) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|(held, _)| held.upgrade().is_some_and(|held| held.ino != node.ino));
        if files.len() == FILES_MAX {
            files.pop_front();
        }
        files.push_back((Arc::downgrade(node), cred.clone()));
    }

    /// An application waits for the server.
    pub(super) fn link_used(&self, now: Monotonic) {
        self.last_use_ns.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// When one did so last.
    pub(super) fn last_use(&self) -> Monotonic {
        Monotonic::from_nanos(self.last_use_ns.load(Ordering::Relaxed))
    }

    /// So many bytes were fetched.
    pub(super) fn filled(&self, bytes: u64) {
        self.filled_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// How many were fetched so far.
    pub(super) fn filled_bytes(&self) -> u64 {
        self.filled_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn candidates(&self) -> Vec<(Arc<Node>, Cred)> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.iter().filter_map(|(node, cred)| Some((node.upgrade()?, cred.clone()))).collect()
    }
}

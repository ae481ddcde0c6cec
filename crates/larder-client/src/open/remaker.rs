//! The interface of the service that makes lost files again, and what is known of the files that
//! were made.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};

use larder_vfs::Ino;

/// Makes lost files again.
pub trait Remaker: Send + Sync {
    /// Whether a process may wait for that: a process that makes files must not.
    fn serves(&self, pid: u32) -> bool;

    /// Makes the file at a path below the mountpoint again. Returns whether another file is there
    /// now.
    fn remake(&self, path: PathBuf) -> Pin<Box<dyn Future<Output = bool> + Send + '_>>;
}

/// Most files for which it is known what was made in their place.
const REPLACED_MAX: usize = 1000;

/// Lost files that may still be open, and what was made in their place.
#[derive(Default)]
pub(crate) struct Replaced(Mutex<BTreeMap<Ino, Ino>>);

impl Replaced {
    pub(super) fn by(&self, lost: Ino) -> Option<Ino> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&lost).copied()
    }

    pub(super) fn insert(&self, lost: Ino, by: Ino) {
        let mut replaced = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        replaced.insert(lost, by);
        if replaced.len() > REPLACED_MAX {
            replaced.pop_first();
        }
    }
}

//! Short local files that nobody needs any more, until they are removed.
//!
//! To remove a file costs the local disk about what a fast link takes to remove one at the server,
//! and the caller whose file was removed there would wait for both. So short local files wait for
//! the next checkpoint, which removes all of them.
//!
//! A local file that waits belongs to no state, and its number is not given again: it is an orphan,
//! which the sweep removes if the process dies first (see `maintain.rs`).

use std::mem;
use std::sync::Mutex;

use crate::{FileNo, lock};

/// No more local files wait, so that they occupy little of the disk.
const WAITING_MAX: usize = 4096;
/// When this share of them waits, a checkpoint is requested.
const FULL_SHARE: usize = 2;

/// Numbers of the files, and of their local files.
#[derive(Debug, Default)]
pub(crate) struct Removals(Mutex<Vec<(FileNo, u64)>>);

impl Removals {
    /// Lets a local file wait; `false` if as many wait as may. Also, whether a checkpoint should
    /// come soon.
    pub(crate) fn put(&self, no: FileNo, serial: u64) -> (bool, bool) {
        let mut waiting = lock(&self.0);
        let has_room = waiting.len() < WAITING_MAX;
        if has_room {
            debug_assert!(!waiting.contains(&(no, serial)), "a local file is given up once");
            waiting.push((no, serial));
        }
        (has_room, waiting.len() > WAITING_MAX / FULL_SHARE)
    }

    /// Takes all that wait.
    pub(crate) fn take(&self) -> Vec<(FileNo, u64)> {
        mem::take(&mut *lock(&self.0))
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        lock(&self.0).len()
    }
}

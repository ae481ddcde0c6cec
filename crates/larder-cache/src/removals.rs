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

use crate::fill::SHORT_BYTES_MAX;
use crate::memory::is_in_memory;
use crate::pool::data_path;
use crate::store::Store;
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
    fn put(&self, no: FileNo, serial: u64) -> (bool, bool) {
        let mut waiting = lock(&self.0);
        let has_room = waiting.len() < WAITING_MAX;
        if has_room {
            waiting.push((no, serial));
        }
        (has_room, waiting.len() > WAITING_MAX / FULL_SHARE)
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        lock(&self.0).len()
    }
}

impl Store {
    /// Removes the local file of a file of `size` bytes from the disk on which it is: a short one
    /// with the next checkpoint, unless the disk's room is wanted now.
    pub(crate) fn remove_local_file(&self, no: FileNo, serial: u64, size: u64) {
        let may_wait = size <= SHORT_BYTES_MAX
            && !is_in_memory(serial)
            && !self.is_closed()
            && !self.gauge.wants_cull(&*self.disk, &*self.clock);
        if !may_wait {
            return self.remove_from_disk(no, serial);
        }
        let (waits, is_filling) = self.removals.put(no, serial);
        if is_filling {
            self.bell.ring();
        }
        if !waits {
            self.remove_from_disk(no, serial);
        }
    }

    /// Removes the local files that wait for it.
    pub(crate) fn remove_waiting(&self) {
        for (no, serial) in mem::take(&mut *lock(&self.removals.0)) {
            self.remove_from_disk(no, serial);
        }
    }

    /// Removes a local file from the disk on which it is.
    pub(crate) fn remove_from_disk(&self, no: FileNo, serial: u64) {
        self.pool.forget(no, serial);
        // If this fails the file is an orphan, which the sweep after the next unclean start
        // removes.
        let _ = self.disk_of(serial).and_then(|disk| disk.remove(&data_path(no, serial)));
    }
}

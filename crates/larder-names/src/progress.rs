//! How long a caller waits while names of others are made at the server: as long as that goes on.
//!
//! One task at a time makes changes at the server, and may have thousands of them to make. A caller
//! that waits for its turn, or whose own change comes after others that are due, does not wait for
//! a silent server: its limit starts again with each change that is made there. So a call ends in
//! vain only if for that long nothing was made.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use larder_vfs::Deadline;

/// When the server last had something that it had lacked.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<Option<Instant>>);

impl Progress {
    /// It has something more now.
    pub(crate) fn note(&self, now: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// `deadline`, counted again from then.
    pub(crate) fn extend(&self, deadline: Deadline) -> Deadline {
        let made = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        made.map_or(deadline, |when| deadline.moved(when))
    }
}

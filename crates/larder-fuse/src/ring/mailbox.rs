//! Answers that were not ready at once, on their way to the thread that may give them to the
//! kernel.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::EventfdFlags;

use crate::output::Output;

/// Answers with the number of their entry, and a descriptor that becomes readable when there are
/// any.
pub(super) struct Mailbox {
    answers: Mutex<Vec<(usize, Output)>>,
    bell: OwnedFd,
    /// The mount is gone: no caller waits for answers.
    closed: AtomicBool,
}

impl Mailbox {
    /// An empty mailbox.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub(super) fn new() -> io::Result<Mailbox> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Mailbox { answers: Mutex::default(), bell, closed: AtomicBool::new(false) })
    }

    /// Puts an answer in.
    pub(super) fn put(&self, entry: usize, output: Output) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.push((entry, output));
        // Rung once for all that are taken together.
        if answers.len() == 1 {
            self.ring();
        }
    }

    /// Announces that the mount is gone.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.ring();
    }

    /// Whether it is.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn ring(&self) {
        let rung = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        debug_assert_eq!(rung, Ok(8));
    }

    /// Takes all of them out.
    pub(super) fn take(&self) -> Vec<(usize, Output)> {
        std::mem::take(&mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// To be read (8 bytes) for the next ring.
    pub(super) fn bell(&self) -> RawFd {
        self.bell.as_raw_fd()
    }
}

//! Moves of bytes from memory disks, step by step.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use larder_io::Clock;
use larder_wire::meta::words::FileId;
use tokio::sync::oneshot;

use super::Rig;
use crate::change::Reply;
use crate::committer::{Destaged, Event};

impl Rig {
    /// What is due in memory by now begins to be moved.
    pub(crate) fn begin_moves(&mut self) {
        let (waiter, _done) = oneshot::channel();
        self.event(Event::Due(waiter));
    }

    /// The disks copy what is moved. The server does not know that yet. Answers of how many files.
    pub(crate) fn copy_moves(&mut self) -> usize {
        let all = std::mem::take(&mut *self.copying.lock().unwrap());
        let count = all.len();
        for (file, mut moved) in all {
            let mut context = Context::from_waker(Waker::noop());
            let Poll::Ready(failed) = moved.as_mut().poll(&mut context) else {
                panic!("these disks copy at once")
            };
            self.copied.push(Event::Moved(file, failed));
        }
        count
    }

    /// The server learns that it was copied.
    pub(crate) fn end_moves(&mut self) {
        for event in std::mem::take(&mut self.copied) {
            self.event(event);
        }
    }

    /// A client asks for a file's bytes to leave the memory disks. Returns the reply to come.
    pub(crate) fn destage(&mut self, file: FileId, due_ms: u32) -> oneshot::Receiver<Reply> {
        let (waiter, reply) = oneshot::channel();
        self.event(Event::Destage(Destaged { file, due_ms, waiter }));
        reply
    }

    /// How long until something is due.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        let due = *self.committer.first_due().borrow();
        due.map(|due| due.saturating_duration_since(self.clock.instant()))
    }
}

//! Whose turn it is at the committer.
//!
//! A thread of its own takes the events in the order in which they came, and commits what they
//! write. A call that most likely writes nothing
//! ([`Change::is_brief`](crate::change::Change::is_brief)) is carried out by the task that read it
//! instead, if nobody else has the turn or waits for it: to hand it to the thread and its reply
//! back would cost more than the call. If it writes all the same, the thread commits that, since a
//! commit waits for a disk.
//!
//! Invariant: what was carried out here and is not committed is the beginning of the thread's next
//! group ([`Committer::group`]), and the thread knows that there is one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::{io, thread};

use tokio::sync::mpsc;

use crate::committer::{Called, Committer, Event};

/// The committer, for one at a time.
pub(crate) struct Turn {
    committer: Mutex<Committer>,
    /// The thread has an event, and waits for its turn: no task goes first.
    is_wanted: AtomicBool,
    /// Whether a view of the store never waits for another machine, so that a task may take one.
    is_local: bool,
}

impl Turn {
    pub(crate) fn new(committer: Committer) -> Turn {
        let is_local = committer.has_local_store();
        Turn { committer: Mutex::new(committer), is_wanted: AtomicBool::new(false), is_local }
    }

    /// Starts the committer's thread. It ends when nobody can send events any more.
    pub(crate) fn start(self: &Arc<Turn>, events: mpsc::Receiver<Event>) -> io::Result<()> {
        let turn = Arc::clone(self);
        let thread = thread::Builder::new().name("larder-meta".into());
        thread.spawn(move || turn.run(events)).map(drop)
    }

    fn run(&self, mut events: mpsc::Receiver<Event>) {
        while let Some(first) = events.blocking_recv() {
            self.is_wanted.store(true, Ordering::Relaxed);
            // After a panic nothing is carried out any more.
            let Ok(mut committer) = self.committer.lock() else { return };
            self.is_wanted.store(false, Ordering::Relaxed);
            committer.group(first, &mut || events.try_recv().ok());
        }
    }

    /// Carries a call out, if it is brief and has its turn now; otherwise returns it, for the
    /// thread. Its answer may be made here, or by the thread. Waits for nobody, but may read the
    /// store's disk.
    pub(crate) fn at_once(
        &self,
        called: Box<Called>,
        queue: &mpsc::Sender<Event>,
    ) -> Result<(), Box<Called>> {
        let nothing_waits = queue.capacity() == queue.max_capacity();
        let is_idle = nothing_waits && !self.is_wanted.load(Ordering::Relaxed);
        if !self.is_local || !is_idle || !called.change.is_brief() {
            return Err(called);
        }
        let Ok(mut committer) = self.committer.try_lock() else { return Err(called) };
        let is_begun = committer.carry_out_at_once(*called);
        // A thread that has no room for the event has others, and comes by. If it is gone, nobody
        // is answered.
        if is_begun && queue.try_send(Event::Begun).is_err() && queue.is_closed() {
            committer.drop_begun();
        }
        Ok(())
    }
}

//! Waits of the committer, which end when a test lets time pass.

use std::time::{Duration, Instant};

use larder_io::Clock;

use super::Rig;
use crate::committer::Event;

impl Rig {
    /// The disks carry out all requests, and time passes until no wait is left.
    pub(crate) fn acknowledge_all(&mut self) {
        while self.acknowledge() || self.wake(None) {}
    }

    /// The disks carry out all requests, in no time.
    pub(crate) fn acknowledge_at_once(&mut self) {
        while self.acknowledge() {}
    }

    /// Some time passes, too little for sessions to be looked at.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.clock.advance(time);
        while self.wake(Some(self.clock.instant())) {}
    }

    /// The wait ends that is over first, if that is by then. `false` if there is none.
    pub(super) fn wake(&mut self, until: Option<Instant>) -> bool {
        let first = self.waits.lock().unwrap().first().copied();
        let Some(first) = first.filter(|(at, _)| until.is_none_or(|until| *at <= until)) else {
            return false;
        };
        self.waits.lock().unwrap().remove(&first);
        self.committer.group(Event::Wake(first.1), &mut || None);
        true
    }
}

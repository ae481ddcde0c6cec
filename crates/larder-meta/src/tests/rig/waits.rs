//! Waits of the committer, which end when a test lets time pass.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use larder_io::{Clock, SimClock};

use super::Rig;
use crate::committer::{AwaitTime, Event, Wake};

/// Those that have not ended, in the order in which they do.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits(Arc<Mutex<BTreeSet<(Instant, Wake)>>>);

impl Waits {
    pub(super) fn begin(&self, clock: &Arc<SimClock>) -> AwaitTime {
        let (waits, clock) = (Arc::clone(&self.0), Arc::clone(clock));
        Box::new(move |time, wake| {
            waits.lock().unwrap().insert((clock.instant() + time, wake));
        })
    }

    /// The one that is over first, if that is by then.
    fn end_first(&self, until: Option<Instant>) -> Option<Wake> {
        let mut waits = self.0.lock().unwrap();
        let first = waits.first().filter(|(at, _)| until.is_none_or(|until| *at <= until)).copied();
        first.filter(|first| waits.remove(first)).map(|(_, wake)| wake)
    }
}

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
    fn wake(&mut self, until: Option<Instant>) -> bool {
        let Some(wake) = self.waits.end_first(until) else { return false };
        self.committer.group(Event::Wake(wake), &mut || None);
        true
    }
}

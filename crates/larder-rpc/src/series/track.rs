//! Counters for a connection whose engine keeps none itself, for example a library's.
//!
//! Invariants: a call is in flight from its offer until it is answered, or its [`InFlight`] is
//! dropped; recorders are notified before each change of a count.

use super::{Moment, RecordError, Recorded, Recorders, Recording};
use larder_io::Clock;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The counts of one connection, and of those that it replaced.
#[derive(Debug)]
pub struct Track {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    now: Moment,
    recorders: Recorders,
}

/// Counts of a [`Track`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracked {
    /// Calls that were given to the connection.
    pub offered: u64,
    /// Calls that were answered.
    pub completed: u64,
    /// Waits for a reply that ran out.
    pub timeouts: u64,
    /// Calls that wait for a reply now.
    pub in_flight: u32,
    /// Calls that may be in flight, as far as the client knows.
    pub window: u32,
}

impl Track {
    /// The counts of a connection on which nothing has happened yet.
    pub fn new(clock: Arc<dyn Clock>) -> Track {
        Track { clock, state: Mutex::default() }
    }

    /// This many calls are given to the connection, which has room for `room` more calls in flight,
    /// these included.
    pub fn offer(&self, calls: u32, room: u32) -> InFlight<'_> {
        self.change(|now| {
            now.totals.offered += u64::from(calls);
            now.window = now.in_flight.saturating_add(room.max(calls));
            now.in_flight += calls;
        });
        InFlight { track: self, calls }
    }

    /// The counts so far.
    pub fn counts(&self) -> Tracked {
        let Moment { totals, in_flight, window, .. } = self.lock().now;
        Tracked {
            offered: totals.offered,
            completed: totals.completed,
            timeouts: totals.timeouts,
            in_flight,
            window,
        }
    }

    /// Starts a recording of what happens on these connections, in slices of `width`, until
    /// `is_over`.
    ///
    /// # Errors
    /// [`RecordError`]
    pub fn record(
        tracks: Vec<Arc<Track>>,
        clock: Arc<dyn Clock>,
        width: Duration,
        is_over: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<Recording, RecordError> {
        Recording::begin(Arc::new(Tracks { tracks, clock, is_over: Box::new(is_over) }), width)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Moment)) {
        let mut state = self.lock();
        let State { now, recorders } = &mut *state;
        if !recorders.is_empty() {
            recorders.note(self.clock.instant(), now);
        }
        change(now);
    }
}

/// Calls that wait for their replies. Those that are not reported as answered before this is
/// dropped have failed.
#[derive(Debug)]
#[must_use = "dropping it ends the calls"]
pub struct InFlight<'a> {
    track: &'a Track,
    calls: u32,
}

impl InFlight<'_> {
    /// One of the calls was answered.
    pub fn answered(&mut self) {
        self.end(|now| now.totals.completed += 1);
    }

    /// The wait for one of the replies timed out.
    pub fn timed_out(&mut self) {
        self.end(|now| now.totals.timeouts += 1);
    }

    fn end(&mut self, count: impl FnOnce(&mut Moment)) {
        debug_assert!(self.calls > 0, "a call ends once");
        self.calls -= 1;
        self.track.change(|now| {
            count(now);
            assert!(now.in_flight > 0, "a call that ends was in flight");
            now.in_flight -= 1;
        });
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.calls > 0 {
            self.track.change(|now| {
                debug_assert!(now.in_flight >= self.calls, "calls that fail were in flight");
                now.in_flight -= self.calls;
            });
        }
    }
}

/// Tracks as a source of recordings.
struct Tracks {
    tracks: Vec<Arc<Track>>,
    clock: Arc<dyn Clock>,
    is_over: Box<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for Tracks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracks").field("tracks", &self.tracks).finish_non_exhaustive()
    }
}

impl Recorded for Tracks {
    fn each(&self, look: &mut dyn FnMut(&mut Recorders, &Moment)) {
        for track in &self.tracks {
            let mut state = track.lock();
            let now = state.now;
            look(&mut state.recorders, &now);
        }
    }

    fn now(&self) -> Instant {
        self.clock.instant()
    }

    fn is_over(&self) -> bool {
        (self.is_over)()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::Slice;
    use larder_io::SimClock;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    #[test]
    fn what_a_library_does_is_counted_slice_by_slice() {
        let sim = Arc::new(SimClock::new());
        let clock = || Arc::clone(&sim) as Arc<dyn Clock>;
        let track = Arc::new(Track::new(clock()));
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let ms = Duration::from_millis(1);
        let tracks = vec![Arc::clone(&track)];
        let recording = Track::record(tracks, clock(), ms, move || is_over.load(SeqCst)).unwrap();

        let mut chain = track.offer(3, 10);
        sim.advance(2 * ms);
        chain.answered();
        chain.timed_out();
        let one = track.offer(1, 7);
        sim.advance(ms);
        drop(chain);
        drop(one);
        let counts = Tracked { offered: 4, completed: 1, timeouts: 1, in_flight: 0, window: 8 };
        assert_eq!(track.counts(), counts);
        assert!(!recording.over());
        over.store(true, SeqCst);
        assert!(recording.over());
        let first = Slice { offered: 3, in_flight: 3, window: 10, ..Slice::default() };
        let second = Slice {
            number: 2,
            offered: 1,
            completed: 1,
            timeouts: 1,
            in_flight: 2,
            window: 8,
            ..Slice::default()
        };
        let third = Slice { number: 3, window: 8, ..Slice::default() };
        assert_eq!(recording.finish().connections, [[first, second, third]]);
    }
}

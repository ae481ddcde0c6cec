//! What each connection did, slice by slice of time.
//!
//! A [`Recording`] divides the time since its beginning into slices of one width and reports for
//! each: calls offered and completed in it, retransmissions and timeouts, and how many calls were
//! in flight and in the backlog at its end, under which window.
//!
//! Nothing samples. A [`Recorder`] is part of the state of a connection, under its lock, and is
//! notified of every change before it happens ([`Recorder::note`]). If a slice is over by then, the
//! state is still that at the slice's end, and is stored with the totals. So an event counts in the
//! slice in which it happened, however late the reader comes; a slice in which nothing happens
//! costs nothing; and a call costs two comparisons of times that it knows anyway.
//!
//! Invariants:
//! - No event is lost. Totals since the connection's start are stored: if the reader is too slow
//!   and slices are dropped, the next one includes their events, and says how many slices there
//!   were.
//! - Memory is bounded: [`KEPT_MAX`] slices for each connection, [`RECORDINGS_MAX`] recordings.

mod track;

pub use track::{InFlight, Track, Tracked};

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Shortest and longest slice.
pub const SLICE_WIDTHS: std::ops::RangeInclusive<Duration> =
    Duration::from_micros(100)..=Duration::from_secs(1);
/// Most recordings of a client at a time.
pub const RECORDINGS_MAX: usize = 8;
/// Slices of a connection that are stored until they are taken; beyond that the oldest are dropped.
/// With the shortest slices these are 0.8 seconds, in half a megabyte.
const KEPT_MAX: usize = 8192;

/// Totals of a connection since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) offered: u64,
    pub(crate) completed: u64,
    pub(crate) retransmits: u64,
    pub(crate) timeouts: u64,
}

/// A connection at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) totals: Totals,
    pub(crate) in_flight: u32,
    pub(crate) window: u32,
    pub(crate) backlog: u32,
}

/// A slice that has ended, and the state of the connection at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Closed {
    number: u64,
    at_end: Moment,
}

/// How time is divided into slices.
#[derive(Clone, Copy, Debug)]
struct Division {
    begin: Instant,
    width: Duration,
}

impl Division {
    /// Number of the slice that contains `at`; 0 for times before the recording began.
    fn number(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.begin).as_nanos();
        u64::try_from(since / self.width.as_nanos()).unwrap_or(u64::MAX)
    }

    /// When a slice ends.
    fn end(&self, number: u64) -> Instant {
        let since = Duration::from_nanos_u128(self.width.as_nanos() * (u128::from(number) + 1));
        self.begin + since
    }
}

/// The slices of one connection for one recording.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// The number of the recording.
    recording: u64,
    division: Division,
    /// The slice of the last change, if it is not closed yet.
    open: Option<u64>,
    /// When the open slice ends, or the last closed one ended.
    open_end: Instant,
    /// Slices before this one are taken, or had no change.
    until: u64,
    closed: VecDeque<Closed>,
    /// Some closed slices were dropped.
    overrun: bool,
}

impl Recorder {
    /// The first slice starts open, so that there always is a slice.
    fn new(recording: u64, division: Division) -> Recorder {
        Recorder {
            recording,
            division,
            open: Some(0),
            open_end: division.end(0),
            until: 0,
            closed: VecDeque::new(),
            overrun: false,
        }
    }

    /// Something changes at `now`; until then the state was `before`. If `now` is earlier than the
    /// time of a previous note, it counts as that time.
    pub(crate) fn note(&mut self, now: Instant, before: &Moment) {
        if self.open.is_some() && now < self.open_end {
            return;
        }
        let number = self.division.number(now).max(self.until);
        self.close(number, before);
        self.open = Some(number);
        self.open_end = self.division.end(number);
    }

    /// Closes the open slice if it is before slice `number`.
    fn close(&mut self, number: u64, at_end: &Moment) {
        let Some(open) = self.open.take_if(|open| *open < number) else { return };
        if self.closed.len() == KEPT_MAX {
            self.closed.pop_front();
            self.overrun = true;
        }
        debug_assert!(self.closed.back().is_none_or(|last| last.number < open), "in order");
        self.closed.push_back(Closed { number: open, at_end: *at_end });
    }

    /// Takes all closed slices and all before slice `until`; the state of the connection is `now`.
    fn take(&mut self, until: u64, now: &Moment) -> Taken {
        self.close(until, now);
        self.until = self.until.max(until);
        let closed = std::mem::take(&mut self.closed);
        Taken { closed, overrun: std::mem::take(&mut self.overrun) }
    }

    /// Takes all slices, including the one that has not ended yet.
    fn finish(mut self, now: &Moment) -> Taken {
        self.close(u64::MAX, now);
        Taken { closed: self.closed, overrun: self.overrun }
    }
}

/// The stored slices of a recorder.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    closed: VecDeque<Closed>,
    overrun: bool,
}

/// The recorders of a connection; usually none.
#[derive(Debug, Default)]
pub(crate) struct Recorders(Vec<Recorder>);

impl Recorders {
    /// Adds a recorder, unless there are too many.
    pub(crate) fn begin(&mut self, recorder: Recorder) -> bool {
        let room = self.0.len() < RECORDINGS_MAX;
        self.0.extend(room.then_some(recorder));
        room
    }

    /// Removes the recorder of a recording, if there is one, and takes its remaining slices.
    pub(crate) fn end(&mut self, recording: u64, now: &Moment) -> Taken {
        let found = self.0.iter().position(|recorder| recorder.recording == recording);
        let ended = found.map(|index| self.0.swap_remove(index));
        ended.map(|recorder| recorder.finish(now)).unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// See [`Recorder::note`].
    pub(crate) fn note(&mut self, now: Instant, before: &Moment) {
        self.0.iter_mut().for_each(|recorder| recorder.note(now, before));
    }

    fn take(&mut self, recording: u64, until: u64, now: &Moment) -> Taken {
        let found = self.0.iter_mut().find(|recorder| recorder.recording == recording);
        found.map(|recorder| recorder.take(until, now)).unwrap_or_default()
    }
}

/// The activity of one connection in one slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Its number: it begins `number` widths after the recording began.
    pub number: u64,
    /// Calls that were given to the connection.
    pub offered: u64,
    /// Calls that were answered.
    pub completed: u64,
    /// Transmissions of calls beyond the first.
    pub retransmits: u64,
    /// Timeouts of waits for a reply.
    pub timeouts: u64,
    /// Calls that wait for a reply, at the end of the slice.
    pub in_flight: u32,
    /// Calls that may be in flight, at the end of the slice.
    pub window: u32,
    /// Calls that wait for the window, at the end of the slice.
    pub backlog: u32,
    /// Slices right before this one that were dropped, because they were not read in time. This
    /// one includes their events.
    pub dropped: u64,
}

/// Slices that have ended, of all connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    /// All slices before this one have been reported, now or earlier.
    pub until: u64,
    /// By connection, in order of time. A slice without events is left out: the state at its end
    /// is that at its beginning.
    pub connections: Vec<Vec<Slice>>,
}

/// Why a recording cannot start.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RecordError {
    /// The width of a slice is out of [`SLICE_WIDTHS`].
    #[error("a slice lasts from 100 us to 1 s")]
    Width,
    /// There are already [`RECORDINGS_MAX`].
    #[error("there are {RECORDINGS_MAX} recordings already")]
    TooMany,
}

/// What has been reported of a connection so far.
#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    /// The number of the next slice.
    next: u64,
    totals: Totals,
}

impl Reported {
    /// The new slices, as differences from what was reported before.
    fn tell(&mut self, taken: Taken) -> Vec<Slice> {
        let mut overrun = taken.overrun;
        let tell = |Closed { number, at_end }| {
            let (was, is) = (self.totals, at_end.totals);
            let dropped = if std::mem::take(&mut overrun) { number - self.next } else { 0 };
            *self = Reported { next: number + 1, totals: is };
            Slice {
                number,
                offered: is.offered - was.offered,
                completed: is.completed - was.completed,
                retransmits: is.retransmits - was.retransmits,
                timeouts: is.timeouts - was.timeouts,
                in_flight: at_end.in_flight,
                window: at_end.window,
                backlog: at_end.backlog,
                dropped,
            }
        };
        taken.closed.into_iter().map(tell).collect()
    }
}

/// Connections that can be recorded.
pub(crate) trait Recorded: Debug + Send + Sync {
    /// Passes the recorders of each connection to `look`, in order, under its lock, with the
    /// current state.
    fn each(&self, look: &mut dyn FnMut(&mut Recorders, &Moment));

    /// The clock of the events.
    fn now(&self) -> Instant;

    /// Whether no more events can come.
    fn is_over(&self) -> bool;
}

/// A recording of all connections of a client, which stays alive for it. It ends when it is
/// dropped.
#[derive(Debug)]
pub struct Recording {
    source: Arc<dyn Recorded>,
    number: u64,
    division: Division,
    reported: Vec<Reported>,
}

/// How many recordings were started.
static RECORDINGS: AtomicU64 = AtomicU64::new(0);

impl Recording {
    /// Starts a recording of what each connection of `source` does, in slices of `width`.
    ///
    /// # Errors
    /// [`RecordError`]
    pub(crate) fn begin(
        source: Arc<dyn Recorded>,
        width: Duration,
    ) -> Result<Recording, RecordError> {
        if !SLICE_WIDTHS.contains(&width) {
            return Err(RecordError::Width);
        }
        let division = Division { begin: source.now(), width };
        let number = RECORDINGS.fetch_add(1, Relaxed);
        let mut recording = Recording { source, number, division, reported: Vec::new() };
        let mut has_room = true;
        recording.source.each(&mut |recorders, now| {
            has_room &= recorders.begin(Recorder::new(number, division));
            recording.reported.push(Reported { next: 0, totals: now.totals });
        });
        has_room.then_some(recording).ok_or(RecordError::TooMany)
    }

    /// Takes the slices that have ended and were not taken yet. Does not wait.
    pub fn take(&mut self) -> Series {
        let (recording, until) = (self.number, self.division.number(self.source.now()));
        self.tell(until, |recorders, now| recorders.take(recording, until, now))
    }

    /// Takes the remaining slices, including the one that has not ended yet, and ends the
    /// recording.
    pub fn finish(mut self) -> Series {
        let (recording, until) = (self.number, self.division.number(self.source.now()) + 1);
        self.tell(until, |recorders, now| recorders.end(recording, now))
    }

    /// Whether the client was shut down, so that no more events can come.
    pub fn over(&self) -> bool {
        self.source.is_over()
    }

    /// Takes from the recorder of each connection, under its lock.
    fn tell(&mut self, until: u64, take: impl Fn(&mut Recorders, &Moment) -> Taken) -> Series {
        let (mut reported, mut connections) = (self.reported.iter_mut(), Vec::new());
        self.source.each(&mut |recorders, now| {
            connections.extend(reported.next().map(|reported| reported.tell(take(recorders, now))));
        });
        Series { until, connections }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.source.each(&mut |recorders, now| drop(recorders.end(self.number, now)));
    }
}

#[cfg(test)]
mod tests;

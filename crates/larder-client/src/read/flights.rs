//! Flights: ranges of one node that are being fetched from the server, or have just arrived.
//!
//! Readers of the same range of the same version share a flight. It is dropped when the cache has
//! its bytes, or, if the cache declines them, when its reader has got them.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use larder_vfs::{Error, Result};
use tokio::sync::watch;

use crate::journal::Version;

/// The flights of one node.
#[derive(Default)]
pub(crate) struct Flights(Mutex<Vec<Arc<Flight>>>);

/// A range in flight from the server, or just arrived.
pub(crate) struct Flight {
    range: Range<u64>,
    version: Version,
    landed: watch::Receiver<Option<Result<Bytes, Lost>>>,
    /// One read takes all that is ever taken; otherwise the rest is kept for the reads that follow.
    once: bool,
    /// The cache will not keep the bytes.
    declined: AtomicBool,
    /// The reader for which they were fetched has had them.
    consumed: AtomicBool,
}

/// What a flight brought, once it has arrived.
pub(super) type Landed = watch::Sender<Option<Result<Bytes, Lost>>>;

impl Flight {
    /// Registers a range that is being requested, and returns the means to announce its arrival.
    /// `once`: bytes that its reader does not take are not kept. `is_kept`: the cache may want the
    /// bytes.
    pub(super) fn begin(
        range: Range<u64>,
        version: Version,
        once: bool,
        is_kept: bool,
    ) -> (Landed, Arc<Flight>) {
        debug_assert!(!range.is_empty(), "a request asks for some bytes");
        let (land, landed) = watch::channel(None);
        let (declined, consumed) = (AtomicBool::new(!is_kept), AtomicBool::new(false));
        (land, Arc::new(Flight { range, version, landed, once, declined, consumed }))
    }

    pub(super) fn range(&self) -> &Range<u64> {
        &self.range
    }

    pub(super) fn version(&self) -> &Version {
        &self.version
    }

    /// Whether it brings the byte at `offset` of this version.
    pub(super) fn brings(&self, version: &Version, offset: u64) -> bool {
        self.version.same(version) && self.range.contains(&offset)
    }

    /// Whether it brings a byte of this range of this version.
    pub(super) fn meets(&self, version: &Version, range: &Range<u64>) -> bool {
        let is_apart = range.end <= self.range.start || self.range.end <= range.start;
        self.version.same(version) && !is_apart
    }

    /// Its bytes, when it has landed.
    ///
    /// # Errors
    /// Why there are none.
    pub(super) async fn bytes(&self) -> Result<Bytes, Lost> {
        let mut landed = self.landed.clone();
        let outcome = landed.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        outcome.ok().flatten().unwrap_or(Err(Lost::Failed(Error::Io)))
    }

    /// A reader has had its bytes up to `end`. Returns whether the flight is no longer needed.
    pub(super) fn consume(&self, end: u64) -> bool {
        if !self.once && end < self.range.end {
            return false;
        }
        self.consumed.store(true, Ordering::SeqCst);
        self.is_over()
    }

    /// Whether a reader will want its bytes, and has not had them yet.
    pub(super) fn is_ahead(&self) -> bool {
        !self.once && !self.consumed.load(Ordering::SeqCst)
    }

    /// It has arrived; the cache has its bytes or has declined them; the file is open or not.
    /// Returns whether the flight can be forgotten.
    pub(super) fn stored(&self, is_kept: bool, is_open: impl FnOnce() -> bool) -> bool {
        self.declined.store(!is_kept, Ordering::SeqCst);
        // The rest of a flight that is not kept is for processes that have the file open.
        is_kept || self.is_over() || !self.once && !is_open()
    }

    /// Whether the flight is no longer needed: read, and not to be kept.
    fn is_over(&self) -> bool {
        self.declined.load(Ordering::SeqCst) && self.consumed.load(Ordering::SeqCst)
    }
}

/// Why a flight brought nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The server has another version now.
    Changed,
    /// The request failed.
    Failed(Error),
}

impl Flights {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Arc<Flight>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file is no longer open: forgets what the cache does not keep. What is on its way to the
    /// cache stays until the cache has it, so that the next reader does not request it again.
    pub(crate) fn closed(&self) {
        self.lock().retain(|flight| !flight.declined.load(Ordering::SeqCst));
    }

    pub(super) fn remove(&self, flight: &Arc<Flight>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, flight));
    }

    /// Parts of `range` that are not `held` and for which no flight of this version exists.
    pub(super) fn missing(
        flights: &[Arc<Flight>],
        held: Vec<Range<u64>>,
        range: Range<u64>,
        version: &Version,
    ) -> Vec<Range<u64>> {
        let mut taken = held;
        let same = flights.iter().filter(|flight| flight.version.same(version));
        taken.extend(same.map(|flight| flight.range.clone()));
        taken.sort_by_key(|range| range.start);
        let mut missing = Vec::new();
        let mut at = range.start;
        for hit in taken {
            if hit.start > at {
                missing.push(at..hit.start.min(range.end));
            }
            at = at.max(hit.end);
            if at >= range.end {
                break;
            }
        }
        missing.push(at..range.end);
        missing.retain(|part| part.start < part.end);
        debug_assert!(
            missing.is_sorted_by(|a, b| a.end <= b.start)
                && missing.iter().all(|part| range.start <= part.start && part.end <= range.end),
            "parts that are missing lie within the range, and do not overlap"
        );
        missing
    }
}

#[cfg(test)]
mod tests {
    use larder_vfs::{Time, Validator};

    use super::*;

    fn version(size: u64) -> Version {
        let (mtime, ctime) = (Time::default(), Time::default());
        Version {
            validator: Validator { change: None, data_change: None, size, mtime, ctime },
            rereads: 0,
        }
    }

    fn flight(range: Range<u64>, once: bool, is_kept: bool) -> Arc<Flight> {
        Flight::begin(range, version(1), once, is_kept).1
    }

    /// The set bits of a mask, as ranges.
    fn ranges_of(mask: u32) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for at in (0..8).filter(|at| mask >> at & 1 == 1) {
            match ranges.last_mut() {
                Some(last) if last.end == at => last.end += 1,
                _ => ranges.push(at..at + 1),
            }
        }
        ranges
    }

    /// Every byte of every small case: what is missing is neither cached nor in flight, in this
    /// version.
    #[test]
    fn what_is_missing_agrees_with_a_model() {
        const END: u64 = 5;
        let mut cases = 0;
        for (held, flying, foreign) in (0..1_u32 << (3 * END))
            .map(|mask| (mask & 31, mask >> 5 & 31, mask >> 10 & 31))
            .filter(|(held, flying, _)| held & flying == 0)
        {
            let mut flights: Vec<_> =
                ranges_of(flying).into_iter().map(|range| flight(range, false, true)).collect();
            let others = ranges_of(foreign).into_iter();
            flights.extend(others.map(|range| Flight::begin(range, version(2), false, true).1));
            for start in 0..=END {
                for end in start..=END {
                    let wanted = start..end;
                    let missing =
                        Flights::missing(&flights, ranges_of(held), wanted.clone(), &version(1));
                    let is_missing =
                        |at: u64| wanted.contains(&at) && (held | flying) >> at & 1 == 0;
                    let mask =
                        (0..END).filter(|at| is_missing(*at)).fold(0, |all, at| all | 1 << at);
                    assert_eq!(missing, ranges_of(mask), "{held:b} {flying:b} {wanted:?}");
                    cases += 1;
                }
            }
        }
        println!("{cases} cases");
    }

    /// What happens to a flight after it has arrived.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// A reader takes the first half.
        Half,
        /// A reader takes the rest.
        Rest,
        /// The cache has its bytes.
        Kept,
        /// The cache declines, while the file is open or not.
        Declined { is_open: bool },
    }

    /// Over all orders of two reads and the cache's answer: a flight is forgotten when the cache
    /// has its bytes, or, if it declines, when its reader has had them or the file is not open any
    /// more. Until then it is found.
    #[test]
    fn a_flight_goes_when_nobody_needs_it() {
        let answers =
            [Step::Kept, Step::Declined { is_open: true }, Step::Declined { is_open: false }];
        for (once, answer, place) in [false, true]
            .into_iter()
            .flat_map(|once| answers.map(|answer| (once, answer)))
            .flat_map(|(once, answer)| (0..3).map(move |place| (once, answer, place)))
        {
            let mut steps = vec![Step::Half, Step::Rest];
            steps.insert(place, answer);
            let flight = flight(0..10, once, true);
            let (mut has_answer, mut is_consumed) = (false, false);
            for step in &steps {
                let is_gone = match *step {
                    Step::Half => flight.consume(5),
                    Step::Rest => flight.consume(10),
                    Step::Kept => flight.stored(true, || true),
                    Step::Declined { is_open } => flight.stored(false, || is_open),
                };
                match step {
                    Step::Half => is_consumed |= once,
                    Step::Rest => is_consumed = true,
                    Step::Kept | Step::Declined { .. } => has_answer = true,
                }
                let is_awaited = once || matches!(answer, Step::Declined { is_open: true });
                let is_needed = !matches!(answer, Step::Kept) && !is_consumed && is_awaited;
                assert_eq!(is_gone, has_answer && !is_needed, "{once} {steps:?} {step:?}");
                assert_eq!(flight.is_ahead(), !once && !is_consumed);
                if is_gone {
                    break;
                }
            }
        }
    }

    /// A close forgets what the cache does not keep, and nothing else.
    #[test]
    fn a_close_forgets_what_is_for_readers_only() {
        let flights = Flights::default();
        let (kept, plain) = (flight(0..5, false, true), flight(5..10, false, false));
        let refused = flight(10..15, false, true);
        flights.lock().extend([kept.clone(), plain, refused.clone()]);
        assert!(!refused.stored(false, || true));
        flights.closed();
        assert!(matches!(&flights.lock()[..], [left] if Arc::ptr_eq(left, &kept)));
        flights.remove(&kept);
        assert!(flights.lock().is_empty());
    }

    #[tokio::test]
    async fn waiters_for_a_flight_learn_how_it_ended() {
        let (land, flight) = Flight::begin(0..3, version(1), false, true);
        let bytes = Bytes::from_static(b"abc");
        let landing = async { land.send_replace(Some(Ok(bytes.clone()))) };
        let (first, second, _) = tokio::join!(flight.bytes(), flight.bytes(), landing);
        assert_eq!((first, second), (Ok(bytes.clone()), Ok(bytes.clone())));
        assert_eq!(flight.bytes().await, Ok(bytes), "who comes later, too");
        land.send_replace(Some(Err(Lost::Changed)));
        assert_eq!(flight.bytes().await, Err(Lost::Changed));
        let (land, flight) = Flight::begin(0..3, version(1), false, true);
        drop(land);
        assert_eq!(flight.bytes().await, Err(Lost::Failed(Error::Io)), "nobody flies any more");
        assert!(flight.brings(&version(1), 2) && !flight.brings(&version(1), 3));
        assert!(!flight.brings(&version(2), 2));
    }
}

//! Flights: ranges of one node that are being fetched from the server, or have just arrived.
//!
//! Readers of the same range of the same version share a flight. It is dropped when the cache has
//! its bytes, or, if the cache declines them, when its reader has got them.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use larder_cache::CHUNK_BYTES;
use larder_vfs::{Error, Result};
use tokio::sync::watch;

use crate::journal::Version;

/// Most bytes in a row that are requested although they are held, so that one request does for what
/// is missing on both sides of them.
const BRIDGED_MAX: u64 = 4 * CHUNK_BYTES;

/// The flights of one node.
#[derive(Default)]
pub(crate) struct Flights(Mutex<Vec<Arc<Flight>>>);

/// A range in flight from the server, or just arrived.
pub(crate) struct Flight {
    range: Range<u64>,
    version: Version,
    landed: watch::Receiver<Option<Result<Bytes, Lost>>>,
    /// One read takes all that is ever taken; otherwise the rest is kept for the reads that
    /// follow.
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
    /// `once`: bytes that its reader does not take are not kept. `is_cached`: the cache may want
    /// the bytes.
    pub(super) fn begin(
        range: Range<u64>,
        version: Version,
        once: bool,
        is_cached: bool,
    ) -> (Landed, Arc<Flight>) {
        debug_assert!(!range.is_empty(), "a request asks for some bytes");
        let (land, landed) = watch::channel(None);
        let (declined, consumed) = (AtomicBool::new(!is_cached), AtomicBool::new(false));
        (land, Arc::new(Flight { range, version, landed, once, declined, consumed }))
    }

    pub(super) fn range(&self) -> &Range<u64> {
        &self.range
    }

    pub(super) fn version(&self) -> &Version {
        &self.version
    }

    /// One read takes all that is ever taken.
    pub(super) fn is_once(&self) -> bool {
        self.once
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
    pub(super) fn stored(&self, is_cached: bool, is_open: impl FnOnce() -> bool) -> bool {
        self.declined.store(!is_cached, Ordering::SeqCst);
        // The rest of a flight that is not kept is for processes that have the file open.
        is_cached || self.is_over() || !self.once && !is_open()
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

    /// What to request of `range`, at most `request_max` bytes at a time: the parts that are not
    /// `held` and for which no flight of this version exists.
    ///
    /// What is held between two parts of one request is requested again if it is short
    /// ([`BRIDGED_MAX`]): a client that holds nothing makes one request there, too.
    pub(super) fn to_request(
        flights: &[Arc<Flight>],
        held: Vec<Range<u64>>,
        range: Range<u64>,
        version: &Version,
        request_max: u64,
    ) -> Vec<Range<u64>> {
        let same = flights.iter().filter(|flight| flight.version.same(version));
        let flying: Vec<_> = same.map(|flight| flight.range.clone()).collect();
        let mut taken = [held, flying.clone()].concat();
        taken.sort_by_key(|range| range.start);

        let mut parts = Vec::new();
        let mut at = range.start;
        for hit in taken {
            if hit.start > at {
                push(&mut parts, at..hit.start.min(range.end), &flying, request_max);
            }
            at = at.max(hit.end);
            if at >= range.end {
                break;
            }
        }
        if at < range.end {
            push(&mut parts, at..range.end, &flying, request_max);
        }
        debug_assert!(
            parts.is_sorted_by(|a, b| a.end <= b.start)
                && parts.iter().all(|part| range.start <= part.start && part.end <= range.end),
            "parts that are requested lie within the range, and do not overlap"
        );
        requests_of(parts, request_max)
    }
}

/// Adds a part, or extends the last one up to its end, if what is between them may be bridged.
fn push(parts: &mut Vec<Range<u64>>, part: Range<u64>, flying: &[Range<u64>], request_max: u64) {
    let may_bridge = |last: &Range<u64>| {
        let gap = last.end..part.start;
        let is_one_request = (last.end - 1) / request_max == part.start / request_max;
        let is_held = !flying.iter().any(|range| range.start < gap.end && gap.start < range.end);
        gap.end - gap.start <= BRIDGED_MAX && is_one_request && is_held
    };
    match parts.last_mut().filter(|last| may_bridge(last)) {
        Some(last) => last.end = part.end,
        None => parts.push(part),
    }
}

/// Cuts the parts where requests begin.
fn requests_of(parts: Vec<Range<u64>>, request_max: u64) -> Vec<Range<u64>> {
    let mut requests = Vec::with_capacity(parts.len());
    for part in parts {
        let mut at = part.start;
        while at < part.end {
            let end = part.end.min((at / request_max + 1) * request_max);
            requests.push(at..end);
            at = end;
        }
    }
    requests
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

    fn flight(range: Range<u64>, once: bool, is_cached: bool) -> Arc<Flight> {
        Flight::begin(range, version(1), once, is_cached).1
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

    /// Every chunk of every small case, for requests of every size: what is missing is requested
    /// once; nothing that is in flight is; what is held is only between two missing chunks of one
    /// request, and at most [`BRIDGED_MAX`] of it in a row.
    #[test]
    fn what_is_requested_agrees_with_a_model() {
        const END: u64 = 7;
        let in_bytes = |range: Range<u64>| range.start * CHUNK_BYTES..range.end * CHUNK_BYTES;
        let ranges_of = |mask| ranges_of(mask).into_iter().map(in_bytes);
        let mut cases = 0;
        for (held, flying) in (0..1_u32 << (2 * END))
            .map(|mask| (mask & 127, mask >> 7 & 127))
            .filter(|(held, flying)| held & flying == 0)
        {
            let mut flights: Vec<_> =
                ranges_of(flying).map(|range| flight(range, false, true)).collect();
            // Of another version, and so without effect.
            flights.extend(
                ranges_of(held).map(|range| Flight::begin(range, version(2), false, true).1),
            );
            for (start, end, request) in (0..=END)
                .flat_map(|start| (start..=END).map(move |end| (start, end)))
                .flat_map(|(start, end)| (1..=END).map(move |request| (start, end, request)))
            {
                let parts = Flights::to_request(
                    &flights,
                    ranges_of(held).collect(),
                    in_bytes(start..end),
                    &version(1),
                    request * CHUNK_BYTES,
                );
                assert_eq!(
                    parts,
                    requests_by_chunks(held, flying, start..end, request)
                        .into_iter()
                        .map(in_bytes)
                        .collect::<Vec<_>>(),
                    "{held:b} {flying:b} {start}..{end} by {request}"
                );
                cases += 1;
            }
        }
        println!("{cases} cases");
    }

    /// The same, chunk by chunk: a request goes on as long as a missing chunk comes that is not
    /// behind a flight, nor behind too much that is held, nor where the next request begins.
    fn requests_by_chunks(
        held: u32,
        flying: u32,
        wanted: Range<u64>,
        request: u64,
    ) -> Vec<Range<u64>> {
        let is_in = |mask: u32, at: u64| mask >> at & 1 == 1;
        let mut requests: Vec<Range<u64>> = Vec::new();
        for at in wanted.filter(|at| !is_in(held | flying, *at)) {
            let goes_on = requests.last().is_some_and(|last| {
                let mut gap = last.end..at;
                gap.all(|between| !is_in(flying, between))
                    && (at - last.end) * CHUNK_BYTES <= BRIDGED_MAX
                    && (last.end - 1) / request == at / request
            });
            match requests.last_mut() {
                Some(last) if goes_on => last.end = at + 1,
                _ => requests.push(at..at + 1),
            }
        }
        requests
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

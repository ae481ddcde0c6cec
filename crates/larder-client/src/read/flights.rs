//! Flights: ranges of one node that are on their way from the server, or have just landed.
//!
//! Readers of the same range of the same version share a flight. It is forgotten when the cache has
//! its bytes, or, if the cache declines, when its reader has had them.

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

/// A range on its way from the server, or just landed.
pub(crate) struct Flight {
    range: Range<u64>,
    version: Version,
    landed: watch::Receiver<Option<Result<Bytes, Lost>>>,
    /// One read takes all it will ever take; else the rest is kept for the reads that follow.
    once: bool,
    /// The cache will not keep the bytes.
    declined: AtomicBool,
    /// The reader for whom they were fetched has had them.
    consumed: AtomicBool,
}

/// What a flight brought, once it has landed.
pub(super) type Landed = watch::Sender<Option<Result<Bytes, Lost>>>;

impl Flight {
    /// A range that is being asked for, and how to say that it has landed. `once`: the rest of what
    /// its reader does not take is not kept. `is_kept`: the cache may want the bytes.
    pub(super) fn begin(
        range: Range<u64>,
        version: Version,
        once: bool,
        is_kept: bool,
    ) -> (Landed, Arc<Flight>) {
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

    /// Its bytes, when it has landed.
    ///
    /// # Errors
    /// Why there are none.
    pub(super) async fn bytes(&self) -> Result<Bytes, Lost> {
        let mut landed = self.landed.clone();
        let outcome = landed.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        outcome.ok().flatten().unwrap_or(Err(Lost::Failed(Error::Io)))
    }

    /// A reader has had its bytes up to `end`. Answers whether nobody needs it any more.
    pub(super) fn consume(&self, end: u64) -> bool {
        if !self.once && end < self.range.end {
            return false;
        }
        self.consumed.store(true, Ordering::SeqCst);
        self.is_over()
    }

    /// It has landed, and the cache has its bytes or not; somebody has the file open or not.
    /// Answers whether it can be forgotten.
    pub(super) fn stored(&self, is_kept: bool, is_open: impl FnOnce() -> bool) -> bool {
        self.declined.store(!is_kept, Ordering::SeqCst);
        // The rest of one that is not kept is for who has the file open.
        is_kept || self.is_over() || !self.once && !is_open()
    }

    /// Whether nobody needs the flight any more: read, and not to be kept.
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

    /// Nobody has the file open any more: forgets what the cache does not keep. What is on its way
    /// there stays until it has it, so that whoever reads the file next does not ask for it
    /// again.
    pub(crate) fn closed(&self) {
        self.lock().retain(|flight| !flight.declined.load(Ordering::SeqCst));
    }

    pub(super) fn remove(&self, flight: &Arc<Flight>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, flight));
    }

    /// Parts of `range` that are not `held` and for which no flight of this version is under way.
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
        missing
    }
}

//! How much is held, how much may be, and what was done: the numbers of a cache.
//!
//! Invariant: space is reserved here before it is written, so `bytes` never passes the stop mark
//! by a fill. What the kernel writes in a bypass is added afterwards.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_io::{Clock, Disk, Monotonic};

use crate::{CHUNK_BYTES, Limits, lock};

/// Free space is asked for again after this time, or after this many bytes were reserved.
const ROOM_INTERVAL: Duration = Duration::from_secs(1);
const ROOM_BYTES: u64 = 64 << 20;

#[derive(Clone, Copy, Debug, Default)]
struct Room {
    asked_at: Option<Monotonic>,
    reserved_bytes: u64,
    free_percent: u64,
    total_bytes: u64,
}

/// Counters; each stands alone, so relaxed order serves.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) declined: AtomicU64,
    pub(crate) culled: AtomicU64,
    pub(crate) bad_chunks: AtomicU64,
    pub(crate) dirty_dropped: AtomicU64,
    pub(crate) orphans_removed: AtomicU64,
}

/// Adds one to a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What is held and may be held.
#[derive(Debug)]
pub(crate) struct Gauge {
    pub(crate) limits: Limits,
    pub(crate) counters: Counters,
    bytes: AtomicU64,
    files: AtomicU64,
    /// As the index has them: the sums over its records.
    saved_bytes: AtomicU64,
    saved_files: AtomicU64,
    room: Mutex<Room>,
}

impl Gauge {
    pub(crate) fn new(limits: Limits, saved_bytes: u64, saved_files: u64) -> Gauge {
        Gauge {
            limits,
            counters: Counters::default(),
            bytes: AtomicU64::new(saved_bytes),
            files: AtomicU64::new(saved_files),
            saved_bytes: AtomicU64::new(saved_bytes),
            saved_files: AtomicU64::new(saved_files),
            room: Mutex::default(),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Takes chunks if they fit below the stop marks.
    pub(crate) fn reserve(&self, chunks: u64, disk: &dyn Disk, clock: &dyn Clock) -> bool {
        let bytes = chunks * CHUNK_BYTES;
        if bytes > 0 && self.free_percent(bytes, disk, clock) < self.limits.free_percent.stop {
            return false;
        }
        take_below(&self.bytes, bytes, self.limits.bytes.stop)
    }

    /// Takes a file if it fits below the stop mark.
    pub(crate) fn reserve_file(&self) -> bool {
        take_below(&self.files, 1, self.limits.files.stop)
    }

    /// Takes a file that is there anyway.
    pub(crate) fn take_file(&self) {
        change(&self.files, 0, 1);
    }

    /// Follows a change that happened anyway.
    pub(crate) fn change_chunks(&self, before: u64, after: u64) {
        change(&self.bytes, before * CHUNK_BYTES, after * CHUNK_BYTES);
    }

    pub(crate) fn change_bytes(&self, before: u64, after: u64) {
        change(&self.bytes, before, after);
    }

    pub(crate) fn release_file(&self) {
        change(&self.files, 1, 0);
    }

    pub(crate) fn change_saved(&self, before: (u64, u64), after: (u64, u64)) {
        change(&self.saved_bytes, before.0, after.0);
        change(&self.saved_files, before.1, after.1);
    }

    /// Bytes and files as the index has them.
    pub(crate) fn saved(&self) -> (u64, u64) {
        (self.saved_bytes.load(Ordering::Relaxed), self.saved_files.load(Ordering::Relaxed))
    }

    /// The disk said it is full: believe it until asked again.
    pub(crate) fn disk_is_full(&self, clock: &dyn Clock) {
        let mut room = lock(&self.room);
        room.free_percent = 0;
        room.reserved_bytes = 0;
        room.asked_at = Some(clock.now());
    }

    /// Whether a cull mark is passed.
    pub(crate) fn wants_cull(&self, disk: &dyn Disk, clock: &dyn Clock) -> bool {
        self.bytes() > self.limits.bytes.cull
            || self.files() > self.limits.files.cull
            || self.free_percent(0, disk, clock) < self.limits.free_percent.cull
    }

    /// Bytes and files to which culling goes down.
    pub(crate) fn cull_targets(&self, disk: &dyn Disk, clock: &dyn Clock) -> (u64, u64) {
        let free_percent = self.free_percent(0, disk, clock);
        let lacking = self.limits.free_percent.run.saturating_sub(free_percent);
        let lacking_bytes = lock(&self.room).total_bytes / 100 * lacking;
        let bytes = self.limits.bytes.run.min(self.bytes().saturating_sub(lacking_bytes));
        (bytes, self.limits.files.run)
    }

    fn free_percent(&self, reserving_bytes: u64, disk: &dyn Disk, clock: &dyn Clock) -> u64 {
        let now = clock.now();
        let mut room = lock(&self.room);
        room.reserved_bytes += reserving_bytes;
        let is_fresh = room.asked_at.is_some_and(|at| now.since(at) < ROOM_INTERVAL);
        if !is_fresh || room.reserved_bytes > ROOM_BYTES {
            // A disk that does not say how full it is will say so when it is.
            let (total, free) = match disk.space() {
                Ok(space) => (space.total_bytes, space.free_bytes),
                Err(_) => (100, 100),
            };
            let free_percent = free.saturating_mul(100) / total.max(1);
            let asked_at = Some(now);
            *room = Room { asked_at, reserved_bytes: 0, free_percent, total_bytes: total };
        }
        room.free_percent
    }
}

fn take_below(gauge: &AtomicU64, more: u64, max: u64) -> bool {
    let taken = gauge.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
        now.checked_add(more).filter(|&sum| more == 0 || sum <= max)
    });
    taken.is_ok()
}

fn change(gauge: &AtomicU64, before: u64, after: u64) {
    let changed = gauge.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
        Some((now + after).saturating_sub(before))
    });
    debug_assert!(changed.is_ok(), "the closure always gives a value");
}

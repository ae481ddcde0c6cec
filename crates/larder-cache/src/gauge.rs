//! The numbers of a cache: how much it holds, how much it may hold, and what it did.
//!
//! Invariants:
//! - Space is reserved here before it is written, so neither `bytes` nor the free space of the disk
//!   passes its stop mark by a fill, however fast fills come. What the kernel writes in a bypass is
//!   added afterwards.
//! - The assumed free space is never more than the disk's last report, less all that was reserved
//!   since, and all that had been reserved before and was not yet written.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_io::{Clock, Disk, Monotonic};

use crate::{CHUNK_BYTES, Limits, Marks, lock};

/// Free space is queried again after this time: other programs use the disk too.
const ROOM_INTERVAL: Duration = Duration::from_secs(1);
/// Above the stop mark there is to be this much for an empty file that the kernel writes by itself:
/// how long it will be is not known.
const NEW_FILE_ROOM_BYTES: u64 = 4 << 30;
/// The same for a file that holds something, or that part of a small disk.
const KERNEL_ROOM_BYTES: u64 = 128 << 20;
const KERNEL_ROOM_SHARE: u64 = 8;
/// It is also queried when a quarter of the space above the stop mark was reserved, but not for
/// less than this.
const ROOM_BYTES_MIN: u64 = 1 << 20;
/// Below the stop mark there is at least this much room for the index and the session log, on a
/// small disk [`INDEX_SHARE`] of it: the stop mark of a small disk may be less than one commit
/// takes.
const INDEX_ROOM_BYTES: u64 = 8 << 20;
const INDEX_SHARE: u64 = 16;

/// The free space of the disk.
#[derive(Debug, Default)]
struct Room {
    /// `None`: the following fields must not be used.
    asked_at: Option<Monotonic>,
    /// 0 if the disk does not say.
    total_bytes: u64,
    /// Free space by the disk's last report.
    free_bytes: u64,
    /// Reserved since, or before and not written then.
    taken_bytes: u64,
    /// Reserved and not yet written.
    unwritten_bytes: u64,
}

impl Room {
    fn left_bytes(&self) -> u64 {
        self.free_bytes.saturating_sub(self.taken_bytes)
    }
}

/// A reservation.
#[derive(Debug)]
pub(crate) struct Reserved<'a> {
    gauge: &'a Gauge,
    bytes: u64,
    /// A cull mark is passed.
    pub(crate) wants_cull: bool,
}

/// From now on the disk counts these bytes, or they are not coming.
impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.gauge.has_written(self.bytes);
    }
}

/// Counters; each is independent of the others, so relaxed ordering suffices.
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

/// The same of the index, in this run.
#[derive(Debug, Default)]
pub(crate) struct IndexCounters {
    pub(crate) commits: AtomicU64,
    pub(crate) log_syncs: AtomicU64,
    pub(crate) logged: AtomicU64,
}

/// Adds one to a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// How much is held and may be held.
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

    /// Reserves chunks if they fit below the stop marks. Keep the reservation until they are
    /// written.
    pub(crate) fn reserve(
        &self,
        chunks: u64,
        disk: &dyn Disk,
        clock: &dyn Clock,
    ) -> Option<Reserved<'_>> {
        let bytes = chunks * CHUNK_BYTES;
        if bytes == 0 {
            return Some(Reserved { gauge: self, bytes, wants_cull: false });
        }
        if !take_below(&self.bytes, bytes, self.limits.bytes.stop) {
            return None;
        }
        let Some(is_low) = self.take_room(bytes, disk, clock) else {
            change(&self.bytes, bytes, 0);
            return None;
        };
        let wants_cull = is_low || self.bytes() > self.limits.bytes.cull;
        Some(Reserved { gauge: self, bytes, wants_cull })
    }

    /// Takes free space of the disk. Returns whether its cull mark is passed; `None` if its stop
    /// mark would be.
    fn take_room(&self, bytes: u64, disk: &dyn Disk, clock: &dyn Clock) -> Option<bool> {
        let mut room = lock(&self.room);
        let marks = self.look(&mut room, bytes, disk, clock);
        if room.total_bytes == 0 {
            return Some(false);
        }
        let left = room.left_bytes().checked_sub(bytes).filter(|left| *left >= marks.stop)?;
        room.taken_bytes += bytes;
        room.unwritten_bytes += bytes;
        Some(left < marks.cull)
    }

    /// Reserved space will be written later.
    pub(crate) fn await_write(&self, bytes: u64) {
        lock(&self.room).unwritten_bytes += bytes;
    }

    /// It is written, or not coming.
    pub(crate) fn has_written(&self, bytes: u64) {
        let mut room = lock(&self.room);
        room.unwritten_bytes = room.unwritten_bytes.saturating_sub(bytes);
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
        room.free_bytes = 0;
        room.asked_at = Some(clock.now());
    }

    /// The known free space is outdated: something was removed, or the index has grown.
    pub(crate) fn room_changed(&self) {
        lock(&self.room).asked_at = None;
    }

    /// Whether a cull mark is passed.
    pub(crate) fn wants_cull(&self, disk: &dyn Disk, clock: &dyn Clock) -> bool {
        if self.bytes() > self.limits.bytes.cull || self.files() > self.limits.files.cull {
            return true;
        }
        let mut room = lock(&self.room);
        let marks = self.look(&mut room, 0, disk, clock);
        room.total_bytes > 0 && room.left_bytes() < marks.cull
    }

    /// Bytes and files to which culling goes down.
    pub(crate) fn cull_targets(&self, disk: &dyn Disk, clock: &dyn Clock) -> (u64, u64) {
        let lacking_bytes = {
            let mut room = lock(&self.room);
            let marks = self.look(&mut room, 0, disk, clock);
            marks.run.saturating_sub(room.left_bytes())
        };
        let bytes = self.limits.bytes.run.min(self.bytes().saturating_sub(lacking_bytes));
        (bytes, self.limits.files.run)
    }

    /// How many bytes may be held without anything being culled.
    pub(crate) fn capacity(&self, disk: &dyn Disk, clock: &dyn Clock) -> u64 {
        let free_bytes = {
            let mut room = lock(&self.room);
            let marks = self.look(&mut room, 0, disk, clock);
            let is_known = room.total_bytes > 0;
            is_known.then(|| room.left_bytes().saturating_sub(marks.run))
        };
        let on_disk = free_bytes.map_or(u64::MAX, |free| self.bytes().saturating_add(free));
        self.limits.bytes.run.min(on_disk)
    }

    /// Whether the disk has room for a file of this size that the kernel writes by itself: its
    /// error for a full disk would be the caller's, though the server has room.
    pub(crate) fn lets_kernel_write(&self, size: u64, disk: &dyn Disk, clock: &dyn Clock) -> bool {
        let mut room = lock(&self.room);
        let marks = self.look(&mut room, 0, disk, clock);
        let wanted = match size {
            0 => NEW_FILE_ROOM_BYTES,
            _ => KERNEL_ROOM_BYTES.min(room.total_bytes / KERNEL_ROOM_SHARE),
        };
        room.total_bytes == 0 || room.left_bytes() >= marks.stop + wanted
    }

    /// Free space, less what is reserved.
    pub(crate) fn free_bytes(&self, disk: &dyn Disk, clock: &dyn Clock) -> u64 {
        let mut room = lock(&self.room);
        self.look(&mut room, 0, disk, clock);
        room.left_bytes()
    }

    /// Asks the disk how much is free, if what is known is old or `more` would use up too much of
    /// it. Returns the marks.
    fn look(&self, room: &mut Room, more: u64, disk: &dyn Disk, clock: &dyn Clock) -> Marks {
        let now = clock.now();
        let marks = free_marks(self.limits.free_percent, room.total_bytes);
        let is_fresh = room.asked_at.is_some_and(|at| now.since(at) < ROOM_INTERVAL);
        let spare = (room.free_bytes.saturating_sub(marks.stop) / 4).max(ROOM_BYTES_MIN);
        if is_fresh && room.taken_bytes + more <= spare {
            return marks;
        }
        // A disk that cannot report how full it is reports an error when it is full.
        let (total_bytes, free_bytes) = match disk.space() {
            Ok(space) => (space.total_bytes, space.free_bytes),
            Err(_) => (0, 0),
        };
        let unwritten_bytes = room.unwritten_bytes;
        let (asked_at, taken_bytes) = (Some(now), unwritten_bytes);
        *room = Room { asked_at, total_bytes, free_bytes, taken_bytes, unwritten_bytes };
        free_marks(self.limits.free_percent, total_bytes)
    }
}

/// The marks of free space in bytes: `run >= cull >= stop`.
fn free_marks(percent: Marks, total_bytes: u64) -> Marks {
    let index_bytes = INDEX_ROOM_BYTES.min(total_bytes / INDEX_SHARE);
    let of = |percent: u64| total_bytes / 100 * percent;
    Marks {
        run: of(percent.run).max(index_bytes * 2),
        cull: of(percent.cull).max(index_bytes + index_bytes / 2),
        stop: of(percent.stop).max(index_bytes),
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

#[cfg(test)]
mod tests {
    use larder_io::{Fault, OpenMode, SimClock, SimDisk};
    use proptest::prelude::*;

    use super::*;

    const TOTAL_BYTES: u64 = 8 << 20;

    #[derive(Clone, Debug)]
    enum Step {
        Reserve(u64),
        /// What one of the reservations covers is written.
        Write(usize),
        /// It is not coming.
        GiveBack(usize),
        /// Something is removed again.
        Remove,
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            5 => (0..100_u64).prop_map(Step::Reserve),
            3 => (0..8_usize).prop_map(Step::Write),
            1 => (0..8_usize).prop_map(Step::GiveBack),
            1 => Just(Step::Remove),
            1 => (0..1500_u64).prop_map(Step::Pass),
        ]
    }

    fn limits(bytes_stop: u64) -> Limits {
        let free_percent = Marks { run: 30, cull: 20, stop: 10 };
        let bytes = Marks { run: bytes_stop / 4, cull: bytes_stop / 2, stop: bytes_stop };
        Limits { bytes, files: Marks { run: 1, cull: 2, stop: 3 }, free_percent }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// However reservations, writes and removals follow each other: what was reserved fits
        /// above the stop mark of the disk and below that of the cache, and what is counted is what
        /// is reserved or written.
        #[test]
        fn what_is_reserved_fits(
            steps in proptest::collection::vec(step(), 1..60), bytes_stop in (1..12_u64),
        ) {
            let (disk, clock) = (SimDisk::new(), SimClock::new());
            disk.inject(Fault::SpaceBytes(TOTAL_BYTES));
            let bytes_stop = bytes_stop << 20;
            let gauge = Gauge::new(limits(bytes_stop), 0, 0);
            let stop = free_marks(gauge.limits.free_percent, TOTAL_BYTES).stop;
            let file = disk.open("data", OpenMode::Create).unwrap();
            let (mut open, mut written) = (Vec::new(), 0);
            for step in steps {
                match step {
                    Step::Reserve(chunks) => {
                        if let Some(reserved) = gauge.reserve(chunks, &disk, &clock) {
                            open.push((chunks, reserved));
                            let coming: u64 = open.iter().map(|(chunks, _)| chunks * CHUNK_BYTES).sum();
                            let free = disk.space().unwrap().free_bytes;
                            prop_assert!(chunks == 0 || free >= coming + stop, "{free} {coming}");
                        }
                    }
                    Step::Write(at) if at < open.len() => {
                        let (chunks, reserved) = open.swap_remove(at);
                        let data = vec![1; usize::try_from(chunks * CHUNK_BYTES).unwrap()];
                        file.write_at(&data, written * CHUNK_BYTES).unwrap();
                        written += chunks;
                        drop(reserved);
                    }
                    Step::GiveBack(at) if at < open.len() => {
                        let (chunks, reserved) = open.swap_remove(at);
                        gauge.change_chunks(chunks, 0);
                        drop(reserved);
                    }
                    Step::Remove => {
                        let left = written / 2;
                        file.set_len(left * CHUNK_BYTES).unwrap();
                        gauge.change_chunks(written, left);
                        gauge.room_changed();
                        written = left;
                    }
                    Step::Pass(ms) => clock.advance(Duration::from_millis(ms)),
                    Step::Write(_) | Step::GiveBack(_) => (),
                }
                let coming: u64 = open.iter().map(|(chunks, _)| chunks).sum();
                prop_assert_eq!(gauge.bytes(), (coming + written) * CHUNK_BYTES);
                prop_assert!(gauge.bytes() <= bytes_stop);
            }
        }
    }

    #[test]
    fn files_are_counted_to_their_stop_mark() {
        let gauge = Gauge::new(limits(1 << 20), 5, 1);
        assert_eq!((gauge.bytes(), gauge.files(), gauge.saved()), (5, 1, (5, 1)));
        assert!(gauge.reserve_file() && gauge.reserve_file() && !gauge.reserve_file());
        gauge.take_file();
        assert_eq!(gauge.files(), 4, "one that is there anyway");
        gauge.release_file();
        gauge.release_file();
        assert!(gauge.reserve_file());
        gauge.change_saved((5, 1), (0, 0));
        assert_eq!(gauge.saved(), (0, 0));
    }

    /// Until the disk is asked again, nothing fits.
    #[test]
    fn a_disk_that_said_it_is_full_is_believed() {
        let (disk, clock) = (SimDisk::new(), SimClock::new());
        disk.inject(Fault::SpaceBytes(TOTAL_BYTES));
        let gauge = Gauge::new(limits(TOTAL_BYTES), 0, 0);
        assert!(gauge.reserve(1, &disk, &clock).is_some());
        gauge.disk_is_full(&clock);
        assert!(gauge.reserve(1, &disk, &clock).is_none());
        assert!(gauge.wants_cull(&disk, &clock) && gauge.free_bytes(&disk, &clock) == 0);
        assert!(!gauge.lets_kernel_write(1, &disk, &clock));
        clock.advance(ROOM_INTERVAL);
        assert!(gauge.reserve(1, &disk, &clock).is_some());
        assert!(gauge.lets_kernel_write(1, &disk, &clock));
    }

    #[test]
    fn an_empty_file_needs_more_room_than_others_before_the_kernel_may_write_it() {
        let (disk, clock) = (SimDisk::new(), SimClock::new());
        let gauge = Gauge::new(limits(TOTAL_BYTES), 0, 0);
        for (total_bytes, empty, other) in [
            (64 << 20, false, true),
            (NEW_FILE_ROOM_BYTES, false, true),
            (2 * NEW_FILE_ROOM_BYTES, true, true),
        ] {
            disk.inject(Fault::SpaceBytes(total_bytes));
            clock.advance(ROOM_INTERVAL);
            let lets = |size| gauge.lets_kernel_write(size, &disk, &clock);
            assert_eq!((lets(0), lets(1)), (empty, other), "{total_bytes} bytes");
        }
    }
}

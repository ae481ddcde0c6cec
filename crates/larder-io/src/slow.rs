//! A [`Disk`] that is slower than the machine's, for measuring what a server with such a disk would
//! do.
//!
//! Its operations take a stated time each, one after the other, as those of a disk with one arm do;
//! [`Arm`] is the one that takes the time, for whatever is as slow. An operation of [`SlowDisk`] is
//! a sync. The disk below does the work as well, after the time is over. Reads take the time of the
//! disk below: who reads and writes through [`DiskFile::as_fd`] is not delayed.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::clock::{Clock, Sleep};
use crate::disk::{Disk, DiskFile, FsKind, OpenMode, Space, Stamp, Writers};

/// A disk whose syncs take longer.
#[derive(Debug)]
pub struct SlowDisk {
    below: Arc<dyn Disk>,
    arm: Arc<Arm>,
}

impl SlowDisk {
    /// The files of `below`, where each sync takes this long.
    pub fn new(below: Arc<dyn Disk>, takes: Duration, clock: Arc<dyn Clock>) -> SlowDisk {
        SlowDisk { below, arm: Arc::new(Arm::new(takes, clock)) }
    }

    /// The files of `below`, as another directory of the same disk.
    #[must_use]
    pub fn with(&self, below: Arc<dyn Disk>) -> SlowDisk {
        SlowDisk { below, arm: Arc::clone(&self.arm) }
    }
}

/// What carries out one operation at a time, each in the same time.
#[derive(Debug)]
pub struct Arm {
    takes: Duration,
    clock: Arc<dyn Clock>,
    /// When the operations that were begun will have ended.
    free_at: Mutex<Instant>,
    begun: AtomicU64,
}

impl Arm {
    /// One whose operations take this long; zero: no time, and nobody waits.
    pub fn new(takes: Duration, clock: Arc<dyn Clock>) -> Arm {
        let free_at = Mutex::new(clock.instant());
        Arm { takes, clock, free_at, begun: AtomicU64::new(0) }
    }

    /// Blocks until an operation that begins after all earlier ones has ended. For threads that
    /// drive no runtime.
    pub fn operate(&self) {
        let over = self.begin();
        if !self.takes.is_zero() {
            self.clock.block_until(over);
        }
    }

    /// The same for a task.
    pub fn operation(&self) -> Sleep {
        self.clock.sleep_until(self.begin())
    }

    /// How many operations have been begun.
    pub fn operations(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// When an operation will have ended that begins now or after those that were begun.
    fn begin(&self) -> Instant {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        *free_at = self.clock.instant().max(*free_at) + self.takes;
        *free_at
    }
}

impl Disk for SlowDisk {
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let below = self.below.open(path, mode)?;
        Ok(Arc::new(SlowFile { below, arm: Arc::clone(&self.arm) }))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.below.remove(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.below.rename(from, to)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.below.list(dir)
    }

    fn create_dir_all(&self, dir: &str) -> io::Result<()> {
        self.below.create_dir_all(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.arm.operate();
        self.below.sync_dir(dir)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.arm.operate();
        self.below.sync_all()
    }

    fn space(&self) -> io::Result<Space> {
        self.below.space()
    }

    fn kind(&self) -> io::Result<FsKind> {
        self.below.kind()
    }

    fn writers(&self) -> io::Result<Writers> {
        self.below.writers()
    }

    fn make_private(&self) -> io::Result<()> {
        self.below.make_private()
    }

    fn outlives_process(&self) -> bool {
        self.below.outlives_process()
    }
}

/// A file of a [`SlowDisk`].
#[derive(Debug)]
struct SlowFile {
    below: Arc<dyn DiskFile>,
    arm: Arc<Arm>,
}

impl DiskFile for SlowFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.below.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.below.write_at(data, offset)
    }

    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        self.below.set_len(len_bytes)
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.below.punch_hole(range)
    }

    fn allocate(&self, len_bytes: u64) -> io::Result<()> {
        self.below.allocate(len_bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.arm.operate();
        self.below.sync_data()
    }

    fn sync_range(&self, range: Range<u64>) -> io::Result<()> {
        self.arm.operate();
        self.below.sync_range(range)
    }

    fn stamp(&self) -> io::Result<Stamp> {
        self.below.stamp()
    }

    fn set_modified(&self, mtime_ns: i64) -> io::Result<()> {
        self.below.set_modified(mtime_ns)
    }

    fn try_lock_exclusive(&self) -> io::Result<bool> {
        self.below.try_lock_exclusive()
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.below.as_fd()
    }

    fn data_ranges(&self, within: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        self.below.data_ranges(within)
    }

    fn len(&self) -> io::Result<u64> {
        self.below.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemDisk, SimClock};

    #[test]
    fn syncs_of_a_slow_disk_follow_one_another_and_nothing_else_waits() {
        let clock = Arc::new(SimClock::new());
        let takes = Duration::from_millis(10);
        let wait = Arc::clone(&clock) as Arc<dyn Clock>;
        let disk = SlowDisk::new(Arc::new(MemDisk::new()), takes, wait);
        let open = |name| disk.open(name, OpenMode::CreateNew).unwrap();
        let (one, other) = (open("one"), open("other"));
        // Nobody moves the clock: these return at once.
        one.write_at(b"abc", 1).unwrap();
        let mut read = [0; 4];
        one.read_exact_at(&mut read, 0).unwrap();
        assert_eq!((&read, one.len().unwrap()), (b"\0abc", 4));
        let begin = clock.instant();
        std::thread::scope(|scope| {
            let syncs = [&one, &other].map(|file| scope.spawn(|| file.sync_data()));
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(clock.asleep(2));
            assert_eq!(clock.next_wake(), Some(begin + takes));
            clock.advance(takes);
            assert_eq!(clock.next_wake(), Some(begin + takes * 2), "the other waits its turn");
            clock.advance(takes);
            for sync in syncs {
                sync.join().unwrap().unwrap();
            }
        });
    }
    #[test]
    fn operations_that_take_no_time_wait_for_no_clock_and_are_counted() {
        let arm = Arm::new(Duration::ZERO, Arc::new(SimClock::new()));
        arm.operate();
        arm.operate();
        assert_eq!(arm.operations(), 2);
    }
}

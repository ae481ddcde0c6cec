//! Short local files that are not on the disk yet.
//!
//! To create a file costs the local disk more than a fast link takes for 4,000 bytes, and many
//! short files are read once and never again. So what a server gave of a short file waits in memory
//! for the next checkpoint, which creates the local files of all of them one after the other.
//!
//! Invariants:
//! - Only clean bytes wait, which the death of the process may take: a local change, and the kernel
//!   that gets the file, find it on the disk (`CachedFile::write_out`).
//! - The index names no local file that waits: a checkpoint writes it before it syncs.
//! - No more bytes wait than [`crate::Config::unwritten_bytes_max`], and room for them on the disk
//!   is reserved meanwhile.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use larder_io::{DiskFile, Stamp};

use crate::lock;
use crate::pool::write_with_holes;

/// Longer files are written and removed at once: creating one costs little compared with writing
/// its bytes.
pub(crate) const SHORT_BYTES_MAX: u64 = 64 << 10;
/// When this share of the limit waits, a checkpoint is requested.
const FULL_SHARE: u64 = 2;

/// A local file that is in memory until it is written out, and then on the disk.
#[derive(Debug)]
pub(crate) struct UnwrittenFile {
    size: u64,
    bytes: Mutex<Vec<u8>>,
    /// Set once, with the lock of `bytes`.
    written: OnceLock<Arc<dyn DiskFile>>,
}

/// Where its bytes are.
enum Location<'a> {
    Memory(MutexGuard<'a, Vec<u8>>),
    Disk(&'a dyn DiskFile),
}

impl UnwrittenFile {
    pub(crate) fn new(size: u64) -> UnwrittenFile {
        let bytes = vec![0; usize::try_from(size).expect("a short file fits into memory")];
        UnwrittenFile { size, bytes: Mutex::new(bytes), written: OnceLock::new() }
    }

    /// Its length, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Creates it on the disk with its present content; from then on it is used there.
    pub(crate) fn write_out(
        &self,
        create: impl FnOnce() -> io::Result<Arc<dyn DiskFile>>,
    ) -> io::Result<()> {
        let mut bytes = lock(&self.bytes);
        if self.written.get().is_some() {
            return Ok(());
        }
        let file = create()?;
        write_with_holes(&*file, &bytes, 0)?;
        if bytes.last() == Some(&0) {
            // It may end in a hole.
            file.set_len(self.size)?;
        }
        *bytes = Vec::new();
        self.written.get_or_init(|| file);
        Ok(())
    }

    fn location(&self) -> Location<'_> {
        let bytes = lock(&self.bytes);
        match self.written.get() {
            Some(file) => Location::Disk(&**file),
            None => Location::Memory(bytes),
        }
    }
}

/// The bytes of a range that there are.
fn within(len: usize, offset: u64, count: usize) -> Range<usize> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(len);
    start..start.saturating_add(count).min(len)
}

fn unsupported<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

/// In memory it can be read, filled and emptied; all other operations are used only on files on the
/// disk.
impl DiskFile for UnwrittenFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match self.location() {
            Location::Disk(file) => file.read_at(buf, offset),
            Location::Memory(bytes) => {
                let found = &bytes[within(bytes.len(), offset, buf.len())];
                buf[..found.len()].copy_from_slice(found);
                Ok(found.len())
            }
        }
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        match self.location() {
            Location::Disk(file) => file.write_at(data, offset),
            Location::Memory(mut bytes) => {
                let range = within(bytes.len(), offset, data.len());
                assert_eq!(range.len(), data.len(), "a fill ends where the file does");
                bytes[range].copy_from_slice(data);
                Ok(())
            }
        }
    }

    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        match self.location() {
            Location::Disk(file) => file.set_len(len_bytes),
            Location::Memory(_) => unsupported(),
        }
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        match self.location() {
            Location::Disk(file) => file.punch_hole(range),
            Location::Memory(mut bytes) => {
                let count = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
                let range = within(bytes.len(), range.start, count);
                bytes[range].fill(0);
                Ok(())
            }
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        match self.location() {
            Location::Disk(file) => file.sync_data(),
            Location::Memory(_) => unsupported(),
        }
    }

    fn sync_range(&self, range: Range<u64>) -> io::Result<()> {
        match self.location() {
            Location::Disk(file) => file.sync_range(range),
            Location::Memory(_) => unsupported(),
        }
    }

    fn stamp(&self) -> io::Result<Stamp> {
        match self.location() {
            Location::Disk(file) => file.stamp(),
            Location::Memory(_) => unsupported(),
        }
    }

    fn set_modified(&self, mtime_ns: i64) -> io::Result<()> {
        match self.location() {
            Location::Disk(file) => file.set_modified(mtime_ns),
            Location::Memory(_) => unsupported(),
        }
    }

    fn try_lock_exclusive(&self) -> io::Result<bool> {
        unsupported()
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.written.get()?.as_fd()
    }
}

/// The short files of one cache that wait.
#[derive(Debug)]
pub(crate) struct Unwritten {
    bytes: AtomicU64,
    bytes_max: u64,
}

impl Unwritten {
    pub(crate) fn new(bytes_max: u64) -> Unwritten {
        Unwritten { bytes: AtomicU64::new(0), bytes_max }
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether so many wait that a checkpoint should be made.
    pub(crate) fn is_filling(&self) -> bool {
        self.bytes() > self.bytes_max / FULL_SHARE
    }

    /// Reserves room for a file of this many bytes.
    pub(crate) fn take(&self, size: u64) -> bool {
        let more = |now: u64| now.checked_add(size).filter(|sum| *sum <= self.bytes_max);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub(crate) fn give_back(&self, size: u64) {
        self.bytes.fetch_sub(size, Ordering::Relaxed);
    }
}

/// What a file of this many bytes takes on the disk.
pub(crate) fn room_of(size: u64) -> u64 {
    size.next_multiple_of(crate::CHUNK_BYTES)
}

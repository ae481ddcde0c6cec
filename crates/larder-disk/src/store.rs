//! The disk's store: an array of bytes in one file, and a map of its written blocks.
//!
//! ```text
//! 0          the superblock: what this is, and whose
//! 4096       the map: a bit for each block, whether it was written
//! ...        the bytes
//! ```
//!
//! Invariants:
//! - A block that was not written reads as zeros, whatever the medium holds: bytes of a block's
//!   previous owner are never read by another.
//! - The map on the medium vouches for a block only after its bytes are there. So after a crash a
//!   block has what was written, including at least everything that a [`Store::flush`] covered, or
//!   reads as zeros.
//! - What [`Store::clear`] has cleared stays cleared over a crash.
//! - After a failed sync nothing is changed any more, because the content of the medium is not
//!   known.
//!
//! All methods may block on the disk, and may run at the same time. The store does not know to whom
//! bytes belong.

mod map;
mod room;
mod superblock;

pub use superblock::{Identity, OpenError};

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_io::{Disk, DiskFile};
use larder_wire::capability::Extent;
use larder_wire::disk::BLOCK_BYTES;
use larder_wire::disk::words::StoreState;
use map::{Map, PAGE_BYTES, Unsaved};
use room::Room;
use rustix::io::Errno;
use thiserror::Error;

/// Blocks whose first writes wait for each other: 1 MiB of them.
const REGION_BLOCKS: u64 = 256;
/// Locks for regions. Two regions that share one exclude each other, too.
const REGION_LOCKS: usize = 64;
/// Longest write that has room made for others around it, in bytes.
const SMALL_WRITE_MAX: usize = 64 << 10;
/// Bytes that COPY moves at a time.
const COPY_BYTES: u64 = 1 << 20;

static ZEROS: [u8; (REGION_BLOCKS * BLOCK_BYTES) as usize] =
    [0; (REGION_BLOCKS * BLOCK_BYTES) as usize];

/// Why the store did not do something.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The bytes are beyond its end.
    #[error("the bytes are behind the end of the disk")]
    OutOfDisk,
    /// The source and the target of a copy overlap.
    #[error("a copy onto itself")]
    Overlap,
    /// The medium has no room.
    #[error("what is below the disk has no room left")]
    NoSpace,
    /// A sync failed, now or before.
    #[error("the store failed to make something durable, and takes no more changes")]
    Poisoned,
    /// The disk below failed.
    #[error("the store failed: {0}")]
    Io(io::Error),
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> StoreError {
        match Errno::from_io_error(&error) {
            Some(Errno::NOSPC | Errno::DQUOT) => StoreError::NoSpace,
            _ => StoreError::Io(error),
        }
    }
}

/// The bytes of a disk.
#[derive(Debug)]
pub struct Store {
    file: Arc<dyn DiskFile>,
    /// Of its bytes.
    size: u64,
    /// Where its bytes begin in the file.
    start: u64,
    map: Mutex<Map>,
    /// The most bytes that its written blocks may have.
    limit: AtomicU64,
    /// The first write of a block holds the lock of its region.
    regions: [Mutex<()>; REGION_LOCKS],
    /// Where small writes find room in the file; `None`: no room is taken ahead.
    room: Option<Mutex<Room>>,
    /// Flushes requested so far.
    flushes_asked: AtomicU64,
    /// Of those, how many are done. Held while the map is written.
    flushes_done: Mutex<u64>,
    poisoned: AtomicBool,
    identity: Identity,
    state: Mutex<StoreState>,
}

impl Store {
    /// Opens the store in the file `name` of `disk`, or makes it if there is none; it is locked
    /// until it is dropped. `size` is the number of its bytes, a multiple of [`BLOCK_BYTES`].
    ///
    /// # Errors
    /// [`OpenError`]; then nothing that existed is changed.
    pub fn open(
        disk: &dyn Disk,
        name: &str,
        identity: &Identity,
        size: u64,
    ) -> Result<Store, OpenError> {
        let (file, state) = superblock::open(disk, name, identity, size)?;
        let (map_bytes, start) = layout(size);
        let mut bytes = vec![0; map_bytes];
        file.read_exact_at(&mut bytes, superblock::SUPERBLOCK_BYTES).map_err(OpenError::Io)?;
        Ok(Store {
            file,
            size,
            start,
            map: Mutex::new(Map::from_bytes(&bytes)),
            limit: AtomicU64::new(size),
            regions: std::array::from_fn(|_| Mutex::default()),
            room: None,
            flushes_asked: AtomicU64::new(0),
            flushes_done: Mutex::new(0),
            poisoned: AtomicBool::new(false),
            identity: identity.clone(),
            state: Mutex::new(state),
        })
    }

    /// The same store, which takes room in its file ahead of small writes, up to a MiB for each MiB
    /// that has one: their syncs are faster then, on a file system with a journal. For a store in
    /// memory it would only waste that.
    #[must_use]
    pub fn with_room_ahead(self) -> Store {
        Store { room: Some(Mutex::default()), ..self }
    }

    /// Which store it is, and in how many boots it was served.
    pub fn state(&self) -> StoreState {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk serves from it in another boot from now on: its generation is raised, durably.
    ///
    /// # Errors
    /// [`StoreError::Poisoned`], [`StoreError::Io`]; then nothing was raised, or it was and the
    /// disk does not know.
    pub fn raise_generation(&self) -> Result<(), StoreError> {
        self.check_sound()?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let next = StoreState { generation: state.generation + 1, ..*state };
        superblock::write(&*self.file, &self.identity, self.size, next)?;
        *state = next;
        Ok(())
    }

    /// How many bytes it has.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How many bytes its written blocks have.
    pub fn written(&self) -> u64 {
        self.map().count() * BLOCK_BYTES
    }

    /// The most bytes that its written blocks may have.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Acquire)
    }

    /// Sets that, from the next write on. What is above it stays until it is cleared; writes that
    /// are in progress may still exceed it, each by its length.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Release);
    }

    /// Whether it takes no more changes.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// [`StoreError::OutOfDisk`], [`StoreError::Io`]
    pub fn read(&self, range: Extent) -> Result<Vec<u8>, StoreError> {
        self.check_end(range)?;
        let mut bytes = vec![0; range.length() as usize];
        for written in self.written_in(range.offset()..range.end()) {
            let at = (written.start - range.offset()) as usize;
            let part = &mut bytes[at..at + (written.end - written.start) as usize];
            self.file.read_exact_at(part, self.start + written.start)?;
        }
        Ok(bytes)
    }

    /// Writes bytes. Durable after [`Store::flush`].
    ///
    /// # Errors
    /// [`StoreError`]; then a part of the bytes may be written.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        let Ok(range) = Extent::new(offset, data.len() as u64) else { return Ok(()) };
        self.check_end(range)?;
        self.check_sound()?;
        let blocks = blocks_around(range);
        if self.map().all(blocks.clone()) {
            return Ok(self.file.write_at(data, self.start + offset)?);
        }
        // Two first writes to a block must not both fill the rest of it with zeros: the second
        // would erase what the first wrote.
        let _regions = self.lock_regions(&blocks);
        let (is_first, is_last) = {
            let map = self.map();
            let new = blocks.end - blocks.start - map.count_in(blocks.clone());
            if (map.count() + new) * BLOCK_BYTES > self.limit() {
                return Err(StoreError::NoSpace);
            }
            (map.has(blocks.start), map.has(blocks.end - 1))
        };
        if data.len() <= SMALL_WRITE_MAX {
            self.make_room(&blocks);
        }
        let (start, end) = (blocks.start * BLOCK_BYTES, blocks.end * BLOCK_BYTES);
        if !is_first {
            self.file.write_at(&ZEROS[..(offset - start) as usize], self.start + start)?;
        }
        self.file.write_at(data, self.start + offset)?;
        if !is_last {
            self.file.write_at(&ZEROS[..(end - range.end()) as usize], self.start + range.end())?;
        }
        self.map().set(blocks);
        Ok(())
    }

    /// Whether every block with bytes of these extents was written since it was last cleared.
    ///
    /// # Errors
    /// [`StoreError::OutOfDisk`]
    pub fn has_written(&self, extents: &[Extent]) -> Result<bool, StoreError> {
        extents.iter().try_for_each(|extent| self.check_end(*extent))?;
        let map = self.map();
        Ok(extents.iter().all(|extent| map.all(blocks_around(*extent))))
    }

    /// Makes everything durable that was written before. Concurrent callers share the work.
    ///
    /// # Errors
    /// [`StoreError::Poisoned`]
    pub fn flush(&self) -> Result<(), StoreError> {
        let mine = self.flushes_asked.fetch_add(1, Ordering::AcqRel) + 1;
        let mut done = self.flushes_done.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_sound()?;
        if *done >= mine {
            return Ok(());
        }
        let asked = self.flushes_asked.load(Ordering::Acquire);
        self.persist()?;
        *done = asked;
        Ok(())
    }

    /// Makes bytes read as zeros, durably on return. Blocks that are cleared as a whole are
    /// released in the file.
    ///
    /// # Errors
    /// [`StoreError`]; then some of the bytes may be zeros, and not durably.
    pub fn clear(&self, extents: &[Extent]) -> Result<(), StoreError> {
        extents.iter().try_for_each(|extent| self.check_end(*extent))?;
        self.check_sound()?;
        let mut done = self.flushes_done.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = self.flushes_asked.load(Ordering::Acquire);
        for extent in extents {
            let whole = blocks_within(*extent);
            let (start, end) = (whole.start * BLOCK_BYTES, whole.end * BLOCK_BYTES);
            let edges = match whole.is_empty() {
                true => [extent.offset()..extent.end(), 0..0],
                false => [extent.offset()..start, end..extent.end()],
            };
            for edge in edges.into_iter().filter(|edge| !edge.is_empty()) {
                self.wipe(edge)?;
            }
            self.map().clear(whole);
        }
        self.persist()?;
        *done = asked;
        extents.iter().for_each(|extent| self.give_back(blocks_within(*extent)));
        Ok(())
    }

    /// Fills the regions of these blocks with zeros where they were not written, unless they have
    /// room already. Called under the locks of the regions.
    fn make_room(&self, blocks: &Range<u64>) {
        let Some(room) = &self.room else { return };
        let is_new = |region: &u64| !lock(room).has(*region);
        for region in regions_of(blocks).filter(is_new) {
            let gaps = self.map().gaps(self.blocks_of(region));
            let fill = |gap: Range<u64>| {
                let bytes = ((gap.end - gap.start) * BLOCK_BYTES) as usize;
                self.file.write_at(&ZEROS[..bytes], self.start + gap.start * BLOCK_BYTES)
            };
            match gaps.into_iter().try_for_each(fill) {
                Ok(()) => lock(room).add(region),
                // The write itself may still find room.
                Err(cause) => return tracing::debug!(%cause, "no room is taken ahead"),
            }
        }
    }

    /// Releases blocks in the file that were cleared as a whole; where there is room for small
    /// writes, whole regions that nothing is written in.
    fn give_back(&self, blocks: Range<u64>) {
        let mut from = blocks.start;
        if let Some(room) = self.room.as_ref().filter(|_| !blocks.is_empty()) {
            for region in regions_of(&blocks).filter(|region| lock(room).has(*region)) {
                let of_region = self.blocks_of(region);
                self.punch(from..of_region.start.max(from));
                from = of_region.end;
                let is_empty = self.map().count_in(of_region) == 0;
                let emptied = is_empty.then(|| lock(room).emptied(region));
                if let Some(first) = emptied.flatten() {
                    self.give_back_region(room, first);
                }
            }
        }
        self.punch(from..blocks.end);
    }

    /// Releases a region, if nothing is written in it.
    fn give_back_region(&self, room: &Mutex<Room>, region: u64) {
        let blocks = self.blocks_of(region);
        // Nothing is written in it for the first time meanwhile.
        let _locks = self.lock_regions(&blocks);
        if self.map().count_in(blocks.clone()) == 0 {
            lock(room).remove(region);
            self.punch(blocks);
        }
    }

    fn punch(&self, blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        let (start, end) = (blocks.start * BLOCK_BYTES, blocks.end * BLOCK_BYTES);
        if let Err(cause) = self.file.punch_hole(self.start + start..self.start + end) {
            // They are not read; they only take room.
            tracing::debug!(%cause, "blocks cannot be given back");
        }
    }

    /// The blocks of a region.
    fn blocks_of(&self, region: u64) -> Range<u64> {
        region * REGION_BLOCKS..((region + 1) * REGION_BLOCKS).min(self.size / BLOCK_BYTES)
    }

    /// Copies bytes to another position, durable on return.
    ///
    /// # Errors
    /// [`StoreError`]; then a part of the bytes may be copied.
    pub fn copy(&self, from: Extent, to: u64) -> Result<(), StoreError> {
        let target = Extent::new(to, from.length()).map_err(|_| StoreError::OutOfDisk)?;
        self.check_end(from)?;
        self.check_end(target)?;
        if from.offset() < target.end() && target.offset() < from.end() {
            return Err(StoreError::Overlap);
        }
        let mut at = from.offset();
        while at < from.end() {
            let length = COPY_BYTES.min(from.end() - at);
            let (source, target) = (at..at + length, to + (at - from.offset()));
            at += length;
            let is_nothing = self.written_in(source.clone()).is_empty()
                && self.written_in(target..target + length).is_empty();
            if is_nothing {
                continue;
            }
            let piece = Extent::new(source.start, length).map_err(|_| StoreError::OutOfDisk)?;
            self.write(target, &self.read(piece)?)?;
        }
        self.flush()
    }

    /// Writes zeros over bytes of written blocks. Takes no lock: its caller has ensured that
    /// nothing writes there.
    fn wipe(&self, range: Range<u64>) -> Result<(), StoreError> {
        for part in self.written_in(range) {
            let zeros = vec![0; (part.end - part.start) as usize];
            self.file.write_at(&zeros, self.start + part.start)?;
        }
        Ok(())
    }

    /// Makes the bytes durable, then the map that records them as written. If it records nothing
    /// new, one sync does for both. Called under `flushes_done`: nothing else writes the map.
    fn persist(&self) -> Result<(), StoreError> {
        // The bits of the map are set after the bytes were written, so the sync that follows covers
        // all bytes that these pages record.
        let Unsaved { pages, vouches } = self.map().take_unsaved();
        let save = || -> io::Result<()> {
            if vouches {
                self.file.sync_data()?;
            }
            for (number, page) in &pages {
                let at = superblock::SUPERBLOCK_BYTES + number * PAGE_BYTES as u64;
                self.file.write_at(&page[..], at)?;
            }
            self.file.sync_data()
        };
        save().map_err(|cause| {
            self.poisoned.store(true, Ordering::Release);
            tracing::error!(%cause, "what was written may be lost: the disk takes no more changes");
            StoreError::Poisoned
        })
    }

    fn check_end(&self, range: Extent) -> Result<(), StoreError> {
        if range.end() <= self.size { Ok(()) } else { Err(StoreError::OutOfDisk) }
    }

    fn check_sound(&self) -> Result<(), StoreError> {
        if self.is_poisoned() { Err(StoreError::Poisoned) } else { Ok(()) }
    }

    /// The parts of a range that are in written blocks, in order.
    fn written_in(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let blocks = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        let bytes = |run: Range<u64>| {
            (run.start * BLOCK_BYTES).max(range.start)..(run.end * BLOCK_BYTES).min(range.end)
        };
        self.map().runs(blocks).into_iter().map(bytes).collect()
    }

    fn lock_regions(&self, blocks: &Range<u64>) -> Vec<MutexGuard<'_, ()>> {
        let mut locks: Vec<usize> = regions_of(blocks)
            .take(REGION_LOCKS)
            .map(|region| region as usize % REGION_LOCKS)
            .collect();
        // All take them in the same order.
        locks.sort_unstable();
        let lock = |at: usize| self.regions[at].lock().unwrap_or_else(PoisonError::into_inner);
        locks.into_iter().map(lock).collect()
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock(room: &Mutex<Room>) -> MutexGuard<'_, Room> {
    room.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The regions with these blocks.
fn regions_of(blocks: &Range<u64>) -> Range<u64> {
    blocks.start / REGION_BLOCKS..blocks.end.max(blocks.start).div_ceil(REGION_BLOCKS)
}

/// The size of the map, and where the bytes of the disk begin in the file.
fn layout(size: u64) -> (usize, u64) {
    let map_bytes = (size / BLOCK_BYTES).div_ceil(8).next_multiple_of(PAGE_BYTES as u64);
    (map_bytes as usize, superblock::SUPERBLOCK_BYTES + map_bytes)
}

/// The blocks that have bytes of a range.
fn blocks_around(range: Extent) -> Range<u64> {
    range.offset() / BLOCK_BYTES..range.end().div_ceil(BLOCK_BYTES)
}

/// The blocks whose bytes are all in a range.
fn blocks_within(range: Extent) -> Range<u64> {
    let blocks = range.offset().div_ceil(BLOCK_BYTES)..range.end() / BLOCK_BYTES;
    blocks.start..blocks.end.max(blocks.start)
}

#[cfg(test)]
mod tests;

//! Filling: storing bytes from the server in the local file.
//!
//! Copying a megabyte into the page cache and computing its checksums takes longer than anything
//! else that a fill does, and every read of the file, even of bytes that are present, would wait
//! for it. So a fill has three steps. It *begins*: it takes the bytes that are not known yet, and
//! that no other fill has taken; it copies and checksums them without the file's lock; and it
//! *ends*: the bytes are known from then on, with their checksums, if the file still holds that
//! version in that local file.
//!
//! Invariants:
//! - What fills have taken is disjoint, and not known: a fill never overwrites a held byte.
//! - Code that changes the local file (a write, a truncation, the kernel in a bypass) or restarts
//!   it has exclusive access ([`CachedFile::alone`]): no fill is under way then. So no fill
//!   overwrites a change.
//! - A fill whose local file is gone writes to a file without a name, and its end has no effect.
//! - Bytes that were taken and not written are not known: a fault leaves a miss.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use larder_io::DiskFile;

use crate::file::{CachedFile, Filled};
use crate::gauge::{Reserved, count};
use crate::pool::write_with_holes;
use crate::state::{SIZE_MAX, State};
use crate::sums::{chunk_range, chunks_of};
use crate::unwritten::{SHORT_BYTES_MAX, UnwrittenFile, room_of};

/// One fill that is under way: the parts of a local file that it writes.
pub(crate) struct Fill<'a> {
    /// `None` if there is nothing to write.
    file: Option<Arc<dyn DiskFile>>,
    version: Vec<u8>,
    serial: u64,
    /// End of the file, in bytes: the last chunk ends there.
    size: u64,
    gaps: Vec<Range<u64>>,
    /// Chunks for which there is room.
    chunks: u64,
    /// Kept until they are written.
    _reserved: Option<Reserved<'a>>,
}

/// Chunks with their sums.
pub(crate) type Summed = Vec<(u64, u32)>;

impl Fill<'_> {
    /// Writes the parts that it has taken of `data`, which begins at `offset`, and sums the chunks
    /// that it has as a whole; the others get their sums when they are saved.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> io::Result<Summed> {
        let mut sums = Vec::new();
        let Some(file) = &self.file else { return Ok(sums) };
        let at = |position: u64| index(position - offset);
        for gap in &self.gaps {
            write_with_holes(&**file, &data[at(gap.start)..at(gap.end)], gap.start)?;
            for chunk in chunks_of(gap) {
                let range = chunk_range(chunk, self.size);
                if gap.start <= range.start && range.end <= gap.end {
                    sums.push((chunk, crc32c::crc32c(&data[at(range.start)..at(range.end)])));
                }
            }
        }
        Ok(sums)
    }
}

impl CachedFile {
    /// Held bytes within `range`, clean and dirty: sorted, disjoint, not empty, not touching.
    pub fn held(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut state = self.state();
        match self.check_local(&mut state) {
            Ok(()) => state.known().clip(range),
            Err(_) => Vec::new(),
        }
    }

    /// Whether every byte within `range` is held.
    pub fn holds(&self, range: Range<u64>) -> bool {
        range.is_empty() || self.held(range.clone()).first() == Some(&range)
    }

    /// Offers clean bytes of a version. Never overwrites held bytes, never waits for a sync, never
    /// fails: see [`Filled`]. Bytes past the end of file are ignored, and so are bytes that another
    /// fill is storing. Reads of the file do not wait for it.
    pub fn fill(&self, version: &[u8], offset: u64, data: &[u8]) -> Filled {
        self.fill_with(version, offset, data, |_| ())
    }

    /// The same for bytes that were not read yet: they also stay in memory for a moment, for
    /// [`CachedFile::read_recent`], unless some of them were held before.
    pub fn fill_ahead(&self, version: &[u8], offset: u64, data: &Bytes) -> Filled {
        let keep = |serial| self.store.recent.keep(self.number(), serial, offset, data.clone());
        self.fill_with(version, offset, data, keep)
    }

    /// Fills, and returns the number of the local file if it got all of `data`.
    fn fill_with(
        &self,
        version: &[u8],
        offset: u64,
        data: &[u8],
        all_of_it: impl FnOnce(u64),
    ) -> Filled {
        let is_stored = self.try_fill(version, offset, data, all_of_it);
        if !is_stored {
            count(&self.store.gauge.counters.declined);
        }
        if is_stored { Filled::Stored } else { Filled::Declined }
    }

    fn try_fill(
        &self,
        version: &[u8],
        offset: u64,
        data: &[u8],
        all_of_it: impl FnOnce(u64),
    ) -> bool {
        // A close waits for fills in progress.
        let _open = self.store.filling.shared();
        let _shared = self.filling().turns.shared();
        let range = offset..offset.saturating_add(data.len() as u64);
        let Some(fill) = self.begin_fill(version, range.clone()) else { return false };
        let (is_all, serial) = (fill.gaps == [range], fill.serial);
        let written = fill.write(offset, data);
        let is_stored = self.end_fill(fill, written);
        if is_stored && is_all {
            all_of_it(serial);
        }
        is_stored
    }

    /// Takes the unknown parts of a range; `None` if they cannot be stored.
    pub(crate) fn begin_fill(&self, version: &[u8], range: Range<u64>) -> Option<Fill<'_>> {
        let mut state = self.state();
        let end = range.end.min(state.size());
        let is_other = state.version() != Some(version);
        if is_other
            || state.is_bypassed()
            || end > SIZE_MAX
            || self.check_local(&mut state).is_err()
        {
            return None;
        }
        let range = range.start.min(end)..end;
        let gaps = self.filling().without(state.serial(), state.known().gaps(range));
        let mut fill = Fill {
            file: None,
            version: version.to_vec(),
            serial: state.serial(),
            size: state.size(),
            gaps,
            chunks: 0,
            _reserved: None,
        };
        if fill.gaps.is_empty() {
            return Some(fill);
        }
        if self.store.is_out_of_use() || (!state.recorded().is_queued() && self.store.is_crowded())
        {
            return None;
        }
        fill.chunks = state.presence().uncharged(&fill.gaps);
        fill._reserved = Some(self.store.reserve(fill.chunks)?);
        match self.create_to_fill(&mut state) {
            Ok(file) => fill.file = Some(file),
            Err(error) => {
                self.store.note_error(&error);
                self.store.gauge.change_chunks(fill.chunks, 0);
                return None;
            }
        }
        fill.serial = state.serial();
        self.filling().begin(fill.serial, &fill.gaps);
        Some(fill)
    }

    /// Marks what a fill wrote as known, if that is still valid. Returns whether it is.
    pub(crate) fn end_fill(&self, fill: Fill<'_>, written: io::Result<Summed>) -> bool {
        if fill.file.is_none() {
            return true;
        }
        let mut state = self.state();
        self.filling().end(fill.serial, &fill.gaps);
        let is_there = state.serial() == fill.serial;
        let sums = match written {
            Ok(sums) if is_there && state.version() == Some(&*fill.version) => sums,
            result => {
                if let Err(error) = result {
                    self.store.note_error(&error);
                }
                self.store.gauge.change_chunks(fill.chunks, 0);
                return false;
            }
        };
        debug_assert!(state.size() == fill.size);
        // A neighbour in the same chunk may have been stored, or dropped, in between.
        let charged = state.fill(&fill.gaps, sums);
        self.store.gauge.change_chunks(fill.chunks, charged);
        state.check();
        self.queue(&mut state);
        true
    }
}

impl CachedFile {
    /// Whether a fill of the whole file takes no longer than copying it: the file is still only in
    /// memory, or would be, and no other thread is using it.
    pub fn fills_quickly(&self) -> bool {
        let store = &self.store;
        self.filling().turns.is_free()
            && self.try_state().is_some_and(|state| {
                let local = state.local();
                let may_wait = !local.is_there() && state.size() <= SHORT_BYTES_MAX;
                local.unwritten().is_some() || (may_wait && !store.unwritten.is_filling())
            })
    }

    /// The local file for bytes from a server, in memory if it is short and new.
    pub(crate) fn create_to_fill(&self, state: &mut State) -> io::Result<Arc<dyn DiskFile>> {
        let (store, size) = (&self.store, state.size());
        if state.local().is_there() {
            return self.local(state);
        }
        if size > SHORT_BYTES_MAX || !store.unwritten.take(size) {
            return self.create_local(state);
        }
        if !store.gauge.reserve_file() {
            store.unwritten.give_back(size);
            store.bell.ring();
            return Err(io::ErrorKind::StorageFull.into());
        }
        store.gauge.await_write(room_of(size));
        let file = Arc::new(UnwrittenFile::new(size));
        state.create_unwritten(store.index.next_number(), Arc::clone(&file));
        if store.unwritten.is_filling() {
            store.bell.ring();
        }
        Ok(file)
    }
}

/// An offset within a buffer.
fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("an offset within a buffer fits")
}

//! Finds what the kernel wrote to a local file in a bypass: compares the whole file with the
//! checksums that its chunks had.
//!
//! This may read gigabytes, and another caller of the file may be a thread that serves the whole
//! mount. So each piece is read without the file's lock, and the result counts if the file was not
//! changed here in the meantime; otherwise the piece is read once more, with the lock. What the
//! kernel writes during the comparison is found by the next one, because the local file's times
//! have changed then.
//!
//! Of a changed chunk, only bytes are sent that may have been written here, because another client
//! may have written beside them in the meantime. Where the earlier bytes are known ([`Base`]),
//! these are the bytes that differ. Elsewhere, holes count as not written, and so do the zeros
//! beside other bytes in a block that was a hole at the last comparison.
//!
//! [`Base`]: crate::state::Base

use std::io;
use std::ops::Range;
use std::sync::MutexGuard;

use larder_io::{DiskFile, Stamp};

use crate::file::CachedFile;
use crate::lock;
use crate::ranges::RangeSet;
use crate::state::{GAP_BYTES_MIN, State};

use crate::sums::{Summer, chunk_range, chunks_of, pieces_of};

/// File systems distinguish data from holes by blocks that are no smaller.
const BLOCK_BYTES: u64 = 4096;

/// The result of reading a piece.
struct Read {
    sums: Vec<u32>,
    /// In each block, from its first nonzero byte to its last one; the whole block if all of it is
    /// zero.
    inner: Vec<Range<u64>>,
    /// Bytes of chunks that are kept as a base for later changes, and the numbers of those chunks.
    base: Vec<u8>,
    base_chunks: Range<u64>,
    /// Where the piece is not a hole. Determined after the sums, so that the sums include no data
    /// that is missing here.
    data: RangeSet,
}

impl CachedFile {
    /// Finds what the kernel wrote: changed and new chunks become dirty, the size follows the local
    /// file. Reads the whole local file; other callers use the file meanwhile, and one caller at a
    /// time compares it. The bypass may continue afterwards. Returns the local file's stamp from
    /// before it was read; `None` if the kernel does not write it.
    ///
    /// # Errors
    /// The disk's; changes may then be missed and the caller must report that.
    pub fn collect_bypass(&self) -> io::Result<Option<Stamp>> {
        let _turn = lock(&self.verifying);
        let (file, serial, stamp, pieces) = {
            let mut state = self.state();
            if !state.is_bypassed() {
                return Ok(None);
            }
            let file = self.local(&state)?;
            let stamp = file.stamp()?;
            let pieces = self.begin_comparing(&mut state, &*file, &stamp);
            self.note(&mut state);
            (file, state.serial(), stamp, pieces?)
        };
        for piece in pieces {
            if !self.compare_piece(&*file, serial, piece)? {
                return Ok(Some(stamp));
            }
        }
        if let Some(mut state) = self.in_bypass(serial) {
            self.end_comparing(&mut state, stamp);
            self.note(&mut state);
        }
        Ok(Some(stamp))
    }

    /// The same under the file's lock, for a local file that had this `stamp` a moment ago.
    pub(crate) fn collect(&self, state: &mut State, stamp: Stamp) -> io::Result<()> {
        let file = self.local(state)?;
        for piece in self.begin_comparing(state, &*file, &stamp)? {
            let base = state.base().wanted_of(&piece);
            let read = read_piece(&*file, &piece, base, state.size())?;
            self.take_piece(state, piece, &read);
        }
        self.end_comparing(state, stamp);
        Ok(())
    }

    /// Follows the local file's size, and returns what is to be compared.
    fn begin_comparing(
        &self,
        state: &mut State,
        file: &dyn DiskFile,
        stamp: &Stamp,
    ) -> io::Result<Vec<Range<u64>>> {
        // If the end moved and the old tail was changed, its sum is gone afterwards, so it counts
        // as changed.
        self.follow_to(state, file, stamp.size)?;
        let known = state.known().iter().map(|range| chunks_of(&range));
        Ok(known.flat_map(pieces_of).collect())
    }

    /// Compares one piece without the lock. Returns whether the bypass still continues.
    fn compare_piece(
        &self,
        file: &dyn DiskFile,
        serial: u64,
        piece: Range<u64>,
    ) -> io::Result<bool> {
        let Some(before) = self.in_bypass(serial) else { return Ok(false) };
        let (size, changes) = (before.size(), before.changes().count());
        let base = before.base().wanted_of(&piece);
        drop(before);
        let read = read_piece(file, &piece, base.clone(), size);
        let Some(mut state) = self.in_bypass(serial) else { return Ok(false) };
        let is_same = state.size() == size && state.changes().count() == changes;
        let read = match read {
            Ok(read) if is_same => read,
            _ => read_piece(file, &piece, base, state.size())?,
        };
        self.take_piece(&mut state, piece, &read);
        self.note(&mut state);
        Ok(true)
    }

    /// The state, if the kernel still writes this local file.
    fn in_bypass(&self, serial: u64) -> Option<MutexGuard<'_, State>> {
        Some(self.state()).filter(|state| state.is_bypassed() && state.serial() == serial)
    }

    /// Chunks whose checksum is new or different become dirty.
    fn take_piece(&self, state: &mut State, piece: Range<u64>, read: &Read) {
        let written = may_be_written(state.data(), read, piece.start);
        for (chunk, sum) in piece.zip(&read.sums) {
            let before = state.sums().get(chunk);
            let bytes = read.bytes_of(chunk, state.size());
            if before != Some(*sum) {
                let range = chunk_range(chunk, state.size());
                let compared = bytes.and_then(|bytes| state.base().changes(chunk, bytes));
                let (places, len) = compared.clone().unwrap_or_default();
                let mut changed = at(range.start, places);
                let grown = range.start + len as u64..range.end;
                let new = match bytes {
                    Some(bytes) if compared.is_some() => at(grown.start, inner(&bytes[len..])),
                    _ => vec![grown.clone()],
                };
                changed.extend(new.into_iter().flat_map(|new| written.clip(new)));
                if before.is_none() && range.end == state.size() {
                    changed.extend(tail(grown, changed.last()));
                }
                state.find_change(chunk, *sum, changed);
            }
            if let Some(bytes) = bytes {
                state.keep_base(chunk, bytes);
            }
        }
        state.note_data(&read.data);
    }

    fn end_comparing(&self, state: &mut State, stamp: Stamp) {
        state.set_collected(stamp);
        self.queue(state);
        state.check();
    }
}

impl Read {
    /// The bytes of a chunk in a file of `size` bytes, if the chunk is kept as a base.
    fn bytes_of(&self, chunk: u64, size: u64) -> Option<&[u8]> {
        let first = self.base_chunks.start * crate::CHUNK_BYTES;
        let range = self.base_chunks.contains(&chunk).then(|| chunk_range(chunk, size))?;
        let index = |at: u64| usize::try_from(at - first).expect("the base is in memory");
        self.base.get(index(range.start)..index(range.end))
    }
}

/// Reads the chunks of a piece that lie in a file of `size` bytes, and keeps the bytes of some.
fn read_piece(
    file: &dyn DiskFile,
    piece: &Range<u64>,
    base_chunks: Range<u64>,
    size: u64,
) -> io::Result<Read> {
    let piece = piece.start..piece.end.min(chunks_of(&(0..size)).end);
    let mut summer = Summer::new();
    let (mut sums, mut inner, mut base) = (Vec::new(), Vec::new(), Vec::new());
    for chunk in piece.clone() {
        sums.push(summer.sum(file, chunk, size)?);
        if base_chunks.contains(&chunk) {
            base.extend_from_slice(summer.bytes());
        }
        let starts = (chunk * crate::CHUNK_BYTES..).step_by(BLOCK_BYTES as usize);
        let blocks = summer.bytes().chunks(BLOCK_BYTES as usize).zip(starts);
        inner.extend(blocks.map(|(block, start)| without_zeros(block, start)));
    }
    let mut data = RangeSet::default();
    if size <= BLOCK_BYTES {
        // Not worth a call of the disk.
        data.insert(0..size);
    } else if !piece.is_empty() {
        let bytes = piece.start * crate::CHUNK_BYTES..chunk_range(piece.end - 1, size).end;
        file.data_ranges(bytes)?.into_iter().for_each(|range| data.insert(range));
    }
    Ok(Read { sums, inner, base, base_chunks, data })
}

/// Where in a file a part that begins at `start` has these places.
fn at(start: u64, places: impl IntoIterator<Item = Range<usize>>) -> Vec<Range<u64>> {
    let place = |place: Range<usize>| start + place.start as u64..start + place.end as u64;
    places.into_iter().map(place).collect()
}

/// The last byte of what has `grown` beyond the old end, for the server to learn where the end is
/// now; and the few zeros between the `last` change and it, so that one request has them all.
fn tail(grown: Range<u64>, last: Option<&Range<u64>>) -> Option<Range<u64>> {
    let last_byte = grown.end.checked_sub(1).filter(|_| !grown.is_empty())?;
    let data_end = last.map_or(grown.start, |last| last.end).min(last_byte);
    let is_near = last_byte - data_end < GAP_BYTES_MIN as u64;
    Some(if is_near { data_end..grown.end } else { last_byte..grown.end })
}

/// From the first nonzero byte to the last one; `None` if there is none.
fn inner(bytes: &[u8]) -> Option<Range<usize>> {
    let first = bytes.iter().position(|byte| *byte != 0)?;
    let last = bytes.iter().rposition(|byte| *byte != 0)?;
    Some(first..last + 1)
}

/// A block at `start` without the zeros at its edges; the whole block if it is all zeros.
fn without_zeros(block: &[u8], start: u64) -> Range<u64> {
    let inner = inner(block).unwrap_or(0..block.len());
    start + inner.start as u64..start + inner.end as u64
}

/// The parts of what was read, from chunk `first` on, that may have been written, if there was data
/// only in `before`: all data except the zeros at the edges of new blocks. A block of nothing but
/// zeros counts as written.
fn may_be_written(before: &RangeSet, read: &Read, first: u64) -> RangeSet {
    let inner_at = |at: u64| {
        let block = (at - first * crate::CHUNK_BYTES) / BLOCK_BYTES;
        &read.inner[usize::try_from(block).expect("a piece is short")]
    };
    let mut written = RangeSet::default();
    for range in read.data.iter() {
        before.clip(range.clone()).into_iter().for_each(|old| written.insert(old));
        for new in before.gaps(range) {
            let start = new.start.max(inner_at(new.start).start);
            written.insert(start..new.end.min(inner_at(new.end - 1).end));
        }
    }
    written
}

//! Finding what the kernel wrote to a local file in a bypass: all of it is compared with the sums
//! that its chunks had.
//!
//! That reads gigabytes at times, and whoever asks something of the file meanwhile may be a thread
//! that serves the whole mount. So a piece is read without the file's lock, and what was found
//! counts if nobody has changed the file here meanwhile; else the piece is read once more, with the
//! lock. What the kernel writes while it is compared is found by the next comparing: the local
//! file's times have changed then.
//!
//! Of a chunk that has changed the bytes are sent that somebody may have written: another client
//! may have written beside them meanwhile. Where it is known what was there before ([`Base`]),
//! these are the bytes that differ. Elsewhere nobody wrote what is a hole, nor the zeros beside
//! other bytes in a block that was a hole when it was compared last.
//!
//! [`Base`]: crate::state::Base

use std::io;
use std::ops::Range;
use std::sync::MutexGuard;

use larder_io::{DiskFile, Stamp};

use crate::file::CachedFile;
use crate::lock;
use crate::ranges::RangeSet;
use crate::state::State;
use crate::sums::{Summer, chunk_range, chunks_of, pieces_of};

/// File systems tell data from holes by blocks that are no smaller.
const BLOCK_BYTES: u64 = 4096;

/// What was read of a piece.
struct Read {
    sums: Vec<u32>,
    /// Of each block, from its first byte that is not zero to its last one; all of it without one.
    inner: Vec<Range<u64>>,
    /// The bytes of chunks that are kept as a base for later changes, and of which ones.
    kept: Vec<u8>,
    kept_chunks: Range<u64>,
    /// Where the piece is not a hole. Looked for after the sums, so that nothing is in them that
    /// is not here.
    data: RangeSet,
}

impl CachedFile {
    /// Finds what the kernel wrote: changed and new chunks become dirty, the size follows the
    /// local file. Reads the whole local file; others use the file meanwhile, and one caller at a
    /// time compares it. The bypass may go on afterwards. Tells how the local file looked
    /// before it was read; `None` if the kernel does not write it.
    ///
    /// # Errors
    /// What the disk says; changes may then be missed and the caller must say so.
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

    /// The same with the file's lock, of a local file that looked like `stamp` a moment ago.
    pub(crate) fn collect(&self, state: &mut State, stamp: Stamp) -> io::Result<()> {
        let file = self.local(state)?;
        for piece in self.begin_comparing(state, &*file, &stamp)? {
            let kept = state.base().wanted_of(&piece);
            let read = read_piece(&*file, &piece, kept, state.size())?;
            self.take_piece(state, piece, &read);
        }
        self.end_comparing(state, stamp);
        Ok(())
    }

    /// Follows the local file's size, and answers what is to be compared.
    fn begin_comparing(
        &self,
        state: &mut State,
        file: &dyn DiskFile,
        stamp: &Stamp,
    ) -> io::Result<Vec<Range<u64>>> {
        // If the end moved and the old tail was changed, its sum is gone after this, so it counts
        // as changed.
        self.follow_to(state, file, stamp.size)?;
        let known = state.known().iter().map(|range| chunks_of(&range));
        Ok(known.flat_map(pieces_of).collect())
    }

    /// Compares one piece without the lock. Answers whether the bypass still goes on.
    fn compare_piece(
        &self,
        file: &dyn DiskFile,
        serial: u64,
        piece: Range<u64>,
    ) -> io::Result<bool> {
        let Some(before) = self.in_bypass(serial) else { return Ok(false) };
        let (size, changes) = (before.size(), before.changes().count());
        let kept = before.base().wanted_of(&piece);
        drop(before);
        let read = read_piece(file, &piece, kept.clone(), size);
        let Some(mut state) = self.in_bypass(serial) else { return Ok(false) };
        let is_same = state.size() == size && state.changes().count() == changes;
        let read = match read {
            Ok(read) if is_same => read,
            _ => read_piece(file, &piece, kept, state.size())?,
        };
        self.take_piece(&mut state, piece, &read);
        self.note(&mut state);
        Ok(true)
    }

    /// The state, if the kernel still writes this local file.
    fn in_bypass(&self, serial: u64) -> Option<MutexGuard<'_, State>> {
        Some(self.state()).filter(|state| state.is_bypassed() && state.serial() == serial)
    }

    /// What has another sum than before, or had none, is dirty.
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
                // Behind the old end. The server is told where the end is now by the last byte.
                if before.is_none() && !grown.is_empty() && range.end == state.size() {
                    changed.push(range.end - 1..range.end);
                }
                changed.extend(new.into_iter().flat_map(|new| written.clip(new)));
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
    /// The bytes of a chunk in a file of `size` bytes, if it is one that is kept.
    fn bytes_of(&self, chunk: u64, size: u64) -> Option<&[u8]> {
        let first = self.kept_chunks.start * crate::CHUNK_BYTES;
        let range = self.kept_chunks.contains(&chunk).then(|| chunk_range(chunk, size))?;
        let index = |at: u64| usize::try_from(at - first).expect("what is kept is in memory");
        self.kept.get(index(range.start)..index(range.end))
    }
}

/// Reads the chunks of a piece that lie in a file of `size` bytes, and keeps the bytes of some.
fn read_piece(
    file: &dyn DiskFile,
    piece: &Range<u64>,
    kept_chunks: Range<u64>,
    size: u64,
) -> io::Result<Read> {
    let piece = piece.start..piece.end.min(chunks_of(&(0..size)).end);
    let mut summer = Summer::new();
    let (mut sums, mut inner, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    for chunk in piece.clone() {
        sums.push(summer.sum(file, chunk, size)?);
        if kept_chunks.contains(&chunk) {
            kept.extend_from_slice(summer.bytes());
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
    Ok(Read { sums, inner, kept, kept_chunks, data })
}

/// Where in a file a part that begins at `start` has these places.
fn at(start: u64, places: impl IntoIterator<Item = Range<usize>>) -> Vec<Range<u64>> {
    let place = |place: Range<usize>| start + place.start as u64..start + place.end as u64;
    places.into_iter().map(place).collect()
}

/// From the first byte that is not zero to the last one; `None` if there is none.
fn inner(bytes: &[u8]) -> Option<Range<usize>> {
    let first = bytes.iter().position(|byte| *byte != 0)?;
    let last = bytes.iter().rposition(|byte| *byte != 0)?;
    Some(first..last + 1)
}

/// A block at `start` but for the zeros at its edges; all of it if there is nothing else.
fn without_zeros(block: &[u8], start: u64) -> Range<u64> {
    let inner = inner(block).unwrap_or(0..block.len());
    start + inner.start as u64..start + inner.end as u64
}

/// The parts of what was read from chunk `first` on that somebody may have written, if there was
/// data in `before` and nowhere else: all data but the zeros at the edges of what is new. A block
/// of nothing but zeros was written.
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

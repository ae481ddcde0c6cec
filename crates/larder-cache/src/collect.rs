//! Finding what the kernel wrote to a local file in a bypass: all of it is compared with the sums
//! that its chunks had.
//!
//! That reads gigabytes at times, and whoever asks something of the file meanwhile may be a thread
//! that serves the whole mount. So a piece is read without the file's lock, and what was found
//! counts if nobody has changed the file here meanwhile; else the piece is read once more, with the
//! lock. What the kernel writes while it is compared is found by the next comparing: the local
//! file's times have changed then.

use std::io;
use std::ops::Range;
use std::sync::MutexGuard;

use larder_io::{DiskFile, Stamp};

use crate::file::CachedFile;
use crate::lock;
use crate::ranges::RangeSet;
use crate::state::State;
use crate::sums::{Summer, chunk_range, chunks_of, pieces_of};

/// What was read of a piece.
struct Read {
    sums: Vec<u32>,
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
            let read = read_piece(&*file, &piece, state.size())?;
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
        drop(before);
        let read = read_piece(file, &piece, size);
        let Some(mut state) = self.in_bypass(serial) else { return Ok(false) };
        let is_same = state.size() == size && state.changes().count() == changes;
        let read = match read {
            Ok(read) if is_same => read,
            _ => read_piece(file, &piece, state.size())?,
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
        for (chunk, sum) in piece.zip(&read.sums) {
            let before = state.sums().get(chunk);
            if before == Some(*sum) {
                continue;
            }
            let range = chunk_range(chunk, state.size());
            let changed = if before.is_some() {
                vec![range]
            } else {
                // Behind the old end. What nobody wrote there is zero at the server too once it has
                // the last byte, or it is somebody else's by now, and not to be
                // overwritten with zeros.
                let last = (range.end == state.size()).then(|| range.end - 1..range.end);
                read.data.clip(range).into_iter().chain(last).collect()
            };
            state.find_change(chunk, *sum, changed);
        }
    }

    fn end_comparing(&self, state: &mut State, stamp: Stamp) {
        state.set_collected(stamp);
        self.queue(state);
        state.check();
    }
}

/// Reads the chunks of a piece that lie in a file of `size` bytes.
fn read_piece(file: &dyn DiskFile, piece: &Range<u64>, size: u64) -> io::Result<Read> {
    let piece = piece.start..piece.end.min(chunks_of(&(0..size)).end);
    let mut summer = Summer::new();
    let sums: io::Result<Vec<u32>> =
        piece.clone().map(|chunk| summer.sum(file, chunk, size)).collect();
    let sums = sums?;
    let mut data = RangeSet::default();
    if size <= crate::CHUNK_BYTES {
        // Not worth a call of the disk: its one chunk is sent.
        data.insert(0..size);
    } else if !piece.is_empty() {
        let bytes = piece.start * crate::CHUNK_BYTES..chunk_range(piece.end - 1, size).end;
        file.data_ranges(bytes)?.into_iter().for_each(|range| data.insert(range));
    }
    Ok(Read { sums, data })
}

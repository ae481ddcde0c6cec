//! Which bytes of a file are here.
//!
//! Invariants:
//! - Dirty bytes are known, and known bytes are within the file.
//! - A chunk has a checksum only if all its bytes up to the end of file are known, and then the
//!   checksum is that of the bytes last filled, written or found.
//! - `charged` is the number of chunks that known bytes touch, except between a loss of bytes and
//!   the [`Presence::recharge`] that follows.
//! - Every chunk whose bytes or sum changed is *touched* until a save takes it.

use std::io;
use std::ops::Range;

use super::dirty::{Dirty, Note};
use crate::CHUNK_BYTES;
use crate::ranges::RangeSet;
use crate::sums::{Group, Sums, chunk_range, chunks_of};

/// Larger files are not cached; see [`crate::sums::group_of`].
pub(crate) const SIZE_MAX: u64 = 1 << 55;
/// Zeros of an extension that are held; a larger hole is left to the caller's zero point, because
/// what is held is charged, although a hole of a terabyte costs the disk nothing.
pub(crate) const ZEROS_MAX: u64 = 1 << 20;

/// The bytes of one local file.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    size: u64,
    /// Clean and dirty bytes.
    known: RangeSet,
    dirty: Dirty,
    sums: Sums,
    charged: u64,
    /// Chunks changed since the last save.
    touched: RangeSet,
    /// See [`Presence::data`].
    data: RangeSet,
}

impl Presence {
    /// Nothing of a file of `size` bytes.
    pub(crate) fn nothing(size: u64) -> Presence {
        Presence { size, ..Presence::default() }
    }

    /// From the checksums in an index.
    pub(crate) fn saved(size: u64, groups: impl IntoIterator<Item = (u32, Group)>) -> Presence {
        let mut found = Presence::nothing(size);
        for (number, group) in groups {
            found.sums.insert_group(number, group);
        }
        for chunk in found.sums.chunks() {
            found.known.insert(chunk_range(chunk, size));
        }
        found.charged = found.charged_now();
        found
    }

    /// What an earlier run changed, in a file of at least `size` bytes. As many chunks are charged
    /// as before, until [`Presence::recharge`].
    pub(crate) fn changed(size: u64, dirty: &[Range<u64>], charged: u64) -> Presence {
        let mut found = Presence { charged, ..Presence::nothing(size) };
        for range in dirty {
            found.size = found.size.max(range.end);
            found.dirty.restore(range.clone());
            found.known.insert(range.clone());
        }
        found
    }

    /// End of file, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Clean and dirty bytes.
    pub(crate) fn known(&self) -> &RangeSet {
        &self.known
    }

    /// Bytes that no server has.
    pub(crate) fn dirty(&self) -> &RangeSet {
        self.dirty.ranges()
    }

    pub(crate) fn sums(&self) -> &Sums {
        &self.sums
    }

    /// Ranges of a local file in a bypass: outside of them it was a hole, or beyond the end, when
    /// it was last compared.
    pub(crate) fn data(&self) -> &RangeSet {
        &self.data
    }

    /// The sums alone.
    pub(crate) fn into_sums(self) -> Sums {
        self.sums
    }

    /// Chunks that the accounts have for this file.
    pub(crate) fn charged(&self) -> u64 {
        self.charged
    }

    /// Whether all bytes up to the end of file are known.
    pub(crate) fn is_whole(&self) -> bool {
        self.known.contains(0..self.size)
    }

    /// Whether a chunk is held as a whole and clean.
    pub(crate) fn is_complete(&self, chunk: u64) -> bool {
        self.is_known(chunk) && !self.dirty().intersects(chunk_range(chunk, self.size))
    }

    /// Chunks that these parts, which are in order, touch and no known byte does.
    pub(crate) fn uncharged(&self, parts: &[Range<u64>]) -> u64 {
        let (mut count, mut counted_to) = (0, 0);
        for part in parts {
            let chunks = chunks_of(part);
            let chunks = chunks.start.max(counted_to).min(chunks.end)..chunks.end;
            counted_to = chunks.end;
            let is_new = |chunk: &u64| !self.known.intersects(chunk_range(*chunk, self.size));
            count += chunks.filter(is_new).count() as u64;
        }
        count
    }

    /// Clean bytes were stored, and sums of chunks that were stored whole. Returns how many chunks
    /// are charged for them.
    pub(crate) fn fill(&mut self, parts: &[Range<u64>], sums: Vec<(u64, u32)>) -> u64 {
        debug_assert!(
            parts.iter().all(|part| part.end <= self.size && !self.known.intersects(part.clone())),
            "what is filled is within the file, and was not known"
        );
        let more = self.uncharged(parts);
        self.charged += more;
        for part in parts {
            self.touched.insert(chunks_of(part));
            self.known.insert(part.clone());
        }
        for (chunk, sum) in sums {
            debug_assert!(self.is_known(chunk), "a chunk that came whole is known whole");
            self.sums.set_verified(chunk, sum);
        }
        more
    }

    /// Bytes were changed here. Extends the file.
    pub(crate) fn write(&mut self, range: Range<u64>) {
        self.set_size(self.size.max(range.end));
        self.charged += self.uncharged(std::slice::from_ref(&range));
        self.known.insert(range.clone());
        self.touch(chunks_of(&range));
        self.dirty.insert(range);
    }

    /// Bytes within the file, none of them dirty, are others now, and known.
    pub(crate) fn take_copied(&mut self, range: Range<u64>) {
        debug_assert!(
            range.end <= self.size && !self.dirty().intersects(range.clone()),
            "what the server copied is within the file, and was not dirty"
        );
        self.charged += self.uncharged(std::slice::from_ref(&range));
        self.known.insert(range.clone());
        self.touch(chunks_of(&range));
    }

    /// These bytes, which were not known, are zeros.
    pub(crate) fn hold_zeros(&mut self, range: Range<u64>) {
        debug_assert!(
            range.end <= self.size && !self.known.intersects(range.clone()),
            "zeros are held within the file, where nothing was known"
        );
        self.charged += self.uncharged(std::slice::from_ref(&range));
        self.known.insert(range);
    }

    /// The bytes of a range are zeros now. They are as known as before, except that more than
    /// [`ZEROS_MAX`] clean ones are not held: they would be charged.
    pub(crate) fn zero(&mut self, range: Range<u64>) {
        if range.end - range.start > ZEROS_MAX {
            self.forget_clean(range);
        } else {
            self.touch(chunks_of(&range));
        }
    }

    /// Moves the end of file to its present place; new bytes are not known yet. Returns whether it
    /// moved.
    pub(crate) fn set_size(&mut self, size: u64) -> bool {
        if size == self.size {
            return false;
        }
        // The last chunk before either end covers other bytes from now on.
        let edge = size.min(self.size);
        self.known.remove(size..u64::MAX);
        self.dirty.remove(size..u64::MAX);
        self.data.remove(size..u64::MAX);
        let last = size.max(self.size).div_ceil(CHUNK_BYTES);
        self.touch(edge / CHUNK_BYTES..last);
        self.size = size;
        true
    }

    /// Follows the local file in a bypass. All of it is known except holes larger than
    /// [`ZEROS_MAX`]: to checksum, send and charge their zeros would take as long as they are
    /// large. The server has the same zeros there, because the whole file was held when the bypass
    /// began. Returns whether the end moved.
    pub(crate) fn follow_local(&mut self, data: Vec<Range<u64>>, len: u64) -> io::Result<bool> {
        if len > SIZE_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let has_moved = self.set_size(len);
        let mut end = 0;
        // The end counts as data of no length, so that the hole before it is treated like the
        // others.
        for range in data.into_iter().chain(std::iter::once(len..len)) {
            let start = if range.start - end <= ZEROS_MAX { end } else { range.start };
            self.known.insert(start..range.end);
            end = range.end;
        }
        let known: Vec<_> = self.known.iter().collect();
        for chunks in known.iter().map(chunks_of) {
            let (start, end) = (chunks.start * CHUNK_BYTES, chunks.end * CHUNK_BYTES);
            self.known.insert(start..end.min(len));
        }
        Ok(has_moved)
    }

    /// The local file may have data everywhere, as far as is known.
    pub(crate) fn all_is_data(&mut self) {
        self.data = RangeSet::default();
        self.data.insert(0..self.size);
    }

    /// The local file has data here.
    pub(crate) fn note_data(&mut self, data: &RangeSet) {
        data.iter().for_each(|range| self.data.insert(range));
    }

    /// All bytes are known, because they were verified.
    pub(crate) fn know_all(&mut self) {
        self.known.insert(0..self.size);
    }

    /// Forgets the clean bytes of a range.
    pub(crate) fn forget_clean(&mut self, range: Range<u64>) {
        for gap in self.dirty().gaps(range.clone()) {
            self.known.remove(gap);
        }
        self.touch(chunks_of(&range));
    }

    /// A chunk that is known was read or written, and has this sum.
    pub(crate) fn set_sum(&mut self, chunk: u64, sum: u32) {
        debug_assert!(self.is_known(chunk), "a chunk that has a sum is known whole");
        self.sums.set_verified(chunk, sum);
    }

    /// A known chunk has another checksum than before: it must be saved again.
    pub(crate) fn change_sum(&mut self, chunk: u64, sum: u32) {
        debug_assert!(self.is_known(chunk), "a chunk that has another sum is known whole");
        self.sums.set_verified(chunk, sum);
        self.touched.insert(chunk..chunk + 1);
    }

    /// Bytes that are known are dirty.
    pub(crate) fn set_dirty(&mut self, range: Range<u64>) {
        debug_assert!(self.known.contains(range.clone()), "bytes that are dirty are known");
        self.dirty.insert(range);
    }

    /// See [`Dirty::begin_sending`].
    pub(crate) fn begin_sending(&mut self) -> Vec<Range<u64>> {
        self.dirty.begin_sending()
    }

    /// The server has these bytes, except those written since [`Presence::begin_sending`].
    pub(crate) fn set_sent(&mut self, range: Range<u64>) {
        self.dirty.sent(range).into_iter().for_each(|part| self.dirty.remove(part));
    }

    /// See [`Dirty::begin_sync`].
    pub(crate) fn begin_sync(&mut self) -> Vec<Range<u64>> {
        self.dirty.begin_sync()
    }

    /// See [`Dirty::not_synced`].
    pub(crate) fn not_synced(&mut self, ranges: Vec<Range<u64>>) {
        self.dirty.not_synced(ranges);
    }

    /// See [`Dirty::take_unnoted`].
    pub(crate) fn take_unnoted(&mut self) -> Vec<Note> {
        self.dirty.take_unnoted()
    }

    /// Updates `charged` to what is known; returns the old and the new number.
    pub(crate) fn recharge(&mut self) -> (u64, u64) {
        let now = self.charged_now();
        (std::mem::replace(&mut self.charged, now), now)
    }

    /// Chunks that changed since the last save, which are about to be saved.
    pub(crate) fn take_touched(&mut self) -> RangeSet {
        std::mem::take(&mut self.touched)
    }

    /// Chunks that were not saved after all.
    pub(crate) fn touch_again(&mut self, chunks: &RangeSet) {
        chunks.iter().for_each(|chunks| self.touched.insert(chunks));
    }

    /// All chunks are to be saved.
    pub(crate) fn touch_all(&mut self) {
        self.touched.insert(0..self.size.div_ceil(CHUNK_BYTES));
    }

    /// Whether chunks changed since the last save.
    pub(crate) fn is_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Checks the invariants that are cheap to check.
    pub(crate) fn check(&self) {
        debug_assert!(self.known.end() <= self.size, "known bytes are within the file");
        debug_assert!(
            self.dirty().iter().all(|range| self.known.contains(range)),
            "dirty bytes are known"
        );
        debug_assert_eq!(self.charged, self.charged_now(), "known chunks are charged");
    }

    /// Whether all bytes of a chunk are known; `false` for a chunk without bytes.
    fn is_known(&self, chunk: u64) -> bool {
        let range = chunk_range(chunk, self.size);
        !range.is_empty() && self.known.contains(range)
    }

    /// Bytes in these chunks change: their sums go.
    fn touch(&mut self, chunks: Range<u64>) {
        self.sums.clear(chunks.clone());
        self.touched.insert(chunks);
    }

    /// Chunks that `known` touches, recounted.
    fn charged_now(&self) -> u64 {
        let mut count = 0;
        let mut counted_to = 0;
        for range in self.known.iter() {
            let chunks = chunks_of(&range);
            count += chunks.end - chunks.start.max(counted_to).min(chunks.end);
            counted_to = chunks.end;
        }
        count
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "a list of ranges often has one")]
mod tests;

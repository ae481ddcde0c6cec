//! What is known of one file's data, without a disk.
//!
//! Invariants:
//! - `dirty` lies within `known`, `known` within `0..size`.
//! - A chunk has a sum only if all its bytes up to `size` are known, and then the sum is that of
//!   the bytes last filled, written or collected.
//! - `charged` is the number of chunks that `known` touches.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Weak;

use larder_io::{Monotonic, Stamp};

use crate::backing::BackingFile;
use crate::local_record::LocalRecord;
use crate::ranges::RangeSet;
use crate::records::FileRecord;
use crate::sums::{Sums, chunk_range, chunks_of};

/// Larger files are not cached; see [`crate::sums::group_of`].
pub(crate) const SIZE_MAX: u64 = 1 << 55;
/// Zeros of an extension that are held; a larger hole is left to the caller's zero point, because
/// what is held is charged, and a hole of a terabyte costs the disk nothing.
pub(crate) const ZEROS_MAX: u64 = 1 << 20;

/// The state of a [`crate::CachedFile`].
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The index was asked for this file.
    pub(crate) loaded: bool,
    pub(crate) version: Option<Vec<u8>>,
    pub(crate) size: u64,
    /// Number of the local file; 0 without one.
    pub(crate) serial: u64,
    /// Clean and dirty bytes.
    pub(crate) known: RangeSet,
    /// Changed by [`State::set_dirty`] only, so that the index hears of it.
    pub(crate) dirty: RangeSet,
    /// What became dirty since somebody began to send the dirty bytes.
    pub(crate) rewritten: Option<RangeSet>,
    pub(crate) sums: Sums,
    pub(crate) charged: u64,
    pub(crate) pinned: bool,
    pub(crate) last_use_sec: u64,

    /// The local file was looked at since loading.
    pub(crate) settled: bool,
    /// The local file is the one that the index saw, or has been verified as a whole: it may be
    /// handed out without reading it.
    pub(crate) stamped: bool,
    /// No local change happened since the version was set.
    pub(crate) current: bool,
    /// When the last local change began.
    pub(crate) changed_at: Option<Monotonic>,
    /// Counts what makes a prepared save wrong.
    pub(crate) changes: u64,
    /// Bypasses that go on.
    pub(crate) bypasses: u32,
    /// The local file before the last collection.
    pub(crate) collected_at: Option<Stamp>,
    /// The local file when the present bypass began.
    pub(crate) bypassed_at: Option<Stamp>,
    /// How the local file looked when all its pages were last brought to the disk in a bypass.
    pub(crate) clean_at: Option<Stamp>,
    pub(crate) backing: Weak<BackingFile>,
    /// An earlier run died in a bypass: the kernel may still be writing.
    pub(crate) bypassed_before: bool,
    /// Bytes were acknowledged since the version was set.
    pub(crate) acknowledged: bool,
    /// All of the local file was synced since its last local change.
    pub(crate) synced: bool,
    /// What the index says of the local changes.
    pub(crate) noted: Option<LocalRecord>,
    /// Dirty ranges, start and end or nothing, that the index has yet to be told.
    pub(crate) unnoted: Vec<(u64, Option<u64>)>,

    /// It is in the list of files to save.
    pub(crate) queued: bool,
    /// Chunks changed since the last save.
    pub(crate) touched: RangeSet,
    /// Something else changed since then.
    pub(crate) record_changed: bool,

    /// The index has, or may soon have, a record of this file.
    pub(crate) recorded: bool,
    /// That record vouches for bytes of the present local file.
    pub(crate) vouched: bool,
    /// The index has a dirty mark.
    pub(crate) marked: bool,
    /// Groups that the index has.
    pub(crate) saved_groups: BTreeSet<u32>,
    /// What the record says, for accounts and for trust.
    pub(crate) saved: FileRecord,
}

impl State {
    /// Chunks of a window that `known` touches.
    pub(crate) fn charged_in(&self, chunks: Range<u64>) -> u64 {
        let size = self.size;
        chunks.filter(|&chunk| self.known.intersects(chunk_range(chunk, size))).count() as u64
    }

    /// Chunks that `known` touches, counted anew.
    pub(crate) fn charged_now(&self) -> u64 {
        let mut count = 0;
        let mut counted_to = 0;
        for range in self.known.iter() {
            let chunks = chunks_of(&range);
            count += chunks.end - chunks.start.max(counted_to).min(chunks.end);
            counted_to = chunks.end;
        }
        count
    }

    /// Whether a chunk is held as a whole and clean.
    pub(crate) fn is_complete(&self, chunk: u64) -> bool {
        let range = chunk_range(chunk, self.size);
        !range.is_empty() && self.known.contains(range.clone()) && !self.dirty.intersects(range)
    }

    /// Bytes in these chunks change: their sums go.
    pub(crate) fn touch_chunks(&mut self, chunks: Range<u64>) {
        self.sums.clear(chunks.clone());
        self.touched.insert(chunks);
    }

    /// Forgets the clean bytes of a range.
    pub(crate) fn forget_clean(&mut self, range: Range<u64>) {
        for gap in self.dirty.gaps(range.clone()) {
            self.known.remove(gap);
        }
        self.touch_chunks(chunks_of(&range));
    }

    /// Makes a range dirty, or not.
    pub(crate) fn set_dirty(&mut self, range: Range<u64>, is_dirty: bool) {
        if range.is_empty() {
            return;
        }
        self.synced = false;
        if is_dirty && let Some(rewritten) = &mut self.rewritten {
            rewritten.insert(range.clone());
        }
        if is_dirty && self.dirty.contains(range.clone()) {
            return;
        }
        let before = self.dirty.around(&range);
        if is_dirty {
            self.dirty.insert(range.clone());
        } else {
            self.dirty.remove(range.clone());
        }
        let start = before.first_key_value().map_or(range.start, |(&first, _)| first);
        let end = before.last_key_value().map_or(range.end, |(_, &last)| last.max(range.end));
        let after = self.dirty.around(&(start..end));
        let gone = before.keys().filter(|start| !after.contains_key(start));
        self.unnoted.extend(gone.map(|&start| (start, None)));
        let new = after.iter().filter(|(start, end)| before.get(start) != Some(end));
        self.unnoted.extend(new.map(|(&start, &end)| (start, Some(end))));
    }

    /// Moves the end of file to where it is now; new bytes are not known yet.
    pub(crate) fn set_size(&mut self, size: u64) {
        if size == self.size {
            return;
        }
        // The last chunk before either end covers other bytes from now on.
        let edge = size.min(self.size);
        self.known.remove(size..u64::MAX);
        self.set_dirty(size..u64::MAX, false);
        let last = size.max(self.size).div_ceil(crate::CHUNK_BYTES);
        self.touch_chunks(edge / crate::CHUNK_BYTES..last);
        self.size = size;
    }

    /// Follows the local file in a bypass. All of it is known but for holes larger than
    /// [`ZEROS_MAX`]: to sum, send and charge their zeros would take as long as they are large.
    /// The server has the same zeros there, as all of the file was held when the bypass began.
    pub(crate) fn follow_local(&mut self, data: Vec<Range<u64>>, len: u64) -> io::Result<()> {
        if len > SIZE_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.set_size(len);
        let mut end = 0;
        // The end counts as data of no length, so that the hole before it is judged like the
        // others.
        for range in data.into_iter().chain(std::iter::once(len..len)) {
            let start = if range.start - end <= ZEROS_MAX { end } else { range.start };
            self.known.insert(start..range.end);
            end = range.end;
        }
        let known: Vec<_> = self.known.iter().collect();
        for chunks in known.iter().map(chunks_of) {
            let (start, end) = (chunks.start * crate::CHUNK_BYTES, chunks.end * crate::CHUNK_BYTES);
            self.known.insert(start..end.min(len));
        }
        Ok(())
    }

    /// Whether the index may say that this is what the version's bytes are.
    pub(crate) fn is_clean(&self) -> bool {
        self.dirty.is_empty() && self.current && self.bypasses == 0
    }

    /// Whether there are local changes that no server has acknowledged.
    pub(crate) fn has_changes(&self) -> bool {
        !self.dirty.is_empty() || self.bypasses > 0
    }

    /// Whether the kernel may be writing the local file, as far as a later run must believe.
    pub(crate) fn may_be_bypassed(&self) -> bool {
        self.bypasses > 0 || self.bypassed_before
    }

    /// Whether `noted` still says what is so.
    pub(crate) fn is_noted(&self) -> bool {
        match &self.noted {
            None => self.is_clean(),
            Some(noted) => {
                !self.is_clean()
                    && noted.serial == self.serial
                    && noted.size.max(self.dirty.end()) == self.size
                    && noted.bypass == self.may_be_bypassed()
                    && noted.acknowledged == self.acknowledged
                    && noted.synced == self.synced
                    && self.version.as_ref() == Some(&noted.version)
            }
        }
    }

    /// Checks the invariants that are cheap to check.
    pub(crate) fn check(&self) {
        debug_assert!(self.known.iter().all(|range| range.end <= self.size));
        debug_assert!(self.dirty.iter().all(|range| self.known.contains(range)));
        debug_assert_eq!(self.charged, self.charged_now());
    }
}

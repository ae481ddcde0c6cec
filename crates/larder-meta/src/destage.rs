//! Plans moving bytes to other disks, from memory disks and from disks that leave: which file is
//! next, and which moves are in progress.
//!
//! The record of a file says when its bytes in memory are due
//! ([`crate::store::records::InMemory`]); what is on a disk that leaves is due as soon as it is
//! found ([`crate::leaving`]), and so is what is on a memory disk whose machine lacks memory. This
//! module only keeps the order in which to look at the records, so
//! an entry may be out of date, and the caller of [`Destage::next`] reads the record. One [`Move`]
//! of a file is in progress at a time; several files are moved at once.
//!
//! A pure state machine: the committer begins and ends moves in transactions and has the disks copy
//! ([`crate::live`]); [`crate::destaging`] tells the committer when something is due.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use larder_wire::meta::words::{DiskId, FileId};

use crate::activity::Destaging;
use crate::data::moving::Move;
use crate::store::records::NEVER_MS;

/// Most files that are moved at a time.
const MOVES_MAX: usize = 32;

/// Pause before a move that could not be made is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// The server's time in records: the wall clock's at the start of the server, plus the time that
/// has passed since. Setting the clock while the server runs neither hastens nor delays a move.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moments {
    start: Instant,
    start_ms: u64,
}

impl Moments {
    /// The wall clock shows `start_ms` since the epoch.
    pub(crate) fn new(start: Instant, start_ms: u64) -> Moments {
        Moments { start, start_ms }
    }

    /// A moment, in ms.
    pub(crate) fn ms(self, moment: Instant) -> u64 {
        let since = moment.saturating_duration_since(self.start).as_millis();
        self.start_ms.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// When so many ms are reached: at the start if they were before that.
    pub(crate) fn instant(self, ms: u64) -> Instant {
        let since = Duration::from_millis(ms.saturating_sub(self.start_ms));
        self.start.checked_add(since).unwrap_or(self.start + FAR)
    }
}

/// A moment that no clock can express counts as this far away.
const FAR: Duration = Duration::from_secs(1 << 30);

/// Files with bytes that are due, and moves in progress.
#[derive(Debug)]
pub(crate) struct Destage {
    moments: Moments,
    /// Files that may have bytes on a set, and when these are due.
    due: BTreeMap<(FileId, DiskId), u64>,
    order: BTreeSet<(u64, DiskId, FileId)>,
    /// The move of each file, and when its bytes are due; never if they only leave a disk, or a
    /// machine that lacks memory.
    moving: BTreeMap<FileId, (Move, u64)>,
    /// No move of what is due begins before this: the disks had no room. What readers wait for, and
    /// what has no time, is tried once nevertheless.
    resumes_ms: u64,
    /// How many bytes were moved that were due.
    moved_bytes: u64,
    /// The longest time by which a move ended after its bytes were due, in ms.
    late_ms: u64,
}

impl Destage {
    /// Nothing is due.
    pub(crate) fn new(moments: Moments) -> Destage {
        let (due, order, moving) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Destage { moments, due, order, moving, resumes_ms: 0, moved_bytes: 0, late_ms: 0 }
    }

    /// The server's time.
    pub(crate) fn moments(&self) -> Moments {
        self.moments
    }

    /// When something is due that is to be on other disks within `due_ms` from now.
    pub(crate) fn due_ms(&self, now: Instant, due_ms: u32) -> u64 {
        self.moments.ms(now).saturating_add(due_ms.into())
    }

    /// A file's bytes on a set may be due then.
    pub(crate) fn note(&mut self, set: DiskId, file: FileId, due_ms: u64) {
        let known = self.due.entry((file, set)).or_insert(u64::MAX);
        if due_ms < *known {
            self.order.remove(&(*known, set, file));
            self.order.insert((due_ms, set, file));
            *known = due_ms;
        }
    }

    /// The same, at a moment at the earliest.
    pub(crate) fn note_at(&mut self, set: DiskId, file: FileId, due: Instant) {
        self.note(set, file, self.moments.ms(due) + 1);
    }

    /// A file is no more.
    pub(crate) fn forget(&mut self, file: FileId) {
        let all = (file, DiskId(0))..=(file, DiskId(u32::MAX));
        let gone: Vec<_> = self.due.range(all).map(|(key, due_ms)| (*key, *due_ms)).collect();
        for ((file, set), due_ms) in gone {
            self.due.remove(&(file, set));
            self.order.remove(&(due_ms, set, file));
        }
    }

    /// The next file that may have due bytes on a set, and the time. The caller notes the file
    /// again if they are not due yet, or if more are left.
    pub(crate) fn next(&mut self, now: Instant) -> Option<(DiskId, FileId, u64)> {
        let now_ms = self.moments.ms(now);
        let (due_ms, set, file) = self.first().filter(|(due_ms, ..)| *due_ms <= now_ms)?;
        if now_ms < self.resumes_ms && due_ms > 0 {
            return None;
        }
        self.order.remove(&(due_ms, set, file));
        self.due.remove(&(file, set));
        Some((set, file, now_ms))
    }

    /// When [`Destage::next`] will return a file, if nothing else happens.
    pub(crate) fn first_due(&self) -> Option<Instant> {
        let (due_ms, ..) = self.first()?;
        let at_ms = if due_ms > 0 { due_ms.max(self.resumes_ms) } else { 0 };
        Some(self.moments.instant(at_ms))
    }

    fn first(&self) -> Option<(u64, DiskId, FileId)> {
        if self.moving.len() >= MOVES_MAX {
            return None;
        }
        self.order.iter().find(|(_, _, file)| !self.moving.contains_key(file)).copied()
    }

    /// A file cannot be moved now.
    pub(crate) fn put_off(&mut self, set: DiskId, file: FileId, now: Instant) {
        self.note(set, file, self.moments.ms(now + PAUSE));
    }

    /// The disks have no room: no move begins for some time.
    pub(crate) fn rest(&mut self, now: Instant) {
        self.resumes_ms = self.moments.ms(now + PAUSE);
    }

    /// Whether there was no room lately.
    pub(crate) fn is_short(&self, now: Instant) -> bool {
        self.moments.ms(now) <= self.resumes_ms
    }

    /// A move has begun.
    pub(crate) fn begun(&mut self, one: Move, due_ms: u64) {
        let before = self.moving.insert(one.file(), (one, due_ms));
        debug_assert!(before.is_none(), "a file is moved by one move at a time");
    }

    /// The move of a file that is in progress.
    pub(crate) fn moving(&self, file: FileId) -> Option<&Move> {
        self.moving.get(&file).map(|(one, _)| one)
    }

    /// The files that are moved now.
    pub(crate) fn files_moving(&self) -> impl Iterator<Item = FileId> {
        self.moving.keys().copied()
    }

    /// How many bytes of a set are moved now.
    pub(crate) fn moving_bytes(&self, set: DiskId) -> u64 {
        let of_set = self.moving.values().filter(|(one, _)| one.set() == set);
        of_set.map(|(one, _)| one.bytes()).sum()
    }

    /// How many bytes are moved to a set now.
    pub(crate) fn bytes_to(&self, set: DiskId) -> u64 {
        self.moving.values().map(|(one, _)| one.bytes_to(set)).sum()
    }

    /// The files that are moved to a set now.
    pub(crate) fn files_to(&self, set: DiskId) -> impl Iterator<Item = FileId> {
        let to_set = self.moving.values().filter(move |(one, _)| one.bytes_to(set) > 0);
        to_set.map(|(one, _)| one.file())
    }

    /// The move of a file has ended. `is_done`: its bytes are on other disks. Returns whether they
    /// were due.
    pub(crate) fn ended(&mut self, file: FileId, is_done: bool, now: Instant) -> bool {
        let Some((one, due_ms)) = self.moving.remove(&file) else { return false };
        let was_due = due_ms != NEVER_MS;
        if is_done && was_due {
            self.moved_bytes += one.bytes();
            self.late_ms = self.late_ms.max(self.moments.ms(now).saturating_sub(due_ms));
        }
        was_due
    }

    /// What the server's status shows.
    pub(crate) fn activity(&self, now: Instant) -> Destaging {
        let files = self.due.len() + self.moving.len();
        let late_max = Duration::from_millis(self.late_ms);
        let (moved_bytes, is_short) = (self.moved_bytes, self.is_short(now));
        let (yielded_bytes, yielded_to_memory_bytes) = (0, 0);
        Destaging { files, moved_bytes, late_max, is_short, yielded_bytes, yielded_to_memory_bytes }
    }
}

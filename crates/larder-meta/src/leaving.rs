//! Plans moving what is on disks that leave ([`crate::volume`]) to other disks: finds the files,
//! and limits the rate.
//!
//! A search goes through the extents of all files, a batch at a time, and finds the files that have
//! some on a set that leaves. Such a set gets no new blocks, and sessions have given up theirs
//! there, so one search finds them all; another one follows, some time later, if something is left
//! that could not be moved. Nothing of this is on record: a server that starts searches anew.
//!
//! The moves themselves are those of [`crate::destage`], for which the files that were found are
//! due. A pure state machine, like that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use larder_wire::meta::Status;
use larder_wire::meta::words::{DiskId, FileId};

use crate::activity::Progress;
use crate::data::copies::Sets;
use crate::store::records::Extent;
use crate::store::{Txn, key};

/// Extents that are examined in one step: other calls wait for that.
const LOOK_MAX: usize = 256;
/// No search continues while this many files were found and are not moved.
const FOUND_MAX: usize = 64;
/// Pauses between two searches: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(64)];

/// The search, and the files that it has found.
#[derive(Debug)]
pub(crate) struct Leaving {
    /// Bytes a second.
    rate: u64,
    cursor: Cursor,
    pause: Duration,
    found: BTreeSet<(FileId, DiskId)>,
    /// No move begins before this.
    next_move: Option<Instant>,
    /// How many bytes of a set were moved, and since when it leaves as far as this server knows.
    moved: BTreeMap<DiskId, (u64, Instant)>,
}

/// Where the search is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cursor {
    /// At the extents of a file behind an offset.
    At(FileId, u64),
    /// It has ended; the next one begins then.
    Ended(Instant),
}

const BEGINNING: Cursor = Cursor::At(FileId(0), 0);

impl Leaving {
    /// Moves no more than `rate` bytes a second.
    pub(crate) fn new(rate: u64) -> Leaving {
        let (found, moved) = (BTreeSet::new(), BTreeMap::new());
        let (cursor, pause) = (BEGINNING, PAUSES[0]);
        Leaving { rate: rate.max(1), cursor, pause, found, next_move: None, moved }
    }

    /// Other sets leave by now.
    pub(crate) fn sets_changed(&mut self, sets: &Sets) {
        self.found.retain(|(_, set)| sets.leaves(*set));
        self.moved.retain(|set, _| sets.leaves(*set));
        (self.cursor, self.pause) = (BEGINNING, PAUSES[0]);
    }

    /// When the search is to continue, if nothing else happens. `start` is a moment in the past.
    pub(crate) fn due(&self, sets: &Sets, start: Instant) -> Option<Instant> {
        sets.leaving().next()?;
        match self.cursor {
            Cursor::At(..) => (self.found.len() < FOUND_MAX).then_some(start),
            Cursor::Ended(next) => self.found.is_empty().then_some(next),
        }
    }

    /// Continues the search, if that is due. Returns the files that it finds.
    pub(crate) fn look(
        &mut self,
        txn: &Txn<'_>,
        sets: &Sets,
        now: Instant,
    ) -> Result<Vec<(DiskId, FileId)>, Status> {
        if self.due(sets, now).is_none_or(|due| due > now) {
            return Ok(Vec::new());
        }
        for (set, _) in sets.leaving() {
            self.moved.entry(set).or_insert((0, now));
        }
        let (file, at) = match self.cursor {
            Cursor::At(file, at) => (file, at),
            Cursor::Ended(_) => (FileId(0), 0),
        };
        let from = key::extent(file, at.saturating_add(1));
        let until = key::after(&key::extent(FileId(u64::MAX), u64::MAX));
        let batch = txn.scan::<Extent>(&from, &until, LOOK_MAX)?;
        let is_last = batch.len() < LOOK_MAX;
        let mut found = Vec::new();
        for (key, extent) in batch {
            let number = key.get(1..9).and_then(<[u8]>::first_chunk).ok_or(Status::Io)?;
            let (file, set) = (FileId(u64::from_be_bytes(*number)), extent.disk);
            self.cursor = Cursor::At(file, key::last_number(&key).ok_or(Status::Io)?);
            if sets.leaves(set) && self.found.insert((file, set)) {
                found.push((set, file));
            }
        }
        if is_last {
            self.cursor = Cursor::Ended(now + self.pause);
            self.pause = PAUSES[1].min(self.pause * 2);
        }
        Ok(found)
    }

    /// When the next move may begin, if it may not now.
    pub(crate) fn held_until(&self, now: Instant) -> Option<Instant> {
        self.next_move.filter(|next| *next > now)
    }

    /// A move of so many bytes begins.
    pub(crate) fn begun(&mut self, bytes: u64, now: Instant) {
        let from = self.next_move.map_or(now, |next| next.max(now));
        let takes = Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        self.next_move = from.checked_add(takes);
    }

    /// So many bytes of a set are on others.
    pub(crate) fn moved(&mut self, set: DiskId, bytes: u64) {
        if let Some((all, _)) = self.moved.get_mut(&set) {
            *all += bytes;
        }
    }

    /// A file has nothing on a set that could be moved.
    pub(crate) fn done(&mut self, set: DiskId, file: FileId) {
        self.found.remove(&(file, set));
    }

    /// A file is no more.
    pub(crate) fn forget(&mut self, file: FileId) {
        self.found.retain(|(one, _)| *one != file);
    }

    /// How many files were found, and are not moved.
    pub(crate) fn files(&self) -> usize {
        self.found.len()
    }

    /// How far sets are that leave.
    pub(crate) fn progress(&self, now: Instant) -> BTreeMap<DiskId, Progress> {
        let progress = |(set, (bytes, since)): (&DiskId, &(u64, Instant))| {
            let elapsed = now.saturating_duration_since(*since);
            (*set, Progress { bytes: *bytes, elapsed })
        };
        self.moved.iter().map(progress).collect()
    }
}

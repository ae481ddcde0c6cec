//! Plans bringing stale blocks up to date: which of them next, and from which disk.
//!
//! A scan goes through the extents of all files, a batch at a time, and finds the stale blocks of
//! disks among them; free blocks that are stale are cleared. Uncommitted blocks of sessions wait
//! until they are committed or given up. A disk has one task at a time.
//!
//! A task copies committed blocks, which are never rewritten ([`crate::data::copies`]). It does so
//! under capabilities on the file, so when the file gives the blocks up, those end before the
//! blocks belong to another; and the blocks count as up to date only if the capabilities still
//! exist when the task is done.
//!
//! A pure state machine: the committer makes capabilities and records what was done, a driver does
//! it ([`crate::resilvering`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Instant;

use larder_wire::meta::Status;
use larder_wire::meta::words::{DiskId, FileId};

use crate::activity::Progress;
use crate::data::blocks;
use crate::data::copies::{self, Set, Sets};
use crate::store::records::Extent;
use crate::store::{Txn, key};

/// Most bytes of a task.
const TASK_BYTES_MAX: u64 = 1 << 20;
/// Extents that are examined in one step: other calls wait for that.
const LOOK_MAX: usize = 256;

/// What is to be done for a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    /// Whose blocks are stale.
    pub(crate) to: DiskId,
    pub(crate) bytes: Range<u64>,
    pub(crate) source: Source,
}

/// Where the content of the blocks comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// As another disk has them, for a file.
    Copy(DiskId, FileId),
    /// Zeros: they are free.
    Clear,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// This, from now on.
    Begin(Task),
    /// To continue the search.
    Look,
    /// Nothing, for now.
    Rest,
}

/// The positions of the searches, and the tasks in progress.
#[derive(Debug, Default)]
pub(crate) struct Resilver {
    /// Disks whose stale blocks are being searched for, and the position of each search.
    cursors: BTreeMap<DiskId, Cursor>,
    /// Disks that were searched completely since there was last nothing to do.
    done: BTreeSet<DiskId>,
    running: BTreeMap<DiskId, Task>,
    /// How many bytes of a disk were brought up to date, and since when, while it has stale ones.
    brought: BTreeMap<DiskId, (u64, Instant)>,
}

#[derive(Clone, Copy, Debug)]
enum Cursor {
    /// Free blocks, from a byte of the disk on.
    Free(u64),
    /// Extents, from a byte of a file on.
    File(FileId, u64),
}

impl Resilver {
    /// The next step. A task that is to begin counts as running.
    pub(crate) fn next(
        &mut self,
        txn: &Txn<'_>,
        sets: &Sets,
        is_there: &dyn Fn(DiskId) -> bool,
    ) -> Result<Step, Status> {
        let with_others = sets.complete().filter(|(_, set)| set.disks.len() > 1);
        for (set, Set { disks, .. }) in with_others {
            for disk in disks.iter().copied().filter(|disk| is_there(*disk)) {
                if self.running.contains_key(&disk) || self.done.contains(&disk) {
                    continue;
                }
                let cursor = match self.cursors.get(&disk) {
                    Some(cursor) => *cursor,
                    None if copies::first_stale(txn, disk, 0)?.is_none() => {
                        self.brought.remove(&disk);
                        continue;
                    }
                    None => Cursor::Free(0),
                };
                let is_source = |other: &DiskId| *other != disk && is_there(*other);
                let sources: Vec<DiskId> = disks.iter().copied().filter(is_source).collect();
                let (task, next) = match cursor {
                    Cursor::Free(at) => to_clear(txn, (set, disk), at)?,
                    Cursor::File(file, at) => to_copy(txn, (set, disk), (file, at), &sources)?,
                };
                match next {
                    Some(next) => drop(self.cursors.insert(disk, next)),
                    None => {
                        self.cursors.remove(&disk);
                        self.done.insert(disk);
                    }
                }
                return Ok(match task {
                    Some(task) => {
                        self.running.insert(disk, task.clone());
                        Step::Begin(task)
                    }
                    None => Step::Look,
                });
            }
        }
        // Each disk is searched again some time later.
        self.done.clear();
        Ok(Step::Rest)
    }

    /// A task of a disk begins.
    pub(crate) fn begun(&mut self, to: DiskId, now: Instant) {
        self.brought.entry(to).or_insert((0, now));
    }

    /// So many bytes of a disk are up to date now.
    pub(crate) fn brought(&mut self, to: DiskId, bytes: u64) {
        if let Some((all, _)) = self.brought.get_mut(&to) {
            *all += bytes;
        }
    }

    /// How far disks are that have something stale.
    pub(crate) fn progress(&self, now: Instant) -> BTreeMap<DiskId, Progress> {
        let progress = |(disk, (bytes, since)): (&DiskId, &(u64, Instant))| {
            let elapsed = now.saturating_duration_since(*since);
            (*disk, Progress { bytes: *bytes, elapsed })
        };
        self.brought.iter().map(progress).collect()
    }

    /// A task is not running any more. `None` if it was not.
    pub(crate) fn ended(&mut self, to: DiskId) -> Option<Task> {
        self.running.remove(&to)
    }
}

/// Stale blocks of a disk that are free, and where to go on.
fn to_clear(
    txn: &Txn<'_>,
    (set, to): (DiskId, DiskId),
    at: u64,
) -> Result<(Option<Task>, Option<Cursor>), Status> {
    let Some(stale) = copies::first_stale(txn, to, at)? else {
        return Ok((None, Some(Cursor::File(FileId(0), 0))));
    };
    let stale = stale.start.max(at)..stale.end;
    let free = blocks::free_in(txn, set, &stale)?.into_iter().next();
    let next = Some(Cursor::Free(free.as_ref().map_or(stale.end, |free| free.end)));
    Ok((free.map(|bytes| Task { to, bytes, source: Source::Clear }), next))
}

/// Stale blocks of a disk that a file has, and where to continue; nowhere if that was the last
/// file.
fn to_copy(
    txn: &Txn<'_>,
    (set, to): (DiskId, DiskId),
    (file, at): (FileId, u64),
    sources: &[DiskId],
) -> Result<(Option<Task>, Option<Cursor>), Status> {
    let from = key::extent(file, at.saturating_add(1));
    let until = key::after(&key::extent(FileId(u64::MAX), u64::MAX));
    let batch = txn.scan::<Extent>(&from, &until, LOOK_MAX)?;
    let is_last = batch.len() < LOOK_MAX;
    let mut cursor = None;
    for (key, extent) in batch {
        let number = key.get(1..9).and_then(<[u8]>::first_chunk).ok_or(Status::Io)?;
        let of = FileId(u64::from_be_bytes(*number));
        let end = key::last_number(&key).ok_or(Status::Io)?;
        let length = extent.length();
        let offset = end.checked_sub(length).ok_or(Status::Io)?;
        cursor = Some(Cursor::File(of, end));
        if extent.disk != set {
            continue;
        }
        // What was begun before is not repeated in this round.
        let skip = if of == file { at.saturating_sub(offset).min(length) } else { 0 };
        let bytes = extent.position + skip..extent.position + length;
        for stale in copies::stale(txn, to, &bytes)? {
            let wanted = stale.start..stale.end.min(stale.start + TASK_BYTES_MAX);
            for from in sources {
                let whole = copies::whole(txn, *from, std::slice::from_ref(&wanted))?;
                if let Some(bytes) = whole.into_iter().next() {
                    let cursor = Cursor::File(of, offset + (bytes.end - extent.position));
                    let task = Task { to, bytes, source: Source::Copy(*from, of) };
                    return Ok((Some(task), Some(cursor)));
                }
            }
        }
    }
    Ok((None, cursor.filter(|_| !is_last)))
}

//! Blocks of disks: their owners, and how ownership changes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use larder_wire::meta::words::DiskId;
use larder_wire::meta::{BLOCK_BYTES, Status};

use super::copies::{self, Sets};
use super::map::Piece;
use super::placement::{self, Turns};
use crate::store::key::Pool;
use crate::store::records::Blocks;
use crate::store::{Txn, key};

/// After so many times that blocks were taken, the disks' shares are worked out again.
const TAKES_PER_TURNS: u64 = 256;

/// Where the next blocks are looked for first: on the disk whose turn it is, behind those that were
/// taken last, so that files lie in one piece and a block is not taken again soon. A hint and no
/// more: it counts what calls took that were refused in the end, too.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor {
    /// Where blocks of each disk were taken last.
    at: HashMap<DiskId, u64>,
    /// About how many bytes each disk has free; empty until it was counted.
    free: BTreeMap<DiskId, u64>,
    turns: Turns,
    /// How many turns there were.
    taken: u64,
}

impl Cursor {
    /// Blocks of a disk are free again.
    pub(crate) fn freed(&mut self, disk: DiskId, bytes: &Range<u64>) {
        if let Some(free) = self.free.get_mut(&disk) {
            *free += bytes.end - bytes.start;
        }
    }

    /// In which order disks are asked for blocks at `offset` of a file; `before` has what lies
    /// before that.
    fn order(
        &mut self,
        txn: &Txn<'_>,
        sets: &Sets,
        offset: u64,
        before: Option<DiskId>,
    ) -> Result<Vec<DiskId>, Status> {
        let disks: Vec<DiskId> = sets.complete().map(|(set, _)| set).collect();
        if disks.len() < 2 {
            return Ok(disks);
        }
        if self.free.is_empty() {
            self.free = disks.into_iter().map(|disk| (disk, 0)).collect();
            for (key, blocks) in txn.scan_all::<Blocks>(&[Pool::Free.tag()])? {
                let disk = key[1..].first_chunk().ok_or(Status::Io)?;
                let disk = DiskId(u32::from_be_bytes(*disk));
                *self.free.entry(disk).or_default() += blocks.length;
            }
        }
        if self.taken.is_multiple_of(TAKES_PER_TURNS) {
            self.turns = Turns::new(self.free.iter().map(|(disk, bytes)| (*disk, *bytes)));
        }
        let mut order = self.turns.at(self.taken);
        match before.filter(|_| placement::follows(offset)) {
            Some(before) => order.sort_by_key(|disk| *disk != before),
            None => self.taken += 1,
        }
        Ok(order)
    }

    /// Blocks were taken.
    fn took(&mut self, taken: &Taken) {
        let Taken { disk, bytes } = taken;
        self.at.insert(*disk, bytes.end);
        if let Some(free) = self.free.get_mut(disk) {
            *free = free.saturating_sub(bytes.end - bytes.start);
        }
    }
}

/// Blocks that somebody got.
pub(crate) struct Taken {
    pub(crate) disk: DiskId,
    pub(crate) bytes: Range<u64>,
}

/// Where in a file blocks are wanted.
pub(crate) struct Wanted {
    /// At which offset of the file.
    pub(crate) offset: u64,
    /// How many bytes of them.
    pub(crate) length: u64,
    /// The disk of what lies just before it in the file.
    pub(crate) before: Option<DiskId>,
}

/// Which disks blocks can be taken of.
#[derive(Clone, Copy)]
pub(crate) struct Room<'a> {
    pub(crate) sets: &'a Sets,
    /// Whether a disk could be reached last.
    pub(crate) is_there: &'a dyn Fn(DiskId) -> bool,
}

/// Takes free blocks for a file: as many as are wanted, or as lie together. Sets of which disks are
/// not there are asked last.
///
/// # Errors
/// [`Status::NoSpace`]
pub(crate) fn take(
    txn: &mut Txn<'_>,
    wanted: &Wanted,
    cursor: &mut Cursor,
    room: Room<'_>,
) -> Result<Taken, Status> {
    let Wanted { offset, length, before } = *wanted;
    debug_assert!(length > 0 && length.is_multiple_of(BLOCK_BYTES));
    let mut order = cursor.order(txn, room.sets, offset, before)?;
    let length = placement::together(offset, length, order.len());
    let away = |set: DiskId| {
        let disks = room.sets.disks(set).iter();
        disks.filter(|disk| !(room.is_there)(**disk)).count()
    };
    order.sort_by_key(|set| away(*set));
    for disk in order {
        let at = cursor.at.get(&disk).copied().unwrap_or(0);
        for from in [at, 0] {
            if let Some(bytes) = take_from(txn, disk, from, length)? {
                let taken = Taken { disk, bytes };
                cursor.took(&taken);
                return Ok(taken);
            }
        }
    }
    // What was counted is wrong, or there is little to count.
    cursor.free.clear();
    Err(Status::NoSpace)
}

/// Takes free blocks of a disk that end behind `from`.
fn take_from(
    txn: &mut Txn<'_>,
    disk: DiskId,
    from: u64,
    wanted: u64,
) -> Result<Option<Range<u64>>, Status> {
    let Some(free) = next(txn, Pool::Free, disk, from)? else { return Ok(None) };
    let taken = free.start..free.end.min(free.start + wanted);
    if taken.end == free.end {
        txn.delete(key::blocks(Pool::Free, disk, free.end));
    } else {
        put(txn, Pool::Free, disk, taken.end..free.end);
    }
    Ok(Some(taken))
}

/// Lets blocks drain.
pub(super) fn drain(txn: &mut Txn<'_>, pieces: Vec<Piece>) {
    for piece in pieces {
        put(txn, Pool::Draining, piece.disk, piece.bytes());
        txn.drain(piece.disk, piece.bytes());
    }
}

/// Frees blocks that drained: nobody has a capability on them any more. What does not drain is left
/// alone, so it may be told twice.
/// Of its disks, those that have `missed` it that they were cleared have stale blocks there.
pub(crate) fn free(
    txn: &mut Txn<'_>,
    (disk, disks): (DiskId, &[DiskId]),
    bytes: &Range<u64>,
    missed: &[DiskId],
) -> Result<(), Status> {
    let drained = key::blocks(Pool::Draining, disk, bytes.end);
    let length = txn.get::<Blocks>(&drained)?.map(|blocks| blocks.length);
    if length != Some(bytes.end - bytes.start) {
        return Ok(());
    }
    txn.delete(drained);
    for disk in disks.iter().filter(|_| disks.len() > 1) {
        match missed.contains(disk) {
            true => copies::add_stale(txn, *disk, bytes)?,
            false => copies::remove_stale(txn, *disk, bytes)?,
        }
    }
    add_free(txn, disk, bytes.clone())
}

/// All blocks that drain.
pub(crate) fn draining(txn: &Txn<'_>) -> Result<Vec<(DiskId, Range<u64>)>, Status> {
    let mut found = Vec::new();
    for (disk, _) in Sets::load(txn)?.complete() {
        let mut at = 0;
        while let Some(bytes) = next(txn, Pool::Draining, disk, at)? {
            at = bytes.end;
            found.push((disk, bytes));
        }
    }
    Ok(found)
}

/// Adds blocks to the free ones, as one with their neighbours.
pub(crate) fn add_free(
    txn: &mut Txn<'_>,
    disk: DiskId,
    mut bytes: Range<u64>,
) -> Result<(), Status> {
    if let Some(before) = txn.get::<Blocks>(&key::blocks(Pool::Free, disk, bytes.start))? {
        txn.delete(key::blocks(Pool::Free, disk, bytes.start));
        bytes.start -= before.length;
    }
    if let Some(after) = next(txn, Pool::Free, disk, bytes.end)? {
        if after.start < bytes.end {
            tracing::error!(disk = disk.0, ?bytes, ?after, "blocks are freed that are free");
            return Err(Status::Io);
        }
        if after.start == bytes.end {
            bytes.end = after.end;
        }
    }
    put(txn, Pool::Free, disk, bytes);
    Ok(())
}

/// Free bytes of all disks.
pub(crate) fn free_bytes(txn: &Txn<'_>) -> Result<u64, Status> {
    let free = txn.scan_all::<Blocks>(&[Pool::Free.tag()])?;
    Ok(free.iter().map(|(_, blocks)| blocks.length).sum())
}

/// What of a range of a set is free.
pub(crate) fn free_in(
    txn: &Txn<'_>,
    set: DiskId,
    bytes: &Range<u64>,
) -> Result<Vec<Range<u64>>, Status> {
    let (mut found, mut at) = (Vec::new(), bytes.start);
    while let Some(free) = next(txn, Pool::Free, set, at)?.filter(|free| free.start < bytes.end) {
        found.push(free.start.max(bytes.start)..free.end.min(bytes.end));
        at = free.end;
    }
    Ok(found)
}

/// Bytes of all sets: what files can have.
pub(crate) fn bytes(txn: &Txn<'_>) -> Result<u64, Status> {
    Ok(Sets::load(txn)?.complete().map(|(_, set)| set.bytes).sum())
}

/// The first blocks of a pool that end behind `from`.
fn next(txn: &Txn<'_>, pool: Pool, disk: DiskId, from: u64) -> Result<Option<Range<u64>>, Status> {
    let start = key::blocks(pool, disk, from.saturating_add(1));
    let until = key::after(&key::blocks(pool, disk, u64::MAX));
    let Some((key, blocks)) = txn.scan::<Blocks>(&start, &until, 1)?.pop() else {
        return Ok(None);
    };
    let end = key::last_number(&key).ok_or(Status::Io)?;
    Ok(Some(end.checked_sub(blocks.length).ok_or(Status::Io)?..end))
}

fn put(txn: &mut Txn<'_>, pool: Pool, disk: DiskId, bytes: Range<u64>) {
    let length = bytes.end - bytes.start;
    txn.put(key::blocks(pool, disk, bytes.end), &Blocks { length });
}

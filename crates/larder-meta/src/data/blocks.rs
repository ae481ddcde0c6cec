//! Blocks of disks: who has them, and how they change hands.

use std::ops::Range;

use larder_wire::meta::words::{DiskId, FileId};
use larder_wire::meta::{BLOCK_BYTES, Status};

use super::map::Piece;
use crate::store::key::Pool;
use crate::store::records::{Blocks, Disk};
use crate::store::{Txn, key};

/// Where the next blocks are looked for first: behind those that were taken last, so that files lie
/// in one piece and a block is not taken again soon. A hint and no more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor(std::collections::HashMap<DiskId, u64>);

/// Blocks that somebody got.
pub(crate) struct Taken {
    pub(crate) disk: DiskId,
    pub(crate) bytes: Range<u64>,
}

/// Takes free blocks for a file: `wanted` bytes of them, or as many as lie together.
///
/// # Errors
/// [`Status::NoSpace`]
pub(crate) fn take(
    txn: &mut Txn<'_>,
    file: FileId,
    wanted: u64,
    cursor: &mut Cursor,
) -> Result<Taken, Status> {
    debug_assert!(wanted > 0 && wanted.is_multiple_of(BLOCK_BYTES));
    let disks = disks(txn)?;
    let first = file.0.checked_rem(disks.len() as u64).unwrap_or(0) as usize;
    for disk in disks[first..].iter().chain(&disks[..first]) {
        let at = cursor.0.get(disk).copied().unwrap_or(0);
        for from in [at, 0] {
            if let Some(bytes) = take_from(txn, *disk, from, wanted)? {
                cursor.0.insert(*disk, bytes.end);
                return Ok(Taken { disk: *disk, bytes });
            }
        }
    }
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
pub(crate) fn free(txn: &mut Txn<'_>, disk: DiskId, bytes: &Range<u64>) -> Result<(), Status> {
    let drained = key::blocks(Pool::Draining, disk, bytes.end);
    let length = txn.get::<Blocks>(&drained)?.map(|blocks| blocks.length);
    if length != Some(bytes.end - bytes.start) {
        return Ok(());
    }
    txn.delete(drained);
    add_free(txn, disk, bytes.clone())
}

/// All blocks that drain.
pub(crate) fn draining(txn: &Txn<'_>) -> Result<Vec<(DiskId, Range<u64>)>, Status> {
    let mut found = Vec::new();
    for disk in disks(txn)? {
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

/// Bytes of all disks.
pub(crate) fn bytes(txn: &Txn<'_>) -> Result<u64, Status> {
    let disks = txn.scan_all::<Disk>(&key::disk(DiskId(0))[..1])?;
    Ok(disks.iter().map(|(_, disk)| disk.blocks * BLOCK_BYTES).sum())
}

/// The disks of the volume.
pub(crate) fn disks(txn: &Txn<'_>) -> Result<Vec<DiskId>, Status> {
    let disks = txn.scan_all::<Disk>(&key::disk(DiskId(0))[..1])?;
    let number = |key: &[u8]| key.last_chunk().map(|id| DiskId(u32::from_be_bytes(*id)));
    disks.iter().map(|(key, _)| number(key).ok_or(Status::Io)).collect()
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

//! Blocks of disks: their owners, and how ownership changes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use larder_wire::meta::words::{DiskId, Medium};
use larder_wire::meta::{BLOCK_BYTES, Status};

use super::copies::{self, Set, Sets};
use super::map::Piece;
use super::placement::{self, Turns};
use crate::store::key::Pool;
use crate::store::records::Blocks;
use crate::store::{Txn, key};

/// After blocks were taken this many times, the disks' shares are computed again.
const TAKES_PER_TURNS: u64 = 256;

/// Where the next blocks are searched first: on the disk whose turn it is, after those that were
/// taken last, so that files are contiguous and a block is not reused soon. Only a hint: it also
/// counts what calls took that were refused in the end.
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

    /// Counts what is free of each of these disks, unless that is known.
    fn count(&mut self, txn: &Txn<'_>, disks: &[DiskId]) -> Result<(), Status> {
        if !self.free.is_empty() {
            return Ok(());
        }
        self.free = disks.iter().map(|disk| (*disk, 0)).collect();
        for (key, blocks) in txn.scan_all::<Blocks>(&[Pool::Free.tag()])? {
            let disk = key[1..].first_chunk().ok_or(Status::Io)?;
            let disk = DiskId(u32::from_be_bytes(*disk));
            if let Some(free) = self.free.get_mut(&disk) {
                *free += blocks.length;
            }
        }
        Ok(())
    }

    /// Whether a disk may get blocks without a turn.
    fn may_have_more(&self, disk: DiskId) -> bool {
        let most = self.free.values().copied().max().unwrap_or(0);
        self.free.get(&disk).is_some_and(|free| placement::may_have_more(*free, most))
    }

    /// The order in which disks are asked for blocks at `offset` of a file; `before` has the blocks
    /// before that.
    fn order(&mut self, disks: Vec<DiskId>, offset: u64, before: Option<DiskId>) -> Vec<DiskId> {
        if disks.len() < 2 {
            return disks;
        }
        if self.taken.is_multiple_of(TAKES_PER_TURNS) {
            self.turns = Turns::new(self.free.iter().map(|(disk, bytes)| (*disk, *bytes)));
        }
        let mut order = self.turns.at(self.taken);
        match before.filter(|_| placement::follows(offset)) {
            Some(before) => order.sort_by_key(|disk| *disk != before),
            None => self.taken += 1,
        }
        order
    }

    /// Takes blocks of a disk, after those that were taken last, or else the first ones.
    fn take(
        &mut self,
        txn: &mut Txn<'_>,
        disk: DiskId,
        length: u64,
    ) -> Result<Option<Taken>, Status> {
        let at = self.at.get(&disk).copied().unwrap_or(0);
        for from in [at, 0] {
            if let Some(bytes) = take_from(txn, disk, from, length)? {
                let taken = Taken { disk, bytes };
                self.took(&taken);
                return Ok(Some(taken));
            }
        }
        Ok(None)
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

/// One for each medium.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursors {
    disk: Cursor,
    memory: Cursor,
    /// How many bytes were wanted in memory, and taken from disks instead, although the volume has
    /// memory disks.
    instead: u64,
}

impl Cursors {
    /// How many bytes were taken from disks for want of memory.
    pub(crate) fn instead(&self) -> u64 {
        self.instead
    }

    /// That of memory disks, or of others.
    pub(crate) fn of(&mut self, is_memory: bool) -> &mut Cursor {
        if is_memory { &mut self.memory } else { &mut self.disk }
    }
}

/// Blocks that were taken.
pub(crate) struct Taken {
    pub(crate) disk: DiskId,
    pub(crate) bytes: Range<u64>,
}

/// Where in a file blocks are wanted.
pub(crate) struct Wanted {
    /// The offset in the file.
    pub(crate) offset: u64,
    /// How many bytes of them.
    pub(crate) length: u64,
    /// The disk of the bytes just before it in the file.
    pub(crate) before: Option<DiskId>,
    /// The set on which they should be.
    pub(crate) near: Option<DiskId>,
}

/// Which disks blocks can be taken of.
#[derive(Clone, Copy)]
pub(crate) struct Room<'a> {
    pub(crate) sets: &'a Sets,
    /// Whether a disk could be reached last.
    pub(crate) is_there: &'a dyn Fn(DiskId) -> bool,
    /// The medium that they are to be on.
    pub(crate) medium: Medium,
}

/// Takes free blocks for a file: as many as are wanted, or as are contiguous; from disks if memory
/// is wanted and has no room, or its machine lacks memory.
///
/// # Errors
/// [`Status::NoSpace`]
pub(crate) fn take(
    txn: &mut Txn<'_>,
    wanted: &Wanted,
    cursors: &mut Cursors,
    room: Room<'_>,
) -> Result<Taken, Status> {
    match room.medium {
        Medium::Disk => take_on(txn, wanted, cursors.of(false), room),
        Medium::INSTEAD => take_instead(txn, wanted, cursors, room),
        Medium::Memory(_) => match take_on(txn, wanted, cursors.of(true), room) {
            Err(Status::NoSpace) => take_instead(txn, wanted, cursors, room),
            taken => taken,
        },
    }
}

/// Takes free blocks of disks in place of memory disks.
fn take_instead(
    txn: &mut Txn<'_>,
    wanted: &Wanted,
    cursors: &mut Cursors,
    room: Room<'_>,
) -> Result<Taken, Status> {
    let on_disk = Room { medium: Medium::Disk, ..room };
    let taken = take_on(txn, wanted, cursors.of(false), on_disk)?;
    if room.sets.memory().next().is_some() {
        cursors.instead += taken.bytes.end - taken.bytes.start;
    }
    Ok(taken)
}

/// Takes free blocks for bytes that are moved to other disks of a medium, and returns them with the
/// disks of their set to write: of memory disks, all. The blocks count as draining until a file has
/// them.
///
/// # Errors
/// [`Status::NoSpace`]
pub(super) fn take_to_move(
    txn: &mut Txn<'_>,
    wanted: &Wanted,
    cursors: &mut Cursors,
    room: Room<'_>,
) -> Result<(Taken, Vec<DiskId>), Status> {
    let taken = take_on(txn, wanted, cursors.of(room.medium != Medium::Disk), room)?;
    put(txn, Pool::Draining, taken.disk, taken.bytes.clone());
    let (mut written, disks) = (Vec::new(), room.sets.disks(taken.disk));
    for disk in disks.iter().filter(|disk| (room.is_there)(**disk)) {
        // Stale blocks of a disk stay stale until the disk is brought up to date.
        if copies::stale(txn, *disk, &taken.bytes)?.is_empty() {
            written.push(*disk);
        }
    }
    let needed = if room.sets.is_memory(taken.disk) { disks.len() } else { 1 };
    if written.len() < needed {
        drain_on(txn, taken.disk, taken.bytes, &[]);
        return Err(Status::NoSpace);
    }
    Ok((taken, written))
}

/// A file now has `used`, in order, of blocks that count as draining. The others are cleared.
pub(super) fn drain_on(txn: &mut Txn<'_>, set: DiskId, bytes: Range<u64>, used: &[Range<u64>]) {
    txn.delete(key::blocks(Pool::Draining, set, bytes.end));
    for bytes in copies::without(&[bytes], used) {
        put(txn, Pool::Draining, set, bytes.clone());
        txn.drain(set, bytes);
    }
}

/// The same from one medium: where they should be, if that may be, or else in turns. Sets with
/// disks that are away are asked last.
fn take_on(
    txn: &mut Txn<'_>,
    wanted: &Wanted,
    cursor: &mut Cursor,
    room: Room<'_>,
) -> Result<Taken, Status> {
    let Wanted { offset, length, before, near } = *wanted;
    debug_assert!(length > 0 && length.is_multiple_of(BLOCK_BYTES));
    let disks = room.sets.on(room.medium);
    let length = placement::together(offset, length, disks.len());
    let away = |set: DiskId| {
        let disks = room.sets.disks(set).iter();
        disks.filter(|disk| !(room.is_there)(**disk)).count()
    };
    if disks.len() > 1 {
        cursor.count(txn, &disks)?;
    }
    let has_more = |set: &DiskId| disks.contains(set) && cursor.may_have_more(*set);
    if let Some(near) = near.filter(|near| away(*near) == 0 && has_more(near))
        && let Some(taken) = cursor.take(txn, near, length)?
    {
        return Ok(taken);
    }
    let before = before.filter(|before| disks.contains(before));
    let mut order = cursor.order(disks, offset, before);
    order.sort_by_key(|set| away(*set));
    if room.medium != Medium::Disk {
        // No writer should wait for a memory disk that is away: there are disks. Sets with more
        // copies than are wanted come last.
        order.retain(|set| away(*set) == 0 && room.sets.suits(*set, room.medium));
        let mut with_room = Vec::with_capacity(order.len());
        for set in order {
            let left = left(txn, set, room.sets, 0)?;
            if left.is_none_or(|left| left >= length.cast_signed()) {
                with_room.push(set);
            }
        }
        order = with_room;
        order.sort_by_key(|set| room.sets.disks(*set).len());
    }
    for disk in order {
        if let Some(taken) = cursor.take(txn, disk, length)? {
            return Ok(taken);
        }
    }
    // The counts are wrong, or so low that they must be exact.
    cursor.free.clear();
    Err(Status::NoSpace)
}

/// Takes free blocks of a disk that end beyond `from`.
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

/// Frees blocks that drained: no capability covers them any more. Blocks that do not drain are left
/// alone, so this may be called twice. Those of its disks that have `missed` the clearing have
/// stale blocks there.
pub(crate) fn free(
    txn: &mut Txn<'_>,
    (disk, sets): (DiskId, &Sets),
    bytes: &Range<u64>,
    missed: &[DiskId],
) -> Result<(), Status> {
    let drained = key::blocks(Pool::Draining, disk, bytes.end);
    let length = txn.get::<Blocks>(&drained)?.map(|blocks| blocks.length);
    if length != Some(bytes.end - bytes.start) {
        return Ok(());
    }
    txn.delete(drained);
    for disk in sets.disks(disk).iter().filter(|_| sets.may_be_stale(disk)) {
        match missed.contains(disk) {
            true => copies::add_stale(txn, *disk, bytes)?,
            false => copies::remove_stale(txn, *disk, bytes)?,
        }
    }
    add_free(txn, disk, bytes.clone())
}

/// The free blocks of a set are to be cleared before they are used: they drain.
pub(crate) fn drain_free(txn: &mut Txn<'_>, set: DiskId) -> Result<(), Status> {
    for bytes in free_in(txn, set, &(0..u64::MAX))? {
        txn.delete(key::blocks(Pool::Free, set, bytes.end));
        put(txn, Pool::Draining, set, bytes);
    }
    Ok(())
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

/// The volume has a set no longer, all of which is free.
pub(crate) fn forget(txn: &mut Txn<'_>, set: DiskId) -> Result<(), Status> {
    let first = key::blocks(Pool::Free, set, 0);
    for (key, _) in txn.scan_all::<Blocks>(&first[..first.len() - 8])? {
        txn.delete(key);
    }
    Ok(())
}

/// Free bytes that ordinary files can have.
pub(crate) fn free_bytes(txn: &Txn<'_>) -> Result<u64, Status> {
    free_bytes_beside(txn, DiskId(0))
}

/// The same if one set leaves.
pub(crate) fn free_bytes_beside(txn: &Txn<'_>, leaving: DiskId) -> Result<u64, Status> {
    let sets = Sets::load(txn)?;
    let stay = sets.lasting().filter(|(number, set)| *number != leaving && !set.leaves);
    stay.map(|(set, _)| free_bytes_of(txn, set)).sum()
}

/// Free bytes of a set.
pub(crate) fn free_bytes_of(txn: &Txn<'_>, set: DiskId) -> Result<u64, Status> {
    pool_bytes(txn, Pool::Free, set)
}

/// How many more bytes a set of memory disks can hold if `gone` of what is there do not count; less
/// than 0: so many are too much. `None` if each of them can hold all that it has.
pub(crate) fn left(
    txn: &Txn<'_>,
    set: DiskId,
    sets: &Sets,
    gone: u64,
) -> Result<Option<i64>, Status> {
    let Some((_, about)) = sets.memory().find(|(one, _)| *one == set && sets.is_limited(*one))
    else {
        return Ok(None);
    };
    let used = about.bytes - free_bytes_of(txn, set)?;
    let mut least: Option<i64> = None;
    for disk in &about.disks {
        let Some(limit) = sets.limits().get(disk) else { continue };
        // What a disk has lost takes no memory.
        let held = used.saturating_sub(copies::stale_bytes(txn, *disk)?).saturating_sub(gone);
        let left = limit.cast_signed().saturating_sub_unsigned(held);
        least = Some(least.map_or(left, |least| least.min(left)));
    }
    Ok(least)
}

/// Bytes of a set that no file has, and that are not free yet.
pub(crate) fn draining_bytes_of(txn: &Txn<'_>, set: DiskId) -> Result<u64, Status> {
    pool_bytes(txn, Pool::Draining, set)
}

fn pool_bytes(txn: &Txn<'_>, pool: Pool, set: DiskId) -> Result<u64, Status> {
    let first = key::blocks(pool, set, 0);
    let all = txn.scan_all::<Blocks>(&first[..first.len() - 8])?;
    Ok(all.into_iter().map(|(_, blocks)| blocks.length).sum())
}

/// Whether all blocks of a set are free.
pub(crate) fn are_all_free(txn: &Txn<'_>, set: DiskId, bytes: u64) -> Result<bool, Status> {
    // Free neighbours are one.
    Ok(next(txn, Pool::Free, set, 0)? == Some(0..bytes))
}

/// The free parts of a range of a set.
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

/// Bytes of all sets: those that ordinary files use or can use.
pub(crate) fn bytes(txn: &Txn<'_>) -> Result<u64, Status> {
    let sets = Sets::load(txn)?;
    let of = |(number, set): (DiskId, &Set)| match set.leaves {
        true => Ok(set.bytes - free_bytes_of(txn, number)?),
        false => Ok(set.bytes),
    };
    sets.lasting().map(of).sum()
}

/// The first blocks of a pool that end beyond `from`.
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

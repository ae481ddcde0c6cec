//! Moves bytes of a file from memory disks, or from disks that leave, to other disks: blocks are
//! taken, the bytes are copied to them, and the blocks replace those before. The file does not
//! change.
//!
//! Bytes that a memory disk cannot hold any more may be moved to other memory disks: to all disks
//! of a set that has as many as theirs, or not at all.
//!
//! Only committed blocks are moved, and with memory disks or disks that leave a committed block is
//! never written again ([`super::copies`]). So blocks that the file still has after the copy hold
//! what was copied, provided that the capabilities for the copy still exist: they end when the file
//! gives up blocks.
//!
//! The new blocks count as draining until the file has them. If the server dies before, they are
//! cleared and freed after its restart, like blocks that were given up.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use larder_wire::capability::EXTENTS_MAX;
use larder_wire::meta::Status;
use larder_wire::meta::words::{DiskId, FileId};

use super::copies::{self, Sets};
use super::{Map, Piece, blocks, memory};
use crate::store::Txn;
use crate::store::txn::Revoked;

/// Most bytes of a move.
const BYTES_MAX: u64 = 4 << 20;
/// Most parts of a move: one capability for each disk covers them.
const LEGS_MAX: usize = EXTENTS_MAX;

/// Bytes of a file on a set, and where they are moved to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    file: FileId,
    /// Where they are.
    set: DiskId,
    legs: Vec<Leg>,
    /// The disks to write, by the set that gets some of the bytes.
    written: BTreeMap<DiskId, Vec<DiskId>>,
}

/// A part of a move: contiguous both where the bytes are and where they are moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leg {
    /// Where they begin in the file.
    offset: u64,
    /// How many they are: whole blocks.
    length: u64,
    /// Which disk they are read from; none if the disks have lost them, and the archive has them.
    pub(crate) from: Option<DiskId>,
    /// Where they begin on it, or on the disks that have lost them.
    position: u64,
    /// The set of disks that they are moved to.
    to: DiskId,
    /// Where they begin there.
    pub(crate) target: u64,
}

impl Leg {
    /// The bytes where they are.
    pub(crate) fn source(&self) -> Range<u64> {
        self.position..self.position + self.length
    }

    /// The bytes where they are moved to.
    pub(crate) fn target(&self) -> Range<u64> {
        self.target..self.target + self.length
    }

    /// Where they are in the file.
    pub(crate) fn in_file(&self) -> Range<u64> {
        self.offset..self.offset + self.length
    }
}

/// What [`begin`] finds of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// These bytes.
    Move(Move),
    /// Nothing can be read now: disks are away.
    Away,
    /// Nothing: the bytes that the file has there are lost.
    Lost,
    /// Nothing: the file has no bytes there.
    None,
}

/// Finds bytes of a file to move from a set, whose disks can be read if they are there, and takes
/// blocks for them.
///
/// # Errors
/// [`Status::NoSpace`] if no blocks are free, or their disks are away.
pub(crate) fn begin(
    txn: &mut Txn<'_>,
    (set, file): (DiskId, FileId),
    is_there: &dyn Fn(DiskId) -> bool,
    cursors: &mut blocks::Cursors,
    room: blocks::Room<'_>,
) -> Result<Found, Status> {
    let pieces = memory::on_set(txn, set, file)?;
    let nothing = if pieces.is_empty() { Found::None } else { Found::Lost };
    let (sources, is_away) = sources(txn, room.sets.disks(set), &pieces, is_there)?;
    if sources.is_empty() {
        return Ok(if is_away { Found::Away } else { nothing });
    }
    Move::of((set, file), sources, txn, cursors, room).map(Found::Move)
}

/// Finds bytes of a file on a set that no disk has any more, and takes blocks for them. `None` if
/// there are none.
///
/// # Errors
/// [`Status::NoSpace`] if no blocks are free, or their disks are away.
pub(crate) fn begin_lost(
    txn: &mut Txn<'_>,
    (set, file): (DiskId, FileId),
    cursors: &mut blocks::Cursors,
    room: blocks::Room<'_>,
) -> Result<Option<Move>, Status> {
    let (mut sources, mut left) = (Vec::new(), BYTES_MAX);
    for piece in memory::on_set(txn, set, file)? {
        for lost in copies::lost(txn, room.sets.disks(set), &piece.bytes())? {
            let bytes = lost.start..lost.end.min(lost.start + left);
            if !bytes.is_empty() && sources.len() < LEGS_MAX {
                left -= bytes.end - bytes.start;
                sources.push((piece.offset + (bytes.start - piece.position), None, bytes));
            }
        }
    }
    if sources.is_empty() {
        return Ok(None);
    }
    Move::of((set, file), sources, txn, cursors, room).map(Some)
}

/// Bytes of a file that a disk has, or that all have lost: where they begin in the file, the disk,
/// and where they are on it.
type Source = (u64, Option<DiskId>, Range<u64>);

/// The parts of these pieces that can be read, up to the limits of a move, and whether a disk that
/// is away has more.
fn sources(
    txn: &Txn<'_>,
    disks: &[DiskId],
    pieces: &[Piece],
    is_there: &dyn Fn(DiskId) -> bool,
) -> Result<(Vec<Source>, bool), Status> {
    let (mut sources, mut left, mut is_away) = (Vec::new(), BYTES_MAX, false);
    for piece in pieces {
        let mut missing = vec![piece.bytes()];
        for disk in disks {
            let whole = copies::whole(txn, *disk, &missing)?;
            if !is_there(*disk) {
                is_away |= !whole.is_empty();
                continue;
            }
            missing = copies::without(&missing, &whole);
            for bytes in whole {
                let bytes = bytes.start..bytes.end.min(bytes.start + left);
                if bytes.is_empty() || sources.len() == LEGS_MAX {
                    return Ok((sources, is_away));
                }
                left -= bytes.end - bytes.start;
                sources.push((piece.offset + (bytes.start - piece.position), Some(*disk), bytes));
            }
        }
    }
    Ok((sources, is_away))
}

impl Move {
    /// Takes blocks for as many of these bytes as there is room for.
    fn of(
        (set, file): (DiskId, FileId),
        sources: Vec<Source>,
        txn: &mut Txn<'_>,
        cursors: &mut blocks::Cursors,
        room: blocks::Room<'_>,
    ) -> Result<Move, Status> {
        let mut found = Move { file, set, legs: Vec::new(), written: BTreeMap::new() };
        for source in sources {
            if let Err(status) = found.add(txn, source, cursors, room) {
                match found.legs.is_empty() {
                    true => return Err(status),
                    false => break,
                }
            }
        }
        Ok(found)
    }

    /// The file.
    pub(crate) fn file(&self) -> FileId {
        self.file
    }

    /// The set that they are moved from.
    pub(crate) fn set(&self) -> DiskId {
        self.set
    }

    /// Its parts, each with a disk to which it is copied.
    pub(crate) fn copies(&self) -> impl Iterator<Item = (&Leg, DiskId)> {
        let disks = |leg: &Leg| self.written.get(&leg.to).into_iter().flatten().copied();
        self.legs.iter().flat_map(move |leg| disks(leg).map(move |disk| (leg, disk)))
    }

    /// How many bytes are moved.
    pub(crate) fn bytes(&self) -> u64 {
        self.legs.iter().map(|leg| leg.length).sum()
    }

    /// How many of them are moved to a set.
    pub(crate) fn bytes_to(&self, set: DiskId) -> u64 {
        self.legs.iter().filter(|leg| leg.to == set).map(|leg| leg.length).sum()
    }

    /// Whether they come from the archive.
    pub(crate) fn is_restored(&self) -> bool {
        self.legs.iter().any(|leg| leg.from.is_none())
    }

    /// The sets that they are moved to.
    pub(crate) fn targets(&self) -> impl Iterator<Item = DiskId> {
        self.written.keys().copied()
    }

    /// Takes blocks for bytes, and adds both to the move.
    fn add(
        &mut self,
        txn: &mut Txn<'_>,
        (offset, from, bytes): Source,
        cursors: &mut blocks::Cursors,
        room: blocks::Room<'_>,
    ) -> Result<(), Status> {
        let mut at = bytes.start;
        while at < bytes.end && self.legs.len() < LEGS_MAX {
            let offset = offset + (at - bytes.start);
            let before = self.legs.last().map(|leg| leg.to);
            let length = bytes.end - at;
            let wanted = blocks::Wanted { offset, length, before, near: None };
            let (taken, written) = blocks::take_to_move(txn, &wanted, cursors, room)?;
            let set = self.written.entry(taken.disk).or_insert_with(|| written.clone());
            set.retain(|disk| written.contains(disk));
            if set.is_empty() {
                blocks::drain_on(txn, taken.disk, taken.bytes, &[]);
                return Err(Status::NoSpace);
            }
            let length = taken.bytes.end - taken.bytes.start;
            let (to, target) = (taken.disk, taken.bytes.start);
            self.legs.push(Leg { offset, length, from, position: at, to, target });
            at += length;
        }
        Ok(())
    }

    /// Which bytes of which disks are read, in order and apart.
    pub(crate) fn reads(&self) -> BTreeMap<DiskId, Vec<Range<u64>>> {
        by_disk(self.legs.iter().filter_map(|leg| Some((leg.from?, leg.source()))))
    }

    /// Which bytes of which disks are written, in order and apart.
    pub(crate) fn writes(&self) -> BTreeMap<DiskId, Vec<Range<u64>>> {
        by_disk(self.copies().map(|(leg, disk)| (disk, leg.target())))
    }

    /// Gives up the blocks that were taken.
    pub(crate) fn give_up(&self, txn: &mut Txn<'_>) {
        for leg in &self.legs {
            blocks::drain_on(txn, leg.to, leg.target(), &[]);
        }
    }

    /// The bytes were copied, except to the disks in `failed`. The new blocks replace those that
    /// the file still has, if a disk has them, or all memory disks of their set. Replaced blocks,
    /// and new ones that are not used, drain. What is in memory stays due when it was.
    pub(crate) fn end(
        &self,
        txn: &mut Txn<'_>,
        failed: &BTreeSet<DiskId>,
        sets: &Sets,
    ) -> Result<(), Status> {
        let due_ms = memory::due_ms(txn, self.set, self.file)?;
        for leg in &self.legs {
            let mut used = Vec::new();
            let written = self.written.get(&leg.to).into_iter().flatten();
            let have: Vec<DiskId> =
                written.filter(|disk| !failed.contains(disk)).copied().collect();
            let is_memory = sets.is_memory(leg.to);
            let needed = if is_memory { sets.disks(leg.to).len() } else { 1 };
            if have.len() >= needed {
                used = self.put(txn, leg)?;
            }
            if is_memory && !used.is_empty() {
                memory::note(txn, (leg.to, self.file), due_ms, false)?;
            }
            for bytes in &used {
                let missed = sets.disks(leg.to).iter().filter(|disk| !have.contains(disk));
                missed.into_iter().try_for_each(|disk| copies::add_stale(txn, *disk, bytes))?;
            }
            blocks::drain_on(txn, leg.to, leg.target(), &used);
        }
        Ok(())
    }

    /// Replaces blocks that the file still has by their copies. Returns the blocks used.
    fn put(&self, txn: &mut Txn<'_>, leg: &Leg) -> Result<Vec<Range<u64>>, Status> {
        let (map, mut used) = (Map::File(self.file), Vec::new());
        let there = map.overlapping(txn, &leg.in_file(), usize::MAX)?;
        for piece in there.iter().filter_map(|piece| piece.within(&leg.in_file())) {
            if !piece.maps(leg.offset, self.set, leg.position) {
                continue;
            }
            let replaced = map.cut(txn, &(piece.offset..piece.end()))?;
            txn.revoke(Revoked::File(self.file));
            blocks::drain(txn, replaced);
            let moved =
                Piece { disk: leg.to, position: leg.target + (piece.offset - leg.offset), ..piece };
            map.put(txn, moved)?;
            used.push(moved.bytes());
        }
        Ok(used)
    }
}

fn by_disk(parts: impl Iterator<Item = (DiskId, Range<u64>)>) -> BTreeMap<DiskId, Vec<Range<u64>>> {
    let mut by_disk: BTreeMap<DiskId, Vec<Range<u64>>> = BTreeMap::new();
    for (disk, bytes) in parts {
        by_disk.entry(disk).or_default().push(bytes);
    }
    by_disk.values_mut().for_each(super::layout::merge);
    by_disk
}

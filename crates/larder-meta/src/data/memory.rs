//! Which files have bytes on memory disks, and what those lose when they are started again.
//!
//! A record for each set and file finds the files of a set without a look at all others. A file
//! that has no bytes there any more may still have one, until it is removed or the disk is started
//! again.
//!
//! Invariant, checked by [`crate::check`]: a file with an extent on a set of memory disks has a
//! record for that set.

use std::collections::BTreeMap;
use std::ops::Range;

use larder_wire::meta::Status;
use larder_wire::meta::words::{DiskId, FileId, SessionId};

use super::copies::{self, Sets};
use super::{Map, Piece, give_up};
use crate::store::records::{Extent, InMemory, Inode, Loss, MemoryBoot, NEVER_MS};
use crate::store::{Txn, key};

/// A file has bytes on a set of memory disks, which are due on other disks then. With `is_all` the
/// file has no other bytes, so no earlier time counts.
pub(crate) fn note(
    txn: &mut Txn<'_>,
    (set, file): (DiskId, FileId),
    due_ms: u64,
    is_all: bool,
) -> Result<(), Status> {
    let key = key::in_memory(set, file);
    let before = txn.get::<InMemory>(&key)?;
    let others_ms = before.as_ref().map_or(NEVER_MS, |record| record.due_ms);
    let due_ms = if is_all { due_ms } else { due_ms.min(others_ms) };
    let now = InMemory { due_ms };
    if before.as_ref() != Some(&now) {
        txn.put(key, &now);
    }
    if due_ms != NEVER_MS {
        txn.due(set, file, due_ms);
    }
    Ok(())
}

/// When a file's bytes on a set of memory disks are due on others.
pub(crate) fn due_ms(txn: &Txn<'_>, set: DiskId, file: FileId) -> Result<u64, Status> {
    let record = txn.get::<InMemory>(&key::in_memory(set, file))?;
    Ok(record.map_or(NEVER_MS, |record| record.due_ms))
}

/// The sets of memory disks on which a file may have bytes.
pub(crate) fn sets_of(txn: &Txn<'_>, file: FileId, sets: &Sets) -> Result<Vec<DiskId>, Status> {
    let mut found = Vec::new();
    for (set, _) in sets.memory() {
        if txn.get::<InMemory>(&key::in_memory(set, file))?.is_some() {
            found.push(set);
        }
    }
    Ok(found)
}

/// All files with bytes that are due, now or later.
pub(crate) fn all_due(txn: &Txn<'_>) -> Result<Vec<(DiskId, FileId, u64)>, Status> {
    let records = txn.scan_all::<InMemory>(&key::in_memory(DiskId(0), FileId(0))[..1])?;
    let mut due = Vec::new();
    for (key, InMemory { due_ms }) in records.into_iter().filter(|(_, one)| one.due_ms != NEVER_MS)
    {
        let set = key.get(1..5).and_then(<[u8]>::first_chunk).ok_or(Status::Io)?;
        let file = key::last_number(&key).ok_or(Status::Io)?;
        due.push((DiskId(u32::from_be_bytes(*set)), FileId(file), due_ms));
    }
    Ok(due)
}

/// A file has no bytes on a set of memory disks that could be moved. If some are lost there, the
/// record stays, without a time.
pub(crate) fn is_not_due(txn: &mut Txn<'_>, (set, file): (DiskId, FileId), is_lost: bool) {
    match is_lost {
        true => txn.put(key::in_memory(set, file), &InMemory { due_ms: NEVER_MS }),
        false => txn.delete(key::in_memory(set, file)),
    }
}

/// A file is no more. It may be on record for a set on which it has nothing any more. Such a set
/// goes by a memory disk that was used.
pub(super) fn forget(txn: &mut Txn<'_>, file: FileId) -> Result<(), Status> {
    for (disk, _) in txn.scan_all::<MemoryBoot>(&key::memory_boot(DiskId(0))[..1])? {
        let set = disk.last_chunk().ok_or(Status::Io)?;
        let key = key::in_memory(DiskId(u32::from_be_bytes(*set)), file);
        if txn.get::<InMemory>(&key)?.is_some() {
            txn.delete(key);
        }
    }
    Ok(())
}

/// The files that may have bytes on a set of memory disks.
pub(crate) fn files_on(txn: &Txn<'_>, set: DiskId) -> Result<Vec<FileId>, Status> {
    let prefix = key::in_memory(set, FileId(0));
    let records = txn.scan_all::<InMemory>(&prefix[..prefix.len() - 8])?;
    let file = |(key, _): (Vec<u8>, _)| key::last_number(&key).map(FileId).ok_or(Status::Io);
    records.into_iter().map(file).collect()
}

/// The first such files behind one of them.
pub(crate) fn files_behind(
    txn: &Txn<'_>,
    set: DiskId,
    file: FileId,
    most: usize,
) -> Result<Vec<FileId>, Status> {
    let from = key::in_memory(set, FileId(file.0.saturating_add(1)));
    let until = key::after(&key::in_memory(set, FileId(u64::MAX)));
    let records = txn.scan::<InMemory>(&from, &until, most)?;
    let file = |(key, _): (Vec<u8>, _)| key::last_number(&key).map(FileId).ok_or(Status::Io);
    records.into_iter().map(file).collect()
}

/// The extents of a file on a set.
pub(crate) fn on_set(txn: &Txn<'_>, set: DiskId, file: FileId) -> Result<Vec<Piece>, Status> {
    let mut pieces = Map::File(file).overlapping(txn, &(0..u64::MAX), usize::MAX)?;
    pieces.retain(|piece| piece.disk == set);
    Ok(pieces)
}

/// What became of a file's bytes in memory that were due at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Some are still there.
    Leaves,
    /// The file has none there any more: other disks have them, or it has given them up.
    Left,
    /// Some are lost.
    Lost,
}

/// What became of a file's bytes in memory that were due then. Bytes that were written since, and
/// are due later, do not count.
pub(crate) fn standing(
    txn: &Txn<'_>,
    file: FileId,
    by_ms: u64,
    sets: &Sets,
) -> Result<Standing, Status> {
    let inode = txn.get::<Inode>(&key::inode(file))?;
    if inode.is_some_and(|inode| inode.whereabouts.is_lost()) {
        return Ok(Standing::Lost);
    }
    let mut standing = Standing::Left;
    for (set, all) in sets.memory() {
        let pieces = on_set(txn, set, file)?;
        if !pieces.is_empty() && due_ms(txn, set, file)? <= by_ms {
            return Ok(Standing::Leaves);
        }
        for piece in pieces {
            if !copies::lost(txn, &all.disks, &piece.bytes())?.is_empty() {
                standing = Standing::Lost;
            }
        }
    }
    Ok(standing)
}

/// A memory disk has lost everything: what files have there is stale, and sessions must write what
/// they have on its set again elsewhere. Returns the files that have lost bytes now, since no other
/// disk of the set has them, and how many.
pub(crate) fn lose(
    txn: &mut Txn<'_>,
    disk: DiskId,
    sets: &Sets,
) -> Result<Vec<(FileId, u64)>, Status> {
    let Some((set, all)) = sets.of(disk) else { return Ok(Vec::new()) };
    let others: Vec<DiskId> = all.disks.iter().copied().filter(|other| *other != disk).collect();
    let mut files = Vec::new();
    for file in files_on(txn, set)? {
        let pieces = on_set(txn, set, file)?;
        if pieces.is_empty() {
            txn.delete(key::in_memory(set, file));
        }
        let mut lost = 0;
        for bytes in pieces.iter().map(Piece::bytes) {
            let had = copies::whole(txn, disk, std::slice::from_ref(&bytes))?;
            for bytes in had {
                let gone = copies::lost(txn, &others, &bytes)?;
                lost += gone.iter().map(|bytes| bytes.end - bytes.start).sum::<u64>();
            }
            copies::add_stale(txn, disk, &bytes)?;
        }
        if lost > 0 {
            files.push((file, lost));
        }
    }
    give_up_provisional(txn, set)?;
    Ok(files)
}

/// Sessions give up the blocks that they have on a set, and write again elsewhere.
pub(crate) fn give_up_provisional(txn: &mut Txn<'_>, set: DiskId) -> Result<(), Status> {
    let none = SessionId([0; 16]);
    let (own, ahead) = (key::provisional(none, FileId(0), 0), key::ahead(none, FileId(0), 0));
    for (tag, map) in [(own, Map::Own as fn(_, _) -> _), (ahead, Map::Ahead)] {
        for (key, extent) in txn.scan_all::<Extent>(&tag[..1])? {
            if extent.disk != set {
                continue;
            }
            let (session, rest) = key[1..].split_first_chunk().ok_or(Status::Io)?;
            let (session, file) = (SessionId(*session), number(rest)?);
            let end = key::last_number(&key).ok_or(Status::Io)?;
            let span: Range<u64> = end.checked_sub(extent.length()).ok_or(Status::Io)?..end;
            let pieces = map(session, file).cut(txn, &span)?;
            give_up(txn, session, file, pieces);
        }
    }
    Ok(())
}

/// The files that have lost bytes, and how many: can also be called while a server runs, and is as
/// of its last commit.
pub(crate) fn lost(txn: &Txn<'_>) -> Result<BTreeMap<FileId, u64>, Status> {
    let mut lost: BTreeMap<FileId, u64> = BTreeMap::new();
    for (set, all) in Sets::load(txn)?.memory() {
        if copies::lost(txn, &all.disks, &(0..all.bytes))?.is_empty() {
            continue;
        }
        for file in files_on(txn, set)? {
            for piece in on_set(txn, set, file)? {
                for bytes in copies::lost(txn, &all.disks, &piece.bytes())? {
                    *lost.entry(file).or_default() += bytes.end - bytes.start;
                }
            }
        }
    }
    Ok(lost)
}

/// The sets of memory disks that have lost bytes of a file.
pub(crate) fn sets_with_lost(
    txn: &Txn<'_>,
    file: FileId,
    sets: &Sets,
) -> Result<Vec<DiskId>, Status> {
    let mut found = Vec::new();
    for (set, all) in sets.memory() {
        for piece in on_set(txn, set, file)? {
            if !copies::lost(txn, &all.disks, &piece.bytes())?.is_empty() {
                found.push(set);
            }
        }
    }
    found.dedup();
    Ok(found)
}

/// Files with bytes on a set of memory disks that has lost some of what it had.
pub(crate) fn lost_on_sets(txn: &Txn<'_>, sets: &Sets) -> Result<Vec<(DiskId, FileId)>, Status> {
    let mut files = Vec::new();
    for (set, all) in sets.memory() {
        if !copies::lost(txn, &all.disks, &(0..all.bytes))?.is_empty() {
            files.extend(files_on(txn, set)?.into_iter().map(|file| (set, file)));
        }
    }
    Ok(files)
}

/// Losses that are on record: the earliest go.
const LOSSES_MAX: usize = 64;

/// Puts a loss on record, by the same transaction as what it is about: so each is there once.
/// Returns its number.
pub(crate) fn note_loss(txn: &mut Txn<'_>, loss: &Loss) -> Result<u64, Status> {
    let all = losses(txn)?;
    let number = all.last().map_or(1, |(last, _)| last + 1);
    for (number, _) in all.iter().take((all.len() + 1).saturating_sub(LOSSES_MAX)) {
        txn.delete(key::loss(*number));
    }
    txn.put(key::loss(number), loss);
    Ok(number)
}

/// The last losses, and their numbers.
pub(crate) fn losses(txn: &Txn<'_>) -> Result<Vec<(u64, Loss)>, Status> {
    let all = txn.scan_all::<Loss>(&key::loss(0)[..1])?.into_iter();
    all.map(|(key, loss)| Ok((key::last_number(&key).ok_or(Status::Io)?, loss))).collect()
}

/// The file number in a key, after its tag.
fn number(key: &[u8]) -> Result<FileId, Status> {
    Ok(FileId(u64::from_be_bytes(*key.first_chunk().ok_or(Status::Io)?)))
}

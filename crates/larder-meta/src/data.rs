//! Where the bytes of files are: extents, and the blocks of disks below them.
//!
//! Blocks are of a set of disks, each of which has a copy at the same position ([`copies`]); where
//! a record or a call names a disk as the location of blocks it means the set.
//!
//! A block is free, then provisional: a session has allocated it; then committed: it is a file's. A
//! block that is given up drains: capabilities may still cover it. It is free again once the disks
//! have revoked those.
//!
//! A provisional block that ALLOC allocated belongs to the session until it is committed or the
//! session ends: a write may be in flight although the file is no longer open. One that was given
//! *ahead*, with an OPEN, is freed when the session no longer has the file open for writing, and
//! when the server restarts, because opens are known only in its memory.
//!
//! Invariants, checked by [`crate::check`]:
//! - each block of a set is in exactly one record;
//! - the extents of a file do not overlap, and end where its size does at most;
//! - `used` is the room that its extents take.
//!
//! Absent on purpose: bytes. Only clients and disks see those.

pub(crate) mod blocks;
mod commit;
pub(crate) mod copies;
mod layout;
mod lost;
mod map;
pub(crate) mod memory;
pub(crate) mod moving;
mod placement;

pub(crate) use commit::commit;
pub(crate) use layout::{Plan, layout, merge};
pub(crate) use lost::lost_layout;
use map::rounded;
pub(crate) use map::{Map, Piece};
use placement::NearBy;

use std::ops::Range;

use larder_wire::meta::calls::FileChanged;
use larder_wire::meta::words::{ByteRange, DiskId, FileId, Medium, Near, SessionId};
use larder_wire::meta::{ALLOCATE_BYTES_MAX, BLOCK_BYTES, FILE_BYTES_MAX, Status};

use crate::inode;
use crate::request::Request;
use crate::retained;
use crate::rights::without_privileges;
use crate::store::records::{Extent, Inode};
use crate::store::txn::Revoked;
use crate::store::{Txn, key};
use crate::whereabouts::Event;

/// Which of a session's maps of a file.
type MapOf = fn(SessionId, FileId) -> Map;

/// Gives `range` blocks to write to, which belong to the session until it commits them: for its
/// holes; and, where there are copies, also in place of what the file has. The part beyond
/// [`ALLOCATE_BYTES_MAX`] stays as it is. `near` says on which sets they should be.
///
/// # Errors
/// [`Status::NoSpace`]; [`Status::Invalid`] if `near` makes no sense.
pub(crate) fn allocate(
    txn: &mut Txn<'_>,
    (session, file): (SessionId, FileId),
    (range, near): (&Range<u64>, &[Near]),
    cursors: &mut blocks::Cursors,
    room: blocks::Room<'_>,
) -> Result<(), Status> {
    let wanted = within_limit(range);
    // In memory there are other things to choose by.
    let sets = if room.medium == Medium::Disk { room.sets.on(room.medium) } else { Vec::new() };
    let near = NearBy::new(near, &sets)?;
    let is_in_place = !room.sets.are_written_anew();
    if is_in_place {
        drop_useless(txn, session, file, &wanted)?;
    }
    drop_weaker(txn, (session, file), &wanted, room)?;
    drop_far(txn, (session, file), &wanted, &near)?;
    // From now on these are asked for.
    for piece in Map::Ahead(session, file).cut(txn, &wanted)? {
        Map::Own(session, file).put(txn, piece)?;
    }
    let own = Map::Own(session, file);
    // The file's own blocks are written in place, unless there are copies of them.
    let taken = if is_in_place { own.all_of_its_file() } else { own.all_of_its_session() };
    fill_holes(txn, (own, &taken), (&wanted, &near), cursors, room).map(drop)
}

/// The same ahead of a request: the blocks are taken back with the session's last open for writing.
pub(crate) fn allocate_ahead(
    txn: &mut Txn<'_>,
    session: SessionId,
    file: FileId,
    range: &Range<u64>,
    cursors: &mut blocks::Cursors,
    room: blocks::Room<'_>,
) -> Result<(), Status> {
    let (wanted, own) = (within_limit(range), Map::Ahead(session, file));
    let (taken, wanted) = (own.all_of_its_file(), (&wanted, &NearBy::default()));
    fill_holes(txn, (own, &taken), wanted, cursors, room).map(drop)
}

/// Gives the holes of `range` blocks that belong to the file at once. They read as zeros, because
/// blocks are cleared before they are allocated.
///
/// # Errors
/// [`Status::NoSpace`] if there are not enough; [`Status::Invalid`] if the range is longer than
/// [`ALLOCATE_BYTES_MAX`].
pub(crate) fn preallocate(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    file: FileId,
    range: ByteRange,
    cursors: &mut blocks::Cursors,
    room: blocks::Room<'_>,
) -> Result<FileChanged, Status> {
    let mut inode = inode::regular(txn, file)?;
    let range = range.get().ok_or(Status::Invalid)?;
    if range.end - range.start > ALLOCATE_BYTES_MAX {
        return Err(Status::Invalid);
    }
    let before = inode.attributes.version();
    let client = request.client;
    retained::note(txn, &mut inode, Event::Committed { client })?;
    let wanted = rounded(&range);
    let own = Map::File(file);
    let holes = (&wanted, &NearBy::default());
    inode.attributes.used += fill_holes(txn, (own, &[own]), holes, cursors, room)?;
    if !room.sets.are_written_anew() {
        drop_useless(txn, request.session, file, &wanted)?;
    }
    inode.attributes.size = inode.attributes.size.max(range.end);
    if !request.caller.is_root() {
        inode.attributes.mode = without_privileges(inode.attributes.mode);
    }
    inode.touch(request.now, true);
    inode::put(txn, &inode);
    Ok(FileChanged { file: inode.changed(before) })
}

/// Gives up blocks of a session for a part where the file has blocks by now, because another
/// session was faster. They may have been written to, and their content must not appear when the
/// file's blocks are cut off.
fn drop_useless(
    txn: &mut Txn<'_>,
    session: SessionId,
    file: FileId,
    range: &Range<u64>,
) -> Result<(), Status> {
    let mut useless = Vec::new();
    for there in Map::File(file).overlapping(txn, range, usize::MAX)? {
        for map in [Map::Own(session, file), Map::Ahead(session, file)] {
            useless.extend(map.cut(txn, &(there.offset..there.end()))?);
        }
    }
    give_up(txn, session, file, useless);
    Ok(())
}

/// Gives up blocks of a session on memory disks: what it writes there is now to be on other disks,
/// or on more.
fn drop_weaker(
    txn: &mut Txn<'_>,
    (session, file): (SessionId, FileId),
    range: &Range<u64>,
    room: blocks::Room<'_>,
) -> Result<(), Status> {
    let mut dropped = Vec::new();
    for map in [Map::Own(session, file), Map::Ahead(session, file)] {
        for piece in map.overlapping(txn, range, usize::MAX)? {
            let is_weaker = !room.sets.suits(piece.disk, room.medium);
            if let Some(part) = piece.within(range).filter(|_| is_weaker) {
                dropped.extend(map.cut(txn, &(part.offset..part.end()))?);
            }
        }
    }
    give_up(txn, session, file, dropped);
    Ok(())
}

/// Gives up blocks that a session was given ahead where others are asked for. Its own may have been
/// written to.
fn drop_far(
    txn: &mut Txn<'_>,
    (session, file): (SessionId, FileId),
    wanted: &Range<u64>,
    near: &NearBy,
) -> Result<(), Status> {
    let (map, mut dropped) = (Map::Ahead(session, file), Vec::new());
    for (range, disk) in near.iter() {
        let range = range.start.max(wanted.start)..range.end.min(wanted.end);
        if range.is_empty() {
            continue;
        }
        for piece in map.overlapping(txn, &range, usize::MAX)? {
            if let Some(part) = piece.within(&range).filter(|_| piece.disk != *disk) {
                dropped.extend(map.cut(txn, &(part.offset..part.end()))?);
            }
        }
    }
    give_up(txn, session, file, dropped);
    Ok(())
}

/// Gives up all blocks of sessions for parts where their files have blocks: from now on these are
/// written in place.
pub(crate) fn drop_superseding(txn: &mut Txn<'_>) -> Result<(), Status> {
    for (session, file, _) in provisional(txn)? {
        drop_useless(txn, session, file, &(0..u64::MAX))?;
    }
    Ok(())
}

/// Bytes that sessions hold on a set, and have not committed.
pub(crate) fn provisional_bytes_of(txn: &Txn<'_>, set: DiskId) -> Result<u64, Status> {
    let all = provisional(txn)?.into_iter();
    let lengths = all.flat_map(|(.., extents)| extents).filter(|extent| extent.disk == set);
    Ok(lengths.map(|extent| extent.length()).sum())
}

/// What sessions hold of files, and have not committed.
fn provisional(txn: &Txn<'_>) -> Result<Vec<(SessionId, FileId, Vec<Extent>)>, Status> {
    let none = SessionId([0; 16]);
    let mut found: Vec<(SessionId, FileId, Vec<Extent>)> = Vec::new();
    for first in [key::provisional(none, FileId(0), 0), key::ahead(none, FileId(0), 0)] {
        for (key, extent) in txn.scan_all::<Extent>(&first[..1])? {
            let (session, rest) = key[1..].split_first_chunk().ok_or(Status::Io)?;
            let file = FileId(u64::from_be_bytes(*rest.first_chunk().ok_or(Status::Io)?));
            match found.last_mut() {
                Some((of, one, extents)) if (of.0, *one) == (*session, file) => {
                    extents.push(extent);
                }
                _ => found.push((SessionId(*session), file, vec![extent])),
            }
        }
    }
    Ok(found)
}

/// Lets blocks of a session drain.
fn give_up(txn: &mut Txn<'_>, session: SessionId, file: FileId, pieces: Vec<Piece>) {
    if !pieces.is_empty() {
        txn.revoke(Revoked::Session(session, file));
        blocks::drain(txn, pieces);
    }
}

fn within_limit(range: &Range<u64>) -> Range<u64> {
    let wanted = rounded(range);
    wanted.start..wanted.end.min(wanted.start + ALLOCATE_BYTES_MAX)
}

/// Adds blocks to `own` where none of the maps `taken` has any in `wanted`, which is within the
/// limit; on the disks that `near` says, if that may be. Returns how many bytes.
fn fill_holes(
    txn: &mut Txn<'_>,
    (own, taken): (Map, &[Map]),
    (wanted, near): (&Range<u64>, &NearBy),
    cursors: &mut blocks::Cursors,
    room: blocks::Room<'_>,
) -> Result<u64, Status> {
    // And the block before, whose disk is used further.
    let around = wanted.start.saturating_sub(BLOCK_BYTES)..wanted.end;
    let mut there = Vec::new();
    for map in taken {
        there.extend(map.overlapping(txn, &around, usize::MAX)?);
    }
    there.sort_by_key(|piece| piece.offset);
    let taken = there.iter().map(|piece| (piece.offset..piece.end(), Some(piece.disk)));
    let (mut at, mut before, mut given) = (wanted.start, None, 0);
    for (next, disk) in taken.chain(std::iter::once((wanted.end..wanted.end, None))) {
        while at < next.start {
            let (near, end) = near.at(at);
            let length = next.start.min(end) - at;
            let wanted = blocks::Wanted { offset: at, length, before, near };
            let taken = blocks::take(txn, &wanted, cursors, room)?;
            own.put(txn, Piece::new(at, taken.disk, &taken.bytes))?;
            at += taken.bytes.end - taken.bytes.start;
            given += taken.bytes.end - taken.bytes.start;
            before = Some(taken.disk);
        }
        at = at.max(next.end);
        before = disk;
    }
    Ok(given)
}

/// Makes a block-aligned range read as zeros.
pub(crate) fn punch(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    file: FileId,
    range: ByteRange,
) -> Result<FileChanged, Status> {
    let mut inode = inode::regular(txn, file)?;
    let range = range.get().ok_or(Status::Invalid)?;
    let is_aligned = |at: u64| at.is_multiple_of(BLOCK_BYTES);
    if !is_aligned(range.start) || (!is_aligned(range.end) && range.end < inode.attributes.size) {
        return Err(Status::Invalid);
    }
    if inode.whereabouts.is_lost() {
        return Err(Status::Lost);
    }
    let before = inode.attributes.version();
    drop_range(txn, &mut inode, rounded(&range))?;
    inode.touch(request.now, true);
    inode::put(txn, &inode);
    Ok(FileChanged { file: inode.changed(before) })
}

/// Gives a file another size. What is beyond a smaller one is given up.
///
/// # Errors
/// [`Status::Lost`]: of a lost file only the size 0 can be set, which ends that.
pub(crate) fn resize(txn: &mut Txn<'_>, inode: &mut Inode, size: u64) -> Result<(), Status> {
    match size {
        0 => retained::note(txn, inode, Event::Emptied)?,
        _ if inode.whereabouts.is_lost() => return Err(Status::Lost),
        _ => {}
    }
    if size < inode.attributes.size {
        let end = size.next_multiple_of(BLOCK_BYTES);
        drop_range(txn, inode, end..FILE_BYTES_MAX.next_multiple_of(BLOCK_BYTES))?;
        if size < end {
            Map::File(inode.file()).shorten(txn, size)?;
        }
    }
    inode.attributes.size = size;
    Ok(())
}

/// Gives up all blocks of a file that is removed.
pub(crate) fn drop_all(txn: &mut Txn<'_>, file: FileId) -> Result<(), Status> {
    let pieces = Map::File(file).cut(txn, &(0..u64::MAX))?;
    memory::forget(txn, file)?;
    txn.revoke(Revoked::File(file));
    blocks::drain(txn, pieces);
    Ok(())
}

/// Whether a session has blocks of a file that were given ahead.
pub(crate) fn has_ahead(txn: &Txn<'_>, session: SessionId, file: FileId) -> Result<bool, Status> {
    Ok(!Map::Ahead(session, file).overlapping(txn, &(0..u64::MAX), 1)?.is_empty())
}

/// Gives up the blocks that a session was given ahead for a file, and has neither requested nor
/// committed.
pub(crate) fn release_ahead(
    txn: &mut Txn<'_>,
    session: SessionId,
    file: FileId,
) -> Result<(), Status> {
    release(txn, session, file, Map::Ahead)
}

fn release(txn: &mut Txn<'_>, session: SessionId, file: FileId, map: MapOf) -> Result<(), Status> {
    let pieces = map(session, file).cut(txn, &(0..u64::MAX))?;
    give_up(txn, session, file, pieces);
    Ok(())
}

/// Gives up all that a session holds and has not committed.
pub(crate) fn release_all(txn: &mut Txn<'_>, session: SessionId) -> Result<(), Status> {
    let none = FileId(0);
    let (own, ahead) = (key::provisional(session, none, 0), key::ahead(session, none, 0));
    let maps: [(_, MapOf); 2] = [(own, Map::Own), (ahead, Map::Ahead)];
    for (first, map) in maps {
        let prefix = &first[..first.len() - 16];
        let mut files = Vec::new();
        for (key, _) in txn.scan_all::<Extent>(prefix)? {
            let file = key[prefix.len()..].first_chunk().ok_or(Status::Io)?;
            files.push(FileId(u64::from_be_bytes(*file)));
        }
        files.dedup();
        for file in files {
            release(txn, session, file, map)?;
        }
    }
    Ok(())
}

/// Gives up all blocks given ahead in an earlier life of the server: nothing is open any more. They
/// drain like those that were draining then.
pub(crate) fn release_all_ahead(txn: &mut Txn<'_>) -> Result<(), Status> {
    let first = key::ahead(SessionId([0; 16]), FileId(0), 0);
    for (key, _) in txn.scan_all::<Extent>(&first[..1])? {
        let (session, rest) = key[1..].split_first_chunk().ok_or(Status::Io)?;
        let file = FileId(u64::from_be_bytes(*rest.first_chunk().ok_or(Status::Io)?));
        let pieces = Map::Ahead(SessionId(*session), file).cut(txn, &(0..u64::MAX))?;
        blocks::drain(txn, pieces);
    }
    Ok(())
}

/// Gives up the blocks of a range.
fn drop_range(txn: &mut Txn<'_>, inode: &mut Inode, range: Range<u64>) -> Result<(), Status> {
    let pieces = Map::File(inode.file()).cut(txn, &range)?;
    if !pieces.is_empty() {
        inode.attributes.used -= pieces.iter().map(Piece::length).sum::<u64>();
        txn.revoke(Revoked::File(inode.file()));
        blocks::drain(txn, pieces);
    }
    Ok(())
}

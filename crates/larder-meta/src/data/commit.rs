//! COMMIT_EXTENTS: makes written blocks part of the file.

use std::ops::Range;

use larder_wire::meta::calls::{CommitExtents, FileChanged};
use larder_wire::meta::words::{DiskId, FileId, Merged, MergedFrom, Written};
use larder_wire::meta::{BLOCK_BYTES, FILE_BYTES_MAX, Status};

use super::blocks;
use super::copies::{self, Sets};
use super::map::{Map, Piece, rounded};
use super::memory;
use crate::inode;
use crate::request::Request;
use crate::retained;
use crate::rights::without_privileges;
use crate::store::Txn;
use crate::store::records::Inode;
use crate::store::txn::Revoked;
use crate::whereabouts::Event;

/// Commits what a session wrote to a file; on memory disks it is due at `due_ms` on others.
/// `is_in_place`: the session may have written committed blocks.
pub(crate) fn commit(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    call: &CommitExtents,
    (sets, is_in_place): (&Sets, bool),
    due_ms: u64,
) -> Result<FileChanged, Status> {
    let CommitExtents { file, written, copies, merged, mtime, .. } = call;
    let mut inode = inode::regular(txn, *file)?;
    if mtime.is_some_and(|time| time.nanoseconds >= 1_000_000_000) {
        return Err(Status::Invalid);
    }
    let client = request.client;
    retained::note(txn, &mut inode, Event::Committed { client })?;
    let before = inode.attributes.version();
    let is_all = is_all(txn, *file, &written.0)?;
    let mut end = 0;
    for part in &written.0 {
        let range = part.range().filter(|range| range.start >= end).ok_or(Status::Invalid)?;
        end = range.end;
        let mut commit = Commit {
            txn,
            request,
            inode: &mut inode,
            sets,
            is_in_place,
            copies: &copies.0,
            merged: &merged.0,
            part: *part,
            range,
            due_ms,
            is_all,
        };
        commit.carry_out()?;
    }
    let attributes = &mut inode.attributes;
    attributes.size = attributes.size.max(end);
    if !request.caller.is_root() && end > 0 {
        attributes.mode = without_privileges(attributes.mode);
    }
    inode.touch(request.now, true);
    inode.attributes.mtime = mtime.unwrap_or(inode.attributes.mtime);
    inode::put(txn, &inode);
    Ok(FileChanged { file: inode.changed(before) })
}

/// One range of a commit.
struct Commit<'a, 'b> {
    txn: &'a mut Txn<'b>,
    request: &'a Request<'a>,
    inode: &'a mut Inode,
    sets: &'a Sets,
    /// Whether the session may have written committed blocks.
    is_in_place: bool,
    /// Disks that have all that was written.
    copies: &'a [DiskId],
    /// Blocks that were not written as a whole.
    merged: &'a [Merged],
    part: Written,
    range: Range<u64>,
    /// When it is due if it is in memory.
    due_ms: u64,
    /// Whether the file had nothing but what is replaced.
    is_all: bool,
}

/// Whether a file has nothing beside what was written of it.
fn is_all(txn: &Txn<'_>, file: FileId, written: &[Written]) -> Result<bool, Status> {
    let (Some(first), Some(last)) = (written.first(), written.last()) else { return Ok(false) };
    let end = last.offset.saturating_add(last.length);
    let is_one =
        written.is_sorted_by(|one, next| one.offset.checked_add(one.length) == Some(next.offset));
    let blocks = rounded(&(first.offset..end.min(FILE_BYTES_MAX)));
    let has = |range| Ok(!Map::File(file).overlapping(txn, &range, 1)?.is_empty());
    Ok(is_one && !has(0..blocks.start)? && !has(blocks.end..u64::MAX)?)
}

impl Commit<'_, '_> {
    fn carry_out(&mut self) -> Result<(), Status> {
        let blocks = rounded(&self.range);
        let (session, file) = (self.request.session, self.inode.file());
        let mut own = Vec::new();
        for map in [Map::Own(session, file), Map::Ahead(session, file)] {
            let pieces = self.matching(map, &blocks)?;
            own.extend(pieces.into_iter().map(|piece| (map, piece)));
        }
        let ours = self.matching(Map::File(file), &blocks)?;
        let mut at = blocks.start;
        while at < blocks.end {
            let holds = |piece: &&Piece| piece.offset <= at && at < piece.end();
            if let Some((map, piece)) = own.iter().find(|(_, piece)| holds(&piece)) {
                self.take_over(*map, *piece)?;
                at = piece.end();
            } else if let Some(piece) = ours.iter().find(holds) {
                self.write_on(*piece)?;
                at = piece.end();
            } else {
                return Err(Status::NotAllocated);
            }
        }
        Ok(())
    }

    /// Parts of extents in `blocks` that are where the client says that it wrote.
    fn matching(&self, map: Map, blocks: &Range<u64>) -> Result<Vec<Piece>, Status> {
        let Written { offset, disk, position, .. } = self.part;
        let mut pieces = map.overlapping(self.txn, blocks, usize::MAX)?;
        pieces.retain(|piece| piece.maps(offset, disk, position));
        // A session's extent is committed as a whole: where its bytes end is part of it.
        if !matches!(map, Map::File(_)) {
            pieces = pieces.iter().filter_map(|piece| piece.within(blocks)).collect();
        }
        Ok(pieces)
    }

    /// The session's blocks become the file's, in place of what others put there in the meantime.
    fn take_over(&mut self, own: Map, piece: Piece) -> Result<(), Status> {
        let file = self.inode.file();
        let covered = piece.offset..piece.end();
        let replaced = Map::File(file).cut(self.txn, &covered)?;
        let merged = self.merged.iter().filter(|merged| covered.contains(&merged.offset));
        if !merged.into_iter().all(|merged| is_there_still(merged, &replaced)) {
            return Err(Status::Changed);
        }
        // What a merged block lacks is zeros in both versions.
        let is_merged = |block: u64| self.merged.iter().any(|merged| merged.offset == block);
        let blocks = rounded(&self.range);
        let end = match is_merged(blocks.end - BLOCK_BYTES) {
            true => blocks.end,
            false => self.range.end,
        };
        let is_lost = |old: &Piece| old.offset < self.range.start || old.valid_end() > end;
        if replaced.iter().any(is_lost) {
            return Err(Status::Changed);
        }
        if !replaced.is_empty() {
            self.inode.attributes.used -= replaced.iter().map(Piece::length).sum::<u64>();
            self.txn.revoke(Revoked::File(file));
            blocks::drain(self.txn, replaced);
        }
        own.cut(self.txn, &covered)?;
        self.note_copies(&piece)?;
        Map::File(file).put(self.txn, piece)?;
        if self.sets.is_memory(piece.disk) {
            memory::note(self.txn, (piece.disk, file), self.due_ms, self.is_all)?;
        }
        self.inode.attributes.used += piece.length();
        Ok(())
    }

    /// Disks of the set that have missed what was written have stale blocks there. At least one
    /// disk has it.
    fn note_copies(&mut self, piece: &Piece) -> Result<(), Status> {
        let (disks, bytes) = (self.sets.disks(piece.disk), piece.bytes());
        let mut is_whole = false;
        for disk in disks {
            if self.copies.contains(disk) {
                is_whole |= copies::stale(self.txn, *disk, &bytes)?.is_empty();
            } else {
                copies::add_stale(self.txn, *disk, &bytes)?;
            }
        }
        if is_whole { Ok(()) } else { Err(Status::NotAllocated) }
    }

    /// Blocks that belong to the file were written in place; or, where there are copies, when they
    /// still were blocks of the session.
    fn write_on(&mut self, piece: Piece) -> Result<(), Status> {
        // A grant from before: whoever puts another block in its place does not know these bytes.
        if self.sets.are_written_anew() && self.is_in_place {
            return Err(Status::Changed);
        }
        let end = self.range.end.min(piece.end());
        if end <= piece.valid_end() {
            return Ok(());
        }
        // The file was cut since.
        if self.sets.are_written_anew() {
            return Err(Status::Changed);
        }
        // Between the end of the extent and what was written there would be old bytes.
        if self.range.start > piece.valid_end() {
            return Err(Status::Invalid);
        }
        Map::File(self.inode.file()).lengthen(self.txn, piece, end);
        Ok(())
    }
}

/// Whether the block into which a part was merged is still the file's.
fn is_there_still(merged: &Merged, replaced: &[Piece]) -> bool {
    let block = merged.offset..merged.offset.saturating_add(BLOCK_BYTES);
    let there = replaced.iter().find_map(|piece| piece.within(&block));
    match (there, merged.from) {
        (None, None) => true,
        (Some(piece), Some(MergedFrom { disk, position, length })) => {
            (piece.offset, piece.valid) == (merged.offset, length.into())
                && (piece.disk, piece.position) == (disk, position)
        }
        _ => false,
    }
}

//! COMMIT_EXTENTS: makes written blocks part of the file.

use std::ops::Range;

use larder_wire::meta::calls::{CommitExtents, FileChanged};
use larder_wire::meta::words::{DiskId, Merged, MergedFrom, Written};
use larder_wire::meta::{BLOCK_BYTES, Status};

use super::blocks;
use super::copies::{self, Sets};
use super::map::{Map, Piece, rounded};
use crate::inode;
use crate::request::Request;
use crate::rights::without_privileges;
use crate::store::Txn;
use crate::store::records::Inode;
use crate::store::txn::Revoked;

/// Commits what a session wrote to a file.
pub(crate) fn commit(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    call: &CommitExtents,
    sets: &Sets,
) -> Result<FileChanged, Status> {
    let CommitExtents { file, written, copies, merged, mtime, .. } = call;
    let mut inode = inode::regular(txn, *file)?;
    if mtime.is_some_and(|time| time.nanoseconds >= 1_000_000_000) {
        return Err(Status::Invalid);
    }
    let before = inode.attributes.version();
    let mut end = 0;
    for part in &written.0 {
        let range = part.range().filter(|range| range.start >= end).ok_or(Status::Invalid)?;
        end = range.end;
        let mut commit = Commit {
            txn,
            request,
            inode: &mut inode,
            sets,
            copies: &copies.0,
            merged: &merged.0,
            part: *part,
            range,
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
    /// Disks that have all that was written.
    copies: &'a [DiskId],
    /// Blocks that were not written as a whole.
    merged: &'a [Merged],
    part: Written,
    range: Range<u64>,
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

    /// Parts of extents in `blocks` that lie where the client says that it wrote.
    fn matching(&self, map: Map, blocks: &Range<u64>) -> Result<Vec<Piece>, Status> {
        let Written { offset, disk, position, .. } = self.part;
        let mut pieces = map.overlapping(self.txn, blocks, usize::MAX)?;
        pieces.retain(|piece| piece.maps(offset, disk, position));
        // An extent is written on as a whole: where its bytes end is part of it.
        if !matches!(map, Map::File(_)) {
            pieces = pieces.iter().filter_map(|piece| piece.within(blocks)).collect();
        }
        Ok(pieces)
    }

    /// Blocks of the session become the file's, in place of what others made of them meanwhile.
    fn take_over(&mut self, own: Map, piece: Piece) -> Result<(), Status> {
        let file = self.inode.file();
        let covered = piece.offset..piece.end();
        let replaced = Map::File(file).cut(self.txn, &covered)?;
        let merged = self.merged.iter().filter(|merged| covered.contains(&merged.offset));
        if !merged.into_iter().all(|merged| is_there_still(merged, &replaced)) {
            return Err(Status::Changed);
        }
        // What is not there of a merged block is zeros in either.
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
        self.inode.attributes.used += piece.length();
        Ok(())
    }

    /// Disks of the set that have missed what was written have stale blocks there. One has it.
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

    /// Blocks that are the file's were written in place; or, where there are copies, as the blocks
    /// of the session that they were before.
    fn write_on(&mut self, piece: Piece) -> Result<(), Status> {
        let end = self.range.end.min(piece.end());
        if end <= piece.valid_end() {
            return Ok(());
        }
        // The file was cut since.
        if self.sets.are_mirrored() {
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

/// Whether a block of which a part was written is the one that the rest was taken from.
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

//! The extents of a file, or those that a session holds of it, as a map by offset.

use std::ops::Range;

use larder_wire::meta::words::{DiskId, FileId, SessionId};
use larder_wire::meta::{BLOCK_BYTES, Status};

use crate::store::records::Extent;
use crate::store::{Txn, key};

/// Extents that are read at a time.
const SCAN: usize = 32;

/// Whose extents.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Map {
    /// A file's: committed.
    File(FileId),
    /// A session's of a file, as it has asked for them: provisional.
    Own(SessionId, FileId),
    /// The same, given ahead with an open: they are taken back with the session's last open for
    /// writing, unless the session has requested them by then.
    Ahead(SessionId, FileId),
}

/// An extent, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Where it begins in the file, in bytes; block-aligned.
    pub(crate) offset: u64,
    /// Bytes of the file. The rest of the last block reads as zeros.
    pub(crate) valid: u64,
    pub(crate) disk: DiskId,
    /// Where it begins on the disk, in bytes; block-aligned.
    pub(crate) position: u64,
}

impl Piece {
    pub(crate) fn new(offset: u64, disk: DiskId, bytes: &Range<u64>) -> Piece {
        Piece { offset, valid: bytes.end - bytes.start, disk, position: bytes.start }
    }

    /// Bytes of its blocks.
    pub(crate) fn length(&self) -> u64 {
        self.valid.next_multiple_of(BLOCK_BYTES)
    }

    /// Where its last block ends in the file.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.length()
    }

    /// Where the bytes end that are the file's.
    pub(crate) fn valid_end(&self) -> u64 {
        self.offset + self.valid
    }

    /// Its blocks on the disk.
    pub(crate) fn bytes(&self) -> Range<u64> {
        self.position..self.position + self.length()
    }

    /// Whether `offset` of the file would be at `position` of the disk if it were in this piece.
    pub(crate) fn maps(&self, offset: u64, disk: DiskId, position: u64) -> bool {
        self.disk == disk
            && self.position.wrapping_sub(self.offset) == position.wrapping_sub(offset)
    }

    /// The part of it in a block-aligned range, if there is one.
    pub(crate) fn within(&self, range: &Range<u64>) -> Option<Piece> {
        let start = self.offset.max(range.start);
        let end = self.end().min(range.end);
        (start < end).then(|| Piece {
            offset: start,
            valid: self.valid_end().min(end) - start,
            disk: self.disk,
            position: self.position + (start - self.offset),
        })
    }
}

impl Map {
    /// The file whose they are.
    pub(crate) fn file(self) -> FileId {
        match self {
            Map::File(file) | Map::Own(_, file) | Map::Ahead(_, file) => file,
        }
    }

    /// All maps with blocks of the same file, as its session sees it.
    pub(crate) fn all_of_its_file(self) -> Vec<Map> {
        match self {
            Map::File(_) => vec![self],
            Map::Own(session, file) | Map::Ahead(session, file) => {
                vec![Map::File(file), Map::Own(session, file), Map::Ahead(session, file)]
            }
        }
    }

    /// All maps with blocks that only its session has.
    pub(crate) fn all_of_its_session(self) -> Vec<Map> {
        let mut maps = self.all_of_its_file();
        maps.retain(|map| !matches!(map, Map::File(_)));
        maps
    }

    fn key(self, end: u64) -> Vec<u8> {
        match self {
            Map::File(file) => key::extent(file, end),
            Map::Own(session, file) => key::provisional(session, file, end),
            Map::Ahead(session, file) => key::ahead(session, file, end),
        }
    }

    /// The extents that have blocks in a range, in order, `limit` at most.
    pub(crate) fn overlapping(
        self,
        txn: &Txn<'_>,
        range: &Range<u64>,
        limit: usize,
    ) -> Result<Vec<Piece>, Status> {
        let until = key::after(&self.key(u64::MAX));
        let (mut found, mut from) = (Vec::new(), self.key(range.start.saturating_add(1)));
        loop {
            let batch = txn.scan::<Extent>(&from, &until, SCAN)?;
            let is_last = batch.len() < SCAN;
            for (key, extent) in batch {
                let piece = piece(&key, &extent)?;
                if piece.offset >= range.end || found.len() == limit {
                    return Ok(found);
                }
                from = self.key(piece.end() + 1);
                found.push(piece);
            }
            if is_last {
                return Ok(found);
            }
        }
    }

    /// Adds an extent where there is none. It is merged with the extent before it if it follows
    /// that on the disk, too.
    pub(crate) fn put(self, txn: &mut Txn<'_>, mut piece: Piece) -> Result<(), Status> {
        if let Some(before) = txn.get::<Extent>(&self.key(piece.offset))? {
            let length = before.length();
            let follows = before.valid == length
                && before.disk == piece.disk
                && before.position + length == piece.position;
            if follows {
                txn.delete(self.key(piece.offset));
                piece.offset -= length;
                piece.position -= length;
                piece.valid += length;
            }
        }
        self.write(txn, piece);
        Ok(())
    }

    fn write(self, txn: &mut Txn<'_>, piece: Piece) {
        let Piece { valid, disk, position, .. } = piece;
        txn.put(self.key(piece.end()), &Extent { valid, disk, position });
    }

    /// Takes the extents of a block-aligned range out and answers them.
    pub(crate) fn cut(self, txn: &mut Txn<'_>, range: &Range<u64>) -> Result<Vec<Piece>, Status> {
        let mut taken = Vec::new();
        for piece in self.overlapping(txn, range, usize::MAX)? {
            txn.delete(self.key(piece.end()));
            let outside = [0..range.start, range.end..u64::MAX];
            for rest in outside.iter().filter_map(|outside| piece.within(outside)) {
                self.write(txn, rest);
            }
            taken.extend(piece.within(range));
        }
        Ok(taken)
    }

    /// Shortens the extent that contains the file's new end to that end.
    pub(crate) fn shorten(self, txn: &mut Txn<'_>, size: u64) -> Result<(), Status> {
        for mut piece in self.overlapping(txn, &(size..size + 1), 1)? {
            piece.valid = piece.valid.min(size - piece.offset);
            // Its last block stays, and so does its key.
            self.write(txn, piece);
        }
        Ok(())
    }

    /// Extends the last block of an extent, which was cut by a smaller size, to have bytes up to
    /// `end`.
    pub(crate) fn lengthen(self, txn: &mut Txn<'_>, mut piece: Piece, end: u64) {
        debug_assert!(piece.valid_end() < end && end <= piece.end());
        piece.valid = end - piece.offset;
        self.write(txn, piece);
    }
}

/// The blocks that a range has bytes in, in bytes.
pub(crate) fn rounded(range: &Range<u64>) -> Range<u64> {
    range.start / BLOCK_BYTES * BLOCK_BYTES..range.end.next_multiple_of(BLOCK_BYTES)
}

fn piece(key: &[u8], extent: &Extent) -> Result<Piece, Status> {
    let end = key::last_number(key).ok_or(Status::Io)?;
    let offset = end.checked_sub(extent.length()).ok_or(Status::Io)?;
    let Extent { valid, disk, position } = *extent;
    Ok(Piece { offset, valid, disk, position })
}

//! Checks data: extents make sense, and what is said of blocks and bytes is so.

use std::collections::{BTreeMap, BTreeSet};

use larder_wire::meta::words::{DiskId, FileId, Kind, SessionId};
use larder_wire::meta::{BLOCK_BYTES, FILE_BYTES_MAX, Status};

use super::pass::Groups;
use super::{Check, FaultKind, number, shown};
use crate::data::copies::{self, Set, Sets};
use crate::data::{Map, Piece};
use crate::store::key;
use crate::store::key::Pool;
use crate::store::records::{Blocks, Extent, InMemory, Inode, Session, Slot};

impl Check<'_> {
    /// Mends extents and blocks, and the counts in files that depend on them.
    pub(super) fn data(&mut self) -> Result<(), Status> {
        let sets = Sets::load(&self.txn)?;
        let disks: BTreeMap<DiskId, u64> =
            sets.complete().map(|(number, set)| (number, set.bytes)).collect();
        self.mend_sessions()?;
        self.mend_files()?;
        self.mend_pools(&disks)?;
        self.mend_blocks(&disks)?;
        self.mend_stale(&sets)?;
        self.mend_in_memory(&sets)?;
        self.find_lost_copies(&sets)?;
        self.mend_used()
    }

    /// Stale blocks are some of a disk that has others beside it.
    fn mend_stale(&mut self, sets: &Sets) -> Result<(), Status> {
        for one in self.all::<Blocks>(b't') {
            let (key, blocks) = one?;
            let (disk, end) = (disk(&key)?, number(&key)?);
            let is_of = |(_, set): &(DiskId, &Set)| {
                set.may_be_stale() && set.disks.contains(&disk) && end <= set.bytes
            };
            let is_sound = blocks.length > 0
                && blocks.length <= end
                && blocks.length.is_multiple_of(BLOCK_BYTES)
                && end.is_multiple_of(BLOCK_BYTES);
            if is_sound && sets.complete().any(|set| is_of(&set)) {
                continue;
            }
            let what = format!("blocks before {end} of disk {} are stale and nowhere", disk.0);
            self.mend(FaultKind::Disk, None, what, "they are not counted".into());
            self.txn.delete(key);
        }
        Ok(())
    }

    /// Mends the records of which files have bytes on which memory disks.
    fn mend_in_memory(&mut self, sets: &Sets) -> Result<(), Status> {
        for one in self.all::<InMemory>(b'm') {
            let (key, _) = one?;
            let (set, file) = (disk(&key)?, FileId(number(&key)?));
            if sets.is_memory(set) && self.files.contains(file) {
                continue;
            }
            let what = format!("{} is said to be on disk {}", shown(file), set.0);
            self.mend(FaultKind::Disk, Some(file), what, "it is not".into());
            self.txn.delete(key);
        }
        for one in self.all::<Extent>(b'x') {
            let (key, extent) = one?;
            let (set, file) = (extent.disk, map(&key)?.file());
            let said = key::in_memory(set, file);
            if sets.is_memory(set) && self.txn.get::<InMemory>(&said)?.is_none() {
                let what = format!("{} is not said to be on memory disk {}", shown(file), set.0);
                let remedy = "it is said from now on, and they are due on other disks";
                self.mend(FaultKind::Disk, Some(file), what, remedy.into());
                // How long they may stay in memory is not known.
                self.txn.put(said, &InMemory { due_ms: 0 });
            }
        }
        Ok(())
    }

    /// Each block of a file must have a copy that is not stale.
    fn find_lost_copies(&mut self, sets: &Sets) -> Result<(), Status> {
        if !sets.are_mirrored() {
            return Ok(());
        }
        for one in self.all::<Extent>(b'x') {
            let (key, extent) = one?;
            let Some(piece) = piece(&key, &extent) else { continue };
            // What was in memory may be lost, and the file's records say so.
            if sets.is_memory(piece.disk) {
                continue;
            }
            let lost = copies::lost(&self.txn, sets.disks(piece.disk), &piece.bytes())?;
            if !lost.is_empty() {
                let file = map(&key)?.file();
                let what = format!(
                    "bytes {lost:?} of disks {:?}, which {} has, are stale on each of them",
                    sets.disks(piece.disk).iter().map(|disk| disk.0).collect::<Vec<_>>(),
                    shown(file)
                );
                self.leave(FaultKind::Copies, what);
            }
        }
        Ok(())
    }

    /// Removes what belongs to sessions that do not exist.
    fn mend_sessions(&mut self) -> Result<(), Status> {
        let sessions = self.all::<Session>(b's').map(|one| session(&one?.0));
        let sessions: BTreeSet<SessionId> = sessions.collect::<Result<_, _>>()?;
        for tag in [b'p', b'g'] {
            let mut before: (Vec<u8>, u64) = (Vec::new(), 0);
            for one in self.all::<Extent>(tag) {
                let (key, extent) = one?;
                let (of, file) = (key[..key.len() - 8].to_vec(), shown(map(&key)?.file()));
                let piece = piece(&key, &extent);
                let is_alone =
                    piece.is_some_and(|piece| before.0 != of || before.1 <= piece.offset);
                let (kind, what) = match is_alone {
                    true if sessions.contains(&session(&key)?) => {
                        before = (of, number(&key)?);
                        continue;
                    }
                    true => (
                        FaultKind::Session,
                        format!("blocks for {file} are a session's that is over"),
                    ),
                    false => {
                        (FaultKind::Extent, format!("a session's extent of {file} makes no sense"))
                    }
                };
                self.mend(kind, None, what, "they are given up".into());
                self.txn.delete(key);
                if let Some(piece) = piece {
                    let (end, length) = (piece.bytes().end, piece.length());
                    let drained = key::blocks(Pool::Draining, piece.disk, end);
                    self.txn.put(drained, &Blocks { length });
                }
            }
        }
        let mut of_nobody = 0;
        for one in self.all::<Slot>(b'r') {
            let (key, _) = one?;
            if !sessions.contains(&session(&key)?) {
                of_nobody += 1;
                self.txn.delete(key);
            }
        }
        if of_nobody > 0 {
            let what = format!("{of_nobody} replies are kept for a session that is over");
            self.mend(FaultKind::Session, None, what, "they are forgotten".into());
        }
        Ok(())
    }

    /// Mends the extents of each file that make sense; the others go.
    fn mend_files(&mut self) -> Result<(), Status> {
        let (mut extents, mut inodes) = (self.groups::<Extent>(b'x'), self.inodes());
        while let Some(file) = extents.next_file()? {
            let (mut pieces, mut senseless) = (Vec::new(), Vec::new());
            extents.of(file, |key, extent| {
                match piece(&key, &extent) {
                    Some(piece) => pieces.push(piece),
                    None => senseless.push(key),
                }
                Ok(())
            })?;
            for key in senseless {
                let what = format!("an extent of {} makes no sense", shown(file));
                self.mend(FaultKind::Extent, Some(file), what, "it is removed".into());
                self.txn.delete(key);
                self.change(file)?;
            }
            if !pieces.is_empty() {
                let inode = inodes.get(file, &self.changed)?;
                self.mend_file(file, inode.as_ref(), pieces)?;
            }
        }
        Ok(())
    }

    /// The extents of a file must not overlap, must belong to a file, and must be before its end.
    fn mend_file(
        &mut self,
        file: FileId,
        inode: Option<&Inode>,
        mut pieces: Vec<Piece>,
    ) -> Result<(), Status> {
        let Some(inode) = inode.filter(|inode| inode.attributes.kind == Kind::File) else {
            let what = format!("{} is no file, and has bytes", shown(file));
            return self.move_out(file, pieces, what);
        };
        pieces.sort_by_key(|piece| piece.offset);
        let (mut at, mut end) = (0, 0);
        for piece in pieces {
            if let Some(there) = piece.within(&(0..at)) {
                let bytes = there.offset..there.end();
                let what = format!("{} has bytes {bytes:?} in two places", shown(file));
                self.move_out(file, vec![piece], what)?;
                // What is nowhere else stays.
                if let Some(rest) = piece.within(&(at..u64::MAX)) {
                    self.take_back(file, rest)?;
                    end = end.max(rest.valid_end());
                }
            } else {
                end = end.max(piece.valid_end());
            }
            at = at.max(piece.end());
        }
        let size = inode.attributes.size;
        if end > size.next_multiple_of(BLOCK_BYTES) {
            let what = format!("{} ends at {size}, and has bytes up to {end}", shown(file));
            self.mend(FaultKind::Size, Some(file), what, format!("it ends at {end}"));
            if let Some(inode) = self.change(file)? {
                inode.attributes.size = end;
            }
        }
        Ok(())
    }

    /// Makes a file of extents that cannot stay where they are. It has no name yet.
    fn move_out(&mut self, from: FileId, pieces: Vec<Piece>, what: String) -> Result<(), Status> {
        let new = self.next_number();
        let mut inode = self.new_inode(new, Kind::File, 0o600);
        if let Some(there) = self.inode(from)? {
            (inode.attributes.uid, inode.attributes.gid) =
                (there.attributes.uid, there.attributes.gid);
        }
        inode.attributes.size = pieces.iter().map(Piece::valid_end).max().unwrap_or(0);
        self.add_inode(inode);
        self.mend(FaultKind::Extent, Some(from), what, format!("{} has them now", shown(new)));
        for piece in pieces {
            self.txn.delete(key::extent(from, piece.end()));
            Map::File(new).put(&mut self.txn, piece)?;
        }
        self.change(from)?;
        Ok(())
    }

    /// Gives a part of the newest file back to where it was.
    fn take_back(&mut self, file: FileId, part: Piece) -> Result<(), Status> {
        let new = FileId(self.volume.next_file - 1);
        Map::File(new).cut(&mut self.txn, &(part.offset..part.end()))?;
        let Piece { valid, disk, position, .. } = part;
        self.txn.put(key::extent(file, part.end()), &Extent { valid, disk, position });
        if let Some(inode) = self.change(new)? {
            inode.attributes.size = inode.attributes.size.min(part.offset);
        }
        Ok(())
    }

    /// Blocks without an owner must be at least one, and on an existing disk.
    fn mend_pools(&mut self, disks: &BTreeMap<DiskId, u64>) -> Result<(), Status> {
        for pool in [Pool::Free, Pool::Draining] {
            for one in self.all::<Blocks>(pool.tag()) {
                let (key, blocks) = one?;
                let disk = disk(&key)?;
                let end = number(&key)?;
                let is_sound = blocks.length > 0
                    && blocks.length <= end
                    && blocks.length.is_multiple_of(BLOCK_BYTES)
                    && end.is_multiple_of(BLOCK_BYTES);
                let is_there = disks.get(&disk).is_some_and(|size| end <= *size);
                if is_sound && is_there {
                    continue;
                }
                let what =
                    format!("blocks before {end} of disk {} are nobody's and nowhere", disk.0);
                self.mend(FaultKind::Disk, None, what, "they are not counted".into());
                self.txn.delete(key);
            }
        }
        Ok(())
    }

    /// Mends the counts of used bytes in files.
    fn mend_used(&mut self) -> Result<(), Status> {
        let mut now = Groups::new(self.all::<Extent>(b'x'));
        let mut before = Groups::new(self.all_before::<Extent>(b'x'));
        let mut inodes = self.inodes();
        while let Some((file, inode)) = inodes.next(&self.changed)? {
            let said = inode.attributes.used;
            let (counted, was) = (used(&mut now, file)?, used(&mut before, file)?);
            if said == counted {
                continue;
            }
            if said != was && !self.made.contains(&file) {
                let what = format!("{} says that it uses {said} bytes", shown(file));
                self.mend(FaultKind::Used, Some(file), what, format!("it uses {counted}"));
            }
            if let Some(inode) = self.change(file)? {
                inode.attributes.used = counted;
            }
        }
        Ok(())
    }
}

/// Bytes that a file uses, as these are its extents.
fn used(extents: &mut Groups<'_, Extent>, file: FileId) -> Result<u64, Status> {
    let mut used = 0;
    extents.of(file, |key, extent| {
        used += piece(&key, &extent).map_or(0, |piece| piece.length());
        Ok(())
    })?;
    Ok(used)
}

/// The map that an extent's key is of.
pub(super) fn map(key: &[u8]) -> Result<Map, Status> {
    let file =
        key.len().checked_sub(16).and_then(|at| key[at..].first_chunk()).ok_or(Status::Io)?;
    let file = FileId(u64::from_be_bytes(*file));
    match key[0] {
        b'x' => Ok(Map::File(file)),
        b'p' => Ok(Map::Own(session(key)?, file)),
        _ => Ok(Map::Ahead(session(key)?, file)),
    }
}

/// The session that a key begins with.
pub(super) fn session(key: &[u8]) -> Result<SessionId, Status> {
    let id = key.get(1..17).and_then(<[u8]>::first_chunk).ok_or(Status::Io)?;
    Ok(SessionId(*id))
}

/// The disk of blocks without an owner.
pub(super) fn disk(key: &[u8]) -> Result<DiskId, Status> {
    let id = key.get(1..5).and_then(<[u8]>::first_chunk).ok_or(Status::Io)?;
    Ok(DiskId(u32::from_be_bytes(*id)))
}

/// An extent, if it makes sense.
pub(super) fn piece(key: &[u8], extent: &Extent) -> Option<Piece> {
    let Extent { valid, disk, position } = *extent;
    let end = key::last_number(key)?;
    let length = valid.checked_next_multiple_of(BLOCK_BYTES)?;
    let offset = end.checked_sub(length)?;
    let is_sound = valid > 0
        && offset.is_multiple_of(BLOCK_BYTES)
        && position.is_multiple_of(BLOCK_BYTES)
        && position.checked_add(length).is_some()
        && end <= FILE_BYTES_MAX;
    is_sound.then_some(Piece { offset, valid, disk, position })
}

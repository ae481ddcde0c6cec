//! Checks data: extents make sense, and each block of a disk is in one place.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use larder_wire::meta::words::{DiskId, FileId, Kind, SessionId};
use larder_wire::meta::{BLOCK_BYTES, FILE_BYTES_MAX, Status};

use super::{Check, FaultKind, number, shown};
use crate::data::copies::{self, Set, Sets};
use crate::data::{Map, Piece};
use crate::store::key;
use crate::store::key::Pool;
use crate::store::records::{Blocks, Extent, InMemory, Session, Slot};

/// The owner of blocks.
#[derive(Clone, Copy, Debug)]
enum Holder {
    /// A file, or a session of one, at this offset.
    Extent(Map, u64),
    /// None.
    Pool(Pool),
}

/// Blocks of a disk, and the record that says that it owns them.
#[derive(Clone, Debug)]
struct Owned {
    holder: Holder,
    bytes: Range<u64>,
}

/// Blocks by where they begin: where they end, and whose they are.
type Taken = BTreeMap<u64, (u64, Holder)>;

impl Holder {
    fn shown(self) -> String {
        match self {
            Holder::Extent(Map::File(file), offset) => format!("{}'s at {offset}", shown(file)),
            Holder::Extent(Map::Own(_, file) | Map::Ahead(_, file), offset) => {
                format!("a session's for {} at {offset}", shown(file))
            }
            Holder::Pool(Pool::Free) => "free".to_owned(),
            Holder::Pool(Pool::Draining) => "given up".to_owned(),
        }
    }

    fn file(self) -> Option<FileId> {
        match self {
            Holder::Extent(Map::File(file), _) => Some(file),
            _ => None,
        }
    }
}

impl Check<'_> {
    /// Mends extents and blocks, and the counts in files that depend on them.
    pub(super) fn data(&mut self) -> Result<(), Status> {
        let sets = Sets::load(&self.txn)?;
        let disks: BTreeMap<DiskId, u64> =
            sets.complete().map(|(number, set)| (number, set.bytes)).collect();
        let before = self.used()?;
        self.mend_sessions()?;
        let files = self.files()?;
        for (file, pieces) in files {
            self.mend_file(file, pieces)?;
        }
        self.mend_pools(&disks)?;
        let owned = self.owned()?;
        self.mend_blocks(&disks, owned)?;
        self.mend_stale(&sets)?;
        self.mend_in_memory(&sets)?;
        self.find_lost_copies(&sets)?;
        self.mend_used(&before)
    }

    /// Stale blocks are some of a disk that has others beside it.
    fn mend_stale(&mut self, sets: &Sets) -> Result<(), Status> {
        for (key, blocks) in self.all::<Blocks>(b't')? {
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
        let mut known: BTreeSet<(DiskId, FileId)> = BTreeSet::new();
        for (key, _) in self.all::<InMemory>(b'm')? {
            let (set, file) = (disk(&key)?, FileId(number(&key)?));
            if sets.is_memory(set) && self.inodes.contains_key(&file) {
                known.insert((set, file));
                continue;
            }
            let what = format!("{} is said to be on disk {}", shown(file), set.0);
            self.mend(FaultKind::Disk, Some(file), what, "it is not".into());
            self.txn.delete(key);
        }
        for (key, extent) in self.all::<Extent>(b'x')? {
            let (set, file) = (extent.disk, map(&key)?.file());
            if sets.is_memory(set) && known.insert((set, file)) {
                let what = format!("{} is not said to be on memory disk {}", shown(file), set.0);
                let remedy = "it is said from now on, and they are due on other disks";
                self.mend(FaultKind::Disk, Some(file), what, remedy.into());
                // How long they may stay in memory is not known.
                self.txn.put(key::in_memory(set, file), &InMemory { due_ms: 0 });
            }
        }
        Ok(())
    }

    /// Each block of a file must have a copy that is not stale.
    fn find_lost_copies(&mut self, sets: &Sets) -> Result<(), Status> {
        if !sets.are_mirrored() {
            return Ok(());
        }
        for (key, extent) in self.all::<Extent>(b'x')? {
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

    /// Bytes that files use, as their extents are now.
    fn used(&self) -> Result<HashMap<FileId, u64>, Status> {
        let mut used: HashMap<FileId, u64> = HashMap::new();
        for (key, extent) in self.all::<Extent>(b'x')? {
            let length = piece(&key, &extent).map_or(0, |piece| piece.length());
            *used.entry(map(&key)?.file()).or_default() += length;
        }
        Ok(used)
    }

    /// Removes what belongs to sessions that do not exist.
    fn mend_sessions(&mut self) -> Result<(), Status> {
        let sessions = self.all::<Session>(b's')?.into_iter().map(|(key, _)| session(&key));
        let sessions: BTreeSet<SessionId> = sessions.collect::<Result<_, _>>()?;
        for tag in [b'p', b'g'] {
            let mut before: (Vec<u8>, u64) = (Vec::new(), 0);
            for (key, extent) in self.all::<Extent>(tag)? {
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
        for (key, _) in self.all::<Slot>(b'r')? {
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

    /// The extents of each file that make sense; the others go.
    fn files(&mut self) -> Result<BTreeMap<FileId, Vec<Piece>>, Status> {
        let mut files: BTreeMap<FileId, Vec<Piece>> = BTreeMap::new();
        for (key, extent) in self.all::<Extent>(b'x')? {
            let file = map(&key)?.file();
            match piece(&key, &extent) {
                Some(piece) => files.entry(file).or_default().push(piece),
                None => {
                    let what = format!("an extent of {} makes no sense", shown(file));
                    self.mend(FaultKind::Extent, Some(file), what, "it is removed".into());
                    self.txn.delete(key);
                    self.changed.insert(file);
                }
            }
        }
        Ok(files)
    }

    /// The extents of a file must not overlap, must belong to a file, and must be before its end.
    fn mend_file(&mut self, file: FileId, mut pieces: Vec<Piece>) -> Result<(), Status> {
        let is_file = |inode: &crate::store::records::Inode| inode.attributes.kind == Kind::File;
        if !self.inodes.get(&file).is_some_and(is_file) {
            let what = format!("{} is no file, and has bytes", shown(file));
            return self.move_out(file, pieces, what);
        }
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
        let size = self.inodes[&file].attributes.size;
        if end > size.next_multiple_of(BLOCK_BYTES) {
            let what = format!("{} ends at {size}, and has bytes up to {end}", shown(file));
            self.mend(FaultKind::Size, Some(file), what, format!("it ends at {end}"));
            if let Some(inode) = self.change(file) {
                inode.attributes.size = end;
            }
        }
        Ok(())
    }

    /// Makes a file of extents that cannot stay where they are. It has no name yet.
    fn move_out(&mut self, from: FileId, pieces: Vec<Piece>, what: String) -> Result<(), Status> {
        let new = self.next_number();
        let mut inode = self.new_inode(new, Kind::File, 0o600);
        if let Some(there) = self.inodes.get(&from) {
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
        self.changed.insert(from);
        Ok(())
    }

    /// Gives a part of the newest file back to where it was.
    fn take_back(&mut self, file: FileId, part: Piece) -> Result<(), Status> {
        let new = FileId(self.volume.next_file - 1);
        Map::File(new).cut(&mut self.txn, &(part.offset..part.end()))?;
        let Piece { valid, disk, position, .. } = part;
        self.txn.put(key::extent(file, part.end()), &Extent { valid, disk, position });
        if let Some(inode) = self.change(new) {
            inode.attributes.size = inode.attributes.size.min(part.offset);
        }
        Ok(())
    }

    /// Blocks without an owner must be at least one, and on an existing disk.
    fn mend_pools(&mut self, disks: &BTreeMap<DiskId, u64>) -> Result<(), Status> {
        for pool in [Pool::Free, Pool::Draining] {
            for (key, blocks) in self.all::<Blocks>(pool.tag())? {
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

    /// The blocks that records say they own. The first one gets them: files, most recently changed
    /// first, but those that this repair made last; sessions; blocks that were given up; free ones.
    fn owned(&self) -> Result<BTreeMap<DiskId, Vec<Owned>>, Status> {
        let mut owned: BTreeMap<DiskId, Vec<Owned>> = BTreeMap::new();
        let mut files = self.all::<Extent>(b'x')?;
        let changed = |key: &[u8]| {
            let file = map(key).ok().map(Map::file).filter(|file| !self.made.contains(file));
            let inode = file.and_then(|file| self.inodes.get(&file));
            Reverse(inode.map(|inode| inode.attributes.ctime))
        };
        files.sort_by_cached_key(|(key, _)| changed(key));
        for (key, extent) in files.into_iter().chain(self.all(b'p')?).chain(self.all(b'g')?) {
            let piece = piece(&key, &extent).ok_or(Status::Io)?;
            let holder = Holder::Extent(map(&key)?, piece.offset);
            owned.entry(piece.disk).or_default().push(Owned { holder, bytes: piece.bytes() });
        }
        for pool in [Pool::Draining, Pool::Free] {
            for (key, blocks) in self.all::<Blocks>(pool.tag())? {
                let end = number(&key)?;
                let bytes = end - blocks.length..end;
                let one = Owned { holder: Holder::Pool(pool), bytes };
                owned.entry(disk(&key)?).or_default().push(one);
            }
        }
        Ok(owned)
    }

    /// Ensures that each block of each disk is in one place.
    fn mend_blocks(
        &mut self,
        disks: &BTreeMap<DiskId, u64>,
        mut owned: BTreeMap<DiskId, Vec<Owned>>,
    ) -> Result<(), Status> {
        for (disk, size) in disks {
            let mut taken = Taken::new();
            for one in owned.remove(disk).unwrap_or_default() {
                self.assign(*disk, one, &mut taken)?;
            }
            let mut at = 0;
            for (start, end) in taken.iter().map(|(start, (end, _))| (*start, *end)) {
                if at < start.min(*size) {
                    self.found(*disk, at..start.min(*size));
                }
                at = end;
            }
            if at < *size {
                self.found(*disk, at..*size);
            }
            if at > *size {
                let what = format!("disk {} has {size} bytes, and is used up to {at}", disk.0);
                self.leave(FaultKind::Disk, what);
            }
        }
        for (disk, owned) in owned {
            let what =
                format!("{} extents lie on disk {}, which is not there", owned.len(), disk.0);
            self.leave(FaultKind::Disk, what);
        }
        Ok(())
    }

    /// Gives up blocks of a disk that are in no place.
    fn found(&mut self, disk: DiskId, bytes: Range<u64>) {
        let what = format!("bytes {bytes:?} of disk {} are nowhere", disk.0);
        self.mend(FaultKind::Lost, None, what, "they are given up".into());
        let length = bytes.end - bytes.start;
        self.txn.put(key::blocks(Pool::Draining, disk, bytes.end), &Blocks { length });
    }

    /// Assigns blocks to the record that says so, except those that are taken.
    fn assign(&mut self, disk: DiskId, one: Owned, taken: &mut Taken) -> Result<(), Status> {
        let Owned { holder, bytes } = one;
        let before = taken.range(..bytes.end).rev();
        let others = before.map(|(start, (end, other))| (*start..*end, *other));
        let mut others: Vec<_> = others.take_while(|(of, _)| of.end > bytes.start).collect();
        others.reverse();
        if let (Holder::Pool(pool), false) = (holder, others.is_empty()) {
            self.txn.delete(key::blocks(pool, disk, bytes.end));
        }
        let mut at = bytes.start;
        let none = (bytes.end..bytes.end, None);
        let others = others.into_iter().map(|(of, other)| (of, Some(other)));
        for (of, other) in others.chain([none]) {
            if at < of.start {
                let mine = at..of.start;
                if let (Holder::Pool(pool), true) = (holder, mine != bytes) {
                    let length = mine.end - mine.start;
                    self.txn.put(key::blocks(pool, disk, mine.end), &Blocks { length });
                }
                taken.insert(mine.start, (mine.end, holder));
            }
            if let Some(other) = other {
                let both = of.start.max(bytes.start)..of.end.min(bytes.end);
                self.lose(disk, (holder, &bytes), &both, other)?;
            }
            at = at.max(of.end);
        }
        Ok(())
    }

    /// An owner loses blocks that belong to another.
    fn lose(
        &mut self,
        disk: DiskId,
        (holder, bytes): (Holder, &Range<u64>),
        both: &Range<u64>,
        other: Holder,
    ) -> Result<(), Status> {
        let what = format!(
            "bytes {both:?} of disk {} are {} and {}",
            disk.0,
            other.shown(),
            holder.shown()
        );
        let mut remedy = format!("they are {}", other.shown());
        if let Holder::Extent(map, offset) = holder {
            let start = offset + (both.start - bytes.start);
            let hole = start..start + (both.end - both.start);
            map.cut(&mut self.txn, &hole)?;
            if let Map::File(file) = map {
                self.changed.insert(file);
                remedy += &format!("; {} has zeros at {hole:?}", shown(file));
            }
        }
        self.mend(FaultKind::Shared, holder.file().or(other.file()), what, remedy);
        Ok(())
    }

    /// Mends the counts of used bytes in files; `before`: what they were before anything was
    /// mended.
    fn mend_used(&mut self, before: &HashMap<FileId, u64>) -> Result<(), Status> {
        let now = self.used()?;
        let files: Vec<(FileId, u64)> =
            self.inodes.iter().map(|(file, inode)| (*file, inode.attributes.used)).collect();
        for (file, said) in files {
            let count = |used: &HashMap<FileId, u64>| used.get(&file).copied().unwrap_or(0);
            let (counted, was) = (count(&now), count(before));
            if said == counted {
                continue;
            }
            if said != was && !self.made.contains(&file) {
                let what = format!("{} says that it uses {said} bytes", shown(file));
                self.mend(FaultKind::Used, Some(file), what, format!("it uses {counted}"));
            }
            if let Some(inode) = self.change(file) {
                inode.attributes.used = counted;
            }
        }
        Ok(())
    }
}

/// The map that an extent's key is of.
fn map(key: &[u8]) -> Result<Map, Status> {
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
fn session(key: &[u8]) -> Result<SessionId, Status> {
    let id = key.get(1..17).and_then(<[u8]>::first_chunk).ok_or(Status::Io)?;
    Ok(SessionId(*id))
}

/// The disk of blocks without an owner.
fn disk(key: &[u8]) -> Result<DiskId, Status> {
    let id = key.get(1..5).and_then(<[u8]>::first_chunk).ok_or(Status::Io)?;
    Ok(DiskId(u32::from_be_bytes(*id)))
}

/// An extent, if it makes sense.
fn piece(key: &[u8], extent: &Extent) -> Option<Piece> {
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

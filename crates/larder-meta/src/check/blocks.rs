//! Checks that each block of a disk is in one place.
//!
//! Where blocks are is sorted first, 16 bytes for each place. Only if some are in several, the
//! records are read again that say so.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use larder_wire::meta::Status;
use larder_wire::meta::words::{DiskId, FileId, Time};

use super::data::{disk, map, piece};
use super::{Check, FaultKind, number, shown};
use crate::data::Map;
use crate::store::key;
use crate::store::key::Pool;
use crate::store::records::{Blocks, Extent};

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

/// Who of several owners has blocks: the lowest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    File(Reverse<Option<Time>>),
    NoFile,
}

/// Where blocks of a disk are that have an owner.
#[derive(Debug, Default)]
struct Places {
    bytes: Vec<Range<u64>>,
    records: usize,
}

impl Places {
    /// What lies behind the one before, as in files that were written one after the other, is one
    /// with it.
    fn add(&mut self, bytes: Range<u64>) {
        self.records += 1;
        match self.bytes.last_mut() {
            Some(last) if last.end == bytes.start => last.end = bytes.end,
            _ => self.bytes.push(bytes),
        }
    }

    /// What some record has, and what several have; each in order, and apart from each other.
    fn sum(mut self) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
        self.bytes.sort_unstable_by_key(|bytes| bytes.start);
        let (mut all, mut several) = (Vec::new(), Vec::new());
        let mut end = 0;
        for bytes in self.bytes {
            if bytes.start < end {
                join(&mut several, bytes.start..bytes.end.min(end));
            }
            end = end.max(bytes.end);
            join(&mut all, bytes);
        }
        (all, several)
    }
}

/// Adds bytes that begin no earlier than the last ones.
fn join(all: &mut Vec<Range<u64>>, bytes: Range<u64>) {
    match all.last_mut() {
        Some(last) if bytes.start <= last.end => last.end = last.end.max(bytes.end),
        _ => all.push(bytes),
    }
}

/// Whether some of the bytes are among these, which are in order.
fn touches(all: &[Range<u64>], bytes: &Range<u64>) -> bool {
    let at = all.partition_point(|one| one.end <= bytes.start);
    all.get(at).is_some_and(|one| one.start < bytes.end)
}

impl Check<'_> {
    /// What records say of blocks: `each` is given the disk, and the owner.
    fn owners(
        &self,
        mut each: impl FnMut(DiskId, Owned) -> Result<(), Status>,
    ) -> Result<(), Status> {
        for tag in [b'x', b'p', b'g'] {
            for one in self.all::<Extent>(tag) {
                let (key, extent) = one?;
                let piece = piece(&key, &extent).ok_or(Status::Io)?;
                let holder = Holder::Extent(map(&key)?, piece.offset);
                each(piece.disk, Owned { holder, bytes: piece.bytes() })?;
            }
        }
        for pool in [Pool::Draining, Pool::Free] {
            for one in self.all::<Blocks>(pool.tag()) {
                let (key, blocks) = one?;
                let end = number(&key)?;
                let bytes = end - blocks.length..end;
                each(disk(&key)?, Owned { holder: Holder::Pool(pool), bytes })?;
            }
        }
        Ok(())
    }

    /// Where blocks are, by disk.
    fn places(&self) -> Result<BTreeMap<DiskId, Places>, Status> {
        let mut places: BTreeMap<DiskId, Places> = BTreeMap::new();
        self.owners(|disk, one| {
            places.entry(disk).or_default().add(one.bytes);
            Ok(())
        })?;
        Ok(places)
    }

    /// The owners of blocks that have several. The first one gets them: files, most recently
    /// changed first, but those that this repair made last; sessions; blocks that were given up;
    /// free ones.
    fn rivals(
        &self,
        shared: &BTreeMap<DiskId, Vec<Range<u64>>>,
    ) -> Result<BTreeMap<DiskId, Vec<Owned>>, Status> {
        let mut rivals: Vec<(Rank, DiskId, Owned)> = Vec::new();
        if shared.values().all(Vec::is_empty) {
            return Ok(BTreeMap::new());
        }
        self.owners(|disk, one| {
            if shared.get(&disk).is_some_and(|shared| touches(shared, &one.bytes)) {
                rivals.push((self.rank(one.holder)?, disk, one));
            }
            Ok(())
        })?;
        // Those of one rank stay in their order.
        rivals.sort_by_key(|(rank, ..)| *rank);
        let mut of_disks: BTreeMap<DiskId, Vec<Owned>> = BTreeMap::new();
        for (_, disk, one) in rivals {
            of_disks.entry(disk).or_default().push(one);
        }
        Ok(of_disks)
    }

    fn rank(&self, holder: Holder) -> Result<Rank, Status> {
        let Holder::Extent(Map::File(file), _) = holder else { return Ok(Rank::NoFile) };
        let inode = self.inode(file)?.filter(|_| !self.made.contains(&file));
        Ok(Rank::File(Reverse(inode.map(|inode| inode.attributes.ctime))))
    }

    /// Ensures that each block of each disk is in one place.
    pub(super) fn mend_blocks(&mut self, disks: &BTreeMap<DiskId, u64>) -> Result<(), Status> {
        let mut places = self.places()?;
        let (mut used, mut shared) = (BTreeMap::new(), BTreeMap::new());
        for disk in disks.keys() {
            let (all, several) = places.remove(disk).unwrap_or_default().sum();
            used.insert(*disk, all);
            shared.insert(*disk, several);
        }
        let mut rivals = self.rivals(&shared)?;
        for (disk, size) in disks {
            let mut taken = Taken::new();
            for one in rivals.remove(disk).unwrap_or_default() {
                self.assign(*disk, one, &mut taken)?;
            }
            let mut at = 0;
            for used in &used[disk] {
                if at < used.start.min(*size) {
                    self.found(*disk, at..used.start.min(*size));
                }
                at = used.end;
            }
            if at < *size {
                self.found(*disk, at..*size);
            }
            if at > *size {
                let what = format!("disk {} has {size} bytes, and is used up to {at}", disk.0);
                self.leave(FaultKind::Disk, what);
            }
        }
        for (disk, places) in places {
            let extents = places.records;
            let what = format!("{extents} extents lie on disk {}, which is not there", disk.0);
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
                self.change(file)?;
                remedy += &format!("; {} has zeros at {hole:?}", shown(file));
            }
        }
        self.mend(FaultKind::Shared, holder.file().or(other.file()), what, remedy);
        Ok(())
    }
}

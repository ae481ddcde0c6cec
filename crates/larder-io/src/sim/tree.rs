//! What a simulated disk has: files and names, as they are and as they were synced, and the changes
//! in between. From this a crash leaves an [`Image`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::content::{Blocks, Content, PAGE_BYTES};
use super::{Image, to_index};
use crate::real::parent;

/// Bytes that reach the medium together or not at all.
const SECTOR_BYTES: u64 = 512;

#[derive(Clone, Debug)]
pub(super) enum Change {
    Write {
        offset: u64,
        data: Arc<[u8]>,
    },
    SetLen(u64),
    PunchHole(Range<u64>),
    /// The time of modification, in nanoseconds since the epoch. No crash takes it back, as if it
    /// were written at once.
    SetModified(i64),
}

#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Create { path: String, ino: u64 },
    Remove { path: String },
    Rename { from: String, to: String },
}

#[derive(Clone, Debug)]
pub(super) enum Op {
    File(u64, Change),
    Name(NameChange),
    SyncFile(u64),
    SyncRange(u64, Range<u64>),
    SyncDir(String),
    SyncAll,
}

/// A file's bytes as they are, as they were synced, and the changes between.
#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    live: Content,
    durable: Content,
    pending: Vec<Change>,
    changed_at: i64,
    modified_at: i64,
    blocks: Blocks,
}

/// The tree as the log makes it.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    inodes: BTreeMap<u64, Inode>,
    live_names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    pending_names: Vec<NameChange>,
    time: i64,
}

impl Tree {
    /// Carries out one operation.
    pub(super) fn apply(&mut self, op: &Op) {
        self.time += 1;
        match op {
            Op::File(ino, change) => {
                let inode = self.inodes.entry(*ino).or_default();
                change.apply(&mut inode.live, |_| true);
                change.allocate(&mut inode.blocks);
                inode.pending.push(change.clone());
                inode.changed_at = self.time;
                inode.modified_at = match change {
                    Change::SetModified(time_ns) => *time_ns,
                    _ => self.time,
                };
            }
            Op::Name(change) => {
                if let NameChange::Create { ino, .. } = change {
                    let (changed_at, modified_at) = (self.time, self.time);
                    let new = Inode { changed_at, modified_at, ..Inode::default() };
                    self.inodes.insert(*ino, new);
                }
                change.apply(&mut self.live_names);
                self.pending_names.push(change.clone());
            }
            Op::SyncFile(ino) => self.inodes.entry(*ino).or_default().sync(),
            Op::SyncRange(ino, range) => self.inodes.entry(*ino).or_default().sync_range(range),
            Op::SyncDir(dir) => self.sync_dir(dir),
            Op::SyncAll => {
                self.inodes.values_mut().for_each(Inode::sync);
                self.durable_names = self.live_names.clone();
                self.pending_names.clear();
            }
        }
    }

    /// A file, by its number.
    pub(super) fn inode(&self, ino: u64) -> Option<&Inode> {
        self.inodes.get(&ino)
    }

    /// The number of the file at a path.
    pub(super) fn ino(&self, path: &str) -> Option<u64> {
        self.live_names.get(path).copied()
    }

    /// Paths and the numbers of their files.
    pub(super) fn names(&self) -> impl Iterator<Item = (&str, u64)> {
        self.live_names.iter().map(|(path, ino)| (path.as_str(), *ino))
    }

    /// The highest number of a file; zero without files.
    pub(super) fn last_ino(&self) -> u64 {
        self.inodes.keys().next_back().copied().unwrap_or(0)
    }

    /// Flips one bit of a file, on the medium too.
    ///
    /// # Panics
    /// If there is no such file or byte.
    pub(super) fn flip(&mut self, ino: u64, offset: u64, bit: u8) {
        let inode = self.inodes.get_mut(&ino).expect("a name has an inode");
        *inode.live.byte_mut(offset).expect("the byte to corrupt exists") ^= 1 << (bit % 8);
        if let Some(byte) = inode.durable.byte_mut(offset) {
            *byte ^= 1 << (bit % 8);
        }
    }

    fn sync_dir(&mut self, dir: &str) {
        let (now, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pending_names)
            .into_iter()
            .partition(|change: &NameChange| parent(change.path()) == dir);
        self.pending_names = later;
        for change in now {
            change.apply(&mut self.durable_names);
        }
    }

    /// The tree that a crash leaves.
    pub(super) fn image(&self, image: Image) -> Tree {
        let mut chance = Chance::new(match image {
            Image::Torn(seed) => seed,
            Image::Synced | Image::Written => 0,
        });
        let mut names = self.durable_names.clone();
        for change in &self.pending_names {
            if chance.keeps(image) {
                change.apply(&mut names);
            }
        }
        let mut inodes = BTreeMap::new();
        for ino in names.values() {
            let Some(inode) = self.inodes.get(ino) else {
                continue;
            };
            let mut bytes = inode.durable.clone();
            for change in &inode.pending {
                change.apply(&mut bytes, |_| chance.keeps(image));
            }
            let blocks = Blocks::whole(bytes.len());
            let (live, durable, pending) = (bytes.clone(), bytes, Vec::new());
            let &Inode { changed_at, modified_at, .. } = inode;
            let kept = Inode { live, durable, pending, changed_at, modified_at, blocks };
            inodes.insert(*ino, kept);
        }
        Tree {
            inodes,
            live_names: names.clone(),
            durable_names: names,
            pending_names: Vec::new(),
            time: self.time,
        }
    }
}

impl Inode {
    /// Bytes.
    pub(super) fn len(&self) -> u64 {
        self.live.len()
    }

    /// Number of the operation that last changed the file.
    pub(super) fn changed_at(&self) -> i64 {
        self.changed_at
    }

    /// The same of its bytes, or the time that was set since.
    pub(super) fn modified_at(&self) -> i64 {
        self.modified_at
    }

    /// Reads from `offset` on; returns how many bytes there were.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        self.live.read(buf, offset)
    }

    /// Pages that have a block.
    pub(super) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    fn sync(&mut self) {
        for change in self.pending.drain(..) {
            change.apply(&mut self.durable, |_| true);
        }
    }

    /// What was written elsewhere stays pending, as the file has it now. Length and holes are
    /// durable.
    fn sync_range(&mut self, range: &Range<u64>) {
        let Inode { live, durable, .. } = self;
        let bytes_of = |part: Range<u64>| {
            let mut data = vec![0; to_index(part.end.min(live.len()).saturating_sub(part.start))];
            live.read(&mut data, part.start);
            Change::Write { offset: part.start, data: data.into() }
        };
        let mut left = Vec::new();
        for change in self.pending.drain(..) {
            let Change::Write { offset, data } = change else {
                change.apply(durable, |_| true);
                continue;
            };
            let end = offset + data.len() as u64;
            left.push(bytes_of(offset..end.min(range.start)));
            left.push(bytes_of(offset.max(range.end)..end));
        }
        durable.set_len(live.len());
        bytes_of(range.clone()).apply(durable, |_| true);
        left.retain(|change| matches!(change, Change::Write { data, .. } if !data.is_empty()));
        self.pending = left;
    }
}

impl Change {
    /// Carries out the parts that `keeps` lets pass: a write sector by sector, the rest as a whole.
    fn apply(&self, bytes: &mut Content, mut keeps: impl FnMut(u64) -> bool) {
        match self {
            Change::Write { offset, data } => {
                let end = offset + data.len() as u64;
                let mut at = *offset;
                while at < end {
                    let stop = end.min((at / SECTOR_BYTES + 1) * SECTOR_BYTES);
                    if keeps(at) {
                        bytes.write(at, &data[to_index(at - offset)..to_index(stop - offset)]);
                    }
                    at = stop;
                }
            }
            Change::SetLen(len_bytes) => {
                if keeps(0) {
                    bytes.set_len(*len_bytes);
                }
            }
            Change::SetModified(_) => {}
            Change::PunchHole(range) => {
                if keeps(range.start) {
                    bytes.zero(to_index(range.start)..to_index(range.end));
                }
            }
        }
    }
}

impl Change {
    /// Follows the blocks in use.
    fn allocate(&self, blocks: &mut Blocks) {
        match self {
            Change::Write { offset, data } => blocks.allocate(pages_of(*offset, data.len())),
            Change::SetLen(len_bytes) => blocks.cut(*len_bytes),
            Change::SetModified(_) => {}
            Change::PunchHole(range) => {
                let whole = range.start.div_ceil(PAGE_BYTES)..range.end / PAGE_BYTES;
                blocks.free(whole);
            }
        }
    }
}

pub(super) fn pages_of(offset: u64, len: usize) -> Range<u64> {
    offset / PAGE_BYTES..(offset + len as u64).div_ceil(PAGE_BYTES)
}

impl NameChange {
    /// The path whose directory's sync makes this durable.
    fn path(&self) -> &str {
        match self {
            NameChange::Create { path, .. } | NameChange::Remove { path } => path,
            NameChange::Rename { to, .. } => to,
        }
    }

    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            NameChange::Create { path, ino } => {
                names.insert(path.clone(), *ino);
            }
            NameChange::Remove { path } => {
                names.remove(path);
            }
            NameChange::Rename { from, to } => {
                if let Some(ino) = names.remove(from) {
                    names.insert(to.clone(), ino);
                }
            }
        }
    }
}

/// A small generator (splitmix64): the same seed makes the same choices.
#[derive(Debug)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    fn keeps(&mut self, image: Image) -> bool {
        match image {
            Image::Synced => false,
            Image::Written => true,
            Image::Torn(_) => self.next() & 1 == 1,
        }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Disk, DiskFile, OpenMode, SimDisk};

    fn bytes(file: &dyn DiskFile) -> Vec<u8> {
        let mut bytes = vec![0; to_index(file.len().unwrap())];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    /// Random changes of a file of a few sectors, then a sync of a range of it: whatever a crash
    /// leaves has the file's length, its bytes in the range, and elsewhere, sector by sector, what
    /// was there before or what is there now.
    #[test]
    fn a_synced_range_outlives_a_crash_and_the_rest_may() {
        const END: u64 = 6 * SECTOR_BYTES;
        let (mut lost, mut left) = (0, 0);
        for seed in 0..400 {
            let mut chance = Chance::new(seed);
            let mut at = || chance.next() % END;
            let disk = SimDisk::new();
            let file = disk.open("file", OpenMode::Create).unwrap();
            disk.sync_dir("").unwrap();
            file.write_at(&vec![1; to_index(at())], 0).unwrap();
            file.sync_data().unwrap();
            let before = bytes(&*file);
            for value in 2..8 {
                let (one, other) = (at(), at());
                let range = one.min(other)..one.max(other) + 1;
                match at() % 8 {
                    0 => file.set_len(one).unwrap(),
                    1 => file.punch_hole(range).unwrap(),
                    _ => file
                        .write_at(&vec![value; to_index(range.end - range.start)], range.start)
                        .unwrap(),
                }
            }
            let now = bytes(&*file);
            let (one, other) = (at(), at());
            let synced = one.min(other)..one.max(other);
            file.sync_range(synced.clone()).unwrap();
            for image in
                [Image::Synced, Image::Written, Image::Torn(seed), Image::Torn(seed + 1000)]
            {
                let after = disk.crash(image);
                let found = bytes(&*after.open("file", OpenMode::Existing).unwrap());
                assert_eq!(found.len(), now.len(), "{seed}, {image:?}");
                for (at, byte) in found.iter().enumerate() {
                    let old = before.get(at).copied().unwrap_or(0);
                    let is_synced = synced.contains(&(at as u64));
                    let may_be_old = !is_synced && image != Image::Written;
                    assert!(
                        *byte == now[at] || (may_be_old && (*byte == old || *byte == 0)),
                        "{seed}, {image:?}: {byte} at {at}, {synced:?}"
                    );
                }
                lost += usize::from(image == Image::Synced && found != now);
                left += usize::from(found == now);
            }
        }
        assert!(lost > 100 && left > 400, "{lost} {left}");
    }
}

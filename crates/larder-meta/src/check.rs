//! Whether a volume is what it should be: a walk over all of its records.
//!
//! Found are: blocks in two places or in none, extents that overlap or go behind their file's end,
//! wrong sizes in use, names without files, files without names, wrong link and entry counts,
//! listings that differ from names, directories in circles. Nothing is repaired here.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use larder_wire::meta::words::{DiskId, FileId, Kind};
use larder_wire::meta::{BLOCK_BYTES, Status};

use crate::engine::{Engine, Writes};
use crate::store::key::Pool;
use crate::store::records::{Blocks, Disk, Entry, Extent, Inode, Listed, Orphan, Volume};
use crate::store::{Record, Txn, key};
use crate::volume::VolumeError;

/// Checks a volume and answers what is wrong with it, a line for each fault.
///
/// # Errors
/// [`VolumeError`] if it cannot be read.
pub fn check(engine: &dyn Engine) -> Result<Vec<String>, VolumeError> {
    let view = engine.view()?;
    let none = Writes::new();
    let txn = Txn::new(&*view, &none);
    let mut check = Check { txn: &txn, faults: Vec::new(), inodes: BTreeMap::new() };
    check.run().map_err(|_logged| VolumeError::Unreadable)?;
    Ok(check.faults)
}

struct Check<'a> {
    txn: &'a Txn<'a>,
    faults: Vec<String>,
    inodes: BTreeMap<FileId, Inode>,
}

impl Check<'_> {
    fn run(&mut self) -> Result<(), Status> {
        let volume = self.txn.get::<Volume>(&key::volume())?.ok_or(Status::Io)?;
        for (key, inode) in self.all::<Inode>(&key::inode(FileId(0))[..1])? {
            let file = FileId(number(&key)?);
            self.expect(inode.file() == file, || format!("{file:?} has another number inside"));
            self.expect(file.0 < volume.next_file, || format!("{file:?} was never given"));
            self.inodes.insert(file, inode);
        }
        self.names()?;
        self.directories();
        self.data()
    }

    fn all<R: Record>(&self, prefix: &[u8]) -> Result<Vec<(Vec<u8>, R)>, Status> {
        self.txn.scan_all(prefix)
    }

    fn expect(&mut self, holds: bool, fault: impl FnOnce() -> String) {
        if !holds {
            self.faults.push(fault());
        }
    }

    /// Both records of each name, and what is counted of them.
    fn names(&mut self) -> Result<(), Status> {
        let mut links: HashMap<FileId, u32> = HashMap::new();
        let mut entries: HashMap<FileId, u64> = HashMap::new();
        let mut listed: HashMap<(FileId, u64), Listed> = HashMap::new();
        for (key, record) in self.all::<Listed>(&key::listed(FileId(0), 0)[..1])? {
            listed.insert((directory(&key)?, number(&key)?), record);
        }
        for (key, entry) in self.all::<Entry>(&key::entry(FileId(0), b"")[..1])? {
            let (dir, name) = (directory(&key)?, &key[9..]);
            let shown = || format!("\"{}\" in {dir:?}", name.escape_ascii());
            let by_cookie = listed.remove(&(dir, entry.cookie));
            let agrees = by_cookie.is_some_and(|one| one.file == entry.file && *one.name == *name);
            self.expect(agrees, || format!("{} is listed otherwise", shown()));
            let target = self.inodes.get(&entry.file);
            let parent = target.filter(|inode| inode.is_directory()).map(|inode| inode.parent);
            self.expect(target.is_some(), || format!("{} stands for nothing", shown()));
            self.expect(parent.is_none_or(|parent| parent == dir), || {
                format!("the directory {} has another parent", shown())
            });
            *links.entry(entry.file).or_default() += 1;
            *entries.entry(dir).or_default() += 1;
            if parent.is_some() {
                *links.entry(dir).or_default() += 1;
            }
        }
        for (dir, cookie) in listed.into_keys() {
            self.faults.push(format!("{dir:?} lists something at {cookie} that is not there"));
        }
        self.counts(&links, &entries)
    }

    fn counts(
        &mut self,
        links: &HashMap<FileId, u32>,
        entries: &HashMap<FileId, u64>,
    ) -> Result<(), Status> {
        for (dir, count) in entries {
            let is_directory = self.inodes.get(dir).is_some_and(Inode::is_directory);
            self.expect(is_directory, || format!("{dir:?} has {count} names and is no directory"));
        }
        for (file, inode) in &self.inodes {
            // Its own `.`; and the root's `..` stands in for a name.
            let own = u32::from(inode.is_directory()) + u32::from(*file == FileId::ROOT);
            let counted = links.get(file).copied().unwrap_or(0) + own;
            let said = inode.attributes.links;
            let is_orphan = self.txn.get::<Orphan>(&key::orphan(*file))?.is_some();
            if said != counted || (said == 0) != is_orphan {
                let orphan = if is_orphan { ", an orphan" } else { "" };
                self.faults.push(format!("{file:?} has {said} links, found are {counted}{orphan}"));
            }
            let counted = entries.get(file).copied().unwrap_or(0);
            if inode.entries != counted {
                let said = inode.entries;
                self.faults.push(format!("{file:?} has {said} entries, found are {counted}"));
            }
        }
        Ok(())
    }

    /// Each directory leads to the root.
    fn directories(&mut self) {
        for (file, inode) in &self.inodes {
            let (mut at, mut steps) = (inode, 0);
            while inode.is_directory() && at.file() != FileId::ROOT {
                steps += 1;
                match self.inodes.get(&at.parent) {
                    Some(parent) if steps <= self.inodes.len() => at = parent,
                    _ => {
                        self.faults.push(format!("{file:?} is not below the root"));
                        break;
                    }
                }
            }
        }
    }

    /// Each block is in one place.
    fn data(&mut self) -> Result<(), Status> {
        let mut places: BTreeMap<DiskId, Vec<(Range<u64>, String)>> = BTreeMap::new();
        for pool in [Pool::Free, Pool::Draining] {
            for (key, blocks) in self.all::<Blocks>(&[pool.tag()])? {
                let disk = key[1..].first_chunk().ok_or(Status::Io)?;
                let end = number(&key)?;
                let bytes = end.saturating_sub(blocks.length)..end;
                let disk = DiskId(u32::from_be_bytes(*disk));
                places.entry(disk).or_default().push((bytes, format!("{pool:?}")));
            }
        }
        let mut used: HashMap<FileId, u64> = HashMap::new();
        for tag in [b'x', b'p', b'g'] {
            let mut before: (Vec<u8>, u64) = (Vec::new(), 0);
            for (key, extent) in self.all::<Extent>(&[tag])? {
                let (map, end) = (key[..key.len() - 8].to_vec(), number(&key)?);
                let file = FileId(number(&map)?);
                let offset = end.checked_sub(extent.length());
                let is_behind = before.0 != map || offset.is_some_and(|offset| before.1 <= offset);
                let what = format!("{file:?} at {offset:?}");
                self.expect(is_behind && offset.is_some(), || format!("extents overlap: {what}"));
                if tag == b'x' {
                    *used.entry(file).or_default() += extent.length();
                    let valid_end = offset.unwrap_or(0) + extent.valid;
                    self.extent(file, valid_end, &what);
                }
                before = (map, end);
                let bytes = extent.position..extent.position + extent.length();
                places.entry(extent.disk).or_default().push((bytes, what));
            }
        }
        for (file, inode) in &self.inodes {
            let (said, found) = (inode.attributes.used, used.get(file).copied().unwrap_or(0));
            if said != found {
                self.faults.push(format!("{file:?} is said to use {said} bytes, and uses {found}"));
            }
        }
        self.tile(places)
    }

    fn extent(&mut self, file: FileId, valid_end: u64, what: &str) {
        let attributes = self.inodes.get(&file).map(|inode| inode.attributes);
        let is_file = attributes.is_some_and(|file| file.kind == Kind::File);
        self.expect(is_file, || format!("blocks of something that is no file: {what}"));
        let end = attributes.map_or(0, |file| file.size).next_multiple_of(BLOCK_BYTES);
        self.expect(valid_end <= end, || format!("an extent goes behind its file's end: {what}"));
    }

    fn tile(
        &mut self,
        mut places: BTreeMap<DiskId, Vec<(Range<u64>, String)>>,
    ) -> Result<(), Status> {
        for (key, disk) in self.all::<Disk>(&key::disk(DiskId(0))[..1])? {
            let id = DiskId(u32::from_be_bytes(*key.last_chunk().ok_or(Status::Io)?));
            let mut places = places.remove(&id).unwrap_or_default();
            places.sort_by_key(|(bytes, _)| bytes.start);
            let end = disk.blocks * BLOCK_BYTES;
            places.push((end..end, "the end of the disk".to_owned()));
            let mut at = 0;
            for (bytes, what) in places {
                let shown = || format!("{id:?}, bytes {}..{}", bytes.start, bytes.end);
                self.expect(bytes.start <= at, || format!("lost before {}: {what}", shown()));
                self.expect(bytes.start >= at, || format!("twice: {}: {what}", shown()));
                at = bytes.end;
            }
        }
        for (disk, _) in places {
            self.faults.push(format!("{disk:?} has blocks, and is not there"));
        }
        Ok(())
    }
}

fn number(key: &[u8]) -> Result<u64, Status> {
    key::last_number(key).ok_or(Status::Io)
}

/// The directory in the key of a name.
fn directory(key: &[u8]) -> Result<FileId, Status> {
    let dir = key[1..].first_chunk().ok_or(Status::Io)?;
    Ok(FileId(u64::from_be_bytes(*dir)))
}

//! Checks and repairs a volume: a walk over all of its records.
//!
//! A check is a repair that is not committed: each part looks for faults of its kinds and mends
//! them in one transaction, so that the next part sees records without them. A check returns only
//! the list; a repair commits the transaction, whole or not at all.
//!
//! Invariants:
//! - what can be kept is kept: a file without a name, and bytes that conflict with others, get a
//!   name in `lost+found`, and no inode is removed;
//! - blocks that are given up drain like all others: the next server has the disks revoke the
//!   capabilities on them and clear them before they are free;
//! - a count that is wrong only because of another fault is mended without a report.
//!
//! The parts, in their order: `inodes`, `retaining`, `data` (with `blocks`), `names`, `tree`. Each
//! walks over records in the order of their keys ([`pass`]). In memory are some bits for each file
//! ([`numbers`]), where each directory is, where the blocks of each extent are, and whatever is
//! wrong, with all names of a directory in which something may be.
//!
//! Absent on purpose: the bytes of files, which only disks have, and capabilities, which no server
//! knows after it ends ([`crate::disks::Disks::void_all`]): one could be made for the extents of
//! files and sessions, and none of those may be free.

mod blocks;
mod data;
mod inodes;
mod names;
mod numbers;
mod pass;
mod retaining;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeMap, BTreeSet};

use larder_wire::meta::Status;
use larder_wire::meta::words::{FileId, Time};

use self::numbers::Numbers;
use self::pass::{Groups, Inodes, Pass};
use crate::engine::{Engine, View, Writes};
use crate::store::records::{Entry, Inode, Volume};
use crate::store::{Record, Txn, key};
use crate::volume::{self, Owned, VolumeError};

/// The kinds of faults of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// The number of a file is not that under which it is stored, or was never assigned.
    Number,
    /// Names or bytes belong to a file that has no inode.
    Inode,
    /// An extent makes no sense, is where its file has another one, or belongs to no file.
    Extent,
    /// A file has bytes beyond its end.
    Size,
    /// Blocks are in two places: a capability for one gets at the other.
    Shared,
    /// Blocks are nowhere.
    Lost,
    /// A record names a disk that does not exist, or bytes beyond its end.
    Disk,
    /// Of something that a file has no copy is up to date.
    Copies,
    /// A name that stands for nothing, or is none.
    Name,
    /// A name that can be looked up is not listed, or one that is listed cannot be looked up.
    Listing,
    /// A directory has more than one name.
    SecondName,
    /// A directory says that it is in another one.
    Parent,
    /// A directory is within itself.
    Loop,
    /// Nothing names a file.
    Unnamed,
    /// A file waits for its last close, and has names, or is not there.
    Orphan,
    /// A wrong count of links.
    Links,
    /// A wrong count of entries.
    Entries,
    /// A wrong count of bytes in use.
    Used,
    /// A record belongs to a session that does not exist.
    Session,
    /// Records disagree on whether a client alone has the bytes of a file, or had them.
    Retained,
}

impl FaultKind {
    /// Its name, for programs.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Number => "number",
            FaultKind::Inode => "inode",
            FaultKind::Extent => "extent",
            FaultKind::Size => "size",
            FaultKind::Shared => "shared",
            FaultKind::Lost => "lost",
            FaultKind::Disk => "disk",
            FaultKind::Copies => "copies",
            FaultKind::Name => "name",
            FaultKind::Listing => "listing",
            FaultKind::SecondName => "second-name",
            FaultKind::Parent => "parent",
            FaultKind::Loop => "loop",
            FaultKind::Unnamed => "unnamed",
            FaultKind::Orphan => "orphan",
            FaultKind::Links => "links",
            FaultKind::Entries => "entries",
            FaultKind::Used => "used",
            FaultKind::Session => "session",
            FaultKind::Retained => "retained",
        }
    }
}

/// Something that is wrong with a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The file that it is about, by its number.
    pub file: Option<u64>,
    /// Where that file is when all is repaired.
    pub path: Option<Vec<u8>>,
    /// Description of the fault.
    pub what: String,
    /// What a repair does about it. Nothing: it is left as it is.
    pub remedy: Option<String>,
}

/// Checks a volume and returns its faults. Nothing is changed.
///
/// # Errors
/// [`VolumeError`] if it cannot be read, or a server has it.
pub fn check(engine: &dyn Engine) -> Result<Vec<Fault>, VolumeError> {
    let left = engine.owned_for()?;
    if !left.is_zero() {
        return Err(VolumeError::Owned(left));
    }
    let view = engine.view()?;
    Ok(examine(&*view, Time::default())?.0)
}

/// Repairs a volume and returns its faults. Those with a remedy are mended, durably, when this
/// returns. The volume is taken from its previous owner.
///
/// # Errors
/// [`VolumeError`] if it cannot be read, taken or written: then nothing has changed.
pub fn repair(engine: &dyn Engine, now: Time) -> Result<Vec<Fault>, VolumeError> {
    let owned = volume::seize(engine)?;
    let repaired = mend(engine, &owned, now);
    owned.release(engine);
    repaired
}

fn mend(engine: &dyn Engine, owned: &Owned, now: Time) -> Result<Vec<Fault>, VolumeError> {
    let view = engine.view()?;
    let (faults, writes) = examine(&*view, now)?;
    if !writes.is_empty() {
        engine.commit(&writes, &owned.owner)?;
    }
    Ok(faults)
}

fn examine(view: &dyn View, now: Time) -> Result<(Vec<Fault>, Writes), VolumeError> {
    let none = Writes::new();
    let txn = Txn::new(view, &none);
    let volume = txn.get::<Volume>(&key::volume()).map_err(|_logged| VolumeError::Unreadable)?;
    let mut check = Check {
        view,
        txn,
        now,
        volume: volume.ok_or(VolumeError::None)?,
        faults: Vec::new(),
        files: Numbers::default(),
        retained: Numbers::default(),
        parents: BTreeMap::new(),
        changed: BTreeMap::new(),
        made: BTreeSet::new(),
        lost_found: None,
    };
    check.run().map_err(|_logged| VolumeError::Unreadable)?;
    Ok((check.faults, check.txn.finish().0))
}

struct Check<'a> {
    /// The records as they are.
    view: &'a dyn View,
    /// The records, and the repairs of them; inodes are repaired in `changed`.
    txn: Txn<'a>,
    now: Time,
    volume: Volume,
    faults: Vec<Fault>,
    /// Which files have an inode.
    files: Numbers,
    /// Of which of them it is said that not the disks have the bytes.
    retained: Numbers,
    /// Which of them are directories, and in which directory each says that it is.
    parents: BTreeMap<FileId, FileId>,
    /// Inodes that are to be written.
    changed: BTreeMap<FileId, Inode>,
    /// Inodes that did not exist before: nothing in them can be wrong.
    made: BTreeSet<FileId>,
    lost_found: Option<FileId>,
}

impl<'a> Check<'a> {
    fn run(&mut self) -> Result<(), Status> {
        self.load_inodes()?;
        self.retaining()?;
        self.data()?;
        self.names()?;
        self.tree()?;
        self.counts()?;
        for (file, mut inode) in std::mem::take(&mut self.changed) {
            // Clients that have cached something of it must ask again.
            inode.touch(self.now, true);
            self.txn.put(key::inode(file), &inode);
        }
        self.note_paths()
    }

    /// All records with a tag, as they are repaired by now.
    fn all<R: Record>(&self, tag: u8) -> Pass<'a, R> {
        Pass::new(self.view, self.txn.written(), tag)
    }

    /// All records with a tag, as they were before any repair.
    fn all_before<R: Record>(&self, tag: u8) -> Pass<'a, R> {
        Pass::new(self.view, &Writes::new(), tag)
    }

    fn groups<R: Record>(&self, tag: u8) -> Groups<'a, R> {
        Groups::new(self.all(tag))
    }

    fn inodes(&self) -> Inodes<'a> {
        Inodes::new(self.all(b'i'))
    }

    /// Notes a fault that is being mended.
    fn mend(&mut self, kind: FaultKind, file: Option<FileId>, what: String, remedy: String) {
        let file = file.map(|file| file.0);
        self.faults.push(Fault { kind, file, path: None, what, remedy: Some(remedy) });
    }

    /// Reports a fault that is left as it is.
    fn leave(&mut self, kind: FaultKind, what: String) {
        self.faults.push(Fault { kind, file: None, path: None, what, remedy: None });
    }

    /// The inode of a file, if it has one.
    fn inode(&self, file: FileId) -> Result<Option<Inode>, Status> {
        match self.changed.get(&file) {
            Some(inode) => Ok(Some(inode.clone())),
            None => self.txn.get(&key::inode(file)),
        }
    }

    /// The inode of a file, to be changed. A directory is moved by [`Self::move_to`].
    fn change(&mut self, file: FileId) -> Result<Option<&mut Inode>, Status> {
        if !self.changed.contains_key(&file)
            && let Some(inode) = self.txn.get(&key::inode(file))?
        {
            self.changed.insert(file, inode);
        }
        Ok(self.changed.get_mut(&file))
    }

    /// Tells a directory in which one it is.
    fn move_to(&mut self, file: FileId, dir: FileId) -> Result<(), Status> {
        self.parents.insert(file, dir);
        if let Some(inode) = self.change(file)? {
            inode.parent = dir;
        }
        Ok(())
    }

    fn is_directory(&self, file: FileId) -> bool {
        self.parents.contains_key(&file)
    }

    /// Says where the files are that something is wrong with.
    fn note_paths(&mut self) -> Result<(), Status> {
        let mut wanted = BTreeSet::new();
        for file in self.faults.iter().filter_map(|fault| fault.file) {
            self.want(FileId(file), &mut wanted);
        }
        let mut names: BTreeMap<FileId, (FileId, Vec<u8>)> = BTreeMap::new();
        // Where files are is known when their names are; directories are known from the beginning.
        while !wanted.is_empty() {
            let mut dirs = BTreeSet::new();
            for one in self.all::<Entry>(b'e') {
                let (key, entry) = one?;
                if wanted.contains(&entry.file) {
                    let dir = directory(&key)?;
                    names.entry(entry.file).or_insert((dir, key[9..].to_vec()));
                    self.want(dir, &mut dirs);
                }
            }
            wanted = dirs.into_iter().filter(|dir| !names.contains_key(dir)).collect();
            wanted.remove(&FileId::ROOT);
        }
        for fault in &mut self.faults {
            fault.path = fault.file.and_then(|file| path(FileId(file), &names));
        }
        Ok(())
    }

    /// Adds a file and all directories above it, as far as they are known, to those whose names are
    /// needed.
    fn want(&self, file: FileId, wanted: &mut BTreeSet<FileId>) {
        let mut at = file;
        while at != FileId::ROOT
            && wanted.insert(at)
            && let Some(parent) = self.parents.get(&at)
        {
            at = *parent;
        }
    }
}

fn path(file: FileId, names: &BTreeMap<FileId, (FileId, Vec<u8>)>) -> Option<Vec<u8>> {
    let (mut at, mut parts) = (file, Vec::new());
    while at != FileId::ROOT {
        let (dir, name) = names.get(&at)?;
        parts.push(&name[..]);
        at = *dir;
    }
    parts.reverse();
    Some([b"/", &parts.join(&b'/')[..]].concat())
}

/// A file as it is called in texts.
fn shown(file: FileId) -> String {
    format!("file {}", file.0)
}

fn number(key: &[u8]) -> Result<u64, Status> {
    key::last_number(key).ok_or(Status::Io)
}

/// The directory in the key of a name.
fn directory(key: &[u8]) -> Result<FileId, Status> {
    let dir = key.get(1..9).and_then(<[u8]>::first_chunk).ok_or(Status::Io)?;
    Ok(FileId(u64::from_be_bytes(*dir)))
}

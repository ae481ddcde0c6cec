//! What memory disks have lost, and what was lost with clients: the files, and the events.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use larder_wire::meta::calls::{self, LostFile, LostTold};
use larder_wire::meta::words::{DiskId, FileId};
use larder_wire::meta::{LOST_FILES_MAX, LOST_PATH_BYTES_MAX, Status};
use larder_wire::xdr::{Array, Opaque};

use super::error::{VolumeError, unreadable};
use crate::data;
use crate::engine::{Engine, Writes};
use crate::inode;
use crate::retained;
use crate::store::records::{self, Entry, Inode};
use crate::store::{Txn, key};

/// Most bytes of paths in one answer to LOST.
const LOST_BYTES_MAX: usize = 512 << 10;

/// A file with lost bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// How many.
    pub bytes: u64,
    /// One of its names, from the root on; none if it has none and is open.
    pub path: Option<Vec<u8>>,
}

/// Files with lost bytes, which were in memory alone: can also be called while a server runs, and
/// is as of its last commit. If there are any, this scans all names.
///
/// # Errors
/// [`VolumeError::Unreadable`], [`VolumeError::Engine`]
pub fn lost(engine: &dyn Engine) -> Result<BTreeMap<FileId, Lost>, VolumeError> {
    let view = engine.view()?;
    let none = Writes::new();
    lost_files(&Txn::new(&*view, &none)).map_err(unreadable)
}

fn lost_files(txn: &Txn<'_>) -> Result<BTreeMap<FileId, Lost>, Status> {
    let mut lost = data::memory::lost(txn)?;
    retained::add_lost(txn, &mut lost)?;
    let names = names(txn, lost.keys().copied().collect())?;
    let lost = lost.into_iter();
    Ok(lost.map(|(file, bytes)| (file, Lost { bytes, path: path_of(&names, file) })).collect())
}

/// The results of LOST.
pub(crate) fn told(txn: &Txn<'_>, call: &calls::Lost) -> Result<LostTold, Status> {
    let number = data::memory::losses(txn)?.last().map_or(0, |(number, _)| *number);
    let mut told = LostTold { number, files: Array(Vec::new()), end: true };
    if number <= call.since {
        return Ok(told);
    }
    let mut bytes = 0;
    let behind = (Bound::Excluded(call.after), Bound::Unbounded);
    for (file, lost) in lost_files(txn)?.range(behind) {
        let path = lost.path.as_deref().unwrap_or_default();
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let path = if path.len() <= LOST_PATH_BYTES_MAX { path } else { &[] };
        bytes += path.len();
        if told.files.0.len() == LOST_FILES_MAX || bytes > LOST_BYTES_MAX {
            told.end = false;
            break;
        }
        let uid = inode::get(txn, *file)?.attributes.uid;
        told.files.0.push(LostFile { file: *file, uid, path: Opaque::copy_from_slice(path) });
    }
    Ok(told)
}

/// A loss: a memory disk was started again, and no other disk had what was there; the metadata
/// server's machine crashed, and may have lost changes; or the session of a client is over that had
/// bytes which nobody else has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Losses of a volume are numbered from 1. None is told twice.
    pub number: u64,
    /// When the metadata server noticed it: seconds since the epoch.
    pub at_s: i64,
    /// The memory disk; number 0 if the bytes were lost with a client.
    pub disk: DiskId,
    /// How many files lost bytes that they had had until then.
    pub files: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// The last losses, 64 at most, the earliest first: can also be called while a server runs, and is
/// as of its last commit.
///
/// # Errors
/// [`VolumeError::Unreadable`], [`VolumeError::Engine`]
pub fn losses(engine: &dyn Engine) -> Result<Vec<Loss>, VolumeError> {
    let view = engine.view()?;
    let none = Writes::new();
    let all = data::memory::losses(&Txn::new(&*view, &none)).map_err(unreadable)?;
    let told = |(number, loss): (u64, records::Loss)| {
        let records::Loss { at_s, disk, files, bytes } = loss;
        Loss { number, at_s, disk, files, bytes }
    };
    Ok(all.into_iter().map(told).collect())
}

/// A name of each file, and the directory that it is in.
type Names = BTreeMap<FileId, (FileId, Vec<u8>)>;

/// The names of files, and of the directories above them.
fn names(txn: &Txn<'_>, files: BTreeSet<FileId>) -> Result<Names, Status> {
    let mut names = Names::new();
    find_names(txn, &files, &mut names)?;
    let mut above = BTreeSet::new();
    for (dir, _) in names.values() {
        let mut at = *dir;
        while at != FileId::ROOT
            && above.insert(at)
            && let Some(inode) = txn.get::<Inode>(&key::inode(at))?
        {
            at = inode.parent;
        }
    }
    find_names(txn, &above, &mut names)?;
    Ok(names)
}

fn find_names(txn: &Txn<'_>, files: &BTreeSet<FileId>, names: &mut Names) -> Result<(), Status> {
    if files.is_empty() {
        return Ok(());
    }
    txn.each(&key::entry(FileId(0), b"")[..1], |key, entry: Entry| {
        let (dir, name) = key[1..].split_first_chunk().ok_or(Status::Io)?;
        if files.contains(&entry.file) {
            names.insert(entry.file, (FileId(u64::from_be_bytes(*dir)), name.to_vec()));
        }
        Ok(())
    })
}

fn path_of(names: &Names, file: FileId) -> Option<Vec<u8>> {
    let (mut path, mut at) = (Vec::new(), file);
    // A path has no more steps than there are names, unless it is a cycle.
    for _ in 0..=names.len() {
        if at == FileId::ROOT {
            return Some(path);
        }
        let (dir, name) = names.get(&at)?;
        path = [b"/", &name[..], &path].concat();
        at = *dir;
    }
    None
}

//! A volume whose last late commits a crash of the machine may have undone ([`crate::late`]).
//!
//! What is left is the volume as it was at some moment. Since then clients may have been told of
//! files, versions and places in listings, so these numbers are not given again. Memory disks on
//! other machines may have bytes in blocks that are free here, and are cleared before they are
//! used. Files that may have been changed since are lost: their bytes in memory are not the last
//! ones. So is one that a client retained: it may have moved the bytes to blocks that nobody knows
//! any more, or have removed the file. A file that has no bytes, and that no client is known to
//! have retained, is removed, since nobody could tell that it should have some.
//! Directories, links and special files have no bytes: they are as they were at that moment.

use std::collections::{BTreeMap, BTreeSet};

use larder_wire::meta::Status;
use larder_wire::meta::words::{ChangeId, DiskId, FileId, Kind, Time};

use crate::data::copies::{self, Sets};
use crate::data::{Map, blocks, memory};
use crate::late::{REUSE_GAP, SETTLED_SPANS};
use crate::names;
use crate::retained;
use crate::store::records::{Entry, Inode, Late, Loss, Volume};
use crate::store::{Txn, key};
use crate::whereabouts::{Event, Whereabouts};

/// How much was lost of a set of memory disks.
#[derive(Clone, Copy, Default)]
struct Lost {
    files: u64,
    bytes: u64,
}

/// Brings a volume in order whose last owner may have had late commits which were not durable.
pub(super) fn recover(txn: &mut Txn<'_>, before: &Late) -> Result<(), Status> {
    let sets = Sets::load(txn)?;
    let memories: Vec<DiskId> = sets.memory().map(|(set, _)| set).collect();
    let Some(first) = memories.first().copied() else { return Ok(()) };
    let mut volume = txn.get::<Volume>(&key::volume())?.ok_or(Status::Io)?;
    volume.next_file += REUSE_GAP;
    txn.put(key::volume(), &volume);
    for set in memories {
        memory::give_up_provisional(txn, set)?;
        blocks::drain_free(txn, set)?;
    }
    // Those that are changed here; of the others only their times and spans matter.
    let mut inodes: BTreeMap<FileId, Inode> = BTreeMap::new();
    let (mut last, mut changed_at) = (before.span, Time::default());
    let is_file = |inode: &Inode| inode.attributes.kind == Kind::File;
    txn.each(&key::inode(FileId(0))[..1], |_, inode: Inode| {
        last = if is_file(&inode) { last.max(inode.late) } else { last };
        changed_at = changed_at.max(inode.attributes.ctime);
        if inode.is_directory() || inode.late != 0 {
            inodes.insert(inode.file(), inode);
        }
        Ok(())
    })?;
    let is_recent = |inode: &Inode| inode.late != 0 && inode.late + SETTLED_SPANS >= last;
    let (mut lost, mut empty): (BTreeMap<DiskId, Lost>, BTreeSet<FileId>) = Default::default();
    for inode in inodes.values_mut() {
        let is_lost = is_recent(inode) && is_file(inode);
        raise(inode, inode.is_directory() || is_lost);
        if !is_lost {
            continue;
        }
        if lose_retained(txn, inode, lost.entry(first).or_default())? {
            // What the disks have of it counts with the rest.
            lose(txn, inode.file(), &sets, &mut BTreeMap::new())?;
        } else if !lose(txn, inode.file(), &sets, &mut lost)? {
            empty.insert(inode.file());
        }
    }
    lost.entry(first).or_default().files += empty.len() as u64;
    remove(txn, &mut inodes, &empty)?;
    for inode in inodes.values() {
        crate::inode::put(txn, inode);
    }
    for (disk, Lost { files, bytes }) in lost.into_iter().filter(|(_, lost)| lost.files > 0) {
        tracing::warn!(
            disk = disk.0,
            files,
            bytes,
            "loss: the metadata server's machine crashed, and may have lost changes of volatile files"
        );
        memory::note_loss(txn, &Loss { at_s: changed_at.seconds, disk, files, bytes })?;
    }
    Ok(())
}

/// Nothing that was given for this is given again.
fn raise(inode: &mut Inode, with_data: bool) {
    inode.next_cookie += REUSE_GAP;
    let attributes = &mut inode.attributes;
    attributes.change = ChangeId(attributes.change.0 + REUSE_GAP);
    if with_data {
        attributes.data_change = attributes.change;
    }
}

/// What a client alone had of a file is lost: what it told last may be undone. Returns whether the
/// file is lost as a whole, now or from before.
fn lose_retained(txn: &mut Txn<'_>, inode: &mut Inode, lost: &mut Lost) -> Result<bool, Status> {
    let was_lost = inode.whereabouts.is_lost();
    retained::note(txn, inode, Event::Crashed)?;
    if let (Whereabouts::Lost { bytes }, false) = (inode.whereabouts, was_lost)
        && inode.attributes.links > 0
    {
        lost.files += 1;
        lost.bytes += bytes;
    }
    Ok(inode.whereabouts.is_lost())
}

/// A file's bytes in memory are lost. Returns whether it has bytes anywhere.
fn lose(
    txn: &mut Txn<'_>,
    file: FileId,
    sets: &Sets,
    lost: &mut BTreeMap<DiskId, Lost>,
) -> Result<bool, Status> {
    let pieces = Map::File(file).overlapping(txn, &(0..u64::MAX), usize::MAX)?;
    let mut on: BTreeSet<DiskId> = BTreeSet::new();
    for piece in pieces.iter().filter(|piece| sets.is_memory(piece.disk)) {
        for disk in sets.disks(piece.disk) {
            copies::add_stale(txn, *disk, &piece.bytes())?;
        }
        let lost = lost.entry(piece.disk).or_default();
        lost.files += u64::from(on.insert(piece.disk));
        lost.bytes += piece.length();
    }
    Ok(!pieces.is_empty())
}

/// Removes files with their names.
fn remove(
    txn: &mut Txn<'_>,
    inodes: &mut BTreeMap<FileId, Inode>,
    files: &BTreeSet<FileId>,
) -> Result<(), Status> {
    if files.is_empty() {
        return Ok(());
    }
    let mut named = Vec::new();
    txn.each(b"e", |key, entry: Entry| {
        if files.contains(&entry.file) {
            named.push((key.to_vec(), entry));
        }
        Ok(())
    })?;
    for (key, Entry { cookie, .. }) in named {
        let (dir, name) = key[1..].split_first_chunk().ok_or(Status::Io)?;
        let dir = FileId(u64::from_be_bytes(*dir));
        tracing::warn!(dir = dir.0, name = %name.escape_ascii(), "an empty volatile file is removed");
        if let Some(dir) = inodes.get_mut(&dir) {
            dir.entries = dir.entries.saturating_sub(1);
        }
        txn.delete(key::listed(dir, cookie));
        txn.delete(key);
    }
    for file in files {
        if let Some(inode) = inodes.remove(file) {
            names::forget(txn, &inode)?;
        }
    }
    Ok(())
}

//! Removes disks from a volume. An empty one is gone at once; another one leaves: what is on it
//! goes to other disks ([`super::tenure`]). No other disk gets its number. Also takes the store
//! that a disk has now for its own, where its earlier one is lost.

use larder_wire::meta::words::{DiskId, FileId};

use super::error::{VolumeError, unreadable};
use super::tenure::{Event, Refused, Tenure};
use super::{next_number, take_and};
use crate::data::copies::{self, Set, Sets};
use crate::data::{self, blocks};
use crate::engine::Engine;
use crate::store::records::{Disk, InMemory, Volume};
use crate::store::{Txn, key};

/// How a disk is after it was to be removed, or kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Whether it stays.
    pub tenure: Tenure,
    /// Its bytes that are not free.
    pub used_bytes: u64,
}

/// Removes a disk from a volume that no server owns now. One that is not empty leaves, and the next
/// server moves what is on it.
///
/// # Errors
/// [`VolumeError::Removed`] if there is no such disk, if the others have no room for what is on it,
/// or if it has the same blocks as others; [`VolumeError::None`], [`VolumeError::Owned`],
/// [`VolumeError::Engine`]
pub fn remove_disk(engine: &dyn Engine, disk: DiskId) -> Result<Removal, VolumeError> {
    unserved(engine, |txn| remove(txn, disk))
}

/// Keeps a disk that leaves, in a volume that no server owns now.
///
/// # Errors
/// [`VolumeError::Removed`] if it does not leave, and as [`remove_disk`]
pub fn keep_disk(engine: &dyn Engine, disk: DiskId) -> Result<Removal, VolumeError> {
    unserved(engine, |txn| keep(txn, disk))
}

/// The next store that a disk reports is its own, as it is, in a volume that no server owns now.
/// What the other disks of its set have is copied to it; the rest counts as right.
///
/// # Errors
/// [`VolumeError::Removed`] if there is no such disk, or it is a memory disk;
/// [`VolumeError::None`], [`VolumeError::Owned`], [`VolumeError::Engine`]
pub fn accept_store(engine: &dyn Engine, disk: DiskId) -> Result<(), VolumeError> {
    let owned = take_and(engine, |txn| {
        let sets = copies::Sets::load(txn).map_err(unreadable)?;
        let Some((set, about)) = sets.of(disk).filter(|(_, set)| !set.is_memory()) else {
            let why = format!("the volume has no disk {} that keeps a store", disk.0);
            return Err(VolumeError::Removed(why));
        };
        let all = 0..about.bytes;
        for other in about.disks.iter().filter(|other| **other != disk) {
            let there = copies::whole(txn, *other, std::slice::from_ref(&all));
            for bytes in there.map_err(unreadable)? {
                copies::add_stale(txn, disk, &bytes).map_err(unreadable)?;
            }
        }
        data::memory::give_up_provisional(txn, set).map_err(unreadable)?;
        txn.delete(key::disk_store(disk));
        Ok(())
    })?;
    owned.release(engine);
    Ok(())
}

fn unserved(
    engine: &dyn Engine,
    change: impl FnOnce(&mut Txn<'_>) -> Result<Removal, VolumeError>,
) -> Result<Removal, VolumeError> {
    let mut done = Removal { tenure: Tenure::Stays, used_bytes: 0 };
    let owned = take_and(engine, |txn| {
        done = change(txn)?;
        if !Sets::load(txn).map_err(unreadable)?.are_written_anew() {
            data::drop_superseding(txn).map_err(unreadable)?;
        }
        Ok(())
    })?;
    owned.release(engine);
    Ok(done)
}

/// Removes it in a transaction, or begins to.
pub(super) fn remove(txn: &mut Txn<'_>, disk: DiskId) -> Result<Removal, VolumeError> {
    let sets = Sets::load(txn).map_err(unreadable)?;
    let (set, about) = alone(&sets, disk)?;
    let (used, to_move) = used(txn, &sets, set).map_err(unreadable)?;
    let room = blocks::free_bytes_beside(txn, set).map_err(unreadable)?;
    let after = apply(about, disk, Event::Remove { used, to_move, room })?;
    match after {
        Tenure::Gone => forget(txn, disk, set)?,
        Tenure::Leaves if !about.leaves => {
            note(txn, disk, true)?;
            data::memory::give_up_provisional(txn, set).map_err(unreadable)?;
        }
        Tenure::Leaves | Tenure::Stays => {}
    }
    Ok(Removal { tenure: after, used_bytes: used })
}

/// Keeps it in a transaction. The caller sees to what follows for writers.
pub(super) fn keep(txn: &mut Txn<'_>, disk: DiskId) -> Result<Removal, VolumeError> {
    let sets = Sets::load(txn).map_err(unreadable)?;
    let (set, about) = alone(&sets, disk)?;
    let tenure = apply(about, disk, Event::Keep)?;
    note(txn, disk, false)?;
    let (used_bytes, _) = used(txn, &sets, set).map_err(unreadable)?;
    Ok(Removal { tenure, used_bytes })
}

/// A disk that leaves is empty: removes it in a transaction.
pub(super) fn emptied(txn: &mut Txn<'_>, disk: DiskId) -> Result<Removal, VolumeError> {
    let sets = Sets::load(txn).map_err(unreadable)?;
    let (set, about) = alone(&sets, disk)?;
    let tenure = apply(about, disk, Event::Emptied)?;
    if tenure == Tenure::Gone {
        forget(txn, disk, set)?;
    }
    Ok(Removal { tenure, used_bytes: 0 })
}

/// The set of a disk that no other disk is of.
fn alone(sets: &Sets, disk: DiskId) -> Result<(DiskId, &Set), VolumeError> {
    let number = disk.0;
    let Some((set, about)) = sets.of(disk) else {
        return Err(VolumeError::Removed(format!("the volume has no disk {number}")));
    };
    if let Some(other) = about.disks.iter().find(|other| **other != disk) {
        let instead = match about.is_memory() {
            true => "memory disks beside each other stay together",
            false => "replace it instead (larder disk enrol --replace)",
        };
        let other = other.0;
        return Err(VolumeError::Removed(format!(
            "disk {number} has the same blocks as disk {other}: {instead}"
        )));
    }
    Ok((set, about))
}

fn apply(about: &Set, disk: DiskId, event: Event) -> Result<Tenure, VolumeError> {
    let tenure = if about.leaves { Tenure::Leaves } else { Tenure::Stays };
    let refused = |why: Refused| VolumeError::Removed(format!("disk {}: {why}", disk.0));
    tenure.apply(event).map_err(refused)
}

/// How many bytes of a set are not free, and how many of those files have.
fn used(txn: &Txn<'_>, sets: &Sets, set: DiskId) -> Result<(u64, u64), larder_wire::meta::Status> {
    let Some((_, about)) = sets.complete().find(|(complete, _)| *complete == set) else {
        // A set that lacks disks has no blocks yet.
        return Ok((0, 0));
    };
    let used = about.bytes - blocks::free_bytes_of(txn, set)?;
    let nobodys = blocks::draining_bytes_of(txn, set)? + data::provisional_bytes_of(txn, set)?;
    Ok((used, used.saturating_sub(nobodys)))
}

/// Notes whether a disk leaves.
fn note(txn: &mut Txn<'_>, disk: DiskId, leaves: bool) -> Result<(), VolumeError> {
    let key = key::disk(disk);
    let record = txn.get::<Disk>(&key).map_err(unreadable)?.ok_or(VolumeError::None)?;
    txn.put(key, &Disk { leaves, ..record });
    Ok(())
}

/// The volume has an empty disk no longer.
fn forget(txn: &mut Txn<'_>, disk: DiskId, set: DiskId) -> Result<(), VolumeError> {
    blocks::forget(txn, set).map_err(unreadable)?;
    let next_disk = next_number(txn)?.0;
    copies::remove_stale(txn, disk, &(0..u64::MAX)).map_err(unreadable)?;
    let files = key::in_memory(set, FileId(0));
    for (key, _) in txn.scan_all::<InMemory>(&files[..files.len() - 8]).map_err(unreadable)? {
        txn.delete(key);
    }
    txn.delete(key::memory_boot(disk));
    txn.delete(key::disk_store(disk));
    txn.delete(key::disk(disk));
    let volume = txn.get::<Volume>(&key::volume()).map_err(unreadable)?.ok_or(VolumeError::None)?;
    txn.put(key::volume(), &Volume { next_disk, ..volume });
    Ok(())
}

//! Removes an empty disk from a volume. No other disk gets its number.

use larder_wire::meta::words::{DiskId, FileId};

use super::{VolumeError, next_number, take_and, unreadable};
use crate::data::blocks;
use crate::data::copies::{self, Sets};
use crate::engine::Engine;
use crate::store::records::{InMemory, Volume};
use crate::store::{Txn, key};

/// Removes an empty disk from a volume that no server owns now.
///
/// # Errors
/// [`VolumeError::Removed`] if there is no such disk, if it is not empty, or has copies of what
/// others have; [`VolumeError::None`], [`VolumeError::Owned`], [`VolumeError::Engine`]
pub fn remove_disk(engine: &dyn Engine, disk: DiskId) -> Result<(), VolumeError> {
    take_and(engine, |txn| remove(txn, disk))?.release(engine);
    Ok(())
}

/// The same in a transaction.
pub(super) fn remove(txn: &mut Txn<'_>, disk: DiskId) -> Result<(), VolumeError> {
    let number = disk.0;
    let refused = |why: String| Err(VolumeError::Removed(why));
    let sets = Sets::load(txn).map_err(unreadable)?;
    let Some((set, about)) = sets.of(disk) else {
        return refused(format!("the volume has no disk {number}"));
    };
    if let Some(other) = about.disks.iter().find(|other| **other != disk) {
        let instead = match about.is_memory() {
            true => "memory disks beside each other stay together",
            false => "replace it instead (larder disk enrol --replace)",
        };
        return refused(format!(
            "disk {number} has the same blocks as disk {}: {instead}",
            other.0
        ));
    }
    if sets.complete().any(|(complete, _)| complete == set) {
        let all = 0..about.bytes;
        let free = blocks::free_in(txn, set, &all).map_err(unreadable)?;
        let used: u64 = copies::without(std::slice::from_ref(&all), &free)
            .iter()
            .map(|bytes| bytes.end - bytes.start)
            .sum();
        if used > 0 {
            return refused(format!(
                "{used} bytes of disk {number} are in use: remove the files that have them, and try again"
            ));
        }
        blocks::forget(txn, set).map_err(unreadable)?;
    }
    let next_disk = next_number(txn)?.0;
    copies::remove_stale(txn, disk, &(0..u64::MAX)).map_err(unreadable)?;
    let files = key::in_memory(set, FileId(0));
    for (key, _) in txn.scan_all::<InMemory>(&files[..files.len() - 8]).map_err(unreadable)? {
        txn.delete(key);
    }
    txn.delete(key::memory_boot(disk));
    txn.delete(key::disk(disk));
    let volume = txn.get::<Volume>(&key::volume()).map_err(unreadable)?.ok_or(VolumeError::None)?;
    txn.put(key::volume(), &Volume { next_disk, ..volume });
    Ok(())
}

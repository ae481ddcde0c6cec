//! Making a volume: what it is made as stays.

use larder_wire::meta::COPIES_MAX;
use larder_wire::meta::words::{FileId, Kind, Time, VolumeId};
use larder_wire::seal::Setup;

use super::error::{VolumeError, unreadable};
use crate::disks::TrustInterval;
use crate::engine::{self, Engine, Writes};
use crate::inode;
use crate::store::records::{Inode, Volume};
use crate::store::{Txn, key};

/// Makes a volume in an empty store: a root directory that every user may list and root may change.
/// It keeps each block on `copies` disks, with [`Setup::Secure`].
///
/// # Errors
/// [`VolumeError::Exists`], [`VolumeError::Copies`], [`VolumeError::Engine`]
pub fn create(
    engine: &dyn Engine,
    id: VolumeId,
    copies: u32,
    now: Time,
) -> Result<(), VolumeError> {
    create_with_setup(engine, id, (copies, Setup::Secure), now)
}

/// The same with another setup, which each of its disks must have.
///
/// # Errors
/// As [`create`]
pub fn create_with_setup(
    engine: &dyn Engine,
    id: VolumeId,
    (copies, setup): (u32, Setup),
    now: Time,
) -> Result<(), VolumeError> {
    if !(1..=COPIES_MAX).contains(&copies) {
        return Err(VolumeError::Copies(copies));
    }
    let view = engine.view()?;
    if view.get(&key::volume())?.is_some() {
        return Err(VolumeError::Exists);
    }
    let none = Writes::new();
    let mut txn = Txn::new(&*view, &none);
    let (next_file, trust_ms) = (FileId::ROOT.0 + 1, TrustInterval::default().to_record());
    let (id, next_disk, key_epoch, setup) = (id.0, 0, 0, Some(setup));
    let volume = Volume { id, next_file, copies, next_disk, trust_ms, key_epoch, setup };
    txn.put(key::volume(), &volume);
    txn.put(key::inode(FileId::ROOT), &root(now));
    let (writes, _) = txn.finish();
    let nobody = engine::Owner { key: key::owner(), value: None };
    engine.commit(&writes, &nobody)?;
    engine.release(&nobody)?;
    Ok(())
}

fn root(now: Time) -> Inode {
    inode::empty(FileId::ROOT, FileId::ROOT, Kind::Directory, 0o755, now)
}

/// The volume that is in a store.
///
/// # Errors
/// [`VolumeError::None`], [`VolumeError::Unreadable`], [`VolumeError::Engine`]
pub fn id(engine: &dyn Engine) -> Result<VolumeId, VolumeError> {
    Ok(VolumeId(volume(engine)?.id))
}

/// The setup that each of its disks must have. None, if the volume is from before volumes had one:
/// then each disk has its own.
///
/// # Errors
/// As [`id`]
pub fn setup(engine: &dyn Engine) -> Result<Option<Setup>, VolumeError> {
    Ok(volume(engine)?.setup)
}

fn volume(engine: &dyn Engine) -> Result<Volume, VolumeError> {
    let view = engine.view()?;
    let none = Writes::new();
    let volume = Txn::new(&*view, &none).get::<Volume>(&key::volume()).map_err(unreadable)?;
    volume.ok_or(VolumeError::None)
}

//! Adds a disk to a volume: makes its key, and tells the metadata server, or, if none serves the
//! volume, adds it to the metadata directly.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use larder_io::secret;
use larder_meta::engine::Engine;
use larder_meta::volume::{self, Joining, NewDisk};
use larder_wire::capability::{DiskId, VolumeId};
use larder_wire::disk::key_file::DiskKeyFile;
use larder_wire::seal::{MasterKey, Setup};

use crate::control::Wanted;
use crate::runtime_dir::make_private;
use crate::volume::{key_path, read_key, remove_if_there};

/// A disk that is about to be added: it has a number and a key.
pub(crate) struct Prepared {
    pub(crate) key: DiskKeyFile,
    pub(crate) new: NewDisk,
    pub(crate) joining: Joining,
}

/// Gives the disk a number and a key, which is kept beside the others. Continues what an earlier
/// attempt has left.
///
/// # Errors
/// If the volume is one of `larder serve`, has a disk there, or the key cannot be kept.
pub(crate) fn prepare(wanted: &Wanted, engine: &dyn Engine, keys: &Path) -> Result<Prepared> {
    let id = volume::id(engine)?;
    let there = volume::disks(engine)?;
    for (disk, about) in &there {
        let is_one = about.address.parse::<SocketAddr>().is_ok();
        ensure!(is_one, "the volume is one of larder serve, whose disks are its own");
        let (shown, address) = (disk.0, wanted.address);
        let is_free = about.address != address.to_string() || wanted.replace == Some(shown);
        ensure!(is_free, "disk {shown} is at {address}");
    }
    let disk = volume::next_disk(engine)?;
    make_private(keys, "directory of the keys")?;
    let key = key_of(keys, (id, disk), volume::setup(engine)?)?;
    let Wanted { address, size_bytes: bytes, is_memory, .. } = *wanted;
    let new = NewDisk { id: secret::random(), address: address.to_string(), bytes, is_memory };
    let joining = match (wanted.replace, wanted.beside) {
        (Some(old), _) => Joining::InsteadOf(DiskId(old)),
        (None, Some(other)) => Joining::Beside(DiskId(other)),
        (None, None) => Joining::Anywhere,
    };
    Ok(Prepared { key, new, joining })
}

impl Prepared {
    /// The disk was added: the key of the one that it replaces is no longer needed.
    ///
    /// # Errors
    /// If that key cannot be removed.
    pub(crate) fn done(&self, keys: &Path) -> Result<()> {
        match self.joining.old() {
            Some(old) => forget_key(keys, old),
            None => Ok(()),
        }
    }
}

/// Removes the key of a disk that is not the volume's any more.
///
/// # Errors
/// If it stays.
pub(crate) fn forget_key(keys: &Path, disk: DiskId) -> Result<()> {
    let path = key_path(keys, disk);
    remove_if_there(&path).with_context(|| format!("cannot remove {}", path.display()))
}

/// Removes the keys of disks that have left the volume: a server that dies just then leaves them.
/// That of the next disk may be there before the disk is added.
///
/// # Errors
/// If the volume cannot be read, or a key stays.
pub(crate) fn forget_unused_keys(keys: &Path, engine: &dyn Engine) -> Result<()> {
    let there = volume::disks(engine)?;
    for number in 1..volume::next_disk(engine)?.0 {
        if there.iter().all(|(disk, _)| disk.0 != number) {
            forget_key(keys, DiskId(number))?;
        }
    }
    Ok(())
}

fn key_of(
    keys: &Path,
    (id, disk): (VolumeId, DiskId),
    setup: Option<Setup>,
) -> Result<DiskKeyFile> {
    let path = key_path(keys, disk);
    if path.exists() {
        return read_key(&path, id, disk);
    }
    let key = DiskKeyFile::new((id, disk), MasterKey::new(secret::random()), setup);
    secret::write_new(&path, &key.to_text())
        .with_context(|| format!("cannot make {}", path.display()))?;
    Ok(key)
}

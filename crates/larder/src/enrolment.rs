//! A disk is added to a volume: its key is made, and the volume told, be that by the metadata
//! server that serves it or by the command itself while nobody does.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use larder_io::secret;
use larder_meta::engine::Engine;
use larder_meta::volume::{self, NewDisk};
use larder_wire::capability::{DiskId, VolumeId};
use larder_wire::disk::key_file::DiskKeyFile;
use larder_wire::seal::MasterKey;

use crate::control::Wanted;
use crate::runtime_dir::make_private;
use crate::volume::{key_path, read_key, remove_if_there};

/// A disk that is about to be added: it has a number and a key.
pub(crate) struct Prepared {
    pub(crate) key: DiskKeyFile,
    pub(crate) new: NewDisk,
    pub(crate) old: Option<DiskId>,
}

/// Gives the disk a number and a key, which is kept beside the others. What an earlier try has
/// left is gone on with.
///
/// # Errors
/// If the volume is one of `larder serve`, has a disk there, or the key cannot be kept.
pub(crate) fn prepare(wanted: &Wanted, engine: &dyn Engine, keys: &Path) -> Result<Prepared> {
    let id = volume::id(engine)?;
    let there = volume::disks(engine)?;
    for (disk, about) in &there {
        let is_one = about.address.parse::<SocketAddr>().is_ok();
        ensure!(is_one, "the volume is one of larder serve, and has one disk");
        let (shown, address) = (disk.0, wanted.address);
        let is_free = about.address != address.to_string() || wanted.replace == Some(shown);
        ensure!(is_free, "disk {shown} is at {address}");
    }
    let disk = DiskId(there.last().map_or(1, |(last, _)| last.0 + 1));
    make_private(keys, "directory of the keys")?;
    let key = key_of(keys, id, disk)?;
    let (address, bytes) = (wanted.address.to_string(), wanted.size_bytes);
    let new = NewDisk { id: secret::random(), address, bytes };
    Ok(Prepared { key, new, old: wanted.replace.map(DiskId) })
}

impl Prepared {
    /// The disk was added: the key of the one that it replaces is of no use to anybody any more.
    ///
    /// # Errors
    /// If that stays.
    pub(crate) fn done(&self, keys: &Path) -> Result<()> {
        match self.old {
            Some(old) => remove_if_there(&key_path(keys, old)),
            None => Ok(()),
        }
    }
}

fn key_of(keys: &Path, id: VolumeId, disk: DiskId) -> Result<DiskKeyFile> {
    let path = key_path(keys, disk);
    if path.exists() {
        return read_key(&path, id, disk);
    }
    let key = DiskKeyFile { volume: id, disk, master: MasterKey::new(secret::random()) };
    secret::write_new(&path, &key.to_text())
        .with_context(|| format!("cannot make {}", path.display()))?;
    Ok(key)
}

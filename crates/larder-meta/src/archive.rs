//! The archive of a volume: which versions of files are put there, and which are deleted.
//!
//! A client says with a commit within which time a version of the file is to be in the archive. The
//! record of the file keeps that time, when the present version is due, and which version the
//! archive has ([`file`]). In memory there is an order in which to look at these records
//! ([`queue`]), and a worker that puts and deletes ([`crate::archiver`]). What is done in
//! transactions is in [`crate::live`].
//!
//! Invariants:
//! - A receipt is on record only for a version that was the file's from before its first byte was
//!   read until after the last, and that the archive has as a whole.
//! - Whatever the archive may have is on record before it is put there, until it is deleted: as the
//!   version that a file has there, or as one that no file needs.
//! - Nothing is done with two versions of a file at the same time.
//!
//! Absent on purpose: how a version is stored there (`larder-archive`).

pub(crate) mod file;
pub(crate) mod queue;
mod store;

use std::collections::BTreeSet;

pub use store::{Doing, Store};

use crate::engine::{Engine, Writes};
use crate::store::Txn;
use crate::volume::{self, VolumeError};

pub(crate) use larder_archive::{Error, Receipt, Version};

/// Versions that the archive has, or may have, as a volume's records say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// Those that files have there.
    pub held: BTreeSet<Version>,
    /// Those that no file needs: they were being put, or are to be deleted.
    pub unneeded: BTreeSet<Version>,
}

/// The versions on record: can also be called while a server runs, and is as of its last commit.
///
/// # Errors
/// [`VolumeError::None`], [`VolumeError::Unreadable`], [`VolumeError::Engine`]
pub fn versions(engine: &dyn Engine) -> Result<Versions, VolumeError> {
    let volume = volume::id(engine)?.0;
    let view = engine.view()?;
    let none = Writes::new();
    let all = file::all(&Txn::new(&*view, &none));
    let (wanted, unneeded) = all.map_err(|_logged| VolumeError::Unreadable)?;
    let version = |ino, data_version| Version { volume, ino, data_version };
    let held = wanted.iter().filter_map(|(file, record)| Some((file.0, record.held()?.0)));
    Ok(Versions {
        held: held.map(|(file, number)| version(file, number)).collect(),
        unneeded: unneeded.into_iter().map(|(file, number)| version(file.0, number)).collect(),
    })
}

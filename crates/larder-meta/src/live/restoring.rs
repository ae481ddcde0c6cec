//! Gives files back what memory disks have lost, if the archive has the version that the file has.
//!
//! It is moved like bytes that are due ([`super::destaging`]), with the archive in place of the
//! disk that they are read from: to disks, or to memory disks if the archive is durable. Until that
//! is done no client is told that they are lost: it
//! is to ask again. If the archive does not have the bytes that its receipt proves, they are lost.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;
use larder_wire::meta::Status;
use larder_wire::meta::words::{ByteRange, DiskId, ExtentState, FileId, VolumeId};

use crate::archive::file::OnRecord;
use crate::archive::queue::Queue;
use crate::archive::{Error, Receipt, Store, Version};
use crate::data::Plan;
use crate::disks::{Disks, Minted};
use crate::inode;
use crate::store::Txn;

/// The archive as far as it is read.
#[derive(Debug)]
pub(crate) struct Restoring {
    volume: [u8; 16],
    store: Option<Arc<dyn Store>>,
    /// Versions that the archive does not have as they were put.
    spoiled: Arc<Mutex<BTreeSet<Version>>>,
}

impl Restoring {
    /// Nothing is known to be spoiled.
    pub(crate) fn new(volume: VolumeId, store: Option<Arc<dyn Store>>) -> Restoring {
        Restoring { volume: volume.0, store, spoiled: Arc::default() }
    }
}

/// A file's present version in the archive.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    store: Arc<dyn Store>,
    version: Version,
    receipt: Receipt,
    spoiled: Arc<Mutex<BTreeSet<Version>>>,
}

impl Kept {
    /// Writes bytes of the file, in whole blocks, to `target` of a disk. Resolves to whether that
    /// was done.
    pub(super) async fn write(
        &self,
        disks: &dyn Disks,
        to: (DiskId, Minted),
        bytes: Range<u64>,
        target: u64,
    ) -> bool {
        let mut block = BytesMut::new();
        // Beyond the end of the version are zeros.
        let end = bytes.end.min(self.receipt.bytes).max(bytes.start);
        let mut at = bytes.start;
        while at < end {
            match self.store.read(&self.version, self.receipt, at, end - at).await {
                Ok(read) if !read.is_empty() => {
                    at += read.len() as u64;
                    block.extend_from_slice(&read);
                }
                Ok(_) => return false,
                Err(error) => {
                    self.note(&error);
                    return false;
                }
            }
        }
        let Ok(length) = usize::try_from(bytes.end - bytes.start) else { return false };
        block.resize(length, 0);
        disks.write(to, target, block.freeze()).await
    }

    fn note(&self, error: &Error) {
        if matches!(error, Error::Missing(_) | Error::Altered(_)) {
            tracing::error!(
                file = self.version.ino,
                "bytes that memory disks had are lost: {error}"
            );
            let mut spoiled = self.spoiled.lock().unwrap_or_else(PoisonError::into_inner);
            spoiled.insert(self.version);
        } else {
            tracing::warn!(
                file = self.version.ino,
                "what memory disks had cannot be read: {error}"
            );
        }
    }
}

impl Restoring {
    /// The version of a file in the archive, if the file has that very one.
    pub(super) fn kept(
        &self,
        txn: &Txn<'_>,
        archive: &Queue,
        file: FileId,
    ) -> Result<Option<Kept>, Status> {
        let Some(store) = self.store.as_ref().filter(|_| archive.knows(file)) else {
            return Ok(None);
        };
        let Some((number, receipt)) = OnRecord::load(txn, file)?.held() else { return Ok(None) };
        let version = Version { volume: self.volume, ino: file.0, data_version: number };
        let is_present =
            inode::regular(txn, file).is_ok_and(|inode| inode.attributes.data_change.0 == number);
        let spoiled = self.spoiled.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((is_present && !spoiled.contains(&version)).then(|| Kept {
            store: Arc::clone(store),
            version,
            receipt,
            spoiled: Arc::clone(&self.spoiled),
        }))
    }

    /// A layout that ends before what is lost, and on which set that is, if the archive has it: it
    /// is there soon.
    pub(super) fn shorten(
        &self,
        txn: &Txn<'_>,
        archive: &Queue,
        file: FileId,
        mut plan: Plan,
    ) -> Result<(Plan, Option<DiskId>), Status> {
        let lost = plan.extents.iter().find(|extent| extent.state == ExtentState::Lost);
        let Some((set, lost)) = lost.map(|extent| (extent.disk, extent.offset)) else {
            return Ok((plan, None));
        };
        if self.kept(txn, archive, file)?.is_none() {
            return Ok((plan, None));
        }
        let ByteRange { offset, .. } = plan.covered;
        plan.covered = ByteRange { offset, length: lost.saturating_sub(offset) };
        plan.extents.retain(|extent| extent.offset < lost);
        Ok((plan, Some(set)))
    }
}

/// What a client is told that asks for bytes which are being read from the archive: to ask again.
pub(super) fn told(wanted: ByteRange, covered: ByteRange) -> Result<(), Status> {
    match wanted.length > 0 && covered.length == 0 {
        true => Err(Status::Later),
        false => Ok(()),
    }
}

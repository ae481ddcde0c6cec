//! Rotation of the keys by which the disks check capabilities, while the volume is served.
//!
//! The next epoch is put on record first, then the disks are told. A server that dies in between
//! has told nobody or some; the next one begins with a later epoch. Capabilities are made with the
//! new key of a disk once that was told. Those of the epoch before stay good until they expire, are
//! ended, or the keys are rotated again.

use std::sync::Arc;
use std::time::Duration;

use larder_io::Clock;
use larder_wire::capability::{DiskId, KeyEpoch};

use crate::disks::ControlledDisks;
use crate::server::Metadata;
use crate::volume::VolumeError;

/// How often keys are rotated although nobody asks for it.
pub const ROTATED_EVERY: Duration = Duration::from_secs(24 * 60 * 60);

/// What a rotation has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotated {
    /// The key epoch.
    pub key: KeyEpoch,
    /// The disks, and whether each has it already.
    pub disks: Vec<(DiskId, bool)>,
}

/// Gives the volume's disks another key epoch. Returns when this is durable, and all disks were
/// told that answer within 5 s. The others are told before they are let trust anything again
/// ([`ControlledDisks::rotate`]).
///
/// # Errors
/// [`VolumeError`]: it may be on record, and no disk was told.
pub async fn rotate(metadata: &Metadata, disks: &ControlledDisks) -> Result<Rotated, VolumeError> {
    let key = metadata.next_key().await?;
    let disks = disks.rotate(key).await;
    tracing::info!(key = key.0, "the disks' keys were rotated");
    Ok(Rotated { key, disks })
}

/// Rotates them [now and then](ROTATED_EVERY), until that cannot be on record any more.
pub async fn rotate_regularly(
    metadata: Metadata,
    disks: Arc<ControlledDisks>,
    clock: Arc<dyn Clock>,
) {
    loop {
        clock.sleep_until(clock.instant() + ROTATED_EVERY).await;
        if let Err(error) = rotate(&metadata, &disks).await {
            return tracing::warn!("the disks' keys are not rotated any more: {error}");
        }
    }
}

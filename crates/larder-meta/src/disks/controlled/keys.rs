//! Rotation of the disks' keys: each disk is told the epoch of its key.
//!
//! A disk accepts the key epoch that it was told last, and the one before. A disk that is away is
//! told before it is let trust anything again.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use larder_wire::capability::{DiskId, KeyEpoch};

use super::super::Keys;
use super::super::orders::Order;
use super::super::reach::Unreached;
use super::{ControlledDisks, Keep, lock};

/// How long all disks together may take to answer that they have another key epoch.
const ROTATE_MAX: Duration = Duration::from_secs(5);

impl ControlledDisks {
    /// Tells the disks this key epoch, which is on record. Returns which of them have it: within
    /// [`ROTATE_MAX`], however many are away. The others are told when they are reached; they trust
    /// nothing when their [`TrustInterval`](super::TrustInterval) is over, and until they are told.
    /// From then on no disk accepts a capability of an epoch before the last two.
    pub async fn rotate(&self, key: KeyEpoch) -> Vec<(DiskId, bool)> {
        {
            let mut keys = self.keys_mut();
            if keys.epoch < key {
                *keys = Keys { epoch: key, since_s: self.clock.wall().sec };
            }
        }
        self.all().values().for_each(|keeper| lock(&keeper.known).rotate(key));
        let asked = self.ask_all(ROTATE_MAX, Order::Rotate).await;
        asked.into_iter().map(|(disk, _, told)| (disk, told == Some(true))).collect()
    }

    /// The disks' key epoch.
    pub fn keys(&self) -> Keys {
        *self.keys_mut()
    }

    pub(super) fn keys_mut(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keep {
    /// Tells the disk the key epochs that it lacks, one after the other.
    pub(super) async fn tell_keys(&mut self) -> Result<(), Unreached> {
        while let Some(key) = { lock(&self.known).next_key() } {
            self.tell_key(key).await?;
        }
        Ok(())
    }

    /// Tells the disk the last key epoch. No capability on the disk may be valid.
    pub(super) async fn tell_last_key(&mut self) -> Result<(), Unreached> {
        let key = lock(&self.known).last_key();
        self.tell_key(key).await
    }

    async fn tell_key(&mut self, key: KeyEpoch) -> Result<(), Unreached> {
        self.control().await?.rotate(key).await?;
        lock(&self.known).has_key(key);
        Ok(())
    }
}

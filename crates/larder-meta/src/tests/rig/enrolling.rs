//! Disks come and go.

use larder_wire::meta::words::DiskId;
use tokio::sync::oneshot;

use super::Rig;
use crate::committer::Event;
use crate::volume::{self, DisksChange, DisksChanged, NewDisk, Tenure, VolumeError};

impl Rig {
    /// A disk is added.
    pub(crate) fn enrol(
        &mut self,
        new: NewDisk,
        joining: volume::Joining,
    ) -> Result<DiskId, VolumeError> {
        self.change_disks(DisksChange::Enrol { new, joining }).map(|done| done.disk)
    }

    /// A disk is removed, or leaves.
    pub(crate) fn remove_disk(&mut self, disk: DiskId) -> Result<Tenure, VolumeError> {
        self.change_disks(DisksChange::Remove(disk)).map(|done| done.removal.tenure)
    }

    /// A disk that leaves is kept.
    pub(crate) fn keep_disk(&mut self, disk: DiskId) -> Result<Tenure, VolumeError> {
        self.change_disks(DisksChange::Keep(disk)).map(|done| done.removal.tenure)
    }

    fn change_disks(&mut self, change: DisksChange) -> Result<DisksChanged, VolumeError> {
        let (waiter, mut done) = oneshot::channel();
        self.event(Event::Disks(change, waiter));
        done.try_recv().expect("an answer at once")
    }
}

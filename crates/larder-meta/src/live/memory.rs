//! Memory disks that were restarted: what was there is lost.
//!
//! The store says to which boot of a memory disk its blocks belong. On a disk that is in another
//! boot nothing is granted before that is recorded, so no client reads zeros in place of lost
//! bytes.

use larder_wire::meta::Status;

use super::Live;
use crate::data;
use crate::store::records::MemoryBoot;
use crate::store::{Txn, key};

impl Live {
    /// Looks for memory disks that were started again.
    pub(crate) fn look_for_restarts(&mut self) {
        for info in self.disks.list() {
            let known = self.sets.boot(info.disk);
            if info.epoch != 0 && known.is_some_and(|boot| boot != info.epoch) {
                self.restarted.insert(info.disk, info.epoch);
            }
        }
    }

    /// Whether there are restarts that are not recorded.
    pub(crate) fn has_restarts(&self) -> bool {
        !self.restarted.is_empty()
    }

    /// Records what was lost with them.
    pub(crate) fn note_restarts(&mut self, txn: &mut Txn<'_>) -> Result<(), Status> {
        for (disk, boot) in &self.restarted {
            let lost = data::memory::lose(txn, *disk, &self.sets)?;
            txn.put(key::memory_boot(*disk), &MemoryBoot { boot: *boot });
            let (disk, files) = (disk.0, lost.len());
            match files {
                0 => tracing::info!(disk, "a memory disk was started again: nothing is lost"),
                _ => tracing::warn!(disk, files, "a memory disk was started again: bytes are lost"),
            }
        }
        for (disk, boot) in std::mem::take(&mut self.restarted) {
            self.sets.set_boot(disk, boot);
        }
        Ok(())
    }
}

//! From which stores disks serve: each is on record before clients use it. One that is not the
//! disk's own, or is a copy of that from before, is brought up to date from the other disks of its
//! set, or is not used.
//!
//! Memory disks are not looked at here: their stores are made anew at each boot, and
//! [`crate::live`] has these on record.

use std::collections::BTreeMap;

use larder_wire::disk::words::StoreState;
use larder_wire::meta::Status;
use larder_wire::meta::words::DiskId;

use crate::data::copies::{self, Sets};
use crate::data::memory;
use crate::disks::{Stores, continues};
use crate::store::records::DiskStore;
use crate::store::{Txn, key};

/// What is known of the stores of disks.
#[derive(Debug, Default)]
pub(crate) struct StoresSeen {
    /// As the disks said last.
    found: Stores,
    /// What is on record with the next commit, to be told to the disks after it.
    recorded: Stores,
    /// Stores that are not used, once that was logged.
    refused: BTreeMap<DiskId, StoreState>,
}

impl StoresSeen {
    /// Disks have reported these.
    pub(crate) fn found(&mut self, stores: Stores) {
        self.found = stores;
    }

    /// Puts on record from which stores disks serve. Returns the disks that have another store than
    /// before: nothing on them counts any more.
    pub(crate) fn note(&mut self, txn: &mut Txn<'_>, sets: &Sets) -> Result<Vec<DiskId>, Status> {
        let (mut recorded, mut others) = (Stores::new(), Vec::new());
        for (disk, found) in &self.found {
            let Some((set, about)) = sets.of(*disk).filter(|(_, set)| !set.is_memory()) else {
                continue;
            };
            let (key, all) = (key::disk_store(*disk), 0..about.bytes);
            let known = txn.get::<DiskStore>(&key)?;
            let known = known.map(|DiskStore { id, generation }| StoreState { id, generation });
            if known.is_some_and(|known| !continues(known, *found)) {
                let beside = about.disks.iter().copied().filter(|other| other != disk);
                let beside: Vec<DiskId> = beside.collect();
                if !copies::lost(txn, &beside, &all)?.is_empty() {
                    refuse(&mut self.refused, *disk, *found);
                    continue;
                }
                copies::add_stale(txn, *disk, &all)?;
                memory::give_up_provisional(txn, set)?;
                others.push(*disk);
            }
            let StoreState { id, generation } = *found;
            if known != Some(*found) {
                txn.put(key, &DiskStore { id, generation });
            }
            recorded.insert(*disk, *found);
        }
        self.refused.retain(|disk, _| !recorded.contains_key(disk));
        self.recorded.append(&mut recorded);
        for disk in &others {
            tracing::warn!(
                disk = disk.0,
                "a disk's store is not the one that it had, or is an older copy of that: everything on it is copied \
                 from the other disks"
            );
        }
        Ok(others)
    }

    /// What was recorded since the last call. To be called when that is durable.
    pub(crate) fn take_recorded(&mut self) -> Stores {
        std::mem::take(&mut self.recorded)
    }
}

fn refuse(refused: &mut BTreeMap<DiskId, StoreState>, disk: DiskId, found: StoreState) {
    if refused.insert(disk, found) != Some(found) {
        tracing::error!(
            disk = disk.0,
            "a disk's store is not the one that it had, or is an older copy of that, and no other disk has all that \
             was there: it is not used (larder disk accept)"
        );
    }
}

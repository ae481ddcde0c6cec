//! Unused blocks of the disk that are reserved for the index, in case other programs fill the disk.
//!
//! They belong to one file of the cache directory. When little is left on the disk they are *lent*:
//! the file is truncated before the index writes, and takes back what is left right after it,
//! before other programs can. All of it is best effort: a disk that cannot reserve blocks has no
//! reserve.

use std::sync::{Arc, Mutex};

use larder_io::{Disk, DiskFile, OpenMode};

use crate::lock;

const RESERVE_FILE: &str = "reserve";
/// What a commit of the index may need, on a small disk [`SHARE`] of it.
const BYTES_MAX: u64 = 16 << 20;
const SHARE: u64 = 64;
/// A smaller step is not worth trying.
const BYTES_MIN: u64 = 16 << 10;

/// The reserve of a cache.
#[derive(Debug)]
pub(crate) struct Reserve {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` where there is none.
    file: Option<Arc<dyn DiskFile>>,
    /// Bytes to reserve.
    bytes: u64,
    held_bytes: u64,
}

impl Reserve {
    /// Finds the reserve, or gets ready to make one.
    pub(crate) fn open(disk: &dyn Disk) -> Reserve {
        let bytes = disk.space().map_or(0, |space| (space.total_bytes / SHARE).min(BYTES_MAX));
        let file = disk.open(RESERVE_FILE, OpenMode::Create).ok().filter(|_| bytes > 0);
        let held_bytes = file.as_ref().and_then(|file| file.len().ok()).unwrap_or(0);
        Reserve { state: Mutex::new(State { file, bytes, held_bytes }) }
    }

    /// Lends the blocks if less space than the reserve is free. To be called before the index
    /// writes.
    pub(crate) fn lend(&self, disk: &dyn Disk) {
        let mut state = lock(&self.state);
        let is_low = || disk.space().is_ok_and(|space| space.free_bytes < state.bytes);
        if state.held_bytes > 0
            && is_low()
            && let Some(file) = &state.file
            && file.set_len(0).is_ok()
        {
            state.held_bytes = 0;
        }
    }

    /// Takes back what is missing, or as much as is free. To be called after the index has written,
    /// and has freed what it no longer needs.
    pub(crate) fn take_back(&self) {
        let mut state = lock(&self.state);
        let Some(file) = state.file.clone() else { return };
        let mut step = state.bytes.saturating_sub(state.held_bytes);
        // Only trying shows that: root may get blocks that the disk does not report as free.
        while step >= BYTES_MIN.min(state.bytes) && state.held_bytes < state.bytes {
            let bytes = (state.held_bytes + step).min(state.bytes);
            debug_assert!(bytes > state.held_bytes, "each step takes more");
            match file.allocate(bytes) {
                Ok(()) => state.held_bytes = bytes,
                Err(error) => {
                    tracing::debug!(%error, bytes, "no reserve for the cache index");
                    // A part may have been allocated.
                    let _ = file.set_len(state.held_bytes);
                    step /= 2;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_io::{Fault, SimDisk};
    use proptest::prelude::*;

    use super::*;

    const TOTAL_BYTES: u64 = 2 << 20;
    const OURS: u64 = TOTAL_BYTES / SHARE;

    fn free_bytes(disk: &SimDisk) -> u64 {
        disk.space().unwrap().free_bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// However full other programs make the disk: if less than the reserve is free, the index
        /// gets the reserve's blocks, and afterwards all that is free, up to the size of the
        /// reserve, is reserved again.
        #[test]
        fn what_is_lent_is_there_for_the_index(
            used in proptest::collection::vec((any::<bool>(), 0..3 * OURS), 1..12),
        ) {
            let disk = SimDisk::new();
            disk.inject(Fault::SpaceBytes(TOTAL_BYTES));
            let others = disk.open("others", OpenMode::Create).unwrap();
            let reserve = Reserve::open(&disk);
            for (takes_back, left) in used {
                let held = lock(&reserve.state).held_bytes;
                // The other programs leave this much free, of what the reserve does not have.
                others.set_len(0).unwrap();
                others.allocate(TOTAL_BYTES - held - left.min(TOTAL_BYTES - held)).unwrap();
                let free = free_bytes(&disk);
                reserve.lend(&disk);
                let lent = if free < OURS { held } else { 0 };
                prop_assert_eq!(free_bytes(&disk), free + lent);
                if takes_back {
                    reserve.take_back();
                    let now = lock(&reserve.state).held_bytes;
                    prop_assert!(now <= OURS && now >= held - lent);
                    let is_all = now == OURS || free_bytes(&disk) < 2 * BYTES_MIN;
                    prop_assert!(is_all, "{now} held, {} free", free_bytes(&disk));
                    let len = disk.open(RESERVE_FILE, OpenMode::Existing).unwrap().len().unwrap();
                    prop_assert_eq!(len, now);
                }
            }
            // Another run finds what this one reserved.
            let held = lock(&reserve.state).held_bytes;
            prop_assert_eq!(lock(&Reserve::open(&disk).state).held_bytes, held);
        }
    }
}

//! Which regions of the store have room in the file ahead of the blocks that will be written there.
//! Pure.
//!
//! The first write of a block makes the file system below give the file room, and record that: a
//! sync of the block then waits for the file system's own journal. A sync of bytes that are written
//! over others is two to four times as fast. So the first small write in a region fills the region
//! with zeros as far as it was not written, and the next ones find room.
//!
//! Room is given back by regions as well: a region whose last block was cleared is likely to be
//! written soon. Of those the last [`EMPTY_MAX`] keep their room.

use std::collections::{HashSet, VecDeque};

/// Regions that keep their room although no block in them is written: 64 MiB of them.
const EMPTY_MAX: usize = 64;

/// The regions with room.
#[derive(Debug, Default)]
pub(super) struct Room {
    regions: HashSet<u64>,
    /// Those that had no written block when this was last looked at, the first such one in front.
    empty: VecDeque<u64>,
}

impl Room {
    /// Whether every block of a region has room in the file.
    pub(super) fn has(&self, region: u64) -> bool {
        self.regions.contains(&region)
    }

    /// Every block of a region has room.
    pub(super) fn add(&mut self, region: u64) {
        self.regions.insert(region);
    }

    /// A region with room has no written block any more. Returns one that may give its room back,
    /// if it is still empty.
    pub(super) fn emptied(&mut self, region: u64) -> Option<u64> {
        if self.empty.contains(&region) {
            return None;
        }
        self.empty.push_back(region);
        if self.empty.len() > EMPTY_MAX { self.empty.pop_front() } else { None }
    }

    /// A region gives its room back.
    pub(super) fn remove(&mut self, region: u64) {
        self.regions.remove(&region);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_regions_that_emptied_keep_their_room() {
        let mut room = Room::default();
        let most = EMPTY_MAX as u64;
        for region in 0..most {
            room.add(region);
            assert_eq!((room.emptied(region), room.emptied(region)), (None, None));
        }
        for region in most..3 * most {
            let first = region - most;
            assert_eq!(room.emptied(region), Some(first));
            room.remove(first);
            assert!(!room.has(first) && room.empty.len() == EMPTY_MAX);
        }
    }
}

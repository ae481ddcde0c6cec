//! The last listings of directories, each whole, returned page by page.
//!
//! A position names its snapshot and a place in it: a reader that continues after the directory was
//! read again finds the snapshot with which it began, and positions of different snapshots are
//! never confused. Of a snapshot that is gone, only the beginning is valid.

use larder_vfs::{Attr, Handle, Listed, Listing};
use std::collections::VecDeque;
use std::sync::Arc;

/// Most snapshots kept, and most entries in all of them together.
const SNAPSHOTS_MAX: usize = 64;
const ENTRIES_MAX: usize = 1 << 20;
/// A position is the number of a snapshot, shifted by this many bits, and below that how many
/// entries come before. Numbers are reused after [`NUMBERS`] snapshots; a position is less than
/// 2^62.
const INDEX_BITS: u32 = 32;
const NUMBERS: u64 = 1 << 30;
/// The space that an entry takes in a reply besides its name, in bytes.
const ENTRY_BYTES: usize = 104;

/// A directory as it was.
pub(super) struct Snapshot {
    dir: Handle,
    number: u64,
    attr: Attr,
    entries: Vec<Listed>,
}

/// The last snapshots, the newest at the back.
pub(super) struct Snapshots {
    all: VecDeque<Arc<Snapshot>>,
    made: u64,
}

impl Snapshots {
    /// No snapshots. They are numbered from a random number on, since readers may continue with
    /// positions of an earlier process.
    pub(super) fn new(random: u64) -> Snapshots {
        Snapshots { all: VecDeque::new(), made: random % NUMBERS }
    }

    pub(super) fn keep(
        &mut self,
        dir: Handle,
        attr: Attr,
        mut entries: Vec<Listed>,
    ) -> Arc<Snapshot> {
        self.made += 1;
        let number = self.made % NUMBERS;
        for (entry, before) in entries.iter_mut().zip(1..) {
            entry.position = number << INDEX_BITS | before;
        }
        let snapshot = Arc::new(Snapshot { dir, number, attr, entries });
        self.all.push_back(Arc::clone(&snapshot));
        let total = |all: &VecDeque<Arc<Snapshot>>| -> usize {
            all.iter().map(|one| one.entries.len()).sum()
        };
        while self.all.len() > 1
            && (self.all.len() > SNAPSHOTS_MAX || total(&self.all) > ENTRIES_MAX)
        {
            self.all.pop_front();
        }
        snapshot
    }

    /// Whether the directory was not read again since.
    pub(super) fn is_newest(&self, snapshot: &Arc<Snapshot>) -> bool {
        let newest = self.all.iter().rev().find(|one| one.dir == snapshot.dir);
        newest.is_some_and(|newest| Arc::ptr_eq(newest, snapshot))
    }

    /// The one that a position is of.
    pub(super) fn get(&self, dir: &Handle, position: u64) -> Option<Arc<Snapshot>> {
        let number = position >> INDEX_BITS;
        self.all.iter().find(|one| one.number == number && one.dir == *dir).cloned()
    }
}

impl Snapshot {
    /// The entries after `position`, about `bytes_max` of them but at least one entry.
    pub(super) fn page(&self, position: u64, bytes_max: u32) -> Listing {
        let before = position & ((1 << INDEX_BITS) - 1);
        let start = usize::try_from(before).unwrap_or(usize::MAX).min(self.entries.len());
        let rest = &self.entries[start..];
        let mut bytes = 0;
        let fit = rest.iter().take_while(|entry| {
            bytes += entry.name.len() + ENTRY_BYTES;
            bytes <= bytes_max as usize
        });
        let count = fit.count().max(1).min(rest.len());
        Listing {
            entries: rest[..count].to_vec(),
            eof: count == rest.len(),
            verifier: self.number,
            dir: (position == 0).then_some(self.attr),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smb::attr::{Info, Shape};

    fn dir(number: u8) -> Handle {
        Handle::new(&[number])
    }

    fn attr() -> Attr {
        let shape = Shape { uid: 0, gid: 0, file_mode: 0, dir_mode: 0, fsid: 0 };
        Info::parse(&[0; 96]).unwrap().attr(&shape)
    }

    fn entries(count: u64) -> Vec<Listed> {
        let entry = |position: u64| Listed {
            name: position.to_string().into(),
            fileid: position,
            position: 0,
            tells_links: false,
            attr: None,
            handle: None,
        };
        (1..=count).map(entry).collect()
    }

    #[test]
    fn pages_follow_each_other() {
        let mut snapshots = Snapshots::new(7);
        let snapshot = snapshots.keep(dir(1), attr(), entries(50));
        for bytes_max in [0, 1, 110, 500, 1 << 20] {
            let mut position = 0;
            let mut numbers = Vec::new();
            loop {
                let page = snapshot.page(position, bytes_max);
                numbers.extend(page.entries.iter().map(|entry| entry.fileid));
                position = page.entries.last().unwrap().position;
                if page.eof {
                    break;
                }
            }
            assert!(numbers.into_iter().eq(1..=50), "{bytes_max}");
        }
        let end = snapshot.entries.last().unwrap().position;
        assert!(snapshot.page(u64::MAX, 1).eof && snapshot.page(end, 1).entries.is_empty());
    }

    /// Also when the numbers start again.
    #[test]
    fn a_position_means_something_in_its_own_snapshot_only() {
        for random in [0, 5, NUMBERS - 1, u64::MAX] {
            let mut snapshots = Snapshots::new(random);
            let [old, new] = [(); 2].map(|()| snapshots.keep(dir(1), attr(), entries(3)));
            for (one, other) in [(&old, &new), (&new, &old)] {
                for entry in &one.entries {
                    let found = snapshots.get(&dir(1), entry.position).unwrap();
                    assert!(Arc::ptr_eq(&found, one) && entry.position > 0);
                    assert_eq!(snapshots.is_newest(&found), Arc::ptr_eq(&found, &new));
                    assert!(other.entries.iter().all(|far| far.position != entry.position));
                }
            }
        }
    }

    #[test]
    fn snapshots_are_bounded_and_belong_to_their_directory() {
        let mut snapshots = Snapshots::new(7);
        let first = snapshots.keep(dir(1), attr(), entries(1)).entries[0].position;
        assert!(snapshots.get(&dir(1), first).is_some() && snapshots.get(&dir(2), first).is_none());
        for _ in 0..2 * SNAPSHOTS_MAX {
            snapshots.keep(dir(1), attr(), entries(1));
            assert!(snapshots.all.len() <= SNAPSHOTS_MAX);
        }
        assert!(snapshots.get(&dir(1), first).is_none());
    }
}

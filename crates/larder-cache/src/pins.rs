//! Pinned trees: files below a pinned directory are not culled.
//!
//! Only the directory has a record of the pin, and it is never copied: whether a file is below is
//! determined when it matters, from the place where it was last seen. So files that come later are
//! covered, and files that are moved out no longer are, without any bookkeeping. What the record
//! contains is the caller's; a single file may have one, too.

use std::collections::{HashMap, HashSet};

use crate::FileNo;
use crate::records::{key, number_in_key, tag};
use crate::store::Store;

/// Directories above a file; a longer path is taken for a cycle.
const DEPTH_MAX: usize = 4096;

/// The pinned trees, and what was found out about directories inside and outside them.
pub(crate) struct Pins<'a> {
    store: &'a Store,
    pinned: HashSet<FileNo>,
    known: HashMap<FileNo, bool>,
}

impl Store {
    /// The pinned trees as they are now.
    pub(crate) fn pins(&self) -> Pins<'_> {
        let pinned = self.pinned_trees().into_iter().map(|(top, _)| top).collect();
        Pins { store: self, pinned, known: HashMap::new() }
    }

    pub(crate) fn pin_tree(&self, top: FileNo, record: Option<&[u8]>) {
        self.index.put(key(tag::PIN, top, &[]), record.map(<[u8]>::to_vec));
    }

    /// The tops of the pinned trees, with their records.
    pub(crate) fn pinned_trees(&self) -> Vec<(FileNo, Vec<u8>)> {
        let records = self.index.scan_all(&[tag::PIN]).into_iter();
        records.filter_map(|(key, record)| Some((number_in_key(&key)?, record))).collect()
    }

    /// The directory in which a file was last seen.
    fn parent(&self, no: FileNo) -> Option<FileNo> {
        let record = self.index.get(&key(tag::NODE, no, &[]))?;
        (self.parent_in_record)(&record)
    }
}

impl Pins<'_> {
    /// Whether a file is below a pinned directory.
    pub(crate) fn cover(&mut self, no: FileNo) -> bool {
        if self.pinned.is_empty() {
            return false;
        }
        let (mut way, mut at) = (Vec::new(), no);
        let covers = loop {
            if let Some(known) = self.known.get(&at) {
                break *known;
            }
            if self.pinned.contains(&at) {
                break true;
            }
            let parent = self.store.parent(at).filter(|_| way.len() < DEPTH_MAX);
            let Some(parent) = parent.filter(|parent| *parent != at) else { break false };
            // The file itself is asked about once.
            if at != no {
                way.push(at);
            }
            at = parent;
        };
        self.known.extend(way.into_iter().chain((at != no).then_some(at)).map(|dir| (dir, covers)));
        covers
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Cache, Config};

    const NODES: u64 = 9;

    fn parent_in_record(record: &[u8]) -> Option<FileNo> {
        record.first().map(|&parent| FileNo(parent.into()))
    }

    fn open() -> Cache {
        let clock = std::sync::Arc::new(larder_io::SimClock::new());
        let config = Config { checkpoint_interval: None, parent_in_record, ..Config::new(b"v") };
        Cache::open(std::sync::Arc::new(larder_io::SimDisk::new()), clock, config).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Trees, cycles and files without a known place: a file is covered if a walk up from it
        /// meets a pinned directory, in whatever order files are checked.
        #[test]
        fn a_file_is_covered_if_one_above_it_is_pinned(
            parents in proptest::collection::vec(proptest::option::of(1..=NODES), NODES as usize),
            pinned in proptest::collection::btree_set(1..=NODES, 0..4),
            first in 1..=NODES,
        ) {
            let cache = open();
            for (no, parent) in (1..).zip(&parents) {
                let record = parent.map(|parent| vec![u8::try_from(parent).unwrap()]);
                cache.put_node(FileNo(no), &record.unwrap_or_default());
            }
            pinned.iter().for_each(|no| cache.pin_tree(FileNo(*no), Some(b"")));
            let covers = |no: u64| {
                let (mut at, mut steps) = (no, 0);
                while !pinned.contains(&at) && steps <= NODES {
                    let Some(parent) = parents[at as usize - 1] else { return false };
                    (at, steps) = (parent, steps + 1);
                }
                pinned.contains(&at)
            };
            let tops: Vec<_> = cache.pinned_trees().into_iter().map(|(top, _)| top.0).collect();
            prop_assert_eq!(tops, pinned.iter().copied().collect::<Vec<_>>());
            let mut pins = cache.store.pins();
            for no in (first..=NODES).chain(1..first).chain(1..=NODES) {
                prop_assert_eq!(pins.cover(FileNo(no)), covers(no), "{}", no);
            }
            drop(pins);
            pinned.iter().for_each(|no| cache.pin_tree(FileNo(*no), None));
            let mut pins = cache.store.pins();
            prop_assert!((1..=NODES).all(|no| !pins.cover(FileNo(no))));
        }
    }
}

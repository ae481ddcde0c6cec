//! The table of nodes: which number stands for which handle, how often the front door refers to it,
//! and which files are open.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;

use crate::{Cred, Error, Handle, Ino, Result};

/// Most numbers that are kept without a reference.
pub(super) const UNREFERENCED_MAX: usize = 1 << 16;

/// The table. The root is always in it.
#[derive(Debug)]
pub(super) struct Table {
    nodes: HashMap<Ino, Node>,
    by_handle: HashMap<Handle, Ino>,
    /// Nodes without references that may be dropped, by when they were last found.
    unreferenced: BTreeMap<u64, Ino>,
    unreferenced_max: usize,
    next_ino: u64,
    /// Counts the times that a handle was found; never returns to an earlier value.
    now: u64,
    /// Open files in all.
    opens: u64,
}

#[derive(Debug)]
struct Node {
    handle: Handle,
    /// References that the front door holds.
    lookups: u64,
    opens: u64,
    /// Its key in [`Table::unreferenced`], if it is there.
    met: Option<u64>,
    /// Verifier of the last listing.
    verifier: u64,
    hidden: Option<Hidden>,
}

/// A file that was removed while it was open, under the name that it has until its last release.
#[derive(Clone, Debug)]
pub(super) struct Hidden {
    pub(super) cred: Cred,
    pub(super) dir: Handle,
    pub(super) name: OsString,
}

impl Table {
    pub(super) fn new(root: Handle, unreferenced_max: usize) -> Table {
        let mut table = Table {
            nodes: HashMap::new(),
            by_handle: HashMap::new(),
            unreferenced: BTreeMap::new(),
            unreferenced_max,
            next_ino: Ino::ROOT.0,
            now: 0,
            opens: 0,
        };
        let ino = table.refer(&root);
        assert_eq!(ino, Ino::ROOT);
        table
    }

    /// # Errors
    /// [`Error::Stale`] if the number was dropped, or never given.
    pub(super) fn handle(&self, ino: Ino) -> Result<Handle> {
        self.nodes.get(&ino).map(|node| node.handle.clone()).ok_or(Error::Stale)
    }

    /// The number of a handle that is in the table.
    pub(super) fn known(&mut self, handle: &Handle) -> Option<Ino> {
        let ino = *self.by_handle.get(handle)?;
        self.touch(ino);
        Some(ino)
    }

    /// The number of a handle, a new one if necessary, without a reference.
    pub(super) fn meet(&mut self, handle: &Handle) -> Ino {
        let ino = self.insert(handle);
        self.touch(ino);
        self.shrink();
        ino
    }

    /// As [`Table::meet`], and counts a reference.
    pub(super) fn refer(&mut self, handle: &Handle) -> Ino {
        let ino = self.insert(handle);
        self.node(ino).lookups += 1;
        self.touch(ino);
        ino
    }

    /// The front door drops references. The root's never fall to zero.
    pub(super) fn forget(&mut self, ino: Ino, count: u64) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let least = u64::from(ino == Ino::ROOT);
        node.lookups = node.lookups.saturating_sub(count).max(least);
        self.touch(ino);
        self.shrink();
    }

    pub(super) fn opened(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.opens += 1;
            self.opens += 1;
            self.touch(ino);
        }
    }

    /// Counts a release. At the last one it returns what must then be removed.
    pub(super) fn released(&mut self, ino: Ino) -> Option<Hidden> {
        let node = self.nodes.get_mut(&ino).filter(|node| node.opens > 0)?;
        node.opens -= 1;
        self.opens -= 1;
        let hidden = if node.opens == 0 { node.hidden.take() } else { None };
        self.touch(ino);
        self.shrink();
        hidden
    }

    /// Whether any file is open.
    pub(super) fn any_open(&self) -> bool {
        self.opens > 0
    }

    /// Whether this file is.
    pub(super) fn is_open(&self, handle: &Handle) -> bool {
        self.by_handle.get(handle).is_some_and(|ino| self.nodes[ino].opens > 0)
    }

    /// Records that the open file was hidden. Returns the record if the file was closed in the
    /// meantime, or was already hidden under another of its names: then the caller removes the
    /// name.
    pub(super) fn hide(&mut self, handle: &Handle, hidden: Hidden) -> Option<Hidden> {
        let node = self.by_handle.get(handle).and_then(|ino| self.nodes.get_mut(ino));
        match node {
            Some(node) if node.opens > 0 && node.hidden.is_none() => {
                node.hidden = Some(hidden);
                None
            }
            _ => Some(hidden),
        }
    }

    pub(super) fn verifier(&self, ino: Ino) -> u64 {
        self.nodes.get(&ino).map_or(0, |node| node.verifier)
    }

    pub(super) fn keep_verifier(&mut self, ino: Ino, verifier: u64) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.verifier = verifier;
        }
    }

    fn node(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).expect("just inserted")
    }

    fn insert(&mut self, handle: &Handle) -> Ino {
        if let Some(ino) = self.by_handle.get(handle) {
            return *ino;
        }
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        let handle = handle.clone();
        self.by_handle.insert(handle.clone(), ino);
        let node = Node { handle, lookups: 0, opens: 0, met: None, verifier: 0, hidden: None };
        self.nodes.insert(ino, node);
        ino
    }

    /// Puts the node where it belongs among the unreferenced ones.
    fn touch(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        if let Some(met) = node.met.take() {
            self.unreferenced.remove(&met);
        }
        if node.lookups == 0 && node.opens == 0 {
            self.now += 1;
            node.met = Some(self.now);
            self.unreferenced.insert(self.now, ino);
        }
    }

    fn shrink(&mut self) {
        while self.unreferenced.len() > self.unreferenced_max {
            let Some((_, ino)) = self.unreferenced.pop_first() else { return };
            if let Some(node) = self.nodes.remove(&ino) {
                self.by_handle.remove(&node.handle);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(number: u64) -> Handle {
        Handle::new(&number.to_be_bytes())
    }

    #[test]
    fn referenced_numbers_stay_and_others_are_bounded() {
        let mut table = Table::new(handle(0), 4);
        let kept = table.refer(&handle(1));
        let open = table.meet(&handle(2));
        table.opened(open);
        for number in 10..100 {
            let ino = table.meet(&handle(number));
            assert_eq!(table.handle(ino), Ok(handle(number)));
            assert!(table.nodes.len() <= 3 + 4 && table.by_handle.len() == table.nodes.len());
        }
        assert_eq!(table.handle(kept), Ok(handle(1)));
        assert_eq!(table.handle(open), Ok(handle(2)));
        assert_eq!(table.handle(Ino::ROOT), Ok(handle(0)));
        table.forget(kept, 1);
        table.released(open);
        for number in 10..14 {
            table.meet(&handle(number));
        }
        assert_eq!(table.handle(kept), Err(Error::Stale));
        assert_eq!(table.handle(open), Err(Error::Stale));
        assert_ne!(table.meet(&handle(1)), kept, "numbers are never given twice");
    }

    #[test]
    fn what_was_met_lately_stays() {
        let mut table = Table::new(handle(0), 2);
        let first = table.meet(&handle(1));
        table.meet(&handle(2));
        assert_eq!(table.known(&handle(1)), Some(first));
        table.meet(&handle(3));
        assert_eq!(table.known(&handle(1)), Some(first));
        assert_eq!(table.known(&handle(2)), None);
    }

    #[test]
    fn the_root_survives_too_many_forgets() {
        let mut table = Table::new(handle(0), 0);
        table.forget(Ino::ROOT, u64::MAX);
        assert_eq!(table.handle(Ino::ROOT), Ok(handle(0)));
        assert_eq!(table.meet(&handle(0)), Ino::ROOT);
    }

    #[test]
    fn a_hidden_name_is_handed_out_at_the_last_release() {
        let mut table = Table::new(handle(0), 8);
        let ino = table.meet(&handle(1));
        let hidden =
            || Hidden { cred: Cred::root(), dir: handle(0), name: OsString::from("hidden") };
        assert!(table.hide(&handle(1), hidden()).is_some(), "it is not open");
        table.opened(ino);
        table.opened(ino);
        assert!(table.any_open() && table.is_open(&handle(1)));
        assert!(table.hide(&handle(1), hidden()).is_none());
        assert!(table.hide(&handle(1), hidden()).is_some(), "another name of the same file");
        assert!(table.released(ino).is_none());
        assert!(table.released(ino).is_some());
        assert!(table.released(ino).is_none());
        assert!(!table.any_open());
    }
}

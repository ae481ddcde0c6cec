//! Cached names: those of a directory's present epoch, and the files that they stood for before.

use std::ffi::OsStr;
use std::sync::Arc;

use larder_vfs::Ino;

use crate::core::Core;
use crate::journal::{Name, Record, name_bytes};
use crate::node::Node;

impl Core {
    /// What the index records for a name, if it is of the directory's present epoch.
    pub(crate) fn name(&self, dir: &Node, name: &OsStr) -> Option<Name> {
        let record = self.cache.name(dir.no(), name_bytes(name))?;
        Name::decode(&record).filter(|held| held.epoch == dir.state().known().epoch)
    }

    /// Records what a name stands for. What is on record already is not written again: otherwise a
    /// listing that brings nothing new would cost as much as the first one.
    pub(crate) fn put_name(&self, dir: &Node, name: &OsStr, child: Option<Ino>) {
        let epoch = dir.state().known().epoch;
        self.put_name_of(dir, name, child, epoch);
    }

    /// Records what a name stood for in an epoch of its directory. If that has ended meanwhile, no
    /// lookup is answered from it.
    pub(crate) fn put_name_of(&self, dir: &Node, name: &OsStr, child: Option<Ino>, epoch: u64) {
        let record = Name { epoch, child }.encode();
        if self.cache.name(dir.no(), name_bytes(name)).as_ref() != Some(&record) {
            self.cache.put_name(dir.no(), name_bytes(name), &record);
        }
    }

    /// Our change of a name is made, and what the name stands for now is to be put on record later:
    /// until then no lookup is answered from the record ([`Core::doubtful`]), not even one of the
    /// next process.
    pub(super) fn unsettle_name(&self, dir: &Node, name: &OsStr) {
        if let Some(held) = self.name(dir, name) {
            let record = Name { epoch: held.epoch.wrapping_sub(1), ..held }.encode();
            self.cache.put_name(dir.no(), name_bytes(name), &record);
        }
    }

    /// The node that a name stands for, as far as we know.
    pub(crate) fn child(&self, dir: &Node, name: &OsStr) -> Option<Arc<Node>> {
        let child = self.name(dir, name)?.child.and_then(|ino| self.table.get(ino));
        child.filter(|child| !child.state().is_gone())
    }

    /// What a name stood for before other clients changed the directory, and may still stand for.
    pub(crate) fn doubtful(&self, dir: &Node, name: &OsStr) -> Option<Arc<Node>> {
        let held = Name::decode(&self.cache.name(dir.no(), name_bytes(name))?)?;
        let is_known = held.epoch == dir.state().known().epoch;
        self.table.get(held.child?).filter(|_| !is_known)
    }

    /// These have perhaps lost a name, or moved. The kernel knows, and asks.
    pub(crate) fn doubt(&self, nodes: impl IntoIterator<Item = Option<Arc<Node>>>) {
        nodes.into_iter().flatten().for_each(|node| node.state().doubt(self.now()));
    }

    /// A name was changed here, and what it stands for now is not known. So the directory's listing
    /// tells nothing of it either.
    pub(crate) fn forget_name(&self, dir: &Node, name: &OsStr) {
        self.cache.drop_name(dir.no(), name_bytes(name));
        self.end_listing(dir);
    }

    fn end_listing(&self, dir: &Node) {
        let mut state = dir.state();
        if state.known().listing.is_some() {
            state.end_listing();
            self.table.persist(dir.ino, &mut state);
        }
    }

    /// Records what a name stands for, unless other clients have changed that: no lookup is
    /// answered from it ([`Core::doubtful`]).
    pub(crate) fn put_doubtful_name(&self, dir: &Node, name: &OsStr, child: Ino) {
        self.end_listing(dir);
        let epoch = dir.state().known().epoch.wrapping_sub(1);
        let record = Name { epoch, child: Some(child) }.encode();
        self.cache.put_name(dir.no(), name_bytes(name), &record);
    }
}

//! Names of the server that were taken away here, with the queries on them: a table, without I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};

use larder_vfs::Handle;

use crate::object::{Dentry, Dir, ObjectNo, Taken};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct TakenNames {
    all: BTreeMap<ObjectNo, Taken>,
    /// Waiting changes: by their earlier dentry, and by the present dentry of moved objects.
    origins: HashMap<Dir, BTreeMap<OsString, ObjectNo>>,
    dentries: HashMap<Dir, BTreeMap<OsString, ObjectNo>>,
    /// Waiting changes: by the server's handle of the object.
    handles: HashMap<Handle, BTreeSet<ObjectNo>>,
    /// Changes that the server was asked for and may have made.
    asked: BTreeSet<ObjectNo>,
}

type Names = HashMap<Dir, BTreeMap<OsString, ObjectNo>>;

fn add(names: &mut Names, dentry: &Dentry, no: ObjectNo) {
    let other = names.entry(dentry.dir.clone()).or_default().insert(dentry.name.clone(), no);
    assert_eq!(other, None, "a name is taken once, and a dentry is one's own");
}

fn drop_from(names: &mut Names, dentry: &Dentry) {
    let Some(in_dir) = names.get_mut(&dentry.dir) else { return };
    in_dir.remove(&dentry.name);
    if in_dir.is_empty() {
        names.remove(&dentry.dir);
    }
}

impl TakenNames {
    /// Stores a taken name under a number, replacing what had that number.
    pub(crate) fn put(&mut self, no: ObjectNo, taken: Option<Taken>) {
        if let Some(before) = self.all.remove(&no) {
            drop_from(&mut self.origins, &before.origin);
            if let Some(all) = self.handles.get_mut(&before.handle) {
                all.remove(&no);
                if all.is_empty() {
                    self.handles.remove(&before.handle);
                }
            }
            before.dentry.iter().for_each(|dentry| drop_from(&mut self.dentries, dentry));
            self.asked.remove(&no);
        }
        let Some(taken) = taken else { return };
        add(&mut self.origins, &taken.origin, no);
        self.handles.entry(taken.handle.clone()).or_default().insert(no);
        taken.dentry.iter().for_each(|dentry| add(&mut self.dentries, dentry, no));
        if taken.asked.is_some() {
            self.asked.insert(no);
        }
        self.all.insert(no, taken);
    }

    pub(crate) fn get(&self, no: ObjectNo) -> Option<&Taken> {
        self.all.get(&no)
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// How many names of the object with this handle at the server were removed.
    pub(crate) fn removed(&self, handle: &Handle) -> u32 {
        let removed = self.of(handle).filter(|(_, taken)| taken.dentry.is_none());
        u32::try_from(removed.count()).expect("they are few")
    }

    /// Whether the object with this handle at the server has none of the names left that it has
    /// there.
    pub(crate) fn has_none(&self, handle: &Handle) -> bool {
        self.of(handle).any(|(_, taken)| taken.dentry.is_none() && taken.is_last)
    }

    /// Names that were taken from the object with this handle at the server.
    pub(crate) fn of(&self, handle: &Handle) -> impl Iterator<Item = (ObjectNo, &Taken)> {
        let all = self.handles.get(handle).into_iter().flatten();
        all.map(|no| (*no, &self.all[no]))
    }

    /// Waiting changes, in the order in which they were made.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (ObjectNo, &Taken)> {
        self.all.iter().map(|(no, taken)| (*no, taken))
    }

    /// A change that the server was asked for and may have made.
    pub(crate) fn first_asked(&self) -> Option<(ObjectNo, &Taken)> {
        let no = *self.asked.first()?;
        Some((no, &self.all[&no]))
    }

    /// The change that took this name of the server away.
    pub(crate) fn from(&self, dir: &Dir, name: &OsStr) -> Option<ObjectNo> {
        self.origins.get(dir)?.get(name).copied()
    }

    /// The change that moved an object to this name.
    pub(crate) fn at(&self, dir: &Dir, name: &OsStr) -> Option<ObjectNo> {
        self.dentries.get(dir)?.get(name).copied()
    }

    /// Names that were taken in a directory.
    pub(crate) fn origins_in(&self, dir: &Dir) -> impl Iterator<Item = (&OsStr, ObjectNo)> {
        let names = self.origins.get(dir).into_iter().flatten();
        names.map(|(name, no)| (name.as_os_str(), *no))
    }

    /// The objects that were moved into a directory, or within it.
    pub(crate) fn in_dir(&self, dir: &Dir) -> impl Iterator<Item = (&OsStr, ObjectNo)> {
        let names = self.dentries.get(dir).into_iter().flatten();
        names.map(|(name, no)| (name.as_os_str(), *no))
    }

    /// How many names were taken in a directory, or moved there.
    pub(crate) fn count_in(&self, dir: &Dir) -> usize {
        let count = |names: &Names| names.get(dir).map_or(0, BTreeMap::len);
        count(&self.origins) + count(&self.dentries)
    }

    /// Whether a name was taken in a directory, or something is moved there.
    pub(crate) fn is_in(&self, dir: &Dir) -> bool {
        self.origins.contains_key(dir) || self.dentries.contains_key(dir)
    }
}

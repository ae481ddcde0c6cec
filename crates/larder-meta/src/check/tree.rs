//! Checks the tree: every file is below the root, directories once; and the counts that follow from
//! that.

use std::collections::{BTreeMap, BTreeSet};

use larder_wire::meta::Status;
use larder_wire::meta::words::{FileId, Kind};

use super::names::{Counted, Named};
use super::{Check, FaultKind, number, shown};
use crate::store::key;
use crate::store::records::{Entry, Orphan};

/// Where files go that nothing names.
const LOST_FOUND: &str = "lost+found";

impl Check<'_> {
    /// Ensures that each file except orphans is below the root.
    pub(super) fn tree(&mut self) -> Result<(), Status> {
        let all = self.all_named()?;
        let named: BTreeSet<FileId> = all.iter().map(|name| name.entry.file).collect();
        let mut chosen = self.one_name_each(all);
        let orphans = self.orphans(&named)?;
        self.mend_parents(&chosen);
        let is_lost = |file: &&FileId| {
            **file != FileId::ROOT && !named.contains(*file) && !orphans.contains(*file)
        };
        let lost: Vec<FileId> = self.inodes.keys().filter(is_lost).copied().collect();
        for file in lost {
            let what = format!("nothing names {}", shown(file));
            self.put_aside(FaultKind::Unnamed, file, what)?;
        }
        while let Some(file) = self.in_a_circle() {
            let what = format!("{} is a directory within itself", shown(file));
            if let Some(name) = chosen.remove(&file) {
                self.remove_name(&name);
            }
            self.put_aside(FaultKind::Loop, file, what)?;
        }
        Ok(())
    }

    /// Ensures that each directory has one name: the one in the directory that it records as its
    /// parent, if there is one. Returns them.
    fn one_name_each(&mut self, all: Vec<Named>) -> BTreeMap<FileId, Named> {
        let mut chosen: BTreeMap<FileId, Named> = BTreeMap::new();
        for name in all {
            let file = name.entry.file;
            if !self.is_directory(file) {
                continue;
            }
            let parent = self.inodes[&file].parent;
            let useless = match chosen.get_mut(&file) {
                None => {
                    chosen.insert(file, name);
                    continue;
                }
                Some(kept) if kept.dir != parent && name.dir == parent => {
                    std::mem::replace(kept, name)
                }
                Some(_) => name,
            };
            let shown = format!("\"{}\" in {}", useless.name.escape_ascii(), shown(useless.dir));
            let what = format!("{shown} is a second name of a directory");
            self.mend(FaultKind::SecondName, Some(file), what, "it is removed".into());
            self.remove_name(&useless);
        }
        chosen
    }

    fn mend_parents(&mut self, chosen: &BTreeMap<FileId, Named>) {
        let root = (FileId::ROOT, FileId::ROOT);
        let all = chosen.iter().map(|(file, name)| (*file, name.dir)).chain([root]);
        for (file, dir) in all {
            let said = self.inodes.get(&file).map(|inode| inode.parent);
            if said == Some(dir) {
                continue;
            }
            if !self.made.contains(&file) {
                let said = said.map_or_else(String::new, shown);
                let what = format!("{} says that it is in {said}", shown(file));
                let remedy = format!("it is told that it is in {}", shown(dir));
                self.mend(FaultKind::Parent, Some(file), what, remedy);
            }
            if let Some(inode) = self.change(file) {
                inode.parent = dir;
            }
        }
    }

    /// Files that wait for their last close. A file with a name does not, nor does a directory.
    fn orphans(&mut self, named: &BTreeSet<FileId>) -> Result<BTreeSet<FileId>, Status> {
        let mut orphans = BTreeSet::new();
        for (key, _) in self.all::<Orphan>(b'o')? {
            let file = FileId(number(&key)?);
            let is_there = self.inodes.contains_key(&file);
            if is_there && !named.contains(&file) && !self.is_directory(file) {
                orphans.insert(file);
                continue;
            }
            let what = match is_there {
                true => format!("{} is to go with its last close, and is named", shown(file)),
                false => format!("{} is to go with its last close, and is gone", shown(file)),
            };
            let remedy = if is_there { "it stays" } else { "it is not waited for any more" };
            self.mend(FaultKind::Orphan, is_there.then_some(file), what, remedy.into());
            self.txn.delete(key);
        }
        Ok(orphans)
    }

    /// The first directory of a cycle: one that leads to itself and not to the root.
    fn in_a_circle(&self) -> Option<FileId> {
        let mut good = BTreeSet::from([FileId::ROOT]);
        for file in self.inodes.keys().filter(|file| self.is_directory(**file)) {
            let (mut at, mut way) = (*file, BTreeSet::new());
            while !good.contains(&at) {
                if !way.insert(at) {
                    return self.circle(at).into_iter().min();
                }
                at = self.inodes[&at].parent;
            }
            good.append(&mut way);
        }
        None
    }

    /// All directories of a circle.
    fn circle(&self, first: FileId) -> Vec<FileId> {
        let mut circle = vec![first];
        let mut at = self.inodes[&first].parent;
        while at != first {
            circle.push(at);
            at = self.inodes[&at].parent;
        }
        circle
    }

    /// Gives a file that nothing names any more a name in `lost+found`.
    fn put_aside(&mut self, kind: FaultKind, file: FileId, what: String) -> Result<(), Status> {
        let dir = self.lost_found()?;
        let name = self.free_name(dir, &format!("#{}", file.0))?;
        self.mend(kind, Some(file), what, format!("it is now {LOST_FOUND}/{name}"));
        self.add_name(dir, name.as_bytes(), file);
        if let Some(inode) = self.change(file)
            && inode.is_directory()
        {
            inode.parent = dir;
        }
        Ok(())
    }

    /// The directory for files without a name; made, if it does not exist.
    fn lost_found(&mut self) -> Result<FileId, Status> {
        if let Some(there) = self.lost_found {
            return Ok(there);
        }
        let there = self.txn.get::<Entry>(&key::entry(FileId::ROOT, LOST_FOUND.as_bytes()))?;
        let there = there.map(|entry| entry.file).filter(|file| self.is_directory(*file));
        let dir = match there {
            Some(there) => there,
            None => {
                let name = self.free_name(FileId::ROOT, LOST_FOUND)?;
                let file = self.next_number();
                let inode = self.new_inode(file, Kind::Directory, 0o700);
                self.add_inode(inode);
                self.add_name(FileId::ROOT, name.as_bytes(), file);
                file
            }
        };
        self.lost_found = Some(dir);
        Ok(dir)
    }

    /// A name that is not in a directory yet.
    fn free_name(&self, dir: FileId, wanted: &str) -> Result<String, Status> {
        let (mut name, mut more) = (wanted.to_owned(), 0);
        while self.txn.get::<Entry>(&key::entry(dir, name.as_bytes()))?.is_some() {
            more += 1;
            name = format!("{wanted}.{more}");
        }
        Ok(name)
    }

    /// Mends counts of links and entries; `before`: the counts before anything was mended.
    pub(super) fn counts(&mut self, before: &Counted) -> Result<(), Status> {
        let now = self.counted()?;
        let files: Vec<FileId> = self.inodes.keys().copied().collect();
        for file in files {
            let said = &self.inodes[&file];
            let (links, entries) = (said.attributes.links, said.entries);
            let counts = (now.links.get(&file), before.links.get(&file));
            let [counted, was] = [counts.0, counts.1].map(|count| count.copied().unwrap_or(0));
            if links != counted {
                if links != was && !self.made.contains(&file) {
                    let what = format!("{} says {links} links", shown(file));
                    self.mend(FaultKind::Links, Some(file), what, format!("it has {counted}"));
                }
                self.set(file, |inode| inode.attributes.links = counted);
            }
            let counts = (now.entries.get(&file), before.entries.get(&file));
            let [counted, was] = [counts.0, counts.1].map(|count| count.copied().unwrap_or(0));
            if entries != counted {
                if entries != was && !self.made.contains(&file) {
                    let what = format!("{} says {entries} entries", shown(file));
                    self.mend(FaultKind::Entries, Some(file), what, format!("it has {counted}"));
                }
                self.set(file, |inode| inode.entries = counted);
            }
        }
        Ok(())
    }

    fn set(&mut self, file: FileId, set: impl FnOnce(&mut crate::store::records::Inode)) {
        if let Some(inode) = self.change(file) {
            set(inode);
        }
    }
}

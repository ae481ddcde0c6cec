//! Checks the tree: every file is below the root, directories once; and the counts that follow from
//! that.

use std::collections::{BTreeMap, BTreeSet};

use larder_wire::meta::Status;
use larder_wire::meta::words::{FileId, Kind};

use super::names::Named;
use super::numbers::{Names, Numbers};
use super::pass::{Groups, Pass};
use super::{Check, FaultKind, number, shown};
use crate::store::key;
use crate::store::records::{Entry, Inode, Orphan};

/// Where files go that nothing names.
const LOST_FOUND: &str = "lost+found";

impl Check<'_> {
    /// Ensures that each file except orphans is below the root.
    pub(super) fn tree(&mut self) -> Result<(), Status> {
        let mut names = Names::default();
        for name in self.all_named() {
            names.add(name?.entry.file);
        }
        let orphans = self.orphans(&names)?;
        self.one_name_each(&names)?;
        let is_lost = |file: &FileId| {
            *file != FileId::ROOT && names.of(*file) == 0 && !orphans.contains(file)
        };
        let lost: Vec<FileId> = self.files.iter().filter(is_lost).collect();
        for file in lost {
            let what = format!("nothing names {}", shown(file));
            self.put_aside(FaultKind::Unnamed, file, what)?;
        }
        while let Some(file) = self.in_a_circle() {
            let what = format!("{} is a directory within itself", shown(file));
            let named = self.names_in(self.parents[&file])?;
            if let Some(name) = named.iter().find(|name| name.entry.file == file) {
                self.remove_name(name)?;
            }
            self.put_aside(FaultKind::Loop, file, what)?;
        }
        Ok(())
    }

    /// Ensures that each directory has one name, the one in the directory that it records as its
    /// parent, if there is one; and records where that is.
    fn one_name_each(&mut self, names: &Names) -> Result<(), Status> {
        // Those that have one, in another directory, and those that have several.
        let mut odd: Vec<Named> = Vec::new();
        for name in self.all_named() {
            let name = name?;
            let parent = self.parents.get(&name.entry.file);
            let is_there = *parent.unwrap_or(&name.dir) == name.dir;
            if parent.is_some() && !(is_there && names.of(name.entry.file) == 1) {
                odd.push(name);
            }
        }
        let mut chosen: BTreeMap<FileId, FileId> = BTreeMap::from([(FileId::ROOT, FileId::ROOT)]);
        for (file, name) in self.choose(odd)? {
            chosen.insert(file, name.dir);
        }
        self.mend_parents(&chosen)
    }

    /// Removes all names but one of each directory, and returns the ones that stay.
    fn choose(&mut self, odd: Vec<Named>) -> Result<BTreeMap<FileId, Named>, Status> {
        let mut chosen: BTreeMap<FileId, Named> = BTreeMap::new();
        for name in odd {
            let file = name.entry.file;
            let parent = self.parents[&file];
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
            self.remove_name(&useless)?;
        }
        Ok(chosen)
    }

    fn mend_parents(&mut self, chosen: &BTreeMap<FileId, FileId>) -> Result<(), Status> {
        for (file, dir) in chosen {
            let said = self.parents[file];
            if said == *dir {
                continue;
            }
            if !self.made.contains(file) {
                let what = format!("{} says that it is in {}", shown(*file), shown(said));
                let remedy = format!("it is told that it is in {}", shown(*dir));
                self.mend(FaultKind::Parent, Some(*file), what, remedy);
            }
            self.move_to(*file, *dir)?;
        }
        Ok(())
    }

    /// Files that wait for their last close. A file with a name does not, nor does a directory.
    fn orphans(&mut self, names: &Names) -> Result<BTreeSet<FileId>, Status> {
        let mut orphans = BTreeSet::new();
        for one in self.all::<Orphan>(b'o') {
            let (key, _) = one?;
            let file = FileId(number(&key)?);
            let is_there = self.files.contains(file);
            if is_there && names.of(file) == 0 && !self.is_directory(file) {
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
        let mut good = Numbers::default();
        good.insert(FileId::ROOT);
        for file in self.parents.keys() {
            let (mut at, mut way) = (*file, BTreeSet::new());
            while !good.contains(at) {
                if !way.insert(at) {
                    return self.circle(at).into_iter().min();
                }
                at = self.parents[&at];
            }
            for file in way {
                good.insert(file);
            }
        }
        None
    }

    /// All directories of a circle.
    fn circle(&self, first: FileId) -> Vec<FileId> {
        let mut circle = vec![first];
        let mut at = self.parents[&first];
        while at != first {
            circle.push(at);
            at = self.parents[&at];
        }
        circle
    }

    /// Gives a file that nothing names any more a name in `lost+found`.
    fn put_aside(&mut self, kind: FaultKind, file: FileId, what: String) -> Result<(), Status> {
        let dir = self.lost_found()?;
        let name = self.free_name(dir, &format!("#{}", file.0))?;
        self.mend(kind, Some(file), what, format!("it is now {LOST_FOUND}/{name}"));
        self.add_name(dir, name.as_bytes(), file)?;
        // Its links are counted anew, whatever it is.
        self.change(file)?;
        if self.is_directory(file) { self.move_to(file, dir) } else { Ok(()) }
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
                self.add_name(FileId::ROOT, name.as_bytes(), file)?;
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

    /// Mends counts of links and entries.
    pub(super) fn counts(&mut self) -> Result<(), Status> {
        let mut now = Counts::new(self.all(b'e'), self.all(b'e'))?;
        let mut before = Counts::new(self.all_before(b'e'), self.all_before(b'e'))?;
        let mut inodes = self.inodes();
        while let Some((file, said)) = inodes.next(&self.changed)? {
            let is_made = self.made.contains(&file);
            let (counted, was) = (now.of(self, file)?, before.of(self, file)?);
            let links = said.attributes.links;
            if links != counted.links {
                if links != was.links && !is_made {
                    let what = format!("{} says {links} links", shown(file));
                    let remedy = format!("it has {}", counted.links);
                    self.mend(FaultKind::Links, Some(file), what, remedy);
                }
                self.set(file, |inode| inode.attributes.links = counted.links)?;
            }
            let entries = said.entries;
            if entries != counted.entries {
                if entries != was.entries && !is_made {
                    let what = format!("{} says {entries} entries", shown(file));
                    let remedy = format!("it has {}", counted.entries);
                    self.mend(FaultKind::Entries, Some(file), what, remedy);
                }
                self.set(file, |inode| inode.entries = counted.entries)?;
            }
        }
        Ok(())
    }

    fn set(&mut self, file: FileId, set: impl FnOnce(&mut Inode)) -> Result<(), Status> {
        if let Some(inode) = self.change(file)? {
            set(inode);
        }
        Ok(())
    }
}

/// Counts links and entries of files, one after the other.
struct Counts<'a> {
    names: Names,
    within: Groups<'a, Entry>,
}

#[derive(Clone, Copy, Default)]
struct Count {
    links: u32,
    entries: u64,
}

impl<'a> Counts<'a> {
    /// Of two equal passes over all names.
    fn new(all: Pass<'a, Entry>, again: Pass<'a, Entry>) -> Result<Counts<'a>, Status> {
        let mut names = Names::default();
        for one in all {
            names.add(one?.1.file);
        }
        Ok(Counts { names, within: Groups::new(again) })
    }

    /// Files must be asked for in the order of their numbers.
    fn of(&mut self, check: &Check<'_>, file: FileId) -> Result<Count, Status> {
        let mut count = Count { links: self.names.of(file), entries: 0 };
        self.within.of(file, |_, entry| {
            count.entries += 1;
            count.links += u32::from(check.is_directory(entry.file));
            Ok(())
        })?;
        if check.is_directory(file) {
            // Its own `.`; and the root's `..` stands in for a name.
            count.links += 1 + u32::from(file == FileId::ROOT);
        }
        Ok(count)
    }
}

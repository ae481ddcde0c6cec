//! Checks names: each has both records, in a directory, for an existing file.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use larder_wire::meta::words::FileId;
use larder_wire::meta::{NAME_BYTES_MAX, Status};
use larder_wire::xdr::Opaque;

use super::{Check, FaultKind, directory, number, shown};
use crate::store::key;
use crate::store::records::{Entry, Listed};

/// A name, by the directory that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) dir: FileId,
    pub(super) name: Vec<u8>,
    pub(super) entry: Entry,
}

impl Named {
    fn shown(&self) -> String {
        format!("\"{}\" in {}", self.name.escape_ascii(), shown(self.dir))
    }
}

/// Links and entries by file.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub(super) links: HashMap<FileId, u32>,
    pub(super) entries: HashMap<FileId, u64>,
}

type ByCookie = BTreeMap<(FileId, u64), Listed>;

impl Check<'_> {
    /// Mends names and listings. Answers the counts as they were.
    pub(super) fn names(&mut self) -> Result<Counted, Status> {
        let counted = self.counted()?;
        let mut listed = ByCookie::new();
        for (key, record) in self.all::<Listed>(b'l')? {
            listed.insert((directory(&key)?, number(&key)?), record);
        }
        let mut named = self.all_named()?;
        self.mend_cookies(&listed, &named);
        named.retain(|name| self.stands(name, &mut listed));
        // First the records that agree: what is left of the listings belongs to no name.
        let mut taken: BTreeSet<(FileId, u64)> = BTreeSet::new();
        named.retain(|name| {
            let at = (name.dir, name.entry.cookie);
            let agrees = listed.get(&at).is_some_and(|one| {
                one.file == name.entry.file && *one.name == *name.name && taken.insert(at)
            });
            if agrees {
                listed.remove(&at);
            }
            !agrees
        });
        for name in named {
            self.list_again(name, &mut taken, &mut listed);
        }
        let mut directories = self.named_directories()?;
        for ((dir, cookie), record) in listed {
            self.name_again(dir, cookie, record, &mut directories)?;
        }
        Ok(counted)
    }

    /// All names, as they are now.
    pub(super) fn all_named(&self) -> Result<Vec<Named>, Status> {
        let all = self.all::<Entry>(b'e')?.into_iter().map(|(key, entry)| {
            let (dir, name) = (directory(&key)?, key[9..].to_vec());
            Ok(Named { dir, name, entry })
        });
        all.collect()
    }

    fn named_directories(&self) -> Result<BTreeSet<FileId>, Status> {
        let all = self.all_named()?.into_iter().map(|name| name.entry.file);
        Ok(all.filter(|file| self.is_directory(*file)).collect())
    }

    /// Counts links and entries, as they are now.
    pub(super) fn counted(&self) -> Result<Counted, Status> {
        let mut counted = Counted::default();
        for Named { dir, entry, .. } in self.all_named()? {
            *counted.links.entry(entry.file).or_default() += 1;
            *counted.entries.entry(dir).or_default() += 1;
            if self.is_directory(entry.file) {
                *counted.links.entry(dir).or_default() += 1;
            }
        }
        for file in self.inodes.keys().filter(|file| self.is_directory(**file)) {
            // Its own `.`; and the root's `..` stands in for a name.
            *counted.links.entry(*file).or_default() += 1 + u32::from(*file == FileId::ROOT);
        }
        Ok(counted)
    }

    /// The next cookie of each directory must be greater than all that are in use.
    fn mend_cookies(&mut self, listed: &ByCookie, named: &[Named]) {
        let in_use = listed.keys().copied();
        let in_use = in_use.chain(named.iter().map(|name| (name.dir, name.entry.cookie)));
        let mut last: HashMap<FileId, u64> = HashMap::new();
        for (dir, cookie) in in_use {
            let last = last.entry(dir).or_default();
            *last = cookie.max(*last);
        }
        let mut last: Vec<_> = last.into_iter().collect();
        last.sort_unstable();
        for (dir, last) in last {
            let inode = self.inodes.get(&dir).filter(|inode| inode.is_directory());
            let next = inode.map_or(u64::MAX, |inode| inode.next_cookie);
            if next > last || last == u64::MAX {
                continue;
            }
            if !self.made.contains(&dir) {
                let what = format!("{} would list new names among old ones", shown(dir));
                let remedy = format!("its next name comes behind {last}");
                self.mend(FaultKind::Listing, Some(dir), what, remedy);
            }
            if let Some(inode) = self.change(dir) {
                inode.next_cookie = last + 1;
            }
        }
    }

    /// Whether a name leads to a file from a directory. If not, it is removed.
    fn stands(&mut self, name: &Named, listed: &mut ByCookie) -> bool {
        let (dir, file) = (name.dir, name.entry.file);
        let what = match () {
            () if !self.is_directory(dir) => {
                format!("{} is in something that is no directory", name.shown())
            }
            () if !is_name(&name.name) => format!("{} is no name", name.shown()),
            () if file == FileId::ROOT => format!("{} stands for the root", name.shown()),
            () if !self.inodes.contains_key(&file) => {
                format!("{} stands for nothing", name.shown())
            }
            () => return true,
        };
        let there = self.inodes.contains_key(&file).then_some(file);
        self.mend(FaultKind::Name, there.or(Some(dir)), what, "it is removed".into());
        self.remove_name(name);
        let at = (dir, name.entry.cookie);
        if listed.get(&at).is_some_and(|one| *one.name == *name.name) {
            listed.remove(&at);
        }
        false
    }

    /// A name is not listed as it is: it is from now on.
    fn list_again(
        &mut self,
        name: Named,
        taken: &mut BTreeSet<(FileId, u64)>,
        listed: &mut ByCookie,
    ) {
        let (dir, file) = (name.dir, name.entry.file);
        let what = format!("{} is not listed as it is", name.shown());
        self.mend(FaultKind::Listing, Some(file), what, "it is listed again".into());
        let at = (dir, name.entry.cookie);
        let is_free = match listed.get(&at) {
            Some(other) => *other.name == *name.name,
            None => true,
        };
        if is_free && taken.insert(at) {
            listed.remove(&at);
            self.changed.insert(dir);
            let name = Opaque::copy_from_slice(&name.name);
            self.txn.put(key::listed(dir, at.1), &Listed { file, name });
        } else {
            self.add_name(dir, &name.name, file);
        }
    }

    /// A name is listed that cannot be looked up: it can from now on, if it is valid.
    fn name_again(
        &mut self,
        dir: FileId,
        cookie: u64,
        record: Listed,
        directories: &mut BTreeSet<FileId>,
    ) -> Result<(), Status> {
        let Listed { file, name } = record;
        let shown = format!("\"{}\" in {}", name.escape_ascii(), shown(dir));
        let what = format!("{shown} is listed and cannot be looked up");
        let is_taken = self.txn.get::<Entry>(&key::entry(dir, &name))?.is_some();
        let makes_sense = self.is_directory(dir)
            && is_name(&name)
            && !is_taken
            && file != FileId::ROOT
            && self.inodes.contains_key(&file)
            && (!self.is_directory(file) || directories.insert(file));
        let about = if makes_sense { file } else { dir };
        let remedy = if makes_sense { "it can again" } else { "it is not listed any more" };
        self.mend(FaultKind::Listing, Some(about), what, remedy.into());
        self.changed.insert(dir);
        if makes_sense {
            self.txn.put(key::entry(dir, &name), &Entry { file, cookie });
        } else {
            self.txn.delete(key::listed(dir, cookie));
        }
        Ok(())
    }

    /// Adds a name, after all others. It replaces one that is spelled the same.
    pub(super) fn add_name(&mut self, dir: FileId, name: &[u8], file: FileId) {
        let Some(inode) = self.change(dir) else { return };
        let cookie = inode.next_cookie;
        inode.next_cookie = cookie.saturating_add(1);
        self.txn.put(key::entry(dir, name), &Entry { file, cookie });
        let name = Opaque::copy_from_slice(name);
        self.txn.put(key::listed(dir, cookie), &Listed { file, name });
    }

    /// Takes a name away; its listing, if that is its own.
    pub(super) fn remove_name(&mut self, name: &Named) {
        let Named { dir, name, entry } = name;
        self.changed.insert(*dir);
        self.txn.delete(key::entry(*dir, name));
        let listed = key::listed(*dir, entry.cookie);
        // A record that cannot be read reports its error again.
        if let Ok(Some(one)) = self.txn.get::<Listed>(&listed)
            && *one.name == **name
        {
            self.txn.delete(listed);
        }
    }
}

fn is_name(name: &[u8]) -> bool {
    let is_long = name.len() > NAME_BYTES_MAX;
    let has_strange = name.iter().any(|byte| matches!(byte, b'/' | 0));
    !name.is_empty() && !is_long && !has_strange && !matches!(name, b"." | b"..")
}

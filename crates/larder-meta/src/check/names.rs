//! Checks names: each has both records, in a directory, for an existing file.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};

use larder_wire::meta::words::FileId;
use larder_wire::meta::{NAME_BYTES_MAX, Status};
use larder_wire::xdr::Opaque;

use super::numbers::Numbers;
use super::{Check, FaultKind, directory, number, shown};
use crate::store::key;
use crate::store::records::{Entry, Inode, Listed};

/// A name, by the directory that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) dir: FileId,
    pub(super) name: Vec<u8>,
    pub(super) entry: Entry,
}

impl Named {
    fn new(key: &[u8], entry: Entry) -> Result<Named, Status> {
        Ok(Named { dir: directory(key)?, name: key[9..].to_vec(), entry })
    }

    fn shown(&self) -> String {
        format!("\"{}\" in {}", self.name.escape_ascii(), shown(self.dir))
    }
}

type ByCookie = BTreeMap<(FileId, u64), Listed>;

/// What is said of names, in any order: two of them are equal if the same was said, each as often.
///
/// A sum of two keyed hashes of 64 bits of each. The keys are drawn anew for each directory, so
/// different names agree by chance only, once in about 2^128 times.
struct Digest<'a>(&'a [RandomState; 2], [u64; 2]);

impl Digest<'_> {
    fn add(&mut self, cookie: u64, file: FileId, name: &[u8]) {
        for (keys, sum) in self.0.iter().zip(&mut self.1) {
            *sum = sum.wrapping_add(keys.hash_one((cookie, file.0, name)));
        }
    }
}

impl<'a> Check<'a> {
    /// Mends names and listings.
    pub(super) fn names(&mut self) -> Result<(), Status> {
        let mut listed = ByCookie::new();
        let mut named = Vec::new();
        for dir in self.doubtful()? {
            for (key, record) in self.txn.scan_all::<Listed>(&key::listed(dir, 0)[..9])? {
                listed.insert((dir, number(&key)?), record);
            }
            named.append(&mut self.names_in(dir)?);
        }
        self.mend_cookies(&listed, &named)?;
        let mut standing = Vec::new();
        for name in named {
            if self.stands(&name, &mut listed)? {
                standing.push(name);
            }
        }
        // First the records that agree: what is left of the listings belongs to no name.
        let mut taken: BTreeSet<(FileId, u64)> = BTreeSet::new();
        standing.retain(|name| {
            let at = (name.dir, name.entry.cookie);
            let agrees = listed.get(&at).is_some_and(|one| {
                one.file == name.entry.file && *one.name == *name.name && taken.insert(at)
            });
            if agrees {
                listed.remove(&at);
            }
            !agrees
        });
        for name in standing {
            self.list_again(name, &mut taken, &mut listed)?;
        }
        if listed.is_empty() {
            return Ok(());
        }
        let mut directories = self.named_directories()?;
        for ((dir, cookie), record) in listed {
            self.name_again(dir, cookie, record, &mut directories)?;
        }
        Ok(())
    }

    /// The directories of which not all names and listings are as they should be. All others need
    /// not be looked at again.
    fn doubtful(&self) -> Result<Vec<FileId>, Status> {
        let mut doubtful = Vec::new();
        let mut named = self.groups::<Entry>(b'e');
        let mut listed = self.groups::<Listed>(b'l');
        let mut inodes = self.inodes();
        while let Some(dir) = first(named.next_file()?, listed.next_file()?) {
            let keys = [RandomState::new(), RandomState::new()];
            let (mut by_name, mut by_cookie) = (Digest(&keys, [0; 2]), Digest(&keys, [0; 2]));
            let (mut last, mut is_sound) = (0, self.is_directory(dir));
            named.of(dir, |key, entry| {
                let name = &key[9..];
                is_sound &= is_name(name) && self.may_be_named(entry.file);
                by_name.add(entry.cookie, entry.file, name);
                last = entry.cookie.max(last);
                Ok(())
            })?;
            listed.of(dir, |key, Listed { file, name }| {
                by_cookie.add(number(&key)?, file, &name);
                Ok(())
            })?;
            let next_cookie = inodes.get(dir, &self.changed)?.map_or(0, |inode| inode.next_cookie);
            if !is_sound || by_name.1 != by_cookie.1 || next_cookie <= last {
                doubtful.push(dir);
            }
        }
        Ok(doubtful)
    }

    fn may_be_named(&self, file: FileId) -> bool {
        file != FileId::ROOT && self.files.contains(file)
    }

    /// All names, as they are now.
    pub(super) fn all_named(&self) -> impl Iterator<Item = Result<Named, Status>> + use<'a> {
        self.all::<Entry>(b'e').map(|one| one.and_then(|(key, entry)| Named::new(&key, entry)))
    }

    /// The names in a directory, as they are now.
    pub(super) fn names_in(&self, dir: FileId) -> Result<Vec<Named>, Status> {
        let all = self.txn.scan_all::<Entry>(&key::entry(dir, b""))?;
        all.into_iter().map(|(key, entry)| Named::new(&key, entry)).collect()
    }

    fn named_directories(&self) -> Result<Numbers, Status> {
        let mut directories = Numbers::default();
        for name in self.all_named() {
            let file = name?.entry.file;
            if self.is_directory(file) {
                directories.insert(file);
            }
        }
        Ok(directories)
    }

    /// The next cookie of each directory must be greater than all that are in use.
    fn mend_cookies(&mut self, listed: &ByCookie, named: &[Named]) -> Result<(), Status> {
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
            let inode = self.inode(dir)?.filter(Inode::is_directory);
            let next = inode.map_or(u64::MAX, |inode| inode.next_cookie);
            if next > last || last == u64::MAX {
                continue;
            }
            if !self.made.contains(&dir) {
                let what = format!("{} would list new names among old ones", shown(dir));
                let remedy = format!("its next name comes behind {last}");
                self.mend(FaultKind::Listing, Some(dir), what, remedy);
            }
            if let Some(inode) = self.change(dir)? {
                inode.next_cookie = last + 1;
            }
        }
        Ok(())
    }

    /// Whether a name leads to a file from a directory. If not, it is removed.
    fn stands(&mut self, name: &Named, listed: &mut ByCookie) -> Result<bool, Status> {
        let (dir, file) = (name.dir, name.entry.file);
        let what = match () {
            () if !self.is_directory(dir) => {
                format!("{} is in something that is no directory", name.shown())
            }
            () if !is_name(&name.name) => format!("{} is no name", name.shown()),
            () if file == FileId::ROOT => format!("{} stands for the root", name.shown()),
            () if !self.files.contains(file) => {
                format!("{} stands for nothing", name.shown())
            }
            () => return Ok(true),
        };
        let there = self.files.contains(file).then_some(file);
        self.mend(FaultKind::Name, there.or(Some(dir)), what, "it is removed".into());
        self.remove_name(name)?;
        let at = (dir, name.entry.cookie);
        if listed.get(&at).is_some_and(|one| *one.name == *name.name) {
            listed.remove(&at);
        }
        Ok(false)
    }

    /// A name is not listed as it is: it is from now on.
    fn list_again(
        &mut self,
        name: Named,
        taken: &mut BTreeSet<(FileId, u64)>,
        listed: &mut ByCookie,
    ) -> Result<(), Status> {
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
            self.change(dir)?;
            let name = Opaque::copy_from_slice(&name.name);
            self.txn.put(key::listed(dir, at.1), &Listed { file, name });
            Ok(())
        } else {
            self.add_name(dir, &name.name, file)
        }
    }

    /// A name is listed that cannot be looked up: it can from now on, if it is valid.
    fn name_again(
        &mut self,
        dir: FileId,
        cookie: u64,
        record: Listed,
        directories: &mut Numbers,
    ) -> Result<(), Status> {
        let Listed { file, name } = record;
        let shown = format!("\"{}\" in {}", name.escape_ascii(), shown(dir));
        let what = format!("{shown} is listed and cannot be looked up");
        let is_taken = self.txn.get::<Entry>(&key::entry(dir, &name))?.is_some();
        let makes_sense = self.is_directory(dir)
            && is_name(&name)
            && !is_taken
            && self.may_be_named(file)
            && (!self.is_directory(file) || directories.insert(file));
        let about = if makes_sense { file } else { dir };
        let remedy = if makes_sense { "it can again" } else { "it is not listed any more" };
        self.mend(FaultKind::Listing, Some(about), what, remedy.into());
        self.change(dir)?;
        if makes_sense {
            self.txn.put(key::entry(dir, &name), &Entry { file, cookie });
        } else {
            self.txn.delete(key::listed(dir, cookie));
        }
        Ok(())
    }

    /// Adds a name, after all others. It replaces one that is spelled the same.
    pub(super) fn add_name(
        &mut self,
        dir: FileId,
        name: &[u8],
        file: FileId,
    ) -> Result<(), Status> {
        let Some(inode) = self.change(dir)? else { return Ok(()) };
        let cookie = inode.next_cookie;
        inode.next_cookie = cookie.saturating_add(1);
        self.txn.put(key::entry(dir, name), &Entry { file, cookie });
        let name = Opaque::copy_from_slice(name);
        self.txn.put(key::listed(dir, cookie), &Listed { file, name });
        Ok(())
    }

    /// Takes a name away; its listing, if that is its own.
    pub(super) fn remove_name(&mut self, name: &Named) -> Result<(), Status> {
        let Named { dir, name, entry } = name;
        self.change(*dir)?;
        self.txn.delete(key::entry(*dir, name));
        let listed = key::listed(*dir, entry.cookie);
        if let Some(one) = self.txn.get::<Listed>(&listed)?
            && *one.name == **name
        {
            self.txn.delete(listed);
        }
        Ok(())
    }
}

/// The lower one of two numbers that are there.
fn first(one: Option<FileId>, other: Option<FileId>) -> Option<FileId> {
    one.into_iter().chain(other).min()
}

fn is_name(name: &[u8]) -> bool {
    let is_long = name.len() > NAME_BYTES_MAX;
    let has_strange = name.iter().any(|byte| matches!(byte, b'/' | 0));
    !name.is_empty() && !is_long && !has_strange && !matches!(name, b"." | b"..")
}

//! Other names of files (hard links) that were made here and that the server lacks: their records,
//! and a table with the queries on them, without I/O. [`crate::linking`] has the rest.
//!
//! A file that waits is made under its own dentry, and then gets these. If it loses that dentry
//! before, one of these takes its place.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};

use larder_cache::codec::{Reader, Writer};
use larder_vfs::Kind;

use crate::object::{Dentry, Dir, Maker, ObjectNo};
use crate::record::{KINDS, dentry, identity, maker, put_dentry, put_identity, put_maker};

/// The format of the record.
const FORMAT: u8 = 20;

/// Another name of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Linked {
    pub(crate) dentry: Dentry,
    /// The file, by where its identity comes from, as with directories.
    pub(crate) file: Dir,
    pub(crate) kind: Kind,
    /// The inode number that applications see.
    pub(crate) fileid: u64,
    /// On whose behalf.
    pub(crate) linker: Maker,
    /// The server may have been asked, and may have done so.
    pub(crate) is_attempted: bool,
}

impl Linked {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::with_capacity(96);
        out.u8(FORMAT);
        put_dentry(&mut out, &self.dentry);
        put_identity(&mut out, &self.file);
        out.u8(self.kind as u8);
        out.u64(self.fileid);
        put_maker(&mut out, &self.linker);
        out.flag(self.is_attempted);
        out.into_bytes()
    }

    /// Whether a record is one of these.
    pub(crate) fn is_one(bytes: &[u8]) -> bool {
        bytes.first() == Some(&FORMAT)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Linked> {
        let mut input = Reader::new(bytes);
        if input.u8()? != FORMAT {
            return None;
        }
        let (dentry, file) = (dentry(&mut input)?, identity(&mut input)?);
        let number = input.u8()?;
        let kind = KINDS.into_iter().find(|kind| *kind as u8 == number)?;
        let (fileid, linker) = (input.u64()?, maker(&mut input)?);
        let is_attempted = input.flag()?;
        input.end(Linked { dentry, file, kind, fileid, linker, is_attempted })
    }
}

/// All of them, in memory.
#[derive(Debug, Default)]
pub(crate) struct Links {
    all: BTreeMap<ObjectNo, Linked>,
    dentries: HashMap<Dir, BTreeMap<OsString, ObjectNo>>,
    files: HashMap<Dir, BTreeSet<ObjectNo>>,
}

impl Links {
    /// Stores one under a number, replacing what had that number.
    pub(crate) fn put(&mut self, no: ObjectNo, linked: Option<Linked>) {
        if let Some(before) = self.all.remove(&no) {
            let names = self.dentries.get_mut(&before.dentry.dir).expect("it is indexed");
            names.remove(&before.dentry.name);
            if names.is_empty() {
                self.dentries.remove(&before.dentry.dir);
            }
            let links = self.files.get_mut(&before.file).expect("it is indexed");
            links.remove(&no);
            if links.is_empty() {
                self.files.remove(&before.file);
            }
        }
        let Some(linked) = linked else { return };
        let Dentry { dir, name } = linked.dentry.clone();
        let other = self.dentries.entry(dir).or_default().insert(name, no);
        assert_eq!(other, None, "a dentry is one's own");
        self.files.entry(linked.file.clone()).or_default().insert(no);
        self.all.insert(no, linked);
    }

    pub(crate) fn get(&self, no: ObjectNo) -> Option<&Linked> {
        self.all.get(&no)
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// All, in the order in which they were made.
    pub(crate) fn all(&self) -> impl Iterator<Item = (ObjectNo, &Linked)> {
        self.all.iter().map(|(no, linked)| (*no, linked))
    }

    /// Those of a file, in the order in which they were made.
    pub(crate) fn of(&self, file: &Dir) -> impl Iterator<Item = (ObjectNo, &Linked)> {
        let links = self.files.get(file).into_iter().flatten();
        links.map(|no| (*no, &self.all[no]))
    }

    /// How many of a file's names these are.
    pub(crate) fn count_of(&self, file: &Dir) -> u32 {
        let count = self.files.get(file).map_or(0, BTreeSet::len);
        u32::try_from(count).expect("they are few")
    }

    /// The one at this name.
    pub(crate) fn at(&self, dir: &Dir, name: &OsStr) -> Option<ObjectNo> {
        self.dentries.get(dir)?.get(name).copied()
    }

    /// Those in a directory, by name.
    pub(crate) fn in_dir(&self, dir: &Dir) -> impl Iterator<Item = (&OsStr, ObjectNo)> {
        let names = self.dentries.get(dir).into_iter().flatten();
        names.map(|(name, no)| (name.as_os_str(), *no))
    }

    pub(crate) fn count_in(&self, dir: &Dir) -> usize {
        self.dentries.get(dir).map_or(0, BTreeMap::len)
    }

    /// The directories with some.
    pub(crate) fn dirs(&self) -> impl Iterator<Item = &Dir> {
        self.dentries.keys()
    }
}

#[cfg(test)]
mod tests {
    use larder_vfs::Handle;

    use super::*;

    fn linked() -> Linked {
        Linked {
            dentry: Dentry { dir: Dir::Server(Handle::new(b"dir")), name: "b".into() },
            file: Dir::Made(ObjectNo(7)),
            kind: Kind::File,
            fileid: 77,
            linker: Maker { uid: 1000, gid: 100, groups: [4].into() },
            is_attempted: false,
        }
    }

    /// The bytes of `docs/formats/names.md`, every prefix of them, and every byte changed.
    #[test]
    fn a_link_is_the_documented_bytes() {
        let bytes = linked().encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = include_str!("../../../docs/formats/names.md");
        assert!(text.contains(&hex), "not in the document: {hex}");
        assert!(Linked::is_one(&bytes));
        let dir = Dir::Server(Handle::new(b"file"));
        let other = Linked { file: dir, is_attempted: true, kind: Kind::Fifo, ..linked() };
        for one in [linked(), other] {
            let bytes = one.encode();
            assert_eq!(Linked::decode(&bytes), Some(one));
            for len in 0..bytes.len() {
                assert_eq!(Linked::decode(&bytes[..len]), None);
                for value in 0..=u8::MAX {
                    let mut changed = bytes.clone();
                    changed[len] = value;
                    if let Some(other) = Linked::decode(&changed) {
                        assert_eq!(Linked::decode(&other.encode()), Some(other));
                    }
                }
            }
            assert_eq!(Linked::decode(&[bytes, vec![0]].concat()), None);
        }
    }
}

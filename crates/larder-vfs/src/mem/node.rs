//! The nodes of the model's tree.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};

use crate::{Attr, Before, Cred, Device, Error, Kind, Result, Time};

use super::pages::Pages;

const FSID: u64 = 0x6d65_6d00;

pub(super) const SET_UID: u32 = 0o4000;
pub(super) const SET_GID: u32 = 0o2000;
pub(super) const STICKY: u32 = 0o1000;

pub(super) const READ: u32 = 4;
pub(super) const WRITE: u32 = 2;
pub(super) const EXECUTE: u32 = 1;

#[derive(Clone)]
pub(super) struct Node {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) nlink: u32,
    pub(super) atime: Time,
    pub(super) mtime: Time,
    pub(super) ctime: Time,
    pub(super) birth: Time,
    pub(super) versions: Versions,
    pub(super) tells: Tells,
    pub(super) body: Body,
}

/// The version of a node, and that in which its data last changed.
#[derive(Clone, Copy)]
pub(super) struct Versions {
    now: u64,
    of_data: u64,
}

impl Versions {
    pub(super) fn first() -> Versions {
        Versions { now: 1, of_data: 1 }
    }
}

/// By what the server tells versions apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tells {
    Times,
    /// By a change attribute, too.
    Change,
    /// And it says in which version the data last changed.
    DataChange,
}

#[derive(Clone)]
pub(super) enum Body {
    File {
        data: Pages,
        /// The contents on the disk, if unstable writes differ from them.
        durable: Option<Pages>,
    },
    Directory(Directory),
    Symlink(OsString),
    Special(Kind, Device),
}

#[derive(Clone)]
pub(super) struct Directory {
    pub(super) parent: u64,
    pub(super) names: HashMap<OsString, u64>,
    /// By position, which an entry keeps as long as it exists.
    pub(super) entries: BTreeMap<u64, (OsString, u64)>,
    pub(super) next: u64,
}

impl Directory {
    pub(super) fn new(parent: u64) -> Directory {
        Directory { parent, names: HashMap::new(), entries: BTreeMap::new(), next: 1 }
    }

    pub(super) fn get(&self, name: &OsStr) -> Option<u64> {
        self.names.get(name).map(|position| self.entries[position].1)
    }

    pub(super) fn insert(&mut self, name: &OsStr, number: u64) {
        self.names.insert(name.to_owned(), self.next);
        self.entries.insert(self.next, (name.to_owned(), number));
        self.next += 1;
    }

    pub(super) fn remove(&mut self, name: &OsStr) {
        let position = self.names.remove(name).expect("the caller has found it");
        self.entries.remove(&position);
    }
}

impl Node {
    pub(super) fn kind(&self) -> Kind {
        match &self.body {
            Body::File { .. } => Kind::File,
            Body::Directory(_) => Kind::Directory,
            Body::Symlink(_) => Kind::Symlink,
            Body::Special(kind, _) => *kind,
        }
    }

    pub(super) fn is_dir(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }

    pub(super) fn size(&self) -> u64 {
        match &self.body {
            Body::File { data, .. } => data.size(),
            Body::Directory(directory) => 4096 + 32 * directory.entries.len() as u64,
            Body::Symlink(target) => target.len() as u64,
            Body::Special(..) => 0,
        }
    }

    pub(super) fn attr(&self, number: u64) -> Attr {
        let size = self.size();
        Attr {
            kind: self.kind(),
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            device: match self.body {
                Body::Special(_, device) => device,
                _ => Device::default(),
            },
            size,
            used: if let Body::File { data, .. } = &self.body { data.used() } else { size },
            fsid: FSID,
            fileid: number,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            change: self.told_change(),
            data_change: self.told_data_change(),
            birth: Some(self.birth),
        }
    }

    pub(super) fn before(&self) -> Before {
        let (mtime, ctime) = (self.mtime, self.ctime);
        let (change, data_change) = (self.told_change(), self.told_data_change());
        Before { size: self.size(), mtime, ctime, change, data_change }
    }

    fn told_change(&self) -> Option<u64> {
        (self.tells != Tells::Times).then_some(self.versions.now)
    }

    fn told_data_change(&self) -> Option<u64> {
        (self.tells == Tells::DataChange).then_some(self.versions.of_data)
    }

    /// The `rwx` bits that the caller has.
    pub(super) fn rights(&self, cred: &Cred) -> u32 {
        if cred.uid == 0 {
            let search = self.is_dir() || self.mode & 0o111 != 0;
            return if search { READ | WRITE | EXECUTE } else { READ | WRITE };
        }
        let shift = match () {
            () if cred.uid == self.uid => 6,
            () if cred.in_group(self.gid) => 3,
            () => 0,
        };
        self.mode >> shift & 7
    }

    pub(super) fn need(&self, cred: &Cred, right: u32) -> Result<()> {
        if self.rights(cred) & right == right { Ok(()) } else { Err(Error::AccessDenied) }
    }

    pub(super) fn owned_by(&self, cred: &Cred) -> bool {
        cred.uid == 0 || cred.uid == self.uid
    }

    pub(super) fn touched(&mut self, now: Time, data: bool) {
        self.ctime = now;
        self.versions.now += 1;
        if data {
            self.mtime = now;
            self.versions.of_data = self.versions.now;
        }
    }
}

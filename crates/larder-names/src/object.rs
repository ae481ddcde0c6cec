//! The journal's state of one object that was made here.

use std::ffi::OsString;
use std::sync::Arc;

use larder_vfs::{Attr, Before, Cred, Device, Handle, Kind, Time, Validator};

/// Number of an object that was made here, counted from 1 and never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectNo(pub(crate) u64);

/// Inode numbers of objects that were made here have this bit. Servers count from below, and no
/// file system is known that comes so far.
const FILEID_BIT: u64 = 1 << 63;

impl ObjectNo {
    /// What applications see in `st_ino`.
    pub(crate) fn fileid(self) -> u64 {
        FILEID_BIT | self.0
    }
}

/// A directory, by who named it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Dir {
    /// The server did.
    Server(Handle),
    /// It was made here; the server may know it by now.
    Made(ObjectNo),
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) dir: Dir,
    pub(crate) name: OsString,
}

/// An object that was made here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// Its name; of one that the server has, the last name that is known.
    pub(crate) place: Place,
    pub(crate) stage: Stage,
    /// A modification time that somebody has given it while it had bytes that the server lacks.
    pub(crate) given: Option<Given>,
}

/// A modification time for bytes that are only here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) mtime: Time,
    /// When the local file with the bytes had last been written, by its disk, in nanoseconds since
    /// 1970. One that was written later has the time of that.
    pub(crate) over_ns: i64,
}

/// Whether the server has the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not yet.
    Waiting(Waiting),
    /// It does.
    Named(Named),
}

/// What an object is that the server does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) body: Body,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    /// On whose behalf it is made at the server.
    pub(crate) maker: Maker,
    /// The server may have been asked to make it, and may have done so.
    pub(crate) is_attempted: bool,
}

/// Kind of an object, and what is told of it when it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    File,
    Directory,
    Symlink(OsString),
    /// A named pipe, socket or device.
    Node(Kind, Device),
}

impl Body {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Body::File => Kind::File,
            Body::Directory => Kind::Directory,
            Body::Symlink(_) => Kind::Symlink,
            Body::Node(kind, _) => *kind,
        }
    }
}

/// Somebody's identity, as far as a server judges it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Maker {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Arc<[u32]>,
}

impl Maker {
    pub(crate) fn of(cred: &Cred) -> Maker {
        Maker { uid: cred.uid, gid: cred.gid, groups: cred.groups.clone() }
    }

    pub(crate) fn cred(&self) -> Cred {
        Cred::new(self.uid, self.gid, &self.groups)
    }
}

/// An object that the server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) handle: Handle,
    /// The server's inode number.
    pub(crate) fileid: u64,
    /// The version that the server made, and the times that it has here.
    pub(crate) shown: Shown,
    /// It may have several names.
    pub(crate) is_linked: bool,
    /// The name that it was to have, if somebody else had made that.
    pub(crate) wanted: Option<OsString>,
}

/// A version of the server's, and the times that applications see of it: to them, nothing has
/// changed when the server made the object, or entries of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) server: Validator,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
}

/// The version of the data of what was made here, as long as nothing of it went to the server:
/// whatever attributes are set meanwhile, the bytes below those that are unsent are none.
pub(crate) const AS_MADE: Option<u64> = Some(0);

impl Shown {
    /// The attributes as applications see them. The version is told by the times alone: what
    /// changes here changes no number of the server's. Of its data it is `data_change`.
    pub(crate) fn apply(&self, attr: &mut Attr, data_change: Option<u64>) {
        if self.server.same(&attr.validator()) {
            (attr.mtime, attr.ctime) = (self.mtime, self.ctime);
            (attr.change, attr.data_change) = (None, data_change);
        }
    }

    /// The same of what the server saw before a change.
    pub(crate) fn apply_before(&self, before: &mut Before, data_change: Option<u64>) {
        if self.server.same(&before.validator()) {
            (before.mtime, before.ctime) = (self.mtime, self.ctime);
            (before.change, before.data_change) = (None, data_change);
        }
    }
}

impl Waiting {
    /// The attributes of an object with that number on that file system. `subdirectories` counts.
    pub(crate) fn attr(&self, no: ObjectNo, fsid: u64, subdirectories: u32) -> Attr {
        let kind = self.body.kind();
        let (size, device) = match &self.body {
            Body::File => (0, Device::default()),
            Body::Directory => (4096, Device::default()),
            Body::Symlink(target) => (target.len() as u64, Device::default()),
            Body::Node(_, device) => (0, *device),
        };
        Attr {
            kind,
            mode: self.mode,
            nlink: if kind == Kind::Directory { 2 + subdirectories } else { 1 },
            uid: self.uid,
            gid: self.gid,
            device,
            size,
            used: 0,
            fsid,
            fileid: no.fileid(),
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            change: None,
            data_change: AS_MADE.filter(|_| kind != Kind::Directory),
            birth: None,
        }
    }
}

/// The moment after `time`, as fine as times are.
pub(crate) fn after(time: Time) -> Time {
    if time.nsec == 999_999_999 {
        return Time { sec: time.sec.saturating_add(1), nsec: 0 };
    }
    Time { nsec: time.nsec + 1, ..time }
}

//! Files as records: finds, makes and changes them.

use bytes::Bytes;
use larder_wire::meta::Status;
use larder_wire::meta::words::{
    Attributes, ChangeId, Changed, Device, FileId, Kind, Time, Version,
};
use larder_wire::xdr::Opaque;

use crate::request::Request;
use crate::store::records::{Inode, Volume};
use crate::store::{Txn, key};
use crate::whereabouts::Whereabouts;

/// The size that is shown for a directory, in bytes.
const DIRECTORY_BYTES: u64 = 4096;

/// The content of a new file.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    File,
    Directory,
    Symlink(Bytes),
    Special(Kind, Device),
}

impl Body {
    fn kind(&self) -> Kind {
        match self {
            Body::File => Kind::File,
            Body::Directory => Kind::Directory,
            Body::Symlink(_) => Kind::Symlink,
            Body::Special(kind, _) => *kind,
        }
    }
}

/// The file with a number.
///
/// # Errors
/// [`Status::Stale`] if it does not exist any more.
pub(crate) fn get(txn: &Txn<'_>, file: FileId) -> Result<Inode, Status> {
    txn.get(&key::inode(file))?.ok_or(Status::Stale)
}

/// The directory with a number.
///
/// # Errors
/// [`Status::Stale`], [`Status::NotDirectory`]
pub(crate) fn directory(txn: &Txn<'_>, file: FileId) -> Result<Inode, Status> {
    let inode = get(txn, file)?;
    if inode.is_directory() { Ok(inode) } else { Err(Status::NotDirectory) }
}

/// A regular file's inode.
///
/// # Errors
/// [`Status::Stale`], [`Status::IsDirectory`]; [`Status::Invalid`] for other objects without data.
pub(crate) fn regular(txn: &Txn<'_>, file: FileId) -> Result<Inode, Status> {
    let inode = get(txn, file)?;
    match inode.attributes.kind {
        Kind::File => Ok(inode),
        Kind::Directory => Err(Status::IsDirectory),
        _ => Err(Status::Invalid),
    }
}

/// Writes a file.
pub(crate) fn put(txn: &mut Txn<'_>, inode: &Inode) {
    txn.put(key::inode(inode.attributes.file), inode);
}

/// An empty inode that belongs to the superuser, with one name; a directory has its own link, too.
pub(crate) fn empty(file: FileId, parent: FileId, kind: Kind, mode: u32, now: Time) -> Inode {
    let (links, size) = match kind {
        Kind::Directory => (2, DIRECTORY_BYTES),
        _ => (1, 0),
    };
    let attributes = Attributes {
        file,
        kind,
        mode,
        links,
        uid: 0,
        gid: 0,
        device: Device::default(),
        size,
        used: 0,
        atime: now,
        mtime: now,
        ctime: now,
        birth: now,
        change: ChangeId(1),
        data_change: ChangeId(1),
    };
    Inode {
        attributes,
        parent,
        entries: 0,
        next_cookie: 1,
        target: Opaque::default(),
        late: 0,
        whereabouts: Whereabouts::AtDisks,
    }
}

/// A new file of the caller in `parent`, which has no name yet and is not stored yet.
///
/// # Errors
/// [`Status::Io`]
pub(crate) fn new(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    parent: FileId,
    body: Body,
) -> Result<Inode, Status> {
    let file = next_number(txn)?;
    let mode = match &body {
        Body::File | Body::Special(..) => 0o644,
        Body::Directory => 0o755,
        Body::Symlink(_) => 0o777,
    };
    let mut inode = empty(file, parent, body.kind(), mode, request.now);
    let attributes = &mut inode.attributes;
    (attributes.uid, attributes.gid) = (request.caller.uid, request.caller.gid);
    match body {
        Body::Special(_, device) => attributes.device = device,
        Body::Symlink(target) => {
            attributes.size = target.len() as u64;
            inode.target = Opaque(target);
        }
        Body::File | Body::Directory => {}
    }
    Ok(inode)
}

/// A number that no file ever had.
fn next_number(txn: &mut Txn<'_>) -> Result<FileId, Status> {
    let mut volume: Volume = txn.get(&key::volume())?.ok_or(Status::Io)?;
    let file = FileId(volume.next_file);
    volume.next_file += 1;
    txn.put(key::volume(), &volume);
    Ok(file)
}

impl Inode {
    pub(crate) fn is_directory(&self) -> bool {
        self.attributes.kind == Kind::Directory
    }

    pub(crate) fn file(&self) -> FileId {
        self.attributes.file
    }

    /// Makes it a new version; with `data`, of its data or entries.
    pub(crate) fn touch(&mut self, now: Time, data: bool) {
        let attributes = &mut self.attributes;
        attributes.ctime = now.max(after(attributes.ctime));
        attributes.change = ChangeId(attributes.change.0 + 1);
        if data {
            attributes.mtime = attributes.ctime;
            attributes.data_change = attributes.change;
        }
    }

    /// Its data may differ from what clients got for this version, although no call has changed it.
    pub(crate) fn doubt(&mut self, now: Time) {
        self.touch(now, false);
        self.attributes.data_change = self.attributes.change;
    }

    /// How it has changed since it was `before`.
    pub(crate) fn changed(&self, before: Version) -> Changed {
        Changed { before, after: self.attributes }
    }
}

/// The next nanosecond. Versions of a file have distinct times, even within a tick of the clock.
fn after(time: Time) -> Time {
    match time.nanoseconds {
        999_999_999 => Time { seconds: time.seconds + 1, nanoseconds: 0 },
        nanoseconds => Time { nanoseconds: nanoseconds + 1, ..time },
    }
}

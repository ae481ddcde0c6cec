//! Entries of directories: finds, adds and removes them, with the rights for that.

use larder_wire::meta::calls::{LinkRead, LookedUp};
use larder_wire::meta::words::{Dentry, FileId, Kind, Name, Time};
use larder_wire::meta::{NAME_BYTES_MAX, Status};
use larder_wire::xdr::Opaque;

use crate::inode;
use crate::rights::{Caller, EXECUTE, WRITE};
use crate::store::records::{Entry, Inode, Listed};
use crate::store::{Txn, key};

/// The file for which a name stands.
pub(crate) fn lookup(txn: &Txn<'_>, caller: &Caller, dentry: &Dentry) -> Result<LookedUp, Status> {
    let dir = searched(txn, caller, dentry)?;
    let found = match &*dentry.name {
        b"." => Some(dir.file()),
        b".." => Some(dir.parent),
        _ => find(txn, &dir, &dentry.name)?.map(|entry| entry.file),
    };
    let found = found.map(|file| inode::get(txn, file)).transpose()?;
    Ok(LookedUp { dir: dir.attributes, found: found.map(|inode| inode.attributes) })
}

/// Where a symbolic link leads.
pub(crate) fn read_link(txn: &Txn<'_>, file: FileId) -> Result<LinkRead, Status> {
    let inode = inode::get(txn, file)?;
    match inode.attributes.kind {
        Kind::Symlink => Ok(LinkRead { attributes: inode.attributes, target: inode.target }),
        _ => Err(Status::Invalid),
    }
}

/// The directory of a dentry, if the caller may look up names in it.
pub(super) fn searched(txn: &Txn<'_>, caller: &Caller, dentry: &Dentry) -> Result<Inode, Status> {
    let dir = inode::directory(txn, dentry.dir)?;
    if dentry.name.len() > NAME_BYTES_MAX {
        return Err(Status::NameTooLong);
    }
    caller.need(&dir.attributes, EXECUTE)?;
    Ok(dir)
}

/// The directory of a dentry, if the caller may make or remove names in it.
pub(super) fn changed(txn: &Txn<'_>, caller: &Caller, dentry: &Dentry) -> Result<Inode, Status> {
    let dir = searched(txn, caller, dentry)?;
    if is_dots(&dentry.name) {
        return Err(Status::Invalid);
    }
    caller.need(&dir.attributes, WRITE)?;
    Ok(dir)
}

pub(crate) fn is_dots(name: &Name) -> bool {
    matches!(&**name, b"." | b"..")
}

pub(super) fn find(txn: &Txn<'_>, dir: &Inode, name: &Name) -> Result<Option<Entry>, Status> {
    txn.get(&key::entry(dir.file(), name))
}

/// Adds a name to a directory without that name, which gives the directory a new version.
pub(super) fn enter(txn: &mut Txn<'_>, dir: &mut Inode, name: &Name, file: FileId, now: Time) {
    let cookie = dir.next_cookie;
    dir.next_cookie += 1;
    dir.entries += 1;
    dir.touch(now, true);
    txn.put(key::entry(dir.file(), name), &Entry { file, cookie });
    let name = Opaque::copy_from_slice(name);
    txn.put(key::listed(dir.file(), cookie), &Listed { file, name });
}

/// Removes a name from a directory, which gives the directory a new version.
pub(super) fn take(txn: &mut Txn<'_>, dir: &mut Inode, name: &Name, cookie: u64, now: Time) {
    dir.entries -= 1;
    dir.touch(now, true);
    txn.delete(key::entry(dir.file(), name));
    txn.delete(key::listed(dir.file(), cookie));
}

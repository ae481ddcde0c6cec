//! Makes new files with their names.

use larder_wire::meta::Status;
use larder_wire::meta::calls::Made;
use larder_wire::meta::words::{Changed, Dentry, IfExists, Kind, SetAttributes};

use super::entries::{changed, enter, find, is_dots, searched};
use crate::attributes;
use crate::inode::{self, Body};
use crate::request::Request;
use crate::rights::SET_GID;
use crate::store::Txn;
use crate::store::records::Inode;

/// The state of a dentry after a file was requested there.
pub(crate) struct Found {
    pub(crate) inode: Inode,
    pub(crate) created: bool,
    pub(crate) file: Changed,
    pub(crate) dir: Changed,
}

/// Makes anything but a regular file.
pub(crate) fn make(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    dentry: &Dentry,
    body: Body,
    set: SetAttributes,
) -> Result<Made, Status> {
    check(request, &body, set)?;
    let dir = searched(txn, request.caller, dentry)?;
    if is_dots(&dentry.name) || find(txn, &dir, &dentry.name)?.is_some() {
        return Err(Status::Exists);
    }
    let found = make_new(txn, request, dentry, body, set)?;
    Ok(Made { made: found.inode.attributes, dir: found.dir })
}

/// Makes a regular file, or finds an existing one, if that is permitted: then only the size in
/// `set` is applied to it.
pub(crate) fn make_file(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    dentry: &Dentry,
    set: SetAttributes,
    if_exists: IfExists,
) -> Result<Found, Status> {
    let dir = searched(txn, request.caller, dentry)?;
    if is_dots(&dentry.name) {
        return Err(Status::Exists);
    }
    let Some(entry) = find(txn, &dir, &dentry.name)? else {
        check(request, &Body::File, set)?;
        return make_new(txn, request, dentry, Body::File, set);
    };
    let there = inode::get(txn, entry.file)?;
    if if_exists == IfExists::Fail || there.attributes.kind != Kind::File {
        return Err(Status::Exists);
    }
    let dir = dir.changed(dir.attributes.version());
    let size = SetAttributes { size: set.size, ..SetAttributes::default() };
    let file = attributes::set(txn, request, entry.file, size, None, false)?.file;
    Ok(Found { inode: inode::get(txn, entry.file)?, created: false, file, dir })
}

/// Refuses what is not permitted under any name.
fn check(request: &Request<'_>, body: &Body, set: SetAttributes) -> Result<(), Status> {
    if set.size.is_some_and(|size| size > 0) && !matches!(body, Body::File) {
        return Err(Status::Invalid);
    }
    match body {
        Body::Symlink(target) if target.is_empty() => Err(Status::Invalid),
        Body::Special(Kind::File | Kind::Directory | Kind::Symlink, _) => Err(Status::Invalid),
        Body::Special(Kind::BlockDevice | Kind::CharacterDevice, _)
            if !request.caller.is_root() =>
        {
            Err(Status::NotPermitted)
        }
        _ => Ok(()),
    }
}

/// Makes a file and its name, which does not exist.
fn make_new(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    dentry: &Dentry,
    body: Body,
    set: SetAttributes,
) -> Result<Found, Status> {
    let mut dir = changed(txn, request.caller, dentry)?;
    let before = dir.attributes.version();
    let mut made = inode::new(txn, request, dentry.dir, body)?;
    let inherits = dir.attributes.mode & SET_GID != 0;
    if inherits {
        made.attributes.gid = dir.attributes.gid;
    }
    let set =
        SetAttributes { size: set.size.filter(|_| made.attributes.kind == Kind::File), ..set };
    attributes::check(request.caller, &made, set, true)?;
    attributes::apply(txn, request, &mut made, set)?;
    if made.is_directory() {
        made.attributes.mode |= if inherits { SET_GID } else { 0 };
        dir.attributes.links = dir.attributes.links.checked_add(1).ok_or(Status::TooManyLinks)?;
    }
    enter(txn, &mut dir, &dentry.name, made.file(), request.now);
    inode::put(txn, &dir);
    inode::put(txn, &made);
    let file = made.changed(made.attributes.version());
    Ok(Found { inode: made, created: true, file, dir: dir.changed(before) })
}

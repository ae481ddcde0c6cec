//! Removes names, and files with their last one.

use larder_wire::meta::Status;
use larder_wire::meta::calls::NameChanged;
use larder_wire::meta::words::{Changed, Dentry, FileId};

use super::entries::{changed, find, take};
use crate::data;
use crate::inode;
use crate::request::Request;
use crate::retained;
use crate::store::records::{Inode, Orphan};
use crate::store::{Txn, key};
use crate::xattrs;

/// Removes the name of anything but a directory. `is_open`: whether any client has a file open.
pub(crate) fn remove(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    dentry: &Dentry,
    is_open: &dyn Fn(FileId) -> bool,
) -> Result<NameChanged, Status> {
    remove_if(txn, request, dentry, is_open, |file| {
        if file.is_directory() { Err(Status::IsDirectory) } else { Ok(()) }
    })
}

/// Takes an empty directory away.
pub(crate) fn remove_directory(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    dentry: &Dentry,
) -> Result<NameChanged, Status> {
    remove_if(txn, request, dentry, &|_| false, |file| match file.entries {
        _ if !file.is_directory() => Err(Status::NotDirectory),
        0 => Ok(()),
        _ => Err(Status::NotEmpty),
    })
}

fn remove_if(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    dentry: &Dentry,
    is_open: &dyn Fn(FileId) -> bool,
    judge: impl FnOnce(&Inode) -> Result<(), Status>,
) -> Result<NameChanged, Status> {
    let mut dir = changed(txn, request.caller, dentry)?;
    let before = dir.attributes.version();
    let entry = find(txn, &dir, &dentry.name)?.ok_or(Status::NotFound)?;
    let file = inode::get(txn, entry.file)?;
    request.caller.need_unstuck(&dir.attributes, &file.attributes)?;
    judge(&file)?;
    take(txn, &mut dir, &dentry.name, entry.cookie, request.now);
    dir.attributes.links -= u32::from(file.is_directory());
    inode::put(txn, &dir);
    let file = unlink(txn, request, file, is_open)?;
    Ok(NameChanged { file, dir: dir.changed(before) })
}

/// A file has lost a name. With its last one it is removed, or kept until no client has it open,
/// unless it is a directory: those are not opened.
pub(super) fn unlink(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    mut file: Inode,
    is_open: &dyn Fn(FileId) -> bool,
) -> Result<Changed, Status> {
    let before = file.attributes.version();
    file.attributes.links = if file.is_directory() { 0 } else { file.attributes.links - 1 };
    file.touch(request.now, false);
    match file.attributes.links {
        0 if !file.is_directory() && is_open(file.file()) => {
            txn.put(key::orphan(file.file()), &Orphan {});
            inode::put(txn, &file);
        }
        0 => forget(txn, &file)?,
        _ => inode::put(txn, &file),
    }
    Ok(file.changed(before))
}

/// Removes a file that has no name and is not open.
pub(crate) fn forget(txn: &mut Txn<'_>, file: &Inode) -> Result<(), Status> {
    data::drop_all(txn, file.file())?;
    retained::forget(txn, file);
    xattrs::drop_all(txn, file.file())?;
    txn.delete(key::orphan(file.file()));
    txn.delete(key::inode(file.file()));
    txn.forget(file.file());
    Ok(())
}

//! Extended attributes (xattr(7)).
//!
//! Users who may read or write the file use `user.`, the superuser also `trusted.` and `security.`;
//! other name spaces do not exist.

use larder_wire::meta::calls::{FileChanged, IfSet, XattrGot, XattrNames, XattrValue};
use larder_wire::meta::words::{Attributes, FileId, Kind, Name};
use larder_wire::meta::{NAME_BYTES_MAX, Status, XATTRS_MAX};
use larder_wire::xdr::Array;

use crate::inode;
use crate::request::Request;
use crate::rights::{Caller, READ, STICKY, WRITE};
use crate::store::records::Xattr;
use crate::store::{Txn, key};

/// The value of an attribute.
pub(crate) fn get(
    txn: &Txn<'_>,
    caller: &Caller,
    file: FileId,
    name: &Name,
) -> Result<XattrGot, Status> {
    let attributes = inode::get(txn, file)?.attributes;
    judge(caller, &attributes, name, READ)?;
    let xattr: Xattr = txn.get(&key::xattr(file, name))?.ok_or(Status::NoAttribute)?;
    Ok(XattrGot { value: xattr.value, change: attributes.change })
}

/// Sets an attribute.
pub(crate) fn set(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    file: FileId,
    name: &Name,
    value: XattrValue,
    if_set: IfSet,
) -> Result<FileChanged, Status> {
    let inode = inode::get(txn, file)?;
    judge(request.caller, &inode.attributes, name, WRITE)?;
    let is_set = txn.get::<Xattr>(&key::xattr(file, name))?.is_some();
    match (if_set, is_set) {
        (IfSet::Create, true) => return Err(Status::Exists),
        (IfSet::Replace, false) => return Err(Status::NoAttribute),
        (_, false) if names(txn, file, XATTRS_MAX)?.len() >= XATTRS_MAX => {
            return Err(Status::NoSpace);
        }
        _ => (),
    }
    txn.put(key::xattr(file, name), &Xattr { value });
    Ok(changed(txn, request, inode))
}

/// Removes an attribute.
pub(crate) fn remove(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    file: FileId,
    name: &Name,
) -> Result<FileChanged, Status> {
    let inode = inode::get(txn, file)?;
    judge(request.caller, &inode.attributes, name, WRITE)?;
    txn.get::<Xattr>(&key::xattr(file, name))?.ok_or(Status::NoAttribute)?;
    txn.delete(key::xattr(file, name));
    Ok(changed(txn, request, inode))
}

/// The names of attributes that the caller may see.
pub(crate) fn list(txn: &Txn<'_>, caller: &Caller, file: FileId) -> Result<XattrNames, Status> {
    let attributes = inode::get(txn, file)?.attributes;
    let mut names = names(txn, file, XATTRS_MAX)?;
    names.retain(|name| caller.is_root() || !name.starts_with(b"trusted."));
    Ok(XattrNames { names: Array(names), change: attributes.change })
}

/// Removes all attributes of a file that is removed.
pub(crate) fn drop_all(txn: &mut Txn<'_>, file: FileId) -> Result<(), Status> {
    for name in names(txn, file, usize::MAX)? {
        txn.delete(key::xattr(file, &name));
    }
    Ok(())
}

fn names(txn: &Txn<'_>, file: FileId, limit: usize) -> Result<Vec<Name>, Status> {
    let prefix = key::xattr(file, b"");
    let found = txn.scan::<Xattr>(&prefix, &key::after(&prefix), limit)?;
    let name = |key: Vec<u8>| Name::new(key[prefix.len()..].to_vec().into());
    found.into_iter().map(|(key, _)| name(key).map_err(|_| Status::Io)).collect()
}

fn changed(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    mut inode: crate::store::records::Inode,
) -> FileChanged {
    let before = inode.attributes.version();
    inode.touch(request.now, false);
    inode::put(txn, &inode);
    FileChanged { file: inode.changed(before) }
}

fn judge(caller: &Caller, file: &Attributes, name: &Name, bits: u32) -> Result<(), Status> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Status::NameTooLong);
    }
    let is_in = |space: &[u8]| name.len() > space.len() && name.starts_with(space);
    match () {
        () if is_in(b"user.") => judge_user(caller, file, bits),
        () if is_in(b"security.") && (bits == READ || caller.is_root()) => Ok(()),
        () if is_in(b"trusted.") && caller.is_root() => Ok(()),
        () if is_in(b"security.") => Err(Status::NotPermitted),
        () if is_in(b"trusted.") && bits == READ => Err(Status::NoAttribute),
        () if is_in(b"trusted.") => Err(Status::NotPermitted),
        () => Err(Status::NotSupported),
    }
}

fn judge_user(caller: &Caller, file: &Attributes, bits: u32) -> Result<(), Status> {
    match file.kind {
        Kind::File => (),
        // Otherwise every user could fill up the attributes of /tmp.
        Kind::Directory if file.mode & STICKY == 0 || caller.owns(file) || bits == READ => (),
        _ if bits == READ => return Err(Status::NoAttribute),
        _ => return Err(Status::NotPermitted),
    }
    caller.need(file, bits)
}

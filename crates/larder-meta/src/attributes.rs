//! GETATTR, SETATTR and ACCESS.

use larder_wire::meta::calls::{AccessGiven, FileChanged};
use larder_wire::meta::words::{Attributes, FileId, Kind, SetAttributes, SetTime, Time};
use larder_wire::meta::{FILE_BYTES_MAX, Status};

use crate::data;
use crate::inode;
use crate::request::Request;
use crate::rights::{Caller, SET_GID, WRITE, without_privileges};
use crate::store::Txn;
use crate::store::records::Inode;
use crate::store::txn::Revoked;

/// Attributes of a file.
pub(crate) fn get(txn: &Txn<'_>, file: FileId) -> Result<Attributes, Status> {
    Ok(inode::get(txn, file)?.attributes)
}

/// Which of the rights in `wanted` the caller has.
pub(crate) fn access(
    txn: &Txn<'_>,
    caller: &Caller,
    file: FileId,
    wanted: u32,
) -> Result<AccessGiven, Status> {
    let attributes = get(txn, file)?;
    Ok(AccessGiven { attributes, granted: caller.access(&attributes) & wanted })
}

/// Sets attributes. `may_write`: an open file allows a new size.
pub(crate) fn set(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    file: FileId,
    set: SetAttributes,
    guard: Option<Time>,
    may_write: bool,
) -> Result<FileChanged, Status> {
    let mut inode = inode::get(txn, file)?;
    let before = inode.attributes.version();
    if guard.is_some_and(|guard| guard != inode.attributes.ctime) {
        return Err(Status::Changed);
    }
    check(request.caller, &inode, set, may_write)?;
    if revokes(&set, &inode.attributes) {
        txn.revoke(Revoked::File(file));
    }
    apply(txn, request, &mut inode, set)?;
    inode::put(txn, &inode);
    Ok(FileChanged { file: inode.changed(before) })
}

/// Whether the caller may set these attributes, and they make sense.
pub(crate) fn check(
    caller: &Caller,
    inode: &Inode,
    set: SetAttributes,
    may_write: bool,
) -> Result<(), Status> {
    let file = &inode.attributes;
    let owns = caller.owns(file);
    let gives = set.uid.is_some_and(|uid| uid != file.uid);
    let may_have = |gid| caller.is_root() || gid == file.gid || caller.in_group(gid);
    let changes_group = set.gid.is_some_and(|gid| !owns || !may_have(gid));
    let is_owners = set.mode.is_some() || set.uid.is_some();
    if (is_owners && !owns) || (gives && !caller.is_root()) || changes_group {
        return Err(Status::NotPermitted);
    }
    if let Some(size) = set.size {
        check_size(caller, file, size, may_write)?;
    }
    for time in [set.atime, set.mtime] {
        match time {
            SetTime::To(time) if time.nanoseconds >= 1_000_000_000 => return Err(Status::Invalid),
            SetTime::To(_) if !owns => return Err(Status::NotPermitted),
            SetTime::Now if !owns => caller.need(file, WRITE)?,
            SetTime::To(_) | SetTime::Now | SetTime::Keep => (),
        }
    }
    Ok(())
}

fn check_size(
    caller: &Caller,
    file: &Attributes,
    size: u64,
    may_write: bool,
) -> Result<(), Status> {
    match file.kind {
        Kind::File => (),
        Kind::Directory => return Err(Status::IsDirectory),
        _ => return Err(Status::Invalid),
    }
    if !may_write {
        caller.need_data(file, WRITE)?;
    }
    if size > FILE_BYTES_MAX { Err(Status::FileTooLarge) } else { Ok(()) }
}

/// Sets permitted attributes, in `inode` and, for a smaller size, in the file's extents.
pub(crate) fn apply(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    inode: &mut Inode,
    set: SetAttributes,
) -> Result<(), Status> {
    if set == SetAttributes::default() {
        return Ok(());
    }
    let caller = request.caller;
    let file = &mut inode.attributes;
    let gives = set.uid.is_some() || set.gid.is_some();
    if file.kind != Kind::Directory && (gives || (set.size.is_some() && !caller.is_root())) {
        file.mode = without_privileges(file.mode);
    }
    file.uid = set.uid.unwrap_or(file.uid);
    file.gid = set.gid.unwrap_or(file.gid);
    if let Some(mode) = set.mode {
        let foreign = !caller.is_root() && !caller.in_group(file.gid);
        file.mode = mode & 0o7777 & if foreign { !SET_GID } else { !0 };
    }
    if let Some(size) = set.size {
        data::resize(txn, inode, size)?;
    }
    inode.touch(request.now, set.size.is_some());
    let file = &mut inode.attributes;
    let time = |set, old| match set {
        SetTime::Keep => old,
        SetTime::Now => request.now,
        SetTime::To(time) => time,
    };
    file.atime = time(set.atime, file.atime);
    file.mtime = time(set.mtime, file.mtime);
    Ok(())
}

/// Whether setting these ends what was granted before: other users may read or write now, or what
/// was readable is gone.
fn revokes(set: &SetAttributes, before: &Attributes) -> bool {
    set.mode.is_some_and(|mode| mode != before.mode)
        || set.uid.is_some_and(|uid| uid != before.uid)
        || set.gid.is_some_and(|gid| gid != before.gid)
        || set.size.is_some_and(|size| size < before.size)
}

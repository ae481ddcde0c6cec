//! Adds names to a file.

use larder_wire::meta::Status;
use larder_wire::meta::calls::NameChanged;
use larder_wire::meta::words::{Dentry, FileId};

use super::entries::{changed, enter, find};
use crate::inode;
use crate::request::Request;
use crate::store::Txn;

/// Most names of a file, as on ext4.
const LINKS_MAX: u32 = 65_000;

/// Gives a file another name. A file that has lost its last name gets none again (link(2): ENOENT),
/// so a client that has it open sees that it is gone, and nothing that was freed with it can come
/// back.
pub(crate) fn link(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    file: FileId,
    dentry: &Dentry,
) -> Result<NameChanged, Status> {
    let mut inode = inode::get(txn, file)?;
    let mut dir = changed(txn, request.caller, dentry)?;
    if find(txn, &dir, &dentry.name)?.is_some() {
        return Err(Status::Exists);
    }
    match inode.attributes.links {
        _ if inode.is_directory() => return Err(Status::NotPermitted),
        0 => return Err(Status::NotFound),
        LINKS_MAX.. => return Err(Status::TooManyLinks),
        _ => (),
    }
    let (dir_before, file_before) = (dir.attributes.version(), inode.attributes.version());
    enter(txn, &mut dir, &dentry.name, file, request.now);
    inode.attributes.links += 1;
    inode.touch(request.now, false);
    inode::put(txn, &dir);
    inode::put(txn, &inode);
    Ok(NameChanged { file: inode.changed(file_before), dir: dir.changed(dir_before) })
}

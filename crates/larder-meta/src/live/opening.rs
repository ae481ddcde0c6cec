//! What an OPEN names: a file, a name, or a name at which a file is made.

use larder_wire::meta::Status;
use larder_wire::meta::calls::OpenWhat;
use larder_wire::meta::words::{Changed, Dentry};

use crate::inode;
use crate::names;
use crate::request::Request;
use crate::store::Txn;
use crate::store::records::Inode;

/// The file to be opened.
pub(super) struct Target {
    pub(super) inode: Inode,
    pub(super) created: bool,
    pub(super) file: Changed,
    pub(super) dir: Option<Changed>,
}

/// Finds the file of an OPEN, or makes it.
pub(super) fn resolve(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    what: &OpenWhat,
) -> Result<Target, Status> {
    match what {
        OpenWhat::File(file) => {
            let inode = inode::regular(txn, *file)?;
            let file = inode.changed(inode.attributes.version());
            Ok(Target { inode, created: false, file, dir: None })
        }
        OpenWhat::Name(dentry) => resolve_name(txn, request, dentry),
        OpenWhat::Create(create) => {
            let (dentry, set) = (&create.dentry, create.set);
            let found = names::make_file(txn, request, dentry, set, create.if_exists)?;
            let names::Found { inode, created, file, dir } = found;
            Ok(Target { inode, created, file, dir: Some(dir) })
        }
    }
}

fn resolve_name(txn: &Txn<'_>, request: &Request<'_>, dentry: &Dentry) -> Result<Target, Status> {
    let found = names::lookup(txn, request.caller, dentry)?;
    let file = found.found.ok_or(Status::NotFound)?.file;
    let inode = inode::regular(txn, file)?;
    let file = inode.changed(inode.attributes.version());
    let dir = Changed { before: found.dir.version(), after: found.dir };
    Ok(Target { inode, created: false, file, dir: Some(dir) })
}

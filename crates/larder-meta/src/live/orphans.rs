//! Files without names that were open when the server began.

use larder_wire::meta::Status;
use larder_wire::meta::words::FileId;

use super::Live;
use crate::inode;
use crate::names;
use crate::store::records::Orphan;
use crate::store::{Txn, key};

impl Live {
    /// The time is over in which clients report what they have had open since before the server's
    /// start: removes files without names that are not open.
    pub(crate) fn forget_orphans(&mut self, txn: &mut Txn<'_>) -> Result<(), Status> {
        self.opens.end_grace();
        for (key, _) in txn.scan_all::<Orphan>(&key::orphan(FileId(0))[..1])? {
            let file = FileId(key::last_number(&key).ok_or(Status::Io)?);
            if !self.opens.may_be_open(file) {
                let inode = inode::get(txn, file)?;
                names::forget(txn, &inode)?;
            }
        }
        Ok(())
    }
}

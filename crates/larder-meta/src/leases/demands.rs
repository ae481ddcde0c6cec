//! The demands of calls on leases: a function of the call and of the store.
//!
//! A call that changes a file, or adds or removes a name of it, demands it whole; one that accesses
//! its bytes, or looks for a name in it, leaves others their read leases. The caller's rights are
//! not checked here: at worst a lease is recalled for nothing.

use larder_wire::meta::Status;
use larder_wire::meta::calls::{LookAt, OpenWhat};
use larder_wire::meta::words::{Dentry, FileId, LeaseKind};

use super::Demand;
use crate::change::Change;
use crate::names::is_dots;
use crate::store::records::Entry;
use crate::store::{Txn, key};

/// The demands of a call.
pub(crate) fn of(txn: &Txn<'_>, change: &Change) -> Result<Vec<Demand>, Status> {
    let whole = |file| Some(Demand { file, keep: LeaseKind::None });
    let data = |file| Some(Demand { file, keep: LeaseKind::Read });
    let named = |dentry: &Dentry| named(txn, dentry);
    // Whoever looks for a name must find those that only another session knows so far.
    let into = |dentry: &Dentry| data(dentry.dir).filter(|_| !is_dots(&dentry.name));
    let demands = match change {
        Change::Session(_)
        | Change::EndSession(_)
        | Change::Close(_)
        | Change::ReturnLease(_)
        // Who retains a file has the only lease on it; otherwise nothing is changed.
        | Change::Retain(_)
        | Change::TestLock(_)
        | Change::AwaitLock(_)
        | Change::ForgoLock(_)
        | Change::LocksClaimed(_) => Vec::new(),
        Change::GetCaps(call) => vec![data(call.file)],
        Change::Alloc(call) => vec![data(call.file)],
        Change::AllocNear(call) => vec![data(call.alloc.file)],
        Change::Lock(call) => vec![data(call.file)],
        Change::Look(call) => {
            let (dir, file) = match &call.at {
                LookAt::File(file) => (None, Some(*file)),
                LookAt::Name(dentry) => (into(dentry), named(dentry)?),
            };
            // A write lease is the only one on its file.
            let is_alone = call.lease == LeaseKind::Write;
            vec![dir, file.and_then(|file| if is_alone { whole(file) } else { data(file) })]
        }
        Change::Lookup(call) => vec![into(&call.dentry), named(&call.dentry)?.and_then(data)],
        Change::ReadDir(call) => vec![data(call.dir)],
        Change::Open(call) => match &call.what {
            OpenWhat::File(file) => vec![data(*file)],
            OpenWhat::Name(dentry) => vec![into(dentry), named(dentry)?.and_then(data)],
            OpenWhat::Create(create) => match named(&create.dentry)? {
                None => vec![whole(create.dentry.dir)],
                Some(file) if create.set.size.is_some() => {
                    vec![into(&create.dentry), whole(file)]
                }
                Some(file) => vec![into(&create.dentry), data(file)],
            },
        },
        Change::SetAttr(call) => vec![whole(call.file)],
        Change::CommitExtents(call) => vec![whole(call.file)],
        Change::Punch(call) => vec![whole(call.file)],
        Change::Preallocate(call) => vec![whole(call.file)],
        Change::SetXattr(call) => vec![whole(call.file)],
        Change::RemoveXattr(call) => vec![whole(call.file)],
        Change::MkDir(call) => vec![whole(call.dentry.dir)],
        Change::Symlink(call) => vec![whole(call.dentry.dir)],
        Change::MkNod(call) => vec![whole(call.dentry.dir)],
        Change::Make(call) => vec![whole(call.dentry.dir)],
        Change::Link(call) => vec![whole(call.file), whole(call.dentry.dir)],
        Change::Remove(call) => {
            vec![whole(call.dentry.dir), named(&call.dentry)?.and_then(whole)]
        }
        Change::RmDir(call) => vec![whole(call.dentry.dir), named(&call.dentry)?.and_then(whole)],
        Change::Rename(call) => vec![
            whole(call.from.dir),
            whole(call.to.dir),
            named(&call.from)?.and_then(whole),
            named(&call.to)?.and_then(whole),
        ],
    };
    Ok(demands.into_iter().flatten().collect())
}

/// The file of a name.
fn named(txn: &Txn<'_>, dentry: &Dentry) -> Result<Option<FileId>, Status> {
    let entry = txn.get::<Entry>(&key::entry(dentry.dir, &dentry.name))?;
    Ok(entry.map(|entry| entry.file))
}

//! Calls that change nothing: answered from durable state, on the task that read them.

use std::collections::BTreeMap;

use larder_wire::meta::calls::{self, FsStat, Renewed, Space};
use larder_wire::meta::words::{FileId, SessionId};
use larder_wire::meta::{Res, Status};
use larder_wire::xdr::Array;

use crate::alone::Alone;
use crate::data::{blocks, copies};
use crate::disks::Disks;
use crate::rights::Caller;
use crate::store::records::Volume;
use crate::store::{Txn, key};
use crate::{attributes, names, volume, xattrs};

/// The number of files that a volume reports as its capacity: only its numbers limit it.
const FILES_MAX: u64 = 1 << 48;

/// A call that changes nothing.
pub(crate) trait Read: larder_wire::Procedure {
    /// Its results on success.
    type Results;

    /// The session that it is of.
    fn session(&self) -> SessionId;

    /// The results of the call.
    fn read(&self, txn: &Txn<'_>, caller: &Caller) -> Res<Self::Results>;
}

/// A call that looks into a directory.
pub(crate) trait LooksIn: Read {
    /// The directory in which it looks for a name that another session may have made.
    fn dir(&self) -> Option<FileId>;

    /// The files that the results describe.
    fn described(results: &Self::Results) -> Vec<FileId>;
}

impl LooksIn for calls::Lookup {
    fn dir(&self) -> Option<FileId> {
        (!names::is_dots(&self.dentry.name)).then_some(self.dentry.dir)
    }

    fn described(results: &calls::LookedUp) -> Vec<FileId> {
        results.found.iter().map(|found| found.file).collect()
    }
}

impl LooksIn for calls::ReadDir {
    fn dir(&self) -> Option<FileId> {
        Some(self.dir)
    }

    fn described(results: &calls::Entries) -> Vec<FileId> {
        let entries = results.entries.0.iter().filter(|entry| entry.attributes.is_some());
        entries.map(|entry| entry.file).collect()
    }
}

/// The results of a call that looks into a directory, if it need not wait for leases of other
/// sessions: then the committer answers it.
pub(crate) fn beside<R: LooksIn>(
    alone: &Alone,
    call: &R,
    read: impl FnOnce() -> Res<R::Results>,
) -> Option<Res<R::Results>> {
    let (session, before) = (call.session(), alone.before());
    if call.dir().is_some_and(|dir| alone.is_others(dir, session)) {
        return None;
    }
    let results = read();
    let described = results.as_ref().map_or_else(|_| Vec::new(), R::described);
    before.are_free(alone, session, described).then_some(results)
}

macro_rules! reads {
    ($( $call:ident => $results:ty, |$txn:pat_param, $caller:pat_param, $args:pat_param| $read:expr; )+) => { $(
        impl Read for calls::$call {
            type Results = $results;

            fn session(&self) -> SessionId {
                self.session
            }

            fn read(&self, $txn: &Txn<'_>, $caller: &Caller) -> Res<$results> {
                let $args = self;
                $read
            }
        }
    )+ };
}

reads! {
    GetAttr => larder_wire::meta::words::Attributes, |txn, _, call| attributes::get(txn, call.file);
    Lookup => calls::LookedUp, |txn, caller, call| names::lookup(txn, caller, &call.dentry);
    ReadLink => calls::LinkRead, |txn, _, call| names::read_link(txn, call.file);
    ReadDir => calls::Entries, |txn, caller, call| names::list(txn, caller, call);
    Access => calls::AccessGiven, |txn, caller, call|
        attributes::access(txn, caller, call.file, call.wanted);
    GetXattr => calls::XattrGot, |txn, caller, call|
        xattrs::get(txn, caller, call.file, &call.name);
    ListXattr => calls::XattrNames, |txn, caller, call| xattrs::list(txn, caller, call.file);
    FsStat => Space, |txn, _, call| space(txn, call);
    Lost => calls::LostTold, |txn, _, call| volume::loss::told(txn, call);
}

fn space(txn: &Txn<'_>, _call: &FsStat) -> Result<Space, Status> {
    let volume: Volume = txn.get(&key::volume())?.ok_or(Status::Io)?;
    Ok(Space {
        bytes: blocks::bytes(txn)?,
        bytes_free: blocks::free_bytes(txn)?,
        files: FILES_MAX,
        files_free: FILES_MAX.saturating_sub(volume.next_file),
    })
}

/// The results of RENEW.
pub(crate) fn renewed(
    txn: &Txn<'_>,
    server_boot: u64,
    disks: &dyn Disks,
) -> Result<Renewed, Status> {
    let records: BTreeMap<_, _> = copies::all(txn)?.into_iter().collect();
    let mut disks = disks.list();
    for info in &mut disks {
        info.leaves = records.get(&info.disk).is_some_and(|record| record.leaves);
    }
    Ok(Renewed { server_boot, disks: Array(disks) })
}

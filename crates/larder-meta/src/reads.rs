//! Calls that change nothing: answered from durable state, on the task that read them.

use std::collections::BTreeMap;

use larder_wire::meta::calls::{self, FsStat, Renewed, Space};
use larder_wire::meta::words::SessionId;
use larder_wire::meta::{Res, Status};
use larder_wire::xdr::Array;

use crate::data::{blocks, copies};
use crate::disks::Disks;
use crate::rights::Caller;
use crate::store::records::Volume;
use crate::store::{Txn, key};
use crate::{attributes, names, xattrs};

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
    ReadDir => calls::Entries, |txn, caller, call|
        names::list(txn, caller, call.dir, call.cookie, call.bytes_max, call.attributes);
    Access => calls::AccessGiven, |txn, caller, call|
        attributes::access(txn, caller, call.file, call.wanted);
    GetXattr => calls::XattrGot, |txn, caller, call|
        xattrs::get(txn, caller, call.file, &call.name);
    ListXattr => calls::XattrNames, |txn, caller, call| xattrs::list(txn, caller, call.file);
    FsStat => Space, |txn, _, call| space(txn, call);
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

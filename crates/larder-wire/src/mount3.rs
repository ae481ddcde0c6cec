//! MOUNT version 3 (RFC 1813, 5.0): how a client gets the first file handle.

#![allow(non_camel_case_types)]

use crate::nfs3::FHSIZE;
use crate::xdr::{Array, Decode, Encode, Encoder, List, Opaque, XdrError};
use bytes::Bytes;

/// The RPC program number (RFC 1813, 5.1).
pub const PROGRAM: u32 = 100_005;
/// The version of the program that goes with NFSv3.
pub const VERSION: u32 = 3;
/// Longest path, in bytes: MNTPATHLEN.
pub const MNTPATHLEN: usize = 1024;
/// Longest host or group name, in bytes: MNTNAMLEN.
pub const MNTNAMLEN: usize = 255;
/// Most authentication flavors that a server may list. The RFC sets no limit; about ten exist.
pub const FLAVORS_MAX: usize = 64;

/// A path on the server.
pub type dirpath = Opaque<MNTPATHLEN>;
/// A host or group name.
pub type name = Opaque<MNTNAMLEN>;
/// The file handle of an export's root.
pub type fhandle3 = Opaque<FHSIZE>;

xdr_enum! {
    /// The status of MNT (RFC 1813, 5.1.5).
    mountstat3 {
        MNT3_OK = 0, MNT3ERR_PERM = 1, MNT3ERR_NOENT = 2, MNT3ERR_IO = 5, MNT3ERR_ACCES = 13,
        MNT3ERR_NOTDIR = 20, MNT3ERR_INVAL = 22, MNT3ERR_NAMETOOLONG = 63, MNT3ERR_NOTSUPP = 10004,
        MNT3ERR_SERVERFAULT = 10006,
    }

    /// The procedures (RFC 1813, 5.2).
    mountproc3 { NULL = 0, MNT = 1, DUMP = 2, UMNT = 3, UMNTALL = 4, EXPORT = 5 }
}

xdr_struct! {
    /// Arguments of NULL.
    #[derive(Copy, Default)]
    NULLargs {}

    /// Arguments of MNT (RFC 1813, 5.2.1).
    MNTargs { dirpath: dirpath }
    /// Answer of MNT: the root's file handle and the flavors that the server takes.
    mountres3_ok { fhandle: fhandle3, auth_flavors: Array<u32, FLAVORS_MAX> }

    /// Arguments of DUMP (RFC 1813, 5.2.2).
    #[derive(Copy, Default)]
    DUMPargs {}
    /// A client, and the directory that it has mounted.
    mountbody { ml_hostname: name, ml_directory: dirpath }

    /// Arguments of UMNT (RFC 1813, 5.2.3).
    UMNTargs { dirpath: dirpath }

    /// Arguments of UMNTALL (RFC 1813, 5.2.4).
    #[derive(Copy, Default)]
    UMNTALLargs {}

    /// Arguments of EXPORT (RFC 1813, 5.2.5).
    #[derive(Copy, Default)]
    EXPORTargs {}
    /// An exported directory and the groups that may mount it.
    exportnode { ex_dir: dirpath, ex_groups: List<name> }
}

/// Result of MNT.
pub type mountres3 = Result<mountres3_ok, mountstat3>;

impl Encode for mountres3 {
    fn encode(&self, out: &mut Encoder) {
        match self {
            Ok(answer) => {
                mountstat3::MNT3_OK.encode(out);
                answer.encode(out);
            }
            Err(status) => status.encode(out),
        }
    }
}

impl Decode for mountres3 {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        match mountstat3::decode(input)? {
            mountstat3::MNT3_OK => mountres3_ok::decode(input).map(Ok),
            status => Ok(Err(status)),
        }
    }
}

procedures! { PROGRAM, VERSION;
    0 NULLargs => (), 1 MNTargs => mountres3, 2 DUMPargs => List<mountbody>, 3 UMNTargs => (),
    4 UMNTALLargs => (), 5 EXPORTargs => List<exportnode>,
}

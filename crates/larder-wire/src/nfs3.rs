//! NFS version 3 (RFC 1813): all procedures, arguments and results.
//!
//! Names are the RFC's. Unions whose discriminant is a boolean are [`Option`]s, results are
//! [`Result`]s whose error holds the status and the attributes that the RFC attaches to failures.
//! What is decoded from a message shares its memory, except file handles: they outlive messages,
//! so they are copied out instead of pinning a whole reply.

#![allow(non_camel_case_types)]

use crate::xdr::{self, Decode, Encode, Encoder, List, Opaque, XdrError};
use bytes::Bytes;

/// The RPC program number (RFC 1813, 2.1).
pub const PROGRAM: u32 = 100_003;
/// The version of the program.
pub const VERSION: u32 = 3;
/// The port that servers listen on, unless they register another one (RFC 1813, 2.1).
pub const PORT: u16 = 2049;
/// Largest file handle, in bytes: NFS3_FHSIZE.
pub const FHSIZE: usize = 64;
/// Largest name that decodes, in bytes. The RFC sets no limit; this one is far above any file
/// system's, so that a server can still answer NFS3ERR_NAMETOOLONG.
pub const NAME_BYTES_MAX: usize = 1024;
/// Largest path in a symbolic link, in bytes: PATH_MAX of Linux.
pub const PATH_BYTES_MAX: usize = 4096;
/// Largest payload of a READ or WRITE, in bytes. Both sides negotiate it down by FSINFO.
pub const DATA_BYTES_MAX: usize = 1 << 20;
/// Room that a message needs beside its payload for RPC header, attributes and lengths, in bytes:
/// 1 KiB for credential and verifier, the rest for the largest arguments and results.
pub const MESSAGE_OVERHEAD_BYTES_MAX: usize = 4096;

/// Names of the procedures, by number.
pub const PROCEDURE_NAMES: &[&str] = &[
    "NULL",
    "GETATTR",
    "SETATTR",
    "LOOKUP",
    "ACCESS",
    "READLINK",
    "READ",
    "WRITE",
    "CREATE",
    "MKDIR",
    "SYMLINK",
    "MKNOD",
    "REMOVE",
    "RMDIR",
    "RENAME",
    "LINK",
    "READDIR",
    "READDIRPLUS",
    "FSSTAT",
    "FSINFO",
    "PATHCONF",
    "COMMIT",
];

/// The target of a symbolic link.
pub type nfspath3 = Opaque<PATH_BYTES_MAX>;
/// File data.
pub type data3 = Opaque<DATA_BYTES_MAX>;
/// A position in a directory, meaningful to the server only.
pub type cookie3 = u64;
/// Tells whether a server still honours its cookies (RFC 1813, 3.3.16).
pub type cookieverf3 = [u8; 8];
/// The client's mark on an exclusive create (RFC 1813, 3.3.8).
pub type createverf3 = [u8; 8];
/// Changes whenever a server may have lost unstable data (RFC 1813, 3.3.7).
pub type writeverf3 = [u8; 8];
/// Attributes after the operation, if the server had them at hand.
pub type post_op_attr = Option<fattr3>;
/// Attributes before the operation, if the server had them at hand.
pub type pre_op_attr = Option<wcc_attr>;
/// A file handle that the server need not return.
pub type post_op_fh3 = Option<nfs_fh3>;

/// The result of a procedure: its answer, or a status and the attributes that go with failures.
pub type Res3<T, E> = Result<T, Fail<E>>;

/// Why a procedure failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fail<E> {
    /// Never [`nfsstat3::NFS3_OK`].
    pub status: nfsstat3,
    /// The attributes that the RFC's `resfail` carries.
    pub detail: E,
}

impl<T: Encode, E: Encode> Encode for Res3<T, E> {
    fn encode(&self, out: &mut Encoder) {
        match self {
            Ok(answer) => {
                nfsstat3::NFS3_OK.encode(out);
                answer.encode(out);
            }
            Err(fail) => {
                debug_assert_ne!(fail.status, nfsstat3::NFS3_OK);
                fail.status.encode(out);
                fail.detail.encode(out);
            }
        }
    }
}

impl<T: Decode, E: Decode> Decode for Res3<T, E> {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        match nfsstat3::decode(input)? {
            nfsstat3::NFS3_OK => T::decode(input).map(Ok),
            status => E::decode(input).map(|detail| Err(Fail { status, detail })),
        }
    }
}

/// The status of a procedure (RFC 1813, 2.6). Open, because servers do send values of their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct nfsstat3(pub u32);

macro_rules! statuses {
    ($( $name:ident = $value:literal ),+ $(,)?) => {
        #[allow(missing_docs)]
        impl nfsstat3 { $( pub const $name: nfsstat3 = nfsstat3($value); )+ }

        impl std::fmt::Debug for nfsstat3 {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match *self {
                    $( nfsstat3::$name => f.write_str(stringify!($name)), )+
                    nfsstat3(other) => write!(f, "nfsstat3({other})"),
                }
            }
        }

        #[cfg(test)]
        impl crate::sample::Sample for nfsstat3 {
            fn sample(source: &mut crate::sample::Source<'_>) -> Self {
                source.choose(&[ $( nfsstat3::$name ),+ ])
            }
        }
    };
}

statuses! {
    NFS3_OK = 0, NFS3ERR_PERM = 1, NFS3ERR_NOENT = 2, NFS3ERR_IO = 5, NFS3ERR_NXIO = 6,
    NFS3ERR_ACCES = 13, NFS3ERR_EXIST = 17, NFS3ERR_XDEV = 18, NFS3ERR_NODEV = 19,
    NFS3ERR_NOTDIR = 20, NFS3ERR_ISDIR = 21, NFS3ERR_INVAL = 22, NFS3ERR_FBIG = 27,
    NFS3ERR_NOSPC = 28, NFS3ERR_ROFS = 30, NFS3ERR_MLINK = 31, NFS3ERR_NAMETOOLONG = 63,
    NFS3ERR_NOTEMPTY = 66, NFS3ERR_DQUOT = 69, NFS3ERR_STALE = 70, NFS3ERR_REMOTE = 71,
    NFS3ERR_BADHANDLE = 10001, NFS3ERR_NOT_SYNC = 10002, NFS3ERR_BAD_COOKIE = 10003,
    NFS3ERR_NOTSUPP = 10004, NFS3ERR_TOOSMALL = 10005, NFS3ERR_SERVERFAULT = 10006,
    NFS3ERR_BADTYPE = 10007, NFS3ERR_JUKEBOX = 10008,
}

impl std::fmt::Display for nfsstat3 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}

impl Encode for nfsstat3 {
    fn encode(&self, out: &mut Encoder) {
        out.put_u32(self.0);
    }
}

impl Decode for nfsstat3 {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        u32::decode(input).map(nfsstat3)
    }
}

/// A file handle: up to [`FHSIZE`] bytes that only the server understands (RFC 1813, 2.3.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct nfs_fh3 {
    length: u8,
    /// Zero past `length`, so that derived equality is right.
    data: [u8; FHSIZE],
}

impl nfs_fh3 {
    /// A handle of these bytes, unless there are more than [`FHSIZE`].
    pub fn new(bytes: &[u8]) -> Option<nfs_fh3> {
        let mut data = [0; FHSIZE];
        data.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(nfs_fh3 { length: u8::try_from(bytes.len()).ok()?, data })
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.data[..usize::from(self.length)]
    }
}

impl std::fmt::Debug for nfs_fh3 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("fh:")?;
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Encode for nfs_fh3 {
    fn encode(&self, out: &mut Encoder) {
        out.put_slice(self.as_bytes());
    }
}

impl Decode for nfs_fh3 {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        let length = xdr::take_length(input, FHSIZE)?;
        let bytes = xdr::take_fixed(input, length)?;
        Ok(nfs_fh3::new(&bytes).expect("the length was checked against FHSIZE"))
    }
}

/// The name of one entry of a directory (RFC 1813, 2.3.2): never empty, without `/` and without
/// NUL. There is no other value of this type, so neither a caller nor a server gets such a name
/// past the codec.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct filename3(Opaque<NAME_BYTES_MAX>);

impl filename3 {
    /// A name of these bytes, which are shared.
    ///
    /// # Errors
    /// [`XdrError::Name`] if they name no entry; [`XdrError::TooLong`] past [`NAME_BYTES_MAX`].
    pub fn new(bytes: Bytes) -> Result<filename3, XdrError> {
        if bytes.is_empty() || bytes.iter().any(|byte| matches!(byte, b'/' | 0)) {
            return Err(XdrError::Name);
        }
        if bytes.len() > NAME_BYTES_MAX {
            return Err(XdrError::TooLong { length: bytes.len(), limit: NAME_BYTES_MAX });
        }
        Ok(filename3(Opaque(bytes)))
    }
}

impl std::ops::Deref for filename3 {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for filename3 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Encode for filename3 {
    fn encode(&self, out: &mut Encoder) {
        self.0.encode(out);
    }
}

impl Decode for filename3 {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        filename3::new(Opaque::<NAME_BYTES_MAX>::decode(input)?.0)
    }
}

xdr_enum! {
    /// The type of a file (RFC 1813, 2.3.5).
    ftype3 { NF3REG = 1, NF3DIR = 2, NF3BLK = 3, NF3CHR = 4, NF3LNK = 5, NF3SOCK = 6, NF3FIFO = 7 }

    /// How durable a WRITE is when it is answered, in rising order (RFC 1813, 3.3.7).
    stable_how { UNSTABLE = 0, DATA_SYNC = 1, FILE_SYNC = 2 }

    /// The procedures (RFC 1813, 3).
    nfsproc3 {
        NULL = 0, GETATTR = 1, SETATTR = 2, LOOKUP = 3, ACCESS = 4, READLINK = 5, READ = 6,
        WRITE = 7, CREATE = 8, MKDIR = 9, SYMLINK = 10, MKNOD = 11, REMOVE = 12, RMDIR = 13,
        RENAME = 14, LINK = 15, READDIR = 16, READDIRPLUS = 17, FSSTAT = 18, FSINFO = 19,
        PATHCONF = 20, COMMIT = 21,
    }
}

/// Bits of ACCESS (RFC 1813, 3.3.4).
#[allow(missing_docs)]
pub mod access3 {
    pub const READ: u32 = 0x01;
    pub const LOOKUP: u32 = 0x02;
    pub const MODIFY: u32 = 0x04;
    pub const EXTEND: u32 = 0x08;
    pub const DELETE: u32 = 0x10;
    pub const EXECUTE: u32 = 0x20;
}

/// Bits of FSINFO's `properties` (RFC 1813, 3.3.19).
#[allow(missing_docs)]
pub mod fsf3 {
    pub const LINK: u32 = 0x01;
    pub const SYMLINK: u32 = 0x02;
    pub const HOMOGENEOUS: u32 = 0x08;
    pub const CANSETTIME: u32 = 0x10;
}

xdr_struct! {
    /// Major and minor number of a device (RFC 1813, 2.5.3).
    #[derive(Copy, Default)]
    specdata3 { specdata1: u32, specdata2: u32 }

    /// Seconds and nanoseconds since 1970 (RFC 1813, 2.5.2).
    #[derive(Copy, Default, PartialOrd, Ord, Hash)]
    nfstime3 { seconds: u32, nseconds: u32 }

    /// Attributes of a file (RFC 1813, 2.5.5).
    #[derive(Copy)]
    fattr3 {
        r#type: ftype3, mode: u32, nlink: u32, uid: u32, gid: u32, size: u64, used: u64,
        rdev: specdata3, fsid: u64, fileid: u64, atime: nfstime3, mtime: nfstime3,
        ctime: nfstime3,
    }

    /// Attributes that show whether a file has changed (RFC 1813, 2.6).
    #[derive(Copy)]
    wcc_attr { size: u64, mtime: nfstime3, ctime: nfstime3 }

    /// Attributes on both sides of a change: weak cache consistency (RFC 1813, 2.6).
    #[derive(Copy, Default)]
    wcc_data { before: pre_op_attr, after: post_op_attr }

    /// Attributes to set (RFC 1813, 2.5.7).
    #[derive(Copy, Default)]
    sattr3 {
        mode: Option<u32>, uid: Option<u32>, gid: Option<u32>, size: Option<u64>, atime: set_time,
        mtime: set_time,
    }

    /// A name in a directory (RFC 1813, 2.5.8).
    diropargs3 { dir: nfs_fh3, name: filename3 }
}

xdr_union! {
    /// How to set a time: `set_atime` and `set_mtime` of the RFC (RFC 1813, 2.5.7).
    #[derive(Copy, Default)]
    set_time { 0 => #[default] DONT_CHANGE, 1 => SET_TO_SERVER_TIME, 2 => SET_TO_CLIENT_TIME(nfstime3) }

    /// How to create a file (RFC 1813, 3.3.8).
    #[derive(Copy)]
    createhow3 { 0 => UNCHECKED(sattr3), 1 => GUARDED(sattr3), 2 => EXCLUSIVE(createverf3) }

    /// The kind of node to make (RFC 1813, 3.3.11).
    #[derive(Copy)]
    mknoddata3 {
        1 => NF3REG, 2 => NF3DIR, 3 => NF3BLK(devicedata3), 4 => NF3CHR(devicedata3), 5 => NF3LNK,
        6 => NF3SOCK(sattr3), 7 => NF3FIFO(sattr3),
    }
}

xdr_struct! {
    /// Arguments of NULL.
    #[derive(Copy, Default)]
    NULL3args {}

    /// Arguments of GETATTR (RFC 1813, 3.3.1).
    GETATTR3args { object: nfs_fh3 }
    /// Answer of GETATTR.
    GETATTR3resok { obj_attributes: fattr3 }

    /// Arguments of SETATTR (RFC 1813, 3.3.2). `guard` is the ctime that the object must have.
    SETATTR3args { object: nfs_fh3, new_attributes: sattr3, guard: Option<nfstime3> }
    /// Answer of SETATTR.
    SETATTR3resok { obj_wcc: wcc_data }

    /// Arguments of LOOKUP (RFC 1813, 3.3.3).
    LOOKUP3args { what: diropargs3 }
    /// Answer of LOOKUP.
    LOOKUP3resok { object: nfs_fh3, obj_attributes: post_op_attr, dir_attributes: post_op_attr }

    /// Arguments of ACCESS (RFC 1813, 3.3.4).
    ACCESS3args { object: nfs_fh3, access: u32 }
    /// Answer of ACCESS.
    ACCESS3resok { obj_attributes: post_op_attr, access: u32 }

    /// Arguments of READLINK (RFC 1813, 3.3.5).
    READLINK3args { symlink: nfs_fh3 }
    /// Answer of READLINK.
    READLINK3resok { symlink_attributes: post_op_attr, data: nfspath3 }

    /// Arguments of READ (RFC 1813, 3.3.6).
    READ3args { file: nfs_fh3, offset: u64, count: u32 }
    /// Answer of READ.
    READ3resok { file_attributes: post_op_attr, count: u32, eof: bool, data: data3 }

    /// Arguments of WRITE (RFC 1813, 3.3.7).
    WRITE3args { file: nfs_fh3, offset: u64, count: u32, stable: stable_how, data: data3 }
    /// Answer of WRITE.
    WRITE3resok { file_wcc: wcc_data, count: u32, committed: stable_how, verf: writeverf3 }

    /// Arguments of CREATE (RFC 1813, 3.3.8).
    CREATE3args { r#where: diropargs3, how: createhow3 }
    /// Answer of CREATE, MKDIR, SYMLINK and MKNOD alike.
    CREATE3resok { obj: post_op_fh3, obj_attributes: post_op_attr, dir_wcc: wcc_data }

    /// Arguments of MKDIR (RFC 1813, 3.3.9).
    MKDIR3args { r#where: diropargs3, attributes: sattr3 }

    /// Arguments of SYMLINK (RFC 1813, 3.3.10).
    SYMLINK3args { r#where: diropargs3, symlink: symlinkdata3 }
    /// The attributes and the target of a new symbolic link.
    symlinkdata3 { symlink_attributes: sattr3, symlink_data: nfspath3 }

    /// Arguments of MKNOD (RFC 1813, 3.3.11).
    MKNOD3args { r#where: diropargs3, what: mknoddata3 }
    /// The attributes and the numbers of a new device.
    #[derive(Copy)]
    devicedata3 { dev_attributes: sattr3, spec: specdata3 }

    /// Arguments of REMOVE (RFC 1813, 3.3.12).
    REMOVE3args { object: diropargs3 }
    /// Arguments of RMDIR (RFC 1813, 3.3.13).
    RMDIR3args { object: diropargs3 }
    /// Answer of REMOVE and RMDIR.
    REMOVE3resok { dir_wcc: wcc_data }

    /// Arguments of RENAME (RFC 1813, 3.3.14).
    RENAME3args { from: diropargs3, to: diropargs3 }
    /// Answer of RENAME, whether it went well or not.
    #[derive(Copy, Default)]
    RENAME3wcc { fromdir_wcc: wcc_data, todir_wcc: wcc_data }

    /// Arguments of LINK (RFC 1813, 3.3.15).
    LINK3args { file: nfs_fh3, link: diropargs3 }
    /// Answer of LINK, whether it went well or not.
    #[derive(Copy, Default)]
    LINK3wcc { file_attributes: post_op_attr, linkdir_wcc: wcc_data }

    /// Arguments of READDIR (RFC 1813, 3.3.16).
    READDIR3args { dir: nfs_fh3, cookie: cookie3, cookieverf: cookieverf3, count: u32 }
    /// Answer of READDIR.
    READDIR3resok { dir_attributes: post_op_attr, cookieverf: cookieverf3, reply: dirlist3 }
    /// Entries of a directory and whether they are the last.
    dirlist3 { entries: List<entry3>, eof: bool }
    /// An entry of a directory.
    entry3 { fileid: u64, name: filename3, cookie: cookie3 }

    /// Arguments of READDIRPLUS (RFC 1813, 3.3.17).
    READDIRPLUS3args {
        dir: nfs_fh3, cookie: cookie3, cookieverf: cookieverf3, dircount: u32, maxcount: u32,
    }
    /// Answer of READDIRPLUS.
    READDIRPLUS3resok { dir_attributes: post_op_attr, cookieverf: cookieverf3, reply: dirlistplus3 }
    /// Entries of a directory with their attributes and whether they are the last.
    dirlistplus3 { entries: List<entryplus3>, eof: bool }
    /// An entry of a directory with its attributes.
    entryplus3 {
        fileid: u64, name: filename3, cookie: cookie3, name_attributes: post_op_attr,
        name_handle: post_op_fh3,
    }

    /// Arguments of FSSTAT (RFC 1813, 3.3.18).
    FSSTAT3args { fsroot: nfs_fh3 }
    /// Answer of FSSTAT: sizes in bytes, counts of files, seconds.
    FSSTAT3resok {
        obj_attributes: post_op_attr, tbytes: u64, fbytes: u64, abytes: u64, tfiles: u64,
        ffiles: u64, afiles: u64, invarsec: u32,
    }

    /// Arguments of FSINFO (RFC 1813, 3.3.19).
    FSINFO3args { fsroot: nfs_fh3 }
    /// Answer of FSINFO: sizes in bytes.
    FSINFO3resok {
        obj_attributes: post_op_attr, rtmax: u32, rtpref: u32, rtmult: u32, wtmax: u32,
        wtpref: u32, wtmult: u32, dtpref: u32, maxfilesize: u64, time_delta: nfstime3,
        properties: u32,
    }

    /// Arguments of PATHCONF (RFC 1813, 3.3.20).
    PATHCONF3args { object: nfs_fh3 }
    /// Answer of PATHCONF.
    PATHCONF3resok {
        obj_attributes: post_op_attr, linkmax: u32, name_max: u32, no_trunc: bool,
        chown_restricted: bool, case_insensitive: bool, case_preserving: bool,
    }

    /// Arguments of COMMIT (RFC 1813, 3.3.21). A `count` of 0 means up to the end of the file.
    COMMIT3args { file: nfs_fh3, offset: u64, count: u32 }
    /// Answer of COMMIT.
    COMMIT3resok { file_wcc: wcc_data, verf: writeverf3 }
}

/// Result of GETATTR.
pub type GETATTR3res = Res3<GETATTR3resok, ()>;
/// Result of SETATTR.
pub type SETATTR3res = Res3<SETATTR3resok, wcc_data>;
/// Result of LOOKUP; a failure carries the attributes of the directory.
pub type LOOKUP3res = Res3<LOOKUP3resok, post_op_attr>;
/// Result of ACCESS.
pub type ACCESS3res = Res3<ACCESS3resok, post_op_attr>;
/// Result of READLINK.
pub type READLINK3res = Res3<READLINK3resok, post_op_attr>;
/// Result of READ.
pub type READ3res = Res3<READ3resok, post_op_attr>;
/// Result of WRITE.
pub type WRITE3res = Res3<WRITE3resok, wcc_data>;
/// Result of CREATE, MKDIR, SYMLINK and MKNOD; a failure carries the directory's attributes.
pub type CREATE3res = Res3<CREATE3resok, wcc_data>;
/// Result of REMOVE and RMDIR; a failure carries the directory's attributes.
pub type REMOVE3res = Res3<REMOVE3resok, wcc_data>;
/// Result of RENAME.
pub type RENAME3res = Res3<RENAME3wcc, RENAME3wcc>;
/// Result of LINK.
pub type LINK3res = Res3<LINK3wcc, LINK3wcc>;
/// Result of READDIR.
pub type READDIR3res = Res3<READDIR3resok, post_op_attr>;
/// Result of READDIRPLUS.
pub type READDIRPLUS3res = Res3<READDIRPLUS3resok, post_op_attr>;
/// Result of FSSTAT.
pub type FSSTAT3res = Res3<FSSTAT3resok, post_op_attr>;
/// Result of FSINFO.
pub type FSINFO3res = Res3<FSINFO3resok, post_op_attr>;
/// Result of PATHCONF.
pub type PATHCONF3res = Res3<PATHCONF3resok, post_op_attr>;
/// Result of COMMIT.
pub type COMMIT3res = Res3<COMMIT3resok, wcc_data>;

procedures! { PROGRAM, VERSION;
    0 NULL3args => (), 1 GETATTR3args => GETATTR3res, 2 SETATTR3args => SETATTR3res,
    3 LOOKUP3args => LOOKUP3res, 4 ACCESS3args => ACCESS3res, 5 READLINK3args => READLINK3res,
    6 READ3args => READ3res, 7 WRITE3args => WRITE3res, 8 CREATE3args => CREATE3res,
    9 MKDIR3args => CREATE3res, 10 SYMLINK3args => CREATE3res, 11 MKNOD3args => CREATE3res,
    12 REMOVE3args => REMOVE3res, 13 RMDIR3args => REMOVE3res, 14 RENAME3args => RENAME3res,
    15 LINK3args => LINK3res, 16 READDIR3args => READDIR3res,
    17 READDIRPLUS3args => READDIRPLUS3res, 18 FSSTAT3args => FSSTAT3res,
    19 FSINFO3args => FSINFO3res, 20 PATHCONF3args => PATHCONF3res, 21 COMMIT3args => COMMIT3res,
}

/// Encoded size of [`fattr3`], in bytes.
pub const FATTR3_BYTES: usize = 84;

impl entry3 {
    /// Bytes that the entry takes in a [`dirlist3`], with the mark that announces it. A server
    /// fills a reply with it.
    pub fn encoded_bytes(&self) -> usize {
        4 + 8 + xdr::opaque_len(self.name.len()) + 8
    }
}

impl entryplus3 {
    /// Bytes that the entry takes in a [`dirlistplus3`], with the mark that announces it.
    pub fn encoded_bytes(&self) -> usize {
        let attributes = self.name_attributes.map_or(0, |_| FATTR3_BYTES);
        let handle = self.name_handle.map_or(0, |handle| xdr::opaque_len(handle.as_bytes().len()));
        4 + 8 + xdr::opaque_len(self.name.len()) + 8 + 4 + attributes + 4 + handle
    }
}

#[cfg(test)]
mod tests;

//! The metadata program: names, attributes, leases, block maps and capabilities of a volume.
//!
//! No file data passes through it. A client opens files and gets *grants* here: capabilities, under
//! which it reads and writes the disks itself. What each procedure does, byte by byte, is in
//! `docs/formats/meta-protocol.md`.
//!
//! - [`words`] has the types that the procedures share, [`calls`] the procedures, [`recall`] the
//!   program by which the server calls its client back.
//! - A call that changes something carries a [`words::Sequence`]: the server carries it out once,
//!   however often it is sent, even over a restart of the server.
//! - A reply to such a call describes each object that it changed, and says which version the
//!   object was just before ([`words::Changed`]): so a cache needs no further request.
//!
//! The codec checks structure only. The server decides whether a range overflows or a time has too
//! many nanoseconds, so that its caller gets an error that differs from that for a broken message.

pub mod calls;
pub mod recall;
pub mod words;

#[cfg(test)]
mod tests;

use bytes::Bytes;

use crate::xdr::{Decode, Encode, Encoder, XdrError};

/// The RPC program number, of the range that users define (RFC 5531, 8.3).
pub const PROGRAM: u32 = 0x206c_726d;
/// The version of the program.
pub const VERSION: u32 = 5;
/// The port that servers listen on, unless they are told another one.
pub const PORT: u16 = 2050;

/// Longest name in a directory, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
pub const TARGET_BYTES_MAX: usize = 4095;
/// Largest value of an extended attribute, in bytes.
pub const XATTR_BYTES_MAX: usize = 65_536;
/// Most names of extended attributes of one file.
pub const XATTRS_MAX: usize = 4096;
/// Most extents in one reply: as many as a capability can have. A file with more is requested
/// part by part.
pub use crate::capability::EXTENTS_MAX;
/// Most grants in one reply: one for each disk that its extents are on.
pub const GRANTS_MAX: usize = 64;
/// Longest capability, in bytes, as its disk reads it.
pub const CAPABILITY_BYTES_MAX: usize = 8192;
/// Most copies of each block.
pub const COPIES_MAX: u32 = 4;
/// Most ranges in one COMMIT_EXTENTS, and most blocks that are merged in it.
pub const RANGES_MAX: usize = 1024;
/// Most leases in one RETURN_LEASE.
pub const RETURNED_MAX: usize = 1024;
/// Most opens in a CLOSE.
pub const CLOSES_MAX: usize = 1024;
/// Most changes in one LOCK.
pub const LOCK_CHANGES_MAX: usize = 4096;
/// The end of the largest range that can be locked.
pub const LOCK_END: u64 = 1 << 63;
/// Most disks of a volume.
pub const DISKS_MAX: usize = 256;
/// Longest address of a disk, in bytes: `host:port`.
pub const ADDRESS_BYTES_MAX: usize = 255;
/// Most entries in one reply of READDIR.
pub const ENTRIES_MAX: usize = 8192;
/// Most files in one answer to LOST.
pub const LOST_FILES_MAX: usize = 4096;
/// Longest path in an answer to LOST.
pub const LOST_PATH_BYTES_MAX: usize = 4095;
/// Most slots of a session: a client can have this many changing calls in flight.
pub const SLOTS_MAX: u32 = 256;
/// Blocks are allocated in units of this size.
pub use crate::disk::BLOCK_BYTES;
/// Largest size of a file, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 60;
/// Most bytes that one call gives blocks to.
pub const ALLOCATE_BYTES_MAX: u64 = 256 << 20;

/// Names of the procedures, by number.
pub const PROCEDURE_NAMES: &[&str] = &[
    "NULL",
    "SESSION",
    "RENEW",
    "END_SESSION",
    "GETATTR",
    "SETATTR",
    "LOOKUP",
    "OPEN",
    "CLOSE",
    "GETCAPS",
    "ALLOC",
    "COMMIT_EXTENTS",
    "PUNCH",
    "MKDIR",
    "SYMLINK",
    "READLINK",
    "MKNOD",
    "LINK",
    "REMOVE",
    "RMDIR",
    "RENAME",
    "READDIR",
    "ACCESS",
    "FSSTAT",
    "GETXATTR",
    "SETXATTR",
    "LISTXATTR",
    "REMOVEXATTR",
    "RETURN_LEASE",
    "LOOK",
    "LOCK",
    "TESTLOCK",
    "AWAIT_LOCK",
    "FORGO_LOCK",
    "LOCKS_CLAIMED",
    "PREALLOCATE",
    "DESTAGE",
    "ARCHIVE",
    "MAKE",
    "LOST",
    "RETAIN",
    "ALLOC_NEAR",
];

xdr_enum! {
    /// Why a procedure failed. The numbers are errno's where Linux has one with that meaning, so
    /// that a trace can be read.
    Status {
        Success = 0, NotPermitted = 1, NotFound = 2, Io = 5, BadOpen = 9, Locked = 11, AccessDenied = 13,
        Exists = 17, NotDirectory = 20, IsDirectory = 21, Invalid = 22, FileTooLarge = 27,
        NoSpace = 28, TooManyLinks = 31, NameTooLong = 36, NotEmpty = 39, NoAttribute = 61,
        NotSupported = 95, Stale = 116, Changed = 10_001, NotAllocated = 10_002,
        BadSession = 10_003, BadSequence = 10_004, Later = 10_005, Restarted = 10_006,
        NotWritten = 10_007, Lost = 10_008,
    }

    /// The procedures.
    MetaProc {
        Null = 0, Session = 1, Renew = 2, EndSession = 3, GetAttr = 4, SetAttr = 5, Lookup = 6,
        Open = 7, Close = 8, GetCaps = 9, Alloc = 10, CommitExtents = 11, Punch = 12, MkDir = 13,
        Symlink = 14, ReadLink = 15, MkNod = 16, Link = 17, Remove = 18, RmDir = 19, Rename = 20,
        ReadDir = 21, Access = 22, FsStat = 23, GetXattr = 24, SetXattr = 25, ListXattr = 26,
        RemoveXattr = 27, ReturnLease = 28, Look = 29, Lock = 30, TestLock = 31,
        AwaitLock = 32, ForgoLock = 33, LocksClaimed = 34, Preallocate = 35, Destage = 36,
        Archive = 37, Make = 38, Lost = 39, Retain = 40, AllocNear = 41,
    }
}

impl MetaProc {
    /// Most bytes of data in the results, without the few hundred that any results may have.
    pub fn results_bytes_max(self) -> usize {
        use MetaProc::{Alloc, AllocNear, GetCaps, GetXattr, ListXattr, Look, Lost, Open, ReadDir};
        match self {
            ReadDir | ListXattr | Lost => 1 << 20,
            GetXattr => XATTR_BYTES_MAX,
            Open | GetCaps | Alloc | AllocNear | Look => 1 << 16,
            _ => 0,
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Status::Success => "success",
            Status::NotPermitted => "operation not permitted",
            Status::NotFound => "no such name",
            Status::Io => "the metadata server's store failed",
            Status::BadOpen => "the open file is not known",
            Status::Locked => "somebody else has locked some of it",
            Status::AccessDenied => "permission denied",
            Status::Exists => "the name exists",
            Status::NotDirectory => "not a directory",
            Status::IsDirectory => "is a directory",
            Status::Invalid => "an argument makes no sense",
            Status::FileTooLarge => "file too large",
            Status::NoSpace => "no space left on the volume",
            Status::TooManyLinks => "too many links",
            Status::NameTooLong => "name too long",
            Status::NotEmpty => "directory not empty",
            Status::NoAttribute => "no such extended attribute",
            Status::NotSupported => "not supported",
            Status::Stale => "the file is gone",
            Status::Changed => "the file has changed since",
            Status::NotAllocated => "the range is not allocated to the session",
            Status::BadSession => "the session is not known",
            Status::BadSequence => "the slot's sequence is not the next one",
            Status::Later => "not now: try again",
            Status::Restarted => "the server was started anew: take the session up again",
            Status::NotWritten => "a disk does not have what is to be committed",
            Status::Lost => "the bytes were in memory, and are lost",
        })
    }
}

/// A procedure's answer: its results, or a status.
pub type Res<T> = Result<T, Status>;

impl<T: Encode> Encode for Res<T> {
    fn encode(&self, out: &mut Encoder) {
        match self {
            Ok(results) => {
                Status::Success.encode(out);
                results.encode(out);
            }
            Err(status) => {
                debug_assert_ne!(*status, Status::Success);
                status.encode(out);
            }
        }
    }
}

impl<T: Decode> Decode for Res<T> {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        match Status::decode(input)? {
            Status::Success => T::decode(input).map(Ok),
            status => Ok(Err(status)),
        }
    }
}

#[cfg(test)]
impl<T: crate::sample::Sample> crate::sample::Sample for Res<T> {
    fn sample(source: &mut crate::sample::Source<'_>) -> Self {
        match Status::sample(source) {
            Status::Success => Ok(T::sample(source)),
            status => Err(status),
        }
    }
}

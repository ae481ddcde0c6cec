//! The kernel's FUSE protocol, version 7.45, as data: numbers, and structures in their layout of
//! 64-bit machines (`include/uapi/linux/fuse.h`). All integers are in the machine's byte order.
//!
//! Names are the kernel's, without the prefix. What we never send or read is left out.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of the protocol. Another major version is another protocol.
pub const MAJOR: u32 = 7;
/// Newest minor version that we speak.
pub const MINOR: u32 = 45;
/// First minor version in which the kernel can be told to distrust all names
/// ([`NotifyCode::IncEpoch`]).
pub(crate) const EPOCHS_SINCE: u32 = 44;
/// Oldest minor version that we speak: Linux 5.4.
pub const MINOR_MIN: u32 = 31;
/// Node id of the root.
pub const ROOT_ID: u64 = 1;
/// Set in `unique` of a request that is sent once more (7.40).
pub const UNIQUE_RESEND: u64 = 1 << 63;
/// Least size of a buffer to read requests into, in bytes.
pub const MIN_READ_BUFFER: usize = 8192;

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// The operation that a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        #[allow(missing_docs)]
        pub enum Opcode { $($(#[$doc])* $name = $number,)* }

        impl Opcode {
            /// All of them.
            pub const ALL: &[Opcode] = &[$(Opcode::$name,)*];

            /// The opcode with this number, if there is one.
            pub fn from_number(number: u32) -> Option<Opcode> {
                match number {
                    $($number => Some(Opcode::$name),)*
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    Lookup = 1,
    Forget = 2,
    Getattr = 3,
    Setattr = 4,
    Readlink = 5,
    Symlink = 6,
    Mknod = 8,
    Mkdir = 9,
    Unlink = 10,
    Rmdir = 11,
    Rename = 12,
    Link = 13,
    Open = 14,
    Read = 15,
    Write = 16,
    Statfs = 17,
    Release = 18,
    Fsync = 20,
    Setxattr = 21,
    Getxattr = 22,
    Listxattr = 23,
    Removexattr = 24,
    Flush = 25,
    Init = 26,
    Opendir = 27,
    Readdir = 28,
    Releasedir = 29,
    Fsyncdir = 30,
    Getlk = 31,
    Setlk = 32,
    Setlkw = 33,
    Access = 34,
    Create = 35,
    Interrupt = 36,
    Bmap = 37,
    Destroy = 38,
    Ioctl = 39,
    Poll = 40,
    NotifyReply = 41,
    BatchForget = 42,
    Fallocate = 43,
    Readdirplus = 44,
    Rename2 = 45,
    Lseek = 46,
    CopyFileRange = 47,
    SetupMapping = 48,
    RemoveMapping = 49,
    Syncfs = 50,
    Tmpfile = 51,
    Statx = 52,
    CopyFileRange64 = 53,
}

/// Codes of messages from us to the kernel that are not replies; they are in the place of a reply's
/// error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum NotifyCode {
    /// Drop attributes, and pages of a range.
    InvalInode = 2,
    /// Drop a name.
    InvalEntry = 3,
    /// Put bytes into the page cache.
    Store = 4,
    /// Send bytes of the page cache back.
    Retrieve = 5,
    /// A name is gone: another client has unlinked it.
    Delete = 6,
    /// Send again the requests that were read and not answered (7.40).
    Resend = 7,
    /// Distrust all names that are cached (7.44).
    IncEpoch = 8,
    /// Release these inodes if they are unused (7.45).
    Prune = 9,
}

/// Flags of INIT, both words together.
#[allow(missing_docs)]
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// The request has a second word of flags.
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const PASSTHROUGH: u64 = 1 << 37;
    pub const HAS_RESEND: u64 = 1 << 39;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Says that a lock is flock(2)'s ([`LkIn::lk_flags`]).
pub const LK_FLOCK: u32 = 1 << 0;

/// The extended attribute must not be there, or must be (setxattr(2)).
pub const XATTR_CREATE: u32 = 1;
/// See [`XATTR_CREATE`].
pub const XATTR_REPLACE: u32 = 2;

/// Operations of fallocate(2) ([`FallocateIn::mode`]).
#[allow(missing_docs)]
pub mod falloc {
    pub const KEEP_SIZE: u32 = 1 << 0;
    pub const PUNCH_HOLE: u32 = 1 << 1;
    pub const ZERO_RANGE: u32 = 1 << 4;
}

/// Flags of an open file, in the reply.
#[allow(missing_docs)]
pub mod fopen {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// Flags of [`GetattrIn`].
#[allow(missing_docs)]
pub mod getattr {
    /// The field `fh` counts. The kernel sets it when it asks for itself, before it reads, appends
    /// or seeks, and not for stat(2) or fstat(2) (`fuse_update_get_attr` in `fs/fuse/dir.c` of
    /// 6.18).
    pub const FH: u32 = 1 << 0;
}

/// Which fields of [`SetattrIn`] count.
#[allow(missing_docs)]
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
}

/// Ioctls of `/dev/fuse`: type 229, numbers 0 to 2.
#[allow(missing_docs)]
pub mod ioctl {
    pub const CLONE: u64 = 0x8004_e500;
}

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        #[allow(missing_docs)]
        pub struct $name { $(pub $field: $type,)* }
    )*};
}

wire! {
    /// Begins each request.
    InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    /// Begins each reply and notification.
    OutHeader { len: u32, error: i32, unique: u64, }
    /// Attributes of a file.
    Attr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32,
        rdev: u32, blksize: u32, flags: u32,
    }
    /// The file that a name stands for.
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }
    ForgetIn { nlookup: u64, }
    ForgetOne { nodeid: u64, nlookup: u64, }
    BatchForgetIn { count: u32, dummy: u32, }
    GetattrIn { getattr_flags: u32, dummy: u32, fh: u64, }
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    MkdirIn { mode: u32, umask: u32, }
    RenameIn { newdir: u64, }
    Rename2In { newdir: u64, flags: u32, padding: u32, }
    LinkIn { oldnodeid: u64, }
    OpenIn { flags: u32, open_flags: u32, }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    /// Since 7.40 the last word is the backing id.
    OpenOut { fh: u64, open_flags: u32, backing_id: i32, }
    CreateOut { entry: EntryOut, open: OpenOut, }
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteOut { size: u32, padding: u32, }
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
    FsyncIn { fh: u64, fsync_flags: u32, padding: u32, }
    SetxattrIn { size: u32, flags: u32, }
    GetxattrIn { size: u32, padding: u32, }
    GetxattrOut { size: u32, padding: u32, }
    LkIn { fh: u64, owner: u64, start: u64, end: u64, kind: u32, pid: u32, lk_flags: u32, padding: u32, }
    LkOut { start: u64, end: u64, kind: u32, pid: u32, }
    AccessIn { mask: u32, padding: u32, }
    /// Before 7.36 it ends after `flags`.
    InitIn {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    }
    InterruptIn { unique: u64, }
    BmapIn { block: u64, blocksize: u32, padding: u32, }
    IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    PollIn { fh: u64, kh: u64, flags: u32, events: u32, }
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32, }
    LseekOut { offset: u64, }
    CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    /// Of COPY_FILE_RANGE_64; COPY_FILE_RANGE is answered as a write.
    CopyFileRangeOut { bytes_copied: u64, }
    SetupMappingIn { fh: u64, foffset: u64, len: u64, flags: u64, moffset: u64, }
    RemoveMappingIn { count: u32, }
    SyncfsIn { padding: u64, }
    StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    NotifyRetrieveIn {
        dummy1: u64, offset: u64, size: u32, dummy2: u32, dummy3: u64, dummy4: u64,
    }
    /// Before a name in a listing.
    Dirent { ino: u64, off: u64, namelen: u32, kind: u32, }
    NotifyInvalInodeOut { ino: u64, off: i64, len: i64, }
    NotifyInvalEntryOut { parent: u64, namelen: u32, flags: u32, }
    NotifyDeleteOut { parent: u64, child: u64, namelen: u32, padding: u32, }
    NotifyStoreOut { nodeid: u64, offset: u64, size: u32, padding: u32, }
    NotifyRetrieveOut { notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32, }
    NotifyPruneOut { count: u32, padding: u32, spare: u64, }
    /// Payload of an io_uring command (`fuse_uring_cmd_req`).
    UringCmd { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6], }
    /// What the kernel and we write into the header of a ring entry.
    UringInOut { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64, }
}

/// Size of a [`InitIn`] before 7.36.
pub const INIT_IN_SHORT: usize = 16;
/// Number of an io_uring command: register an entry of a queue.
pub const URING_REGISTER: u32 = 1;
/// Number of an io_uring command: send a reply, and wait for the next request.
pub const URING_COMMIT_AND_FETCH: u32 = 2;
/// Bytes for the header, and for the structure of the operation, at the start of a ring entry.
pub const URING_HEADER: usize = 128;

/// The headers of a ring entry (`fuse_uring_req_header`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UringHeaders {
    /// An [`InHeader`], then an [`OutHeader`].
    pub in_out: [u8; URING_HEADER],
    /// The structure of the operation.
    pub op_in: [u8; URING_HEADER],
    /// The part that belongs to the entry.
    pub entry: UringInOut,
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use super::*;

    /// Sizes as of `include/uapi/linux/fuse.h`.
    #[test]
    fn structures_have_the_kernels_size() {
        assert_eq!(size_of::<InHeader>(), 40);
        assert_eq!(size_of::<OutHeader>(), 16);
        assert_eq!(size_of::<Attr>(), 88);
        assert_eq!(size_of::<EntryOut>(), 128);
        assert_eq!(size_of::<AttrOut>(), 104);
        assert_eq!(size_of::<SetattrIn>(), 88);
        assert_eq!(size_of::<ReadIn>(), 40);
        assert_eq!(size_of::<WriteIn>(), 40);
        assert_eq!(size_of::<StatfsOut>(), 80);
        assert_eq!(size_of::<LkIn>(), 48);
        assert_eq!(size_of::<LkOut>(), 24);
        assert_eq!(size_of::<InitIn>(), 64);
        assert_eq!(size_of::<InitOut>(), 64);
        assert_eq!(size_of::<IoctlIn>(), 32);
        assert_eq!(size_of::<IoctlOut>(), 16);
        assert_eq!(size_of::<StatxIn>(), 24);
        assert_eq!(size_of::<FallocateIn>(), 32);
        assert_eq!(size_of::<LseekIn>(), 24);
        assert_eq!(size_of::<CopyFileRangeIn>(), 56);
        assert_eq!(size_of::<Dirent>(), 24);
        assert_eq!(size_of::<UringCmd>(), 24);
        assert_eq!(size_of::<UringHeaders>(), 288);
    }

    #[test]
    fn opcodes_are_found_by_number() {
        for opcode in Opcode::ALL {
            assert_eq!(Opcode::from_number(*opcode as u32), Some(*opcode));
        }
        assert_eq!(Opcode::from_number(7), None);
        assert_eq!(Opcode::from_number(4096), None);
    }
}

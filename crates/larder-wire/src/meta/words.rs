//! The types of the metadata program's arguments and results.

use std::ops::Range;

use super::{
    ADDRESS_BYTES_MAX, CAPABILITY_BYTES_MAX, DISKS_MAX, EXTENTS_MAX, FILE_BYTES_MAX, GRANTS_MAX,
    LOCK_END,
};
use crate::xdr::{Array, Opaque};

/// The name of one entry of a directory: never empty, without `/` and without NUL. A name that
/// is longer than [`super::NAME_BYTES_MAX`] decodes, so that the server can answer with an
/// error.
pub use crate::nfs3::filename3 as Name;

/// Disks are named as in capabilities. An open file has a mode, too.
pub use crate::capability::{DiskId, Mode, VolumeId};

xdr_newtype! {
    /// Number of a file in its volume, never given to another one.
    FileId(u64);
    /// Number of an open file in its session; 0 means none.
    OpenId(u64);
    /// Names a session. Only its client and the server know it.
    SessionId([u8; 16]);
    /// Version of an object: larger after each change of its data, attributes or entries.
    ChangeId(u64);
    /// Number of a lease: larger than those of all that were given before.
    LeaseNumber(u64);
    /// A client's number for a caller that waits for a lock; never used for another waiter of the
    /// session.
    WaiterNumber(u64);
}

impl FileId {
    /// The root of every volume.
    pub const ROOT: FileId = FileId(1);
}

impl OpenId {
    /// No open file: rights are checked again.
    pub const NONE: OpenId = OpenId(0);
}

xdr_enum! {
    /// Type of a file.
    Kind {
        File = 1, Directory = 2, BlockDevice = 3, CharacterDevice = 4, Symlink = 5, Socket = 6,
        Fifo = 7,
    }

    /// What a lease promises: nothing; that no other client changes the file; that no other client
    /// reads or writes it. On a directory it covers its attributes and names.
    #[derive(PartialOrd, Ord)]
    LeaseKind { None = 0, Read = 1, Write = 2 }

    /// To whom an extent's blocks belong: to everyone who may read the file, or to the session that
    /// allocated them and has not committed them yet; or to the file, on a memory disk that has
    /// lost the bytes.
    ExtentState { Committed = 1, Provisional = 2, Lost = 3 }

    /// What a lock prevents others from: locking the range exclusively; locking it at all.
    #[derive(PartialOrd, Ord)]
    LockMode { Shared = 1, Exclusive = 2 }

    /// What to do if a name exists already.
    IfExists { Open = 0, Fail = 1 }
}

/// Bits of ACCESS, as in NFSv3 (RFC 1813, 3.3.4).
pub use crate::nfs3::access3 as access;

xdr_struct! {
    /// Seconds since 1970 (two's complement) and nanoseconds, less than 10^9.
    #[derive(Copy, Default, PartialOrd, Ord, Hash)]
    Time { seconds: i64, nanoseconds: u32 }

    /// Major and minor number of a device.
    #[derive(Copy, Default)]
    Device { major: u32, minor: u32 }

    /// Attributes of a file. `mode` has the permission bits, `0o7777`; `used` is in bytes.
    /// `data_change` is the version in which its data, or a directory's entries, last changed:
    /// changes of links, names, modes and owners do not affect it.
    #[derive(Copy)]
    Attributes {
        file: FileId, kind: Kind, mode: u32, links: u32, uid: u32, gid: u32, device: Device,
        size: u64, used: u64, atime: Time, mtime: Time, ctime: Time, birth: Time, change: ChangeId,
        data_change: ChangeId,
    }

    /// The version of an object, and the version in which its data last changed.
    #[derive(Copy)]
    Version { change: ChangeId, data_change: ChangeId }

    /// How a call changed an object: the version just before, and the attributes after. The two
    /// versions are the same if it did not change.
    #[derive(Copy)]
    Changed { before: Version, after: Attributes }

    /// Attributes to set; those that are absent stay as they are.
    #[derive(Copy, Default)]
    SetAttributes {
        mode: Option<u32>, uid: Option<u32>, gid: Option<u32>, size: Option<u64>, atime: SetTime,
        mtime: SetTime,
    }

    /// Identifies a call of a session. Calls of one slot follow each other: the next one has a
    /// higher sequence and is sent when the one before was answered. The first one is 1.
    #[derive(Copy)]
    Sequence { session: SessionId, slot: u32, sequence: u32 }

    /// A name in a directory.
    Dentry { dir: FileId, name: Name }

    /// Bytes of a file.
    #[derive(Copy)]
    ByteRange { offset: u64, length: u64 }

    /// On which set the blocks for a range of a file should be.
    #[derive(Copy)]
    Near { range: ByteRange, disk: DiskId }

    /// A part of a file that was written to a disk: `length` bytes at `offset` of the file are now
    /// those at `position` of the disk.
    #[derive(Copy)]
    Written { offset: u64, length: u64, disk: DiskId, position: u64 }

    /// A block of which a client wrote only a part: the rest is copied from the block that the file
    /// had at `offset`, which began at `position` of the disk and had `length` bytes; zeros if
    /// there was none. The server checks whether the file still has that block.
    #[derive(Copy)]
    Merged { offset: u64, from: Option<MergedFrom> }

    /// A block of a file.
    #[derive(Copy)]
    MergedFrom { disk: DiskId, position: u64, length: u32 }

    /// A part of a file on a disk: `length` bytes at `offset` of the file are those at `position`
    /// of the disk. Offset and position are multiples of the block size; so is the length, except
    /// for an extent that a smaller size of its file has cut. What no extent covers reads as zeros.
    #[derive(Copy)]
    Extent { offset: u64, length: u64, disk: DiskId, position: u64, state: ExtentState }

    /// A capability on one disk: what is presented to the disk (`capability`, as in docs/formats
    /// for disks), and what proves that it belongs to the client (`secret`, never sent to the
    /// disk). It ends `expires_ms` after the reply that brought it, or when it is revoked. `disk`
    /// is the disk that extents name; the capability names the disk that has this copy of them.
    Grant {
        disk: DiskId, mode: Mode, expires_ms: u32, capability: Opaque<CAPABILITY_BYTES_MAX>,
        secret: [u8; 32],
    }

    /// Where a part of a file is stored, and the grants to access it. `covered` is the part that
    /// the extents describe, which may be shorter than what was asked for: ask again for the rest.
    Layout {
        covered: ByteRange, extents: Array<Extent, EXTENTS_MAX>, grants: Array<Grant, GRANTS_MAX>,
    }

    /// A lease that was given.
    #[derive(Copy)]
    LeaseGiven { kind: LeaseKind, number: LeaseNumber }

    /// A lease that is returned, except for `keep`.
    #[derive(Copy)]
    Returned { file: FileId, number: LeaseNumber, keep: LeaseKind }

    /// Bytes of a file, and how they are locked from now on, whatever they were before; without a
    /// mode not at all.
    #[derive(Copy)]
    LockChange { range: ByteRange, mode: Option<LockMode> }

    /// A lock of another session.
    #[derive(Copy)]
    LockFound { range: ByteRange, mode: LockMode }

    /// Everything that LOOK returns about a file. `granted` are the caller's rights, as bits of
    /// [`access`].
    Seen { attributes: Attributes, granted: u32, lease: Option<LeaseGiven>, layout: Layout }

    /// A disk of the volume. Its grants carry `epoch`, which changes with each boot of the disk.
    /// What is on a memory disk is lost then. What is on a disk that leaves is moved to others. If
    /// there is a disk of one of these kinds, committed blocks are never written again, as with
    /// copies.
    DiskInfo {
        disk: DiskId, address: Opaque<ADDRESS_BYTES_MAX>, epoch: u64, is_memory: bool, leaves: bool,
    }
}

xdr_union! {
    /// The medium for bytes: disks that keep them; or this many memory disks, if there are as many
    /// beside each other and they have room.
    #[derive(Copy)]
    Medium { 1 => Disk, 2 => Memory(u32) }
}

xdr_union! {
    /// How to set a time.
    #[derive(Copy, Default)]
    SetTime { 0 => #[default] Keep, 1 => Now, 2 => To(Time) }
}

/// The disks of a volume.
pub type Disks = Array<DiskInfo, DISKS_MAX>;

impl Medium {
    /// Disks in place of memory disks, which do not take the bytes now, as the client has found.
    /// To a server: more copies than any memory disks have beside each other.
    pub const INSTEAD: Medium = Medium::Memory(u32::MAX);

    /// Whether bytes may be in memory alone.
    pub fn is_memory(self) -> bool {
        !matches!(self, Medium::Disk | Medium::INSTEAD)
    }
}

impl Written {
    /// The bytes of the file, if they are some that a file can have.
    pub fn range(self) -> Option<Range<u64>> {
        ByteRange { offset: self.offset, length: self.length }.get()
    }
}

impl Attributes {
    /// The version that they describe.
    pub fn version(&self) -> Version {
        Version { change: self.change, data_change: self.data_change }
    }
}

impl ByteRange {
    /// Start and end, if it has bytes and ends within the largest file.
    pub fn get(self) -> Option<Range<u64>> {
        let end = self.offset.checked_add(self.length)?;
        (self.length > 0 && end <= FILE_BYTES_MAX).then_some(self.offset..end)
    }

    /// Start and end, if it has bytes and can be locked: even beyond the largest file.
    pub fn lockable(self) -> Option<Range<u64>> {
        let end = self.offset.checked_add(self.length)?;
        (self.length > 0 && end <= LOCK_END).then_some(self.offset..end)
    }
}

impl From<Range<u64>> for ByteRange {
    fn from(range: Range<u64>) -> ByteRange {
        ByteRange { offset: range.start, length: range.end.saturating_sub(range.start) }
    }
}

/// Encoded size of [`Attributes`], in bytes.
pub const ATTRIBUTES_BYTES: usize = 116;

//! Attributes of files, and the validator that tells one version of a file from another.

use std::time::Duration;

/// Type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

/// Number of a device, for device files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// A point in time, in seconds and nanoseconds since 1970 (UTC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time {
    /// Whole seconds; may be negative where the protocol allows it.
    pub sec: i64,
    /// Nanoseconds, less than 10^9.
    pub nsec: u32,
}

/// A server's description of a file: `fattr3` of RFC 1813, and the attributes that later protocols
/// add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Type.
    pub kind: Kind,
    /// Permission bits with set-uid, set-gid and sticky: `0o7777`.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device files.
    pub device: Device,
    /// Size in bytes.
    pub size: u64,
    /// Disk space used, in bytes.
    pub used: u64,
    /// The server's file system.
    pub fsid: u64,
    /// The server's inode number, as applications see it in `st_ino`.
    pub fileid: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of data or attributes.
    pub ctime: Time,
    /// Change attribute, where the server has one (NFSv4).
    pub change: Option<u64>,
    /// The version in which the data last changed, if the server reports it. Other changes of the
    /// file leave it as it is.
    pub data_change: Option<u64>,
    /// Birth time, where the server tells it.
    pub birth: Option<Time>,
}

impl Attr {
    /// The validator of this version of the file.
    pub fn validator(&self) -> Validator {
        let Attr { change, data_change, size, mtime, ctime, .. } = *self;
        Validator { change, data_change, size, mtime, ctime }
    }
}

/// Tells whether two descriptions are of the same version of a file.
///
/// The change attribute decides if both have one; otherwise modification time, change time and size
/// together. Never the modification time alone: applications set it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Validator {
    /// Change attribute, where the server has one.
    pub change: Option<u64>,
    /// The version in which the data last changed, if the server reports it.
    pub data_change: Option<u64>,
    /// Size in bytes.
    pub size: u64,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of data or attributes.
    pub ctime: Time,
}

impl Validator {
    /// Whether the bytes of a file are the same in both versions. If the server reports in which
    /// version the data last changed, that decides; otherwise only the same version has the same
    /// bytes.
    pub fn same_data(&self, other: &Validator) -> bool {
        match (self.data_change, other.data_change) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => self.same(other),
        }
    }

    /// Whether `other` describes the same version.
    pub fn same(&self, other: &Validator) -> bool {
        match (self.change, other.change) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => self.size == other.size && self.mtime == other.mtime && self.ctime == other.ctime,
        }
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's own clock.
    ServerNow,
    /// This time.
    To(Time),
}

/// Attributes to set; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits, `0o7777`.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes: truncates or extends with zeros.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the data.
    pub mtime: Option<SetTime>,
    /// Sets no attribute of a file that exists. For a file that is being made: what is written
    /// next needs to be no more durable than [`Stability::Shared`](crate::Stability::Shared)
    /// with these copies, so the server may reserve memory for it instead of disk. Another
    /// object that is being made needs to be no more durable than that.
    pub in_memory: Option<Volatile>,
    /// For a file that is being made: its bytes stay on this machine until somebody asks for them,
    /// so the server may exclude other clients from it at once ([`Remote::exclude`]), and need not
    /// reserve anything for them.
    ///
    /// [`Remote::exclude`]: crate::Remote::exclude
    pub retained: bool,
}

/// How volatile bytes are to be kept in the memory of machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Volatile {
    /// On how many machines; where there are not as many, on the server's disk.
    pub copies: u8,
    /// How long at most they may be there alone: then they are on the server's disk. `None`: for
    /// good.
    pub due: Option<Duration>,
}

impl Volatile {
    /// What keeps both promises.
    pub fn and(self, other: Volatile) -> Volatile {
        let due = self.due.into_iter().chain(other.due).min();
        Volatile { copies: self.copies.max(other.copies), due }
    }
}

/// A set of rights on an object, as the server judges them (RFC 1813, 3.3.4).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Access(pub u8);

impl Access {
    /// No right.
    pub const NONE: Access = Access(0);
    /// Read data or list a directory.
    pub const READ: Access = Access(1);
    /// Look up a name in a directory.
    pub const LOOKUP: Access = Access(2);
    /// Rewrite existing data or entries.
    pub const MODIFY: Access = Access(4);
    /// Write new data or add entries.
    pub const EXTEND: Access = Access(8);
    /// Delete an entry.
    pub const DELETE: Access = Access(16);
    /// Execute a file.
    pub const EXECUTE: Access = Access(32);
    /// Every right.
    pub const ALL: Access = Access(63);

    /// Whether all rights of `other` are in this set.
    pub fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Access {
    type Output = Access;
    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

impl std::ops::BitAnd for Access {
    type Output = Access;
    fn bitand(self, other: Access) -> Access {
        Access(self.0 & other.0)
    }
}

impl std::ops::Not for Access {
    type Output = Access;
    fn not(self) -> Access {
        Access(!self.0 & Access::ALL.0)
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const LETTERS: [(Access, char); 6] = [
            (Access::READ, 'r'),
            (Access::LOOKUP, 'l'),
            (Access::MODIFY, 'm'),
            (Access::EXTEND, 'e'),
            (Access::DELETE, 'd'),
            (Access::EXECUTE, 'x'),
        ];
        let shown: String =
            LETTERS.iter().map(|(bit, c)| if self.contains(*bit) { *c } else { '-' }).collect();
        write!(f, "Access({shown})")
    }
}

/// Space and limits of a file system (statvfs(3)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Total bytes.
    pub bytes: u64,
    /// Free bytes.
    pub bytes_free: u64,
    /// Free bytes that the caller may use.
    pub bytes_available: u64,
    /// Total file slots.
    pub files: u64,
    /// Free file slots.
    pub files_free: u64,
    /// Free file slots that the caller may use.
    pub files_available: u64,
    /// Longest name, in bytes.
    pub name_max: u32,
}

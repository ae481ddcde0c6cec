//! The procedures of the metadata program: their arguments and results.
//!
//! Arguments of calls that change something begin with a [`Sequence`], those of other calls with
//! the session. So every call except [`Session`] renews the session.

use super::words::{
    Attributes, ByteRange, ChangeId, Changed, Dentry, Device, DiskId, Disks, FileId, IfExists,
    Kind, Layout, LeaseGiven, LeaseKind, LockChange, LockFound, LockMode, Medium, Merged, Mode,
    Name, Near, OpenId, Returned, Seen, Sequence, SessionId, SetAttributes, Time, VolumeId,
    WaiterNumber, Written,
};
use super::{
    CLOSES_MAX, DISKS_MAX, ENTRIES_MAX, EXTENTS_MAX, LOCK_CHANGES_MAX, LOST_FILES_MAX,
    LOST_PATH_BYTES_MAX, PROGRAM, RANGES_MAX, RETURNED_MAX, Res, TARGET_BYTES_MAX, VERSION,
    XATTR_BYTES_MAX, XATTRS_MAX,
};
use crate::xdr::{self, Array, Opaque};

/// The target of a symbolic link.
pub type Target = Opaque<TARGET_BYTES_MAX>;
/// How a call changes locks.
pub type LockChanges = Array<LockChange, LOCK_CHANGES_MAX>;
/// The value of an extended attribute.
pub type XattrValue = Opaque<XATTR_BYTES_MAX>;

xdr_struct! {
    /// Arguments of NULL.
    #[derive(Copy, Default)]
    Null {}

    /// Arguments of SESSION. `client` identifies the client for good, `boot` its present life: a
    /// new life ends the session of the one before.
    #[derive(Copy)]
    Session { client: [u8; 16], boot: u64, slots: u32 }
    /// Results of SESSION. The client must call at least once in every `lease_ms`, or the session
    /// ends. `server_boot` changes with each start of the server: leases and opens from before are
    /// gone. `resumed`: the session existed, and its slots continue. `copies` of each block are on
    /// disks; with more than one copy, a committed block is never written again. `has_archive`: the
    /// server puts versions of files into an archive.
    SessionGiven {
        session: SessionId, slots: u32, lease_ms: u32, resumed: bool, volume: VolumeId,
        server_boot: u64, root: FileId, copies: u32, disks: Disks, has_archive: bool,
    }

    /// Arguments of RENEW.
    #[derive(Copy)]
    Renew { session: SessionId }
    /// Answer of RENEW.
    Renewed { server_boot: u64, disks: Disks }

    /// Arguments of END_SESSION: what the session holds is released at once.
    #[derive(Copy)]
    EndSession { session: SessionId }

    /// Arguments of GETATTR.
    #[derive(Copy)]
    GetAttr { session: SessionId, file: FileId }

    /// Arguments of SETATTR. With `guard`, only if the file still has that ctime. `open` is an open
    /// file whose mode allows a new size, or none.
    #[derive(Copy)]
    SetAttr {
        sequence: Sequence, file: FileId, open: OpenId, set: SetAttributes, guard: Option<Time>,
    }

    /// Arguments of LOOKUP. `.` and `..` are names, too.
    Lookup { session: SessionId, dentry: Dentry }
    /// Answer of LOOKUP. That there is no such name is an answer.
    #[derive(Copy)]
    LookedUp { dir: Attributes, found: Option<Attributes> }

    /// Arguments of OPEN. The reply brings grants for as much of `range` as fits, with blocks on
    /// `allocate` for it if the mode includes writing, and a lease of `lease` at most.
    Open {
        sequence: Sequence, what: OpenWhat, mode: Mode, lease: LeaseKind, range: ByteRange,
        allocate: Option<Medium>,
    }
    /// What OPEN creates, unless the name exists.
    Create { dentry: Dentry, set: SetAttributes, if_exists: IfExists }
    /// Answer of OPEN. `dir` is present if a name was given. If CREATE opened an existing file,
    /// `created` is false.
    Opened {
        open: OpenId, created: bool, file: Changed, dir: Option<Changed>,
        lease: Option<LeaseGiven>, layout: Layout,
    }

    /// Arguments of CLOSE. Opens that the server does not know are passed over, unless it knows
    /// none. Leases stay.
    Close { sequence: Sequence, opens: Array<OpenId, CLOSES_MAX> }

    /// Arguments of GETCAPS. `open` is an open file whose mode suffices, or none: then the caller's
    /// rights are checked now.
    #[derive(Copy)]
    GetCaps { session: SessionId, file: FileId, open: OpenId, mode: Mode, range: ByteRange }
    /// Answer of GETCAPS, ALLOC and ALLOC_NEAR.
    LayoutGiven { attributes: Attributes, layout: Layout }

    /// Arguments of ALLOC: the holes of `range` get blocks on `medium`, which belong to the session
    /// alone until they are committed.
    #[derive(Copy)]
    Alloc {
        sequence: Sequence, file: FileId, open: OpenId, range: ByteRange, medium: Medium,
    }
    /// Arguments of ALLOC_NEAR: does what ALLOC does, and says for ranges of the file, in order and
    /// of whole blocks, on which set their blocks should be, if that set has room and may get new
    /// blocks.
    AllocNear { alloc: Alloc, near: Array<Near, EXTENTS_MAX> }

    /// Arguments of COMMIT_EXTENTS: what was written, and is durable on the disks; with `on_way` it
    /// may still be in flight to them, and the server asks the disks. The file's size
    /// becomes the end of the last range, if it was smaller. `all`: the session has no other
    /// written and uncommitted bytes of the file, and uses no earlier grant for writing. `copies`
    /// are the disks that have everything in `written` for their sets; the other disks of those
    /// sets have missed it. `merged`, in order, are blocks that were not written as a whole. What
    /// was written to memory disks is to be on other disks within `due_ms`; without it, it may stay
    /// there. The version that the commit makes, or a later one, is to be in the archive within
    /// `archive_ms`; without it, as was said last of the file.
    CommitExtents {
        sequence: Sequence, file: FileId, open: OpenId, written: Array<Written, RANGES_MAX>,
        copies: Array<DiskId, DISKS_MAX>, merged: Array<Merged, RANGES_MAX>, mtime: Option<Time>,
        all: bool, on_way: bool, due_ms: Option<u32>, archive_ms: Option<u32>,
    }

    /// Arguments of PUNCH: the range reads as zeros afterwards; the size stays.
    #[derive(Copy)]
    Punch { sequence: Sequence, file: FileId, open: OpenId, range: ByteRange }

    /// Arguments of PREALLOCATE: the holes of `range`, which has at most
    /// [`super::ALLOCATE_BYTES_MAX`], get blocks that are the file's at once, and read as zeros.
    /// All of them, or none. The file's size becomes the end of the range, if it was smaller.
    #[derive(Copy)]
    Preallocate { sequence: Sequence, file: FileId, open: OpenId, range: ByteRange }

    /// Arguments of MKDIR.
    MkDir { sequence: Sequence, dentry: Dentry, set: SetAttributes }
    /// Arguments of SYMLINK.
    Symlink { sequence: Sequence, dentry: Dentry, target: Target, set: SetAttributes }
    /// Arguments of MKNOD. Not for files, directories and symbolic links.
    MkNod { sequence: Sequence, dentry: Dentry, kind: Kind, device: Device, set: SetAttributes }
    /// Arguments of MAKE: does what MKDIR, SYMLINK and MKNOD do, and says on which medium a file of
    /// the same class would have its bytes. What would be in one memory may be lost with a crash of
    /// the server's machine, until something durable is in it.
    Make {
        sequence: Sequence, dentry: Dentry, what: MakeWhat, set: SetAttributes, medium: Medium,
    }
    /// A special file.
    #[derive(Copy)]
    Special { kind: Kind, device: Device }
    /// Answer of MKDIR, SYMLINK, MKNOD and MAKE.
    #[derive(Copy)]
    Made { made: Attributes, dir: Changed }

    /// Arguments of READLINK.
    #[derive(Copy)]
    ReadLink { session: SessionId, file: FileId }
    /// Answer of READLINK.
    LinkRead { attributes: Attributes, target: Target }

    /// Arguments of LINK.
    Link { sequence: Sequence, file: FileId, dentry: Dentry }
    /// Results of LINK, REMOVE and RMDIR: the file that got or lost the name, and its directory. A
    /// file without links is gone once no session has it open.
    #[derive(Copy)]
    NameChanged { file: Changed, dir: Changed }

    /// Arguments of REMOVE: anything but a directory.
    Remove { sequence: Sequence, dentry: Dentry }
    /// Arguments of RMDIR: an empty directory.
    RmDir { sequence: Sequence, dentry: Dentry }

    /// Arguments of RENAME. With `keep`, a target that exists is an error.
    Rename { sequence: Sequence, from: Dentry, to: Dentry, keep: bool }
    /// Answer of RENAME. If both directories are the same, `from_dir` and `to_dir` are the same.
    #[derive(Copy)]
    Renamed { from_dir: Changed, to_dir: Changed, moved: Changed, replaced: Option<Changed> }

    /// Arguments of READDIR: entries after `cookie` (0: from the beginning), as many as fit into
    /// about `bytes_max`. Cookies are valid as long as the directory exists.
    #[derive(Copy)]
    ReadDir { session: SessionId, dir: FileId, cookie: u64, bytes_max: u32, attributes: bool }
    /// An entry of a directory. `cookie` is the position after it.
    Entry { name: Name, file: FileId, cookie: u64, attributes: Option<Attributes> }
    /// Answer of READDIR, without `.` and `..`.
    Entries { dir: Attributes, entries: Array<Entry, ENTRIES_MAX>, end: bool }

    /// Arguments of ACCESS: the bits are those of [`super::words::access`].
    #[derive(Copy)]
    Access { session: SessionId, file: FileId, wanted: u32 }
    /// Answer of ACCESS.
    #[derive(Copy)]
    AccessGiven { attributes: Attributes, granted: u32 }

    /// Arguments of FSSTAT.
    #[derive(Copy)]
    FsStat { session: SessionId }
    /// Answer of FSSTAT. Sizes in bytes.
    #[derive(Copy)]
    Space { bytes: u64, bytes_free: u64, files: u64, files_free: u64 }

    /// Arguments of GETXATTR.
    GetXattr { session: SessionId, file: FileId, name: Name }
    /// Answer of GETXATTR.
    XattrGot { value: XattrValue, change: ChangeId }

    /// Arguments of SETXATTR.
    SetXattr { sequence: Sequence, file: FileId, name: Name, value: XattrValue, if_set: IfSet }
    /// Answer of SETXATTR, REMOVEXATTR, SETATTR, PUNCH, PREALLOCATE and COMMIT_EXTENTS.
    #[derive(Copy)]
    FileChanged { file: Changed }

    /// Arguments of LISTXATTR.
    #[derive(Copy)]
    ListXattr { session: SessionId, file: FileId }
    /// Answer of LISTXATTR.
    XattrNames { names: Array<Name, XATTRS_MAX>, change: ChangeId }

    /// Arguments of REMOVEXATTR.
    RemoveXattr { sequence: Sequence, file: FileId, name: Name }

    /// Arguments of RETURN_LEASE. A lease that the session does not have, or no longer has, is no
    /// error.
    ReturnLease { sequence: Sequence, returned: Array<Returned, RETURNED_MAX> }

    /// Arguments of LOOK: asks for attributes, the caller's rights, a lease of at most `lease`, and
    /// grants to read as much of `range` as fits, if the caller may read the object and it is a
    /// file with data.
    Look { session: SessionId, at: LookAt, lease: LeaseKind, range: ByteRange }
    /// Answer of LOOK. `dir` is present if a name was given, `found` unless the name does not
    /// exist.
    LookedAt { dir: Option<Attributes>, found: Option<Seen> }

    /// Arguments of LOCK: the session is one holder; its client distinguishes its own processes.
    /// All of `changes` are made, in order, or none. It does not wait. `claim`: the session had
    /// them before the server was restarted.
    Lock { sequence: Sequence, file: FileId, changes: LockChanges, claim: bool }

    /// Arguments of TESTLOCK: which lock prevents the session from having the range in this mode.
    #[derive(Copy)]
    TestLock { session: SessionId, file: FileId, range: ByteRange, mode: LockMode }
    /// Results of TESTLOCK: none, or a conflicting lock of the strongest mode.
    #[derive(Copy)]
    LockTested { found: Option<LockFound> }

    /// Arguments of AWAIT_LOCK: a waiter queues for changes that were refused. Asking again under
    /// the same number does nothing.
    AwaitLock { session: SessionId, file: FileId, number: WaiterNumber, changes: LockChanges }
    /// Results of AWAIT_LOCK: whether what the waiter wants is free already, and reserved for it;
    /// otherwise the server calls the client back by LOCK_FREE when it is.
    #[derive(Copy)]
    LockAwaited { is_free: bool }

    /// Arguments of FORGO_LOCK: the waiter leaves the queue. It is no error if the waiter is not
    /// queued.
    #[derive(Copy)]
    ForgoLock { session: SessionId, file: FileId, number: WaiterNumber }

    /// Arguments of LOCKS_CLAIMED: the session has claimed all locks that it had before the server
    /// was restarted.
    #[derive(Copy)]
    LocksClaimed { session: SessionId }

    /// Arguments of DESTAGE: what the file has on memory disks is to be on other disks within this
    /// time; with 0, before the answer. The call can be made again.
    #[derive(Copy)]
    Destage { session: SessionId, file: FileId, due_ms: u32 }

    /// Arguments of ARCHIVE: asks whether the archive has the file's present version; with a time,
    /// that version is to be there within it. The call can be made again.
    #[derive(Copy)]
    Archive { session: SessionId, file: FileId, within_ms: Option<u32> }
    /// Results of ARCHIVE: whether the present version is there. If it is not, and is to be there:
    /// when it is due, in ms from now; 0 if it has been due, and for how long.
    #[derive(Copy)]
    ArchiveTold { is_there: bool, due_ms: Option<u64>, late_ms: u64 }

    /// Arguments of LOST: which files have lost bytes, behind `after` in the order of their
    /// numbers. With `look`, the server first asks its memory disks whether they were started
    /// again. If there was no loss after the one with number `since`, it lists none.
    #[derive(Copy)]
    Lost { session: SessionId, look: bool, since: u64, after: FileId }
    /// Results of LOST: the number of the last loss, 0 if there was none; as many files as fit; and
    /// whether these are all.
    LostTold { number: u64, files: Array<LostFile, LOST_FILES_MAX>, end: bool }
    /// A file with lost bytes: its owner, and one of its paths below the root; an empty one if it
    /// has none, or only a longer one.
    LostFile { file: FileId, uid: u32, path: Opaque<LOST_PATH_BYTES_MAX> }

    /// Arguments of RETAIN: what the session says of the bytes of a file that only its client has.
    /// It has a write lease on the file. The call can be made again.
    #[derive(Copy)]
    Retain { sequence: Sequence, file: FileId, what: Retention }
}

xdr_union! {
    /// What to open: a known file, a name, or a name that is created if it does not exist.
    OpenWhat { 0 => File(FileId), 1 => Name(Dentry), 2 => Create(Create) }
}

xdr_union! {
    /// What to make.
    MakeWhat { 0 => Directory, 1 => Symlink(Target), 2 => Special(Special) }
}

xdr_union! {
    /// What to look at: a known file, or a name.
    LookAt { 0 => File(FileId), 1 => Name(Dentry) }
}

xdr_union! {
    /// Whether a file's bytes are in its writer's memory: not any more, as they are elsewhere or
    /// are not wanted; so many bytes from the start of the file on; not any more, they are lost.
    #[derive(Copy)]
    Retention { 0 => Released, 1 => Retained(u64), 2 => GivenUp }
}

xdr_enum! {
    /// Whether an extended attribute may or must exist before it is set (setxattr(2)).
    IfSet { Either = 0, Create = 1, Replace = 2 }
}

procedures! { PROGRAM, VERSION;
    0 Null => (), 1 Session => Res<SessionGiven>, 2 Renew => Res<Renewed>,
    3 EndSession => Res<()>, 4 GetAttr => Res<Attributes>, 5 SetAttr => Res<FileChanged>,
    6 Lookup => Res<LookedUp>, 7 Open => Res<Opened>, 8 Close => Res<()>,
    9 GetCaps => Res<LayoutGiven>, 10 Alloc => Res<LayoutGiven>,
    11 CommitExtents => Res<FileChanged>, 12 Punch => Res<FileChanged>, 13 MkDir => Res<Made>,
    14 Symlink => Res<Made>, 15 ReadLink => Res<LinkRead>, 16 MkNod => Res<Made>,
    17 Link => Res<NameChanged>, 18 Remove => Res<NameChanged>, 19 RmDir => Res<NameChanged>,
    20 Rename => Res<Renamed>, 21 ReadDir => Res<Entries>, 22 Access => Res<AccessGiven>,
    23 FsStat => Res<Space>, 24 GetXattr => Res<XattrGot>, 25 SetXattr => Res<FileChanged>,
    26 ListXattr => Res<XattrNames>, 27 RemoveXattr => Res<FileChanged>, 28 ReturnLease => Res<()>,
    29 Look => Res<LookedAt>, 30 Lock => Res<Attributes>, 31 TestLock => Res<LockTested>,
    32 AwaitLock => Res<LockAwaited>, 33 ForgoLock => Res<()>,
    34 LocksClaimed => Res<()>, 35 Preallocate => Res<FileChanged>, 36 Destage => Res<()>,
    37 Archive => Res<ArchiveTold>, 38 Make => Res<Made>, 39 Lost => Res<LostTold>,
    40 Retain => Res<()>, 41 AllocNear => Res<LayoutGiven>,
}

impl From<Alloc> for AllocNear {
    /// Wherever there is room.
    fn from(alloc: Alloc) -> AllocNear {
        AllocNear { alloc, near: Array::default() }
    }
}

impl Entry {
    /// Bytes that the entry takes in [`Entries`], with which a server fills a reply.
    pub fn encoded_bytes(&self) -> usize {
        let attributes = self.attributes.map_or(0, |_| super::words::ATTRIBUTES_BYTES);
        xdr::opaque_len(self.name.len()) + 8 + 8 + 4 + attributes
    }
}

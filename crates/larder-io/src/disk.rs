//! What larder asks of a local disk: a small tree of private files.
//!
//! Paths are relative, use `/`, and name no `.` or `..`. Directories are private to the user (mode
//! 0700), files too (0600). Durability is what POSIX promises and no more: a file's bytes after
//! [`DiskFile::sync_data`], its name after [`Disk::sync_dir`] of its directory, both after
//! [`Disk::sync_all`]. Errors are [`std::io::Error`] with the system's error number.

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// How [`Disk::open`] treats a missing or an existing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must exist.
    Existing,
    /// The file is created if it is missing.
    Create,
    /// The file must not exist and is created.
    CreateNew,
}

/// Room on the file system that holds a [`Disk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that unprivileged users may fill: the size of the file system without the blocks that
    /// it reserves for root, as df(1) counts for its percentage.
    pub total_bytes: u64,
    /// Bytes that an unprivileged user may still write.
    pub free_bytes: u64,
    /// Inodes in all; zero where the file system does not count them.
    pub total_inodes: u64,
    /// Inodes free; zero where the file system does not count them.
    pub free_inodes: u64,
}

/// The kind of file system that holds a [`Disk`]: the kernel's magic number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsKind(pub u64);

impl FsKind {
    /// `FUSE_SUPER_MAGIC` of linux/magic.h.
    pub const FUSE: FsKind = FsKind(0x6573_5546);
    /// `TMPFS_MAGIC` of linux/magic.h.
    pub const TMPFS: FsKind = FsKind(0x0102_1994);
}

/// Which users may make names in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// The owner alone.
    Owner,
    /// The owner and a group.
    Group,
    /// All users.
    All,
}

/// Values that every change of a file alters: a cheap proof that the file was not touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Inode number.
    pub ino: u64,
    /// Length, in bytes.
    pub size: u64,
    /// Time of the last change of the data, in nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// Time of the last change of data or attributes, in nanoseconds since the epoch.
    pub ctime_ns: i64,
}

/// A tree of files. All methods may block on the disk.
pub trait Disk: Debug + Send + Sync {
    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// `NotFound` and `AlreadyExists` as [`OpenMode`] says; `EMFILE` without a free descriptor.
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;

    /// Removes a file's name. Open descriptors keep the file. Not durable before `sync_dir`.
    ///
    /// # Errors
    /// `NotFound` if there is no such name.
    fn remove(&self, path: &str) -> io::Result<()>;

    /// Gives a file another name, replacing what has it. Not durable before `sync_dir`.
    ///
    /// # Errors
    /// `NotFound` if there is no such name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Names in a directory, in no order, without `.` and `..`. `""` is the root. Costs a walk.
    ///
    /// # Errors
    /// `NotFound` if there is no such directory.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;

    /// Creates a directory and its parents where missing. Not durable before `sync_dir` of their
    /// parents.
    ///
    /// # Errors
    /// Those of mkdir(2), but not `EEXIST`.
    fn create_dir_all(&self, dir: &str) -> io::Result<()>;

    /// Makes the names in a directory durable. `""` is the root.
    ///
    /// # Errors
    /// Those of fsync(2).
    fn sync_dir(&self, dir: &str) -> io::Result<()>;

    /// Makes all written bytes and names durable; cheaper than many single syncs.
    ///
    /// # Errors
    /// Those of syncfs(2).
    fn sync_all(&self) -> io::Result<()>;

    /// Room left.
    ///
    /// # Errors
    /// Those of statvfs(3).
    fn space(&self) -> io::Result<Space>;

    /// Kind of the file system below.
    ///
    /// # Errors
    /// Those of statfs(2).
    fn kind(&self) -> io::Result<FsKind>;

    /// Which users may make names in the root.
    ///
    /// # Errors
    /// Those of fstat(2).
    fn writers(&self) -> io::Result<Writers> {
        Ok(Writers::Owner)
    }

    /// Removes all access to the root except its owner's. Call it only for a directory that is
    /// known to be ours.
    ///
    /// # Errors
    /// Those of chmod(2).
    fn make_private(&self) -> io::Result<()> {
        Ok(())
    }

    /// Whether other processes can find its files after this process has ended.
    fn outlives_process(&self) -> bool {
        true
    }
}

/// An open file of a [`Disk`]. All methods may block on the disk; all may run concurrently.
pub trait DiskFile: Debug + Send + Sync {
    /// Reads up to `buf.len()` bytes; fewer only if the file ends.
    ///
    /// # Errors
    /// Those of pread(2).
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `data`. Not durable before `sync_data`.
    ///
    /// # Errors
    /// Those of pwrite(2); a part of `data` may then be written.
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;

    /// Truncates or extends the file; new bytes are zeros.
    ///
    /// # Errors
    /// Those of ftruncate(2).
    fn set_len(&self, len_bytes: u64) -> io::Result<()>;

    /// Makes a range read as zeros and frees its blocks; the length stays.
    ///
    /// # Errors
    /// Those of fallocate(2).
    fn punch_hole(&self, range: Range<u64>) -> io::Result<()>;

    /// Extends the file to `len_bytes`, with allocated blocks where the disk can allocate them.
    ///
    /// # Errors
    /// Those of fallocate(2) and ftruncate(2), including `ENOSPC`; a part may then be allocated.
    fn allocate(&self, len_bytes: u64) -> io::Result<()> {
        self.set_len(len_bytes)
    }

    /// Makes the file's bytes and length durable, not its name.
    ///
    /// # Errors
    /// Those of fdatasync(2). After one, what was written since the last sync may be lost.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes the bytes of a range durable, and the file's length, not its name. Other bytes may
    /// stay in memory: in a large file that was just filled, they would take long.
    ///
    /// # Errors
    /// Those of [`DiskFile::sync_data`].
    fn sync_range(&self, range: Range<u64>) -> io::Result<()> {
        let _ = range;
        self.sync_data()
    }

    /// Length and times, as witnesses of change.
    ///
    /// # Errors
    /// Those of fstat(2).
    fn stamp(&self) -> io::Result<Stamp>;

    /// Sets the time of the last change of the data, in nanoseconds since the epoch.
    ///
    /// # Errors
    /// Those of utimensat(2).
    fn set_modified(&self, mtime_ns: i64) -> io::Result<()>;

    /// Takes the file's lock until this open file is dropped; `false` if another open file has it.
    ///
    /// # Errors
    /// Those of flock(2), but not `EWOULDBLOCK`.
    fn try_lock_exclusive(&self) -> io::Result<bool>;

    /// The descriptor, for the kernel's use; `None` where there is none.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Ranges of `within` that may hold bytes other than zeros, in order; all of it if the file
    /// system does not report holes.
    ///
    /// # Errors
    /// Those of lseek(2).
    fn data_ranges(&self, within: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        Ok(vec![within])
    }

    /// Length, in bytes.
    ///
    /// # Errors
    /// Those of fstat(2).
    fn len(&self) -> io::Result<u64> {
        Ok(self.stamp()?.size)
    }

    /// Whether it is a block device: its length is given, and what it had before is on it.
    ///
    /// # Errors
    /// Those of fstat(2).
    fn is_device(&self) -> io::Result<bool> {
        Ok(false)
    }

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// Those of fstat(2).
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `buf`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before; else those of [`DiskFile::read_at`].
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_at(buf, offset)? == buf.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

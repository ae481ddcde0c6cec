//! A directory of the machine as a [`Disk`].
//!
//! Invariants: every path is resolved below the root's descriptor, so a rename of the root's
//! parents does no harm; the root belongs to us. After [`Disk::make_private`] no other user may
//! enter it: a directory whose content is not known to be ours keeps its mode.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{
    self, AtFlags, CWD, FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom,
};
use rustix::io::Errno;
use rustix::mm::{self, MapFlags, MsyncFlags, ProtFlags};

use crate::disk::{Disk, DiskFile, FsKind, OpenMode, Space, Stamp, Writers};

const DIR_MODE: Mode = Mode::RWXU;
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A directory that belongs to this process's user.
#[derive(Debug)]
pub struct RealDisk {
    root: OwnedFd,
}

impl RealDisk {
    /// Opens a directory that exists, and changes nothing.
    ///
    /// # Errors
    /// `PermissionDenied` if the directory belongs to another user; else those of open(2).
    pub fn open(path: &Path) -> io::Result<RealDisk> {
        let root = fs::openat(CWD, path, dir_flags(), Mode::empty())?;
        let stat = fs::fstat(&root)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            let message = format!("{} belongs to user {}", path.display(), stat.st_uid);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        Ok(RealDisk { root })
    }

    fn open_dir(&self, dir: &str) -> io::Result<OwnedFd> {
        let path = if dir.is_empty() { "." } else { dir };
        Ok(fs::openat(&self.root, path, dir_flags(), Mode::empty())?)
    }
}

fn dir_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC
}

/// The directory part of a path; `""` for a name in the root.
pub(crate) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

impl Disk for RealDisk {
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let create = match mode {
            OpenMode::Existing => OFlags::empty(),
            OpenMode::Create => OFlags::CREATE,
            OpenMode::CreateNew => OFlags::CREATE | OFlags::EXCL,
        };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | create;
        let fd = fs::openat(&self.root, path, flags, FILE_MODE)?;
        Ok(Arc::new(RealFile::new(fd)))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        Ok(fs::unlinkat(&self.root, path, AtFlags::empty())?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(fs::renameat(&self.root, from, &self.root, to)?)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::Dir::read_from(self.open_dir(dir)?)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                names.push(name.to_string_lossy().into_owned());
            }
        }
        Ok(names)
    }

    fn create_dir_all(&self, dir: &str) -> io::Result<()> {
        let ends = dir.match_indices('/').map(|(at, _)| at).chain([dir.len()]);
        for path in ends.map(|end| &dir[..end]) {
            match fs::mkdirat(&self.root, path, DIR_MODE) {
                Ok(()) | Err(Errno::EXIST) => (),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        Ok(fs::fsync(self.open_dir(dir)?)?)
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(fs::syncfs(&self.root)?)
    }

    fn space(&self) -> io::Result<Space> {
        let stat = fs::fstatvfs(&self.root)?;
        let reserved = stat.f_bfree.saturating_sub(stat.f_bavail);
        Ok(Space {
            total_bytes: stat.f_blocks.saturating_sub(reserved).saturating_mul(stat.f_frsize),
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            total_inodes: stat.f_files,
            free_inodes: stat.f_favail,
        })
    }

    fn writers(&self) -> io::Result<Writers> {
        let mode = Mode::from_raw_mode(fs::fstat(&self.root)?.st_mode);
        Ok(match () {
            () if mode.contains(Mode::WOTH) => Writers::All,
            () if mode.contains(Mode::WGRP) => Writers::Group,
            () => Writers::Owner,
        })
    }

    fn make_private(&self) -> io::Result<()> {
        if fs::fstat(&self.root)?.st_mode & 0o077 != 0 {
            fs::fchmod(&self.root, DIR_MODE)?;
        }
        Ok(())
    }

    fn kind(&self) -> io::Result<FsKind> {
        // The type of `f_type` differs between architectures; magic numbers have 32 bits.
        Ok(FsKind(fs::fstatfs(&self.root)?.f_type as u64 & 0xffff_ffff))
    }
}

/// A file that has a descriptor of the kernel.
#[derive(Debug)]
pub(crate) struct RealFile {
    fd: OwnedFd,
    is_locked: AtomicBool,
}

impl RealFile {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd, is_locked: AtomicBool::new(false) }
    }
}

impl Drop for RealFile {
    fn drop(&mut self) {
        if *self.is_locked.get_mut() {
            // A process that is being started has inherited the descriptor, and the lock with it,
            // until its exec: to close ours is not enough.
            let _ = fs::flock(&self.fd, FlockOperation::Unlock);
        }
    }
}

/// In a second.
const NANOS: i64 = 1_000_000_000;

fn is_device(stat: &fs::Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice
}

impl DiskFile for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match rustix::io::pread(&self.fd, &mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => (),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(done)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(&self.fd, &data[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(Errno::INTR) => (),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        Ok(fs::ftruncate(&self.fd, len_bytes)?)
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fs::fallocate(&self.fd, flags, range.start, range.end - range.start)?)
    }

    fn allocate(&self, len_bytes: u64) -> io::Result<()> {
        match fs::fallocate(&self.fd, FallocateFlags::empty(), 0, len_bytes) {
            Err(Errno::OPNOTSUPP) => self.set_len(len_bytes),
            allocated => Ok(allocated?),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(fs::fdatasync(&self.fd)?)
    }

    /// By msync(2): of the calls that sync a file, it alone takes a range, and does for that range
    /// what fdatasync(2) does (`vfs_fsync_range` in the kernel).
    #[allow(unsafe_code)]
    fn sync_range(&self, range: Range<u64>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let start = range.start - range.start % rustix::param::page_size() as u64;
        let (Ok(len), flags) = (usize::try_from(range.end - start), MapFlags::SHARED) else {
            return self.sync_data();
        };
        let place = std::ptr::null_mut();
        // SAFETY: a new mapping, at a place of the kernel's choice, touches no memory of ours.
        let mapped = unsafe { mm::mmap(place, len, ProtFlags::READ, flags, &self.fd, start) };
        // A file system need not support mappings, and a process has only so many.
        let Ok(mapped) = mapped else { return self.sync_data() };
        // SAFETY: the mapping has this length, and no byte of it is read or written here.
        let synced = unsafe { mm::msync(mapped, len, MsyncFlags::SYNC) };
        // SAFETY: it is the mapping from above, and nothing refers to it.
        let unmapped = unsafe { mm::munmap(mapped, len) };
        debug_assert_eq!(unmapped, Ok(()));
        Ok(synced?)
    }

    fn stamp(&self) -> io::Result<Stamp> {
        let stat = fs::fstat(&self.fd)?;
        let size = match is_device(&stat) {
            true => fs::seek(&self.fd, SeekFrom::End(0))?,
            false => stat.st_size.unsigned_abs(),
        };
        Ok(Stamp {
            ino: stat.st_ino,
            size,
            mtime_ns: nanos(stat.st_mtime, stat.st_mtime_nsec),
            ctime_ns: nanos(stat.st_ctime, stat.st_ctime_nsec),
        })
    }

    fn is_device(&self) -> io::Result<bool> {
        Ok(is_device(&fs::fstat(&self.fd)?))
    }

    fn set_modified(&self, mtime_ns: i64) -> io::Result<()> {
        let (tv_sec, tv_nsec) = (mtime_ns.div_euclid(NANOS), mtime_ns.rem_euclid(NANOS));
        let last_modification = fs::Timespec { tv_sec, tv_nsec };
        let last_access = fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT };
        Ok(fs::futimens(&self.fd, &fs::Timestamps { last_access, last_modification })?)
    }

    /// This moves the position of the descriptor, which no other code uses.
    fn data_ranges(&self, within: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let mut ranges = Vec::new();
        let mut at = within.start;
        while at < within.end {
            let start = match fs::seek(&self.fd, SeekFrom::Data(at)) {
                Ok(start) => start,
                // There is no data after this offset.
                Err(Errno::NXIO) => break,
                // The file system does not know; lseek(2) has it answer as if there were no holes.
                Err(Errno::INVAL) => at,
                Err(error) => return Err(error.into()),
            };
            let end = match fs::seek(&self.fd, SeekFrom::Hole(start)) {
                Ok(end) => end,
                // Another process has truncated the file in the meantime.
                Err(Errno::NXIO) => break,
                Err(Errno::INVAL) => within.end,
                Err(error) => return Err(error.into()),
            };
            if start < within.end {
                ranges.push(start..end.min(within.end));
            }
            at = end;
        }
        Ok(ranges)
    }

    fn try_lock_exclusive(&self) -> io::Result<bool> {
        match fs::flock(&self.fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                self.is_locked.store(true, Ordering::Relaxed);
                Ok(true)
            }
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}

fn nanos(sec: i64, nsec: impl TryInto<i64>) -> i64 {
    sec.saturating_mul(NANOS).saturating_add(nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// A copy of the descriptor, as a process has that is being started, does not hold the lock.
    #[test]
    fn a_lock_ends_when_its_file_is_dropped_though_a_process_has_inherited_it() {
        let folder = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(folder.path()).unwrap();
        let open = || disk.open("lock", OpenMode::Create).unwrap();
        let (first, second) = (open(), open());
        assert!(first.try_lock_exclusive().unwrap());
        let inherited = first.as_fd().unwrap().try_clone_to_owned().unwrap();
        assert!(!second.try_lock_exclusive().unwrap());
        drop(open());
        assert!(!second.try_lock_exclusive().unwrap(), "only by the file that has it");
        drop(first);
        assert!(second.try_lock_exclusive().unwrap());
        drop(inherited);
    }

    /// No page of a range waits for being written after its sync. (What lies outside may wait, but
    /// anybody who syncs the file system writes it.)
    #[test]
    fn a_range_is_synced() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let disk = RealDisk::open(folder.path()).unwrap();
        let file = disk.open("file", OpenMode::Create).unwrap();
        for range in [5000..5001, 3 << 20..(3 << 20) + 4096, 0..8 << 20, 0..0, 9 << 20..9 << 21] {
            file.write_at(&vec![7; 8 << 20], 0).unwrap();
            file.sync_range(range.clone()).unwrap();
            assert_eq!(pages_to_write(&*file, range.clone()), 0, "{range:?}");
        }
    }

    /// Pages of a range that are dirty or being written: cachestat(2).
    #[allow(unsafe_code)]
    fn pages_to_write(file: &dyn DiskFile, range: Range<u64>) -> u64 {
        const CACHESTAT: libc::c_long = 451;
        if range.is_empty() {
            return 0;
        }
        let fd = file.as_fd().unwrap().as_raw_fd();
        let (within, mut found) = ([range.start, range.end - range.start], [0_u64; 5]);
        // SAFETY: the kernel reads two numbers and writes five, for which there is room.
        let done = unsafe { libc::syscall(CACHESTAT, fd, within.as_ptr(), found.as_mut_ptr(), 0) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
        let [_cached, dirty, written, ..] = found;
        dirty + written
    }

    /// Blocks reserved for root count neither as free nor as part of the total. Otherwise a disk
    /// that is half empty for its users could count as full.
    #[test]
    fn room_is_what_df_counts() {
        let folder = tempfile::tempdir().unwrap();
        let said = std::process::Command::new("df")
            .args(["--block-size=1", "--output=used,avail"])
            .arg(folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let sum: u64 = said
            .lines()
            .nth(1)
            .unwrap()
            .split_whitespace()
            .map(|word| word.parse::<u64>().unwrap())
            .sum();
        assert_eq!(RealDisk::open(folder.path()).unwrap().space().unwrap().total_bytes, sum);
    }
}

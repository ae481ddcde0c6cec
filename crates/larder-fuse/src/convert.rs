//! Our words in fuser's, and back.
//!
//! Times before 1970 come from fuser with the nanoseconds on the wrong side: it builds
//! `1970 - (seconds + nanoseconds)` where `1970 - seconds + nanoseconds` is meant. [`time_from`] undoes
//! that without loss.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use larder_vfs::{Access, Attr, Device, Ino, Kind, OpenFlags, SetTime, Stability, Time};

/// Block size shown by stat(2), in bytes. The kernel derives the inode's block bits from it, which may
/// not exceed a page.
pub(crate) const BLOCK_BYTES: u32 = 4096;

/// Generation of every inode: an [`Ino`] is never reused.
pub(crate) const GENERATION: fuser::Generation = fuser::Generation(0);

/// Set by the kernel in the flags of an open for execve(2); `FMODE_EXEC` in `include/linux/fs.h`.
const OPEN_FOR_EXECUTION: i32 = 0x20;

/// Attributes as the kernel takes them. `st_ino` is the node id: fuser has one field for both.
pub(crate) fn file_attr(ino: Ino, attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino.0),
        size: attr.size,
        blocks: attr.used.div_ceil(512),
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(attr.kind),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: device_number(attr.device),
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// Attributes that say nothing: of a name that is absent (node id 0), or of `.` and `..` in a
/// listing, where the kernel looks at the number and the type alone.
pub(crate) fn blank_attr(ino: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::Directory,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

/// Kind of the object that mknod(2) is to make, from its mode.
pub(crate) fn kind_from_mode(mode: u32) -> Option<Kind> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Some(Kind::File),
        libc::S_IFIFO => Some(Kind::Fifo),
        libc::S_IFSOCK => Some(Kind::Socket),
        libc::S_IFCHR => Some(Kind::CharDevice),
        libc::S_IFBLK => Some(Kind::BlockDevice),
        _ => None,
    }
}

/// `new_encode_dev` of `include/linux/kdev_t.h`: 12 bits of major and 20 of minor number.
fn device_number(device: Device) -> u32 {
    (device.minor & 0xff) | ((device.major & 0xfff) << 8) | ((device.minor & 0xf_ff00) << 12)
}

/// `new_decode_dev`.
pub(crate) fn device_from(number: u32) -> Device {
    Device { major: (number >> 8) & 0xfff, minor: (number & 0xff) | ((number >> 12) & 0xf_ff00) }
}

fn system_time(time: Time) -> SystemTime {
    let whole = Duration::from_secs(time.sec.unsigned_abs());
    let base =
        if time.sec < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    base.and_then(|base| base.checked_add(Duration::from_nanos(time.nsec.into())))
        .unwrap_or(UNIX_EPOCH)
}

fn time_from(time: SystemTime) -> Time {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Time { sec: after.as_secs() as i64, nsec: after.subsec_nanos() },
        Err(error) => {
            let before = error.duration();
            Time { sec: -(before.as_secs() as i64), nsec: before.subsec_nanos() }
        }
    }
}

/// A time to set.
pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::ServerNow,
        TimeOrNow::SpecificTime(time) => SetTime::To(time_from(time)),
    }
}

/// How open(2) wants the file.
pub(crate) fn open_flags(flags: i32) -> OpenFlags {
    let mode = flags & libc::O_ACCMODE;
    OpenFlags {
        read: mode == libc::O_RDONLY || mode == libc::O_RDWR,
        write: mode == libc::O_WRONLY || mode == libc::O_RDWR,
        truncate: flags & libc::O_TRUNC != 0,
        append: flags & libc::O_APPEND != 0,
        direct: flags & libc::O_DIRECT != 0,
        sync: flags & libc::O_DSYNC != 0,
        exclusive: flags & libc::O_EXCL != 0,
        execute: flags & OPEN_FOR_EXECUTION != 0,
    }
}

/// How durable a write must be before it is answered, from the flags of the open file.
pub(crate) fn stability(flags: i32) -> Stability {
    if flags & libc::O_SYNC == libc::O_SYNC {
        Stability::FileSync
    } else if flags & libc::O_DSYNC != 0 {
        Stability::DataSync
    } else {
        Stability::Unstable
    }
}

/// Rights to ask for, for the bits of access(2).
pub(crate) fn access_wanted(mask: i32) -> Access {
    let mut wanted = Access::NONE;
    if mask & libc::R_OK != 0 {
        wanted = wanted | Access::READ;
    }
    if mask & libc::W_OK != 0 {
        wanted = wanted | Access::MODIFY | Access::EXTEND;
    }
    if mask & libc::X_OK != 0 {
        wanted = wanted | Access::EXECUTE | Access::LOOKUP;
    }
    wanted
}

/// Whether `granted` covers the bits of access(2). `X_OK` is one right on files and another on
/// directories, and a server grants the one that has a meaning.
pub(crate) fn access_granted(mask: i32, granted: Access) -> bool {
    let search = Access::EXECUTE | Access::LOOKUP;
    (mask & libc::R_OK == 0 || granted.contains(Access::READ))
        && (mask & libc::W_OK == 0 || granted.contains(Access::MODIFY | Access::EXTEND))
        && (mask & libc::X_OK == 0 || granted & search != Access::NONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip() {
        for (major, minor) in [(0, 0), (1, 3), (8, 255), (8, 256), (0xfff, 0xf_ffff), (259, 70_000)]
        {
            let device = Device { major, minor };
            assert_eq!(device_from(device_number(device)), device);
        }
        assert_eq!(device_number(Device { major: 8, minor: 1 }), 0x801);
    }

    #[test]
    fn times_before_1970() {
        let time = Time { sec: -2, nsec: 800_000_000 };
        assert_eq!(system_time(time), UNIX_EPOCH - Duration::from_millis(1200));
        // What fuser makes of (-2 s, 800,000,000 ns).
        let from_fuser = UNIX_EPOCH - Duration::new(2, 800_000_000);
        assert_eq!(time_from(from_fuser), time);
        assert_eq!(
            system_time(Time { sec: i64::MIN, nsec: 0 }).duration_since(UNIX_EPOCH).ok(),
            None
        );
    }

    #[test]
    fn open_flags_of_the_kernel() {
        let flags = open_flags(libc::O_RDWR | libc::O_TRUNC | libc::O_SYNC);
        assert!(flags.read && flags.write && flags.truncate && flags.sync);
        assert!(!flags.append && !flags.execute);
        assert!(open_flags(OPEN_FOR_EXECUTION).execute);
        assert_eq!(stability(libc::O_SYNC), Stability::FileSync);
        assert_eq!(stability(libc::O_DSYNC), Stability::DataSync);
        assert_eq!(stability(libc::O_APPEND), Stability::Unstable);
    }

    #[test]
    fn execute_is_search_on_directories() {
        assert!(access_granted(libc::X_OK, Access::LOOKUP));
        assert!(access_granted(libc::X_OK, Access::EXECUTE));
        assert!(!access_granted(libc::X_OK | libc::R_OK, Access::EXECUTE));
        assert!(!access_granted(libc::W_OK, Access::MODIFY));
        assert!(access_granted(libc::F_OK, Access::NONE));
    }
}

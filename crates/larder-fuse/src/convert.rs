//! Converts larder's types to the kernel's, and back.

use std::time::Duration;

use larder_vfs::{
    Access, Attr, Device, Entry, Fresh, Ino, Kind, OpenFlags, SetAttr, SetTime, Stability, Time,
};

use crate::abi::{self, EntryOut, SetattrIn, fattr};

/// Block size shown by stat(2), in bytes. The kernel derives the inode's block bits from it, which
/// may not exceed a page.
pub(crate) const BLOCK_BYTES: u32 = 4096;

/// Set by the kernel in the flags of an open for execve(2); `FMODE_EXEC` in `include/linux/fs.h`.
const OPEN_FOR_EXECUTION: i32 = 0x20;

/// Attributes as the kernel takes them. `st_ino` is the node id: it stays the same for as long as
/// the cache knows the file, and is unique where a server's numbers are not.
fn attr_out(ino: Ino, attr: &Attr) -> abi::Attr {
    abi::Attr {
        ino: ino.0,
        size: attr.size,
        blocks: attr.used.div_ceil(512),
        atime: attr.atime.sec as u64,
        mtime: attr.mtime.sec as u64,
        ctime: attr.ctime.sec as u64,
        atimensec: attr.atime.nsec,
        mtimensec: attr.mtime.nsec,
        ctimensec: attr.ctime.nsec,
        mode: file_type(attr.kind) | (attr.mode & 0o7777),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: device_number(attr.device),
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// Attributes with their time to live.
pub(crate) fn attributes(ino: Ino, fresh: &Fresh) -> abi::AttrOut {
    abi::AttrOut {
        attr_valid: fresh.ttl.as_secs(),
        attr_valid_nsec: fresh.ttl.subsec_nanos(),
        dummy: 0,
        attr: attr_out(ino, &fresh.attr),
    }
}

/// A name's entry. The generation is 0: an [`Ino`] is never reused.
pub(crate) fn entry(entry: &Entry) -> EntryOut {
    EntryOut {
        nodeid: entry.ino.0,
        generation: 0,
        entry_valid: entry.ttl.as_secs(),
        attr_valid: entry.fresh.ttl.as_secs(),
        entry_valid_nsec: entry.ttl.subsec_nanos(),
        attr_valid_nsec: entry.fresh.ttl.subsec_nanos(),
        attr: attr_out(entry.ino, &entry.fresh.attr),
    }
}

/// Node id 0 stands for "no such name", to be believed for the time that comes with it.
pub(crate) fn absent(ttl: Duration) -> EntryOut {
    EntryOut {
        entry_valid: ttl.as_secs(),
        entry_valid_nsec: ttl.subsec_nanos(),
        ..EntryOut::default()
    }
}

/// The type bits of a mode.
pub(crate) fn file_type(kind: Kind) -> u32 {
    match kind {
        Kind::File => libc::S_IFREG,
        Kind::Directory => libc::S_IFDIR,
        Kind::Symlink => libc::S_IFLNK,
        Kind::Fifo => libc::S_IFIFO,
        Kind::Socket => libc::S_IFSOCK,
        Kind::CharDevice => libc::S_IFCHR,
        Kind::BlockDevice => libc::S_IFBLK,
    }
}

/// Attributes to set.
pub(crate) fn set_attr(set: &SetattrIn) -> SetAttr {
    let given = |flag: u32| set.valid & flag != 0;
    let time = |flag: u32, now: u32, sec: u64, nsec: u32| match (given(now), given(flag)) {
        (true, _) => Some(SetTime::ServerNow),
        (false, true) => Some(SetTime::To(Time { sec: sec as i64, nsec: nsec.min(999_999_999) })),
        (false, false) => None,
    };
    SetAttr {
        mode: given(fattr::MODE).then_some(set.mode & 0o7777),
        uid: given(fattr::UID).then_some(set.uid),
        gid: given(fattr::GID).then_some(set.gid),
        size: given(fattr::SIZE).then_some(set.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, set.atime, set.atimensec),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, set.mtime, set.mtimensec),
        in_memory: None,
        retained: false,
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
    fn times_before_1970_keep_their_nanoseconds() {
        let time = Time { sec: -2, nsec: 800_000_000 };
        let set = SetattrIn {
            valid: fattr::MTIME | fattr::ATIME | fattr::ATIME_NOW,
            mtime: time.sec as u64,
            mtimensec: time.nsec,
            ..SetattrIn::default()
        };
        let set = set_attr(&set);
        assert_eq!(set.mtime, Some(SetTime::To(time)));
        assert_eq!(set.atime, Some(SetTime::ServerNow));
        assert_eq!((set.mode, set.uid, set.gid, set.size), (None, None, None, None));
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

//! Converts the kernel's description of an open file to larder's types.

use std::os::fd::AsFd;

use larder_vfs::{Attr, Device, Error, Kind, Result, Time};
use rustix::fs::{AtFlags, FileType, StatxFlags, StatxTimestamp, fstat, statx};

use super::errors::error;

/// Permission bits with set-uid, set-gid and sticky.
pub(super) const MODE_BITS: u32 = 0o7777;
/// Unit of `stx_blocks`, in bytes (statx(2)).
const BLOCK_BYTES: u64 = 512;

/// Attributes of an open file, except [`Attr::fsid`], and the number of its device.
pub(super) fn attributes(fd: impl AsFd) -> Result<(Attr, u64)> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let found = statx(fd, c"", AtFlags::EMPTY_PATH, mask).map_err(error)?;
    let has_birth = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
    let stamp = |t: StatxTimestamp| Time { sec: t.tv_sec, nsec: t.tv_nsec };
    let mode = u32::from(found.stx_mode);
    let attr = Attr {
        kind: kind(FileType::from_raw_mode(mode))?,
        mode: mode & MODE_BITS,
        nlink: found.stx_nlink,
        uid: found.stx_uid,
        gid: found.stx_gid,
        device: Device { major: found.stx_rdev_major, minor: found.stx_rdev_minor },
        size: found.stx_size,
        used: found.stx_blocks.saturating_mul(BLOCK_BYTES),
        fsid: 0,
        fileid: found.stx_ino,
        atime: stamp(found.stx_atime),
        mtime: stamp(found.stx_mtime),
        ctime: stamp(found.stx_ctime),
        change: None,
        data_change: None,
        birth: has_birth.then(|| stamp(found.stx_btime)),
    };
    Ok((attr, rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor)))
}

/// Type of an open file.
pub(super) fn kind_of(fd: impl AsFd) -> Result<Kind> {
    let found = fstat(fd).map_err(error)?;
    kind(FileType::from_raw_mode(found.st_mode))
}

/// The kernel's file types in our words.
pub(super) fn kind(from: FileType) -> Result<Kind> {
    match from {
        FileType::RegularFile => Ok(Kind::File),
        FileType::Directory => Ok(Kind::Directory),
        FileType::Symlink => Ok(Kind::Symlink),
        FileType::Fifo => Ok(Kind::Fifo),
        FileType::Socket => Ok(Kind::Socket),
        FileType::CharacterDevice => Ok(Kind::CharDevice),
        FileType::BlockDevice => Ok(Kind::BlockDevice),
        FileType::Unknown => Err(Error::Io),
    }
}

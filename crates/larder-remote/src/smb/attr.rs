//! Converts the server's description of a file to POSIX terms.

use super::handle::Identity;
use super::mount::MountOptions;
use larder_vfs::{Access, Attr, Cred, Device, Error, Kind, Result, Time};
use smb2::msg::directory_info::DirectoryInfoEntry;
use smb2::pack::ReadCursor;
use smb2::types::flags::{FileAccessMask, FileAttributes};

/// `FileAllInformation` (MS-FSCC, 2.4.2).
pub(super) const ALL_INFORMATION: u8 = 18;
/// 1601 to 1970, in seconds.
const EPOCH_SEC: i64 = 11_644_473_600;
/// FILETIME counts 100 ns.
const TICKS_PER_SEC: i64 = 10_000_000;

/// What the server reports of a file. Times are FILETIMEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Info {
    pub(super) created: u64,
    pub(super) accessed: u64,
    pub(super) written: u64,
    pub(super) changed: u64,
    pub(super) attributes: u32,
    pub(super) allocation: u64,
    pub(super) size: u64,
    pub(super) links: u32,
    pub(super) file_id: u64,
}

/// What `FileAllInformation` reports of an open's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// The path in the share by which it was opened, updated with the renames of other clients.
    pub(super) path: String,
    /// That name was removed, and exists until the last open is closed.
    pub(super) is_going: bool,
}

impl Named {
    pub(super) fn parse(bytes: &[u8]) -> smb2::Result<Named> {
        let mut cursor = ReadCursor::new(bytes);
        // The times, attributes and sizes.
        cursor.skip(56)?;
        let (links, is_going) = (cursor.read_u32_le()?, cursor.read_u8()? != 0);
        // The file's number, and attributes of the open.
        cursor.skip(35)?;
        let length = cursor.read_u32_le()? as usize;
        let path = cursor.read_utf16_le(length)?;
        Ok(Named { path, is_going: is_going || links == 0 })
    }
}

/// What the server does not know: owners and modes of the files, as with `mount.cifs`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) file_mode: u32,
    pub(super) dir_mode: u32,
    pub(super) fsid: u64,
}

impl Info {
    /// Reads `FileAllInformation`, without the name at its end.
    pub(super) fn parse(bytes: &[u8]) -> smb2::Result<Info> {
        let mut cursor = ReadCursor::new(bytes);
        let created = cursor.read_u64_le()?;
        let accessed = cursor.read_u64_le()?;
        let written = cursor.read_u64_le()?;
        let changed = cursor.read_u64_le()?;
        let attributes = cursor.read_u32_le()?;
        cursor.skip(4)?;
        let allocation = cursor.read_u64_le()?;
        let size = cursor.read_u64_le()?;
        let links = cursor.read_u32_le()?;
        cursor.skip(4)?;
        let file_id = cursor.read_u64_le()?;
        Ok(Info {
            created,
            accessed,
            written,
            changed,
            attributes,
            allocation,
            size,
            links,
            file_id,
        })
    }

    /// What a listing reports; it has no link counts.
    pub(super) fn of_entry(entry: &DirectoryInfoEntry) -> Info {
        Info {
            created: entry.creation_time.0,
            accessed: entry.last_access_time.0,
            written: entry.last_write_time.0,
            changed: entry.change_time.0,
            attributes: entry.file_attributes,
            allocation: entry.allocation_size,
            size: entry.end_of_file,
            links: 1,
            file_id: entry.file_id.unwrap_or(0),
        }
    }

    /// Whether the file was not changed between the two.
    pub(super) fn is_same_version(&self, other: &Info) -> bool {
        let version = |info: &Info| (info.size, info.written, info.changed);
        version(self) == version(other)
    }

    /// The server's identification of the file.
    pub(super) fn identity(&self) -> Identity {
        Identity { file_id: self.file_id, directory: self.is_directory() }
    }

    pub(super) fn is_directory(&self) -> bool {
        FileAttributes(self.attributes).is_directory()
    }

    pub(super) fn is_readonly(&self) -> bool {
        !self.is_directory() && FileAttributes(self.attributes).is_readonly()
    }

    pub(super) fn mode(&self, shape: &Shape) -> u32 {
        match (self.is_directory(), self.is_readonly()) {
            (true, _) => shape.dir_mode,
            (false, false) => shape.file_mode,
            (false, true) => shape.file_mode & !0o222,
        }
    }

    pub(super) fn attr(&self, shape: &Shape) -> Attr {
        // A server on FAT reports no change time.
        let changed = if self.changed == 0 { self.written } else { self.changed };
        let directory = self.is_directory();
        Attr {
            kind: if directory { Kind::Directory } else { Kind::File },
            mode: self.mode(shape),
            // One link says that it is not known how many directories are inside.
            nlink: if directory { 1 } else { self.links.max(1) },
            uid: shape.uid,
            gid: shape.gid,
            device: Device::default(),
            size: if directory { 0 } else { self.size },
            used: self.allocation,
            fsid: shape.fsid,
            fileid: self.file_id,
            atime: time(self.accessed),
            mtime: time(self.written),
            ctime: time(changed),
            change: None,
            data_change: None,
            birth: Some(time(self.created)),
        }
    }
}

impl Shape {
    /// As the mount's options say.
    pub(super) fn new(options: &MountOptions, fsid: u64) -> Shape {
        Shape {
            uid: options.uid,
            gid: options.gid,
            file_mode: options.file_mode & 0o777,
            dir_mode: options.dir_mode & 0o777,
            fsid,
        }
    }

    /// The rights that the mode of an object of this kind grants the caller.
    pub(super) fn rights(&self, cred: &Cred, mode: u32, directory: bool) -> Access {
        let bits = if cred.uid == 0 {
            let execute = u32::from(directory || mode & 0o111 != 0);
            0o6 | execute
        } else if cred.uid == self.uid {
            mode >> 6
        } else if cred.in_group(self.gid) {
            mode >> 3
        } else {
            mode
        };
        let right = |bit, right| if bits & bit != 0 { right } else { Access::NONE };
        let change = Access::MODIFY | Access::EXTEND;
        match directory {
            true => {
                right(4, Access::READ)
                    | right(1, Access::LOOKUP)
                    | right(2, change | Access::DELETE)
            }
            false => right(4, Access::READ) | right(2, change) | right(1, Access::EXECUTE),
        }
    }

    /// # Errors
    /// [`Error::AccessDenied`] if the mode of directories does not grant the caller that.
    pub(super) fn may_in_directory(&self, cred: &Cred, wanted: Access) -> Result<()> {
        grants(self.rights(cred, self.dir_mode, true), wanted)
    }

    /// # Errors
    /// [`Error::AccessDenied`] if the mode of files does not grant the caller that.
    pub(super) fn may_with_file(&self, cred: &Cred, wanted: Access) -> Result<()> {
        grants(self.rights(cred, self.file_mode, false), wanted)
    }

    /// Whether the caller owns the mount's files.
    pub(super) fn owned_by(&self, cred: &Cred) -> bool {
        cred.uid == 0 || cred.uid == self.uid
    }
}

fn grants(rights: Access, wanted: Access) -> Result<()> {
    if rights.contains(wanted) { Ok(()) } else { Err(Error::AccessDenied) }
}

/// The rights that a mask of the server comprises.
pub(super) fn access(mask: u32, directory: bool) -> Access {
    let right = |bits: u32, right| if mask & bits == bits { right } else { Access::NONE };
    let write = FileAccessMask::FILE_WRITE_DATA;
    let append = FileAccessMask::FILE_APPEND_DATA;
    let read = right(FileAccessMask::FILE_READ_DATA, Access::READ);
    match directory {
        // Adding files and adding directories are separate rights; servers do not check
        // FILE_TRAVERSE for users who may bypass it, which are all users.
        true => {
            let change = Access::MODIFY | Access::EXTEND | Access::DELETE;
            read | Access::LOOKUP | right(write, change) | right(append, change)
        }
        // A user who may read a program may execute it here.
        false => {
            let execute = right(FileAccessMask::FILE_READ_DATA, Access::EXECUTE);
            read | execute
                | right(write, Access::MODIFY)
                | right(append, Access::EXTEND)
                | right(write, Access::EXTEND)
        }
    }
}

/// A FILETIME in POSIX's terms.
pub(super) fn time(filetime: u64) -> Time {
    let ticks = i64::try_from(filetime).unwrap_or(i64::MAX);
    let nsec = u32::try_from(ticks % TICKS_PER_SEC).unwrap_or(0) * 100;
    Time { sec: ticks / TICKS_PER_SEC - EPOCH_SEC, nsec }
}

/// A time as FILETIME, cut to 100 ns.
///
/// # Errors
/// [`Error::InvalidArgument`] for times before 1601 or after 30828.
pub(super) fn filetime(time: Time) -> Result<u64> {
    let sec = time.sec.checked_add(EPOCH_SEC).filter(|sec| *sec >= 0);
    let ticks = sec.and_then(|sec| sec.checked_mul(TICKS_PER_SEC));
    let ticks = ticks.and_then(|ticks| ticks.checked_add(i64::from(time.nsec / 100)));
    // Zero means "as it is" when it is sent.
    match ticks {
        Some(ticks) if ticks > 0 => Ok(ticks.unsigned_abs()),
        _ => Err(Error::InvalidArgument),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { uid: 10, gid: 20, file_mode: 0o640, dir_mode: 0o751, fsid: 3 };

    fn info(attributes: u32) -> Info {
        Info {
            created: 500,
            accessed: 1000,
            written: 900,
            changed: 800,
            attributes,
            allocation: 4096,
            size: 12,
            links: 2,
            file_id: 77,
        }
    }

    #[test]
    fn times_go_both_ways() {
        for (sec, nsec) in [(0, 0), (1, 100), (-1, 999_999_900), (1_234_567_890, 123_456_700)] {
            let given = Time { sec, nsec };
            assert_eq!(time(filetime(given).unwrap()), given);
        }
        assert_eq!(filetime(Time { sec: 0, nsec: 1 }).unwrap(), 116_444_736_000_000_000);
        for sec in [i64::MIN, -EPOCH_SEC - 1, -EPOCH_SEC, i64::MAX, 1 << 60] {
            assert_eq!(filetime(Time { sec, nsec: 0 }), Err(Error::InvalidArgument), "{sec}");
        }
    }

    #[test]
    fn modes_are_those_of_the_mount() {
        assert_eq!(info(FileAttributes::ARCHIVE).mode(&SHAPE), 0o640);
        assert_eq!(info(FileAttributes::READONLY).mode(&SHAPE), 0o440);
        assert_eq!(info(FileAttributes::READONLY | FileAttributes::DIRECTORY).mode(&SHAPE), 0o751);
        let attr = info(0).attr(&SHAPE);
        assert_eq!((attr.uid, attr.gid, attr.size, attr.nlink, attr.used), (10, 20, 12, 2, 4096));
    }

    #[test]
    fn modes_grant_what_they_say() {
        let rights =
            |uid, gid, mode, directory| SHAPE.rights(&Cred::new(uid, gid, &[]), mode, directory);
        let change = Access::MODIFY | Access::EXTEND;
        assert_eq!(rights(10, 1, 0o640, false), Access::READ | change);
        assert_eq!(rights(11, 20, 0o640, false), Access::READ);
        assert_eq!(rights(11, 21, 0o640, false), Access::NONE);
        assert_eq!(rights(0, 0, 0o000, false), Access::READ | change);
        assert_eq!(rights(0, 0, 0o001, false), Access::READ | change | Access::EXECUTE);
        assert_eq!(rights(11, 21, 0o751, true), Access::LOOKUP);
        assert_eq!(rights(0, 0, 0o000, true), !Access::EXECUTE);
        assert!(SHAPE.may_in_directory(&Cred::new(11, 20, &[]), Access::READ).is_ok());
        assert!(SHAPE.may_in_directory(&Cred::new(11, 20, &[]), Access::MODIFY).is_err());
    }

    #[test]
    fn a_file_is_known_again() {
        let mut seen = info(0);
        let known = seen.identity();
        assert_eq!(seen.identity(), known);
        seen.file_id += 1;
        assert_ne!(seen.identity(), known);
        seen.file_id -= 1;
        seen.created = 600;
        assert_eq!(seen.identity(), known, "a creation time that the server made up");
        seen.attributes = FileAttributes::DIRECTORY;
        assert_ne!(seen.identity(), known, "a directory is no file");
    }

    #[test]
    fn hostile_information_is_an_error() {
        assert!(Info::parse(&[7; 71]).is_err());
        assert!(Info::parse(&[7; 72]).is_ok());
    }
}

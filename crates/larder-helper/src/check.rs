//! Which files a caller may hand over; the crate's documentation gives the reasons. Only
//! descriptors are examined, never a path, so nothing can be exchanged in between.

use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FileType, OFlags, Stat, StatxAttributes, StatxFlags};
use rustix::io::Errno;

/// Device number of `/dev/fuse` (`Documentation/admin-guide/devices.txt`).
const FUSE: (u32, u32) = (10, 229);

/// File systems that hold only data files, by `f_type` (`include/uapi/linux/magic.h`, and the
/// sources of those that are not in Linux), on which a cache can be. A stacked one works if the
/// mount allows for it.
const FOR_DATA: [(u32, &str); 8] = [
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0xf2f5_2010, "f2fs"),
    (0xca45_1a4e, "bcachefs"),
    (0x2fc1_2fc1, "zfs"),
    (0x0102_1994, "tmpfs"),
    (0x794c_7630, "overlay"),
];

/// Checks that it is a descriptor of `/dev/fuse`.
///
/// # Errors
/// `ENODEV` if not.
pub fn fuse_device(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let stat = rustix::fs::fstat(fd)?;
    let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice if device == FUSE => Ok(()),
        _ => Err(Errno::NODEV),
    }
}

/// Checks that it is a file for data that belongs to `uid`, and is open for reading and writing.
///
/// # Errors
/// `EACCES` if it belongs to another user, is not open for both, or is append-only or immutable;
/// `EOPNOTSUPP` if it is no regular file on a file system for data.
pub fn own_file(fd: BorrowedFd<'_>, uid: u32) -> Result<(), Errno> {
    // This check comes first: no other request goes to a file system that we do not know.
    let kind = rustix::fs::fstatfs(fd)?.f_type as u32;
    if !FOR_DATA.iter().any(|(known, _)| *known == kind) {
        return Err(Errno::OPNOTSUPP);
    }
    let stat = rustix::fs::fstat(fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::OPNOTSUPP);
    }
    let open = rustix::fs::fcntl_getfl(fd)?;
    let both = open & OFlags::RWMODE == OFlags::RDWR && !open.contains(OFlags::PATH);
    if both && is_owned_by(&stat, uid) && !is_fixed(fd)? { Ok(()) } else { Err(Errno::ACCESS) }
}

fn is_owned_by(stat: &Stat, uid: u32) -> bool {
    stat.st_uid == uid
}

/// Whether the file is append-only or immutable (chattr(1): `a`, `i`), so that its owner may not
/// change it freely.
fn is_fixed(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let told = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::empty())?;
    let fixed = StatxAttributes::APPEND | StatxAttributes::IMMUTABLE;
    Ok(told.stx_attributes.intersects(fixed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    fn own_uid() -> u32 {
        rustix::process::getuid().as_raw()
    }

    #[test]
    fn only_the_fuse_device_is_one() {
        let fuse = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        assert_eq!(fuse_device(fuse.as_fd()), Ok(()));
        for other in [File::open("/dev/null").unwrap(), tempfile::tempfile().unwrap()] {
            assert_eq!(fuse_device(other.as_fd()), Err(Errno::NODEV));
        }
    }

    #[test]
    fn a_file_must_be_open_for_both() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "").unwrap();
        let open =
            |flags: OFlags| rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap();
        for (flags, expected) in [
            (OFlags::RDWR, Ok(())),
            (OFlags::RDWR | OFlags::APPEND, Ok(())),
            (OFlags::RDONLY, Err(Errno::ACCESS)),
            (OFlags::WRONLY, Err(Errno::ACCESS)),
            (OFlags::RDWR | OFlags::PATH, Err(Errno::ACCESS)),
        ] {
            assert_eq!(own_file(open(flags).as_fd(), own_uid()), expected, "{flags:?}");
        }
        assert_eq!(own_file(open(OFlags::RDWR).as_fd(), own_uid() + 1), Err(Errno::ACCESS));
        let folder = File::open(dir.path()).unwrap();
        assert_eq!(own_file(folder.as_fd(), own_uid()), Err(Errno::OPNOTSUPP));
    }

    #[test]
    fn files_that_are_no_data_are_refused() {
        for special in ["/proc/self/mem", "/dev/null", "/proc/self/comm"] {
            let file = File::options().read(true).write(true).open(special).unwrap();
            assert!(own_file(file.as_fd(), own_uid()).is_err(), "{special}");
        }
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(own_file(reader.as_fd(), own_uid()), Err(Errno::OPNOTSUPP));
    }

    /// Needs root, because `chattr +a` does.
    #[test]
    fn an_append_only_file_is_refused() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "").unwrap();
        let open = || File::options().read(true).append(true).open(&path).unwrap();
        assert_eq!(own_file(open().as_fd(), own_uid()), Ok(()));
        let marked = rustix::fs::ioctl_setflags(open(), rustix::fs::IFlags::APPEND);
        if let Err(error) = marked {
            println!("not tested: no append-only files here ({error})");
            return;
        }
        let checked = own_file(open().as_fd(), own_uid());
        rustix::fs::ioctl_setflags(open(), rustix::fs::IFlags::empty()).unwrap();
        assert_eq!(checked, Err(Errno::ACCESS));
    }
}

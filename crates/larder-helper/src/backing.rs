//! The kernel's two calls for passthrough files. Both need `CAP_SYS_ADMIN` in the first user
//! namespace (`fs/fuse/backing.c`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Numbers of the calls (`include/uapi/linux/fuse.h`).
const BACKING_OPEN: u64 = 0x4010_e501;
const BACKING_CLOSE: u64 = 0x4004_e502;

/// Describes a file to the kernel (`fuse_backing_map`).
#[repr(C)]
struct Map {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// Registers `file` with the mount that `fuse`, a descriptor of `/dev/fuse`, belongs to. Returns
/// its number.
///
/// # Errors
/// The kernel's: `EPERM` without the privilege, or if the mount has no passthrough.
pub fn open(fuse: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<u32> {
    let map = Map { fd: file.as_raw_fd(), flags: 0, padding: 0 };
    let id = control(fuse, BACKING_OPEN, &map)?;
    u32::try_from(id).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Ends a registration. Open files that use it continue.
///
/// # Errors
/// If there is no such number, or we lack the privilege.
pub fn close(fuse: BorrowedFd<'_>, id: u32) -> io::Result<()> {
    control(fuse, BACKING_CLOSE, &id).map(drop)
}

/// An ioctl whose argument is a pointer to its input.
#[allow(unsafe_code)]
fn control<T>(fuse: BorrowedFd<'_>, request: u64, argument: &T) -> io::Result<i32> {
    // SAFETY: both requests only read, through the pointer, the type that belongs to them, which is
    // alive for the time of the call. Their numbers carry FUSE's type, so other files refuse them.
    let done = unsafe {
        libc::ioctl(fuse.as_raw_fd(), request as libc::Ioctl, std::ptr::from_ref(argument))
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_map_has_the_kernels_size() {
        assert_eq!(size_of::<Map>(), 16);
    }

    #[test]
    fn other_files_refuse_the_calls() {
        let file = tempfile::tempfile().unwrap();
        let error = open(file.as_fd(), file.as_fd()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        assert_eq!(close(file.as_fd(), 1).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
    }
}

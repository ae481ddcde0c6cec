//! Asks a larder mount for the class of one open file: the ioctl of `include/larder.h`.

#![allow(unsafe_code, reason = "an ioctl of our own")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `struct larder_class`: a name, ended by a NUL.
const NAME_BYTES: usize = 32;

/// `LARDER_IOC_CLASS`: `_IOW('L', 0x61, struct larder_class)`.
const CLASS: libc::Ioctl = 0x4020_4c61;

/// Gives an open file a class.
///
/// # Errors
/// If the mount has no such class, or the file is in no mount of larder (`ENOTTY`).
pub fn ask(file: &File, class: &str) -> io::Result<()> {
    let mut name = [0_u8; NAME_BYTES];
    if class.len() >= NAME_BYTES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    name[..class.len()].copy_from_slice(class.as_bytes());
    // SAFETY: the kernel reads `NAME_BYTES` bytes, as the number of the call says, and they live
    // until it returns.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), CLASS, name.as_ptr()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

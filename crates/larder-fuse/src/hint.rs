//! The ioctl by which a program says how durable its writes to an open file must be, as
//! `include/larder.h` has it.

use larder_vfs::Result;

use crate::abi::{IoctlIn, IoctlOut};
use crate::errno::errno;
use crate::output::Output;

/// Bytes of a class's name, with a NUL at least.
const NAME_BYTES: u32 = 32;
/// `LARDER_IOC_CLASS`: `_IOW('L', 0x61, struct larder_class)`.
const CLASS: u32 = 1 << 30 | NAME_BYTES << 16 | (b'L' as u32) << 8 | 0x61;

/// The class that an IOCTL requests for an open file.
///
/// # Errors
/// The errno of another IOCTL, or of bytes that are not a name.
pub(crate) fn class(ioctl: &IoctlIn, data: &[u8]) -> std::result::Result<String, i32> {
    if ioctl.cmd != CLASS {
        return Err(libc::ENOTTY);
    }
    let end = data.iter().position(|byte| *byte == 0).ok_or(libc::EINVAL)?;
    let name = std::str::from_utf8(&data[..end]).map_err(|_| libc::EINVAL)?;
    if name.is_empty() { Err(libc::EINVAL) } else { Ok(name.to_owned()) }
}

/// The answer to it.
pub(crate) fn taken(taken: Result<()>) -> Output {
    match taken {
        Ok(()) => Output::of(&IoctlOut::default()),
        Err(error) => Output::error(errno(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_named_or_refused() {
        let asked = |cmd, data: &[u8]| class(&IoctlIn { cmd, ..IoctlIn::default() }, data);
        let mut named = [0; 32];
        named[..9].copy_from_slice(b"generated");
        assert_eq!(CLASS, 0x4020_4c61, "as the header makes it");
        assert_eq!(asked(CLASS, &named), Ok("generated".to_owned()));
        assert_eq!(asked(CLASS, &named[..9]), Err(libc::EINVAL), "no end");
        assert_eq!(asked(CLASS, &[0; 32]), Err(libc::EINVAL));
        assert_eq!(asked(CLASS, &[0xff, 0]), Err(libc::EINVAL));
        assert_eq!(asked(CLASS + 1, &named), Err(libc::ENOTTY));
    }
}

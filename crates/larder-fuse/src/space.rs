//! Room and holes: FALLOCATE and LSEEK.
//!
//! FALLOCATE operations that a file system cannot do are refused with EOPNOTSUPP each time, because
//! that may depend on the file; the kernel does nothing in their place, and the C library writes
//! into each block for posix_fallocate(3). LSEEK of a file system that knows no holes is refused
//! with ENOSYS: the kernel then asks no more, and treats all of each file as data.

use larder_vfs::{Error, Result, Seek, SpaceChange, SpaceKind};

use crate::abi::{FallocateIn, LseekIn, LseekOut, falloc};
use crate::errno::errno;
use crate::output::Output;

/// The change that FALLOCATE requests; `None` if it is not one that file systems offer.
pub(crate) fn change(asked: &FallocateIn) -> Option<SpaceChange> {
    let keep_size = asked.mode & falloc::KEEP_SIZE != 0;
    let kind = match (asked.mode & !falloc::KEEP_SIZE, keep_size) {
        (0, _) => SpaceKind::Allocate,
        (falloc::PUNCH_HOLE, true) => SpaceKind::Punch,
        (falloc::ZERO_RANGE, _) => SpaceKind::Zero,
        _ => return None,
    };
    let range = asked.offset..asked.offset.checked_add(asked.length)?;
    Some(SpaceChange { kind, range, keep_size })
}

/// What LSEEK looks for; the kernel handles other seeks itself.
pub(crate) fn wanted(asked: &LseekIn) -> Option<Seek> {
    match i32::try_from(asked.whence).ok()? {
        libc::SEEK_DATA => Some(Seek::Data),
        libc::SEEK_HOLE => Some(Seek::Hole),
        _ => None,
    }
}

/// The answer to LSEEK.
pub(crate) fn found(found: Result<u64>) -> Output {
    match found {
        Ok(offset) => Output::of(&LseekOut { offset }),
        Err(Error::NotSupported) => Output::error(libc::ENOSYS),
        Err(error) => Output::error(errno(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination of the flags of fallocate(2).
    #[test]
    fn what_fallocate_asks_for() {
        for mode in 0..128 {
            let asked = FallocateIn { offset: 5, length: 7, mode, ..FallocateIn::default() };
            let wanted = match mode {
                0 | 1 => Some(SpaceKind::Allocate),
                3 => Some(SpaceKind::Punch),
                16 | 17 => Some(SpaceKind::Zero),
                _ => None,
            };
            let wanted = wanted.map(|kind| {
                let keep_size = mode & falloc::KEEP_SIZE != 0;
                SpaceChange { kind, range: 5..12, keep_size }
            });
            assert_eq!(change(&asked), wanted, "{mode}");
        }
        let endless = FallocateIn { offset: 2, length: u64::MAX, ..FallocateIn::default() };
        assert_eq!(change(&endless), None);
    }

    #[test]
    fn what_lseek_asks_for() {
        let asked = |whence| wanted(&LseekIn { whence, ..LseekIn::default() });
        assert_eq!((asked(3), asked(4)), (Some(Seek::Data), Some(Seek::Hole)));
        for whence in [0, 1, 2, 5, u32::MAX] {
            assert_eq!(asked(whence), None);
        }
    }
}

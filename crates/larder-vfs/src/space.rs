//! The room that a range of a file takes, and where its holes are.
//!
//! A *hole* is a range that takes no room and reads as zeros. The server decides which zeros are
//! holes: it may report data where there are zeros, but never a hole where there is data.

use std::ops::Range;

use crate::{Error, Result};

/// What to do with a range of a file (fallocate(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceKind {
    /// Give it room: writing there does not fail for lack of room. Its bytes stay, and holes read
    /// as zeros as before.
    Allocate,
    /// Make it read as zeros, and free its room as far as the server's blocks allow.
    Punch,
    /// It reads as zeros, and has room.
    Zero,
}

/// A change of the room that a range of a regular file takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceChange {
    /// What to do with the range.
    pub kind: SpaceKind,
    /// Which bytes; not empty.
    pub range: Range<u64>,
    /// Whether the size stays if the range ends beyond it. Otherwise the file then ends where the
    /// range does. Always true for [`SpaceKind::Punch`].
    pub keep_size: bool,
}

/// What to look for in a file, from an offset on (lseek(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The first byte that is not in a hole.
    Data,
    /// The first byte of a hole; there always is one after the last byte.
    Hole,
}

impl SpaceChange {
    /// The size of a file of `size` bytes after the change.
    pub fn size_after(&self, size: u64) -> u64 {
        if self.keep_size { size } else { size.max(self.range.end) }
    }

    /// # Errors
    /// [`Error::InvalidArgument`] if the range is empty; [`Error::FileTooLarge`] if room is asked
    /// for beyond the largest file that a server accepts.
    pub fn check(&self, file_size_max: u64) -> Result<()> {
        match () {
            () if self.range.is_empty() => Err(Error::InvalidArgument),
            () if self.kind != SpaceKind::Punch && self.range.end > file_size_max => {
                Err(Error::FileTooLarge)
            }
            () => Ok(()),
        }
    }
}

impl Seek {
    /// The answer for a file of `size` bytes with `data` and holes between. The ranges of data are
    /// in order and do not overlap; they may touch.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is nothing of the kind from `offset` on.
    pub fn among(
        self,
        offset: u64,
        size: u64,
        data: impl IntoIterator<Item = Range<u64>>,
    ) -> Result<u64> {
        if offset >= size {
            return Err(Error::NoData);
        }
        let mut at = offset;
        for range in data {
            if self == Seek::Hole && at < range.start {
                break;
            }
            if at < range.end {
                at = match self {
                    Seek::Data if range.start < size => return Ok(range.start.max(offset)),
                    Seek::Data => break,
                    Seek::Hole => range.end,
                };
            }
        }
        if self == Seek::Hole { Ok(at.min(size)) } else { Err(Error::NoData) }
    }

    /// The answer for a file whose holes are not known: all of it counts as data.
    ///
    /// # Errors
    /// As [`Seek::among`].
    pub fn without_holes(self, offset: u64, size: u64) -> Result<u64> {
        self.among(offset, size, std::iter::once(0..size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every file of up to five bytes, each of them data or in a hole, with its data given as
    /// ranges of one byte and as the longest ranges possible, is compared with a search byte by
    /// byte.
    #[test]
    fn what_is_found_is_the_first_of_its_kind() {
        for size in 0..6_u64 {
            for bits in 0..1_u64 << size {
                let is_data = |at: &u64| bits >> at & 1 == 1;
                let bytes: Vec<Range<u64>> =
                    (0..size).filter(is_data).map(|at| at..at + 1).collect();
                let mut joined: Vec<Range<u64>> = Vec::new();
                for byte in &bytes {
                    match joined.last_mut() {
                        Some(last) if last.end == byte.start => last.end = byte.end,
                        _ => joined.push(byte.clone()),
                    }
                }
                for offset in 0..size + 2 {
                    let data = (offset..size).find(is_data).ok_or(Error::NoData);
                    let hole = (offset..=size).find(|at| *at == size || !is_data(at));
                    let hole = hole.filter(|_| offset < size).ok_or(Error::NoData);
                    for ranges in [&bytes, &joined] {
                        let found = |seek: Seek| seek.among(offset, size, ranges.iter().cloned());
                        assert_eq!(found(Seek::Data), data, "{size} {bits:b} {offset}");
                        assert_eq!(found(Seek::Hole), hole, "{size} {bits:b} {offset}");
                    }
                }
            }
        }
        assert_eq!(Seek::Data.among(1, 4, [0..1, 6..9]), Err(Error::NoData), "behind the end");
        assert_eq!(Seek::Hole.among(1, 4, std::iter::once(0..9)), Ok(4));
        assert_eq!(Seek::Hole.without_holes(3, 7), Ok(7));
        assert_eq!(Seek::Data.without_holes(3, 7), Ok(3));
        assert_eq!(Seek::Data.without_holes(7, 7), Err(Error::NoData));
    }

    #[test]
    fn changes_have_bytes_and_a_size() {
        let change = |range, keep_size| SpaceChange { kind: SpaceKind::Zero, range, keep_size };
        assert_eq!(change(3..3, true).check(9), Err(Error::InvalidArgument));
        assert_eq!(change(3..10, true).check(9), Err(Error::FileTooLarge));
        assert_eq!(change(3..9, true).check(9), Ok(()));
        let punch = SpaceChange { kind: SpaceKind::Punch, ..change(3..u64::MAX, true) };
        assert_eq!(punch.check(9), Ok(()));
        assert_eq!(change(3..9, true).size_after(4), 4);
        assert_eq!(change(3..9, false).size_after(4), 9);
        assert_eq!(change(3..9, false).size_after(40), 40);
    }
}

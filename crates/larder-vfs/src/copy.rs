//! Copies within a server: bytes of one file become bytes of another, or of another range of the
//! same one, and do not pass the client.

use crate::{Change, Error, Handle, Result, Token};

/// Where bytes are copied from, or to.
#[derive(Clone, Copy, Debug)]
pub struct CopyEnd<'a> {
    /// A regular file.
    pub file: &'a Handle,
    /// An open of it, if there is one: for reading what is copied, for writing where it goes.
    pub open: Option<&'a Token>,
    /// Where the range begins, in bytes.
    pub offset: u64,
}

/// Answer of [`crate::Remote::copy_range`].
#[derive(Clone, Copy, Debug)]
pub struct RemoteCopied {
    /// Bytes that were copied.
    pub len: u64,
    /// How the target changed.
    pub change: Change,
}

impl<'a> CopyEnd<'a> {
    /// In a file that is not open.
    pub fn unopened(file: &'a Handle, offset: u64) -> CopyEnd<'a> {
        CopyEnd { file, open: None, offset }
    }

    /// How many bytes may be copied from here to `to` of the `len` that are asked for, if this file
    /// has `size` bytes: fewer at its end.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if nothing is asked for, or the two ranges of one file overlap;
    /// [`Error::FileTooLarge`] if the target would be larger than a server takes.
    pub fn check(&self, to: &CopyEnd<'_>, len: u64, size: u64, file_size_max: u64) -> Result<u64> {
        if len == 0 {
            return Err(Error::InvalidArgument);
        }
        let there = len.min(size.saturating_sub(self.offset));
        let overlaps = self.file == to.file && self.offset.abs_diff(to.offset) < there;
        match to.offset.checked_add(there) {
            _ if overlaps => Err(Error::InvalidArgument),
            Some(end) if there == 0 || end <= file_size_max => Ok(there),
            _ => Err(Error::FileTooLarge),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every small copy, within one file and between two, against a look at each byte.
    #[test]
    fn what_is_copied_is_there_and_overlaps_nothing() {
        let (one, other) = (Handle::new(b"one"), Handle::new(b"other"));
        for (from, to, len, size) in (0..6)
            .flat_map(|from| (0..6).map(move |to| (from, to)))
            .flat_map(|(from, to)| (0..6).map(move |len| (from, to, len)))
            .flat_map(|(from, to, len)| (0..7).map(move |size| (from, to, len, size)))
        {
            let there = (from..from + len).filter(|at| *at < size).count() as u64;
            let mut targets = to..to + there;
            let overlaps = targets.any(|at| (from..from + there).contains(&at));
            for file in [&one, &other] {
                let (source, target) = (CopyEnd::unopened(&one, from), CopyEnd::unopened(file, to));
                let wanted = match () {
                    () if len == 0 || (overlaps && *file == one) => Err(Error::InvalidArgument),
                    () if there > 0 && to + there > 8 => Err(Error::FileTooLarge),
                    () => Ok(there),
                };
                assert_eq!(source.check(&target, len, size, 8), wanted, "{from} {to} {len} {size}");
            }
        }
        let (source, target) = (CopyEnd::unopened(&one, 0), CopyEnd::unopened(&other, u64::MAX));
        assert_eq!(source.check(&target, u64::MAX, 9, u64::MAX), Err(Error::FileTooLarge));
    }
}

//! A local file in the kernel's hands.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use larder_io::{DiskFile, Stamp};

use crate::lock;
use crate::places::Place;

/// A local file handed out to the kernel. Its descriptor stays open, and its bytes stay those of
/// the version it was handed out for but for what its holders change, as long as this is held.
#[derive(Debug)]
pub struct BackingFile {
    file: Arc<dyn DiskFile>,
    /// Whoever changes it for those who read a version that is not in use any more.
    following: Mutex<()>,
    _place: Place,
}

impl BackingFile {
    pub(crate) fn new(file: Arc<dyn DiskFile>, place: Place) -> BackingFile {
        BackingFile { file, following: Mutex::default(), _place: place }
    }

    /// Changes it for those who read a version that is not in use any more, while nobody else does.
    pub(crate) fn alone<T>(&self, change: impl FnOnce(&dyn DiskFile) -> T) -> T {
        let _alone = lock(&self.following);
        change(&*self.file)
    }

    /// Length and times.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn stamp(&self) -> io::Result<Stamp> {
        self.file.stamp()
    }

    /// Writes all of `data`, for who reads a version that is not in use any more. Not durable.
    ///
    /// # Errors
    /// Those of pwrite(2); a part of `data` may then be written.
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.alone(|file| file.write_at(data, offset))
    }

    /// Has a range read as zeros, for who reads a version that is not in use any more. Not durable.
    ///
    /// # Errors
    /// Those of fallocate(2).
    pub fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.alone(|file| file.punch_hole(range))
    }

    /// Cuts or extends the file, for who reads a version that is not in use any more. Not durable.
    ///
    /// # Errors
    /// Those of ftruncate(2).
    pub fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        self.alone(|file| file.set_len(len_bytes))
    }
}

impl AsFd for BackingFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd().expect("a backing file is made only of files with a descriptor")
    }
}

//! A local file that the kernel uses.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use larder_io::{DiskFile, Stamp};

use crate::lock;
use crate::slots::Slot;

/// A local file handed out to the kernel. As long as this is held, its descriptor stays open, and
/// its bytes stay those of the version for which it was handed out, except for changes by its
/// holders.
#[derive(Debug)]
pub struct BackingFile {
    file: Arc<dyn DiskFile>,
    /// Held while it is changed on behalf of readers of a version that is no longer in use.
    following: Mutex<()>,
    _slot: Slot,
}

impl BackingFile {
    pub(crate) fn new(file: Arc<dyn DiskFile>, slot: Slot) -> BackingFile {
        BackingFile { file, following: Mutex::default(), _slot: slot }
    }

    /// Changes it on behalf of readers of a version that is no longer in use, one change at a time.
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

    /// Writes all of `data`, on behalf of readers of a version that is no longer in use. Not
    /// durable.
    ///
    /// # Errors
    /// Those of pwrite(2); a part of `data` may then be written.
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.alone(|file| file.write_at(data, offset))
    }

    /// Makes a range read as zeros, on behalf of readers of a version that is no longer in use. Not
    /// durable.
    ///
    /// # Errors
    /// Those of fallocate(2).
    pub fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.alone(|file| file.punch_hole(range))
    }

    /// Truncates or extends the file, on behalf of readers of a version that is no longer in use.
    /// Not durable.
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

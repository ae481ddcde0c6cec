//! Bytes of files: hashed, copied, and found to be lost.

use std::fs::Metadata;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use larder_rebuild::{Hash, Hasher};
use rustix::io::Errno;

/// The extended attribute that shows a lost file.
const LOST: &str = "user.larder.lost";

const PIECE_BYTES: usize = 1 << 20;

/// A file with other values has been changed.
pub(super) type Stamp = (u64, u64, u64, i64, i64);

pub(super) fn stamp(seen: &Metadata) -> Stamp {
    (seen.dev(), seen.ino(), seen.size(), seen.mtime(), seen.mtime_nsec())
}

/// When a file was last changed, in nanoseconds.
pub(super) fn changed_ns(seen: &Metadata) -> i64 {
    seen.mtime().saturating_mul(1_000_000_000).saturating_add(seen.mtime_nsec())
}

/// The hash of a file's bytes.
///
/// # Errors
/// Of reading.
pub(super) fn hash(from: impl Read) -> io::Result<Hash> {
    copy(from, io::sink())
}

/// Copies bytes, and hashes them at the same time.
///
/// # Errors
/// Of reading and writing.
pub(super) fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<Hash> {
    let (mut piece, mut hasher) = (vec![0; PIECE_BYTES], Hasher::default());
    loop {
        let len = match from.read(&mut piece) {
            Ok(0) => return Ok(hasher.finish()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            len => len?,
        };
        hasher.update(&piece[..len]);
        to.write_all(&piece[..len])?;
    }
}

/// Whether an error says that bytes are lost.
pub(super) fn says_lost(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOTRECOVERABLE.raw_os_error())
}

/// Whether bytes of a file are lost, as its mount reports. Nothing is read, so the file is not made
/// again.
///
/// # Errors
/// If its server cannot be asked.
pub(super) fn is_lost(path: &Path) -> io::Result<bool> {
    match rustix::fs::getxattr(path, LOST, &mut [0_u8; 1][..]) {
        Err(Errno::NODATA) => Ok(false),
        told => Ok(told.map(|_| true)?),
    }
}

//! Takes a mount out of the name space: by the system call, or by FUSE's set-uid helper if this
//! process lacks the right.

use std::path::Path;
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// How to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Only if it is not in use. The kernel writes its dirty pages first, so this may wait for the
    /// server.
    Unused,
    /// At once: no lookup finds it any more, and it is released when the last user is done.
    Detach,
}

/// Why a mount is still there; one variant for each reaction.
#[derive(Debug)]
pub(crate) enum UnmountError {
    /// It is in use.
    Busy,
    /// Nothing is mounted there.
    NotMounted,
    /// Anything else, for people.
    Other(String),
}

impl std::fmt::Display for UnmountError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            UnmountError::Busy => "it is in use (--lazy detaches it all the same)",
            UnmountError::NotMounted => "nothing is mounted there",
            UnmountError::Other(text) => text,
        })
    }
}

impl std::error::Error for UnmountError {}

/// Unmounts what is mounted at `mountpoint`. Blocks; see [`How`].
///
/// # Errors
/// See [`UnmountError`].
pub(crate) fn unmount(mountpoint: &Path, how: How) -> Result<(), UnmountError> {
    let flags = match how {
        How::Unused => UnmountFlags::NOFOLLOW,
        How::Detach => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    match rustix::mount::unmount(mountpoint, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(UnmountError::Busy),
        Err(Errno::INVAL) => Err(UnmountError::NotMounted),
        Err(Errno::PERM) => by_helper(mountpoint, how),
        Err(error) => Err(UnmountError::Other(error.to_string())),
    }
}

fn by_helper(mountpoint: &Path, how: How) -> Result<(), UnmountError> {
    let mut helper = Command::new("fusermount3");
    helper.arg("-u").args((how == How::Detach).then_some("-z")).arg("--").arg(mountpoint);
    let done = helper
        .output()
        .map_err(|error| UnmountError::Other(format!("cannot run fusermount3: {error}")))?;
    let told = String::from_utf8_lossy(&done.stderr);
    match done.status.success() {
        true => Ok(()),
        false if told.contains("busy") => Err(UnmountError::Busy),
        false => Err(UnmountError::Other(told.trim().to_owned())),
    }
}

//! Why a mount could not be made, or does not go away.

use std::io;
use std::path::PathBuf;

/// Each is one line that ends in the next step.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is no such directory.
    #[error("{0}: no such directory; create it with mkdir -p")]
    NoMountpoint(PathBuf),
    /// The mount point is not a directory.
    #[error("{0}: not a directory; give an empty directory to mount on")]
    NotDirectory(PathBuf),
    /// One of our mounts is there and alive.
    #[error("{0}: larder is mounted there already; unmount it first (umount {0})")]
    AlreadyMounted(PathBuf),
    /// A mount whose daemon died is there.
    #[error("{0}: a mount whose daemon is gone is in the way; remove it (umount -l {0})")]
    Stale(PathBuf),
    /// The kernel says that the mount point is busy.
    #[error("{0}: the mount point is busy; see who uses it (fuser -vm {0})")]
    Busy(PathBuf),
    /// The kernel has no FUSE, or does not show it.
    #[error(
        "/dev/fuse is not there; load the module (modprobe fuse), or give the container the device (--device /dev/fuse)"
    )]
    NoDevice,
    /// Neither the right to mount nor the program that has it.
    #[error("not allowed to mount; run as root, or install fusermount3 (package fuse3)")]
    NotAllowed,
    /// `fusermount3` refused.
    #[error("fusermount3 refused: {0}")]
    Helper(String),
    /// An option cannot be handed to the kernel.
    #[error("mount option is not acceptable: {0}")]
    Option(String),
    /// The kernel is older than what is needed.
    #[error("the kernel lacks a FUSE feature: {0}; Linux 4.7 or later is needed")]
    Kernel(String),
    /// A system call failed in a way that has no better name.
    #[error("{path}: {what} failed: {source}")]
    System {
        /// The operation that was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The mount was not gone within the limit.
    #[error("{0}: still mounted; nothing is served there any more, remove it (umount -l {0})")]
    StillMounted(PathBuf),
}

impl MountError {
    /// A failed system call.
    pub(crate) fn system(what: &'static str, path: &std::path::Path, source: io::Error) -> Self {
        MountError::System { what, path: path.to_owned(), source }
    }
}

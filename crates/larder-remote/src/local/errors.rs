//! Why a directory cannot be served, and the kernel's errors for its files.

use std::path::PathBuf;

use larder_vfs::Error;
use rustix::io::Errno;
use thiserror::Error as ThisError;

/// Why a directory cannot be served.
#[derive(Debug, ThisError)]
pub enum LocalError {
    /// It cannot be opened.
    #[error("cannot open {path}: {cause}")]
    Open {
        /// The directory.
        path: PathBuf,
        /// Why.
        cause: Errno,
    },
    /// Its file system has no file handles, or too long ones.
    #[error("the file system of {path} has no file handles to serve: {cause}")]
    NoHandles {
        /// The directory.
        path: PathBuf,
        /// The error of name_to_handle_at(2).
        cause: Errno,
    },
    /// We may not open files by handle.
    #[error("serving {path} needs CAP_DAC_READ_SEARCH: {cause}")]
    NotPrivileged {
        /// The directory.
        path: PathBuf,
        /// The error of open_by_handle_at(2).
        cause: Errno,
    },
    /// The anonymous user has the number that stands for "no change" in system calls.
    #[error("{0} is no user or group that can be acted as")]
    BadAnonymous(u32),
}

/// The kernel's error numbers in our words.
pub(super) fn error(errno: Errno) -> Error {
    match errno {
        Errno::NOENT => Error::NotFound,
        Errno::EXIST => Error::Exists,
        Errno::NOTDIR => Error::NotDirectory,
        Errno::ISDIR => Error::IsDirectory,
        Errno::NOTEMPTY => Error::NotEmpty,
        Errno::ACCESS => Error::AccessDenied,
        Errno::PERM => Error::NotPermitted,
        Errno::NOSPC => Error::NoSpace,
        Errno::DQUOT => Error::QuotaExceeded,
        Errno::ROFS => Error::ReadOnly,
        Errno::NAMETOOLONG => Error::NameTooLong,
        Errno::FBIG => Error::FileTooLarge,
        Errno::STALE => Error::Stale,
        Errno::XDEV => Error::CrossDevice,
        Errno::MLINK => Error::TooManyLinks,
        Errno::INVAL | Errno::LOOP => Error::InvalidArgument,
        Errno::OPNOTSUPP | Errno::NOSYS => Error::NotSupported,
        Errno::NODEV | Errno::NXIO => Error::NoDevice,
        Errno::AGAIN => Error::TryAgain,
        Errno::BUSY | Errno::TXTBSY => Error::Busy,
        other => {
            tracing::warn!(errno = %other, "the local file system failed");
            Error::Io
        }
    }
}

//! [`Error`]: what can go wrong, in the vocabulary of POSIX.

use std::fmt;

/// Result of an operation on files.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed: one variant for each thing that a caller might do about it.
///
/// Numbers live at the edges: errno in `larder-fuse`, nfsstat3 in `larder-remote` and
/// `larder-nfsd`. Details for people (operation, object, server, cause) are logged where they are
/// known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Error {
    /// No such file or directory.
    NotFound,
    /// The name exists already.
    Exists,
    /// A directory was needed.
    NotDirectory,
    /// Something other than a directory was needed.
    IsDirectory,
    /// The directory has entries.
    NotEmpty,
    /// The caller's rights on the object do not suffice (EACCES).
    AccessDenied,
    /// Only the owner or the superuser may do that (EPERM).
    NotPermitted,
    /// The server's disk is full.
    NoSpace,
    /// The caller's quota is used up.
    QuotaExceeded,
    /// The file system is read-only.
    ReadOnly,
    /// The name is longer than the server allows.
    NameTooLong,
    /// The file would become larger than allowed.
    FileTooLarge,
    /// The handle no longer names anything (ESTALE).
    Stale,
    /// Source and target are on different file systems.
    CrossDevice,
    /// The object has as many links as it can have.
    TooManyLinks,
    /// An argument makes no sense.
    InvalidArgument,
    /// The server or the protocol cannot do that (EOPNOTSUPP).
    NotSupported,
    /// No such device.
    NoDevice,
    /// No data at this offset (ENXIO of lseek(2)).
    NoData,
    /// There is no such extended attribute (ENODATA).
    NoAttribute,
    /// A value is larger than allowed (E2BIG).
    TooLarge,
    /// A directory cookie is no longer good: start again.
    BadCookie,
    /// The server asks to try again later and the wait limit is over.
    TryAgain,
    /// A text file or swap file is busy.
    Busy,
    /// The file is being executed (ETXTBSY).
    Executed,
    /// Another holder has locked part of the file (EAGAIN).
    Locked,
    /// Every holder that would have to continue first waits for the caller (EDEADLK).
    Deadlock,
    /// The caller got a signal, or the kernel must ask once more, and nothing was done (EINTR).
    Interrupted,
    /// The server did not answer within the mount's limit.
    TimedOut,
    /// The mount is being shut down.
    Shutdown,
    /// The file changed on the server while this open file was being read sequentially, and the
    /// rest of the version that was begun is no longer available.
    Changed,
    /// The bytes were only in memory of machines that lost them (ENOTRECOVERABLE).
    Lost,
    /// Input or output error; anything that has no better name.
    Io,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::NotFound => "no such file or directory",
            Error::Exists => "file exists",
            Error::NotDirectory => "not a directory",
            Error::IsDirectory => "is a directory",
            Error::NotEmpty => "directory not empty",
            Error::AccessDenied => "permission denied",
            Error::NotPermitted => "operation not permitted",
            Error::NoSpace => "no space left on the server",
            Error::QuotaExceeded => "quota exceeded",
            Error::ReadOnly => "read-only file system",
            Error::NameTooLong => "file name too long",
            Error::FileTooLarge => "file too large",
            Error::Stale => "stale file handle",
            Error::CrossDevice => "cross-device link",
            Error::TooManyLinks => "too many links",
            Error::InvalidArgument => "invalid argument",
            Error::NotSupported => "operation not supported",
            Error::NoDevice => "no such device",
            Error::NoData => "no data at this offset",
            Error::NoAttribute => "no such extended attribute",
            Error::TooLarge => "value too large",
            Error::BadCookie => "directory cookie is stale",
            Error::TryAgain => "server asks to try again later",
            Error::Busy => "file is busy",
            Error::Executed => "the file is being executed",
            Error::Locked => "a part of the file is locked by somebody else",
            Error::Deadlock => "that would wait for ever",
            Error::Interrupted => "interrupted; to be repeated",
            Error::TimedOut => "server did not answer in time",
            Error::Shutdown => "mount is shutting down",
            Error::Changed => "file changed on the server while it was being read",
            Error::Lost => "the bytes were in memory, and are lost",
            Error::Io => "input/output error",
        })
    }
}

impl std::error::Error for Error {}

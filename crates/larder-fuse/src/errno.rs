//! The errno for each [`Error`].
//!
//! Invariant: never `ENOSYS`, by which a file system gives up an operation for the life of the
//! mount.

use larder_vfs::Error;

/// The kernel's number for `error`.
pub(crate) fn errno(error: Error) -> i32 {
    match error {
        Error::NotFound => libc::ENOENT,
        Error::Exists => libc::EEXIST,
        Error::NotDirectory => libc::ENOTDIR,
        Error::IsDirectory => libc::EISDIR,
        Error::NotEmpty => libc::ENOTEMPTY,
        Error::AccessDenied => libc::EACCES,
        Error::NotPermitted => libc::EPERM,
        Error::NoSpace => libc::ENOSPC,
        Error::QuotaExceeded => libc::EDQUOT,
        Error::ReadOnly => libc::EROFS,
        Error::NameTooLong => libc::ENAMETOOLONG,
        Error::FileTooLarge => libc::EFBIG,
        // The kernel walks the path once more on ESTALE, which finds a file that was replaced.
        Error::Stale => libc::ESTALE,
        Error::CrossDevice => libc::EXDEV,
        Error::TooManyLinks => libc::EMLINK,
        Error::InvalidArgument | Error::BadCookie => libc::EINVAL,
        Error::NotSupported => libc::EOPNOTSUPP,
        Error::NoDevice => libc::ENODEV,
        Error::NoData => libc::ENXIO,
        Error::NoAttribute => libc::ENODATA,
        Error::TooLarge => libc::E2BIG,
        Error::TryAgain | Error::Locked => libc::EAGAIN,
        Error::Deadlock => libc::EDEADLK,
        Error::Interrupted => libc::EINTR,
        Error::Busy => libc::EBUSY,
        Error::Executed => libc::ETXTBSY,
        Error::TimedOut => libc::ETIMEDOUT,
        Error::Shutdown => libc::ENOTCONN,
        // The version that was being read is gone, as is a file behind a stale handle.
        Error::Changed => libc::ESTALE,
        // No other error of a file system has this number.
        Error::Lost => libc::ENOTRECOVERABLE,
        Error::Io => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn std_understands_the_numbers() {
        use std::io::ErrorKind;
        let kind = |error| std::io::Error::from_raw_os_error(errno(error)).kind();
        assert_eq!(kind(Error::NotFound), ErrorKind::NotFound);
        assert_eq!(kind(Error::Exists), ErrorKind::AlreadyExists);
        assert_eq!(kind(Error::NotEmpty), ErrorKind::DirectoryNotEmpty);
        assert_eq!(kind(Error::QuotaExceeded), ErrorKind::QuotaExceeded);
        assert_eq!(kind(Error::Changed), ErrorKind::StaleNetworkFileHandle);
        assert_eq!(kind(Error::TimedOut), ErrorKind::TimedOut);
        assert_eq!(kind(Error::Shutdown), ErrorKind::NotConnected);
    }
}

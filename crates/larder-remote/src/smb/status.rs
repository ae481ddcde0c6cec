//! Converts between NTSTATUS and the types of `larder-vfs`. No other module knows the numbers.

use larder_vfs::Error;
use smb2::types::status::NtStatus;

pub(super) const NAME_TOO_LONG: NtStatus = NtStatus(0xC000_0106);
pub(super) const QUOTA_EXCEEDED: NtStatus = NtStatus(0xC000_0044);
pub(super) const MEDIA_WRITE_PROTECTED: NtStatus = NtStatus(0xC000_00A2);
pub(super) const NOT_SAME_DEVICE: NtStatus = NtStatus(0xC000_00D4);
pub(super) const TOO_MANY_LINKS: NtStatus = NtStatus(0xC000_0265);
pub(super) const PRIVILEGE_NOT_HELD: NtStatus = NtStatus(0xC000_0061);
pub(super) const NETWORK_ACCESS_DENIED: NtStatus = NtStatus(0xC000_00CA);
pub(super) const OBJECT_PATH_SYNTAX_BAD: NtStatus = NtStatus(0xC000_003B);
pub(super) const OBJECT_PATH_INVALID: NtStatus = NtStatus(0xC000_0039);
pub(super) const TOO_MANY_OPENED_FILES: NtStatus = NtStatus(0xC000_011F);
pub(super) const OPLOCK_NOT_GRANTED: NtStatus = NtStatus(0xC000_00E2);
pub(super) const USER_MAPPED_FILE: NtStatus = NtStatus(0xC000_0243);
pub(super) const EAS_NOT_SUPPORTED: NtStatus = NtStatus(0xC000_004F);
pub(super) const NO_EAS_ON_FILE: NtStatus = NtStatus(0xC000_0052);
pub(super) const NONEXISTENT_EA_ENTRY: NtStatus = NtStatus(0xC000_0051);
pub(super) const EA_TOO_LARGE: NtStatus = NtStatus(0xC000_0050);
pub(super) const INVALID_EA_NAME: NtStatus = NtStatus(0x8000_0013);
pub(super) const LOCK_NOT_GRANTED: NtStatus = NtStatus(0xC000_0055);
pub(super) const TIME_DIFFERENCE_AT_DC: NtStatus = NtStatus(0xC000_0133);
pub(super) const BAD_TOKEN_TYPE: NtStatus = NtStatus(0xC000_00A8);
pub(super) const NO_SUCH_USER: NtStatus = NtStatus(0xC000_0064);
pub(super) const NETWORK_ACCESS_REVOKED: NtStatus = NtStatus(0xC000_02FD);
pub(super) const CONNECTION_DISCONNECTED: NtStatus = NtStatus(0xC000_020C);

/// Why a request has no answer that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The server said no.
    Status(NtStatus),
    /// The connection or the session is gone; whether the request was carried out is not known.
    Lost,
    /// It is ours to say.
    Is(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Is(error)
    }
}

impl Failure {
    /// Whether there is nothing by that name.
    pub(super) fn is_absence(self) -> bool {
        matches!(
            self,
            Failure::Status(
                NtStatus::OBJECT_NAME_NOT_FOUND
                    | NtStatus::NO_SUCH_FILE
                    | NtStatus::NOT_FOUND
                    | NtStatus::DELETE_PENDING
            )
        )
    }

    /// Whether the path to the name does not exist, or contains something other than a directory.
    pub(super) fn is_pathless(self) -> bool {
        matches!(
            self,
            Failure::Status(
                NtStatus::OBJECT_PATH_NOT_FOUND
                    | OBJECT_PATH_INVALID
                    | OBJECT_PATH_SYNTAX_BAD
                    | NtStatus::NOT_A_DIRECTORY
            )
        )
    }
}

/// Whether a status means that the session or the share is gone, so that a new one helps.
pub(super) fn ends_session(status: NtStatus) -> bool {
    matches!(
        status,
        NtStatus::USER_SESSION_DELETED
            | NtStatus::NETWORK_SESSION_EXPIRED
            | NtStatus::NETWORK_NAME_DELETED
            | NETWORK_ACCESS_REVOKED
            | CONNECTION_DISCONNECTED
    )
}

/// Whether a status refuses the request: an error, but not one that asks for the next message of a
/// login (MS-ERREF, 2.3).
pub(super) fn is_refusal(status: NtStatus) -> bool {
    status.is_error() && !status.is_more_processing_required()
}

/// The error for the caller.
pub(super) fn error(status: NtStatus) -> Error {
    match status {
        NtStatus::OBJECT_NAME_NOT_FOUND
        | NtStatus::NO_SUCH_FILE
        | NtStatus::NOT_FOUND
        | NtStatus::DELETE_PENDING
        | NtStatus::OBJECT_PATH_NOT_FOUND
        | OBJECT_PATH_INVALID => Error::NotFound,
        NtStatus::OBJECT_NAME_COLLISION => Error::Exists,
        NtStatus::NOT_A_DIRECTORY => Error::NotDirectory,
        NtStatus::FILE_IS_A_DIRECTORY => Error::IsDirectory,
        NtStatus::DIRECTORY_NOT_EMPTY => Error::NotEmpty,
        NtStatus::ACCESS_DENIED | NtStatus::CANNOT_DELETE | NETWORK_ACCESS_DENIED => {
            Error::AccessDenied
        }
        PRIVILEGE_NOT_HELD => Error::NotPermitted,
        NtStatus::DISK_FULL => Error::NoSpace,
        QUOTA_EXCEEDED => Error::QuotaExceeded,
        MEDIA_WRITE_PROTECTED => Error::ReadOnly,
        NAME_TOO_LONG => Error::NameTooLong,
        NtStatus::FILE_SYSTEM_LIMITATION => Error::FileTooLarge,
        NOT_SAME_DEVICE => Error::CrossDevice,
        TOO_MANY_LINKS => Error::TooManyLinks,
        NtStatus::INVALID_PARAMETER
        | NtStatus::OBJECT_NAME_INVALID
        | OBJECT_PATH_SYNTAX_BAD
        | INVALID_EA_NAME => Error::InvalidArgument,
        NONEXISTENT_EA_ENTRY => Error::NoAttribute,
        EA_TOO_LARGE => Error::TooLarge,
        NtStatus::NOT_SUPPORTED
        | NtStatus::NOT_IMPLEMENTED
        | NtStatus::INVALID_INFO_CLASS
        | NtStatus::INVALID_DEVICE_REQUEST
        | EAS_NOT_SUPPORTED => Error::NotSupported,
        NtStatus::NO_SUCH_DEVICE => Error::NoDevice,
        NtStatus::SHARING_VIOLATION | USER_MAPPED_FILE => Error::Busy,
        NtStatus::FILE_LOCK_CONFLICT | LOCK_NOT_GRANTED => Error::Locked,
        NtStatus::INSUFFICIENT_RESOURCES
        | NtStatus::INSUFF_SERVER_RESOURCES
        | NtStatus::REQUEST_NOT_ACCEPTED
        | TOO_MANY_OPENED_FILES
        | OPLOCK_NOT_GRANTED => Error::TryAgain,
        NtStatus::FILE_CLOSED => Error::Stale,
        _ => Error::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_caller_may_act_upon_has_a_name_of_its_own() {
        for (status, wanted) in [
            (0xC000_0034, Error::NotFound),
            (0xC000_0035, Error::Exists),
            (0xC000_0022, Error::AccessDenied),
            (0xC000_0101, Error::NotEmpty),
            (0xC000_007F, Error::NoSpace),
            (0xC000_0043, Error::Busy),
            (0xC000_00D4, Error::CrossDevice),
            (0xC000_0001, Error::Io),
            (0x1234_5678, Error::Io),
        ] {
            assert_eq!(error(NtStatus(status)), wanted, "{status:x}");
        }
        assert!(ends_session(NtStatus(0xC000_035C)) && !ends_session(NtStatus(0xC000_0034)));
        assert!(is_refusal(NtStatus(0xC000_0022)) && !is_refusal(NtStatus(0xC000_0016)));
        assert!(!is_refusal(NtStatus(0x8000_0006)) && !is_refusal(NtStatus(0)));
        assert!(Failure::Status(NtStatus(0xC000_0056)).is_absence());
        assert!(!Failure::Lost.is_absence());
    }
}

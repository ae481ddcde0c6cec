//! Options for mounting a share, and the errors of mounting.

use super::credentials::Credentials;
use super::kerberos_error::KerberosError;
use super::version::Version;
use larder_io::{Clock, RealClock};
use larder_rpc::Recovery;
use smb2::types::status::NtStatus;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

use super::status;

/// Where SMB listens.
pub const PORT: u16 = 445;
/// Longest time that a mount, or one attempt to connect again, takes.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(9);
/// Largest request that is asked for by default, in bytes.
const PAYLOAD_BYTES: u32 = 1 << 20;

/// How long leases are kept by default: about as long as Windows keeps a file open that its
/// application closed.
const LEASE_MAX: Duration = Duration::from_secs(15);

/// What to mount and how. [`MountOptions::new`] gives the defaults.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The server's name or address.
    pub host: String,
    /// Where it listens.
    pub port: u16,
    /// The share.
    pub share: String,
    /// Folder of the share that becomes the root; may be empty.
    pub path: String,
    /// The identity for the login.
    pub credentials: Credentials,
    /// The lowest version that is accepted. The highest that both sides have is used.
    pub version_min: Version,
    /// The highest version that is offered.
    pub version_max: Version,
    /// Messages must be signed. They are for every login but a guest's.
    pub sign: bool,
    /// Messages must be encrypted, also if the server does not ask for it.
    pub seal: bool,
    /// Owner of everything.
    pub uid: u32,
    /// Group of everything.
    pub gid: u32,
    /// Mode of files; write bits are removed for a file that is read-only at the server.
    pub file_mode: u32,
    /// Mode of directories.
    pub dir_mode: u32,
    /// Files are identified by the server's ids; otherwise by their paths, as with `noserverino`,
    /// and always by path where the server has no ids.
    pub server_ids: bool,
    /// Files in the form of symbolic links that other clients know (`mfsymlinks`) are shown as
    /// links, and links can be made.
    pub symlinks: bool,
    /// How many connections to use (`nconnect`), at least one. The mount does with fewer if the
    /// server refuses further ones.
    pub connections: usize,
    /// Most bytes in one READ.
    pub read_max: u32,
    /// Most bytes in one WRITE.
    pub write_max: u32,
    /// How long the server may be silent before it counts as gone, and is reconnected.
    pub timeout: Duration,
    /// What happens to calls when the server is gone: [`Recovery::Soft`] ones fail after three
    /// timeouts.
    pub recovery: Recovery,
    /// Calls fail at once while the server is known to be gone.
    pub fail_fast: bool,
    /// Whether leases and notifications are asked for.
    pub leases: bool,
    /// How long a lease on a file is kept at most, and the file open with it. Samba does not
    /// withdraw a lease when another client removes the file: the file, and its name, exist until
    /// it is closed.
    pub lease_max: Duration,
    /// The clock that times its waits, and the "now" that is sent to the server. That nothing has
    /// arrived from a server for [`timeout`](Self::timeout) is measured by the machine's clock.
    pub clock: Arc<dyn Clock>,
}

impl MountOptions {
    /// The defaults for a share, those of `mount.cifs` where it has them.
    pub fn new(host: &str, share: &str, credentials: Credentials) -> MountOptions {
        MountOptions {
            host: host.to_owned(),
            port: PORT,
            share: share.to_owned(),
            path: String::new(),
            credentials,
            version_min: Version::V2_1,
            version_max: Version::V3_1_1,
            sign: false,
            seal: false,
            uid: 0,
            gid: 0,
            file_mode: 0o755,
            dir_mode: 0o755,
            server_ids: true,
            symlinks: true,
            connections: 1,
            read_max: PAYLOAD_BYTES,
            write_max: PAYLOAD_BYTES,
            timeout: Duration::from_secs(15),
            recovery: Recovery::Soft,
            fail_fast: false,
            leases: true,
            lease_max: LEASE_MAX,
            clock: Arc::new(RealClock),
        }
    }

    /// After how long a soft call ends.
    pub fn limit(&self) -> Duration {
        self.timeout * 3
    }

    pub(super) fn address(&self) -> String {
        match self.host.contains(':') && !self.host.starts_with('[') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// Why a share could not be mounted: one line with the cause and the next step.
#[derive(Debug, Error)]
pub enum MountError {
    /// There is no connection.
    #[error(
        "nothing answers at {address}: {cause}; check the name and the port, that the server runs, \
         and that no firewall stands between"
    )]
    Unreachable {
        /// Where.
        address: String,
        /// What happened instead.
        cause: String,
    },
    /// There is a connection, but no reply.
    #[error("{address} does not answer: {cause}; check the state of the server")]
    Silent {
        /// Where.
        address: String,
        /// What happened instead.
        cause: String,
    },
    /// The server does not speak SMB 2.
    #[error(
        "{address} speaks no SMB 2 or 3 ({cause}); a server that has only SMB 1 must be updated, or \
         SMB 2 enabled there"
    )]
    OnlySmb1 {
        /// Where.
        address: String,
        /// What happened instead.
        cause: String,
    },
    /// The server's best version is too low.
    #[error("{host} speaks SMB {offered} at best, and {wanted} is the least that will do (vers=)")]
    OldVersion {
        /// The server.
        host: String,
        /// Its best.
        offered: &'static str,
        /// The least.
        wanted: &'static str,
    },
    /// Wrong user or password.
    #[error("{host} refuses the user name or the password of {user:?}; check both, and the domain")]
    Login {
        /// The server.
        host: String,
        /// The user who logs in; empty for a guest.
        user: String,
    },
    /// The account cannot be used.
    #[error("{host} does not let {user:?} in: {problem}")]
    Account {
        /// The server.
        host: String,
        /// The user who logs in.
        user: String,
        /// Why.
        problem: &'static str,
    },
    /// The user was logged in as a guest, whose session would neither sign nor encrypt.
    #[error(
        "{host} does not know {user:?} and offers a guest's rights; check the user name, or mount as guest"
    )]
    OnlyGuest {
        /// The server.
        host: String,
        /// The user who logs in.
        user: String,
    },
    /// Kerberos gives no ticket for the user.
    #[error(transparent)]
    Kerberos(#[from] KerberosError),
    /// The clocks differ.
    #[error("the clocks of {host} and of this machine differ too much to log in; set them (NTP)")]
    Clock {
        /// The server.
        host: String,
    },
    /// There is no such share.
    #[error("{host} has no share {share:?}; list its shares: smbclient -L {host}")]
    NoSuchShare {
        /// The server.
        host: String,
        /// The share.
        share: String,
    },
    /// The user may not use the share.
    #[error("{host} denies {user:?} access to the share {share:?}")]
    ShareDenied {
        /// The server.
        host: String,
        /// The share.
        share: String,
        /// The user who logs in.
        user: String,
    },
    /// It is no share of files.
    #[error("the share {share:?} of {host} is no folder, but a printer or a pipe")]
    NotAFolder {
        /// The server.
        host: String,
        /// The share.
        share: String,
    },
    /// The subfolder is not there.
    #[error("the share {share:?} has no folder {path:?}: {cause}")]
    NoSuchFolder {
        /// The share.
        share: String,
        /// The folder.
        path: String,
        /// The server's error.
        cause: larder_vfs::Error,
    },
    /// Signing was demanded and is not to be had.
    #[error("messages of a guest cannot be signed, which was demanded (sign); log in with a name")]
    NoSigning,
    /// Encryption was demanded and is not to be had.
    #[error("{host} cannot encrypt, which was demanded (seal); it speaks SMB {version}")]
    NoEncryption {
        /// The server.
        host: String,
        /// The version that it speaks.
        version: &'static str,
    },
    /// Anything else.
    #[error("{host} cannot mount {share:?}: {cause}; see the server's log")]
    Server {
        /// The server.
        host: String,
        /// The share.
        share: String,
        /// The server's answer.
        cause: String,
    },
}

/// The step at which an error occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Connect,
    Negotiate,
    Login,
    Share,
}

impl MountError {
    /// Whether the server does not answer, so that a later attempt may succeed.
    pub fn is_absence(&self) -> bool {
        matches!(
            self,
            MountError::Unreachable { .. }
                | MountError::Silent { .. }
                | MountError::Kerberos(KerberosError::Unreachable { .. })
        )
    }

    /// The meaning of an error of the library at this step.
    pub(super) fn at(step: Step, options: &MountOptions, error: &smb2::Error) -> MountError {
        let (address, cause) = (options.address(), error.to_string());
        match (step, error) {
            (Step::Connect, _) => MountError::Unreachable { address, cause },
            (_, smb2::Error::Timeout | smb2::Error::ServerUnresponsive { .. }) => {
                MountError::Silent { address, cause }
            }
            (Step::Negotiate, _) => MountError::OnlySmb1 { address, cause },
            (_, smb2::Error::GuestSessionRefused { .. }) => {
                let (host, user) = (options.host.clone(), options.credentials.user.clone());
                MountError::OnlyGuest { host, user }
            }
            (_, smb2::Error::Protocol { status, .. }) => refused(step, options, *status),
            _ => MountError::Server {
                host: options.host.clone(),
                share: options.share.clone(),
                cause,
            },
        }
    }

    /// All steps together took too long.
    pub(super) fn too_slow(options: &MountOptions) -> MountError {
        let cause = format!("not done after {} s", CONNECT_MAX.as_secs());
        MountError::Silent { address: options.address(), cause }
    }
}

/// The meaning of a status at this step.
fn refused(step: Step, options: &MountOptions, status: NtStatus) -> MountError {
    let host = options.host.clone();
    let (user, share) = (options.credentials.user.clone(), options.share.clone());
    let account = |problem| MountError::Account { host: host.clone(), user: user.clone(), problem };
    match status {
        NtStatus::LOGON_FAILURE => MountError::Login { host, user },
        NtStatus::ACCOUNT_DISABLED => account("the account is disabled"),
        NtStatus::ACCOUNT_EXPIRED => account("the account has expired"),
        NtStatus::ACCOUNT_LOCKED_OUT => account("the account is locked; try later"),
        NtStatus::ACCOUNT_RESTRICTION => {
            account("the account is restricted (an empty password, perhaps)")
        }
        NtStatus::PASSWORD_EXPIRED | NtStatus::PASSWORD_MUST_CHANGE => {
            account("the password has expired; change it at the server")
        }
        NtStatus::INVALID_LOGON_HOURS => account("not at this hour"),
        NtStatus::INVALID_WORKSTATION => account("not from this machine"),
        status::TIME_DIFFERENCE_AT_DC => MountError::Clock { host },
        NtStatus::BAD_NETWORK_NAME if step == Step::Share => {
            MountError::NoSuchShare { host, share }
        }
        NtStatus::ACCESS_DENIED | status::NETWORK_ACCESS_DENIED if step == Step::Share => {
            MountError::ShareDenied { host, share, user }
        }
        NtStatus::ACCESS_DENIED => MountError::Login { host, user },
        other => MountError::Server { host, share, cause: other.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!("3".parse(), Ok(Version::V3_0));
        assert_eq!("3.1.1".parse(), Ok(Version::V3_1_1));
        assert_eq!("3.02".parse(), Ok(Version::V3_0_2));
        assert_eq!("3.11".parse(), Ok(Version::V3_1_1));
        assert_eq!("1.0".parse::<Version>(), Err(()));
        assert!(Version::V2_1 < Version::V3_1_1);
    }

    #[test]
    fn each_refusal_says_what_to_do() {
        let options = MountOptions::new("server", "films", Credentials::default());
        for (step, status, wanted) in [
            (Step::Login, 0xC000_006D, "user name or the password"),
            (Step::Login, 0xC000_0072, "disabled"),
            (Step::Login, 0xC000_0133, "clocks"),
            (Step::Share, 0xC000_00CC, "no share \"films\""),
            (Step::Share, 0xC000_0022, "denies"),
            (Step::Share, 0xC000_0001, "see the server's log"),
        ] {
            let error = refused(step, &options, NtStatus(status)).to_string();
            assert!(error.contains(wanted) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn addresses_are_written_as_the_library_reads_them() {
        let address = |host: &str| MountOptions::new(host, "s", Credentials::default()).address();
        assert_eq!(address("nas"), "nas:445");
        assert_eq!(address("fe80::1"), "[fe80::1]:445");
    }
}

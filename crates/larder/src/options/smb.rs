//! Options that only SMB has, as resolved from the command line.

use std::path::PathBuf;

use super::meant::Last;

/// The options that only SMB has (mount.cifs(8)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SmbOptions {
    /// Lowest version of the protocol; `None`: 2.1.
    pub(crate) version_min: Option<String>,
    /// The user who logs in.
    pub(crate) username: Option<String>,
    /// The user's domain.
    pub(crate) domain: Option<String>,
    /// File with user, password and domain.
    pub(crate) credentials: Option<PathBuf>,
    /// Whether Kerberos vouches for the user.
    pub(crate) kerberos: bool,
    /// Kerberos' KDC, as `HOST[:PORT]`; `None`: krb5.conf(5) says.
    pub(crate) kdc: Option<String>,
    /// Without a login.
    pub(crate) guest: bool,
    /// Owner of everything; `None`: the mounting user.
    pub(crate) uid: Option<u32>,
    /// Group of everything; `None`: that of the mounting user.
    pub(crate) gid: Option<u32>,
    /// Mode of files; `None`: the protocol's default.
    pub(crate) file_mode: Option<u32>,
    /// Mode of directories.
    pub(crate) dir_mode: Option<u32>,
    /// Messages must be encrypted.
    pub(crate) seal: bool,
    /// Messages must be signed.
    pub(crate) sign: bool,
    /// No leases are asked for.
    pub(crate) no_leases: bool,
    /// There are no symbolic links.
    pub(crate) no_symlinks: bool,
}

impl SmbOptions {
    /// Resolves the typed options together.
    pub(super) fn meant(typed: &Last<'_>) -> SmbOptions {
        let number = |name| typed.number(name).and_then(|number| u32::try_from(number).ok());
        let sec = typed.text("sec").unwrap_or_default();
        SmbOptions {
            version_min: typed.text("vers").filter(|version| version != "default"),
            username: typed.text("username"),
            domain: typed.text("domain"),
            credentials: typed.text("credentials").map(PathBuf::from),
            kerberos: sec.starts_with("krb5"),
            kdc: typed.text("kdc"),
            guest: typed.last(&["guest"]).is_some() || sec == "none",
            uid: number("uid"),
            gid: number("gid"),
            file_mode: number("file_mode"),
            dir_mode: number("dir_mode"),
            seal: typed.last(&["seal"]).is_some(),
            sign: typed.last(&["sign"]).is_some() || ["ntlmsspi", "krb5i"].contains(&sec.as_str()),
            no_leases: typed.flag("nolease", "lease", false),
            no_symlinks: typed.flag("nomfsymlinks", "mfsymlinks", false),
        }
    }
}

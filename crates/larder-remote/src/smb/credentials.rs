//! The login's identity, and the file in which `mount.cifs` keeps it (`credentials=`).

use std::fmt;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Largest credentials file, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 10;

/// A password. It cannot be printed.
#[derive(Clone, Default)]
pub struct Password(String);

impl Password {
    /// Wraps the text.
    pub fn new(text: impl Into<String>) -> Password {
        Password(text.into())
    }

    /// The text, for code that hashes it or passes it on.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

/// The identity for the login. The default is a guest.
#[derive(Clone, Default)]
pub struct Credentials {
    /// Account; empty for a guest.
    pub user: String,
    /// Its password.
    pub password: Password,
    /// Its domain, workgroup or Kerberos realm; may be empty.
    pub domain: String,
    /// How to get tickets from Kerberos. `None`: the login uses NTLM.
    pub kerberos: Option<Kerberos>,
}

/// Where tickets and KDCs are found.
#[derive(Clone, Debug, Default)]
pub struct Kerberos {
    /// The KDC as `HOST[:PORT]`. `None`: `config` says.
    pub kdc: Option<String>,
    /// The ticket cache, which is used if there is no password.
    pub tickets: PathBuf,
    /// Files as krb5.conf(5).
    pub config: Vec<PathBuf>,
}

/// Whether only its owner may use a file.
pub(super) fn is_private(metadata: &std::fs::Metadata) -> bool {
    metadata.permissions().mode() & 0o077 == 0
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({}\\{})", self.domain, self.user)
    }
}

/// Why a credentials file cannot be used.
#[derive(Debug, Error)]
pub enum CredentialsError {
    /// It cannot be read.
    #[error("cannot read the credentials file {}: {cause}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// Others may read it.
    #[error(
        "the credentials file {0} can be read by others; run: chmod 600 {0}", path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// It makes no sense.
    #[error("the credentials file {}: line {line}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where.
        line: usize,
        /// What is wrong. Never contains text of the line.
        problem: &'static str,
    },
}

impl Credentials {
    /// An account of the server.
    pub fn new(user: &str, password: Password) -> Credentials {
        Credentials { user: user.to_owned(), password, ..Credentials::default() }
    }

    /// Whether this is a guest.
    pub fn is_guest(&self) -> bool {
        self.user.is_empty() && self.kerberos.is_none()
    }

    /// Reads a file of `mount.cifs`: lines of `username=`, `password=`, `domain=`.
    ///
    /// # Errors
    /// [`CredentialsError`]; a file that its group or others may read is refused.
    pub fn read(path: &Path) -> Result<Credentials, CredentialsError> {
        let unreadable = |cause| CredentialsError::Unreadable { path: path.to_owned(), cause };
        let file = std::fs::File::open(path).map_err(unreadable)?;
        if !is_private(&file.metadata().map_err(unreadable)?) {
            return Err(CredentialsError::Exposed { path: path.to_owned() });
        }
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
        parse(&text).map_err(|(line, problem)| CredentialsError::Malformed {
            path: path.to_owned(),
            line,
            problem,
        })
    }
}

/// Reads the lines. An error names the line number, never the content.
fn parse(text: &str) -> Result<Credentials, (usize, &'static str)> {
    let mut read = Credentials::default();
    for (index, line) in text.lines().enumerate() {
        let start = line.trim_start();
        if start.is_empty() || start.starts_with('#') {
            continue;
        }
        let (key, value) = start.split_once('=').ok_or((index + 1, "no \"=\""))?;
        match key.trim_end() {
            "username" | "user" => value.trim().clone_into(&mut read.user),
            // Spaces may be part of a password.
            "password" | "pass" => read.password = Password::new(value),
            "domain" | "dom" | "workgroup" => value.trim().clone_into(&mut read.domain),
            _ => return Err((index + 1, "not username=, password= or domain=")),
        }
    }
    if let Some((domain, user)) = read.user.clone().split_once(['\\', '/']) {
        domain.clone_into(&mut read.domain);
        user.clone_into(&mut read.user);
    }
    match read.user.is_empty() {
        true => Err((0, "no username= line")),
        false => Ok(read),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, wanted: Result<(&str, &str, &str), usize>) {
        let read = parse(text);
        let got = match &read {
            Ok(read) => Ok((read.user.as_str(), read.password.expose(), read.domain.as_str())),
            Err((line, _)) => Err(*line),
        };
        assert_eq!(got, wanted, "{text:?}");
    }

    #[test]
    fn files_of_mount_cifs_are_read() {
        check("username=me\npassword=secret\ndomain=HOME\n", Ok(("me", "secret", "HOME")));
        check("# a comment\r\n\n username = me\npassword= a=b# \n", Ok(("me", " a=b# ", "")));
        check("user=HOME\\me\npass=\u{e4}", Ok(("me", "\u{e4}", "HOME")));
        check("username=me", Ok(("me", "", "")));
    }

    #[test]
    fn what_is_wrong_is_told_by_line() {
        check("", Err(0));
        check("password=x", Err(0));
        check("username=me\nnonsense", Err(2));
        check("username=me\n\ncolour=blue", Err(3));
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("credentials");
        std::fs::write(&path, "username=me\npassword=secret\n").unwrap();
        for (mode, works) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let read = Credentials::read(&path);
            assert_eq!(read.is_ok(), works, "{mode:o}");
            if let Err(error) = read {
                assert!(error.to_string().ends_with(&format!("chmod 600 {}", path.display())));
            }
        }
        assert!(
            !format!("{:?}", Credentials::new("me", Password::new("secret"))).contains("secret")
        );
    }
}

//! The keys by which the store knows us: from a file that only its owner may read, or from the
//! environment. Never from arguments, and in no message.

use std::fmt::{Debug, Formatter};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Variables of the environment, named as AWS's own tools name them.
const ACCESS: &str = "AWS_ACCESS_KEY_ID";
const SECRET: &str = "AWS_SECRET_ACCESS_KEY";
const TOKEN: &str = "AWS_SESSION_TOKEN";
/// The section of a credentials file that is used.
const PROFILE: &str = "default";
/// The longest credentials file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why there are no keys. Each says what to do.
#[derive(Debug, Error)]
pub enum CredentialsError {
    /// The file cannot be read.
    #[error("cannot read the credentials file {path}: {cause}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// Others may read or change the file.
    #[error(
        "the credentials file {0} can be read or changed by others: chmod 600 it, \
         and have it belong to whom larder runs as"
    )]
    Exposed(PathBuf),
    /// A key is not in the file.
    #[error("the credentials file {path} has no line `{key} = ...` below [{PROFILE}]")]
    Incomplete {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
    },
    /// The file is no text, or not a file.
    #[error("{0} is no credentials file: lines `aws_access_key_id = ...` below [{PROFILE}]")]
    Malformed(PathBuf),
    /// Nothing is in the environment either.
    #[error("no keys for the archive: name a credentials file, or set {ACCESS} and {SECRET}")]
    Absent,
}

/// The keys of an account at the store.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(crate) access: String,
    pub(crate) secret: String,
    pub(crate) token: Option<String>,
}

impl Debug for Credentials {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials { .. }")
    }
}

impl Credentials {
    /// Reads a file as AWS's own tools write it (`~/.aws/credentials`), section `[default]`.
    ///
    /// # Errors
    /// [`CredentialsError`]; among others if anyone but its owner may read the file.
    pub fn read(path: &Path) -> Result<Credentials, CredentialsError> {
        let owned = || path.to_owned();
        let unreadable = |cause| CredentialsError::Unreadable { path: owned(), cause };
        let file = File::open(path).map_err(unreadable)?;
        // Of the open file: the name may soon mean another one.
        let metadata = file.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(CredentialsError::Malformed(owned()));
        }
        let own = [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid());
        if !own || metadata.mode() & 0o077 != 0 {
            return Err(CredentialsError::Exposed(owned()));
        }
        let mut text = String::new();
        let read = file.take(FILE_BYTES_MAX).read_to_string(&mut text);
        read.map_err(|_| CredentialsError::Malformed(owned()))?;
        let find = |key: &'static str| {
            value(&text, key).ok_or(CredentialsError::Incomplete { path: owned(), key })
        };
        Ok(Credentials {
            access: find("aws_access_key_id")?,
            secret: find("aws_secret_access_key")?,
            token: value(&text, "aws_session_token"),
        })
    }

    /// Takes the keys from the environment, of which `get` answers a variable.
    ///
    /// # Errors
    /// [`CredentialsError::Absent`] if it does not have both.
    pub fn from_environment(
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<Credentials, CredentialsError> {
        let find = |name| get(name).filter(|value| !value.is_empty());
        let both = find(ACCESS).zip(find(SECRET));
        let (access, secret) = both.ok_or(CredentialsError::Absent)?;
        Ok(Credentials { access, secret, token: find(TOKEN) })
    }
}

/// The value of a key in the section that is used.
fn value(text: &str, key: &str) -> Option<String> {
    let mut is_ours = false;
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            is_ours = section.strip_suffix(']').map(str::trim) == Some(PROFILE);
        } else if let Some((name, value)) = line.split_once('=')
            && is_ours
            && name.trim() == key
        {
            return Some(value.trim().to_owned()).filter(|value| !value.is_empty());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const TEXT: &str = "# of the office\n[other]\naws_access_key_id = no\n[default]\n\
                        aws_access_key_id = me\naws_secret_access_key=hush=\n";

    fn read(text: &str, mode: u32) -> Result<Credentials, CredentialsError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("credentials");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        Credentials::read(&path)
    }

    #[test]
    fn a_file_is_read_that_only_its_owner_may_read() {
        let found = read(TEXT, 0o600).unwrap();
        assert_eq!((found.access.as_str(), found.secret.as_str()), ("me", "hush="));
        assert_eq!(found.token, None);
        assert!(!format!("{found:?}").contains("hush"));
        for mode in [0o640, 0o604, 0o620, 0o644, 0o777] {
            let error = read(TEXT, mode).unwrap_err();
            assert!(error.to_string().contains("chmod 600"), "{mode:o}: {error}");
        }
    }

    #[test]
    fn what_a_file_lacks_is_named() {
        for (text, says) in [
            ("", "aws_access_key_id"),
            ("aws_access_key_id = me\naws_secret_access_key = hush", "[default]"),
            ("[default]\naws_access_key_id = me\naws_secret_access_key =", "aws_secret_access_key"),
        ] {
            let error = read(text, 0o600).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("hush"), "{error}");
        }
        let missing = Credentials::read(Path::new("/nowhere/at all")).unwrap_err();
        assert!(matches!(missing, CredentialsError::Unreadable { .. }));
        let folder = Credentials::read(Path::new("/")).unwrap_err();
        assert!(matches!(folder, CredentialsError::Malformed(_)));
    }

    #[test]
    fn the_environment_has_both_or_none() {
        let from = |pairs: &[(&str, &str)]| {
            let pairs = pairs.to_vec();
            Credentials::from_environment(move |name| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let found = from(&[(ACCESS, "me"), (SECRET, "hush"), (TOKEN, "t")]).unwrap();
        assert_eq!(found.token.as_deref(), Some("t"));
        for pairs in [&[][..], &[(ACCESS, "me")], &[(ACCESS, "me"), (SECRET, "")]] {
            assert!(matches!(from(pairs), Err(CredentialsError::Absent)));
        }
    }
}

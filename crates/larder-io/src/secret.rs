//! Secret bytes: drawn from the kernel, or read from a file that only its owner can read.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::rand::{GetRandomFlags, getrandom};

/// Longest file of a secret, in bytes.
const SECRET_BYTES_MAX: u64 = 4096;

/// Random bytes, fit for keys and nonces. Waits for the kernel's entropy when a machine starts.
///
/// # Panics
/// If the kernel has none, which Linux since 3.17 does not report for so few bytes; code that needs
/// them must not continue without.
pub fn random<const N: usize>() -> [u8; N] {
    const { assert!(N <= 256, "more may come in parts") };
    let mut bytes = [0; N];
    let count = getrandom(&mut bytes, GetRandomFlags::empty()).expect("the kernel gives entropy");
    assert_eq!(count, N);
    bytes
}

/// Reads a file that only its owner may access, and that belongs to this process's user or to root.
///
/// # Errors
/// `PermissionDenied` if it belongs to another user, or others may access it; `InvalidData` if it
/// is not text or too long; else those of open(2) and read(2).
pub fn read(path: &Path) -> io::Result<String> {
    let file = File::open(path)?;
    let about = file.metadata()?;
    let denied = |text: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    if about.mode() & 0o077 != 0 {
        let mode = about.mode() & 0o7777;
        return denied(format!("others than its owner may use it (mode {mode:o}): chmod 600 it"));
    }
    let user = rustix::process::geteuid().as_raw();
    if about.uid() != user && about.uid() != 0 {
        return denied(format!("it belongs to user {}", about.uid()));
    }
    if about.len() > SECRET_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long for a secret"));
    }
    let mut text = String::new();
    file.take(SECRET_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Creates a file with mode 0600, durably.
///
/// # Errors
/// `AlreadyExists` if it exists; else those of open(2), write(2) and fsync(2).
pub fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    io::Write::write_all(&mut file, text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_is_read_only_if_no_other_user_may_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        write_new(&path, "hush").unwrap();
        assert_eq!(read(&path).unwrap(), "hush");
        assert_eq!(write_new(&path, "else").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        for mode in [0o640, 0o604, 0o620, 0o601, 0o666] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let refused = read(&path).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{mode:o}");
            assert!(refused.to_string().contains(&format!("{mode:o}")), "{refused}");
        }
        set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
        assert_eq!(read(&path).unwrap(), "hush");
    }

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random::<32>(), random::<32>());
    }
}

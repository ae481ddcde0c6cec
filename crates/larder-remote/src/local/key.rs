//! The key with which an export seals its handles, and where it is kept.
//!
//! One key serves all exports of a machine's user: each export includes its own identity in the
//! seal. A reader of the key can make handles for every file of the exported file systems, so only
//! its owner may read the file. Losing the key makes every handle stale that was issued before.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use larder_rpc::random_u64;

const KEY_BYTES: usize = 32;

/// The key that makes handles unguessable.
#[derive(Clone, PartialEq, Eq)]
pub struct HandleKey([u8; KEY_BYTES]);

impl std::fmt::Debug for HandleKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HandleKey")
    }
}

impl HandleKey {
    /// A key of these bytes.
    pub const fn from_bytes(bytes: [u8; KEY_BYTES]) -> HandleKey {
        HandleKey(bytes)
    }

    /// A random key, which is stored nowhere.
    ///
    /// # Errors
    /// If the kernel has no randomness.
    pub fn random() -> io::Result<HandleKey> {
        let mut bytes = [0; KEY_BYTES];
        let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        match filled {
            KEY_BYTES => Ok(HandleKey(bytes)),
            _ => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    /// The key in the file `path`, which is made with a new one if it is not there. The key is on
    /// the disk when this returns. Processes that do this at the same time get the same key.
    ///
    /// # Errors
    /// If the file cannot be read or made, if it is not a key, or if it belongs to another user or
    /// others may read it.
    pub fn kept_in(path: &Path) -> io::Result<HandleKey> {
        match File::open(path) {
            Ok(file) => return HandleKey::read(file),
            Err(cause) if cause.kind() == ErrorKind::NotFound => {}
            Err(cause) => return Err(cause),
        }
        let made = path.with_extension(format!("new-{:016x}", random_u64()));
        let put = HandleKey::random()?.write(&made).and_then(|()| {
            // Fails if another process was first: then its key is the key.
            match std::fs::hard_link(&made, path) {
                Err(cause) if cause.kind() == ErrorKind::AlreadyExists => Ok(()),
                linked => linked,
            }
        });
        let removed = std::fs::remove_file(&made);
        put.and(removed)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
        HandleKey::read(File::open(path)?)
    }

    /// Its bytes.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(&self.0)?;
        file.sync_all()
    }

    fn read(mut file: File) -> io::Result<HandleKey> {
        let held = file.metadata()?;
        if held.uid() != rustix::process::geteuid().as_raw() || held.mode() & 0o077 != 0 {
            let text = "it belongs to somebody else, or is open to others";
            return Err(io::Error::new(ErrorKind::PermissionDenied, text));
        }
        if held.len() != KEY_BYTES as u64 {
            return Err(io::Error::new(ErrorKind::InvalidData, "it is no key"));
        }
        let mut bytes = [0; KEY_BYTES];
        file.read_exact(&mut bytes)?;
        Ok(HandleKey(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_is_made_once_and_kept_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("export.key");
        let keys: Vec<HandleKey> = std::thread::scope(|scope| {
            let making: Vec<_> =
                (0..4).map(|_| scope.spawn(|| HandleKey::kept_in(&path).unwrap())).collect();
            making.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]), "who comes second takes the first one's");
        assert_eq!(HandleKey::kept_in(&path).unwrap(), keys[0]);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(!format!("{:?}", keys[0]).contains(char::is_numeric));

        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let refused = HandleKey::kept_in(&path).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        let short = dir.path().join("short");
        std::fs::write(&short, b"short").unwrap();
        std::fs::set_permissions(&short, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(HandleKey::kept_in(&short).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}

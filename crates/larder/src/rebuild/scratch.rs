//! Where confined commands work: a directory in `/var/tmp` for each run, gone after it.
//!
//! It is locked (flock(2)) as long as its process lives; what a killed process left is removed by
//! the next run of the same user.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;
use rustix::fs::FlockOperation;

/// The directory in which they are.
const PLACE: &str = "/var/tmp";

/// How their names begin.
const BEGIN: &str = "larder-rebuild-";

/// The same before they are locked.
const NEW: &str = ".larder-rebuild-new-";

/// The next directory of this process.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A directory to work in.
pub(super) struct Scratch {
    path: PathBuf,
    root: PathBuf,
    dir: File,
    #[expect(dead_code, reason = "it holds the lock")]
    lock: File,
}

impl Scratch {
    /// Makes one for this user, and removes those of dead processes.
    ///
    /// # Errors
    /// If none can be made.
    pub(super) fn new() -> Result<Scratch> {
        sweep();
        let name = format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let [new, path] = [NEW, BEGIN].map(|begin| Path::new(PLACE).join(format!("{begin}{name}")));
        // A directory that another user has put there is not used.
        fs::create_dir(&new)?;
        let lock = File::open(&new)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        fs::set_permissions(&new, Permissions::from_mode(0o700))?;
        fs::rename(&new, &path)?;
        let root = path.join("root");
        fs::create_dir(&root)?;
        let dir = File::open(&root)?;
        let scratch = Scratch { path, root, dir, lock };
        scratch.dir.set_permissions(Permissions::from_mode(0o700))?;
        Ok(scratch)
    }

    /// The future root directory of a command.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The same, open.
    pub(super) fn dir(&self) -> &File {
        &self.dir
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(dir = %self.path.display(), %error, "cannot remove a directory of work");
        }
    }
}

/// Removes what killed processes left, as far as we may.
fn sweep() {
    let Ok(entries) = fs::read_dir(PLACE) else { return };
    let is_ours = |name: &str| name.starts_with(BEGIN);
    for entry in entries.filter_map(Result::ok) {
        if !entry.file_name().to_str().is_some_and(is_ours) {
            continue;
        }
        let unused = File::open(entry.path()).is_ok_and(|dir| {
            rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok()
        });
        if unused {
            // Another user's, perhaps.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_uses_is_removed_and_nothing_else() {
        let used = Scratch::new().unwrap();
        let left = Path::new(PLACE).join(format!("{BEGIN}left-{}", std::process::id()));
        fs::create_dir_all(left.join("root/deep")).unwrap();
        let other = Scratch::new().unwrap();
        assert!(used.root().is_dir() && other.root().is_dir() && !left.exists());
        let path = used.path.clone();
        drop(used);
        assert!(!path.exists());
    }
}

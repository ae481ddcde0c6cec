//! The directory of a run, in which everything is that it makes, mounts included.
//!
//! A run that is killed leaves it. The next one removes it, with what is mounted there; which runs
//! are alive it knows by a lock that each holds on a file of its directory.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use larder_io::mountinfo::mounts;
use tempfile::TempDir;

use crate::process::succeed;

/// The begin of its name.
const PREFIX: &str = "larder-bench-";
const LOCK: &str = "run.lock";

/// Removed when it is dropped; nothing is mounted there any more then.
#[derive(Debug)]
pub(super) struct RunDir {
    // Dropped in this order: a directory that is being removed is not without its run.
    dir: TempDir,
    /// Locked until it is dropped, or this process dies.
    _lock: File,
}

impl RunDir {
    /// Makes one in `runs`, and removes those of runs that were killed.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(super) fn create(runs: &Path) -> Result<RunDir> {
        remove_leftovers(runs);
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(runs)?;
        let lock = File::create_new(dir.path().join(LOCK))?;
        lock.lock()?;
        Ok(RunDir { dir, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Removes the directories in `runs` of runs that are dead, and unmounts what is mounted there. One
/// without a lock is left alone: it has nothing mounted yet.
fn remove_leftovers(runs: &Path) {
    let entries = fs::read_dir(runs).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    for dir in dirs.map(|entry| entry.path()) {
        let Ok(lock) = File::open(dir.join(LOCK)) else { continue };
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => continue,
        }
        unmount_all(&dir);
        detach_all(&dir);
        if mounted_below(&dir).is_empty() {
            eprintln!("larder: removing {}, which a run has left", dir.display());
            let _ = fs::remove_dir_all(&dir);
        }
    }
}

/// Unmounts what is mounted below a directory, the last one first: it may lie on the others. A loop
/// device holds its file for a moment after its own mount, so no mount waits until it is unused.
fn unmount_all(dir: &Path) {
    for at in mounted_below(dir).into_iter().rev() {
        if let Err(error) = succeed(Command::new("umount").arg("--lazy").arg(&at)) {
            eprintln!("larder: {error:#}");
        }
    }
}

/// Detaches the loop devices of files below a directory that are still there: those that were not
/// made by mount(8) outlive their mount.
fn detach_all(dir: &Path) {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    for device in devices {
        let file = fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        if Path::new(&file).starts_with(dir) {
            let device = Path::new("/dev").join(device.file_name());
            if let Err(error) = succeed(Command::new("losetup").arg("--detach").arg(&device)) {
                eprintln!("larder: {error:#}");
            }
        }
    }
}

/// Mountpoints below a directory, in the order in which they were mounted.
fn mounted_below(dir: &Path) -> Vec<PathBuf> {
    let all = mounts().unwrap_or_default().into_iter().map(|mount| mount.mountpoint);
    all.filter(|at| at.starts_with(dir)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_a_dead_run_is_removed_and_that_of_another_is_not() {
        let runs = tempfile::tempdir().unwrap();
        let alive = RunDir::create(runs.path()).unwrap();
        // As a run that was killed leaves it, and one that has only begun.
        let [dead, begun] =
            ["dead", "begun"].map(|name| runs.path().join(format!("{PREFIX}{name}")));
        fs::create_dir_all(dead.join("files")).unwrap();
        File::create_new(dead.join(LOCK)).unwrap();
        fs::create_dir(&begun).unwrap();
        let other = RunDir::create(runs.path()).unwrap();
        assert!(!dead.exists() && begun.exists());
        assert!(alive.path().exists() && other.path().exists());
        let gone = alive.path().to_owned();
        drop(alive);
        assert!(!gone.exists());
    }
}

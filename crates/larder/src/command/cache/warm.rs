//! `larder cache warm`: reads files so that they get into the cache.
//!
//! It lists directories first, which fills the cache of names too; then a few threads read the
//! files, to keep the link busy. A file that cannot be read is reported, and the rest continues.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use super::Shown;
use crate::control::{Progress, Sink};
use crate::options::Bytes;

/// Files read at once.
const READERS: usize = 4;

/// Bytes per read.
const READ_BYTES: usize = 1 << 20;

/// Reads files and trees.
///
/// # Errors
/// If a path is not below a mount of ours with a cache, or something could not be read.
pub(super) fn warm(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        super::cached_mount_of(path)?;
    }
    let failed = AtomicU64::new(0);
    let mut files = Vec::new();
    for path in paths {
        collect(path, &mut files, &failed);
    }
    let (count, bytes) = (files.len(), files.iter().map(|(_, bytes)| bytes).sum());
    let shown = Mutex::new((Shown::new(false), 0));
    let show = |len: u64| {
        let (shown, done) = &mut *shown.lock().unwrap_or_else(PoisonError::into_inner);
        *done += len;
        let told = Progress { bytes: *done, bytes_total: Some(bytes), ..Progress::default() };
        shown.progress(told);
    };
    let files = Mutex::new(files.into_iter());
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                let next = || files.lock().ok()?.next();
                while let Some((path, _)) = next() {
                    counted(read(&path, &show), &failed);
                }
            });
        }
    });
    // Its bar goes.
    drop(shown);
    let failed = failed.into_inner();
    ensure!(failed == 0, "{failed} of {count} files and directories could not be read");
    super::print(&format!("{count} files, {} read\n", Bytes(bytes)))
}

/// Finds the regular files below `top`, without following symbolic links.
fn collect(top: &Path, files: &mut Vec<(PathBuf, u64)>, failed: &AtomicU64) {
    let mut open = vec![top.to_owned()];
    while let Some(path) = open.pop() {
        let found = path.symlink_metadata().with_context(|| path.display().to_string());
        match counted(found, failed) {
            Some(held) if held.is_file() => files.push((path, held.len())),
            Some(held) if held.is_dir() => {
                open.extend(counted(children(&path), failed).into_iter().flatten());
            }
            _ => {}
        }
    }
}

fn children(folder: &Path) -> Result<Vec<PathBuf>> {
    let shown = || folder.display().to_string();
    let entries = folder.read_dir().with_context(shown)?;
    entries.map(|entry| Ok(entry.with_context(shown)?.path())).collect()
}

/// Reports an error on standard error and counts it.
fn counted<T>(done: Result<T>, failed: &AtomicU64) -> Option<T> {
    done.map_err(|error| {
        failed.fetch_add(1, Ordering::Relaxed);
        eprintln!("larder: {error:#}");
    })
    .ok()
}

fn read(path: &Path, progress: &dyn Fn(u64)) -> Result<()> {
    let shown = || path.display().to_string();
    let mut file = File::open(path).with_context(shown)?;
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match file.read(&mut buffer).with_context(shown)? {
            0 => return Ok(()),
            len => progress(len as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_collected_without_following_links() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path();
        std::fs::create_dir(top.join("sub")).unwrap();
        std::fs::write(top.join("sub/a"), "abc").unwrap();
        std::fs::write(top.join("b"), "").unwrap();
        std::os::unix::fs::symlink("..", top.join("sub/up")).unwrap();
        let (mut files, failed) = (Vec::new(), AtomicU64::new(0));
        collect(top, &mut files, &failed);
        files.sort();
        assert_eq!(files, [(top.join("b"), 0), (top.join("sub/a"), 3)]);
        collect(&top.join("missing"), &mut files, &failed);
        assert_eq!(failed.into_inner(), 1);
    }

    #[test]
    fn what_lies_on_no_mount_of_ours_is_refused() {
        assert!(warm(&[std::env::temp_dir().join("x")]).is_err());
    }
}

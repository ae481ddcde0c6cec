//! A [`Disk`] of anonymous memory files, for a mount without a directory.
//!
//! Every file is a memfd, so the kernel can use its descriptor as it uses a real file's. A memfd
//! cannot be opened again once its last descriptor is closed, so the disk keeps one for each file:
//! the caller must keep the number of files within the descriptor limit. Nothing is ever durable.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::disk::{Disk, DiskFile, FsKind, OpenMode, Space};
use crate::real::RealFile;

/// A disk in memory; its files are lost with the process.
#[derive(Debug, Default)]
pub struct MemDisk {
    files: Mutex<BTreeMap<String, Arc<RealFile>>>,
}

impl MemDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<String, Arc<RealFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk for MemDisk {
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut files = self.files();
        match (files.get(path), mode) {
            (Some(_), OpenMode::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Some(file), _) => return Ok(Arc::clone(file) as Arc<dyn DiskFile>),
            (None, OpenMode::Existing) => return Err(io::ErrorKind::NotFound.into()),
            (None, _) => (),
        }
        let fd = memfd_create("larder", MemfdFlags::CLOEXEC)?;
        let file = Arc::new(RealFile::new(fd));
        files.insert(path.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.files().remove(path).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.files();
        let file = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.to_owned(), file);
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        Ok(children(self.files().keys().map(String::as_str), dir))
    }

    fn create_dir_all(&self, _dir: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, _dir: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        let info = rustix::system::sysinfo();
        let unit = u64::from(info.mem_unit);
        // A count of free memory would leave out the page cache, which the kernel gives up on
        // demand. So half of the machine's memory counts as the room for files.
        let total_bytes = info.totalram.saturating_mul(unit);
        Ok(Space { total_bytes, free_bytes: total_bytes / 2, total_inodes: 0, free_inodes: 0 })
    }

    fn kind(&self) -> io::Result<FsKind> {
        Ok(FsKind::TMPFS)
    }

    fn outlives_process(&self) -> bool {
        false
    }
}

/// Names directly below `dir` among full paths, each once.
pub(crate) fn children<'a>(paths: impl Iterator<Item = &'a str>, dir: &str) -> Vec<String> {
    let mut names = Vec::new();
    for path in paths {
        let below = match dir {
            "" => Some(path),
            _ => path.strip_prefix(dir).and_then(|rest| rest.strip_prefix('/')),
        };
        let Some(below) = below else { continue };
        let name = below.split('/').next().unwrap_or(below);
        if names.last().is_none_or(|last: &String| last != name) {
            names.push(name.to_owned());
        }
    }
    names
}

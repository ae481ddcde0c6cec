//! A disk that reports each call to the test.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use larder_io::{Disk, DiskFile, FsKind, OpenMode, Space, Stamp};

use super::*;

/// Hears the name of each call before it is made.
pub(super) trait Watcher: fmt::Debug + Send + Sync {
    fn hear(&self, call: &'static str);
}

/// Calls on data files are reported, and syncs of the disk, the log (`sync_log`) and the index
/// (`sync_index`).
#[derive(Debug)]
pub(super) struct Watched<W> {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) watcher: Arc<W>,
}

impl<W> Clone for Watched<W> {
    fn clone(&self) -> Self {
        Watched { disk: Arc::clone(&self.disk), watcher: Arc::clone(&self.watcher) }
    }
}

#[derive(Debug)]
struct WatchedFile<W> {
    file: Arc<dyn DiskFile>,
    watcher: Arc<W>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Log,
    Index,
    Other,
}

impl Kind {
    fn of(path: &str) -> Kind {
        match path {
            _ if path.starts_with("data/") => Kind::Data,
            _ if path.starts_with("log.") => Kind::Log,
            _ if path.starts_with("index.") => Kind::Index,
            _ => Kind::Other,
        }
    }
}

impl<W: Watcher> WatchedFile<W> {
    fn hear(&self, call: &'static str) {
        if self.kind == Kind::Data {
            self.watcher.hear(call);
        }
    }
}

impl<W: Watcher + 'static> Disk for Watched<W> {
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let (kind, watcher) = (Kind::of(path), Arc::clone(&self.watcher));
        if kind == Kind::Data {
            watcher.hear("open");
        }
        Ok(Arc::new(WatchedFile { file: self.disk.open(path, mode)?, watcher, kind }))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.watcher.hear("remove");
        self.disk.remove(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }

    fn create_dir_all(&self, dir: &str) -> io::Result<()> {
        self.disk.create_dir_all(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.watcher.hear("sync_dir");
        self.disk.sync_dir(dir)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.watcher.hear("sync_all");
        self.disk.sync_all()
    }

    fn space(&self) -> io::Result<Space> {
        self.disk.space()
    }

    fn kind(&self) -> io::Result<FsKind> {
        self.disk.kind()
    }
}

impl<W: Watcher> DiskFile for WatchedFile<W> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.hear("read");
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.hear("write");
        self.file.write_at(data, offset)
    }

    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        self.hear("set_len");
        self.file.set_len(len_bytes)
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.hear("punch_hole");
        self.file.punch_hole(range)
    }

    fn sync_data(&self) -> io::Result<()> {
        match self.kind {
            Kind::Data => self.watcher.hear("sync_data"),
            Kind::Log => self.watcher.hear("sync_log"),
            Kind::Index => self.watcher.hear("sync_index"),
            Kind::Other => {}
        }
        self.file.sync_data()
    }

    fn sync_range(&self, range: Range<u64>) -> io::Result<()> {
        self.hear("sync_range");
        self.file.sync_range(range)
    }

    fn stamp(&self) -> io::Result<Stamp> {
        self.hear("stamp");
        self.file.stamp()
    }

    fn set_modified(&self, mtime_ns: i64) -> io::Result<()> {
        self.file.set_modified(mtime_ns)
    }

    fn try_lock_exclusive(&self) -> io::Result<bool> {
        self.file.try_lock_exclusive()
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_fd()
    }

    fn data_ranges(&self, within: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        self.hear("data_ranges");
        self.file.data_ranges(within)
    }
}

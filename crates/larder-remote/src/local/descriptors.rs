//! Open descriptors, kept for a while so that a stream of READs does not open its file each time.
//!
//! Bounded by [`DESCRIPTORS_MAX`] with second-chance eviction. A sweeper closes what was not used
//! between two of its rounds, because an open descriptor has effects: it retains the space of a
//! file that another process has removed, and one for writing prevents local processes from
//! executing the file.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_vfs::{Handle, Kind};

/// Most descriptors that are kept. Far below the usual limit of 1024 open files.
const DESCRIPTORS_MAX: usize = 512;

/// What a descriptor was opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    /// To stand for the file (`O_PATH`).
    Path,
    /// To read its data or entries.
    Read,
    /// To write its data, and to read it meanwhile.
    Write,
}

/// An open file.
#[derive(Debug)]
pub(super) struct OpenFile {
    fd: OwnedFd,
    /// Its type, which never changes.
    pub(super) kind: Kind,
    /// Held while the position of a directory is moved, or the result of a sync is awaited.
    pub(super) alone: Mutex<()>,
}

impl OpenFile {
    pub(super) fn new(fd: OwnedFd, kind: Kind) -> OpenFile {
        OpenFile { fd, kind, alone: Mutex::new(()) }
    }

    /// A path that leads to the very inode, for system calls that take no descriptor.
    pub(super) fn proc_path(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

type Key = (Handle, Purpose);

#[derive(Debug)]
struct Entry {
    file: Arc<OpenFile>,
    /// Whether it was requested again since it was opened, or since it was last checked by
    /// eviction or the sweeper.
    used: AtomicBool,
}

/// The descriptors that are kept.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Key, Entry>,
    /// In the order of opening. Keys that are no longer kept are skipped.
    order: VecDeque<Key>,
}

impl Descriptors {
    /// The descriptor of `handle` for `purpose`, if there is one.
    pub(super) fn get(&self, handle: &Handle, purpose: Purpose) -> Option<Arc<OpenFile>> {
        let table = self.lock();
        let entry = table.entries.get(&(handle.clone(), purpose))?;
        entry.used.store(true, Relaxed);
        Some(Arc::clone(&entry.file))
    }

    /// Keeps a descriptor, or returns the one that another thread has kept in the meantime.
    pub(super) fn keep(&self, handle: &Handle, purpose: Purpose, file: OpenFile) -> Arc<OpenFile> {
        let key = (handle.clone(), purpose);
        let mut closed = Vec::new();
        let mut table = self.lock();
        if let Some(entry) = table.entries.get(&key) {
            return Arc::clone(&entry.file);
        }
        while table.entries.len() >= DESCRIPTORS_MAX {
            closed.extend(table.evict());
        }
        let file = Arc::new(file);
        table.order.push_back(key.clone());
        if table.order.len() > 2 * DESCRIPTORS_MAX {
            // Handles that are forgotten and kept again are in it several times.
            table.order = table.entries.keys().cloned().chain([key.clone()]).collect();
        }
        table.entries.insert(key, Entry { file: Arc::clone(&file), used: AtomicBool::new(false) });
        drop(table);
        // Closed without the lock: the last descriptor of a removed file frees its space now.
        drop(closed);
        file
    }

    /// Closes every descriptor of `handle` as soon as its present users have finished.
    pub(super) fn forget(&self, handle: &Handle) {
        let closed = [Purpose::Path, Purpose::Read, Purpose::Write]
            .map(|purpose| self.lock().entries.remove(&(handle.clone(), purpose)));
        drop(closed);
    }

    /// Closes the descriptor of `handle` for `purpose` as soon as its present users have finished.
    pub(super) fn forget_one(&self, handle: &Handle, purpose: Purpose) {
        let closed = self.lock().entries.remove(&(handle.clone(), purpose));
        drop(closed);
    }

    /// Closes what was not used since the last sweep.
    pub(super) fn sweep(&self) {
        let mut table = self.lock();
        let unused = table.entries.extract_if(|_, entry| !entry.used.swap(false, Relaxed));
        let closed: Vec<(Key, Entry)> = unused.collect();
        let Table { entries, order } = &mut *table;
        order.retain(|key| entries.contains_key(key));
        drop(table);
        drop(closed);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Removes the oldest descriptor that was not used since it was last checked.
    fn evict(&mut self) -> Option<Entry> {
        while let Some(key) = self.order.pop_front() {
            match self.entries.get(&key) {
                None => {}
                Some(entry) if entry.used.swap(false, Relaxed) => self.order.push_back(key),
                Some(_) => return self.entries.remove(&key),
            }
        }
        debug_assert!(self.entries.is_empty(), "each entry is in the order");
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags, open};

    fn file() -> OpenFile {
        let fd = open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        OpenFile::new(fd, Kind::Directory)
    }

    fn handle(number: usize) -> Handle {
        Handle::new(&number.to_be_bytes())
    }

    #[test]
    fn the_number_kept_is_bounded_and_used_ones_stay() {
        let descriptors = Descriptors::default();
        for number in 0..3 * DESCRIPTORS_MAX {
            descriptors.keep(&handle(number), Purpose::Path, file());
            assert!(descriptors.get(&handle(0), Purpose::Path).is_some(), "{number}");
            assert!(descriptors.lock().entries.len() <= DESCRIPTORS_MAX);
            assert!(descriptors.lock().order.len() <= DESCRIPTORS_MAX);
        }
    }

    #[test]
    fn forgotten_and_unused_ones_are_closed() {
        let descriptors = Descriptors::default();
        for number in 0..3 {
            for purpose in [Purpose::Path, Purpose::Read] {
                descriptors.keep(&handle(number), purpose, file());
            }
        }
        descriptors.forget(&handle(0));
        assert_eq!(descriptors.lock().entries.len(), 4);
        assert!(descriptors.get(&handle(1), Purpose::Read).is_some());
        descriptors.sweep();
        assert_eq!(descriptors.lock().entries.len(), 1);
        assert_eq!(descriptors.lock().order.len(), 1);
        descriptors.sweep();
        assert_eq!(descriptors.lock().entries.len(), 0);
    }

    #[test]
    fn the_second_user_of_a_file_gets_the_first_ones_descriptor() {
        let descriptors = Descriptors::default();
        let first = descriptors.keep(&handle(1), Purpose::Read, file());
        let second = descriptors.keep(&handle(1), Purpose::Read, file());
        assert!(Arc::ptr_eq(&first, &second));
    }
}

//! Local files in the memory of this machine, and the account of them.
//!
//! They are ordinary local files on a second disk, a tmpfs: written at the speed of memory, at no
//! cost to the cache's disk. It outlives the process, as the session log does, and ends with the
//! boot. A bit of a local file's number says on which disk it is, so nothing else has to be
//! recorded. Only files with local changes are there, if their writer's class allows it
//! ([`crate::CachedFile::prefer_memory`]).
//!
//! Invariants:
//! - Nothing in memory counts as synced or kept: a caller that needs that moves the file to the
//!   disk first.
//! - After a [`crate::Cache::close`] nothing is there: what no server has was moved to the disk.
//! - Beyond [`MemoryDir::bytes_max`] a new file is made on the disk, and a file that the daemon
//!   writes moves there. What the kernel writes by itself is counted when the file is next
//!   inspected.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_io::Disk;

/// The bit of a local file's number that says that it is in memory. Other files never have it:
/// numbers are counted up from the time of day.
const IN_MEMORY: u64 = 1 << 63;
/// This much must be free in memory for a file to be created there: other programs may have filled
/// it.
const FREE_BYTES_MIN: u64 = 16 << 20;

/// Where local files lie that are to be in memory.
#[derive(Clone, Debug)]
pub struct MemoryDir {
    /// A directory of a tmpfs, for this cache alone.
    pub disk: Arc<dyn Disk>,
    /// Most bytes in it.
    pub bytes_max: u64,
}

/// Whether the local file with this number is in memory.
pub(crate) fn is_in_memory(serial: u64) -> bool {
    serial & IN_MEMORY != 0
}

/// The local files in memory.
#[derive(Debug)]
pub(crate) struct Memory {
    dir: Option<MemoryDir>,
    bytes: AtomicU64,
    /// Files that were to lie here and lie on the disk.
    turned_away: AtomicU64,
}

impl Memory {
    pub(crate) fn new(dir: Option<MemoryDir>) -> Memory {
        Memory { dir, bytes: AtomicU64::new(0), turned_away: AtomicU64::new(0) }
    }

    pub(crate) fn disk(&self) -> Option<&Arc<dyn Disk>> {
        self.dir.as_ref().map(|dir| &dir.disk)
    }

    /// The number for a new local file: one in memory, if there is room for `bytes`.
    pub(crate) fn number_of_new(&self, serial: u64, bytes: u64) -> u64 {
        if self.dir.is_none() {
            return serial;
        }
        if self.has_room(bytes) {
            return serial | IN_MEMORY;
        }
        if self.turned_away.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!("files that need only memory go to the cache's disk: memory is full");
        }
        serial
    }

    /// Whether this many more bytes fit.
    pub(crate) fn has_room(&self, more: u64) -> bool {
        let Some(dir) = &self.dir else { return false };
        self.bytes().saturating_add(more) < dir.bytes_max
            && dir.disk.space().is_ok_and(|space| {
                space.free_bytes >= FREE_BYTES_MIN.min(dir.bytes_max).saturating_add(more)
            })
    }

    /// Bytes in memory, as last measured.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes_max(&self) -> u64 {
        self.dir.as_ref().map_or(0, |dir| dir.bytes_max)
    }

    pub(crate) fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    pub(crate) fn change(&self, before: u64, after: u64) {
        self.bytes.fetch_add(after, Ordering::Relaxed);
        self.bytes.fetch_sub(before, Ordering::Relaxed);
    }
}

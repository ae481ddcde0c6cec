//! A crash-safe, checksummed, bounded store of file ranges and names on a local disk.
//!
//! It knows nothing about servers, protocols or kernels: keys, attributes and validators are bytes.
//! The nouns:
//!
//! - A [`Cache`] is one directory, locked by one process. It has two halves.
//! - The **index** is a small database: which [`FileNo`] a server's file handle has, the records of
//!   files, names and listings, and for each file what the data half holds. Writes wait in memory
//!   and are committed together by a *checkpoint*.
//! - The **data** is one sparse local file per [`CachedFile`], with the same offsets as the remote
//!   file, so that a kernel can read it. It is cut into chunks of [`CHUNK_BYTES`]; a chunk is
//!   *held* across restarts if all of it is known, and then it has a checksum.
//! - A **version** is the opaque validator under which clean bytes are held. Another version means
//!   another local file, so a descriptor handed out never changes under its reader.
//! - **Dirty** bytes are local changes that no server has acknowledged. They can be *kept*, so that
//!   they outlive a crash of the machine. Changes that no server will accept can be *set aside*.
//! - A **conflict** says what was done here and could not be done so at the server; it is on record
//!   until a person clears it.
//!
//! Invariants:
//! - A read returns bytes that were filled or written for the version the file says it holds, or a
//!   [`Miss`]; never anything else, whatever the disk did.
//! - The index says "held" only of bytes that were synced before it said so.
//! - Before the first local change of a file whose bytes the durable index records as valid, a
//!   durable mark revokes that.
//! - Records that were put, and local writes, survive the death of the process while the machine
//!   runs, if the cache knows the boot ([`Config::boot`]).
//! - No read waits for a sync. No fault of the disk is an error of a read or of a fill.
//!
//! On-disk format: `docs/formats/cache.md`. Left out on purpose: coherence, fetching and
//! write-back.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests wait for real sockets and threads")
)]

mod aside;
mod aside_dir;
mod backend;
mod backing;
mod beside;
mod beside_records;
mod bypass;
mod cache;
mod change;
pub mod codec;
mod collect;
mod config;
mod conflicts;
mod descriptors;
mod engine;
mod file;
mod fill;
mod gauge;
mod hold;
mod index;
mod kept;
mod kept_bytes;
mod kept_on_disk;
mod kept_record;
mod kept_restore;
mod label;
mod local;
mod local_record;
mod log;
mod maintain;
mod marks;
mod memory;
mod memory_files;
mod open;
mod overlay;
mod pins;
mod pool;
mod ranges;
mod recent;
mod records;
mod removals;
mod reserve;
mod save;
mod slots;
mod state;
mod still_loaded;
mod store;
mod sums;
mod turns;
mod unwritten;
mod verify;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use backing::BackingFile;
pub use beside::{Beside, Next, Step, StepEvent};
pub use bypass::Unsent;
pub use cache::{Cache, NamesMark};
pub use config::{
    CacheError, Config, Culled, Limits, Listed, Marks, OpenError, Usage, VerifyProgress,
    VerifyReport,
};
pub use conflicts::{
    CONFLICTS_MAX, Conflict, ConflictKind, FoundConflict, conflict_name, wanted_of_conflict,
};
pub use descriptors::Descriptors;
pub use file::{CachedFile, Filled, Miss, NoSpace};
pub use hold::InUse;
pub use kept::BegunKeeping;
pub use kept_record::Keeping;
pub use memory::MemoryDir;

/// Unit of presence and of checksums on disk, in bytes.
///
/// 16 KiB: a random 4 KiB read of a cold file fetches four times too much at worst, and the sums of
/// a 1 GiB file take 256 KiB.
pub const CHUNK_BYTES: u64 = 16 * 1024;

/// The persistent number of a file: assigned once to a server's key and never to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNo(pub u64);

impl FileNo {
    /// The root directory, see [`Cache::assign_root`].
    pub const ROOT: FileNo = FileNo(1);
}

impl std::fmt::Display for FileNo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Locks a mutex. A panic in another thread does no more harm to the data than a crash, and what is
/// read from disk is checked in any case.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

//! Configuration of a cache, its reports, and why it does not open.

use std::time::Duration;

use larder_io::BootId;

use crate::{Descriptors, FileNo, MemoryDir};

/// Three marks of one resource, `run <= cull <= stop`, as in Linux's cachefiles: culling starts
/// above `cull`, ends at `run`, and nothing is cached above `stop`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Culling continues down to this.
    pub run: u64,
    /// Culling starts above this.
    pub cull: u64,
    /// Caching declines above this.
    pub stop: u64,
}

impl Marks {
    /// Marks at 85 %, 95 % and 100 % of `max`.
    pub fn below(max: u64) -> Marks {
        Marks { run: max / 100 * 85, cull: max / 100 * 95, stop: max }
    }
}

/// How much the cache may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of file data, in whole chunks.
    pub bytes: Marks,
    /// Files with data.
    pub files: Marks,
    /// Free space of the disk in percent: culling starts below `cull`, ends at `run`, caching
    /// declines below `stop`; so here `run >= cull >= stop`.
    pub free_percent: Marks,
}

impl Default for Limits {
    /// As much as the disk has, leaving 10 % free; two million files.
    fn default() -> Self {
        Limits {
            bytes: Marks::below(1 << 50),
            files: Marks::below(2_000_000),
            free_percent: Marks { run: 10, cull: 7, stop: 3 },
        }
    }
}

impl Limits {
    /// For [`Cache::in_memory`](crate::Cache::in_memory): 256 MiB, 400 files (each one takes a
    /// descriptor).
    pub fn in_memory() -> Limits {
        Limits { bytes: Marks::below(256 << 20), files: Marks::below(400), ..Limits::default() }
    }
}

/// Five seconds of short files, at the rate of a fast server nearby.
const UNWRITTEN_BYTES_MAX: u64 = 32 << 20;

/// Two readahead windows of a stream.
const RECENT_BYTES_MAX: u64 = 16 << 20;
/// To read less than this back costs little.
const RECENT_PIECE_BYTES_MIN: u64 = 64 << 10;

/// How to open a cache.
#[derive(Clone, Debug)]
pub struct Config {
    /// Identifies the cached volume at the server; any other volume is refused.
    pub identity: Vec<u8>,
    /// How much to take.
    pub limits: Limits,
    /// Time between checkpoints. `None`: no thread of our own; all work happens inside
    /// [`Cache::checkpoint`](crate::Cache::checkpoint), for tests.
    pub checkpoint_interval: Option<Duration>,
    /// Descriptors of data files that may be open.
    pub descriptors: Descriptors,
    /// Bytes of short files that may wait in memory for the next checkpoint, which writes them; 0
    /// to write each at once. Only bytes from a server wait.
    pub unwritten_bytes_max: u64,
    /// Bytes that were filled ahead of their readers and stay in memory until they are read or
    /// displaced by others; 0 for none.
    pub recent_bytes_max: u64,
    /// Pieces that are filled ahead and are shorter than this are not kept in memory, in bytes.
    pub recent_piece_bytes_min: u64,
    /// Where local files that are to be in memory are kept; `None`: on the disk, as all others.
    pub memory: Option<MemoryDir>,
    /// This boot of the machine. With it nothing that was put or written is lost when the process
    /// dies: what is not committed yet is logged. `None`: the death of the process has the effect
    /// of a crash.
    pub boot: Option<BootId>,
    /// The directory in which a file was last seen, from its record
    /// ([`Cache::node`](crate::Cache::node)). It determines which files are below a pinned
    /// directory; the default finds none.
    pub parent_in_record: fn(&[u8]) -> Option<FileNo>,
}

impl Config {
    /// The defaults for a volume: a checkpoint every 5 s, as many descriptors as most machines let
    /// a process have (20,000), no boot.
    pub fn new(identity: &[u8]) -> Config {
        Config {
            identity: identity.to_vec(),
            limits: Limits::default(),
            checkpoint_interval: Some(Duration::from_secs(5)),
            descriptors: Descriptors::within(20_000),
            unwritten_bytes_max: UNWRITTEN_BYTES_MAX,
            recent_bytes_max: RECENT_BYTES_MAX,
            recent_piece_bytes_min: RECENT_PIECE_BYTES_MIN,
            memory: None,
            boot: None,
            parent_in_record: |_| None,
        }
    }
}

/// Why a cache does not open. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds the lock.
    #[error("the cache is in use by process {pid}: unmount there or choose another directory")]
    InUse {
        /// The process, as it recorded itself in the lock file; 0 if that is unreadable.
        pid: u32,
    },
    /// The directory has another format.
    #[error(
        "the cache has format {found:?}, this larder needs {expected:?}: use the larder that made it, which also sends what was never sent, or remove the directory"
    )]
    WrongVersion {
        /// First line of the format file.
        found: String,
        /// The expected value.
        expected: String,
    },
    /// The file that says what the directory is, and for which volume, is damaged.
    #[error(
        "the label of the cache (its file larder-cache) is damaged, so nobody can tell which source it is of: choose another directory; changes that were never sent are in this one, below data, so keep it while they are missed"
    )]
    DamagedHead,
    /// Users other than the owner may write into the directory.
    #[error(
        "others may write into the cache directory, so what is in it may be theirs: take that right away (chmod 700) if you trust what is there, or choose another directory"
    )]
    WritableByOthers,
    /// The directory holds something else.
    #[error("the directory is not empty and not a larder cache: choose an empty one")]
    NotACache,
    /// The cache belongs to another volume.
    #[error("the cache belongs to another volume ({found}): choose another directory")]
    OtherVolume {
        /// The volume's identity, printable.
        found: String,
    },
    /// The directory is on a FUSE file system, which may be our own mount.
    #[error("the cache directory lies on a FUSE file system: choose one on a local disk")]
    OnFuse,
    /// The directory cannot be written.
    #[error("the cache directory cannot be used ({0}): check its owner, mode and free space")]
    Unwritable(#[source] std::io::Error),
}

/// Why a checkpoint or an inspection failed. What was cached is then a miss.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The index failed earlier and is out of use until the next open.
    #[error("the cache index failed and is out of use until the next mount")]
    Poisoned,
    /// The cache was closed.
    #[error("the cache is closed")]
    Closed,
    /// The disk failed.
    #[error("the cache disk failed: {0}")]
    Disk(#[from] std::io::Error),
}

/// What the cache holds, and counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of file data held, in whole chunks.
    pub bytes: u64,
    /// `stop` mark of `bytes`.
    pub bytes_max: u64,
    /// Files with data.
    pub files: u64,
    /// `stop` mark of `files`.
    pub files_max: u64,
    /// Size of the index, in bytes.
    pub index_bytes: u64,
    /// Index entries that wait in memory for a commit.
    pub pending_entries: u64,
    /// Size of those, in bytes.
    pub pending_bytes: u64,
    /// Commits of the index in this run, each of two syncs.
    pub commits: u64,
    /// Writes to the session log in this run.
    pub logged: u64,
    /// Times in this run that it was synced for callers who wait for this machine's disk.
    pub log_syncs: u64,
    /// Reads answered.
    pub hits: u64,
    /// Reads not answered.
    pub misses: u64,
    /// Fills not stored.
    pub declined: u64,
    /// Files culled.
    pub culled: u64,
    /// Chunks forgotten because of a wrong checksum or a read error.
    pub bad_chunks: u64,
    /// Files with unacknowledged changes that were dropped at open, after a crash.
    pub dirty_dropped: u64,
    /// Local files without an index entry that were removed.
    pub orphans_removed: u64,
    /// Files in the cache directory with changes that no server accepted, for people to inspect.
    pub set_aside: u64,
    /// Bytes of files that are in memory, as last measured.
    pub memory_bytes: u64,
    /// Most of these; 0 if none may.
    pub memory_bytes_max: u64,
    /// Files that were to be in memory and are on the disk, because memory was full.
    pub turned_away: u64,
    /// Whether the index is out of use after a failure.
    pub poisoned: bool,
}

/// One file in [`Cache::list`](crate::Cache::list).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The file.
    pub no: FileNo,
    /// The server's key, if it is still known.
    pub key: Option<Vec<u8>>,
    /// Bytes held, in whole chunks.
    pub held_bytes: u64,
    /// Size of the file, in bytes.
    pub size: u64,
    /// Whether it is never culled: pinned itself, or below a pinned directory.
    pub pinned: bool,
    /// Whether it has unacknowledged changes.
    pub dirty: bool,
    /// Last use, in seconds since 1970; some minutes inexact.
    pub last_use_sec: u64,
}

/// How far [`Cache::verify`](crate::Cache::verify) is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Files examined.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
}

/// The result of [`Cache::verify`](crate::Cache::verify).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Files examined.
    pub files: u64,
    /// Chunks read.
    pub chunks: u64,
    /// Chunks whose checksum is wrong or that cannot be read: file and number of the chunk. They
    /// are forgotten.
    pub bad: Vec<(FileNo, u64)>,
}

/// What [`Cache::cull`](crate::Cache::cull) removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Culled {
    /// Files whose data was removed.
    pub files: u64,
    /// Bytes freed, in whole chunks.
    pub bytes: u64,
}

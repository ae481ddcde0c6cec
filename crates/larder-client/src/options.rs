//! Options of a mount for the client. Names and defaults follow mount.nfs(8) where it has them.

use std::sync::Arc;
use std::time::Duration;

use larder_class::Classes;
use larder_io::Rate;

use crate::class::Here;

/// `wback`, unless an option says otherwise.
const UNSENT_AGE_MAX: Duration = Duration::from_secs(30);

/// Options of a [`crate::Client`].
#[derive(Clone, Debug)]
pub struct Options {
    /// How long attributes of files are trusted: from the first value, doubling while nothing
    /// changes, up to the second (`acregmin`, `acregmax`).
    pub file_ttl: (Duration, Duration),
    /// The same for directories and for the names in them (`acdirmin`, `acdirmax`).
    pub directory_ttl: (Duration, Duration),
    /// Ask the server at every open whether the file has changed (`cto`).
    pub close_to_open: bool,
    /// Which names are cached (`lookupcache`).
    pub lookup_cache: LookupCache,
    /// Locks of processes are passed on to the server; otherwise the front door's kernel keeps
    /// them (`brl`).
    pub pass_locks: bool,
    /// Files have extended attributes (`user_xattr`).
    pub has_xattrs: bool,
    /// Every write is durable at the server before it is answered (`sync`).
    pub sync: bool,
    /// How durable files are (`class`, `rules`); fitted to [`crate::offer`].
    pub classes: Arc<Classes>,
    /// Of which files unsent data is kept here, where this machine's disk is enough for its class.
    pub keeps: Keeps,
    /// How this machine is called, in names of conflicts.
    pub host: String,
    /// Refuse every change (`ro`).
    pub read_only: bool,
    /// Keep clean data in the cache. Without it (`plain`) only dirty data is held, until it is
    /// written back, and the kernel's page cache serves rereads as it does for any network
    /// file system.
    pub cache_data: bool,
    /// Largest read request in bytes (`rsize`); the server's limit applies too.
    pub read_bytes_max: u32,
    /// Largest write request in bytes (`wsize`); the server's limit applies too.
    pub write_bytes_max: u32,
    /// Farthest readahead of one stream, in bytes.
    pub readahead_bytes_max: u64,
    /// One budget for all data in flight between server and cache, in bytes. As much again may
    /// wait for the cache's disk.
    pub buffer_bytes_max: u64,
    /// Dirty bytes of one file that start write-back before close.
    pub dirty_bytes_max: u64,
    /// How long written bytes may be unsent if no caller asks for more (`wback`).
    pub unsent_age_max: Duration,
    /// How many bytes per second go to the server without a caller that waits for them (`bwlimit`);
    /// it may change at any time.
    pub rate: Arc<Rate>,
    /// Most nodes kept in memory; the rest is on the cache's disk.
    pub nodes_in_memory_max: usize,
    /// How long the link must be quiet before partly cached files are completed; `None`: never.
    pub fill_after: Option<Duration>,
    /// Larger files are not completed, in bytes.
    pub fill_bytes_max: u64,
}

/// The files of which unsent data may be kept on this machine's disk: what the server offers
/// against overwriting what another client writes meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// All: the file's version says whether another client has changed it.
    Any,
    /// Those from which the server excludes other clients ([`larder_vfs::Remote::exclude`]).
    Alone,
    /// Those that the server has empty: the version of a file may change without a change by
    /// another client, but in an empty file there is nothing to overwrite.
    Empty,
}

/// How a client begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// A mount that the kernel has just made. What an earlier process left unsent in the cache is
    /// sent in the background.
    NewMount,
    /// In the place of a process that died (or was replaced) while the kernel's mount continues.
    /// The cache must be the one of that process, opened in the same boot of the machine with
    /// [`larder_cache::Config::boot`] set; else nothing of the mount is known, and its open files
    /// answer [`Error::Stale`].
    Resume,
}

/// Which names are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupCache {
    /// Names, and that there is no such name.
    All,
    /// Names only.
    Positive,
    /// Neither.
    None,
}

/// Attribute timeouts of one kind of file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TtlRange {
    pub(crate) min: Duration,
    pub(crate) max: Duration,
}

impl TtlRange {
    /// The timeout of attributes that were just reported for the first time.
    pub(crate) fn at_first(self) -> Duration {
        (self.min * 2).clamp(self.min, self.max)
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            file_ttl: (Duration::from_secs(5), Duration::from_secs(5)),
            directory_ttl: (Duration::from_secs(30), Duration::from_secs(30)),
            close_to_open: true,
            lookup_cache: LookupCache::All,
            pass_locks: false,
            has_xattrs: false,
            sync: false,
            classes: Arc::new(
                Classes::shipped(&crate::offer("a mount", Here::default(), UNSENT_AGE_MAX))
                    .expect("what larder brings, it keeps"),
            ),
            keeps: Keeps::Any,
            host: "here".to_owned(),
            read_only: false,
            cache_data: true,
            read_bytes_max: 1 << 20,
            write_bytes_max: 1 << 20,
            readahead_bytes_max: 8 << 20,
            buffer_bytes_max: 64 << 20,
            dirty_bytes_max: 32 << 20,
            unsent_age_max: UNSENT_AGE_MAX,
            rate: Arc::default(),
            nodes_in_memory_max: 32 << 10,
            fill_after: Some(Duration::from_secs(10)),
            fill_bytes_max: 64 << 20,
        }
    }
}

impl Options {
    /// `noac`: attributes and names are never trusted, writes are synchronous.
    pub fn no_attribute_cache(mut self) -> Options {
        self.file_ttl = (Duration::ZERO, Duration::ZERO);
        self.directory_ttl = (Duration::ZERO, Duration::ZERO);
        self.sync = true;
        self
    }
}

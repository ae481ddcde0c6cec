//! [`Core`]: the state that the operations share, and the small steps that each of them takes.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use larder_cache::{Cache, CachedFile};
use larder_io::{Clock, Monotonic};
use larder_vfs::{Cred, Deadline, Error, Ino, Kernel, Kind, Remote, Result, StatFs, Time};
use tokio::sync::Semaphore;

use crate::class::SetClasses;
use crate::limits::Budget;
use crate::locks::Locks;
use crate::names::{Changing, Room};
use crate::node::{Node, ServerTimes, Squash, Table};
use crate::open::{OpenFiles, Remaker, Replaced};
use crate::options::{Options, TtlRange};
use crate::patience::Patience;
use crate::read::{FillQueue, StoringBudget};
use crate::write::{KeepSoon, Placing, Queue};

/// Everything that the operations share.
pub(crate) struct Core {
    pub(crate) remote: Arc<dyn Remote>,
    pub(crate) cache: Cache,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: Options,
    /// How long a call waits for the server; `None`: for as long as it takes.
    call_limit: Option<Duration>,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) table: Table,
    /// Names this run: monotonic times in records of other runs mean nothing.
    pub(crate) session: u64,
    pub(crate) kernel: OnceLock<Arc<dyn Kernel>>,
    /// Makes lost files again, if the mount has such a service.
    pub(crate) remaker: OnceLock<Arc<dyn Remaker>>,
    pub(crate) replaced: Replaced,
    /// The mount is that of an earlier process, which may have died before it had told the kernel
    /// of a change that it had learnt of.
    pub(crate) succeeds: bool,
    pub(crate) open_files: OpenFiles,
    /// The next number of an open file or hidden name, see [`Core::next_number`].
    pub(crate) next_number: AtomicU64,
    /// KiB of readahead that may be in flight or waiting to be read.
    pub(crate) readahead_budget: Arc<Semaphore>,
    /// KiB of demanded reads and write-back that may be in flight.
    pub(crate) transfer_budget: Arc<Budget>,
    /// KiB of what was read that may wait for the cache's disk.
    pub(crate) storing_budget: StoringBudget,
    pub(crate) statfs: Mutex<Option<(Monotonic, StatFs)>>,
    pub(crate) squash: Squash,
    pub(crate) times: ServerTimes,
    pub(crate) counters: Counters,
    /// Flights that have not yet given their bytes to the cache.
    pub(crate) in_air: tokio::sync::watch::Sender<usize>,
    pub(crate) fill: FillQueue,
    /// Names that are being changed.
    pub(crate) changing: Changing,
    /// For the names of directories that are known whole.
    pub(crate) room_of_names: Room,
    /// How long callers wait who can do without the server.
    pub(crate) patience: Arc<Patience>,
    /// Locks of processes, where the mount passes them on.
    pub(crate) locks: Locks,
    /// The classes that were set for single files and directories.
    pub(crate) set_classes: SetClasses,
    /// Sends the data for which no caller waits.
    pub(crate) engine: Arc<Queue>,
    /// Closed files that this machine's disk is to have soon.
    pub(crate) keep_soon: Arc<KeepSoon>,
    /// Brings what was set aside to the server.
    pub(crate) placing: Arc<Placing>,
}

/// How a run begins.
pub(crate) struct Begin {
    /// The number of this run, or of the run whose mount it continues.
    pub(crate) session: u64,
    /// From here on no number was given to an open file.
    pub(crate) first_open: u64,
    /// The mount is that of an earlier process.
    pub(crate) succeeds: bool,
}

/// Counters behind [`crate::Status`].
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) read_bytes_cached: AtomicU64,
    pub(crate) read_bytes_remote: AtomicU64,
    pub(crate) opens_passthrough: AtomicU64,
    pub(crate) opens_other: AtomicU64,
    pub(crate) opens_for_reading: AtomicU64,
    pub(crate) opens_of_whole_files: AtomicU64,
}

impl Core {
    /// The server is out of reach, and this machine answers in its place from what is held.
    pub(crate) fn is_away(&self) -> bool {
        self.remote.deferring().is_some_and(larder_vfs::Deferring::is_away)
    }

    /// The same, and what the cache keeps is acknowledged, whatever the class.
    pub(crate) fn is_kept_enough(&self) -> bool {
        self.remote.deferring().is_some_and(larder_vfs::Deferring::is_kept_enough)
    }

    /// A cached listing may lack names that were changed here.
    pub(crate) fn outdates_listings(&self) -> bool {
        self.remote.deferring().is_some_and(larder_vfs::Deferring::outdates_listings)
    }

    /// The parts, before any of them runs.
    pub(crate) fn new(
        remote: Arc<dyn Remote>,
        table: Table,
        cache: Cache,
        clock: Arc<dyn Clock>,
        options: Options,
        Begin { session, first_open, succeeds }: Begin,
    ) -> Core {
        let budget_kib =
            usize::try_from(options.buffer_bytes_max >> 10).unwrap_or(1 << 20).max(4096);
        let set_classes = SetClasses::read(&cache);
        let transfer_budget = Arc::new(Budget::new(budget_kib / 2, clock.clone()));
        Core {
            call_limit: remote.call_limit(),
            remote,
            table,
            cache,
            clock,
            runtime: tokio::runtime::Handle::current(),
            session,
            kernel: OnceLock::new(),
            remaker: OnceLock::new(),
            replaced: Replaced::default(),
            succeeds,
            open_files: OpenFiles::default(),
            next_number: AtomicU64::new(first_open),
            readahead_budget: Arc::new(Semaphore::new(budget_kib / 2)),
            transfer_budget,
            storing_budget: StoringBudget::new(u32::try_from(budget_kib).unwrap_or(u32::MAX)),
            statfs: Mutex::new(None),
            squash: Squash::default(),
            times: ServerTimes::default(),
            counters: Counters::default(),
            in_air: tokio::sync::watch::Sender::new(0),
            fill: FillQueue::default(),
            changing: Changing::default(),
            room_of_names: Room::default(),
            patience: Arc::default(),
            locks: Locks::default(),
            set_classes,
            engine: Arc::default(),
            keep_soon: Arc::default(),
            placing: Arc::default(),
            options,
        }
    }

    /// Now.
    pub(crate) fn now(&self) -> Monotonic {
        self.clock.now()
    }

    /// When a call that is made now ends.
    pub(crate) fn deadline(&self) -> Option<Deadline> {
        let now = self.clock.instant();
        self.call_limit.map(|limit| Deadline::new(now, limit))
    }

    /// The caller of a call that is made now.
    pub(crate) fn caller(&self, cred: &Cred) -> Cred {
        cred.until(self.deadline())
    }

    /// The wall clock, as a file's time.
    pub(crate) fn wall(&self) -> Time {
        let wall = self.clock.wall();
        Time { sec: wall.sec, nsec: wall.nsec }
    }

    /// The node with this number.
    pub(crate) fn node(&self, ino: Ino) -> Result<Arc<Node>> {
        self.table.get(ino).ok_or(Error::Stale)
    }

    /// The data that the cache holds of the file.
    pub(crate) fn file(&self, node: &Node) -> Arc<CachedFile> {
        self.cache.file(node.no())
    }

    /// Attribute timeouts of this file.
    pub(crate) fn ttl_range(&self, kind: Kind) -> TtlRange {
        let (min, max) = match kind {
            Kind::Directory => self.options.directory_ttl,
            _ => self.options.file_ttl,
        };
        TtlRange { min, max }
    }

    /// Fails on a read-only mount.
    pub(crate) fn refuse_read_only(&self) -> Result<()> {
        if self.options.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }
}

/// Runs `work` on this thread if it is `quick`, else as [`blocking`].
pub(crate) async fn blocking_unless<T: Send + 'static>(
    quick: bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if quick { Ok(work()) } else { blocking(work).await }
}

/// Runs work that may wait for the local disk away from the threads that drive the network.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Io)
}

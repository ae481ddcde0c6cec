//! [`Client`]: the parts, put together; and the small steps that every operation takes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use larder_cache::{Cache, CachedFile};
use larder_io::{Clock, Monotonic};
use larder_vfs::{
    Access, Attr, Change, Cred, Deadline, Entry, Error, Found, Fresh, Ino, Kernel, Kind, OpenId,
    Remote, Result, StatFs, Time,
};
use tokio::sync::Semaphore;

use crate::journal::{Carried, Known, OPEN_BLOCK, Start, Version};
use crate::limits::Budget;
use crate::node::{Node, Seen, ServerTimes, Settled, State, Table, rights};
use crate::open::OpenFile;
use crate::options::{Options, TtlRange};
use crate::read::Fill;
use crate::write::{self, Engine, UnsentTotal};

/// A file system over a server and a cache. Clones share everything.
#[derive(Clone)]
pub struct Client {
    pub(crate) core: Arc<Core>,
}

/// What `larder status` shows of a client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Status {
    /// Open files.
    pub open_files: u64,
    /// What the server does not hold yet.
    pub unsent: UnsentTotal,
    /// Whether the server answers.
    pub reachable: bool,
    /// Bytes that reads took from the cache (not counting what the kernel read itself).
    pub read_bytes_cached: u64,
    /// Bytes that reads took from the server.
    pub read_bytes_remote: u64,
    /// Opens answered with a local file for the kernel to read itself.
    pub opens_passthrough: u64,
    /// Opens answered otherwise.
    pub opens_other: u64,
    /// Opens for reading of files that are not empty.
    pub opens_for_reading: u64,
    /// Of these, those that found every byte of the file's present version in the cache.
    pub opens_of_whole_files: u64,
    /// Nodes in memory.
    pub nodes_in_memory: u64,
    /// Completing files while the link is quiet.
    pub fill: Fill,
}

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
    pub(crate) opens: Mutex<HashMap<OpenId, Arc<OpenFile>>>,
    next_open: AtomicU64,
    /// KiB of readahead that may be on its way or waiting to be read.
    pub(crate) readahead_budget: Arc<Semaphore>,
    /// KiB of demanded reads and write-back that may be on their way.
    pub(crate) transfer_budget: Arc<Budget>,
    pub(crate) statfs: Mutex<Option<(Monotonic, StatFs)>>,
    root_squash: AtomicU8,
    pub(crate) times: ServerTimes,
    pub(crate) counters: Counters,
    /// Flights that have not yet given their bytes to the cache.
    pub(crate) in_air: tokio::sync::watch::Sender<usize>,
    pub(crate) fill: crate::read::FillQueue,
    /// Sends what nobody waits for.
    pub(crate) engine: Arc<Engine>,
}

/// Counters behind [`Status`].
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) read_bytes_cached: AtomicU64,
    pub(crate) read_bytes_remote: AtomicU64,
    pub(crate) opens_passthrough: AtomicU64,
    pub(crate) opens_other: AtomicU64,
    pub(crate) opens_for_reading: AtomicU64,
    pub(crate) opens_of_whole_files: AtomicU64,
}

/// What is known of how the server treats user 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RootSquash {
    Unknown,
    No,
    Yes,
}

/// Makes a call that takes a handle, and once more with a new handle if the old one went stale and the
/// file could be found again, for a caller who waits until `$cred` says.
macro_rules! on_handle {
    ($core:expr, $cred:expr, $node:expr, $handle:ident => $call:expr) => {{
        let mut recovered = false;
        let mut handle = $node.handle();
        loop {
            let $handle = match &handle {
                Ok(handle) => handle.clone(),
                Err(error) => break Err(*error),
            };
            match $call.await {
                Err(larder_vfs::Error::Stale) if !recovered => {
                    recovered = true;
                    handle = $core.recover($cred, &$node, &$handle).await;
                }
                answer => break answer,
            }
        }
    }};
}
pub(crate) use on_handle;

impl Client {
    /// Puts a client together. For a new mount it asks the server for the root, so it waits for one
    /// round trip. One that is resumed, or whose server is known to be out of reach, asks nothing if the
    /// index knows the root, and reads the local disk (all of each file that the kernel was writing itself).
    ///
    /// `session` must differ from that of every earlier run on this cache (a random number). A client
    /// that resumes goes on under the number of the run before.
    ///
    /// # Errors
    /// What the server answers; [`Error::TimedOut`] if it is out of reach and the index has no root.
    pub async fn new(
        remote: Arc<dyn Remote>,
        cache: Cache,
        clock: Arc<dyn Clock>,
        options: Options,
        session: u64,
        start: Start,
    ) -> Result<Client> {
        let carried = Carried::read(&cache);
        let before = carried.run.filter(|_| start == Start::Resume);
        if start == Start::Resume && before.is_none() {
            tracing::warn!("nothing is known of the mount that is to be resumed");
        }
        let (session, first_open) = before.map_or((session, 1), |run| (run.session, run.next_open));
        let table = Table::new(cache.clone(), options.nodes_in_memory_max);
        let asked = clock.now();
        let is_away = !remote.reachable();
        let held = table.get(Ino::ROOT).filter(|_| before.is_some() || is_away);
        let root = match held {
            Some(_) => None,
            None if is_away => return Err(Error::TimedOut),
            None => Some(remote.root().await?),
        };
        if let Some(root) = &root {
            cache.assign_root(root.handle.as_bytes());
        }
        let budget_kib =
            usize::try_from(options.buffer_bytes_max >> 10).unwrap_or(1 << 20).max(4096);
        let core = Arc::new(Core {
            call_limit: remote.call_limit(),
            remote,
            table,
            cache,
            clock,
            runtime: tokio::runtime::Handle::current(),
            session,
            kernel: OnceLock::new(),
            opens: Mutex::default(),
            next_open: AtomicU64::new(first_open),
            readahead_budget: Arc::new(Semaphore::new(budget_kib / 2)),
            transfer_budget: Arc::new(Budget::new(budget_kib / 2)),
            statfs: Mutex::new(None),
            root_squash: AtomicU8::new(RootSquash::Unknown as u8),
            times: ServerTimes::default(),
            counters: Counters::default(),
            in_air: tokio::sync::watch::Sender::new(0),
            fill: crate::read::FillQueue::default(),
            engine: Arc::default(),
            options,
        });
        if let Some(root) = root {
            core.learn(&root, asked, None);
        }
        let watcher = Arc::downgrade(&core);
        core.remote.watch(watcher);
        core.note_run((first_open / OPEN_BLOCK + 2) * OPEN_BLOCK);
        let taking = core.clone();
        blocking(move || taking.take_up(start, &carried)).await?;
        crate::read::start_filling(&core);
        write::start_engine(&core);
        Ok(Client { core })
    }

    /// The mount is over, and no other process will go on with it: forgets its open files. To be called
    /// after the kernel's last request and before [`Cache::close`]; not by a process that is to be
    /// replaced.
    pub fn end_mount(&self) {
        self.core.end_session();
    }

    /// What is going on.
    pub fn status(&self) -> Status {
        let core = &self.core;
        Status {
            open_files: core.open_table().len() as u64,
            reachable: core.remote.reachable(),
            read_bytes_cached: core.counters.read_bytes_cached.load(Ordering::Relaxed),
            read_bytes_remote: core.counters.read_bytes_remote.load(Ordering::Relaxed),
            opens_passthrough: core.counters.opens_passthrough.load(Ordering::Relaxed),
            opens_other: core.counters.opens_other.load(Ordering::Relaxed),
            opens_for_reading: core.counters.opens_for_reading.load(Ordering::Relaxed),
            opens_of_whole_files: core.counters.opens_of_whole_files.load(Ordering::Relaxed),
            nodes_in_memory: core.table.in_memory().len() as u64,
            unsent: self.unsent(&|_| true),
            fill: core.fill_status(),
        }
    }
}

impl Core {
    /// Now.
    pub(crate) fn now(&self) -> Monotonic {
        self.clock.now()
    }

    /// When a call that is made now ends.
    pub(crate) fn deadline(&self) -> Option<Deadline> {
        let now = tokio::time::Instant::now().into_std();
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

    pub(crate) fn open_table(&self) -> MutexGuard<'_, HashMap<OpenId, Arc<OpenFile>>> {
        self.opens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn next_open_id(&self) -> OpenId {
        OpenId(self.next_number())
    }

    /// A number that no open file or hidden name of this mount has had, whatever process made it.
    pub(crate) fn next_number(&self) -> u64 {
        let number = self.next_open.fetch_add(1, Ordering::Relaxed);
        if number.is_multiple_of(OPEN_BLOCK) {
            self.note_run(number + 2 * OPEN_BLOCK);
        }
        number
    }

    /// Takes in a file that a reply named and described; the call was made at `asked`.
    pub(crate) fn learn(
        &self,
        found: &Found,
        asked: Monotonic,
        hint: Option<(Ino, std::ffi::OsString)>,
    ) -> Arc<Node> {
        let is_young = self.see(&found.attr, asked);
        let ttl = self.ttl_range(found.attr.kind).at_first();
        let (node, is_new) = self.table.get_or_insert(&found.handle, || Known {
            // Not a number that names may carry from before, should the record have been lost.
            epoch: self.session,
            hint: hint.clone(),
            // Nothing is held of it, but names in it that come with the same reply.
            doubtful: is_young && found.attr.kind == Kind::Directory,
            ..Known::described(found.attr, self.session, asked, ttl)
        });
        if is_new {
            return node;
        }
        let is_moved = hint.is_some() && {
            let mut state = node.state();
            let is_moved = state.known.hint != hint;
            state.known.hint = hint;
            is_moved
        };
        self.observe_at(&node, found.attr, asked, is_young, is_moved);
        node
    }

    /// Takes in a description that rode on the reply to a call made at `asked`.
    pub(crate) fn observe(&self, node: &Node, attr: Attr, asked: Monotonic) -> Seen {
        let is_young = self.see(&attr, asked);
        self.observe_at(node, attr, asked, is_young, false)
    }

    /// The same of one that came with bytes, which are wanted for `version`. To be called before the cache gets them: if that
    /// version was too young when they were asked for, they may lack a change that its validator does not tell.
    pub(crate) fn observe_bytes(
        &self,
        node: &Node,
        version: &Version,
        attr: Attr,
        asked: Monotonic,
    ) {
        self.observe(node, attr, asked);
        if !self.is_young(&attr, asked) {
            return;
        }
        let mut state = node.state();
        let is_known = version.same(&state.version()) && attr.validator().same(&version.validator);
        if is_known && !state.known.doubtful {
            state.known.doubtful = true;
            self.table.persist(node.ino, &mut state);
        }
    }

    /// The same of a file that was perhaps found under another name, in a version that perhaps is young.
    fn observe_at(
        &self,
        node: &Node,
        attr: Attr,
        asked: Monotonic,
        is_young: bool,
        is_moved: bool,
    ) -> Seen {
        let mut state = node.state();
        let ttl = self.ttl_range(state.known.attr.kind);
        let before = Attr { atime: attr.atime, ..state.known.attr };
        let is_shown = state.is_shown(self.session);
        let believed = (state.known.epoch, state.known.doubtful);
        let seen = state.observe(attr, self.session, asked, ttl, is_young);
        let is_believed = (state.known.epoch, state.known.doubtful) == believed;
        let is_same = seen == Seen::Same && before == attr && !is_moved && is_believed;
        state.confirmed |= is_same;
        if !is_same && (seen != Seen::Older || is_moved) {
            self.table.persist(node.ino, &mut state);
        }
        if let Seen::Moved { from } = seen {
            self.carry(node, &mut state, from);
        }
        if seen == Seen::Changed {
            tracing::debug!(ino = node.ino.0, "changed on the server");
        }
        if seen == Seen::Changed && is_shown {
            self.outdate(node.ino, &mut state);
        }
        seen
    }

    /// Learns from a description what the server's clock tells, and whether the version is too young to vouch for
    /// what is read from `asked` on.
    fn see(&self, attr: &Attr, asked: Monotonic) -> bool {
        self.times.see(attr, self.now());
        self.is_young(attr, asked)
    }

    /// Whether a version was too young at `asked` to vouch for what was read from then on.
    fn is_young(&self, attr: &Attr, asked: Monotonic) -> bool {
        self.times.is_young(attr, asked, (self.now(), || self.clock.wall()))
    }

    /// What is held under the version `from` is valid under the present one too.
    pub(crate) fn carry(&self, node: &Node, state: &mut State, from: larder_vfs::Validator) {
        let from = Version { validator: from, ..state.version() };
        let attr = state.known.attr;
        if attr.kind != Kind::File {
            return;
        }
        state.carry_shown(from);
        let file = self.file(node);
        let held = file.version() == Some(from.bytes());
        if held && file.dirty().is_empty() {
            file.set_version(&state.version().bytes(), attr.size);
        }
    }

    /// Before a change of ours is sent.
    pub(crate) fn begin_change(&self, node: &Node) {
        node.state().begin_change();
    }

    /// Ends a change of ours that [`Core::begin_change`] began, and keeps what is still valid.
    pub(crate) fn end_change(&self, node: &Node, replies: impl IntoIterator<Item = Change>) {
        let replies: Vec<Change> = replies.into_iter().collect();
        let mut state = node.state();
        let Some(settled) = self.end_change_of(&mut state, replies) else {
            return;
        };
        self.table.persist(node.ino, &mut state);
        if settled.ours {
            self.carry(node, &mut state, settled.from);
        } else if state.is_shown(self.session) {
            self.outdate(node.ino, &mut state);
        }
    }

    /// The part of it that is about what is known.
    pub(crate) fn end_change_of(&self, state: &mut State, replies: Vec<Change>) -> Option<Settled> {
        let (now, ttl) = (self.now(), self.ttl_range(state.known.attr.kind));
        replies
            .iter()
            .filter_map(|change| change.after)
            .for_each(|attr| self.times.see(&attr, now));
        let is_coarse = self.times.is_coarse(&state.known.attr);
        state.end_change(replies, self.session, now, ttl, is_coarse)
    }

    /// What the kernel may hold of a file is of a version that is no more: has it drop that. To be called with the
    /// lock under which the new version was taken in, so that whoever finds that one finds this queued
    /// ([`Core::told`]).
    pub(crate) fn outdate(&self, ino: Ino, state: &mut State) {
        let has_pages = state.pages.take().is_some();
        if let Some(kernel) = self.kernel.get() {
            kernel.invalidate(ino, !has_pages);
        }
    }

    /// Waits until the kernel has dropped what it was to drop of a file. Not to be called with a lock held that a
    /// read or a write needs.
    pub(crate) async fn told(&self, node: &Node) {
        let waits = self.kernel.get().and_then(|kernel| kernel.told(node.ino));
        if let Some(told) = waits {
            told.await;
        }
    }

    /// Has the kernel drop what it caches of a file.
    pub(crate) fn invalidate(&self, ino: Ino) {
        if let Some(kernel) = self.kernel.get() {
            kernel.invalidate(ino, false);
        }
    }

    /// Attributes for the front door.
    pub(crate) fn fresh(&self, node: &Node) -> Fresh {
        self.refresh_local_end(node);
        let state = node.state();
        let ttl = if state.is_settled() {
            state.fresh_for(self.session, self.now())
        } else {
            Duration::ZERO
        };
        Fresh { attr: state.attr(), ttl }
    }

    /// An entry for the front door: how long it may trust the name depends on the directory.
    pub(crate) fn entry(&self, dir: &Node, child: &Node) -> Entry {
        let ttl = self.name_ttl(dir, true);
        Entry { ino: child.ino, fresh: self.fresh(child), ttl }
    }

    /// For how long the front door may trust that a name in `dir` exists, or that it does not.
    pub(crate) fn name_ttl(&self, dir: &Node, exists: bool) -> Duration {
        use crate::options::LookupCache;
        let cached = match self.options.lookup_cache {
            LookupCache::All => true,
            LookupCache::Positive => exists,
            LookupCache::None => false,
        };
        // Until there is a lease, nobody would tell us that the name is no longer true.
        if self.wants_lease(dir) {
            return Duration::ZERO;
        }
        let state = dir.state();
        if !cached || (!state.searchable_by_all() && !self.kernel_may_judge()) {
            return Duration::ZERO;
        }
        state.fresh_for(self.session, self.now())
    }

    /// Whether the kernel's own check of mode bits is as strict as the server's judgement. It lets
    /// user 0 pass everywhere; a server that squashes root does not. While we do not know, or know
    /// that it does, the kernel must ask for each name in a private directory.
    fn kernel_may_judge(&self) -> bool {
        self.root_squash() == RootSquash::No
    }

    pub(crate) fn root_squash(&self) -> RootSquash {
        match self.root_squash.load(Ordering::Relaxed) {
            x if x == RootSquash::No as u8 => RootSquash::No,
            x if x == RootSquash::Yes as u8 => RootSquash::Yes,
            _ => RootSquash::Unknown,
        }
    }

    /// Learns from the server's judgement of user 0 whether it squashes root: it does not if root
    /// may do what only user 0 being user 0 explains. An export may begin to squash root,
    /// so the first judgement against user 0 counts, and not the first one at all.
    pub(crate) fn judge_root_squash(&self, attr: &Attr, cred: &Cred, granted: Access) {
        if cred.uid != 0 || self.root_squash() == RootSquash::Yes {
            return;
        }
        let nobody = Cred::new(u32::MAX - 1, u32::MAX - 1, &[]);
        let unprivileged = rights::by_mode(attr, &nobody, false);
        let privileged = rights::by_mode(attr, cred, true);
        let search = Access::LOOKUP | Access::READ;
        let telling = privileged & !unprivileged & search;
        if telling == Access::NONE {
            return;
        }
        let verdict = if granted & telling == telling { RootSquash::No } else { RootSquash::Yes };
        self.root_squash.store(verdict as u8, Ordering::Relaxed);
    }
}

/// Runs `work` here if that is `quick`, else as [`blocking`].
pub(crate) async fn blocking_unless<T: Send + 'static>(
    quick: bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if quick { Ok(work()) } else { blocking(work).await }
}

/// Runs what may wait for the local disk away from the threads that drive the network.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Io)
}

//! [`Client`]: assembles the parts.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_cache::{Cache, FileNo};
use larder_io::Clock;
use larder_vfs::{Cred, Error, Handle, Ino, Remote, Result};

use crate::core::{Begin, Core, blocking};
use crate::journal::{Carried, OPEN_BLOCK};
use crate::node::Table;
use crate::open::Remaker;
use crate::options::{Options, Start};
use crate::read::{Fill, start_filling};
use crate::write::{UnsentTotal, start_engine, start_keeping, start_placing};

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
    /// What the server does not have yet.
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
    /// Of these, the opens that found every byte of the file's present version in the cache.
    pub opens_of_whole_files: u64,
    /// Nodes in memory.
    pub nodes_in_memory: u64,
    /// Completing files while the link is quiet.
    pub fill: Fill,
}

impl Client {
    /// Puts a client together. For a new mount it asks the server for the root, so it waits for one
    /// round trip. A mount that is resumed, or whose server is known to be out of reach, asks
    /// nothing if the index knows the root, and reads the local disk (all of each file that the
    /// kernel was writing itself).
    ///
    /// `session` must differ from that of every earlier run on this cache (a random number). A
    /// client that resumes keeps the number of the earlier run.
    ///
    /// # Errors
    /// The server's error; [`Error::TimedOut`] if it is out of reach and the index has no root.
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
        let table = Table::new(cache.clone(), clock.clone(), options.nodes_in_memory_max);
        let asked = clock.now();
        let is_away = !remote.reachable();
        let held = table.get(Ino::ROOT).filter(|_| before.is_some() || is_away);
        let root = match held {
            Some(_) => None,
            None if is_away => return Err(Error::TimedOut),
            None => Some(remote.root().await?),
        };
        if let Some(root) = &root {
            assign_root(&*remote, &cache, &root.handle);
        }
        let begin = Begin { session, first_open, succeeds: before.is_some() };
        let core = Arc::new(Core::new(remote, table, cache, clock, options, begin));
        if let Some(root) = root {
            core.learn(&root, asked, None);
        }
        core.remote.watch(Arc::<Core>::downgrade(&core));
        if let Some(here) = core.remote.deferring() {
            here.held_by(Arc::<Core>::downgrade(&core));
        }
        core.note_run((first_open / OPEN_BLOCK + 2) * OPEN_BLOCK);
        let taking = core.clone();
        blocking(move || taking.take_up(start, &carried)).await?;
        if let Some(here) = core.remote.deferring() {
            here.begin();
        }
        start_filling(&core);
        start_engine(&core);
        start_keeping(&core);
        start_placing(&core);
        Ok(Client { core })
    }

    /// Whether the server answers.
    pub fn reachable(&self) -> bool {
        self.core.remote.reachable()
    }

    /// Fetches what the cache lacks of a file, whenever no application waits for the server.
    /// Returns how many bytes are missing then: those that the cache does not take; `None` if the
    /// file has changes that the server lacks, or is no regular file that exists.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if the server cannot be reached, else the server's error.
    pub async fn complete(&self, cred: &Cred, ino: Ino) -> Result<Option<u64>> {
        self.core.complete(cred, ino).await
    }

    /// From now on, lost files are made again before they are read. Only the first call has an
    /// effect.
    pub fn remake_by(&self, remaker: Arc<dyn Remaker>) {
        let _ = self.core.remaker.set(remaker);
    }

    /// The mount is over, and no other process will continue it: forgets its open files. To be
    /// called after the kernel's last request and before [`Cache::close`]; not by a process that is
    /// to be replaced.
    pub fn end_mount(&self) {
        self.core.end_session();
    }

    /// The present state, for people and programs.
    pub fn status(&self) -> Status {
        let core = &self.core;
        Status {
            open_files: core.open_files.count() as u64,
            reachable: self.reachable(),
            read_bytes_cached: core.counters.read_bytes_cached.load(Ordering::Relaxed),
            read_bytes_remote: core.counters.read_bytes_remote.load(Ordering::Relaxed),
            opens_passthrough: core.counters.opens_passthrough.load(Ordering::Relaxed),
            opens_other: core.counters.opens_other.load(Ordering::Relaxed),
            opens_for_reading: core.counters.opens_for_reading.load(Ordering::Relaxed),
            opens_of_whole_files: core.counters.opens_of_whole_files.load(Ordering::Relaxed),
            nodes_in_memory: core.table.count() as u64,
            unsent: self.unsent(&|_| true),
            fill: core.fill_status(),
        }
    }
}

/// The server's root has this handle, perhaps another one than an earlier mount knew.
fn assign_root(remote: &dyn Remote, cache: &Cache, root: &Handle) {
    let before = cache.key_of(FileNo::ROOT).filter(|key| key.len() <= Handle::LEN_MAX);
    cache.assign_root(root.as_bytes());
    let before = before.map(|key| Handle::new(&key)).filter(|before| before != root);
    if let (Some(before), Some(here)) = (before, remote.deferring()) {
        here.found_again(&before, root);
    }
}

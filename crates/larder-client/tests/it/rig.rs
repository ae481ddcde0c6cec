//! A client with everything around it, and its operations by name.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_cache::{Cache, Config, FileNo, MemoryDir};
use larder_client::{Client, Options, Start};
use larder_io::{BootId, Clock, Disk, Image, OpenMode, SimClock, SimDisk};
use larder_names::{Licence, Names};
use larder_vfs::{
    Cred, Error, FileSystem, Fresh, Ino, Lookup, MemRemote, OpenFlags, OpenId, Remote, Removal,
    RenameFlags, Result, SetAttr, Stability,
};

/// A client, its server, its cache's disk and its clock.
pub(crate) struct Rig {
    pub(crate) server: Arc<MemRemote>,
    pub(crate) clock: Arc<SimClock>,
    pub(crate) disk: Arc<SimDisk>,
    pub(crate) client: Client,
    cache: Cache,
    options: Options,
    /// Names are made here (`larder-names`).
    licence: Option<Licence>,
}

/// No other client changes names.
const SOLE: Licence = Licence { sole: true, leased: false, offline: false };
/// The mount works without its server.
const OFFLINE: Licence = Licence { sole: false, leased: false, offline: true };

/// The boot in which every rig runs.
const BOOT: BootId = BootId(1);

/// Longest wait for what must happen. A busy machine may stall for seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Lets time pass in steps: each task that wakes does all it can before more time passes. To be
/// used on a runtime that was started with its own time paused: that advances only when nothing
/// else is to be done.
pub(crate) async fn pass(clock: &SimClock, time: Duration) {
    const IDLE: Duration = Duration::from_millis(1);
    let end = clock.instant() + time;
    loop {
        let nothing = std::future::pending::<()>();
        assert!(tokio::time::timeout(IDLE, nothing).await.is_err());
        let now = clock.instant();
        if now >= end {
            return;
        }
        let next = clock.next_wake().map_or(end, |wake| wake.clamp(now + IDLE, end));
        clock.advance(next - now);
    }
}

/// For reading.
pub(crate) const READ: OpenFlags = OpenFlags::READ;
/// For reading and writing.
pub(crate) const WRITE: OpenFlags = OpenFlags::READ_WRITE;

static SESSION: AtomicU64 = AtomicU64::new(1);

/// The number of a run of a client: no two may have the same.
pub(crate) fn next_session() -> u64 {
    SESSION.fetch_add(1, Ordering::Relaxed)
}

impl Rig {
    /// A fresh server and an empty cache.
    pub(crate) async fn new(options: Options) -> Rig {
        let (server, clock) = (Arc::new(MemRemote::new()), Arc::new(SimClock::new()));
        clock.advance(Duration::from_secs(1000));
        Rig::on(server, clock, Arc::new(SimDisk::new()), options).await
    }

    /// A rig for calls that overlap.
    pub(crate) async fn ticking(options: Options) -> Rig {
        let (server, clock) = (Arc::new(MemRemote::new()), Arc::new(SimClock::ticking()));
        clock.advance(Duration::from_secs(1000));
        Rig::on(server, clock, Arc::new(SimDisk::new()), options).await
    }

    /// A rig whose disk remembers every change, for [`SimDisk::crash_points`].
    pub(crate) async fn recording(options: Options) -> Rig {
        let (server, clock) = (Arc::new(MemRemote::new()), Arc::new(SimClock::new()));
        clock.advance(Duration::from_secs(1000));
        Rig::on(server, clock, Arc::new(SimDisk::recording()), options).await
    }

    /// The same, of a mount that is the only writer of names.
    pub(crate) async fn exclusive(options: Options) -> Rig {
        Rig::licensed(SOLE, Arc::new(SimClock::new()), options).await
    }

    /// The same, for calls that overlap.
    pub(crate) async fn exclusive_ticking(options: Options) -> Rig {
        Rig::licensed(SOLE, Arc::new(SimClock::ticking()), options).await
    }

    /// The same, of a mount that works without its server.
    pub(crate) async fn offline(options: Options) -> Rig {
        Rig::licensed(OFFLINE, Arc::new(SimClock::new()), options).await
    }

    /// The same, for calls that overlap.
    pub(crate) async fn offline_ticking(options: Options) -> Rig {
        Rig::licensed(OFFLINE, Arc::new(SimClock::ticking()), options).await
    }

    async fn licensed(licence: Licence, clock: Arc<SimClock>, options: Options) -> Rig {
        let server = Arc::new(MemRemote::new());
        clock.advance(Duration::from_secs(1000));
        let disk = Arc::new(SimDisk::recording());
        let cache = open_cache(&clock, disk.clone());
        Rig::with(server, clock, disk, cache, (options, Some(licence)), Start::NewMount).await
    }

    /// A client of `server`, and an empty cache.
    pub(crate) async fn of_server(server: MemRemote, options: Options) -> Rig {
        let clock = Arc::new(SimClock::new());
        clock.advance(Duration::from_secs(1000));
        Rig::on(Arc::new(server), clock, Arc::new(SimDisk::new()), options).await
    }

    /// A client of `server` on what an earlier process may have left on `disk`.
    pub(crate) async fn on_server(server: MemRemote, disk: SimDisk, start: Start) -> Rig {
        let (clock, disk) = (Arc::new(SimClock::new()), Arc::new(disk));
        clock.advance(Duration::from_secs(1000));
        let cache = open_cache(&clock, disk.clone());
        Rig::with(Arc::new(server), clock, disk, cache, (Options::default(), None), start).await
    }

    async fn on(
        server: Arc<MemRemote>,
        clock: Arc<SimClock>,
        disk: Arc<SimDisk>,
        options: Options,
    ) -> Rig {
        let cache = open_cache(&clock, disk.clone());
        Rig::with(server, clock, disk, cache, (options, None), Start::NewMount).await
    }

    async fn with(
        server: Arc<MemRemote>,
        clock: Arc<SimClock>,
        disk: Arc<SimDisk>,
        cache: Cache,
        (options, licence): (Options, Option<Licence>),
        start: Start,
    ) -> Rig {
        let session = next_session();
        let (remote, time): (Arc<dyn Remote>, Arc<dyn Clock>) = (server.clone(), clock.clone());
        let remote = match licence {
            Some(licence) => {
                let names = Names::new(remote, cache.clone(), time.clone(), "here", licence);
                Arc::new(names.limited_by(options.rate.clone()))
            }
            None => remote,
        };
        let client = Client::new(remote, cache.clone(), time, options.clone(), session, start)
            .await
            .unwrap();
        if start == Start::NewMount {
            server.reset_calls();
        }
        Rig { server, clock, disk, client, cache, options, licence }
    }

    /// Unmounts and mounts again.
    pub(crate) async fn remount(self) -> Rig {
        self.client.write_back_all().await.unwrap();
        self.client.end_mount();
        self.cache.close().unwrap();
        Rig::on(self.server, self.clock, self.disk, self.options).await
    }

    /// Unmounts whatever the server lacks, and mounts again after the machine was booted.
    pub(crate) async fn reboot(self) -> Rig {
        self.client.end_mount();
        self.cache.close().unwrap();
        let disk = Arc::new(self.disk.crash(Image::Synced));
        let cache = open_cache_in(BootId(BOOT.0 + 1), &self.clock, disk.clone());
        let options = (self.options, self.licence);
        Rig::with(self.server, self.clock, disk, cache, options, Start::NewMount).await
    }

    /// The machine crashes: the cache's disk keeps what was synced. The machine boots, and the
    /// mount is made anew.
    pub(crate) async fn crash(self) -> Rig {
        let image = self.last(Image::Synced);
        self.boot(image, self.server.another_client()).await
    }

    /// The next boot of the machine, on an image of the cache's disk.
    pub(crate) async fn boot(&self, image: SimDisk, server: MemRemote) -> Rig {
        let (disk, server) = (Arc::new(image), Arc::new(server));
        let cache = open_cache_in(BootId(BOOT.0 + 1), &self.clock, disk.clone());
        let (clock, options) = (self.clock.clone(), (self.options.clone(), self.licence));
        Rig::with(server, clock, disk, cache, options, Start::NewMount).await
    }

    /// Names and bytes of what was set aside.
    pub(crate) fn set_aside(&self) -> Vec<(String, Vec<u8>)> {
        let content = |name: String| {
            let file = self.disk.open(&format!("set-aside/{name}"), OpenMode::Existing).unwrap();
            let mut content = vec![0; file.len().unwrap() as usize];
            file.read_exact_at(&mut content, 0).unwrap();
            (name, content)
        };
        self.disk.list("set-aside").unwrap().into_iter().map(content).collect()
    }

    /// The process dies; another one resumes the mount, or makes a new one, on what is left. The
    /// server forgets nothing.
    pub(crate) async fn kill(self, start: Start) -> Rig {
        let image = self.last(Image::Written);
        self.on_image(image, self.server.another_client(), start).await
    }

    /// What is on the cache's disk when the process dies: tasks of it that go on here bring nothing
    /// to the server after that.
    pub(crate) fn last(&self, image: Image) -> SimDisk {
        self.server.cut_off();
        let image = self.disk.crash(image);
        self.server.shutdown();
        image
    }

    /// The process dies, and a new mount is made with other options.
    pub(crate) async fn kill_with(self, options: Options) -> Rig {
        let rig = Rig { options, ..self };
        rig.kill(Start::NewMount).await
    }

    /// The process dies, and another one with other options resumes the mount.
    pub(crate) async fn resume_with(self, options: Options) -> Rig {
        let rig = Rig { options, ..self };
        rig.kill(Start::Resume).await
    }

    /// Its cache.
    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Bytes of files that are in the cache.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.cache.usage().bytes
    }

    /// What the cache's disk would have if the process died now.
    pub(crate) fn image(&self) -> SimDisk {
        self.disk.crash(Image::Written)
    }

    /// The next process, on an image of the cache's disk.
    pub(crate) async fn on_image(&self, image: SimDisk, server: MemRemote, start: Start) -> Rig {
        let (disk, server) = (Arc::new(image), Arc::new(server));
        let cache = open_cache(&self.clock, disk.clone());
        let options = (self.options.clone(), self.licence);
        Rig::with(server, self.clock.clone(), disk, cache, options, start).await
    }

    /// An open file of an earlier process.
    pub(crate) fn again(&self, (ino, id): (Ino, OpenId)) -> Open<'_> {
        Open { rig: self, ino, id }
    }

    /// Waits until all of a file is in the cache. (The client's own wait for that is short.)
    pub(crate) async fn landed(&self, name: &str) {
        let file = self.cache.file(FileNo(self.find(name).await.unwrap().0));
        let all = 0..file.size();
        let landed = async {
            while file.held(all.clone()).first() != Some(&all) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, landed).await.unwrap();
    }

    /// Waits until something of a file is in the cache.
    pub(crate) async fn landed_in_part(&self, name: &str) {
        let file = self.cache.file(FileNo(self.find(name).await.unwrap().0));
        let landed = async {
            while file.held(0..file.size()).is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, landed).await.unwrap();
    }

    pub(crate) fn checkpoint(&self) {
        self.cache.checkpoint().unwrap();
    }

    /// Whether the failure of a write-back is recorded for the next process.
    pub(crate) fn has_note(&self, error: Error) -> bool {
        assert_eq!(error, Error::NoSpace, "the first in the table");
        let records = self.cache.session_records();
        records.iter().any(|(key, value)| key[0] == b'n' && value[1..5] == [0, 0, 1, 0])
    }

    /// Waits until everything is at the server; periodic attempts are made at once.
    pub(crate) async fn sent(&self) {
        while !self.cache.unsent().is_empty() {
            self.pass_to_next_wake();
            tokio::task::yield_now().await;
        }
    }

    /// Runs work that waits for an event which does not come: time passes until the wait ends.
    pub(crate) async fn in_vain<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::task::yield_now() => self.pass_to_next_wake(),
            }
        }
    }

    /// Lets time pass until the next sleeping task wakes.
    pub(crate) fn pass_to_next_wake(&self) {
        let now = self.clock.instant();
        if let Some(wake) = self.clock.next_wake().filter(|wake| *wake > now) {
            self.clock.advance(wake - now);
        }
    }

    /// Another machine with the same options that uses the same server. Its clock is another one.
    pub(crate) async fn beside(&self) -> Rig {
        let server = Arc::new(self.server.another_client());
        let (clock, disk) = (Arc::new(SimClock::new()), Arc::new(SimDisk::new()));
        clock.advance(Duration::from_secs(2007));
        let cache = open_cache(&clock, disk.clone());
        let options = (self.options.clone(), self.licence);
        Rig::with(server, clock, disk, cache, options, Start::NewMount).await
    }

    /// Another machine that uses the same server.
    pub(crate) async fn foreigner(&self) -> Rig {
        let server = Arc::new(self.server.another_client());
        let clock = Arc::new(SimClock::new());
        let options = Options::default().no_attribute_cache();
        Rig::on(server, clock, Arc::new(SimDisk::new()), options).await
    }

    pub(crate) fn advance(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    pub(crate) async fn find(&self, path: &str) -> Option<Ino> {
        match self.try_find(path).await {
            Ok(ino) => Some(ino),
            Err(Error::NotFound) => None,
            Err(error) => panic!("{path}: {error}"),
        }
    }

    pub(crate) async fn try_find(&self, path: &str) -> Result<Ino> {
        let mut ino = Ino::ROOT;
        for name in path.split('/') {
            match self.client.lookup(&root(), ino, OsStr::new(name)).wait().await? {
                Lookup::Found(entry) => ino = entry.ino,
                Lookup::Absent { .. } => return Err(Error::NotFound),
            }
        }
        Ok(ino)
    }

    pub(crate) async fn stat(&self, path: &str) -> Fresh {
        let ino = self.find(path).await.unwrap();
        self.client.getattr(&root(), ino).wait().await.unwrap()
    }

    pub(crate) async fn open(&self, cred: &Cred, path: &str, flags: OpenFlags) -> Result<Open<'_>> {
        let ino = self.try_find(path).await?;
        let id = self.client.open(cred, ino, flags).wait().await?.id;
        Ok(Open { rig: self, ino, id })
    }

    pub(crate) async fn create(&self, name: &str) -> Open<'_> {
        self.create_in(Ino::ROOT, name).await
    }

    pub(crate) async fn create_in(&self, dir: Ino, name: &str) -> Open<'_> {
        self.try_create_in(dir, name).await.unwrap()
    }

    pub(crate) async fn try_create_in(&self, dir: Ino, name: &str) -> Result<Open<'_>> {
        let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
        let flags = OpenFlags { truncate: true, ..WRITE };
        let created = self.client.create(&root(), dir, OsStr::new(name), set, flags);
        let (entry, opened) = created.wait().await?;
        Ok(Open { rig: self, ino: entry.ino, id: opened.id })
    }

    /// What `cat` does.
    pub(crate) async fn cat(&self, path: &str) -> Vec<u8> {
        let open = self.open(&root(), path, READ).await.unwrap();
        let bytes = open.read(0, 16 << 20).await.unwrap();
        open.close().await.unwrap();
        bytes
    }

    /// What `echo >` does.
    pub(crate) async fn put(&self, name: &str, bytes: &[u8]) {
        let open = match self.find(name).await {
            Some(_) => {
                let flags = OpenFlags { truncate: true, ..WRITE };
                self.open(&root(), name, flags).await.unwrap()
            }
            None => self.create(name).await,
        };
        open.write(0, bytes).await.unwrap();
        open.close().await.unwrap();
    }

    pub(crate) async fn remove(&self, name: &str) -> Result<()> {
        self.client.remove(&root(), Ino::ROOT, OsStr::new(name), Removal::File).wait().await
    }

    pub(crate) async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let from = (Ino::ROOT, OsStr::new(from));
        let to = (Ino::ROOT, OsStr::new(to));
        self.client.rename(&root(), from, to, RenameFlags::default()).wait().await
    }

    pub(crate) async fn set(&self, path: &str, set: SetAttr) {
        let ino = self.find(path).await.unwrap();
        self.client.setattr(&root(), ino, None, set).wait().await.unwrap();
    }

    /// Names of the root directory, sorted.
    pub(crate) async fn names(&self) -> Vec<String> {
        self.names_in(Ino::ROOT).await
    }

    /// Names of a directory, sorted.
    pub(crate) async fn names_in(&self, dir: Ino) -> Vec<String> {
        self.client.opendir(&root(), dir).wait().await.unwrap();
        let (mut names, mut offset) = (Vec::new(), 0);
        loop {
            let page = self.client.readdir(&root(), dir, offset, 1000, true);
            let page = page.wait().await.unwrap();
            let Some(last) = page.last() else { break };
            offset = last.offset;
            names.extend(page.into_iter().map(|entry| entry.name.into_string().unwrap()));
        }
        names.sort();
        names
    }
}

/// An open file.
pub(crate) struct Open<'a> {
    rig: &'a Rig,
    pub(crate) ino: Ino,
    pub(crate) id: OpenId,
}

impl Open<'_> {
    /// Its names in the kernel, which outlive the process.
    pub(crate) fn names(&self) -> (Ino, OpenId) {
        (self.ino, self.id)
    }

    pub(crate) async fn read(&self, offset: u64, len: u32) -> Result<Vec<u8>> {
        let read = self.rig.client.read(&root(), self.ino, Some(self.id), offset, len);
        Ok(read.wait().await?.to_vec())
    }

    pub(crate) async fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let id = Some(self.id);
        let unstable = Stability::Unstable;
        let write = self.rig.client.write(&root(), self.ino, id, offset, data, unstable);
        write.wait().await.map(drop)
    }

    pub(crate) async fn truncate(&self, size: u64) -> Result<()> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let set = self.rig.client.setattr(&root(), self.ino, Some(self.id), set);
        set.wait().await.map(drop)
    }

    pub(crate) async fn flush(&self) -> Result<()> {
        self.rig.client.flush(&root(), self.ino, self.id, None).wait().await
    }

    pub(crate) async fn close(self) -> Result<()> {
        let flushed = self.flush().await;
        self.rig.client.release(self.ino, self.id).wait().await.unwrap();
        flushed
    }
}

fn open_cache(clock: &Arc<SimClock>, disk: Arc<dyn Disk>) -> Cache {
    open_cache_in(BOOT, clock, disk)
}

fn open_cache_in(boot: BootId, clock: &Arc<SimClock>, disk: Arc<dyn Disk>) -> Cache {
    // Memory is empty for each process: only tests of reboots put files there.
    let memory = MemoryDir { disk: Arc::new(SimDisk::new()), bytes_max: 1 << 30 };
    let (boot, memory) = (Some(boot), Some(memory));
    let config = Config { checkpoint_interval: None, boot, memory, ..Config::new(b"volume") };
    Cache::open(disk, clock.clone(), config).unwrap()
}

pub(crate) fn root() -> Cred {
    Cred::root()
}

/// Bytes that differ everywhere, from a seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let (mut random, mut bytes) = (Random(seed), Vec::with_capacity(len + 8));
    while bytes.len() < len {
        bytes.extend_from_slice(&random.below(u64::MAX).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A small generator of random numbers (xorshift64*).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let state = &mut self.0;
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = *state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }
}

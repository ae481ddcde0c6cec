//! A volume and its clients, all in this process, and their lives: each can be killed at any moment
//! and begins again with what its disk has then.
//!
//! A client is the real one over the real remote, with a cache on a simulated disk and a runtime of
//! its own, which ends with it. Sockets are real. Time is simulated and goes [`SPEED`] times as
//! fast as the machine's: what waits for a session to end or for a disk to be trusted does not wait
//! long.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use larder_cache::{Cache, Config};
use larder_class::{Classes, RuleFile, Sources};
use larder_client::{Client, Here, Keeps, Options, Start, shared_offer};
use larder_io::{BootId, Clock, Fault, Image, RealClock, SimClock, SimDisk};
use larder_names::{Licence, Names};
use larder_remote::native::{MountOptions, Native};
use larder_rpc::{Recovery, ServerState};
use larder_testkit::Volume;
use larder_testkit::history::names::{Node, made_here};
use larder_vfs::{Answer, Cred, Deferred, Error, Remote, Stability};
use larder_wire::seal::Setup;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{RwLock, watch};

use crate::kernel::Kernel;

/// How many seconds of simulated time usually pass in one real second.
const SPEED: u32 = 20;

/// The same where clients make names on their machines first: they return a lease after 8 s in any
/// case, and a busy machine needs that time.
const SPEED_OF_NAMES: u32 = 4;

/// What no caller waits for is sent within this time where its class names none.
const UNSENT_AGE_MAX: Duration = Duration::from_secs(30);

/// The longest to wait, in real time, for a session to end and for a disk to be trusted.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often simulated time advances.
const STEP: Duration = Duration::from_millis(1);

/// A volume and its clients.
pub(crate) struct World {
    pub(crate) volume: Volume,
    seats: Vec<Seat>,
    clock: Arc<SimClock>,
    /// How many seconds of simulated time pass in one real second.
    speed: u32,
    ends: Arc<AtomicBool>,
    classes: Arc<Classes>,
    lives: u64,
    /// How often each life that has ended had lost its session.
    lapses: BTreeMap<u64, u64>,
    /// How often lives that have ended had returned a lease too early.
    late_returns: u64,
    pub(crate) ticks: Ticks,
}

/// A clock that advances whenever it is read. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Ticks(Arc<watch::Sender<u64>>);

impl Ticks {
    /// Advances the clock and returns the tick.
    pub(crate) fn next(&self) -> u64 {
        let mut now = 0;
        self.0.send_modify(|tick| {
            *tick += 1;
            now = *tick;
        });
        now
    }

    /// Waits until the clock has reached this tick.
    pub(crate) async fn reach(&self, tick: u64) {
        self.0.subscribe().wait_for(|now| *now >= tick).await.unwrap();
    }
}

/// A client with all its lives.
struct Seat {
    name: [u8; 16],
    /// It makes names on its machine first, under leases of their directories.
    is_exclusive: bool,
    /// Held by each of its processes during a step, and by whoever wants them to pause.
    floor: Arc<RwLock<()>>,
    boot: u64,
    disk: SimDisk,
    running: Option<(Runtime, Arc<Native>)>,
    now: watch::Sender<Option<Life>>,
}

/// One life of a client, from its start to its death. Clones are the same life.
#[derive(Clone)]
pub(crate) struct Life {
    /// Unique among the lives of all clients.
    pub(crate) number: u64,
    seat: usize,
    pub(crate) client: Client,
    pub(crate) cache: Cache,
    native: Arc<Native>,
    /// The server as the client sees it.
    remote: Weak<dyn Remote>,
    runtime: Handle,
    pub(crate) kernel: Arc<Kernel>,
}

/// The current life of a client.
pub(crate) type Lives = watch::Receiver<Option<Life>>;

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome<T> {
    /// It succeeded.
    Done(T),
    /// It was refused, and changed nothing.
    Refused(Error),
    /// Unknown: the client died, or reported that it does not know.
    Unknown,
}

/// Inode numbers of objects that an exclusive client made on its machine have this bit.
const HERE_BIT: u64 = 1 << 63;

impl Life {
    /// The object that this client shows under an inode number.
    pub(crate) fn node(&self, fileid: u64) -> Node {
        if fileid & HERE_BIT == 0 { fileid } else { made_here(self.seat, fileid & !HERE_BIT) }
    }

    /// Does something, and returns whether the client was in contact with the metadata server all
    /// the time, as far as it knows. If it was not, the answer may have come from its cache.
    pub(crate) async fn attended<T>(&self, work: impl Future<Output = T>) -> (T, bool) {
        let mut state = self.native.rpc().state();
        let was_there = matches!(*state.borrow_and_update(), ServerState::Reachable);
        let done = work.await;
        (done, was_there && state.has_changed().is_ok_and(|changed| !changed))
    }

    /// What was made on the client's machine and is not at the server.
    fn waiting(&self) -> Vec<Deferred> {
        let remote = self.remote.upgrade();
        let waiting = remote.and_then(|remote| Some(remote.deferring()?.deferred()));
        waiting.unwrap_or_default()
    }

    /// Waits until the client, as far as it knows, is in contact with the metadata server.
    pub(crate) async fn reaches_server(&self) {
        let mut state = self.native.rpc().state();
        state.wait_for(|state| matches!(state, ServerState::Reachable)).await.unwrap();
    }

    /// Writes the start of a file in the root directory directly to the disks, without the client,
    /// and does not commit it.
    pub(crate) async fn write_to_disks(&self, name: &str, data: &[u8]) {
        let (cred, data) = (Cred::root(), Bytes::copy_from_slice(data));
        let root = self.native.root().await.unwrap().handle;
        let found = self.native.lookup(&cred, &root, OsStr::new(name)).await.unwrap();
        let file = found.found.unwrap().handle;
        let unstable = Stability::Unstable;
        self.native.write(&cred, &file, None, 0, data, unstable).await.unwrap();
    }

    /// Makes a call as the kernel does. The call ends with the client.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        make: impl FnOnce(&Client) -> Answer<T> + Send + 'static,
    ) -> Outcome<T> {
        let client = self.client.clone();
        match self.runtime.spawn(async move { make(&client).wait().await }).await {
            Ok(Ok(done)) => Outcome::Done(done),
            Ok(Err(Error::TimedOut | Error::Io | Error::Shutdown)) | Err(_) => Outcome::Unknown,
            Ok(Err(error)) => Outcome::Refused(error),
        }
    }
}

impl World {
    pub(crate) fn new(clients: usize) -> World {
        World::with_copies(clients, 1)
    }

    /// On a volume with this many memory disks beside each other. Files whose names end in `.v` are
    /// of a class that asks for so many copies there, and all others are `edited`.
    pub(crate) fn with_memory(clients: usize, disks: usize) -> World {
        let mut world = World::with_copies(0, 1);
        world.volume.add_memory(disks);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("rules.toml");
        let rules = format!(
            "[class.kept]\nlike = 'volatile'\nshared = {{ copies = {disks} }}\n\
             [[rule]]\nglob = '*.v'\nclass = 'kept'\n"
        );
        std::fs::write(&file, rules).unwrap();
        let sources = Sources { rules: Some(RuleFile::File(file)), ..Sources::default() };
        let classes =
            larder_class::load(&sources, &shared_offer("a volume", Here::DISK, UNSENT_AGE_MAX));
        world.classes = Arc::new(classes.unwrap());
        for _ in 0..clients {
            world.add();
        }
        world
    }

    /// All files are of class `generated`.
    pub(crate) fn generated(clients: usize) -> World {
        let mut world = World::of_class("generated", Here::DISK, SPEED);
        assert_eq!(world.classes.mount().raised, "close waits for local");
        for _ in 0..clients {
            world.add();
        }
        world
    }

    /// All files are of this class; no client yet.
    fn of_class(class: &str, here: Here, speed: u32) -> World {
        let mut world = World::empty(1, speed);
        let sources = Sources { class: Some(class.into()), ..Sources::default() };
        let offer = shared_offer("a volume", here, UNSENT_AGE_MAX);
        world.classes = Arc::new(larder_class::load(&sources, &offer).unwrap());
        world
    }

    /// All files are of class `scratch`, on a volume with a memory disk; clients have a place in
    /// their machines' memory.
    pub(crate) fn scratch(clients: usize) -> World {
        let here = Here { memory: true, ..Here::DISK };
        let mut world = World::of_class("scratch", here, SPEED_OF_NAMES);
        world.volume.add_memory(1);
        assert!(world.classes.mount().is_retained);
        for _ in 0..clients {
            world.add();
        }
        world
    }

    /// All files are of this class, and clients make names on their machines first.
    pub(crate) fn exclusive(clients: usize, class: &str) -> World {
        let here = Here { names: true, ..Here::DISK };
        let mut world = World::of_class(class, here, SPEED_OF_NAMES);
        for _ in 0..clients {
            world.sit(true);
        }
        world
    }

    /// Like [`new`](Self::new), on a volume with this many copies of each block.
    pub(crate) fn with_copies(clients: usize, copies: u32) -> World {
        let mut world = World::empty(copies, SPEED);
        for _ in 0..clients {
            world.add();
        }
        world
    }

    /// Without clients.
    fn empty(copies: u32, speed: u32) -> World {
        let clock = Arc::new(SimClock::ticking());
        clock.advance(Duration::from_secs(1000));
        let ends = Arc::new(AtomicBool::new(false));
        let (moved, stop) = (Arc::clone(&clock), Arc::clone(&ends));
        let time = Builder::new_current_thread().enable_time().build().unwrap();
        std::thread::spawn(move || {
            let real: &dyn Clock = &RealClock;
            while !stop.load(SeqCst) {
                time.block_on(async { real.sleep(STEP).await });
                moved.advance(STEP * speed);
            }
        });
        let volume = Volume::simulated(Setup::Secure, (copies, 256 << 20), Arc::clone(&clock) as _);
        let ticks = Ticks(Arc::new(watch::Sender::new(0)));
        let classes = Options::default().classes;
        let (seats, lives, lapses, late_returns) = (Vec::new(), 0, BTreeMap::new(), 0);
        World { volume, seats, clock, speed, ends, classes, lives, lapses, late_returns, ticks }
    }

    /// Adds a client and returns its number.
    pub(crate) fn add(&mut self) -> usize {
        self.sit(false)
    }

    fn sit(&mut self, is_exclusive: bool) -> usize {
        let number = self.seats.len();
        let name = [u8::try_from(number).unwrap(); 16];
        let (disk, now) = (SimDisk::new(), watch::Sender::new(None));
        let floor = Arc::default();
        self.seats.push(Seat { name, is_exclusive, floor, boot: 1, disk, running: None, now });
        self.begin(number);
        number
    }

    /// Waits until a condition holds, which must happen within the time of a session and of a
    /// disk's trust.
    pub(crate) async fn until(&self, mut is_so: impl AsyncFnMut() -> bool) {
        let clock: &dyn Clock = &*self.clock;
        let late = clock.instant() + PATIENCE;
        while !is_so().await {
            assert!(clock.instant() < late, "it is never so");
            clock.sleep_until(clock.instant() + STEP * self.speed).await;
        }
    }

    /// Waits until the server has all data that clients had not sent, including data from their
    /// earlier lives.
    pub(crate) async fn all_is_sent(&self) {
        for client in 0..self.seats.len() {
            self.is_sent(client).await;
        }
    }

    /// The same of one client; names too, unless no server takes them since others may have looked
    /// before ([`Self::may_be_early`]).
    pub(crate) async fn is_sent(&self, client: usize) {
        let life = self.lives(client).borrow().clone().unwrap();
        let clock: &dyn Clock = &*self.clock;
        let late = clock.instant() + PATIENCE;
        while let Err(error) = life.client.sync(&|_| true).await {
            let waiting = life.waiting();
            let is_stuck = |one: &Deferred| one.failure == Some(Error::Stale);
            if self.may_be_early() && !waiting.is_empty() && waiting.iter().all(is_stuck) {
                return;
            }
            let is_late = clock.instant() >= late;
            assert!(!is_late, "client {client} keeps {waiting:?}: {error}");
            clock.sleep_until(clock.instant() + STEP * self.speed).await;
        }
    }

    /// Waits until a client's session goes on at a metadata server that has started anew.
    pub(crate) async fn resumes(&self, client: usize) {
        let life = self.lives(client).borrow().clone().unwrap();
        let root = life.native.root().await.unwrap().handle;
        life.native.statfs(&Cred::root(), &root).await.unwrap();
    }

    /// What a process of this client holds during a step.
    pub(crate) fn floor(&self, client: usize) -> Arc<RwLock<()>> {
        Arc::clone(&self.seats[client].floor)
    }

    pub(crate) fn lives(&self, client: usize) -> Lives {
        self.seats[client].now.subscribe()
    }

    /// How often each life has lost its session until now, as on a busy machine, and its locks with
    /// it: other clients may have got them, and have released them again.
    pub(crate) fn lapses(&self) -> BTreeMap<u64, u64> {
        let now = self.seats.iter().filter_map(|seat| seat.now.borrow().clone());
        let now = now.map(|life| (life.number, life.native.lapses()));
        self.lapses.iter().map(|(life, lapses)| (*life, *lapses)).chain(now).collect()
    }

    /// How often a client returned a lease before all that depended on it was done, as on a busy
    /// machine: others may have looked before what it had made was at the server.
    pub(crate) fn late_returns(&self) -> u64 {
        let now = self.seats.iter().filter_map(|seat| seat.now.borrow().clone());
        self.late_returns + now.map(|life| life.native.late_returns()).sum::<u64>()
    }

    /// Whether a client that lives lost its session, or returned a lease late: others may have
    /// changed what it had acknowledged, before that was at the server.
    pub(crate) fn may_be_early(&self) -> bool {
        self.lapses().values().sum::<u64>() + self.late_returns() > 0
    }

    /// Kills a client in the middle of its work: its process, or the whole machine unless `image`
    /// keeps all that was written. Returns which life ended.
    pub(crate) fn kill_client(&mut self, client: usize, image: Image) -> u64 {
        let seat = &mut self.seats[client];
        let life = seat.now.send_replace(None).unwrap();
        seat.disk.inject(Fault::EioFrom(0));
        let (runtime, native) = seat.running.take().unwrap();
        self.lapses.insert(life.number, native.lapses());
        self.late_returns += native.late_returns();
        native.shutdown();
        runtime.shutdown_background();
        seat.disk = seat.disk.crash(image);
        seat.boot += u64::from(image != Image::Written);
        life.number
    }

    /// Starts the next life of a client.
    pub(crate) fn begin(&mut self, at: usize) {
        let (clock, port) = (Arc::clone(&self.clock), self.volume.address().port());
        self.lives += 1;
        let (number, seat) = (self.lives, &mut self.seats[at]);
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let config = Config {
            checkpoint_interval: None,
            boot: Some(BootId(u128::from(seat.boot))),
            ..Config::new(b"volume")
        };
        let cache = Cache::open(Arc::new(seat.disk.clone()), Arc::clone(&clock) as _, config);
        let cache = cache.unwrap();
        let mut name = seat.name;
        if self.classes.mount().is_retained {
            // What was in the machine's memory is nobody's after a crash.
            name[15] = u8::try_from(seat.boot).unwrap();
        }
        let mount = MountOptions {
            port,
            client: Some(name),
            clock: Arc::clone(&clock) as _,
            recovery: Recovery::Hard,
            ..MountOptions::new("127.0.0.1")
        };
        let classes = Arc::clone(&self.classes);
        let keeps = Keeps::Alone;
        let options = Options { pass_locks: true, classes, keeps, ..Options::default() };
        let held = cache.clone();
        let is_exclusive = seat.is_exclusive;
        let begun = runtime.spawn(async move {
            let native = Arc::new(Native::mount(&mount).await.unwrap());
            let (server, clock) = (Arc::clone(&native) as Arc<dyn Remote>, clock as Arc<dyn Clock>);
            let remote: Arc<dyn Remote> = match is_exclusive {
                false => server,
                true => {
                    let licence = Licence { leased: true, ..Licence::default() };
                    let host = format!("host{at}");
                    Arc::new(Names::new(server, cache.clone(), clock.clone(), &host, licence))
                }
            };
            let seen = Arc::downgrade(&remote);
            let new = Client::new(remote, cache, clock, options, number, Start::NewMount);
            (native, seen, new.await.unwrap())
        });
        let (tell, told) = std::sync::mpsc::channel();
        runtime.spawn(async move { tell.send(begun.await.unwrap()) });
        let (native, remote, client) = told.recv().unwrap();
        let handle = runtime.handle().clone();
        seat.running = Some((runtime, native.clone()));
        let kernel = Arc::default();
        let (cache, runtime) = (held, handle);
        let life = Life { number, seat: at, client, cache, native, remote, runtime, kernel };
        seat.now.send_replace(Some(life));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for client in 0..self.seats.len() {
            self.kill_client(client, Image::Written);
        }
        self.volume.kill();
        self.ends.store(true, SeqCst);
    }
}

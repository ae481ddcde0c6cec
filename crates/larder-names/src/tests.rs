//! Tests of the whole crate over the model of a server.

mod asked;
mod away;
mod claims;
mod conformance;
mod crash;
mod crossing;
mod doubt;
mod faults;
mod front;
mod gone_dirs;
mod leased;
mod limited;
mod links;
mod lives;
mod model;
mod order;
mod turns;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::Arc;

use larder_cache::{Cache, Config, ConflictKind};
use larder_io::{BootId, Image, SimClock, SimDisk};
use larder_vfs::{
    Cookie, Cred, Deferring, Found, Handle, Kind, MemRemote, New, Remote, Removal, Result, SetAttr,
};

use crate::{Licence, Names};

/// A server, and a machine that makes names for it.
struct Rig {
    server: Arc<MemRemote>,
    clock: Arc<SimClock>,
    disk: SimDisk,
    cache: Cache,
    names: Arc<Names>,
    /// Boots of the machine so far.
    boot: u128,
}

/// A user who may make objects where the tests do.
fn user() -> Cred {
    Cred::new(1000, 1000, &[])
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn open(disk: &SimDisk, clock: &Arc<SimClock>, boot: u128) -> Cache {
    let config =
        Config { checkpoint_interval: None, boot: Some(BootId(boot)), ..Config::new(b"volume") };
    Cache::open(Arc::new(disk.clone()), clock.clone(), config).expect("the cache opens")
}

fn names(server: &Arc<MemRemote>, cache: &Cache, clock: &Arc<SimClock>) -> Arc<Names> {
    let licence = Licence { sole: true, ..Licence::default() };
    Arc::new(Names::new(server.clone(), cache.clone(), clock.clone(), "here", licence))
}

impl Rig {
    /// On an empty server, which has seen the machine's user.
    async fn new() -> Rig {
        Rig::on(SimDisk::new()).await
    }

    /// The same, and at most so many changes wait.
    async fn with_room_for(waiting_max: usize) -> Rig {
        let rig = Rig::new().await;
        let (server, cache, clock) = (rig.server.clone(), rig.cache.clone(), rig.clock.clone());
        let licence = Licence { sole: true, ..Licence::default() };
        let names = Names::with_room(server, cache, clock, "here", licence, waiting_max);
        let rig = Rig { names: Arc::new(names), ..rig };
        rig.be_seen().await;
        rig.server.reset_calls();
        rig
    }

    async fn on(disk: SimDisk) -> Rig {
        Rig::of(MemRemote::new(), disk).await
    }

    async fn of(server: MemRemote, disk: SimDisk) -> Rig {
        let (server, clock) = (Arc::new(server), Arc::new(SimClock::new()));
        let cache = open(&disk, &clock, 1);
        let names = names(&server, &cache, &clock);
        let rig = Rig { server, clock, disk, cache, names, boot: 1 };
        rig.be_seen().await;
        rig.server.reset_calls();
        rig
    }

    /// The server shows to which user it maps the user.
    async fn be_seen(&self) {
        let (top, name) = (self.top().await, OsStr::new("seen"));
        let _ = self.made(&top, "seen", New::Directory).await;
        let _ = self.names.remove(&user(), &top, name, Removal::Directory).await;
    }

    fn remote(&self) -> &dyn Remote {
        self.names.deferring().expect("it defers").names()
    }

    fn deferring(&self) -> &dyn Deferring {
        self.names.deferring().expect("it defers")
    }

    /// The process dies, or the machine if an image is given; another process continues.
    fn crash(self, image: Option<Image>) -> Rig {
        let Rig { server, clock, disk, cache, names: held, boot } = self;
        drop((held, cache));
        let (disk, boot) = match image {
            Some(image) => (disk.crash(image), boot + 1),
            None => (disk, boot),
        };
        let cache = open(&disk, &clock, boot);
        let names = names(&server, &cache, &clock);
        Rig { server, clock, disk, cache, names, boot }
    }

    async fn top(&self) -> Handle {
        self.remote().root().await.unwrap().handle
    }

    async fn made(&self, dir: &Handle, name: &str, new: New) -> Result<Found> {
        let made = self.remote().make(&user(), dir, OsStr::new(name), new, mode(0o755)).await;
        made.map(|made| made.found)
    }

    async fn remove(&self, dir: &Handle, name: &str, what: Removal) -> Result<()> {
        self.remote().remove(&user(), dir, OsStr::new(name), what).await.map(drop)
    }

    /// The conflicts on record: each wanted name, and the name that the object has.
    fn conflicts(&self) -> Vec<(ConflictKind, String, String)> {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let all = self.cache.conflicts(0, usize::MAX).into_iter().map(|found| found.conflict);
        all.map(|one| (one.kind, text(one.wanted), text(one.name))).collect()
    }

    /// Nothing waits, and no other client's change was met.
    fn is_quiet(&self, what: &str) {
        let (waiting, met) = (self.deferring().deferred(), self.conflicts());
        assert!(waiting.is_empty() && met.is_empty(), "{what}: {waiting:?} {met:?}");
    }

    async fn find(&self, dir: &Handle, name: &str) -> Option<Found> {
        self.remote().lookup(&user(), dir, OsStr::new(name)).await.unwrap().found
    }
}

/// Polls a future until it waits for something outside this task.
async fn futures_poll<T>(future: &mut (impl std::future::Future<Output = T> + Unpin)) -> Option<T> {
    for _ in 0..100 {
        let polled = std::future::poll_fn(|context| {
            std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(context) {
                std::task::Poll::Ready(done) => Some(done),
                std::task::Poll::Pending => None,
            })
        });
        if let Some(done) = polled.await {
            return Some(done);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// A tree: the object at each path.
type Tree = BTreeMap<String, Leaf>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Leaf {
    kind: Kind,
    mode: u32,
    mtime: larder_vfs::Time,
    target: Option<std::ffi::OsString>,
    /// The first path of the object.
    first: String,
    /// Of what is not a directory.
    links: u32,
}

/// A tree without link counts: they are off by one if a process has died and the server has not
/// said whether it has made a name.
fn unlinked(tree: &Tree) -> Tree {
    let leaf = |leaf: &Leaf| Leaf { links: 0, ..leaf.clone() };
    tree.iter().map(|(path, one)| (path.clone(), leaf(one))).collect()
}

/// Everything that is below the root, by listing it.
async fn tree(remote: &dyn Remote) -> Tree {
    let root = remote.root().await.unwrap().handle;
    let (mut all, mut left) = (Tree::new(), vec![(String::new(), root)]);
    let mut paths: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    while let Some((path, dir)) = left.pop() {
        let mut cookie = Cookie::default();
        loop {
            let page = remote.readdir(&Cred::root(), &dir, cookie, 1 << 16).await.unwrap();
            for listed in &page.entries {
                let path = format!("{path}/{}", listed.name.to_str().unwrap());
                let found = remote.lookup(&Cred::root(), &dir, &listed.name).await.unwrap().found;
                let Found { handle, attr } = found.expect("what is listed is there");
                assert_eq!(attr.fileid, listed.fileid, "{path}");
                assert_eq!(remote.getattr(&Cred::root(), &handle).await.unwrap(), attr, "{path}");
                let target = match attr.kind {
                    Kind::Symlink => Some(remote.readlink(&Cred::root(), &handle).await.unwrap().0),
                    _ => None,
                };
                let is_file = attr.kind == Kind::File;
                // Times that entries give to directories, and servers to links, are not compared.
                let mtime = if is_file { attr.mtime } else { Default::default() };
                let mode = if attr.kind == Kind::Symlink { 0 } else { attr.mode };
                let links = if attr.kind == Kind::Directory { 0 } else { attr.nlink };
                let (kind, first) = (attr.kind, String::new());
                let leaf = Leaf { kind, mode, mtime, target, first, links };
                let before = all.insert(path.clone(), leaf);
                paths.entry(attr.fileid).or_default().push(path.clone());
                assert_eq!(before, None, "{path} is listed twice");
                if attr.kind == Kind::Directory {
                    left.push((path, handle));
                }
            }
            let Some(last) = page.entries.last().filter(|_| !page.eof) else { break };
            cookie = Cookie { position: last.position, verifier: page.verifier };
        }
    }
    for paths in paths.into_values() {
        let first = paths.iter().min().expect("it has one").clone();
        for path in paths {
            all.get_mut(&path).expect("it was listed").first.clone_from(&first);
        }
    }
    all
}

/// A small generator of test choices (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

/// The seed of a random test and its number of rounds: printed, and set with `LARDER_SEED` and
/// `LARDER_ROUNDS`.
fn seed(test: &str, rounds: u64) -> (u64, u64) {
    let variable = |name| std::env::var(name).ok().and_then(|text: String| text.parse().ok());
    let (seed, rounds) =
        (variable("LARDER_SEED").unwrap_or(1), variable("LARDER_ROUNDS").unwrap_or(rounds));
    println!("{test}: LARDER_SEED={seed} LARDER_ROUNDS={rounds}");
    (seed, rounds)
}

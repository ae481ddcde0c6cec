//! A process on one of the clients, which makes one call after the other on the files of its
//! history, and writes down what it asked and what it was told.
//!
//! Processes of a history share a directory. In it are names that they make, move and remove
//! ([`names`]), and one file that they write, read and lock ([`data`], [`locks`]).

mod bytes;
mod entries;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use larder_testkit::history::names::{self, Node};
use larder_testkit::history::{Span, Timed, data, locks};
use larder_vfs::{
    Answer, Cred, Error, FileSystem, Ino, Lookup, New, OpenFlags, OpenId, SetAttr, Stability,
};

use tokio::sync::RwLock;

use crate::world::{Life, Lives, Outcome, Ticks};

/// Names of the files and of the directories.
const FILES: [&str; 2] = ["a", "b"];
const DIRS: [&str; 2] = ["p", "q"];

/// The file that is written, and the places in it: on one page and on several, in one chunk of a
/// cache and in several.
pub(crate) const FILE: u64 = 1;
pub(crate) const PLACES: [u64; 5] = [0, 100, 5000, 20_000, 70_000];
const FILE_BYTES: u64 = 80_000;
/// Its name, on a volume without memory disks and with them.
const FILE_NAMES: [&str; 2] = ["data", "data.v"];

/// What the callers saw.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) names: Vec<Timed<names::Call>>,
    /// The life of the client that made each of those calls, to be printed.
    pub(crate) by: Vec<u64>,
    pub(crate) locks: Vec<Timed<locks::Call>>,
    pub(crate) writes: Vec<data::Write>,
    pub(crate) reads: Vec<data::Read>,
    /// Answers that no call can have.
    pub(crate) odd: Vec<String>,
    /// Calls whose outcome no process learned.
    pub(crate) unknown: u64,
    /// Calls that were told that bytes are lost.
    pub(crate) lost: u64,
    /// One of them was a last read of a place.
    pub(crate) is_lost_to_the_end: bool,
}

/// What the processes of a history share.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) dir: String,
    /// The file that is written.
    file_name: &'static str,
    /// The number of the history's directory.
    pub(crate) root: Node,
    /// The processes call as clients of an export do: several at the same time in one directory.
    is_of_export: bool,
    pub(crate) record: Mutex<Record>,
    ticks: Ticks,
    values: AtomicU64,
}

/// A directory in use: the client's inode number, and the server's number.
type Dir = (Ino, Node);

/// The open file.
struct Open {
    id: OpenId,
    ino: Ino,
    writes: bool,
    /// When it was opened; 0 if the client may not have asked the server.
    since: u64,
    /// When each place was locked.
    locked: [Option<u64>; PLACES.len()],
    /// Whether the lock on each place is exclusive.
    exclusive: [bool; PLACES.len()],
    /// The writes through it, as indices into the record.
    written: Vec<usize>,
}

/// A process.
pub(crate) struct Player {
    history: Arc<History>,
    number: u64,
    lives: Lives,
    /// Held during each step.
    floor: Arc<RwLock<()>>,
    /// In every five steps so many are about names.
    steps_of_names: u64,
    random: Random,
    /// The life of its client that the following fields belong to.
    life: Option<Life>,
    root: Option<Dir>,
    open: Option<Open>,
}

/// A small generator of random numbers (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }

    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }
}

fn root() -> Cred {
    Cred::root()
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

/// Makes a call that must succeed for the history to start.
async fn must<T: Send + 'static>(
    life: &Life,
    make: impl FnOnce(&larder_client::Client) -> Answer<T> + Send + 'static,
) -> T {
    match life.call(make).await {
        Outcome::Done(done) => done,
        Outcome::Refused(error) => panic!("{error}"),
        Outcome::Unknown => panic!("nobody knows"),
    }
}

impl History {
    /// Makes the history's directory and the file in it, and makes both durable, or puts the file
    /// into memory.
    pub(crate) async fn begin(
        number: u64,
        (is_volatile, is_of_export): (bool, bool),
        ticks: Ticks,
        life: &Life,
    ) -> Arc<History> {
        let file_name = FILE_NAMES[usize::from(is_volatile)];
        let dir = format!("history{number}");
        let name = dir.clone();
        let made = must(life, move |client| {
            client.make(&root(), Ino::ROOT, name.as_ref(), New::Directory, mode(0o755))
        });
        let made = made.await;
        let (entry, opened) = must(life, move |client| {
            let flags = OpenFlags { exclusive: true, ..OpenFlags::READ_WRITE };
            client.create(&root(), made.ino, file_name.as_ref(), mode(0o644), flags)
        })
        .await;
        let (ino, id) = (entry.ino, opened.id);
        must(life, move |client| {
            client.write(&root(), ino, Some(id), FILE_BYTES - 1, b"e", Stability::Unstable)
        })
        .await;
        must(life, move |client| client.flush(&root(), ino, id, None)).await;
        must(life, move |client| client.release(ino, id)).await;
        Arc::new(History {
            dir,
            file_name,
            root: made.fresh.attr.fileid,
            is_of_export,
            record: Mutex::default(),
            ticks,
            values: AtomicU64::new(1),
        })
    }

    /// Whether the file may be lost.
    pub(crate) fn is_volatile(&self) -> bool {
        self.file_name == FILE_NAMES[1]
    }

    /// The path of the file.
    pub(crate) fn file(&self) -> String {
        format!("/{}/{}", self.dir, self.file_name)
    }

    fn tick(&self) -> u64 {
        self.ticks.next()
    }

    fn note(&self, change: impl FnOnce(&mut Record)) {
        change(&mut self.record.lock().unwrap());
    }

    fn note_name(&self, life: &Life, span: Span, call: names::Call) {
        self.note(|record| {
            record.names.push(Timed { span, call });
            record.by.push(life.number);
        });
    }

    /// Records that a client has died: the server releases its locks at some later time.
    pub(crate) fn died(&self, client: u64) {
        self.locks_end(client, self.tick());
    }

    /// Records that a client's locks end at some time after this tick.
    pub(crate) fn locks_end(&self, client: u64, made: u64) {
        let (span, call) = (Span { made, answered: None }, locks::Call::End { client });
        self.note(|record| record.locks.push(Timed { span, call }));
    }
}

impl Player {
    pub(crate) fn new(history: Arc<History>, number: u64, lives: Lives, seed: u64) -> Player {
        let (floor, steps_of_names, random) = (Arc::default(), 2, Random(seed));
        let (life, root, open) = (None, None, None);
        Player { history, number, lives, floor, steps_of_names, random, life, root, open }
    }

    /// The same, which asks about names alone, and pauses while somebody else holds the floor.
    pub(crate) fn of_names(self, floor: Arc<RwLock<()>>) -> Player {
        Player { floor, steps_of_names: 5, ..self }
    }

    /// Makes this many steps, and closes the open file.
    pub(crate) async fn play(mut self, steps: u64) -> Player {
        for _ in 0..steps {
            let _turn = self.floor.clone().read_owned().await;
            let Some(life) = self.living().await else { continue };
            match self.random.below(5) < self.steps_of_names {
                true => self.step_of_names(&life).await,
                false => self.step_of_data(&life).await,
            }
        }
        if let Some(life) = self.living().await {
            self.close(&life).await;
        }
        self
    }

    /// Looks up every name.
    pub(crate) async fn look_at_names(&mut self) {
        let life = self.living().await.expect("it lives to the end");
        let top = self.root.unwrap();
        self.list(&life, top, &[FILES, DIRS].concat()).await;
        for name in DIRS {
            if let Some(dir) = self.look(&life, top, name).await {
                self.list(&life, dir, &FILES).await;
            }
        }
    }

    /// Reads every place as the server has it, when nothing is killed any more: what the client
    /// shows while the server is away does not count. Bytes that cannot be read then are lost.
    pub(crate) async fn read_places(&mut self) -> Vec<data::Read> {
        let life = self.living().await.expect("it lives to the end");
        loop {
            life.reaches_server().await;
            self.open(&life, false).await;
            if self.open.as_ref().is_some_and(|open| open.since > 0) {
                break;
            }
            self.close(&life).await;
        }
        let mut last = Vec::new();
        for place in 0..PLACES.len() {
            match self.read(&life, place).await {
                Outcome::Done(read) => last.push(read),
                Outcome::Refused(Error::Lost) => {
                    self.history.note(|record| record.is_lost_to_the_end = true);
                }
                other => {
                    let text = format!("the last read of place {place}: {other:?}");
                    self.history.note(|record| record.odd.push(text));
                }
            }
        }
        self.close(&life).await;
        last
    }

    /// The current life of its client, once there is one; `None` if it ended before this process
    /// began to use it.
    async fn living(&mut self) -> Option<Life> {
        let now = self.lives.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        if self.life.as_ref().is_some_and(|life| life.number == now.number) {
            return Some(now);
        }
        (self.life, self.root, self.open) = (None, None, None);
        let name = self.history.dir.clone();
        let found = now.call(move |client| client.lookup(&root(), Ino::ROOT, name.as_ref()));
        match found.await {
            Outcome::Done(Lookup::Found(entry)) => {
                let seen = now.node(entry.fresh.attr.fileid);
                assert_eq!(seen, self.history.root, "{}", self.history.dir);
                self.root = Some((entry.ino, seen));
                self.life = Some(now.clone());
                Some(now)
            }
            Outcome::Unknown => None,
            other => panic!("{}: {other:?}", self.history.dir),
        }
    }

    /// Makes a call, and returns its span.
    async fn timed<T: Send + 'static>(
        &self,
        life: &Life,
        make: impl FnOnce(&larder_client::Client) -> Answer<T> + Send + 'static,
    ) -> (Span, Outcome<T>) {
        let made = self.history.tick();
        let outcome = life.call(make).await;
        let is_known = !matches!(outcome, Outcome::Unknown);
        let is_lost = matches!(outcome, Outcome::Refused(Error::Lost));
        self.history.note(|record| {
            record.unknown += u64::from(!is_known);
            record.lost += u64::from(is_lost);
        });
        (Span { made, answered: is_known.then(|| self.history.tick()) }, outcome)
    }
}

//! The hoard: pinned trees that have a priority. They are kept whole and fresh, so that they can be
//! used without the server.
//!
//! A round lists the trees, the most important one first, which shows what has changed at the
//! server; decides which files the cache has room for; gives up the others; and fetches what is
//! missing while no application waits for the server. A file counts as whole when a checkpoint has
//! made its bytes durable: until then a short one may be in memory, and be lost with the worker.
//! Rounds follow each other at intervals.
//!
//! Between rounds, the local bytes of a tree are compared with their checksums when that is due,
//! slowly: what is wrong is forgotten, and the next round fetches it anew.

mod checks;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_cache::{CHUNK_BYTES, Cache, FileNo};
use larder_client::{Client, last_path};
use larder_io::{Clock, Monotonic};
use larder_vfs::{Cred, Entry, FileSystem, Ino, Kind};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::children::each_child;
use crate::report::HoardedTree;
use checks::Checks;

/// Time between two rounds.
const EVERY: Duration = Duration::from_secs(600);

/// Time between two checkpoints while files are fetched, in seconds.
const CHECKPOINT_AFTER_SEC: u64 = 5;

/// When a round that found no server is tried again.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(15);

/// How a tree is hoarded: the record of its pin (JSON).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hoarded {
    /// The tree with the larger one gets room first.
    pub(crate) priority: u16,
    /// The user on whose behalf it is read.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    /// When all of it was last found as its checksums say, in seconds since 1970.
    #[serde(default)]
    pub(crate) verified_sec: Option<u64>,
}

impl Hoarded {
    /// The record of a pin.
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers")
    }

    fn decode(record: &[u8]) -> Option<Hoarded> {
        serde_json::from_slice(record).ok()
    }
}

/// Keeps the pinned trees of a mount whole and fresh until it is dropped.
pub(crate) struct Hoard {
    rounds: Arc<Rounds>,
    /// None if nothing is looked after.
    task: Option<AbortHandle>,
}

/// What a round needs, and its results.
struct Rounds {
    client: Client,
    cache: Cache,
    clock: Arc<dyn Clock>,
    /// Another round is due at once.
    is_due: Notify,
    last: Mutex<BTreeMap<FileNo, Looked>>,
    checks: Checks,
}

/// How often a hoard is looked after; with 0 never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Intervals {
    /// Time between two rounds; `None`: ten minutes.
    pub(crate) rounds: Option<Duration>,
    /// Time between two comparisons of a tree with its checksums; `None`: a week.
    pub(crate) checks: Option<Duration>,
}

impl Intervals {
    /// From seconds.
    pub(crate) fn of_seconds(rounds: Option<u64>, checks: Option<u64>) -> Intervals {
        let [rounds, checks] = [rounds, checks].map(|time| time.map(Duration::from_secs));
        Intervals { rounds, checks }
    }
}

/// What the last round found of a tree.
#[derive(Clone, Copy, Debug, Default)]
struct Looked {
    files: Counted,
    whole: Counted,
    left_out: Counted,
    failed: u64,
    at: Monotonic,
}

/// Files and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    files: u64,
    bytes: u64,
}

impl Counted {
    fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }
}

/// A regular file in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct File {
    ino: Ino,
    bytes: u64,
}

/// A tree that a round looks after, with the files in it that are in no tree before it.
struct Tree {
    top: FileNo,
    cred: Cred,
    files: Vec<File>,
    failed: u64,
}

impl Hoard {
    /// Begins rounds, the first one now. Must be called within the runtime.
    pub(crate) fn begin(
        client: Client,
        cache: Cache,
        clock: Arc<dyn Clock>,
        intervals: Intervals,
    ) -> Hoard {
        let every = Some(intervals.rounds.unwrap_or(EVERY)).filter(|every| !every.is_zero());
        let checks = Checks::new(intervals.checks);
        let (is_due, last) = (Notify::new(), Mutex::default());
        let rounds = Arc::new(Rounds { client, cache, clock, is_due, last, checks });
        let task = every.map(|every| {
            let rounds = rounds.clone();
            tokio::spawn(async move { rounds.run(every).await }).abort_handle()
        });
        Hoard { rounds, task }
    }

    /// Whether trees are looked after.
    pub(crate) fn is_on(&self) -> bool {
        self.task.is_some()
    }

    /// Pins a tree with this record, or no longer: another round is due.
    pub(crate) fn pin_tree(&self, top: FileNo, record: Option<&[u8]>) {
        self.rounds.checks.alone(|| self.rounds.cache.pin_tree(top, record));
        self.rounds.is_due.notify_one();
    }

    /// Looks after nothing any more.
    pub(crate) fn end(&self) {
        self.task.iter().for_each(AbortHandle::abort);
    }

    /// The trees as the last round found them, the most important one first.
    pub(crate) fn status(&self) -> Vec<HoardedTree> {
        self.rounds.status()
    }
}

impl Drop for Hoard {
    fn drop(&mut self) {
        self.end();
    }
}

impl Rounds {
    fn status(&self) -> Vec<HoardedTree> {
        let looked = self.looked();
        let shown = |(top, hoarded): (FileNo, Hoarded)| {
            let path = last_path(&self.cache, top);
            let looked = looked.get(&top);
            let Looked { files, whole, left_out, failed, .. } = looked.copied().unwrap_or_default();
            let verified = hoarded.verified_sec.map(|then| self.wall_sec().saturating_sub(then));
            HoardedTree {
                path: path.map(|path| path.display().to_string()),
                priority: hoarded.priority,
                files: files.files,
                bytes: files.bytes,
                whole_files: whole.files,
                whole_bytes: whole.bytes,
                left_out_files: left_out.files,
                left_out_bytes: left_out.bytes,
                failed,
                age_s: looked.map(|looked| self.clock.now().since(looked.at).as_secs()),
                verified_age_s: verified,
                wrong_chunks: self.checks.wrong(top),
            }
        };
        self.trees().into_iter().map(shown).collect()
    }

    fn looked(&self) -> MutexGuard<'_, BTreeMap<FileNo, Looked>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pins with a priority, largest first.
    fn trees(&self) -> Vec<(FileNo, Hoarded)> {
        let pinned = self.cache.pinned_trees().into_iter();
        let mut trees: Vec<_> =
            pinned.filter_map(|(top, record)| Some((top, Hoarded::decode(&record)?))).collect();
        trees.sort_by_key(|(top, hoarded)| (u16::MAX - hoarded.priority, *top));
        trees
    }

    async fn run(&self, every: Duration) {
        loop {
            let trees = self.look_after().await;
            let pause = if trees.is_some() { every } else { TRY_AGAIN_AFTER.min(every) };
            let checking = async {
                self.check_due(trees.unwrap_or_default()).await;
                std::future::pending::<()>().await;
            };
            // Each is a reason for the next round.
            let pausing = async {
                tokio::select! {
                    () = self.is_due.notified() => {}
                    () = checking => {}
                }
            };
            let _ = self.clock.timeout(pause, pausing).await;
        }
    }

    /// A round. Returns the trees with the files for which there is room; `None` if the server was
    /// not there all the time.
    async fn look_after(&self) -> Option<Vec<(FileNo, Vec<File>)>> {
        let (mut trees, mut seen) = (Vec::new(), HashSet::new());
        for (top, hoarded) in self.trees() {
            if !self.client.reachable() {
                return None;
            }
            trees.push(self.list(top, &hoarded, &mut seen).await);
        }
        self.looked().retain(|top, _| trees.iter().any(|tree| tree.top == *top));
        let mut room = self.cache.capacity();
        let mut wanted = Vec::new();
        for tree in &trees {
            let (fits, left_out) = divide(&tree.files, &mut room);
            let mut looked =
                Looked { at: self.clock.now(), failed: tree.failed, ..Looked::default() };
            tree.files.iter().for_each(|file| looked.files.add(file.bytes));
            left_out.iter().for_each(|file| looked.left_out.add(file.bytes));
            self.looked().insert(tree.top, looked);
            for file in left_out {
                self.cache.cull_file(FileNo(file.ino.0));
            }
            wanted.push(fits);
        }
        for (tree, fits) in trees.iter().zip(&wanted) {
            let (mut fetched, mut since) = (Counted::default(), self.clock.now());
            let mut is_there = true;
            for file in fits {
                is_there = self.client.reachable();
                if !is_there {
                    break;
                }
                if let Some(bytes) = self.complete(tree, *file).await {
                    fetched.add(bytes);
                }
                if self.clock.now().since(since).as_secs() >= CHECKPOINT_AFTER_SEC {
                    self.make_durable(tree.top, std::mem::take(&mut fetched)).await;
                    since = self.clock.now();
                }
            }
            self.make_durable(tree.top, fetched).await;
            if !is_there {
                return None;
            }
        }
        Some(trees.iter().map(|tree| tree.top).zip(wanted).collect())
    }

    /// Fetches what is missing of a file. Returns how many bytes it has if it is whole then.
    async fn complete(&self, tree: &Tree, file: File) -> Option<u64> {
        let done = self.client.complete(&tree.cred, file.ino).await;
        let mut looked = self.looked();
        let looked = looked.entry(tree.top).or_default();
        match done {
            Ok(Some(0)) => return Some(file.bytes),
            Ok(Some(_)) => looked.left_out.add(file.bytes),
            // It was changed here, or removed, since it was listed.
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(ino = file.ino.0, %error, "cannot be hoarded");
                looked.failed += 1;
            }
        }
        None
    }

    /// Makes the bytes of whole files of a tree durable, and counts the files as whole then.
    async fn make_durable(&self, top: FileNo, fetched: Counted) {
        if fetched == Counted::default() {
            return;
        }
        let cache = self.cache.clone();
        let made = tokio::task::spawn_blocking(move || cache.checkpoint()).await;
        let mut looked = self.looked();
        let looked = looked.entry(top).or_default();
        if matches!(made, Ok(Ok(()))) {
            looked.whole.files += fetched.files;
            looked.whole.bytes += fetched.bytes;
        } else {
            looked.failed += fetched.files;
        }
    }

    /// The regular files of a tree that are not `seen` yet. Asks the server for their present
    /// versions. Does not follow symbolic links.
    async fn list(&self, top: FileNo, hoarded: &Hoarded, seen: &mut HashSet<Ino>) -> Tree {
        let cred = Cred::new(hoarded.uid, hoarded.gid, &hoarded.groups);
        let mut tree = Tree { top, cred, files: Vec::new(), failed: 0 };
        let mut open = Vec::new();
        match self.client.getattr(&tree.cred, Ino(top.0)).wait().await {
            Ok(fresh) if fresh.attr.kind == Kind::Directory => open.push(Ino(top.0)),
            Ok(fresh) if fresh.attr.kind == Kind::File && seen.insert(Ino(top.0)) => {
                tree.files.push(File { ino: Ino(top.0), bytes: fresh.attr.size });
            }
            Ok(_) => {}
            Err(_) => tree.failed += 1,
        }
        while let Some(dir) = open.pop() {
            let mut take = |_, found: Entry| {
                if !seen.insert(found.ino) {
                    return;
                }
                match found.fresh.attr.kind {
                    Kind::Directory => open.push(found.ino),
                    Kind::File => {
                        tree.files.push(File { ino: found.ino, bytes: found.fresh.attr.size });
                    }
                    _ => {}
                }
            };
            if let Err(error) = each_child(&self.client, &tree.cred, dir, &mut take).await {
                tracing::debug!(dir = dir.0, %error, "cannot be listed for the hoard");
                tree.failed += 1;
            }
        }
        tree
    }
}

/// Gives files room in their order, as long as there is some for them: those that fit, and the
/// others.
fn divide(files: &[File], room: &mut u64) -> (Vec<File>, Vec<File>) {
    files.iter().partition(|file| {
        let left = room.checked_sub(file.bytes.next_multiple_of(CHUNK_BYTES));
        *room = left.unwrap_or(*room);
        left.is_some()
    })
}

#[cfg(test)]
mod tests;

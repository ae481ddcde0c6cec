//! Nodes, and the table of those that are in memory.
//!
//! Invariants:
//! - There is at most one [`Node`] per number in memory: the table gives out clones of one `Arc`
//!   and forgets a node only when no other clone is left.
//! - A node's state is in the index whenever its lock is free ([`Table::persist`] follows each
//!   change), or is queued for it ([`Departed`]), so a node can be dropped from memory without
//!   loss. A newer confirmation by the server is written there when the node leaves memory: a
//!   process that dies before loses that, and its successor asks sooner.
//! - The table is bounded; nodes that are open or have unsent changes do not count. Of such nodes
//!   there may be many (a tree that was made here and is sent later), so all are looked through
//!   only after a number of others came that is in proportion to them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_cache::{Cache, FileNo};
use larder_io::Clock;
use larder_vfs::{Handle, Ino, Result};

use super::state::State;
use super::verdicts::Departed;
use crate::journal::{Known, Record};
use crate::limits::Transfer;
use crate::names::{Dentry, Listed};
use crate::read::{Flights, Storing};

/// One file.
pub(crate) struct Node {
    /// Its number, in the index and at the front door.
    pub(crate) ino: Ino,
    /// When it came into memory.
    since: Moment,
    /// What is known of the file.
    state: Mutex<State>,
    /// The turn to move data or size between cache and server: one operation at a time.
    pub(crate) transfer: Transfer,
    /// Ranges that are being fetched from the server.
    pub(crate) flights: Flights,
    /// Bytes that were fetched and are not in the cache yet.
    pub(crate) storing: Storing,
    /// Notified when the file is no longer open; of a directory, when a hidden name in it is gone.
    pub(crate) released: tokio::sync::Notify,
}

impl Node {
    /// Locks what is known. Never held across an `await`.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server's name for the file.
    ///
    /// # Errors
    /// [`Error::Stale`] if the file is gone: the server may have given its name to another one.
    pub(crate) fn handle(&self) -> Result<Handle> {
        self.state().handle()
    }

    /// Waits until the state satisfies `is_so`: checked now and whenever [`Node::released`] is
    /// notified.
    pub(crate) async fn until(&self, is_so: impl Fn(&State) -> bool) {
        loop {
            let notified = self.released.notified();
            if is_so(&self.state()) {
                return;
            }
            notified.await;
        }
    }

    /// Waits until no name of the file is about to go. Not for what a removal or a rename may wait
    /// for: a release, or the file's turn to be sent.
    pub(crate) async fn names_have_left(&self) {
        self.until(|state| !state.opens().is_leaving()).await;
    }

    /// A hidden name in this directory was removed, or was not made.
    pub(crate) fn hidden_name_is_gone(&self, name: &OsStr) {
        self.state().hidden_mut().drop_inside(name);
        self.released.notify_waiters();
    }

    /// Its number in the cache.
    pub(crate) fn no(&self) -> FileNo {
        FileNo(self.ino.0)
    }
}

/// A moment in the order in which nodes come into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

/// This many nodes stay in memory although the kernel has forgotten them: the server's decisions on
/// a file's rights are known nowhere else.
const FORGOTTEN_MAX: usize = 1024;
/// More nodes than this are many, until there are only [`FEW`].
const MANY: usize = 8 * FORGOTTEN_MAX;
/// More than those that stay: the kernel may have forgotten these before there were many, and does
/// not forget them again.
const FEW: usize = 2 * FORGOTTEN_MAX;

/// The nodes in memory, over the index.
pub(crate) struct Table {
    cache: Cache,
    clock: Arc<dyn Clock>,
    nodes: Mutex<Nodes>,
    nodes_max: usize,
}

#[derive(Default)]
struct Nodes {
    by_ino: HashMap<Ino, Arc<Node>>,
    /// How many nodes came into memory so far.
    inserted: u64,
    /// There were many, and not few since.
    many: bool,
    /// From this many on, unused ones leave memory, if that is more than the limit.
    look_at: usize,
    departed: Departed,
}

impl Table {
    pub(crate) fn new(cache: Cache, clock: Arc<dyn Clock>, nodes_max: usize) -> Table {
        Table { cache, clock, nodes: Mutex::default(), nodes_max }
    }

    /// The node with this number; `None` if it is not known at all.
    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<Node>> {
        let left = {
            let nodes = self.lock();
            if let Some(node) = nodes.by_ino.get(&ino) {
                return Some(node.clone());
            }
            nodes.departed.count()
        };
        // Without the lock: the index may have to read from its disk, and every operation needs the
        // table.
        let mut state = self.read(ino)?;
        let mut nodes = self.lock();
        if let Some(node) = nodes.by_ino.get(&ino) {
            return Some(node.clone());
        }
        if nodes.departed.count() != left {
            // It may have been in memory in the meantime, and have recorded more in the index than
            // was read.
            state = self.read(ino)?;
        }
        Some(self.insert(&mut nodes, ino, state))
    }

    /// The node with this number, which an earlier process had open when it was gone at the server:
    /// it has no handle, and only the number leads to it. [`Table::get`] finds it for as long as a
    /// clone of it is held.
    pub(crate) fn get_gone(&self, ino: Ino) -> Option<Arc<Node>> {
        let known = Known::decode(&self.cache.node(FileNo(ino.0))?)?;
        let mut nodes = self.lock();
        let found = nodes.by_ino.get(&ino).cloned();
        Some(found.unwrap_or_else(|| self.insert(&mut nodes, ino, State::gone(known))))
    }

    /// What the index has of a node that is not in memory.
    fn read(&self, ino: Ino) -> Option<State> {
        let no = FileNo(ino.0);
        let known = Known::decode(&self.cache.node(no)?)?;
        let handle = self.cache.key_of(no).filter(|key| key.len() <= Handle::LEN_MAX)?;
        Some(State::new(Handle::new(&handle), known))
    }

    /// The node whose handle at the server is `handle`, and whether it is new. `describe` makes the
    /// first description of a new one.
    pub(crate) fn get_or_insert(
        &self,
        handle: &Handle,
        describe: impl FnOnce() -> Known,
    ) -> (Arc<Node>, bool) {
        let no = self.cache.assign(handle.as_bytes());
        let ino = Ino(no.0);
        if let Some(node) = self.get(ino) {
            return (node, false);
        }
        let known = describe();
        let mut nodes = self.lock();
        if let Some(node) = nodes.by_ino.get(&ino) {
            return (node.clone(), false);
        }
        let record = known.encode();
        let node = self.insert(&mut nodes, ino, State::new(handle.clone(), known));
        // Callers that find the node from now on wait for its record; no other caller does.
        let mut state = node.state();
        state.opens_mut().begin_unknown();
        drop(nodes);
        self.cache.put_node(no, &record);
        drop(state);
        (node, true)
    }

    /// Records what is known in the index: durable at the next checkpoint. Call it with the node's
    /// lock held, after each change.
    pub(crate) fn persist(&self, ino: Ino, state: &mut State) {
        state.take_confirmed();
        self.cache.put_node(FileNo(ino.0), &state.known().encode());
    }

    /// Whether a node can leave memory; if so, puts what the index still lacks there and into
    /// `departed`.
    fn lets_go(&self, node: &Arc<Node>, departed: &mut Departed) -> bool {
        if Arc::strong_count(node) > 1 {
            return false;
        }
        let mut state = node.state();
        let idle = state.is_idle();
        if idle && state.take_confirmed() {
            self.persist(node.ino, &mut state);
        }
        if !idle {
            return false;
        }
        debug_assert!(
            state.unsent().since().is_none(),
            "the engine finds a file with unsent bytes in memory"
        );
        departed.count_one();
        if let Some(rights) = state.rights_to_keep() {
            departed.keep(node.ino, rights);
        }
        true
    }

    /// The kernel has dropped references: the node leaves memory, unless it is in use or there are
    /// few. After a large walk, every unused node leaves: the few that would stay are scattered
    /// over many pages and would keep all of them resident.
    pub(crate) fn forget(&self, ino: Ino) {
        let mut guard = self.lock();
        let nodes = &mut *guard;
        nodes.many |= nodes.by_ino.len() > MANY;
        if nodes.many && nodes.by_ino.len() <= FEW {
            nodes.many = false;
            nodes.by_ino.retain(|_, node| !self.lets_go(node, &mut nodes.departed));
            nodes.by_ino.shrink_to_fit();
            return;
        }
        if !nodes.many && nodes.by_ino.len() <= FORGOTTEN_MAX {
            if let Some(node) = nodes.by_ino.get(&ino) {
                // The listing is the largest part of a directory's state, and is in the index too.
                *node.state().listed_mut() = Listed::default();
            }
            return;
        }
        let departed = &mut nodes.departed;
        if nodes.by_ino.get(&ino).is_some_and(|node| self.lets_go(node, departed)) {
            nodes.by_ino.remove(&ino);
            if nodes.by_ino.capacity() > MANY && nodes.by_ino.len() < nodes.by_ino.capacity() / 4 {
                let wanted = nodes.by_ino.len() * 2;
                nodes.by_ino.shrink_to(wanted);
            }
        }
    }

    /// How many nodes are in memory.
    pub(crate) fn count(&self) -> usize {
        self.lock().by_ino.len()
    }

    /// The nodes in memory for which `wanted` holds, which is asked with the table locked. No other
    /// node is in use for it: one that is when the kernel forgets it stays in memory.
    pub(crate) fn select(&self, wanted: impl Fn(&Node) -> bool) -> Vec<Arc<Node>> {
        self.lock().by_ino.values().filter(|node| wanted(node)).cloned().collect()
    }

    /// Now: nodes that are in memory came before it.
    pub(crate) fn moment(&self) -> Moment {
        Moment(self.lock().inserted)
    }

    /// The node that has `handle`, if it was known before `moment`. A node that came into memory
    /// since may have been known before or not. It counts as known since if it has that name; with
    /// another name it does unless handles are given again so soon: then a caller has met what was
    /// made here and moved it, before the answer to its making.
    pub(crate) fn known_before(
        &self,
        handle: &Handle,
        moment: Moment,
        (dentry, given_again): (&Dentry, bool),
    ) -> Option<Arc<Node>> {
        let ino = Ino(self.cache.number_of(handle.as_bytes())?.0);
        let in_memory = self.lock().by_ino.get(&ino).cloned();
        match in_memory {
            Some(node) if node.since < moment => Some(node),
            Some(node) => {
                let is_there = node.state().known().hint.as_ref() == Some(dentry);
                Some(node).filter(|_| given_again && !is_there)
            }
            None => self.get(ino),
        }
    }

    fn insert(&self, nodes: &mut Nodes, ino: Ino, mut state: State) -> Arc<Node> {
        if nodes.by_ino.len() >= self.nodes_max.max(nodes.look_at) {
            self.forget_idle(nodes);
        }
        debug_assert!(!nodes.by_ino.contains_key(&ino), "a number has one node in memory");
        if let Some(rights) = nodes.departed.give_back(ino) {
            *state.rights_mut() = rights;
        }
        let since = Moment(nodes.inserted);
        nodes.inserted += 1;
        let node = Arc::new(Node {
            ino,
            since,
            state: Mutex::new(state),
            transfer: Transfer::new(self.clock.clone()),
            flights: Flights::default(),
            storing: Storing::default(),
            released: tokio::sync::Notify::new(),
        });
        nodes.by_ino.insert(ino, node.clone());
        node
    }

    fn lock(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets unused nodes until half of the limit is left. The hash order decides which:
    /// forgetting the wrong node costs one read of the index.
    fn forget_idle(&self, nodes: &mut Nodes) {
        let mut excess = nodes.by_ino.len().saturating_sub(self.nodes_max / 2);
        let departed = &mut nodes.departed;
        nodes.by_ino.retain(|_, node| {
            let forget = excess > 0 && self.lets_go(node, departed);
            excess -= usize::from(forget);
            !forget
        });
        let left = nodes.by_ino.len();
        nodes.look_at = left + left.max(self.nodes_max) / 2;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use larder_cache::Limits;
    use larder_io::{Monotonic, SimClock};
    use larder_vfs::Time;

    use super::*;
    use crate::fixtures::file_of;
    use crate::options::TtlRange;

    const FILES: u64 = 6;
    const THREADS: u64 = 4;
    const CHANGES: u64 = 2000;

    /// A table over an empty index.
    fn table(nodes_max: usize) -> Table {
        let clock = Arc::new(SimClock::new());
        Table::new(Cache::in_memory(clock.clone(), Limits::default()).unwrap(), clock, nodes_max)
    }

    /// The node of the file that has this handle.
    fn find(table: &Table, file: u64) -> Arc<Node> {
        let ttl = TtlRange { min: Default::default(), max: Default::default() };
        let begun = Monotonic::from_nanos(0);
        let described = || Known::described(file_of(Time::default()), 1, begun, ttl.at_first());
        table.get_or_insert(&Handle::new(&file.to_be_bytes()), described).0
    }

    /// Threads constantly change files that leave memory, since the table holds fewer: no change is
    /// lost to a thread that read the index before it.
    #[test]
    fn nodes_that_leave_memory_come_back_as_they_left() {
        let table = table(2);
        let inos: Vec<Ino> = (0..FILES).map(|file| find(&table, file).ino).collect();
        let next = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..CHANGES {
                        let file = next.fetch_add(1, Ordering::Relaxed) * 7 % FILES;
                        let ino = inos[usize::try_from(file).unwrap()];
                        let node = if file.is_multiple_of(2) {
                            find(&table, file)
                        } else {
                            table.get(ino).unwrap()
                        };
                        assert_eq!(node.ino, ino);
                        let mut state = node.state();
                        state.known_mut().attr.size += 1;
                        table.persist(ino, &mut state);
                    }
                });
            }
        });
        let sizes = inos.iter().map(|ino| table.get(*ino).unwrap().state().known().attr.size);
        let begun_with = FILES * file_of(Time::default()).size;
        assert_eq!(sizes.sum::<u64>(), begun_with + THREADS * CHANGES);
        assert!(table.count() <= FILES as usize);
    }

    /// The kernel forgets some nodes while there are few, and the others after there were many:
    /// none stays, whether one of them was in use just then or not.
    #[test]
    fn after_a_large_walk_no_node_stays() {
        let table = table(32 << 10);
        let files = 0..2 * MANY as u64;
        let mut inos = Vec::new();
        for file in files {
            inos.push(find(&table, file).ino);
            if file < FORGOTTEN_MAX as u64 {
                table.forget(inos[inos.len() - 1]);
            }
        }
        assert_eq!(table.count(), inos.len());
        let in_use = table.get(inos[FORGOTTEN_MAX]).unwrap();
        table.forget(in_use.ino);
        drop(in_use);
        inos[FORGOTTEN_MAX + 1..].iter().for_each(|ino| table.forget(*ino));
        assert_eq!(table.count(), 0);
    }

    /// Someone asks for unsent files all the time, as `larder status` does: no node stays for it.
    #[test]
    fn nodes_leave_memory_while_someone_selects_from_them() {
        let table = table(32 << 10);
        let inos: Vec<Ino> = (0..2 * MANY as u64).map(|file| find(&table, file).ino).collect();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    assert_eq!(table.select(|node| node.state().may_have_unsent()).len(), 0);
                }
            });
            inos.iter().for_each(|ino| table.forget(*ino));
            is_done.store(true, Ordering::Relaxed);
        });
        assert_eq!(table.count(), 0);
    }

    /// As long as nearly all are in use, each look costs time in proportion to them.
    #[test]
    fn nodes_in_use_are_not_looked_through_for_each_that_comes() {
        const LIMIT: usize = 8;
        let table = table(LIMIT);
        let (mut used, mut looks) = (Vec::new(), Vec::new());
        for file in 0..1000 {
            used.push(find(&table, file));
            let look_at = table.lock().look_at;
            if looks.last() != Some(&look_at) {
                looks.push(look_at);
            }
        }
        assert!(looks.len() < 20, "{looks:?}");
        drop(used);
        let last = table.lock().look_at as u64;
        (1000..=last).for_each(|file| drop(find(&table, file)));
        assert!(table.count() <= LIMIT, "those that are not used any more leave memory");
    }

    /// A file that is gone has no handle; its number leads to its record, for callers that ask by
    /// number.
    #[test]
    fn a_node_without_a_handle_is_found_as_one_that_is_gone() {
        let cache = Cache::in_memory(Arc::new(SimClock::new()), Limits::default()).unwrap();
        let table = Table::new(cache.clone(), Arc::new(SimClock::new()), 2);
        let described = || {
            Known::described(
                file_of(Time::default()),
                1,
                Monotonic::from_nanos(0),
                Default::default(),
            )
        };
        let handle = Handle::new(b"file");
        let ino = table.get_or_insert(&handle, described).0.ino;
        cache.drop_key(FileNo(ino.0));
        let later = Table::new(cache, Arc::new(SimClock::new()), 2);
        assert!(later.get(ino).is_none());
        assert!(later.get_gone(Ino(ino.0 + 1)).is_none());
        let gone = later.get_gone(ino).unwrap();
        assert!(gone.state().is_gone() && gone.handle().is_err());
        assert_eq!(gone.state().known().attr.size, file_of(Time::default()).size);
        assert!(Arc::ptr_eq(&later.get(ino).unwrap(), &gone), "while somebody holds it");
        // The server has given the handle to another file.
        assert_ne!(later.get_or_insert(&handle, described).0.ino, ino);
    }
}

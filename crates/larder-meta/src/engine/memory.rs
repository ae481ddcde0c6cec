//! The engine of tests: a map in memory, and each state that it has had.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Engine, EngineError, Owner, View, Visitor, Writes};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Keeps the map in memory. Clones are the same map.
#[derive(Clone, Debug, Default)]
pub struct MemoryEngine(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    map: Arc<Map>,
    /// After how many more commits the store fails.
    fails_after: Option<u32>,
    /// Whether nothing can be read.
    is_unreadable: Arc<AtomicBool>,
    commits: u64,
    term: Option<Duration>,
    /// The boot in which late commits live, if there are any.
    boot: Option<u64>,
    /// The states since the last one that is durable, from that on.
    since_durable: Vec<Arc<Map>>,
}

impl MemoryEngine {
    /// An empty map.
    pub fn new() -> MemoryEngine {
        MemoryEngine::default()
    }

    /// The result of a crash now: a map of its own with what was committed.
    pub fn after_crash(&self) -> MemoryEngine {
        let state = self.lock();
        let (map, commits) = (Arc::clone(&state.map), state.commits);
        let (term, boot) = (state.term, state.boot);
        let since_durable = state.since_durable.clone();
        let state = State { map, commits, term, boot, since_durable, ..State::default() };
        MemoryEngine(Arc::new(Mutex::new(state)))
    }

    /// Lets commits be late from now on, in a first boot.
    pub fn let_be_late(&self) {
        let mut state = self.lock();
        state.boot = Some(1);
        state.is_durable();
    }

    /// How many commits are not durable.
    pub fn late(&self) -> usize {
        self.lock().since_durable.len().saturating_sub(1)
    }

    /// The result of a crash of the machine now, which keeps so many of the commits that are not
    /// durable.
    pub fn after_crash_of_machine(&self, kept: usize) -> MemoryEngine {
        let after = self.after_crash();
        let mut state = after.lock();
        if let Some(map) = state.since_durable.get(kept).map(Arc::clone) {
            state.map = map;
        }
        state.boot = state.boot.map(|boot| boot + 1);
        state.is_durable();
        drop(state);
        after
    }

    /// Lets `commits` more commits succeed, and then none.
    pub fn fail_after(&self, commits: u32) {
        self.lock().fails_after = Some(commits);
    }

    /// Lets all reads fail from now on, or none.
    pub fn fail_reads(&self, do_fail: bool) {
        self.lock().is_unreadable.store(do_fail, Ordering::SeqCst);
    }

    /// Gives owners terms, which this engine does not enforce.
    pub fn give_terms(&self, term: Duration) {
        self.lock().term = Some(term);
    }

    /// How many batches were committed.
    pub fn commits(&self) -> u64 {
        self.lock().commits
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_durable(&mut self) {
        self.since_durable = vec![Arc::clone(&self.map)];
    }

    fn commit(&mut self, writes: &Writes, owner: &Owner) -> Result<(), EngineError> {
        if self.map.get(&owner.key) != owner.value.as_ref() {
            return Err(EngineError::NotOwner);
        }
        match &mut self.fails_after {
            Some(0) => return Err(EngineError::Failed("as the test has it".into())),
            Some(left) => *left -= 1,
            None => (),
        }
        let map = Arc::make_mut(&mut self.map);
        for (key, value) in writes {
            match value {
                Some(value) => map.insert(key.clone(), value.clone()),
                None => map.remove(key),
            };
        }
        self.commits += 1;
        Ok(())
    }
}

impl Engine for MemoryEngine {
    fn view(&self) -> Result<Box<dyn View>, EngineError> {
        let state = self.lock();
        let (map, is_unreadable) = (Arc::clone(&state.map), Arc::clone(&state.is_unreadable));
        Ok(Box::new(MemoryView { map, is_unreadable }))
    }

    fn commit(&self, writes: &Writes, owner: &Owner) -> Result<(), EngineError> {
        let mut state = self.lock();
        state.commit(writes, owner)?;
        state.is_durable();
        Ok(())
    }

    fn commit_late(&self, writes: &Writes, owner: &Owner) -> Result<(), EngineError> {
        let mut state = self.lock();
        state.commit(writes, owner)?;
        let map = Arc::clone(&state.map);
        state.since_durable.push(map);
        Ok(())
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.lock().is_durable();
        Ok(())
    }

    fn boot(&self) -> Result<Option<Vec<u8>>, EngineError> {
        Ok(self.lock().boot.map(|boot| boot.to_be_bytes().to_vec()))
    }

    fn term(&self) -> Option<Duration> {
        self.lock().term
    }
}

struct MemoryView {
    map: Arc<Map>,
    is_unreadable: Arc<AtomicBool>,
}

impl MemoryView {
    fn map(&self) -> Result<&Map, EngineError> {
        match self.is_unreadable.load(Ordering::SeqCst) {
            true => Err(EngineError::Failed("as the test has it".into())),
            false => Ok(&self.map),
        }
    }
}

impl View for MemoryView {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        Ok(self.map()?.get(key).cloned())
    }

    fn scan(&self, from: &[u8], until: &[u8], each: &mut Visitor<'_>) -> Result<(), EngineError> {
        if from >= until {
            return Ok(());
        }
        let bounds = (std::ops::Bound::Included(from), std::ops::Bound::Excluded(until));
        for (key, value) in self.map()?.range::<[u8], _>(bounds) {
            if each(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
}

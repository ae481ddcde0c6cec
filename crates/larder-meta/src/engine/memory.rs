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
        let state = State { map, commits, term: state.term, ..State::default() };
        MemoryEngine(Arc::new(Mutex::new(state)))
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

impl Engine for MemoryEngine {
    fn view(&self) -> Result<Box<dyn View>, EngineError> {
        let state = self.lock();
        let (map, is_unreadable) = (Arc::clone(&state.map), Arc::clone(&state.is_unreadable));
        Ok(Box::new(MemoryView { map, is_unreadable }))
    }

    fn commit(&self, writes: &Writes, owner: &Owner) -> Result<(), EngineError> {
        let mut state = self.lock();
        if state.map.get(&owner.key) != owner.value.as_ref() {
            return Err(EngineError::NotOwner);
        }
        match &mut state.fails_after {
            Some(0) => return Err(EngineError::Failed("as the test has it".into())),
            Some(left) => *left -= 1,
            None => (),
        }
        let map = Arc::make_mut(&mut state.map);
        for (key, value) in writes {
            match value {
                Some(value) => map.insert(key.clone(), value.clone()),
                None => map.remove(key),
            };
        }
        state.commits += 1;
        Ok(())
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

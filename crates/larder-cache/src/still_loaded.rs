//! States of files that were closed a moment ago.
//!
//! Who opens a file again soon, as compilers open headers and git opens everything, would wait for
//! its records and its local file to be looked at again: a fifth of the daemon's work for a short
//! file whose bytes the kernel still has. So the states that were closed last stay loaded, until
//! others take their place or nothing is closed for a while.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Mutex;

use crate::{FileNo, lock};

/// Most states: some 4 MiB.
pub(crate) const STILL_LOADED_MAX: usize = 4096;

#[derive(Debug)]
struct States<T> {
    /// The one closed first, first.
    in_order: VecDeque<(FileNo, T)>,
    numbers: BTreeSet<FileNo>,
    /// None was kept since the last [`StillLoaded::shed`].
    is_idle: bool,
    has_ended: bool,
}

/// States of files that were closed a moment ago, each at most once.
#[derive(Debug)]
pub(crate) struct StillLoaded<T> {
    states: Mutex<States<T>>,
    max: usize,
}

impl<T> StillLoaded<T> {
    /// None yet, and never more than `max`.
    pub(crate) fn new(max: usize) -> StillLoaded<T> {
        let none = States {
            in_order: VecDeque::new(),
            numbers: BTreeSet::new(),
            is_idle: true,
            has_ended: false,
        };
        StillLoaded { states: Mutex::new(none), max }
    }

    /// Keeps the state of a file that was closed, unless it is here. Returns the one that leaves
    /// for it, to be dropped where no lock is held.
    pub(crate) fn keep(&self, no: FileNo, state: T) -> Option<T> {
        let mut states = lock(&self.states);
        states.is_idle = false;
        if states.has_ended || !states.numbers.insert(no) {
            return Some(state);
        }
        states.in_order.push_back((no, state));
        if states.in_order.len() <= self.max {
            return None;
        }
        let (gone, state) = states.in_order.pop_front()?;
        states.numbers.remove(&gone);
        Some(state)
    }

    /// To be called from time to time: takes all if none was kept since the last call, to be
    /// dropped where no lock is held.
    pub(crate) fn shed(&self) -> impl Sized + use<T> {
        let mut states = lock(&self.states);
        let is_idle = std::mem::replace(&mut states.is_idle, true);
        if is_idle { states.take() } else { VecDeque::new() }
    }

    /// Takes all, to be dropped where no lock is held, and keeps none from now on.
    pub(crate) fn end(&self) -> impl Sized + use<T> {
        let mut states = lock(&self.states);
        states.has_ended = true;
        states.take()
    }
}

impl<T> States<T> {
    fn take(&mut self) -> VecDeque<(FileNo, T)> {
        self.numbers.clear();
        std::mem::take(&mut self.in_order)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_last_ones_are_kept_once() {
        let loaded = StillLoaded::new(2);
        let states: Vec<_> = (0..4).map(Arc::new).collect();
        let keep =
            |at: usize| loaded.keep(FileNo(at as u64), states[at].clone()).map(|state| *state);
        assert_eq!((keep(0), keep(1)), (None, None));
        assert_eq!(keep(0), Some(0), "it is here, and keeps its place");
        assert_eq!((keep(2), keep(3)), (Some(0), Some(1)));
        assert_eq!(keep(0), Some(2), "one that has left may come again");
        let kept = || states.iter().map(|state| Arc::strong_count(state) - 1).collect::<Vec<_>>();
        assert_eq!(kept(), [1, 0, 0, 1]);
        drop(loaded.shed());
        assert_eq!(kept(), [1, 0, 0, 1], "some were kept since");
        drop(loaded.shed());
        assert_eq!(kept(), [0, 0, 0, 0]);
        assert_eq!(keep(1), None);
        drop(loaded.end());
        assert_eq!(keep(1), Some(1), "after the end nothing is kept");
        assert_eq!(kept(), [0, 0, 0, 0]);
    }
}

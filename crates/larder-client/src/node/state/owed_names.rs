//! Which names an fsync of a directory has to bring to the server: names that were made, removed or
//! renamed on this machine, of a class that promises more for fsync than this machine's disk.
//!
//! The root's node has the record for all directories of the mount, because a directory's own node
//! may leave memory before its fsync. The record ends with the process: the next one goes by the
//! classes of the names that it finds waiting, in whichever directory.
//!
//! Invariants:
//! - a directory with such a name that was acknowledged, and that the server lacks, is on record;
//! - an fsync ends the record of what it has brought to the server, and of nothing that came after
//!   its begin.

use std::collections::HashMap;

use larder_class::Level;
use larder_vfs::Ino;

use super::State;

/// Most directories that are told apart.
const DIRECTORIES_MAX: usize = 65_536;

/// The record.
#[derive(Clone, Debug)]
pub(super) struct OwedNames {
    dirs: HashMap<Ino, Promise>,
    dirs_max: usize,
    /// There were too many directories: any of them may have such a name.
    anywhere: Option<Promise>,
    /// The strongest promise for what an earlier process left, and that waits.
    from_before: Option<Level>,
    /// Changes that are or were on record.
    changes: u64,
}

/// What is owed to a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Promise {
    /// The strongest of them.
    level: Level,
    /// The number of the last change.
    last: u64,
}

impl Promise {
    fn with(level: Level, last: u64, earlier: Option<Promise>) -> Promise {
        Promise { level: earlier.map_or(level, |earlier| earlier.level.max(level)), last }
    }
}

/// What an fsync finds at its begin.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Owed {
    own: Option<Promise>,
    anywhere: Option<Promise>,
    from_before: Option<Level>,
}

impl Owed {
    /// Where names must be when the fsync returns; `None`: this machine's disk is enough.
    pub(crate) fn promised(&self) -> Option<Level> {
        let now = [self.own, self.anywhere].into_iter().flatten().map(|promise| promise.level);
        now.chain(self.from_before).max()
    }

    /// Whether that is the sum of many directories.
    pub(crate) fn is_anywhere(&self) -> bool {
        self.anywhere.is_some()
    }
}

impl OwedNames {
    fn new(from_before: Option<Level>) -> OwedNames {
        let (dirs, dirs_max) = (HashMap::new(), DIRECTORIES_MAX);
        OwedNames { dirs, dirs_max, anywhere: None, from_before, changes: 0 }
    }

    fn owe(&mut self, dir: Ino, level: Level) {
        self.changes += 1;
        let earlier = self.dirs.get(&dir).copied();
        if earlier.is_none() && self.dirs.len() >= self.dirs_max {
            let all = std::mem::take(&mut self.dirs).into_values().map(|promise| promise.level);
            let level = all.max().map_or(level, |all| all.max(level));
            self.anywhere = Some(Promise::with(level, self.changes, self.anywhere));
            return;
        }
        self.dirs.insert(dir, Promise::with(level, self.changes, earlier));
        debug_assert!(self.dirs.len() <= self.dirs_max, "the record is bounded");
    }

    fn owed(&self, dir: Ino) -> Owed {
        let own = self.dirs.get(&dir).copied();
        Owed { own, anywhere: self.anywhere, from_before: self.from_before }
    }

    fn are_at_server(&mut self, dir: Ino, found: Owed, was_quiet: bool) {
        self.from_before = self.from_before.filter(|_| found.from_before.is_none());
        if was_quiet && self.dirs.get(&dir).copied() == found.own {
            self.dirs.remove(&dir);
        }
        if was_quiet && self.anywhere == found.anywhere {
            self.anywhere = None;
        }
    }
}

/// Of the root.
impl State {
    /// Whether the record has begun.
    pub(crate) fn has_owed_names(&self) -> bool {
        self.owed_names.is_some()
    }

    /// Begins the record, unless it has begun. `from_before` is the strongest promise for fsync
    /// among the classes of what waits now: an earlier process left it.
    pub(crate) fn begin_owed_names(&mut self, from_before: Option<Level>) {
        let beyond = from_before.filter(|level| *level > Level::Local);
        self.owed_names.get_or_insert_with(|| Box::new(OwedNames::new(beyond)));
    }

    /// A name in a directory is changed on this machine. `promised` is the strongest promise for
    /// fsync among the classes of what has, gets or loses it.
    pub(crate) fn owe_names(&mut self, dir: Ino, promised: Option<Level>) {
        let Some(level) = promised.filter(|level| *level > Level::Local) else { return };
        let names = self.owed_names.as_deref_mut().expect("changes come after the begin");
        names.owe(dir, level);
    }

    /// What an fsync of a directory has to bring to the server.
    pub(crate) fn owed_names(&self, dir: Ino) -> Owed {
        self.owed_names.as_deref().expect("an fsync begins the record").owed(dir)
    }

    /// The server has all names that waited after this was found. `was_quiet` says that no change
    /// was in flight then: in this directory, or, if it was [the sum](Owed::is_anywhere) of many,
    /// in any.
    pub(crate) fn names_are_at_server(&mut self, dir: Ino, found: Owed, was_quiet: bool) {
        let names = self.owed_names.as_deref_mut().expect("an fsync begins the record");
        names.are_at_server(dir, found, was_quiet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRS: [Ino; 2] = [Ino(1), Ino(2)];

    /// Two directories, in each of which at most one change and one fsync are in flight.
    #[derive(Clone, Debug)]
    struct World {
        names: OwedNames,
        /// Changes whose names a replay may find or not.
        in_flight: [bool; 2],
        /// Names of acknowledged changes that the server lacks.
        lacking: [u32; 2],
        /// What each fsync found, and how many names its replay brings to the server.
        syncs: [Option<(Owed, bool, [u32; 2])>; 2],
    }

    impl World {
        fn new(dirs_max: usize, from_before: bool) -> World {
            let before = from_before.then_some(Level::Durable);
            let names = OwedNames { dirs_max, ..OwedNames::new(before) };
            let lacking = [u32::from(from_before); 2];
            World { names, in_flight: [false; 2], lacking, syncs: [None; 2] }
        }

        /// Returns whether this step can come next.
        fn step(&mut self, step: usize) -> bool {
            let at = step % 2;
            match step / 2 {
                0 if !self.in_flight[at] => {
                    self.in_flight[at] = true;
                    self.names.owe(DIRS[at], Level::Durable);
                }
                1 if self.in_flight[at] => {
                    self.in_flight[at] = false;
                    self.lacking[at] += 1;
                }
                2 if self.syncs[at].is_none() => {
                    let owed = self.names.owed(DIRS[at]);
                    let is_told = owed.promised() > Some(Level::Local);
                    assert!(is_told || self.lacking[at] == 0, "a name would stay here: {self:?}");
                    let was_quiet = match owed.is_anywhere() {
                        true => self.in_flight == [false; 2],
                        false => !self.in_flight[at],
                    };
                    self.syncs[at] = is_told.then_some((owed, was_quiet, self.lacking));
                }
                3 => {
                    let Some((owed, was_quiet, brought)) = self.syncs[at].take() else {
                        return false;
                    };
                    self.names.are_at_server(DIRS[at], owed, was_quiet);
                    for (lacking, brought) in self.lacking.iter_mut().zip(brought) {
                        *lacking = lacking.saturating_sub(brought);
                    }
                    // Another fsync may bring the same ones.
                    for (_, _, other) in self.syncs.iter_mut().flatten() {
                        other.iter_mut().zip(brought).for_each(|(o, b)| *o = o.saturating_sub(b));
                    }
                }
                _ => return false,
            }
            true
        }
    }

    /// Over all orders of up to eight steps of two changes and two fsyncs: no fsync that begins
    /// after a change was answered leaves its name on this machine, and with nothing in flight a
    /// second fsync has nothing to bring.
    #[test]
    fn no_fsync_takes_what_another_change_owes_for_its_own() {
        fn walk(world: &World, depth: u32) -> u64 {
            let mut count = 0;
            for step in 0..8 {
                let mut next = world.clone();
                if next.step(step) {
                    count += 1 + if depth > 1 { walk(&next, depth - 1) } else { 0 };
                }
            }
            let mut still = world.clone();
            if still.in_flight == [false; 2] && still.syncs.iter().all(Option::is_none) {
                for step in [4, 6, 5, 7] {
                    still.step(step);
                }
                let left = DIRS.map(|dir| still.names.owed(dir).promised());
                assert_eq!(left, [None; 2], "it was brought: {world:?}");
            }
            count
        }
        for (dirs_max, from_before) in [(2, false), (1, false), (2, true), (1, true)] {
            let count = walk(&World::new(dirs_max, from_before), 8);
            assert_eq!(count, (1..=8).map(|len| 4_u64.pow(len)).sum());
        }
    }

    #[test]
    fn the_strongest_promise_counts() {
        let mut names = OwedNames::new(None);
        assert_eq!(names.owed(DIRS[0]).promised(), None);
        names.owe(DIRS[0], Level::Durable);
        names.owe(DIRS[0], Level::Shared);
        let owed = DIRS.map(|dir| names.owed(dir).promised());
        assert_eq!(owed, [Some(Level::Durable), None]);
        for dir in 0..=DIRECTORIES_MAX as u64 {
            names.owe(Ino(dir), Level::Shared);
        }
        assert!(names.dirs.len() <= DIRECTORIES_MAX);
        assert_eq!(names.owed(Ino(1 << 40)).promised(), Some(Level::Durable), "any of them");
        assert_eq!(
            OwedNames::new(Some(Level::Archive)).owed(DIRS[0]).promised(),
            Some(Level::Archive)
        );
    }
}

//! Whether the readers of a directory make progress: a pure state machine over the positions that
//! they are given.
//!
//! A server whose cookies repeat in a cycle would be listed for ever; from cached pages, without
//! even being asked. A reader is identified by the position at which it continues. Brent's
//! algorithm watches the path of each: it remembers one position, a later one each time the path
//! has become twice as long, so that a cyclic path returns to it. A reader that seeks begins
//! another path, so nothing is mistaken for a cycle.

/// Most readers of a directory that are watched. With more of them, the reader that was watched
/// longest is watched from its present position on.
const READERS_MAX: usize = 4;

/// The paths of the readers that list a directory just now.
#[derive(Debug, Default)]
pub(crate) struct Walks {
    /// None, most of the time.
    readers: Option<Box<Readers>>,
}

#[derive(Debug, Default)]
struct Readers {
    ways: [Option<Way>; READERS_MAX],
    /// Which is given up for the next reader.
    oldest: usize,
}

/// The path of one reader: the positions that it was given.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Where the next entries are to be asked for.
    at: u64,
    /// A position that was passed.
    remembered: u64,
    /// Steps since then.
    steps: u64,
    /// Steps after which another position is remembered.
    steps_max: u64,
}

/// A listing has come back to where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GoesRound;

impl Walks {
    /// A reader that was at `from` was given entries up to the position `to`; `None`: there are no
    /// more.
    ///
    /// # Errors
    /// If its positions form a cycle. The reader has been given some entries more than once by
    /// then.
    pub(crate) fn step(&mut self, from: u64, to: Option<u64>) -> Result<(), GoesRound> {
        let readers = self.readers.get_or_insert_default();
        let is_his = |way: &Option<Way>| way.is_some_and(|way| from != 0 && way.at == from);
        let slot = readers.ways.iter().position(is_his);
        let Some(to) = to else {
            if let Some(slot) = slot {
                readers.ways[slot] = None;
            }
            if readers.ways.iter().all(Option::is_none) {
                self.readers = None;
            }
            return Ok(());
        };
        let slot = slot.unwrap_or_else(|| readers.slot());
        let begun = Way { at: from, remembered: from, steps: 0, steps_max: 1 };
        let way = readers.ways[slot].get_or_insert(begun);
        // A reader that is led back to the beginning, position 0, cannot be distinguished from one
        // that starts there.
        if [way.remembered, from, 0].contains(&to) {
            readers.ways[slot] = None;
            return Err(GoesRound);
        }
        debug_assert!(way.steps < way.steps_max, "a position is remembered before more steps");
        way.at = to;
        way.steps += 1;
        if way.steps == way.steps_max {
            *way = Way { at: to, remembered: to, steps: 0, steps_max: 2 * way.steps_max };
        }
        Ok(())
    }
}

impl Readers {
    /// An empty slot for a new reader.
    fn slot(&mut self) -> usize {
        if let Some(free) = self.ways.iter().position(Option::is_none) {
            return free;
        }
        let slot = self.oldest;
        self.oldest = (slot + 1) % READERS_MAX;
        self.ways[slot] = None;
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POSITIONS: u64 = 5;

    /// Of all servers that lead from each of [`POSITIONS`] to another one or to the end: the
    /// position to which one leads.
    fn next(server: u64, position: u64) -> Option<u64> {
        let next = server / (POSITIONS + 1).pow(u32::try_from(position).unwrap()) % (POSITIONS + 1);
        Some(next).filter(|next| *next < POSITIONS)
    }

    /// Whether a reader that starts at the beginning reaches the end.
    fn has_end(server: u64) -> bool {
        let mut at = Some(0);
        for _ in 0..=POSITIONS {
            at = at.and_then(|at| next(server, at));
        }
        at.is_none()
    }

    /// Whatever the server's positions, and however many readers take turns: a reader in a cycle
    /// gets an error after at most three times around, and no other reader does.
    #[test]
    fn every_small_server_is_listed_to_its_end_or_told() {
        for server in 0..(POSITIONS + 1).pow(u32::try_from(POSITIONS).unwrap()) {
            for readers in 1..=READERS_MAX {
                let (mut walks, mut at) = (Walks::default(), vec![Some(0); readers]);
                let mut told = 0;
                for _ in 0..4 * POSITIONS {
                    for reader in &mut at {
                        let Some(from) = *reader else { continue };
                        let to = next(server, from);
                        let step = walks.step(from, to);
                        told += usize::from(step.is_err());
                        *reader = to.filter(|_| step.is_ok());
                    }
                }
                let expected = if has_end(server) { 0 } else { readers };
                assert!(at.iter().all(Option::is_none), "{server}, {readers} readers: {at:?}");
                assert_eq!(told, expected, "{server}, {readers} readers");
            }
        }
    }

    /// A reader that seeks, and reads again and again, is not mistaken for one in a cycle.
    #[test]
    fn a_reader_that_seeks_back_is_told_nothing() {
        let mut walks = Walks::default();
        for _ in 0..100 {
            for (from, to) in [(0, 10), (10, 20), (10, 20), (20, 30), (5, 20), (0, 30)] {
                assert_eq!(walks.step(from, Some(to)), Ok(()));
            }
        }
    }

    /// Nothing is remembered of a directory that no process reads.
    #[test]
    fn the_end_is_forgotten() {
        let mut walks = Walks::default();
        for (from, to) in [(0, Some(1)), (0, Some(1)), (1, Some(2)), (1, None), (2, None)] {
            walks.step(from, to).unwrap();
        }
        assert!(walks.readers.is_none());
        assert_eq!(size_of::<Walks>(), size_of::<usize>());
    }
}

//! The locks that an open of ours has at the server, and the steps that change them.
//!
//! A server unlocks exactly what was locked: a range that was locked in one piece is unlocked in
//! one (MS-SMB2, 3.3.5.14.1; MS-FSA, 2.1.5.9). And an exclusive lock is refused on a range that the
//! same open has locked, in either mode, while a shared one goes on top of both (MS-FSA, 2.1.5.8).
//! In POSIX each byte is locked as the last call said. So this module records what is held as it
//! was locked, piece by piece, beside what is wanted, and a change takes up to three steps:
//!
//! 1. Lock what was not locked, and every part of a removed piece that is to be shared: on top of
//!    what is held. All of it or nothing: a change that is refused here has changed nothing.
//! 2. Unlock, each exactly as it was locked, the pieces that do not stay as they are.
//! 3. Lock what is to be exclusive of those that were shared.
//!
//! An exclusive piece stays whole as long as some of it is to be exclusive: the rest of it could
//! not be locked again before the whole was unlocked, and another client that waits for it would
//! get in there. So of such a piece more is locked than is wanted. Between 2 and 3 what is made
//! exclusive is not locked: the protocol has no step from one to the other, but both travel in one
//! message. If another client gets in there all the same, step 3 is refused. The shared locks are
//! then taken again; those that cannot be are lost.

use larder_vfs::{LOCK_END, LockChange, LockMap, LockMode};
use std::ops::Range;

/// A range that was locked in one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) range: Range<u64>,
    pub(super) mode: LockMode,
}

/// The locks of an open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pieces {
    /// The ranges that are to be locked.
    wanted: LockMap,
    /// The ranges that are locked: pieces that do not overlap, and include all that are to be
    /// locked.
    held: Vec<Piece>,
}

/// The steps of a change, in this order. Each is one request, if it is not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Steps {
    /// To lock in addition to the held pieces.
    pub(super) first: Vec<Piece>,
    /// To unlock, exactly as they were locked.
    pub(super) unlock: Vec<Piece>,
    /// To lock in place of what was unlocked.
    pub(super) again: Vec<Piece>,
    /// The pieces that are held after all steps.
    pub(super) after: Pieces,
}

impl Pieces {
    pub(super) fn is_empty(&self) -> bool {
        debug_assert_eq!(self.held.is_empty(), self.wanted.is_empty());
        self.held.is_empty()
    }

    /// All of them.
    pub(super) fn all(&self) -> &[Piece] {
        &self.held
    }

    /// The parts of `range` that are not locked at all: whether those are available is not known.
    pub(super) fn unknown(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut free = vec![range.clone()];
        for piece in &self.held {
            free = free.into_iter().flat_map(|part| without(&part, &piece.range)).collect();
        }
        free
    }

    /// The steps that make `changes`, which do not overlap.
    pub(super) fn steps(&self, changes: &[LockChange]) -> Steps {
        let mut steps = Steps::default();
        let after = &mut steps.after;
        after.wanted = self.wanted.clone();
        for change in changes {
            after.wanted.set(change.range.clone(), change.mode);
        }
        for piece in &self.held {
            let parts: Vec<_> = after.wanted.within(&piece.range).collect();
            let is_exclusive = parts.iter().any(|(_, mode)| *mode == LockMode::Exclusive);
            if parts == [(piece.range.clone(), piece.mode)]
                || (is_exclusive && piece.mode == LockMode::Exclusive)
            {
                after.held.push(piece.clone());
                continue;
            }
            steps.unlock.push(piece.clone());
            for (range, mode) in parts {
                let part = Piece { range, mode };
                let step = match mode {
                    LockMode::Shared => &mut steps.first,
                    LockMode::Exclusive => &mut steps.again,
                };
                step.push(part.clone());
                after.held.push(part);
            }
        }
        for change in changes {
            let Some(mode) = change.mode else { continue };
            for range in self.unknown(&change.range) {
                let part = Piece { range, mode };
                steps.first.push(part.clone());
                after.held.push(part);
            }
        }
        after.held.sort_unstable_by_key(|piece| piece.range.start);
        steps
    }

    /// The wanted ranges without those in `ranges`, which are to be locked again.
    pub(super) fn without(&self, ranges: &[LockChange]) -> Pieces {
        debug_assert!(ranges.iter().all(|change| change.mode.is_none()), "{ranges:?}");
        self.steps(ranges).after.anew()
    }

    /// The pieces to be locked through another open.
    pub(super) fn anew(&self) -> Pieces {
        let held = self.wanted.iter().map(|(range, mode)| Piece { range, mode }).collect();
        Pieces { wanted: self.wanted.clone(), held }
    }
}

/// `range` without `taken`: up to two parts.
fn without(range: &Range<u64>, taken: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let before = range.start..range.end.min(taken.start);
    let after = range.start.max(taken.end)..range.end;
    let whole = range.end <= taken.start || taken.end <= range.start;
    let parts = if whole { [range.clone(), LOCK_END..LOCK_END] } else { [before, after] };
    parts.into_iter().filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODES: [Option<LockMode>; 3] = [None, Some(LockMode::Shared), Some(LockMode::Exclusive)];

    /// Locks of two opens as MS-FSA has them.
    #[derive(Clone, Default)]
    struct Server(Vec<(u8, Piece)>);

    impl Server {
        /// All of it or nothing, as MS-SMB2, 3.3.5.14.2, has it.
        fn lock(&mut self, open: u8, pieces: &[Piece]) -> bool {
            let before = self.0.len();
            for piece in pieces {
                let conflicts = |(holder, held): &(u8, Piece)| {
                    let overlaps =
                        held.range.start < piece.range.end && piece.range.start < held.range.end;
                    overlaps
                        && match (held.mode, piece.mode) {
                            (LockMode::Shared, LockMode::Shared) => false,
                            // A shared lock goes on top of an exclusive one of the same open.
                            (LockMode::Exclusive, LockMode::Shared) => *holder != open,
                            (_, LockMode::Exclusive) => true,
                        }
                };
                if self.0.iter().any(conflicts) {
                    self.0.truncate(before);
                    return false;
                }
                self.0.push((open, piece.clone()));
            }
            true
        }

        /// Exactly as it was locked; the exclusive one of two.
        fn unlock(&mut self, open: u8, pieces: &[Piece]) {
            for piece in pieces {
                let is_it = |mode| {
                    move |(holder, held): &(u8, Piece)| {
                        *holder == open && held.range == piece.range && held.mode == mode
                    }
                };
                let exclusive = self.0.iter().position(is_it(LockMode::Exclusive));
                let found = exclusive.or_else(|| self.0.iter().position(is_it(LockMode::Shared)));
                let found = found.expect("it was locked so");
                assert_eq!(self.0[found].1.mode, piece.mode, "of two, another one is unlocked");
                self.0.remove(found);
            }
        }

        fn of(&self, open: u8) -> Vec<Piece> {
            let mut pieces: Vec<_> = self
                .0
                .iter()
                .filter(|(holder, _)| *holder == open)
                .map(|(_, it)| it.clone())
                .collect();
            pieces.sort_unstable_by_key(|piece| piece.range.start);
            pieces
        }
    }

    /// What is wanted is held; more only as part of a piece of which some must be exclusive.
    fn check(pieces: &Pieces, wanted: &LockMap) {
        assert_eq!(pieces.wanted, *wanted);
        let is_had = |(range, mode): (Range<u64>, LockMode)| {
            let has = |piece: &Piece| piece.range.contains(&range.start) && piece.mode >= mode;
            (range.start..range.end).all(|byte| {
                pieces.held.iter().any(|piece| piece.range.contains(&byte) && piece.mode >= mode)
            }) && pieces.held.iter().any(has)
        };
        assert!(wanted.iter().all(is_had), "{pieces:?}");
        for piece in &pieces.held {
            let parts: Vec<_> = wanted.within(&piece.range).collect();
            let is_whole = parts == [(piece.range.clone(), piece.mode)];
            let exclusive = parts.iter().any(|(_, mode)| *mode == LockMode::Exclusive);
            assert!(is_whole || (exclusive && piece.mode == LockMode::Exclusive), "{pieces:?}");
        }
    }

    /// What is exclusive before a change and after it is never unlocked.
    fn check_no_gap(before: &Pieces, steps: &Steps) {
        for byte in 0..8 {
            let had = |pieces: &Pieces| pieces.wanted.at(byte) == Some(LockMode::Exclusive);
            if had(before) && had(&steps.after) {
                assert!(!steps.unlock.iter().any(|piece| piece.range.contains(&byte)), "{steps:?}");
            }
        }
    }

    fn all_changes(bytes: u64) -> Vec<LockChange> {
        let ranges = (0..bytes).flat_map(|start| (start + 1..=bytes).map(move |end| start..end));
        ranges
            .flat_map(|range| MODES.map(|mode| LockChange { range: range.clone(), mode }))
            .collect()
    }

    /// Every sequence of three changes of a file of four bytes, without other clients: each byte is
    /// locked at least as the last change said, and the server has what is recorded, piece by
    /// piece.
    #[test]
    fn every_sequence_of_changes_unlocks_exactly_what_was_locked() {
        let changes = all_changes(4);
        let mut count = 0;
        for first in &changes {
            for second in &changes {
                for third in &changes {
                    let (mut server, mut pieces) = (Server::default(), Pieces::default());
                    let mut map = LockMap::default();
                    for change in [first, second, third] {
                        let steps = pieces.steps(std::slice::from_ref(change));
                        assert!(server.lock(1, &steps.first), "{steps:?}");
                        server.unlock(1, &steps.unlock);
                        assert!(server.lock(1, &steps.again), "{steps:?}");
                        check_no_gap(&pieces, &steps);
                        pieces = steps.after;
                        map.set(change.range.clone(), change.mode);
                        check(&pieces, &map);
                        assert_eq!(server.of(1), pieces.held);
                    }
                    count += 1;
                }
            }
        }
        assert_eq!(count, 27_000);
    }

    /// Beside another client's lock: its bytes are never locked here, a refusal in the first step
    /// changes nothing, and a range that was exclusive and stays so is never unlocked for a moment.
    #[test]
    fn a_change_that_is_refused_at_once_changes_nothing() {
        let (changes, mut refused) = (all_changes(3), 0);
        for other in all_changes(3).into_iter().filter(|other| other.mode.is_some()) {
            let theirs = [Piece { range: other.range, mode: other.mode.unwrap() }];
            for first in &changes {
                for second in &changes {
                    let mut server = Server::default();
                    assert!(server.lock(2, &theirs));
                    let mut pieces = Pieces::default();
                    for change in [first, second] {
                        let (steps, before) =
                            (pieces.steps(std::slice::from_ref(change)), server.of(1));
                        if !server.lock(1, &steps.first) {
                            assert_eq!(server.of(1), before);
                            refused += 1;
                            continue;
                        }
                        server.unlock(1, &steps.unlock);
                        if server.lock(1, &steps.again) {
                            pieces = steps.after;
                            continue;
                        }
                        // Only bytes that were shared can conflict with a lock that another client
                        // had before.
                        refused += 1;
                        server.unlock(1, &steps.first);
                        assert!(server.lock(1, &steps.unlock), "taken back");
                    }
                    assert_eq!(server.of(1), pieces.held);
                }
            }
        }
        assert!(refused > 1000, "{refused}");
    }

    #[test]
    fn what_stays_shared_is_not_let_go_for_a_moment() {
        let shared = LockMode::Shared;
        for (change, mode) in [(3..5, None), (0..10, Some(shared)), (5..20, Some(shared))] {
            for had in [LockMode::Shared, LockMode::Exclusive] {
                let held = LockChange { range: 0..10, mode: Some(had) };
                let pieces = Pieces::default().steps(&[held]).after;
                let steps = pieces.steps(&[LockChange { range: change.clone(), mode }]);
                assert_eq!(steps.again, [], "{steps:?}");
            }
        }
    }

    /// Ranges that were held only as part of an exclusive piece are gone when all is unlocked.
    #[test]
    fn what_was_held_beyond_what_is_wanted_goes_with_the_rest() {
        let change = |range, mode| [LockChange { range, mode }];
        let exclusive = Some(LockMode::Exclusive);
        let pieces = Pieces::default().steps(&change(0..30, exclusive)).after;
        let pieces = pieces.steps(&change(10..20, None)).after;
        assert_eq!(pieces.all(), [Piece { range: 0..30, mode: LockMode::Exclusive }]);
        assert_eq!(pieces.anew().all().len(), 2, "by another open it is exact");
        let pieces = pieces.steps(&change(10..20, Some(LockMode::Shared))).after;
        let left = pieces.steps(&[change(0..10, None), change(20..30, None)].concat());
        assert_eq!(left.after.all(), [Piece { range: 10..20, mode: LockMode::Shared }]);
        assert!(left.after.steps(&change(10..20, None)).after.is_empty());
    }
}

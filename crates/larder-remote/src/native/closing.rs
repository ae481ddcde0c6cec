//! Closes go to the server together: one call takes all that come within a short time, because no
//! caller waits for one, and each costs the server as much as any other call. A file that loses its
//! last name is another matter: it is gone with its last close. So closes that wait go together
//! with a REMOVE, and the close of a file without names waits for no other.
//!
//! [`Waiting`] decides, as a function of times and events; a task of `opens` carries it out.
//!
//! Invariants:
//! - An open that the server knows is in one call at most, and in one unless the session has ended
//!   or begun another life first: the server has then closed it.
//! - One call at a time, in the order of the closes. What comes while it is under way waits for the
//!   next one.
//! - At most as many wait as there were opens at the server.

use std::time::{Duration, Instant};

use larder_wire::meta::CLOSES_MAX;
use larder_wire::meta::words::{FileId, OpenId};

/// Longest wait of a close for others. A removed file's blocks are free so much later.
const GATHER: Duration = Duration::from_millis(20);
/// As many closes do not wait for others.
const ENOUGH: usize = 64;

/// An open, as the server knows it in a life of the session.
pub(super) type Known = (u64, OpenId);

/// The closes that the server was not told of yet.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    opens: Vec<(FileId, Known)>,
    /// How many there were, with these.
    added: u64,
    /// When the first of them was closed.
    since: Option<Instant>,
    /// Somebody waits for them.
    is_hurried: bool,
    /// A task sends them.
    is_attended: bool,
    /// The session is to end: that closes everything.
    is_over: bool,
}

/// What the task is to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Wait(Duration),
    Send(Vec<OpenId>),
    /// Nothing waits: the task ends.
    End,
}

impl Waiting {
    /// An open was closed. Returns whether there are enough.
    pub(super) fn add(&mut self, now: Instant, file: FileId, open: Known) -> bool {
        if self.is_over {
            return false;
        }
        self.opens.push((file, open));
        self.added += 1;
        self.since.get_or_insert(now);
        self.opens.len() >= ENOUGH
    }

    /// Sends what waits at once. Returns whether anything does.
    pub(super) fn hurry(&mut self) -> bool {
        self.is_hurried = !self.opens.is_empty();
        self.is_hurried
    }

    /// Whether a close of this file waits.
    pub(super) fn has(&self, file: FileId) -> bool {
        self.opens.iter().any(|(of, _)| *of == file)
    }

    /// How many closes there were.
    pub(super) fn added(&self) -> u64 {
        self.added
    }

    /// Whether a task must begin to send them: the caller begins it.
    pub(super) fn attend(&mut self) -> bool {
        !self.opens.is_empty() && !std::mem::replace(&mut self.is_attended, true)
    }

    /// What the task is to do next, in this life of the session.
    pub(super) fn step(&mut self, now: Instant, life: u64) -> Step {
        // The server has forgotten those of an earlier life.
        self.opens.retain(|(_, (of, _))| *of == life);
        let since = self.since.filter(|_| !self.opens.is_empty());
        let Some(since) = since else {
            (self.since, self.is_hurried, self.is_attended) = (None, false, false);
            return Step::End;
        };
        let left = (since + GATHER).saturating_duration_since(now);
        if left.is_zero() || self.opens.len() >= ENOUGH || self.is_hurried {
            return Step::Send(self.take());
        }
        Step::Wait(left)
    }

    /// How many closes are not in it any more.
    pub(super) fn taken(&self) -> u64 {
        self.added - self.opens.len() as u64
    }

    /// Those for one call. What is left has waited long enough.
    fn take(&mut self) -> Vec<OpenId> {
        let count = self.opens.len().min(CLOSES_MAX);
        let taken = self.opens.drain(..count).map(|(_, (_, open))| open).collect();
        if self.opens.is_empty() {
            (self.since, self.is_hurried) = (None, false);
        }
        taken
    }

    /// No more is sent: returns what waits.
    pub(super) fn end(&mut self, life: u64) -> Vec<OpenId> {
        self.is_over = true;
        self.since = None;
        let opens = std::mem::take(&mut self.opens).into_iter();
        opens.filter(|(_, (of, _))| *of == life).map(|(_, (_, open))| open).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const FILE: FileId = FileId(7);

    fn ids(opens: &[u64]) -> Vec<OpenId> {
        opens.iter().map(|open| OpenId(*open)).collect()
    }

    #[test]
    fn closes_of_a_short_time_are_one_call() {
        let (mut waiting, begin) = (Waiting::default(), Instant::now());
        let at = |millis| begin + Duration::from_millis(millis);
        assert!(!waiting.add(at(0), FILE, (1, OpenId(1))));
        assert!(waiting.attend() && !waiting.attend());
        assert_eq!(waiting.step(at(0), 1), Step::Wait(GATHER));
        assert!(!waiting.add(at(15), FILE, (1, OpenId(2))));
        assert_eq!(waiting.step(at(15), 1), Step::Wait(Duration::from_millis(5)));
        assert_eq!(waiting.step(at(20), 1), Step::Send(ids(&[1, 2])));
        // While the call was under way.
        assert!(!waiting.add(at(22), FILE, (1, OpenId(3))));
        assert!(!waiting.attend());
        assert_eq!(waiting.step(at(30), 1), Step::Wait(Duration::from_millis(12)));
        assert_eq!(waiting.step(at(50), 1), Step::Send(ids(&[3])));
        assert_eq!(waiting.step(at(50), 1), Step::End);
        waiting.add(at(60), FILE, (1, OpenId(4)));
        assert!(waiting.attend(), "the task has ended");
        // Somebody waits for what there is, and not for what comes later.
        waiting.is_hurried = true;
        assert_eq!(waiting.step(at(60), 1), Step::Send(ids(&[4])));
        waiting.add(at(61), FILE, (1, OpenId(5)));
        assert_eq!(waiting.step(at(61), 1), Step::Wait(GATHER));
        assert_eq!(waiting.taken(), 4);
    }

    #[test]
    fn enough_do_not_wait_and_no_call_is_too_long() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        let enough: Vec<bool> =
            (0..ENOUGH as u64).map(|open| waiting.add(now, FILE, (1, OpenId(open)))).collect();
        assert_eq!(enough.iter().position(|enough| *enough), Some(ENOUGH - 1));
        assert_eq!(waiting.step(now, 1), Step::Send(ids(&(0..ENOUGH as u64).collect::<Vec<_>>())));
        for open in 0..CLOSES_MAX as u64 + 5 {
            waiting.add(now, FILE, (1, OpenId(open)));
        }
        let Step::Send(first) = waiting.step(now, 1) else { panic!("many wait") };
        assert_eq!(first.len(), CLOSES_MAX);
        assert_eq!(waiting.step(now, 1), Step::Wait(GATHER), "a few are left");
        assert!(matches!(waiting.step(now + GATHER, 1), Step::Send(rest) if rest.len() == 5));
    }

    /// Every sequence of events: what was closed is sent once, unless the life that knew it ended.
    #[test]
    fn every_close_is_sent_once_in_its_life() {
        const EVENTS: u32 = 6;
        for script in 0..EVENTS.pow(7) {
            let (mut waiting, mut now, mut life) = (Waiting::default(), Instant::now(), 1);
            let (mut next, mut due, mut sent) = (0, BTreeSet::new(), BTreeSet::new());
            let (mut has_task, mut is_over) = (false, false);
            let mut run =
                |waiting: &mut Waiting, now, life, due: &mut BTreeSet<OpenId>| match waiting
                    .step(now, life)
                {
                    Step::Send(opens) => {
                        for open in opens {
                            assert!(due.remove(&open), "{script}: {open:?} is not due");
                            assert!(sent.insert(open), "{script}: {open:?} twice");
                        }
                        true
                    }
                    Step::Wait(time) => {
                        assert!(!time.is_zero() && time <= GATHER);
                        true
                    }
                    Step::End => false,
                };
            for at in 0..7 {
                match script / EVENTS.pow(at) % EVENTS {
                    0 => {
                        next += 1;
                        waiting.add(now, FILE, (life, OpenId(next)));
                        if !is_over {
                            due.insert(OpenId(next));
                        }
                        has_task |= waiting.attend();
                    }
                    1 => now += GATHER / 2,
                    2 => {
                        // The server was restarted.
                        life += 1;
                        due.clear();
                    }
                    3 if has_task => has_task = run(&mut waiting, now, life, &mut due),
                    4 if !is_over => {
                        is_over = true;
                        let left: BTreeSet<OpenId> = waiting.end(life).into_iter().collect();
                        assert_eq!(left, std::mem::take(&mut due), "{script}");
                    }
                    5 => waiting.is_hurried = !waiting.opens.is_empty(),
                    _ => {}
                }
                assert_eq!(waiting.taken() + waiting.opens.len() as u64, waiting.added);
            }
            now += GATHER;
            while has_task {
                has_task = run(&mut waiting, now, life, &mut due);
            }
            assert!(due.is_empty() && waiting.opens.is_empty(), "{script}: {due:?}");
        }
    }
}

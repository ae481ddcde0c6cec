//! The queue of the engine: the due times of all files, and how many are sent at once.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use larder_io::{Alarm, Clock};
use larder_vfs::Ino;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::schedule::Schedule;

/// Short files that are sent at the same time in the background: each takes a few round trips.
const FILES_AT_ONCE: usize = 64;
/// A file takes one of these places for each of so many bytes that are unsent.
const PLACE_BYTES: u64 = 128 << 10;
/// Most places that a file takes: so long files are sent eight at a time.
const PLACES_MAX: u64 = 8;

/// The queue, and the alarm of the engine.
pub(crate) struct Queue {
    times: Mutex<Times>,
    alarm: Alarm,
    permits: Semaphore,
}

impl Default for Queue {
    fn default() -> Queue {
        let (times, alarm) = (Mutex::default(), Alarm::default());
        Queue { times, alarm, permits: Semaphore::new(FILES_AT_ONCE) }
    }
}

impl Queue {
    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until then, or until a file is due earlier.
    pub(super) async fn sleep_until(&self, clock: &dyn Clock, until: Instant) {
        self.alarm.sleep_until(clock, until).await;
    }

    /// Waits until another file with so many unsent bytes may be sent.
    pub(super) async fn permit(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        let places = bytes.div_ceil(PLACE_BYTES).clamp(1, PLACES_MAX);
        self.permits.acquire_many(u32::try_from(places).expect("few places")).await.ok()
    }

    /// Follows a file's schedule. To be called with the lock of its node.
    pub(super) fn replan(&self, ino: Ino, before: Schedule, after: Schedule) {
        if before == after {
            return;
        }
        let due = self.times().replan(ino, before, after);
        if let Some(due) = due {
            self.alarm.set(due);
        }
    }

    /// Takes the files that are due, and returns the next due time.
    pub(super) fn take_due(&self, now: Instant) -> (Vec<Ino>, Option<Instant>) {
        self.times().take_due(now)
    }
}

/// The times of all files that have one.
#[derive(Clone, Debug, Default)]
struct Times(BTreeSet<(Instant, Ino)>);

impl Times {
    /// Updates the queue with a file's schedule. Returns its due time.
    fn replan(&mut self, ino: Ino, before: Schedule, after: Schedule) -> Option<Instant> {
        if let Schedule::Dirty { due } = before {
            self.0.remove(&(due, ino));
        }
        let Schedule::Dirty { due } = after else { return None };
        let is_new = self.0.insert((due, ino));
        debug_assert!(is_new, "a file has one time in the queue");
        Some(due)
    }

    /// Takes the files that are due, and returns the next due time.
    fn take_due(&mut self, now: Instant) -> (Vec<Ino>, Option<Instant>) {
        let mut due = Vec::new();
        while let Some((at, ino)) = self.0.first().copied().filter(|(at, _)| *at <= now) {
            self.0.remove(&(at, ino));
            due.push(ino);
        }
        (due, self.0.first().map(|(at, _)| *at))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder_io::SimClock;
    use larder_vfs::{Cred, Error, Result, Time};

    use super::*;
    use crate::write::LocalEnd;
    use crate::write::unsent::{Context, Event, Unsent};

    const AGE: Duration = Duration::from_secs(30);
    const END: LocalEnd = LocalEnd { size: 7, mtime: Time { sec: 1, nsec: 0 } };

    /// Two files, and what each thread does under one lock as one step: callers and write-backs
    /// hold a node's lock, under which they take the queue's; the engine's task takes the queue's
    /// alone when it takes what is due, and a node's later.
    #[derive(Clone)]
    struct World {
        files: [Unsent; 2],
        times: Times,
        /// Taken from the queue; their nodes have not been notified yet.
        taken: Vec<Ino>,
        /// The engine sleeps until then if nothing wakes it; `None`: it has not looked yet, or the
        /// queue was empty.
        sleeps_until: Option<Instant>,
        /// It was woken, and has not looked yet.
        is_woken: bool,
        now: Instant,
        sending: [bool; 2],
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Write,
        Fsync,
        FailedClose,
        TooMuch,
        SendEnds(Result<()>),
    }

    const STEPS: [Step; 7] = [
        Step::Write,
        Step::Fsync,
        Step::FailedClose,
        Step::TooMuch,
        Step::SendEnds(Ok(())),
        Step::SendEnds(Err(Error::TimedOut)),
        Step::SendEnds(Err(Error::NoSpace)),
    ];

    impl World {
        fn new() -> World {
            World {
                files: [Unsent::default(), Unsent::default()],
                times: Times::default(),
                taken: Vec::new(),
                sleeps_until: None,
                is_woken: false,
                now: SimClock::new().instant(),
                sending: [false; 2],
            }
        }

        /// As `Core::apply`.
        fn apply(&mut self, at: usize, event: Event<'_>) {
            let file = &mut self.files[at];
            let before = file.schedule();
            let context = Context { kernel_writes: false, now: self.now, age: AGE, is_away: false };
            let actions = file.apply(event, context);
            let after = file.schedule();
            if before != after
                && let Some(due) = self.times.replan(Ino(at as u64), before, after)
            {
                // As an alarm does.
                self.is_woken |= self.sleeps_until.is_none_or(|until| due < until);
            }
            if actions.send {
                assert!(!std::mem::replace(&mut self.sending[at], true), "one at a time");
            }
        }

        fn engine_looks(&mut self) {
            self.is_woken = false;
            let (due, next) = self.times.take_due(self.now);
            self.taken.extend(due);
            self.sleeps_until = next;
        }

        fn step(&mut self, at: usize, step: Step) {
            let writer = Cred::root();
            let is_unsent = self.files[at].may_exist(false);
            match step {
                Step::Write => {
                    let (end, is_over_another) = (END, false);
                    self.apply(at, Event::Written { end, writer: &writer, is_over_another });
                }
                Step::Fsync if is_unsent => self.apply(at, Event::Sent),
                Step::FailedClose => {
                    self.apply(at, Event::Left { wait: crate::write::RETRY_AFTER });
                }
                Step::TooMuch => self.apply(at, Event::TooMuch),
                Step::SendEnds(sent) if std::mem::take(&mut self.sending[at]) => {
                    if sent.is_ok() {
                        self.apply(at, Event::Sent);
                    }
                    self.apply(at, Event::Ended { sent, is_written: true });
                }
                Step::Fsync | Step::SendEnds(_) => {}
            }
        }

        fn check(&self) {
            for (at, file) in self.files.iter().enumerate() {
                let ino = Ino(at as u64);
                let times: Vec<_> = self.times.0.iter().filter(|(_, of)| *of == ino).collect();
                match file.schedule() {
                    Schedule::Dirty { due } if times.is_empty() => {
                        assert!(self.taken.contains(&ino), "a time that nobody keeps: {due:?}");
                    }
                    Schedule::Dirty { due } => assert_eq!(times, [&(due, ino)]),
                    other => assert!(times.is_empty(), "{other:?}"),
                }
            }
            if let Some((first, _)) = self.times.0.first() {
                let wakes = self.sleeps_until.is_some_and(|until| until <= *first);
                assert!(wakes || self.is_woken, "the engine sleeps longer than until {first:?}");
            }
        }

        /// All possible next states: a step of a caller or a write-back for either file, the engine
        /// wakes, or it notifies a node that its data is due.
        fn nexts(&self) -> Vec<World> {
            let steps = STEPS.iter().flat_map(|step| [(0, *step), (1, *step)]);
            let mut nexts: Vec<World> = steps
                .map(|(at, step)| {
                    let mut next = self.clone();
                    next.step(at, step);
                    next
                })
                .collect();
            let woken = self.is_woken.then_some(self.now);
            for wakes_at in woken.into_iter().chain(self.sleeps_until) {
                let mut next = self.clone();
                next.now = next.now.max(wakes_at);
                next.engine_looks();
                nexts.push(next);
            }
            if let Some((ino, rest)) = self.taken.split_first() {
                let mut next = World { taken: rest.to_vec(), ..self.clone() };
                let at = usize::try_from(ino.0).expect("one of two");
                next.apply(at, Event::Due);
                nexts.push(next);
            }
            nexts
        }
    }

    /// However the steps of callers, write-backs and the engine's task interleave, each due time of
    /// a file is in the queue, or the engine is about to notify the file; and the engine wakes by
    /// the first of them.
    #[test]
    fn no_time_is_lost_between_threads() {
        fn walk(world: &World, depth: u32) -> u64 {
            let nexts = world.nexts();
            let mut count = nexts.len() as u64;
            for next in nexts {
                next.check();
                if depth > 1 {
                    count += walk(&next, depth - 1);
                }
            }
            count
        }
        let count = walk(&World::new(), 5);
        println!("{count} interleavings of up to five steps");
        assert!(count > 500_000);
    }
}

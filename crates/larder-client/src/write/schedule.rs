//! When unsent bytes of one file are sent without a waiting caller: a pure state machine.
//!
//! Each file has a [`Schedule`]. The file's [`super::unsent::Unsent`] reports by an [`Event`] when
//! bytes become unsent, when none are left, and when a write-back of the engine has ended; the
//! [`super::engine`] carries out the resulting [`Action`]. Callers that wait (fsync, close, a
//! recalled lease) send their data themselves.

use std::time::{Duration, Instant};

/// Time between attempts to send what the server did not accept.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(5);

/// For how long bytes may be unsent if they never need to be at the server: longer than any mount
/// lasts (its end sends everything).
pub(crate) const UNLIMITED: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// What the kernel writes itself is found by comparing the local file, which must not take more
/// than this share of the time: one part in this many.
const COMPARING_SHARE: u32 = 20;

/// After which time the engine looks again at a file that the kernel writes itself. It is half of
/// the time for which bytes may be unsent: what is written just after a look is then at the server
/// in time, although it takes a while to get what was found before there, and then this.
fn look_within(age: Duration) -> Duration {
    if age < UNLIMITED { age / 2 } else { age }
}

/// How the unsent bytes of one file stand with the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Schedule {
    /// Nothing is unsent.
    #[default]
    Clean,
    /// Something is, or may be, and is sent at `due` at the latest.
    Dirty {
        /// The time.
        due: Instant,
    },
    /// The engine is sending.
    Sending,
    /// The engine tries no more: the next mount does.
    Kept,
}

/// When unsent bytes are sent; the earlier, the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// They are being sent.
    Now,
    /// After this time at the latest.
    In(Duration),
    /// When the mount ends.
    Unmount,
    /// The next mount sends it.
    NextMount,
}

impl Due {
    /// After this time at the latest.
    pub(crate) fn in_time(time: Duration) -> Due {
        // Some of it may be over.
        if time > UNLIMITED / 2 { Due::Unmount } else { Due::In(time) }
    }
}

impl std::fmt::Display for Due {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Due::In(time) => write!(f, "{}s", time.as_secs_f64().ceil()),
            Due::Now => f.write_str("now"),
            Due::Unmount => f.write_str("unmount"),
            Due::NextMount => f.write_str("next-mount"),
        }
    }
}

/// What happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Bytes are unsent, or the kernel has the local file to write.
    Dirtied,
    /// More is unsent than may wait.
    TooMuch,
    /// The time may have come.
    Due,
    /// Nothing is unsent any more.
    NoneLeft,
    /// No process that has the file open will send what is unsent.
    Left {
        /// For how long it may wait.
        wait: Duration,
    },
    /// The engine's write-back has ended.
    Ended(Outcome),
}

/// How a write-back of the engine ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing is unsent.
    Sent,
    /// More was written meanwhile.
    More,
    /// The kernel continues to write; finding what it had written took this long.
    KernelWrites(Duration),
    /// The server did not answer in time.
    Late,
    /// The server refuses it, and the file is open for writing: these processes will be told.
    RefusedToWriters,
    /// The server refuses it, and no process is left to be told.
    Refused,
    /// The mount ends.
    Ending,
}

/// What the caller must do after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing, until the schedule is due.
    Nothing,
    /// The engine begins a write-back, whose end is told by [`Event::Ended`].
    Send,
    /// Put what is unsent where people find it, outside the file.
    SetAside,
}

impl Schedule {
    /// When what is unsent is sent, for people; `None`: there is nothing.
    pub(super) fn due_at(self, now: Instant) -> Option<Due> {
        match self {
            Schedule::Clean => None,
            Schedule::Dirty { due } => Some(Due::in_time(due.saturating_duration_since(now))),
            Schedule::Sending => Some(Due::Now),
            Schedule::Kept => Some(Due::NextMount),
        }
    }

    /// The schedule after `event` at `now`, if bytes may stay unsent for `age`, and the resulting
    /// action.
    pub(crate) fn apply(self, event: Event, now: Instant, age: Duration) -> (Schedule, Action) {
        let within = |wait: Duration| (Schedule::Dirty { due: now + wait }, Action::Nothing);
        let (next, action) = match (self, event) {
            (Schedule::Sending, Event::Ended(outcome)) => match outcome {
                Outcome::Sent => (Schedule::Clean, Action::Nothing),
                Outcome::More => within(age),
                Outcome::KernelWrites(took) => within(look_within(age).max(took * COMPARING_SHARE)),
                Outcome::Late => within(RETRY_AFTER),
                // These processes may make room, or get the right to write; and their closes try
                // again.
                Outcome::RefusedToWriters => within(age),
                Outcome::Refused => (Schedule::Kept, Action::SetAside),
                Outcome::Ending => (Schedule::Kept, Action::Nothing),
            },
            (Schedule::Sending, _) | (_, Event::Ended(_)) => (self, Action::Nothing),
            (_, Event::NoneLeft) => (Schedule::Clean, Action::Nothing),
            (_, Event::TooMuch) => (Schedule::Sending, Action::Send),
            (Schedule::Dirty { due }, Event::Due) if due <= now => {
                (Schedule::Sending, Action::Send)
            }
            (Schedule::Dirty { due }, Event::Left { wait }) => within(wait.min(due - now)),
            (Schedule::Clean | Schedule::Kept, Event::Left { wait }) => within(wait),
            (Schedule::Clean, Event::Dirtied) => within(age),
            (_, Event::Dirtied | Event::Due) => (self, Action::Nothing),
        };
        debug_assert!(
            action != Action::Send || self != Schedule::Sending,
            "one write-back of a file at a time"
        );
        debug_assert!(
            match (self, next) {
                (Schedule::Dirty { due: before }, Schedule::Dirty { due }) =>
                    due <= before.max(now),
                _ => true,
            },
            "only the end of a write-back puts off what is due"
        );
        (next, action)
    }
}

#[cfg(test)]
mod tests {
    use larder_io::{Clock, SimClock};

    use super::*;

    const AGE: Duration = Duration::from_secs(30);

    /// A file with its writers and its server, as the schedule's callers see them.
    #[derive(Clone, Debug)]
    struct World {
        schedule: Schedule,
        now: Instant,
        /// Since when something is unsent.
        unsent: Option<Instant>,
        /// Since when there has been unsent data that the present write-back does not include.
        missed: Option<Instant>,
        sending: bool,
        given_up: bool,
        /// The kernel writes the file, which was looked at after the last event that made it due.
        is_looked_at: bool,
    }

    type Step = (&'static str, fn(&mut World));

    const STEPS: [Step; 12] = [
        ("a write", |world| {
            world.unsent.get_or_insert(world.now);
            if world.sending {
                world.missed.get_or_insert(world.now);
            }
            world.tell(Event::Dirtied);
        }),
        ("too much", |world| {
            if world.unsent.is_some() {
                world.tell(Event::TooMuch);
            }
        }),
        ("an fsync", |world| {
            (world.unsent, world.missed, world.is_looked_at) = (None, None, false);
            world.tell(Event::NoneLeft);
        }),
        ("a close that failed", |world| {
            if world.unsent.is_some() {
                world.tell(Event::Left { wait: RETRY_AFTER });
            }
        }),
        ("the time comes", |world| {
            if let Schedule::Dirty { due } = world.schedule {
                world.now = world.now.max(due);
                world.tell(Event::Due);
            }
        }),
        ("a wake that is too early", |world| world.tell(Event::Due)),
        ("some time", |world| {
            // The engine comes when a file is due.
            let Schedule::Dirty { due } = world.schedule else { return };
            world.now = due.min(world.now + Duration::from_secs(10));
        }),
        ("sent", |world| {
            world.unsent = world.missed;
            let more = world.unsent.is_some();
            world.end(if more { Outcome::More } else { Outcome::Sent });
        }),
        ("sent, and the kernel may write more", |world| {
            if world.sending {
                // It may have done so at once after the look.
                world.unsent = Some(world.missed.unwrap_or(world.now));
                world.end(Outcome::KernelWrites(Duration::ZERO));
                world.is_looked_at = true;
            }
        }),
        ("no answer", |world| world.end(Outcome::Late)),
        ("refused", |world| world.end(Outcome::RefusedToWriters)),
        ("refused, nobody there", |world| {
            world.end(Outcome::Refused);
        }),
    ];

    impl World {
        fn new() -> World {
            let (schedule, now) = (Schedule::Clean, SimClock::new().instant());
            let (unsent, missed) = (None, None);
            let (sending, given_up, is_looked_at) = (false, false, false);
            World { schedule, now, unsent, missed, sending, given_up, is_looked_at }
        }

        fn tell(&mut self, event: Event) {
            let (schedule, action) = self.schedule.apply(event, self.now, AGE);
            self.schedule = schedule;
            match action {
                Action::Nothing => {}
                Action::Send => {
                    assert!(!self.sending, "one write-back at a time");
                    self.sending = true;
                }
                Action::SetAside => self.given_up = true,
            }
        }

        fn end(&mut self, outcome: Outcome) {
            if std::mem::take(&mut self.sending) {
                (self.missed, self.is_looked_at) = (None, false);
                self.tell(Event::Ended(outcome));
            }
        }

        fn check(&self) {
            assert_eq!(self.sending, self.schedule == Schedule::Sending);
            if self.unsent.is_none() || self.sending || self.given_up {
                return;
            }
            let Schedule::Dirty { due } = self.schedule else {
                panic!("bytes that nobody will send")
            };
            let longest = if self.is_looked_at { AGE / 2 } else { AGE };
            assert!(self.now <= due && due <= self.now + longest);
        }
    }

    /// After each sequence of up to six events, what is unsent is being sent or has a due time, and
    /// nothing is sent twice at once.
    #[test]
    fn unsent_bytes_always_have_a_time_to_go() {
        fn walk(world: &World, depth: u32, past: &mut Vec<&'static str>) -> u64 {
            let mut count = 0;
            for (name, step) in STEPS {
                let mut next = world.clone();
                past.push(name);
                step(&mut next);
                next.check();
                count += 1;
                if depth > 1 && !next.given_up {
                    count += walk(&next, depth - 1, past);
                }
                past.pop();
            }
            count
        }
        let count = walk(&World::new(), 6, &mut Vec::new());
        println!("{count} histories of up to six events");
        assert!(count > 1_000_000);
    }

    #[test]
    fn when_it_goes_is_told() {
        let now = SimClock::new().instant();
        let due = Schedule::Dirty { due: now + Duration::from_millis(1500) };
        for (schedule, told) in [
            (Schedule::Clean, None),
            (Schedule::Sending, Some("now")),
            (due, Some("2s")),
            (Schedule::Dirty { due: now }, Some("0s")),
            (Schedule::Kept, Some("next-mount")),
        ] {
            let due = schedule.due_at(now).map(|due| due.to_string());
            assert_eq!(due.as_deref(), told);
        }
        assert!(Due::Now < Due::In(Duration::ZERO) && Due::In(AGE) < Due::NextMount);
    }

    #[test]
    fn a_large_file_that_the_kernel_writes_is_compared_less_often() {
        let now = SimClock::new().instant();
        for (took_s, next_s) in [(0, 15), (1, 20), (4, 80)] {
            let ended = Event::Ended(Outcome::KernelWrites(Duration::from_secs(took_s)));
            let (after, _) = Schedule::Sending.apply(ended, now, AGE);
            assert_eq!(after, Schedule::Dirty { due: now + Duration::from_secs(next_s) });
        }
        let ended = Event::Ended(Outcome::KernelWrites(Duration::ZERO));
        let (after, _) = Schedule::Sending.apply(ended, now, UNLIMITED);
        assert_eq!(after.due_at(now), Some(Due::Unmount), "no look for what may stay here");
    }

    #[test]
    fn what_the_next_mount_is_to_send_stays_unless_it_is_left_behind_once_more() {
        let now = SimClock::new().instant();
        let (kept, _) = Schedule::Sending.apply(Event::Ended(Outcome::Ending), now, AGE);
        for event in [Event::Due, Event::Dirtied, Event::Ended(Outcome::Sent)] {
            assert_eq!(kept.apply(event, now, AGE), (Schedule::Kept, Action::Nothing));
        }
        let left = kept.apply(Event::Left { wait: RETRY_AFTER }, now, AGE);
        assert_eq!(left, (Schedule::Dirty { due: now + RETRY_AFTER }, Action::Nothing));
        assert_eq!(kept.apply(Event::NoneLeft, now, AGE).0, Schedule::Clean);
    }
}

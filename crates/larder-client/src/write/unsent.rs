//! [`Unsent`]: the one owner of a file's unsent data, as a pure state machine.
//!
//! Code that changes the local file, sends it, discards its changes, or reports a failure to a
//! caller says so by an [`Event`]; [`Unsent::apply`] updates the state, and [`Actions`] says what
//! the caller must do ([`crate::core::Core::unsent_event`]). The cache knows which bytes are dirty;
//! this module knows the rest: the end that applications see, on whose behalf bytes are sent, when
//! they are sent, and which callers were told what.
//!
//! Invariants, after each event:
//! - data that is unsent, or may be because the kernel writes the local file, is being sent, has a
//!   due time, or is kept for the next mount;
//! - without unsent data there is no due time and no writer, and no caller has been told that data
//!   is late;
//! - the mark that the cached bytes mix two versions is removed only when all of them are sent and
//!   the kernel does not write.

use std::time::{Duration, Instant};

use larder_vfs::{Cred, Error, Time};

use super::local_end::{Given, LocalEnd};
use super::schedule::{self, Due, Outcome, Schedule};
use crate::class::Wanted;

mod event;
mod requests;

pub(crate) use event::Event;
pub(crate) use requests::Requests;

/// How the unsent data of one file stands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unsent {
    /// The end of the file, if it has changes that the server lacks.
    end: Option<LocalEnd>,
    /// Since when there may be some.
    since: Option<Instant>,
    /// On whose behalf they are sent.
    writer: Option<Cred>,
    /// A modification time that a caller set after writing unsent bytes. It is sent to the server
    /// after them.
    given: Option<Given>,
    /// The time that is set at the server after bytes that are in flight to it.
    time_on_way: Option<Time>,
    /// The modification time that the server was last asked to set after our bytes, until it has
    /// answered: the file may have it.
    asked_time: Option<Time>,
    /// A failed write-back that no fsync or close has reported yet.
    failure: Option<Error>,
    /// Another client changed the file while it had changes of ours: once those are sent, the
    /// cached bytes mix two versions and must be dropped.
    is_mixed: bool,
    /// A close has returned ETIMEDOUT for this data; no caller has yet been told that the server
    /// refused it.
    is_late: bool,
    /// Some was written while the server was out of reach, or by an earlier process.
    is_from_away: bool,
    /// How long the last comparing of the local file took.
    comparing_took: Duration,
    /// What the server may have of it, without a record of that.
    requests: Requests,
    /// For how long they may be unsent, if that is not for the mount to say.
    age: Option<Duration>,
    /// Where those who have closed the file want them, since all was sent.
    left: Wanted,
    /// When they are sent if no caller asks for it.
    schedule: Schedule,
}

/// The facts on which the effect of an event depends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    /// The kernel may be writing the local file.
    pub(crate) kernel_writes: bool,
    pub(crate) now: Instant,
    /// How long bytes may be unsent.
    pub(crate) age: Duration,
    /// The server is out of reach, and this machine answers in its place.
    pub(crate) is_away: bool,
}

/// What the caller must do after an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct Actions {
    /// The engine begins a write-back, whose end is told by [`Event::Ended`].
    pub(crate) send: bool,
    /// Put what is unsent where people find it, outside the file.
    pub(crate) set_aside: bool,
    /// The cached bytes mixed two versions and are gone: have the kernel drop its pages.
    pub(crate) drop_pages: bool,
    /// What the next process must know has changed.
    pub(crate) record: bool,
}

impl Unsent {
    /// The end of the file with the changes that the server lacks; `None` if none are known. The
    /// kernel may have made some ([`Unsent::may_exist`]).
    pub(crate) fn end(&self) -> Option<LocalEnd> {
        self.end
    }

    /// The modification time that a caller set over unsent bytes, if the file still has that time.
    pub(crate) fn given_time(&self) -> Option<Time> {
        let time = self.given?.time;
        (self.end?.mtime == time).then_some(time)
    }

    /// The modification time that is set after the bytes in flight: until then the server's is that
    /// of the WRITE.
    pub(crate) fn time_on_way(&self) -> Option<Time> {
        self.time_on_way
    }

    /// A modification time that the file may have by a request of ours without an answer.
    pub(super) fn asked_time(&self) -> Option<Time> {
        self.asked_time
    }

    /// The server is asked to set this time after our bytes; `None`: it has answered.
    pub(super) fn ask_for_time(&mut self, time: Option<Time>) {
        self.asked_time = time;
    }

    /// Bytes are sent, and this time after them; `None`: no more.
    pub(super) fn set_time_on_way(&mut self, time: Option<Time>) {
        debug_assert!(
            time.is_none() || self.time_on_way.is_none(),
            "one write-back of a file at a time sets a time after its bytes"
        );
        self.time_on_way = time;
    }

    /// Whether there may be bytes that the server lacks.
    pub(crate) fn may_exist(&self, kernel_writes: bool) -> bool {
        self.end.is_some() || kernel_writes
    }

    /// Since when there may be bytes that the server lacks; `None` if there are none.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// On whose behalf bytes are sent; `None` if there are none.
    pub(crate) fn writer(&self) -> Option<&Cred> {
        self.writer.as_ref()
    }

    /// A failed write-back that was reported to no caller.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure
    }

    /// The failure, for a caller to which it is reported now.
    pub(crate) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// Whether the cached bytes mix two versions.
    pub(crate) fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    /// Whether a caller was told that the data is late, and no caller that it was refused.
    pub(crate) fn is_late(&self) -> bool {
        self.is_late
    }

    /// Whether other machines may have changed the file meanwhile, without the server, too.
    pub(crate) fn is_from_away(&self) -> bool {
        self.is_from_away
    }

    /// Whether the server may have changes of ours that are not in the version on record.
    pub(crate) fn requests(&self) -> Requests {
        self.requests
    }

    pub(crate) fn requests_mut(&mut self) -> &mut Requests {
        &mut self.requests
    }

    /// When it is sent, for people; `None`: nothing is unsent.
    pub(crate) fn due(&self, now: Instant) -> Option<Due> {
        self.schedule.due_at(now)
    }

    /// How long bytes may be unsent, where a mount says `usual`.
    pub(super) fn age(&self, usual: Duration) -> Duration {
        self.age.unwrap_or(usual)
    }

    /// A file is opened whose class lets bytes be unsent for `age`, or for as long as the mount
    /// allows: `usual`. The shortest age among all its open files counts, including `others`.
    /// Returns whether it is shorter than it was.
    pub(super) fn promise(&mut self, age: Option<Duration>, usual: Duration, others: bool) -> bool {
        let before = self.age(usual);
        self.age = match (age, others) {
            (age, false) => age,
            (None, true) if self.age.is_none() => None,
            (age, true) => Some(age.unwrap_or(usual).min(before)),
        };
        debug_assert!(!others || self.age(usual) <= before, "what others were promised holds");
        self.age(usual) < before
    }

    /// A close has left bytes here.
    pub(crate) fn leave_for(&mut self, wanted: Wanted) {
        self.left = self.left.and(wanted);
    }

    /// Where those want the bytes who have closed the file since all was sent.
    pub(super) fn left(&self) -> Wanted {
        self.left
    }

    /// When it is sent.
    pub(super) fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// Another client has changed the file. `is_bypassed` says that the kernel may have written
    /// bytes that were not looked for yet.
    pub(crate) fn foreign_change(&mut self, is_bypassed: bool) {
        self.is_mixed |= self.end.is_some() || is_bypassed;
    }

    /// The cached bytes also mix two versions if nothing is known to be unsent: a request of ours
    /// bypassed the cache, or crossed another client's request.
    pub(crate) fn mix(&mut self) {
        self.is_mixed = true;
    }

    /// What an earlier process recorded of it.
    pub(crate) fn restore(&mut self, writer: Option<Cred>, failure: Option<Error>) {
        debug_assert!(
            self.writer.is_none() && self.failure.is_none(),
            "what an earlier process left is restored before this one learns more"
        );
        (self.writer, self.failure) = (writer, failure);
    }

    /// The kernel may write on behalf of `writer`, or did so under an earlier process: bytes that
    /// were not written through the daemon are sent on its behalf.
    pub(crate) fn may_be_of(&mut self, writer: &Cred) {
        self.writer.get_or_insert_with(|| writer.first_time());
    }

    /// Sends on behalf of `writer` from now on.
    pub(crate) fn send_for(&mut self, writer: Cred) {
        self.writer = Some(writer);
    }

    /// Draws the conclusions of an event.
    pub(crate) fn apply(&mut self, event: Event<'_>, context: Context) -> Actions {
        debug_assert!(
            !matches!(event, Event::Ended { .. }) || self.schedule == Schedule::Sending,
            "a write-back of the engine that ends was begun"
        );
        let (was_known, was_mixed) = (self.end.is_some(), self.is_mixed);
        let mut actions = self.take_in(event, context);
        actions.record |= was_known != self.end.is_some();
        let exists = self.may_exist(context.kernel_writes);
        self.is_from_away = exists && (self.is_from_away || context.is_away);
        if !exists {
            (self.is_late, self.writer, self.since) = (false, None, None);
        } else if self.since.is_none() || matches!(event, Event::Sent) {
            // What the kernel writes from now on is younger than what was sent.
            self.since = Some(context.now);
        }
        if !exists || matches!(event, Event::Sent) {
            (self.requests, self.left) = (Requests::default(), Wanted::Nowhere);
        }
        let timing = self.timing(event, context);
        let (schedule, action) = self.schedule.apply(timing, context.now, context.age);
        self.schedule = schedule;
        self.check(event, context, was_mixed);
        actions.send = action == schedule::Action::Send;
        actions.set_aside = action == schedule::Action::SetAside;
        actions
    }

    /// Checks the invariants after an event; `was_mixed` before it.
    fn check(&self, event: Event<'_>, context: Context, was_mixed: bool) {
        let exists = self.may_exist(context.kernel_writes);
        debug_assert!(
            !exists || self.schedule != Schedule::Clean,
            "what is unsent is sent at some time: {event:?}"
        );
        // The engine may find a file due whose last writer is just being released.
        debug_assert!(
            exists
                || matches!(event, Event::Due)
                || !matches!(self.schedule, Schedule::Dirty { .. }),
            "nothing is due of a file without unsent bytes: {event:?}"
        );
        debug_assert!(
            self.is_mixed || !was_mixed || matches!(event, Event::Sent | Event::Recovered { .. }),
            "two versions are mixed until all is sent: {event:?}"
        );
    }

    /// The part of an event that is about the data.
    fn take_in(&mut self, event: Event<'_>, context: Context) -> Actions {
        let (mut record, mut drop_pages) = (false, false);
        match event {
            Event::Written { end, writer, is_over_another } => {
                self.is_mixed |= is_over_another;
                record = self.end.is_none() || self.writer.as_ref() != Some(writer);
                if record {
                    self.writer = Some(writer.first_time());
                }
                (self.end, self.given) = (Some(end), None);
            }
            Event::KernelWrote(end) => {
                debug_assert!(context.kernel_writes, "the kernel writes what it has the right to");
                self.end = Some(self.with_given(end));
            }
            Event::Compared { took, found } => {
                self.comparing_took = took;
                self.end = found.flatten().map(|end| self.with_given(end)).or(self.end);
            }
            Event::KernelEnded(end) => self.end = self.end.or(end),
            Event::Cut(end) => (self.end, self.given) = (end, None),
            Event::TimeGiven { time, over } => {
                self.given = Some(Given { time, over });
                self.end = self.end.map(|end| LocalEnd { mtime: time, ..end });
            }
            Event::Sent => {
                (self.end, self.given, self.is_from_away) = (None, None, false);
                drop_pages = self.is_mixed && !context.kernel_writes;
                self.is_mixed &= context.kernel_writes;
            }
            Event::GivenUp => (self.end, self.given) = (None, None),
            Event::Recovered { end, is_over_another } => {
                (self.end, self.is_mixed) = (Some(end), is_over_another);
                // It is not known what callers were told.
                (self.is_late, self.is_from_away) = (true, true);
            }
            Event::ToldLate => self.is_late = true,
            Event::Failed(error) => (self.failure, record) = (Some(error), true),
            Event::Ended { sent: Err(error), .. }
                if self.outcome(event, context) == Some(Outcome::RefusedToWriters) =>
            {
                (self.failure, record) = (Some(error), true);
            }
            Event::OpensChanged | Event::TooMuch | Event::Due => {}
            Event::Left { .. } | Event::Ended { .. } => {}
        }
        Actions { record, drop_pages, ..Actions::default() }
    }

    /// How the local file ends, with the time that was set if it was not written since.
    fn with_given(&mut self, end: LocalEnd) -> LocalEnd {
        self.given = self.given.filter(|given| end.mtime <= given.over);
        let mtime = self.given.map_or(end.mtime, |given| given.time);
        LocalEnd { mtime, ..end }
    }

    /// The part of an event that concerns when data is sent.
    fn timing(&self, event: Event<'_>, context: Context) -> schedule::Event {
        let exists = self.may_exist(context.kernel_writes);
        match event {
            Event::Due => schedule::Event::Due,
            Event::TooMuch if exists => schedule::Event::TooMuch,
            Event::Left { wait } if exists => schedule::Event::Left { wait },
            _ => match self.outcome(event, context) {
                Some(outcome) => schedule::Event::Ended(outcome),
                None if exists => schedule::Event::Dirtied,
                None => schedule::Event::NoneLeft,
            },
        }
    }

    /// How a write-back of the engine ended, if that is the event.
    fn outcome(&self, event: Event<'_>, context: Context) -> Option<Outcome> {
        let Event::Ended { sent, is_written } = event else { return None };
        Some(match sent {
            Ok(()) if context.kernel_writes => Outcome::KernelWrites(self.comparing_took),
            Ok(()) if self.end.is_some() => Outcome::More,
            Ok(()) => Outcome::Sent,
            // Another task has sent it, or a truncation has removed it, in the meantime.
            Err(_) if !self.may_exist(context.kernel_writes) => Outcome::Sent,
            // Bytes that another holder has locked are sent once it has unlocked them.
            Err(Error::TimedOut | Error::Locked) => Outcome::Late,
            Err(Error::Shutdown) => Outcome::Ending,
            Err(_) if is_written => Outcome::RefusedToWriters,
            Err(_) => Outcome::Refused,
        })
    }
}

#[cfg(test)]
impl Unsent {
    /// A file that was written here, for tests of code that depends on that.
    pub(crate) fn of_size(size: u64) -> Unsent {
        let end = LocalEnd { size, mtime: Time::default() };
        Unsent { end: Some(end), ..Unsent::default() }
    }
}

#[cfg(test)]
mod tests;

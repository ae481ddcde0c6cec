//! Replies exactly once: the last call of each slot (RFC 8881, 2.10.6).
//!
//! A client has one call in flight in each slot, and numbers them. The number of the last call
//! means that call again; a higher one shows that the client has the reply to the last. A pure
//! state machine: the caller carries out calls, and makes the reply durable together with the
//! call's changes.
//!
//! A call that changed nothing leaves no record in the store. If the server dies, the call may be
//! carried out when it is sent again: either no client has seen an answer to it, or it is never
//! sent again.

use std::collections::HashMap;

use bytes::Bytes;
use larder_wire::meta::words::{Sequence, SessionId};
use larder_wire::meta::{Status, words};

/// How to treat a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict<W> {
    /// Carry it out, then call [`Slots::finish`].
    New(W),
    /// Answer with this: the call was carried out.
    Replay(W, Bytes),
    /// It is being carried out; `finish` returns this waiter with the others.
    Joined,
    /// Answer this.
    Refused(W, Status),
}

#[derive(Debug)]
struct Slot<W> {
    sequence: u32,
    procedure: u32,
    state: State<W>,
}

#[derive(Debug)]
enum State<W> {
    Running(Vec<W>),
    Done(Bytes),
    /// It is too early: it is carried out when it is sent again.
    NotYet,
}

/// The slots of all sessions. `W` is the receiver of a reply.
#[derive(Debug)]
pub(crate) struct Slots<W> {
    slots: HashMap<(SessionId, u32), Slot<W>>,
}

impl<W> Slots<W> {
    /// None was used yet.
    pub(crate) fn new() -> Slots<W> {
        Slots { slots: HashMap::new() }
    }

    /// The last call of a slot, as the store has it.
    pub(crate) fn load(&mut self, sequence: Sequence, procedure: u32, reply: Bytes) {
        let words::Sequence { session, slot, sequence } = sequence;
        let state = State::Done(reply);
        self.slots.insert((session, slot), Slot { sequence, procedure, state });
    }

    /// A call came. `slots_max`: how many the session has.
    pub(crate) fn begin(
        &mut self,
        call: Sequence,
        procedure: u32,
        slots_max: u32,
        waiter: W,
    ) -> Verdict<W> {
        if call.slot >= slots_max || call.sequence == 0 {
            return Verdict::Refused(waiter, Status::BadSequence);
        }
        let Some(slot) = self.slots.get_mut(&(call.session, call.slot)) else {
            self.start(call, procedure);
            return Verdict::New(waiter);
        };
        match &mut slot.state {
            _ if call.sequence < slot.sequence => Verdict::Refused(waiter, Status::BadSequence),
            State::Done(_) if call.sequence > slot.sequence => {
                self.start(call, procedure);
                Verdict::New(waiter)
            }
            State::NotYet => {
                self.start(call, procedure);
                Verdict::New(waiter)
            }
            // A second call in the slot, or another call of the same number.
            _ if call.sequence > slot.sequence || slot.procedure != procedure => {
                Verdict::Refused(waiter, Status::BadSequence)
            }
            State::Done(reply) => Verdict::Replay(waiter, reply.clone()),
            State::Running(waiters) => {
                waiters.push(waiter);
                Verdict::Joined
            }
        }
    }

    fn start(&mut self, call: Sequence, procedure: u32) {
        let state = State::Running(Vec::new());
        let slot = Slot { sequence: call.sequence, procedure, state };
        self.slots.insert((call.session, call.slot), slot);
    }

    /// A call was carried out. Returns the other receivers of its reply.
    pub(crate) fn finish(&mut self, call: Sequence, reply: Bytes) -> Vec<W> {
        self.end_call(call, State::Done(reply))
    }

    /// A call was not carried out: it may be sent again. Returns the other receivers of its reply.
    pub(crate) fn put_off(&mut self, call: Sequence) -> Vec<W> {
        self.end_call(call, State::NotYet)
    }

    fn end_call(&mut self, call: Sequence, state: State<W>) -> Vec<W> {
        match self.slots.get_mut(&(call.session, call.slot)) {
            Some(slot) if slot.sequence == call.sequence => {
                match std::mem::replace(&mut slot.state, state) {
                    State::Running(waiters) => waiters,
                    State::Done(_) | State::NotYet => Vec::new(),
                }
            }
            // The session has ended meanwhile.
            _ => Vec::new(),
        }
    }

    /// A session has ended.
    pub(crate) fn end(&mut self, session: SessionId) {
        self.slots.retain(|(of, _), _| *of != session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId([1; 16]);

    fn call(slot: u32, sequence: u32) -> Sequence {
        Sequence { session: SESSION, slot, sequence }
    }

    fn reply(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn a_call_is_carried_out_once() {
        let mut slots = Slots::new();
        assert_eq!(slots.begin(call(0, 1), 5, 2, 'a'), Verdict::New('a'));
        assert_eq!(slots.begin(call(0, 1), 5, 2, 'b'), Verdict::Joined);
        assert_eq!(slots.finish(call(0, 1), reply("x")), ['b']);
        assert_eq!(slots.begin(call(0, 1), 5, 2, 'c'), Verdict::Replay('c', reply("x")));
        assert_eq!(slots.begin(call(0, 2), 6, 2, 'd'), Verdict::New('d'));
        let late = Verdict::Refused('e', Status::BadSequence);
        assert_eq!(slots.begin(call(0, 1), 5, 2, 'e'), late, "the client has its reply");
    }

    #[test]
    fn a_call_that_was_put_off_is_carried_out_when_it_comes_again() {
        let mut slots = Slots::new();
        assert_eq!(slots.begin(call(0, 2), 5, 2, 'a'), Verdict::New('a'));
        assert_eq!(slots.begin(call(0, 2), 5, 2, 'b'), Verdict::Joined);
        assert_eq!(slots.put_off(call(0, 2)), ['b']);
        let late = Verdict::Refused('c', Status::BadSequence);
        assert_eq!(slots.begin(call(0, 1), 5, 2, 'c'), late);
        assert_eq!(slots.begin(call(0, 2), 5, 2, 'd'), Verdict::New('d'));
        assert!(slots.finish(call(0, 2), reply("x")).is_empty());
        assert_eq!(slots.begin(call(0, 2), 5, 2, 'e'), Verdict::Replay('e', reply("x")));
        assert_eq!(slots.begin(call(0, 3), 5, 2, 'f'), Verdict::New('f'));
        assert!(slots.put_off(call(0, 3)).is_empty());
        assert_eq!(slots.begin(call(0, 4), 6, 2, 'g'), Verdict::New('g'), "or never does");
    }

    #[test]
    fn what_is_no_next_call_is_refused() {
        let mut slots = Slots::new();
        let refused = || Verdict::Refused((), Status::BadSequence);
        assert_eq!(slots.begin(call(2, 1), 5, 2, ()), refused(), "no such slot");
        assert_eq!(slots.begin(call(0, 0), 5, 2, ()), refused(), "numbers begin at 1");
        assert_eq!(slots.begin(call(0, 1), 5, 2, ()), Verdict::New(()));
        assert_eq!(slots.begin(call(0, 2), 5, 2, ()), refused(), "one at a time");
        assert_eq!(slots.begin(call(0, 1), 6, 2, ()), refused(), "another call");
        assert_eq!(slots.begin(call(1, 1), 6, 2, ()), Verdict::New(()), "another slot");
    }

    #[test]
    fn a_session_that_ended_leaves_nothing() {
        let mut slots = Slots::new();
        slots.load(call(0, 7), 5, reply("x"));
        assert_eq!(slots.begin(call(0, 8), 5, 2, ()), Verdict::New(()));
        slots.end(SESSION);
        assert_eq!(slots.finish(call(0, 8), reply("y")), []);
        assert_eq!(slots.begin(call(0, 1), 5, 2, ()), Verdict::New(()));
    }
}

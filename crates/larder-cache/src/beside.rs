//! What was set aside gets a file of its own at the server, beside the one that another client has
//! changed: how far that is, as a pure state machine, and as records of the index.
//!
//! The bytes are safe in `set-aside` ([`crate::aside`]) until the server has them durably, and no
//! step needs the one before it in memory: each is on record before the caller goes on, so another
//! process continues where this one died.
//!
//! Invariants, whatever process, machine or server stops at any moment:
//! - the bytes are whole in the local file, in `set-aside`, or at the server;
//! - they become one file at the server, or none: before the server is asked to make a file, its
//!   name is on record, with a time by which the file is known again.
//!
//! The format of the records is that of `docs/formats/cache.md`. Absent: requests.

use crate::FileNo;
use crate::codec::{Reader, Writer};
use crate::records::{key, tag};

const FORMAT: u8 = 1;

/// A local file that was set aside, and is to be a file at the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    /// The file that was changed here.
    pub no: FileNo,
    /// The number of its local file.
    pub(crate) serial: u64,
    /// The conflict on record.
    pub(crate) number: u64,
    /// Where it is in the cache directory.
    pub aside: String,
    /// What the caller has to know of the wanted file; opaque here.
    pub wanted: Vec<u8>,
    /// How far it is.
    pub step: Step,
}

/// How far a file is on its way to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The local file is about to be set aside, or just was; then that is this conflict.
    Intended {
        /// The record of the conflict.
        conflict: Vec<u8>,
    },
    /// It is set aside. The server has other objects under so many names that were tried.
    Aside {
        /// How many.
        tries: u32,
    },
    /// The server may have been asked to make it.
    Asked {
        /// Under this name.
        name: Vec<u8>,
        /// With this modification time, in seconds since 1970.
        mark_sec: i64,
        /// How many names were tried before.
        tries: u32,
    },
    /// The server has made it; it has any part of the bytes.
    There {
        /// Its name.
        name: Vec<u8>,
        /// Its handle.
        handle: Vec<u8>,
    },
    /// The server does not take the bytes: the file there is to be removed.
    Leaving {
        /// Its name.
        name: Vec<u8>,
        /// Its handle.
        handle: Vec<u8>,
    },
    /// The server has all of it durably; the one in `set-aside` is to be removed.
    Placed {
        /// Its name.
        name: Vec<u8>,
    },
}

/// What happened on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepEvent {
    /// The local file is in `set-aside`.
    SetAside,
    /// The server is about to be asked.
    Ask {
        /// For this name.
        name: Vec<u8>,
        /// With this modification time, in seconds since 1970.
        mark_sec: i64,
    },
    /// The server has another object under that name.
    Taken,
    /// The server has made the file, now or earlier.
    Made {
        /// Its handle.
        handle: Vec<u8>,
    },
    /// The server has all bytes durably.
    Written,
    /// The server refuses for good.
    Refused,
    /// What was to be removed is.
    Removed,
}

/// What follows from an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The way goes on.
    Step(Step),
    /// It ends: the file stays in `set-aside`.
    StaysAside,
    /// It ends: the file is at the server, and only there.
    Done,
}

impl Step {
    /// Draws the conclusion of an event.
    ///
    /// # Panics
    /// If it cannot happen at this step.
    pub fn apply(self, event: StepEvent) -> Next {
        match (self, event) {
            (Step::Intended { .. }, StepEvent::SetAside) => Next::Step(Step::Aside { tries: 0 }),
            (Step::Aside { tries }, StepEvent::Ask { name, mark_sec }) => {
                Next::Step(Step::Asked { name, mark_sec, tries })
            }
            (Step::Asked { tries, .. }, StepEvent::Taken) => {
                Next::Step(Step::Aside { tries: tries + 1 })
            }
            (Step::Asked { name, .. }, StepEvent::Made { handle }) => {
                Next::Step(Step::There { name, handle })
            }
            (Step::There { name, .. }, StepEvent::Written) => Next::Step(Step::Placed { name }),
            (Step::There { name, handle }, StepEvent::Refused) => {
                Next::Step(Step::Leaving { name, handle })
            }
            (Step::Aside { .. } | Step::Asked { .. }, StepEvent::Refused)
            | (Step::Leaving { .. }, StepEvent::Removed) => Next::StaysAside,
            (Step::Placed { .. }, StepEvent::Removed) => Next::Done,
            (step, event) => panic!("{event:?} cannot happen at {step:?}"),
        }
    }

    /// The name that the file has at the server, or may have.
    pub fn name(&self) -> Option<&[u8]> {
        match self {
            Step::Intended { .. } | Step::Aside { .. } => None,
            Step::Asked { name, .. }
            | Step::There { name, .. }
            | Step::Leaving { name, .. }
            | Step::Placed { name } => Some(name),
        }
    }
}

/// The key of the record of a local file.
pub(crate) fn beside_key(no: FileNo, serial: u64) -> Vec<u8> {
    key(tag::BESIDE, no, &serial.to_be_bytes())
}

impl Beside {
    pub(crate) fn key(&self) -> Vec<u8> {
        beside_key(self.no, self.serial)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let Beside { no: _, serial: _, number, aside, wanted, step } = self;
        let mut out = Writer::with_capacity(128);
        out.u8(FORMAT);
        out.u64(*number);
        out.bytes(aside.as_bytes());
        out.bytes(wanted);
        match step {
            Step::Intended { conflict } => {
                out.u8(0);
                out.bytes(conflict);
            }
            Step::Aside { tries } => {
                out.u8(1);
                out.u32(*tries);
            }
            Step::Asked { name, mark_sec, tries } => {
                out.u8(2);
                out.bytes(name);
                out.i64(*mark_sec);
                out.u32(*tries);
            }
            Step::There { name, handle } | Step::Leaving { name, handle } => {
                out.u8(if matches!(step, Step::There { .. }) { 3 } else { 4 });
                out.bytes(name);
                out.bytes(handle);
            }
            Step::Placed { name } => {
                out.u8(5);
                out.bytes(name);
            }
        }
        out.into_bytes()
    }

    /// Reads a record with its key.
    pub(crate) fn decode(key: &[u8], value: &[u8]) -> Option<Beside> {
        let no = FileNo(u64::from_be_bytes(key.get(1..9)?.try_into().ok()?));
        let serial = u64::from_be_bytes(key.get(9..)?.try_into().ok()?);
        let mut input = Reader::new(value);
        if input.u8()? != FORMAT {
            return None;
        }
        let number = input.u64()?;
        let aside = String::from_utf8(input.bytes()?.to_vec()).ok()?;
        let wanted = input.bytes()?.to_vec();
        let code = input.u8()?;
        let mut text = || Some(input.bytes()?.to_vec());
        let step = match code {
            0 => Step::Intended { conflict: text()? },
            1 => Step::Aside { tries: input.u32()? },
            2 => {
                let name = text()?;
                Step::Asked { name, mark_sec: input.i64()?, tries: input.u32()? }
            }
            3 => Step::There { name: text()?, handle: text()? },
            4 => Step::Leaving { name: text()?, handle: text()? },
            5 => Step::Placed { name: text()? },
            _ => return None,
        };
        input.end(Beside { no, serial, number, aside, wanted, step })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn at(step: Step) -> Beside {
        let (no, serial, number) = (FileNo(8), 9, 3);
        Beside { no, serial, number, aside: "set-aside/8.9_a".into(), wanted: vec![1], step }
    }

    fn all() -> Vec<Beside> {
        let (name, handle) = (b"a.conflict-here-9".to_vec(), b"handle".to_vec());
        vec![
            at(Step::Intended { conflict: vec![7, 7] }),
            at(Step::Aside { tries: 1 }),
            at(Step::Asked { name: name.clone(), mark_sec: -5, tries: 2 }),
            at(Step::There { name: name.clone(), handle: handle.clone() }),
            at(Step::Leaving { name: name.clone(), handle }),
            at(Step::Placed { name }),
        ]
    }

    #[test]
    fn every_record_survives_encoding_and_hostile_bytes_do_not_panic() {
        for one in all() {
            let (key, bytes) = (one.key(), one.encode());
            assert_eq!(Beside::decode(&key, &bytes), Some(one));
            assert_eq!(Beside::decode(&key[..10], &bytes), None);
            for len in 0..bytes.len() {
                assert_eq!(Beside::decode(&key, &bytes[..len]), None);
                for value in 0..=u8::MAX {
                    let mut changed = bytes.clone();
                    changed[len] = value;
                    let _ = Beside::decode(&key, &changed);
                }
            }
        }
    }

    /// The bytes of `docs/formats/cache.md`.
    #[test]
    fn records_are_the_documented_bytes() {
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
        let text = include_str!("../../../docs/formats/cache.md");
        let record = hex(&all()[2].encode());
        assert!(text.contains(&record), "not in the document: {record}");
    }

    /// The parts of the world that outlive a process.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct World {
        /// The bytes are in the local file, which nobody has set aside.
        is_unsent: bool,
        is_aside: bool,
        /// Of our file at the server, under which of the names: how much it has.
        there: Option<(u32, Bytes)>,
        /// Another client has so many of the names.
        others: u32,
        /// The record; `None`: there is none.
        step: Option<Stored>,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Bytes {
        None,
        Some,
        All,
    }

    /// A step, as it can be compared.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Stored(Vec<u8>);

    fn step_of(stored: &Stored) -> Step {
        let key = beside_key(FileNo(8), 9);
        Beside::decode(&key, &stored.0).expect("it is a record").step
    }

    impl World {
        fn with(mut self, event: StepEvent) -> World {
            let before = step_of(self.step.as_ref().expect("something is under way"));
            self.step = match before.apply(event) {
                Next::Step(step) => Some(Stored(at(step).encode())),
                Next::StaysAside | Next::Done => None,
            };
            self
        }

        /// What a caller does at this step: each outcome, with the worlds in which the process may
        /// die on the way; it then finds the record as it was.
        fn go_on(&self) -> Vec<World> {
            let Some(stored) = &self.step else { return vec![] };
            let mut worlds = vec![];
            match step_of(stored) {
                Step::Intended { .. } => {
                    let moved = World { is_unsent: false, is_aside: true, ..self.clone() };
                    worlds.extend([moved.clone(), moved.with(StepEvent::SetAside)]);
                }
                Step::Aside { tries } => {
                    let name = tries.to_string().into_bytes();
                    worlds.push(self.clone().with(StepEvent::Ask { name, mark_sec: 0 }));
                    worlds.push(self.clone().with(StepEvent::Refused));
                }
                Step::Asked { tries, .. } if tries < self.others => {
                    worlds.push(self.clone().with(StepEvent::Taken));
                    worlds.push(self.clone().with(StepEvent::Refused));
                }
                Step::Asked { tries, .. } => {
                    // It is made, and the answer is lost, or an earlier attempt has made it.
                    let made = World { there: Some((tries, Bytes::None)), ..self.clone() };
                    let handle = tries.to_string().into_bytes();
                    worlds.extend([made.clone(), made.with(StepEvent::Made { handle })]);
                    if self.there.is_none() {
                        worlds.push(self.clone().with(StepEvent::Refused));
                        // Another client has made it in between.
                        worlds.push(World { others: self.others + 1, ..self.clone() });
                    }
                }
                Step::There { name, .. } => {
                    let number = String::from_utf8(name).unwrap().parse().unwrap();
                    let part = World { there: Some((number, Bytes::Some)), ..self.clone() };
                    let whole = World { there: Some((number, Bytes::All)), ..self.clone() };
                    worlds.extend([part.clone(), part.with(StepEvent::Refused)]);
                    worlds.extend([whole.clone(), whole.with(StepEvent::Written)]);
                }
                Step::Leaving { .. } => {
                    let gone = World { there: None, ..self.clone() };
                    worlds.extend([gone.clone(), gone.with(StepEvent::Removed)]);
                }
                Step::Placed { .. } => {
                    let gone = World { is_aside: false, ..self.clone() };
                    worlds.extend([gone.clone(), gone.with(StepEvent::Removed)]);
                }
            }
            worlds
        }

        fn check(&self) {
            let is_there = self.there.is_some_and(|(_, bytes)| bytes == Bytes::All);
            assert!(self.is_unsent || self.is_aside || is_there, "lost: {self:?}");
            if self.step.is_none() {
                assert!(self.is_aside != is_there, "once: {self:?}");
                assert!(is_there || self.there.is_none(), "a part stays: {self:?}");
            }
        }
    }

    /// Every order of answers, refusals, other clients and deaths of the process: in the end the
    /// bytes are at one place, and never at none.
    #[test]
    fn what_is_set_aside_is_beside_the_other_one_once_or_stays_wherever_it_is_cut_short() {
        let intended = Stored(at(Step::Intended { conflict: vec![] }).encode());
        let first = World {
            is_unsent: true,
            is_aside: false,
            there: None,
            others: 0,
            step: Some(intended),
        };
        let (mut seen, mut open) = (BTreeSet::new(), vec![first]);
        let mut ends = [0; 2];
        while let Some(world) = open.pop() {
            if world.others > 2 || !seen.insert(world.clone()) {
                continue;
            }
            world.check();
            if world.step.is_none() {
                ends[usize::from(world.is_aside)] += 1;
            }
            open.extend(world.go_on());
        }
        println!("{} worlds, {ends:?} ends", seen.len());
        assert_eq!((seen.len(), ends), (40, [3, 3]));
    }

    #[test]
    #[should_panic(expected = "cannot happen")]
    fn bytes_are_not_written_before_the_file_is_there() {
        let _ = Step::Aside { tries: 0 }.apply(StepEvent::Written);
    }
}

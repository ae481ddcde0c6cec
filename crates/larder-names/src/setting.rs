//! How far the server is with attributes that were set here: the rules, without I/O.
//!
//! The server is asked to set them under a guard: it does so over the version below them, or not at
//! all. A request may be carried out without its answer being known, and later than it was sent:
//! that of a process that died is on its way while the next process asks. So a refusal is about one
//! request alone. It says nothing of an earlier one, which may be the very reason for it.

/// How far the server is, as the record has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Setting {
    /// It was not asked, or it has answered that it did not do it.
    Unasked,
    /// It may have been asked, and may have done so, or may do so yet.
    Asked,
    /// It has.
    Done,
    /// Another client has changed the object: its change counts.
    GivenUp,
}

/// What the server has, beside the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct There {
    /// The version below what was set.
    pub(crate) is_below: bool,
    /// The version that this makes: all attributes that were set, over the bytes below. Another
    /// client may have written since, which leaves most attributes as they were set.
    pub(crate) is_made: bool,
}

/// What a description of the object by the server tells, beside the record: it may be from before
/// what the record knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// It describes the version below; of what is done, the version that this has made.
    pub(crate) is_below: bool,
    /// It describes a version from before that.
    pub(crate) is_older: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Ask,
    /// Record that it is done, or given up.
    Conclude(Setting),
}

/// How a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    Refused,
    None,
}

impl Setting {
    /// What follows from what the server has.
    pub(crate) fn next(self, there: There) -> Next {
        debug_assert!(matches!(self, Setting::Unasked | Setting::Asked), "it is decided once");
        match (self, there) {
            (Setting::Asked, There { is_made: true, .. }) => Next::Conclude(Setting::Done),
            (_, There { is_below: true, .. }) => Next::Ask,
            _ => Next::Conclude(Setting::GivenUp),
        }
    }

    /// Whether a description is of what is shown here, and of no other client's change. While it is
    /// not known whether the server has done it, what it describes may be that.
    pub(crate) fn shows_ours(self, told: Told) -> bool {
        match self {
            Setting::Unasked => told.is_below,
            Setting::Asked => true,
            // The guard has found no other version before the one that this has made.
            Setting::Done => told.is_below || told.is_older,
            Setting::GivenUp => false,
        }
    }

    /// What is on record once a request has failed, by what was on record before it.
    pub(crate) fn after(self, answer: Answer) -> Setting {
        match answer {
            Answer::Refused => self,
            Answer::None => Setting::Asked,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Whose change the server's file has had last.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Version {
        Below,
        Ours,
        Theirs,
    }

    /// A process: what it does next.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Doing {
        Looks,
        /// With what was on record before it put [`Setting::Asked`] there.
        Asks(Setting),
        Waits(Setting),
    }

    /// A server, the requests on the way to it, one machine with its record, and another client.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct World {
        version: Version,
        /// The machine's changes that were carried out.
        carried_out: u32,
        /// Requests whose process has died.
        left: u32,
        /// How the request of this process will be answered: whether it was done.
        answer: Option<bool>,
        record: Setting,
        doing: Doing,
        deaths: u32,
        others: u32,
    }

    const DEATHS_MAX: u32 = 3;
    const OTHERS_MAX: u32 = 2;

    impl World {
        /// The server does it, or its guard refuses.
        fn carry_out(&mut self) -> bool {
            let is_done = self.version == Version::Below;
            if is_done {
                self.version = Version::Ours;
                self.carried_out += 1;
            }
            is_done
        }

        fn ends(&self, record: Setting) -> World {
            World { record, answer: None, doing: Doing::Looks, ..self.clone() }
        }

        /// The process looks and asks, as [`crate::altered`] does.
        fn goes_on(&self) -> Option<World> {
            let mut next = self.clone();
            match self.doing {
                Doing::Looks => {
                    let is_made = self.version == Version::Ours;
                    let there = There { is_below: self.version == Version::Below, is_made };
                    match self.record.next(there) {
                        Next::Conclude(record) => next.record = record,
                        Next::Ask => next.doing = Doing::Asks(self.record),
                    }
                }
                Doing::Asks(before) => {
                    (next.record, next.doing) = (Setting::Asked, Doing::Waits(before));
                }
                Doing::Waits(before) => {
                    let is_done = self.answer?;
                    let refused = before.after(Answer::Refused);
                    return Some(self.ends(if is_done { Setting::Done } else { refused }));
                }
            }
            Some(next)
        }

        /// All that may happen next, in whichever order.
        fn nexts(&self) -> Vec<World> {
            let mut all = Vec::new();
            // Requests of the dead are carried out at any time, or lost.
            if self.left > 0 {
                let mut next = World { left: self.left - 1, ..self.clone() };
                all.push(next.clone());
                next.carry_out();
                all.push(next);
            }
            if self.others < OTHERS_MAX {
                let others = self.others + 1;
                all.push(World { version: Version::Theirs, others, ..self.clone() });
            }
            if matches!(self.record, Setting::Done | Setting::GivenUp) {
                return all;
            }
            all.extend(self.goes_on());
            if let (Doing::Waits(before), None) = (self.doing, self.answer) {
                let mut next = self.clone();
                next.answer = Some(next.carry_out());
                all.push(next);
                // No answer: the request is on its way still.
                let given_up = World { left: self.left + 1, ..self.clone() };
                all.push(given_up.ends(before.after(Answer::None)));
            }
            if let (Doing::Waits(before), Some(_)) = (self.doing, self.answer) {
                all.push(self.ends(before.after(Answer::None)));
            }
            if self.deaths < DEATHS_MAX {
                let is_out = matches!(self.doing, Doing::Waits(_)) && self.answer.is_none();
                let left = self.left + u32::from(is_out);
                let deaths = self.deaths + 1;
                all.push(World { left, deaths, answer: None, doing: Doing::Looks, ..self.clone() });
            }
            all
        }

        /// A description that the server made at any time up to now, and that arrives now.
        fn check_told(&self) {
            let known = match self.record {
                Setting::Done => Version::Ours,
                _ => Version::Below,
            };
            for version in [Version::Below, Version::Ours, Version::Theirs] {
                let was_there = match version {
                    Version::Below => true,
                    Version::Ours => self.carried_out > 0,
                    Version::Theirs => self.others > 0,
                };
                // Versions come in this order, each once at most.
                let told = Told { is_below: version == known, is_older: version < known };
                let shows_ours = self.record.shows_ours(told);
                let is_decided = self.record != Setting::Asked;
                match version {
                    Version::Theirs => {
                        assert!(!was_there || !shows_ours || !is_decided, "{self:?}");
                    }
                    _ if self.record == Setting::GivenUp => {}
                    _ => assert!(!was_there || shows_ours, "{self:?}: {version:?}"),
                }
            }
        }

        fn check(&self) {
            self.check_told();
            assert!(self.carried_out <= 1, "{self:?}: the guard lets one through");
            match self.record {
                Setting::Done => assert!(self.carried_out == 1, "{self:?}: it never was"),
                // Who gives up leaves nothing that the machine has made the last change of.
                Setting::GivenUp => assert!(self.version == Version::Theirs, "{self:?}"),
                Setting::Unasked | Setting::Asked => {}
            }
        }
    }

    /// Every order of looking, asking, carrying out, answering, losing the answer and dying, with
    /// requests of dead processes that are carried out late, and with another client's changes at
    /// each place: what is given up is another client's, and what is done was done.
    #[test]
    fn a_change_is_given_up_only_over_another_clients() {
        let begin = World {
            version: Version::Below,
            carried_out: 0,
            left: 0,
            answer: None,
            record: Setting::Unasked,
            doing: Doing::Looks,
            deaths: 0,
            others: 0,
        };
        let (mut seen, mut left) = (BTreeSet::new(), vec![begin]);
        while let Some(world) = left.pop() {
            world.check();
            // The number of requests on their way is bounded by this alone.
            if world.left <= DEATHS_MAX && seen.insert(world.clone()) {
                left.extend(world.nexts());
            }
        }
        let ends = |record| seen.iter().any(|world| world.record == record);
        assert!(
            ends(Setting::Done) && ends(Setting::GivenUp) && seen.len() > 400,
            "{}",
            seen.len()
        );
    }
}

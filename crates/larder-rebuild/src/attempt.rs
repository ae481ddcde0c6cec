//! One run of a rule, as a state machine: events in, the next step out.

use crate::rule::{Freshness, Input, Rule, System};
use crate::{Hash, Refusal, RulePath};

/// The object at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A file with such bytes.
    File(Hash),
    /// Another object, or none.
    Other,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With status 0.
    Well,
    /// With another status, or by a signal; and the last line of its standard error.
    Badly {
        /// The status or signal.
        how: String,
        /// The line, or nothing.
        said: String,
    },
    /// It was killed, since its time was over.
    TimedOut,
}

/// The events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The run has its turn: no other run of this rule is in progress. The argument says whether a
    /// file is still lost.
    Turn(bool),
    /// Another run of this rule did not end in time.
    NoTurn,
    /// The present state of an input.
    Input(Found),
    /// The command ended.
    Ended(Ended),
    /// The present state of an output.
    Output(Found),
    /// The outputs are in place.
    Placed,
    /// The machine failed.
    Failed(String),
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<'r> {
    /// Wait until no other run of this rule is in progress.
    AwaitTurn,
    /// Inspect this input, or its kept copy.
    Look(&'r RulePath),
    /// Run the command.
    Run,
    /// Look at this output.
    Compare(&'r RulePath),
    /// Put the outputs in place.
    Place,
    /// Nothing: the files are there. Whether this run made them.
    Done(bool),
    /// Nothing: the files stay lost.
    Refused(Refusal),
}

/// One run.
#[derive(Clone, Debug)]
pub struct Attempt<'r> {
    rule: &'r Rule,
    inputs: Vec<(&'r RulePath, Hash)>,
    outputs: Vec<(&'r RulePath, Hash)>,
    at: At,
}

#[derive(Clone, Debug)]
enum At {
    Waiting,
    Looking(usize),
    Running,
    Comparing(usize),
    Placing,
    Done(bool),
    Refused(Refusal),
}

impl<'r> Attempt<'r> {
    /// Begins. `here` is this machine.
    pub fn new(rule: &'r Rule, here: &System) -> Attempt<'r> {
        let inputs = rule.inputs.iter().filter_map(|(place, input)| match input {
            Input::File { hash, .. } => Some((place, *hash)),
            _ => None,
        });
        let outputs = rule.outputs.iter().map(|(place, output)| (place, output.hash));
        let at = match rule.system == *here {
            true => At::Waiting,
            false => At::Refused(Refusal::OtherSystem {
                made_on: rule.system.clone(),
                here: here.clone(),
            }),
        };
        Attempt { rule, inputs: inputs.collect(), outputs: outputs.collect(), at }
    }

    /// The next step.
    pub fn step(&self) -> Step<'r> {
        match &self.at {
            At::Waiting => Step::AwaitTurn,
            At::Looking(at) => Step::Look(self.inputs[*at].0),
            At::Running => Step::Run,
            At::Comparing(at) => Step::Compare(self.outputs[*at].0),
            At::Placing => Step::Place,
            At::Done(is_ours) => Step::Done(*is_ours),
            At::Refused(refusal) => Step::Refused(refusal.clone()),
        }
    }

    /// Processes the result of a step.
    ///
    /// # Panics
    /// If the event does not answer the step, which is a mistake of the caller.
    pub fn apply(&mut self, event: Event) {
        self.at = match (&self.at, event) {
            (At::Done(_) | At::Refused(_), _) => panic!("the run is over"),
            (_, Event::Failed(why)) => At::Refused(Refusal::NotTried(why)),
            (At::Waiting, Event::Turn(false)) => At::Done(false),
            (At::Waiting, Event::Turn(true)) => self.looking(0),
            (At::Waiting, Event::NoTurn) => At::Refused(Refusal::StillRunning(self.rule.timeout)),
            (At::Looking(at), Event::Input(found)) => match self.judge_input(*at, &found) {
                Some(refusal) => At::Refused(refusal),
                None => self.looking(at + 1),
            },
            (At::Running, Event::Ended(Ended::Well)) => self.comparing(0),
            (At::Running, Event::Ended(Ended::TimedOut)) => {
                At::Refused(Refusal::TimedOut(self.rule.timeout))
            }
            (At::Running, Event::Ended(Ended::Badly { how, said })) => {
                At::Refused(Refusal::Failed { how, said })
            }
            (At::Comparing(at), Event::Output(found)) => match self.judge_output(*at, &found) {
                Some(refusal) => At::Refused(refusal),
                None => self.comparing(at + 1),
            },
            (At::Placing, Event::Placed) => At::Done(true),
            (at, event) => panic!("{event:?} does not answer {at:?}"),
        };
    }

    fn looking(&self, at: usize) -> At {
        if at < self.inputs.len() { At::Looking(at) } else { At::Running }
    }

    fn comparing(&self, at: usize) -> At {
        if at < self.outputs.len() { At::Comparing(at) } else { At::Placing }
    }

    fn judge_input(&self, at: usize, found: &Found) -> Option<Refusal> {
        let (place, hash) = self.inputs[at];
        match found {
            Found::Other => Some(Refusal::MissingInput(place.clone())),
            Found::File(now) if *now == hash || self.rule.freshness == Freshness::Latest => None,
            Found::File(_) => Some(Refusal::ChangedInput(place.clone())),
        }
    }

    fn judge_output(&self, at: usize, found: &Found) -> Option<Refusal> {
        let (place, hash) = self.outputs[at];
        match found {
            Found::Other => Some(Refusal::NotMade(place.clone())),
            Found::File(now) if *now == hash || self.rule.freshness != Freshness::Original => None,
            Found::File(_) => Some(Refusal::OtherBytes(place.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Output;
    use std::collections::BTreeMap;
    use std::ffi::OsStr;
    use std::time::Duration;

    fn place(name: &str) -> RulePath {
        RulePath::parse(OsStr::new(name)).unwrap()
    }

    fn here() -> System {
        System { machine: "here".into(), release: "now".into() }
    }

    fn rule(freshness: Freshness) -> Rule {
        let hash = Hash::of(b"same");
        let input = Input::File { hash, bytes: 4, mode: 0o644, changed_ns: 0 };
        Rule {
            system: here(),
            freshness,
            timeout: Duration::from_secs(7),
            root: "/v".into(),
            dir: place(""),
            command: vec!["make".into()],
            environment: BTreeMap::new(),
            inputs: BTreeMap::from([
                (place("in1"), input.clone()),
                (place("in2"), input),
                (place("none"), Input::Absent),
            ]),
            programs: BTreeMap::new(),
            made: Default::default(),
            outputs: ["out1", "out2"]
                .map(|one| (place(one), Output { hash, bytes: 4, mode: 0o644 }))
                .into(),
        }
    }

    /// All that may happen at a step.
    fn events(step: &Step<'_>) -> Vec<Event> {
        let found = [Found::File(Hash::of(b"same")), Found::File(Hash::of(b"other")), Found::Other];
        let mut all = match step {
            Step::AwaitTurn => vec![Event::Turn(true), Event::Turn(false), Event::NoTurn],
            Step::Look(_) => found.into_iter().map(Event::Input).collect(),
            Step::Run => {
                let badly = Ended::Badly { how: "status 1".into(), said: "no".into() };
                [Ended::Well, badly, Ended::TimedOut].into_iter().map(Event::Ended).collect()
            }
            Step::Compare(_) => found.into_iter().map(Event::Output).collect(),
            Step::Place => vec![Event::Placed],
            Step::Done(_) | Step::Refused(_) => return Vec::new(),
        };
        all.push(Event::Failed("disk".into()));
        all
    }

    /// Follows every sequence of events to its end.
    fn every_end(
        attempt: &Attempt<'_>,
        so_far: &mut Vec<Event>,
        ends: &mut Vec<(Vec<Event>, String)>,
    ) {
        let next = events(&attempt.step());
        if next.is_empty() {
            let end = match attempt.step() {
                Step::Refused(refusal) => refusal.word().to_owned(),
                step => format!("{step:?}"),
            };
            ends.push((so_far.clone(), end));
        }
        for event in next {
            let mut after = attempt.clone();
            after.apply(event.clone());
            so_far.push(event);
            every_end(&after, so_far, ends);
            so_far.pop();
        }
    }

    /// The expected end after such events, computed without states.
    fn expected(freshness: Freshness, events: &[Event]) -> &'static str {
        let other = |event: &Event| matches!(event, Event::Input(Found::File(hash)) | Event::Output(Found::File(hash)) if *hash != Hash::of(b"same"));
        match events.last().unwrap() {
            Event::Failed(_) => "not-tried",
            Event::Turn(_) => "Done(false)",
            Event::Input(Found::Other) => "missing-input",
            Event::Output(Found::Other) => "not-made",
            event @ Event::Input(_) if other(event) && freshness != Freshness::Latest => {
                "changed-input"
            }
            event @ Event::Output(_) if other(event) && freshness == Freshness::Original => {
                "other-bytes"
            }
            Event::Ended(Ended::TimedOut) | Event::NoTurn => "timeout",
            Event::Ended(Ended::Badly { .. }) => "failed",
            Event::Placed => "Done(true)",
            event => panic!("{event:?} is no end"),
        }
    }

    #[test]
    fn every_sequence_of_events_has_the_right_end() {
        for freshness in Freshness::ALL {
            let rule = rule(freshness);
            let mut ends = Vec::new();
            every_end(&Attempt::new(&rule, &here()), &mut Vec::new(), &mut ends);
            assert!(ends.len() > 15, "{}", ends.len());
            for (events, end) in &ends {
                assert_eq!(end, expected(freshness, events), "{freshness}: {events:?}");
            }
            let made: Vec<_> = ends.iter().filter(|(_, end)| end == "Done(true)").collect();
            assert_eq!(
                made.len(),
                match freshness {
                    Freshness::Latest => 16,
                    Freshness::Version => 4,
                    Freshness::Original => 1,
                }
            );
        }
    }

    #[test]
    fn what_was_made_on_another_system_is_not_tried_here() {
        let rule = rule(Freshness::Latest);
        let there = System { machine: "aarch64 Linux".into(), ..here() };
        let Step::Refused(refusal) = Attempt::new(&rule, &there).step() else { panic!("tried") };
        assert_eq!(refusal.to_string(), "it was made on here, now, and this is aarch64 Linux, now");
    }
}

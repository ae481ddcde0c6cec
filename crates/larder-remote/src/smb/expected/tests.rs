//! All sequences of a few steps of two clients and their server.

use super::*;
use std::collections::VecDeque;

/// What a client may do in the directory. Names are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Makes a file, unless the name is taken.
    Make(usize),
    /// Removes a file, if there is one.
    Remove(usize),
    /// Renames a file of another directory to it.
    Bring(usize),
    /// Renames the first to the second, if there is one.
    Rename,
}

use What::{Bring, Make, Remove, Rename};

impl What {
    fn events(self) -> Vec<(usize, Event)> {
        match self {
            Make(name) | Bring(name) => vec![(name, Event::Come)],
            Remove(name) => vec![(name, Event::Gone)],
            Rename => vec![(0, Event::Gone), (1, Event::Come)],
        }
    }
}

/// What this client takes for true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Belief {
    Unknown,
    Is(Option<u32>),
}

/// A change of ours.
#[derive(Clone, Debug)]
struct Ours {
    what: What,
    numbers: Vec<u64>,
    /// It overlapped another one of the same name: then the client asks.
    meets: bool,
    /// The server's answer: the files of both names afterwards, unless it was refused.
    answer: Option<Option<[Option<u32>; 2]>>,
}

/// How the server tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    /// Each event.
    All,
    /// Equal events that follow each other once, if nobody has fetched the first yet, as Samba.
    Merged,
    /// The same, and it loses any of the events that we cause.
    Lossy,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Begin(What),
    Carry { at: usize, lost: usize },
    Answer(usize),
    Theirs(What),
    Tell,
}

#[derive(Clone, Debug)]
struct World {
    telling: Telling,
    files: [Option<u32>; 2],
    made: u32,
    notices: VecDeque<(usize, Event)>,
    ours: Vec<Ours>,
    belief: [Belief; 2],
    expected: Expected,
    is_disturbed: bool,
}

const NAMES: [&str; 2] = ["a", "b"];

fn at(seconds: u64) -> Monotonic {
    Monotonic::from_nanos(seconds * 1_000_000_000)
}

impl World {
    fn new(telling: Telling) -> World {
        World {
            telling,
            files: [Some(1), None],
            made: 1,
            notices: VecDeque::new(),
            ours: Vec::new(),
            belief: [Belief::Is(Some(1)), Belief::Is(None)],
            expected: Expected::default(),
            is_disturbed: false,
        }
    }

    /// The server makes a change, if it can.
    fn change(&mut self, what: What, lost: usize) -> Option<[Option<u32>; 2]> {
        let possible = match what {
            Make(name) => self.files[name].is_none(),
            Remove(name) => self.files[name].is_some(),
            Bring(_) => true,
            Rename => self.files[0].is_some(),
        };
        if !possible {
            return None;
        }
        match what {
            Make(name) | Bring(name) => {
                self.made += 1;
                self.files[name] = Some(self.made);
            }
            Remove(name) => self.files[name] = None,
            Rename => self.files = [None, self.files[0]],
        }
        for (number, event) in what.events().into_iter().enumerate() {
            let is_merged = self.telling != Telling::All && self.notices.back() == Some(&event);
            if lost & (1 << number) == 0 && !is_merged {
                self.notices.push_back(event);
            }
        }
        Some(self.files)
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Begin(what) => {
                let events = what.events();
                let begin =
                    |(name, event): &(usize, Event)| self.expected.begin(NAMES[*name], *event);
                let numbers = events.iter().map(begin).collect();
                let touches = |other: &Ours| {
                    other.what.events().iter().any(|(name, _)| events.iter().any(|e| e.0 == *name))
                };
                let mut meets = false;
                for other in self.ours.iter_mut().filter(|other| touches(other)) {
                    (meets, other.meets) = (true, true);
                }
                self.ours.push(Ours { what, numbers, meets, answer: None });
            }
            Step::Carry { at, lost } => {
                self.ours[at].answer = Some(self.change(self.ours[at].what, lost));
            }
            Step::Answer(place) => {
                let Ours { what, numbers, meets, answer } = self.ours.remove(place);
                let made = answer.expect("it was carried out");
                for number in numbers {
                    match made {
                        Some(_) => self.expected.made(number, at(1)),
                        None => self.expected.refused(number),
                    }
                }
                for (name, _) in what.events() {
                    self.belief[name] = match made.filter(|_| !meets) {
                        Some(files) => Belief::Is(files[name]),
                        None => Belief::Unknown,
                    };
                }
            }
            Step::Theirs(what) => self.is_disturbed |= self.change(what, 0).is_some(),
            Step::Tell => {
                let (name, event) = self.notices.pop_front().expect("there is one");
                self.expected.told(NAMES[name], event);
            }
        }
    }

    fn steps(&self, whats: &[What]) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.ours.len() < 2 {
            steps.extend(whats.iter().map(|what| Step::Begin(*what)));
        }
        for (at, ours) in self.ours.iter().enumerate() {
            let lost = match self.telling {
                Telling::Lossy => 1 << ours.what.events().len(),
                Telling::All | Telling::Merged => 1,
            };
            match ours.answer {
                None => steps.extend((0..lost).map(|lost| Step::Carry { at, lost })),
                Some(_) => steps.push(Step::Answer(at)),
            }
        }
        steps.extend(whats.iter().map(|what| Step::Theirs(*what)));
        if !self.notices.is_empty() {
            steps.push(Step::Tell);
        }
        steps
    }

    /// Lets everything come that is on its way, and time pass.
    fn end(&mut self) {
        for at in 0..self.ours.len() {
            if self.ours[at].answer.is_none() {
                self.take(Step::Carry { at, lost: 0 });
            }
        }
        while !self.notices.is_empty() {
            self.take(Step::Tell);
        }
        while !self.ours.is_empty() {
            self.take(Step::Answer(0));
        }
        if self.expected.late_in(at(1 + LATE_AFTER.as_secs())) == Some(Duration::ZERO) {
            self.expected.end();
        }
    }

    /// What is believed is so, or the watch is over.
    fn check(&self, history: &[Step]) {
        if self.telling == Telling::All && !self.is_disturbed {
            assert!(!self.expected.is_over(), "nobody else changed anything: {history:?}");
            assert!(self.expected.expectations.is_empty(), "{history:?}");
        }
        if self.expected.is_over() {
            return;
        }
        for (belief, file) in self.belief.iter().zip(self.files) {
            let Belief::Is(believed) = belief else { continue };
            let is_true = match self.telling {
                Telling::All => *believed == file,
                Telling::Merged | Telling::Lossy => believed.is_some() == file.is_some(),
            };
            assert!(is_true, "{:?}: {self:?} after {history:?}", self.telling);
        }
    }
}

/// Tries every sequence of so many steps; returns how many.
fn try_all(world: &World, whats: &[What], left: u32, history: &mut Vec<Step>) -> u64 {
    let mut ended = world.clone();
    ended.end();
    ended.check(history);
    if left == 0 || world.expected.is_over() {
        return 1;
    }
    let mut tried = 1;
    for step in world.steps(whats) {
        let mut next = world.clone();
        next.take(step);
        history.push(step);
        tried += try_all(&next, whats, left - 1, history);
        history.pop();
    }
    tried
}

/// With one name, and with two; all orders of requests, answers and notices.
#[test]
fn what_is_believed_of_a_directory_is_so_or_its_watch_is_over() {
    for telling in [Telling::All, Telling::Merged, Telling::Lossy] {
        let one = [Make(0), Remove(0), Bring(0)];
        let two = [Make(0), Remove(0), Make(1), Remove(1), Rename];
        let world = World::new(telling);
        let tried =
            try_all(&world, &one, 6, &mut Vec::new()) + try_all(&world, &two, 5, &mut Vec::new());
        assert!(tried > 10_000, "{telling:?}: {tried}");
        eprintln!("{telling:?} {tried}");
    }
}

//! Leases over all short sequences of events, and over long random ones.

use super::*;

const PATIENCE: Duration = Duration::from_secs(15);
const KINDS: [LeaseKind; 3] = [LeaseKind::None, LeaseKind::Read, LeaseKind::Write];

fn session(number: u8) -> SessionId {
    SessionId([number; 16])
}

/// The state for which the invariants are stated, derived from the machine's actions alone.
#[derive(Clone)]
struct Known {
    leases: Leases,
    /// The leases that were granted, to which session, and what was recalled of them.
    given: BTreeMap<LeaseNumber, (SessionId, FileId, LeaseKind, Option<LeaseKind>)>,
    waiting: BTreeMap<CallNumber, (SessionId, Vec<Demand>)>,
    from_before: BTreeSet<SessionId>,
    calls: u64,
    highest: u64,
    now: Instant,
}

/// The next step. Numbers of leases are not known in advance.
#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(u8, u64, LeaseKind),
    Demand(u8, u64, LeaseKind),
    /// A call that demands two files whole.
    DemandTwo(u8),
    Return(u8, u64, LeaseKind),
    Reach(u8),
    Gone(u64),
    FromBefore(u8),
    Resume(u8),
    End(u8),
    Tick(u64),
}

impl Known {
    fn new(now: Instant) -> Known {
        Known {
            leases: Leases::new(1, PATIENCE),
            given: BTreeMap::new(),
            waiting: BTreeMap::new(),
            from_before: BTreeSet::new(),
            calls: 0,
            highest: 0,
            now,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Ask(who, file, kind) => self.ask(session(who), FileId(file), kind),
            Step::Demand(who, file, keep) => {
                self.demand(session(who), vec![Demand { file: FileId(file), keep }]);
            }
            Step::DemandTwo(who) => {
                let demand = |file| Demand { file: FileId(file), keep: LeaseKind::None };
                self.demand(session(who), vec![demand(1), demand(2)]);
            }
            Step::Return(who, file, keep) => self.give_back(session(who), FileId(file), keep),
            Step::Reach(who) => {
                let session = session(who);
                let actions = self.leases.apply(Event::Reached { session });
                let recalled: Vec<_> = self
                    .given
                    .iter()
                    .filter_map(|(number, given)| {
                        (given.0 == session && given.3.is_some()).then_some(*number)
                    })
                    .collect();
                let again: Vec<_> = actions
                    .iter()
                    .filter_map(|action| match action {
                        Action::Recall { number, .. } => Some(*number),
                        _ => None,
                    })
                    .collect();
                assert_eq!(again, recalled, "all that is recalled is recalled again");
                self.take(actions);
            }
            Step::Gone(file) => {
                self.given.retain(|_, given| given.1 != FileId(file));
                let actions = self.leases.apply(Event::Gone { file: FileId(file) });
                self.take(actions);
            }
            Step::FromBefore(who) => {
                self.from_before.insert(session(who));
                let actions = self.leases.apply(Event::FromBefore { session: session(who) });
                self.take(actions);
            }
            Step::Resume(who) => {
                self.from_before.remove(&session(who));
                let actions = self.leases.apply(Event::Resumed { session: session(who) });
                self.take(actions);
            }
            Step::End(who) => {
                let over = session(who);
                self.given.retain(|_, given| given.0 != over);
                self.from_before.remove(&over);
                for (of, demands) in self.waiting.values_mut() {
                    if *of == over {
                        demands.clear();
                    }
                }
                let actions = self.leases.apply(Event::Ended { session: over });
                self.take(actions);
            }
            Step::Tick(seconds) => self.tick(seconds),
        }
        self.check();
    }

    fn ask(&mut self, session: SessionId, file: FileId, kind: LeaseKind) {
        let actions = self.leases.apply(Event::Asked { session, file, kind });
        let mine = self.given.iter().find(|(_, given)| (given.0, given.1) == (session, file));
        match actions[..] {
            [] => {}
            [Action::Give(LeaseGiven { kind: got, number })] => {
                assert_ne!(got, LeaseKind::None);
                match mine {
                    Some((same, given)) => {
                        assert!(*same == number && given.3.is_none() && got >= given.2);
                    }
                    None => assert!(number.0 > self.highest && got <= kind),
                }
                self.highest = self.highest.max(number.0);
                for (of, demands) in self.waiting.values().filter(|(of, _)| *of != session) {
                    let stops = |demand: &Demand| demand.file == file && demand.keep < got;
                    assert!(!demands.iter().any(stops), "{of:?} would wait for it");
                }
                self.given.insert(number, (session, file, got, None));
            }
            _ => panic!("{actions:?}"),
        }
    }

    fn demand(&mut self, session: SessionId, demands: Vec<Demand>) {
        self.calls += 1;
        let (call, now) = (CallNumber(self.calls), self.now);
        self.waiting.insert(call, (session, demands.clone()));
        let actions = self.leases.apply(Event::Demanded { call, session, demands, now });
        self.take(actions);
    }

    fn give_back(&mut self, session: SessionId, file: FileId, keep: LeaseKind) {
        let of = |given: &&(SessionId, FileId, LeaseKind, Option<LeaseKind>)| {
            (given.0, given.1) == (session, file)
        };
        // A session without a lease returns one that it never had.
        let number = self.given.iter().find(|(_, given)| of(given)).map(|(number, _)| *number);
        let number = number.unwrap_or(LeaseNumber(self.highest + 1));
        if let Some(given) = self.given.get_mut(&number) {
            given.2 = given.2.min(keep);
            given.3 = given.3.filter(|wanted| *wanted < given.2);
        }
        self.given.retain(|_, given| given.2 != LeaseKind::None);
        let returned = Returned { file, number, keep };
        let actions = self.leases.apply(Event::Returned { session, returned });
        self.take(actions);
    }

    fn tick(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        for action in self.leases.apply(Event::Ticked { now: self.now }) {
            let Action::Condemn(late) = action else { panic!("{action:?}") };
            let mut given = self.given.values();
            assert!(given.any(|given| given.0 == late && given.3.is_some()));
        }
    }

    fn take(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Go(call) => {
                    let (of, demands) = self.waiting.remove(&call).expect("a call that waits");
                    assert!(!self.is_stopped(of, &demands), "{call:?} goes too early");
                }
                Action::Recall { session, file, number, keep } => {
                    let given = self.given.get_mut(&number).expect("a lease that was given");
                    assert!((given.0, given.1) == (session, file) && given.2 > keep);
                    given.3 = Some(given.3.map_or(keep, |before| before.min(keep)));
                }
                Action::Give(_) | Action::Condemn(_) => panic!("{action:?}"),
            }
        }
    }

    fn is_stopped(&self, of: SessionId, demands: &[Demand]) -> bool {
        demands.iter().any(|demand| {
            let others = self.given.values().filter(|given| given.0 != of);
            let unknown = self.from_before.iter().any(|one| *one != of);
            (unknown && demand.keep == LeaseKind::None)
                || others.clone().any(|given| given.1 == demand.file && given.2 > demand.keep)
        })
    }

    fn check(&self) {
        for (call, (of, demands)) in &self.waiting {
            assert!(self.is_stopped(*of, demands), "{call:?} waits for nothing");
            for demand in demands {
                let others = self.given.values().filter(|given| given.0 != *of);
                for given in others.filter(|one| one.1 == demand.file && one.2 > demand.keep) {
                    assert!(given.3.is_some_and(|told| told <= demand.keep), "nobody was told");
                }
            }
        }
        for given in self.given.values().filter(|given| given.2 == LeaseKind::Write) {
            let on_it = self.given.values().filter(|other| other.1 == given.1).count();
            assert_eq!(on_it, 1, "a write lease is alone");
        }
        for who in 0..4 {
            let others = self.given.values().map(|given| given.0);
            let mut others = others.chain(self.from_before.iter().copied());
            let some = others.any(|other| other != session(who));
            assert_eq!(self.leases.others_have_some(session(who)), some);
        }
    }

    /// Every session does what is requested of it.
    fn obey(&mut self) {
        for (who, file, keep) in
            self.given.values().filter_map(|one| Some((one.0, one.1, one.3?))).collect::<Vec<_>>()
        {
            self.give_back(who, file, keep);
            self.check();
        }
        for who in self.from_before.clone() {
            self.step(Step::Resume(who.0[0]));
        }
        assert!(self.waiting.is_empty(), "nothing is in the way of anybody");
        self.tick(100);
    }
}

/// Every step of two sessions with one file, and with a second one that is demanded together with
/// it.
fn all_steps() -> Vec<Step> {
    let mut steps = vec![Step::Gone(1), Step::Tick(20), Step::DemandTwo(1)];
    for who in [1, 2] {
        steps.extend([LeaseKind::Read, LeaseKind::Write].map(|kind| Step::Ask(who, 1, kind)));
        steps.extend([LeaseKind::None, LeaseKind::Read].map(|keep| Step::Demand(who, 1, keep)));
        steps.extend([LeaseKind::None, LeaseKind::Read].map(|keep| Step::Return(who, 1, keep)));
        steps.push(Step::End(who));
    }
    steps.extend([Step::Reach(2), Step::FromBefore(2), Step::Resume(2)]);
    steps.push(Step::Ask(2, 2, LeaseKind::Read));
    steps
}

fn all_sequences(known: &Known, steps: &[Step], length: usize, tried: &mut u64) {
    for step in steps {
        let mut next = known.clone();
        next.step(*step);
        *tried += 1;
        match length {
            1 => next.obey(),
            _ => all_sequences(&next, steps, length - 1, tried),
        }
    }
}

/// Every sequence of four events of all kinds by two sessions, and what follows when every session
/// then does what is requested of it.
#[test]
fn leases_are_right_after_every_short_sequence() {
    let mut tried = 0;
    all_sequences(&Known::new(Instant::now()), &all_steps(), 4, &mut tried);
    assert!(tried > 150_000, "{tried}");
}

/// Long sequences by three sessions on three files.
#[test]
fn leases_are_right_after_long_random_sequences() {
    let mut random = 7_u64;
    let mut below = |bound: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    for _ in 0..200 {
        let mut known = Known::new(Instant::now());
        for _ in 0..300 {
            let (who, file) = (1 + below(3) as u8, 1 + below(3));
            let kind = KINDS[below(3) as usize];
            known.step(match below(40) {
                0..=13 => Step::Ask(who, file, kind),
                14..=22 => Step::Demand(who, file, kind.min(LeaseKind::Read)),
                23..=25 => Step::DemandTwo(who),
                26..=34 => Step::Return(who, file, kind.min(LeaseKind::Read)),
                35 => Step::Gone(file),
                36 => Step::FromBefore(who),
                37 => Step::Resume(who),
                38 => Step::End(who),
                _ => Step::Tick(below(10)),
            });
        }
        known.obey();
    }
}

#[test]
fn a_client_that_returns_nothing_is_condemned_in_time() {
    let now = Instant::now();
    let mut leases = Leases::new(1, PATIENCE);
    let (one, two, file) = (session(1), session(2), FileId(1));
    leases.apply(Event::Asked { session: one, file, kind: LeaseKind::Read });
    let demands = vec![Demand { file, keep: LeaseKind::None }];
    let call = CallNumber(1);
    leases.apply(Event::Demanded { call, session: two, demands: demands.clone(), now });
    assert_eq!(leases.apply(Event::Ticked { now: now + PATIENCE / 2 }), []);
    // Another session wants it, too: that does not extend the time.
    let later = now + PATIENCE / 2;
    leases.apply(Event::Demanded { call: CallNumber(2), session: two, demands, now: later });
    assert_eq!(leases.apply(Event::Ticked { now: now + PATIENCE }), [Action::Condemn(one)]);
    let gone = leases.apply(Event::Ended { session: one });
    assert_eq!(gone, [Action::Go(call), Action::Go(CallNumber(2))]);
}

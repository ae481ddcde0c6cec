//! Slices at times that the tests decide.

use super::*;

const WIDTH: Duration = Duration::from_millis(1);

fn division() -> Division {
    Division { begin: Instant::now(), width: WIDTH }
}

/// A connection and its recorder; times are in microseconds since the recording began.
struct Bench {
    division: Division,
    recorder: Recorder,
    state: Moment,
    reported: Reported,
}

impl Bench {
    fn new() -> Bench {
        let division = division();
        let state = Moment { window: 2, ..Moment::default() };
        Bench {
            division,
            recorder: Recorder::new(0, division),
            state,
            reported: Reported::default(),
        }
    }

    fn at(&mut self, us: u64, change: impl FnOnce(&mut Moment)) {
        let now = self.division.begin + Duration::from_micros(us);
        self.recorder.note(now, &self.state);
        change(&mut self.state);
    }

    /// The slices that a reader gets at this time.
    fn take(&mut self, us: u64) -> Vec<Slice> {
        let until = self.division.number(self.division.begin + Duration::from_micros(us));
        self.reported.tell(self.recorder.take(until, &self.state))
    }

    fn take_rest(mut self) -> Vec<Slice> {
        self.reported.tell(self.recorder.finish(&self.state))
    }
}

/// A call is given to the connection and sent, or waits.
fn offer(state: &mut Moment) {
    state.totals.offered += 1;
    match state.in_flight < state.window {
        true => state.in_flight += 1,
        false => state.backlog += 1,
    }
}

/// A call is answered, and one that waits is sent.
fn complete(state: &mut Moment) {
    state.totals.completed += 1;
    let next = state.backlog.min(1);
    state.backlog -= next;
    state.in_flight = state.in_flight + next - 1;
}

/// A call is sent again, as over UDP, and the window is halved.
fn lose(state: &mut Moment) {
    state.totals.timeouts += 1;
    state.totals.retransmits += 1;
    state.window = (state.window / 2).max(1);
}

#[test]
fn a_stalled_server_is_seen_in_the_slices_of_the_stall() {
    let mut bench = Bench::new();
    for us in [100, 400, 1200, 1900] {
        bench.at(us, offer);
    }
    bench.at(5500, lose);
    bench.at(7999, lose);
    bench.at(8000, complete);
    let slice = Slice { window: 2, ..Slice::default() };
    let lost = Slice { timeouts: 1, retransmits: 1, window: 1, in_flight: 2, backlog: 2, ..slice };
    assert_eq!(
        bench.take(9000),
        [
            Slice { number: 0, offered: 2, in_flight: 2, ..slice },
            Slice { number: 1, offered: 2, in_flight: 2, backlog: 2, ..slice },
            Slice { number: 5, ..lost },
            Slice { number: 7, ..lost },
            Slice { number: 8, completed: 1, window: 1, in_flight: 2, backlog: 1, ..slice },
        ]
    );
}

#[test]
fn a_slice_is_told_once_it_is_over_and_the_last_at_the_end() {
    let mut bench = Bench::new();
    bench.at(100, offer);
    assert_eq!(bench.take(999), []);
    assert_eq!(bench.take(1000).len(), 1);
    assert_eq!(bench.take(9000), [], "nothing happened");
    bench.at(9500, complete);
    assert_eq!(bench.take(9999), []);
    let rest = bench.take_rest();
    assert_eq!(rest, [Slice { number: 9, completed: 1, window: 2, ..Slice::default() }]);
}

#[test]
fn the_first_slice_says_how_the_connection_was() {
    let mut bench = Bench::new();
    bench.state = Moment { window: 7, in_flight: 3, ..Moment::default() };
    let first = Slice { window: 7, in_flight: 3, ..Slice::default() };
    assert_eq!(bench.take(1000), [first]);
}

#[test]
fn an_event_that_waited_for_the_lock_counts_in_a_slice_that_is_not_told_yet() {
    let mut bench = Bench::new();
    bench.at(100, offer);
    assert_eq!(bench.take(3000).len(), 1);
    bench.at(2900, complete);
    bench.at(50, offer);
    let late = Slice { completed: 1, offered: 1, in_flight: 1, window: 2, ..Slice::default() };
    assert_eq!(bench.take_rest(), [Slice { number: 3, ..late }]);
}

#[test]
fn a_slow_reader_loses_slices_and_no_events() {
    let mut bench = Bench::new();
    bench.take(1000);
    let slices = KEPT_MAX as u64 + 5;
    for number in 2..2 + slices {
        bench.at(number * 1000, offer);
    }
    let told = bench.take_rest();
    assert_eq!(told.len(), KEPT_MAX);
    // Slice 1 had no event, so it cannot be distinguished from those that were dropped.
    assert_eq!((told[0].number, told[0].dropped, told[0].offered), (7, 6, 6));
    assert!(told[1..].iter().all(|slice| slice.dropped == 0 && slice.offered == 1));
    assert_eq!(told.iter().map(|slice| slice.offered).sum::<u64>(), slices);
}

/// Random events, each counted in the slice of its time, with a reader that takes slices at random
/// times.
#[test]
fn slices_are_those_of_a_model() {
    let seed = crate::random_u64();
    let mut random = seed | 1;
    let mut below = |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % limit
    };
    let mut bench = Bench::new();
    let (mut model, mut told, mut us) = (std::collections::BTreeMap::new(), Vec::new(), 0);
    model.insert(0, bench.state);
    for _ in 0..2000 {
        us += if below(4) == 0 { below(5000) } else { below(300) };
        let change = match below(8) {
            0 => {
                told.extend(bench.take(us));
                continue;
            }
            1 => lose,
            2..5 if bench.state.in_flight > 0 => complete,
            _ => offer,
        };
        bench.at(us, change);
        model.insert(us / 1000, bench.state);
    }
    told.extend(bench.take_rest());
    let mut was = Totals::default();
    let expected: Vec<_> = model
        .into_iter()
        .map(|(number, end)| {
            let is = end.totals;
            let slice = Slice {
                number,
                offered: is.offered - was.offered,
                completed: is.completed - was.completed,
                retransmits: is.retransmits - was.retransmits,
                timeouts: is.timeouts - was.timeouts,
                in_flight: end.in_flight,
                window: end.window,
                backlog: end.backlog,
                dropped: 0,
            };
            was = is;
            slice
        })
        .collect();
    assert!(told == expected, "seed {seed}: {told:?} is not {expected:?}");
}

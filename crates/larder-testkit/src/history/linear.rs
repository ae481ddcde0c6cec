//! The search for an order of calls that explains all answers (Wing and Gong, Testing and Verifying
//! Concurrent Objects, 1993; with Lowe's memory of what was tried, Testing for Linearizability,
//! 2017).
//!
//! One call after the other is taken: any that was made before the first answer among those that
//! are left. A set of taken calls and the state that they led to is tried once.

use std::collections::HashSet;
use std::hash::Hash;

use super::Timed;

/// Most calls in one history: the search keeps them in a bit set.
pub const CALLS_MAX: usize = 128;

/// A sequential specification: what one call after the other does.
pub trait Model {
    /// A call with its answer.
    type Call;
    /// The state between two calls.
    type State: Clone + Eq + Hash;

    /// The initial state.
    fn first(&self) -> Self::State;

    /// The state after `call`, if in `state` it may be answered as it was; otherwise `None`.
    fn after(&self, state: &Self::State, call: &Self::Call) -> Option<Self::State>;
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Some order of the calls explains all answers.
    Explained,
    /// No order does. This is the longest prefix that was found, as indices into the history.
    Wrong {
        /// The calls that can have been carried out, in this order; none of the others can follow.
        reached: Vec<usize>,
    },
    /// The search would have to try more states than allowed.
    Undecided,
}

/// Searches for an order that explains all answers, and tries up to `states_max` states.
///
/// # Panics
/// If there are more than [`CALLS_MAX`] calls.
pub fn explain<M: Model>(model: &M, calls: &[Timed<M::Call>], states_max: usize) -> Verdict {
    assert!(calls.len() <= CALLS_MAX, "{} calls", calls.len());
    let answered = |at: &usize| calls[*at].span.answered.is_some();
    let must = (0..calls.len()).filter(answered).fold(0, |set, at| set | bit(at));
    let mut search = Search {
        model,
        calls,
        must,
        tried: HashSet::new(),
        states_max,
        taken: Vec::new(),
        reached: Vec::new(),
    };
    let is_explained = search.goes_on(0, &model.first());
    match (is_explained, search.tried.len() > states_max) {
        (true, _) => Verdict::Explained,
        (false, true) => Verdict::Undecided,
        (false, false) => Verdict::Wrong { reached: search.reached },
    }
}

fn bit(at: usize) -> u128 {
    1 << at
}

struct Search<'a, M: Model> {
    model: &'a M,
    calls: &'a [Timed<M::Call>],
    /// The calls that were answered: an order must contain them.
    must: u128,
    tried: HashSet<(u128, M::State)>,
    states_max: usize,
    taken: Vec<usize>,
    reached: Vec<usize>,
}

impl<M: Model> Search<'_, M> {
    /// Whether the calls outside `done` can be carried out, starting from `state`.
    fn goes_on(&mut self, done: u128, state: &M::State) -> bool {
        if done & self.must == self.must {
            return true;
        }
        let is_over = self.tried.len() > self.states_max;
        if is_over || !self.tried.insert((done, state.clone())) {
            return false;
        }
        let left = (0..self.calls.len()).filter(|at| done & bit(*at) == 0);
        let left: Vec<usize> = left.collect();
        let first_answer = left.iter().filter_map(|at| self.calls[*at].span.answered).min();
        let first_answer = first_answer.expect("one that was answered is left");
        for at in left {
            let Timed { span, call } = &self.calls[at];
            if span.made > first_answer {
                continue;
            }
            let Some(next) = self.model.after(state, call) else { continue };
            self.taken.push(at);
            if self.taken.len() > self.reached.len() {
                self.reached.clone_from(&self.taken);
            }
            if self.goes_on(done | bit(at), &next) {
                return true;
            }
            self.taken.pop();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::Span;
    use super::*;

    /// A register with one value.
    struct Register;

    #[derive(Clone, Copy, Debug)]
    enum Call {
        Write(u8),
        Read(u8),
    }

    impl Model for Register {
        type Call = Call;
        type State = u8;

        fn first(&self) -> u8 {
            0
        }

        fn after(&self, state: &u8, call: &Call) -> Option<u8> {
            match *call {
                Call::Write(value) => Some(value),
                Call::Read(value) => (value == *state).then_some(value),
            }
        }
    }

    fn timed(made: u64, answered: Option<u64>, call: Call) -> Timed<Call> {
        Timed { span: Span { made, answered }, call }
    }

    fn is_explained(calls: &[Timed<Call>]) -> bool {
        explain(&Register, calls, 10_000) == Verdict::Explained
    }

    #[test]
    fn answers_that_no_order_explains_are_wrong() {
        let old_after_new = [
            timed(1, Some(10), Call::Write(7)),
            timed(2, Some(3), Call::Read(7)),
            timed(4, Some(5), Call::Read(0)),
        ];
        assert_eq!(
            explain(&Register, &old_after_new, 10_000),
            Verdict::Wrong { reached: vec![0, 1] }
        );
        let stale = [timed(1, Some(2), Call::Write(7)), timed(3, Some(4), Call::Read(0))];
        assert!(!is_explained(&stale));
        let from_the_future = [timed(1, Some(2), Call::Read(7)), timed(3, Some(4), Call::Write(7))];
        assert!(!is_explained(&from_the_future));
        let never_written = [timed(1, Some(2), Call::Read(7))];
        assert!(!is_explained(&never_written));
    }

    #[test]
    fn a_call_without_an_end_may_have_been_carried_out_or_not() {
        let lost = timed(1, None, Call::Write(7));
        assert!(is_explained(std::slice::from_ref(&lost)));
        for last in [0, 7] {
            let reads = [
                timed(2, Some(3), Call::Read(0)),
                timed(4, Some(5), Call::Read(last)),
                lost.clone(),
            ];
            assert!(is_explained(&reads), "{last}");
        }
        let undone = [lost, timed(2, Some(3), Call::Read(7)), timed(4, Some(5), Call::Read(0))];
        assert!(!is_explained(&undone));
    }

    #[test]
    fn what_takes_too_many_states_is_not_decided() {
        let at_once = (0..12).map(|at| timed(at, Some(100), Call::Write(at as u8)));
        let mut calls: Vec<_> = at_once.collect();
        calls.push(timed(101, Some(102), Call::Read(77)));
        assert_eq!(explain(&Register, &calls, 50), Verdict::Undecided);
    }

    /// Compares the search with a trial of all orders, for histories of three calls on a register
    /// that holds 0 or 1, whatever their spans.
    #[test]
    fn the_search_finds_what_all_orders_have() {
        const CALLS: [Call; 4] = [Call::Write(0), Call::Write(1), Call::Read(0), Call::Read(1)];
        let spans: Vec<(u64, Option<u64>)> = (0..5)
            .flat_map(|made| (made + 1..=6).map(move |end| (made, (end < 6).then_some(end))))
            .collect();
        let (mut explained, mut wrong) = (0, 0);
        for number in 0..(spans.len() * CALLS.len()).pow(3) {
            // Only one history in seven: all would take minutes.
            if number % 7 != 0 {
                continue;
            }
            let mut rest = number;
            let mut next = |bound: usize| {
                let digit = rest % bound;
                rest /= bound;
                digit
            };
            let calls: Vec<_> = (0..3)
                .map(|_| {
                    let (made, answered) = spans[next(spans.len())];
                    // No two ticks are the same.
                    timed(made * 2, answered.map(|end| end * 2 + 1), CALLS[next(CALLS.len())])
                })
                .collect();
            let expected = orders(&calls).any(|order| holds(&calls, &order));
            assert_eq!(is_explained(&calls), expected, "{calls:?}");
            *if expected { &mut explained } else { &mut wrong } += 1;
        }
        assert!(explained > 1000 && wrong > 1000, "{explained} {wrong}");
    }

    /// All orders of three calls, with and without each call that has no answer.
    fn orders(calls: &[Timed<Call>]) -> impl Iterator<Item = Vec<usize>> {
        const ORDERS: [[usize; 3]; 6] =
            [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let may_lack: Vec<bool> = calls.iter().map(|call| call.span.answered.is_none()).collect();
        ORDERS.into_iter().flat_map(move |order| {
            let may_lack = may_lack.clone();
            (0..8_usize)
                .filter(move |lacks| (0..3).all(|at| lacks >> at & 1 == 0 || may_lack[at]))
                .map(move |lacks| {
                    order.into_iter().filter(|at| lacks >> at & 1 == 0).collect::<Vec<_>>()
                })
        })
    }

    fn holds(calls: &[Timed<Call>], order: &[usize]) -> bool {
        let in_time = order.iter().enumerate().all(|(place, at)| {
            let later = &order[place..];
            later.iter().all(|other| {
                calls[*other].span.answered.is_none_or(|end| end > calls[*at].span.made)
            })
        });
        let mut state = 0;
        in_time
            && order.iter().all(|at| {
                let next = Register.after(&state, &calls[*at].call);
                state = next.unwrap_or(state);
                next.is_some()
            })
    }
}

//! Questions to a disk whether bytes that clients say are in flight have been written. Those that
//! come while one is under way go together: each call costs the disk a sync, and the server a call.
//!
//! Each has an answer of its own. Bytes that do not come delay those that were asked for with them
//! by [`TOGETHER_WAIT`] at most: after that each is asked for alone.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_wire::capability::EXTENTS_MAX;
use tokio::sync::oneshot;

use super::extents::{extents, joined};

/// For so long a disk waits for bytes of several questions, and others for a question before them.
/// Most bytes come at about the time of the question.
pub(super) const TOGETHER_WAIT: Duration = Duration::from_millis(10);

/// A question: blocks, in order, and who asks.
pub(super) struct Question {
    pub(super) blocks: Vec<Range<u64>>,
    asks: oneshot::Sender<bool>,
}

impl std::fmt::Debug for Question {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.blocks.fmt(f)
    }
}

impl Question {
    pub(super) fn answer(self, is_written: bool) {
        // A caller that is gone does not wait.
        let _ = self.asks.send(is_written);
    }
}

/// The questions that wait.
#[derive(Debug, Default)]
pub(super) struct Questions(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Question>,
    /// Whether somebody asks them.
    is_asking: bool,
}

/// A question that waits.
pub(super) struct Waiting {
    pub(super) answer: oneshot::Receiver<bool>,
    /// Whether its caller is to see to it that all are asked: nobody does.
    pub(super) is_to_ask: bool,
}

impl Questions {
    /// Adds a question. `None`: it makes no sense.
    pub(super) fn add(&self, blocks: Vec<Range<u64>>) -> Option<Waiting> {
        if blocks.iter().any(Range::is_empty) {
            return None;
        }
        let blocks = joined(blocks);
        extents(&blocks).ok()?;
        let (asks, answer) = oneshot::channel();
        let mut state = self.lock();
        state.waiting.push(Question { blocks, asks });
        Some(Waiting { answer, is_to_ask: !std::mem::replace(&mut state.is_asking, true) })
    }

    /// The questions of the next call: as many as fit, the oldest first. `None`: there are none,
    /// and whoever adds one is to ask it.
    pub(super) fn next(&self) -> Option<Vec<Question>> {
        let mut state = self.lock();
        let mut together: Vec<Range<u64>> = Vec::new();
        let fits = |question: &&Question| {
            let all = joined([together.as_slice(), &question.blocks].concat());
            let fits = all.len() <= EXTENTS_MAX;
            if fits {
                together = all;
            }
            fits
        };
        let count = state.waiting.iter().take_while(fits).count();
        state.is_asking = count > 0;
        let questions: Vec<Question> = state.waiting.drain(..count).collect();
        (!questions.is_empty()).then_some(questions)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What all of them ask for.
pub(super) fn together(questions: &[Question]) -> Vec<Range<u64>> {
    joined(questions.iter().flat_map(|question| question.blocks.clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: u64 = 4096;

    fn blocks(numbers: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
        numbers.into_iter().map(|number| number * B..(number + 1) * B).collect()
    }

    #[test]
    fn what_has_come_meanwhile_is_asked_by_one_call_as_far_as_it_fits() {
        let questions = Questions::default();
        assert!(questions.next().is_none());
        assert!(questions.add(blocks([1])).unwrap().is_to_ask);
        assert_eq!(together(&questions.next().unwrap()), blocks([1]));
        // While that is under way.
        let many = EXTENTS_MAX as u64;
        let asked = [blocks([3, 2]), blocks([2]), blocks((0..many - 1).map(|at| 10 + 2 * at))];
        for one in asked {
            assert!(!questions.add(one).unwrap().is_to_ask);
        }
        let too_many = questions.add(blocks([5])).unwrap();
        let next = questions.next().unwrap();
        assert_eq!((next.len(), together(&next).len()), (3, EXTENTS_MAX));
        assert_eq!(together(&next)[0], 2 * B..4 * B);
        let next = questions.next().unwrap();
        assert_eq!(together(&next), blocks([5]));
        next.into_iter().for_each(|question| question.answer(true));
        assert_eq!({ too_many.answer }.try_recv(), Ok(true));
        assert!(questions.next().is_none());
        assert!(questions.add(blocks([1])).unwrap().is_to_ask);
    }

    #[test]
    fn a_question_without_sense_keeps_nobody_waiting() {
        let questions = Questions::default();
        let many = (0..=EXTENTS_MAX as u64).map(|at| 2 * at);
        let (inverted, empty) = (Range { start: 5, end: 3 }, 4..4);
        for wrong in [Vec::new(), blocks(many), vec![inverted], vec![empty]] {
            assert!(questions.add(wrong).is_none());
        }
        assert!(questions.next().is_none());
    }
}

//! Which sequence numbers of a session were used: exactly, for the last [`WINDOW`] of them.
//!
//! Invariant: a number is taken at most once. A number that is [`WINDOW`] or more below the highest
//! is refused whether it was taken or not: one client does not have that many requests in flight.

use larder_wire::disk::SEQUENCE_END;
use larder_wire::disk::words::Refusal;

/// How many numbers below the highest are tracked.
pub const WINDOW: u64 = 1024;
const WORDS: usize = WINDOW as usize / 64;

/// The numbers of a session. They begin at 1.
#[derive(Debug, Default)]
pub struct Window {
    highest: u64,
    /// A bit for each of the last numbers, at its remainder by [`WINDOW`].
    taken: [u64; WORDS],
}

impl Window {
    /// Takes a number.
    ///
    /// # Errors
    /// [`Refusal::Replayed`] if it was taken, or is too old to know; [`Refusal::Exhausted`] if the
    /// session has no such number. Then nothing is changed.
    pub fn take(&mut self, sequence: u64) -> Result<(), Refusal> {
        if sequence >= SEQUENCE_END {
            return Err(Refusal::Exhausted);
        }
        if sequence == 0 || sequence + WINDOW <= self.highest {
            return Err(Refusal::Replayed);
        }
        if sequence > self.highest {
            // The numbers in between were not taken: their places were used by older ones.
            if sequence - self.highest >= WINDOW {
                self.taken = [0; WORDS];
            } else {
                for between in self.highest + 1..=sequence {
                    let (word, bit) = bit_of(between);
                    self.taken[word] &= !bit;
                }
            }
            self.highest = sequence;
        }
        let (word, bit) = bit_of(sequence);
        if self.taken[word] & bit != 0 {
            return Err(Refusal::Replayed);
        }
        self.taken[word] |= bit;
        Ok(())
    }
}

fn bit_of(sequence: u64) -> (usize, u64) {
    let at = sequence % WINDOW;
    ((at / 64) as usize, 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What the window promises, without forgetting anything.
    #[derive(Default)]
    struct Model {
        taken: BTreeSet<u64>,
    }

    impl Model {
        fn take(&mut self, sequence: u64) -> Result<(), Refusal> {
            let highest = self.taken.last().copied().unwrap_or(0);
            match () {
                () if sequence >= SEQUENCE_END => Err(Refusal::Exhausted),
                () if sequence == 0 || sequence + WINDOW <= highest => Err(Refusal::Replayed),
                () if !self.taken.insert(sequence) => Err(Refusal::Replayed),
                () => Ok(()),
            }
        }
    }

    fn check(sequences: &[u64]) {
        let (mut window, mut model) = (Window::default(), Model::default());
        for sequence in sequences {
            assert_eq!(
                window.take(*sequence),
                model.take(*sequence),
                "{sequence} of {sequences:?}"
            );
        }
    }

    /// Every order of every four numbers among those at which the behaviour changes.
    #[test]
    fn every_short_history_agrees_with_the_model() {
        let numbers = [
            0,
            1,
            2,
            63,
            64,
            65,
            WINDOW - 1,
            WINDOW,
            WINDOW + 1,
            2 * WINDOW,
            2 * WINDOW + 1,
            SEQUENCE_END - 1,
            SEQUENCE_END,
        ];
        let count = numbers.len();
        for history in 0..count.pow(4) {
            let digit = |at: u32| numbers[history / count.pow(at) % count];
            check(&[digit(0), digit(1), digit(2), digit(3)]);
        }
    }

    proptest::proptest! {
        #[test]
        fn every_long_history_agrees_with_the_model(
            steps in proptest::collection::vec((0_u64..3000, 0_u64..1100), 0..400),
        ) {
            let mut highest = 0;
            let numbers: Vec<u64> = steps.iter().map(|(forward, back)| {
                highest += forward * u64::from(forward % 7 == 0) + 1;
                u64::saturating_sub(highest, *back)
            }).collect();
            check(&numbers);
        }
    }
}

//! Notices that our own changes cause in a watched directory.
//!
//! A notice tells what happened to which name, and not who did it. So before the server is asked
//! for a change, its notices are expected. A notice that none is expected for tells of another
//! client's change. The server tells of every change, so if nobody else changed anything there are
//! as many notices as expected; any more come from somebody else, whichever came first.
//!
//! That needs an end to each expectation, or one whose notice is lost would hide another client's
//! change:
//! - The server tells of changes in the order in which it made them. If the notice of a change
//!   comes, and that of an earlier one has not (one that was answered before the later was asked
//!   for), that one is lost.
//! - It tells of a change right away. If a notice has not come [`LATE_AFTER`] the answer, it is
//!   lost.
//! - If the server refused the change, it causes no notice. One that was taken for its own was
//!   somebody else's.
//!
//! In each of these cases names may have changed that nobody told us of: the watch is over. So it
//! is if an answer is lost.
//!
//! What a notice does not tell is which file the name is of. Samba tells of two equal events that
//! follow each other only once, so if we make a name and another client renames a file of another
//! directory over it, before the first notice is sent, the watch does not show that. The name is
//! there, as we believe, and its file is asked about as any file is.
//!
//! Pure.

use larder_io::Monotonic;
use std::time::Duration;

/// A notice that has not come so long after the answer to the change is lost.
pub(super) const LATE_AFTER: Duration = Duration::from_secs(5);

/// Most changes whose notices are expected at the same time.
const EXPECTED_MAX: usize = 1024;

/// What happens to a name: that it is replaced is the one or the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// It is made, given to a file, or is the new name of one.
    Come,
    /// It is removed, or was the former name of a file.
    Gone,
}

/// One notice that is expected, until both it and the answer have come.
#[derive(Clone, Debug)]
struct Expectation {
    number: u64,
    name: String,
    event: Event,
    /// The answer came, then.
    answered: Option<(u64, Monotonic)>,
    /// The notice came.
    is_told: bool,
}

impl Expectation {
    fn is_of(&self, name: &str, event: Event) -> bool {
        self.event == event && self.name == name
    }
}

/// The notices that are expected in one directory.
#[derive(Clone, Debug, Default)]
pub(super) struct Expected {
    /// In the order in which they were begun.
    expectations: Vec<Expectation>,
    /// Expectations begun and answered so far: their order.
    steps: u64,
    is_over: bool,
}

impl Expected {
    /// Before the server is asked for a change: expects that notice. Returns its number for
    /// [`Expected::made`] and [`Expected::refused`].
    pub(super) fn begin(&mut self, name: &str, event: Event) -> u64 {
        self.steps += 1;
        self.is_over |= self.expectations.len() >= EXPECTED_MAX;
        if !self.is_over {
            let (number, name) = (self.steps, name.to_owned());
            let (answered, is_told) = (None, false);
            self.expectations.push(Expectation { number, name, event, answered, is_told });
        }
        self.steps
    }

    /// The server has answered that it made this change.
    pub(super) fn made(&mut self, number: u64, now: Monotonic) {
        self.steps += 1;
        let Some(at) = self.place(number) else { return };
        let made = &self.expectations[at];
        // What was told may be this change, and not one that is still under way.
        let is_told = |one: &Expectation| one.is_told && one.is_of(&made.name, made.event);
        let told = if made.is_told { Some(at) } else { self.expectations.iter().position(is_told) };
        match told {
            Some(told) => {
                self.expectations[told].is_told = false;
                self.expectations.remove(at);
            }
            None => self.expectations[at].answered = Some((self.steps, now)),
        }
    }

    /// The server has refused this change.
    pub(super) fn refused(&mut self, number: u64) {
        let Some(at) = self.place(number) else { return };
        let refused = self.expectations.remove(at);
        if refused.is_told {
            // Its notice is that of another change.
            self.told(&refused.name, refused.event);
        }
    }

    /// A notice has come.
    pub(super) fn told(&mut self, name: &str, event: Event) {
        let untold = || self.expectations.iter().filter(|one| !one.is_told);
        let first_answered = untold().filter_map(|one| Some(one.answered?.0)).min();
        // One that was begun after an answer whose notice has not come would be told after it.
        let may_be = |one: &&Expectation| {
            one.is_of(name, event) && first_answered.is_none_or(|answered| one.number < answered)
        };
        let answered = untold().filter(may_be).filter_map(|one| Some((one.answered?.0, one)));
        let answered = answered.min_by_key(|(answered, _)| *answered).map(|(_, one)| one);
        let Some(number) = answered.or_else(|| untold().find(may_be)).map(|one| one.number) else {
            return self.end();
        };
        let at = self.place(number).expect("it was just found");
        match self.expectations[at].answered {
            Some(_) => drop(self.expectations.remove(at)),
            None => self.expectations[at].is_told = true,
        }
    }

    /// Another client has changed the directory, or may have.
    pub(super) fn end(&mut self) {
        self.is_over = true;
        self.expectations.clear();
    }

    /// Whether names may have changed that we do not know of.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// In what time the next notice will be late, if one is outstanding; zero if one is.
    pub(super) fn late_in(&self, now: Monotonic) -> Option<Duration> {
        let outstanding = self.expectations.iter().filter(|one| !one.is_told);
        let waited = outstanding.filter_map(|one| Some(now.since(one.answered?.1))).max()?;
        Some(LATE_AFTER.saturating_sub(waited))
    }

    fn place(&self, number: u64) -> Option<usize> {
        self.expectations.iter().position(|one| one.number == number)
    }
}

#[cfg(test)]
mod tests;

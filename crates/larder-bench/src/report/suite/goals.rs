//! What a suite's contestants were to reach, and what was measured of it: a row for each goal. A
//! goal is reached if the median is within its bound; whether the rounds show it, the interval
//! says. A row that was not measured says why.
//!
//! [`compare`] is what can be compared; which goals a suite has, its own module says.

mod compare;

pub(super) use compare::{
    ANY, At, Several, What, measured_at, of_work, phase_words, phases, title,
};

use crate::record::Run;
use crate::stats::Summary;

use super::super::document::{Cell, Table, Tone};
use super::super::number::{exact, span, three};
use compare::compare;

/// A bound on what is compared: a ratio of the time of ours to that of theirs, if it does not say
/// otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bound {
    /// Theirs takes at least this many times as long.
    TimesAsFast(f64),
    /// Ours takes at least this many percent less.
    PercentLess(f64),
    /// Ours takes at most this many times as long.
    TimesAsLong(f64),
    /// Ours takes less.
    Faster,
    /// None: a measure for other rows.
    Known,
    /// At most so many calls, for each operation.
    Calls(f64),
    /// At most so much of a processor, in percent.
    PercentOfCore(f64),
}

use Bound::{Calls, Faster, Known, PercentLess, PercentOfCore, TimesAsFast, TimesAsLong};

/// What of counts of calls may be over: calls of a test as a whole, by its operations.
const CALLS_OVER: f64 = 0.1;

/// The rows of the goals of a run.
pub(super) fn rows(run: &Run, goals: &[(What, Bound)]) -> Vec<Row> {
    let mut rows: Vec<Row> = goals.iter().map(|(what, bound)| row(run, *what, *bound)).collect();
    // A run with one number of clients has the same twice.
    rows.dedup_by(|one, other| one.sentence == other.sentence);
    rows
}

/// A table of goals.
pub(super) fn table(rows: Vec<Row>) -> Table {
    let columns = ["what", "to reach", "measured", "lowest and highest round", "reached"];
    let mut table = Table::new("What was to be reached", &columns).open();
    for row in rows {
        table.push(row.cells);
    }
    table
}

/// The same in sentences: how many are reached by the median, then what is not, what is, what was
/// not measured, and what is there for comparison.
pub(super) fn sentences(rows: Vec<Row>) -> Vec<String> {
    let count = |outcome| rows.iter().filter(|row| row.outcome == outcome).count();
    let (reached, missed) = (count(Outcome::Reached), count(Outcome::Missed));
    let unknown = match count(Outcome::NotMeasured) {
        0 => String::new(),
        unknown => format!("; {unknown} were not measured"),
    };
    let of = reached + missed;
    let total = format!("Of {of} goals that were measured, {reached} are reached{unknown}.");
    let mut rows = rows;
    rows.sort_by_key(|row| row.outcome);
    std::iter::once(total).chain(rows.into_iter().map(|row| row.sentence)).collect()
}

/// A goal, and what came of it.
pub(super) struct Row {
    pub(super) cells: Vec<Cell>,
    pub(super) sentence: String,
    outcome: Outcome,
}

/// What came of a goal, in the order in which a reader wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// The median is outside the bound.
    Missed,
    /// It is within.
    Reached,
    NotMeasured,
    /// There is no bound.
    Known,
}

/// Whether a goal is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reached {
    /// The whole interval is within the bound.
    Shown,
    /// The median is; the interval is not, or there is none.
    Median,
    /// Neither; the whole interval is outside.
    ShownNot,
    /// The median is not.
    No,
}

impl Reached {
    /// Of what is to be at most `limit`; with `strictly`, less.
    fn of(ratio: &Summary, limit: f64, strictly: bool) -> Reached {
        let within = |value: f64| if strictly { value < limit } else { value <= limit };
        match (within(ratio.median), ratio.interval) {
            (true, Some((_, high))) if within(high) => Reached::Shown,
            (true, _) => Reached::Median,
            (false, Some((low, _))) if !within(low) => Reached::ShownNot,
            (false, _) => Reached::No,
        }
    }

    fn words(self, rounds: usize) -> &'static str {
        let is_few = rounds < crate::stats::SAMPLES_MIN;
        match self {
            Reached::Median if is_few => "reached, in too few rounds to show it",
            Reached::No if is_few => "not reached, in too few rounds to show it",
            Reached::Shown => "reached",
            Reached::Median => "reached by the median, but not by the whole 95 % interval",
            Reached::ShownNot => "not reached",
            Reached::No => "not reached by the median; the 95 % interval leaves it open",
        }
    }

    fn cell(self, rounds: usize) -> Cell {
        let few = if rounds < crate::stats::SAMPLES_MIN { ", too few rounds" } else { "" };
        let (word, tone) = match self {
            Reached::Shown => ("yes", Tone::Better),
            Reached::Median => ("yes, by the median", Tone::Plain),
            Reached::ShownNot => ("no", Tone::Worse),
            Reached::No => ("no, by the median", Tone::Worse),
        };
        Cell { text: format!("{word}{few}"), tone }
    }
}

impl Bound {
    /// What the measured may be at most.
    fn limit(self) -> f64 {
        match self {
            TimesAsFast(times) => 1.0 / times,
            PercentLess(percent) => 1.0 - percent / 100.0,
            TimesAsLong(times) => times,
            Faster => 1.0,
            Known => f64::INFINITY,
            Calls(calls) => calls + CALLS_OVER,
            PercentOfCore(percent) => percent / 100.0,
        }
    }

    fn words(self) -> String {
        match self {
            TimesAsFast(times) => format!("at least {} times as fast", exact(times)),
            PercentLess(percent) => format!("at least {} % less time", exact(percent)),
            TimesAsLong(times) => format!("at most {} times the time", exact(times)),
            Faster => "faster".to_owned(),
            Known => "nothing, for comparison".to_owned(),
            Calls(calls) => format!("at most {} for each operation", exact(calls)),
            PercentOfCore(percent) => format!("at most {} % of a processor", exact(percent)),
        }
    }

    /// The measured as the goal counts it, and what it is.
    fn shown(self, measured: f64) -> f64 {
        match self {
            TimesAsFast(_) | Faster => 1.0 / measured,
            PercentLess(_) => 100.0 * (1.0 - measured),
            PercentOfCore(_) => 100.0 * measured,
            TimesAsLong(_) | Known | Calls(_) => measured,
        }
    }

    fn number(self, measured: f64) -> String {
        let shown = self.shown(measured);
        match self {
            PercentLess(_) => format!("{shown:.1} % less time"),
            TimesAsFast(_) | Faster => format!("{} times as fast", three(shown)),
            TimesAsLong(_) | Known => format!("{} times the time", three(shown)),
            Calls(_) => format!("{shown:.2} calls for each operation"),
            PercentOfCore(_) => format!("{shown:.1} % of a processor"),
        }
    }

    fn ends(self, (low, high): (f64, f64)) -> String {
        let (one, other) = (self.shown(low), self.shown(high));
        let (low, high) = (one.min(other), one.max(other));
        match self {
            PercentLess(_) | PercentOfCore(_) => format!("{low:.1}\u{a0}to\u{a0}{high:.1}\u{a0}%"),
            Calls(_) => format!("{low:.2}\u{a0}to\u{a0}{high:.2}"),
            _ => span((low, high), ""),
        }
    }
}

pub(super) fn row(run: &Run, what: What, bound: Bound) -> Row {
    let (name, compared) = compare(run, what);
    let goal = bound.words();
    match compared {
        Err(reason) => Row {
            cells: vec![
                Cell::plain(name.clone()),
                Cell::plain(goal.clone()),
                Cell { text: format!("not measured: {reason}"), tone: Tone::Missing },
                Cell::plain("-"),
                Cell { text: "not known".to_owned(), tone: Tone::Missing },
            ],
            sentence: match bound {
                Known => format!("{name}: not measured, because {reason}."),
                _ => format!("{name}: {goal} was to be reached; not measured, because {reason}."),
            },
            outcome: if matches!(bound, Known) { Outcome::Known } else { Outcome::NotMeasured },
        },
        Ok(ratio) => {
            let is_counted = matches!(bound, Calls(_));
            // What is counted needs no statistics: one round shows it, if all are within the bound.
            let ratio = match is_counted {
                true => Summary { interval: Some((ratio.min, ratio.max)), ..ratio },
                false => ratio,
            };
            let rounds = if is_counted { crate::stats::SAMPLES_MIN } else { ratio.count };
            let reached = Reached::of(&ratio, bound.limit(), matches!(bound, Faster));
            let interval = ratio.interval.filter(|_| !is_counted).map_or_else(
                || format!("n\u{a0}=\u{a0}{}", ratio.count),
                |ends| format!("95 %: {}, n\u{a0}=\u{a0}{}", bound.ends(ends), ratio.count),
            );
            let measured = format!("{} ({interval})", bound.number(ratio.median));
            let spread = bound.ends((ratio.min, ratio.max));
            let (verdict, cell) = match bound {
                Known => ("for comparison".to_owned(), Cell::plain("-")),
                _ => {
                    let words = reached.words(rounds);
                    (format!("{goal} was to be reached: {words}"), reached.cell(rounds))
                }
            };
            let sentence = format!("{name}: {measured}, in rounds {spread}; {verdict}.");
            let cells = vec![
                Cell::plain(name),
                Cell::plain(goal),
                Cell::plain(measured),
                Cell::plain(spread),
                cell,
            ];
            let outcome = match (bound, reached) {
                (Known, _) => Outcome::Known,
                (_, Reached::Shown | Reached::Median) => Outcome::Reached,
                (_, Reached::ShownNot | Reached::No) => Outcome::Missed,
            };
            Row { cells, sentence, outcome }
        }
    }
}

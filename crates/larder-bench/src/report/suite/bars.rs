//! Bars of medians: for suites without a chart of their own, and tests that fit no other.

use crate::record::{Run, Test};

use super::super::chart::rows::{Base, Group, Mark, Row, Rows};
use super::super::chart::{Chart, Entry, Heading, Look, Sign};
use super::super::compare::{NOT_MEASURED, Outcome, measured, outcome};
use super::super::document::{Block, Cell, Facts, Figure, Table};
use super::super::number::value;
use super::super::sweep::look;
use super::conditions::link_words;

/// Bars of all tests.
pub(super) fn all(run: &Run) -> Vec<Block> {
    figures(run, &run.tests.iter().collect::<Vec<_>>(), "Medians", &Facts::default())
}

/// Bars of some tests, a figure for each unit.
pub(super) fn figures(run: &Run, tests: &[&Test], title: &str, published: &Facts) -> Vec<Block> {
    let mut units: Vec<&str> = Vec::new();
    for test in tests {
        if !units.contains(&test.unit.as_str()) {
            units.push(&test.unit);
        }
    }
    let of_unit = |unit: &str| -> Vec<&Test> {
        tests.iter().copied().filter(|test| test.unit == unit).collect()
    };
    units
        .into_iter()
        .map(|unit| {
            let tests = of_unit(unit);
            let sparse = Sparse::of(&names(run), &tests);
            let rows = Rows {
                heading: heading(title, run),
                axis: if tests[0].more_is_better { "more is better" } else { "less is better" }
                    .to_owned(),
                unit: unit.to_owned(),
                base: Base::Zero,
                groups: tests.iter().map(|test| group(run, test, &sparse)).collect(),
                legend: sparse.notes.clone(),
            };
            Block::Figure(Box::new(Figure {
                chart: Chart::Rows(rows),
                caption: link_words(run),
                published: published.clone(),
                tables: vec![table(run, &tests)],
            }))
        })
        .collect()
}

fn heading(title: &str, run: &Run) -> Heading {
    let names = names(run);
    let description = format!(
        "Bars of medians for {}, with their 95 % intervals. The same numbers follow as a table.",
        names.join(", ")
    );
    Heading { title: title.to_owned(), description }
}

/// A test with a bar for each target.
fn group(run: &Run, test: &Test, sparse: &Sparse) -> Group {
    let shown = run.targets.iter().filter(|target| !sparse.omits(test, &target.name));
    let rows = shown.map(|target| row(run, test, &target.name)).collect();
    Group { name: test.title(), note: String::new(), rows }
}

/// Names of all targets.
pub(super) fn names(run: &Run) -> Vec<&str> {
    run.targets.iter().map(|target| target.name.as_str()).collect()
}

/// Targets that were measured in few of a chart's tests. Where they were not, they have no row that
/// says so again and again, but a note in the legend.
pub(super) struct Sparse {
    names: Vec<String>,
    /// Where each of them was measured.
    pub(super) notes: Vec<Entry>,
}

/// A chart of fewer tests has room for all rows.
const SPARSE_FROM: usize = 4;

impl Sparse {
    /// Finds them.
    pub(super) fn of(targets: &[&str], tests: &[&Test]) -> Sparse {
        let mut sparse = Sparse { names: Vec::new(), notes: Vec::new() };
        for name in targets {
            let of: Vec<String> = tests
                .iter()
                .filter(|test| outcome(test, name) != Outcome::Missing)
                .map(|test| test.title())
                .collect();
            if tests.len() < SPARSE_FROM || of.len() * 2 >= tests.len() {
                continue;
            }
            let text = if of.is_empty() {
                format!("{name}: {NOT_MEASURED}")
            } else {
                format!("{name}: measured in {} only", of.join(", "))
            };
            sparse.notes.push(Entry { sign: Sign::Marker(Look::Even), text });
            sparse.names.push((*name).to_owned());
        }
        sparse
    }

    /// Whether a target has no row in a test.
    pub(super) fn omits(&self, test: &Test, target: &str) -> bool {
        self.names.iter().any(|name| name == target) && outcome(test, target) == Outcome::Missing
    }
}

/// A target's bar in a test, or why it has none.
pub(super) fn row(run: &Run, test: &Test, target: &str) -> Row {
    let (mark, value) = match outcome(test, target) {
        Outcome::Measured(summary) => {
            let words = value(summary.median, &test.unit);
            (Mark::Bar(summary.median, summary.interval), words)
        }
        other => (no_bar(&other), String::new()),
    };
    Row { name: target.to_owned(), look: look(run, target), mark, value, also: String::new() }
}

/// What stands in place of a bar.
pub(super) fn no_bar(outcome: &Outcome<'_>) -> Mark {
    match outcome {
        Outcome::Failed(reason) => Mark::Failed(format!("failed: {reason}")),
        Outcome::Missing => Mark::Missing(NOT_MEASURED.to_owned()),
        Outcome::Measured(summary) => Mark::Missing(measured(summary, "")),
    }
}

/// Tests by targets.
pub(super) fn table(run: &Run, tests: &[&Test]) -> Table {
    let names = names(run);
    let columns: Vec<&str> = ["test"].into_iter().chain(names.iter().copied()).collect();
    let mut table =
        Table::new("Median (95 % interval of the geometric mean, number of samples)", &columns);
    for test in tests {
        let mut row = vec![Cell::plain(test.title())];
        row.extend(names.iter().map(|name| outcome(test, name).cell(&test.unit)));
        table.push(row);
    }
    table
}

//! `fscache`: one file read in five states of the caches, beside the table of 2010.
//!
//! A test is named after its state: `None`, `COLD`, `HOT`, `PGCACHE`, `Server`, in any case. Where
//! there is no test `None`, it is COLD of the client without a cache; without `Server`, PGCACHE of
//! the local disk.

use crate::published::{FSCACHE_STATES, State};
use crate::record::{Run, Test};

use super::super::chart::rows::{Base, Group, Mark, Row, Rows};
use super::super::chart::{Chart, Heading, Look};
use super::super::compare::{NOT_MEASURED, Outcome, is_plain, outcome, ratio_words};
use super::super::document::{Block, Cell, Facts, Figure, Table, Tone};
use super::super::number::three;
use super::conditions::link_words;
use super::{bars, facts, rpcs};

/// Times by state, ratios to None, and RPCs.
pub(super) fn figures(run: &Run) -> Vec<Block> {
    let is_state = |test: &Test| FSCACHE_STATES.iter().any(|state| is_of(test, state.name));
    let known = super::tests(run, is_state);
    let others = super::tests(run, |test| !is_state(test));
    let mut blocks = Vec::new();
    if !known.is_empty() {
        blocks.push(times(run, &known));
    }
    blocks.extend(rpcs::figure(run, &known, "RPCs by procedure"));
    if !others.is_empty() {
        blocks.extend(bars::figures(run, &others, "Further tests", &Facts::default()));
    }
    blocks
}

fn is_of(test: &Test, state: &str) -> bool {
    test.name.eq_ignore_ascii_case(state)
}

/// What stands for a published state.
struct Row2010<'a> {
    state: &'static State,
    /// What it is here, if it is not a test of its own.
    note: &'static str,
    /// Tests and targets.
    of: Vec<(&'a Test, &'a str)>,
}

/// The rows of the published table, filled with what this run has of them.
fn rows_2010<'a>(run: &'a Run, tests: &[&'a Test]) -> Vec<Row2010<'a>> {
    let of = |name: &str, pick: &dyn Fn(&str) -> bool| -> Vec<(&'a Test, &'a str)> {
        let tests = tests.iter().filter(|test| is_of(test, name));
        let names = || run.targets.iter().map(|target| target.name.as_str());
        tests.flat_map(|test| names().filter(|name| pick(name)).map(|name| (*test, name))).collect()
    };
    let own = |state: &'static State| {
        let own = of(state.name, &|_| true);
        match state.name {
            "None" if own.is_empty() => ("COLD without a cache", of("COLD", &is_plain)),
            "Server" if own.is_empty() => {
                ("PGCACHE of local", of("PGCACHE", &|name| name == "local"))
            }
            _ => ("", own),
        }
    };
    FSCACHE_STATES
        .iter()
        .map(|state| {
            let (note, of) = own(state);
            Row2010 { state, note, of }
        })
        .collect()
}

fn times(run: &Run, tests: &[&Test]) -> Block {
    let rows_2010 = rows_2010(run, tests);
    let in_seconds = tests.iter().all(|test| test.unit == "s");
    let group = |row: &Row2010<'_>| {
        let mut rows: Vec<Row> =
            row.of.iter().map(|(test, target)| bars::row(run, test, target)).collect();
        if rows.is_empty() {
            rows.push(unmeasured());
        }
        rows.extend(in_seconds.then(|| published_row(row.state)));
        Group { name: row.state.name.to_owned(), note: row.note.to_owned(), rows }
    };
    let rows = Rows {
        heading: Heading {
            title: "Time to read the file, by state of the caches".to_owned(),
            description:
                "Bars of seconds for each state and target, and the two published runs of \
                          2010 as points. The same numbers follow as tables."
                    .to_owned(),
        },
        axis: "elapsed time".to_owned(),
        unit: tests.first().map_or_else(|| "s".to_owned(), |test| test.unit.clone()),
        base: Base::Zero,
        groups: rows_2010.iter().map(group).collect(),
        legend: Vec::new(),
    };
    let caption = format!(
        "{} The file of 2010 had 200 MB; compare seconds only if this run's file and link are alike.",
        link_words(run)
    );
    let tables = vec![absolute(run, &rows_2010), ratios(run, &rows_2010), meanings()];
    let published = facts("fscache", |_| true);
    Block::Figure(Box::new(Figure { chart: Chart::Rows(rows), caption, published, tables }))
}

fn unmeasured() -> Row {
    Row {
        name: "all".to_owned(),
        look: Look::Even,
        mark: Mark::Missing(NOT_MEASURED.to_owned()),
        value: String::new(),
        also: String::new(),
    }
}

fn published_row(state: &State) -> Row {
    let [first, second] = state.printed_s;
    Row {
        name: "2010".to_owned(),
        look: Look::Published,
        mark: Mark::Points(state.runs_s.to_vec()),
        value: format!("{first} s"),
        also: format!("{second} s"),
    }
}

impl<'a> Row2010<'a> {
    /// The test that a target's cell is of.
    fn test_of(&self, target: &str) -> Option<&'a Test> {
        self.of.iter().find(|(_, name)| *name == target).map(|(test, _)| *test)
    }
}

/// A table of the states by targets, with the published ones in its last column.
fn table(
    run: &Run,
    rows: &[Row2010<'_>],
    caption: &str,
    cell: impl Fn(&Test, &str) -> Cell,
    published: impl Fn(&State) -> String,
) -> Table {
    let names = bars::names(run);
    let mut columns = vec!["state"];
    columns.extend(&names);
    columns.push("published 2010, two runs");
    let mut table = Table::new(caption, &columns);
    for row in rows {
        let mut cells = vec![Cell::plain(row.state.name)];
        cells.extend(names.iter().map(|name| match row.test_of(name) {
            Some(test) => cell(test, name),
            None => Outcome::Missing.cell(""),
        }));
        cells.push(Cell::plain(published(row.state)));
        table.push(cells);
    }
    table
}

fn absolute(run: &Run, rows: &[Row2010<'_>]) -> Table {
    let caption = "Time by state: median (95 % interval of the geometric mean, number of samples)";
    let cell = |test: &Test, target: &str| outcome(test, target).cell(&test.unit);
    table(run, rows, caption, cell, |state| {
        let [first, second] = state.printed_s;
        format!("{first} s, {second} s")
    })
}

/// What the states mean.
fn meanings() -> Table {
    let mut table = Table::new("What the states mean", &["state", "meaning in 2010"]);
    for state in &FSCACHE_STATES {
        table.push(vec![Cell::plain(state.name), Cell::plain(state.meaning)]);
    }
    table
}

/// How many times as long as None each state took, for each target.
fn ratios(run: &Run, rows: &[Row2010<'_>]) -> Table {
    let none = &rows[0].of;
    // Of the target itself if it was measured without a cache, else of the plain client.
    let reference = |target: &str| {
        let own = none.iter().find(|(_, name)| *name == target);
        own.or_else(|| none.iter().find(|(_, name)| *name == "plain")).or(none.first())
    };
    let cell = |test: &Test, target: &str| {
        let own = outcome(test, target);
        let Outcome::Measured(_) = own else {
            return own.cell(&test.unit);
        };
        let ratio = reference(target).and_then(|(none, of)| test.time_ratio_to(target, none, of));
        match ratio {
            Some(ratio) => Cell::plain(ratio_words(&ratio)),
            None => Cell { text: "None was not measured".to_owned(), tone: Tone::Missing },
        }
    };
    let caption = "Time relative to None, of the same target if it was measured without a cache, else \
                   of plain: median of rounds (95 % interval)";
    let none_2010 = FSCACHE_STATES[0].runs_s;
    let published = |state: &State| {
        let [first, second] = [0, 1].map(|run| three(state.runs_s[run] / none_2010[run]));
        format!("{first}, {second}")
    };
    table(run, &rows[1..], caption, cell, published).open()
}

//! `badros`: times of 13 tests relative to the plain client, alone and as copies; RPCs by
//! procedure.

use std::collections::BTreeSet;

use crate::published;
use crate::record::{Run, Test};

use super::super::chart::rows::{Base, Group, Mark, Row, Rows};
use super::super::chart::{Chart, Entry, Heading, Look, Sign};
use super::super::compare::{Outcome, outcome, sides};
use super::super::document::{Block, Facts, Figure};
use super::super::number::{three, value};
use super::super::sweep::look;
use super::conditions::link_words;
use super::{bars, facts, rpcs};

/// Times and RPCs for each number of copies.
pub(super) fn figures(run: &Run) -> Vec<Block> {
    let copies: BTreeSet<u32> = run.tests.iter().map(|test| test.copies).collect();
    let mut blocks = Vec::new();
    for (index, copies) in copies.into_iter().enumerate() {
        let tests = super::tests(run, |test| test.copies == copies);
        let about = |fact: &published::Fact| fact.copies.map_or(index == 0, |of| of == copies);
        blocks.extend(times(run, &tests, copies, facts("badros", about)));
        blocks.extend(rpcs::figure(run, &tests, &format!("RPCs by procedure, {}", alone(copies))));
    }
    blocks
}

fn alone(copies: u32) -> String {
    if copies == 1 { "each test alone".to_owned() } else { format!("{copies} copies at once") }
}

/// Times relative to the plain client; absolute ones if there is none.
fn times(run: &Run, tests: &[&Test], copies: u32, published: Facts) -> Vec<Block> {
    let Some(reference) = reference(run) else {
        return bars::figures(run, tests, &format!("Elapsed time, {}", alone(copies)), &published);
    };
    let marked = tests.iter().any(|test| published_ratio(test).is_some());
    let sparse = bars::Sparse::of(&bars::names(run), tests);
    let legend = marked.then(|| Entry {
        sign: Sign::Marker(Look::Published),
        text: "published in 1998: caching client against standard client".to_owned(),
    });
    let rows = Rows {
        heading: Heading {
            title: format!("Elapsed time relative to {reference}, {}", alone(copies)),
            description: format!(
                "For each test a bar per target from 1, the time of {reference}: to the left it took \
                 less time, to the right more. The same numbers follow as a table."
            ),
        },
        axis: format!("time ÷ time of {reference}; ← less time than it · more →"),
        unit: String::new(),
        base: Base::One,
        groups: tests.iter().map(|test| group(run, test, reference, &sparse)).collect(),
        legend: legend.into_iter().chain(sparse.notes.iter().cloned()).collect(),
    };
    vec![Block::Figure(Box::new(Figure {
        chart: Chart::Rows(rows),
        caption: format!("{} Whiskers are 95 % intervals of the ratio of rounds.", link_words(run)),
        published,
        tables: vec![bars::table(run, tests)],
    }))]
}

/// Whose time is one: the plain client, else the first that is not ours.
fn reference(run: &Run) -> Option<&str> {
    sides(run).1.first().copied()
}

fn group(run: &Run, test: &Test, reference: &str, sparse: &bars::Sparse) -> Group {
    let note = match outcome(test, reference) {
        Outcome::Measured(summary) => format!("{reference} {}", value(summary.median, &test.unit)),
        Outcome::Failed(_) => format!("{reference} failed"),
        Outcome::Missing => format!("{reference} not measured"),
    };
    let mut rows = Vec::new();
    for target in run.targets.iter().filter(|target| !sparse.omits(test, &target.name)) {
        // The reference is the line at one, unless it has no result: then it says why.
        if target.name != reference || test.summary(reference).is_none() {
            rows.push(row(run, test, &target.name, reference));
        }
    }
    if let Some(ratio) = published_ratio(test) {
        rows.push(Row {
            name: "1998".to_owned(),
            look: Look::Published,
            mark: Mark::Points(vec![ratio]),
            value: three(ratio),
            also: "published".to_owned(),
        });
    }
    Group { name: test.title(), note, rows }
}

fn row(run: &Run, test: &Test, target: &str, reference: &str) -> Row {
    let outcome = outcome(test, target);
    let absolute = match &outcome {
        Outcome::Measured(summary) => value(summary.median, &test.unit),
        _ => String::new(),
    };
    let ratio = test.time_ratio(target, reference);
    let (mark, value, also) = match (&outcome, ratio) {
        (Outcome::Measured(_), Some(ratio)) => {
            (Mark::Bar(ratio.median, ratio.interval), three(ratio.median), absolute)
        }
        (Outcome::Measured(_), None) => (
            Mark::Missing(format!("{absolute}; no ratio without {reference}")),
            String::new(),
            String::new(),
        ),
        (other, _) => (bars::no_bar(other), String::new(), String::new()),
    };
    Row { name: target.to_owned(), look: look(run, target), mark, value, also }
}

fn published_ratio(test: &Test) -> Option<f64> {
    let fact = published::BADROS
        .iter()
        .find(|fact| fact.test == test.name && fact.copies == Some(test.copies))?;
    fact.ratio
}

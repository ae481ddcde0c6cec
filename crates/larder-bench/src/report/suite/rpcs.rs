//! RPCs by procedure, stacked. Tests differ by orders of magnitude, so each bar is a share of the
//! longest of its test; the counts stand beside the bars, and how many that is of the plain
//! client's.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{Run, Test};

use super::super::chart::rows::{Base, Group, Mark, Row, Rows};
use super::super::chart::{Chart, Entry, Heading, Look, Sign};
use super::super::compare::{NOT_MEASURED, sides};
use super::super::document::{Block, Cell, Facts, Figure, Table, Tone};
use super::super::number::{grouped, three};
use super::super::sweep::look;
use super::bars;

/// Procedures with a colour of their own, the same on every page; the rest is one part, the last.
const PROCEDURES: [&str; 11] = [
    "READ",
    "WRITE",
    "COMMIT",
    "GETATTR",
    "LOOKUP",
    "ACCESS",
    "CREATE",
    "REMOVE",
    "SETATTR",
    "READDIRPLUS",
    OTHER,
];

/// The text for a target that was measured without counts of its RPCs.
const NOT_COUNTED: &str = "not counted";

/// Name of the part of all other procedures.
const OTHER: &str = "other";

/// RPCs of tests; nothing if none were counted.
pub(super) fn figure(run: &Run, tests: &[&Test], title: &str) -> Option<Block> {
    let procedures = procedures(run, tests);
    let mut targets = bars::names(run);
    targets.retain(|name| tests.iter().any(|test| test.rpcs(name).is_some()));
    if targets.is_empty() {
        return None;
    }
    let (_, others) = sides(run);
    let reference = others.into_iter().find(|name| targets.contains(name)).unwrap_or(targets[0]);
    let sparse = bars::Sparse::of(&targets, tests);
    // A test without counts has only its line in the table.
    let counted = tests.iter().filter(|test| targets.iter().any(|name| test.rpcs(name).is_some()));
    let groups = counted
        .map(|test| {
            let omits = |name: &&str| sparse.omits(test, name);
            let targets: Vec<&str> = targets.iter().copied().filter(|name| !omits(name)).collect();
            group(run, test, &targets, reference, &procedures)
        })
        .collect();
    let legend = procedures.iter().map(|index| Entry {
        sign: Sign::Area(Look::Procedure(*index)),
        text: PROCEDURES[*index].to_owned(),
    });
    let rows = Rows {
        heading: Heading {
            title: title.to_owned(),
            description: format!(
                "Stacked bars of RPCs by procedure, as a share of the most in the same test, with \
                 counts and their share of those of {reference}. The counts follow as a table."
            ),
        },
        axis: "RPCs as a share of the most in the test".to_owned(),
        unit: "%".to_owned(),
        base: Base::Zero,
        groups,
        legend: legend.chain(sparse.notes.iter().cloned()).collect(),
    };
    Some(Block::Figure(Box::new(Figure {
        chart: Chart::Rows(rows),
        caption: "Of each target the sample with the median number of RPCs.".to_owned(),
        published: Facts::default(),
        tables: vec![table(tests, &targets)],
    })))
}

/// The parts that tests of these have, in the order of [`PROCEDURES`].
fn procedures(run: &Run, tests: &[&Test]) -> Vec<usize> {
    let called = tests.iter().flat_map(|test| {
        run.targets.iter().filter_map(|target| test.rpcs_by_procedure(&target.name))
    });
    let called = called.flatten().filter(|(_, count)| **count > 0);
    let places: BTreeSet<usize> = called.map(|(name, _)| row_of(name)).collect();
    places.into_iter().collect()
}

/// WorkDir of a procedure among [`PROCEDURES`], which sets its colour.
fn row_of(name: &str) -> usize {
    PROCEDURES.iter().position(|known| *known == name).unwrap_or(PROCEDURES.len() - 1)
}

fn group(run: &Run, test: &Test, targets: &[&str], reference: &str, procedures: &[usize]) -> Group {
    let most = targets.iter().filter_map(|name| test.rpcs(name)).fold(1.0, f64::max);
    let whole = test.rpcs(reference).filter(|count| *count > 0.0);
    let rows = targets.iter().map(|target| {
        let (mark, value, also) = match (test.failure(target), test.rpcs_by_procedure(target)) {
            (Some(reason), _) => {
                (Mark::Failed(format!("failed: {reason}")), String::new(), String::new())
            }
            (None, None) => {
                let words = if test.summary(target).is_some() { NOT_COUNTED } else { NOT_MEASURED };
                (Mark::Missing(words.to_owned()), String::new(), String::new())
            }
            (None, Some(rpcs)) => {
                let total = rpcs.values().sum::<u64>() as f64;
                let share =
                    whole.filter(|_| *target != reference).map_or_else(String::new, |whole| {
                        format!("{} % of {reference}", three(total / whole * 100.0))
                    });
                (Mark::Parts(parts(target, rpcs, most, procedures)), grouped(total), share)
            }
        };
        Row { name: (*target).to_owned(), look: look(run, target), mark, value, also }
    });
    Group { name: test.title(), note: String::new(), rows: rows.collect() }
}

fn parts(
    target: &str,
    rpcs: &BTreeMap<String, u64>,
    most: f64,
    procedures: &[usize],
) -> Vec<(Look, f64, String)> {
    let mut parts = Vec::new();
    for index in procedures {
        let of = rpcs.iter().filter(|(name, _)| row_of(name) == *index);
        let count: u64 = of.map(|(_, count)| count).sum();
        if count > 0 {
            let hover = format!("{target}: {} {}", PROCEDURES[*index], grouped(count as f64));
            parts.push((Look::Procedure(*index), count as f64 / most * 100.0, hover));
        }
    }
    parts
}

fn table(tests: &[&Test], targets: &[&str]) -> Table {
    let columns: Vec<&str> = ["test"].into_iter().chain(targets.iter().copied()).collect();
    let mut table = Table::new("RPCs of the median sample", &columns);
    for test in tests {
        let mut row = vec![Cell::plain(test.title())];
        for target in targets {
            row.push(match (test.failure(target), test.rpcs(target)) {
                (Some(reason), _) => Cell { text: format!("failed: {reason}"), tone: Tone::Failed },
                (None, Some(count)) => Cell::plain(grouped(count)),
                (None, None) if test.summary(target).is_some() => Cell::plain(NOT_COUNTED),
                (None, None) => Cell { text: NOT_MEASURED.to_owned(), tone: Tone::Missing },
            });
        }
        table.push(row);
    }
    table
}

//! Tables that every run has: failures, RPCs by procedure, further measurements, caches before
//! tests.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{Run, Sample, Test};

use super::super::compare::NOT_MEASURED;
use super::super::document::{Block, Cell, Table, Tone};
use super::super::number::{grouped, three, value};

/// The tables; those that would be empty are left out.
pub(super) fn blocks(run: &Run) -> Vec<Block> {
    let tables = [failures(run), rpcs(run), extras(run), caches(run)];
    tables.into_iter().filter(|table| !table.rows.is_empty()).map(Block::Table).collect()
}

fn failures(run: &Run) -> Table {
    let columns = ["test", "target", "rounds", "reason"];
    let mut table = Table::new("What failed", &columns).open();
    for test in &run.tests {
        for (target, reason, rounds) in reasons(test) {
            table.push(vec![
                Cell::plain(test.title()),
                Cell::plain(target),
                Cell::plain(rounds.join(", ")),
                Cell { text: format!("failed: {reason}"), tone: Tone::Failed },
            ]);
        }
    }
    table
}

/// Target, reason, and the rounds in which it was given.
fn reasons(test: &Test) -> Vec<(&str, &str, Vec<String>)> {
    let mut all: Vec<(&str, &str, Vec<String>)> = Vec::new();
    for sample in &test.samples {
        let Some(reason) = sample.failed.as_deref() else {
            continue;
        };
        let round = sample.round.to_string();
        let known = |(target, of, _): &&mut (&str, &str, Vec<String>)| {
            *target == sample.target && *of == reason
        };
        match all.iter_mut().find(known) {
            Some((_, _, rounds)) => rounds.push(round),
            None => all.push((&sample.target, reason, vec![round])),
        }
    }
    all
}

fn rpcs(run: &Run) -> Table {
    let columns = ["test", "target", "RPCs", "by procedure", "counted by"];
    let mut table = Table::new("RPCs by procedure of the median sample", &columns);
    for test in &run.tests {
        for target in &run.targets {
            let Some(rpcs) = test.rpcs_by_procedure(&target.name) else {
                continue;
            };
            let mut by: Vec<(&String, &u64)> =
                rpcs.iter().filter(|(_, count)| **count > 0).collect();
            by.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            let by: Vec<String> = by
                .iter()
                .map(|(name, count)| format!("{name} {}", grouped(**count as f64)))
                .collect();
            let counter = test.of(&target.name).find_map(|sample| sample.rpcs_by.clone());
            table.push(vec![
                Cell::plain(test.title()),
                Cell::plain(target.name.clone()),
                Cell::plain(grouped(rpcs.values().sum::<u64>() as f64)),
                Cell::plain(if by.is_empty() { "none".to_owned() } else { by.join(", ") }),
                Cell::plain(counter.unwrap_or_else(|| "not recorded".to_owned())),
            ]);
        }
    }
    table
}

/// Medians of what was measured besides, a row for each test and measurement.
fn extras(run: &Run) -> Table {
    let mut columns = vec!["test", "what"];
    columns.extend(run.targets.iter().map(|target| target.name.as_str()));
    let mut table = Table::new("Further measurements (medians)", &columns);
    for test in &run.tests {
        let found: Vec<BTreeMap<String, Vec<f64>>> =
            run.targets.iter().map(|target| further(test.of(&target.name))).collect();
        let names: BTreeSet<&String> = found.iter().flat_map(BTreeMap::keys).collect();
        for name in names {
            let mut row = vec![Cell::plain(test.title()), Cell::plain(name.clone())];
            row.extend(found.iter().map(|found| match found.get(name) {
                Some(values) => Cell::plain(median_words(name, values)),
                None => Cell { text: NOT_MEASURED.to_owned(), tone: Tone::Missing },
            }));
            table.push(row);
        }
    }
    table
}

/// Median of values, in the unit at the end of their name: `server_cpu_s`, `server_bytes`.
fn median_words(name: &str, values: &[f64]) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let median = sorted[sorted.len() / 2];
    match name.rsplit_once('_') {
        Some((_, unit @ ("s" | "us" | "ms"))) if median > 0.0 => value(median, unit),
        Some((_, "bytes")) if median > 0.0 => value(median, "B"),
        _ => three(median),
    }
}

fn further<'a>(samples: impl Iterator<Item = &'a Sample>) -> BTreeMap<String, Vec<f64>> {
    let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for sample in samples {
        for (name, value) in &sample.extra {
            all.entry(name.clone()).or_default().push(*value);
        }
        if let Some(seconds) = sample.subtracted_s.filter(|seconds| seconds.is_finite()) {
            all.entry("compiler's CPU time, subtracted_s".to_owned()).or_default().push(seconds);
        }
    }
    all
}

/// In which states the page cache was before a target's samples.
fn caches(run: &Run) -> Table {
    let columns = ["target", "state", "samples", "tests"];
    let mut table = Table::new("Page cache before samples, as verified", &columns);
    for target in &run.targets {
        let mut states: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for test in &run.tests {
            let found: Vec<&str> =
                test.of(&target.name).filter_map(|sample| sample.page_cache.as_deref()).collect();
            for state in found.iter().collect::<BTreeSet<_>>() {
                let (samples, tests) = states.entry(state).or_default();
                *samples += found.iter().filter(|other| *other == state).count();
                *tests += 1;
            }
        }
        for (state, (samples, tests)) in states {
            table.push(vec![
                Cell::plain(target.name.clone()),
                Cell::plain(state),
                Cell::plain(samples.to_string()),
                Cell::plain(tests.to_string()),
            ]);
        }
    }
    table
}

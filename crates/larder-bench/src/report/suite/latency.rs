//! Latencies as distributions: a curve per target that says which share of the operations took at
//! most so long.
//!
//! It is drawn from the samples if there are many (one per operation), or from percentiles among
//! the further measurements: `p50_us`, `p99_us`, `p999_us`, in the unit of the test; these are
//! points, and what lies between them is not known. Without either only the medians are shown.

use std::collections::BTreeMap;

use crate::record::{Run, Test};

use super::super::chart::lines::{Axis, Curve, Lines, Point};
use super::super::chart::{Chart, Entry, Heading, Look, Sign};
use super::super::compare::{Outcome, outcome};
use super::super::document::{Block, Cell, Facts, Figure, Table, Tone};
use super::super::number::{short, value};
use super::super::sweep::look;
use super::bars;
use super::conditions::link_words;

/// From so many samples on their distribution is drawn.
const SAMPLES_MIN: usize = 20;

/// A distribution is drawn with at most so many points.
const POINTS_MAX: usize = 200;

/// A share of operations, and the time that none of them exceeded.
type Quantile = (f64, f64);

/// A distribution.
struct Distribution {
    /// By growing share.
    quantiles: Vec<Quantile>,
    /// Whether these are a few percentiles that were told, and not all samples.
    told: bool,
}

/// Distributions and medians of latency tests.
pub(super) fn figures(run: &Run, tests: &[&Test], published: &Facts) -> Vec<Block> {
    let mut blocks = bars::figures(run, tests, "Latency", published);
    for test in tests {
        let any = run.targets.iter().any(|target| distribution(test, &target.name).is_some());
        blocks.extend(any.then(|| figure(run, test)));
    }
    blocks
}

fn figure(run: &Run, test: &Test) -> Block {
    let mut curves = Vec::new();
    let mut notes = Vec::new();
    for target in &run.targets {
        let name = &target.name;
        if let Some(distribution) = distribution(test, name) {
            curves.push(curve(name, look(run, name), &distribution, &test.unit));
            continue;
        }
        let (sign, text) = match outcome(test, name) {
            Outcome::Failed(reason) => (Sign::Cross, format!("{name} failed: {reason}")),
            Outcome::Missing => (Sign::Marker(Look::Even), format!("{name}: not measured")),
            Outcome::Measured(_) => {
                (Sign::Marker(Look::Even), format!("{name}: too few samples for a distribution"))
            }
        };
        notes.push(Entry { sign, text });
    }
    let lines = Lines {
        heading: Heading {
            title: format!("{}: distribution", test.title()),
            description:
                "Curves of the share of operations that took at most so long. Some of their \
                          points follow as a table."
                    .to_owned(),
        },
        x: Axis { title: "latency".to_owned(), unit: test.unit.clone(), ..Axis::default() },
        y: Axis { title: "share of operations".to_owned(), shares: true, ..Axis::default() },
        curves,
        marks: Vec::new(),
        notes,
    };
    Block::Figure(Box::new(Figure {
        chart: Chart::Lines(lines),
        caption: link_words(run),
        published: Facts::default(),
        tables: vec![table(run, test)],
    }))
}

fn curve(name: &str, look: Look, distribution: &Distribution, unit: &str) -> Curve {
    let point = |(share, latency): &Quantile| Point {
        x: *latency,
        y: Some(*share),
        interval: None,
        hover: format!("{name}: {} % within {}", short(share * 100.0), value(*latency, unit)),
    };
    let points = distribution.quantiles.iter().map(point).collect();
    Curve { name: name.to_owned(), look, points, knees: Vec::new(), steps: !distribution.told }
}

/// Distribution of a target's latencies; `None` if it failed or too little is known.
fn distribution(test: &Test, target: &str) -> Option<Distribution> {
    if test.failure(target).is_some() {
        return None;
    }
    let quantiles = percentiles(test, target);
    if quantiles.len() >= 2 {
        return Some(Distribution { quantiles, told: true });
    }
    let mut values: Vec<f64> = test.of(target).filter_map(|sample| sample.value).collect();
    if values.len() < SAMPLES_MIN {
        return None;
    }
    values.sort_by(f64::total_cmp);
    let every = values.len().div_ceil(POINTS_MAX);
    let last = values.len() - 1;
    let kept = (0..values.len()).filter(|index| index % every == 0 || *index == last);
    let share = |index: usize| (index + 1) as f64 / values.len() as f64;
    let quantiles = kept.map(|index| (share(index), values[index])).collect();
    Some(Distribution { quantiles, told: false })
}

/// Percentiles among the further measurements, each the median over the samples.
fn percentiles(test: &Test, target: &str) -> Vec<Quantile> {
    let mut found: BTreeMap<u64, (f64, Vec<f64>)> = BTreeMap::new();
    for sample in test.of(target) {
        for (name, value) in sample.extra.iter().filter(|(_, value)| **value > 0.0) {
            if let Some(share) = percentile(name, &test.unit) {
                found.entry(share.to_bits()).or_insert((share, Vec::new())).1.push(*value);
            }
        }
    }
    let mut quantiles: Vec<Quantile> = found
        .into_values()
        .map(|(share, mut values)| {
            values.sort_by(f64::total_cmp);
            (share, values[values.len() / 2])
        })
        .collect();
    quantiles.sort_by(|a, b| a.0.total_cmp(&b.0));
    quantiles
}

/// The share that a name like `p99_us` means: 0.99; `p999` is 0.999.
fn percentile(name: &str, unit: &str) -> Option<f64> {
    let rest = name.strip_prefix('p')?;
    let digits = match rest.split_once('_') {
        Some((digits, of)) if of == unit => digits,
        Some(_) => return None,
        None => rest,
    };
    if digits.is_empty() || digits.len() > 6 || !digits.chars().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let number: f64 = digits.parse().ok()?;
    Some(number / 10_f64.powi(i32::try_from(digits.len().max(2)).ok()?))
}

fn table(run: &Run, test: &Test) -> Table {
    let names = bars::names(run);
    let columns: Vec<&str> =
        ["share of operations"].into_iter().chain(names.iter().copied()).collect();
    let mut table = Table::new(format!("{}: latency within which", test.title()), &columns);
    for share in [0.1, 0.5, 0.9, 0.95, 0.99, 1.0] {
        let mut row = vec![Cell::plain(format!("{} %", short(share * 100.0)))];
        row.extend(names.iter().map(|name| match distribution(test, name) {
            Some(distribution) => distribution.cell(share, &test.unit),
            None => outcome(test, name).cell(&test.unit),
        }));
        table.push(row);
    }
    table
}

impl Distribution {
    /// The time that a share of the operations did not exceed. A told percentile stands for itself
    /// only.
    fn cell(&self, share: f64, unit: &str) -> Cell {
        let at = self.quantiles.iter().find(|(of, _)| *of >= share - 1e-9);
        match at.filter(|(of, _)| !self.told || (*of - share).abs() < 1e-9) {
            Some((_, latency)) => Cell::plain(value(*latency, unit)),
            None => Cell { text: "not recorded".to_owned(), tone: Tone::Missing },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_known_by_name() {
        for (name, share) in [
            ("p50", Some(0.5)),
            ("p99_us", Some(0.99)),
            ("p999_us", Some(0.999)),
            ("p5", Some(0.05)),
            ("p99_ms", None),
            ("pages", None),
            ("p", None),
        ] {
            assert_eq!(percentile(name, "us"), share, "{name}");
        }
    }
}

//! What each operation saved: the time of calls by procedure, beside that of the same procedures of
//! the plain client.
//!
//! The times are those of all calls of all clients together. Calls overlap, so their sum may exceed
//! the run time; shares are shares of the sum that was saved.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{Run, Test};

use super::super::compare::sides;
use super::super::document::{Block, Cell, Table, Tone};

/// A table for each test in which calls were timed; none if there is no target to compare with.
pub(super) fn blocks(run: &Run, tests: &[&Test]) -> Vec<Block> {
    let (ours, theirs) = sides(run);
    let Some((plain, others)) = theirs.split_first() else { return Vec::new() };
    let targets: Vec<&str> = ours.iter().chain(others).copied().collect();
    tests.iter().filter_map(|test| Some(Block::Table(table(test, plain, &targets)?))).collect()
}

fn table(test: &Test, plain: &str, targets: &[&str]) -> Option<Table> {
    let before = test.rpc_times_us(plain)?;
    let caption = format!("{}: time of calls saved by operation, against {plain}", test.title());
    let with_plain = format!("with {plain}");
    let columns =
        ["target", "operation", with_plain.as_str(), "now", "saved", "of it", "share of savings"];
    let mut table = Table::new(caption, &columns);
    for target in targets {
        let after = test.rpc_times_us(target);
        let rows = after.map(|after| rows(target, before, after)).unwrap_or_default();
        rows.into_iter().for_each(|row| table.push(row));
    }
    (!table.rows.is_empty()).then_some(table)
}

/// The operations of a target, the greatest saving first, and their sum.
fn rows(
    target: &str,
    before: &BTreeMap<String, u64>,
    after: &BTreeMap<String, u64>,
) -> Vec<Vec<Cell>> {
    let of = |times: &BTreeMap<String, u64>, name: &str| times.get(name).copied().unwrap_or(0);
    let names: BTreeSet<&str> = before.keys().chain(after.keys()).map(String::as_str).collect();
    let mut all: Vec<Saving<'_>> = names
        .into_iter()
        .map(|operation| Saving {
            operation,
            before_us: of(before, operation) as f64,
            after_us: of(after, operation) as f64,
        })
        .collect();
    all.retain(|saving| saving.before_us > 0.0 || saving.after_us > 0.0);
    all.sort_by(|one, other| other.saved_us().total_cmp(&one.saved_us()));
    let sum = Saving {
        operation: "all",
        before_us: all.iter().map(|saving| saving.before_us).sum(),
        after_us: all.iter().map(|saving| saving.after_us).sum(),
    };
    let whole_us = sum.saved_us();
    all.iter().chain([&sum]).map(|saving| saving.row(target, whole_us)).collect()
}

/// What calls of one procedure took with the plain client and with another one, in microseconds.
struct Saving<'a> {
    operation: &'a str,
    before_us: f64,
    after_us: f64,
}

impl Saving<'_> {
    fn saved_us(&self) -> f64 {
        self.before_us - self.after_us
    }

    fn row(&self, target: &str, whole_us: f64) -> Vec<Cell> {
        let saved_us = self.saved_us();
        let share = |part: f64, whole: f64| match whole > 0.0 {
            true => format!("{:.1} %", 100.0 * part / whole),
            false => "-".to_owned(),
        };
        let tone = match saved_us {
            saved if saved > 0.0 => Tone::Better,
            saved if saved < 0.0 => Tone::Worse,
            _ => Tone::Plain,
        };
        let milliseconds = |us: f64| Cell::plain(format!("{:.1} ms", us / 1000.0));
        vec![
            Cell::plain(target),
            Cell::plain(self.operation),
            milliseconds(self.before_us),
            milliseconds(self.after_us),
            Cell { tone, ..milliseconds(saved_us) },
            Cell::plain(share(saved_us, self.before_us)),
            Cell::plain(share(saved_us, whole_us)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Sample, Target};

    fn sample(target: &str, round: u32, times: &[(&str, u64)]) -> Sample {
        let times = times.iter().map(|(name, us)| ((*name).to_owned(), *us)).collect();
        let target = target.to_owned();
        Sample { target, round, value: Some(1.0), rpc_time_us: Some(times), ..Sample::default() }
    }

    /// The published split: 91 % of the saving in WRITE, 9 % in COMMIT.
    #[test]
    fn savings_are_split_by_operation() {
        let target = |name: &str| Target { name: name.to_owned(), ..Target::default() };
        let samples = vec![
            sample("plain", 0, &[("WRITE", 1000), ("COMMIT", 100), ("LOOKUP", 10)]),
            sample("larder", 0, &[("WRITE", 90), ("COMMIT", 10), ("LOOKUP", 10)]),
            sample("plain async", 0, &[("WRITE", 2000)]),
        ];
        let test = Test { name: "large-write".into(), copies: 1, samples, ..Test::default() };
        let mut run = blank();
        run.targets = ["larder", "plain", "plain async"].map(target).to_vec();
        let blocks = blocks(&run, &[&test]);
        let [Block::Table(table)] = blocks.as_slice() else { panic!("{blocks:?}") };
        let rows: Vec<Vec<&str>> = table
            .rows
            .iter()
            .map(|row| row.iter().map(|cell| cell.text.as_str()).collect())
            .collect();
        assert_eq!(rows[0], ["larder", "WRITE", "1.0 ms", "0.1 ms", "0.9 ms", "91.0 %", "91.0 %"]);
        assert_eq!(rows[1], ["larder", "COMMIT", "0.1 ms", "0.0 ms", "0.1 ms", "90.0 %", "9.0 %"]);
        assert_eq!(rows[2], ["larder", "LOOKUP", "0.0 ms", "0.0 ms", "0.0 ms", "0.0 %", "0.0 %"]);
        assert_eq!(rows[3][1..], ["all", "1.1 ms", "0.1 ms", "1.0 ms", "90.1 %", "100.0 %"]);
        let last = rows.last().unwrap();
        assert_eq!((last[0], last[1], last[6]), ("plain async", "all", "-"), "nothing was saved");
    }

    fn blank() -> Run {
        serde_json::from_value(serde_json::json!({
            "format": 1, "suite": "mbfs", "size": "smoke", "started": "", "elapsed_s": 0.0,
            "interrupted": false, "command": "", "larder": "", "link": null, "method": [],
            "targets": [], "tests": [],
            "machine": {"host": "", "cpu": "", "cpus": 1, "memory_bytes": 1, "kernel": "",
                "distribution": "", "load": 0.0},
        }))
        .expect("it has all fields")
    }
}

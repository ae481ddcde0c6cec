//! What was to be reached, and what was measured of it: a row for each goal. A goal is reached if
//! the median is within its bound; whether the rounds show it, the interval says. A row that was
//! not measured says why.

use crate::record::{Run, Test};
use crate::stats::Summary;

use super::super::super::document::{Block, Cell, Table, Tone};
use super::super::super::number::{exact, grouped, span, three};

const SCRATCH: &str = "larder scratch exclusive";
const GENERATED: &str = "larder generated exclusive";
const EDITED: &str = "larder edited";
const FAR: &str = "larder generated exclusive far";
const VOLATILE: &str = "larder volume volatile";
const VOLUME_SCRATCH: &str = "larder volume scratch";
const PLAIN: &str = "plain";
const PLAIN_SYNC: &str = "plain sync";
const LOCAL: &str = "local";
const LOCAL_SYNC: &str = "local sync";
const PASSTHROUGH: &str = "passthrough";

/// A bound on the ratio of the time of ours to that of theirs.
#[derive(Clone, Copy, Debug)]
enum Bound {
    /// Theirs takes at least this many times as long.
    TimesAsFast(f64),
    /// Ours takes at least this many percent less.
    PercentLess(f64),
    /// Ours takes at most this many times as long.
    TimesAsLong(f64),
    /// Ours takes less.
    Faster,
}

/// The number of clients.
#[derive(Clone, Copy, Debug)]
enum At {
    /// The smallest that was measured.
    Fewest,
    /// The greatest; 10 was wanted.
    Most,
}

/// What is compared.
#[derive(Clone, Copy, Debug)]
enum What {
    /// A test on ours and on theirs.
    Test(&'static str, At, &'static str, &'static str),
    /// Every published test at every number of clients: the one that is worst for ours.
    Worst(&'static str, &'static str),
    /// The same test on the same target, with the largest file and with the smallest.
    Sizes(&'static str, &'static str),
}

use At::{Fewest, Most};
use Bound::{Faster, PercentLess, TimesAsFast, TimesAsLong};

/// What the classes are to reach, then what memory disks are to reach.
const GOALS: [(What, Bound); 25] = [
    (What::Test("small-file", Most, SCRATCH, PLAIN), TimesAsFast(24.0)),
    (What::Test("small-file", Fewest, SCRATCH, PASSTHROUGH), TimesAsFast(0.7)),
    (What::Test("small-file", Most, SCRATCH, PASSTHROUGH), TimesAsFast(0.7)),
    (What::Test("andrew", Fewest, SCRATCH, PLAIN), PercentLess(40.0)),
    (What::Test("andrew", Most, SCRATCH, PLAIN), PercentLess(64.0)),
    (What::Test("andrew", Fewest, GENERATED, PLAIN), PercentLess(40.0)),
    (What::Test("andrew", Most, GENERATED, PLAIN), PercentLess(64.0)),
    (What::Test("untar-far", Fewest, FAR, LOCAL), TimesAsLong(1.5)),
    (What::Test("large-write", Fewest, SCRATCH, PLAIN), Faster),
    (What::Test("large-write", Most, SCRATCH, PLAIN), Faster),
    (What::Test("large-write", Fewest, GENERATED, PLAIN), Faster),
    (What::Test("large-write", Most, GENERATED, PLAIN), Faster),
    (What::Test("edit", Fewest, EDITED, PLAIN), TimesAsLong(1.05)),
    (What::Test("edit", Most, EDITED, PLAIN), TimesAsLong(1.05)),
    (What::Test("small-writes", Most, EDITED, PLAIN_SYNC), TimesAsFast(100.0)),
    (What::Test("small-writes", Most, GENERATED, PLAIN_SYNC), TimesAsFast(100.0)),
    (What::Sizes("fsync", GENERATED), TimesAsLong(2.0)),
    (What::Sizes("fsync", EDITED), TimesAsLong(2.0)),
    (What::Test("small-file", Most, VOLATILE, PLAIN), TimesAsFast(24.0)),
    (What::Test("andrew", Fewest, VOLATILE, PLAIN), PercentLess(40.0)),
    (What::Test("andrew", Most, VOLATILE, PLAIN), PercentLess(64.0)),
    (What::Worst(VOLATILE, LOCAL_SYNC), TimesAsLong(1.0)),
    (What::Worst(VOLUME_SCRATCH, LOCAL_SYNC), TimesAsLong(1.0)),
    (What::Test("small-file", Fewest, VOLATILE, PASSTHROUGH), TimesAsFast(0.7)),
    (What::Test("small-file", Most, VOLATILE, PASSTHROUGH), TimesAsFast(0.7)),
];

/// The published tests.
const PUBLISHED: [&str; 5] = ["large-write", "small-file", "untar", "edit", "andrew"];

/// The table, the same in sentences, and what shows that contestants do what they claim. Nothing
/// where none of the targets is one of the suite's own.
pub(super) fn blocks(run: &Run) -> Vec<Block> {
    let is_known = |name: &str| run.target(name).is_some();
    if run.tests.is_empty() || !(is_known(SCRATCH) || is_known(VOLATILE)) {
        return Vec::new();
    }
    let mut rows: Vec<Row> = GOALS.iter().map(|(what, bound)| row(run, *what, *bound)).collect();
    // A run with one number of clients has the same twice.
    rows.dedup_by(|one, other| one.sentence == other.sentence);
    let columns = ["what", "to reach", "measured", "lowest and highest round", "reached"];
    let mut table = Table::new("What was to be reached", &columns).open();
    for row in &rows {
        table.push(row.cells.clone());
    }
    let mut blocks = vec![Block::Table(table)];
    let sentences = rows.into_iter().map(|row| row.sentence).collect();
    blocks.push(Block::List("What was to be reached, in sentences".to_owned(), sentences));
    let also: Vec<String> = splits(run).into_iter().chain(edits(run)).chain(silence(run)).collect();
    if !also.is_empty() {
        blocks.push(Block::List("Beside the published results".to_owned(), also));
    }
    blocks.extend(calls(run).map(Block::Table));
    blocks
}

/// A goal, and what came of it.
struct Row {
    cells: Vec<Cell>,
    sentence: String,
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
    /// Of a ratio of times that is to be at most `limit`; with `strictly`, less.
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
    /// What the ratio of times may be at most.
    fn limit(self) -> f64 {
        match self {
            TimesAsFast(times) => 1.0 / times,
            PercentLess(percent) => 1.0 - percent / 100.0,
            TimesAsLong(times) => times,
            Faster => 1.0,
        }
    }

    fn words(self) -> String {
        match self {
            TimesAsFast(times) => format!("at least {} times as fast", exact(times)),
            PercentLess(percent) => format!("at least {} % less time", exact(percent)),
            TimesAsLong(times) => format!("at most {} times the time", exact(times)),
            Faster => "faster".to_owned(),
        }
    }

    /// A ratio of times as the goal counts it, and what it is.
    fn shown(self, ratio: f64) -> f64 {
        match self {
            TimesAsFast(_) | Faster => 1.0 / ratio,
            PercentLess(_) => 100.0 * (1.0 - ratio),
            TimesAsLong(_) => ratio,
        }
    }

    fn number(self, ratio: f64) -> String {
        match self {
            PercentLess(_) => format!("{:.1} % less time", self.shown(ratio)),
            TimesAsFast(_) | Faster => format!("{} times as fast", three(self.shown(ratio))),
            TimesAsLong(_) => format!("{} times the time", three(ratio)),
        }
    }

    fn ends(self, (low, high): (f64, f64)) -> String {
        let (one, other) = (self.shown(low), self.shown(high));
        match self {
            PercentLess(_) => {
                format!("{:.1}\u{a0}to\u{a0}{:.1}\u{a0}%", one.min(other), one.max(other))
            }
            _ => span((one.min(other), one.max(other)), ""),
        }
    }
}

fn row(run: &Run, what: What, bound: Bound) -> Row {
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
            sentence: format!("{name}: {goal} was to be reached; not measured, because {reason}."),
        },
        Ok(ratio) => {
            let reached = Reached::of(&ratio, bound.limit(), matches!(bound, Faster));
            let interval = ratio.interval.map_or_else(
                || format!("n\u{a0}=\u{a0}{}", ratio.count),
                |ends| format!("95 %: {}, n\u{a0}=\u{a0}{}", bound.ends(ends), ratio.count),
            );
            let measured = format!("{} ({interval})", bound.number(ratio.median));
            let spread = bound.ends((ratio.min, ratio.max));
            let sentence = format!(
                "{name}: {measured}, in rounds {spread}; {goal} was to be reached: {}.",
                reached.words(ratio.count)
            );
            let cells = vec![
                Cell::plain(name),
                Cell::plain(goal),
                Cell::plain(measured),
                Cell::plain(spread),
                reached.cell(ratio.count),
            ];
            Row { cells, sentence }
        }
    }
}

/// What is compared, in words, and the ratio of times, or why there is none.
fn compare(run: &Run, what: What) -> (String, Result<Summary, String>) {
    match what {
        What::Test(name, at, ours, theirs) => {
            let Some(test) = measured_at(run, name, at, &[ours, theirs]) else {
                let reason = [ours, theirs].iter().find_map(|target| absence(run, target));
                let reason =
                    reason.unwrap_or_else(|| "the run has no such test of both".to_owned());
                return (format!("{name}: {ours} against {theirs}"), Err(reason));
            };
            let ratio = test.time_ratio(ours, theirs);
            let reason = || why_not(test, &[ours, theirs]);
            let title = title(test);
            (format!("{title}: {ours} against {theirs}"), ratio.ok_or_else(reason))
        }
        What::Worst(ours, theirs) => {
            let tests = run.tests.iter().filter(|test| PUBLISHED.contains(&test.name.as_str()));
            let ratios = tests.filter_map(|test| Some((test, test.time_ratio(ours, theirs)?)));
            let ratios: Vec<(&Test, Summary)> = ratios.collect();
            let slower = ratios.iter().filter(|(_, ratio)| ratio.median > 1.0).count();
            let count = ratios.len();
            let worst =
                ratios.into_iter().max_by(|one, other| one.1.median.total_cmp(&other.1.median));
            match worst {
                Some((test, ratio)) => {
                    let worst = title(test);
                    (
                        format!(
                            "every test: {ours} against {theirs} (slower in {slower} of {count}; the worst is {worst})"
                        ),
                        Ok(ratio),
                    )
                }
                None => {
                    let reason = [ours, theirs].iter().find_map(|target| absence(run, target));
                    let reason = reason.unwrap_or_else(|| "no test has both".to_owned());
                    (format!("every test: {ours} against {theirs}"), Err(reason))
                }
            }
        }
        What::Sizes(name, ours) => {
            let size = |test: &&Test| test.at.values().copied().next().unwrap_or(0.0);
            let mut tests: Vec<&Test> = run
                .tests
                .iter()
                .filter(|test| test.name == name && test.of(ours).count() > 0)
                .collect();
            tests.sort_by(|one, other| size(one).total_cmp(&size(other)));
            let (Some(small), Some(large)) = (tests.first(), tests.last()) else {
                let reason =
                    absence(run, ours).unwrap_or_else(|| "the run has no such test".to_owned());
                return (format!("{name}: {ours}"), Err(reason));
            };
            let words = format!(
                "{name} after 4 KiB in a file of {} MiB against one of {} MiB: {ours}",
                exact(size(large)),
                exact(size(small))
            );
            let ratio = large.time_ratio_to(ours, small, ours);
            let reason = || {
                let failed = small.failure(ours).or(large.failure(ours));
                failed.map_or_else(|| "no round has both".to_owned(), str::to_owned)
            };
            (words, ratio.ok_or_else(reason))
        }
    }
}

fn title(test: &Test) -> String {
    match test.copies {
        1 => format!("{}, 1 client", test.name),
        copies => format!("{}, {copies} clients", test.name),
    }
}

/// The test at one of its ends, among the numbers of clients at which all of `targets` were
/// measured.
fn measured_at<'a>(run: &'a Run, name: &str, at: At, targets: &[&str]) -> Option<&'a Test> {
    let tests = run.tests.iter().filter(|test| {
        let has = |target: &&str| test.of(target).count() > 0;
        test.name == name && targets.iter().all(has)
    });
    match at {
        Fewest => tests.min_by_key(|test| test.copies),
        Most => tests.max_by_key(|test| test.copies),
    }
}

/// Why a target is not in a run.
fn absence(run: &Run, target: &str) -> Option<String> {
    let line = run.absent.iter().find_map(|line| line.strip_prefix(&format!("{target}: ")));
    match (line, run.target(target)) {
        (Some(reason), _) => Some(format!("{target} could not run: {reason}")),
        (None, None) => Some(format!("{target} is no target of this run")),
        (None, Some(_)) => None,
    }
}

fn why_not(test: &Test, targets: &[&str]) -> String {
    let failed = targets.iter().find_map(|target| Some((target, test.failure(target)?)));
    match failed {
        Some((target, reason)) => format!("{target} failed: {reason}"),
        None => "no round has both".to_owned(),
    }
}

/// How the saving of large-write is divided, beside the published 91 and 9 %.
fn splits(run: &Run) -> Vec<String> {
    let mut sentences = Vec::new();
    for at in [Fewest, Most] {
        for ours in [SCRATCH, GENERATED] {
            let test = measured_at(run, "large-write", at, &[ours, PLAIN]);
            let times = test.and_then(|test| Some((test, test.rpc_times_us(PLAIN)?)));
            let Some((test, before)) = times else { continue };
            let after = test.rpc_times_us(ours).cloned().unwrap_or_default();
            let saved = |name: &str| {
                let after = after.get(name).copied().unwrap_or(0);
                before.get(name).copied().unwrap_or(0).saturating_sub(after) as f64
            };
            let all: f64 = before.keys().map(|name| saved(name)).sum();
            if all > 0.0 {
                let share = |name: &str| format!("{:.0} % {name}", 100.0 * saved(name) / all);
                let names = ["CREATE", "SETATTR"].map(share).join(", ");
                sentences.push(format!(
                    "{}: of the time of calls that {ours} saved against {PLAIN}, {} and {} (published: 91 and 9 %); names that are not made at the server: {names}.",
                    title(test),
                    share("WRITE"),
                    share("COMMIT"),
                ));
            }
        }
    }
    sentences.dedup();
    sentences
}

/// Whether anything of the edits was lost.
fn edits(run: &Run) -> Option<String> {
    let tests = run.tests.iter().filter(|test| test.name == "edit");
    let samples: Vec<_> = tests.flat_map(|test| test.of(EDITED)).collect();
    let failed = samples.iter().filter(|sample| sample.failed.is_some()).count();
    (!samples.is_empty()).then(|| {
        format!(
            "edit on {EDITED}: all texts, pages and mailboxes were compared byte by byte after the last work of each round; {} of {} samples failed.",
            failed,
            samples.len()
        )
    })
}

/// Whether files that need only memory, with names that are made here, cost the server nothing.
fn silence(run: &Run) -> Option<String> {
    const CHANGES: [&str; 5] = ["CREATE", "SETATTR", "WRITE", "COMMIT", "REMOVE"];
    let tests = run.tests.iter().filter(|test| test.name == "small-file");
    let counted = tests.flat_map(|test| test.of(SCRATCH)).filter_map(|one| one.rpcs.as_ref());
    let counted: Vec<_> = counted.collect();
    let changes = |rpcs: &&std::collections::BTreeMap<String, u64>| -> u64 {
        CHANGES.iter().filter_map(|name| rpcs.get(*name)).sum()
    };
    let sum: u64 = counted.iter().map(changes).sum();
    (!counted.is_empty()).then(|| {
        format!(
            "small-file on {SCRATCH}: {sum} calls in all that make, write or remove a file ({}); others look up the directory once.",
            CHANGES.join(", ")
        )
    })
}

/// Calls to the server for each file of small-file: what shows that a contestant does what its name
/// says.
fn calls(run: &Run) -> Option<Table> {
    let columns = ["target", "clients", "calls per file", "by procedure"];
    let caption =
        "small-file: calls to the server for each file that was made, written and removed";
    let mut table = Table::new(caption, &columns).open();
    for test in run.tests.iter().filter(|test| test.name == "small-file") {
        for target in &run.targets {
            let (mut files, mut by) = (0.0, std::collections::BTreeMap::<&str, f64>::new());
            for sample in test.of(&target.name) {
                let made = sample.extra.get("files_per_client").zip(sample.rpcs.as_ref());
                let Some((made, rpcs)) = made else { continue };
                files += made * f64::from(test.copies);
                for (name, count) in rpcs {
                    *by.entry(name).or_default() += *count as f64;
                }
            }
            if files > 0.0 {
                let mut by: Vec<(&str, f64)> = by.into_iter().filter(|one| one.1 > 0.0).collect();
                by.sort_by(|one, other| other.1.total_cmp(&one.1));
                let all: f64 = by.iter().map(|(_, count)| count).sum();
                let words =
                    by.iter().map(|(name, count)| format!("{name} {}", three(count / files)));
                let words = words.collect::<Vec<_>>().join(", ");
                table.push(vec![
                    Cell::plain(&*target.name),
                    Cell::plain(grouped(f64::from(test.copies))),
                    Cell::plain(three(all / files)),
                    Cell::plain(if words.is_empty() { "none".to_owned() } else { words }),
                ]);
            }
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Sample, Target};

    fn test(name: &str, copies: u32, values: &[(&str, &[f64])]) -> Test {
        let samples = values.iter().flat_map(|(target, values)| {
            (0..).zip(*values).map(|(round, value)| Sample {
                target: (*target).to_owned(),
                round,
                value: Some(*value),
                ..Sample::default()
            })
        });
        Test {
            name: name.to_owned(),
            copies,
            unit: "s".to_owned(),
            samples: samples.collect(),
            ..Test::default()
        }
    }

    fn run(tests: Vec<Test>) -> Run {
        let mut run: Run = serde_json::from_value(serde_json::json!({
            "format": 1, "suite": "mbfs", "size": "smoke", "started": "", "elapsed_s": 0.0,
            "interrupted": false, "command": "", "larder": "", "link": null, "method": [],
            "targets": [], "tests": [],
            "machine": {"host": "", "cpu": "", "cpus": 1, "memory_bytes": 1, "kernel": "",
                "distribution": "", "load": 0.0},
        }))
        .expect("it has all fields");
        let names = [SCRATCH, EDITED, VOLATILE, PLAIN, LOCAL_SYNC];
        run.targets =
            names.map(|name| Target { name: name.to_owned(), ..Target::default() }).to_vec();
        run.absent = vec![format!("{PASSTHROUGH}: no /dev/fuse")];
        run.tests = tests;
        run
    }

    fn row_of(run: &Run, what: What, bound: Bound) -> Vec<String> {
        row(run, what, bound).cells.into_iter().map(|cell| cell.text).collect()
    }

    #[test]
    fn goals_are_counted_as_they_are_worded() {
        let mut rate = test(
            "small-file",
            10,
            &[(SCRATCH, &[2500.0, 2600.0, 2550.0]), (PLAIN, &[25.0, 25.0, 25.0])],
        );
        rate.more_is_better = true;
        let andrew = test("andrew", 1, &[(SCRATCH, &[0.7, 0.7, 0.7]), (PLAIN, &[1.0, 1.0, 1.0])]);
        let edit = test("edit", 10, &[(EDITED, &[1.0, 1.04, 1.2]), (PLAIN, &[1.0, 1.0, 1.0])]);
        let run = run(vec![rate, andrew, edit]);
        let fast = row_of(&run, GOALS[0].0, GOALS[0].1);
        assert_eq!(fast[0], "small-file, 10 clients: larder scratch exclusive against plain");
        assert_eq!(fast[1], "at least 24 times as fast");
        assert!(fast[2].starts_with("102 times as fast (95 %: "), "{fast:?}");
        assert_eq!((fast[3].as_str(), fast[4].as_str()), ("100\u{a0}to\u{a0}104", "yes"));
        let less = row_of(&run, GOALS[3].0, GOALS[3].1);
        assert!(less[2].starts_with("30.0 % less time"), "{less:?}");
        assert_eq!(less[4], "no");
        let long = row_of(&run, What::Test("edit", Most, EDITED, PLAIN), TimesAsLong(1.05));
        assert_eq!(long[4], "yes, by the median");
    }

    #[test]
    fn what_was_not_measured_says_why() {
        let run = run(vec![test("small-file", 10, &[(SCRATCH, &[1.0])])]);
        let absent = row_of(&run, GOALS[2].0, GOALS[2].1);
        assert_eq!(absent[2], "not measured: passthrough could not run: no /dev/fuse");
        assert_eq!(absent[4], "not known");
        let other = row(&run, GOALS[16].0, GOALS[16].1).sentence;
        assert!(other.contains("larder generated exclusive is no target of this run"), "{other}");
    }

    #[test]
    fn the_worst_of_all_tests_counts_and_sizes_are_compared() {
        let tests = vec![
            test("untar", 1, &[(VOLATILE, &[1.0, 1.0, 1.0]), (LOCAL_SYNC, &[2.0, 2.0, 2.0])]),
            test("edit", 1, &[(VOLATILE, &[3.0, 3.0, 3.0]), (LOCAL_SYNC, &[2.0, 2.0, 2.0])]),
        ];
        let mut run = run(tests);
        let worst = row_of(&run, What::Worst(VOLATILE, LOCAL_SYNC), TimesAsLong(1.0));
        assert!(worst[0].ends_with("(slower in 1 of 2; the worst is edit, 1 client)"), "{worst:?}");
        assert_eq!(worst[4], "no");
        for (size, value) in [(1.0, 10.0), (1024.0, 15.0)] {
            let mut one = test("fsync", 1, &[(EDITED, &[value, value, value])]);
            one.at.insert("file size MiB".to_owned(), size);
            run.tests.insert(0, one);
        }
        let sizes = row_of(&run, What::Sizes("fsync", EDITED), TimesAsLong(2.0));
        assert!(sizes[0].contains("1,024 MiB against one of 1 MiB"), "{sizes:?}");
        assert_eq!((&sizes[2][..4], sizes[4].as_str()), ("1.50", "yes"));
    }

    #[test]
    fn calls_are_told_by_file() {
        let mut small = test("small-file", 10, &[(SCRATCH, &[1.0]), (PLAIN, &[1.0])]);
        for sample in &mut small.samples {
            sample.extra.insert("files_per_client".to_owned(), 20.0);
            let calls = if sample.target == PLAIN { 400 } else { 0 };
            sample.rpcs = Some([("CREATE".to_owned(), calls)].into());
        }
        let table = calls(&run(vec![small])).unwrap();
        let rows: Vec<Vec<&str>> = table
            .rows
            .iter()
            .map(|row| row.iter().map(|cell| cell.text.as_str()).collect())
            .collect();
        assert_eq!(rows[0], [SCRATCH, "10", "0", "none"]);
        assert_eq!(rows[1], [PLAIN, "10", "2.00", "CREATE 2.00"]);
    }
}

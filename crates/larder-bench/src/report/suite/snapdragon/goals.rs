//! What own servers were to reach in `snapdragon` and `disks`; what an operation costs; and Andrew
//! by phase.

use crate::record::{Run, Sample, Test};
use crate::stats::Summary;

use super::super::super::compare::NOT_MEASURED;
use super::super::super::document::{Block, Cell, Table, Tone};
use super::super::super::number::{three, value};
use super::super::goals::At::{Fewest, Most};
use super::super::goals::Bound::{
    self, Calls, Faster, Known, PercentOfCore, TimesAsFast, TimesAsLong,
};
use super::super::goals::{self, ANY, Several, What, phase_words, phases};

const SECURE: &str = "secure";
const OFF: &str = "off";
const PRIVATE: &str = "private";
const NFS: &str = "nfs";
const SECURE_SMALL: &str = "secure 2 MB";
const OFF_SMALL: &str = "off 2 MB";
const NFS_SMALL: &str = "nfs 2 MB";

/// The largest files, in KB, up to which volumes are to be level with NFS, and the next ones.
const LEVEL_TO: (f64, f64) = (0.0, 64.0);
const ABOVE: (f64, f64) = (64.5, f64::INFINITY);
/// How fast one must be to be level.
const LEVEL: Bound = TimesAsFast(0.95);

const READS: Several = Several { words: "read, every size", names: &["read"], at: ANY };
const WRITES: Several = Several { words: "write, every size", names: &["write"], at: ANY };
const SMALL_READS: Several = Several { words: "read, files up to 64 KB", at: LEVEL_TO, ..READS };
const LARGE_READS: Several = Several { words: "read, files above 64 KB", at: ABOVE, ..READS };
const SMALL_WRITES: Several = Several { words: "write, files up to 64 KB", at: LEVEL_TO, ..WRITES };
const LARGE_WRITES: Several = Several { words: "write, files above 64 KB", at: ABOVE, ..WRITES };

/// Of the suite `snapdragon`, in the order of the requirements.
const GOALS: [(What, Bound); 38] = [
    (What::Worst(READS, SECURE, OFF), LEVEL),
    (What::Worst(WRITES, SECURE, OFF), LEVEL),
    (What::Worst(READS, SECURE_SMALL, OFF_SMALL), LEVEL),
    (What::Worst(WRITES, SECURE_SMALL, OFF_SMALL), LEVEL),
    (What::Worst(READS, PRIVATE, OFF), Known),
    (What::Worst(WRITES, PRIVATE, OFF), Known),
    (What::Worst(SMALL_READS, SECURE, NFS), LEVEL),
    (What::Worst(SMALL_WRITES, SECURE, NFS), LEVEL),
    (What::Worst(LARGE_READS, SECURE, NFS), TimesAsFast(1.0)),
    (What::Worst(LARGE_WRITES, SECURE, NFS), TimesAsFast(1.0)),
    (What::Worst(SMALL_READS, SECURE_SMALL, NFS_SMALL), LEVEL),
    (What::Worst(SMALL_WRITES, SECURE_SMALL, NFS_SMALL), LEVEL),
    (What::Worst(LARGE_READS, SECURE_SMALL, NFS_SMALL), TimesAsFast(1.0)),
    (What::Worst(LARGE_WRITES, SECURE_SMALL, NFS_SMALL), TimesAsFast(1.0)),
    (What::Test("latency-read", Fewest, SECURE, OFF), TimesAsLong(1.05)),
    (What::Test("latency-write", Fewest, SECURE, OFF), TimesAsLong(1.05)),
    // The same request with a MAC and without: nothing else differs.
    (What::Test("latency-again", Fewest, SECURE, OFF), TimesAsLong(1.05)),
    (What::Test("latency-again", Fewest, PRIVATE, OFF), Known),
    (What::Calls("latency-getcaps", None, SECURE), Calls(2.0)),
    // Apart from the return of the lease, which no reader waits for.
    (What::Calls("latency-revoked", Some(("latency-again", 1.0)), SECURE), Calls(2.0)),
    (What::Each("latency-revoked", REVOCATIONS, SECURE), Calls(1.0)),
    (What::Each("latency-revocation", REVOCATIONS, SECURE), Calls(1.0)),
    // One round trip from the metadata server to the disk, by the time of one from the client.
    (
        What::Added(["latency-revocation", "latency-chmod"], "latency-again", SECURE),
        TimesAsLong(1.0),
    ),
    (What::Phases("andrew", SECURE, NFS), TimesAsLong(1.0)),
    (What::Phases("andrew-large", SECURE, NFS), TimesAsLong(1.0)),
    (What::Test("create", Fewest, SECURE, NFS), Faster),
    (What::Test("create", Most, SECURE, NFS), Faster),
    (What::Test("stat", Fewest, SECURE, NFS), Faster),
    (What::Test("stat", Most, SECURE, NFS), Faster),
    (What::Test("unlink", Fewest, SECURE, NFS), Faster),
    (What::Test("unlink", Most, SECURE, NFS), Faster),
    (What::Test("small-file", Fewest, SECURE, NFS), Faster),
    (What::Test("small-file", Most, SECURE, NFS), Faster),
    (What::Calls("open-again", None, SECURE), Calls(0.0)),
    (What::Steady("entries-create", SECURE), STEADY),
    (What::Steady("entries-list", SECURE), STEADY),
    (What::Steady("entries-remove", SECURE), STEADY),
    (What::Test("entries-create", Fewest, SECURE, NFS), Known),
];

/// Calls of the metadata server to the disk that end capabilities, as records have them.
const REVOCATIONS: &str = "disk_revocations";

/// What counts as a rate that does not fall.
const STEADY: Bound = TimesAsLong(1.1);

/// Of the suite `disks`.
const GOALS_OF_DISKS: [(What, Bound); 4] = [
    (What::Linear("read"), LEVEL),
    (What::Linear("write"), LEVEL),
    (What::Processor("read", "metadata_cpu_s"), PercentOfCore(14.0)),
    (What::Processor("write", "metadata_cpu_s"), PercentOfCore(14.0)),
];

/// The goals. None where none of the targets is one of the suite's own.
pub(in crate::report::suite) fn rows(run: &Run) -> Vec<goals::Row> {
    match run.tests.is_empty() || run.target(SECURE).is_none() {
        true => Vec::new(),
        false => goals::rows(run, &GOALS),
    }
}

/// The goals of suite `disks`.
pub(in crate::report::suite) fn rows_of_disks(run: &Run) -> Vec<goals::Row> {
    match run.tests.is_empty() || run.target("1 disk").is_none() {
        true => Vec::new(),
        false => goals::rows(run, &GOALS_OF_DISKS),
    }
}

/// The tables. Nothing where there are no goals.
pub(super) fn blocks(run: &Run) -> Vec<Block> {
    let rows = rows(run);
    if rows.is_empty() {
        return Vec::new();
    }
    let mut blocks = vec![Block::Table(goals::table(rows))];
    let tables = [costs(run), calls(run), andrew(run)];
    blocks.extend(tables.into_iter().filter(|table| !table.rows.is_empty()).map(Block::Table));
    blocks
}

/// The table of suite `disks`.
pub(super) fn blocks_of_disks(run: &Run) -> Vec<Block> {
    let rows = rows_of_disks(run);
    if rows.is_empty() { Vec::new() } else { vec![Block::Table(goals::table(rows))] }
}

/// A cost that is the difference of two others.
struct Cost {
    words: &'static str,
    of: (&'static str, Option<&'static str>),
    /// What it is subtracted from that, in the same rounds: a test, a target.
    less: Option<(&'static str, Option<&'static str>)>,
}

/// What a target of the table is, where none is named.
const COSTS: [Cost; 9] = [
    Cost { words: "read, nothing known yet", of: ("latency-read", None), less: None },
    Cost { words: "write in place, synced", of: ("latency-write", None), less: None },
    Cost { words: "read under a capability", of: ("latency-again", None), less: None },
    Cost {
        words: "of it, MAC or encryption",
        of: ("latency-again", None),
        less: Some(("latency-again", Some(OFF))),
    },
    Cost {
        words: "an extra GETCAPS",
        of: ("latency-getcaps", None),
        less: Some(("latency-again", None)),
    },
    Cost {
        words: "a capability that was revoked",
        of: ("latency-revoked", None),
        less: Some(("latency-again", None)),
    },
    Cost { words: "chmod", of: ("latency-chmod", None), less: None },
    Cost {
        words: "a revocation beside it",
        of: ("latency-revocation", None),
        less: Some(("latency-chmod", None)),
    },
    Cost { words: "chmod of what was just read", of: ("latency-revocation", None), less: None },
];

/// What operations cost, and what parts of them do: differences are of the same rounds.
fn costs(run: &Run) -> Table {
    let names: Vec<&str> = [SECURE, OFF, PRIVATE, NFS].to_vec();
    let columns: Vec<&str> = ["what"].into_iter().chain(names.iter().copied()).collect();
    let mut table =
        Table::new("What an operation on a file of 4 KB costs (medians)", &columns).open();
    for cost in &COSTS {
        let cells: Vec<Cell> = names.iter().map(|target| cost_cell(run, cost, target)).collect();
        if cells.iter().any(|cell| cell.tone != Tone::Missing) {
            table.push([Cell::plain(cost.words)].into_iter().chain(cells).collect());
        }
    }
    table
}

fn cost_cell(run: &Run, cost: &Cost, target: &str) -> Cell {
    let find = |name: &str| run.tests.iter().find(|test| test.name == name);
    let samples = |(name, of): (&str, Option<&str>)| -> Vec<&Sample> {
        let of = of.unwrap_or(target).to_owned();
        find(name)
            .into_iter()
            .flat_map(|test| test.samples.iter())
            .filter(|one| one.target == of)
            .collect()
    };
    let all = samples(cost.of);
    let mut values: Vec<f64> = match cost.less {
        None => all.iter().filter_map(|sample| sample.value).collect(),
        // What is of volumes alone.
        Some((_, Some(other))) if [other, NFS].contains(&target) => Vec::new(),
        Some(less) => {
            let less = samples(less);
            let pairs = all.iter().filter_map(|one| {
                let other = less.iter().find(|other| other.round == one.round)?;
                Some(one.value? - other.value?)
            });
            pairs.collect()
        }
    };
    values.sort_by(f64::total_cmp);
    match values.get(values.len() / 2) {
        None => Cell { text: NOT_MEASURED.to_owned(), tone: Tone::Missing },
        Some(median) if *median < 0.0 => Cell::plain(format!("\u{2212}{}", value(-median, "us"))),
        Some(median) => Cell::plain(value(*median, "us")),
    }
}

/// Calls for each operation, of the tests that count theirs.
fn calls(run: &Run) -> Table {
    let columns = ["test", "target", "calls per operation", "by procedure"];
    let mut table = Table::new("Calls for each operation", &columns);
    for test in &run.tests {
        for target in &run.targets {
            let operations = test.of(&target.name).find_map(|one| one.extra.get("operations"));
            let counted = operations.zip(test.rpcs_by_procedure(&target.name));
            let Some((operations, by)) = counted.filter(|(operations, _)| **operations > 0.0)
            else {
                continue;
            };
            let each = |count: &u64| *count as f64 / operations;
            let by = goals::of_work(by);
            let words = by.iter().filter(|(_, count)| **count > 0);
            let words = words.map(|(name, count)| format!("{name} {}", three(each(count))));
            let words = words.collect::<Vec<_>>().join(", ");
            table.push(vec![
                Cell::plain(goals::title(test)),
                Cell::plain(&*target.name),
                Cell::plain(three(by.values().map(each).sum())),
                Cell::plain(if words.is_empty() { "none".to_owned() } else { words }),
            ]);
        }
    }
    table
}

/// Medians of the phases of both trees.
fn andrew(run: &Run) -> Table {
    let has = |name: &str| {
        let tests = run.tests.iter().filter(|test| !phases(test).is_empty());
        tests.flat_map(|test| test.of(name)).next().is_some()
    };
    let names: Vec<&str> =
        run.targets.iter().map(|target| target.name.as_str()).filter(|name| has(name)).collect();
    let columns: Vec<&str> = ["test", "phase"].into_iter().chain(names.iter().copied()).collect();
    let caption = "Andrew by phase (medians; compile with the compiler's CPU time)";
    let mut table = Table::new(caption, &columns).open();
    for test in &run.tests {
        for phase in phases(test) {
            let mut row = vec![Cell::plain(&*test.name), Cell::plain(phase_words(&phase))];
            row.extend(names.iter().map(|target| phase_cell(test, target, &phase)));
            table.push(row);
        }
    }
    table
}

fn phase_cell(test: &Test, target: &str, phase: &str) -> Cell {
    let values = test.of(target).filter_map(|sample| sample.extra.get(phase).copied());
    let values: Vec<f64> = values.filter(|value| *value > 0.0).collect();
    let median = Summary::of(&values).filter(|_| test.failure(target).is_none());
    median.map_or_else(
        || Cell { text: NOT_MEASURED.to_owned(), tone: Tone::Missing },
        |summary| Cell::plain(value(summary.median, "s")),
    )
}

#[cfg(test)]
mod tests {
    use super::super::super::goals::row;
    use super::*;
    use crate::record::Target;
    use std::collections::BTreeMap;

    const CALLS: &[&str] = &[SECURE, OFF, PRIVATE, NFS];

    /// A test with a value for each round of each target.
    fn test(name: &str, copies: u32, unit: &str, values: &[(&str, [f64; 3])]) -> Test {
        let samples = values.iter().flat_map(|(target, values)| {
            (0..).zip(values).map(|(round, value)| Sample {
                target: (*target).to_owned(),
                round,
                value: Some(*value),
                ..Sample::default()
            })
        });
        Test {
            name: name.to_owned(),
            copies,
            unit: unit.to_owned(),
            more_is_better: unit.ends_with("/s"),
            samples: samples.collect(),
            ..Test::default()
        }
    }

    /// The same with further measurements, and so many calls, in every sample.
    fn with(mut test: Test, extra: &[(&str, f64)], calls: &[(&str, u64)]) -> Test {
        for sample in &mut test.samples {
            sample.extra = extra.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            let calls = calls.iter().map(|(name, count)| ((*name).to_owned(), *count));
            sample.rpcs = Some(calls.collect::<BTreeMap<_, _>>());
        }
        test
    }

    fn run(targets: &[&str], tests: Vec<Test>) -> Run {
        let mut run: Run = serde_json::from_value(serde_json::json!({
            "format": 1, "suite": "snapdragon", "size": "smoke", "started": "", "elapsed_s": 0.0,
            "interrupted": false, "command": "", "larder": "", "link": null, "method": [],
            "targets": [], "tests": [],
            "machine": {"host": "", "cpu": "", "cpus": 1, "memory_bytes": 1, "kernel": "",
                "distribution": "", "load": 0.0},
        }))
        .expect("it has all fields");
        let target = |name: &&str| Target { name: (*name).to_owned(), ..Target::default() };
        run.targets = targets.iter().map(target).collect();
        run.tests = tests;
        run
    }

    /// What is said to be measured, and whether that is enough.
    fn told(run: &Run, (what, bound): (What, Bound)) -> [String; 3] {
        let row = row(run, what, bound).cells;
        [0, 2, 4].map(|at| row[at].text.replace('\u{a0}', " "))
    }

    #[test]
    fn the_worst_size_counts_within_its_places() {
        let sizes = [(4.0, 100.0), (64.0, 95.0), (256.0, 50.0)].map(|(kib, rate)| {
            let values = [(SECURE, [rate; 3]), (NFS, [100.0; 3])];
            let mut test = test("read", 6, "B/s", &values);
            test.at.insert("file size KB".to_owned(), kib);
            test
        });
        let run = run(CALLS, sizes.to_vec());
        let [words, measured, reached] = told(&run, (What::Worst(SMALL_READS, SECURE, NFS), LEVEL));
        assert!(words.ends_with("the worst is read, file size KB 64, 6 clients)"), "{words}");
        assert!(measured.starts_with("0.950 times as fast") && reached == "yes", "{measured}");
        let large = (What::Worst(LARGE_READS, SECURE, NFS), TimesAsFast(1.0));
        assert_eq!(told(&run, large)[2], "no");
    }

    #[test]
    fn calls_are_of_an_operation_and_those_of_time_do_not_count() {
        let of = |name, calls: &[(&str, u64)]| {
            let values = [(SECURE, [1.0; 3])];
            with(test(name, 1, "us", &values), &[("operations", 100.0)], calls)
        };
        let again = of("latency-again", &[("LOOK", 105), ("READ", 200)]);
        let revoked = [("LOOK", 205), ("READ", 300), ("RETURN_LEASE", 100), ("RENEW", 900)];
        let open = of("open-again", &[("RENEW", 7)]);
        let run = run(&[SECURE], vec![again, of("latency-revoked", &revoked), open]);
        let goal = |calls| {
            (What::Calls("latency-revoked", Some(("latency-again", 1.0)), SECURE), Calls(calls))
        };
        let [_, measured, reached] = told(&run, goal(2.0));
        let expected = "2.00 calls for each operation (n = 3)";
        assert_eq!((measured.as_str(), reached.as_str()), (expected, "yes"));
        assert_eq!(told(&run, goal(1.0))[2], "no");
        let silent = told(&run, (What::Calls("open-again", None, SECURE), Calls(0.0)));
        assert_eq!((&silent[1][..4], silent[2].as_str()), ("0.00", "yes"));
        let rows = calls(&run).rows;
        assert_eq!(rows[1][2].text, "6.05");
        assert_eq!(rows[2][3].text, "none");
    }

    #[test]
    fn what_disks_were_told_is_of_an_operation() {
        let of = |name, told| {
            let values = [(SECURE, [1.0; 3])];
            let extra = [("operations", 100.0), (REVOCATIONS, told)];
            with(test(name, 1, "us", &values), &extra, &[])
        };
        let uncounted = test("latency-chmod", 1, "us", &[(SECURE, [1.0; 3])]);
        let tests = vec![of("latency-revoked", 100.0), of("latency-revocation", 200.0), uncounted];
        let run = run(&[SECURE], tests);
        let told = |name| told(&run, (What::Each(name, REVOCATIONS, SECURE), Calls(1.0)));
        let words = "latency-revoked, disk_revocations: secure";
        let measured = "1.00 calls for each operation (n = 3)";
        assert_eq!(told("latency-revoked"), [words, measured, "yes"]);
        assert_eq!(told("latency-revocation")[2], "no");
        assert!(told("latency-chmod")[1].contains("it was not counted"));
    }

    #[test]
    fn what_a_revocation_adds_is_of_the_same_round() {
        let us = |name, values| test(name, 1, "us", &[(SECURE, values)]);
        let tests = vec![
            us("latency-again", [100.0, 200.0, 100.0]),
            us("latency-chmod", [500.0, 900.0, 500.0]),
            us("latency-revocation", [590.0, 1080.0, 400.0]),
        ];
        let run = run(&[SECURE], tests);
        let what = What::Added(["latency-revocation", "latency-chmod"], "latency-again", SECURE);
        let cells = row(&run, what, TimesAsLong(1.0)).cells;
        // Of the third, nothing is left.
        assert_eq!(cells[3].text, "0.0100\u{a0}to\u{a0}0.900");
        assert!(cells[2].text.starts_with("0.900 times the time"), "{}", cells[2].text);
        let costs = costs(&run).rows;
        let revocation = costs.iter().find(|row| row[0].text == "a revocation beside it").unwrap();
        assert_eq!(
            (revocation[1].text.as_str(), revocation[2].tone),
            ("90.0\u{a0}µs", Tone::Missing)
        );
    }

    #[test]
    fn each_phase_of_andrew_counts() {
        let of = |target, scan| {
            let phases = [("mkdir_s", 1.0), ("scan_s", scan), ("daemon_cpu_s", 9.0)];
            with(test("andrew", 1, "s", &[(target, [3.0; 3])]), &phases, &[])
        };
        let mut andrew = of(SECURE, 2.0);
        andrew.samples.extend(of(NFS, 1.0).samples);
        let run = run(&[SECURE, OFF, NFS], vec![andrew]);
        let [words, measured, reached] =
            told(&run, (What::Phases("andrew", SECURE, NFS), TimesAsLong(1.0)));
        assert!(words.ends_with("(slower in 1 of 2; the worst is scan)"), "{words}");
        assert!(measured.starts_with("2.00 times the time") && reached == "no", "{measured}");
        let table = super::andrew(&run);
        assert_eq!(table.columns, ["test", "phase", SECURE, NFS]);
        let scan: Vec<&str> = table.rows[1].iter().map(|cell| cell.text.as_str()).collect();
        assert_eq!(scan, ["andrew", "scan", "2.00\u{a0}s", "1.00\u{a0}s"]);
    }

    #[test]
    fn a_rate_that_falls_is_found() {
        let of = |name, last| {
            let ends = [("first_tenth_s", 10.0), ("last_tenth_s", last)];
            with(test(name, 1, "files/s", &[(SECURE, [5.0; 3])]), &ends, &[])
        };
        let run = run(&[SECURE], vec![of("entries-create", 10.5), of("entries-list", 20.0)]);
        let reached = |name| told(&run, (What::Steady(name, SECURE), STEADY))[2].clone();
        assert_eq!([reached("entries-create"), reached("entries-list")], ["yes", "no"]);
        assert_eq!(reached("entries-remove"), "not known");
    }

    #[test]
    fn disks_are_compared_with_as_many_times_one_and_the_metadata_server_with_the_time() {
        let of = |disks: u32, target, rate, cpu| {
            let costs = [("metadata_cpu_s", cpu), ("elapsed_s", 10.0)];
            with(test("read", disks, "B/s", &[(target, [rate; 3])]), &costs, &[])
        };
        let tests = vec![
            of(1, "1 disk", 10.0, 0.1),
            of(2, "2 disks", 20.0, 0.2),
            of(7, "7 disks", 63.0, 1.3),
        ];
        let run = run(&["1 disk", "2 disks", "7 disks"], tests);
        let linear = told(&run, (What::Linear("read"), LEVEL));
        assert!(linear[0].ends_with("(the worst is 7)"), "{linear:?}");
        assert!(linear[1].starts_with("0.900 times as fast") && linear[2] == "no", "{linear:?}");
        let processor = (What::Processor("read", "metadata_cpu_s"), PercentOfCore(14.0));
        let [_, measured, reached] = told(&run, processor);
        assert!(measured.starts_with("13.0 % of a processor") && reached == "yes", "{measured}");
        let Block::Table(table) = &blocks_of_disks(&run)[0] else { panic!("no table") };
        assert_eq!(table.rows.len(), GOALS_OF_DISKS.len());
    }
}

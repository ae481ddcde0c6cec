//! What was to be reached in `mbfs`, and what shows that its contestants do what they claim.

use crate::record::Run;

use super::super::super::document::{Block, Cell, Table};
use super::super::super::number::{grouped, three};
use super::super::goals::At::{Fewest, Most};
use super::super::goals::Bound::{self, Faster, Known, PercentLess, TimesAsFast, TimesAsLong};
use super::super::goals::{self, ANY, Several, What, measured_at, title};

const SCRATCH: &str = "larder scratch exclusive";
const GENERATED: &str = "larder generated exclusive";
const EDITED: &str = "larder edited";
const FAR: &str = "larder generated exclusive far";
const VOLATILE: &str = "larder volume volatile";
const VOLATILE_LEASED: &str = "larder volume volatile exclusive";
const VOLUME_SCRATCH: &str = "larder volume scratch";
const PLAIN: &str = "plain";
const PLAIN_SYNC: &str = "plain sync";
const LOCAL: &str = "local";
const LOCAL_SYNC: &str = "local sync";
const PASSTHROUGH: &str = "passthrough";

/// What the classes are to reach, then what memory disks are to reach.
const GOALS: [(What, Bound); 29] = [
    (What::Test("small-file", Most, SCRATCH, PLAIN), TimesAsFast(24.0)),
    (What::Test("small-file", Fewest, SCRATCH, PASSTHROUGH), TimesAsFast(0.7)),
    (What::Test("small-file", Most, SCRATCH, PASSTHROUGH), TimesAsFast(0.7)),
    (What::Test("andrew", Fewest, SCRATCH, PLAIN), PercentLess(40.0)),
    (What::Test("andrew", Most, SCRATCH, PLAIN), PercentLess(64.0)),
    (What::Test("andrew", Fewest, GENERATED, PLAIN), PercentLess(40.0)),
    (What::Test("andrew", Most, GENERATED, PLAIN), PercentLess(64.0)),
    (What::Test("untar-far", Fewest, FAR, LOCAL), TimesAsLong(1.5)),
    // The floor of the row before: what any file system behind FUSE takes.
    (What::Test("untar-far", Fewest, PASSTHROUGH, LOCAL), Known),
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
    (What::Worst(EVERY, VOLATILE, LOCAL_SYNC), TimesAsLong(1.0)),
    (What::Worst(EVERY, VOLATILE_LEASED, LOCAL_SYNC), TimesAsLong(1.0)),
    (What::Worst(EVERY, VOLUME_SCRATCH, LOCAL_SYNC), TimesAsLong(1.0)),
    (What::Test("small-file", Fewest, VOLATILE, PASSTHROUGH), TimesAsFast(0.7)),
    (What::Test("small-file", Most, VOLATILE, PASSTHROUGH), TimesAsFast(0.7)),
    (What::Test("small-file", Fewest, VOLATILE_LEASED, PASSTHROUGH), TimesAsFast(0.7)),
    (What::Test("small-file", Most, VOLATILE_LEASED, PASSTHROUGH), TimesAsFast(0.7)),
];

/// The published tests.
const EVERY: Several = Several {
    words: "every test",
    names: &["large-write", "small-file", "untar", "edit", "andrew"],
    at: ANY,
};

/// The goals. None where none of the targets is one of the suite's own.
pub(in crate::report::suite) fn rows(run: &Run) -> Vec<goals::Row> {
    let is_known = |name: &str| run.target(name).is_some();
    match run.tests.is_empty() || !(is_known(SCRATCH) || is_known(VOLATILE)) {
        true => Vec::new(),
        false => goals::rows(run, &GOALS),
    }
}

/// The table of goals, and what shows that contestants do what they claim. Nothing where there are
/// no goals.
pub(super) fn blocks(run: &Run) -> Vec<Block> {
    let rows = rows(run);
    if rows.is_empty() {
        return Vec::new();
    }
    let mut blocks = vec![Block::Table(goals::table(rows))];
    let also: Vec<String> = splits(run).into_iter().chain(edits(run)).chain(silence(run)).collect();
    if !also.is_empty() {
        blocks.push(Block::List("Beside the published results".to_owned(), also));
    }
    blocks.extend(calls(run).map(Block::Table));
    blocks
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
    use super::super::super::goals::row;
    use super::*;
    use crate::record::{Sample, Target, Test};

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
        let other = row(&run, GOALS[17].0, GOALS[17].1).sentence;
        assert!(other.contains("larder generated exclusive is no target of this run"), "{other}");
    }

    #[test]
    fn the_worst_of_all_tests_counts_and_sizes_are_compared() {
        let tests = vec![
            test("untar", 1, &[(VOLATILE, &[1.0, 1.0, 1.0]), (LOCAL_SYNC, &[2.0, 2.0, 2.0])]),
            test("edit", 1, &[(VOLATILE, &[3.0, 3.0, 3.0]), (LOCAL_SYNC, &[2.0, 2.0, 2.0])]),
        ];
        let mut run = run(tests);
        let worst = row_of(&run, What::Worst(EVERY, VOLATILE, LOCAL_SYNC), TimesAsLong(1.0));
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

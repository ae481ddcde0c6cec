//! Ratchets: figures that are worse today than they should be, and may only get better.
//!
//! A *gauge* measures something at every place of the repository; most are better if they are
//! lower. What is worse than the gauge's limit must be listed in `xtask/ratchet.toml` with exactly
//! its present figure. A figure that got worse is a complaint, and so is one that got better but is
//! still listed as it was: else the next change could use the slack. Tightening never adds a place
//! and never makes a figure worse; an exception is added by hand, where a reviewer sees it.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, bail};

use super::{Complaint, File, RATCHET_PATH, Tree, circles, fields, lex, tested};

/// The measured quantities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Gauge {
    /// Lines of a Rust file.
    FileLines,
    /// Lines of a function, from `fn` to the closing brace.
    FunctionLines,
    /// Calls of sleep in the tests of a file.
    TestSleeps,
    /// Waits and clock reads in the code of a crate that bypass `larder_io::Clock`.
    RawTime,
    /// Files of the largest circle of files of a crate that need each other.
    CircleFiles,
    /// Nine of ten functions of a crate have at most this many lines.
    FunctionLinesP90,
    /// Fields of a file's types that others may change past the methods by which those change
    /// themselves.
    OpenFields,
    /// Lines of tests for a hundred lines of code of a crate, in steps of [`PERCENT_STEP`]. Higher
    /// is better.
    TestPercent,
}

impl Gauge {
    const ALL: [Gauge; 8] = [
        Gauge::FileLines,
        Gauge::FunctionLines,
        Gauge::TestSleeps,
        Gauge::RawTime,
        Gauge::CircleFiles,
        Gauge::FunctionLinesP90,
        Gauge::OpenFields,
        Gauge::TestPercent,
    ];

    /// Name of the section in the file.
    fn name(self) -> &'static str {
        match self {
            Gauge::FileLines => "file_lines",
            Gauge::FunctionLines => "function_lines",
            Gauge::TestSleeps => "test_sleeps",
            Gauge::RawTime => "raw_time",
            Gauge::CircleFiles => "circle_files",
            Gauge::FunctionLinesP90 => "function_lines_p90",
            Gauge::OpenFields => "open_fields",
            Gauge::TestPercent => "test_percent",
        }
    }

    /// Worst figure that needs no exception.
    fn limit(self) -> usize {
        match self {
            Gauge::FileLines => 600,
            Gauge::FunctionLines => 70,
            Gauge::TestSleeps | Gauge::RawTime | Gauge::OpenFields => 0,
            Gauge::CircleFiles => 3,
            Gauge::FunctionLinesP90 => 35,
            Gauge::TestPercent => 100,
        }
    }

    fn is_worse(self, figure: usize, than: usize) -> bool {
        match self {
            Gauge::TestPercent => figure < than,
            _ => figure > than,
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Gauge::FileLines => "lines; split the file where its interface is narrow",
            Gauge::FunctionLines => "lines; a function fits a screen",
            Gauge::TestSleeps => "sleeps in tests; wait for an event instead",
            Gauge::RawTime => "looks at the time past the clock; take a larder_io::Clock",
            Gauge::CircleFiles => "files need each other; move what is called below its callers",
            Gauge::FunctionLinesP90 => {
                "lines have nine of ten functions; shorter ones can be read at once"
            }
            Gauge::OpenFields => {
                "fields that others may change; a type that changes itself is changed by its methods alone"
            }
            Gauge::TestPercent => {
                "lines of tests for 100 of code; `cargo xtask lines` shows them, test what nothing tests"
            }
        }
    }
}

/// Figures by gauge and place (`path`, `path::function`, or the folder of a crate).
pub(super) type Figures = BTreeMap<(Gauge, String), usize>;

/// Everything in `tree` that is worse than its limit.
pub(super) fn measure(tree: &Tree) -> Figures {
    let mut figures = Figures::new();
    let mut note = |gauge: Gauge, place: String, figure: usize| {
        if gauge.is_worse(figure, gauge.limit()) {
            let worst = figures.entry((gauge, place)).or_insert(figure);
            if gauge.is_worse(figure, *worst) {
                *worst = figure;
            }
        }
    };
    let mut raw_time = BTreeMap::<&str, usize>::new();
    for file in tree.rust() {
        let code = lex::code(&file.text);
        note(Gauge::FileLines, file.path.clone(), file.text.lines().count());
        for function in lex::functions(&code) {
            let place = format!("{}::{}", file.path, function.name);
            note(Gauge::FunctionLines, place, function.lines);
        }
        let (code_lines, test_lines) = split_tests(file, &code);
        note(Gauge::TestSleeps, file.path.clone(), count(test_lines, &SLEEPS));
        if let Some(folder) = crate_of(&file.path) {
            *raw_time.entry(folder).or_default() += count(code_lines, &RAW_TIME);
        }
    }
    for (folder, figure) in raw_time {
        note(Gauge::RawTime, folder.to_owned(), figure);
    }
    for (folder, files) in by_crate(tree) {
        let src = format!("{folder}/src/");
        note(Gauge::CircleFiles, folder.to_owned(), circles::largest(&files, &src));
        note(Gauge::FunctionLinesP90, folder.to_owned(), lines_p90(&files));
        for (path, fields) in fields::open(&files) {
            note(Gauge::OpenFields, path.to_owned(), fields);
        }
    }
    for (folder, lines) in tested::lines(tree) {
        if TESTED.contains(&folder) {
            let percent = lines.percent() / PERCENT_STEP * PERCENT_STEP;
            note(Gauge::TestPercent, folder.to_owned(), percent);
        }
    }
    figures
}

/// The sources of each crate, by its folder, without test files.
pub(super) fn by_crate(tree: &Tree) -> BTreeMap<&str, Vec<&File>> {
    let mut crates = BTreeMap::<&str, Vec<&File>>::new();
    for file in tree.rust().filter(|file| !is_test_file(&file.path)) {
        if let Some((folder, _)) = file.path.split_once("/src/") {
            crates.entry(folder).or_default().push(file);
        }
    }
    crates
}

/// Lines that nine of ten functions do not exceed.
fn lines_p90(files: &[&File]) -> usize {
    let functions = files.iter().flat_map(|file| lex::functions(&lex::code(&file.text)));
    let mut lines: Vec<usize> = functions.map(|function| function.lines).collect();
    lines.sort_unstable();
    lines.get(lines.len() * 9 / 10).copied().unwrap_or(0)
}

/// Crates that have as many lines of tests as of code, or shall have.
const TESTED: [&str; 2] = ["crates/larder-cache", "crates/larder-client"];

/// Every change moves this figure, so it is held in steps: a line more or less is no reason to edit
/// the list.
const PERCENT_STEP: usize = 5;

/// Calls by which a thread or a task sleeps.
const SLEEPS: [&str; 3] = ["thread::sleep(", "time::sleep(", "park_timeout("];

/// Calls that go past `larder_io::Clock`.
const RAW_TIME: [&str; 7] = [
    "Instant::now(",
    "park_timeout(",
    "thread::sleep(",
    "time::sleep(",
    "time::sleep_until(",
    "time::timeout(",
    "time::timeout_at(",
];

/// Crates that deal with the time of the machine itself: the clock, and measurements.
const OWN_TIME: [&str; 3] = ["crates/larder-io", "crates/larder-bench", "crates/larder-testkit"];

/// The folder of the crate whose clock a file is to use. Examples measure.
fn crate_of(path: &str) -> Option<&str> {
    let name = path.strip_prefix("crates/")?.find('/')?;
    let folder = &path[.."crates/".len() + name];
    (!OWN_TIME.contains(&folder) && !path.contains("/examples/")).then_some(folder)
}

/// The lines of code of a file, and those of its tests.
fn split_tests<'a>(file: &File, code: &'a str) -> (&'a str, &'a str) {
    let first_line = match is_test_file(&file.path) {
        true => 1,
        false => lex::inline_tests_line(code).unwrap_or(usize::MAX),
    };
    let begin = code.split_inclusive('\n').take(first_line - 1).map(str::len).sum();
    code.split_at(begin)
}

fn count(code: &str, calls: &[&str]) -> usize {
    calls.iter().map(|call| code.matches(call).count()).sum()
}

fn is_test_file(path: &str) -> bool {
    path.contains("/tests/")
        || path.ends_with("/tests.rs")
        || path.starts_with("crates/larder-testkit/")
}

/// The exceptions that `xtask/ratchet.toml` lists.
#[derive(Debug)]
pub(super) struct Held(Figures);

impl Held {
    /// Reads the file.
    pub(super) fn parse(text: &str) -> Result<Held> {
        let mut figures = Figures::new();
        for (section, places) in text.parse::<toml::Table>().context(RATCHET_PATH)? {
            let gauge = Gauge::ALL.into_iter().find(|gauge| gauge.name() == section);
            let (Some(gauge), Some(places)) = (gauge, places.as_table()) else {
                bail!("{RATCHET_PATH}: there is no gauge {section}");
            };
            for (place, figure) in places {
                let figure = figure.as_integer().and_then(|figure| usize::try_from(figure).ok());
                let figure =
                    figure.with_context(|| format!("{RATCHET_PATH}: figure of {place}"))?;
                figures.insert((gauge, place.clone()), figure);
            }
        }
        Ok(Held(figures))
    }

    /// Compares what is listed with what is measured.
    pub(super) fn check(&self, measured: &Figures) -> Vec<Complaint> {
        let mut complaints = Vec::new();
        for ((gauge, place), figure) in measured {
            let held = self.0.get(&(*gauge, place.clone())).copied();
            let limit = held.unwrap_or(gauge.limit());
            if gauge.is_worse(*figure, limit) {
                let side = if gauge.is_worse(0, 1) { "at least" } else { "at most" };
                let text = format!("{figure} ({side} {limit}) {}", gauge.advice());
                complaints.push(Complaint::new(place, 0, text));
            }
        }
        for ((gauge, place), held) in &self.0 {
            let figure = measured.get(&(*gauge, place.clone()));
            if figure.is_none_or(|figure| gauge.is_worse(*held, *figure)) {
                let text = format!("{place} got better: tighten by `cargo xtask tidy --bless`");
                complaints.push(Complaint::new(RATCHET_PATH, 0, text));
            }
        }
        complaints
    }

    /// The same places with better figures, without those that need no exception any more.
    pub(super) fn tightened(&self, measured: &Figures) -> Held {
        let better = |(key, held): (&(Gauge, String), &usize)| {
            let figure = measured.get(key)?;
            let is_better = key.0.is_worse(*held, *figure);
            Some((key.clone(), if is_better { *figure } else { *held }))
        };
        Held(self.0.iter().filter_map(better).collect())
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# Figures that are worse than their limit and may only get better: `cargo xtask tidy --bless`."
        )?;
        for gauge in Gauge::ALL {
            writeln!(f, "\n[{}] # limit {}", gauge.name(), gauge.limit())?;
            for ((_, place), figure) in self.0.iter().filter(|((of, _), _)| *of == gauge) {
                writeln!(f, "\"{place}\" = {figure}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of `lines` lines, all but two of them in one function.
    fn long(lines: usize) -> String {
        format!("//! A file.\nfn f() {{\n{}}}\n", "    g();\n".repeat(lines - 3))
    }

    fn complaints(held: &str, text: &str) -> usize {
        let tree = Tree::of(&[("a.rs", text)]);
        Held::parse(held).unwrap().check(&measure(&tree)).len()
    }

    #[test]
    fn limits_are_inclusive() {
        assert_eq!(complaints("", &long(71)), 0, "a function of 70 lines");
        assert_eq!(complaints("", &long(72)), 1, "a function of 71 lines");
        assert_eq!(complaints("", &"//! A\n".repeat(600)), 0);
        assert_eq!(complaints("", &"//! A\n".repeat(601)), 1);
    }

    #[test]
    fn an_exception_may_neither_grow_nor_stay_loose() {
        let held = "[function_lines]\n\"a.rs::f\" = 90\n";
        assert_eq!(complaints(held, &long(91)), 0);
        assert_eq!(complaints(held, &long(92)), 1);
        assert_eq!(complaints(held, &long(90)), 1);
    }

    #[test]
    fn tightening_lowers_and_drops_but_never_adds() {
        let held = "[file_lines]\n\"gone.rs\" = 700\n[function_lines]\n\"a.rs::f\" = 90\n";
        let tree = Tree::of(&[("a.rs", &long(81)), ("b.rs", &long(100))]);
        let tightened = Held::parse(held).unwrap().tightened(&measure(&tree)).to_string();
        let again = Held::parse(&tightened).unwrap();
        assert_eq!(again.0, Figures::from([((Gauge::FunctionLines, "a.rs::f".into()), 80)]));
    }

    #[test]
    fn sleeps_are_counted_in_tests_only() {
        let sleeping = "//! A\nfn f() { std::thread::sleep(D); }\n";
        let tested = "//! A\n#[cfg(test)]\nmod tests {\n    fn f() { tokio::time::sleep(D); }\n}\n";
        let parked = "//! A\nfn f() { std::thread::park_timeout(D); }\n";
        for (path, text, count) in [
            ("crates/a/src/a.rs", sleeping, 0),
            ("crates/a/tests/a.rs", sleeping, 1),
            ("crates/a/tests/a.rs", parked, 1),
            ("crates/a/src/a/tests.rs", sleeping, 1),
            ("crates/a/src/a.rs", tested, 1),
        ] {
            let measured = measure(&Tree::of(&[(path, text)]));
            let sleeps = measured.keys().filter(|(gauge, _)| *gauge == Gauge::TestSleeps);
            assert_eq!(sleeps.count(), count, "{path}");
        }
    }

    #[test]
    fn time_past_the_clock_is_counted_by_crate() {
        let one = "//! A\nfn f() { tokio::time::sleep(D); }\n";
        let two = "//! A\nfn f() { Instant::now(); thread::park_timeout(D); }\n#[cfg(test)]\nmod tests { fn f() { Instant::now(); } }\n";
        let tree = Tree::of(&[
            ("crates/a/src/a.rs", one),
            ("crates/a/src/b.rs", two),
            ("crates/a/tests/it/a.rs", one),
            ("crates/larder-io/src/a.rs", one),
        ]);
        let measured = measure(&tree);
        assert_eq!(measured.get(&(Gauge::RawTime, "crates/a".to_owned())), Some(&3));
        assert_eq!(measured.keys().filter(|(gauge, _)| *gauge == Gauge::RawTime).count(), 1);
    }

    #[test]
    fn the_share_of_tests_may_only_rise() {
        let code = format!("//! A\n{}", "fn f() {}\n".repeat(100));
        let tests = |lines| format!("//! A\n{}", "fn f() {}\n".repeat(lines));
        for (held, lines, count) in [
            ("", 100, 0),
            ("", 99, 1),
            ("[test_percent]\n\"crates/larder-cache\" = 80\n", 80, 0),
            ("[test_percent]\n\"crates/larder-cache\" = 80\n", 84, 0),
            ("[test_percent]\n\"crates/larder-cache\" = 80\n", 79, 1),
            ("[test_percent]\n\"crates/larder-cache\" = 80\n", 85, 1),
            ("[test_percent]\n\"crates/larder-cache\" = 80\n", 100, 1),
        ] {
            let tree = Tree::of(&[
                ("crates/larder-cache/src/a.rs", &code),
                ("crates/larder-cache/tests/it/a.rs", &tests(lines)),
                ("crates/other/src/a.rs", &code),
            ]);
            let (held, measured) = (Held::parse(held).unwrap(), measure(&tree));
            assert_eq!(held.check(&measured).len(), count, "{lines}");
            if lines == 85 {
                let raised =
                    Figures::from([((Gauge::TestPercent, "crates/larder-cache".into()), 85)]);
                assert_eq!(held.tightened(&measured).0, raised);
            }
        }
        let lowered = Figures::from([((Gauge::TestPercent, "crates/larder-cache".into()), 75)]);
        let held = Held::parse("[test_percent]\n\"crates/larder-cache\" = 80\n").unwrap();
        assert_eq!(held.tightened(&lowered).0, held.0, "tightening never makes a figure worse");
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Held::parse("[no_such_gauge]\n").is_err());
        assert!(Held::parse("[file_lines]\n\"a.rs\" = -1\n").is_err());
    }
}

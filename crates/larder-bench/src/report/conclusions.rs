//! The beginning of the report: sentences that say which target is faster than which and by how
//! much, which is slower, what the samples do not show, and which calls the server more often.
//!
//! Of a suite with goals they say what came of each goal, and beside that only what is worse: its
//! many contestants are not all compared with each other. Of a run in which no test has enough
//! rounds, that is said once.
//!
//! Invariant: every test that both of two targets ran is in exactly one of the sentences about
//! them.

use crate::record::{Run, Test};
use crate::stats::Summary;

use super::compare::{self, Verdict, is_plain, pairs};
use super::document::{Block, Section};
use super::number::{grouped, three};
use super::suite;

/// Tests that a sentence names; the rest is counted.
const NAMED_MAX: usize = 5;

/// The conclusions of all runs; `None` if there is nothing to compare with.
pub(crate) fn section(runs: &[Run]) -> Option<Section> {
    let blocks: Vec<Block> = runs.iter().filter_map(of_run).collect();
    (!blocks.is_empty()).then(|| Section {
        id: "conclusions".to_owned(),
        title: "What these runs show".to_owned(),
        lead: "Called faster or slower only where the 95 % interval of at least 3 rounds says it."
            .to_owned(),
        blocks,
    })
}

/// Suite, size, link and rounds: what distinguishes a run from the others.
pub(crate) fn title(run: &Run) -> String {
    let link = run.link.as_ref().map(|link| format!(", {}", link.asked));
    format!("{}, {}{}", run.suite, run.size, link.unwrap_or_default())
}

/// Said once of a run in which nothing can be concluded.
const TOO_FEW: &str = "Not shown: who was faster. No test has 3 rounds of two targets.";

fn of_run(run: &Run) -> Option<Block> {
    let transport = |name: &str| run.target(name).and_then(compare::transport);
    // Against the plain client of the same transport; against the others the first of ours only.
    let first = pairs(run).first().map(|(ours, _)| *ours);
    let told = |(ours, theirs): &(&str, &str)| {
        let alike = transport(ours) == transport(theirs);
        if is_plain(theirs) { alike } else { first == Some(*ours) }
    };
    let told: Vec<Compared<'_>> = pairs(run)
        .into_iter()
        .filter(told)
        .map(|(ours, theirs)| Compared::of(run, ours, theirs))
        .collect();
    let mut sentences = suite::goals(run);
    let has_goals = !sentences.is_empty();
    let is_short = told.iter().all(Compared::is_unknown);
    if is_short && !has_goals && !told.is_empty() {
        sentences.push(TOO_FEW.to_owned());
    }
    for compared in told {
        if !has_goals && !is_short {
            sentences.extend(compared.faster());
        }
        sentences.extend(compared.slower());
        if !has_goals && !is_short {
            sentences.extend(compared.not_shown());
        }
        sentences.extend(compared.failed());
        if is_plain(compared.theirs) {
            sentences.extend(compared.more_calls());
            if !has_goals {
                sentences.extend(compared.no_more_calls());
            }
        }
    }
    let rounds = run.tests.iter().flat_map(|test| &test.samples).map(|sample| sample.round + 1);
    let rounds = match rounds.max().unwrap_or(0) {
        1 => "1 round".to_owned(),
        rounds => format!("{rounds} rounds"),
    };
    let title = format!("{}, {rounds}", title(run));
    (!sentences.is_empty()).then_some(Block::List(title, sentences))
}

/// A test, and how long ours takes of theirs.
type Measured<'a> = (&'a Test, Summary);

/// The results of two targets, test by test.
struct Compared<'a> {
    ours: &'a str,
    theirs: &'a str,
    /// All tests that theirs ran: some targets run some tests only.
    tests: Vec<&'a Test>,
    faster: Vec<Measured<'a>>,
    slower: Vec<Measured<'a>>,
    even: Vec<Measured<'a>>,
    too_few: Vec<&'a Test>,
    failed: Vec<&'a Test>,
}

impl<'a> Compared<'a> {
    fn of(run: &'a Run, ours: &'a str, theirs: &'a str) -> Compared<'a> {
        let measured = |test: &&Test| test.of(theirs).next().is_some();
        let tests: Vec<&Test> = run.tests.iter().filter(measured).collect();
        let [mut faster, mut slower, mut even] = [(); 3].map(|()| Vec::<Measured<'_>>::new());
        let [mut too_few, mut failed] = [(); 2].map(|()| Vec::new());
        for test in tests.iter().copied() {
            match test.time_ratio(ours, theirs) {
                None => failed.push(test),
                Some(ratio) => match Verdict::of(&ratio) {
                    Verdict::Faster => faster.push((test, ratio)),
                    Verdict::Slower => slower.push((test, ratio)),
                    Verdict::NoDifference => even.push((test, ratio)),
                    Verdict::NotConcluded => too_few.push(test),
                },
            }
        }
        faster.sort_by(|a, b| a.1.median.total_cmp(&b.1.median));
        slower.sort_by(|a, b| b.1.median.total_cmp(&a.1.median));
        even.sort_by(|a, b| b.1.relative_width().total_cmp(&a.1.relative_width()));
        Compared { ours, theirs, tests, faster, slower, even, too_few, failed }
    }

    /// Whether no test says anything.
    fn is_unknown(&self) -> bool {
        self.faster.is_empty() && self.slower.is_empty() && self.even.is_empty()
    }

    fn faster(&self) -> Option<String> {
        let Compared { ours, theirs, tests, .. } = self;
        let times = |(test, ratio): &Measured<'_>| {
            let (low, high) = ratio.interval.unwrap_or((ratio.median, ratio.median));
            let [median, low, high] = [ratio.median, high, low].map(|ratio| three(1.0 / ratio));
            format!("{} {median} times as fast ({low} to {high})", test.title())
        };
        let list = named(self.faster.iter().map(times))?;
        let (count, tests) = (self.faster.len(), tests.len());
        Some(format!("{ours} is faster than {theirs} in {count} of {tests}: {list}."))
    }

    fn slower(&self) -> Option<String> {
        let Compared { ours, theirs, tests, .. } = self;
        let longer = |(test, ratio): &Measured<'_>| {
            let (low, high) = ratio.interval.unwrap_or((ratio.median, ratio.median));
            let [median, low, high] = [ratio.median, low, high].map(three);
            format!("{} takes {median} times as long ({low} to {high})", test.title())
        };
        let list = named(self.slower.iter().map(longer))?;
        let (count, tests) = (self.slower.len(), tests.len());
        Some(format!("Worse: {ours} is slower than {theirs} in {count} of {tests}: {list}."))
    }

    fn not_shown(&self) -> Vec<String> {
        let Compared { ours, theirs, too_few, .. } = self;
        let tests = self.tests.len();
        let range = |(test, ratio): &Measured<'_>| {
            let (low, high) = ratio.interval.unwrap_or((ratio.median, ratio.median));
            format!("{} ({} to {} times the time)", test.title(), three(low), three(high))
        };
        let mut sentences = Vec::new();
        if let Some(list) = named(self.even.iter().map(range)) {
            let count = self.even.len();
            sentences.push(format!(
                "Not shown: between {ours} and {theirs} no difference in {count} of {tests}; least is known of {list}."
            ));
        }
        if too_few.len() == tests {
            sentences.push(format!(
                "Not shown: how fast {ours} is against {theirs}. All {tests} have fewer than 3 rounds."
            ));
        } else if let Some(list) = titles(too_few) {
            let count = too_few.len();
            sentences.push(format!(
                "Not shown: {count} of {tests} have fewer than 3 rounds of both {ours} and {theirs}: {list}."
            ));
        }
        sentences
    }

    /// What failed is said of every run, however short.
    fn failed(&self) -> Option<String> {
        let Compared { ours, theirs, tests, failed, .. } = self;
        let list = titles(failed)?;
        let (count, tests) = (failed.len(), tests.len());
        Some(format!(
            "Not shown: {count} of {tests} failed or were not measured on {ours} or {theirs}: {list}."
        ))
    }

    /// The tests where both were counted, and by how many calls of each.
    fn counted(&self) -> impl Iterator<Item = (&'a Test, f64, f64)> {
        let counted =
            |test: &&'a Test| Some((*test, test.rpcs(self.ours)?, test.rpcs(self.theirs)?));
        self.tests.iter().filter_map(counted)
    }

    /// Where ours called the server more often.
    fn more_calls(&self) -> Option<String> {
        let Compared { ours, theirs, .. } = self;
        let (all, more) =
            (self.counted().count(), self.counted().filter(|(_, one, other)| one > other));
        let more: Vec<String> = more
            .map(|(test, one, other)| {
                format!("{} ({} against {})", test.title(), grouped(one), grouped(other))
            })
            .collect();
        let count = more.len();
        let list = named(more.into_iter())?;
        Some(format!(
            "Worse: {ours} calls the server more often than {theirs} in {count} of {all}: {list}."
        ))
    }

    /// That ours called it more often nowhere.
    fn no_more_calls(&self) -> Option<String> {
        let Compared { ours, theirs, .. } = self;
        let all = self.counted().count();
        let is_more = self.counted().any(|(_, one, other)| one > other);
        (all > 0 && !is_more).then(|| {
            format!("{ours} never calls the server more often than {theirs}, of {all} counted.")
        })
    }
}

fn titles(tests: &[&Test]) -> Option<String> {
    named(tests.iter().map(|test| test.title()))
}

/// The first of them, and how many more there are; `None` if there are none.
fn named(all: impl ExactSizeIterator<Item = String>) -> Option<String> {
    let rest = all.len().saturating_sub(NAMED_MAX);
    let mut shown: Vec<String> = all.take(NAMED_MAX).collect();
    if rest > 0 {
        shown.push(format!("{rest} more"));
    }
    (!shown.is_empty()).then(|| shown.join(", "))
}

#[cfg(test)]
mod tests {
    use crate::record::{Sample, Target};

    use super::*;

    fn test(name: &str, ours: &[f64], theirs: &[f64]) -> Test {
        let samples = |target: &str, values: &[f64]| -> Vec<Sample> {
            let sample = |(round, value): (usize, &f64)| Sample {
                target: target.to_owned(),
                round: u32::try_from(round).unwrap(),
                value: Some(*value),
                ..Sample::default()
            };
            values.iter().enumerate().map(sample).collect()
        };
        Test {
            name: name.to_owned(),
            copies: 1,
            samples: [samples("larder", ours), samples("plain", theirs)].concat(),
            ..Test::default()
        }
    }

    #[test]
    fn every_test_is_in_one_sentence() {
        let target = |name: &str| Target { name: name.to_owned(), ..Target::default() };
        let tests = vec![
            test("quick", &[1.0, 1.01, 1.0], &[4.0, 4.0, 4.1]),
            test("slow", &[2.0, 2.0, 2.01], &[1.0, 1.0, 1.0]),
            test("same", &[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]),
            test("few", &[1.0, 1.0], &[9.0, 9.0]),
            test("alone", &[], &[1.0, 1.0, 1.0]),
        ];
        let run = Run {
            targets: vec![target("larder"), target("plain")],
            tests,
            ..super::super::input::empty_run()
        };
        let Some(Block::List(title, sentences)) = of_run(&run) else { panic!() };
        assert_eq!(title, "badros, smoke, 3 rounds");
        let all = sentences.join("\n");
        for (word, name) in [
            ("larder is faster than plain in 1 of 5: quick 4.0", "quick"),
            ("Worse: larder is slower than plain in 1 of 5: slow takes 2.0", "slow"),
            ("no difference in 1 of 5; least is known of same", "same"),
            ("fewer than 3 rounds of both larder and plain: few.", ": few."),
            ("1 of 5 failed or were not measured on larder or plain: alone.", "alone"),
        ] {
            assert!(all.contains(word), "{word}: {all}");
            assert_eq!(all.matches(name).count() - usize::from(name == "slow"), 1, "{name}: {all}");
        }
    }

    #[test]
    fn a_run_that_shows_nothing_says_so_once() {
        let target = |name: &str| Target { name: name.to_owned(), ..Target::default() };
        let targets = ["larder", "larder io_uring", "plain"].map(target).to_vec();
        let tests = vec![test("one", &[1.0, 1.0], &[9.0, 9.0]), test("two", &[], &[1.0])];
        let run = Run { targets, tests, ..super::super::input::empty_run() };
        let Some(Block::List(_, sentences)) = of_run(&run) else { panic!() };
        // What failed is told all the same.
        assert_eq!(
            sentences,
            [
                TOO_FEW,
                "Not shown: 1 of 2 failed or were not measured on larder or plain: two.",
                "Not shown: 2 of 2 failed or were not measured on larder io_uring or plain: one, two."
            ]
        );
    }

    /// What was to be reached comes first, and of the comparisons only what is worse.
    #[test]
    fn a_suite_with_goals_says_what_came_of_them() {
        let target = |name: &str| Target { name: name.to_owned(), ..Target::default() };
        let (ours, theirs) = ("larder scratch exclusive", "plain");
        let named = |mut test: Test| {
            for sample in &mut test.samples {
                let name = if sample.target == "larder" { ours } else { theirs };
                name.clone_into(&mut sample.target);
            }
            Test { unit: "s".to_owned(), ..test }
        };
        let andrew = named(test("andrew", &[1.0, 1.0, 1.01], &[4.0, 4.0, 4.1]));
        let write = named(test("large-write", &[2.0, 2.0, 2.01], &[1.0, 1.0, 1.0]));
        let run = Run {
            suite: "mbfs".to_owned(),
            targets: [ours, theirs].map(target).to_vec(),
            tests: vec![andrew, write],
            ..super::super::input::empty_run()
        };
        let Some(Block::List(_, sentences)) = of_run(&run) else { panic!() };
        let place = |word: &str| {
            let found = sentences.iter().position(|sentence| sentence.contains(word));
            found.unwrap_or_else(|| panic!("{word}: {sentences:#?}"))
        };
        let places = [
            place("goals that were measured"),
            place("faster was to be reached: not reached"),
            place("at least 40 % less time was to be reached: reached"),
            place("not measured, because"),
            place("Worse: larder scratch exclusive is slower than plain in 1 of 2: large-write"),
        ];
        assert!(places.is_sorted(), "{sentences:#?}");
        assert!(!sentences.iter().any(|sentence| sentence.contains("is faster than")));
    }
}

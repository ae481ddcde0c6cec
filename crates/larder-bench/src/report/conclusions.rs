//! The beginning of the report: sentences that say which target is faster than which and by how
//! much, which is slower, what the samples do not show, and which calls the server more often.
//!
//! Invariant: every test that both of two targets ran is in exactly one of the sentences about
//! them.

use crate::record::{Run, Test};
use crate::stats::Summary;

use super::compare::{self, Verdict, is_plain, pairs};
use super::document::{Block, Section};
use super::number::{grouped, three};

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

fn of_run(run: &Run) -> Option<Block> {
    let transport = |name: &str| run.target(name).and_then(compare::transport);
    // Against the plain client of the same transport; against the others the first of ours only.
    let first = pairs(run).first().map(|(ours, _)| *ours);
    let told = |(ours, theirs): &(&str, &str)| {
        let alike = transport(ours) == transport(theirs);
        if is_plain(theirs) { alike } else { first == Some(*ours) }
    };
    let told = pairs(run).into_iter().filter(told);
    let sentences: Vec<String> =
        told.flat_map(|(ours, theirs)| of_pair(run, ours, theirs)).collect();
    let rounds = run.tests.iter().flat_map(|test| &test.samples).map(|sample| sample.round + 1);
    let rounds = match rounds.max().unwrap_or(0) {
        1 => "1 round".to_owned(),
        rounds => format!("{rounds} rounds"),
    };
    let title = format!("{}, {rounds}", title(run));
    (!sentences.is_empty()).then_some(Block::List(title, sentences))
}

/// The results of two targets, test by test.
#[derive(Default)]
struct Sorted<'a> {
    faster: Vec<(&'a Test, Summary)>,
    slower: Vec<(&'a Test, Summary)>,
    even: Vec<(&'a Test, Summary)>,
    too_few: Vec<&'a Test>,
    failed: Vec<&'a Test>,
}

fn of_pair(run: &Run, ours: &str, theirs: &str) -> Vec<String> {
    let mut sorted = Sorted::default();
    // Some targets run some tests only.
    let measured = |test: &&Test| test.of(theirs).next().is_some();
    let tests: Vec<&Test> = run.tests.iter().filter(measured).collect();
    for test in &tests {
        match test.time_ratio(ours, theirs) {
            None => sorted.failed.push(test),
            Some(ratio) => match Verdict::of(&ratio) {
                Verdict::Faster => sorted.faster.push((test, ratio)),
                Verdict::Slower => sorted.slower.push((test, ratio)),
                Verdict::NoDifference => sorted.even.push((test, ratio)),
                Verdict::NotConcluded => sorted.too_few.push(test),
            },
        }
    }
    sorted.faster.sort_by(|a, b| a.1.median.total_cmp(&b.1.median));
    sorted.slower.sort_by(|a, b| b.1.median.total_cmp(&a.1.median));
    sorted.even.sort_by(|a, b| b.1.relative_width().total_cmp(&a.1.relative_width()));
    let mut sentences = sorted.sentences(ours, theirs, tests.len());
    if is_plain(theirs) {
        sentences.extend(calls(&tests, ours, theirs));
    }
    sentences
}

impl Sorted<'_> {
    fn sentences(&self, ours: &str, theirs: &str, tests: usize) -> Vec<String> {
        let mut sentences = Vec::new();
        let times = |(test, ratio): &(&Test, Summary)| {
            let (low, high) = ratio.interval.unwrap_or((ratio.median, ratio.median));
            let [median, low, high] = [ratio.median, high, low].map(|ratio| three(1.0 / ratio));
            format!("{} {median} times as fast ({low} to {high})", test.title())
        };
        let longer = |(test, ratio): &(&Test, Summary)| {
            let (low, high) = ratio.interval.unwrap_or((ratio.median, ratio.median));
            let [median, low, high] = [ratio.median, low, high].map(three);
            format!("{} takes {median} times as long ({low} to {high})", test.title())
        };
        let range = |(test, ratio): &(&Test, Summary)| {
            let (low, high) = ratio.interval.unwrap_or((ratio.median, ratio.median));
            format!("{} ({} to {} times the time)", test.title(), three(low), three(high))
        };
        let name = |test: &&Test| test.title();
        if !self.faster.is_empty() {
            let (count, list) = (self.faster.len(), named(self.faster.iter().map(times)));
            sentences
                .push(format!("{ours} is faster than {theirs} in {count} of {tests}: {list}."));
        }
        if !self.slower.is_empty() {
            let (count, list) = (self.slower.len(), named(self.slower.iter().map(longer)));
            sentences.push(format!(
                "Worse: {ours} is slower than {theirs} in {count} of {tests}: {list}."
            ));
        }
        if !self.even.is_empty() {
            let (count, list) = (self.even.len(), named(self.even.iter().map(range)));
            sentences.push(format!(
                "Not shown: between {ours} and {theirs} no difference in {count} of {tests}; least is known of {list}."
            ));
        }
        if self.too_few.len() == tests {
            sentences.push(format!(
                "Not shown: how fast {ours} is against {theirs}. All {tests} have fewer than 3 rounds."
            ));
        } else if !self.too_few.is_empty() {
            let (count, list) = (self.too_few.len(), named(self.too_few.iter().map(name)));
            sentences.push(format!(
                "Not shown: {count} of {tests} have fewer than 3 rounds of both {ours} and {theirs}: {list}."
            ));
        }
        if !self.failed.is_empty() {
            let (count, list) = (self.failed.len(), named(self.failed.iter().map(name)));
            sentences.push(format!(
                "Not shown: {count} of {tests} failed or were not measured on {ours} or {theirs}: {list}."
            ));
        }
        sentences
    }
}

/// Whether ours called the server more often than the plain client, in tests where both were
/// counted.
fn calls(tests: &[&Test], ours: &str, theirs: &str) -> Option<String> {
    let counted: Vec<(&Test, f64, f64)> = tests
        .iter()
        .filter_map(|test| Some((*test, test.rpcs(ours)?, test.rpcs(theirs)?)))
        .collect();
    let more = |(_, ours, theirs): &&(&Test, f64, f64)| ours > theirs;
    let more: Vec<_> = counted.iter().filter(more).collect();
    let all = counted.len();
    let shown = |(test, one, other): &&(&Test, f64, f64)| {
        format!("{} ({} against {})", test.title(), grouped(*one), grouped(*other))
    };
    match (all, more.len()) {
        (0, _) => None,
        (_, 0) => Some(format!(
            "{ours} never calls the server more often than {theirs}, of {all} counted."
        )),
        (_, count) => Some(format!(
            "Worse: {ours} calls the server more often than {theirs} in {count} of {all}: {}.",
            named(more.iter().map(shown))
        )),
    }
}

/// The first of them, and how many more there are.
fn named(all: impl ExactSizeIterator<Item = String>) -> String {
    let rest = all.len().saturating_sub(NAMED_MAX);
    let mut shown: Vec<String> = all.take(NAMED_MAX).collect();
    if rest > 0 {
        shown.push(format!("{rest} more"));
    }
    shown.join(", ")
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
}

//! Which target was faster, and whether the samples show it.
//!
//! Invariants: a target that failed a test has no ratio in it; nothing is called faster or slower
//! unless the 95 % interval of the ratio excludes one; and a ratio over a suite says how many tests
//! it covers.

use crate::record::{Run, Target, Test};
use crate::stats::Summary;

use super::chart::Look;
use super::document::{Cell, Tone};
use super::kinds::Kind;
use super::number::{span, three, value};

/// The result of a target in a test.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome<'a> {
    /// Numbers.
    Measured(Summary),
    /// A reason.
    Failed(&'a str),
    /// Nothing.
    Missing,
}

/// The result of a target in a test.
pub(crate) fn outcome<'a>(test: &'a Test, target: &str) -> Outcome<'a> {
    match (test.failure(target), test.summary(target)) {
        (Some(reason), _) => Outcome::Failed(reason),
        (None, Some(summary)) => Outcome::Measured(summary),
        (None, None) => Outcome::Missing,
    }
}

/// The text for a target that was not measured.
pub(crate) const NOT_MEASURED: &str = "not measured";

impl Outcome<'_> {
    /// For a table.
    pub(crate) fn cell(&self, unit: &str) -> Cell {
        match self {
            Outcome::Measured(summary) => Cell::plain(measured(summary, unit)),
            Outcome::Failed(reason) => {
                Cell { text: format!("failed: {reason}"), tone: Tone::Failed }
            }
            Outcome::Missing => Cell { text: NOT_MEASURED.to_owned(), tone: Tone::Missing },
        }
    }
}

/// Median, interval and number of samples: `1.35 s (1.21 to 1.44 s, n = 5)`.
pub(crate) fn measured(summary: &Summary, unit: &str) -> String {
    let median = value(summary.median, unit);
    match summary.interval {
        Some(interval) => {
            format!("{median} ({}, n\u{a0}=\u{a0}{})", span(interval, unit), summary.count)
        }
        None => format!("{median} (n\u{a0}=\u{a0}{})", summary.count),
    }
}

/// What a ratio of times shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Its interval is below one.
    Faster,
    /// Its interval is above one.
    Slower,
    /// Its interval holds one.
    NoDifference,
    /// It has no interval.
    NotConcluded,
}

impl Verdict {
    /// Of a ratio of times.
    pub(crate) fn of(ratio: &Summary) -> Verdict {
        match ratio.interval {
            Some((_, high)) if high < 1.0 => Verdict::Faster,
            Some((low, _)) if low > 1.0 => Verdict::Slower,
            Some(_) => Verdict::NoDifference,
            None => Verdict::NotConcluded,
        }
    }

    /// In words.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::NoDifference => "no difference shown",
            Verdict::NotConcluded => "fewer than 3 rounds: nothing concluded",
        }
    }

    /// In a word or two, for a chart.
    pub(crate) fn short(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::NoDifference => "no difference",
            Verdict::NotConcluded => "too few rounds",
        }
    }

    /// For a table.
    pub(crate) fn tone(self) -> Tone {
        match self {
            Verdict::Faster => Tone::Better,
            Verdict::Slower => Tone::Worse,
            Verdict::NoDifference | Verdict::NotConcluded => Tone::Plain,
        }
    }

    /// For a chart.
    pub(crate) fn look(self) -> Look {
        match self {
            Verdict::Faster => Look::Better,
            Verdict::Slower => Look::Worse,
            Verdict::NoDifference | Verdict::NotConcluded => Look::Even,
        }
    }
}

/// A ratio of times with its interval: `0.423 (0.401 to 0.447)`.
pub(crate) fn ratio_words(ratio: &Summary) -> String {
    match ratio.interval {
        Some(interval) => format!("{} ({})", three(ratio.median), span(interval, "")),
        None => three(ratio.median),
    }
}

/// Ratio of times of a test for a table, with its verdict in words, or why there is none.
pub(crate) fn ratio_cell(test: &Test, ours: &str, theirs: &str) -> Cell {
    if let Some(ratio) = test.time_ratio(ours, theirs) {
        let verdict = Verdict::of(&ratio);
        let text = format!("{}, {}", ratio_words(&ratio), verdict.words());
        return Cell { text, tone: verdict.tone() };
    }
    let (text, tone) = no_ratio(test, ours, theirs);
    Cell { text, tone }
}

/// Why two targets have no ratio in a test.
fn no_ratio(test: &Test, ours: &str, theirs: &str) -> (String, Tone) {
    for name in [ours, theirs] {
        if let Some(reason) = test.failure(name) {
            return (format!("{name} failed: {reason}"), Tone::Failed);
        }
    }
    for name in [ours, theirs] {
        if test.summary(name).is_none() {
            return (format!("{name} {NOT_MEASURED}"), Tone::Missing);
        }
    }
    ("not measured in the same round".to_owned(), Tone::Missing)
}

/// Targets of larder: `larder`, and names that begin with it (`larder exclusive`).
pub(crate) fn is_ours(name: &str) -> bool {
    begins_with(name, "larder")
}

/// Targets without a cache on disk: `plain`, and names that begin with it.
pub(crate) fn is_plain(name: &str) -> bool {
    begins_with(name, "plain")
}

/// Whether a name begins with a whole word.
fn begins_with(name: &str, word: &str) -> bool {
    name.strip_prefix(word).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
}

/// Transport of a target: what its name or its options say, `udp` or `tcp` as a word.
pub(crate) fn transport(target: &Target) -> Option<&'static str> {
    [&target.name, &target.options].into_iter().find_map(|text| transport_in(text))
}

/// Transport that a text names.
pub(crate) fn transport_in(text: &str) -> Option<&'static str> {
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words.find_map(|word| match word.to_ascii_lowercase().as_str() {
        "udp" => Some("UDP"),
        "tcp" => Some("TCP"),
        _ => None,
    })
}

/// Which targets a run compares: ours, or the first target if none is ours; with all others, the
/// plain client first, then the local disk, then rivals.
pub(crate) fn sides(run: &Run) -> (Vec<&str>, Vec<&str>) {
    let names = || run.targets.iter().map(|target| target.name.as_str());
    let mut ours: Vec<&str> = names().filter(|name| is_ours(name)).collect();
    if ours.is_empty() {
        ours.extend(names().next());
    }
    let mut theirs: Vec<&str> = names().filter(|name| !ours.contains(name)).collect();
    theirs.sort_by_key(|name| match *name {
        "plain" => 0,
        name if is_plain(name) => 1,
        name if begins_with(name, "local") => 2,
        _ => 3,
    });
    (ours, theirs)
}

/// Pairs of ours and theirs, except those that are known to use different transports.
pub(crate) fn pairs(run: &Run) -> Vec<(&str, &str)> {
    let (ours, theirs) = sides(run);
    let of = |name: &str| run.target(name).and_then(transport);
    let comparable = |ours: &str, theirs: &str| match (of(ours), of(theirs)) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    };
    let all = ours.iter().flat_map(|ours| theirs.iter().map(move |theirs| (*ours, *theirs)));
    all.filter(|(ours, theirs)| comparable(ours, theirs)).collect()
}

/// The tests of a kind, one target against another.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SuiteRatio {
    /// In each round the geometric mean of the ratios of `counted` tests; over the rounds, their
    /// median and interval. `None` if no round has all of them.
    pub(crate) ratio: Option<Summary>,
    /// Tests that both passed.
    pub(crate) counted: usize,
    /// Of these, shown to be faster.
    pub(crate) faster: usize,
    /// Shown to be slower.
    pub(crate) slower: usize,
    /// Tests of the kind.
    pub(crate) tests: usize,
    /// Tests that ours failed.
    pub(crate) failed_ours: usize,
    /// Tests that theirs failed.
    pub(crate) failed_theirs: usize,
}

/// Compares two targets over all tests of a kind. Tests of different kinds are never averaged.
pub(crate) fn suite_ratio(run: &Run, kind: Kind, ours: &str, theirs: &str) -> SuiteRatio {
    let tests: Vec<&Test> =
        run.tests.iter().filter(|test| Kind::of(&run.suite, test) == kind).collect();
    let failed = |name: &str| tests.iter().filter(|test| test.failure(name).is_some()).count();
    let mut result = SuiteRatio {
        tests: tests.len(),
        failed_ours: failed(ours),
        failed_theirs: failed(theirs),
        ..SuiteRatio::default()
    };
    let mut both: Vec<&Test> = Vec::new();
    for test in tests {
        let Some(ratio) = test.time_ratio(ours, theirs) else {
            continue;
        };
        both.push(test);
        match Verdict::of(&ratio) {
            Verdict::Faster => result.faster += 1,
            Verdict::Slower => result.slower += 1,
            Verdict::NoDifference | Verdict::NotConcluded => (),
        }
    }
    result.counted = both.len();
    result.ratio = Summary::of(&round_means(&both, ours, theirs));
    result
}

/// Geometric mean of the ratios of the tests in each round that has all of them.
fn round_means(tests: &[&Test], ours: &str, theirs: &str) -> Vec<f64> {
    let Some(first) = tests.first() else {
        return Vec::new();
    };
    let rounds: std::collections::BTreeSet<u32> =
        first.of(ours).map(|sample| sample.round).collect();
    rounds
        .into_iter()
        .filter_map(|round| {
            let logs: Option<Vec<f64>> =
                tests.iter().map(|test| log_ratio(test, round, ours, theirs)).collect();
            let logs = logs?;
            Some((logs.iter().sum::<f64>() / logs.len() as f64).exp())
        })
        .collect()
}

fn log_ratio(test: &Test, round: u32, ours: &str, theirs: &str) -> Option<f64> {
    let value = |name: &str| test.of(name).find(|sample| sample.round == round)?.value;
    let log = (value(ours)? / value(theirs)?).ln();
    Some(if test.more_is_better { -log } else { log })
}

#[cfg(test)]
mod tests {
    use crate::record::Sample;

    use super::*;

    fn run(values: &[(&str, u32, f64)]) -> Run {
        let samples = values.iter().map(|(target, round, value)| Sample {
            target: (*target).to_owned(),
            round: *round,
            value: Some(*value),
            ..Sample::default()
        });
        let test =
            Test { copies: 1, unit: "s".to_owned(), samples: samples.collect(), ..Test::default() };
        let target = |name: &str| Target { name: name.to_owned(), ..Target::default() };
        Run {
            targets: ["rival", "local", "larder", "plain"].map(target).to_vec(),
            tests: vec![test],
            ..super::super::input::empty_run()
        }
    }

    #[test]
    fn sides_are_ours_and_the_others_in_order() {
        let run = run(&[]);
        assert_eq!(sides(&run), (vec!["larder"], vec!["plain", "local", "rival"]));
        assert!(is_ours("larder over UDP") && !is_ours("larders") && !is_ours("a larder"));
        let none = Run { targets: run.targets[..2].to_vec(), ..run };
        assert_eq!(sides(&none), (vec!["rival"], vec!["local"]));
    }

    #[test]
    fn only_like_transports_are_compared() {
        let target = |name: &str, options: &str| Target {
            name: name.to_owned(),
            options: options.to_owned(),
            ..Target::default()
        };
        let targets = vec![
            target("larder udp", ""),
            target("larder tcp", ""),
            target("plain", "vers=3,proto=TCP"),
            target("local", "udpcast"),
        ];
        let run = Run { targets, ..run(&[]) };
        let expected = [("larder udp", "local"), ("larder tcp", "plain"), ("larder tcp", "local")];
        assert_eq!(pairs(&run), expected);
    }

    #[test]
    fn tests_of_a_kind_are_compared_round_by_round() {
        let rounds = [(1.0, 2.0), (2.0, 4.1), (1.0, 2.0)];
        let values: Vec<(&str, u32, f64)> = (0..)
            .zip(rounds)
            .flat_map(|(round, (ours, theirs))| [("larder", round, ours), ("plain", round, theirs)])
            .collect();
        let mut run = run(&values);
        run.tests.push(run.tests[0].clone());
        for sample in run.tests[1].samples.iter_mut().filter(|sample| sample.target == "larder") {
            sample.value = sample.value.map(|value| value * 4.0);
        }
        let result = suite_ratio(&run, Kind::Written, "larder", "plain");
        // Half and twice: as fast.
        assert!((result.ratio.unwrap().median - 1.0).abs() < 0.02, "{result:?}");
        assert_eq!((result.counted, result.faster, result.slower), (2, 1, 1));
        run.tests[1].samples[0].failed = Some("wrong bytes".to_owned());
        let result = suite_ratio(&run, Kind::Written, "larder", "plain");
        assert_eq!((result.counted, result.failed_ours, result.tests), (1, 1, 2));
        assert_eq!(suite_ratio(&run, Kind::Cold, "larder", "plain").tests, 0);
        assert!((result.ratio.unwrap().median - 0.5).abs() < 0.02);
        assert_eq!(ratio_cell(&run.tests[1], "larder", "plain").text, "larder failed: wrong bytes");
        assert_eq!(ratio_cell(&run.tests[0], "larder", "local").text, "local not measured");
    }

    #[test]
    fn verdicts_need_an_interval_without_one() {
        for (ratios, verdict) in [
            (&[0.5, 0.51, 0.5][..], Verdict::Faster),
            (&[2.0, 2.1, 2.0], Verdict::Slower),
            (&[0.5, 2.0, 1.1], Verdict::NoDifference),
            (&[0.01], Verdict::NotConcluded),
        ] {
            assert_eq!(Verdict::of(&Summary::of(ratios).unwrap()), verdict);
        }
    }
}

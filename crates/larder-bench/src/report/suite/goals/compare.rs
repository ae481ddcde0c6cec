//! What goals are about: which numbers of a run are compared, and how that is called.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::record::{Run, Sample, Test};
use crate::stats::Summary;

use super::super::super::number::exact;

/// The number of clients.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum At {
    /// The smallest that was measured.
    Fewest,
    /// The greatest.
    Most,
}

/// What is compared.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum What {
    /// A test on ours and on theirs.
    Test(&'static str, At, &'static str, &'static str),
    /// Some tests at every number of clients and every place of a sweep between two: the one that
    /// is worst for ours.
    Worst(Several, &'static str, &'static str),
    /// A test on the same target, with the largest file and with the smallest.
    Sizes(&'static str, &'static str),
    /// Every phase of a test: the one that is worst for ours.
    Phases(&'static str, &'static str, &'static str),
    /// What the first of two tests takes longer than the second, against what a third one takes, on
    /// a target.
    Added([&'static str; 2], &'static str, &'static str),
    /// Calls for each operation of a test on a target; less those of another test, and so many.
    Calls(&'static str, Option<(&'static str, f64)>, &'static str),
    /// Something else that was counted, for each operation of a test on a target.
    Each(&'static str, &'static str, &'static str),
    /// The end of a test against its begin, on a target.
    Steady(&'static str, &'static str),
    /// A test with several disks against as many times what it does with one: the worst number.
    Linear(&'static str),
    /// The time of processors that a part of a target's servers takes, of a test at the most
    /// clients.
    Processor(&'static str, &'static str),
}

/// Some tests.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Several {
    /// What they are called together.
    pub(in super::super) words: &'static str,
    /// Their names.
    pub(in super::super) names: &'static [&'static str],
    /// The places of a sweep, both included.
    pub(in super::super) at: (f64, f64),
}

/// Every place of a sweep.
pub(in super::super) const ANY: (f64, f64) = (f64::NEG_INFINITY, f64::INFINITY);

/// Less than this share of what it is compared with, and less than nothing, counts as so much: a
/// difference of two times.
const LEAST: f64 = 0.01;

use At::{Fewest, Most};

/// What is compared, in words, and the measured, or why there is none.
type Compared = (String, Result<Summary, String>);

/// Looks up what a goal is about.
pub(super) fn compare(run: &Run, what: What) -> Compared {
    match what {
        What::Test(name, at, ours, theirs) => {
            let words = format!("{ours} against {theirs}");
            let Some(test) = measured_at(run, name, at, &[ours, theirs]) else {
                return (format!("{name}: {words}"), Err(absent(run, &[ours, theirs])));
            };
            let reason = || why_not(&[(test, ours), (test, theirs)]);
            (format!("{}: {words}", title(test)), test.time_ratio(ours, theirs).ok_or_else(reason))
        }
        What::Worst(several, ours, theirs) => {
            let places = several.at.0..=several.at.1;
            let tests = run.tests.iter().filter(|test| several.includes(test, &places));
            let ratios =
                tests.filter_map(|test| Some((title(test), test.time_ratio(ours, theirs)?)));
            worst(run, several.words, ratios.collect(), ours, theirs)
        }
        What::Sizes(name, ours) => sizes(run, name, ours),
        What::Phases(name, ours, theirs) => worst_phase(run, name, ours, theirs),
        What::Added(tests, against, target) => added(run, tests, against, target),
        What::Calls(name, less, target) => calls(run, name, less, target),
        What::Each(name, counted, target) => each(run, name, counted, target),
        What::Steady(name, target) => steady(run, name, target),
        What::Linear(name) => linear(run, name),
        What::Processor(name, cost) => processor(run, name, cost),
    }
}

impl Several {
    fn includes(&self, test: &Test, places: &RangeInclusive<f64>) -> bool {
        self.names.contains(&test.name.as_str())
            && test.at.values().all(|value| places.contains(value))
    }
}

/// The worst of some ratios, which all of them are called `words`.
fn worst(
    run: &Run,
    words: &str,
    ratios: Vec<(String, Summary)>,
    ours: &str,
    theirs: &str,
) -> Compared {
    let slower = ratios.iter().filter(|(_, ratio)| ratio.median > 1.0).count();
    let count = ratios.len();
    let worst = ratios.into_iter().max_by(|one, other| one.1.median.total_cmp(&other.1.median));
    match worst {
        Some((worst, ratio)) => {
            let of = format!("slower in {slower} of {count}; the worst is {worst}");
            (format!("{words}: {ours} against {theirs} ({of})"), Ok(ratio))
        }
        None => {
            let reason = [ours, theirs].iter().find_map(|target| absence(run, target));
            let reason = reason.unwrap_or_else(|| "no test has both".to_owned());
            (format!("{words}: {ours} against {theirs}"), Err(reason))
        }
    }
}

fn sizes(run: &Run, name: &str, ours: &str) -> Compared {
    let mut tests: Vec<&Test> =
        run.tests.iter().filter(|test| test.name == name && test.of(ours).count() > 0).collect();
    tests.sort_by(|one, other| place(one).total_cmp(&place(other)));
    let (Some(small), Some(large)) = (tests.first(), tests.last()) else {
        let reason = absence(run, ours).unwrap_or_else(|| "the run has no such test".to_owned());
        return (format!("{name}: {ours}"), Err(reason));
    };
    let words = format!(
        "{name} after 4 KiB in a file of {} MiB against one of {} MiB: {ours}",
        exact(place(large)),
        exact(place(small))
    );
    let ratio = large.time_ratio_to(ours, small, ours);
    (words, ratio.ok_or_else(|| why_not(&[(small, ours), (large, ours)])))
}

fn calls(run: &Run, name: &str, less: Option<(&str, f64)>, target: &str) -> Compared {
    let than = less.map(|(than, own)| match own {
        0.0 => format!(" more than {than}"),
        own => format!(" more than {than}, and {} of its own", exact(own)),
    });
    let words = format!("{name}, calls{}: {target}", than.unwrap_or_default());
    let test = measured_at(run, name, Most, &[target]);
    let than = less.map(|(than, own)| (measured_at(run, than, Most, &[target]), own));
    let (Some(test), None | Some((Some(_), _))) = (test, than) else {
        return (words, Err(absent(run, &[target])));
    };
    if let Some(reason) = test.failure(target) {
        return (words, Err(format!("{target} failed: {reason}")));
    }
    let each = |sample: &Sample| {
        let operations = sample.extra.get("operations").filter(|count| **count > 0.0)?;
        let calls = of_work(sample.rpcs.as_ref()?);
        Some(calls.values().copied().sum::<u64>() as f64 / operations)
    };
    let more = |of: &Sample| match than {
        None => each(of),
        Some((than, own)) => Some(each(of)? - each(sample(than?, target, of.round)?)? - own),
    };
    let counts: Vec<f64> = test.of(target).filter_map(more).collect();
    (words, counted(counts).ok_or_else(|| "no calls were counted".to_owned()))
}

fn each(run: &Run, name: &str, what: &str, target: &str) -> Compared {
    let words = format!("{name}, {what}: {target}");
    let Some(test) = measured_at(run, name, Most, &[target]) else {
        return (words, Err(absent(run, &[target])));
    };
    if let Some(reason) = test.failure(target) {
        return (words, Err(format!("{target} failed: {reason}")));
    }
    let of_one = |sample: &Sample| {
        let operations = sample.extra.get("operations").filter(|count| **count > 0.0)?;
        Some(sample.extra.get(what)? / operations)
    };
    let counts = test.of(target).filter_map(of_one).collect();
    (words, counted(counts).ok_or_else(|| "it was not counted".to_owned()))
}

fn worst_phase(run: &Run, name: &str, ours: &str, theirs: &str) -> Compared {
    let tests: Vec<&Test> = run.tests.iter().filter(|test| test.name == name).collect();
    let phases = tests.into_iter().flat_map(|test| {
        let phases = phases(test).into_iter();
        phases.map(move |phase| (test, phase))
    });
    let ratios = phases.filter_map(|(test, phase)| {
        let of = |sample: &Sample| sample.extra.get(&phase).copied();
        let ratio = paired((test, ours), (test, theirs), |one, other| Some(of(one)? / of(other)?));
        Some((phase_words(&phase).to_owned(), ratio?))
    });
    let ratios = ratios.collect();
    worst(run, &format!("{name}, every phase"), ratios, ours, theirs)
}

fn added(run: &Run, [more, less]: [&str; 2], against: &str, target: &str) -> Compared {
    let words = format!("{more} less {less}, against {against}: {target}");
    let tests = [more, less, against].map(|name| measured_at(run, name, Most, &[target]));
    let [Some(more), Some(less), Some(against)] = tests else {
        return (words, Err(absent(run, &[target])));
    };
    let of = |test: &Test, round| sample(test, target, round)?.value;
    let added = paired((more, target), (less, target), |one, other| {
        let added = one.value? - other.value?;
        Some((added / of(against, one.round)?).max(LEAST))
    });
    let tests = [(more, target), (less, target), (against, target)];
    (words, added.ok_or_else(|| why_not(&tests)))
}

fn steady(run: &Run, name: &str, target: &str) -> Compared {
    let words = format!("{name}, last tenth against the first: {target}");
    let Some(test) = measured_at(run, name, Most, &[target]) else {
        return (words, Err(absent(run, &[target])));
    };
    let of = |sample: &Sample, name: &str| sample.extra.get(name).copied();
    let ratio = paired((test, target), (test, target), |sample, _| {
        Some(of(sample, "last_tenth_s")? / of(sample, "first_tenth_s")?)
    });
    (words, ratio.ok_or_else(|| why_not(&[(test, target)])))
}

fn processor(run: &Run, name: &str, cost: &str) -> Compared {
    let found = run.tests.iter().filter(|test| test.name == name);
    let Some(test) = found.max_by_key(|test| test.copies) else {
        return (format!("{name}: {cost}"), Err("the run has no such test".to_owned()));
    };
    let share = |sample: &Sample| {
        Some(sample.extra.get(cost)? / sample.extra.get("elapsed_s")?).filter(|one| *one > 0.0)
    };
    let shares: Vec<f64> = test.samples.iter().filter_map(share).collect();
    let reason = || "nothing was counted".to_owned();
    (format!("{}: {cost}", title(test)), Summary::of(&shares).ok_or_else(reason))
}

/// Calls that a work causes: those that a client makes as time passes are left out.
pub(in super::super) fn of_work(calls: &BTreeMap<String, u64>) -> BTreeMap<&str, u64> {
    const BY_TIME: &str = "RENEW";
    let of_work = calls.iter().filter(|(name, _)| *name != BY_TIME);
    of_work.map(|(name, count)| (name.as_str(), *count)).collect()
}

/// Numbers that may be zero, and that are not spread as times are.
fn counted(mut counts: Vec<f64>) -> Option<Summary> {
    counts.sort_by(f64::total_cmp);
    let (min, max) = (*counts.first()?, *counts.last()?);
    let (count, median) = (counts.len(), counts[counts.len() / 2]);
    Some(Summary { count, median, min, max, interval: None })
}

fn linear(run: &Run, name: &str) -> Compared {
    let words = format!("{name}: several disks against as many times one");
    let target = |test: &Test| test.samples.first().map(|sample| sample.target.clone());
    let mut tests: Vec<&Test> = run.tests.iter().filter(|test| test.name == name).collect();
    tests.sort_by_key(|test| test.copies);
    let measured = tests.iter().filter_map(|test| Some((*test, target(test)?)));
    let measured: Vec<(&Test, String)> = measured.collect();
    let Some(((one, of_one), several)) = measured.split_first() else {
        return (words, Err("the run has no such test".to_owned()));
    };
    let ratios = several.iter().filter_map(|(test, of)| {
        let ratio = paired((*test, of), (*one, of_one), |many, one| {
            // Rates: the time that so much of the one would take, by the time of the many.
            Some(one.value? * f64::from(test.copies) / many.value?)
        });
        Some((test.copies, ratio?))
    });
    let worst = ratios.max_by(|one, other| one.1.median.total_cmp(&other.1.median));
    match worst {
        Some((disks, ratio)) => (format!("{words} (the worst is {disks})"), Ok(ratio)),
        None => (words, Err("one number of disks was measured".to_owned())),
    }
}

/// Something of the rounds in which two were measured: nothing if one of them failed even once.
fn paired(
    (one, ours): (&Test, &str),
    (other, theirs): (&Test, &str),
    of: impl Fn(&Sample, &Sample) -> Option<f64>,
) -> Option<Summary> {
    if one.failure(ours).or(other.failure(theirs)).is_some() {
        return None;
    }
    let values = one.of(ours).filter_map(|ours| of(ours, sample(other, theirs, ours.round)?));
    let values: Vec<f64> = values.filter(|value| value.is_finite() && *value > 0.0).collect();
    Summary::of(&values)
}

fn sample<'a>(test: &'a Test, target: &str, round: u32) -> Option<&'a Sample> {
    test.of(target).find(|sample| sample.round == round)
}

/// Names of a test's phases, as its samples have them.
pub(in super::super) fn phases(test: &Test) -> Vec<String> {
    const IN_ORDER: [&str; 5] = ["mkdir_s", "copy_s", "scan_s", "read_s", "compile_s"];
    let has = |name: &&str| test.samples.iter().any(|sample| sample.extra.contains_key(*name));
    IN_ORDER.iter().filter(|name| has(name)).map(ToString::to_string).collect()
}

/// The name of a phase without its unit.
pub(in super::super) fn phase_words(phase: &str) -> &str {
    phase.strip_suffix("_s").unwrap_or(phase)
}

/// Where in a sweep a test is.
fn place(test: &Test) -> f64 {
    test.at.values().copied().next().unwrap_or(0.0)
}

/// A test in words.
pub(in super::super) fn title(test: &Test) -> String {
    let at = test.at.iter().map(|(name, value)| format!(", {name} {}", exact(*value)));
    let at: String = at.collect();
    match test.copies {
        1 => format!("{}{at}, 1 client", test.name),
        copies => format!("{}{at}, {copies} clients", test.name),
    }
}

/// The test at one of its ends, among the numbers of clients at which all of `targets` were
/// measured.
pub(in super::super) fn measured_at<'a>(
    run: &'a Run,
    name: &str,
    at: At,
    targets: &[&str],
) -> Option<&'a Test> {
    let tests = run.tests.iter().filter(|test| {
        let has = |target: &&str| test.of(target).count() > 0;
        test.name == name && targets.iter().all(has)
    });
    match at {
        Fewest => tests.min_by_key(|test| test.copies),
        Most => tests.max_by_key(|test| test.copies),
    }
}

/// Why a test was not measured on some targets.
fn absent(run: &Run, targets: &[&str]) -> String {
    let reason = targets.iter().find_map(|target| absence(run, target));
    reason.unwrap_or_else(|| match targets.len() {
        1 => "the run has no such test of it".to_owned(),
        _ => "the run has no such test of both".to_owned(),
    })
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

fn why_not(tests: &[(&Test, &str)]) -> String {
    let failed = tests.iter().find_map(|(test, target)| Some((target, test.failure(target)?)));
    match failed {
        Some((target, reason)) => format!("{target} failed: {reason}"),
        None => "no round has both".to_owned(),
    }
}

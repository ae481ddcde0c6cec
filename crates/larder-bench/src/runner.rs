//! Runs a suite on targets.
//!
//! A round is the whole suite, once on every target, test by test: targets take turns, in reverse
//! order every second round, so that other activity on the machine affects all targets equally.
//! Rounds continue until every result is known closely enough, or a limit is reached. A target that
//! fails a test continues with the next one: the failure is its result.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result};

use crate::memory;
use crate::progress::Progress;
use crate::record::{self, Sample};
use crate::rpc;
use crate::suite::{Before, Check, Outcome, Suite, Test, WorkDir};
use crate::target::Target;

/// CPU time is reported in steps of this, in seconds: after a subtraction, less than a step counts
/// as nothing.
const CPU_TIME_STEP_S: f64 = 0.01;

/// When a run ends.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Rounds that are made in any case.
    pub rounds_min: u32,
    /// Rounds that are not exceeded.
    pub rounds_max: u32,
    /// A result is known closely enough if its 95 % interval is this narrow: 0.05 is plus or minus
    /// 5 %.
    pub relative_width: f64,
    /// No round is begun after this.
    pub time: Duration,
}

/// How a run ended.
#[derive(Debug)]
pub struct Done {
    /// The results, in the order of the suite.
    pub tests: Vec<record::Test>,
    /// It was interrupted: the last round is not whole.
    pub interrupted: bool,
}

/// Runs the tests of a suite on targets that are mounted and stay so. `keep` is called with the
/// results after each round. Blocks for as long as it takes; `interrupted` ends it after the
/// present test. What it made in the targets is removed.
///
/// # Errors
/// If results cannot be kept. A target that fails is a result.
pub fn run(
    suite: &Suite,
    targets: &[Target],
    limits: Limits,
    interrupted: &AtomicBool,
    keep: &mut dyn FnMut(&[record::Test]) -> Result<()>,
) -> Result<Done> {
    let started = Instant::now();
    let runs = |target: &Target| suite.tests.iter().filter(|test| target.runs(test)).count();
    let steps = targets.iter().map(runs).sum::<usize>() * limits.rounds_max as usize;
    let progress = Progress::start(suite.name, steps as u64);
    let tests = suite.tests.iter().map(blank).collect();
    let mut runner = Runner { suite, targets, interrupted, progress, tests, checks: Vec::new() };
    for round in 0..limits.rounds_max {
        runner.round(round);
        keep(&runner.tests)?;
        let enough = round + 1 >= limits.rounds_min && runner.known_to(limits.relative_width);
        if enough || runner.is_interrupted() || started.elapsed() > limits.time {
            break;
        }
    }
    Ok(Done { interrupted: runner.is_interrupted(), tests: runner.tests })
}

/// A test without samples.
fn blank(test: &Test) -> record::Test {
    record::Test {
        name: test.name.to_owned(),
        copies: test.copies,
        at: test.at.clone(),
        unit: test.unit.to_owned(),
        more_is_better: test.more_is_better,
        samples: Vec::new(),
    }
}

struct Runner<'a> {
    suite: &'a Suite,
    targets: &'a [Target],
    interrupted: &'a AtomicBool,
    progress: Progress,
    tests: Vec<record::Test>,
    /// Checks of this round that read what was written: test, target, what to check.
    checks: Vec<(usize, String, Check)>,
}

/// The result of one test on one target.
struct Measured {
    sample: Sample,
    at_end: Vec<Check>,
}

impl Runner<'_> {
    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    fn round(&mut self, round: u32) {
        let mut order: Vec<&Target> = self.targets.iter().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        let mut unfurnished = BTreeMap::new();
        for target in &order {
            if let Err(error) = self.furnish(target, round) {
                unfurnished.insert(target.name.clone(), format!("cannot be furnished: {error:#}"));
            }
        }
        for index in 0..self.suite.tests.len() {
            for target in &order {
                if self.is_interrupted() || !target.runs(&self.suite.tests[index]) {
                    continue;
                }
                let sample = match unfurnished.get(&target.name) {
                    Some(reason) => Sample { failed: Some(reason.clone()), ..Sample::default() },
                    None => self.sample(index, target, round),
                };
                let sample = Sample { target: target.name.clone(), round, ..sample };
                self.progress.done(&shown(&self.tests[index], &sample));
                self.tests[index].samples.push(sample);
            }
        }
        self.check_written(round);
        for target in &order {
            self.clear(target, round);
        }
    }

    /// Makes the directories of a round and fills them, behind the target's back if it has one;
    /// then it is mounted again, with an empty cache if it was written through.
    fn furnish(&self, target: &Target, round: u32) -> Result<()> {
        self.fill(target, round)?;
        if let Some(restart) = &target.restart {
            // A list of names that the target remembers may hide files that were placed behind its
            // back, and files that were written through it may be in its cache: this ensures that
            // they are on the server alone.
            let clients = target.clients.len() + 1;
            restart(clients, target.back.is_none()).context("cannot be mounted again")?;
        }
        Ok(())
    }

    fn fill(&self, target: &Target, round: u32) -> Result<()> {
        for test in self.suite.tests.iter().filter(|test| target.runs(test)) {
            self.progress.now(&format!("furnishing {}", target.name));
            at_once(self.suite.work_dirs(test, target, round), |place| {
                let dir = place.back.clone().unwrap_or_else(|| place.dir.clone());
                let place = WorkDir { dir, ..place };
                if !place.dir.exists() {
                    fs::create_dir_all(&place.dir)?;
                    (self.suite.furnish)(&place)?;
                }
                test.furnish.as_ref().map_or(Ok(()), |furnish| furnish(&place))
            })?;
        }
        Ok(())
    }

    fn sample(&mut self, index: usize, target: &Target, round: u32) -> Sample {
        let test = &self.suite.tests[index];
        self.progress.now(&format!("{} on {}", self.tests[index].title(), target.name));
        let dirs = self.suite.work_dirs(test, target, round);
        match measure(test, target, &dirs) {
            Ok(measured) => {
                let checks = measured.at_end.into_iter();
                self.checks.extend(checks.map(|check| (index, target.name.clone(), check)));
                measured.sample
            }
            Err(error) => Sample { failed: Some(reason(&error)), ..Sample::default() },
        }
    }

    /// Data that was written wrongly turns its sample into a failure.
    fn check_written(&mut self, round: u32) {
        if self.suite.disk_latency.is_some() {
            // No time is measured any more, so what the server has need not come from a slow disk.
            let name = format!("{}-{round}", self.suite.name);
            for back in self.targets.iter().filter_map(|target| target.back.as_ref()) {
                memory::bring_in(&back.join(&name));
            }
        }
        for (index, target, check) in std::mem::take(&mut self.checks) {
            let Err(error) = check() else { continue };
            let samples = &mut self.tests[index].samples;
            let sample =
                samples.iter_mut().rev().find(|one| one.target == target && one.round == round);
            if let Some(sample) = sample {
                sample.value = None;
                sample.failed = Some(reason(&error));
            }
        }
    }

    /// Removes what a round left, through the target, so that its caches hear of it.
    fn clear(&self, target: &Target, round: u32) {
        let name = format!("{}-{round}", self.suite.name);
        self.progress.now(&format!("clearing {}", target.name));
        // A server with a slow disk is spared: its files are removed below, behind the target's
        // back, and the next round begins with another mount.
        let is_spared =
            self.suite.disk_latency.is_some() && target.back.is_some() && !target.changes_wait;
        // Only a client's own mount may know what it has made.
        for test in self.suite.tests.iter().filter(|test| target.runs(test) && !is_spared) {
            // Files that stay are reported below.
            let _ = at_once(self.suite.work_dirs(test, target, round), |place| {
                Ok(fs::remove_dir_all(place.dir)?)
            });
        }
        let through = || fs::remove_dir_all(target.dir.join(&name));
        let removed = if is_spared { Ok(()) } else { through() };
        let behind = target.back.as_ref().map(|back| fs::remove_dir_all(back.join(&name)));
        let failed = match (removed, behind) {
            (Ok(()), Some(Err(error))) if is_spared => Some(error),
            (Err(error), None | Some(Err(_))) => Some(error),
            _ => None,
        };
        if let Some(error) = failed {
            eprintln!("larder: cannot remove {name} from {}: {error}", target.name);
        }
    }

    fn known_to(&self, relative_width: f64) -> bool {
        self.tests.iter().all(|test| {
            self.targets.iter().all(|target| {
                test.summary(&target.name)
                    .is_none_or(|summary| summary.relative_width() <= relative_width)
            })
        })
    }
}

/// Does the same for the places of all copies of a test at once.
fn at_once(places: Vec<WorkDir>, each: impl Fn(WorkDir) -> Result<()> + Send + Sync) -> Result<()> {
    let each = &each;
    std::thread::scope(|scope| {
        let all: Vec<_> =
            places.into_iter().map(|place| scope.spawn(move || each(place))).collect();
        let panicked = |_| Err(Error::msg("a step panicked"));
        all.into_iter().try_for_each(|one| one.join().unwrap_or_else(panicked))
    })
}

/// One line about an error, with its causes.
fn reason(error: &Error) -> String {
    format!("{error:#}").replace('\n', " ")
}

fn shown(test: &record::Test, sample: &Sample) -> String {
    let result = match (&sample.value, &sample.failed) {
        (Some(value), _) => format!("{value:.4} {}", test.unit),
        (None, reason) => format!("failed: {}", reason.as_deref().unwrap_or("unknown")),
    };
    format!("round {} {:24} {:12} {result}", sample.round + 1, test.title(), sample.target)
}

fn measure(test: &Test, target: &Target, dirs: &[WorkDir]) -> Result<Measured> {
    let page_cache = prepare(test, target, dirs)?;
    let read = || target.counter.read(dirs.len());
    let (before, costs_before) = (read()?, target.costs());
    let (elapsed, mut outcomes) = time(test, dirs)?;
    let (costs_after, after) = (target.costs(), read()?);
    let checks: Vec<Check> = outcomes.iter_mut().filter_map(|one| one.check.take()).collect();
    checks.into_iter().try_for_each(|check| check()).context("wrong bytes")?;
    let processors = std::thread::available_parallelism().map_or(1, Into::into);
    let (value, subtracted_s) = result(elapsed.as_secs_f64(), &outcomes, processors);
    let counted = before.zip(after).map(|(before, after)| after.since(&before));
    let rpcs_by = counted.as_ref().and(target.counter.name()).map(str::to_owned);
    let (calls, time_us) = counted.map(|counted| (counted.calls, counted.time_us)).unzip();
    let mut extra = extra(&outcomes);
    if outcomes.iter().any(|outcome| outcome.amount.is_some()) {
        // Of a rate the time is not known otherwise, to which costs are compared.
        extra.insert("elapsed_s".to_owned(), elapsed.as_secs_f64());
    }
    extra.extend(costs_after.into_iter().map(|(name, after)| {
        let before = costs_before.get(&name).copied().unwrap_or(0.0);
        (name, (after - before).max(0.0))
    }));
    let sample = Sample {
        value: Some(value),
        subtracted_s,
        page_cache,
        rpcs_by,
        rpcs: calls,
        rpc_time_us: time_us.filter(|times: &rpc::Calls| !times.is_empty()),
        extra,
        ..Sample::default()
    };
    let at_end = outcomes.into_iter().filter_map(|outcome| outcome.check_at_end).collect();
    Ok(Measured { sample, at_end })
}

/// What the copies came to in their common time, and the CPU time of compilers that was subtracted.
///
/// A copy runs one compiler at a time, and copies share the processors: at least this part of the
/// time is needed to compile, whatever the file system does. What remains is the waiting that
/// compiling did not hide, not the sum of all waiting.
fn result(elapsed_s: f64, outcomes: &[Outcome], processors: usize) -> (f64, Option<f64>) {
    let values: Vec<f64> = outcomes.iter().filter_map(|outcome| outcome.value).collect();
    let amount: f64 = outcomes.iter().filter_map(|outcome| outcome.amount).sum();
    let compilers_s: f64 = outcomes.iter().filter_map(|outcome| outcome.subtract_s).sum();
    if !values.is_empty() {
        (values.iter().sum::<f64>() / values.len() as f64, None)
    } else if amount > 0.0 {
        (amount / elapsed_s, None)
    } else if compilers_s > 0.0 {
        let subtracted_s = compilers_s / outcomes.len().min(processors) as f64;
        ((elapsed_s - subtracted_s).max(CPU_TIME_STEP_S), Some(subtracted_s))
    } else {
        (elapsed_s, None)
    }
}

/// Means of the copies' further measurements.
fn extra(outcomes: &[Outcome]) -> BTreeMap<String, f64> {
    let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (name, value) in outcomes.iter().flat_map(|outcome| &outcome.extra) {
        all.entry(name.clone()).or_default().push(*value);
    }
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    all.into_iter().map(|(name, values)| (name, mean(values))).collect()
}

/// Brings the caches into the state with which a test begins, and returns what was verified and
/// done.
fn prepare(test: &Test, target: &Target, dirs: &[WorkDir]) -> Result<Option<String>> {
    let mut state = Vec::new();
    let empty = matches!(test.before, Before::RestartEmpty | Before::FreshClient);
    if let (true, Some(restart)) = (empty || test.before == Before::Restart, &target.restart) {
        // The clients of a test have worked in directories of their own: others do not matter.
        restart(test.clients() as usize, empty).context("cannot be mounted again")?;
        state.push(if empty { "fresh mount, empty disk cache" } else { "fresh mount" }.to_owned());
    }
    if !matches!(test.before, Before::Nothing | Before::FreshClient) {
        state.push(memory::drop_and_verify(&target.disks)?);
    }
    if let Some(prepare) = &test.prepare {
        let done: Result<Vec<_>> = dirs.iter().map(|place| prepare(place)).collect();
        let done = done.context("cannot be prepared")?;
        state.extend(done.first().filter(|done| !done.is_empty()).map(|done| (*done).to_owned()));
    }
    dirs.iter().try_for_each(walk_to)?;
    Ok((!state.is_empty()).then(|| state.join(", ")))
}

/// Has the kernel and the client look up the path before the clock and the counts start. Whether
/// they still trust what they knew of it depends on how long the targets before took, not on the
/// test.
fn walk_to(place: &WorkDir) -> Result<()> {
    fs::metadata(&place.dir).with_context(|| format!("no place at {}", place.dir.display()))?;
    Ok(())
}

/// Runs all copies at once; the time is from their common start to the end of the last.
fn time(test: &Test, dirs: &[WorkDir]) -> Result<(Duration, Vec<Outcome>)> {
    if let [place] = dirs {
        let started = Instant::now();
        let outcome = (test.work)(place)?;
        return Ok((started.elapsed(), vec![outcome]));
    }
    let start = Barrier::new(dirs.len() + 1);
    std::thread::scope(|scope| {
        let copies: Vec<_> = dirs
            .iter()
            .map(|place| {
                let (start, work) = (&start, &test.work);
                scope.spawn(move || {
                    start.wait();
                    work(place)
                })
            })
            .collect();
        start.wait();
        let started = Instant::now();
        let ended: Vec<_> = copies.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        let elapsed = started.elapsed();
        let outcomes = ended.into_iter().map(|ended| match ended {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::msg("the work panicked")),
        });
        Ok((elapsed, outcomes.collect::<Result<_>>()?))
    })
}

/// Where a run is stored by default: `bench/runs/<date>-<commit>-<host>` in a checkout, else the
/// same below the present directory.
pub fn default_out(machine: &record::Machine, commit: &str) -> std::path::PathBuf {
    let date = jiff::Zoned::now().strftime("%Y-%m-%d").to_string();
    let top = if Path::new("bench/runs").is_dir() { "bench/runs" } else { "larder-bench" };
    Path::new(top).join(format!("{date}-{commit}-{}", machine.host))
}

/// The time of day, RFC 3339.
pub fn now() -> String {
    jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Size;
    use std::sync::Arc;

    const LIMITS: Limits = Limits {
        rounds_min: 2,
        rounds_max: 3,
        relative_width: 0.0,
        time: Duration::from_secs(600),
    };

    fn suite(tests: Vec<Test>) -> Suite {
        Suite {
            name: "made-up",
            method: Vec::new(),
            tests,
            furnish: Arc::new(|place| Ok(fs::write(place.at("given"), "x")?)),
            link_bits_per_s: None,
            own_mounts: false,
            confinement: None,
            disk_latency: None,
            rounds: crate::suite::ROUNDS,
        }
    }

    fn run_quietly(suite: &Suite, targets: &[Target], interrupted: &AtomicBool) -> Done {
        run(suite, targets, LIMITS, interrupted, &mut |_| Ok(())).unwrap()
    }

    #[test]
    fn targets_take_turns_and_nothing_is_left() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let targets = [Target::new("one", one.path()), Target::new("two", two.path())];
        let work = |place: &WorkDir| {
            assert_eq!(fs::read_to_string(place.at("given"))?, "x");
            fs::write(place.at("made"), "y")?;
            Outcome::done()
        };
        let suite = suite(vec![Test::timed("t", 3, Before::Nothing, Arc::new(work))]);
        let done = run_quietly(&suite, &targets, &AtomicBool::new(false));
        let order: Vec<_> =
            done.tests[0].samples.iter().map(|s| (s.round, s.target.as_str())).collect();
        assert_eq!(order, [(0, "one"), (0, "two"), (1, "two"), (1, "one"), (2, "one"), (2, "two")]);
        assert!(done.tests[0].summary("one").unwrap().count == 3 && !done.interrupted);
        assert_eq!(fs::read_dir(one.path()).unwrap().count(), 0);
    }

    #[test]
    fn failures_and_wrong_bytes_are_results_with_reasons() {
        let top = tempfile::tempdir().unwrap();
        let error = |_: &WorkDir| anyhow::bail!("out of paper");
        let wrong = |_: &WorkDir| Outcome::checked(|| anyhow::bail!("byte 7"));
        let later = |_: &WorkDir| Outcome::checked_at_end(|| anyhow::bail!("file 3"));
        let tests = vec![
            Test::timed("error", 1, Before::Nothing, Arc::new(error)),
            Test::timed("wrong", 4, Before::Nothing, Arc::new(wrong)),
            Test::timed("later", 1, Before::Nothing, Arc::new(later)),
            Test::timed("fine", 1, Before::Nothing, Arc::new(|_: &WorkDir| Outcome::done())),
        ];
        let done =
            run_quietly(&suite(tests), &[Target::new("t", top.path())], &AtomicBool::new(false));
        for (test, reason) in
            done.tests.iter().zip(["out of paper", "wrong bytes: byte 7", "file 3"])
        {
            assert_eq!((test.failure("t"), test.summary("t")), (Some(reason), None));
        }
        assert_eq!(done.tests[3].failure("t"), None);
    }

    #[test]
    fn a_test_is_furnished_behind_and_prepared_in_front() {
        let top = tempfile::tempdir().unwrap();
        let (front, back) = (top.path().join("front"), top.path().join("back"));
        fs::create_dir(&back).unwrap();
        std::os::unix::fs::symlink(&back, &front).unwrap();
        let target = Target { back: Some(back.clone()), ..Target::new("t", &front) };
        let work = |place: &WorkDir| {
            assert_eq!(fs::read_to_string(place.at("prepared"))?, "shared and its own");
            Outcome::done()
        };
        let test = Test::timed("t", 2, Before::Nothing, Arc::new(work))
            .furnished(move |place| {
                assert!(place.dir.starts_with(&back));
                assert_eq!(fs::read_to_string(place.at("given"))?, "x");
                Ok(fs::write(place.at("own"), "its own")?)
            })
            .prepared(move |place| {
                assert!(place.dir.starts_with(&front) && place.back.is_some());
                let own = fs::read_to_string(place.at("own"))?;
                fs::write(place.at("prepared"), format!("shared and {own}"))?;
                Ok("then given a file")
            });
        let other =
            Test::timed("other", 1, Before::Nothing, Arc::new(|_: &WorkDir| Outcome::done()))
                .prepared(|place| {
                    assert!(place.at("given").exists() && !place.at("own").exists());
                    anyhow::bail!("no more paper")
                });
        let done = run_quietly(&suite(vec![test, other]), &[target], &AtomicBool::new(false));
        assert_eq!(done.tests[0].failure("t"), None);
        assert_eq!(done.tests[0].samples[0].page_cache.as_deref(), Some("then given a file"));
        assert_eq!(done.tests[1].failure("t"), Some("cannot be prepared: no more paper"));
    }

    #[test]
    fn results_of_copies_are_put_together() {
        let amount = Outcome::of_amount;
        let value = |value| Outcome { value: Some(value), ..Outcome::default() };
        let compiled = |subtract_s| Outcome { subtract_s: Some(subtract_s), ..Outcome::default() };
        for (outcomes, processors, expected) in [
            (vec![Outcome::default()], 2, (4.0, None)),
            (vec![amount(10.0), amount(30.0)], 2, (10.0, None)),
            (vec![value(1.0), value(3.0)], 2, (2.0, None)),
            (vec![compiled(3.0)], 2, (1.0, Some(3.0))),
            (vec![compiled(2.0), compiled(3.0)], 2, (1.5, Some(2.5))),
            (vec![compiled(1.0), compiled(2.0), compiled(3.0)], 2, (1.0, Some(3.0))),
            (vec![compiled(4.0)], 1, (CPU_TIME_STEP_S, Some(4.0))),
        ] {
            assert_eq!(result(4.0, &outcomes, processors), expected);
        }
    }

    #[test]
    fn further_measurements_are_means_of_copies() {
        let outcome = |p50_us: f64| Outcome {
            extra: BTreeMap::from([("p50_us".to_owned(), p50_us)]),
            ..Outcome::default()
        };
        let mean = extra(&[outcome(1.0), outcome(3.0), Outcome::default()]);
        assert_eq!(mean, BTreeMap::from([("p50_us".to_owned(), 2.0)]));
    }

    #[test]
    fn a_target_that_cannot_be_furnished_fails_everything() {
        let target = Target::new("gone", Path::new("/proc/nowhere"));
        let suite = suite(vec![Test::timed(
            "t",
            1,
            Before::Nothing,
            Arc::new(|_: &WorkDir| Outcome::done()),
        )]);
        let done = run_quietly(&suite, &[target], &AtomicBool::new(false));
        assert!(done.tests[0].failure("gone").unwrap().starts_with("cannot be furnished"));
    }

    #[test]
    fn an_interrupted_run_keeps_what_was_finished() {
        let top = tempfile::tempdir().unwrap();
        let interrupted = Arc::new(AtomicBool::new(false));
        let signal = interrupted.clone();
        let work = move |_: &WorkDir| {
            signal.store(true, Ordering::Relaxed);
            Outcome::done()
        };
        let test = Test::timed("t", 1, Before::Nothing, Arc::new(work));
        let suite = suite(vec![test.clone(), test]);
        let done = run_quietly(&suite, &[Target::new("t", top.path())], &interrupted);
        assert!(done.interrupted);
        let counts: Vec<_> = done.tests.iter().map(|test| test.samples.len()).collect();
        assert_eq!(counts, [1, 0]);
        assert_eq!(fs::read_dir(top.path()).unwrap().count(), 0);
    }

    /// Every suite runs on the local disk, small, without a failure.
    #[test]
    fn all_suites_pass_on_the_local_disk() {
        let top = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut target = Target::new("local", top.path());
        target.disks = vec![top.path().to_path_buf()];
        for (name, _) in crate::suite::SUITES {
            let suite = crate::suite::by_name(name, Size::Smoke).unwrap();
            let limits = Limits { rounds_min: 1, rounds_max: 1, ..LIMITS };
            let done = run(
                &suite,
                std::slice::from_ref(&target),
                limits,
                &AtomicBool::new(false),
                &mut |_| Ok(()),
            );
            for test in done.unwrap().tests {
                assert_eq!(test.failure("local"), None, "{name}: {}", test.title());
                assert_eq!(test.samples.len(), 1, "{name}: {}", test.title());
            }
        }
    }
}

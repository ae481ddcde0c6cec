//! `larder bench run`

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use larder_bench::link::Shape;
use larder_bench::machine;
use larder_bench::record::{self, FORMAT, Run};
use larder_bench::runner::{self, Limits};
use larder_bench::stand::{Stand, contestants};
use larder_bench::suite::{self, Suite};
use larder_bench::target::{Target, mount_of};

use super::super::print;
use super::{Size, interruption};

/// Arguments of `larder bench run`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without --target, a directory is exported and mounted for the run: with the cache (larder), without \
(plain), and compared with the local disk (local). Needs root then. Targets take turns, test by test; rounds go on \
until every result is known to --width, or --rounds or --minutes is reached. Each suite writes SUITE.json to the \
directory of the run, after every round.\n\nExample:\n  larder bench run badros --target larder=/mnt/a --target \
rclone=/mnt/b,back=/srv/b --size smoke"
)]
pub(crate) struct Args {
    /// Suites, see `larder bench list`
    #[arg(value_name = "SUITE", required = true)]
    suites: Vec<String>,
    /// A directory to be measured. back=DIR is the same directory on the server: files are then placed
    /// behind the target's back. export=IP:PORT is our NFS server that counts its RPCs
    #[arg(long = "target", value_name = "NAME=DIR[,back=DIR][,export=IP:PORT]")]
    targets: Vec<String>,
    /// How much work
    #[arg(long, value_enum, default_value = "full")]
    size: Size,
    /// Most rounds
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Begin no round of a suite after this time
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// A result is known closely enough when its 95 % interval is this narrow, in percent
    #[arg(long, default_value_t = 5.0)]
    width: f64,
    /// The link to the servers that are started for the run: none, or a rate, and delay= and loss= for
    /// which a proxy is used instead of the kernel [default: as published, 10mbit or 100mbit]
    #[arg(long, value_name = "RATE[,delay=MS][,loss=PERCENT]", conflicts_with = "targets")]
    link: Option<Shape>,
    /// Directory of the run [default: bench/runs/<date>-<commit>-<host>]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Runs the suites.
///
/// # Errors
/// What kept it from measuring.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let larder = std::env::current_exe().context("cannot find our own program")?;
    let suites: Result<Vec<Suite>> =
        args.suites.iter().map(|name| suite::by_name(name, args.size.into())).collect();
    let suites = suites?;
    let given: Result<Vec<Target>> =
        args.targets.iter().map(|typed| Target::parse(typed, &larder)).collect();
    let given = given?;
    let machine = machine::describe();
    let version = version();
    let out = args.out.clone().unwrap_or_else(|| runner::default_out(&machine, &version));
    fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
    let interrupted = interruption()?;
    for suite in &suites {
        if interrupted.load(Ordering::Relaxed) {
            break;
        }
        let mut record = blank(args, suite, &machine, &version);
        if given.is_empty() {
            let published = suite.link_bits_per_s.map(Shape::of_rate);
            let mut stand = Stand::new(&larder, args.link.or(published).unwrap_or_default())?;
            record.link = Some(stand.link().clone());
            let mut targets = Vec::new();
            for contestant in contestants(suite.name) {
                targets.push(stand.mount(&contestant)?);
            }
            targets.push(stand.local());
            measure(args, suite, &targets, record, &out, &interrupted)?;
        } else {
            measure(args, suite, &given, record, &out, &interrupted)?;
        }
    }
    print(&format!("{}\n", out.display()))?;
    Ok(if interrupted.load(Ordering::Relaxed) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Runs one suite and keeps what is known after every round.
fn measure(
    args: &Args,
    suite: &Suite,
    targets: &[Target],
    mut record: Run,
    out: &Path,
    interrupted: &AtomicBool,
) -> Result<()> {
    record.targets = targets.iter().map(described).collect();
    let limits = Limits {
        rounds_min: args.rounds.min(3),
        rounds_max: args.rounds,
        relative_width: args.width / 100.0,
        time: Duration::from_secs(args.minutes.saturating_mul(60)),
    };
    let started = Instant::now();
    let mut keep = |tests: &[record::Test]| {
        record.tests = tests.to_vec();
        record.elapsed_s = started.elapsed().as_secs_f64();
        record.interrupted = interrupted.load(Ordering::Relaxed);
        store(&record, out)
    };
    runner::run(suite, targets, limits, interrupted, &mut keep)?;
    Ok(())
}

/// What is known of a run before it begins.
fn blank(args: &Args, suite: &Suite, machine: &record::Machine, version: &str) -> Run {
    Run {
        format: FORMAT,
        suite: suite.name.to_owned(),
        size: suite::Size::from(args.size).name().to_owned(),
        started: runner::now(),
        elapsed_s: 0.0,
        interrupted: false,
        command: command_line(),
        larder: version.to_owned(),
        machine: machine.clone(),
        link: None,
        method: suite.method.clone(),
        targets: Vec::new(),
        tests: Vec::new(),
    }
}

/// The command that repeats this one, without the directory in which it ran.
fn command_line() -> String {
    let args = std::env::args().skip(1);
    std::iter::once("larder".to_owned()).chain(args).collect::<Vec<_>>().join(" ")
}

fn described(target: &Target) -> record::Target {
    record::Target {
        name: target.name.clone(),
        mounted: mount_of(&target.dir).unwrap_or_default(),
        options: target.options.clone(),
        version: target.version.clone(),
        furnished_behind: target.back.is_some(),
    }
}

/// Replaces the file of a suite, whole or not at all.
fn store(record: &Run, out: &Path) -> Result<()> {
    let path = out.join(format!("{}.json", record.suite));
    let new = path.with_extension("json.new");
    let shown = || format!("cannot write {}", path.display());
    fs::write(&new, format!("{}\n", serde_json::to_string_pretty(record)?)).with_context(shown)?;
    fs::rename(&new, &path).with_context(shown)
}

/// The commit of the checkout we run in, else our version.
fn version() -> String {
    let mut git = std::process::Command::new("git");
    let said = git.args(["describe", "--always", "--dirty", "--exclude=*"]).output();
    let commit = said.ok().filter(|said| said.status.success());
    let commit = commit.and_then(|said| String::from_utf8(said.stdout).ok());
    let in_checkout = Path::new("crates/larder-bench").is_dir();
    match commit {
        Some(commit) if in_checkout => commit.trim().to_owned(),
        _ => env!("CARGO_PKG_VERSION").to_owned(),
    }
}

//! `larder bench run`

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use larder_bench::link::Shape;
use larder_bench::machine;
use larder_bench::record::{self, FORMAT, Run};
use larder_bench::runner::{self, Limits};
use larder_bench::stand::Server::Own;
use larder_bench::stand::{Contestant, Protocol, Stand, Wants, contestants, locals};
use larder_bench::suite::{self, Suite, Test};
use larder_bench::target::{Target, includes, mount_of};

use super::super::print;
use super::{Size, interruption, report};
use crate::clock::Since;
use crate::error::Usage;
use crate::version::COMMIT;

/// Rounds that are made even if every result is known before: three give an interval, five a
/// meaningful one.
const ROUNDS_MIN: u32 = 5;

/// Arguments of `larder bench run`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without --target, the command exports and mounts a directory for the run: with the cache \
(larder), without it (plain), and compares both with the local disk (local). This needs \
root. Targets take turns, test by test. Rounds continue until every result is known to \
--width, or --rounds or --minutes is reached. Each suite writes SUITE.json to the directory \
of the run, after every round.\n\nExample:\n  larder bench run badros --target larder=/mnt/a --target \
rclone=/mnt/b,back=/srv/b --size smoke"
)]
pub(crate) struct Args {
    /// A directory to measure. back=DIR is the same directory on the server: files are then placed
    /// there, bypassing the target. export=IP:PORT is our NFS server that counts its RPCs
    #[arg(
        long = "target",
        value_name = "NAME=DIR[,back=DIR][,export=IP:PORT]",
        conflicts_with_all = ["links", "dir"]
    )]
    targets: Vec<String>,
    #[command(flatten)]
    pub(super) plan: Plan,
}

/// What to run, how often, and where to keep the results.
#[derive(Debug, clap::Args)]
pub(super) struct Plan {
    /// Suites, see `larder bench list`
    #[arg(value_name = "SUITE", required_unless_present = "repeat")]
    suites: Vec<String>,
    /// How much work
    #[arg(long, value_enum, default_value = "full")]
    size: Size,
    /// Most rounds [default: 5; mbfs 3]
    #[arg(long)]
    rounds: Option<u32>,
    /// Start no round of a suite after this many minutes
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// A result is known closely enough when its 95 % interval is this narrow, in percent
    #[arg(long, default_value_t = 5.0)]
    width: f64,
    /// Only works of one copy
    #[arg(long)]
    single: bool,
    /// Only this contestant, of those that the suite mounts; may be given more than once
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// The link to the servers that are started for the run: none, or a rate, and delay= (each
    /// way), rtt= and loss=, for which a proxy is used instead of the kernel. If repeated, the
    /// suites run behind each link, and write SUITE-LINK.json [default: as published, 10mbit or
    /// 100mbit]
    #[arg(long = "link", value_name = "RATE[,delay=MS][,rtt=MS][,loss=PERCENT]")]
    links: Vec<Shape>,
    /// The server to start for the run: ours, or Samba (smbd must be installed)
    #[arg(long, value_enum, default_value = "nfs")]
    server: Server,
    /// A directory on the disk that is to be measured: servers, caches and the local files beside
    /// them get a directory of their own in it, for the time of the run. An ext4 without a journal
    /// creates files slowly while others are removed [default: /var/tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Directory of the run [default: bench/runs/<date>-<commit>-<host>]
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Repeat the commands of the run in DIR with this program; of the other arguments only --out
    /// is used
    #[arg(long, value_name = "DIR")]
    repeat: Option<PathBuf>,
    /// The command that this repeats.
    #[arg(skip)]
    pub(super) repeats: Option<String>,
}

/// A server, as it is typed.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Server {
    Nfs,
    Smb,
}

impl From<Server> for Protocol {
    fn from(server: Server) -> Protocol {
        match server {
            Server::Nfs => Protocol::Nfs,
            Server::Smb => Protocol::Smb,
        }
    }
}

/// Runs the suites.
///
/// # Errors
/// What prevented the measurement.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let larder = larder()?;
    let given: Result<Vec<Target>> =
        args.targets.iter().map(|typed| Target::parse(typed, &larder)).collect();
    let given = given?;
    args.plan.run(&mut |session, suite, mut record| {
        if !given.is_empty() {
            return session.measure(suite, &given, record);
        }
        let mut stand = session.stand(suite, suite.disk_latency)?;
        record.link = Some(stand.link().clone());
        let targets = ours(&mut stand, suite, session.only(), &mut record)?;
        session.measure(suite, &targets, record)
    })
}

/// Our own program.
fn larder() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find our own program")
}

/// The targets of a suite: our mounts, and file systems of this machine unless the servers are
/// confined or slow.
/// A target that needs a third-party server which is not installed is recorded as absent.
///
/// # Errors
/// If one cannot be mounted.
pub(super) fn ours(
    stand: &mut Stand,
    suite: &Suite,
    only: &[String],
    record: &mut Run,
) -> Result<Vec<Target>> {
    let is_wanted = |name: &str| only.is_empty() || only.iter().any(|one| one == name);
    let mut targets = Vec::new();
    let contestants = contestants(suite.name, stand.protocol());
    let known = || {
        contestants
            .iter()
            .map(|one| one.name)
            .chain(locals(suite.name).iter().map(|one| one.name()))
    };
    if let Some(unknown) = only.iter().find(|one| known().all(|name| name != one.as_str())) {
        bail!(Usage(format!(
            "{} has no contestant {unknown}: {}",
            suite.name,
            known().collect::<Vec<_>>().join(", ")
        )));
    }
    let most = suite.tests.iter().map(|test| test.copies).max().unwrap_or(1);
    // Beside slow servers the local disk's speed means nothing.
    let has_locals = suite.confinement.is_none() && !contestants.iter().any(Contestant::is_slowed);
    for contestant in contestants.into_iter().filter(|one| is_wanted(one.name)) {
        let tests = suite.tests.iter().filter(|test| includes(contestant.tests, test));
        let Some(clients) = tests.map(Test::clients).max() else { continue };
        let clients = if suite.own_mounts { clients } else { 1 };
        match stand.mount(&contestant, clients) {
            Ok(target) => targets.push(target),
            Err(reason) if contestant.server != Own => {
                record.absent.push(format!("{}: {reason:#}", contestant.name));
            }
            Err(error) => return Err(error),
        }
    }
    if let Some(reason) = stand.unconfined() {
        record.absent.push(format!("a small server, the machine's is used: {reason}"));
    }
    for local in locals(suite.name).iter().filter(|one| has_locals && is_wanted(one.name())) {
        match stand.beside(*local, most) {
            Ok(target) => targets.push(target),
            Err(reason) => record.absent.push(format!("{}: {reason:#}", local.name())),
        }
    }
    Ok(targets)
}

/// Runs the commands again that made the run in `dir`.
///
/// # Errors
/// If it is not a run, or a command cannot be read or fails.
fn repeat(dir: &Path, out: Option<&Path>) -> Result<ExitCode> {
    let mut commands: Vec<String> = Vec::new();
    for file in report::records(dir)? {
        let command = report::read(&file)?.command;
        if !commands.contains(&command) {
            commands.push(command);
        }
    }
    for command in commands {
        let code = super::again(&command, out)?;
        if code != ExitCode::SUCCESS {
            return Ok(code);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A run in progress.
pub(super) struct Session<'a> {
    plan: &'a Plan,
    /// The link that was asked for, if not the published one.
    link: Option<Shape>,
    out: &'a Path,
    interrupted: &'a AtomicBool,
}

/// Runs one suite on the targets that it chooses; gets what is known of the run before it begins.
type RunSuite<'a> = dyn FnMut(&Session, &Suite, Run) -> Result<()> + 'a;

impl Plan {
    /// Runs the suites one after the other.
    ///
    /// # Errors
    /// What prevented the measurement.
    pub(super) fn run(&self, run_suite: &mut RunSuite) -> Result<ExitCode> {
        if let Some(dir) = &self.repeat {
            return repeat(dir, self.out.as_deref());
        }
        let suites: Result<Vec<Suite>> = self.suites.iter().map(|name| self.suite(name)).collect();
        let suites = suites?;
        let machine = machine::describe();
        let out = self.out.clone().unwrap_or_else(|| runner::default_out(&machine, COMMIT));
        fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
        let interrupted = interruption()?;
        for (suite, link) in
            suites.iter().flat_map(|suite| self.links().into_iter().map(move |link| (suite, link)))
        {
            if interrupted.load(Ordering::Relaxed) {
                break;
            }
            let session = Session { plan: self, link, out: &out, interrupted: &interrupted };
            run_suite(&session, suite, blank(self, suite, &machine))?;
        }
        print(&format!("{}\n", out.display()))?;
        let whole = !interrupted.load(Ordering::Relaxed);
        Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn suite(&self, name: &str) -> Result<Suite> {
        let mut suite = suite::by_name(name, self.size.into())?;
        if self.single {
            suite.tests.retain(|test| test.copies == 1);
        }
        Ok(suite)
    }

    /// The links, one after the other; `None` is the published one.
    fn links(&self) -> Vec<Option<Shape>> {
        match self.links.as_slice() {
            [] => vec![None],
            links => links.iter().copied().map(Some).collect(),
        }
    }
}

impl Session<'_> {
    /// The contestants that were asked for; none: all.
    pub(super) fn only(&self) -> &[String] {
        &self.plan.only
    }

    /// A stand behind the requested link, else behind that of the published run. Each operation of
    /// its server's disk takes `disk_latency`, or the machine's own time.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(super) fn stand(&self, suite: &Suite, disk_latency: Option<Duration>) -> Result<Stand> {
        let published = suite.link_bits_per_s.map(Shape::of_rate);
        let shape = self.link.or(published).unwrap_or_default();
        let (confinement, own_namespaces) = (suite.confinement, suite.own_mounts);
        let place = |dir: &PathBuf| {
            fs::canonicalize(dir).with_context(|| format!("--dir {}", dir.display()))
        };
        let runs = self.plan.dir.as_ref().map(place).transpose()?;
        let wants = Wants { runs, confinement, disk_latency, own_namespaces };
        Stand::new(&larder()?, self.plan.server.into(), shape, wants)
    }

    /// Name of a suite's file, without extension: includes the link, if several were asked for or
    /// it adds a delay.
    fn file_name(&self, suite: &str) -> String {
        match self.link {
            Some(link) if self.plan.links.len() > 1 || !link.delay.is_zero() => {
                let words = link.to_string();
                let words: Vec<&str> = words
                    .split(|c: char| !c.is_alphanumeric())
                    .filter(|one| !one.is_empty())
                    .collect();
                format!("{suite}-{}", words.join("-"))
            }
            _ => suite.to_owned(),
        }
    }

    /// Runs one suite and stores what is known after every round.
    ///
    /// # Errors
    /// If it cannot be stored.
    pub(super) fn measure(&self, suite: &Suite, targets: &[Target], mut record: Run) -> Result<()> {
        record.targets = targets.iter().map(described).collect();
        let rounds = self.plan.rounds.unwrap_or(suite.rounds);
        let limits = Limits {
            rounds_min: rounds.min(ROUNDS_MIN),
            rounds_max: rounds,
            relative_width: self.plan.width / 100.0,
            time: Duration::from_secs(self.plan.minutes.saturating_mul(60)),
        };
        let started = Since::now();
        let name = self.file_name(suite.name);
        let mut keep = |tests: &[record::Test]| {
            record.tests = tests.to_vec();
            record.elapsed_s = started.elapsed().as_secs_f64();
            record.interrupted = self.interrupted.load(Ordering::Relaxed);
            store(&record, &self.out.join(&name).with_extension("json"))
        };
        runner::run(suite, targets, limits, self.interrupted, &mut keep)?;
        Ok(())
    }
}

/// What is known of a run before it begins.
fn blank(plan: &Plan, suite: &Suite, machine: &record::Machine) -> Run {
    Run {
        format: FORMAT,
        suite: suite.name.to_owned(),
        size: suite::Size::from(plan.size).name().to_owned(),
        started: runner::now(),
        elapsed_s: 0.0,
        interrupted: false,
        command: plan.repeats.clone().unwrap_or_else(command_line),
        larder: COMMIT.to_owned(),
        machine: machine.clone(),
        link: None,
        method: suite.method.clone(),
        targets: Vec::new(),
        absent: Vec::new(),
        tests: Vec::new(),
    }
}

/// The command that repeats this one, without the directory in which it ran.
fn command_line() -> String {
    let args = std::env::args().skip(1);
    let words: Vec<String> = std::iter::once("larder".to_owned()).chain(args).collect();
    super::command_line::of(&words)
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
fn store(record: &Run, path: &Path) -> Result<()> {
    let new = path.with_extension("json.new");
    let shown = || format!("cannot write {}", path.display());
    fs::write(&new, format!("{}\n", serde_json::to_string_pretty(record)?)).with_context(shown)?;
    fs::rename(&new, path).with_context(shown)
}

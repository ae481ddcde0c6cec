//! Runs a rule's command where it sees its inputs and the directories of the system, and nothing
//! else (`larder_io::confined`).
//!
//! Two processes of this program stand between: the outer one leaves the machine's namespaces, the
//! inner one is the first process of the new ones, so that everything in them ends with it. Both
//! get the [`Cell`] as a line of JSON on standard input, which their parent holds open for as long
//! as it lives; the inner one writes an [`End`] to standard output.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, FileTimes, Permissions};
use std::io::{self, BufRead, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use larder_io::confined::{Bind, below, enter, leave};
use larder_io::{Clock, RealClock};
use larder_rebuild::Ended;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// Names under which this program is run for these roles.
const OUTER: &str = "larder-confined";
const INNER: &str = "larder-confined-inside";

/// How much of standard error is examined.
const SAID_BYTES: usize = 4096;

/// What a command sees, and the command. Paths are `OsString`, since JSON has no paths that are not
/// UTF-8.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Cell {
    /// The directory that becomes its root.
    pub(super) root: OsString,
    /// Files and directories of the machine, and their paths inside; they cannot be written.
    pub(super) shown: Vec<(OsString, OsString)>,
    /// Files that are copied: from, to, permissions and time.
    pub(super) copied: Vec<(OsString, OsString, u32, i64)>,
    /// Directories that are there.
    pub(super) dirs: Vec<OsString>,
    /// Symbolic links, and their targets.
    pub(super) links: Vec<(OsString, OsString)>,
    /// Its working directory.
    pub(super) dir: OsString,
    pub(super) command: Vec<OsString>,
    pub(super) environment: Vec<(OsString, OsString)>,
}

/// How it ended.
#[derive(Debug, Serialize, Deserialize)]
enum End {
    /// The status of wait(2).
    Ended(i32),
    /// It was not started.
    Not(String),
}

/// Whether this process is to be one of those between.
pub(crate) fn is_meant(program: Option<&OsStr>) -> bool {
    program.is_some_and(|program| program == OUTER || program == INNER)
}

/// Is one of them.
pub(crate) fn run_inside(program: Option<&OsStr>) -> ExitCode {
    let mut cell = Vec::new();
    let read = io::stdin().lock().read_until(b'\n', &mut cell).context("no standard input");
    let done = read.and_then(|_| match program == Some(OsStr::new(INNER)) {
        true => inner(&cell).map(Some),
        false => outer(&cell).map(|()| None),
    });
    let end = match done {
        Ok(None) => return ExitCode::SUCCESS,
        Ok(Some(end)) => end,
        Err(error) => End::Not(format!("{error:#}")),
    };
    let told = serde_json::to_writer(io::stdout(), &end);
    if told.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn outer(cell: &[u8]) -> Result<()> {
    leave().context("this user cannot make namespaces (user_namespaces(7))")?;
    parent_lives()?;
    let mut inner = this_program(INNER).spawn().context("cannot start ourselves")?;
    let _open = feed(&mut inner, cell)?;
    inner.wait()?;
    Ok(())
}

/// Fails if the parent died before this process had asked the kernel to be killed then: nobody
/// would end it any more. The parent's end of standard input tells.
fn parent_lives() -> Result<()> {
    let stdin = io::stdin();
    let mut end = [PollFd::new(&stdin, PollFlags::empty())];
    poll(&mut end, Some(&Timespec::default()))?;
    anyhow::ensure!(end[0].revents().is_empty(), "the process that asked for it is gone");
    Ok(())
}

fn inner(cell: &[u8]) -> Result<End> {
    let cell: Cell = serde_json::from_slice(cell)?;
    furnish(&cell)?;
    let binds = cell.shown.iter().map(|(from, to)| Bind { from: from.into(), to: to.into() });
    enter(Path::new(&cell.root), &binds.collect::<Vec<_>>())?;
    parent_lives()?;
    let (program, arguments) = cell.command.split_first().context("no command")?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(cell.environment.iter().cloned())
        .current_dir(&cell.dir);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let ended = command.status().with_context(|| shown(program))?;
    Ok(End::Ended(ended.into_raw()))
}

/// Makes the files that are neither the system's nor shown.
fn furnish(cell: &Cell) -> Result<()> {
    let root = Path::new(&cell.root);
    let at = |path: &OsString| below(root, Path::new(path));
    for dir in cell.dirs.iter().map(at) {
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    }
    for (link, target) in &cell.links {
        fs::create_dir_all(at(link).parent().unwrap_or(root))?;
        symlink(target, at(link)).with_context(|| shown(link))?;
    }
    for (from, to, mode, changed_ns) in &cell.copied {
        fs::create_dir_all(at(to).parent().unwrap_or(root))?;
        let copy = || -> io::Result<()> {
            let mut file = File::create_new(at(to))?;
            io::copy(&mut File::open(from)?, &mut file)?;
            file.set_permissions(Permissions::from_mode(*mode & 0o777))?;
            let since = Duration::from_nanos(u64::try_from(*changed_ns).unwrap_or(0));
            file.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + since))
        };
        copy().with_context(|| shown(to))?;
    }
    Ok(())
}

fn shown(path: &OsStr) -> String {
    Path::new(path).display().to_string()
}

/// This program under another name.
fn this_program(name: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(name).stdin(Stdio::piped());
    command
}

/// Gives a child its cell. What it returns is to be kept until the child has ended.
fn feed(child: &mut Child, cell: &[u8]) -> io::Result<ChildStdin> {
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(cell)?;
    Ok(stdin)
}

/// Runs a cell's command as this user. Blocks.
///
/// # Errors
/// If it cannot be started.
pub(super) fn confine(cell: &Cell, timeout: Duration) -> Result<Ended> {
    let mut cell = serde_json::to_vec(cell)?;
    cell.push(b'\n');
    let mut command = this_program(OUTER);
    command.env_clear().current_dir("/").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut outer = command.spawn().context("cannot start ourselves")?;
    let (stdout, stderr) = (outer.stdout.take(), outer.stderr.take());
    let (mut stdout, stderr) = (stdout.expect("it is piped"), stderr.expect("it is piped"));
    let said = std::thread::spawn(move || last_line(stderr));
    let _open = feed(&mut outer, &cell)?;
    let is_over = !ends_within(&outer, timeout)?;
    if is_over {
        let pidfd = pidfd_open(pid(&outer), PidfdFlags::empty())?;
        pidfd_send_signal(&pidfd, Signal::KILL)?;
    }
    outer.wait()?;
    let mut end = String::new();
    stdout.read_to_string(&mut end)?;
    let said = said.join().unwrap_or_default();
    if is_over {
        return Ok(Ended::TimedOut);
    }
    match serde_json::from_str(&end) {
        Ok(End::Ended(status)) => Ok(ended(ExitStatus::from_raw(status), said)),
        Ok(End::Not(why)) => anyhow::bail!("{why}"),
        Err(_) => anyhow::bail!("the sandbox ended early: {said}"),
    }
}

fn ended(status: ExitStatus, said: String) -> Ended {
    match (status.code(), status.signal()) {
        (Some(0), _) => Ended::Well,
        (Some(code), _) => Ended::Badly { how: format!("status {code}"), said },
        (None, signal) => Ended::Badly { how: format!("signal {}", signal.unwrap_or(0)), said },
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Whether a child ends within a time.
fn ends_within(child: &Child, timeout: Duration) -> Result<bool> {
    let pidfd = pidfd_open(pid(child), PidfdFlags::empty())?;
    let end = RealClock.now() + timeout;
    loop {
        let left = end.since(RealClock.now());
        let left = Timespec::try_from(left).context("too long a time")?;
        match poll(&mut [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => continue,
            ended => return Ok(ended? > 0),
        }
    }
}

/// Reads to the end; returns the last line that is not empty, for a terminal.
fn last_line(mut from: impl Read) -> String {
    let (mut tail, mut piece) = (Vec::new(), [0; SAID_BYTES]);
    while let Ok(len) = from.read(&mut piece) {
        if len == 0 {
            break;
        }
        tail.extend(&piece[..len]);
        tail.drain(..tail.len().saturating_sub(SAID_BYTES));
    }
    let text = String::from_utf8_lossy(&tail);
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.chars().filter(|one| !one.is_control()).take(200).collect()
}

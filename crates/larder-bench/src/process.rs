//! Third-party programs; none is waited for without a limit.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Longest wait for a command that does its work and ends.
pub(crate) const COMMAND_MAX: Duration = Duration::from_secs(30);
/// Longest wait for a server to listen, for a mount to answer.
pub(crate) const START_MAX: Duration = Duration::from_secs(60);
/// Longest wait for a process that was asked to end; then it is killed.
pub(crate) const END_MAX: Duration = Duration::from_secs(10);
/// Longest wait for a process that was killed: one that hangs in the kernel is abandoned.
const KILLED_MAX: Duration = Duration::from_secs(2);
/// Time between two checks of something that other processes do.
const LOOK: Duration = Duration::from_millis(10);

/// Bytes of a log's end that an error shows.
const SAID_BYTES_MAX: usize = 400;

/// The path of a program that is in `PATH`.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    find_in(&std::env::var_os("PATH")?, program)
}

fn find_in(path: &OsStr, program: &str) -> Option<PathBuf> {
    let mut candidates = std::env::split_paths(path).map(|dir| dir.join(program));
    candidates.find(|file| {
        file.metadata()
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    })
}

/// Polls until there is an answer, for a limited time.
///
/// # Errors
/// That of the poll, which ends it; or that it took too long to do `what`.
pub(crate) fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(Instant::now() < deadline, "{what} takes longer than {} s", limit.as_secs());
        std::thread::sleep(LOOK);
    }
}

/// Runs a command that must succeed, and returns its output.
///
/// # Errors
/// With its output, or that it took longer than `limit`; then it was killed.
pub(crate) fn succeed_within(command: &mut Command, limit: Duration) -> Result<String> {
    // Through a file: a background process of the command might keep the other end of a pipe open.
    let mut said = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said.try_clone()?);
    let shown = command.get_program().to_string_lossy().into_owned();
    let mut child =
        command.process_group(0).spawn().with_context(|| format!("cannot run {shown}"))?;
    let ended = wait_for(&shown, limit, || Ok(child.try_wait()?));
    if ended.is_err() {
        kill(&mut child);
    }
    let status = ended?;
    let mut text = String::new();
    said.rewind()?;
    said.read_to_string(&mut text)?;
    ensure!(status.success(), "{shown}: {}", end_of(&text));
    Ok(text)
}

/// The same with a limit that suits most.
///
/// # Errors
/// As there.
pub(crate) fn succeed(command: &mut Command) -> Result<String> {
    succeed_within(command, COMMAND_MAX)
}

/// The line with its name in a program's version output, else the first; empty if there is no
/// output.
pub(crate) fn version(program: &str, argument: &str) -> String {
    line_about(program, &succeed(Command::new(program).arg(argument)).unwrap_or_default())
}

fn line_about(program: &str, text: &str) -> String {
    let named = text.lines().find(|line| line.to_lowercase().contains(program));
    named.or_else(|| text.lines().next()).unwrap_or_default().trim().to_owned()
}

/// Has a long-running command write to a log, and read nothing.
///
/// # Errors
/// If the log cannot be made.
pub(crate) fn log_to(command: &mut Command, log: &Path) -> Result<()> {
    let file = File::create(log).with_context(|| log.display().to_string())?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    Ok(())
}

/// Fails if a long-running process has ended, with the end of its log.
///
/// # Errors
/// Then.
pub(crate) fn still_runs(child: &mut Child, name: &str, log: &Path) -> Result<()> {
    match child.try_wait()? {
        None => Ok(()),
        Some(status) => bail!("{name} ended ({status}): {}", end_of_log(log)),
    }
}

/// The end of a log, in one line.
pub(crate) fn end_of_log(log: &Path) -> String {
    end_of(&String::from_utf8_lossy(&fs::read(log).unwrap_or_default())).to_owned()
}

fn end_of(text: &str) -> &str {
    let text = text.trim();
    let begin = text.len().saturating_sub(SAID_BYTES_MAX);
    text.get(begin..).or_else(|| text.lines().last()).unwrap_or_default()
}

/// Asks a process and its group to end, and kills them if they do not. Returns when the process is
/// gone, or hangs in the kernel.
pub(crate) fn end(child: &mut Child) {
    let group = Pid::from_child(child);
    let _ = kill_process_group(group, Signal::TERM);
    if waited(child, END_MAX).is_none() {
        kill(child);
    }
    // Those of the group whose parent is gone.
    let _ = kill_process_group(group, Signal::KILL);
}

/// Kills a process and its group.
pub(crate) fn kill(child: &mut Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    waited(child, KILLED_MAX);
}

/// How a process ended, if it does so in time.
pub(crate) fn waited(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    wait_for("the end", limit, || Ok(child.try_wait()?)).ok()
}

/// CPU time of the processes of a group, and of their children that have ended, in seconds.
/// Processes that have left the group are not included.
pub(crate) fn cpu_of_group_s(leader: u32) -> f64 {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = entries.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    stats
        .filter_map(|stat| cpu_of(&stat))
        .filter(|(group, _)| *group == leader)
        .map(|(_, s)| s)
        .sum()
}

/// Kills the processes of a group that run this program. Returns whether there was one.
pub(crate) fn kill_of_group(leader: u32, program: &str) -> bool {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found = false;
    for entry in entries {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let is_it = stat.contains(&format!(" ({program}) "));
        if is_it && cpu_of(&stat).is_some_and(|(group, _)| group == leader) {
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(process) = number.and_then(Pid::from_raw) else { continue };
            found |= kill_process(process, Signal::KILL).is_ok();
        }
    }
    found
}

/// CPU time of one process, in seconds; zero if it is gone.
pub(crate) fn cpu_of_process_s(process: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.ok().and_then(|stat| cpu_of(&stat)).map_or(0.0, |(_, seconds)| seconds)
}

/// How often threads of a process have gone to sleep voluntarily so far; 0 for a process that is
/// gone. Threads that have ended are not counted.
pub(crate) fn switches_of_process(process: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let told = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    told.filter_map(|told| number_after(&told, "\nvoluntary_ctxt_switches:")).sum()
}

/// How many calls like read(2) and write(2) a process has made so far (proc_pid_io(5)); not
/// including other calls on sockets. 0 for a process that may not be inspected.
pub(crate) fn file_calls_of_process(process: u32) -> f64 {
    let told = fs::read_to_string(format!("/proc/{process}/io")).unwrap_or_default();
    ["syscr:", "syscw:"].iter().filter_map(|name| number_after(&told, name)).sum()
}

fn number_after(text: &str, name: &str) -> Option<f64> {
    text.split_once(name)?.1.split_whitespace().next()?.parse().ok()
}

/// Group and CPU time of a process, with that of children that have ended (proc_pid_stat(5)).
fn cpu_of(stat: &str) -> Option<(u32, f64)> {
    /// Linux counts times in hundredths of a second on every machine (`sysconf(_SC_CLK_TCK)`).
    const TICKS_PER_S: f64 = 100.0;
    // The name of the program, in brackets, may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 =
        fields.get(11..15)?.iter().map(|field| field.parse::<u64>().unwrap_or(0)).sum();
    Some((fields.get(2)?.parse().ok()?, ticks as f64 / TICKS_PER_S))
}

/// The runtime directory of a mount that is kept apart from the user's other mounts.
fn runtime_dir(mountpoint: &Path) -> PathBuf {
    mountpoint.with_file_name("run")
}

/// Keeps a mount apart from the user's other mounts, from before it is made.
///
/// # Errors
/// If the directory cannot be made.
pub(crate) fn make_runtime_dir(mountpoint: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(runtime_dir(mountpoint))
}

/// The binary, for a command about a mount.
pub(crate) fn larder_of(program: &Path, mountpoint: &Path) -> Command {
    let (mut command, dir) = (Command::new(program), runtime_dir(mountpoint));
    if dir.is_dir() {
        command.env("LARDER_RUNTIME_DIR", dir);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_the_path_if_they_can_be_run() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("program");
        fs::write(&file, "").unwrap();
        let path = std::env::join_paths([Path::new("/nonexistent"), dir.path()]).unwrap();
        assert_eq!(find_in(&path, "program"), None);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find_in(&path, "program"), Some(file));
        assert_eq!(find_in(&path, "other"), None);
    }

    #[test]
    fn cpu_time_is_of_the_group() {
        let line = "7 (a) b) S 1 42 42 0 -1 0 0 0 0 0 100 20 3 2 20 0 1 0 9 0";
        assert_eq!(cpu_of(line), Some((42, 1.25)));
        assert_eq!(cpu_of("7 (a"), None);
        let burn = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        let mut child = Command::new("sh").args(["-c", burn]).process_group(0).spawn().unwrap();
        let leader = child.id();
        wait_for("some CPU time", START_MAX, || Ok((cpu_of_group_s(leader) > 0.0).then_some(())))
            .unwrap();
        end(&mut child);
        assert_eq!(cpu_of_process_s(leader), 0.0);
    }

    #[test]
    fn what_a_process_does_is_counted() {
        let this = std::process::id();
        let before = file_calls_of_process(this);
        fs::read("/proc/self/stat").unwrap();
        assert!(file_calls_of_process(this) > before);
        assert!(switches_of_process(this) > 0.0);
        assert_eq!(number_after("a:\t7\nab: 8", "\nab:"), Some(8.0));
    }

    #[test]
    fn a_version_is_the_line_about_the_program() {
        for (text, line) in [
            ("fusermount3 version: 3.14.0\nSSHFS version 3.7.3\n", "SSHFS version 3.7.3"),
            ("v1\nmore", "v1"),
            ("", ""),
        ] {
            assert_eq!(line_about("sshfs", text), line);
        }
    }

    #[test]
    fn commands_are_told_by_what_they_said_and_end_in_time() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        assert_eq!(succeed(&mut shell("echo a; echo b >&2")).unwrap(), "a\nb\n");
        let error = succeed(&mut shell("echo out of paper; exit 3")).unwrap_err();
        assert_eq!(error.to_string(), "sh: out of paper");
        // A process that it started in the background is gone too, and holds no end of a pipe of
        // ours.
        let hangs = "trap '' TERM; tail -f /dev/null & wait";
        let error = succeed_within(&mut shell(hangs), Duration::ZERO).unwrap_err();
        assert_eq!(error.to_string(), "sh takes longer than 0 s");
    }

    #[test]
    fn a_process_that_should_stay_is_told_by_its_log_and_ends_with_its_group() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let start = |script: &str| {
            let mut command = Command::new("sh");
            log_to(command.args(["-c", script]), &log).unwrap();
            command.process_group(0).spawn().unwrap()
        };
        let mut child = start("echo no config; exit 1");
        child.wait().unwrap();
        let error = still_runs(&mut child, "server", &log).unwrap_err().to_string();
        assert_eq!(error, "server ended (exit status: 1): no config");
        let mut child = start("tail -f /dev/null & wait");
        still_runs(&mut child, "server", &log).unwrap();
        end(&mut child);
        assert!(child.try_wait().unwrap().is_some());
    }
}

//! A rival's mount: a FUSE daemon that stays in the foreground, as a child of ours.
//!
//! The mountpoint itself is touched only in a process that can be killed: whether something is
//! mounted is read from mountinfo. A daemon that died or hangs costs a limited time, and the next
//! restart starts from scratch.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use larder_io::mountinfo::mounted_at;

use crate::process::{self, COMMAND_MAX, END_MAX, START_MAX, still_runs, wait_for};

/// How a rival is mounted.
#[derive(Debug)]
pub(super) struct Mount {
    plan: Plan,
    daemon: Mutex<Option<Child>>,
}

/// What is known of a mount before it is made.
#[derive(Debug)]
pub(super) struct Plan {
    /// Directory of this rival on the client: mountpoint, cache and log are in it.
    pub home: PathBuf,
    /// Whether it has a cache on disk.
    pub cached: bool,
    /// Its program and arguments, which keep it in the foreground.
    pub command: Vec<String>,
    /// Further environment.
    pub environment: Vec<(&'static str, String)>,
}

/// Where a rival with this home is mounted.
pub(super) fn mountpoint(home: &Path) -> PathBuf {
    home.join("mnt")
}

/// Where a rival with this home caches.
pub(super) fn cache(home: &Path) -> PathBuf {
    home.join("cache")
}

impl Mount {
    /// Mounts, with an empty cache, and waits until the root answers.
    ///
    /// # Errors
    /// If it cannot be mounted, with the end of the daemon's log. Nothing is left then.
    pub(super) fn new(plan: Plan) -> Result<Mount> {
        fs::create_dir_all(mountpoint(&plan.home))?;
        let mount = Mount { plan, daemon: Mutex::new(None) };
        mount.start()?;
        Ok(mount)
    }

    /// Where.
    pub(super) fn mountpoint(&self) -> PathBuf {
        mountpoint(&self.plan.home)
    }

    /// Its cache on disk.
    pub(super) fn cache(&self) -> Option<PathBuf> {
        self.plan.cached.then(|| cache(&self.plan.home))
    }

    /// The command that made it, without the directory of this run.
    pub(super) fn command_line(&self) -> String {
        let top = self.plan.home.parent().unwrap_or(&self.plan.home);
        self.plan.command.join(" ").replace(&*top.to_string_lossy(), "...")
    }

    /// Unmounts and mounts again; with `empty` after emptying the disk cache.
    ///
    /// # Errors
    /// If it does not unmount or mount in time. A daemon that hangs is killed then: the next
    /// restart starts from scratch.
    pub(super) fn restart(&self, empty: bool) -> Result<()> {
        let stopped = self.stop();
        if stopped.is_err() {
            self.end();
        }
        stopped?;
        if let (true, Some(cache)) = (empty, self.cache()) {
            fs::remove_dir_all(cache).context("cannot empty the cache")?;
        }
        self.start()
    }

    fn start(&self) -> Result<()> {
        let started = self.try_start();
        if started.is_err() {
            self.end();
        }
        started
    }

    fn try_start(&self) -> Result<()> {
        if let Some(cache) = self.cache() {
            fs::create_dir_all(cache)?;
        }
        let (program, arguments) = self.plan.command.split_first().context("no command")?;
        let log = self.plan.home.join("log");
        let mut command = Command::new(program);
        command.args(arguments).envs(self.plan.environment.iter().cloned());
        process::log_to(&mut command, &log)?;
        let child = command.process_group(0).spawn();
        let mut daemon = self.daemon();
        let daemon = daemon.insert(child.with_context(|| format!("cannot run {program}"))?);
        let answers = || {
            still_runs(daemon, program, &log)?;
            if !is_mounted(&self.mountpoint()) {
                return Ok(None);
            }
            let mut stat = Command::new("stat");
            Ok(process::succeed_within(stat.arg(self.mountpoint()), START_MAX).ok())
        };
        wait_for(&format!("{program} to mount"), START_MAX, answers)
            .with_context(|| process::end_of_log(&log))?;
        Ok(())
    }

    /// Unmounts and waits for the daemon, which may have something to write.
    fn stop(&self) -> Result<()> {
        let mut daemon = self.daemon();
        let mountpoint = self.mountpoint();
        wait_for("to unmount", COMMAND_MAX, || {
            if is_mounted(&mountpoint) {
                // Perhaps busy for a moment: a process that still has a file open will close it.
                let _ = process::succeed_within(&mut unmount(&mountpoint, false), END_MAX);
            }
            Ok((!is_mounted(&mountpoint)).then_some(()))
        })?;
        if let Some(mut child) = daemon.take()
            && process::waited(&mut child, END_MAX).is_none()
        {
            process::end(&mut child);
        }
        Ok(())
    }

    /// Unmounts and ends the daemon, whatever it takes.
    pub(super) fn end(&self) {
        let mountpoint = self.mountpoint();
        if is_mounted(&mountpoint) {
            let _ = process::succeed_within(&mut unmount(&mountpoint, false), END_MAX);
        }
        if is_mounted(&mountpoint) {
            let _ = process::succeed_within(&mut unmount(&mountpoint, true), END_MAX);
        }
        if let Some(mut child) = self.daemon().take() {
            process::end(&mut child);
        }
        if is_mounted(&mountpoint) {
            eprintln!("larder: {} is still mounted", mountpoint.display());
        }
    }

    fn daemon(&self) -> MutexGuard<'_, Option<Child>> {
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The command that unmounts; lazily, it succeeds even where a file is open or the daemon does not
/// answer.
fn unmount(mountpoint: &Path, lazily: bool) -> Command {
    let as_root = rustix::process::geteuid().is_root();
    let mut command = Command::new(if as_root { "umount" } else { "fusermount3" });
    match (as_root, lazily) {
        (true, true) => command.args(["-l", "--"]),
        (true, false) => command.arg("--"),
        (false, true) => command.args(["-u", "-z", "--"]),
        (false, false) => command.args(["-u", "--"]),
    };
    command.arg(mountpoint);
    command
}

/// Whether something is mounted there, without touching it.
fn is_mounted(mountpoint: &Path) -> bool {
    mounted_at(mountpoint).is_ok_and(|mount| mount.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(home: &Path, script: &str) -> Plan {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        Plan { home: home.to_path_buf(), cached: true, command, environment: Vec::new() }
    }

    #[test]
    fn a_daemon_that_ends_is_told_by_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let error = Mount::new(plan(dir.path(), "echo no such remote; exit 2")).unwrap_err();
        let line = format!("{error:#}");
        assert!(line.contains("no such remote"), "{line}");
        assert!(!is_mounted(&mountpoint(dir.path())));
    }

    #[test]
    fn what_is_mounted_is_known() {
        assert!(is_mounted(Path::new("/proc")) && !is_mounted(Path::new("/proc/self")));
    }
}

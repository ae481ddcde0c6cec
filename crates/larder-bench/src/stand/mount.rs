//! A mount of ours, made and removed by the binary's own commands.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::link::netns::Netns;
use crate::process::{self, succeed_within};

/// Longest wait for a command of ours: an unmount writes back.
const COMMAND_MAX: Duration = Duration::from_secs(120);

/// A mount of ours that is unmounted when the stand is dropped.
#[derive(Debug)]
pub(super) struct Mount {
    larder: PathBuf,
    source: String,
    pub(super) mountpoint: PathBuf,
    pub(super) cache: Option<PathBuf>,
    pub(super) options: String,
    /// Where its daemon runs, if not where we do.
    netns: Option<Netns>,
    mounted: Mutex<bool>,
}

/// The part that we read of what `larder status --json` prints.
#[derive(serde::Deserialize)]
struct Status {
    worker_pid: u32,
    supervisor_pid: Option<u32>,
    cache: Option<CacheState>,
}

#[derive(serde::Deserialize)]
struct CacheState {
    #[serde(default)]
    commits: u64,
    #[serde(default)]
    logged: u64,
}

impl Mount {
    /// One that is not made yet.
    pub(super) fn new(
        larder: PathBuf,
        source: String,
        mountpoint: PathBuf,
        cache: Option<PathBuf>,
        options: String,
        netns: Option<Netns>,
    ) -> Mount {
        let mounted = Mutex::new(false);
        Mount { larder, source, mountpoint, cache, options, netns, mounted }
    }

    fn command(&self) -> Command {
        process::larder_of(&self.larder, &self.mountpoint)
    }

    /// Mounts it.
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub(super) fn mount(&self) -> Result<()> {
        let mut mounted = self.mounted();
        let mut command = self.command();
        command.args(["mount", &self.source]).arg(&self.mountpoint).arg("--cache");
        match &self.cache {
            Some(dir) => command.arg(dir),
            None => command.arg("none"),
        };
        command.args(["-o", &self.options]);
        match &self.netns {
            Some(netns) => netns.enter(|| succeed_within(&mut command, COMMAND_MAX))??,
            None => succeed_within(&mut command, COMMAND_MAX)?,
        };
        *mounted = true;
        Ok(())
    }

    /// Unmounts it, if it is mounted.
    ///
    /// # Errors
    /// If it cannot be unmounted.
    pub(super) fn unmount(&self) -> Result<()> {
        let mut mounted = self.mounted();
        if std::mem::take(&mut *mounted) {
            let mut command = self.command();
            succeed_within(command.arg("umount").arg(&self.mountpoint), COMMAND_MAX)?;
        }
        Ok(())
    }

    /// Unmounts it and mounts it again; with `empty` after emptying the cache.
    ///
    /// # Errors
    /// If one of these fails.
    pub(super) fn restart(&self, empty: bool) -> Result<()> {
        self.unmount()?;
        if let (true, Some(cache)) = (empty, &self.cache) {
            fs::remove_dir_all(cache).context("cannot empty the cache")?;
        }
        self.mount()
    }

    /// Its cost so far, by name; nothing if its daemon cannot be asked.
    pub(super) fn costs(&self) -> Vec<(&'static str, f64)> {
        let mut command = self.command();
        command.args(["status", "--json"]).arg(&self.mountpoint);
        let told = succeed_within(&mut command, COMMAND_MAX).ok();
        let status: Option<Status> = told.and_then(|told| serde_json::from_str(&told).ok());
        let Some(Status { worker_pid, supervisor_pid, cache }) = status else { return Vec::new() };
        let all = std::iter::once(worker_pid).chain(supervisor_pid);
        let mut costs = vec![
            ("daemon_cpu_s", all.map(process::cpu_of_process_s).sum()),
            ("daemon_switches", process::switches_of_process(worker_pid)),
            ("daemon_file_calls", process::file_calls_of_process(worker_pid)),
        ];
        if let Some(cache) = cache {
            costs.push(("index_commits", cache.commits as f64));
            costs.push(("index_log_writes", cache.logged as f64));
        }
        costs
    }

    fn mounted(&self) -> MutexGuard<'_, bool> {
        self.mounted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! A live mount's files in the runtime directory: its socket, its log, and its record for other
//! commands.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};

use crate::control::{Server, daemon_lives};
use crate::daemon::Announce;
use crate::mountpoint;
use crate::plan::Plan;
use crate::runtime_dir::{Record, RuntimeDir};
use crate::sole::Sole;

/// The traces of a mount in the runtime directory; they go with it.
pub(crate) struct Traces {
    runtime_dir: RuntimeDir,
    mountpoint: PathBuf,
    /// No other mount of the export may be exclusive.
    _sole: Option<Sole>,
    /// The record was written: from then on it says whose the files are.
    is_on_record: AtomicBool,
}

impl Traces {
    /// Takes the mountpoint for this process: only one process gets the socket, so this is also its
    /// lock. Returns where to log, too.
    ///
    /// # Errors
    /// If another process has it.
    pub(crate) fn begin(
        plan: &Plan,
        announce: Announce,
        log: Option<&Path>,
    ) -> Result<(Server, Traces, Option<PathBuf>)> {
        let runtime_dir = RuntimeDir::open()?;
        make_way(&runtime_dir, &plan.mountpoint)?;
        let server = Server::bind(&runtime_dir.socket(&plan.mountpoint))
            .with_context(|| format!("cannot mount on {}", plan.mountpoint.display()))?;
        let sole = Sole::take(&runtime_dir, &plan.back, &plan.mountpoint)
            .with_context(|| format!("cannot mount {}", plan.back.source));
        let sole = match sole {
            Ok(sole) => sole,
            Err(error) => {
                runtime_dir.remove(&plan.mountpoint);
                return Err(error);
            }
        };
        let log = match (log, announce) {
            (Some(path), _) => Some(path.to_owned()),
            (None, Announce::Parent) => {
                runtime_dir.tidy_logs(&plan.mountpoint);
                Some(runtime_dir.log(&plan.mountpoint))
            }
            (None, Announce::Nobody) => None,
        };
        let traces = Traces {
            runtime_dir,
            mountpoint: plan.mountpoint.clone(),
            _sole: sole,
            is_on_record: AtomicBool::new(false),
        };
        Ok((server, traces, log))
    }

    /// Writes what other commands need to know of the mount.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub(crate) fn put(&self, record: &Record) -> Result<()> {
        self.is_on_record.store(true, Ordering::Relaxed);
        self.runtime_dir.put(&self.mountpoint, record)
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        // After a lazy unmount they may belong to another mount; and if the process that unmounted
        // has removed ours, the present ones belong to a mount that is just beginning.
        let ours = match self.runtime_dir.get(&self.mountpoint) {
            Some(record) => record.pid == std::process::id(),
            None => !self.is_on_record.load(Ordering::Relaxed),
        };
        if ours {
            self.runtime_dir.remove(&self.mountpoint);
        }
        self.runtime_dir.remove_detached(&self.mountpoint, std::process::id());
    }
}

/// Renames the files of a daemon whose mount another process has removed from the name space: it
/// still serves processes that have files open, and the mountpoint is free.
fn make_way(runtime_dir: &RuntimeDir, mountpoint: &Path) -> Result<()> {
    let is_ours = |mount: mountpoint::Mount| mount.kind == mountpoint::KIND;
    let is_mounted = mountpoint::mounted_at(mountpoint)?.is_some_and(is_ours);
    if !is_mounted && daemon_lives(&runtime_dir.socket(mountpoint)) {
        let record = runtime_dir.get(mountpoint).filter(|record| record.is_trying);
        if let Some(Record { source, pid, .. }) = record {
            let shown = mountpoint.display();
            bail!("process {pid} is trying to mount {source} on {shown}: larder umount {shown}");
        }
        runtime_dir.detach(mountpoint)?;
    }
    Ok(())
}

/// The record of a mount whose daemon is `pid`.
pub(crate) fn record(plan: &Plan, pid: u32, log: Option<PathBuf>) -> Record {
    Record {
        mountpoint: plan.mountpoint.clone(),
        source: plan.back.source.to_string(),
        cache: plan.back.cache.clone(),
        pid,
        log,
        is_detached: false,
        is_trying: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A supervisor may end after its mount was removed, while another mount is just beginning at
    /// the same place.
    #[test]
    fn traces_of_a_mount_that_begins_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mountpoint = Path::new("/mnt");
        let begin = || {
            let runtime_dir = RuntimeDir::at(folder.path().join("larder")).unwrap();
            let server = Server::bind(&runtime_dir.socket(mountpoint)).unwrap();
            let is_on_record = AtomicBool::new(false);
            (
                server,
                Traces {
                    runtime_dir,
                    mountpoint: mountpoint.to_owned(),
                    _sole: None,
                    is_on_record,
                },
            )
        };
        let is_there = |traces: &Traces| traces.runtime_dir.socket(mountpoint).exists();
        let record = |pid| Record {
            mountpoint: mountpoint.to_owned(),
            source: "nfs://server/".to_owned(),
            cache: None,
            pid,
            log: None,
            is_detached: false,
            is_trying: false,
        };
        let (_, old) = begin();
        old.put(&record(std::process::id())).unwrap();
        old.runtime_dir.remove(mountpoint);
        let (_, new) = begin();
        drop(old);
        assert!(is_there(&new));
        new.put(&record(1)).unwrap();
        let runtime_dir = RuntimeDir::at(folder.path().join("larder")).unwrap();
        drop(new);
        assert!(runtime_dir.get(mountpoint).is_some(), "another process has it");
        runtime_dir.remove(mountpoint);
        let (_, failed) = begin();
        drop(failed);
        assert!(!runtime_dir.socket(mountpoint).exists(), "nobody was told of it");
    }
}

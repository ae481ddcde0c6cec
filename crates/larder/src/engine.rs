//! An engine's answers and actions when a command asks, behind any front door: a mount's or an
//! export's.

use std::ffi::OsString;
use std::path::{Component, Path};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use larder_cache::FileNo;
use larder_client::last_path;
use larder_vfs::{Cred, Entry, Error, FileSystem, Ino, Kind, Lookup, OpenFlags};
use serde_json::Value;
use tokio::runtime::Handle;

use crate::children::each_child;
use crate::clock::clock;
use crate::control::{NewLimit, Progress, Request, Sink};
use crate::hoard::Hoarded;
use crate::maintenance::{self, Warmed};
use crate::progress::Tally;
use crate::remembered;
use crate::report::{
    CONFLICTS_TOLD_MAX, Fill, Limited, Offline, Procedure, Reads, RpcTotal, ServerState, State,
    Status, Synced,
};
use crate::stack::Engine;
use crate::version::VERSION;

/// Bytes per read, when files are read for the cache's sake.
const READ_BYTES: u32 = 1 << 20;
/// Shortest pause between two progress reports to a waiting command.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// Longest one.
const PROGRESS_PAUSE_MAX: Duration = Duration::from_secs(1);
/// In between, it is so many times as long as counting what is left took.
const PROGRESS_PAUSES: u32 = 20;

impl Engine {
    /// The state of the engine. The fields of the front door are left to the caller.
    pub(crate) fn status(&self) -> Status {
        let client = self.client.status();
        let rpc = self.server.rpc();
        let sum = |of: fn(&Procedure) -> u64| rpc.procedures.values().map(of).sum();
        Status {
            state: State::Mounted,
            pid: std::process::id(),
            worker_pid: std::process::id(),
            version: VERSION.to_owned(),
            server: ServerState {
                reachable: client.reachable,
                problem: self.server.problem(),
                offline: self.switch.as_ref().is_some_and(|switch| switch.off().by_hand),
                bytes_per_second_max: self.rate.get(),
                transport: self.server.transport().to_owned(),
                connected: rpc.connections.iter().filter(|one| one.connected).count() as u64,
            },
            reads: Reads {
                bytes_cached: client.read_bytes_cached,
                bytes_remote: client.read_bytes_remote,
                opens_passthrough: client.opens_passthrough,
                opens_other: client.opens_other,
                opens_for_reading: client.opens_for_reading,
                opens_of_whole_files: client.opens_of_whole_files,
                open_files: client.open_files,
            },
            fill: Fill {
                bytes_max: client.fill.bytes_max,
                files_waiting: client.fill.waiting,
                bytes: client.fill.filled_bytes,
            },
            hoard: self.hoard.status(),
            dirty: client.unsent.into(),
            conflicts_total: self.cache.count_conflicts().0,
            conflicts: self.conflicts(0, CONFLICTS_TOLD_MAX),
            cache: self.cache_state(),
            memory_bytes: resident_bytes().unwrap_or(0),
            rpc: RpcTotal {
                calls: sum(|one| one.calls),
                errors: sum(|one| one.errors),
                refused: sum(|one| one.refused),
                retransmits: sum(|one| one.retransmits),
                bytes_sent: sum(|one| one.bytes_sent),
                bytes_received: sum(|one| one.bytes_received),
            },
            ..Status::default()
        }
    }

    /// Carries out a request about what is cached. Blocks until it is done; not to be called by the
    /// runtime's own threads.
    ///
    /// # Errors
    /// If there is no such file, if the command is gone, if the disk fails.
    pub(crate) fn carry_out(
        &self,
        runtime: &Handle,
        request: &Request,
        sink: &mut dyn Sink,
    ) -> Result<Value> {
        match request {
            Request::CachePin { path, pinned, hoarded } => {
                let ino = runtime.block_on(self.find(path))?;
                let kind = runtime.block_on(self.kind_of(ino)).context("cannot look at it")?;
                self.pin(ino, kind, *pinned, hoarded.as_ref())?;
                Ok(Value::Null)
            }
            Request::CacheWarm { path } => {
                let warmed = runtime.block_on(self.warm(path, sink))?;
                Ok(serde_json::to_value(warmed)?)
            }
            Request::Sync { path } => {
                let synced = runtime.block_on(self.sync(path, sink))?;
                Ok(serde_json::to_value(synced)?)
            }
            Request::Offline { offline } => {
                let told = runtime.block_on(self.set_offline(*offline, sink))?;
                Ok(serde_json::to_value(told)?)
            }
            Request::Limit { set } => {
                if let Some(NewLimit { bytes_per_second }) = *set {
                    self.rate.set(clock(), bytes_per_second);
                    remembered::keep_limit(&self.cache, Some(bytes_per_second));
                    self.cache.checkpoint()?;
                }
                Ok(serde_json::to_value(Limited { bytes_per_second: self.rate.get() })?)
            }
            Request::Classes => Ok(serde_json::to_value(self.classes())?),
            Request::Unsaved => {
                for file in self.unsaved() {
                    sink.item(serde_json::to_value(file)?)?;
                }
                Ok(Value::Null)
            }
            Request::Conflicts => {
                for conflict in self.conflicts(0, usize::MAX) {
                    sink.item(serde_json::to_value(conflict)?)?;
                }
                Ok(Value::Null)
            }
            Request::Explain { path } => {
                Ok(serde_json::to_value(runtime.block_on(self.explain(path))?)?)
            }
            Request::SetClass { path, class } => {
                runtime.block_on(self.set_class(path, class.as_deref()))?;
                Ok(Value::Null)
            }
            other => maintenance::carry_out(&self.cache, other, sink),
        }
    }

    /// Pins a file or tree, or no longer; one with a priority is kept whole and fresh, too.
    fn pin(&self, ino: Ino, kind: Kind, pinned: bool, hoarded: Option<&Hoarded>) -> Result<()> {
        ensure!(
            hoarded.is_none() || self.hoard.is_on(),
            "nothing is kept whole here: the mount has hoard=0"
        );
        // The client's node numbers are the cache's file numbers.
        let no = FileNo(ino.0);
        let is_tree = kind == Kind::Directory || hoarded.is_some();
        self.cache.pin(no, pinned && !is_tree);
        let record = hoarded.map(Hoarded::encode).unwrap_or_default();
        self.hoard.pin_tree(no, (pinned && is_tree).then_some(&record));
        Ok(())
    }

    /// Works without the server from now on, or with it again; then it gets what it lacks.
    async fn set_offline(&self, offline: bool, sink: &mut dyn Sink) -> Result<Offline> {
        let switch = self
            .switch
            .as_ref()
            .context("it does not work without its server: mount it with -o offline")?;
        let before = self.last_conflict();
        remembered::keep_offline(&self.cache, offline);
        self.cache.checkpoint()?;
        switch.set(offline).await;
        if !offline {
            switch.ask().await;
        }
        let is_away = switch.off().is_away;
        let synced = match offline || is_away {
            true => Synced { left: self.client.unsent(&|_| true).into(), ..Synced::default() },
            false => self.send_all(sink).await?,
        };
        let conflicts = self.conflicts(before, CONFLICTS_TOLD_MAX);
        let conflicts_total = self.cache.conflicts(before, usize::MAX).len() as u64;
        Ok(Offline { is_away, synced, conflicts, conflicts_total })
    }

    /// Sends to the server all that it lacks. Bytes whose names were not made there in time are
    /// sent in a second pass. Data that the first pass set aside was refused for good, though the
    /// second pass finds none of it: that is an error, too.
    async fn send_all(&self, sink: &mut dyn Sink) -> Result<Synced> {
        let set_aside = self.cache.usage().set_aside;
        let first = self.sync(Path::new(""), sink).await?;
        if first.refused.is_none() {
            return Ok(first);
        }
        let again = self.sync(Path::new(""), sink).await?;
        let is_lost = self.cache.usage().set_aside > set_aside;
        let refused = again.refused.or(first.refused.filter(|_| is_lost));
        let conflicts = first.conflicts + again.conflicts;
        Ok(Synced { before: first.before, refused, conflicts, ..again })
    }

    /// Sends to the server what it lacks of a file, or of a tree as it was last seen.
    async fn sync(&self, path: &Path, sink: &mut dyn Sink) -> Result<Synced> {
        let is_all = path.as_os_str().is_empty();
        let found = if is_all { Ino::ROOT } else { self.find(path).await? };
        let wanted = |ino: Ino| {
            let is_below =
                || last_path(&self.cache, FileNo(ino.0)).is_some_and(|at| at.starts_with(path));
            is_all || ino == found || is_below()
        };
        let last_conflict = self.last_conflict();
        let before = self.client.unsent(&wanted);
        let mut tally = Tally::new(before);
        let syncing = self.client.sync(&wanted);
        tokio::pin!(syncing);
        let mut pause = PROGRESS_EVERY;
        let sent = loop {
            match clock().timeout(pause, &mut syncing).await {
                Ok(sent) => break sent,
                Err(_) => {
                    let asked = clock().instant();
                    let left = self.client.unsent(&wanted);
                    let counting = clock().instant() - asked;
                    pause = (PROGRESS_PAUSES * counting).clamp(PROGRESS_EVERY, PROGRESS_PAUSE_MAX);
                    let told = tally.see(left);
                    ensure!(sink.progress(told), "stopped: nobody listens any more");
                }
            }
        };
        let refused = sent.err().map(|error| error.to_string());
        let left = self.client.unsent(&wanted).into();
        let conflicts = self.cache.conflicts(last_conflict, usize::MAX).len() as u64;
        Ok(Synced { before: before.into(), left, refused, conflicts })
    }

    /// The number of the last conflict on record; 0 if there is none.
    fn last_conflict(&self) -> u64 {
        self.cache.conflicts(0, usize::MAX).last().map_or(0, |last| last.number)
    }

    /// The file at a path below the root, as the superuser finds it.
    pub(crate) async fn find(&self, path: &Path) -> Result<Ino> {
        let mut ino = Ino::ROOT;
        for part in path.components() {
            let Component::Normal(name) = part else { bail!("{part:?} in a path") };
            let found = self.client.lookup(&Cred::root(), ino, name).wait().await;
            match found.context("cannot look it up")? {
                Lookup::Found(entry) => ino = entry.ino,
                Lookup::Absent { .. } => bail!("no such file"),
            }
        }
        Ok(ino)
    }

    /// Reads the regular files below a path, without following symbolic links. Files that cannot be
    /// read are counted, and the rest continues.
    async fn warm(&self, path: &Path, sink: &mut dyn Sink) -> Result<Warmed> {
        let mut warmed = Warmed::default();
        let mut open = vec![(path.to_owned(), self.find(path).await?)];
        while let Some((path, ino)) = open.pop() {
            let done = match self.kind_of(ino).await {
                Ok(Kind::Directory) => {
                    let mut take =
                        |name, found: Entry| open.push((path.join::<OsString>(name), found.ino));
                    each_child(&self.client, &Cred::root(), ino, &mut take).await
                }
                Ok(Kind::File) => {
                    warmed.files += 1;
                    self.read(ino, &mut warmed, sink).await
                }
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                tracing::warn!(path = %path.display(), %error, "cannot be read into the cache");
                warmed.failed += 1;
            }
            let (files, bytes) = (warmed.files, warmed.bytes);
            let told = Progress { files, bytes, ..Progress::default() };
            ensure!(sink.progress(told), "stopped: nobody listens any more");
        }
        Ok(warmed)
    }

    async fn kind_of(&self, ino: Ino) -> Result<Kind, Error> {
        Ok(self.client.getattr(&Cred::root(), ino).wait().await?.attr.kind)
    }

    async fn read(&self, ino: Ino, warmed: &mut Warmed, sink: &mut dyn Sink) -> Result<(), Error> {
        let cred = Cred::root();
        let open = self.client.open(&cred, ino, OpenFlags::READ).wait().await?.id;
        let mut offset = 0;
        let done = loop {
            match self.client.read(&cred, ino, Some(open), offset, READ_BYTES).wait().await {
                Ok(data) if data.is_empty() => break Ok(()),
                Ok(data) => {
                    offset += data.len() as u64;
                    warmed.bytes += data.len() as u64;
                    let (files, bytes) = (warmed.files, warmed.bytes);
                    if !sink.progress(Progress { files, bytes, ..Progress::default() }) {
                        break Ok(());
                    }
                }
                Err(error) => break Err(error),
            }
        };
        let released = self.client.release(ino, open).wait().await;
        done.and(released)
    }
}

/// Memory that this process occupies (proc_pid_status(5)).
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_memory_is_known() {
        assert!(resident_bytes().is_some_and(|bytes| bytes > 1 << 16));
    }
}

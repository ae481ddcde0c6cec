//! What the daemon answers on its control socket.

use std::path::{Component, Path};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use larder_cache::FileNo;
use larder_remote::rpc::{Recording, Series};
use larder_vfs::{Cred, FileSystem, Ino, Kind, Lookup};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;

use super::Event;
use crate::control::{Request, Sink};
use crate::maintenance;
use crate::report::{Dirty, Fill, Reads, RpcTotal, ServerState, Stat, State, Status};
use crate::runtime_dir::Record;
use crate::series::Batch;
use crate::stack::Stack;
use crate::worker::Keeper;

/// How often a recording is told of: seldom enough to cost nothing, often enough for its memory.
const SERIES_ROUND: Duration = Duration::from_millis(100);

/// Everything that answers are made of.
pub(super) struct Answers {
    pub(super) stack: Arc<Stack>,
    /// Who holds the mount, if we do not.
    pub(super) keeper: Option<Keeper>,
    pub(super) record: Record,
    /// The mount's options, as typed.
    pub(super) options: Vec<String>,
    pub(super) events: UnboundedSender<Event>,
    pub(super) runtime: Handle,
    /// When the mount was made.
    pub(super) begin: Instant,
}

impl Answers {
    /// Answers a request; runs on a thread of its own.
    pub(super) fn answer(&self, request: &Request, sink: &mut dyn Sink) -> Result<Value> {
        match request {
            Request::Status => Ok(serde_json::to_value(self.status())?),
            Request::Stat => Ok(serde_json::to_value(self.stat())?),
            Request::Series { slice_us, slices_max } => {
                let recording =
                    self.stack.engine.server.record(Duration::from_micros(*slice_us))?;
                tell_series(recording, *slices_max, sink)
            }
            Request::Unmount { lazy } => {
                let (answer, answered) = sync_channel(1);
                let gone = |_| anyhow!("the daemon is ending already");
                self.events.send(Event::Unmount { lazy: *lazy, answer }).map_err(gone)?;
                let lost = answered.recv().context("the daemon is ending already")??;
                Ok(lost.map_or(Value::Null, Value::from))
            }
            Request::Upgrade => {
                let (answer, answered) = sync_channel(1);
                let gone = |_| anyhow!("the daemon is ending already");
                self.events.send(Event::Leave { answer }).map_err(gone)?;
                answered.recv().context("the daemon is ending already")??;
                Ok(Value::Null)
            }
            Request::CachePin { path, pinned } => self.pin(path, *pinned),
            other => maintenance::carry_out(&self.stack.engine.cache, other, sink),
        }
    }

    fn status(&self) -> Status {
        let client = self.stack.engine.client.status();
        let rpc = self.stack.engine.server.rpc();
        let sum = |of: fn(&crate::report::Procedure) -> u64| rpc.procedures.values().map(of).sum();
        Status {
            mountpoint: self.record.mountpoint.display().to_string(),
            source: self.record.source.clone(),
            options: self.options.clone(),
            state: State::Mounted,
            pid: self.record.pid,
            worker_pid: std::process::id(),
            supervisor_pid: self.keeper.map(|keeper| keeper.pid),
            restarts: self.keeper.map_or(0, |keeper| keeper.restarts),
            transport: self.stack.door_transport().to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            log: self.record.log.as_ref().map(|log| log.display().to_string()),
            uptime_s: self.begin.elapsed().as_secs(),
            server: ServerState {
                reachable: client.reachable,
                problem: self.stack.engine.server.problem(),
                transport: self.stack.engine.server.transport().to_owned(),
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
            dirty: Dirty::of(&client),
            cache: self.stack.engine.cache_state(),
            memory_bytes: resident_bytes().unwrap_or(0),
            rpc: RpcTotal {
                calls: sum(|one| one.calls),
                errors: sum(|one| one.errors),
                refused: sum(|one| one.refused),
                retransmits: sum(|one| one.retransmits),
                bytes_sent: sum(|one| one.bytes_sent),
                bytes_received: sum(|one| one.bytes_received),
            },
        }
    }

    fn stat(&self) -> Stat {
        let rpc = self.stack.engine.server.rpc();
        Stat {
            mountpoint: self.record.mountpoint.display().to_string(),
            uptime_s: self.begin.elapsed().as_secs(),
            rpc: rpc.procedures,
            connections: rpc.connections,
            cache: self.stack.engine.cache_state(),
            fuse: self.stack.fuse_requests().into_iter().collect(),
            kernel: self.stack.kernel_state(),
        }
    }

    /// Finds the file or directory below the root as the superuser does, and pins it, or all below it. The client's
    /// node numbers are the cache's file numbers.
    fn pin(&self, path: &Path, pinned: bool) -> Result<Value> {
        let (mut ino, mut is_tree) = (Ino::ROOT, true);
        for part in path.components() {
            let Component::Normal(name) = part else { bail!("{part:?} in a path to pin") };
            let found = self.stack.engine.client.lookup(&Cred::root(), ino, name);
            match self.runtime.block_on(found.wait()).context("cannot look it up")? {
                Lookup::Found(entry) => {
                    (ino, is_tree) = (entry.ino, entry.fresh.attr.kind == Kind::Directory);
                }
                Lookup::Absent { .. } => bail!("no such file"),
            }
        }
        match is_tree {
            true => self.stack.engine.cache.pin_tree(FileNo(ino.0), pinned),
            false => self.stack.engine.cache.pin(FileNo(ino.0), pinned),
        }
        Ok(Value::Null)
    }
}

/// Tells of a recording until so many slices are over, or the mount is.
fn tell_series(
    mut recording: Recording,
    slices_max: Option<u64>,
    sink: &mut dyn Sink,
) -> Result<Value> {
    while !recording.over() {
        let series = recording.take();
        let enough = slices_max.is_some_and(|most| series.until >= most);
        tell_batches(&series, slices_max, sink)?;
        if enough {
            return Ok(Value::Null);
        }
        std::thread::sleep(SERIES_ROUND);
    }
    tell_batches(&recording.finish(), slices_max, sink)?;
    Ok(Value::Null)
}

fn tell_batches(series: &Series, slices_max: Option<u64>, sink: &mut dyn Sink) -> Result<()> {
    Batch::all(series, slices_max).try_for_each(|batch| sink.item(serde_json::to_value(batch)?))
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

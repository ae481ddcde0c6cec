//! The daemon's answers on its control socket.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use larder_rpc::{Recording, Series};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;

use crate::clock::{Since, clock};
use crate::control::{Request, Sink};
use crate::event::Event;
use crate::link::Supervisor;
use crate::report::{Stat, Status, StaysLost};
use crate::runtime_dir::Record;
use crate::series::Batch;
use crate::stack::Stack;

/// How often a recording is sent: seldom enough to cost nothing, often enough for its memory.
const SERIES_ROUND: Duration = Duration::from_millis(100);

/// How long the server may take to look for losses.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// Everything that answers are made of.
pub(super) struct Answers {
    pub(super) stack: Arc<Stack>,
    /// The holder of the mount, if it is another process.
    pub(super) supervisor: Option<Supervisor>,
    pub(super) record: Record,
    /// The mount's options, as typed.
    pub(super) options: Vec<String>,
    pub(super) events: UnboundedSender<Event>,
    pub(super) runtime: Handle,
    /// When the mount was made.
    pub(super) begin: Since,
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
            Request::Unmount { lazy, detach } => {
                let (answer, answered) = sync_channel(1);
                let gone = |_| anyhow!("the daemon is ending already");
                let (lazy, detach) = (*lazy, *detach);
                self.events.send(Event::Unmount { lazy, detach, answer }).map_err(gone)?;
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
            Request::LookForLosses => {
                let volume = self.stack.engine.server.volume().and_then(|volume| volume.get());
                let volume = volume.context("no server of a volume was reached")?;
                let looked = clock().timeout(LOOK_MAX, volume.lost_files(true, u64::MAX));
                let looked = self.runtime.block_on(looked).context("the server does not answer")?;
                looked.context("the server does not tell what is lost")?;
                Ok(Value::Null)
            }
            other => self.stack.engine.carry_out(&self.runtime, other, sink),
        }
    }

    fn status(&self) -> Status {
        Status {
            mountpoint: self.record.mountpoint.display().to_string(),
            source: self.record.source.clone(),
            options: self.options.clone(),
            pid: self.record.pid,
            supervisor_pid: self.supervisor.map(|supervisor| supervisor.pid),
            restarts: self.supervisor.map_or(0, |supervisor| supervisor.restarts),
            transport: self.stack.door_transport().to_string(),
            log: self.record.log.as_ref().map(|log| log.display().to_string()),
            uptime_s: self.begin.elapsed().as_secs(),
            stay_lost: self.stay_lost(),
            rebuild: self.stack.at_access.as_ref().map(|making| making.status()),
            ..self.stack.engine.status()
        }
    }

    /// Files that stay lost. What is there by now, however it was made, is none of them.
    fn stay_lost(&self) -> Vec<StaysLost> {
        let Some(making) = &self.stack.at_access else { return Vec::new() };
        self.runtime.block_on(making.look_again(&self.stack.engine.client));
        making.stay_lost()
    }

    fn stat(&self) -> Stat {
        let rpc = self.stack.engine.server.rpc();
        Stat {
            mountpoint: self.record.mountpoint.display().to_string(),
            uptime_s: self.begin.elapsed().as_secs(),
            rpc: rpc.procedures,
            connections: rpc.connections,
            forged: rpc.forged,
            cache: self.stack.engine.cache_state(),
            fuse: self.stack.fuse_requests().into_iter().collect(),
            kernel: self.stack.kernel_state(),
        }
    }
}

/// Sends a recording until this many slices are over, or the mount is.
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
        clock().block(SERIES_ROUND);
    }
    tell_batches(&recording.finish(), slices_max, sink)?;
    Ok(Value::Null)
}

fn tell_batches(series: &Series, slices_max: Option<u64>, sink: &mut dyn Sink) -> Result<()> {
    Batch::all(series, slices_max).try_for_each(|batch| sink.item(serde_json::to_value(batch)?))
}

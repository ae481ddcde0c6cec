//! The stack of a mount, put together in one function that can be read aloud.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use larder_cache::{Cache, Limits};
use larder_client::{Client, Start};
use larder_io::{Clock, RealClock};
use larder_remote::nfs3::{MountOptions, Nfs3};
use larder_remote::rpc::{self, RecordError, Recording, Recovery, SourcePort};
use larder_vfs::Remote;
use tokio::sync::mpsc::UnboundedSender;

use crate::cache_dir;
use crate::door::{self, Door};
use crate::mounted::Event;
use crate::options::{LookupCache, Options, ServerLost, Transport};
use crate::report::{Connection, KernelState, Latency, Procedure};
use crate::source::Source;
use crate::worker::Hold;

/// Between two tries to reach a server with which a mount is to go on.
const SERVER_ASKED_EVERY: Duration = Duration::from_secs(1);

/// What is to be mounted, where and how.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The export.
    pub(crate) source: Source,
    /// Where, without symbolic links.
    pub(crate) mountpoint: PathBuf,
    /// Directory of the cache; `None`: in memory, and only what is needed to be a file system.
    pub(crate) cache: Option<PathBuf>,
    /// How.
    pub(crate) options: Options,
}

impl Plan {
    /// Whether another process goes on with the mount if the one that serves it dies. What it must know
    /// is in the cache on disk.
    pub(crate) fn survives(&self) -> bool {
        let door = self.options.door;
        let uring = door.transport == larder_fuse::Transport::Uring;
        self.cache.is_some() && !uring && door.survive.unwrap_or(true)
    }
}

/// Everything that a mount is made of, from the server up.
pub(crate) struct Stack {
    /// The server.
    remote: Arc<Nfs3>,
    /// The cache.
    pub(crate) cache: Cache,
    /// Its directory, if it is on disk.
    pub(crate) cache_dir: Option<PathBuf>,
    /// The brain.
    pub(crate) client: Client,
    /// The kernel's door.
    door: Door,
}

/// Puts a mount together: the server, the cache, the client over both, and the kernel's door before it.
///
/// # Errors
/// The first step that fails; those before it are undone.
pub(crate) async fn build(
    plan: &Plan,
    hold: &Hold,
    events: &UnboundedSender<Event>,
) -> Result<Stack> {
    let remote = Arc::new(connect(plan, hold).await?);
    let clock: Arc<dyn Clock> = Arc::new(RealClock);
    let (cache, cache_dir) = match &plan.cache {
        Some(dir) => {
            let limits = &plan.options.cache;
            let opened = cache_dir::open(dir, &plan.source, limits, &plan.mountpoint)?;
            (opened.cache, Some(opened.dir))
        }
        None => (Cache::in_memory(clock.clone(), Limits::in_memory())?, None),
    };
    let server: Arc<dyn Remote> = remote.clone();
    let options = client_options(plan);
    let session = session_number()?;
    let start = if hold.goes_on() { Start::Resume } else { Start::NewMount };
    let client = Client::new(server, cache.clone(), clock, options, session, start).await;
    let client = client.with_context(|| format!("cannot mount {}", plan.source))?;
    let door = door::open(plan, client.clone(), cache_dir.is_some(), hold, events).await?;
    Ok(Stack { remote, cache, cache_dir, client, door })
}

/// Reaches the server. A mount that goes on waits for a server that is away: so do its users.
async fn connect(plan: &Plan, hold: &Hold) -> Result<Nfs3> {
    let mut told = false;
    loop {
        match Nfs3::mount(&remote_options(plan)).await {
            Err(error) if hold.goes_on() => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(%error, "waiting for the server, to go on with the mount");
                }
                tokio::time::sleep(SERVER_ASKED_EVERY).await;
            }
            reached => return reached.with_context(|| format!("cannot mount {}", plan.source)),
        }
    }
}

/// A client's options, as the mount's options mean them.
fn client_options(plan: &Plan) -> larder_client::Options {
    let options = &plan.options;
    let default = larder_client::Options::default();
    let timeouts = options.timeouts;
    // The budget is shared by buffers (a quarter) and nodes (about 2 KiB each with their tables: a
    // quarter); the rest is the allocator's, the kernel's copies and the index's page cache.
    let budget = options.memory_bytes_max;
    larder_client::Options {
        file_ttl: (timeouts.file_min, timeouts.file_max),
        directory_ttl: (timeouts.dir_min, timeouts.dir_max),
        close_to_open: options.close_to_open,
        lookup_cache: match options.lookup_cache {
            LookupCache::All => larder_client::LookupCache::All,
            LookupCache::Positive => larder_client::LookupCache::Positive,
            LookupCache::None => larder_client::LookupCache::None,
        },
        sync: options.sync,
        read_only: options.flags.read_only,
        cache_data: plan.cache.is_some(),
        read_bytes_max: options.read_max.unwrap_or(default.read_bytes_max),
        write_bytes_max: options.write_max.unwrap_or(default.write_bytes_max),
        buffer_bytes_max: budget.map_or(default.buffer_bytes_max, |bytes| bytes / 4),
        nodes_in_memory_max: budget.map_or(default.nodes_in_memory_max, |bytes| {
            usize::try_from(bytes >> 13).unwrap_or(usize::MAX)
        }),
        fill_after: default.fill_after.filter(|_| plan.cache.is_some()),
        ..default
    }
}

/// The server's options, as the mount's options mean them.
fn remote_options(plan: &Plan) -> MountOptions {
    let options = &plan.options;
    let default = MountOptions::new(&plan.source.host, &plan.source.export);
    MountOptions {
        port: options.port.or(plan.source.port),
        mount_port: options.mount_port,
        transport: match options.transport {
            Transport::Tcp => rpc::Transport::Tcp,
            Transport::Udp => rpc::Transport::Udp,
        },
        connections: options.connections.into(),
        timeout: options.timeout,
        retransmissions: options.retransmissions,
        recovery: match options.server_lost {
            ServerLost::Wait => Recovery::Hard,
            ServerLost::Fail => Recovery::Soft,
        },
        read_max: options.read_max.unwrap_or(default.read_max),
        write_max: options.write_max.unwrap_or(default.write_max),
        source_port: match options.reserved_port {
            Some(false) => SourcePort::Any,
            Some(true) | None => SourcePort::Reserved,
        },
        ..default
    }
}

/// A number that no earlier run had.
fn session_number() -> Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("the kernel gives no random number")?;
    Ok(u64::from_ne_bytes(bytes))
}

/// What the procedures and connections of a mount did.
pub(crate) struct Rpc {
    pub(crate) procedures: BTreeMap<String, Procedure>,
    pub(crate) connections: Vec<Connection>,
}

impl Stack {
    /// Counts since the mount.
    pub(crate) fn rpc(&self) -> Rpc {
        let rpc::Snapshot { procedures, connections } = self.remote.rpc().stats();
        let name = |one: &rpc::ProcedureSnapshot| match one.name {
            "" => format!("procedure {}", one.number),
            name => name.to_owned(),
        };
        let procedures = procedures.iter().map(|one| (name(one), procedure(one))).collect();
        Rpc { procedures, connections: connections.iter().map(connection).collect() }
    }

    /// Begins to record what each connection to the server does, in slices of `width`.
    ///
    /// # Errors
    /// If there are too many recordings, or `width` is none.
    pub(crate) fn record(&self, width: Duration) -> Result<Recording, RecordError> {
        self.remote.rpc().record(width)
    }

    /// `tcp` or `udp`.
    pub(crate) fn transport(&self) -> &'static str {
        match self.remote.rpc().config().transport {
            rpc::Transport::Tcp => "tcp",
            rpc::Transport::Udp => "udp",
        }
    }

    /// Whether the server answers now, within `wait_max`.
    pub(crate) async fn server_answers(&self, wait_max: Duration) -> bool {
        let ping = tokio::time::timeout(wait_max, self.remote.rpc().ping());
        ping.await.is_ok_and(|answered| answered.is_ok())
    }

    /// Ends all calls to the server, now and later: what waits for it fails.
    pub(crate) fn end_calls(&self) {
        self.remote.shutdown();
    }

    /// Requests of the kernel by their names, since our process began.
    pub(crate) fn fuse_requests(&self) -> Vec<(String, u64)> {
        self.door.requests()
    }

    /// What the kernel, and the client, hold of files.
    pub(crate) fn kernel_state(&self) -> KernelState {
        let larder_fuse::References { given, returned } = self.door.references();
        let nodes_in_memory = self.client.status().nodes_in_memory;
        KernelState { given, returned, nodes_in_memory }
    }

    /// How requests travel from the kernel.
    pub(crate) fn door_transport(&self) -> larder_fuse::Transport {
        self.door.transport()
    }

    /// Takes no more requests of the kernel, and waits until those that were taken are answered. Whether
    /// they are in time.
    pub(crate) fn leave(&self, wait_max: Duration) -> bool {
        self.door.leave(wait_max)
    }

    /// Closes what is still open, from the kernel down, so that the next mount finds a clean cache.
    /// Blocks for a bounded time.
    ///
    /// # Errors
    /// If the cache could not be closed.
    pub(crate) fn close(&self) -> Result<()> {
        self.end_calls();
        self.door.close();
        self.client.end_mount();
        let closed = self.cache.clone().close();
        closed.context("the cache could not be closed; its next start checks it")
    }
}

fn procedure(one: &rpc::ProcedureSnapshot) -> Procedure {
    Procedure {
        calls: one.calls,
        errors: one.errors,
        retransmits: one.retransmits,
        timeouts: one.timeouts,
        bytes_sent: one.bytes_sent,
        bytes_received: one.bytes_received,
        latency_us: latency(&one.latency),
        round_trip_us: latency(&one.round_trip),
    }
}

fn latency(one: &rpc::Latency) -> Latency {
    Latency {
        mean: one.sum_us.checked_div(one.count).unwrap_or(0),
        p50: one.p50_us,
        p90: one.p90_us,
        p99: one.p99_us,
        max: one.max_us,
    }
}

fn connection(one: &rpc::ConnectionSnapshot) -> Connection {
    Connection {
        connected: one.connected,
        offered: one.offered,
        completed: one.completed,
        in_flight: one.in_flight,
        backlog: one.backlog,
        window: one.window,
        retransmits: one.retransmits,
        timeouts: one.timeouts,
        reconnects: one.reconnects,
    }
}

//! The server of a mount, of any protocol: how to reach it, and its counters.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use larder_io::RealClock;
use larder_io::sockets::DATAGRAM_BUFFER_BYTES;
use larder_remote::later::{Later, Remembered};
use larder_remote::native::{self, Native};
use larder_remote::nfs3::{self, Nfs3};
use larder_remote::smb::{self, Smb};
use larder_rpc::{self as rpc, Recording, Recovery, Snapshot, SourcePort};
use larder_vfs::Remote;

use crate::backend::Backend;
use crate::classes;
use crate::clock::clock;
use crate::options::{Bytes, Options, ServerLost, Transport};
use crate::report::{Connection, Latency, Procedure};
use crate::source::Protocol;

/// Longest wait for the first answer of a server without which a mount can continue.
const FIRST_ANSWER_MAX: Duration = Duration::from_secs(5);

/// The server of a mount. It may be yet to be reached.
pub(crate) struct Server {
    way: Way,
    /// `tcp` or `udp`.
    transport: &'static str,
}

enum Way {
    Nfs(Later<Nfs3>),
    Smb(Later<Smb>),
    Native(Later<Native>),
}

/// Why a server could not be reached, or cannot be used.
#[derive(Debug)]
pub(crate) struct Unreached {
    /// It does not answer, so a later attempt may succeed.
    pub(crate) is_away: bool,
    /// The obstacle to mounting it, with the next step.
    pub(crate) why: anyhow::Error,
}

impl From<anyhow::Error> for Unreached {
    /// Anything but a server that does not answer.
    fn from(why: anyhow::Error) -> Unreached {
        Unreached { is_away: false, why }
    }
}

/// Counts of the procedures and connections of a mount.
pub(crate) struct Rpc {
    pub(crate) procedures: BTreeMap<String, Procedure>,
    pub(crate) connections: Vec<Connection>,
    /// Answers of disks that were not theirs, or not to the requests.
    pub(crate) forged: u64,
}

impl Server {
    /// Reaches the server of `back`.
    ///
    /// # Errors
    /// [`Unreached`].
    pub(crate) async fn reach(back: &Backend) -> Result<Server, Unreached> {
        let transport = transport(back);
        let way = match back.source.protocol {
            Protocol::Nfs => match Nfs3::mount(&nfs_options(back)).await {
                Ok(nfs) => Ok(Way::Nfs(Later::reached(nfs))),
                Err(error) => Err((error.is_absence(), error.into())),
            },
            Protocol::Smb => {
                let options = smb_options(back);
                let options = options.map_err(|why| Unreached { is_away: false, why })?;
                match Smb::mount(&options).await {
                    Ok(smb) => Ok(Way::Smb(Later::reached(smb))),
                    Err(error) => Err((error.is_absence(), error.into())),
                }
            }
            Protocol::Native => match Native::mount(&native_options(back)).await {
                Ok(native) => match classes::demand_archive(&back.classes, native.has_archive()) {
                    Ok(()) => Ok(Way::Native(Later::reached(native))),
                    Err(refused) => Err((false, refused)),
                },
                Err(error) => Err((error.is_absence(), error.into())),
            },
        };
        let cannot = |why: anyhow::Error| why.context(format!("cannot mount {}", back.source));
        way.map(|way| Server { way, transport })
            .map_err(|(is_away, why)| Unreached { is_away, why: cannot(why) })
    }

    /// As [`Server::reach`], if it does not take long.
    ///
    /// # Errors
    /// [`Unreached`], also if there is no answer after some seconds.
    pub(crate) async fn reach_soon(back: &Backend) -> Result<Server, Unreached> {
        let reached = clock().timeout(FIRST_ANSWER_MAX, Box::pin(Server::reach(back))).await;
        reached.unwrap_or_else(|_| {
            let seconds = FIRST_ANSWER_MAX.as_secs();
            let why = anyhow!("cannot mount {}: no answer within {seconds} s", back.source);
            Err(Unreached { is_away: true, why })
        })
    }

    /// Begins to reach the server of `back`, of which this much is known, after an attempt that
    /// failed because of `problem`.
    ///
    /// # Errors
    /// If the options are invalid.
    pub(crate) fn reach_later(
        back: &Backend,
        known: Remembered,
        problem: String,
    ) -> Result<Server> {
        let hard = back.options.server_lost == ServerLost::Wait;
        let limit = |soft: Duration| (!hard).then_some(soft);
        let way = match back.source.protocol {
            Protocol::Nfs => {
                let options = nfs_options(back);
                Way::Nfs(Later::begin(
                    known,
                    problem,
                    limit(options.limit()),
                    Arc::new(RealClock),
                    move || {
                        let options = options.clone();
                        async move { Nfs3::mount(&options).await }
                    },
                ))
            }
            Protocol::Smb => {
                let options = smb_options(back)?;
                Way::Smb(Later::begin(
                    known,
                    problem,
                    limit(options.limit()),
                    Arc::new(RealClock),
                    move || {
                        let options = options.clone();
                        async move { Smb::mount(&options).await }
                    },
                ))
            }
            Protocol::Native => {
                let options = native_options(back);
                let limit = limit(options.limit());
                Way::Native(Later::begin(known, problem, limit, Arc::new(RealClock), move || {
                    let options = options.clone();
                    async move { Native::mount(&options).await }
                }))
            }
        };
        Ok(Server { way, transport: transport(back) })
    }

    /// As the client sees it.
    pub(crate) fn remote(&self) -> Arc<dyn Remote> {
        match &self.way {
            Way::Nfs(nfs) => as_remote(nfs),
            Way::Smb(smb) => as_remote(smb),
            Way::Native(native) => as_remote(native),
        }
    }

    /// What the next mount needs to know of it, if it was reached.
    pub(crate) fn known(&self) -> Option<Remembered> {
        match &self.way {
            Way::Nfs(nfs) => nfs.get().map(|nfs| Remembered::of(&*nfs)),
            Way::Smb(smb) => smb.get().map(|smb| Remembered::of(&*smb)),
            Way::Native(native) => native.get().map(|native| Remembered::of(&*native)),
        }
    }

    /// Why it has not been reached so far, if that was tried; or what makes it slow.
    pub(crate) fn problem(&self) -> Option<String> {
        match &self.way {
            Way::Nfs(nfs) => nfs.problem().or_else(|| small_buffer(&nfs.get()?.rpc().stats())),
            Way::Smb(smb) => smb.problem(),
            Way::Native(native) => native.problem(),
        }
    }

    /// Its volume, if it is one of our own servers.
    pub(crate) fn volume(&self) -> Option<Later<Native>> {
        match &self.way {
            Way::Native(native) => Some(native.clone()),
            Way::Nfs(_) | Way::Smb(_) => None,
        }
    }

    /// Counts since it was reached.
    pub(crate) fn rpc(&self) -> Rpc {
        let snapshot = match &self.way {
            Way::Nfs(nfs) => nfs.get().map(|nfs| nfs.rpc().stats()),
            Way::Smb(smb) => smb.get().map(|smb| smb.stats()),
            Way::Native(native) => native.get().map(|native| native.stats()),
        };
        let Snapshot { procedures, connections } = snapshot.unwrap_or_default();
        let name = |one: &rpc::ProcedureSnapshot| match one.name {
            "" => format!("procedure {}", one.number),
            name => name.to_owned(),
        };
        let procedures = procedures.iter().map(|one| (name(one), procedure(one))).collect();
        let forged = match &self.way {
            Way::Native(native) => native.get().map_or(0, |native| native.forged()),
            Way::Nfs(_) | Way::Smb(_) => 0,
        };
        Rpc { procedures, connections: connections.iter().map(connection).collect(), forged }
    }

    /// Begins to record the activity of each connection to the server, in slices of `width`.
    ///
    /// # Errors
    /// If there are too many recordings, `width` is zero, or the server was not reached yet.
    pub(crate) fn record(&self, width: Duration) -> Result<Recording> {
        match &self.way {
            Way::Nfs(nfs) => {
                let nfs = nfs.get().context("the server has not been reached yet")?;
                Ok(nfs.rpc().record(width)?)
            }
            Way::Smb(smb) => {
                let smb = smb.get().context("the server has not been reached yet")?;
                Ok(smb.record(width)?)
            }
            Way::Native(native) => {
                let native = native.get().context("the server has not been reached yet")?;
                Ok(native.rpc().record(width)?)
            }
        }
    }

    /// How messages travel.
    pub(crate) fn transport(&self) -> &'static str {
        self.transport
    }

    /// Whether the server answers now, within `wait_max`.
    pub(crate) async fn answers(&self, wait_max: Duration) -> bool {
        let asked = async {
            match &self.way {
                Way::Nfs(nfs) => match nfs.get() {
                    Some(nfs) => nfs.rpc().ping().await.is_ok(),
                    None => false,
                },
                Way::Smb(smb) => smb.get().is_some() && smb.root().await.is_ok(),
                Way::Native(native) => match native.get() {
                    Some(native) => native.rpc().ping().await.is_ok(),
                    None => false,
                },
            }
        };
        clock().timeout(wait_max, asked).await.unwrap_or(false)
    }

    /// Ends all calls, now and later: everything that waits for the server fails.
    pub(crate) fn end_calls(&self) {
        self.remote().shutdown();
    }

    /// The same at the end of the mount: a server that keeps state for it is told first. Blocks for
    /// a bounded time.
    pub(crate) fn leave(&self) {
        let native = match &self.way {
            Way::Native(native) => native.get(),
            Way::Nfs(_) | Way::Smb(_) => None,
        };
        if let (Some(native), Ok(runtime)) = (native, tokio::runtime::Handle::try_current()) {
            tokio::task::block_in_place(|| runtime.block_on(native.leave()));
        }
        self.end_calls();
    }
}

/// Without the detour, if that is over.
fn as_remote<R: Remote>(later: &Later<R>) -> Arc<dyn Remote> {
    match later.get() {
        Some(remote) => remote,
        None => Arc::new(later.clone()),
    }
}

fn transport(back: &Backend) -> &'static str {
    match (back.source.protocol, back.options.transport) {
        (Protocol::Nfs, Transport::Udp) => "udp",
        _ => "tcp",
    }
}

/// The NFS client's options, as the mount's options mean them.
fn nfs_options(back: &Backend) -> nfs3::MountOptions {
    let Backend { source, options, .. } = back;
    let default = nfs3::MountOptions::new(&source.host, &source.export);
    nfs3::MountOptions {
        port: options.port.or(source.port),
        mount_port: options.mount_port,
        transport: match options.transport {
            Transport::Tcp => rpc::Transport::Tcp,
            Transport::Udp => rpc::Transport::Udp,
        },
        connections: options.connections.into(),
        timeout: options.timeout,
        retransmissions: options.retransmissions,
        recovery: recovery(options),
        read_max: options.read_max.unwrap_or(default.read_max),
        write_max: options.write_max.unwrap_or(default.write_max),
        source_port: match options.reserved_port {
            Some(false) => SourcePort::Any,
            Some(true) | None => SourcePort::Reserved,
        },
        ..default
    }
}

/// The options for the client of our own servers, from the mount's options.
fn native_options(back: &Backend) -> native::MountOptions {
    let Backend { source, options, .. } = back;
    let default = native::MountOptions::new(&source.host);
    let asked = options.read_max.unwrap_or(default.data_max);
    let port = |own: Option<u16>| options.port.or(own).unwrap_or(default.port);
    let inside = back.inside;
    native::MountOptions {
        host: inside.map_or(default.host, |inside| inside.metadata.ip().to_string()),
        port: inside.map_or(port(source.port), |inside| inside.metadata.port()),
        disks_at: inside.map(|inside| inside.disks),
        others: source.others.iter().map(|(host, own)| (host.clone(), port(*own))).collect(),
        connections: options.connections.into(),
        timeout: options.timeout,
        recovery: recovery(options),
        authorities: options.authorities.clone(),
        client: inside.map(|inside| inside.client).or_else(|| client_name(back)),
        data_max: asked.min(options.write_max.unwrap_or(default.data_max)),
        source_port: match options.reserved_port {
            Some(false) => SourcePort::Any,
            Some(true) | None => SourcePort::Reserved,
        },
        ..default
    }
}

/// Identifies a mount with a cache for as long as the machine runs: by the cache, which one mount
/// uses at a time, and by the machine or container in which its path is valid.
fn client_name(back: &Backend) -> Option<[u8; 16]> {
    let cache = std::path::absolute(back.cache.as_ref()?).ok()?;
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let space = std::fs::read_link("/proc/self/ns/mnt").ok()?;
    let half = |number: u8| {
        let mut hasher = DefaultHasher::new();
        (number, &cache, &boot, &space).hash(&mut hasher);
        hasher.finish().to_be_bytes()
    };
    let mut name = [0; 16];
    name[..8].copy_from_slice(&half(0));
    name[8..].copy_from_slice(&half(1));
    Some(name)
}

/// The SMB client's options, as the mount's options mean them.
fn smb_options(back: &Backend) -> Result<smb::MountOptions> {
    let Backend { source, options, login, .. } = back;
    let (share, path) = source.share();
    let default = smb::MountOptions::new(&source.host, share, login.clone());
    let asked = &options.smb;
    let version_min = match asked.version_min.as_deref().map(str::parse) {
        None => default.version_min,
        Some(Ok(version)) => version,
        Some(Err(())) => bail!("vers= names no version of SMB from 2.1 to 3.1.1"),
    };
    Ok(smb::MountOptions {
        port: options.port.or(source.port).unwrap_or(default.port),
        path: path.to_owned(),
        version_min,
        sign: asked.sign,
        seal: asked.seal,
        uid: asked.uid.unwrap_or_else(|| rustix::process::getuid().as_raw()),
        gid: asked.gid.unwrap_or_else(|| rustix::process::getgid().as_raw()),
        file_mode: asked.file_mode.unwrap_or(default.file_mode),
        dir_mode: asked.dir_mode.unwrap_or(default.dir_mode),
        connections: options.connections.into(),
        read_max: options.read_max.unwrap_or(default.read_max),
        write_max: options.write_max.unwrap_or(default.write_max),
        timeout: options.timeout.unwrap_or(default.timeout),
        recovery: recovery(options),
        leases: !asked.no_leases,
        symlinks: !asked.no_symlinks,
        ..default
    })
}

fn recovery(options: &Options) -> Recovery {
    match options.server_lost {
        ServerLost::Wait => Recovery::Hard,
        ServerLost::Fail => Recovery::Soft,
    }
}

fn procedure(one: &rpc::ProcedureSnapshot) -> Procedure {
    Procedure {
        calls: one.calls,
        errors: one.errors + one.refused,
        refused: one.refused,
        retransmits: one.retransmits,
        timeouts: one.timeouts,
        bytes_sent: one.bytes_sent,
        bytes_received: one.bytes_received,
        latency_us: latency(&one.latency),
        round_trip_us: latency(&one.round_trip),
    }
}

/// What to do about receive buffers that have room for few replies.
fn small_buffer(stats: &Snapshot) -> Option<String> {
    let held = stats.connections.iter().filter_map(|one| one.receive_buffer_bytes).min()?;
    // The kernel reserves twice the requested size (socket(7)).
    let (held, wanted) = (held / 2, DATAGRAM_BUFFER_BYTES as u64);
    (held < wanted).then(|| {
        format!(
            "UDP is slow: its receive buffer is {}; sysctl net.core.rmem_max={wanted} lets it have {}",
            Bytes(held),
            Bytes(wanted)
        )
    })
}

fn latency(one: &rpc::Latency) -> Latency {
    Latency {
        sum: one.sum_us,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_receive_buffer_is_told() {
        let with = |receive_buffer_bytes| Snapshot {
            connections: vec![rpc::ConnectionSnapshot {
                receive_buffer_bytes,
                ..rpc::ConnectionSnapshot::default()
            }],
            ..Snapshot::default()
        };
        assert_eq!(
            [with(None), with(Some(8 << 20))].map(|stats| small_buffer(&stats)),
            [None, None]
        );
        let told = small_buffer(&with(Some(425_984))).unwrap();
        assert!(told.contains("208 KiB") && told.contains("rmem_max=4194304"), "{told}");
    }
}

//! The server of a mount, whatever its protocol: how it is reached, and what is counted of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use larder_remote::nfs3::{self, Nfs3};
use larder_remote::rpc::{self, Recording, Recovery, Snapshot, SourcePort};
use larder_remote::smb::{self, Credentials, Smb};
use larder_vfs::Remote;

use crate::options::{Options, ServerLost, Transport};
use crate::report::{Connection, Latency, Procedure};
use crate::source::{Protocol, Source};

/// A server that was reached.
pub(crate) enum Server {
    Nfs(Arc<Nfs3>),
    Smb(Arc<Smb>),
}

/// What the procedures and connections of a mount did.
pub(crate) struct Rpc {
    pub(crate) procedures: BTreeMap<String, Procedure>,
    pub(crate) connections: Vec<Connection>,
}

impl Server {
    /// Reaches the server of `source`. `login` is who logs in, where the protocol has that.
    ///
    /// # Errors
    /// What keeps it from being mounted, with the next step.
    pub(crate) async fn reach(
        source: &Source,
        options: &Options,
        login: &Credentials,
    ) -> Result<Server> {
        let reached = match source.protocol {
            Protocol::Nfs => {
                let reached = Nfs3::mount(&nfs_options(source, options)).await;
                reached.map(|nfs| Server::Nfs(Arc::new(nfs))).map_err(anyhow::Error::from)
            }
            Protocol::Smb => {
                let reached = Smb::mount(&smb_options(source, options, login)?).await;
                reached.map(|smb| Server::Smb(Arc::new(smb))).map_err(anyhow::Error::from)
            }
        };
        reached.with_context(|| format!("cannot mount {source}"))
    }

    /// As the client sees it.
    pub(crate) fn remote(&self) -> Arc<dyn Remote> {
        match self {
            Server::Nfs(nfs) => nfs.clone(),
            Server::Smb(smb) => smb.clone(),
        }
    }

    /// Counts since the mount.
    pub(crate) fn rpc(&self) -> Rpc {
        let Snapshot { procedures, connections } = match self {
            Server::Nfs(nfs) => nfs.rpc().stats(),
            Server::Smb(smb) => smb.stats(),
        };
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
    /// If there are too many recordings, or `width` is none, or the protocol has none.
    pub(crate) fn record(&self, width: Duration) -> Result<Recording> {
        match self {
            Server::Nfs(nfs) => Ok(nfs.rpc().record(width)?),
            Server::Smb(_) => bail!("time slices are recorded of NFS only, so far"),
        }
    }

    /// How messages travel.
    pub(crate) fn transport(&self) -> &'static str {
        match self {
            Server::Nfs(nfs) => match nfs.rpc().config().transport {
                rpc::Transport::Tcp => "tcp",
                rpc::Transport::Udp => "udp",
            },
            Server::Smb(_) => "tcp",
        }
    }

    /// Whether the server answers now, within `wait_max`.
    pub(crate) async fn answers(&self, wait_max: Duration) -> bool {
        let asked = async {
            match self {
                Server::Nfs(nfs) => nfs.rpc().ping().await.is_ok(),
                Server::Smb(smb) => smb.root().await.is_ok(),
            }
        };
        tokio::time::timeout(wait_max, asked).await.unwrap_or(false)
    }

    /// Ends all calls, now and later: what waits for the server fails.
    pub(crate) fn end_calls(&self) {
        self.remote().shutdown();
    }
}

/// The NFS client's options, as the mount's options mean them.
fn nfs_options(source: &Source, options: &Options) -> nfs3::MountOptions {
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

/// The SMB client's options, as the mount's options mean them.
fn smb_options(
    source: &Source,
    options: &Options,
    login: &Credentials,
) -> Result<smb::MountOptions> {
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

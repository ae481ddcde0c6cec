//! From an address to a session with a volume's metadata server.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use larder_io::{Clock, RealClock};
use larder_rpc::{
    Callbacks, ClientTls, Config, ConnectError, Endpoint, Program, Recovery, RpcClient, SourcePort,
    TlsError, Transport, random_u64,
};
use larder_vfs::{Error, RemoteLimits};
use larder_wire::disk::DATA_BYTES_MAX;
use larder_wire::meta::{FILE_BYTES_MAX, NAME_BYTES_MAX, PORT, PROCEDURE_NAMES, PROGRAM, VERSION};
use thiserror::Error;

use super::Native;
use super::archived::Archived;
use super::disks::Disks;
use super::recalls::Recalls;
use super::session::Session;
use super::uncommitted::UncommittedFiles;

/// What to mount and how. [`MountOptions::new`] gives the defaults.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The metadata server's name or address.
    pub host: String,
    /// Where it listens.
    pub port: u16,
    /// Other addresses, with ports, of servers that may take its place. They are tried in turn.
    pub others: Vec<(String, u16)>,
    /// Where disks are that are on the metadata server's machine. By default, at its address.
    pub disks_at: Option<IpAddr>,
    /// How many connections to use, to it and to each disk.
    pub connections: usize,
    /// How long to wait for a reply; the default is that of [`Config::new`].
    pub timeout: Option<Duration>,
    /// What happens to calls when a server is gone.
    pub recovery: Recovery,
    /// Most bytes in one request for data, as far as the disks take it.
    pub data_max: u32,
    /// Which port calls come from.
    pub source_port: SourcePort,
    /// File with certificates, one of which must have signed the metadata server's. Then the
    /// client sends nothing without TLS.
    pub authorities: Option<PathBuf>,
    /// Identifies the mount to the metadata server, the same in each of its lives: a new life then
    /// ends the sessions of the one before. No other mount may use it. By default it is random,
    /// and what a killed mount has left ends when its session expires.
    pub client: Option<[u8; 16]>,
    /// The clock that times its waits.
    pub clock: Arc<dyn Clock>,
}

impl MountOptions {
    /// The defaults.
    pub fn new(host: &str) -> MountOptions {
        MountOptions {
            host: host.to_owned(),
            port: PORT,
            others: Vec::new(),
            disks_at: None,
            connections: 1,
            timeout: None,
            recovery: Recovery::Soft,
            data_max: DATA_BYTES_MAX as u32,
            source_port: SourcePort::Reserved,
            authorities: None,
            client: None,
            clock: Arc::new(RealClock),
        }
    }

    /// After how long a soft call ends.
    pub fn limit(&self) -> Duration {
        config(self, SocketAddr::from(([0, 0, 0, 0], 0))).limit()
    }
}

/// Why a volume could not be mounted: one line with the cause and the next step.
#[derive(Debug, Error)]
pub enum MountError {
    /// The name means nothing.
    #[error("cannot resolve {host}: {cause}; check the name, or give an address")]
    Resolve {
        /// The name.
        host: String,
        /// The error of the resolver.
        cause: std::io::Error,
    },
    /// TLS is wanted and not to be had.
    #[error("option ca: {0}")]
    Tls(#[from] TlsError),
    /// There is no connection.
    #[error(
        "the metadata server: {cause}; check that `larder serve` or `larder meta` runs there and no \
         firewall stands between"
    )]
    Unreachable {
        /// Why.
        cause: ConnectError,
    },
    /// Something listens there, and it cannot be trusted, or speaks no TLS.
    #[error(
        "the metadata server: {cause}; check that ca= has the authority of its certificate, and that this \
         is for the name or address that is mounted"
    )]
    NotTrusted {
        /// Why.
        cause: ConnectError,
    },
    /// It is connected but gives no session.
    #[error(
        "{host}:{port} gives no session: {cause}; check that a larder volume is served on that port, and \
         whether it wants TLS (ca=FILE)"
    )]
    NoSession {
        /// The server.
        host: String,
        /// Its port.
        port: u16,
        /// What happened instead.
        cause: Error,
    },
}

impl MountError {
    /// Whether the server does not answer, so that a later attempt may succeed.
    pub fn is_absence(&self) -> bool {
        match self {
            MountError::Resolve { .. } | MountError::Unreachable { .. } => true,
            MountError::NoSession { cause, .. } => *cause == Error::TimedOut,
            MountError::Tls(_) | MountError::NotTrusted { .. } => false,
        }
    }
}

impl Native {
    /// Mounts a volume, on the tokio runtime of the caller.
    ///
    /// # Errors
    /// [`MountError`], each with what to do about it.
    pub async fn mount(options: &MountOptions) -> Result<Native, MountError> {
        let Endpoint { address, tls } = endpoint(options, &options.host, options.port).await?;
        let disks_at = options.disks_at.unwrap_or(address.ip());
        let mut others = Vec::new();
        for (host, port) in &options.others {
            others.push(endpoint(options, host, *port).await?);
        }
        let recalls = Recalls::new(Arc::clone(&options.clock));
        let callbacks = Some(Callbacks::new(recalls.clone()));
        let config = Config { tls, others, callbacks, ..config(options, address) };
        let client = RpcClient::connect(config).await;
        let client = client.map_err(|cause| match &cause {
            ConnectError::Failed { cause: why, .. } if why.kind() == ErrorKind::InvalidData => {
                MountError::NotTrusted { cause }
            }
            _ => MountError::Unreachable { cause },
        })?;
        let limit = client.config().limit();
        // A hard mount waits for its server when it is mounted, not before.
        let session = options.clock.timeout(limit, Session::begin(client, options.client)).await;
        let session = session.unwrap_or(Err(Error::TimedOut)).map_err(|cause| {
            MountError::NoSession { host: options.host.clone(), port: options.port, cause }
        })?;
        recalls.begin(&session);
        let begun = session.now();
        Ok(Native {
            disks: Arc::new(Disks::new(Arc::clone(&session), disks_at)),
            volume: begun.given.volume,
            root: begun.given.root,
            limits: limits(options.data_max),
            uncommitted: UncommittedFiles::default(),
            archived: Archived::default(),
            lacks_make: AtomicBool::new(false),
            lacks_near: AtomicBool::new(false),
            losses: AtomicU64::new(random_u64()),
            loss_known: AtomicU64::new(0),
            session,
        })
    }
}

/// The limits of the mount, within what the programs can carry.
fn limits(data_max: u32) -> RemoteLimits {
    let data_max = data_max.clamp(4096, DATA_BYTES_MAX as u32);
    RemoteLimits {
        read_max: data_max,
        write_max: data_max,
        readdir_preferred: 128 << 10,
        file_size_max: FILE_BYTES_MAX,
        name_max: NAME_BYTES_MAX as u32,
        // Versions distinguish all changes, however close they are.
        time_delta_ns: 1,
        links: true,
        symlinks: true,
        case_insensitive: false,
        opens: true,
        by_name: false,
    }
}

/// Where a metadata server may be.
async fn endpoint(options: &MountOptions, host: &str, port: u16) -> Result<Endpoint, MountError> {
    let address = SocketAddr::new(resolve(host).await?, port);
    let tls = options.authorities.as_deref();
    let tls = tls.map(|authorities| ClientTls::new(host, authorities, None)).transpose()?;
    Ok(Endpoint { address, tls })
}

async fn resolve(host: &str) -> Result<IpAddr, MountError> {
    let failed = |cause| MountError::Resolve { host: host.to_owned(), cause };
    let mut addresses = tokio::net::lookup_host((host, 0)).await.map_err(failed)?;
    let first = addresses.next().map(|address| address.ip());
    first.ok_or_else(|| failed(std::io::Error::other("it has no address")))
}

/// The server as messages name it.
fn server(options: &MountOptions, port: u16) -> String {
    let first = format!("{}:{port}", options.host);
    options.others.iter().fold(first, |all, (host, port)| format!("{all},{host}:{port}"))
}

fn config(options: &MountOptions, address: SocketAddr) -> Config {
    let program = Program { number: PROGRAM, version: VERSION, procedures: PROCEDURE_NAMES };
    let defaults = Config::new(address, Transport::Tcp, program);
    Config {
        server: server(options, address.port()),
        connections: options.connections,
        timeout: options.timeout.unwrap_or(defaults.timeout),
        recovery: options.recovery,
        source_port: options.source_port,
        clock: Arc::clone(&options.clock),
        ..defaults
    }
}

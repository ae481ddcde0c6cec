//! From an address to a root file handle: port mapper, MOUNT, FSINFO, PATHCONF.
//!
//! With an explicit port no port mapper is asked: NFS is spoken on that port, and MOUNT on
//! [`MountOptions::mount_port`] or else on the same one, as one-port servers (and larder's own)
//! have it.

use super::programs::{MountClient, ProgramError, port_of};
use super::{Nfs3, convert};
use larder_io::{Clock, RealClock};
use larder_rpc::{
    CallOptions, Config, ConnectError, Program, Recovery, RpcClient, RpcError, SourcePort,
    Transport,
};
use larder_vfs::RemoteLimits;
use larder_wire::mount3::{self, mountstat3};
use larder_wire::nfs3::{
    self, DATA_BYTES_MAX, FSINFO3args, FSINFO3resok, PATHCONF3args, PATHCONF3resok, fsf3, nfs_fh3,
    nfsstat3,
};
use larder_wire::rpc::Outcome;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;
use thiserror::Error;

/// Largest payload over UDP, in bytes: the largest power of two that fits a datagram.
const DATAGRAM_PAYLOAD_BYTES_MAX: u32 = 32 << 10;
/// Smallest payload that is requested, in bytes, whatever a server announces.
const PAYLOAD_BYTES_MIN: u32 = 1024;
/// Largest directory reply that is preferred, in bytes. A larger one delays the first entry.
const READDIR_BYTES_PREFERRED_MAX: u32 = 128 << 10;
/// Longest name, in bytes, of a server that does not report it, or reports more: nfs-ganesha
/// reports 1024 for file systems that take 255. Linux's client has the same limit.
const NAME_BYTES_USUAL: u32 = 255;
/// Longest wait for the server to take note of an unmount.
const LEAVE_MAX: Duration = Duration::from_secs(2);

/// What to mount and how. [`MountOptions::new`] gives the defaults.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The server's name or address.
    pub host: String,
    /// The exported path.
    pub path: String,
    /// Port of NFS; by default the port mapper is asked.
    pub port: Option<u16>,
    /// Port of MOUNT; by default as `port`.
    pub mount_port: Option<u16>,
    /// How messages travel.
    pub transport: Transport,
    /// How many connections to use.
    pub connections: usize,
    /// How long to wait for a reply; the default is that of [`Config::new`].
    pub timeout: Option<Duration>,
    /// How often to send again; the default is that of [`Config::new`].
    pub retransmissions: Option<u32>,
    /// What happens to calls when the server is gone.
    pub recovery: Recovery,
    /// Calls fail at once while the server is known to be gone.
    pub fail_fast: bool,
    /// Most bytes in one READ.
    pub read_max: u32,
    /// Most bytes in one WRITE.
    pub write_max: u32,
    /// Which port calls come from.
    pub source_port: SourcePort,
    /// Whether to use READDIRPLUS.
    pub readdirplus: bool,
    /// The clock that times its waits.
    pub clock: Arc<dyn Clock>,
}

impl MountOptions {
    /// The defaults for an export.
    pub fn new(host: &str, path: &str) -> MountOptions {
        MountOptions {
            host: host.to_owned(),
            path: path.to_owned(),
            port: None,
            mount_port: None,
            transport: Transport::Tcp,
            connections: 1,
            timeout: None,
            retransmissions: None,
            recovery: Recovery::Soft,
            fail_fast: false,
            read_max: u32::try_from(DATA_BYTES_MAX).expect("the limit has 21 bits"),
            write_max: u32::try_from(DATA_BYTES_MAX).expect("the limit has 21 bits"),
            source_port: SourcePort::Reserved,
            readdirplus: true,
            clock: Arc::new(RealClock),
        }
    }

    /// After how long a soft call ends.
    pub fn limit(&self) -> Duration {
        let anywhere = SocketAddr::from(([0, 0, 0, 0], 0));
        config(self, anywhere).limit()
    }
}

/// Why an export could not be mounted: one line with the cause and the next step.
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
    /// There is no port mapper to ask.
    #[error(
        "no port mapper answers on {host}: {cause}; check that the server runs and no firewall \
         stands between, or give its port (port=2049)"
    )]
    NoPortMapper {
        /// The server.
        host: String,
        /// What happened instead.
        cause: ProgramError,
    },
    /// The port mapper does not know the program.
    #[error(
        "{host} has no {program} over {transport:?}; start that service there, or try the other \
         transport (proto=tcp, proto=udp)"
    )]
    NotRegistered {
        /// The server.
        host: String,
        /// The program that was looked for.
        program: &'static str,
        /// The transport.
        transport: Transport,
    },
    /// There is no connection to the service.
    #[error("{program}: {cause}; check that the server runs there and no firewall stands between")]
    Unreachable {
        /// The program to be reached.
        program: &'static str,
        /// Why it was not.
        cause: ConnectError,
    },
    /// The service is connected but silent.
    #[error("{program} on {host} does not answer: {cause}; check the state of the server")]
    Silent {
        /// The server.
        host: String,
        /// The program that was called.
        program: &'static str,
        /// What happened instead.
        cause: RpcError,
    },
    /// Another service or version listens there.
    #[error("{program} on {host}: {outcome}; check the port, and that NFSv3 is enabled there")]
    Refused {
        /// The server.
        host: String,
        /// The program that was called.
        program: &'static str,
        /// Its answer.
        outcome: Outcome,
    },
    /// The path is not exported.
    #[error("{host} has no export {path}; it has: {}", if .exports.is_empty() { "none that it tells" } else { .exports })]
    NoSuchExport {
        /// The server.
        host: String,
        /// The path.
        path: String,
        /// The exports that exist.
        exports: String,
    },
    /// This client may not mount it.
    #[error(
        "{host} denies this client access to {path}; allow it in the server's exports{}",
        port_advice(*.source_port)
    )]
    AccessDenied {
        /// The server.
        host: String,
        /// The path.
        path: String,
        /// Which ports calls come from.
        source_port: SourcePort,
    },
    /// The server failed.
    #[error("{host} cannot mount {path}: {status}; see the server's log")]
    Server {
        /// The server.
        host: String,
        /// The path.
        path: String,
        /// Its status.
        status: String,
    },
}

/// A further possible cause, for a client whose calls come from such a port.
fn port_advice(source_port: SourcePort) -> &'static str {
    match source_port {
        SourcePort::Reserved => "",
        SourcePort::Any => {
            " (calls came from a port above 1023: allow such ports there, or mount as root without \
             noresvport)"
        }
    }
}

impl MountError {
    /// Whether the server does not answer, so that a later attempt may succeed.
    pub fn is_absence(&self) -> bool {
        matches!(
            self,
            MountError::Resolve { .. }
                | MountError::NoPortMapper { .. }
                | MountError::NotRegistered { .. }
                | MountError::Unreachable { .. }
                | MountError::Silent { .. }
        )
    }
}

/// The mount as MOUNT knows it, to report its end there.
#[derive(Debug)]
pub(super) struct MountPoint {
    service: SocketAddr,
    transport: Transport,
    source_port: SourcePort,
    path: String,
    clock: Arc<dyn Clock>,
}

impl MountPoint {
    /// Tells the server that the export is no longer used.
    pub(super) async fn leave(&self) {
        let leaving = async {
            let service =
                MountClient::connect(self.service, self.transport, self.source_port).await?;
            service.unmount(self.path.as_bytes()).await
        };
        if !matches!(self.clock.timeout(LEAVE_MAX, leaving).await, Ok(Ok(()))) {
            tracing::debug!(service = %self.service, "the server took no note of the unmount");
        }
    }
}

/// Mounts an export.
pub(super) async fn mount(options: &MountOptions) -> Result<Nfs3, MountError> {
    let address = resolve(&options.host).await?;
    let mount_port = match options.mount_port.or(options.port) {
        Some(port) => port,
        None => {
            registered(options, address, mount3::PROGRAM, mount3::VERSION, "MOUNT version 3")
                .await?
        }
    };
    let service = SocketAddr::new(address, mount_port);
    let root = root_handle(options, service).await?;
    let port = match options.port {
        Some(port) => port,
        None => registered(options, address, nfs3::PROGRAM, nfs3::VERSION, NFS).await?,
    };
    let client = RpcClient::connect(config(options, SocketAddr::new(address, port)))
        .await
        .map_err(|cause| MountError::Unreachable { program: NFS, cause })?;
    let limits = negotiate(options, &client, root).await?;
    Ok(Nfs3 {
        mount_point: MountPoint {
            service,
            transport: options.transport,
            source_port: options.source_port,
            path: options.path.clone(),
            clock: Arc::clone(&options.clock),
        },
        root,
        limits,
        fail_fast: options.fail_fast,
        no_plus: AtomicBool::new(!options.readdirplus),
        creations: AtomicU64::new(larder_rpc::random_u64()),
        client,
    })
}

const NFS: &str = "NFS version 3";
const MOUNT: &str = "MOUNT";

async fn resolve(host: &str) -> Result<IpAddr, MountError> {
    let failed = |cause| MountError::Resolve { host: host.to_owned(), cause };
    let mut addresses = tokio::net::lookup_host((host, 0)).await.map_err(failed)?;
    let first = addresses.next().map(|address| address.ip());
    first.ok_or_else(|| failed(std::io::Error::other("it has no address")))
}

/// Asks the port mapper.
async fn registered(
    options: &MountOptions,
    address: IpAddr,
    number: u32,
    version: u32,
    program: &'static str,
) -> Result<u16, MountError> {
    let host = || options.host.clone();
    let transport = options.transport;
    port_of(address, number, version, transport)
        .await
        .map_err(|cause| MountError::NoPortMapper { host: host(), cause })?
        .ok_or_else(|| MountError::NotRegistered { host: host(), program, transport })
}

/// Asks MOUNT.
async fn root_handle(options: &MountOptions, service: SocketAddr) -> Result<nfs_fh3, MountError> {
    let (host, path) = (options.host.clone(), options.path.clone());
    let client = MountClient::connect(service, options.transport, options.source_port)
        .await
        .map_err(|cause| MountError::Unreachable { program: MOUNT, cause })?;
    let status = match client.mount(options.path.as_bytes()).await {
        Ok(root) => return Ok(root),
        Err(ProgramError::Connect(cause)) => {
            return Err(MountError::Unreachable { program: MOUNT, cause });
        }
        Err(ProgramError::Rpc(cause)) => return Err(rpc_failure(options, MOUNT, cause)),
        Err(ProgramError::Status(status)) => status,
    };
    let exports = exports(&client).await;
    // Some servers, such as nfs-ganesha, deny access to paths that they do not export.
    let known = exports.iter().any(|export| std::path::Path::new(&path).starts_with(export));
    let denied = matches!(status, mountstat3::MNT3ERR_PERM | mountstat3::MNT3ERR_ACCES);
    let missing = matches!(status, mountstat3::MNT3ERR_NOENT | mountstat3::MNT3ERR_NOTDIR);
    Err(if denied && (known || exports.is_empty()) {
        access_denied(options)
    } else if denied || missing {
        MountError::NoSuchExport { host, path, exports: exports.join(", ") }
    } else {
        MountError::Server { host, path, status: format!("{status:?}") }
    })
}

/// The server's exports, for an error message.
async fn exports(client: &MountClient) -> Vec<String> {
    let exports = client.exports().await.unwrap_or_default();
    exports.iter().map(|export| String::from_utf8_lossy(&export.ex_dir).into_owned()).collect()
}

fn access_denied(options: &MountOptions) -> MountError {
    MountError::AccessDenied {
        host: options.host.clone(),
        path: options.path.clone(),
        source_port: options.source_port.possible(),
    }
}

fn rpc_failure(options: &MountOptions, program: &'static str, cause: RpcError) -> MountError {
    let host = options.host.clone();
    match cause {
        RpcError::Refused(Outcome::AuthError(_)) => access_denied(options),
        RpcError::Refused(outcome) => MountError::Refused { host, program, outcome },
        cause => MountError::Silent { host, program, cause },
    }
}

fn config(options: &MountOptions, address: SocketAddr) -> Config {
    let program = Program {
        number: nfs3::PROGRAM,
        version: nfs3::VERSION,
        procedures: nfs3::PROCEDURE_NAMES,
    };
    let defaults = Config::new(address, options.transport, program);
    Config {
        server: format!("{}:{}", options.host, address.port()),
        connections: options.connections,
        timeout: options.timeout.unwrap_or(defaults.timeout),
        retransmissions: options.retransmissions.unwrap_or(defaults.retransmissions),
        recovery: options.recovery,
        source_port: options.source_port,
        clock: Arc::clone(&options.clock),
        ..defaults
    }
}

/// Asks for the server's limits and chooses ours.
async fn negotiate(
    options: &MountOptions,
    client: &RpcClient,
    root: nfs_fh3,
) -> Result<RemoteLimits, MountError> {
    let credential = client.auth_sys(0, 0, &[]);
    let quick = CallOptions::default();
    let silent = |cause| rpc_failure(options, NFS, cause);
    let args = FSINFO3args { fsroot: root };
    // A hard mount waits for its server when it is mounted, not before.
    let limit = client.config().limit();
    let answers = async {
        let info = client.call(&credential, &args, quick).await?.results;
        let names = client.call(&credential, &PATHCONF3args { object: root }, quick).await?.results;
        Ok((info, names))
    };
    let timed_out = |_| silent(RpcError::TimedOut { limit });
    let (info, names) =
        options.clock.timeout(limit, answers).await.map_err(timed_out)?.map_err(silent)?;
    let info = info.map_err(|fail| server_failure(options, fail.status))?;
    Ok(limits(options, &info, names.ok().as_ref()))
}

fn server_failure(options: &MountOptions, status: nfsstat3) -> MountError {
    let (host, path) = (options.host.clone(), options.path.clone());
    match convert::error(status) {
        larder_vfs::Error::AccessDenied | larder_vfs::Error::NotPermitted => access_denied(options),
        _ => MountError::Server { host, path, status: status.to_string() },
    }
}

/// The limits to use, within those of the server. For a server that states no preference, its
/// largest size.
fn limits(
    options: &MountOptions,
    info: &FSINFO3resok,
    names: Option<&PATHCONF3resok>,
) -> RemoteLimits {
    let ours = match options.transport {
        Transport::Tcp => u32::try_from(DATA_BYTES_MAX).unwrap_or(u32::MAX),
        Transport::Udp => DATAGRAM_PAYLOAD_BYTES_MAX,
    };
    let size = |wanted: u32, preferred: u32, max: u32| {
        let theirs = if preferred == 0 { max } else { preferred.min(max) };
        wanted.min(theirs).clamp(PAYLOAD_BYTES_MIN, ours)
    };
    RemoteLimits {
        read_max: size(options.read_max, info.rtpref, info.rtmax),
        write_max: size(options.write_max, info.wtpref, info.wtmax),
        readdir_preferred: info.dtpref.clamp(4096, READDIR_BYTES_PREFERRED_MAX.min(ours)),
        file_size_max: info.maxfilesize,
        name_max: names.map_or(NAME_BYTES_USUAL, |names| names.name_max.min(NAME_BYTES_USUAL)),
        time_delta_ns: u64::from(info.time_delta.seconds) * 1_000_000_000
            + u64::from(info.time_delta.nseconds),
        links: info.properties & fsf3::LINK != 0,
        symlinks: info.properties & fsf3::SYMLINK != 0,
        case_insensitive: names.is_some_and(|names| names.case_insensitive),
        opens: false,
        by_name: false,
    }
}

#[cfg(test)]
mod tests;

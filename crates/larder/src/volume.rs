//! The parts of a volume's servers that `larder serve`, `meta`, `disk` and `volume` share.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use larder_disk::Device;
use larder_io::{
    AvailableMemory, Clock, Disk, RealClock, RealDisk, SlowDisk, available_memory, headroom, secret,
};
use larder_meta::disks::{ControlledDisks, DiskAddress, Disks, TrustInterval};
use larder_meta::engine::embedded::{Embedded, Sizes};
use larder_meta::engine::postgres::{Postgres, Target, Waits};
use larder_meta::engine::{Engine, EngineError};
use larder_meta::volume::{self, Owned};
use larder_meta::{Metadata, Options};
use larder_nfsd::Network;
use larder_rpc::server::{self, Server, Service, SourcePorts};
use larder_rpc::{Identity as Certificate, ServerTls};
use larder_wire::capability::{DiskId, VolumeId};
use larder_wire::disk::key_file::DiskKeyFile;
use larder_wire::meta::words::Time;
use larder_wire::seal::Setup;

use crate::enrolment::forget_unused_keys;
use crate::error::Usage;
use crate::options::{Bytes, parse_span};
use crate::runtime_dir::make_private;
use crate::servers::{self, Answering, Asked};

/// How long calls in flight may take to end after a signal.
pub(crate) const END_MAX: Duration = Duration::from_secs(10);
/// How long a starting metadata server waits for its disks, so that it can serve its first clients.
const READY_MAX: Duration = Duration::from_secs(5);
/// How long a change waits for a database that is away. Then the metadata server ends.
const DATABASE_AWAY_MAX: Duration = Duration::from_secs(60);
/// How long a commit keeps other processes from changing the volume, unless another time is given.
pub(crate) const TERM: Duration = Duration::from_secs(10);
/// Most connections, in total: each client has one or a few to either server.
const CONNECTIONS_MAX: usize = 1024;
/// A file of every store of the embedded engine.
const TREE_FILE: &str = "tree.redb";
/// Where that store is in the directory of a volume of `larder serve`.
pub(crate) const META_DIR: &str = "meta";

/// Memory that a server of a memory disk may need besides: with one client it took 7 MiB. A full
/// disk of 64 MiB was killed by the kernel where 70 MiB were allowed, and not with 76 MiB.
const BESIDE_MEMORY: u64 = 32 << 20;

/// How often the memory of a memory disk's machine is measured. In between the disk takes no more
/// than there was; only others can take more.
const MEASURE: Duration = Duration::from_millis(250);

/// The place of a volume's metadata.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum EngineAt {
    /// In a directory of this machine.
    Embedded(PathBuf),
    /// In a database, as typed. It may contain a password; that is refused later, because an
    /// argument that is refused while the command line is read gets printed.
    Postgres(String),
}

impl std::fmt::Debug for EngineAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EngineAt::Embedded(dir) => f.debug_tuple("Embedded").field(dir).finish(),
            EngineAt::Postgres(_) => f.write_str("Postgres"),
        }
    }
}

/// Reads `embedded:DIR`, `postgres:KEY=VALUE...` or `postgres://...`.
pub(crate) fn engine_at(typed: &str) -> Result<EngineAt, String> {
    match typed.split_once(':') {
        Some(("embedded", dir)) if !dir.is_empty() => Ok(EngineAt::Embedded(dir.into())),
        Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
            Ok(EngineAt::Postgres(typed.to_owned()))
        }
        Some(("postgres", rest)) => Ok(EngineAt::Postgres(rest.to_owned())),
        _ => Err("use embedded:DIR or postgres:URL".to_owned()),
    }
}

/// The place of a volume's metadata, and of its disks' keys.
#[derive(Debug, clap::Args)]
pub(crate) struct Storage {
    /// Where the metadata is kept: a directory, or a database as libpq names it
    #[arg(long, value_name = "embedded:DIR|postgres:URL", value_parser = engine_at)]
    engine: EngineAt,
    /// Where the disks' keys are kept; only their owner may be able to read them [default:
    /// DIR/keys; required with postgres:]
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,
}

impl Storage {
    /// Opens the metadata. `term`: how long a commit keeps others from taking the volume, with
    /// engines that others can open.
    ///
    /// # Errors
    /// If there is none, or another process has exclusive use of it.
    pub(crate) fn open(&self, term: Duration) -> Result<Arc<dyn Engine>> {
        match &self.engine {
            EngineAt::Embedded(dir) => {
                let about = || format!("cannot use the volume in {}", dir.display());
                // In that of a volume of larder serve it is one of several things.
                let holds = |dir: &PathBuf| dir.join(TREE_FILE).exists();
                let held = [dir.clone(), dir.join(META_DIR)].into_iter().find(holds);
                let held = held.with_context(|| {
                    format!("{}: it holds none: make one by larder volume create", about())
                })?;
                open_embedded(&held, None).with_context(about)
            }
            EngineAt::Postgres(typed) => {
                let target = target(typed)?;
                let about = format!("cannot use the volume in {target}");
                match open_postgres(target, term) {
                    Err(EngineError::None) => {
                        bail!("{about}: it holds none: make one by larder volume create")
                    }
                    opened => Ok(Arc::new(opened.context(about)?)),
                }
            }
        }
    }

    /// That place, without a password, in one spelling: for a server's report of itself.
    ///
    /// # Errors
    /// If it is invalid.
    pub(crate) fn shown(&self) -> Result<String> {
        match &self.engine {
            EngineAt::Embedded(dir) => {
                let path = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.clone());
                Ok(format!("embedded:{}", path.display()))
            }
            EngineAt::Postgres(typed) => Ok(target(typed)?.to_string()),
        }
    }

    /// Makes a volume in an empty place.
    ///
    /// # Errors
    /// If the place is not empty.
    pub(crate) fn create(&self, copies: u32, setup: Setup) -> Result<VolumeId> {
        let keys = self.keys()?;
        let (engine, about): (Arc<dyn Engine>, _) = match &self.engine {
            EngineAt::Embedded(dir) => {
                let about = format!("cannot make a volume in {}", dir.display());
                let is_used = std::fs::read_dir(dir).is_ok_and(|mut names| names.next().is_some());
                ensure!(!is_used, "{about}: it is not empty");
                make_private(dir, "directory of the metadata")?;
                (open_embedded(dir, None).with_context(|| about.clone())?, about)
            }
            EngineAt::Postgres(typed) => {
                let target = target(typed)?;
                let about = format!("cannot make a volume in {target}");
                let clock: Arc<dyn Clock> = Arc::new(RealClock);
                Postgres::create(&target, &clock).with_context(|| about.clone())?;
                (Arc::new(open_postgres(target, TERM).with_context(|| about.clone())?), about)
            }
        };
        let id = VolumeId(secret::random());
        volume::create_with_setup(&*engine, id, (copies, setup), now()).context(about)?;
        make_private(&keys, "directory of the keys")?;
        Ok(id)
    }

    /// Directory of the keys.
    ///
    /// # Errors
    /// If it must be named and was not.
    pub(crate) fn keys(&self) -> Result<PathBuf> {
        match (&self.keys, &self.engine) {
            (Some(keys), _) => Ok(keys.clone()),
            (None, EngineAt::Embedded(dir)) => Ok(dir.join("keys")),
            (None, EngineAt::Postgres(_)) => bail!(Usage(
                "the disks' keys are not kept in a database: say where they are by --keys DIR"
                    .into()
            )),
        }
    }

    /// The disks of a volume, as its metadata server reaches them.
    ///
    /// # Errors
    /// If a key or an address cannot be used.
    pub(crate) fn disks(&self, engine: &dyn Engine) -> Result<Vec<DiskAddress>> {
        let (id, keys) = (volume::id(engine)?, self.keys()?);
        let address = |(disk, about): (DiskId, volume::NewDisk)| {
            let address = about.address.parse().with_context(|| {
                format!("disk {} is one of larder serve, not of larder disk", disk.0)
            })?;
            let key = read_key(&key_path(&keys, disk), id, disk)?;
            let volume::NewDisk { address: public, bytes, is_memory, .. } = about;
            Ok(DiskAddress { disk, bytes, address, public, is_memory, master: key.master })
        };
        volume::disks(engine)?.into_iter().map(address).collect()
    }
}

/// Reads the address of a database.
fn target(typed: &str) -> Result<Target> {
    Target::parse(typed).map_err(|error| Usage(format!("--engine: {error}")).into())
}

/// Opens the store in a database.
fn open_postgres(target: Target, term: Duration) -> Result<Postgres, EngineError> {
    let waits = Waits { patience: DATABASE_AWAY_MAX, term };
    Postgres::open(target, Arc::new(RealClock), waits)
}

/// Opens the embedded engine's store in a directory, or makes one; on a slow disk if one is given.
///
/// # Errors
/// If another process has it, or the directory holds something else.
pub(crate) fn open_embedded(dir: &Path, slow: Option<&SlowDisk>) -> Result<Arc<dyn Engine>> {
    make_private(dir, "directory of the metadata")?;
    let medium: Arc<dyn Disk> = Arc::new(RealDisk::open(dir)?);
    let medium = match slow {
        Some(slow) => Arc::new(slow.with(medium)),
        None => medium,
    };
    Ok(Arc::new(Embedded::open(&medium, Sizes::default())?))
}

/// The time for times of files.
pub(crate) fn now() -> Time {
    let now = RealClock.wall();
    Time { seconds: now.sec, nanoseconds: now.nsec }
}

/// The file with a disk's key.
pub(crate) fn key_path(keys: &Path, disk: DiskId) -> PathBuf {
    keys.join(format!("disk{}.key", disk.0))
}

/// Reads the key of a disk of a volume.
///
/// # Errors
/// If there is none, others may read it, or it belongs to another disk.
pub(crate) fn read_key(path: &Path, volume: VolumeId, disk: DiskId) -> Result<DiskKeyFile> {
    let about = || format!("cannot use the key {}", path.display());
    let text = secret::read(path).with_context(about)?;
    let key = DiskKeyFile::from_text(&text).with_context(about)?;
    ensure!(key.volume == volume, "{}: it is of volume {}", about(), key.volume.to_text());
    ensure!(key.disk == disk, "{}: it is of disk {}", about(), key.disk.0);
    Ok(key)
}

/// Where a metadata server listens, and which callers it admits.
#[derive(Debug, clap::Args)]
pub(crate) struct Listening {
    /// Where to listen, over TCP; port 0 chooses a free one
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:2050")]
    pub(crate) listen: SocketAddr,
    /// Certificate of the metadata server, in PEM
    #[arg(long, value_name = "FILE", requires = "cert_key")]
    pub(crate) cert: Option<PathBuf>,
    /// The certificate's key; only its owner may be able to read it
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) cert_key: Option<PathBuf>,
    /// Which machines may call, as in 192.0.2.0/24; may be given more than once [default: this
    /// machine if the server listens on it alone, otherwise every machine]
    #[arg(long, value_name = "NETWORK")]
    pub(crate) allow: Vec<Network>,
    /// Accept calls from ports above 1023 too: every user on a client machine can then claim to be
    /// any other
    #[arg(long)]
    pub(crate) insecure: bool,
}

impl Listening {
    fn is_here_only(&self) -> bool {
        self.listen.ip().to_canonical().is_loopback()
    }

    /// Configuration of the metadata server: TLS, except on this machine.
    ///
    /// # Errors
    /// If there is no certificate where one is needed, or it cannot be used.
    pub(crate) fn meta_config(&self) -> Result<server::Config> {
        let tls = match (&self.cert, &self.cert_key) {
            (Some(certificate), Some(key)) => {
                let identity = Certificate { certificate: certificate.clone(), key: key.clone() };
                Some(ServerTls::new(&identity, None, !self.is_here_only())?)
            }
            _ if self.is_here_only() => None,
            _ => bail!(Usage(format!(
                "clients get secrets from {}: beyond this machine give --cert and --cert-key",
                self.listen
            ))),
        };
        let source_ports = if self.insecure { SourcePorts::Any } else { SourcePorts::Reserved };
        Ok(server::Config { tls, source_ports, ..self.config(self.listen)? })
    }

    /// Configuration of the disk on the port that is this much higher. Capabilities decide what may
    /// be done there, whichever port a call comes from. This process is always admitted: its
    /// metadata server calls the disk.
    ///
    /// # Errors
    /// If there is no such port.
    pub(crate) fn disk_config(&self, behind: u16) -> Result<server::Config> {
        let next = match self.listen.port() {
            0 => 0,
            port => {
                port.checked_add(behind).context("there is no port behind 65535 for the disk")?
            }
        };
        let listen = SocketAddr::new(self.listen.ip(), next);
        let mut config = server::Config { source_ports: SourcePorts::Any, ..self.config(listen)? };
        config.allow.push(reached_at(listen).ip().to_string().parse()?);
        Ok(config)
    }

    /// Configuration of another socket of the metadata server, for clients in this process: in the
    /// clear, since what is sent there does not leave it. As everywhere on loopback, calls are
    /// those of root, unless any port may call.
    pub(crate) fn inside_config(&self) -> server::Config {
        let source_ports = if self.insecure { SourcePorts::Any } else { SourcePorts::Reserved };
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        server::Config { udp: false, source_ports, ..server::Config::new(listen) }
    }

    fn config(&self, listen: SocketAddr) -> Result<server::Config> {
        let config = server::Config::new(listen);
        let allow = match self.allow.as_slice() {
            [] if self.is_here_only() => config.allow.clone(),
            [] => vec!["0.0.0.0/0".parse()?, "::/0".parse()?],
            networks => networks.to_vec(),
        };
        let (connections_max, source_connections_max) = (CONNECTIONS_MAX, CONNECTIONS_MAX / 4);
        Ok(server::Config { allow, udp: false, connections_max, source_connections_max, ..config })
    }
}

/// Listens.
///
/// # Errors
/// If the address cannot be used.
pub(crate) async fn bind<S: Service>(config: server::Config, service: S) -> Result<Server<S>> {
    let listen = config.listen;
    Server::bind(config, service).await.with_context(|| format!("cannot listen on {listen}"))
}

/// The address at which this process reaches a socket of its own.
pub(crate) fn reached_at(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        ip if !ip.is_unspecified() => address,
        _ => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port()),
    }
}

/// Reads the TIME of `--trust`.
pub(crate) fn parse_trust(typed: &str) -> Result<TrustInterval, String> {
    let (least, most) = (TrustInterval::MIN.as_secs(), TrustInterval::MAX.as_secs());
    let bad = || format!("{typed:?} is not between {least}s and {most}s");
    TrustInterval::new(parse_span(typed)?).ok_or_else(bad)
}

/// Reads the setup of `--setup`.
pub(crate) fn parse_setup(typed: &str) -> Result<Setup, String> {
    Setup::from_name(typed).ok_or_else(|| "use secure, private or off".to_owned())
}

/// Says in the log what a disk without seals means.
pub(crate) fn warn_if_off(setup: Setup) {
    if setup == Setup::Off {
        tracing::warn!("whoever can connect may read and write everything (setup off)");
    }
}

/// A metadata server that is about to serve.
pub(crate) struct MetaServer {
    pub(crate) server: Server<Metadata>,
    /// What it serves.
    pub(crate) metadata: Metadata,
    /// Its control socket is removed with it.
    _answering: Option<Answering>,
}

/// The places of a metadata server's data, as reported to commands.
pub(crate) struct StoredIn {
    /// The metadata ([`Storage::shown`]).
    pub(crate) engine: String,
    /// The disks' keys; none, if there is but one disk, of the same process.
    pub(crate) keys: Option<PathBuf>,
}

/// Starts controlling the disks of a volume that was taken, and listens.
///
/// # Errors
/// If the volume cannot be read, or the address cannot be used.
pub(crate) async fn begin_meta(
    (engine, owned): (Arc<dyn Engine>, Owned),
    disks: Vec<DiskAddress>,
    (config, stored_in): (server::Config, StoredIn),
    (options, clock): (Options, &Arc<dyn Clock>),
) -> Result<MetaServer> {
    let id = owned.id();
    let (whose, trust) = (owned.to_disks(), owned.trust());
    let disks = Arc::new(ControlledDisks::start_trusting(disks, whose, trust, clock));
    let asked = Arc::clone(&disks) as Arc<dyn Disks>;
    let kept = Arc::clone(&engine);
    if let Some(keys) = &stored_in.keys {
        forget_unused_keys(keys, &*engine)?;
    }
    let metadata = Metadata::start(engine, owned, asked, Arc::clone(clock), options)?;
    let left = metadata.left();
    tokio::spawn(servers::see_off(left, Arc::clone(&disks), stored_in.keys.clone()));
    if clock.timeout(READY_MAX, disks.ready()).await.is_err() {
        tracing::warn!("not all disks answer: what lies on the others can be used");
    }
    let server = bind(config, metadata.clone()).await?;
    let (address, own) = (server.addr(), metadata.clone());
    let (served, controlled) = (metadata.clone(), Arc::clone(&disks));
    tokio::spawn(larder_meta::rotate_regularly(served, controlled, Arc::clone(clock)));
    let asked = Asked {
        volume: id,
        address,
        stored_in,
        engine: kept,
        disks,
        metadata: own,
        enrolling: Mutex::default(),
    };
    Ok(MetaServer {
        server,
        metadata,
        _answering: servers::answering(|runtime| asked.answer(runtime)),
    })
}

/// Removes a file that may not exist.
///
/// # Errors
/// If it exists, and cannot be removed.
pub(crate) fn remove_if_there(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Refuses a memory disk for which this machine has no room. It takes memory as it is written: one
/// that is too large would have the kernel kill a process when it is full.
///
/// # Errors
/// A line for the user.
pub(crate) fn demand_memory(size: u64) -> Result<()> {
    let AvailableMemory { bytes, cgroup } = match available_memory() {
        Ok(available) => available,
        Err(error) => {
            tracing::warn!("it is not known whether a memory disk fits into memory: {error}");
            return Ok(());
        }
    };
    if size <= bytes.saturating_sub(BESIDE_MEMORY) {
        return Ok(());
    }
    let limit = cgroup.map(|dir| format!(", by the limit of {}", dir.display()));
    let (size, bytes, limit) = (Bytes(size), Bytes(bytes), limit.unwrap_or_default());
    let own = Bytes(BESIDE_MEMORY);
    bail!(
        "a memory disk of {size} does not fit: {bytes} of memory are available{limit}, and the \
         server itself needs {own}"
    )
}

/// Measures the memory of this machine and of the process's cgroups for a memory disk, until the
/// disk is gone. Where the kernel does not report it, the disk may hold what it has.
pub(crate) async fn measure_memory(device: Weak<Device>, clock: Arc<dyn Clock>) {
    loop {
        let Some(device) = device.upgrade() else { return };
        match headroom() {
            Ok(headroom) => device.note_headroom(headroom),
            Err(error) => return tracing::warn!("a lack of memory will not be noticed: {error}"),
        }
        drop(device);
        clock.sleep_until(clock.instant() + MEASURE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setups_have_names() {
        for typed in ["secure", "private", "off"] {
            assert_eq!(parse_setup(typed).unwrap().name(), typed);
        }
        for typed in ["open", "", "Secure"] {
            assert!(parse_setup(typed).is_err());
        }
    }

    #[test]
    fn disks_trust_for_seconds_or_minutes() {
        for (typed, seconds) in [("5s", 5), ("30s", 30), ("5min", 300), ("600s", 600)] {
            assert_eq!(parse_trust(typed).unwrap().time(), Duration::from_secs(seconds));
        }
        for typed in ["4s", "4999ms", "601s", "0s", "1h"] {
            let refused = parse_trust(typed).unwrap_err();
            assert!(refused.contains("between 5s and 600s"), "{refused}");
        }
        assert!(parse_trust("30").unwrap_err().contains("is no time"));
    }
}

//! `larder serve`: a volume in a directory, with its metadata server and one disk in one process.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use larder_disk::{Config as DeviceConfig, Device, DiskService, Identity, Store};
use larder_io::{Clock, Disk, RealClock, RealDisk, secret};
use larder_meta::disks::{ControlledDisks, DiskAddress, Disks};
use larder_meta::engine::Engine;
use larder_meta::engine::embedded::{Embedded, Sizes};
use larder_meta::volume::{self, NewDisk};
use larder_meta::{Metadata, Options};
use larder_nfsd::Network;
use larder_rpc::server::{self, Server, Service, SourcePorts};
use larder_rpc::{Identity as Certificate, ServerTls};
use larder_wire::capability::{DiskId, VolumeId};
use larder_wire::disk::key_file::DiskKeyFile;
use larder_wire::meta::{BLOCK_BYTES, words::Time};
use larder_wire::seal::{MasterKey, Setup};
use tokio::signal::unix::{SignalKind, signal};

use crate::error::Usage;
use crate::log;
use crate::options::{Bytes, parse_size};
use crate::runtime_dir::make_private;

/// How long calls in flight may take to end after a signal.
const END_MAX: Duration = Duration::from_secs(10);
/// Most connections, in all: each client has one or a few to either server.
const CONNECTIONS_MAX: usize = 1024;
/// The disk of a volume that has one.
const DISK: DiskId = DiskId(1);
/// Names in the directory: the disk's key, which makes it a volume, the metadata, the disk.
const KEY_FILE: &str = "disk1.key";
const META_DIR: &str = "meta";
const STORE_FILE: &str = "disk1";
/// Of the room that is free when a volume is made, its disk gets so many percent.
const FREE_PERCENT: u64 = 90;

/// Arguments of `larder serve`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The directory is made, or must be empty, or hold a volume from before. Its files stay closed to others than their owner, \
whom clients need not know: they bring their users' ids, which are believed. So only root of an allowed machine may call (from a port below \
1024; on this machine from any), unless --insecure is given. Beyond this machine the metadata server speaks TLS only, since clients get secrets \
from it; data goes under seal in any case.\n\nExample:\n  larder serve /srv/volume\n  larder mount larder://127.0.0.1/ /mnt --cache /var/cache/larder/volume\n  larder serve /srv/volume --listen 192.0.2.1:2050 --cert /etc/larder/cert.pem --cert-key /etc/larder/key.pem\n  larder mount larder://server.example/ /mnt -o ca=/etc/larder/ca.pem"
)]
pub(crate) struct Args {
    /// Where the volume is kept
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Where to listen, over TCP; the disk listens on the next port. Port 0 takes free ones
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:2050")]
    listen: SocketAddr,
    /// How many bytes a new volume has, as 100G [default: most of what is free where DIR is]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Certificate of the metadata server, in PEM
    #[arg(long, value_name = "FILE", requires = "cert_key")]
    cert: Option<PathBuf>,
    /// The certificate's key, which only its owner may read
    #[arg(long, value_name = "FILE", requires = "cert")]
    cert_key: Option<PathBuf>,
    /// Who may call, as 192.0.2.0/24; may be given more than once [default: this machine if it
    /// listens there alone, else everybody]
    #[arg(long, value_name = "NETWORK")]
    allow: Vec<Network>,
    /// Take calls from ports above 1023 too: then every user there can claim to be any other
    #[arg(long)]
    insecure: bool,
}

/// A volume in a directory, opened.
struct Volume {
    key: DiskKeyFile,
    engine: Arc<dyn Engine>,
    store: Store,
    identity: Identity,
}

/// Serves until a signal comes, then lets what is begun end.
///
/// # Errors
/// If the directory or an address cannot be used.
pub(crate) fn run(args: &Args) -> Result<()> {
    log::begin(None)?;
    // Requests use the store on the threads that read them: one that waits for the medium must not
    // keep the others waiting.
    let threads = std::thread::available_parallelism().map_or(1, usize::from) * 2;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads.max(4))
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(serve(args))
}

async fn serve(args: &Args) -> Result<()> {
    // Before anything is made: a signal meanwhile is then an orderly end.
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for signals")?;
    let clock: Arc<dyn Clock> = Arc::new(RealClock);
    let meta_config = args.meta_config()?;
    let Volume { key, engine, store, identity } = args.open()?;

    let config = DeviceConfig::new(identity, key.master.clone(), Arc::clone(&clock));
    let device = Arc::new(Device::start(config, store));
    let disk = bind(args.disk_config()?, DiskService::new(Arc::clone(&device))).await?;
    let public = format!(":{}", disk.addr().port());
    let disks = vec![DiskAddress { disk: key.disk, address: reached_at(disk.addr()), public }];
    let disk_end = disk.shutdown();
    let disk = tokio::spawn(disk.run());

    let owned = volume::take(&*engine).with_context(|| args.cannot())?;
    let disks = ControlledDisks::start(disks, &key.master, key.volume, owned.epoch(), &clock);
    let disks = Arc::new(disks);
    let asked = Arc::clone(&disks) as Arc<dyn Disks>;
    let metadata = Metadata::start(engine, owned, asked, Arc::clone(&clock), Options::default());
    let metadata = metadata.with_context(|| args.cannot())?;
    disks.ready().await;
    let meta = bind(meta_config, metadata).await?;
    let (volume, address) = (key.volume.to_text(), meta.addr());
    tracing::info!(dir = %args.dir.display(), volume, %address, "serving a volume");
    let meta_end = meta.shutdown();
    let mut served = std::pin::pin!(meta.run());
    tokio::select! {
        () = &mut served => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    meta_end.begin();
    disk_end.begin();
    let ended = async { (served.await, disk.await) };
    if clock.timeout(END_MAX, ended).await.is_err() {
        tracing::warn!("calls in flight did not end in {END_MAX:?}");
    }
    device.store().flush().context("what was written last may be lost")
}

async fn bind<S: Service>(config: server::Config, service: S) -> Result<Server<S>> {
    let listen = config.listen;
    Server::bind(config, service).await.with_context(|| format!("cannot listen on {listen}"))
}

/// Where this process reaches a socket of its own.
fn reached_at(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        ip if !ip.is_unspecified() => address,
        _ => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), address.port()),
    }
}

impl Args {
    fn cannot(&self) -> String {
        format!("cannot serve {}", self.dir.display())
    }

    /// Opens the volume, or makes one. What a start that was killed has left is gone on with.
    fn open(&self) -> Result<Volume> {
        let key = self.key().with_context(|| self.cannot())?;
        let meta = self.dir.join(META_DIR);
        make_private(&meta, "directory of the metadata")?;
        let medium: Arc<dyn Disk> = Arc::new(RealDisk::open(&meta)?);
        let engine = Embedded::open(&medium, Sizes::default()).with_context(|| self.cannot())?;
        let engine: Arc<dyn Engine> = Arc::new(engine);
        let size = self.disk_bytes(&*engine, key.volume)?;
        let identity = Identity { volume: key.volume, disk: key.disk, setup: Setup::Secure };
        let dir = RealDisk::open(&self.dir)?;
        let store = Store::open(&dir, STORE_FILE, &identity, size);
        let store = store.with_context(|| {
            format!("cannot use the disk {}", self.dir.join(STORE_FILE).display())
        })?;
        Ok(Volume { key, engine, store, identity })
    }

    /// The key of the volume's disk, made if the directory is new or empty.
    fn key(&self) -> Result<DiskKeyFile> {
        let path = self.dir.join(KEY_FILE);
        match secret::read(&path) {
            Ok(text) => return DiskKeyFile::from_text(&text).context(KEY_FILE),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).context(KEY_FILE),
        }
        let unfinished = path.with_extension("new");
        if self.dir.exists() {
            for entry in std::fs::read_dir(&self.dir)? {
                let name = entry?.path();
                ensure!(name == unfinished, "it is not empty, and holds no volume");
            }
        }
        make_private(&self.dir, "directory")?;
        match std::fs::remove_file(&unfinished) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let (volume, master) = (VolumeId(secret::random()), MasterKey::new(secret::random()));
        let key = DiskKeyFile { volume, disk: DISK, master };
        secret::write_new(&unfinished, &key.to_text())?;
        std::fs::rename(&unfinished, &path)?;
        std::fs::File::open(&self.dir)?.sync_all()?;
        Ok(key)
    }

    /// How large the disk of the volume is, which is made if there is none yet.
    fn disk_bytes(&self, engine: &dyn Engine, id: VolumeId) -> Result<u64> {
        let now = RealClock.wall();
        let now = Time { seconds: now.sec, nanoseconds: now.nsec };
        match volume::create(engine, id, now) {
            Ok(()) | Err(volume::VolumeError::Exists) => {}
            Err(error) => return Err(error).with_context(|| self.cannot()),
        }
        let disks = volume::disks(engine).with_context(|| self.cannot())?;
        if let [(_, disk)] = disks.as_slice() {
            let is_other =
                self.size.is_some_and(|size| size / BLOCK_BYTES * BLOCK_BYTES != disk.bytes);
            if is_other {
                bail!(Usage(format!("the volume has {}: leave --size out", Bytes(disk.bytes))));
            }
            return Ok(disk.bytes);
        }
        ensure!(disks.is_empty(), "the volume has several disks: serve them by larder disk");
        let bytes = match self.size {
            Some(size) => size,
            None => {
                let space = rustix::fs::statvfs(&self.dir).context("cannot tell what is free")?;
                space.f_bavail.saturating_mul(space.f_frsize) / 100 * FREE_PERCENT
            }
        };
        let bytes = bytes / BLOCK_BYTES * BLOCK_BYTES;
        let new = NewDisk { id: id.0, address: STORE_FILE.to_owned(), bytes };
        let made = volume::add_disk(engine, &new).with_context(|| self.cannot())?;
        debug_assert_eq!(made, DISK);
        Ok(bytes)
    }

    fn listens_here_only(&self) -> bool {
        self.listen.ip().to_canonical().is_loopback()
    }

    fn meta_config(&self) -> Result<server::Config> {
        let tls = match (&self.cert, &self.cert_key) {
            (Some(certificate), Some(key)) => {
                let identity = Certificate { certificate: certificate.clone(), key: key.clone() };
                Some(ServerTls::new(&identity, None, !self.listens_here_only())?)
            }
            _ if self.listens_here_only() => None,
            _ => bail!(Usage(format!(
                "clients get secrets from {}: beyond this machine give --cert and --cert-key",
                self.listen
            ))),
        };
        let source_ports = if self.insecure { SourcePorts::Any } else { SourcePorts::Reserved };
        Ok(server::Config { tls, source_ports, ..self.config(self.listen)? })
    }

    /// Of the disk. What may be done there is in capabilities, whichever port one comes from.
    fn disk_config(&self) -> Result<server::Config> {
        let next = match self.listen.port() {
            0 => 0,
            port => port.checked_add(1).context("there is no port behind 65535 for the disk")?,
        };
        let listen = SocketAddr::new(self.listen.ip(), next);
        Ok(server::Config { source_ports: SourcePorts::Any, ..self.config(listen)? })
    }

    fn config(&self, listen: SocketAddr) -> Result<server::Config> {
        let config = server::Config::new(listen);
        let allow = match self.allow.as_slice() {
            [] if self.listens_here_only() => config.allow.clone(),
            [] => vec!["0.0.0.0/0".parse()?, "::/0".parse()?],
            networks => networks.to_vec(),
        };
        let (connections_max, source_connections_max) = (CONNECTIONS_MAX, CONNECTIONS_MAX / 4);
        Ok(server::Config { allow, udp: false, connections_max, source_connections_max, ..config })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    fn args(dir: &Path, size: Option<u64>) -> Args {
        Args {
            dir: dir.to_owned(),
            listen: "127.0.0.1:0".parse().unwrap(),
            size,
            cert: None,
            cert_key: None,
            allow: Vec::new(),
            insecure: false,
        }
    }

    fn error(args: &Args) -> String {
        format!("{:#}", args.open().err().expect("it is refused"))
    }

    #[test]
    fn a_volume_is_made_once_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("volume");
        let made = args(&top, Some(10 << 20)).open().unwrap();
        let mode = std::fs::metadata(&top).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(error(&args(&top, None)).contains("another process"), "one at a time");
        let (volume, size) = (made.key.volume, made.store.size());
        drop(made);
        assert!(error(&args(&top, Some(11 << 20))).contains("leave --size out"));
        let found = args(&top, None).open().unwrap();
        assert_eq!((found.key.volume, found.store.size()), (volume, size));
        assert_eq!(size, 10 << 20);
    }

    #[test]
    fn a_directory_with_something_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(dir.path().join("mine"), b"data").unwrap();
        assert!(error(&args(dir.path(), None)).contains("not empty"));
        let mode = std::fs::metadata(dir.path()).unwrap().permissions().mode();
        assert_eq!((mode & 0o777, std::fs::read_dir(dir.path()).unwrap().count()), (0o755, 1));
    }

    /// Killed after the key was begun, or made: the next start goes on.
    #[test]
    fn a_start_that_was_killed_is_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("volume");
        make_private(&top, "directory").unwrap();
        std::fs::write(top.join("disk1.new"), b"lard").unwrap();
        let key = args(&top, None).key().unwrap();
        assert!(!top.join("disk1.new").exists());
        assert_eq!(args(&top, Some(1 << 20)).open().unwrap().key, key);
    }

    #[test]
    fn beyond_this_machine_there_is_tls() {
        let mut args = args(Path::new("/nowhere"), None);
        assert!(args.meta_config().unwrap().tls.is_none());
        args.listen = "192.0.2.1:2050".parse().unwrap();
        assert!(format!("{:#}", args.meta_config().err().unwrap()).contains("--cert"));
        assert_eq!(args.disk_config().unwrap().listen.port(), 2051);
    }
}

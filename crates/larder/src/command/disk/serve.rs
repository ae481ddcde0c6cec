//! Serves a disk.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use larder_disk::{Config, Device, DiskService, Identity, Store};
use larder_io::{Clock, Disk, MemDisk, RealClock, RealDisk};
use larder_nfsd::Network;
use larder_rpc::server::{self, Server, SourcePorts};
use larder_wire::disk::key_file::DiskKeyFile;
use larder_wire::seal::Setup;
use rustix::fs::OFlags;

use crate::error::Usage;
use crate::log;
use crate::options::{parse_rate, parse_size};
use crate::servers;
use crate::signals::Ends;
use crate::volume::{demand_memory, measure_memory, parse_setup, warn_if_off};

/// How long requests in flight may take to end after a signal.
const END_MAX: Duration = Duration::from_secs(10);
/// Most connections, in total and from one machine: each client has a few.
const CONNECTIONS_MAX: usize = 1024;

/// The store of a memory disk.
const MEMORY: &str = "memory";

/// What a disk needs to serve.
#[derive(Debug, clap::Args)]
pub(super) struct Serve {
    /// Where the disk's bytes are: a file, which is made if it does not exist, a block device that
    /// nothing else uses and whose first MiB is zeros, or `memory`
    #[arg(long, value_name = "FILE|DEVICE|memory")]
    store: PathBuf,
    /// How many bytes the disk has, as in 100G; a multiple of 4096
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: u64,
    /// The disk's key; only its owner may be able to read it
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Where to listen, over TCP; port 0 chooses a free one
    #[arg(long, value_name = "IP:PORT")]
    listen: SocketAddr,
    /// How requests are protected: by seals, by seals and encryption, or not at all [default: as
    /// the volume has it, which the key states; otherwise secure]
    #[arg(long, value_name = "secure|private|off", value_parser = parse_setup)]
    setup: Option<Setup>,
    /// Read and write no faster than this, as in 25MB/s
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    rate: Option<u64>,
    /// Which machines may connect, as in 192.0.2.0/24; may be given more than once [default: this
    /// machine if the disk listens on a loopback address, otherwise every machine]
    #[arg(long, value_name = "NETWORK")]
    allow: Vec<Network>,
}

/// Serves until a signal arrives, then lets requests in flight end, and makes their writes durable.
pub(super) fn run(args: &Serve) -> Result<()> {
    log::begin(None)?;
    let runtime = crate::runtime::start_storing()?;
    runtime.block_on(serve(args))
}

async fn serve(args: &Serve) -> Result<()> {
    // Before anything is made: from now on a signal ends the process in order.
    let mut ends = Ends::begin()?;
    let _claim = args.claim()?;
    let device = Arc::new(args.open()?);
    if args.store == Path::new(MEMORY) {
        tokio::spawn(measure_memory(Arc::downgrade(&device), Arc::new(RealClock)));
    }
    let service = DiskService::new(Arc::clone(&device));
    let server = Server::bind(args.server()?, service).await;
    let server = server.with_context(|| format!("cannot listen on {}", args.listen))?;
    let (store, setup) = (args.store.display(), device.identity().setup);
    tracing::info!(%store, setup = setup.name(), address = %server.addr(), "serving a disk");
    warn_if_off(setup);
    let about = (server.addr(), store.to_string());
    let own = Arc::clone(&device);
    let _answering = servers::answering(|runtime| servers::answer_for_disk(runtime, about, own));
    let shutdown = server.shutdown();
    let mut served = std::pin::pin!(server.run());
    tokio::select! {
        () = &mut served => {}
        () = ends.come() => {}
    }
    shutdown.begin();
    let clock: &dyn Clock = &RealClock;
    if clock.timeout(END_MAX, served).await.is_err() {
        tracing::warn!("requests in flight did not end in {END_MAX:?}");
    }
    device.store().flush().context("what was written last may be lost")
}

impl Serve {
    /// The disk, with its store opened or made.
    fn open(&self) -> Result<Device> {
        let key = super::read_key(&self.key)?;
        let setup = self.setup_with(&key)?;
        let identity = Identity { volume: key.volume, disk: key.disk, setup };
        let (disk, name) = self.store_in()?;
        let store = Store::open(&*disk, &name, &identity, self.size)
            .with_context(|| format!("cannot use the store {}", self.store.display()))?;
        let has_room = self.is_in_memory() || self.is_device();
        let store = if has_room { store } else { store.with_room_ahead() };
        let config = Config::new(identity, key.master, Arc::new(RealClock));
        Ok(Device::start(Config { rate: self.rate, ..config }, store))
    }

    /// The setup of a disk with this key.
    fn setup_with(&self, key: &DiskKeyFile) -> Result<Setup> {
        if let (Some(typed), Some(stated)) = (self.setup, key.setup)
            && typed != stated
        {
            let (file, stated) = (self.key.display(), stated.name());
            bail!(Usage(format!(
                "--setup {}: {file} is of a volume with setup {stated}: leave --setup out",
                typed.name()
            )));
        }
        Ok(self.setup.or(key.setup).unwrap_or(Setup::Secure))
    }

    fn is_in_memory(&self) -> bool {
        self.store == Path::new(MEMORY)
    }

    fn is_device(&self) -> bool {
        self.store.metadata().is_ok_and(|about| about.file_type().is_block_device())
    }

    /// Keeps the kernel, and other programs that ask so, from using a device as long as it is open:
    /// it is not mounted then (open(2), `O_EXCL`).
    fn claim(&self) -> Result<Option<File>> {
        if !self.is_device() {
            return Ok(None);
        }
        let mut options = File::options();
        options.read(true).write(true).custom_flags(OFlags::EXCL.bits().cast_signed());
        let claim = options.open(&self.store);
        claim.map(Some).with_context(|| {
            format!(
                "cannot use the store {}: if it is busy, something else uses it",
                self.store.display()
            )
        })
    }

    /// The directory that the store is in, and its name there.
    fn store_in(&self) -> Result<(Box<dyn Disk>, String)> {
        if self.is_in_memory() {
            demand_memory(self.size)?;
            return Ok((Box::new(MemDisk::new()), "disk".to_owned()));
        }
        let shown = self.store.display();
        if let Ok(about) = self.store.metadata() {
            let fits = about.is_file() || self.is_device();
            ensure!(fits, "cannot use the store {shown}: it is no file, and no block device");
        }
        // Names of devices are often symbolic links (/dev/disk/by-id), which a disk does not
        // follow.
        let store = match self.is_device() {
            true => self.store.canonicalize()?,
            false => self.store.clone(),
        };
        let name = store.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| Usage(format!("--store {shown}: name a file")))?;
        let parent = store.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let disk = RealDisk::open(parent)
            .with_context(|| format!("cannot use the directory {}", parent.display()))?;
        Ok((Box::new(disk), name.to_owned()))
    }

    fn server(&self) -> Result<server::Config> {
        let config = server::Config::new(self.listen);
        let allow = match self.allow.as_slice() {
            [] if self.listen.ip().to_canonical().is_loopback() => config.allow.clone(),
            [] => vec!["0.0.0.0/0".parse()?, "::/0".parse()?],
            networks => networks.to_vec(),
        };
        Ok(server::Config {
            allow,
            udp: false,
            source_ports: SourcePorts::Any,
            connections_max: CONNECTIONS_MAX,
            source_connections_max: CONNECTIONS_MAX / 4,
            ..config
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use larder_wire::capability::{DiskId, VolumeId};
    use larder_wire::seal::MasterKey;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Typed {
        #[command(flatten)]
        serve: Serve,
    }

    /// Each setup that is typed, with each one that the key states, or none: the one that is said
    /// counts, and two that differ are refused. Without any it is `secure`, as before keys stated
    /// one.
    #[test]
    fn a_disk_has_the_setup_of_its_key_or_the_one_that_is_typed() {
        let setups = || [None].into_iter().chain(Setup::ALL.map(Some));
        for (typed, stated) in
            setups().flat_map(|typed| setups().map(move |stated| (typed, stated)))
        {
            let listen = ["disk", "--store=d", "--size=1M", "--key=k", "--listen=127.0.0.1:0"];
            let option = typed.map(|typed| format!("--setup={}", typed.name()));
            let serve =
                Typed::parse_from(listen.map(str::to_owned).into_iter().chain(option)).serve;
            let (volume, disk, master) = (VolumeId([1; 16]), DiskId(1), MasterKey::new([2; 32]));
            let key = DiskKeyFile { volume, disk, master, setup: stated };
            let found = serve.setup_with(&key).map_err(|error| error.to_string());
            match (typed, stated) {
                (Some(typed), Some(stated)) if typed != stated => {
                    let (typed, stated) = (typed.name(), stated.name());
                    let line = format!(
                        "--setup {typed}: k is of a volume with setup {stated}: leave --setup out"
                    );
                    assert_eq!(found, Err(line));
                }
                _ => assert_eq!(found, Ok(typed.or(stated).unwrap_or(Setup::Secure))),
            }
        }
    }

    #[test]
    fn rates_are_read() {
        assert_eq!(parse_rate("25MB/s"), Ok(25 << 20));
        assert_eq!(parse_rate("1G"), Ok(1 << 30));
        let wrong = ["0", "fast", "1MB/h"];
        assert!(wrong.iter().all(|typed| parse_rate(typed).is_err()));
    }
}

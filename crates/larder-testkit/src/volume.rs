//! Volumes of larder's own servers, served by this process: a metadata server and its disks, each
//! behind its sockets, each on a runtime of its own, so that it can be ended as by a signal.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use larder_disk::{Config as DiskConfig, Device, DiskService, Identity, OpenError, Store};
use larder_io::{Clock, Disk, Fault, Headroom, Image, MemDisk, RealClock, RealDisk, SimDisk};
use larder_meta::disks::{ControlledDisks, DiskAddress, Disks};
use larder_meta::engine::embedded::{Embedded, Sizes};
use larder_meta::engine::{Engine, EngineError};
use larder_meta::volume::{self, Joining, NewDisk};
use larder_meta::{Activity, Metadata, Options};
use larder_rpc::server::{Config, Server, Service, SourcePorts};
use larder_wire::capability::{DiskId, VolumeId};
use larder_wire::disk::words::{FetchHead, Refusal};
use larder_wire::meta::words::Time;
use larder_wire::seal::{MasterKey, Setup};
use tempfile::TempDir;
use tokio::net::TcpSocket;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::relay::Relay;
use crate::versioned::{Versioned, VersionedDisk};

mod asked;

use asked::Asked;

const VOLUME: VolumeId = VolumeId([9; 16]);

/// The size of a disk, unless another one is asked for.
const DISK_BYTES: u64 = 256 << 20;

/// Where a server stores its data.
#[derive(Debug)]
enum Medium {
    Real(Arc<TempDir>, String),
    Simulated(SimDisk),
    /// Of a memory disk: with each start there is nothing in it.
    Memory,
}

/// One of the servers of the volume.
#[derive(Debug)]
struct Host {
    medium: Medium,
    /// The address on which it listens.
    at: SocketAddr,
    /// The disk that it serves, if it is one and runs.
    device: Arc<Mutex<Weak<Device>>>,
    /// Bound to the server's port, but not listening. While the server is dead, no program that
    /// asks for any port gets this one, and connections to it are refused.
    _reserved: TcpSocket,
    running: Option<Running>,
}

/// A running server.
#[derive(Debug)]
struct Running {
    runtime: Runtime,
    /// Closed when the server's socket no longer listens.
    listens: Receiver<()>,
}

/// A volume with its servers, which this process runs and can kill.
#[derive(Debug)]
pub struct Volume {
    setup: Setup,
    options: Options,
    disk_bytes: u64,
    clock: Arc<dyn Clock>,
    meta: Host,
    /// As many disks for each copy that the volume keeps, then memory disks.
    disks: Vec<Host>,
    /// The boot of the metadata server's machine.
    boot: u128,
    /// The store of the metadata, while that is served.
    engine: Arc<Mutex<Weak<dyn Engine>>>,
    /// Asks the metadata server.
    asking: UnboundedSender<Asked>,
    /// The address of the first disk that clients are given, if it is not the real one (a relay).
    disk_shown: Option<SocketAddr>,
    /// The metadata server has the procedures with lower numbers.
    procedures: u32,
    /// Disks have the procedures with lower numbers.
    disk_procedures: u32,
    /// Counts the bytes between the metadata server and the disks, if that is asked for.
    passed_bytes: Option<Arc<AtomicU64>>,
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Medium {
    fn open(&self) -> Arc<dyn Disk> {
        match self {
            Medium::Real(dir, name) => {
                let path = dir.path().join(name);
                std::fs::create_dir_all(&path).expect("a directory in a temporary one");
                Arc::new(RealDisk::open(&path).expect("it is there"))
            }
            Medium::Simulated(disk) => Arc::new(disk.clone()),
            Medium::Memory => Arc::new(MemDisk::new()),
        }
    }
}

impl Host {
    fn new(medium: Medium) -> Host {
        let reserved = bound(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        let at = reserved.local_addr().expect("it is bound");
        let device = Arc::new(Mutex::new(Weak::new()));
        Host { medium, at, device, _reserved: reserved, running: None }
    }

    fn kill(&mut self, image: Image) {
        let Some(Running { runtime, listens }) = self.running.take() else { return };
        runtime.shutdown_background();
        // Nothing is ever sent: the channel closes when the task that owns the socket ends.
        let _ = listens.recv();
        if let Medium::Simulated(disk) = &mut self.medium {
            // Threads of the killed server may be about to write.
            disk.inject(Fault::EioFrom(0));
            *disk = disk.crash(image);
        }
    }

    /// Runs the service that `begin` makes.
    fn run<S: Service>(&mut self, begin: impl Future<Output = S> + Send + 'static) {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("threads");
        let at = self.at;
        // A process that was started while the former server ran has a copy of its socket, which
        // listens, until its exec closes it.
        once_free(|| match bound(at) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => None,
            bound => Some(bound.expect("a port of ours")),
        });
        let (alive, listens) = mpsc::channel();
        let begun = runtime.spawn(async move {
            let service = begin.await;
            let config = Config { udp: false, source_ports: SourcePorts::Any, ..Config::new(at) };
            let server = Server::bind(config, service).await.expect("nobody else has the port");
            tokio::spawn(async move {
                let _dropped_last = alive;
                server.run().await;
            });
        });
        let (tell, told) = mpsc::channel();
        runtime.spawn(async move { tell.send(begun.await) });
        told.recv().expect("it tells").expect("it begins");
        self.running = Some(Running { runtime, listens });
    }
}

impl Volume {
    /// Creates a volume on a real disk. Blocks until it is served.
    pub fn new(setup: Setup) -> Volume {
        Volume::with_options(setup, Options::default())
    }

    /// Like [`new`](Self::new), with options of the metadata server.
    pub fn with_options(setup: Setup, options: Options) -> Volume {
        Volume::on_real((1, 1, DISK_BYTES), setup, options)
    }

    /// Like [`new`](Self::new), with this many copies of each block, on as many disks.
    pub fn with_copies(setup: Setup, copies: u32) -> Volume {
        Volume::with_sets(setup, (copies, 1), DISK_BYTES)
    }

    /// The same with so many disks of this size for each copy.
    pub fn with_sets(setup: Setup, (copies, sets): (u32, u32), disk_bytes: u64) -> Volume {
        Volume::on_real((copies, sets, disk_bytes), setup, Options::default())
    }

    fn on_real(
        (copies, sets, disk_bytes): (u32, u32, u64),
        setup: Setup,
        options: Options,
    ) -> Volume {
        let dir = Arc::new(tempfile::tempdir().expect("a temporary directory"));
        let medium = |name: String| Medium::Real(Arc::clone(&dir), name);
        let disks = (1..=copies * sets).map(|number| medium(format!("disk{number}"))).collect();
        let media = (medium("meta".to_owned()), disks);
        Volume::on(media, (setup, options), (copies, disk_bytes), Arc::new(RealClock))
    }

    /// Like [`new`](Self::new), with all servers on simulated disks, and a clock of the caller's.
    pub fn simulated(
        setup: Setup,
        (copies, disk_bytes): (u32, u64),
        clock: Arc<dyn Clock>,
    ) -> Volume {
        let medium = || Medium::Simulated(SimDisk::new());
        let media = (medium(), (0..copies).map(|_| medium()).collect());
        Volume::on(media, (setup, Options::default()), (copies, disk_bytes), clock)
    }

    fn on(
        (meta, disks): (Medium, Vec<Medium>),
        (setup, options): (Setup, Options),
        (copies, disk_bytes): (u32, u64),
        clock: Arc<dyn Clock>,
    ) -> Volume {
        let engine = engine(&meta.open(), 0);
        volume::create_with_setup(&*engine, VOLUME, (copies, setup), Time::default())
            .expect("an empty engine");
        for _ in &disks {
            let new = NewDisk {
                id: [1; 16],
                address: "disk".into(),
                bytes: disk_bytes,
                is_memory: false,
            };
            volume::add_disk(&*engine, &new).expect("a new disk");
        }
        drop(engine);
        let (meta, disks) = (Host::new(meta), disks.into_iter().map(Host::new).collect());
        let engine: Weak<Embedded> = Weak::new();
        let engine: Weak<dyn Engine> = engine;
        let engine = Arc::new(Mutex::new(engine));
        let mut volume = Volume {
            setup,
            options,
            disk_bytes,
            clock,
            meta,
            disks,
            boot: 0,
            engine,
            asking: unbounded_channel().0,
            disk_shown: None,
            procedures: u32::MAX,
            disk_procedures: u32::MAX,
            passed_bytes: None,
        };
        volume.start();
        volume
    }

    /// Adds memory disks beside each other, as large as the others. The metadata server is killed
    /// for that, and started again.
    pub fn add_memory(&mut self, count: usize) {
        self.kill_meta(Image::Written);
        let engine = engine(&self.meta.medium.open(), self.boot);
        let new = NewDisk {
            id: [2; 16],
            address: "memory".into(),
            bytes: self.disk_bytes,
            is_memory: true,
        };
        let first = volume::add_disk(&*engine, &new).expect("a new disk");
        for _ in 1..count {
            volume::enrol(&*engine, &new, Joining::Beside(first)).expect("a new disk");
        }
        drop(engine);
        self.disks.extend((0..count).map(|_| Host::new(Medium::Memory)));
        self.start();
    }

    /// What the machine of a disk, counted from 0, has left of memory for it.
    ///
    /// # Panics
    /// If the disk does not run.
    pub fn note_headroom(&self, at: usize, headroom: Headroom) {
        self.device(at).note_headroom(headroom);
    }

    /// How often the metadata server has told a disk, counted from 0, to revoke capabilities:
    /// calls, since that disk was started.
    ///
    /// # Panics
    /// If the disk does not run.
    pub fn revocations(&self, at: usize) -> u64 {
        self.device(at).counts().revocations()
    }

    /// How often a disk, counted from 0, has refused a request for this reason since it was
    /// started.
    ///
    /// # Panics
    /// If the disk does not run.
    pub fn refusals(&self, at: usize, reason: Refusal) -> u64 {
        self.device(at).counts().get(reason)
    }

    /// Rotates the disks' keys. Blocks until the disks were told; returns whether all were.
    ///
    /// # Panics
    /// If the metadata server does not run.
    pub fn rotate_keys(&self) -> bool {
        let (tell, told) = mpsc::channel();
        self.asking.send(Asked::Rotate(tell)).expect("it runs");
        told.recv().expect("it answers")
    }

    /// What the metadata server is doing. Blocks until it answers.
    ///
    /// # Panics
    /// If the metadata server does not run.
    pub fn activity(&self) -> Activity {
        let (tell, told) = mpsc::channel();
        self.asking.send(Asked::Activity(tell)).expect("it runs");
        told.recv().expect("it answers")
    }

    /// A disk, counted from 0, is to leave the volume. Blocks until that is on record.
    ///
    /// # Panics
    /// If the metadata server does not run, or does not let it.
    pub fn remove_disk(&self, at: usize) {
        let (tell, told) = mpsc::channel();
        self.asking.send(Asked::Remove(number(at), tell)).expect("it runs");
        told.recv().expect("it answers");
    }

    /// What is wrong with each disk, as the metadata server has it. Blocks until it answers.
    ///
    /// # Panics
    /// If the metadata server does not run.
    pub fn problems(&self) -> Vec<Option<String>> {
        let (tell, told) = mpsc::channel();
        self.asking.send(Asked::Problems(tell)).expect("it runs");
        told.recv().expect("it answers")
    }

    /// From its next start on, the metadata server has no more bytes a second brought to disks that
    /// lack some, and what passes between it and the disks is counted.
    pub fn count_bytes_of_disks(&mut self, resilver_rate: u64) {
        self.options.resilver_rate = resilver_rate;
        self.passed_bytes = Some(Arc::default());
    }

    /// How many bytes have passed between the metadata server and the disks since that was asked
    /// for, both ways.
    pub fn bytes_of_disks(&self) -> u64 {
        self.passed_bytes.as_ref().map_or(0, |count| count.load(Relaxed))
    }

    /// How often a disk, counted from 0, was told to fetch bytes of another one since it was
    /// started; none if it does not run.
    pub fn fetches(&self, at: usize) -> u64 {
        let device = self.disks[at].device.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        device.map_or(0, |device| device.counts().orders::<FetchHead>())
    }

    fn device(&self, at: usize) -> Arc<Device> {
        let device = self.disks[at].device.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        device.expect("it runs")
    }

    /// What is asked of the store of the metadata, as of its last commit. `None` while it is not
    /// served.
    pub fn ask<T>(&self, ask: impl FnOnce(&dyn Engine) -> T) -> Option<T> {
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        engine.map(|engine| ask(&*engine))
    }

    /// The address of the metadata server.
    pub fn address(&self) -> SocketAddr {
        self.meta.at
    }

    /// The address of the first disk.
    pub fn disk_address(&self) -> SocketAddr {
        self.disks[0].at
    }

    /// From the next start of the metadata server on, clients are given this address for the first
    /// disk.
    pub fn show_disk_at(&mut self, address: SocketAddr) {
        self.disk_shown = Some(address);
    }

    /// Starts the servers that do not run, on the same ports and data as before. Blocks until they
    /// serve.
    pub fn start(&mut self) {
        // The metadata server is given the addresses of the disks.
        for at in 0..self.disks.len() {
            if self.disks[at].running.is_none() {
                self.start_disk(at, master());
            }
        }
        if self.meta.running.is_none() {
            self.start_meta();
        }
    }

    /// The metadata server, which does not run, is of a version that lacks this procedure and later
    /// ones.
    pub fn be_earlier_than(&mut self, procedure: u32) {
        self.procedures = procedure;
    }

    /// Disks that do not run are of a version that lacks this procedure and later ones.
    pub fn let_disks_be_earlier_than(&mut self, procedure: u32) {
        self.disk_procedures = procedure;
    }

    /// Starts the disk, which does not run, in the state of a disk that the metadata server has not
    /// refreshed in time: it refuses all requests. Blocks until it serves.
    pub fn start_distrustful_disk(&mut self) {
        self.start_disk(0, MasterKey::new([4; 32]));
    }

    fn start_disk(&mut self, at: usize, master: MasterKey) {
        let (setup, bytes, medium) = (self.setup, self.disk_bytes, self.disks[at].medium.open());
        let (clock, served) = (Arc::clone(&self.clock), Arc::clone(&self.disks[at].device));
        let procedures = self.disk_procedures;
        self.disks[at].run(async move {
            let identity = Identity { volume: VOLUME, disk: number(at), setup };
            let store = once_free(|| match Store::open(&*medium, "disk", &identity, bytes) {
                Err(OpenError::InUse) => None,
                opened => Some(opened.expect("the disk's own store")),
            });
            let device = Arc::new(Device::start(DiskConfig::new(identity, master, clock), store));
            *served.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&device);
            VersionedDisk::new(DiskService::new(device), procedures)
        });
    }

    fn start_meta(&mut self) {
        let (options, medium, boot) = (self.options.clone(), self.meta.medium.open(), self.boot);
        let addresses: Vec<SocketAddr> = self.disks.iter().map(|disk| disk.at).collect();
        let mut shown = addresses.clone();
        shown[0] = self.disk_shown.unwrap_or(shown[0]);
        let clock = Arc::clone(&self.clock);
        let served = Arc::clone(&self.engine);
        let (asking, mut asked) = unbounded_channel();
        self.asking = asking;
        let (procedures, passed_bytes) = (self.procedures, self.passed_bytes.clone());
        self.meta.run(async move {
            let engine = engine(&medium, boot);
            *served.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&engine);
            let reached = reached(addresses, passed_bytes).await;
            let of_engine = volume::disks(&*engine).expect("a volume");
            let owned = volume::take(&*engine).expect("a volume");
            let disks = of_engine.into_iter().map(|(disk, about)| {
                let (NewDisk { bytes, is_memory, .. }, at) = (about, disk.0 as usize - 1);
                let (address, public) = (reached[at], format!(":{}", shown[at].port()));
                DiskAddress { disk, bytes, address, public, is_memory, master: master() }
            });
            let disks = disks.collect();
            let disks = ControlledDisks::start(disks, owned.to_disks(), &clock);
            let disks = Arc::new(disks);
            let own = Arc::clone(&disks) as Arc<dyn Disks>;
            let metadata = Metadata::start(engine, owned, own, clock, options);
            disks.ready().await;
            let metadata = metadata.expect("a volume that nobody else has");
            let served = metadata.clone();
            tokio::spawn(async move {
                while let Some(asked) = asked.recv().await {
                    asked.answer(&served, &disks).await;
                }
            });
            Versioned::new(metadata, procedures)
        });
    }

    /// The inconsistencies of the volume, which must not be served.
    pub fn check(&self) -> Vec<String> {
        let faults = larder_meta::check(&*engine(&self.meta.medium.open(), self.boot));
        let faults = faults.expect("a volume that can be read");
        faults.iter().map(|fault| format!("{fault:?}")).collect()
    }

    /// Kills all servers in the middle of their work. What they have written stays.
    pub fn kill(&mut self) {
        self.kill_meta(Image::Written);
        self.disks.iter_mut().for_each(|disk| disk.kill(Image::Written));
    }

    /// Kills the metadata server. Of a simulated disk, `image` is what stays: if that is not all
    /// that was written, its machine has crashed.
    pub fn kill_meta(&mut self, image: Image) {
        self.boot += u128::from(image != Image::Written);
        self.meta.kill(image);
    }

    /// Kills all disks except memory disks; see [`kill_meta`](Self::kill_meta).
    pub fn kill_disks(&mut self, image: Image) {
        let lasting = self.disks();
        self.disks[..lasting].iter_mut().for_each(|disk| disk.kill(image));
    }

    /// Kills one disk, counted from 0; see [`kill_meta`](Self::kill_meta).
    pub fn kill_disk(&mut self, at: usize, image: Image) {
        self.disks[at].kill(image);
    }

    /// How many disks there are. Memory disks come after them.
    pub fn disks(&self) -> usize {
        self.disks.len() - self.memory_disks()
    }

    /// How many memory disks there are.
    pub fn memory_disks(&self) -> usize {
        self.disks.iter().filter(|disk| matches!(disk.medium, Medium::Memory)).count()
    }
}

/// The number of a disk that is counted from 0.
fn number(at: usize) -> DiskId {
    DiskId(u32::try_from(at).expect("a few") + 1)
}

/// Where the metadata server reaches disks: past a count, if there is one.
async fn reached(disks: Vec<SocketAddr>, count: Option<Arc<AtomicU64>>) -> Vec<SocketAddr> {
    let Some(count) = count else { return disks };
    let mut reached = Vec::new();
    for disk in disks {
        reached.push(Relay::counting(disk, Arc::clone(&count)).await.address);
    }
    reached
}

fn master() -> MasterKey {
    MasterKey::new([3; 32])
}

fn engine(disk: &Arc<dyn Disk>, boot: u128) -> Arc<dyn Engine> {
    once_free(|| match Embedded::open(disk, Sizes::default()) {
        Err(EngineError::Busy) => None,
        opened => Some(Arc::new(opened.expect("the engine's own directory").in_boot(boot))),
    })
}

/// A socket with this address. It does not listen, so a server can bind the same address.
fn bound(at: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    Ok(socket)
}

/// Retries until its previous owner has let go: threads of a killed server end a little later.
fn once_free<T>(mut open: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(opened) = open() {
            return opened;
        }
        assert!(Instant::now() < until, "nobody lets go of it");
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// While a server is dead, its port refuses connections and cannot be bound by other programs;
    /// the next server can bind it although its predecessor has only just been killed.
    #[test]
    fn servers_keep_their_ports_over_kills() {
        let mut volume = Volume::new(Setup::Off);
        let ports = [volume.meta.at, volume.disks[0].at];
        for _ in 0..20 {
            volume.kill();
            for at in ports {
                // A process that another test is starting may have inherited the socket; it closes
                // it as it begins its program.
                let refusal = once_free(|| TcpStream::connect(at).err());
                assert_eq!(refusal.kind(), ErrorKind::ConnectionRefused);
                let other = TcpSocket::new_v4().expect("a socket");
                let taken = other.bind(at).map_err(|error| error.kind());
                assert_eq!(taken, Err(ErrorKind::AddrInUse));
            }
            // The same as the server begins.
            let inherited = TcpListener::bind(ports[1]).expect("it is ours");
            std::thread::scope(|scope| {
                scope.spawn(|| volume.start());
                std::thread::yield_now();
                drop(inherited);
            });
            assert_eq!([volume.meta.at, volume.disks[0].at], ports);
            assert!(ports.iter().all(|at| TcpStream::connect(at).is_ok()));
        }
    }
}

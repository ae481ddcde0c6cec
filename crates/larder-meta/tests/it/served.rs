//! A metadata server with a real disk, and clients of both.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use larder_disk::{Config as DeviceConfig, Device, DiskService, Identity, Store};
use larder_disk_client::{DISK_PROGRAM, DiskClient, DiskError};
use larder_io::{Clock, MemDisk};
use larder_meta::disks::{ControlledDisks, DiskAddress, Disks, TrustInterval};
use larder_meta::engine::memory::MemoryEngine;
use larder_meta::volume::{self, NewDisk};
use larder_meta::{Metadata, Options};
use larder_rpc::server::{Config as ServerConfig, Server, Shutdown, SourcePorts};
use larder_rpc::{CallOptions, Config, RpcClient, SourcePort, Transport};
use larder_wire::capability::{Capability, DiskId, VolumeId};
use larder_wire::disk::session::Granted;
use larder_wire::meta::calls;
use larder_wire::meta::words::{
    FileId, Grant, Layout, Mode, OpenId, Sequence, SetAttributes, Time, Written,
};
use larder_wire::seal::{MasterKey, Secret, Setup};
use larder_wire::xdr::{Array, Decode};
use tokio::task::JoinHandle;

use crate::client::{Client, create, serve_metadata};
use crate::commits::commit;

pub(crate) const ROOT: FileId = FileId::ROOT;
pub(crate) const VOLUME: VolumeId = VolumeId([1; 16]);
pub(crate) const DISK: DiskId = DiskId(1);
pub(crate) const SIZE: u64 = 8 * 4096;

pub(crate) fn master() -> MasterKey {
    MasterKey::new([5; 32])
}

/// A disk that serves.
pub(crate) struct Served {
    medium: MemDisk,
    clock: Arc<dyn Clock>,
    pub(crate) address: SocketAddr,
    device: Option<Arc<Device>>,
    running: Option<(Shutdown, JoinHandle<()>)>,
    /// For how long servers let it trust.
    pub(crate) trusts: TrustInterval,
    setup: Setup,
}

impl Served {
    pub(crate) async fn new(clock: &Arc<dyn Clock>) -> Served {
        let address = "127.0.0.1:0".parse().unwrap();
        let clock = Arc::clone(clock);
        let (medium, device, running) = (MemDisk::new(), None, None);
        let (trusts, setup) = (TrustInterval::default(), Setup::Secure);
        let mut served = Served { medium, clock, address, device, running, trusts, setup };
        served.start().await;
        served
    }

    /// A new boot of the disk from an empty store, with this setup.
    pub(crate) async fn restart_empty(&mut self, setup: Setup) {
        self.stop().await;
        (self.medium, self.setup) = (MemDisk::new(), setup);
        self.start().await;
    }

    /// A new boot of the disk, on the port of the one before.
    pub(crate) async fn start(&mut self) {
        let identity = Identity { volume: VOLUME, disk: DISK, setup: self.setup };
        let store = Store::open(&self.medium, "disk", &identity, SIZE).unwrap();
        let config = DeviceConfig::new(identity, master(), Arc::clone(&self.clock));
        let device = Arc::new(Device::start(config, store));
        let service = DiskService::new(Arc::clone(&device));
        self.device = Some(device);
        let mut config = ServerConfig::new(self.address);
        (config.udp, config.source_ports) = (false, SourcePorts::Any);
        let server = Server::bind(config, service).await.unwrap();
        self.address = server.addr();
        self.running = Some((server.shutdown(), tokio::spawn(server.run())));
    }

    pub(crate) fn device(&self) -> &Device {
        self.device.as_ref().unwrap()
    }

    pub(crate) async fn stop(&mut self) {
        self.device = None;
        let (shutdown, task) = self.running.take().unwrap();
        shutdown.begin();
        task.await.unwrap();
    }
}

/// A volume on that disk, and a server of it.
pub(crate) async fn begin(
    engine: &MemoryEngine,
    served: &Served,
    clock: &Arc<dyn Clock>,
) -> (SocketAddr, Arc<ControlledDisks>) {
    begin_by(engine, served, served.address, clock).await
}

/// The same, with a server that reaches the disk at `address`.
pub(crate) async fn begin_by(
    engine: &MemoryEngine,
    served: &Served,
    address: SocketAddr,
    clock: &Arc<dyn Clock>,
) -> (SocketAddr, Arc<ControlledDisks>) {
    let (metadata, disks) = serve_by(engine, served, address, clock).await;
    (serve_metadata(metadata).await, disks)
}

/// The same, without a socket.
pub(crate) async fn serve_by(
    engine: &MemoryEngine,
    served: &Served,
    address: SocketAddr,
    clock: &Arc<dyn Clock>,
) -> (Metadata, Arc<ControlledDisks>) {
    // There may be one with another setup already.
    let _ = volume::create(engine, VOLUME, 1, Time::default());
    let (metadata, disks) = start_by(engine, served, address, clock);
    disks.ready().await;
    (metadata, disks)
}

/// The same of a volume that is there, and does not wait until the disk can be used.
pub(crate) fn start_by(
    engine: &MemoryEngine,
    served: &Served,
    address: SocketAddr,
    clock: &Arc<dyn Clock>,
) -> (Metadata, Arc<ControlledDisks>) {
    if volume::disks(engine).unwrap().is_empty() {
        let new = NewDisk {
            id: [3; 16],
            address: served.address.to_string(),
            bytes: SIZE,
            is_memory: false,
        };
        assert_eq!(volume::add_disk(engine, &new).unwrap(), DISK);
    }
    let owned = volume::take_trusting(engine, served.trusts).unwrap();
    let public = served.address.to_string();
    let disks = vec![DiskAddress {
        disk: DISK,
        bytes: 0,
        address,
        public,
        is_memory: false,
        master: master(),
    }];
    let disks = ControlledDisks::start_trusting(disks, owned.to_disks(), owned.trust(), clock);
    let disks = Arc::new(disks);
    let (own, engine) = (Arc::clone(&disks) as Arc<dyn Disks>, Arc::new(engine.clone()));
    let metadata =
        Metadata::start(engine, owned, own, Arc::clone(clock), Options::default()).unwrap();
    (metadata, disks)
}

/// A connection to a disk.
pub(crate) async fn connect(disk: SocketAddr) -> RpcClient {
    let mut config = Config::new(disk, Transport::Tcp, DISK_PROGRAM);
    config.source_port = SourcePort::Any;
    RpcClient::connect(config).await.unwrap()
}

pub(crate) fn granted(grant: &Grant) -> Granted {
    let capability = Capability::decode(&mut grant.capability.0.clone()).unwrap();
    Granted { capability, secret: Secret::new(grant.secret) }
}

/// A client of both servers.
pub(crate) struct Both {
    pub(crate) meta: Client,
    pub(crate) disk: DiskClient,
    sequence: u32,
}

impl Both {
    pub(crate) async fn connect(meta: SocketAddr, disk: SocketAddr, client: u8) -> Both {
        let meta = Client::connect(meta, client, 1).await;
        Both { meta, disk: DiskClient::new(connect(disk).await), sequence: 0 }
    }

    pub(crate) fn next(&mut self) -> Sequence {
        self.sequence += 1;
        self.meta.sequence(0, self.sequence)
    }

    /// Makes a file of as many blocks as this text takes, with the text in it. Returns the file and
    /// its layout.
    pub(crate) async fn write(&mut self, name: &str, text: &'static [u8]) -> (FileId, Layout) {
        let range = (0..(text.len() as u64).next_multiple_of(4096)).into();
        let call = calls::Open { range, ..create(self.next(), ROOT, name) };
        let opened = self.meta.call(call).await.unwrap();
        let (file, layout) = (opened.file.after.file, opened.layout);
        let (extent, grant) = (layout.extents.0[0], granted(&layout.grants.0[0]));
        let (data, options) = (Bytes::from_static(text), CallOptions::default());
        self.disk.write(&grant, extent.position, data, true, options).await.unwrap();
        let written = Written {
            offset: 0,
            length: text.len() as u64,
            disk: extent.disk,
            position: extent.position,
        };
        let (sequence, open) = (self.next(), opened.open);
        let commit = calls::CommitExtents { open, ..commit(sequence, file, vec![written]) };
        self.meta.call(commit).await.unwrap();
        let close = calls::Close { sequence: self.next(), opens: Array(vec![open]) };
        self.meta.call(close).await.unwrap();
        (file, layout)
    }

    pub(crate) async fn layout(&self, file: FileId) -> Layout {
        let (session, open, mode) = (self.meta.session, OpenId::NONE, Mode::Read);
        let range = (0..SIZE).into();
        let call = calls::GetCaps { session, file, open, mode, range };
        self.meta.call(call).await.unwrap().layout
    }

    /// Has a file's mode changed, which revokes capabilities. On return that is carried out, and
    /// maybe not answered.
    pub(crate) async fn begin_to_close_to_others(&mut self, file: FileId) -> JoinHandle<()> {
        let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        let (sequence, open) = (self.next(), OpenId::NONE);
        let call = calls::SetAttr { sequence, file, open, set, guard: None };
        let meta = self.meta.clone();
        let asked = tokio::spawn(async move {
            meta.call(call).await.unwrap();
        });
        let session = self.meta.session;
        while self.meta.call(calls::GetAttr { session, file }).await.unwrap().mode != 0o600 {
            tokio::task::yield_now().await;
        }
        asked
    }

    pub(crate) async fn read(&self, layout: &Layout, length: u32) -> Result<Bytes, DiskError> {
        let (position, grant) = (layout.extents.0[0].position, granted(&layout.grants.0[0]));
        self.disk.read(&grant, position, length, CallOptions::default()).await
    }
}

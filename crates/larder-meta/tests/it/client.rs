//! A client of the metadata program, and disks that are always there.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use larder_io::{Disk, RealClock};
use larder_meta::disks::{Acknowledged, CapabilityName, Copied, Disks, Minted, Outcome, Witnessed};
use larder_meta::engine::embedded::{Embedded, Sizes};
use larder_meta::volume::{self, NewDisk};
use larder_meta::{Metadata, Options, PROGRAM};
use larder_rpc::server::{Config as ServerConfig, Server, SourcePorts};
use larder_rpc::{CallOptions, Config, Recovery, RpcClient, SourcePort, Transport};
use larder_wire::Procedure;
use larder_wire::capability::{CapabilityId, GroupId};
use larder_wire::meta::calls::{self, OpenWhat, Opened};
use larder_wire::meta::words::{
    ByteRange, Dentry, DiskId, DiskInfo, FileId, IfExists, LeaseKind, Medium, Mode, Name, Sequence,
    SessionId, SetAttributes, Time, VolumeId,
};
use larder_wire::meta::{BLOCK_BYTES, Res};

/// The longest that anything here may take.
const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const DISK_BLOCKS: u64 = 1 << 16;

/// Small sizes, so that a test reaches checkpoints.
pub(crate) const SIZES: Sizes =
    Sizes { log_bytes: 1 << 20, layers_bytes: 128 << 10, cache_bytes: 4 << 20 };

/// Disks that carry out every request at once.
#[derive(Debug, Default)]
pub(crate) struct GoodDisks(AtomicU32);

impl Disks for GoodDisks {
    fn list(&self) -> Vec<DiskInfo> {
        Vec::new()
    }

    fn is_there(&self, _disk: DiskId) -> bool {
        true
    }

    fn mint(&self, _disk: DiskId, _mode: Mode, _bytes: &[Range<u64>]) -> Option<Minted> {
        let id = CapabilityId(self.0.fetch_add(1, Ordering::Relaxed));
        let name = CapabilityName { group: GroupId(1), id };
        let capability = Bytes::from_static(b"capability");
        Some(Minted { name, capability, secret: [0; 32], lasts: PATIENCE, boot: 0 })
    }

    fn revoke(&self, _capabilities: Vec<(DiskId, CapabilityName)>) -> Acknowledged {
        Box::pin(std::future::ready(()))
    }

    fn clear(&self, _blocks: Vec<(DiskId, Range<u64>)>) -> Acknowledged {
        Box::pin(std::future::ready(()))
    }

    fn await_written(&self, _: Vec<(DiskId, Range<u64>)>) -> Witnessed {
        Box::pin(std::future::ready(true))
    }

    fn flush(&self, _disks: Vec<DiskId>) -> Acknowledged {
        Box::pin(std::future::ready(()))
    }

    fn copy(&self, _: (DiskId, Minted), _: (DiskId, Minted), _: Range<u64>, _: u64) -> Copied {
        Box::pin(std::future::ready(Outcome::Done))
    }

    fn void_all(&self) -> Acknowledged {
        Box::pin(std::future::ready(()))
    }
}

/// A volume in a directory of `disk`: made if there is none.
pub(crate) fn engine(disk: &Arc<dyn Disk>) -> Embedded {
    let engine = Embedded::open(disk, SIZES).unwrap();
    match volume::create(&engine, VolumeId([1; 16]), 1, Time::default()) {
        Ok(()) => {
            let bytes = DISK_BLOCKS * BLOCK_BYTES;
            let new = NewDisk { id: [2; 16], address: "nowhere:1".into(), bytes, is_memory: false };
            volume::add_disk(&engine, &new).unwrap();
        }
        Err(volume::VolumeError::Exists) => (),
        Err(error) => panic!("{error}"),
    }
    engine
}

/// Serves the volume until the runtime ends.
pub(crate) async fn serve(engine: Embedded) -> SocketAddr {
    let (disks, clock) = (Arc::new(GoodDisks::default()), Arc::new(RealClock));
    let volume = volume::take(&engine).unwrap();
    let engine = Arc::new(engine);
    let metadata = Metadata::start(engine, volume, disks, clock, Options::default()).unwrap();
    serve_metadata(metadata).await
}

/// Puts a metadata server behind a socket.
pub(crate) async fn serve_metadata(metadata: Metadata) -> SocketAddr {
    let mut config = ServerConfig::new("127.0.0.1:0".parse().unwrap());
    (config.udp, config.source_ports) = (false, SourcePorts::Any);
    let server = Server::bind(config, metadata).await.unwrap();
    let address = server.addr();
    tokio::spawn(server.run());
    address
}

/// A client with a session.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) rpc: RpcClient,
    pub(crate) session: SessionId,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr, client: u8, boot: u64) -> Client {
        let mut config = Config::new(address, Transport::Tcp, PROGRAM);
        (config.source_port, config.recovery) = (SourcePort::Any, Recovery::Hard);
        let rpc = RpcClient::connect(config).await.unwrap();
        let mut client = Client { rpc, session: SessionId([client; 16]) };
        let call = calls::Session { client: client.session.0, boot, slots: 64 };
        client.session = client.call(call).await.unwrap().session;
        client
    }

    /// A call by the superuser.
    pub(crate) async fn call<P: Procedure>(&self, call: P) -> P::Res {
        let root = self.rpc.auth_sys(0, 0, &[]);
        let called = self.rpc.call(&root, &call, CallOptions::default());
        let reply = tokio::time::timeout(PATIENCE, called).await.expect("the test hangs");
        reply.unwrap().results
    }

    pub(crate) fn sequence(&self, slot: u32, sequence: u32) -> Sequence {
        Sequence { session: self.session, slot, sequence }
    }

    /// Makes a file and allocates a block of it.
    pub(crate) async fn create(&self, at: (u32, u32), dir: FileId, text: &str) -> Res<Opened> {
        self.call(create(self.sequence(at.0, at.1), dir, text)).await
    }

    pub(crate) async fn lookup(&self, dir: FileId, text: &str) -> Option<FileId> {
        let call = calls::Lookup { session: self.session, dentry: dentry(dir, text) };
        self.call(call).await.unwrap().found.map(|found| found.file)
    }
}

pub(crate) fn create(sequence: Sequence, dir: FileId, text: &str) -> calls::Open {
    let set = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
    let create = calls::Create { dentry: dentry(dir, text), set, if_exists: IfExists::Fail };
    calls::Open {
        sequence,
        what: OpenWhat::Create(create),
        mode: Mode::ReadWrite,
        lease: LeaseKind::None,
        range: ByteRange { offset: 0, length: BLOCK_BYTES },
        allocate: Some(Medium::Disk),
    }
}

pub(crate) fn dentry(dir: FileId, text: &str) -> Dentry {
    Dentry { dir, name: Name::new(Bytes::copy_from_slice(text.as_bytes())).unwrap() }
}

//! A disk that fetches bytes of another one, on an order of the metadata server.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use larder_disk::{Config, Device, DiskService, Identity, Store};
use larder_disk_client::{Control, DISK_PROGRAM, DiskClient, DiskControl, DiskError};
use larder_io::{MemDisk, RealClock};
use larder_rpc::server::{Config as ServerConfig, Server, SourcePorts};
use larder_rpc::{CallOptions, Config as ClientConfig, RpcClient, SourcePort, Transport};
use larder_wire::capability::{
    BootEpoch, Capability, CapabilityId, DiskId, Extents, GroupId, KeyEpoch, Mode, VolumeId,
};
use larder_wire::disk::DATA_BYTES_MAX;
use larder_wire::disk::session::Granted;
use larder_wire::disk::words::{Refusal, Trust};
use larder_wire::seal::{MasterKey, Setup};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::stand::{GROUP, KEY, SIZE, VOLUME, extent};

const SOURCE: DiskId = DiskId(1);
const TARGET: DiskId = DiskId(2);
const CONTENT: &[u8] = b"what the other disk has";
const LENGTH: u32 = CONTENT.len() as u32;
/// Where it is on the source, and where it is to be on the target.
const FROM: u64 = 5000;
const TO: u64 = 9000;

/// A disk that listens, with a metadata server that has told it everything.
struct Served {
    address: SocketAddr,
    disk: DiskId,
    boot: BootEpoch,
    control: DiskControl,
}

/// Each disk has a key of its own.
fn master(disk: DiskId) -> MasterKey {
    MasterKey::new([u8::try_from(disk.0).unwrap(); 32])
}

async fn rpc_to(address: SocketAddr) -> RpcClient {
    let mut config = ClientConfig::new(address, Transport::Tcp, DISK_PROGRAM);
    config.source_port = SourcePort::Any;
    RpcClient::connect(config).await.unwrap()
}

impl Served {
    async fn start(disk: DiskId, setup: Setup) -> Served {
        let identity = Identity { volume: VOLUME, disk, setup };
        let store = Store::open(&MemDisk::new(), "disk", &identity, SIZE).unwrap();
        let config = Config::new(identity, master(disk), Arc::new(RealClock));
        let device = Arc::new(Device::start(config, store));
        let mut config = ServerConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        (config.udp, config.source_ports) = (false, SourcePorts::Any);
        let server = Server::bind(config, DiskService::new(device)).await.unwrap();
        let address = server.addr();
        tokio::spawn(server.run());
        let control = Served::owned(address, disk, 1).await;
        control.rotate(KEY).await.unwrap();
        control.replace_group(None, GROUP).await.unwrap();
        let (done, boot) = control.refresh(None).await.unwrap();
        let trust = Trust { boot, until_ms: done.clock_ms + 60_000 };
        control.refresh(Some(trust)).await.unwrap();
        Served { address, disk, boot, control }
    }

    async fn owned(address: SocketAddr, disk: DiskId, owner: u64) -> DiskControl {
        let control = Control { master: master(disk), volume: VOLUME, disk, owner };
        DiskControl::new(rpc_to(address).await, control)
    }

    fn capability(&self, mode: Mode, id: u32, (offset, length): (u64, u64)) -> Capability {
        Capability {
            volume: VOLUME,
            disk: self.disk,
            boot: self.boot,
            key: KEY,
            group: GROUP,
            id: CapabilityId(id),
            mode,
            expiry_ms: 60_000,
            extents: Extents::new(vec![extent(offset, length)]).unwrap(),
        }
    }

    fn grant(&self, mode: Mode, id: u32, bytes: (u64, u64)) -> Granted {
        Granted::mint(&master(self.disk), self.capability(mode, id, bytes))
    }

    async fn client(&self) -> DiskClient {
        DiskClient::new(rpc_to(self.address).await)
    }

    /// The bytes that are to be what the other disk has.
    async fn read(&self) -> Bytes {
        let granted = self.grant(Mode::Read, 1, (0, SIZE));
        self.client().await.read(&granted, TO, LENGTH, CallOptions::default()).await.unwrap()
    }

    async fn fetch(
        &self,
        to: (&Capability, u64),
        from: (&Granted, &str, u64),
        length: u32,
    ) -> Result<Option<String>, DiskError> {
        self.control.fetch(to, from, length).await
    }
}

/// The source, which has the content, and the target.
async fn both(setup: Setup) -> (Served, Served) {
    let (source, target) = (Served::start(SOURCE, setup).await, Served::start(TARGET, setup).await);
    let granted = source.grant(Mode::Write, 1, (0, SIZE));
    let (data, options) = (Bytes::from_static(CONTENT), CallOptions::default());
    source.client().await.write(&granted, FROM, data, true, options).await.unwrap();
    (source, target)
}

/// An address without a host is on the machine from which the order comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_fetches_what_another_one_has_in_every_setup() {
    for setup in [Setup::Off, Setup::Secure, Setup::Private] {
        let (source, target) = both(setup).await;
        let reading = source.grant(Mode::Read, 2, (FROM, LENGTH.into()));
        let writing = target.capability(Mode::Write, 2, (TO, LENGTH.into()));
        for address in [source.address.to_string(), format!(":{}", source.address.port())] {
            let from = (&reading, address.as_str(), FROM);
            assert_eq!(target.fetch((&writing, TO), from, LENGTH).await, Ok(None), "{setup:?}");
            assert_eq!(target.read().await, CONTENT);
        }
    }
}

/// Each disk checks the capability for its own bytes, that for writing in each setup. The target
/// refuses what it may not write; what the source refuses is in the answer, in words.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_not_be_read_or_written_is_not_fetched() {
    for setup in [Setup::Off, Setup::Secure, Setup::Private] {
        let (source, target) = both(setup).await;
        let address = source.address.to_string();
        let reading = source.grant(Mode::Read, 2, (FROM, LENGTH.into()));
        let writing = target.capability(Mode::Write, 2, (TO, LENGTH.into()));
        let written = |change: fn(&mut Capability)| {
            let mut capability = writing.clone();
            change(&mut capability);
            capability
        };
        let table = [
            (written(|one| one.mode = Mode::Read), LENGTH, Refusal::WrongMode),
            (written(|one| one.disk = SOURCE), LENGTH, Refusal::WrongDisk),
            (written(|one| one.volume = VolumeId([8; 16])), LENGTH, Refusal::WrongVolume),
            (written(|one| one.boot = BootEpoch(1)), LENGTH, Refusal::OldBoot),
            (written(|one| one.key = KeyEpoch(KEY.0 - 2)), LENGTH, Refusal::OldKey),
            (written(|one| one.group = GroupId(1)), LENGTH, Refusal::OldGroup),
            (written(|one| one.expiry_ms = 0), LENGTH, Refusal::Expired),
            (writing.clone(), LENGTH + 1, Refusal::OutOfExtents),
            (writing.clone(), 0, Refusal::Malformed),
            (writing.clone(), DATA_BYTES_MAX as u32 + 1, Refusal::Malformed),
        ];
        for (capability, length, expected) in table {
            let asked = target.fetch((&capability, TO), (&reading, &address, FROM), length).await;
            assert_eq!(asked, Err(DiskError::Refused(expected)), "{setup:?}");
        }
        let nonsense = target.fetch((&writing, TO), (&reading, "host:1", FROM), LENGTH).await;
        assert_eq!(nonsense, Err(DiskError::Refused(Refusal::Malformed)));
        let mut unread = vec![("127.0.0.1:9".to_owned(), reading.clone(), "Connection refused")];
        if setup != Setup::Off {
            let revoked = source.grant(Mode::Read, 3, (FROM, LENGTH.into()));
            source.control.revoke(GROUP, vec![CapabilityId(3)]).await.unwrap();
            let short = source.grant(Mode::Read, 4, (FROM, 1));
            let forged = Granted { secret: short.secret.clone(), ..reading.clone() };
            unread.push((address.clone(), revoked, Refusal::Revoked.as_str()));
            unread.push((address.clone(), short, Refusal::OutOfExtents.as_str()));
            unread.push((address.clone(), forged, Refusal::Forged.as_str()));
        }
        for (address, reading, expected) in unread {
            let asked = target.fetch((&writing, TO), (&reading, &address, FROM), LENGTH).await;
            let why = asked.unwrap().expect("it was not read");
            assert!(why.contains(expected) && why.contains(&address), "{setup:?}: {why}");
        }
        assert_eq!(target.read().await, vec![0; CONTENT.len()]);
    }
}

/// While a disk waits for another one, its capability to write ends, and the volume gets another
/// owner: neither waits for that, and what comes later is not written, in any setup.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_fetched_under_a_capability_that_has_ended_meanwhile() {
    for setup in [Setup::Off, Setup::Secure, Setup::Private] {
        let (source, target) = both(setup).await;
        let gate = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = gate.local_addr().unwrap().to_string();
        let ((came, is_there), (open, is_open)) = (oneshot::channel(), oneshot::channel());
        let behind = source.address;
        tokio::spawn(async move {
            let (mut from, _) = gate.accept().await.unwrap();
            came.send(()).unwrap();
            is_open.await.unwrap();
            let mut to = TcpStream::connect(behind).await.unwrap();
            // Until the test is over.
            let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
        });
        let reading = source.grant(Mode::Read, 2, (FROM, LENGTH.into()));
        let writing = target.capability(Mode::Write, 2, (TO, LENGTH.into()));
        let target = Arc::new(target);
        let own = Arc::clone(&target);
        let fetching = tokio::spawn(async move {
            own.fetch((&writing, TO), (&reading, &address, FROM), LENGTH).await
        });
        is_there.await.unwrap();
        let next = Served::owned(target.address, TARGET, 2).await;
        next.revoke(GROUP, vec![CapabilityId(2)]).await.unwrap();
        open.send(()).unwrap();
        let refused = Err(DiskError::Refused(Refusal::Revoked));
        assert_eq!(fetching.await.unwrap(), refused, "{setup:?}");
        assert_eq!(target.read().await, vec![0; CONTENT.len()]);
    }
}

//! Clients over real connections, with the calling side that they use (`larder-disk-client`).

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use larder_disk::{Config, Device, DiskService, Identity, Store};
use larder_disk_client::{Control, DISK_PROGRAM, DiskClient, DiskControl, DiskError};
use larder_io::{Disk, MemDisk, RealClock};
use larder_rpc::server::{Config as ServerConfig, Server, Shutdown, SourcePorts};
use larder_rpc::{CallOptions, Config as ClientConfig, RpcClient, SourcePort, Transport};
use larder_wire::capability::{
    BootEpoch, Capability, CapabilityId, Extents, GroupId, KeyEpoch, Mode,
};
use larder_wire::disk::SEQUENCE_END;
use larder_wire::disk::session::Granted;
use larder_wire::disk::words::{Refusal, Remedy, Trust};
use larder_wire::seal::Setup;

use crate::stand::{DISK, GROUP, KEY, SIZE, VOLUME, extent, master};
use crate::tampering::{Change, STATUS, Tampering};

/// A disk that listens.
struct Listening {
    address: SocketAddr,
    shutdown: Shutdown,
    served: tokio::task::JoinHandle<()>,
}

impl Listening {
    async fn start(disk: &dyn Disk, setup: Setup, address: SocketAddr) -> Listening {
        let identity = Identity { volume: VOLUME, disk: DISK, setup };
        let store = Store::open(disk, "disk", &identity, SIZE).unwrap();
        let device = Device::start(Config::new(identity, master(), Arc::new(RealClock)), store);
        let mut config = ServerConfig::new(address);
        config.udp = false;
        config.source_ports = SourcePorts::Any;
        let server = Server::bind(config, DiskService::new(Arc::new(device))).await.unwrap();
        let (address, shutdown) = (server.addr(), server.shutdown());
        Listening { address, shutdown, served: tokio::spawn(server.run()) }
    }

    async fn rpc(&self) -> RpcClient {
        rpc_to(self.address).await
    }

    /// A metadata server that has told the disk everything, and the boot.
    async fn control(&self) -> (DiskControl, BootEpoch) {
        let control = Control { master: master(), volume: VOLUME, disk: DISK, owner: 1 };
        let control = DiskControl::new(self.rpc().await, control);
        control.rotate(KEY).await.unwrap();
        control.replace_group(None, GROUP).await.unwrap();
        let (done, boot) = control.refresh(None).await.unwrap();
        let trust = Trust { boot, until_ms: done.clock_ms + 60_000 };
        control.refresh(Some(trust)).await.unwrap();
        (control, boot)
    }

    async fn stop(self) {
        self.shutdown.begin();
        self.served.await.unwrap();
    }
}

async fn rpc_to(address: SocketAddr) -> RpcClient {
    let mut config = ClientConfig::new(address, Transport::Tcp, DISK_PROGRAM);
    config.source_port = SourcePort::Any;
    RpcClient::connect(config).await.unwrap()
}

fn grant(boot: BootEpoch, id: u32) -> Granted {
    let extents = Extents::new(vec![extent(0, SIZE)]).unwrap();
    let capability = Capability {
        volume: VOLUME,
        disk: DISK,
        boot,
        key: KEY,
        group: GROUP,
        id: CapabilityId(id),
        mode: Mode::ReadWrite,
        expiry_ms: 60_000,
        extents,
    };
    Granted::mint(&master(), capability)
}

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// In each setup, data is written and read back, and the metadata server's orders are obeyed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_goes_there_and_back_in_every_setup() {
    for setup in [Setup::Off, Setup::Secure, Setup::Private] {
        let disk = MemDisk::new();
        let listening = Listening::start(&disk, setup, anywhere()).await;
        let (control, boot) = listening.control().await;
        let client = Arc::new(DiskClient::new(listening.rpc().await));
        let granted = grant(boot, 1);
        let tasks: Vec<_> = (0..16_u64)
            .map(|number| {
                let (client, granted) = (Arc::clone(&client), granted.clone());
                tokio::spawn(async move {
                    let data = Bytes::from(vec![number as u8 + 1; 9000]);
                    let offset = number * 16_000;
                    client
                        .write(
                            &granted,
                            offset,
                            data.clone(),
                            number % 2 == 0,
                            CallOptions::default(),
                        )
                        .await?;
                    let read = client.read(&granted, offset, 9000, CallOptions::default()).await?;
                    assert_eq!(read, data);
                    Ok::<_, DiskError>(())
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        client.flush(&granted, CallOptions::default()).await.unwrap();
        let whole = client.read(&granted, 0, SIZE as u32, CallOptions::default()).await.unwrap();
        for (at, byte) in whole.iter().enumerate() {
            let expected =
                if at < 256_000 && at % 16_000 < 9000 { (at / 16_000) as u8 + 1 } else { 0 };
            assert_eq!(*byte, expected, "{setup:?}: byte {at}");
        }
        control.copy(extent(0, 4096), 9000 + 4).await.unwrap();
        control.clear(Extents::new(vec![extent(0, 5000)]).unwrap()).await.unwrap();
        let status = control.status().await.unwrap();
        assert_eq!((status.setup, status.size), (setup, SIZE));
        assert_eq!(
            client.read(&granted, 4999, 2, CallOptions::default()).await.unwrap(),
            &[0, 1][..]
        );
        assert_eq!(
            client.read(&granted, 9000 + 4, 1, CallOptions::default()).await.unwrap(),
            &[1][..]
        );

        control.revoke(GROUP, vec![CapabilityId(1)]).await.unwrap();
        let refused = client.read(&granted, 0, 1, CallOptions::default()).await;
        if setup == Setup::Off {
            refused.unwrap();
        } else {
            let refused = refused.unwrap_err();
            assert_eq!(refused, DiskError::Refused(Refusal::Revoked));
            assert_eq!(refused.remedy(), Remedy::Capability);
            // Another capability is good in the same session at once.
            client.read(&grant(boot, 2), 0, 1, CallOptions::default()).await.unwrap();
        }
        listening.stop().await;
    }
}

/// After a restart of the disk a client is told that its capability belongs to an earlier boot;
/// with one of the new boot it continues, and what was flushed is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_goes_on_after_a_restart_of_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let disk = larder_io::RealDisk::open(dir.path()).unwrap();
    let listening = Listening::start(&disk, Setup::Secure, anywhere()).await;
    let (_, boot) = listening.control().await;
    let client = DiskClient::new(listening.rpc().await);
    let granted = grant(boot, 1);
    client
        .write(&granted, 100, Bytes::from_static(b"kept"), false, CallOptions::default())
        .await
        .unwrap();
    assert_eq!(client.flush(&granted, CallOptions::default()).await.unwrap(), boot);
    let address = listening.address;
    listening.stop().await;

    let listening = Listening::start(&disk, Setup::Secure, address).await;
    let refused = client.read(&granted, 100, 4, CallOptions::default()).await.unwrap_err();
    assert_eq!(refused, DiskError::Hearsay(Refusal::OldBoot));
    assert_eq!(refused.remedy(), Remedy::Capability);
    let (_, new_boot) = listening.control().await;
    assert_ne!(new_boot, boot);
    let granted = grant(new_boot, 1);
    assert_eq!(client.read(&granted, 100, 4, CallOptions::default()).await.unwrap(), &b"kept"[..]);
    listening.stop().await;
}

/// Whoever is between the client and the disk alters answers, and gives two of them to each other's
/// calls. The client takes none of them, counts them, and continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_not_the_disks_are_refused_and_counted() {
    // Positions in an answer, behind the header and the status.
    const RESULTS: usize = STATUS + 4 + 4 + 3;
    const SEAL: usize = STATUS + 4 + 8;
    const DATA: usize = STATUS + 4 + 8 + 16 + 4;
    const WELCOME_NONCE: usize = STATUS + 4 + 8 + 8 + 4;
    for setup in [Setup::Secure, Setup::Private] {
        let disk = MemDisk::new();
        let listening = Listening::start(&disk, setup, anywhere()).await;
        let (_, boot) = listening.control().await;
        let between = Tampering::before(listening.address).await;
        let client = DiskClient::new(rpc_to(between.address).await);
        let (granted, options) = (grant(boot, 1), CallOptions::default());
        let read = |offset| client.read(&granted, offset, 3, options);
        let is_forged =
            |read: Result<Bytes, DiskError>| matches!(read, Err(DiskError::NotGenuine(_)));
        client.write(&granted, 0, Bytes::from_static(b"onetwo"), true, options).await.unwrap();
        for (at, position) in [RESULTS, SEAL, DATA].into_iter().enumerate() {
            // In a session that is there.
            assert_eq!(read(0).await.unwrap(), &b"one"[..]);
            assert_eq!(client.forged(), at as u64);
            between.next(Change::Flip(position));
            assert!(is_forged(read(0).await), "{setup:?}: byte {position}");
        }
        // After an answer that was not the disk's the client makes another session.
        between.next(Change::Flip(WELCOME_NONCE));
        assert!(is_forged(read(0).await), "{setup:?}: the answer to the handshake");
        assert_eq!(client.forged(), 4);

        assert_eq!(read(3).await.unwrap(), &b"two"[..]);
        between.next(Change::Swap);
        let (one, two) = tokio::join!(read(0), read(3));
        assert!(is_forged(one) && is_forged(two), "{setup:?}: swapped");
        assert_eq!(client.forged(), 6);
        assert_eq!(read(0).await.unwrap(), &b"one"[..]);
        assert_eq!(client.forged(), 6);
        listening.stop().await;
    }
}

/// Somebody says, without a seal, that the disk has no key of a write's capability any more: it may
/// be so, or the write may still come. The client writes again in the same session if its next
/// capability has a key by which the disk does not accept the first one, and makes another session
/// otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_key_is_said_to_be_too_old_comes_no_later_than_the_next_one() {
    // How often the keys are rotated, by how much the next key is higher, and how many handshakes
    // the client makes in all. It cannot have what the disk does not accept.
    for (rotations, higher, expected) in [(0, 0, 2), (1, 0, 2), (1, 1, 2), (2, 1, 2), (2, 2, 1)] {
        let disk = MemDisk::new();
        let listening = Listening::start(&disk, Setup::Secure, anywhere()).await;
        let (control, boot) = listening.control().await;
        let between = Tampering::before(listening.address).await;
        let rpc = rpc_to(between.address).await;
        let client = DiskClient::new(rpc.clone());
        let options = CallOptions::default();
        let with_key = |higher| {
            let capability =
                Capability { key: KeyEpoch(KEY.0 + higher), ..grant(boot, 1).capability };
            Granted::mint(&master(), capability)
        };
        let write = |higher, data: &'static [u8]| {
            let (client, granted) = (&client, with_key(higher));
            async move { client.write(&granted, 0, Bytes::from_static(data), true, options).await }
        };
        write(0, b"zero").await.unwrap();
        for more in 1..=rotations {
            control.rotate(KeyEpoch(KEY.0 + more)).await.unwrap();
        }
        between.next(Change::Refusal(Refusal::OldKey));
        let refused = write(0, b"one!").await.unwrap_err();
        assert_eq!(refused, DiskError::Hearsay(Refusal::OldKey));
        if rotations == 2 {
            // Another holder of an old capability, whose handshake is refused.
            let other = client.read(&with_key(0), 0, 4, options).await.unwrap_err();
            assert_eq!(other, DiskError::Hearsay(Refusal::OldKey));
        }
        write(higher, b"two!").await.unwrap();
        assert_eq!(client.read(&with_key(higher), 0, 4, options).await.unwrap(), &b"two!"[..]);
        let all = rpc.stats().procedures;
        let handshakes = all.iter().find(|one| one.name == "HANDSHAKE").unwrap().calls;
        let more = u64::from(rotations == 2);
        assert_eq!(handshakes, expected + more, "{rotations} rotations, {higher} higher");
        listening.stop().await;
    }
}

/// A session has so many numbers, and no more. The client whose numbers come to their end makes
/// another one, and its callers notice nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_at_the_end_of_its_numbers_is_made_anew() {
    let disk = MemDisk::new();
    let listening = Listening::start(&disk, Setup::Secure, anywhere()).await;
    let (control, boot) = listening.control().await;
    let rpc = listening.rpc().await;
    let handshakes = || {
        let procedures = rpc.stats().procedures;
        procedures.iter().find(|one| one.name == "HANDSHAKE").map_or(0, |one| one.calls)
    };
    let client = Arc::new(DiskClient::new(rpc.clone()));
    let (granted, options) = (grant(boot, 1), CallOptions::default());
    client.write(&granted, 0, Bytes::from_static(b"one"), false, options).await.unwrap();
    client.skip_to(SEQUENCE_END - 5);
    let calls: Vec<_> = (0..40_u64)
        .map(|number| {
            let (client, granted) = (Arc::clone(&client), granted.clone());
            tokio::spawn(async move {
                let data = Bytes::from(vec![number as u8; 8]);
                client.write(&granted, 4096 + number * 8, data, false, options).await?;
                client.read(&granted, 0, 3, options).await
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), &b"one"[..]);
    }
    assert_eq!(handshakes(), 2);
    let written = client.read(&granted, 4096, 320, options).await.unwrap();
    assert!(written.chunks(8).zip(0_u8..).all(|(bytes, number)| bytes == [number; 8]));
    let refused = control.status().await.unwrap().refusals.0;
    // Nothing but requests of the session that has ended, which were sent again in the next.
    assert!(refused.iter().all(|one| one.refusal == Refusal::UnknownSession), "{refused:?}");
    listening.stop().await;
}

/// A client whose session the disk has forgotten makes a new handshake and continues, without its
/// caller's help.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_session_is_made_anew() {
    let disk = MemDisk::new();
    let listening = Listening::start(&disk, Setup::Secure, anywhere()).await;
    let (_, boot) = listening.control().await;
    let granted = grant(boot, 1);
    let clients = [DiskClient::new(listening.rpc().await), DiskClient::new(listening.rpc().await)];
    let mut sessions = 0;
    for round in 0..40_u8 {
        let data = Bytes::from(vec![round; 100]);
        clients[0].write(&granted, 0, data.clone(), false, CallOptions::default()).await.unwrap();
        // Other clients make sessions under the same capability, until the first is displaced.
        let other = DiskClient::new(listening.rpc().await);
        assert_eq!(other.read(&granted, 0, 100, CallOptions::default()).await.unwrap(), data);
        assert_eq!(clients[1].read(&granted, 0, 100, CallOptions::default()).await.unwrap(), data);
        sessions += 1;
    }
    assert!(sessions > larder_disk::sessions::OPENED_MAX);
    let group = GroupId(GROUP.0 + 1);
    let control = Control { master: master(), volume: VOLUME, disk: DISK, owner: 1 };
    let control = DiskControl::new(listening.rpc().await, control);
    control.replace_group(Some(GROUP), group).await.unwrap();
    let refused = clients[0].read(&granted, 0, 100, CallOptions::default()).await;
    assert_eq!(refused.unwrap_err(), DiskError::Refused(Refusal::OldGroup));
    listening.stop().await;
}

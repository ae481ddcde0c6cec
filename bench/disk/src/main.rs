//! What seals cost: READ and WRITE of a disk in memory, over the loopback, in each setup.
//!
//!     cargo run --release --manifest-path bench/disk/Cargo.toml -- [ROUNDS] [MILLISECONDS] [DEPTH]
//!
//! Client and disk are one process, so both sides of each seal are in the time. A round measures
//! each setup once for an operation and a size, in an order that changes from round to round; a
//! ratio is taken within a round. Printed are medians, and of ratios the quartiles.
//!
//! Small files differ: each is written once, under a capability of its own, so neither side has its
//! keys yet. The first lines measure that, with 4 KiB under each capability.

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_disk::{Config, Device, DiskService, Identity, Store};
use larder_disk_client::{Control, DISK_PROGRAM, DiskClient, DiskControl};
use larder_io::{MemDisk, RealClock};
use larder_rpc::server::{Config as ServerConfig, Server, SourcePorts};
use larder_rpc::{CallOptions, Config as ClientConfig, RpcClient, SourcePort, Transport};
use larder_wire::capability::{
    Capability, CapabilityId, DiskId, Extent, Extents, GROUP_CAPABILITIES, GroupId, KeyEpoch, Mode,
    VolumeId,
};
use larder_wire::disk::session::Granted;
use larder_wire::disk::words::Trust;
use larder_wire::seal::{MasterKey, Setup};

const SETUPS: [Setup; 3] = [Setup::Off, Setup::Secure, Setup::Private];
const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const DISK_BYTES: u64 = 256 << 20;

/// A disk that serves, and a client with a capability for all of it.
struct Side {
    client: Arc<DiskClient>,
    granted: Granted,
    /// More than both sides keep keys of.
    others: Vec<Granted>,
}

const VOLUME: VolumeId = VolumeId([1; 16]);
const DISK: DiskId = DiskId(1);

fn master() -> MasterKey {
    MasterKey::new([2; 32])
}

/// A disk in memory that serves.
async fn listen(setup: Setup) -> SocketAddr {
    let identity = Identity { volume: VOLUME, disk: DISK, setup };
    let store = Store::open(&MemDisk::new(), "disk", &identity, DISK_BYTES).expect("memory");
    let config = Config::new(identity, master(), Arc::new(RealClock));
    let device = Arc::new(Device::start(config, store));
    let mut config = ServerConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    (config.udp, config.source_ports) = (false, SourcePorts::Any);
    let server = Server::bind(config, DiskService::new(device)).await.expect("a free port");
    let address = server.addr();
    tokio::spawn(server.run());
    address
}

async fn connect(address: SocketAddr) -> RpcClient {
    let mut config = ClientConfig::new(address, Transport::Tcp, DISK_PROGRAM);
    config.source_port = SourcePort::Any;
    RpcClient::connect(config).await.expect("it listens")
}

/// Takes control of a disk, and makes capabilities for all of it.
async fn grant(address: SocketAddr) -> Vec<Granted> {
    let control = Control { master: master(), volume: VOLUME, disk: DISK, owner: 1 };
    let control = DiskControl::new(connect(address).await, control);
    control.rotate(KeyEpoch(1)).await.expect("obeyed");
    control.replace_group(None, GroupId(1)).await.expect("obeyed");
    let (done, boot) = control.refresh(None).await.expect("obeyed");
    let trust = Trust { boot, until_ms: done.clock_ms + 600_000 };
    control.refresh(Some(trust)).await.expect("obeyed");
    let all = Extent::new(0, DISK_BYTES).expect("an extent");
    let capability = |id| Capability {
        volume: VOLUME,
        disk: DISK,
        boot,
        key: KeyEpoch(1),
        group: GroupId(1),
        id: CapabilityId(id),
        mode: Mode::ReadWrite,
        expiry_ms: u64::MAX,
        extents: Extents::new(vec![all]).expect("one"),
    };
    (0..GROUP_CAPABILITIES).map(|id| Granted::mint(&master(), capability(id))).collect()
}

async fn side(setup: Setup) -> Side {
    let address = listen(setup).await;
    let mut others = grant(address).await;
    let granted = others.remove(0);
    let client = Arc::new(DiskClient::new(connect(address).await));
    for at in (0..DISK_BYTES).step_by(1 << 20) {
        let data = Bytes::from(vec![7; 1 << 20]);
        client.write(&granted, at, data, false, CallOptions::default()).await.expect("written");
    }
    Side { client, granted, others }
}

impl Side {
    /// Calls a second, with `depth` of them in flight, each under one of `granted` in turn.
    async fn rate(
        &self,
        (is_write, granted): (bool, &[Granted]),
        size: usize,
        depth: usize,
        time: Duration,
    ) -> f64 {
        let begin = Instant::now();
        let tasks: Vec<_> = (0..depth as u64)
            .map(|number| {
                let client = Arc::clone(&self.client);
                let mine: Vec<Granted> =
                    granted.iter().skip(number as usize).step_by(depth).cloned().collect();
                let mine = if mine.is_empty() { vec![self.granted.clone()] } else { mine };
                tokio::spawn(async move {
                    let (mut calls, data) = (0_u64, Bytes::from(vec![9; size]));
                    let options = CallOptions::default();
                    while begin.elapsed() < time {
                        let at = (number * 37 + calls) * size as u64 % DISK_BYTES;
                        let granted = &mine[calls as usize % mine.len()];
                        if is_write {
                            let data = data.clone();
                            client.write(granted, at, data, false, options).await.expect("done");
                        } else {
                            client.read(granted, at, size as u32, options).await.expect("done");
                        }
                        calls += 1;
                    }
                    calls
                })
            })
            .collect();
        let mut calls = 0;
        for task in tasks {
            calls += task.await.expect("a task");
        }
        calls as f64 / begin.elapsed().as_secs_f64()
    }
}

fn quartiles(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

async fn measure(rounds: usize, time: Duration, depth: usize) {
    let mut sides = Vec::new();
    for setup in SETUPS {
        sides.push(side(setup).await);
    }
    measure_steps(&sides[0].granted);
    println!("{rounds} rounds of {time:?}, {depth} in flight; calls/s, and the ratio to off");
    let known = [false, true].into_iter().flat_map(|way| SIZES.map(|size| (way, false, size)));
    let unknown = [false, true].map(|way| (way, true, SIZES[0]));
    for (is_write, is_new, size) in unknown.into_iter().chain(known) {
        let mut rates = [(); SETUPS.len()].map(|()| Vec::new());
        for round in 0..rounds {
            for step in 0..SETUPS.len() {
                let at = (round + step) % SETUPS.len();
                let side = &sides[at];
                let granted = if is_new { &side.others[..] } else { &[] };
                rates[at].push(side.rate((is_write, granted), size, depth, time).await);
            }
        }
        println!(
            "{:5} {:5} {:4} KiB{}",
            if is_write { "write" } else { "read" },
            if is_new { "first" } else { "again" },
            size >> 10,
            shown(&rates)
        );
    }
}

/// What was measured of each setup, and how it is to the first.
fn shown(rates: &[Vec<f64>]) -> String {
    let mut text = String::new();
    for (at, setup) in SETUPS.iter().enumerate() {
        let ratios = rates[at].iter().zip(&rates[0]).map(|(ours, off)| ours / off);
        let [low, middle, high] = quartiles(&mut ratios.collect::<Vec<_>>());
        let [_, rate, _] = quartiles(&mut rates[at].clone());
        text += &format!("  {setup:?} {rate:8.0}");
        if at > 0 {
            text += &format!(" ({middle:.2}, {low:.2} to {high:.2})");
        }
    }
    text
}

/// What the steps take that lead to a seal.
fn measure_steps(granted: &Granted) {
    let show = |what: &str, step: &dyn Fn()| {
        let mut times: Vec<f64> = (0..50)
            .map(|_| {
                let begin = Instant::now();
                (0..200).for_each(|_| step());
                begin.elapsed().as_nanos() as f64 / 200.0
            })
            .collect();
        let [low, middle, high] = quartiles(&mut times);
        println!("{what:40} {middle:6.0} ns ({low:.0} to {high:.0})");
    };
    let (master, capability) = (master(), &granted.capability);
    let key = master.disk_key(capability.key);
    let session = granted.secret.session_key(&[1; 32], &[2; 32]);
    let keys = session.request_keys(&granted.secret);
    let data = Bytes::from(vec![7; 4096]);
    show("a disk's key of an epoch", &|| drop(black_box(master.disk_key(capability.key))));
    show("a control secret", &|| drop(black_box(master.control_secret(VOLUME, DISK))));
    show("a capability's secret", &|| drop(black_box(key.secret(capability))));
    show("keys of requests", &|| drop(black_box(session.request_keys(&granted.secret))));
    let head = [1; 120];
    show("a seal on 4 KiB", &|| {
        drop(black_box(keys.to_disk.seal(Setup::Secure, 1, head.to_vec(), data.clone())));
    });
}

fn main() {
    let mut typed = std::env::args().skip(1).map(|word| word.parse().expect("a number"));
    let mut number = |default| typed.next().unwrap_or(default);
    let (rounds, millis, depth) = (number(9), number(300), number(8));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let measuring = measure(rounds, Duration::from_millis(millis as u64), depth);
    runtime.expect("a runtime").block_on(measuring);
}

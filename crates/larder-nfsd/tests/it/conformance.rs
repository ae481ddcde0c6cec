//! larder's own NFS client against larder's own server: the suite that every server must pass, over
//! a local directory and over the model.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use larder_nfsd::Config;
use larder_remote::nfs3::{MountOptions, Nfs3};
use larder_rpc::Transport;
use larder_vfs::conformance::{Ability, Traits, Verdict, cases};
use larder_vfs::{Cred, Direct, MemRemote, New, Remote, SetAttr};

use crate::harness::{Running, options, running};

fn traits() -> Traits {
    Traits::default()
        .without(Ability::Locks, "NFSv3 leaves locks to another protocol")
        .without(Ability::Xattrs, "NFSv3 has none")
        .without(Ability::Allocate, "NFSv3 has none")
        .without(Ability::Punch, "NFSv3 has none")
        .without(Ability::Copy, "NFSv3 has none")
        .without(Ability::Holes, "NFSv3 has none")
        .without(Ability::UnwrittenHoles, "NFSv3 has none")
}

async fn mount(address: SocketAddr, transport: Transport) -> Arc<dyn Remote> {
    Arc::new(mount_nfs(address, transport).await)
}

async fn mount_nfs(address: SocketAddr, transport: Transport) -> Nfs3 {
    let mut options = MountOptions::new(&address.ip().to_string(), "/");
    options.port = Some(address.port());
    options.mount_port = Some(address.port());
    options.transport = transport;
    // A server whose disk stalls for seconds must not count as unreachable.
    options.retransmissions = Some(100);
    Nfs3::mount(&options).await.unwrap_or_else(|error| panic!("{error}"))
}

async fn passes(remote: Arc<dyn Remote>, traits: &Traits) {
    let root = remote.root().await.unwrap().handle;
    let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    let base = remote.make(&Cred::root(), &root, "base".as_ref(), New::Directory, set).await;
    let base = base.unwrap().found.handle;
    let mut failures = Vec::new();
    for case in cases() {
        match case.check(&remote, &base, traits).await {
            Verdict::Passed => {}
            Verdict::Skipped(reason) => println!("{} skipped: {reason}", case.name),
            Verdict::Failed(text) => failures.push(format!("{}: {text}", case.name)),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn sole_front_door(config: &mut Config) {
    config.sole_front_door = true;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_client_and_our_server_keep_the_contract_over_tcp() {
    let server = running!(options(), sole_front_door);
    passes(mount(server.address, Transport::Tcp).await, &traits()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_client_and_our_server_keep_the_contract_over_udp() {
    let server = running!(options(), sole_front_door);
    passes(mount(server.address, Transport::Udp).await, &traits()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_keep_it_without_attributes_from_before() {
    let server = running!(options(), |_| {});
    let traits = traits().without(Ability::Before, "the server is not the sole front door");
    passes(mount(server.address, Transport::Tcp).await, &traits).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_passes_through_the_server() {
    let fs = Arc::new(Direct::new(Arc::new(MemRemote::new())).await.unwrap());
    let mut config = Config::new("127.0.0.1:0".parse().unwrap());
    config.rpc.source_ports = larder_nfsd::SourcePorts::Any;
    sole_front_door(&mut config);
    let server = larder_nfsd::Server::bind(config, fs).await.unwrap();
    let address = server.addr();
    tokio::spawn(server.run());
    passes(mount(address, Transport::Tcp).await, &traits()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_of_a_mount_of_an_export_keeps_it_too() {
    let inner = running!(options(), sole_front_door);
    let middle = mount(inner.address, Transport::Tcp).await;
    let fs = Arc::new(Direct::new(middle).await.unwrap());
    let mut config = Config::new("127.0.0.1:0".parse().unwrap());
    config.rpc.source_ports = larder_nfsd::SourcePorts::Any;
    sole_front_door(&mut config);
    let server = larder_nfsd::Server::bind(config, fs).await.unwrap();
    let address = server.addr();
    tokio::spawn(server.run());
    passes(mount(address, Transport::Tcp).await, &traits()).await;
    let _: &Running = &inner;
}

/// Datagrams that the kernel has dropped at sockets bound to `port` or connected to it
/// (proc_net(5)).
fn dropped(port: u16) -> u64 {
    let table = std::fs::read_to_string("/proc/net/udp").unwrap();
    let ends = format!(":{port:04X}");
    let lines = table.lines().skip(1).map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let ours = lines.filter(|fields| fields[1].ends_with(&ends) || fields[2].ends_with(&ends));
    let drops: Vec<u64> = ours.map(|fields| fields.last().unwrap().parse().unwrap()).collect();
    assert!(drops.len() >= 2, "two ends: {table}");
    drops.iter().sum()
}

/// `LARDER_UDP_MIB` sets how much is read, and demands that nothing is sent again: 100 on an idle
/// machine. On a busy one a reply can be late, which cannot be distinguished from a lost one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_over_udp_on_a_link_without_loss() {
    const READ_BYTES: u32 = 32 << 10;
    const READERS: u64 = 64;
    let server = running!();
    let mib: u64 = std::env::var("LARDER_UDP_MIB").map_or(32, |mib| mib.parse().unwrap());
    let content: Vec<u8> = (0..mib << 20).map(|i| (i % 251) as u8).collect();
    std::fs::write(server.path("file"), &content).unwrap();
    for transport in [Transport::Udp, Transport::Tcp] {
        let nfs = Arc::new(mount_nfs(server.address, transport).await);
        let cred = Cred::root();
        let root = nfs.root().await.unwrap().handle;
        let file = nfs.lookup(&cred, &root, "file".as_ref()).await.unwrap().found.unwrap().handle;
        let next = Arc::new(AtomicU64::new(0));
        let begun = std::time::Instant::now();
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..READERS {
            let (nfs, cred, file, next) = (nfs.clone(), cred.clone(), file.clone(), next.clone());
            readers.spawn(async move {
                let mut pieces = Vec::new();
                loop {
                    let offset = next.fetch_add(u64::from(READ_BYTES), Relaxed);
                    if offset >= mib << 20 {
                        return pieces;
                    }
                    let read = nfs.read(&cred, &file, None, offset, READ_BYTES).await.unwrap();
                    pieces.push((offset as usize, read.data));
                }
            });
        }
        for (offset, data) in readers.join_all().await.into_iter().flatten() {
            assert!(data.len() == READ_BYTES as usize && content[offset..].starts_with(&data));
        }
        let took = begun.elapsed();
        let connection = nfs.rpc().stats().connections.remove(0);
        println!("{transport:?}: {:.0} MB/s", content.len() as f64 / 1e6 / took.as_secs_f64());
        println!("{connection:?}");
        if transport == Transport::Udp {
            assert_eq!(dropped(server.address.port()), 0, "{connection:?}");
        }
        if std::env::var_os("LARDER_UDP_MIB").is_some() {
            assert_eq!((connection.retransmits, connection.timeouts), (0, 0), "{connection:?}");
        }
    }
}

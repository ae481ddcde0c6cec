//! larder's own NFS client against larder's own server: the suite that every server must pass, over
//! a local directory and over the model.

use std::net::SocketAddr;
use std::sync::Arc;

use larder_nfsd::Config;
use larder_remote::nfs3::{MountOptions, Nfs3};
use larder_remote::rpc::Transport;
use larder_vfs::conformance::{Ability, Traits, Verdict, cases};
use larder_vfs::{Cred, Direct, MemRemote, New, Remote, SetAttr};

use crate::harness::{Running, options, running};

async fn mount(address: SocketAddr, transport: Transport) -> Arc<dyn Remote> {
    let mut options = MountOptions::new(&address.ip().to_string(), "/");
    options.port = Some(address.port());
    options.mount_port = Some(address.port());
    options.transport = transport;
    // A server whose disk stands still for seconds is not gone.
    options.retransmissions = Some(100);
    Arc::new(Nfs3::mount(&options).await.unwrap_or_else(|error| panic!("{error}")))
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

fn sole_door(config: &mut Config) {
    config.sole_door = true;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_client_and_our_server_keep_the_contract_over_tcp() {
    let server = running!(options(), sole_door);
    passes(mount(server.address, Transport::Tcp).await, &Traits::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_client_and_our_server_keep_the_contract_over_udp() {
    let server = running!(options(), sole_door);
    passes(mount(server.address, Transport::Udp).await, &Traits::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_keep_it_without_attributes_from_before() {
    let server = running!(options(), |_| {});
    let traits = Traits::default().without(Ability::Before, "the server is not the sole door");
    passes(mount(server.address, Transport::Tcp).await, &traits).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_passes_through_the_server() {
    let fs = Arc::new(Direct::new(Arc::new(MemRemote::new())).await.unwrap());
    let mut config = Config::new("127.0.0.1:0".parse().unwrap());
    config.source_ports = larder_nfsd::SourcePorts::Any;
    sole_door(&mut config);
    let server = larder_nfsd::Server::bind(config, fs).await.unwrap();
    let address = server.addr();
    tokio::spawn(server.run());
    passes(mount(address, Transport::Tcp).await, &Traits::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_of_a_mount_of_an_export_keeps_it_too() {
    let inner = running!(options(), sole_door);
    let middle = mount(inner.address, Transport::Tcp).await;
    let fs = Arc::new(Direct::new(middle).await.unwrap());
    let mut config = Config::new("127.0.0.1:0".parse().unwrap());
    config.source_ports = larder_nfsd::SourcePorts::Any;
    sole_door(&mut config);
    let server = larder_nfsd::Server::bind(config, fs).await.unwrap();
    let address = server.addr();
    tokio::spawn(server.run());
    passes(mount(address, Transport::Tcp).await, &Traits::default()).await;
    let _: &Running = &inner;
}

//! Directories, links and special files in a class that the server may lose: with a server that
//! knows such objects, and with one of an earlier version.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use larder_io::{Clock, RealClock};
use larder_meta::disks::ControlledDisks;
use larder_meta::engine::memory::MemoryEngine;
use larder_meta::{Metadata, Options, volume};
use larder_remote::native::{MountOptions, Native};
use larder_rpc::server::{Config, Server, SourcePorts};
use larder_testkit::Versioned;
use larder_vfs::{Cred, Device, Error, Handle, Kind, New, Remote, SetAttr, Volatile};
use larder_wire::Procedure;
use larder_wire::capability::VolumeId;
use larder_wire::meta::calls::Make;
use larder_wire::meta::words::Time;

use super::calls;

/// All procedures, and those of a version that has no MAKE and what came later.
pub(super) const PRESENT: u32 = u32::MAX;
pub(super) const EARLIER: u32 = Make::NUMBER;

/// Serves a new volume without disks.
pub(super) async fn serve(procedures: u32) -> SocketAddr {
    let engine = Arc::new(MemoryEngine::new());
    let id = VolumeId([1; 16]);
    volume::create(&*engine, id, 1, Time::default()).unwrap();
    let owned = volume::take(&*engine).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(RealClock);
    let disks = Arc::new(ControlledDisks::start(Vec::new(), owned.to_disks(), &clock));
    let metadata = Metadata::start(engine, owned, disks, clock, Options::default()).unwrap();
    let mut config = Config::new("127.0.0.1:0".parse().unwrap());
    (config.udp, config.source_ports) = (false, SourcePorts::Any);
    let server = Server::bind(config, Versioned::new(metadata, procedures)).await.unwrap();
    let address = server.addr();
    tokio::spawn(server.run());
    address
}

/// Makes one of each kind, in a class, and has it raised. Returns their kinds and how often MAKE
/// was called.
async fn make_all(procedures: u32, in_memory: Option<Volatile>) -> (Vec<Kind>, u64) {
    let address = serve(procedures).await;
    let options =
        MountOptions { port: address.port(), ..MountOptions::new(&address.ip().to_string()) };
    let native = Native::mount(&options).await.unwrap();
    let (root, cred) = (native.root().await.unwrap().handle, Cred::root());
    let set = SetAttr { in_memory, mode: Some(0o700), ..SetAttr::default() };
    let mut kinds = Vec::new();
    let device = Device { major: 1, minor: 3 };
    for (name, new) in [
        ("dir", New::Directory),
        ("link", New::Symlink("dir".into())),
        ("fifo", New::Node(Kind::Fifo, Device::default())),
        ("null", New::Node(Kind::CharDevice, device)),
    ] {
        let make = async || native.make(&cred, &root, name.as_ref(), new.clone(), set).await;
        let made = make().await.unwrap();
        kinds.push(made.found.attr.kind);
        assert_eq!(made.found.attr.mode, 0o700);
        let found = native.lookup(&cred, &root, name.as_ref()).await.unwrap().found.unwrap();
        assert_eq!(found.handle, made.found.handle);
        assert_eq!(make().await.unwrap_err(), Error::Exists);
        let handle: &Handle = &made.found.handle;
        native.leave_memory(&cred, handle, Duration::ZERO).await.unwrap();
        if kinds.len() == 2 {
            let target = native.readlink(&cred, handle).await.unwrap();
            assert!(format!("{target:?}").contains("\"dir\""), "{target:?}");
        }
    }
    assert_eq!(kinds.last(), Some(&Kind::CharDevice));
    (kinds, calls(&native, "MAKE"))
}

/// The server is told of what it may lose, and of nothing else; one that does not know how is asked
/// once, and makes everything durably.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_an_earlier_version_makes_all_that_may_be_lost() {
    let volatile = Some(Volatile { copies: 1, due: None });
    let all = [Kind::Directory, Kind::Symlink, Kind::Fifo, Kind::CharDevice];
    for (procedures, in_memory, makes) in
        [(PRESENT, volatile, 8), (PRESENT, None, 0), (EARLIER, volatile, 1), (EARLIER, None, 0)]
    {
        let (kinds, called) = make_all(procedures, in_memory).await;
        assert_eq!((kinds.as_slice(), called), (&all[..], makes), "{in_memory:?}");
    }
}

//! Who may call, and as whom.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_nfsd::{Config, Network, Server, SourcePorts};
use larder_remote::local::{LocalOptions, Squash};
use larder_vfs::{Direct, MemRemote, Remote};
use larder_wire::mount3;
use larder_wire::nfs3::*;
use larder_wire::rpc::{AUTH_TOOWEAK, Credential, Outcome};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use crate::harness::{
    Client, REPLY_MAX, Running, handle, mode, options, place, running, status, sys,
};

fn squashed() -> LocalOptions {
    LocalOptions { squash: Squash::Root, ..options() }
}

#[tokio::test]
async fn two_users_and_a_squashed_superuser() {
    let server = running!(squashed(), |_| {});
    std::fs::set_permissions(server.path(""), Permissions::from_mode(0o777)).unwrap();
    let mut client = server.tcp().await;
    client.credential = sys(1001, 1001, &[]);
    let how = createhow3::GUARDED(mode(0o640));
    let args = CREATE3args { r#where: place(server.root, "hers"), how };
    let hers = handle(client.call(&args).await);
    let owner = std::fs::metadata(server.path("hers")).unwrap();
    assert_eq!((owner.uid(), owner.gid()), (1001, 1001));

    let read = READ3args { file: hers, offset: 0, count: 10 };
    let write = WRITE3args {
        file: hers,
        offset: 0,
        count: 1,
        stable: stable_how::UNSTABLE,
        data: bytes::Bytes::from_static(b"x").into(),
    };
    let chmod = SETATTR3args { object: hers, new_attributes: mode(0o777), guard: None };
    let ok = nfsstat3::NFS3_OK;
    let (no, never) = (nfsstat3::NFS3ERR_ACCES, nfsstat3::NFS3ERR_PERM);
    for (credential, reads, writes, changes, rights) in [
        (sys(1002, 1002, &[]), no, no, never, 0),
        (sys(1002, 1002, &[9, 1001]), ok, no, never, access3::READ),
        (sys(0, 0, &[]), no, no, never, 0),
        (Credential::None, no, no, never, 0),
        (sys(1001, 1001, &[]), ok, ok, ok, access3::READ | access3::MODIFY | access3::EXTEND),
    ] {
        client.credential = credential.clone();
        let access = client.call(&ACCESS3args { object: hers, access: 0x3f }).await.unwrap();
        assert_eq!(access.access, rights, "{credential:?}");
        assert_eq!(status(client.call(&read).await), reads, "{credential:?}");
        assert_eq!(status(client.call(&write).await), writes, "{credential:?}");
        assert_eq!(status(client.call(&chmod).await), changes, "{credential:?}");
    }
    client.credential = sys(0, 0, &[]);
    client.create(server.root, "roots").await;
    assert_eq!(std::fs::metadata(server.path("roots")).unwrap().uid(), 65_534);
}

#[tokio::test]
async fn many_users_at_once_stay_who_they_are() {
    let server = running!(squashed(), |_| {});
    std::fs::set_permissions(server.path(""), Permissions::from_mode(0o777)).unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for uid in 2000..2016 {
        let (mut client, root) = (server.tcp().await, server.root);
        client.credential = sys(uid, uid + 1, &[uid + 2]);
        tasks.spawn(async move {
            for i in 0..20 {
                client.create(root, &format!("{uid}-{i}")).await;
            }
        });
    }
    tasks.join_all().await;
    for entry in std::fs::read_dir(server.path("")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let uid: u32 = name.split('-').next().unwrap().parse().unwrap();
        let attr = entry.metadata().unwrap();
        assert_eq!((attr.uid(), attr.gid()), (uid, uid + 1), "{name}");
    }
}

#[tokio::test]
async fn calls_from_ports_of_everybody_are_refused_unless_allowed() {
    let server = running!(options(), |config| config.rpc.source_ports = SourcePorts::Reserved);
    let ask = GETATTR3args { object: server.root };
    for mut client in [server.tcp().await, server.udp().await] {
        client.try_call(&ask).await.unwrap().unwrap();
    }
    // A socket belongs to the user that the thread acts as.
    let (root, somebody) = (Uid::ROOT, Uid::from_raw(1001));
    set_thread_res_uid(None, somebody, None).unwrap();
    let clients = [server.tcp().await, server.udp().await];
    set_thread_res_uid(None, root, None).unwrap();
    for mut client in clients {
        client.call(&NULL3args {}).await;
        let refused = client.try_call(&ask).await.unwrap_err();
        assert_eq!(refused, Outcome::AuthError(AUTH_TOOWEAK));
    }
}

#[tokio::test]
async fn clients_that_are_not_allowed_are_not_read_from() {
    let elsewhere: Network = "192.0.2.0/24".parse().unwrap();
    let server = running!(options(), |config| config.rpc.allow = vec![elsewhere]);
    let mut tcp = server.tcp().await;
    let (_, call) = tcp.encode(&NULL3args {});
    // The connection is closed; the kernel may or may not still have sent the call.
    let _ = tcp.send(&call.to_bytes()).await;
    assert!(tcp.receive().await.is_none());
    let mut udp = server.udp().await;
    let (_, call) = udp.encode(&NULL3args {});
    udp.send(&call.to_bytes()).await.unwrap();
    assert!(udp.is_silent().await);
    assert_eq!(server.stats().nfs_calls(), 0);
}

#[tokio::test]
async fn connections_are_bounded() {
    let server = running!(options(), |config| config.rpc.connections_max = 2);
    let mut kept = [server.tcp().await, server.tcp().await];
    for client in &mut kept {
        client.call(&NULL3args {}).await;
    }
    let mut third = server.tcp().await;
    assert!(third.receive().await.is_none());
    drop(kept);
    let deadline = tokio::time::Instant::now() + REPLY_MAX;
    loop {
        let mut client = Client::tcp(server.address).await;
        let (_, call) = client.encode(&NULL3args {});
        let _ = client.send(&call.to_bytes()).await;
        if client.receive().await.is_some() {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "a closed connection makes room");
    }
}

/// Connections that sent the first bytes of a record, and no more.
async fn half_sent(server: &Running, count: usize) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut client = Client::tcp(server.address).await;
        // The server may have refused it already.
        let _ = client.send(&[0x80, 0]).await;
        clients.push(client);
    }
    clients
}

#[tokio::test]
async fn clients_that_are_not_admitted_keep_no_other_out() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let server = running!(options(), |config| {
        config.rpc.source_ports = SourcePorts::Reserved;
        config.rpc.connections_max = 64;
    });
    let ask = GETATTR3args { object: server.root };
    let mut before = server.tcp().await;
    before.call(&ask).await.unwrap();
    let (root, somebody) = (Uid::ROOT, Uid::from_raw(1001));
    set_thread_res_uid(None, somebody, None).unwrap();
    let _strangers = half_sent(&server, 200).await;
    set_thread_res_uid(None, root, None).unwrap();
    server.tcp().await.call(&ask).await.unwrap();
    before.call(&ask).await.unwrap();
}

#[tokio::test]
async fn connections_without_a_good_call_keep_no_client_out() {
    let server = running!(options(), |config| {
        config.rpc.connections_max = 64;
        config.rpc.source_connections_max = 8;
    });
    let ask = GETATTR3args { object: server.root };
    let mut before = server.tcp().await;
    before.call(&ask).await.unwrap();
    let _unproven = half_sent(&server, 200).await;
    server.tcp().await.call(&ask).await.unwrap();
    before.call(&ask).await.unwrap();
}

#[tokio::test]
async fn a_first_call_must_come_soon() {
    let server = running!(options(), |config| {
        config.rpc.first_call_max = Duration::from_millis(100);
    });
    let mut good = server.tcp().await;
    good.call(&NULL3args {}).await;
    good.send(&[0x80, 0]).await.unwrap();
    let mut slow = server.tcp().await;
    slow.send(&[0x80, 0]).await.unwrap();
    assert!(slow.receive().await.is_none(), "closed");
    assert!(good.is_silent().await, "who has made a call may take his time");
}

#[tokio::test]
async fn a_first_call_may_take_its_time_to_be_carried_out() {
    let model = Arc::new(MemRemote::new());
    let root = nfs_fh3::new(model.root().await.unwrap().handle.as_bytes()).unwrap();
    let mut config = Config::new("127.0.0.1:0".parse().unwrap());
    config.rpc.source_ports = SourcePorts::Any;
    config.rpc.first_call_max = Duration::from_millis(20);
    let fs = Arc::new(Direct::new(model.clone()).await.unwrap());
    let server = Server::bind(config, fs).await.unwrap();
    let mut client = Client::tcp(server.addr()).await;
    tokio::spawn(server.run());
    model.hold(Some("getattr"));
    let (_, call) = client.encode(&GETATTR3args { object: root });
    client.send(&call.to_bytes()).await.unwrap();
    assert!(client.is_silent().await, "neither an answer nor the end");
    model.hold(None);
    assert!(client.receive().await.is_some());
}

#[tokio::test]
async fn a_forged_sender_is_not_sent_more_than_was_asked() {
    let server = running!();
    let mut tcp = server.tcp().await;
    for at in 0..40 {
        let dirpath = Bytes::from(format!("/{}", "./".repeat(at)));
        tcp.call(&mount3::MNTargs { dirpath: dirpath.into() }).await.unwrap();
    }
    assert_eq!(tcp.call(&mount3::DUMPargs {}).await.0.len(), 40, "over TCP an address is proven");
    let mut udp = server.udp().await;
    udp.credential = Credential::None;
    assert_eq!(udp.try_call(&mount3::DUMPargs {}).await.unwrap_err(), Outcome::SystemErr);
    udp.call(&mount3::MNTargs { dirpath: "/".into() }).await.unwrap();
    // Calls without a handle of ours, to every procedure of each program.
    let (mut asked, mut told) = (0, 0);
    let forged = nfs_fh3::new(&[2; 26]).unwrap();
    let all = [
        udp.encode(&NULL3args {}),
        udp.encode(&mount3::MNTargs { dirpath: "/".into() }),
        udp.encode(&mount3::DUMPargs {}),
        udp.encode(&mount3::EXPORTargs {}),
        udp.encode(&READ3args { file: forged, offset: 0, count: 1 << 20 }),
        udp.encode(&GETATTR3args { object: forged }),
        udp.encode(&FSINFO3args { fsroot: forged }),
    ];
    for (_, call) in all {
        udp.send(&call.to_bytes()).await.unwrap();
        let reply = udp.receive().await.unwrap();
        assert!(reply.len() <= call.len().max(128), "{} for {}", reply.len(), call.len());
        (asked, told) = (asked + call.len(), told + reply.len());
    }
    assert!(told <= asked, "{told} bytes for {asked}");
}

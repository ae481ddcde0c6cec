//! Who may call, and as whom.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use larder_nfsd::{Network, SourcePorts};
use larder_remote::local::{LocalOptions, Squash};
use larder_wire::nfs3::*;
use larder_wire::rpc::{AUTH_TOOWEAK, Credential, Outcome};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use crate::harness::{Client, REPLY_MAX, handle, mode, options, place, running, status, sys};

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
    let server = running!(options(), |config| config.source_ports = SourcePorts::Reserved);
    let ask = GETATTR3args { object: server.root };
    for mut client in [server.tcp().await, server.udp().await] {
        client.try_call(&ask).await.unwrap().unwrap();
    }
    // Sockets belong to the user whom the thread acts as.
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
async fn who_is_not_allowed_is_not_listened_to() {
    let elsewhere: Network = "192.0.2.0/24".parse().unwrap();
    let server = running!(options(), |config| config.allow = vec![elsewhere]);
    let mut tcp = server.tcp().await;
    let (_, call) = tcp.encode(&NULL3args {});
    // The connection is closed: whether the call could still be sent is up to the kernel.
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
    let server = running!(options(), |config| config.connections_max = 2);
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

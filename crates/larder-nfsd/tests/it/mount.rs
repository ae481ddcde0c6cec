//! MOUNT, and the port mapper.

use larder_wire::mount3::*;
use larder_wire::portmap;
use larder_wire::rpc::{CallHeader, Outcome, ReplyHeader, encode_reply};
use larder_wire::xdr::{Decode, Encode, Framing, Segments};
use tokio::net::UdpSocket;

use crate::harness::{Client, running};

async fn mnt(client: &mut Client, path: &str) -> Result<Vec<u8>, mountstat3> {
    let args = MNTargs { dirpath: dirpath::copy_from_slice(path.as_bytes()) };
    client.call(&args).await.map(|answer| answer.fhandle.to_vec())
}

#[tokio::test]
async fn paths_lead_to_directories() {
    let server = running!(crate::harness::options(), |config| {
        config.export_path = "/srv/export".to_owned();
    });
    std::fs::create_dir_all(server.path("a/b")).unwrap();
    std::fs::write(server.path("file"), b"").unwrap();
    for mut client in [server.tcp().await, server.udp().await] {
        let root = server.root.as_bytes().to_vec();
        for path in ["/", "", "/srv/export", "/srv/export/", "/srv/export/./"] {
            assert_eq!(mnt(&mut client, path).await, Ok(root.clone()), "{path}");
        }
        let a = client.find(server.root, "a").await.unwrap();
        let b = client.find(a, "b").await.unwrap().as_bytes().to_vec();
        for path in ["/a/b", "a/b", "/srv/export/a/b", "/srv/export//a/./b/"] {
            assert_eq!(mnt(&mut client, path).await, Ok(b.clone()), "{path}");
        }
        for (path, error) in [
            ("/none", mountstat3::MNT3ERR_NOENT),
            ("/srv/exported", mountstat3::MNT3ERR_NOENT),
            ("/file", mountstat3::MNT3ERR_NOTDIR),
            ("/file/x", mountstat3::MNT3ERR_NOTDIR),
            ("/a/../a", mountstat3::MNT3ERR_INVAL),
            ("/a\0b", mountstat3::MNT3ERR_INVAL),
        ] {
            assert_eq!(mnt(&mut client, path).await, Err(error), "{path}");
        }
    }
}

#[tokio::test]
async fn mounts_are_listed_until_they_are_gone() {
    let server = running!();
    std::fs::create_dir_all(server.path("a")).unwrap();
    let mut client = server.tcp().await;
    client.call(&NULLargs {}).await;
    for path in ["/", "/a", "/"] {
        mnt(&mut client, path).await.unwrap();
    }
    let listed = client.call(&DUMPargs {}).await;
    let paths: Vec<_> = listed.0.iter().map(|mount| mount.ml_directory.to_vec()).collect();
    assert_eq!(paths, [b"/a".to_vec(), b"/".to_vec()]);
    assert_eq!(&listed.0[0].ml_hostname[..], b"127.0.0.1");
    client.call(&UMNTargs { dirpath: "/a".into() }).await;
    assert_eq!(client.call(&DUMPargs {}).await.0.len(), 1);
    client.call(&UMNTALLargs {}).await;
    assert_eq!(client.call(&DUMPargs {}).await.0.len(), 0);
    let exports = client.call(&EXPORTargs {}).await;
    assert_eq!(&exports.0[0].ex_dir[..], b"/");
    let groups: Vec<_> = exports.0[0].ex_groups.0.iter().map(|group| group.to_vec()).collect();
    assert_eq!(groups, [b"127.0.0.0/8".to_vec(), b"::1/128".to_vec()]);
    let stats = server.stats();
    assert_eq!(stats.mount.iter().map(|p| p.calls).collect::<Vec<_>>(), [1, 3, 3, 1, 1, 1]);
}

/// A port mapper that accepts everything, or nothing, and reports what it was asked.
async fn mapper(socket: UdpSocket, takes: bool, asked: tokio::sync::mpsc::UnboundedSender<String>) {
    let mut buffer = [0; 1024];
    loop {
        let (len, from) = socket.recv_from(&mut buffer).await.unwrap();
        let mut call = bytes::Bytes::copy_from_slice(&buffer[..len]);
        let header = CallHeader::decode(&mut call).unwrap();
        let mapping = portmap::mapping::decode(&mut call).unwrap();
        let procedure = portmap::pmapproc::try_from(header.procedure).unwrap();
        asked.send(format!("{procedure:?} {} {}", mapping.prog, mapping.prot)).unwrap();
        fn reply(header: &CallHeader, results: &impl Encode) -> Segments {
            let header = ReplyHeader { xid: header.xid, outcome: Outcome::Success };
            encode_reply(header, results, Framing::Datagram)
        }
        let reply = match procedure {
            portmap::pmapproc::GETPORT => reply(&header, &7u32),
            _ => reply(&header, &takes),
        };
        socket.send_to(&reply.to_bytes(), from).await.unwrap();
    }
}

#[tokio::test]
async fn the_port_mapper_is_told_and_told_again() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let (sender, mut asked) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(mapper(socket, true, sender));
    let server = running!(crate::harness::options(), |config| config.portmapper = Some(address));
    server.stop().await;
    let mut questions = Vec::new();
    while let Ok(question) = asked.try_recv() {
        questions.push(question);
    }
    // On a machine that stalls, a request without an answer in time is sent again.
    questions.dedup();
    let expected = [
        "SET 100003 6",
        "SET 100003 17",
        "SET 100005 6",
        "SET 100005 17",
        "UNSET 100003 0",
        "UNSET 100005 0",
    ];
    assert_eq!(questions, expected);
}

#[tokio::test]
async fn a_port_that_another_server_registered_is_left_alone() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let (sender, _asked) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(mapper(socket, false, sender));
    let mut config = larder_nfsd::Config::new("127.0.0.1:0".parse().unwrap());
    config.portmapper = Some(address);
    let dir = tempfile::tempdir().unwrap();
    let Ok(local) = larder_remote::local::LocalDir::open(
        dir.path(),
        crate::harness::options(),
        &crate::harness::KEY,
    ) else {
        return;
    };
    let fs = larder_vfs::Direct::new(std::sync::Arc::new(local)).await.unwrap();
    let answer = larder_nfsd::Server::bind(config, std::sync::Arc::new(fs)).await;
    let Err(error) = answer else { panic!("it must not bind") };
    assert!(error.to_string().contains("registered at port 7"), "{error}");
}

//! Connections: many calls at once, slow readers, the end.

use std::collections::HashSet;
use std::time::Duration;

use larder_remote::local::LocalOptions;
use larder_wire::nfs3::*;
use larder_wire::rpc::{Outcome, ReplyHeader};
use larder_wire::xdr::Decode;

use crate::harness::{REPLY_MAX, options, running};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_in_flight_are_all_answered() {
    let server = running!();
    let content: Vec<u8> = (0..8 << 20).map(|i| (i % 241) as u8).collect();
    std::fs::write(server.path("file"), &content).unwrap();
    let mut client = server.tcp().await;
    let file = client.find(server.root, "file").await.unwrap();
    let mut sent = HashSet::new();
    for i in 0..400u64 {
        let (xid, call) = match i % 4 {
            0 => client.encode(&READ3args { file, offset: (i % 7) << 20, count: 1 << 18 }),
            1 => client.encode(&GETATTR3args { object: file }),
            2 => client.encode(&COMMIT3args { file, offset: 0, count: 0 }),
            _ => client.encode(&ACCESS3args { object: file, access: 63 }),
        };
        sent.insert(xid);
        client.send(&call.to_bytes()).await.unwrap();
    }
    for _ in 0..400 {
        let mut reply = client.receive().await.unwrap();
        let header = ReplyHeader::decode(&mut reply).unwrap();
        assert_eq!(header.outcome, Outcome::Success);
        assert!(sent.remove(&header.xid), "each once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_takes_no_replies_is_not_read_from() {
    let server = running!();
    std::fs::write(server.path("file"), vec![5; 1 << 20]).unwrap();
    let mut client = server.tcp().await;
    let file = client.find(server.root, "file").await.unwrap();
    // Asks for 2 GiB and reads no reply. The server stops reading when its window is full, so that
    // in the end the client cannot send either.
    let mut sent = 0u64;
    for _ in 0..200_000 {
        let (_, call) = client.encode(&READ3args { file, offset: 0, count: 1 << 20 });
        let call = call.to_bytes();
        let sending = client.send(&call);
        if sent >= 2048 || tokio::time::timeout(Duration::from_secs(2), sending).await.is_err() {
            break;
        }
        sent += 1;
    }
    let served = server.stats().nfs[6].calls;
    assert!(served < 64, "{served} READs of 1 MiB were begun for somebody who reads nothing");
    // Other clients are served meanwhile.
    let mut other = server.tcp().await;
    other.call(&GETATTR3args { object: file }).await.unwrap();
    // Once the client reads, all replies arrive.
    let complete = sent.min(100);
    for _ in 0..complete {
        let mut reply = client.receive().await.unwrap();
        assert_eq!(ReplyHeader::decode(&mut reply).unwrap().outcome, Outcome::Success);
        assert_eq!(READ3res::decode(&mut reply).unwrap().unwrap().data.len(), 1 << 20);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_answers_what_was_begun() {
    let server = running!(LocalOptions { durable_names: true, ..options() }, |_| {});
    let mut client = server.tcp().await;
    let file = client.create(server.root, "file").await;
    const CALLS: u64 = 50;
    for i in 0..CALLS {
        let write = WRITE3args {
            file,
            offset: i,
            count: 1,
            stable: stable_how::FILE_SYNC,
            data: bytes::Bytes::from_static(b"x").into(),
        };
        let (_, call) = client.encode(&write);
        client.send(&call.to_bytes()).await.unwrap();
    }
    while server.stats().nfs[7].calls < CALLS {
        tokio::task::yield_now().await;
    }
    let address = server.address;
    let stopped = tokio::time::timeout(REPLY_MAX, server.stop());
    let (dir, ()) = tokio::join!(stopped, async {
        for _ in 0..CALLS {
            let mut reply = client.receive().await.expect("every call is answered");
            assert_eq!(ReplyHeader::decode(&mut reply).unwrap().outcome, Outcome::Success);
        }
        assert!(client.receive().await.is_none(), "then the connection ends");
    });
    let dir = dir.expect("the server ends");
    assert_eq!(std::fs::read(dir.path().join("export/file")).unwrap(), [b'x'; CALLS as usize]);
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "nobody listens");
}

#[tokio::test]
async fn idle_connections_do_not_hold_a_shutdown_up() {
    let server = running!();
    let mut client = server.tcp().await;
    client.call(&NULL3args {}).await;
    // Half a record mark.
    client.send(&[0x80, 0]).await.unwrap();
    server.stop().await;
    assert!(client.receive().await.is_none());
}

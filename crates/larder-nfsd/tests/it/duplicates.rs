//! Retransmissions of calls that must not be carried out twice.

use larder_remote::local::LocalOptions;
use larder_wire::nfs3::*;
use larder_wire::rpc::{Outcome, ReplyHeader, Xid, encode_call};
use larder_wire::xdr::{Decode, Framing};

use crate::harness::{Client, REPLY_MAX, mode, options, place, running, sys};

/// Sends a call with this xid and returns the whole reply.
async fn send<P: larder_wire::Procedure>(client: &mut Client, xid: u32, args: &P) -> bytes::Bytes {
    let call = encode_call(Xid(xid), &client.credential, args, client.framing());
    client.send(&call.to_bytes()).await.unwrap();
    client.receive().await.unwrap()
}

#[tokio::test]
async fn a_retransmitted_call_gets_the_same_reply_and_is_carried_out_once() {
    let server = running!();
    let mut client = server.tcp().await;
    client.mkdir(server.root, "dir").await;
    std::fs::write(server.path("file"), b"").unwrap();
    let root = server.root;
    let how = createhow3::GUARDED(mode(0o600));
    let file = client.find(root, "file").await.unwrap();
    // After a reconnect, and over the other transport, it is still the same call.
    for (round, transports) in [(0, [true, true]), (1, [true, false]), (2, [false, false])] {
        let mut clients = Vec::new();
        for tcp in transports {
            clients.push(if tcp { server.tcp().await } else { server.udp().await });
        }
        let before = server.stats().replayed;
        let xid = 0x7000_0000 + round * 100;
        let fresh = format!("new-{round}");
        let mut replies = Vec::new();
        for client in &mut clients {
            replies.push([
                send(client, xid, &CREATE3args { r#where: place(root, &fresh), how }).await,
                send(
                    client,
                    xid + 1,
                    &MKDIR3args { r#where: place(root, &format!("d{round}")), attributes: mode(0) },
                )
                .await,
                send(client, xid + 2, &LINK3args { file, link: place(root, &format!("l{round}")) })
                    .await,
                send(
                    client,
                    xid + 3,
                    &RENAME3args {
                        from: place(root, &fresh),
                        to: place(root, &format!("r{round}")),
                    },
                )
                .await,
                send(client, xid + 4, &REMOVE3args { object: place(root, &format!("r{round}")) })
                    .await,
                send(client, xid + 5, &RMDIR3args { object: place(root, &format!("d{round}")) })
                    .await,
            ]);
        }
        assert_eq!(replies[0], replies[1]);
        for reply in &replies[0] {
            let mut reply = reply.clone();
            assert_eq!(ReplyHeader::decode(&mut reply).unwrap().outcome, Outcome::Success);
            assert_eq!(nfsstat3::decode(&mut reply).unwrap(), nfsstat3::NFS3_OK);
        }
        assert_eq!(server.stats().replayed - before, 6);
    }
}

#[tokio::test]
async fn an_old_write_does_not_undo_a_newer_one() {
    let server = running!();
    let mut client = server.tcp().await;
    let file = client.create(server.root, "file").await;
    let write = |text: &'static [u8]| WRITE3args {
        file,
        offset: 0,
        count: text.len() as u32,
        stable: stable_how::UNSTABLE,
        data: bytes::Bytes::from_static(text).into(),
    };
    send(&mut client, 0x7100_0000, &write(b"old")).await;
    send(&mut client, 0x7100_0001, &write(b"new")).await;
    send(&mut client, 0x7100_0000, &write(b"old")).await;
    assert_eq!(std::fs::read(server.path("file")).unwrap(), b"new");
}

#[tokio::test]
async fn another_call_with_the_same_xid_is_another_call() {
    let server = running!();
    let mut client = server.tcp().await;
    for text in ["one", "two"] {
        let args = MKDIR3args { r#where: place(server.root, text), attributes: mode(0o755) };
        send(&mut client, 0x7200_0000, &args).await;
    }
    assert!(server.path("one").exists() && server.path("two").exists());
    client.credential = sys(1000, 1000, &[]);
    let args = MKDIR3args { r#where: place(server.root, "two"), attributes: mode(0o755) };
    let mut refused = send(&mut client, 0x7200_0000, &args).await;
    ReplyHeader::decode(&mut refused).unwrap();
    assert_ne!(nfsstat3::decode(&mut refused).unwrap(), nfsstat3::NFS3_OK, "another user's call");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_one_call_is_carried_out_once() {
    // Changes of names are synced, so that copies arrive while the first call is being executed.
    let server = running!(LocalOptions { durable_names: true, ..options() }, |_| {});
    let mut udp = server.udp().await;
    let mut tcp = server.tcp().await;
    let how = createhow3::GUARDED(mode(0o600));
    let args = CREATE3args { r#where: place(server.root, "file"), how };
    let xid = Xid(0x7300_0000);
    let datagram = encode_call(xid, &udp.credential, &args, Framing::Datagram).to_bytes();
    let record = encode_call(xid, &tcp.credential, &args, Framing::Record).to_bytes();
    for _ in 0..20 {
        udp.send(&datagram).await.unwrap();
        tcp.send(&record).await.unwrap();
    }
    // Over TCP each copy gets an answer, and the same one.
    for _ in 0..20 {
        let mut reply = tcp.receive().await.unwrap();
        assert_eq!(ReplyHeader::decode(&mut reply).unwrap().outcome, Outcome::Success);
        assert_eq!(nfsstat3::decode(&mut reply).unwrap(), nfsstat3::NFS3_OK);
    }
    // Some of the datagrams are answered and the others dropped, some time later.
    let judged = async {
        while server.stats().replayed + server.stats().dropped < 39 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(REPLY_MAX, judged).await.expect("all but one");
    let stats = server.stats();
    assert_eq!(stats.nfs[8].calls, 40);
    assert_eq!(stats.replayed + stats.dropped, 39);
    assert_eq!(stats.nfs[8].errors, 0);
}

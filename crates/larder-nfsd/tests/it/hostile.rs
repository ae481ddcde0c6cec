//! Bytes that mean harm: none stops the server, whatever they are answered with.

use larder_wire::mount3;
use larder_wire::nfs3::*;
use larder_wire::record::mark;
use larder_wire::rpc::{AUTH_BADCRED, AUTH_TOOWEAK, Credential, Outcome, ReplyHeader};
use larder_wire::xdr::{Decode, Opaque, opaque_len};

use crate::harness::{Client, Running, mode, place, running};

/// The server still serves.
async fn assert_serves(server: &Running) {
    for mut client in [server.tcp().await, server.udp().await] {
        client.call(&GETATTR3args { object: server.root }).await.unwrap();
    }
}

/// A valid message of each procedure, without record marks.
fn messages(client: &mut Client, root: nfs_fh3) -> Vec<Vec<u8>> {
    let at = || place(root, "name");
    let data = || bytes::Bytes::from(vec![7; 100]).into();
    let symlink = symlinkdata3 { symlink_attributes: mode(0), symlink_data: "target".into() };
    let mut all = Vec::new();
    macro_rules! add {
        ($($args:expr),+ $(,)?) => { $( all.push(client.encode(&$args).1.to_bytes().to_vec()); )+ };
    }
    add!(
        GETATTR3args { object: root },
        SETATTR3args { object: root, new_attributes: mode(0o755), guard: None },
        LOOKUP3args { what: at() },
        ACCESS3args { object: root, access: 63 },
        READLINK3args { symlink: root },
        READ3args { file: root, offset: 1, count: 100 },
        WRITE3args {
            file: root,
            offset: 1,
            count: 100,
            stable: stable_how::UNSTABLE,
            data: data()
        },
        CREATE3args { r#where: at(), how: createhow3::EXCLUSIVE([3; 8]) },
        MKDIR3args { r#where: at(), attributes: mode(0o755) },
        SYMLINK3args { r#where: at(), symlink },
        MKNOD3args { r#where: at(), what: mknoddata3::NF3FIFO(mode(0)) },
        REMOVE3args { object: at() },
        RMDIR3args { object: at() },
        RENAME3args { from: at(), to: at() },
        LINK3args { file: root, link: at() },
        READDIR3args { dir: root, cookie: 0, cookieverf: [0; 8], count: 1000 },
        READDIRPLUS3args {
            dir: root,
            cookie: 0,
            cookieverf: [0; 8],
            dircount: 500,
            maxcount: 1000
        },
        FSSTAT3args { fsroot: root },
        FSINFO3args { fsroot: root },
        PATHCONF3args { object: root },
        COMMIT3args { file: root, offset: 0, count: 0 },
        mount3::MNTargs { dirpath: "/a".into() },
        mount3::UMNTargs { dirpath: "/a".into() },
    );
    all
}

#[tokio::test]
async fn truncated_messages_are_refused() {
    let server = running!();
    let mut udp = server.udp().await;
    let mut tcp = server.tcp().await;
    for message in messages(&mut udp, server.root) {
        for len in 0..message.len() {
            let cut = &message[..len];
            udp.send(cut).await.unwrap();
            tcp.send(&[&mark(len)[..], cut].concat()).await.unwrap();
        }
        // All but the shortest get an answer with an error. Only those that are cut within the
        // arguments name a procedure.
        while !udp.is_silent().await {}
    }
    assert_serves(&server).await;
    let created = server.stats().nfs.iter().map(|procedure| procedure.errors).sum::<u64>();
    assert!(created > 0);
    assert_eq!(std::fs::read_dir(server.path("")).unwrap().count(), 0, "nothing was carried out");
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

#[tokio::test]
async fn random_bytes_are_survived() {
    let server = running!();
    let seed: u64 = std::env::var("SEED").map_or(20_260_101, |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut udp = server.udp().await;
    let good = messages(&mut udp, server.root);
    for round in 0..3000 {
        let mut message = match round % 3 {
            // Random bytes.
            0 => (0..random.below(300)).map(|_| random.below(256) as u8).collect(),
            // A valid message with some bits changed.
            _ => good[random.below(good.len())].clone(),
        };
        for _ in 0..random.below(4) {
            if !message.is_empty() {
                let at = random.below(message.len());
                message[at] ^= 1 << random.below(8);
            }
        }
        if round % 2 == 0 {
            udp.send(&message).await.unwrap();
        } else {
            let mut tcp = server.tcp().await;
            let marked = [&mark(message.len())[..], &message].concat();
            let sent = if round % 5 == 0 { &message } else { &marked };
            // The server may have closed the connection in the middle.
            let _ = tcp.send(sent).await;
        }
    }
    while !udp.is_silent().await {}
    assert_serves(&server).await;
}

#[tokio::test]
async fn records_too_long_end_the_connection_only() {
    let server = running!();
    for announced in [2 << 20, (1 << 31) - 1] {
        let mut tcp = server.tcp().await;
        tcp.send(&mark(announced)).await.unwrap();
        assert!(tcp.receive().await.is_none());
    }
    // The same for a record that never ends.
    let mut tcp = server.tcp().await;
    let fragment = [&(1u32 << 19).to_be_bytes()[..], &vec![0; 1 << 19]].concat();
    while tcp.send(&fragment).await.is_ok() {}
    assert_serves(&server).await;
}

#[tokio::test]
async fn what_rpc_does_not_know_is_told_so() {
    let server = running!();
    let mut udp = server.udp().await;
    let good = messages(&mut udp, server.root).swap_remove(0);
    let with = |at: usize, value: u32| {
        let mut message = good.clone();
        message[at..at + 4].copy_from_slice(&value.to_be_bytes());
        message
    };
    for (message, expected) in [
        (with(8, 3), Outcome::RpcMismatch { low: 2, high: 2 }),
        (with(12, 100_021), Outcome::ProgUnavail),
        (with(16, 4), Outcome::ProgMismatch { low: 3, high: 3 }),
        (with(20, 22), Outcome::ProcUnavail),
        (with(24, 6), Outcome::AuthError(AUTH_TOOWEAK)),
        // A machine name longer than the credential.
        (with(36, 250), Outcome::AuthError(AUTH_BADCRED)),
        // A handle longer than allowed.
        (with(good.len() - opaque_len(server.root.as_bytes().len()), 65), Outcome::GarbageArgs),
    ] {
        udp.send(&message).await.unwrap();
        let mut reply = udp.receive().await.unwrap();
        assert_eq!(ReplyHeader::decode(&mut reply).unwrap().outcome, expected);
        assert!(reply.is_empty());
    }
    // A reply is not a call, and gets no answer.
    udp.send(&with(4, 1)).await.unwrap();
    assert!(udp.is_silent().await);
    udp.credential = Credential::Other { flavor: 6, body: Opaque::default() };
    udp.call(&NULL3args {}).await;
}

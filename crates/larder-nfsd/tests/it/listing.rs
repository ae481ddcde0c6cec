//! READDIR and READDIRPLUS: what fits, and what comes next.

use std::collections::BTreeSet;

use larder_wire::nfs3::*;
use larder_wire::xdr::to_segments;

use crate::harness::{Client, running, status};

/// Lists everything by READDIR in replies of at most `count` bytes.
async fn list(client: &mut Client, dir: nfs_fh3, count: u32) -> Vec<String> {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let args = READDIR3args { dir, cookie, cookieverf: [0; 8], count };
        let answer = client.call(&args).await.unwrap();
        let bytes = to_segments(&answer).len();
        assert!(bytes <= count as usize, "{bytes} of {count}");
        for entry in &answer.reply.entries.0 {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            cookie = entry.cookie;
        }
        if answer.reply.eof {
            return names;
        }
        assert!(!answer.reply.entries.0.is_empty(), "no end and no progress");
    }
}

/// Lists everything by READDIRPLUS.
async fn list_plus(client: &mut Client, dir: nfs_fh3, dircount: u32, maxcount: u32) -> Vec<String> {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let args = READDIRPLUS3args { dir, cookie, cookieverf: [0; 8], dircount, maxcount };
        let answer = client.call(&args).await.unwrap();
        let bytes = to_segments(&answer).len();
        assert!(bytes <= maxcount as usize, "{bytes} of {maxcount}");
        for entry in &answer.reply.entries.0 {
            let text = String::from_utf8(entry.name.to_vec()).unwrap();
            assert_eq!(entry.name_attributes.unwrap().fileid, entry.fileid);
            if text != "." && text != ".." {
                assert_eq!(client.find(dir, &text).await.ok(), entry.name_handle);
            }
            names.push(text);
            cookie = entry.cookie;
        }
        if answer.reply.eof {
            return names;
        }
        assert!(!answer.reply.entries.0.is_empty(), "no end and no progress");
    }
}

#[tokio::test]
async fn listings_are_complete_in_replies_of_any_size() {
    let server = running!();
    let mut expected = BTreeSet::from([".".to_owned(), "..".to_owned()]);
    for i in 0..120 {
        let name = format!("{}{i}", "long".repeat(i % 40));
        std::fs::write(server.path(&name), b"").unwrap();
        expected.insert(name);
    }
    for mut client in [server.tcp().await, server.udp().await] {
        for count in [400, 512, 1000, 4096, 65_536, u32::MAX] {
            let names = list(&mut client, server.root, count).await;
            assert_eq!(names.len(), expected.len(), "{count}");
            assert_eq!(names.into_iter().collect::<BTreeSet<_>>(), expected);
        }
        for (dircount, maxcount) in
            [(0, 600), (100, 4096), (4096, 1000), (4096, 32_768), (u32::MAX, u32::MAX)]
        {
            let names = list_plus(&mut client, server.root, dircount, maxcount).await;
            assert_eq!(names.len(), expected.len(), "{dircount} {maxcount}");
            assert_eq!(names.into_iter().collect::<BTreeSet<_>>(), expected);
        }
    }
}

#[tokio::test]
async fn a_small_directory_takes_one_message() {
    let server = running!();
    std::fs::write(server.path("only"), b"").unwrap();
    let mut client = server.tcp().await;
    assert_eq!(list(&mut client, server.root, 4096).await.len(), 3);
    assert_eq!(server.stats().nfs[16].calls, 1);
    let args = READDIRPLUS3args {
        dir: server.root,
        cookie: 0,
        cookieverf: [0; 8],
        dircount: 4096,
        maxcount: 4096,
    };
    assert!(client.call(&args).await.unwrap().reply.eof);
}

#[tokio::test]
async fn replies_too_small_and_cookies_not_ours_are_refused() {
    let server = running!();
    std::fs::write(server.path(&"n".repeat(255)), b"").unwrap();
    let mut client = server.tcp().await;
    let file = client.find(server.root, &"n".repeat(255)).await.unwrap();
    let plain = |dir, cookie, cookieverf, count| READDIR3args { dir, cookie, cookieverf, count };
    let plus = |cookie, cookieverf, maxcount| READDIRPLUS3args {
        dir: server.root,
        cookie,
        cookieverf,
        dircount: 4096,
        maxcount,
    };
    for (found, expected) in [
        (status(client.call(&plain(server.root, 0, [0; 8], 0)).await), nfsstat3::NFS3ERR_TOOSMALL),
        (
            status(client.call(&plain(server.root, 0, [0; 8], 110)).await),
            nfsstat3::NFS3ERR_TOOSMALL,
        ),
        (
            status(client.call(&plain(server.root, 2, [0; 8], 300)).await),
            nfsstat3::NFS3ERR_TOOSMALL,
        ),
        (status(client.call(&plain(server.root, 2, [0; 8], 400)).await), nfsstat3::NFS3_OK),
        (
            status(client.call(&plain(server.root, 2, [1; 8], 400)).await),
            nfsstat3::NFS3ERR_BAD_COOKIE,
        ),
        (
            status(client.call(&plain(server.root, u64::MAX, [0; 8], 400)).await),
            nfsstat3::NFS3ERR_BAD_COOKIE,
        ),
        (status(client.call(&plain(file, 0, [0; 8], 400)).await), nfsstat3::NFS3ERR_NOTDIR),
        (status(client.call(&plus(2, [0; 8], 300)).await), nfsstat3::NFS3ERR_TOOSMALL),
        (status(client.call(&plus(0, [9; 8], 4096)).await), nfsstat3::NFS3ERR_BAD_COOKIE),
    ] {
        assert_eq!(found, expected);
    }
}

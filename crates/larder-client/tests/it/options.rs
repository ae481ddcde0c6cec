//! What each option of a mount changes, in answers and in requests.

use std::ffi::OsStr;
use std::time::Duration;

use larder_client::{LookupCache, Options};
use larder_vfs::{
    Access, DataPath, Error, FileSystem, Ino, Lookup, MemRemote, New, OpenFlags, Remote,
    RemoteLimits, Removal, RenameFlags, Result, SetAttr, SetXattr, Stability,
};

use crate::rig::{PATIENCE, READ, Rig, WRITE, pattern, root};

/// What the server has of a file on its disk.
async fn durable(rig: &Rig, name: &str) -> Vec<u8> {
    rig.server.restart();
    rig.foreigner().await.cat(name).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_mount_asks_for_no_change() {
    let options = Options { read_only: true, has_xattrs: true, ..Options::default() };
    let rig = Rig::new(options).await;
    rig.foreigner().await.put("file", b"content").await;
    let ino = rig.find("file").await.unwrap();
    let (client, top, set) = (&rig.client, Ino::ROOT, SetAttr::default());
    let (at, to) = (OsStr::new("file"), OsStr::new("to"));
    let mode = SetAttr { mode: Some(0o600), ..set };
    let before = rig.server.calls_total();
    let set_xattr = SetXattr { name: "a".into(), value: Some("b".into()), only: None };
    let refused: [(&str, Result<()>); 10] = [
        ("make", client.make(&root(), top, to, New::Directory, set).wait().await.map(drop)),
        ("create", client.create(&root(), top, to, set, WRITE).wait().await.map(drop)),
        ("open", client.open(&root(), ino, WRITE).wait().await.map(drop)),
        ("write", {
            let write = client.write(&root(), ino, None, 0, b"x", Stability::Unstable);
            write.wait().await.map(drop)
        }),
        ("setattr", client.setattr(&root(), ino, None, mode).wait().await.map(drop)),
        ("remove", client.remove(&root(), top, at, Removal::File).wait().await),
        ("rename", {
            let flags = RenameFlags::default();
            client.rename(&root(), (top, at), (top, to), flags).wait().await
        }),
        ("link", client.link(&root(), ino, top, to).wait().await.map(drop)),
        ("set_xattr", client.set_xattr(&root(), ino, set_xattr).wait().await),
        ("open and cut", {
            let flags = OpenFlags { truncate: true, ..WRITE };
            client.open(&root(), ino, flags).wait().await.map(drop)
        }),
    ];
    for (call, answer) in refused {
        assert_eq!(answer, Err(Error::ReadOnly), "{call}");
    }
    assert_eq!(rig.server.calls_total(), before, "the server need not be asked");
    let granted = client.access(&root(), ino, Access::ALL).wait().await.unwrap();
    assert_eq!(granted, Access::READ, "the superuser may read");
    let granted = client.access(&root(), top, Access::ALL).wait().await.unwrap();
    assert_eq!(granted, Access::READ | Access::LOOKUP);
    assert_eq!(rig.cat("file").await, b"content");
}

/// What an earlier mount left unsent stays for the next mount that may write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_mount_keeps_what_is_unsent() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"before").await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(0, b"AFTER!").await.unwrap();
    let rig = rig.kill_with(Options { read_only: true, ..Options::default() }).await;
    rig.pass_to_next_wake();
    assert_eq!(durable(&rig, "file").await, b"before");
    assert_eq!(rig.server.calls("write"), 0);
    let rig = rig.kill_with(Options::default()).await;
    rig.sent().await;
    assert_eq!(durable(&rig, "file").await, b"AFTER!");
}

/// (option of the mount, flag of the open, durability requested)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronous_write_is_on_the_servers_disk_when_it_is_answered() {
    for (option, flag, asked) in [
        (true, false, Stability::Unstable),
        (false, true, Stability::Unstable),
        (false, false, Stability::FileSync),
        (false, false, Stability::DataSync),
    ] {
        let rig = Rig::new(Options { sync: option, ..Options::default() }).await;
        rig.put("file", b"0123456789").await;
        let open = rig.open(&root(), "file", OpenFlags { sync: flag, ..WRITE }).await.unwrap();
        let bytes = pattern(3, 3 << 20);
        let write = rig.client.write(&root(), open.ino, Some(open.id), 5, &bytes, asked);
        assert_eq!(write.wait().await.unwrap().stability, Stability::FileSync);
        assert!(durable(&rig, "file").await == [b"01234", &bytes[..]].concat());
        rig.server.time_out();
        let write = rig.client.write(&root(), open.ino, Some(open.id), 0, b"late", asked);
        assert_eq!(write.wait().await.map(drop), Err(Error::TimedOut));
        rig.server.reconnect();
        open.close().await.unwrap();
        assert!(durable(&rig, "file").await.starts_with(b"late4"));
    }
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"").await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    let write = rig.client.write(&root(), open.ino, Some(open.id), 0, b"x", Stability::Unstable);
    assert_eq!(write.wait().await.unwrap().stability, Stability::Unstable);
}

/// (whether a name that exists, and one that does not, are requested each time)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_cached_as_the_option_says() {
    for (lookup_cache, asks_present, asks_absent) in [
        (LookupCache::All, false, false),
        (LookupCache::Positive, false, true),
        (LookupCache::None, true, true),
    ] {
        let rig = Rig::new(Options { lookup_cache, ..Options::default() }).await;
        rig.foreigner().await.put("file", b"x").await;
        for (name, asks) in [("file", asks_present), ("absent", asks_absent)] {
            rig.find(name).await;
            let calls = rig.server.calls("lookup");
            let look = rig.client.lookup(&root(), Ino::ROOT, OsStr::new(name)).wait().await;
            let ttl = match look.unwrap() {
                Lookup::Found(entry) => entry.ttl,
                Lookup::Absent { ttl } => ttl,
            };
            let asked = rig.server.calls("lookup") - calls;
            assert_eq!(asked, u64::from(asks), "{lookup_cache:?} {name}");
            assert_eq!(ttl.is_zero(), asks, "{lookup_cache:?} {name}: {ttl:?}");
        }
        // The server does not answer: cached attributes are better than none.
        rig.server.time_out();
        assert!(rig.find("file").await.is_some(), "{lookup_cache:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_are_asked_for_as_often_as_the_options_say() {
    let ttl = (Duration::from_secs(3), Duration::from_secs(12));
    let rig = Rig::new(Options { file_ttl: ttl, directory_ttl: ttl, ..Options::default() }).await;
    let other = rig.foreigner().await;
    other.put("file", b"x").await;
    let ino = rig.find("file").await.unwrap();
    // (seconds since the last question, whether it is asked)
    let unchanged = [(5, false), (7, true), (11, false), (13, true), (11, false), (13, true)];
    for (number, (seconds, asks)) in unchanged.into_iter().enumerate() {
        let rest = if number > 0 && !unchanged[number - 1].1 { unchanged[number - 1].0 } else { 0 };
        rig.advance(seconds - rest);
        let before = rig.server.calls("getattr");
        rig.client.getattr(&root(), ino).wait().await.unwrap();
        let asked = rig.server.calls("getattr") - before;
        assert_eq!(asked, u64::from(asks), "after {seconds} s, question {number}");
    }
    // A change resets the timeout to the shortest one.
    other.put("file", b"changed").await;
    rig.advance(13);
    assert_eq!(rig.client.getattr(&root(), ino).wait().await.unwrap().attr.size, 7);
    rig.advance(4);
    let before = rig.server.calls("getattr");
    rig.client.getattr(&root(), ino).wait().await.unwrap();
    assert_eq!(rig.server.calls("getattr"), before + 1);
}

/// (size that the mount requests, size that the server accepts, requests for 1 MiB)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_no_longer_than_the_mount_and_the_server_want() {
    for (bytes_max, server_max, requests) in
        [(64 << 10, 1 << 20, 16), (1 << 20, 128 << 10, 8), (1 << 20, 1 << 20, 1)]
    {
        let limits = RemoteLimits {
            read_max: server_max,
            write_max: server_max,
            ..MemRemote::new().limits()
        };
        let options = Options {
            read_bytes_max: bytes_max,
            write_bytes_max: bytes_max,
            cache_data: false,
            readahead_bytes_max: 0,
            ..Options::default()
        };
        let rig = Rig::of_server(MemRemote::with_limits(limits), options).await;
        let bytes = pattern(1, 1 << 20);
        rig.put("file", &bytes).await;
        assert_eq!(rig.server.calls("write"), requests, "{bytes_max} {server_max}");
        let open = rig.open(&root(), "file", READ).await.unwrap();
        assert!(open.read(0, 1 << 20).await.unwrap() == bytes);
        assert_eq!(rig.server.calls("read"), requests, "{bytes_max} {server_max}");
        open.close().await.unwrap();
    }
}

/// Long before its close.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_write_is_sent_while_it_is_made() {
    const STEP: usize = 64 << 10;
    let options = Options { dirty_bytes_max: 3 * STEP as u64, ..Options::default() };
    let rig = Rig::new(options).await;
    rig.put("file", b"").await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    let (bytes, (ino, id)) = (pattern(5, 16 * STEP), open.names());
    rig.server.reset_calls();
    let write = async |number: usize| {
        let (at, piece) = (number * STEP, &bytes[number * STEP..(number + 1) * STEP]);
        let unstable = Stability::Unstable;
        let write = rig.client.write(&root(), ino, Some(id), at as u64, piece, unstable);
        write.wait().await.unwrap().stability
    };
    for number in 0..3 {
        assert_eq!(write(number).await, Stability::Unstable);
    }
    assert_eq!(rig.server.calls("write"), 0, "so much may wait");
    rig.server.hold(Some("write"));
    assert_eq!(write(3).await, Stability::Unstable);
    let asked = async {
        while rig.server.calls("write") == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("nobody sends it");
    for number in 4..13 {
        assert_eq!(write(number).await, Stability::Unstable, "the server is slow");
    }
    rig.server.hold(None);
    open.close().await.unwrap();
    assert!(durable(&rig, "file").await == bytes[..13 * STEP]);
}

/// A mount that caches no data keeps none, except unsent data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_mount_holds_nothing_but_what_is_unsent() {
    let rig = Rig::new(Options { cache_data: false, ..Options::default() }).await;
    let bytes = pattern(1, 50_000);
    rig.put("file", &bytes).await;
    assert_eq!(rig.held_bytes(), 0, "what was sent is not kept");
    assert_eq!(rig.cat("file").await, bytes);
    assert_eq!(rig.held_bytes(), 0, "nor what was read");
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    rig.server.time_out();
    open.write(20_000, b"unsent").await.unwrap();
    assert_eq!(open.close().await, Err(Error::TimedOut));
    assert!(rig.held_bytes() > 0, "what is unsent must be somewhere");
    rig.server.reconnect();
    rig.sent().await;
    let found = durable(&rig, "file").await;
    assert!(found[20_000..20_006] == *b"unsent" && found[..20_000] == bytes[..20_000]);
    let opened = rig.open(&root(), "file", READ).await.unwrap();
    let path = rig.client.open(&root(), opened.ino, READ).wait().await.unwrap().path;
    assert!(matches!(path, DataPath::Cached { .. }), "there is no local file to hand out");
}

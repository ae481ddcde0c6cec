//! Several connections of one mount.

use super::leases::{next, smbclient_puts, watch};
use super::proxy::behind_a_proxy;
use super::setup::{GIVE_BACK_MAX, Setup, eventually, options, pattern, serve};
use larder_remote::smb::MountOptions;
use larder_rpc::{ConnectionSnapshot, Recovery};
use larder_vfs::{Error, Handle, Intent, New, Remote, Removal, SetAttr, Stability};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Enough files for each of three connections to have some, except once in ten thousand runs.
const FILES: usize = 24;

fn three(options: &mut MountOptions) {
    options.connections = 3;
}

fn names() -> impl Iterator<Item = String> {
    (0..FILES).map(|number| format!("file {number}"))
}

/// Files of this content, durable.
async fn files(setup: &Setup, content: &[u8]) -> HashMap<String, Handle> {
    let mut files = HashMap::new();
    for name in names() {
        let file = setup.file(&name, content).await;
        files.insert(name, file);
    }
    files
}

/// Requests that were sent so far, by connection.
fn offered(setup: &Setup) -> Vec<u64> {
    setup.smb.stats().connections.iter().map(|one| one.offered).collect()
}

/// Leases that the server has withdrawn so far: each was acknowledged.
fn breaks(setup: &Setup) -> u64 {
    let stats = setup.smb.stats();
    stats.procedures.iter().find(|one| one.name == "OPLOCK_BREAK").map_or(0, |one| one.calls)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_travel_over_all_connections() {
    let setup = Setup::new(|_| (), three).await;
    assert_eq!(setup.server.connections(), 3);
    let before = offered(&setup);
    assert_eq!(before.len(), 3);
    for (name, file) in &files(&setup, &pattern(100_000)).await {
        assert!(setup.read(file, 0, 100_000).await == pattern(100_000), "{name}");
    }
    let after = offered(&setup);
    for (number, (before, after)) in before.iter().zip(&after).enumerate() {
        assert!(after - before > 4, "connection {number}: {before} to {after}");
    }
    let all: u64 = after.iter().sum();
    assert_eq!(all, setup.requests(), "the sum is what the commands say");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_does_with_the_connections_that_it_gets() {
    let (server, dir) = serve(|samba| samba.share_lines = "max connections = 2");
    let four = MountOptions { connections: 4, ..options(&server) };
    let start = Instant::now();
    let setup = Setup::mounted(server, dir, &four).await;
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    // Samba counts before it admits a connection, so two at the same time may both get the last
    // slot.
    let connections = setup.smb.stats().connections.len();
    assert!((2..4).contains(&connections), "{connections}");
    eventually("no others are left", || setup.server.connections() == connections).await;
    for (name, file) in &files(&setup, &pattern(10_000)).await {
        assert!(setup.read(file, 0, 10_000).await == pattern(10_000), "{name}");
    }
}

/// Writes and reads a file repeatedly, as the client does: what was not committed under the same
/// verifier is sent again. Returns how often.
async fn work(setup: &Setup, name: &str, file: &Handle, enough: &AtomicBool) -> usize {
    for round in 1.. {
        let last = enough.load(Ordering::SeqCst);
        let data = pattern(600_000 + round);
        loop {
            let written = setup.write(file, 0, &data, Stability::Unstable).await.unwrap();
            let committed = setup.smb.commit(&setup.cred, file, None, 0..0).await.unwrap();
            if committed.verifier == written.verifier {
                break;
            }
        }
        setup.write(file, 10, b"acknowledged", Stability::FileSync).await.unwrap();
        let read = setup.read(file, 0, 1_000_000).await;
        let stored = std::fs::read(setup.dir.path().join(name)).unwrap();
        for content in [&read[..], &stored] {
            assert!(content.len() == data.len() && content[22..] == data[22..], "{name}, {round}");
            assert_eq!(content[10..22], *b"acknowledged", "{name}, {round}");
        }
        if last {
            return round;
        }
    }
    unreachable!()
}

/// Two of three connections are lost again and again in the middle of reads and writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_costs_no_byte_and_leaves_the_others_alone() {
    const CUTS: u64 = 5;
    let (setup, proxy) = behind_a_proxy(|_| (), three).await;
    let (setup, enough) = (Arc::new(setup), Arc::new(AtomicBool::new(false)));
    proxy.spared.store(1, Ordering::SeqCst);
    let mut working = tokio::task::JoinSet::new();
    for (name, file) in files(&setup, b"").await {
        let (setup, enough) = (Arc::clone(&setup), Arc::clone(&enough));
        working.spawn(async move { work(&setup, &name, &file, &enough).await });
    }
    let connected = || setup.smb.stats().connections.iter().filter(|one| one.connected).count();
    let reconnects = || {
        let connections = setup.smb.stats().connections;
        connections.iter().map(|one| one.reconnects).collect::<Vec<_>>()
    };
    for cut in 1..=CUTS {
        let before = offered(&setup);
        eventually("all are there and at work", || {
            let now = offered(&setup);
            connected() == 3 && now.iter().zip(&before).all(|(now, before)| *now > before + 10)
        })
        .await;
        proxy.cuts.send_modify(|cuts| *cuts += 1);
        eventually("they are made again", || reconnects()[1..].iter().all(|one| *one >= cut)).await;
    }
    enough.store(true, Ordering::SeqCst);
    while let Some(done) = working.join_next().await {
        done.unwrap();
    }
    eventually("all are there", || connected() == 3).await;
    assert_eq!(reconnects()[0], 0, "{:?}", reconnects());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_ends_the_leases_of_its_files_only() {
    let (setup, proxy) = behind_a_proxy(|_| (), three).await;
    proxy.spared.store(2, Ordering::SeqCst);
    let mut leases = Vec::new();
    for (_, file) in files(&setup, b"x").await {
        leases.push((setup.access(&file).await.lease.expect("a lease"), file));
    }
    proxy.cuts.send_modify(|cuts| *cuts += 1);
    let connected = || setup.smb.stats().connections.iter().all(|one| one.connected);
    let again = || setup.smb.stats().connections.iter().any(|one| one.reconnects > 0);
    eventually("all are there again", || again() && connected()).await;
    let ended = leases.iter().filter(|(lease, _)| !lease.holds()).count();
    assert!((1..FILES / 2 + 6).contains(&ended), "{ended} leases ended");
    assert!(setup.smb.reachable());
    for (lease, file) in leases {
        let again = setup.access(&file).await.lease.expect("a lease");
        assert_eq!(again.is(&lease), lease.holds());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_client_writes_is_reported_on_every_connection() {
    let mut setup = Setup::new(|_| (), three).await;
    let (_watcher, mut told) = watch(&setup, true);
    for (name, file) in files(&setup, b"ours").await {
        let lease = setup.access(&file).await.lease.expect("a lease");
        assert_eq!(setup.read(&file, 0, 9).await, "ours");
        let start = Instant::now();
        let quoted = format!("\"{name}\"");
        setup.server = smbclient_puts(setup.server, &quoted, b"theirs").await;
        assert_eq!(next(&mut told).await, file);
        assert!(!lease.holds() && start.elapsed() < GIVE_BACK_MAX);
        assert_eq!(setup.read(&file, 0, 9).await, "theirs");
    }
    eventually("each is given back", || breaks(&setup) >= FILES as u64).await;
    assert_eq!(breaks(&setup), FILES as u64);
}

/// The request for a directory uses another connection than that for a file in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_requests_by_other_connections_wait_for_no_lease() {
    let setup = Setup::new(|_| (), three).await;
    let (cred, root) = (&setup.cred, &setup.root);
    let mut leases = Vec::new();
    for (name, file) in files(&setup, b"first").await {
        leases.push((setup.access(&file).await.lease.expect("a lease"), name, file));
    }
    for (lease, name, file) in &leases {
        let (os, start) = (OsStr::new(name), Instant::now());
        assert_eq!(setup.find(name).await.as_ref(), Some(file));
        assert_eq!(setup.make(name, New::File).await.as_ref(), Ok(file));
        setup.smb.readdir(cred, root, Default::default(), 65536).await.unwrap();
        assert!(lease.holds(), "{name}");
        assert!(setup.access(file).await.lease.is_some_and(|again| again.is(lease)));
        // The server takes the open of the first change, on the other connection, for another
        // client's. No caller waits for that.
        let cut = SetAttr { size: Some(2), ..SetAttr::default() };
        let made = setup.smb.make(cred, root, os, New::File, cut).await.unwrap();
        assert_eq!((&made.found.handle, made.found.attr.size), (file, 2));
        setup.write(file, 2, b"second", Stability::FileSync).await.unwrap();
        assert_eq!(setup.read(file, 0, 100).await, "fisecond");
        assert!(start.elapsed() < GIVE_BACK_MAX, "{name}: {:?}", start.elapsed());
    }
    for (lease, name, file) in &leases {
        let (moved, start) = (format!("{name} moved"), Instant::now());
        let (from, to) = ((root, OsStr::new(name)), (root, OsStr::new(&moved)));
        setup.smb.rename(cred, from, to).await.unwrap();
        assert!(!lease.holds(), "what is renamed is closed first");
        setup.access(file).await.lease.expect("a lease");
        // Another file takes its name, and then its path.
        setup.file(name, b"other").await;
        setup.smb.rename(cred, from, to).await.unwrap();
        let other = setup.find(&moved).await.unwrap();
        setup.access(&other).await.lease.expect("a lease");
        setup.smb.remove(cred, root, OsStr::new(&moved), Removal::File).await.unwrap();
        setup.is_gone(&moved);
        assert!(start.elapsed() < GIVE_BACK_MAX, "{name}: {:?}", start.elapsed());
    }
}

/// What was open below a directory is closed on other connections than that of the rename, and
/// late; the server, like Windows, does not rename a directory with open files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_are_renamed_and_removed_with_all_that_was_open_in_them() {
    let (setup, proxy) =
        behind_a_proxy(|samba| samba.share_lines = "strict rename = yes", three).await;
    let (cred, root) = (&setup.cred, &setup.root);
    let list = async |dir: &Handle| {
        setup.smb.readdir(cred, dir, Default::default(), 4096).await.unwrap();
    };
    for (new, what) in [(New::File, Removal::File), (New::Directory, Removal::Directory)] {
        proxy.holds_closes.store(false, Ordering::SeqCst);
        let dir = setup.make("dir", New::Directory).await.unwrap();
        let mut below = Vec::new();
        for name in (0..8).map(|number| number.to_string()) {
            let new = new.clone();
            let made = setup.smb.make(cred, &dir, name.as_ref(), new, Default::default()).await;
            below.push((name, made.unwrap().found.handle));
        }
        let use_it = async |file: &Handle| match what {
            Removal::Directory => list(file).await,
            Removal::File => drop(setup.access(file).await.lease.expect("a lease")),
        };
        proxy.holds_closes.store(true, Ordering::SeqCst);
        let names = [OsStr::new("dir"), OsStr::new("moved")];
        for (turn, (_, file)) in below.iter().enumerate() {
            use_it(file).await;
            let (from, to) = ((root, names[turn % 2]), (root, names[1 - turn % 2]));
            setup.smb.rename(cred, from, to).await.unwrap();
        }
        for (name, file) in &below {
            setup.access(&dir).await.lease.expect("a watch");
            use_it(file).await;
            setup.smb.remove(cred, &dir, name.as_ref(), what).await.unwrap();
            setup.is_gone(&format!("dir/{name}"));
        }
        list(&dir).await;
        setup.smb.remove(cred, root, "dir".as_ref(), Removal::Directory).await.unwrap();
        setup.is_gone("dir");
    }
    assert_eq!(breaks(&setup), 0);
}

/// Closes for which no caller waits are sent later than the removal that follows them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_free_when_its_removal_returns_though_own_closes_are_late() {
    for connections in [1, 3] {
        let change = |options: &mut MountOptions| {
            (options.leases, options.connections) = (false, connections);
        };
        let (setup, proxy) = behind_a_proxy(|_| (), change).await;
        let (cred, root) = (&setup.cred, &setup.root);
        proxy.overtakes_closes.store(true, Ordering::SeqCst);
        let dir = setup.make("dir", New::Directory).await.unwrap();
        setup.smb.readdir(cred, &dir, Default::default(), 4096).await.unwrap();
        setup.smb.remove(cred, root, "dir".as_ref(), Removal::Directory).await.unwrap();
        setup.is_gone("dir");
        for name in ["removed", "replaced"] {
            let file = setup.file(name, b"x").await;
            drop(setup.smb.open(cred, &file, Intent::READ).await.unwrap().token.expect("a token"));
            if name == "removed" {
                setup.smb.remove(cred, root, name.as_ref(), Removal::File).await.unwrap();
            } else {
                setup.file("other", b"y").await;
                setup
                    .smb
                    .rename(cred, (root, "other".as_ref()), (root, name.as_ref()))
                    .await
                    .unwrap();
            }
        }
        assert_eq!(setup.names(), ["replaced"], "{}", setup.server.opens());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_connection_comes_back_and_is_shut() {
    let hard = |options: &mut MountOptions| {
        three(options);
        options.recovery = Recovery::Hard;
    };
    let mut setup = Setup::new(|_| (), hard).await;
    let files = files(&setup, b"x").await;
    setup.server.kill().unwrap();
    eventually("the mount knows", || !setup.smb.reachable()).await;
    setup.server.boot().unwrap();
    for file in files.values() {
        assert_eq!(setup.read(file, 0, 9).await, "x");
    }
    let again = |one: &ConnectionSnapshot| one.connected && one.reconnects == 1;
    eventually("all are there", || setup.smb.stats().connections.iter().all(again)).await;
    setup.server.kill().unwrap();
    eventually("the mount knows", || !setup.smb.reachable()).await;
    let reading: Vec<_> = files
        .values()
        .map(|file| {
            let (smb, cred, file) = (Arc::clone(&setup.smb), setup.cred.clone(), file.clone());
            tokio::spawn(async move { smb.read(&cred, &file, None, 0, 1).await.map(drop) })
        })
        .collect();
    tokio::task::yield_now().await;
    setup.smb.shutdown();
    for one in reading {
        assert_eq!(one.await.unwrap(), Err(Error::Shutdown));
    }
}

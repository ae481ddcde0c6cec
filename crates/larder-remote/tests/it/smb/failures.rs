//! Failures: at the mount, and after it.

use super::proxy::{Proxy, behind_a_proxy};
use super::setup::{GIVE_BACK_MAX, Setup, eventually, mount, options, pattern, serve};
use larder_remote::smb::{Credentials, MountError, MountOptions, Password, Smb, Version};
use larder_rpc::Recovery;
use larder_testkit::{Samba, SambaOptions};
use larder_vfs::{Error, Handle, New, Remote, Removal, Stability};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// Attempts a mount, which must fail within 10 s with one line that contains this.
pub(super) async fn refused(options: &MountOptions, wanted: &str) -> MountError {
    // If a stalled machine notices two limits at the same time, the lower one, which is the mount's
    // own, counts.
    let mounted = tokio::time::timeout(Duration::from_secs(10), Smb::mount(options)).await;
    let error = mounted.unwrap_or_else(|_| panic!("{wanted}: not within 10 s")).expect_err(wanted);
    let line = error.to_string();
    assert!(line.contains(wanted) && !line.contains('\n'), "{line}; {wanted:?} is missing");
    assert!(!line.contains(Samba::PASSWORD) && !line.contains("wrong"), "{line}");
    error
}

#[tokio::test]
async fn a_mount_that_cannot_be_says_why() {
    let (server, _dir) = serve(|_| ());
    let good = options(&server);
    let login = Credentials::new(Samba::USER, Password::new("wrong"));
    let bad = MountOptions { credentials: login, ..good.clone() };
    refused(&bad, "user name or the password").await;
    let login = Credentials::new("nobody-here", Password::new("wrong"));
    let bad = MountOptions { credentials: login, ..good.clone() };
    refused(&bad, "user name or the password").await;
    let bad = MountOptions { share: "films".into(), ..good.clone() };
    refused(&bad, "has no share \"films\"").await;
    let bad = MountOptions { share: "IPC$".into(), ..good.clone() };
    refused(&bad, "is no folder").await;
    let bad = MountOptions { path: "no/such".into(), ..good.clone() };
    refused(&bad, "has no folder \"no/such\"").await;
    let bad = MountOptions { port: 446, ..good.clone() };
    refused(&bad, "nothing answers at").await;
    // Too long for a query to a name server, which might be slow.
    let bad = MountOptions { host: "x".repeat(64), ..good.clone() };
    refused(&bad, "nothing answers at").await;
    let guest = MountOptions { credentials: Credentials::default(), ..good };
    Smb::mount(&guest).await.expect_err("guests are not let in");
}

#[tokio::test]
async fn a_server_with_smb_1_only_is_told_apart() {
    let old = |samba: &mut SambaOptions| (samba.protocol_min, samba.protocol_max) = ("NT1", "NT1");
    let (server, _dir) = serve(old);
    refused(&options(&server), "SMB 1").await;
}

#[tokio::test]
async fn a_version_below_the_least_is_refused() {
    let (server, _dir) = serve(|samba| samba.protocol_max = "SMB3_00");
    let wanted = MountOptions { version_min: Version::V3_1_1, ..options(&server) };
    refused(&wanted, "speaks SMB 3.0 at best, and 3.1.1").await;
}

#[tokio::test]
async fn protection_that_is_not_to_be_had_is_refused() {
    let (server, _dir) = serve(|samba| samba.protocol_max = "SMB2_10");
    let sealed = MountOptions { seal: true, ..options(&server) };
    refused(&sealed, "cannot encrypt").await;
    let (server, _dir) = serve(|samba| samba.guest = true);
    let guest = Credentials::default();
    let signed = MountOptions { sign: true, credentials: guest, ..options(&server) };
    refused(&signed, "cannot be signed").await;
}

#[tokio::test]
async fn a_port_that_never_answers_ends_the_mount_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut options = MountOptions::new("127.0.0.1", "share", Credentials::default());
    options.port = port;
    refused(&options, "does not answer").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_ends_leases_and_is_replaced() {
    let (setup, proxy) = behind_a_proxy(|_| (), |_| ()).await;
    let file = setup.file("file", &pattern(500_000)).await;
    let lease = setup.access(&file).await.lease.expect("a lease");
    proxy.refuses.store(true, Ordering::SeqCst);
    proxy.cuts.send_modify(|cuts| *cuts += 1);
    eventually("the lease ends", || !lease.holds()).await;
    eventually("the mount knows", || !setup.smb.reachable()).await;
    let reading = tokio::spawn({
        let (smb, cred, file) = (Arc::clone(&setup.smb), setup.cred.clone(), file.clone());
        async move { smb.read(&cred, &file, None, 0, 500_000).await }
    });
    proxy.refuses.store(false, Ordering::SeqCst);
    assert!(reading.await.unwrap().unwrap().data == pattern(500_000));
    assert!(setup.smb.reachable());
    assert_eq!(setup.smb.stats().connections[0].reconnects, 1);
    assert!(setup.access(&file).await.lease.is_some());
}

/// The server closes the share, as it does with a session that has expired: the connection works,
/// and every request on it is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_that_the_server_closes_is_connected_to_anew() {
    let mut setup = Setup::new(|_| (), |_| ()).await;
    let file = setup.file("file", &pattern(100_000)).await;
    assert!(setup.access(&file).await.lease.is_some());
    let out = setup.file("out", b"").await;
    let written = setup.write(&out, 0, b"before", Stability::Unstable).await.unwrap();
    setup.server.close_share().unwrap();
    assert!(setup.read(&file, 0, 100_000).await == pattern(100_000));
    assert_eq!(setup.smb.stats().connections[0].reconnects, 1);
    setup.write(&out, 6, b" and after", Stability::Unstable).await.unwrap();
    let committed = setup.smb.commit(&setup.cred, &out, None, 0..0).await.unwrap();
    if committed.verifier != written.verifier {
        // As the client does: what the server may have lost is sent again.
        setup.write(&out, 0, b"before and after", Stability::FileSync).await.unwrap();
    }
    assert_eq!(std::fs::read(setup.dir.path().join("out")).unwrap(), b"before and after");
}

/// Writes and reads a file, and makes, renames and removes another.
async fn use_files(setup: &Setup, file: &Handle, data: &[u8], round: u32) {
    // As the client does: what was not committed under the same verifier is sent again.
    loop {
        let written = setup.write(file, 0, data, Stability::Unstable).await.unwrap();
        let committed = setup.smb.commit(&setup.cred, file, None, 0..0).await.unwrap();
        if committed.verifier == written.verifier {
            break;
        }
    }
    let read = setup.smb.read(&setup.cred, file, None, 0, data.len() as u32).await.unwrap();
    assert!(read.data == data, "round {round}");
    let name = format!("name {round}");
    setup.make(&name, New::File).await.unwrap();
    let (from, to) = ((&setup.root, name.as_ref()), (&setup.root, "target".as_ref()));
    setup.smb.rename(&setup.cred, from, to).await.unwrap();
    setup.smb.remove(&setup.cred, &setup.root, "target".as_ref(), Removal::File).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_all_the_time_lose_nothing() {
    let (setup, proxy) = behind_a_proxy(|_| (), |_| ()).await;
    let file = setup.file("file", b"").await;
    let data = pattern(6_000_000);
    for round in 0..4 {
        let cutting = async {
            let mut ticks = tokio::time::interval(Duration::from_millis(150));
            // Fewer losses than one call tolerates, since on a slow machine one call may meet all
            // of them.
            for _ in 0..4 {
                ticks.tick().await;
                proxy.cuts.send_modify(|cuts| *cuts += 1);
            }
        };
        tokio::join!(cutting, use_files(&setup, &file, &data, round));
    }
    assert_eq!(std::fs::read_dir(setup.dir.path()).unwrap().count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_is_waited_for() {
    let mut setup = Setup::new(|_| (), |_| ()).await;
    let file = setup.file("file", &pattern(100_000)).await;
    let written = setup.write(&file, 100_000, b"tail", Stability::Unstable).await.unwrap();
    setup.server.kill().unwrap();
    eventually("the mount knows", || !setup.smb.reachable()).await;
    let (smb, cred, read) = (Arc::clone(&setup.smb), setup.cred.clone(), file.clone());
    let reading = tokio::spawn(async move { smb.read(&cred, &read, None, 0, 100_000).await });
    let (smb, cred, write) = (Arc::clone(&setup.smb), setup.cred.clone(), file.clone());
    let writing = tokio::spawn(async move {
        let data = bytes::Bytes::from_static(b"HEAD");
        smb.write(&cred, &write, None, 0, data, Stability::FileSync).await
    });
    let server = tokio::task::spawn_blocking(move || {
        setup.server.boot().unwrap();
        setup.server
    });
    setup.server = server.await.unwrap();
    let read = reading.await.unwrap().unwrap().data;
    assert!(read[4..] == pattern(100_000)[4..]);
    writing.await.unwrap().unwrap();
    let committed = setup.smb.commit(&setup.cred, &file, None, 0..0).await.unwrap();
    assert_ne!(committed.verifier, written.verifier, "what was not committed may be lost");
    assert_eq!(setup.read(&file, 0, 4).await, "HEAD");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_ends_soft_calls_and_not_hard_ones() {
    let mut setup = Setup::new(|_| (), |_| ()).await;
    setup.file("file", b"x").await;
    // A durable write may have waited for the disk; everything else is answered sooner than this.
    let quick = MountOptions { timeout: Duration::from_secs(2), ..options(&setup.server) };
    let hard = MountOptions { recovery: Recovery::Hard, ..quick.clone() };
    let hard = mount(&hard).await;
    setup.smb = mount(&quick).await;
    let file = setup.find("file").await.unwrap();
    setup.server.freeze().unwrap();
    let asking = tokio::spawn(async move { hard.root().await.map(|root| (root, hard)) });
    let read = setup.smb.read(&setup.cred, &file, None, 0, 1);
    let read = tokio::time::timeout(2 * quick.limit(), read).await.expect("it ends in time");
    assert_eq!(read.unwrap_err(), Error::TimedOut);
    assert!(!asking.is_finished());
    setup.server.thaw().unwrap();
    asking.await.unwrap().unwrap();
    eventually("the mount goes on", || setup.smb.reachable()).await;
    assert_eq!(setup.read(&file, 0, 1).await, "x");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_ends_calls() {
    let mut setup = Setup::new(|_| (), |options| options.recovery = Recovery::Hard).await;
    let file = setup.file("file", b"x").await;
    setup.server.kill().unwrap();
    let (smb, cred) = (Arc::clone(&setup.smb), setup.cred.clone());
    let reading = tokio::spawn(async move { smb.read(&cred, &file, None, 0, 1).await });
    eventually("the mount knows", || !setup.smb.reachable()).await;
    assert!(!reading.is_finished());
    setup.smb.shutdown();
    assert_eq!(reading.await.unwrap().unwrap_err(), Error::Shutdown);
    assert_eq!(setup.smb.root().await.unwrap_err(), Error::Shutdown);
}

/// Has a change of names carried out, and its answer lost with the connection.
async fn unanswered<T: Send + 'static>(
    proxy: &Proxy,
    change: impl Future<Output = T> + Send + 'static,
    happened: impl Fn() -> bool,
) -> T {
    proxy.swallows.store(true, Ordering::SeqCst);
    let changing = tokio::spawn(change);
    eventually("the change happened", happened).await;
    assert!(!changing.is_finished());
    proxy.cuts.send_modify(|cuts| *cuts += 1);
    changing.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_names_whose_answer_was_lost_are_found_out() {
    let (setup, proxy) = behind_a_proxy(|_| (), |_| ()).await;
    let file = setup.file("file", b"x").await;
    let path = |name: &str| setup.dir.path().join(name);
    let parts = || (Arc::clone(&setup.smb), setup.cred.clone(), setup.root.clone());

    let (smb, cred, root) = parts();
    let renaming = async move {
        smb.rename(&cred, (&root, "file".as_ref()), (&root, "moved".as_ref())).await.map(drop)
    };
    assert_eq!(unanswered(&proxy, renaming, || path("moved").exists()).await, Ok(()));
    assert_eq!(setup.find("moved").await, Some(file.clone()));

    let (smb, cred, root) = parts();
    let linked = file.clone();
    let linking = async move { smb.link(&cred, &linked, &root, "link".as_ref()).await.map(drop) };
    assert_eq!(unanswered(&proxy, linking, || path("link").exists()).await, Ok(()));

    let (smb, cred, root) = parts();
    let removing =
        async move { smb.remove(&cred, &root, "link".as_ref(), Removal::File).await.map(drop) };
    assert_eq!(unanswered(&proxy, removing, || !path("link").exists()).await, Ok(()));

    // The client cannot determine whether its own call made these: it claims nothing.
    let new = [
        ("dir", New::Directory),
        ("lock", New::FileExclusive),
        ("symlink", New::Symlink("target".into())),
    ];
    for (name, new) in new {
        let (smb, cred, root) = parts();
        let making = async move {
            smb.make(&cred, &root, name.as_ref(), new, Default::default()).await.map(drop)
        };
        assert_eq!(unanswered(&proxy, making, || path(name).exists()).await, Err(Error::Io));
    }
    assert_eq!(setup.smb.stats().connections[0].reconnects, 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_over_reads_and_writes_loses_nothing() {
    let mut setup = Setup::new(|_| (), |_| ()).await;
    let data = pattern(12_000_000);
    let (old, new) = (setup.file("old", &data).await, setup.file("new", b"").await);
    let read = tokio::spawn({
        let (smb, cred, old) = (Arc::clone(&setup.smb), setup.cred.clone(), old);
        async move { smb.read(&cred, &old, None, 0, 12_000_000).await.unwrap().data }
    });
    let written = tokio::spawn({
        let (smb, cred, data) = (Arc::clone(&setup.smb), setup.cred.clone(), data.clone());
        async move {
            loop {
                let data = bytes::Bytes::from(data.clone());
                let written =
                    smb.write(&cred, &new, None, 0, data, Stability::Unstable).await.unwrap();
                let committed = smb.commit(&cred, &new, None, 0..0).await.unwrap();
                if committed.verifier == written.verifier {
                    return;
                }
            }
        }
    });
    let sent = |setup: &Setup, name: &str| {
        let stats = setup.smb.stats();
        stats.procedures.iter().any(|one| one.name == name && one.calls > 14)
    };
    eventually("some is written", || sent(&setup, "WRITE")).await;
    setup.server.kill().unwrap();
    setup.server.boot().unwrap();
    written.await.unwrap();
    assert!(read.await.unwrap() == data);
    assert!(std::fs::read(setup.dir.path().join("new")).unwrap() == data);
}

/// A write that its caller gives up leaves no file open, which would keep a removed file's name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_is_given_up_leaves_nothing_open() {
    let mut setup = Setup::new(|_| (), |options| options.leases = false).await;
    let file = setup.file("file", b"x").await;
    setup.write(&file, 0, b"y", Stability::Unstable).await.unwrap();
    setup.server.freeze().unwrap();
    let before = setup.requests();
    let writing = tokio::spawn({
        let (smb, cred) = (Arc::clone(&setup.smb), setup.cred.clone());
        async move {
            let data = bytes::Bytes::from_static(b"z");
            smb.write(&cred, &file, None, 0, data, Stability::FileSync).await.map(drop)
        }
    });
    tokio::task::yield_now().await;
    writing.abort();
    assert!(writing.await.is_err() || setup.requests() >= before);
    setup.server.thaw().unwrap();
    setup.server.client("del file").unwrap();
    eventually("the file is gone", || !setup.dir.path().join("file").exists()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_session_of_a_lost_connection_is_ended_at_the_server() {
    let (setup, proxy) = behind_a_proxy(|_| (), |_| ()).await;
    let file = setup.file("file", b"first").await;
    let lease = setup.access(&file).await.lease.expect("a lease");
    proxy.cuts.send_modify(|cuts| *cuts += 1);
    eventually("the lease ends", || !lease.holds()).await;
    // Otherwise the server would wait for the lost connection to return its lease.
    let start = Instant::now();
    setup.write(&file, 0, b"FIRST", Stability::FileSync).await.unwrap();
    assert_eq!(setup.read(&file, 0, 9).await, "FIRST");
    assert!(start.elapsed() < GIVE_BACK_MAX, "{:?}", start.elapsed());
}

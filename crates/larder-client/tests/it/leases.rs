//! Leases: what they save, and that nothing old is believed when they end.

use larder_client::{LookupCache, Options};
use larder_vfs::SetAttr;

use crate::rig::{PATIENCE, READ, Rig, WRITE, pattern, root};

/// A rig that gets leases, and another machine.
async fn leased() -> (Rig, Rig) {
    let rig = Rig::new(Options { fill_after: None, ..Options::default() }).await;
    rig.server.give_leases();
    let other = rig.foreigner().await;
    (rig, other)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_a_lease_stat_open_and_read_cost_no_request_however_long_it_lasts() {
    let (rig, other) = leased().await;
    let bytes = pattern(1, 100_000);
    other.put("file", &bytes).await;
    rig.names().await;
    assert_eq!(rig.cat("file").await, bytes);
    rig.landed("file").await;
    for _ in 0..3 {
        rig.advance(10_000);
        rig.server.reset_calls();
        assert_eq!(rig.stat("file").await.attr.size, 100_000);
        assert_eq!(rig.cat("file").await, bytes);
        assert!(rig.find("absent").await.is_none());
        assert_eq!(rig.names().await, ["file"]);
    }
    // The absent name was asked for once, before the last round.
    assert_eq!(rig.server.calls_total(), 0);
}

/// After a remount names are known and no file is fresh: each costs one question, and not the
/// lease's as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_a_lease_on_a_directory_whose_files_must_be_asked_about() {
    let (rig, other) = leased().await;
    other.put("file", b"x").await;
    rig.stat("file").await;
    rig.advance(100_000);
    rig.server.reset_calls();
    rig.server.hold(Some("access"));
    let stat = tokio::time::timeout(PATIENCE, rig.stat("file"));
    assert_eq!(stat.await.expect("it must not wait for the lease").attr.size, 1);
    assert_eq!(rig.server.calls("lookup"), 1);
    // It is asked for in the background, which must not be where nothing is to be asked any more.
    while rig.server.calls("access") == 0 {
        tokio::task::yield_now().await;
    }
    // The next ones have it, if not before then after asking for it once.
    rig.server.hold(None);
    assert!(rig.find("absent").await.is_none());
    rig.advance(100_000);
    assert!(rig.find("absent").await.is_none());
    rig.advance(100_000);
    rig.server.reset_calls();
    assert!(rig.find("absent").await.is_none());
    assert_eq!(rig.server.calls_total(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_else_changes_is_seen_at_once() {
    let (rig, other) = leased().await;
    other.put("file", b"one").await;
    rig.names().await;
    assert_eq!(rig.cat("file").await, b"one");
    assert!(rig.find("new").await.is_none());
    other.put("file", b"three").await;
    assert_eq!(rig.stat("file").await.attr.size, 5);
    assert_eq!(rig.cat("file").await, b"three");
    other.put("new", b"").await;
    assert!(rig.find("new").await.is_some());
    other.rename("new", "renamed").await.unwrap();
    assert!(rig.find("new").await.is_none());
    assert_eq!(rig.names().await, ["file", "renamed"]);
    other.set("file", SetAttr { mode: Some(0o600), ..SetAttr::default() }).await;
    assert_eq!(rig.stat("file").await.attr.mode, 0o600);
    other.remove("file").await.unwrap();
    assert!(rig.find("file").await.is_none());
}

/// The other one's change waits until ours is at the server, so it is not undone by a late
/// write-back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsent_changes_reach_the_server_before_somebody_else_goes_on() {
    let (rig, other) = leased().await;
    other.put("file", b"0123456789").await;
    rig.names().await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(0, b"ours").await.unwrap();
    let theirs = other.open(&root(), "file", WRITE).await.unwrap();
    theirs.write(2, b"THEIRS").await.unwrap();
    theirs.close().await.unwrap();
    assert_eq!(other.cat("file").await, b"ouTHEIRS89");
    open.close().await.unwrap();
    assert_eq!(other.cat("file").await, b"ouTHEIRS89");
    assert_eq!(rig.cat("file").await, b"ouTHEIRS89");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_own_changes_cost_no_lease_and_no_cached_byte() {
    let (rig, other) = leased().await;
    other.put("file", b"before").await;
    rig.names().await;
    rig.cat("file").await;
    rig.put("file", b"after").await;
    rig.advance(10_000);
    rig.server.reset_calls();
    assert_eq!(rig.cat("file").await, b"after");
    assert_eq!((rig.server.calls("read"), rig.server.calls("lookup")), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_ends_leases() {
    let (rig, other) = leased().await;
    other.put("file", b"one").await;
    rig.names().await;
    assert_eq!(rig.cat("file").await, b"one");
    rig.landed("file").await;
    rig.server.time_out();
    other.put("file", b"three").await;
    assert_eq!(rig.cat("file").await, b"one", "the server is out of reach");
    rig.server.reconnect();
    assert_eq!(rig.cat("file").await, b"three");
}

/// `lookupcache=none` and `noac` stay what they say under leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_that_distrust_are_obeyed_under_leases() {
    let options = Options { lookup_cache: LookupCache::None, ..Options::default() };
    let rig = Rig::new(options.no_attribute_cache()).await;
    rig.server.give_leases();
    rig.put("file", b"x").await;
    let open = rig.open(&root(), "file", READ).await.unwrap();
    rig.server.reset_calls();
    rig.stat("file").await;
    assert!(rig.server.calls("lookup") > 0 && rig.server.calls_total() > 1);
    open.close().await.unwrap();
}

/// Samba tells late that somebody else has written: after the answer to a write of ours that came
/// behind his, or never. What he wrote is there at the next open all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_else_wrote_before_us_is_seen_when_the_lease_ends_late() {
    for ends_late in [true, false] {
        let (rig, other) = leased().await;
        if ends_late {
            rig.server.give_leases_ending_late();
        }
        other.put("file", &pattern(1, 100_000)).await;
        assert_eq!(rig.cat("file").await, pattern(1, 100_000));
        rig.landed("file").await;
        rig.server.meddle_after(0);
        let open = rig.open(&root(), "file", WRITE).await.unwrap();
        open.write(50_000, b"ours").await.unwrap();
        open.close().await.unwrap();
        // A server that waits until its leases are given back lets nobody write meanwhile.
        let is_seen = rig.cat("file").await[0] == b'!';
        assert_eq!(is_seen, ends_late);
        // Once is enough.
        let reads = rig.server.calls("read");
        rig.server.take_leases_back().await;
        assert_eq!(&rig.cat("file").await[50_000..50_004], b"ours");
        assert_eq!(rig.server.calls("read"), reads, "{ends_late}");
    }
}

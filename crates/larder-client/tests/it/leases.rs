//! Leases: which requests they save, and that nothing old is trusted when they end.

use std::ffi::OsStr;
use std::time::Duration;

use larder_client::{LookupCache, Options};
use larder_vfs::{Error, FileSystem, Ino, MemRemote, New, Remote, RemoteLimits, SetAttr, Trouble};

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
    // The listing has told that the name is absent.
    assert_eq!(rig.server.calls_total(), 0);
}

/// After a remount names are known and no file is fresh: each costs one request, and not a second
/// one for the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_caller_waits_for_a_lease_on_a_directory_whose_files_must_be_asked_about() {
    let (rig, other) = leased().await;
    other.put("file", b"x").await;
    rig.stat("file").await;
    rig.advance(100_000);
    rig.server.reset_calls();
    rig.server.hold(Some("access"));
    let stat = tokio::time::timeout(PATIENCE, rig.stat("file"));
    assert_eq!(stat.await.expect("it must not wait for the lease").attr.size, 1);
    assert_eq!(rig.server.calls("lookup"), 1);
    // It is requested in the background, which must end before requests are counted.
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
async fn what_another_client_changes_is_seen_at_once() {
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

/// The other client's change waits until ours is at the server, so it is not undone by a late
/// write-back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsent_changes_reach_the_server_before_another_client_continues() {
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

/// The client of an export lists without opening the directory first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_lease_a_listing_asks_even_if_nobody_opened_the_directory() {
    let (rig, other) = leased().await;
    other.put("one", b"x").await;
    assert_eq!(listed(&rig).await, ["one"]);
    rig.server.cut_off();
    other.put("two", b"x").await;
    rig.server.reconnect();
    assert_eq!(listed(&rig).await, ["one", "two"]);
    rig.server.reset_calls();
    assert_eq!(listed(&rig).await, ["one", "two"]);
    assert_eq!(rig.server.calls_total(), 0, "there is a lease again");
}

async fn listed(rig: &Rig) -> Vec<String> {
    let page = rig.client.readdir(&root(), Ino::ROOT, 0, 1 << 16, false).wait().await.unwrap();
    page.into_iter().map(|entry| entry.name.into_string().unwrap()).collect()
}

/// An answer about names comes after another client's change, and after a later answer that shows
/// it and brought a new lease: it is given to its caller, and not kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_from_before_the_end_of_a_lease_are_not_kept_under_the_next() {
    for (method, later) in [("readdir", "lookup"), ("lookup", "readdir")] {
        let (rig, other) = leased().await;
        other.put("one", b"x").await;
        // The directory, and nothing in it.
        assert!(rig.find("absent").await.is_none());
        rig.server.reset_calls();
        rig.server.hold_answers(Some(method));
        let early = async {
            match method {
                "readdir" => assert_eq!(listed(&rig).await, ["one"]),
                _ => assert!(rig.find("two").await.is_none()),
            }
        };
        let change = async {
            while rig.server.calls(method) == 0 {
                tokio::task::yield_now().await;
            }
            rig.clock.advance(Duration::from_millis(1));
            other.put("two", b"x").await;
            match later {
                "readdir" => assert_eq!(listed(&rig).await, ["one", "two"]),
                _ => assert!(rig.find("two").await.is_some()),
            }
            rig.server.hold_answers(None);
        };
        tokio::join!(early, change);
        assert!(rig.find("two").await.is_some(), "{method}");
        assert_eq!(listed(&rig).await, ["one", "two"], "{method}");
    }
}

/// `lookupcache=none` and `noac` keep their meaning under leases.
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

/// Samba reports late that another client has written: after the answer to a write of ours that
/// followed it, or never. What the other client wrote is there at the next open in any case.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_client_wrote_before_us_is_seen_when_the_lease_ends_late() {
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
        // A server that waits until its leases are returned lets no client write before that.
        let is_seen = rig.cat("file").await[0] == b'!';
        assert_eq!(is_seen, ends_late);
        // Once is enough.
        let reads = rig.server.calls("read");
        rig.server.take_leases_back().await;
        assert_eq!(&rig.cat("file").await[50_000..50_004], b"ours");
        assert_eq!(rig.server.calls("read"), reads, "{ends_late}");
    }
}

/// Of a directory that was listed whole under a lease no name is asked for that it lacks, whatever
/// is made, renamed and removed here; what another client makes is found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_was_listed_answers_that_names_are_absent() {
    let (rig, other) = leased().await;
    other.put("theirs", b"x").await;
    assert_eq!(rig.names().await, ["theirs"]);
    rig.server.reset_calls();
    for name in ["a", "b", "c"] {
        assert!(rig.find(name).await.is_none());
        rig.put(name, b"y").await;
        assert!(rig.find(name).await.is_some());
    }
    rig.rename("a", "d").await.unwrap();
    rig.remove("b").await.unwrap();
    assert!(rig.find("a").await.is_none() && rig.find("b").await.is_none());
    assert!(rig.find("d").await.is_some() && rig.find("e").await.is_none());
    assert_eq!(rig.server.calls("lookup"), 0);
    other.put("e", b"z").await;
    other.put("a", b"z").await;
    assert!(rig.find("e").await.is_some() && rig.find("a").await.is_some());
    assert!(rig.find("b").await.is_none());
    assert_eq!(rig.server.calls("lookup"), 3, "it is not known whole any more");
    assert_eq!(rig.names().await, ["a", "c", "d", "e", "theirs"]);
    rig.server.reset_calls();
    assert!(rig.find("f").await.is_none());
    assert_eq!(rig.server.calls("lookup"), 0, "it was listed again");
}

/// A directory that was made here has the names that are made in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_was_made_here_answers_that_names_are_absent() {
    let (rig, other) = leased().await;
    let dir = make_directory(&rig).await;
    assert!(rig.find("dir/a").await.is_none());
    rig.create_in(dir, "a").await.close().await.unwrap();
    assert!(rig.find("dir/b").await.is_none() && rig.find("dir/a").await.is_some());
    assert_eq!(rig.server.calls("lookup"), 0);
    let theirs = other.find("dir").await.unwrap();
    other.create_in(theirs, "b").await.close().await.unwrap();
    assert!(rig.find("dir/b").await.is_some());
}

async fn make_directory(rig: &Rig) -> Ino {
    rig.names().await;
    rig.server.reset_calls();
    let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
    let made = rig.client.make(&root(), Ino::ROOT, OsStr::new("dir"), New::Directory, set);
    made.wait().await.unwrap().ino
}

/// Where another client may make a name before the lease ends, where names are not compared byte by
/// byte, and where a mount is to ask for absent names, the server is asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn absent_names_are_asked_for_where_a_listing_does_not_tell() {
    let positive = Options { lookup_cache: LookupCache::Positive, ..Options::default() };
    let limits = MemRemote::new().limits();
    let folding = RemoteLimits { case_insensitive: true, ..limits };
    for (ends_late, limits, options) in [
        (true, limits, Options::default()),
        (false, folding, Options::default()),
        (false, limits, positive),
    ] {
        let rig = Rig::of_server(MemRemote::with_limits(limits), options).await;
        match ends_late {
            true => rig.server.give_leases_ending_late(),
            false => rig.server.give_leases(),
        }
        let other = rig.foreigner().await;
        other.put("theirs", b"x").await;
        rig.names().await;
        rig.server.reset_calls();
        assert!(rig.find("absent").await.is_none());
        assert_eq!(rig.server.calls("lookup"), 1, "{ends_late}");
        let dir = make_directory(&rig).await;
        assert!(rig.find("dir/absent").await.is_none());
        assert_eq!(rig.server.calls("lookup"), 1, "{ends_late}");
        assert!(dir != Ino::ROOT);
    }
}

/// A request to make a name got no answer: it was carried out, or may still be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_may_have_been_made_is_asked_for() {
    for (trouble, is_made) in
        [(Trouble::Unanswered, true), (Trouble::Refused(Error::TimedOut), false)]
    {
        let (rig, other) = leased().await;
        other.put("theirs", b"x").await;
        rig.names().await;
        rig.server.trouble_after(0, trouble);
        let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
        let made = rig.client.make(&root(), Ino::ROOT, OsStr::new("dir"), New::Directory, set);
        assert_eq!(made.wait().await.err(), Some(Error::TimedOut));
        assert_eq!(rig.find("dir").await.is_some(), is_made);
        rig.names().await;
        rig.server.reset_calls();
        assert!(rig.find("absent").await.is_none());
        // Once the directory has another version, nothing is under way any more.
        assert_eq!(rig.server.calls("lookup"), u64::from(!is_made));
    }
}

/// Another client gives a file another name while the server holds up our removal of the first one,
/// or our rename to it: the file goes on to live, and what is known of it is not given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_got_another_name_elsewhere_does_not_go_with_the_one_it_had() {
    for is_replaced in [false, true] {
        let (rig, other) = leased().await;
        for name in ["file", "new"] {
            other.put(name, b"bytes").await;
        }
        let ino = rig.find("file").await.unwrap();
        rig.find("new").await.unwrap();
        let method = if is_replaced { "rename" } else { "remove" };
        rig.server.hold(Some(method));
        rig.server.reset_calls();
        let ours = async {
            match is_replaced {
                true => rig.rename("new", "file").await,
                false => rig.remove("file").await,
            }
        };
        let meanwhile = async {
            while rig.server.calls(method) == 0 {
                tokio::task::yield_now().await;
            }
            let (server, cred) = (&other.server, root());
            let top = server.root().await.unwrap().handle;
            let found = server.lookup(&cred, &top, OsStr::new("file")).await.unwrap().found;
            let file = found.unwrap().handle;
            server.link(&cred, &file, &top, OsStr::new("other")).await.unwrap();
            rig.server.hold(None);
        };
        let (ours, ()) = tokio::join!(ours, meanwhile);
        ours.unwrap();
        let linked = rig.client.link(&root(), ino, Ino::ROOT, OsStr::new("again")).wait().await;
        assert_eq!(linked.map(drop), Ok(()), "{is_replaced}");
        assert_eq!(rig.cat("again").await, b"bytes", "{is_replaced}");
    }
}

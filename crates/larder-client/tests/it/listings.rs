//! What a listing describes, and what is asked for it.

use std::ffi::OsStr;
use std::time::Duration;

use larder_client::{LookupCache, Options};
use larder_vfs::{Cred, Error, FileSystem, Ino, Lookup, New, SetAttr};

use crate::rig::{Rig, pattern, root};

/// Without an attribute cache a listing describes what it tells by the replies to this reader, in
/// one request for each part: no file is looked up alone, and none is described from before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_without_an_attribute_cache_describes_what_it_tells() {
    for leases in [false, true] {
        let rig = Rig::new(Options::default().no_attribute_cache()).await;
        if leases {
            rig.server.give_leases();
        }
        let other = rig.foreigner().await;
        for number in 0..40 {
            other.put(&format!("f{number:02}"), b"x").await;
        }
        for size in 1..4 {
            other.put("f07", &pattern(size, 100 * size as usize)).await;
            rig.client.opendir(&root(), Ino::ROOT).wait().await.unwrap();
            rig.advance(1);
            rig.server.reset_calls();
            let (mut told, mut offset, mut parts) = (0, 0, 0);
            loop {
                let part = rig.client.readdir(&root(), Ino::ROOT, offset, 1700, true);
                let part = part.wait().await.unwrap();
                let Some(last) = part.last() else { break };
                (offset, parts, told) = (last.offset, parts + 1, told + part.len());
                for one in part {
                    let entry = one.entry.expect("it is described");
                    assert_eq!(entry.fresh.ttl, Duration::ZERO, "the next one asks again");
                    let expected = if one.name == "f07" { 100 * size } else { 1 };
                    assert_eq!(entry.fresh.attr.size, expected, "{:?}, leases {leases}", one.name);
                }
            }
            assert!(told == 40 && parts > 3, "{told} in {parts}");
            assert!(rig.server.calls("readdir") <= parts, "{}", rig.server.calls("readdir"));
            assert_eq!(rig.server.calls("lookup"), 0);
        }
    }
}

/// A rig, and another client that has made so many files.
async fn with_files(options: Options, leases: bool, count: u32) -> (Rig, Rig) {
    let rig = Rig::new(options).await;
    if leases {
        rig.server.give_leases();
    }
    let other = rig.foreigner().await;
    for number in 0..count {
        other.put(&name(number), b"x").await;
    }
    // The directory's present version is known, and begins an epoch.
    assert!(rig.find("none").await.is_none());
    rig.server.reset_calls();
    (rig, other)
}

fn name(number: u32) -> String {
    format!("f{number:04}")
}

/// After some lookups the directory is listed in place of the next one, and the others need no
/// call, whether their names are there or not; and what another client changes later is seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_listed_in_place_of_many_lookups() {
    for leases in [false, true] {
        let (rig, other) = with_files(Options::default(), leases, 100).await;
        for number in (0..100).rev() {
            assert_eq!(rig.stat(&name(number)).await.attr.size, 1);
        }
        let calls = (rig.server.calls("lookup"), rig.server.calls("readdir"));
        assert_eq!(calls, (8, 1), "leases {leases}");
        let absent = async |from: u32| {
            rig.server.reset_calls();
            for number in from..from + 40 {
                assert!(rig.find(&name(number)).await.is_none());
            }
            rig.server.calls("lookup") + rig.server.calls("readdir")
        };
        match leases {
            true => assert_eq!(absent(100).await, 0, "it is known whole"),
            // Here a listing says nothing of absent names, and is tried after 8 and 16.
            false => assert_eq!(absent(100).await, 40 + 2),
        }
        other.put(&name(120), b"later").await;
        other.put(&name(7), b"longer").await;
        other.remove(&name(8)).await.unwrap();
        rig.advance(120);
        assert_eq!(rig.stat(&name(120)).await.attr.size, 5);
        assert_eq!(rig.stat(&name(7)).await.attr.size, 6);
        assert!(rig.find(&name(8)).await.is_none());
    }
}

/// Where leases are given, a lookup brings what the open after it needs, and a page would not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_are_opened_are_looked_up() {
    let (rig, _other) = with_files(Options::default(), true, 40).await;
    for number in 0..40 {
        assert_eq!(rig.cat(&name(number)).await, b"x");
    }
    assert_eq!((rig.server.calls("lookup"), rig.server.calls("readdir")), (40, 0));
}

/// Of a directory that is made use of little, little is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_directory_is_not_read_whole_for_some_names() {
    let (rig, _other) = with_files(Options::default(), true, 3000).await;
    for number in (0..3000).step_by(150) {
        assert!(rig.find(&name(number)).await.is_some());
    }
    let (lookups, pages) = (rig.server.calls("lookup"), rig.server.calls("readdir"));
    assert_eq!((lookups, pages), (20, 1));
}

/// A caller that may search a directory and not list it gets what it asks for, and the server is
/// not asked for the listing again and again. So it is where each lookup is to be asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_cannot_be_listed_is_looked_up_in() {
    let asks = Options { lookup_cache: LookupCache::None, ..Options::default() };
    for (options, pages) in [(Options::default(), 1), (asks, 0)] {
        let (rig, _other) = with_files(options, false, 0).await;
        let set = SetAttr { mode: Some(0o711), ..SetAttr::default() };
        let dir = rig.client.make(&root(), Ino::ROOT, OsStr::new("dir"), New::Directory, set);
        let dir = dir.wait().await.unwrap().ino;
        for number in 0..60 {
            rig.create_in(dir, &name(number)).await.close().await.unwrap();
        }
        rig.advance(120);
        rig.server.reset_calls();
        let user = Cred { uid: 1000, gid: 1000, ..root() };
        for number in 0..60 {
            let name = name(number);
            let found = rig.client.lookup(&user, dir, OsStr::new(&name)).wait().await.unwrap();
            assert!(matches!(found, Lookup::Found(_)), "{name}");
        }
        assert_eq!(rig.server.calls("lookup"), 60);
        assert_eq!(rig.server.calls("readdir"), pages);
    }
}

/// A server that is silent is waited for once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_that_gets_no_answer_ends_the_lookup() {
    let (rig, _other) = with_files(Options::default(), false, 20).await;
    for number in 0..8 {
        assert!(rig.find(&name(number)).await.is_some());
    }
    rig.server.reset_calls();
    rig.server.fail_next(1, Error::TimedOut);
    let asked = rig.client.lookup(&root(), Ino::ROOT, OsStr::new("f0019")).wait().await;
    assert!(matches!(asked, Err(Error::TimedOut)));
    assert_eq!((rig.server.calls("readdir"), rig.server.calls("lookup")), (1, 0));
    assert!(rig.find("f0019").await.is_some());
}

//! Two callers of one client in one directory, as an export has them. (A kernel makes one change of
//! a directory at a time, and looks nothing up in it at the same time.)

use std::ffi::OsStr;
use std::time::Duration;

use larder_client::Options;
use larder_vfs::{FileSystem, Ino, New, Remote, Removal, SetAttr};

use crate::rig::{Rig, root};

const NAME: &str = "name";

/// Under a lease what is cached needs no request.
async fn rig() -> Rig {
    let rig = Rig::new(Options::default()).await;
    rig.server.give_leases();
    rig.find("none").await;
    rig
}

async fn make(rig: &Rig) {
    let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
    let made = rig.client.make(&root(), Ino::ROOT, OsStr::new(NAME), New::Directory, set);
    made.wait().await.unwrap();
}

async fn remove(rig: &Rig) {
    let what = Removal::Directory;
    rig.client.remove(&root(), Ino::ROOT, OsStr::new(NAME), what).wait().await.unwrap();
}

/// Until the server has, or has not, the name.
async fn until(rig: &Rig, there: bool) {
    let dir = rig.client.handle(Ino::ROOT).wait().await.unwrap();
    let name = OsStr::new(NAME);
    while rig.server.lookup(&root(), &dir, name).await.unwrap().found.is_some() != there {
        tokio::task::yield_now().await;
    }
}

async fn is_listed(rig: &Rig) -> bool {
    rig.names().await.iter().any(|name| name == NAME)
}

/// What one caller was shown is also shown to the next one: by a listing, and by a lookup after it,
/// while the answer to a third caller is in flight.
#[tokio::test]
async fn a_name_that_was_shown_gone_is_not_shown_again() {
    let rig = rig().await;
    for is_removed in [false, true] {
        // Both names are cached.
        assert_eq!(
            (rig.find(NAME).await.is_some(), is_listed(&rig).await),
            (is_removed, is_removed)
        );
        rig.server.hold_answers(Some(if is_removed { "remove" } else { "make" }));
        let looking = async {
            until(&rig, !is_removed).await;
            for _ in 0..2 {
                assert_eq!(is_listed(&rig).await, !is_removed);
                assert_eq!(rig.find(NAME).await.is_some(), !is_removed);
            }
            rig.server.hold_answers(None);
        };
        let changing = async { if is_removed { remove(&rig).await } else { make(&rig).await } };
        tokio::join!(changing, looking);
        assert_eq!(
            (rig.find(NAME).await.is_some(), is_listed(&rig).await),
            (!is_removed, !is_removed)
        );
    }
}

/// The server has made and removed it; the answers arrive in the other order.
#[tokio::test]
async fn answers_in_the_other_order_leave_no_removed_name() {
    let rig = rig().await;
    rig.server.hold_answers(Some("make"));
    let removing = async {
        until(&rig, true).await;
        remove(&rig).await;
        rig.server.hold_answers(None);
    };
    tokio::join!(make(&rig), removing);
    assert_eq!(rig.find(NAME).await, None);
    assert!(!is_listed(&rig).await);
}

/// A caller finds the new directory and moves it before the answer to its making is here: it is one
/// directory, and goes on to be used.
#[tokio::test]
async fn what_is_moved_before_the_answer_to_its_making_is_still_there() {
    let rig = rig().await;
    rig.server.hold_answers(Some("make"));
    let moving = async {
        until(&rig, true).await;
        rig.rename(NAME, "moved").await.unwrap();
        let moved = rig.find("moved").await.unwrap();
        rig.server.hold_answers(None);
        moved
    };
    let ((), moved) = tokio::join!(make(&rig), moving);
    rig.create_in(moved, "file").await.close().await.unwrap();
    assert!(rig.find("moved/file").await.is_some());
}

/// A listing is answered late, and is not believed. The next reader gets a newer one, which ends
/// with the lease before that reader has read it all: it goes on in the newer one.
#[tokio::test]
async fn a_reader_does_not_go_on_in_a_listing_from_before_its_own() {
    let rig = rig().await;
    let other = rig.foreigner().await;
    for name in ["a", "b", NAME] {
        other.put(name, b"x").await;
    }
    list_and_remove(&rig).await;
    let list = async |offset: u64, bytes_max: u32| {
        rig.client.readdir(&root(), Ino::ROOT, offset, bytes_max, false).wait().await.unwrap()
    };
    let first = list(0, 40).await;
    assert_eq!(first.len(), 1);
    other.put("c", b"x").await;
    let rest = list(first[0].offset, 1 << 16).await;
    assert!(rest.iter().all(|entry| entry.name != NAME), "{rest:?}");
}

/// Lists the root and removes the file meanwhile: the server lists it before the removal, and the
/// answer comes after that.
async fn list_and_remove(rig: &Rig) -> Vec<String> {
    let asked = rig.server.calls("readdir");
    rig.server.hold_answers(Some("readdir"));
    let removing = async {
        while rig.server.calls("readdir") == asked {
            tokio::task::yield_now().await;
        }
        rig.clock.advance(Duration::from_millis(1));
        rig.remove(NAME).await.unwrap();
        rig.clock.advance(Duration::from_millis(1));
        rig.server.hold_answers(None);
    };
    tokio::join!(rig.names(), removing).0
}

/// A listing from before a removal is answered after it, and its caller reads it to its end. The
/// file has another name still.
#[tokio::test]
async fn a_late_listing_does_not_bring_a_name_back() {
    let rig = rig().await;
    rig.put(NAME, b"bytes").await;
    let file = rig.find(NAME).await.unwrap();
    let other = rig.client.link(&root(), file, Ino::ROOT, OsStr::new("other"));
    other.wait().await.unwrap();
    let listed = list_and_remove(&rig).await;
    assert!(listed.iter().any(|name| name == NAME), "the server had it");
    assert_eq!(rig.find(NAME).await, None);
    assert!(!is_listed(&rig).await);
}

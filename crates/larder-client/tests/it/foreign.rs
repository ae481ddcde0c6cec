//! Who made a change: how readers, renames and links treat changes of our own and of other clients.

use std::ffi::OsStr;

use larder_client::Options;
use larder_vfs::{Error, FileSystem, Ino, New, SetAttr, Time};

use crate::rig::{READ, Rig, WRITE, pattern, root};

/// For a reader, a change of our own makes no other version of the file, even once it is at the
/// server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_goes_on_after_changes_of_our_own() {
    let rig = Rig::ticking(Options { cache_data: false, ..Options::default() }).await;
    let other = rig.foreigner().await;
    let bytes = pattern(1, 50_000);
    other.put("file", &bytes).await;
    let reader = rig.open(&root(), "file", READ).await.unwrap();
    assert!(reader.read(0, 10).await.unwrap() == bytes[..10]);
    let writer = rig.open(&root(), "file", WRITE).await.unwrap();
    writer.write(20_000, b"new").await.unwrap();
    writer.close().await.unwrap();
    assert_eq!(reader.read(20_000, 3).await.unwrap(), b"new", "after a write");
    rig.set("file", SetAttr { size: Some(40_000), ..SetAttr::default() }).await;
    assert!(reader.read(30_000, 10).await.unwrap() == bytes[30_000..30_010], "after a truncation");
    rig.rename("file", "moved").await.unwrap();
    rig.advance(6);
    rig.stat("moved").await;
    assert!(reader.read(30_010, 10).await.unwrap() == bytes[30_010..30_020], "after a rename");
    other.advance(60);
    other.put("moved", &pattern(2, 50_000)).await;
    rig.advance(6);
    rig.stat("moved").await;
    assert_eq!(reader.read(30_020, 10).await, Err(Error::Changed), "after somebody else's change");
    reader.close().await.unwrap();
}

/// An open file that is to be replaced is hidden first. If the file that was to replace it is gone,
/// it gets its name back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rename_that_fails_leaves_the_open_file_that_it_was_to_replace() {
    let rig = Rig::new(Options::default()).await;
    let other = rig.foreigner().await;
    rig.put("source", b"new").await;
    rig.put("target", b"old").await;
    let open = rig.open(&root(), "target", READ).await.unwrap();
    other.remove("source").await.unwrap();
    assert_eq!(rig.in_vain(rig.rename("source", "target")).await, Err(Error::NotFound));
    assert_eq!(other.names().await, ["target"]);
    assert_eq!(rig.stat("target").await.attr.nlink, 1);
    assert_eq!(open.read(0, 10).await.unwrap(), b"old");
    open.close().await.unwrap();
    other.advance(60);
    assert_eq!(other.cat("target").await, b"old");
    assert_eq!(rig.cat("target").await, b"old");
    rig.remove("target").await.unwrap();
    assert_eq!(other.names().await, [""; 0]);
}

/// A file that is open is not hidden, not even for a moment, for a rename of what is not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rename_of_nothing_hides_no_open_file() {
    let rig = Rig::new(Options::default()).await;
    rig.put("target", b"old").await;
    let open = rig.open(&root(), "target", WRITE).await.unwrap();
    rig.server.reset_calls();
    assert_eq!(rig.rename("none", "target").await, Err(Error::NotFound));
    assert_eq!(rig.server.calls("rename"), 0);
    open.close().await.unwrap();
}

/// If it is closed for good while it is hidden for a rename that fails, it is not removed as one
/// that was replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rename_that_fails_leaves_the_file_that_was_closed_meanwhile() {
    let rig = Rig::new(Options::default()).await;
    let other = rig.foreigner().await;
    for is_refused in [true, false] {
        rig.put("source", b"new").await;
        rig.put("target", b"old").await;
        let open = rig.open(&root(), "target", WRITE).await.unwrap();
        if is_refused {
            other.remove("source").await.unwrap();
        }
        rig.server.reset_calls();
        rig.server.hold_answers(Some("rename"));
        let closing = async {
            while rig.server.calls("rename") == 0 {
                tokio::task::yield_now().await;
            }
            open.close().await.unwrap();
            rig.server.hold_answers(None);
        };
        let (renamed, ()) = tokio::join!(rig.rename("source", "target"), closing);
        assert_eq!(renamed.err(), is_refused.then_some(Error::NotFound));
        other.advance(60);
        assert_eq!(other.names().await, ["target"]);
        let left: &[u8] = if is_refused { b"old" } else { b"new" };
        assert_eq!((&*other.cat("target").await, &*rig.cat("target").await), (left, left));
        rig.remove("target").await.unwrap();
    }
}

/// The names of a file are known even after other clients have changed the directory: as long as it
/// is open here, its last one is replaced by a hidden one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_file_is_hidden_by_whatever_name_it_is_removed() {
    for is_renamed in [true, false] {
        let rig = Rig::new(Options::default()).await;
        let other = rig.foreigner().await;
        rig.put("first", b"bytes").await;
        let open = rig.open(&root(), "first", READ).await.unwrap();
        let others_change_it = async |name| {
            other.put(name, b"").await;
            rig.advance(31);
            rig.find(name).await.unwrap();
        };
        others_change_it("a").await;
        if is_renamed {
            rig.rename("first", "second").await.unwrap();
            others_change_it("b").await;
            rig.rename("second", "third").await.unwrap();
        } else {
            let third = OsStr::new("third");
            rig.client.link(&root(), open.ino, Ino::ROOT, third).wait().await.unwrap();
            rig.remove("first").await.unwrap();
        }
        others_change_it("c").await;
        rig.in_vain(rig.remove("third")).await.unwrap();
        other.advance(60);
        let is_hidden = |name: &String| name.starts_with(".nfs");
        assert_eq!(other.names().await.iter().filter(|name| is_hidden(name)).count(), 1);
        open.close().await.unwrap();
        other.advance(60);
        assert_eq!(other.names().await.iter().filter(|name| is_hidden(name)).count(), 0);
    }
}

/// The same while the file is changed here: a new link, made here or elsewhere, moves its change
/// time and changes no byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_goes_on_after_a_change_of_our_own_during_which_a_name_was_given() {
    for (is_ours, is_seen) in [(true, false), (false, false), (false, true)] {
        let rig = Rig::new(Options { cache_data: false, ..Options::default() }).await;
        let other = rig.foreigner().await;
        let time = |sec| rig.server.set_time(Time { sec, nsec: 123_456_789 });
        time(1_000_000);
        let bytes = pattern(1, 50_000);
        other.put("file", &bytes).await;
        let reader = rig.open(&root(), "file", READ).await.unwrap();
        assert!(reader.read(0, 10).await.unwrap() == bytes[..10]);
        let writer = rig.open(&root(), "file", WRITE).await.unwrap();
        time(1_000_010);
        if is_ours {
            rig.rename("file", "second").await.unwrap();
        } else {
            let ino = other.find("file").await.unwrap();
            other.client.link(&root(), ino, Ino::ROOT, OsStr::new("second")).wait().await.unwrap();
        }
        if is_seen {
            rig.advance(6);
            rig.stat("second").await;
        }
        writer.write(20_000, b"new").await.unwrap();
        time(1_000_020);
        writer.close().await.unwrap();
        let read = reader.read(20_000, 3).await;
        assert_eq!(read, Ok(b"new".to_vec()), "{is_ours} {is_seen}");
        time(1_000_030);
        other.put("second", &pattern(2, 50_000)).await;
        rig.advance(6);
        rig.stat("second").await;
        assert_eq!(reader.read(30_020, 10).await, Err(Error::Changed), "after a change of bytes");
        reader.close().await.unwrap();
    }
}

/// The kernel looks up again the name by which it got a file that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_name_of_a_file_that_is_gone_is_asked_for_again() {
    let rig = Rig::new(Options::default()).await;
    let other = rig.foreigner().await;
    rig.put("first", b"old").await;
    let ino = rig.find("first").await.unwrap();
    let second = OsStr::new("second");
    rig.client.link(&root(), ino, Ino::ROOT, second).wait().await.unwrap();
    rig.find("second").await.unwrap();
    other.remove("first").await.unwrap();
    other.remove("second").await.unwrap();
    let third = rig.client.link(&root(), ino, Ino::ROOT, OsStr::new("third")).wait().await;
    assert_eq!(third.unwrap_err(), Error::Stale);
    assert_eq!((rig.find("first").await, rig.find("second").await), (None, None));
}

/// Links and modes are not bytes: for a reader of the file, another client's change of them makes
/// no other version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_continues_after_another_client_changed_only_attributes() {
    let rig = Rig::new(Options { cache_data: false, ..Options::default() }).await;
    let other = rig.foreigner().await;
    // A server that reports only times distinguishes changes of links and of bytes by them.
    let time = |sec| rig.server.set_time(Time { sec, nsec: 123_456_789 });
    time(1_000_000);
    let bytes = pattern(1, 50_000);
    other.put("file", &bytes).await;
    let reader = rig.open(&root(), "file", READ).await.unwrap();
    assert!(reader.read(0, 10).await.unwrap() == bytes[..10]);
    time(1_000_010);
    let ino = other.find("file").await.unwrap();
    other.client.link(&root(), ino, Ino::ROOT, OsStr::new("second")).wait().await.unwrap();
    other.set("file", SetAttr { mode: Some(0o600), ..SetAttr::default() }).await;
    rig.advance(6);
    rig.stat("file").await;
    assert!(reader.read(10, 10).await.unwrap() == bytes[10..20]);
    reader.close().await.unwrap();
}

/// A caller that is told that a name exists finds it, and a caller that is told that it does not
/// finds none, however long names are trusted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_change_says_of_a_name_is_so_for_the_next_lookup() {
    let rig = Rig::new(Options::default()).await;
    let other = rig.foreigner().await;
    let names = ["made", "linked", "removed", "moved"];
    rig.put("file", b"of ours").await;
    rig.put("removed", b"").await;
    rig.put("moved", b"").await;
    let ino = rig.find("file").await.unwrap();
    for (name, is_there) in names.into_iter().zip([false, false, true, true]) {
        assert_eq!(rig.find(name).await.is_some(), is_there, "{name}");
    }
    other.put("made", b"by another").await;
    other.put("linked", b"by another").await;
    other.remove("removed").await.unwrap();
    other.remove("moved").await.unwrap();

    let made =
        rig.client.make(&root(), Ino::ROOT, OsStr::new("made"), New::Directory, SetAttr::default());
    assert_eq!(made.wait().await.unwrap_err(), Error::Exists);
    assert!(rig.find("made").await.is_some());
    let linked = rig.client.link(&root(), ino, Ino::ROOT, OsStr::new("linked")).wait().await;
    assert_eq!(linked.unwrap_err(), Error::Exists);
    assert!(rig.find("linked").await.is_some());
    assert_eq!(rig.remove("removed").await, Err(Error::NotFound));
    assert_eq!(rig.find("removed").await, None);
    assert_eq!(rig.rename("moved", "elsewhere").await, Err(Error::NotFound));
    assert_eq!(rig.find("moved").await, None);
}

/// Times that return to an earlier value do not make the cached bytes of that time valid again: a
/// clock is set back, or a server reports times late, as Samba does for a file that is open for
/// writing elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_held_of_times_that_come_back_is_not_believed() {
    for cache_data in [true, false] {
        let rig = Rig::new(Options { cache_data, ..Options::default() }).await;
        let other = rig.foreigner().await;
        let time = |sec| rig.server.set_time(Time { sec, nsec: 123_456_789 });
        for (at, seed, is_read) in
            [(1_000_000, 1, true), (1_000_010, 2, false), (1_000_000, 3, true)]
        {
            time(at);
            let bytes = pattern(seed, 50_000);
            other.put("file", &bytes).await;
            rig.advance(60);
            assert_eq!(rig.stat("file").await.attr.mtime.sec, at);
            assert!(!is_read || rig.cat("file").await == bytes, "{cache_data}, written {seed}.");
        }
    }
}

//! What is requested from the server, and when: by counting calls.

use std::ffi::OsStr;

use larder_client::Options;
use larder_vfs::{Cred, Error, FileSystem, Fresh, Ino, New, Removal, SetAttr};

use crate::rig::{READ, Rig, WRITE, pattern, root};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_and_attributes_are_asked_for_once_per_timeout() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"x").await;
    let rig = rig.remount().await;
    assert!(rig.find("file").await.is_some());
    assert!(rig.find("absent").await.is_none());
    rig.server.reset_calls();
    for _ in 0..5 {
        assert_eq!(rig.stat("file").await.attr.size, 1);
        assert!(rig.find("absent").await.is_none());
    }
    assert_eq!(rig.server.calls_total(), 0);
    rig.advance(6);
    rig.stat("file").await;
    assert_eq!(rig.server.calls_total(), 1, "the file's attributes are stale, the directory's not");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_changes_are_seen_after_the_timeout() {
    let rig = Rig::new(Options { close_to_open: false, ..Options::default() }).await;
    let other = rig.foreigner().await;
    other.put("file", b"one").await;
    assert_eq!(rig.cat("file").await, b"one");
    other.put("file", b"three").await;
    other.put("new", b"").await;
    // Bytes that the cache could not keep are read again, so only attributes are sure not to be
    // requested.
    assert_eq!(rig.stat("file").await.attr.size, 3, "within the timeout, without close-to-open");
    rig.advance(6);
    assert_eq!(rig.cat("file").await, b"three");
    rig.advance(30);
    assert!(rig.find("new").await.is_some());
    other.remove("file").await.unwrap();
    rig.advance(31);
    assert!(rig.find("file").await.is_none());
    assert_eq!(rig.names().await, ["new"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_open_sees_what_was_closed_before() {
    let rig = Rig::new(Options::default()).await;
    let other = rig.foreigner().await;
    other.put("file", b"one").await;
    assert_eq!(rig.cat("file").await, b"one");
    other.put("file", b"three").await;
    assert_eq!(rig.cat("file").await, b"three", "close-to-open");
}

/// A reader may be faster than the cache: another process may read the file before the cache has
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_on_its_way_to_the_cache_is_not_asked_for_again() {
    let rig = Rig::new(Options::default()).await;
    let (other, bytes) = (rig.foreigner().await, pattern(1, 1 << 20));
    for number in 0..50 {
        let name = format!("file{number}");
        other.put(&name, &bytes).await;
        assert!(rig.cat(&name).await == bytes);
        let cold = rig.server.calls("read");
        assert!(rig.cat(&name).await == bytes);
        assert_eq!(rig.server.calls("read"), cold, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reread_costs_no_read_also_after_remount() {
    let rig = Rig::new(Options::default()).await;
    let bytes = pattern(1, 300_000);
    rig.foreigner().await.put("file", &bytes).await;
    assert_eq!(rig.cat("file").await, bytes);
    assert!(rig.server.calls("read") > 0);
    rig.landed("file").await;
    let rig = rig.remount().await;
    assert_eq!(rig.cat("file").await, bytes);
    assert_eq!(rig.server.calls("read"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_writes_are_read_from_the_cache_and_foreign_ones_are_not() {
    let rig = Rig::new(Options::default()).await;
    let other = rig.foreigner().await;
    let bytes = pattern(1, 100_000);
    rig.put("file", &bytes).await;
    rig.set("file", SetAttr { mode: Some(0o600), ..SetAttr::default() }).await;
    rig.rename("file", "renamed").await.unwrap();
    rig.advance(100);
    assert_eq!(rig.cat("renamed").await, bytes);
    assert_eq!(rig.server.calls("read"), 0, "written, changed and renamed by us alone");

    // Both write; ours comes second, so what is cached lacks the other's bytes.
    let open = rig.open(&root(), "renamed", WRITE).await.unwrap();
    open.write(0, b"ours").await.unwrap();
    let foreign = other.open(&root(), "renamed", WRITE).await.unwrap();
    foreign.write(50_000, b"theirs").await.unwrap();
    foreign.close().await.unwrap();
    open.close().await.unwrap();
    let mut both = bytes.clone();
    both[..4].copy_from_slice(b"ours");
    both[50_000..50_006].copy_from_slice(b"theirs");
    assert_eq!(rig.cat("renamed").await, both);
}

/// All ways to merge two sequences with these numbers of steps, keeping the order of each: `true`
/// is a step of the first.
fn merges(first: usize, second: usize) -> Vec<Vec<bool>> {
    let mut all = Vec::new();
    for (is_first, left) in [(true, first), (false, second)] {
        let rest = match (left, is_first) {
            (0, _) => continue,
            (_, true) => merges(first - 1, second),
            (_, false) => merges(first, second - 1),
        };
        all.extend(rest.into_iter().map(|rest| [vec![is_first], rest].concat()));
    }
    if all.is_empty() { vec![vec![]] } else { all }
}

/// Two machines write to a file at the same time, in every order of their opens, writes and closes:
/// an open afterwards sees what the server has. `hides_before` as with some servers.
async fn check_two_writers(hides_before: bool) {
    for (offset, len) in [(0, 4), (150_000, 4), (0, 300_000), (299_999, 1), (300_000, 4)] {
        for order in merges(3, 3) {
            let rig = Rig::new(Options { write_bytes_max: 64 << 10, ..Options::default() }).await;
            let other = rig.foreigner().await;
            if hides_before {
                rig.server.hide_before();
                other.server.hide_before();
            }
            other.put("file", &pattern(1, 300_000)).await;
            assert_eq!(rig.cat("file").await, pattern(1, 300_000));
            let (mut first, mut second) = (None, None);
            for is_first in &order {
                let (side, open, offset, len) = match is_first {
                    true => (&rig, &mut first, offset, len),
                    false => (&other, &mut second, 7, 10),
                };
                match open.take() {
                    None => *open = Some((side.open(&root(), "file", WRITE).await.unwrap(), false)),
                    Some((file, false)) => {
                        file.write(offset, &pattern(2 + offset, len)).await.unwrap();
                        *open = Some((file, true));
                    }
                    Some((file, true)) => file.close().await.unwrap(),
                }
            }
            let expected = rig.foreigner().await.cat("file").await;
            for side in [&rig, &other] {
                let seen = side.cat("file").await;
                assert!(seen == expected, "{offset}+{len} {order:?} hides before: {hides_before}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_writers_at_once_both_see_what_the_server_has() {
    check_two_writers(false).await;
    check_two_writers(true).await;
}

/// Another client writes before the first, second ... of the requests that carry our bytes, and
/// after the last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_write_between_our_requests_is_seen() {
    for hides_before in [false, true] {
        for (offset, len, requests) in [(0, 300_000, 5), (100_000, 100_000, 2), (5, 10, 1)] {
            for meddled_after in 0..=requests {
                let options = Options { write_bytes_max: 64 << 10, ..Options::default() };
                let rig = Rig::new(options).await;
                rig.put("file", &pattern(1, 300_000)).await;
                if hides_before {
                    rig.server.hide_before();
                }
                let open = rig.open(&root(), "file", WRITE).await.unwrap();
                open.write(offset, &pattern(2, len)).await.unwrap();
                rig.server.reset_calls();
                rig.server.meddle_after(meddled_after);
                open.close().await.unwrap();
                assert_eq!(rig.server.calls("write"), requests);
                let expected = rig.foreigner().await.cat("file").await;
                assert!(
                    rig.cat("file").await == expected,
                    "{offset}+{len}, meddled after {meddled_after}, hides before: {hides_before}"
                );
            }
        }
    }
}

/// Whether what was written is in the cache afterwards, on servers that report attributes from
/// before and on those that do not: only if nothing of an older version can be left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_writes_are_kept_as_far_as_the_server_proves_them() {
    for (hides_before, offset, len, is_kept) in [
        (false, 0, 60_000, true),
        (false, 500, 100, true),
        (false, 0, 300_000, true),
        (true, 0, 60_000, true),
        (true, 500, 100, false),
        (true, 0, 300_000, false),
    ] {
        let rig = Rig::new(Options { write_bytes_max: 64 << 10, ..Options::default() }).await;
        if hides_before {
            rig.server.hide_before();
        }
        rig.put("file", &pattern(1, 60_000)).await;
        let open = rig.open(&root(), "file", WRITE).await.unwrap();
        open.write(offset, &pattern(2, len)).await.unwrap();
        open.flush().await.unwrap();
        rig.server.reset_calls();
        assert!(open.read(0, 60_000).await.is_ok(), "who has it open goes on with it");
        assert_eq!(rig.server.calls("read"), 0);
        open.close().await.unwrap();
        rig.cat("file").await;
        let reads = rig.server.calls("read");
        assert_eq!(reads == 0, is_kept, "hides before: {hides_before}, {offset}+{len}");
        rig.cat("file").await;
        assert_eq!(rig.server.calls("read"), reads, "it was read anew once");
    }
}

/// Doubt outlives the mount.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_write_between_our_requests_is_seen_after_a_remount() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", &pattern(1, 100_000)).await;
    rig.server.hide_before();
    rig.server.meddle_after(0);
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(50_000, b"ours").await.unwrap();
    open.close().await.unwrap();
    let rig = rig.remount().await;
    assert_eq!(rig.cat("file").await[0], b'!');
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_files_are_written_in_one_stable_request() {
    let rig = Rig::new(Options::default()).await;
    rig.put("small", b"x").await;
    assert_eq!((rig.server.calls("write"), rig.server.calls("commit")), (1, 0));
    let bytes = pattern(1, 3 << 20);
    rig.server.reset_calls();
    rig.put("large", &bytes).await;
    let limits = larder_vfs::Remote::limits(&*rig.server);
    let requests = (3_u64 << 20).div_ceil(u64::from(limits.write_max).min(1 << 20));
    assert_eq!((rig.server.calls("write"), rig.server.calls("commit")), (requests, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_readers_share_one_request() {
    let rig = Rig::new(Options::default()).await;
    rig.foreigner().await.put("file", &pattern(1, 16_000)).await;
    let open = rig.open(&root(), "file", READ).await.unwrap();
    let reads = (open.read(0, 8000), open.read(4000, 8000), open.read(8000, 8000));
    let (one, two, three) = tokio::join!(reads.0, reads.1, reads.2);
    assert_eq!(one.unwrap()[4000..], two.unwrap()[..4000]);
    assert_eq!(three.unwrap().len(), 8000);
    assert_eq!(rig.server.calls("read"), 1);
}

/// close(2) returns before the kernel sends the release: an unlink may come in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unlink_of_a_file_just_closed_waits_for_its_release() {
    let rig = Rig::new(Options::default()).await;
    let open = rig.create("file").await;
    open.write(0, b"x").await.unwrap();
    open.flush().await.unwrap();
    let (removed, closed) = tokio::join!(rig.remove("file"), open.close());
    assert_eq!((removed, closed), (Ok(()), Ok(())));
    assert_eq!(rig.server.calls("rename"), 0, "it was hidden first");
    assert_eq!(rig.names().await, [""; 0]);

    // A file that stays open is hidden, and removed at its last release.
    let open = rig.create("file").await;
    open.flush().await.unwrap();
    rig.in_vain(rig.remove("file")).await.unwrap();
    assert_eq!(rig.server.calls("rename"), 1);
    open.write(0, b"still here").await.unwrap();
    assert_eq!(open.read(0, 100).await.unwrap(), b"still here");
    open.close().await.unwrap();
    assert_eq!(rig.names().await, [""; 0]);
}

/// POSIX: an open file that has lost its last name has no links, whatever name it has at the
/// server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_file_without_a_name_has_no_links() {
    let rig = Rig::new(Options::default()).await;
    let open = rig.create("file").await;
    open.flush().await.unwrap();
    let links = async || rig.client.getattr(&root(), open.ino).wait().await.unwrap().attr.nlink;
    assert_eq!(links().await, 1);
    rig.in_vain(rig.remove("file")).await.unwrap();
    assert_eq!(links().await, 0);
    rig.advance(60);
    assert_eq!(links().await, 0, "the server says that it has one");
    open.close().await.unwrap();
}

/// Changes by other clients in a directory make its names uncertain, but not which files are open
/// here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_file_is_hidden_though_others_changed_its_directory() {
    let rig = Rig::new(Options::default()).await;
    let other = rig.foreigner().await;
    for (name, replace) in [("removed", false), ("replaced", true)] {
        let open = rig.create(name).await;
        open.write(0, b"still here").await.unwrap();
        // Sent now, and not when it is due, at the same time as the lookup of its name: on a clock
        // that stands still their order cannot be determined.
        open.flush().await.unwrap();
        rig.put("new", b"new").await;
        other.put(&format!("noise beside {name}"), b"").await;
        rig.advance(31);
        assert!(rig.find("absent").await.is_none(), "the directory is looked at again");
        match replace {
            true => rig.in_vain(rig.rename("new", name)).await.unwrap(),
            false => rig.in_vain(rig.remove(name)).await.unwrap(),
        }
        open.flush().await.unwrap();
        assert_eq!(open.read(0, 100).await.unwrap(), b"still here");
        open.close().await.unwrap();
        assert!(rig.names().await.iter().all(|name| !name.starts_with(".nfs")));
    }
}

/// A process that removes a file, closes it and removes its directory finds the directory empty,
/// although the kernel reports the last close later: the hidden name is removed first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directory_of_a_removed_file_just_closed_can_be_removed() {
    let rig = Rig::new(Options::default()).await;
    let (dir, file) = (OsStr::new("dir"), OsStr::new("file"));
    let made = rig.client.make(&root(), Ino::ROOT, dir, New::Directory, SetAttr::default());
    let ino = made.wait().await.unwrap().ino;
    let open = rig.create_in(ino, "file").await;
    rig.client.remove(&root(), ino, file, Removal::File).wait().await.unwrap();

    open.flush().await.unwrap();
    rig.server.reset_calls();
    let rmdir = rig.client.remove(&root(), Ino::ROOT, dir, Removal::Directory).wait();
    let (removed, closed) = tokio::join!(rmdir, open.close());
    assert_eq!((removed, closed), (Ok(()), Ok(())));
    assert_eq!(rig.server.calls("rename"), 0, "the hidden name goes, and moves nowhere");
    assert_eq!(rig.foreigner().await.names().await, [""; 0]);
}

/// A rename, and an unlink of one name of several, move the file's ctime, and their replies do not
/// report it. Only a caller that needs the ctime causes a request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctime_is_asked_for_after_a_rename_and_an_unlink() {
    let rig = Rig::new(Options::default()).await;
    rig.put("old", b"x").await;
    rig.put("one", b"x").await;
    let linked = rig.find("one").await.unwrap();
    for name in ["two", "three"] {
        let link = rig.client.link(&root(), linked, Ino::ROOT, OsStr::new(name));
        link.wait().await.unwrap();
    }
    let moved = async |name: &str, before: Fresh, links: u32| {
        assert!(rig.find(name).await.is_some());
        assert_eq!(rig.server.calls("getattr") + rig.server.calls("lookup"), 0, "{name}");
        let after = rig.stat(name).await.attr;
        assert!(after.ctime > before.attr.ctime, "{name}");
        assert_eq!((after.nlink, rig.server.calls("getattr")), (links, 1), "{name}");
        rig.stat(name).await;
        assert_eq!(rig.server.calls("getattr"), 1, "{name}: asked again");
    };

    let before = rig.stat("old").await;
    rig.advance(1);
    rig.server.reset_calls();
    rig.rename("old", "new").await.unwrap();
    moved("new", before, 1).await;

    let before = rig.stat("two").await;
    rig.advance(1);
    rig.server.reset_calls();
    rig.remove("one").await.unwrap();
    moved("two", before, 2).await;

    let before = rig.stat("two").await;
    rig.advance(1);
    rig.server.reset_calls();
    rig.rename("new", "three").await.unwrap();
    moved("two", before, 1).await;
}

/// Other clients have changed the directory, so it is not known what the name stood for; the kernel
/// knows, and asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_and_ctime_are_asked_for_after_an_unlink_in_a_directory_that_others_changed() {
    let rig = Rig::new(Options::default()).await;
    let other = rig.foreigner().await;
    for replaces in [false, true] {
        let [one, two, new] = ["one", "two", "new"].map(|name| format!("{name} {replaces}"));
        rig.put(&one, b"x").await;
        rig.put(&new, b"x").await;
        let linked = rig.find(&one).await.unwrap();
        let link = rig.client.link(&root(), linked, Ino::ROOT, OsStr::new(&two));
        let before = link.wait().await.unwrap().fresh.attr;
        assert_eq!(before.nlink, 2);
        other.put(&format!("noise {replaces}"), b"").await;
        // The reply to this change of ours shows that there was another one.
        rig.put(&format!("mine {replaces}"), b"").await;
        rig.advance(1);
        if replaces {
            rig.rename(&new, &two).await.unwrap();
        } else {
            rig.remove(&two).await.unwrap();
        }
        let after = rig.client.getattr(&root(), linked).wait().await.unwrap().attr;
        assert_eq!(after.nlink, 1, "replaces: {replaces}");
        assert!(after.ctime > before.ctime, "replaces: {replaces}");
    }
}

/// The kernel sends the pieces of a sequential read in any order, with pauses: bytes are requested
/// only once, with and without a cache to keep them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_of_a_sequential_read_cost_no_more_than_whole_requests() {
    const PIECE: u32 = 128 << 10;
    for cache_data in [true, false] {
        let rig = Rig::new(Options { cache_data, ..Options::default() }).await;
        let bytes = pattern(1, 3 << 20);
        rig.foreigner().await.put("file", &bytes).await;
        let open = rig.open(&root(), "file", READ).await.unwrap();
        let pieces = (bytes.len() as u64 / u64::from(PIECE)) as usize;
        for piece in [0, 3, 1, 2].into_iter().chain(4..pieces) {
            let start = piece * PIECE as usize;
            let read = open.read(start as u64, PIECE).await.unwrap();
            assert!(read == bytes[start..start + PIECE as usize], "piece {piece}");
        }
        // One read of the head, then the rest of each MiB.
        assert_eq!(rig.server.calls("read"), 4, "cache_data {cache_data}");
        open.close().await.unwrap();
    }
}

/// For a file of up to 640 KiB, a caller whose first read is of 64 KiB or more gets all of it by
/// one request; a shorter first read may be a look at its head.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_file_that_is_read_in_large_pieces_costs_one_request() {
    for cache_data in [true, false] {
        let rig = Rig::new(Options { cache_data, fill_after: None, ..Options::default() }).await;
        for (number, (size, first, fetched)) in
            [(256, 128, 256), (640, 128, 640), (641, 128, 128), (256, 16, 16)]
                .into_iter()
                .enumerate()
        {
            let (name, bytes) = (format!("file {number}"), pattern(1, size << 10));
            rig.foreigner().await.put(&name, &bytes).await;
            let open = rig.open(&root(), &name, READ).await.unwrap();
            let before = (rig.server.calls("read"), rig.client.status().read_bytes_remote);
            let read = open.read(0, first << 10).await.unwrap();
            assert!(read == bytes[..(first << 10) as usize], "{name}");
            let after = (rig.server.calls("read"), rig.client.status().read_bytes_remote);
            let cost = (after.0 - before.0, after.1 - before.1);
            assert_eq!(cost, (1, fetched << 10), "{name}, cache_data {cache_data}");
            open.close().await.unwrap();
        }
    }
}

/// What the kernel requests at random is whole pages. Without a cache to keep them, no more is
/// fetched: the reference client would pay for bytes that it throws away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_client_fetches_the_pages_that_are_read_and_no_more() {
    const PAGE: u64 = 4096;
    for (cache_data, fetched) in [(false, 3 * PAGE), (true, 3 * 4 * PAGE)] {
        let rig = Rig::new(Options { cache_data, fill_after: None, ..Options::default() }).await;
        rig.foreigner().await.put("file", &pattern(1, 8 << 20)).await;
        let open = rig.open(&root(), "file", READ).await.unwrap();
        for (page, pages) in [(1801, 1), (1027, 2)] {
            open.read(page * PAGE, pages * u32::try_from(PAGE).unwrap()).await.unwrap();
        }
        let remote = rig.client.status().read_bytes_remote;
        assert_eq!(remote, fetched, "cache_data {cache_data}");
        open.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_data_is_denied_to_users_whom_the_server_denies() {
    let rig = Rig::new(Options::default()).await;
    rig.put("secret", b"of root").await;
    rig.set("secret", SetAttr { mode: Some(0o600), ..SetAttr::default() }).await;
    assert_eq!(rig.cat("secret").await, b"of root");
    let bob = Cred::new(1000, 1000, &[]);
    for reachable in [true, false] {
        if !reachable {
            rig.server.time_out();
        }
        let denied = rig.open(&bob, "secret", READ).await;
        assert_eq!(denied.err(), Some(Error::AccessDenied), "reachable {reachable}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_follows_a_foreign_truncation_in_between() {
    let rig = Rig::new(Options { fill_after: None, ..Options::default() }).await;
    let other = rig.foreigner().await;
    other.put("file", &pattern(1, 200_000)).await;
    let open = rig.open(&root(), "file", READ).await.unwrap();
    open.read(0, 1000).await.unwrap();
    other.put("file", b"short").await;
    let read = open.read(100_000, 1000).await;
    assert!(matches!(read, Err(Error::Changed)) || read == Ok(vec![]), "{read:?}");
    open.close().await.unwrap();
    rig.advance(6);
    assert_eq!(rig.cat("file").await, b"short");
}

/// Expired attributes are requested together with the names. A reader that continues a listing is
/// not sent back to its beginning for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_goes_on_after_the_name_that_was_told_last_is_removed() {
    let rig = Rig::new(Options::default().no_attribute_cache()).await;
    let other = rig.foreigner().await;
    for name in ["a", "b", "c", "d", "e"] {
        other.put(name, b"x").await;
    }
    for told in [3, 5] {
        let list = async |offset: u64, bytes_max: u32| {
            rig.client.readdir(&root(), Ino::ROOT, offset, bytes_max, true).wait().await.unwrap()
        };
        rig.client.opendir(&root(), Ino::ROOT).wait().await.unwrap();
        let first = list(0, 160 * told).await;
        assert_eq!(first.len(), told as usize);
        let last = first.last().unwrap();
        other.remove(last.name.to_str().unwrap()).await.unwrap();
        let rest = list(last.offset, 1000).await;
        assert_eq!(rest.len(), 5 - told as usize, "{rest:?}");
        assert!(rest.iter().all(|entry| first.iter().all(|told| told.name != entry.name)));
        other.put(last.name.to_str().unwrap(), b"x").await;
    }
}

/// A server may leave out the attributes in its replies to writes (RFC 1813, 2.6; a share does when
/// the file was closed meanwhile). What was written is then known to be there all the same: it does
/// not read as zeros, whatever is written behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_no_reply_describes_are_read_from_the_server() {
    const PARTS: [&[u8]; 4] = [b"before, ", b"after, ", b"elsewhere, ", b"and its directory."];
    for (cache_data, sent) in [true, false].into_iter().flat_map(|it| (0..16).map(move |n| (it, n)))
    {
        let rig = Rig::new(Options { cache_data, fill_after: None, ..Options::default() }).await;
        let open = rig.create("file").await;
        rig.server.set_terse(true);
        let mut written = Vec::new();
        for (number, part) in PARTS.into_iter().enumerate() {
            open.write(written.len() as u64, part).await.unwrap();
            written.extend_from_slice(part);
            if sent >> number & 1 == 1 {
                open.flush().await.unwrap();
            }
            let read = open.read(0, 4096).await.unwrap();
            assert_eq!(
                String::from_utf8_lossy(&read),
                String::from_utf8_lossy(&written),
                "cache_data={cache_data} sent={sent:b} after part {number}"
            );
        }
        assert_eq!(rig.stat("file").await.attr.size, written.len() as u64);
        open.close().await.unwrap();
        assert_eq!(rig.cat("file").await, written);
    }
}

//! Servers that restart, fill up, fail or vanish.

use std::ffi::OsStr;

use larder_client::{Options, Start};
use larder_vfs::{DataPath, Error, FileSystem, Ino, New, Remote, SetAttr};

use crate::rig::{READ, Rig, WRITE, pattern, root};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unstable_writes_lost_by_a_restart_are_sent_again() {
    let rig = Rig::new(Options::default()).await;
    let bytes = pattern(1, 5 << 20);
    let open = rig.create("file").await;
    open.write(0, &bytes).await.unwrap();
    let (server, flushed) = (rig.server.clone(), open.flush());
    let restart = async move {
        // Between the first writes and the commit, at some point.
        while server.calls("write") < 3 {
            tokio::task::yield_now().await;
        }
        server.restart();
    };
    let (flushed, ()) = tokio::join!(flushed, restart);
    flushed.unwrap();
    rig.server.restart();
    assert!(rig.foreigner().await.cat("file").await == bytes, "all of it is on the server's disk");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_server_is_reported_at_close_and_the_next_write_works() {
    let rig = Rig::new(Options::default()).await;
    let open = rig.create("file").await;
    rig.server.set_full(true);
    open.write(0, b"does not fit").await.unwrap();
    assert_eq!(open.close().await, Err(Error::NoSpace));
    rig.server.set_full(false);
    rig.put("file", b"fits").await;
    assert_eq!(rig.foreigner().await.cat("file").await, b"fits");
    assert_eq!(rig.cat("file").await, b"fits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_data_is_served_while_the_server_is_out_of_reach() {
    let rig = Rig::new(Options::default()).await;
    let bytes = pattern(1, 100_000);
    rig.put("file", &bytes).await;
    let rig = rig.remount().await;
    assert_eq!(rig.cat("file").await, bytes);
    rig.landed("file").await;
    rig.server.time_out();
    rig.advance(1000);
    assert_eq!(rig.cat("file").await, bytes);
    assert_eq!(rig.stat("file").await.attr.size, 100_000);
    let open = rig.open(&root(), "file", READ).await.unwrap();
    assert_eq!(open.read(0, 10).await.unwrap(), bytes[..10]);
    rig.server.reconnect();
    rig.foreigner().await.put("file", b"newer").await;
    rig.advance(1000);
    assert_eq!(rig.cat("file").await, b"newer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_that_the_server_did_not_take_is_sent_when_it_is_back() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"old").await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(0, b"new").await.unwrap();
    rig.server.time_out();
    assert_eq!(open.flush().await, Err(Error::TimedOut));
    assert_eq!(open.read(0, 10).await.unwrap(), b"new");
    rig.server.reconnect();
    open.close().await.unwrap();
    assert_eq!(rig.foreigner().await.cat("file").await, b"new");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_operations_leave_names_as_they_were() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"x").await;
    for error in [Error::Io, Error::TimedOut, Error::AccessDenied, Error::QuotaExceeded] {
        rig.server.fail_next(1, error);
        assert_eq!(rig.remove("file").await, Err(error));
        rig.server.fail_next(1, error);
        assert_eq!(rig.rename("file", "other").await, Err(error));
        assert_eq!(rig.names().await, ["file"]);
        assert!(rig.find("other").await.is_none());
    }
    assert!(rig.server.reachable());
    assert_eq!(rig.cat("file").await, b"x");
}

/// A server that was restored, or a server that names files by path and was reconnected. Files are
/// found by their last path; what was written and not sent gets there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_with_new_handles_are_found_by_their_paths() {
    let rig = Rig::new(Options::default()).await;
    let made =
        rig.client.make(&root(), Ino::ROOT, OsStr::new("dir"), New::Directory, SetAttr::default());
    let dir = made.wait().await.unwrap().ino;
    rig.create_in(dir, "read").await.close().await.unwrap();
    rig.put("dir/read", b"old").await;
    let written = rig.create_in(dir, "written").await;
    written.write(0, b"new").await.unwrap();
    rig.server.give_new_handles();
    written.close().await.unwrap();
    assert_eq!(rig.foreigner().await.cat("dir/written").await, b"new");
    assert_eq!(rig.cat("dir/read").await, b"old");
    assert_eq!(rig.server.calls("read"), 0, "what is held of it is used");
    rig.server.give_new_handles();
    rig.put("dir/read", b"newer").await;
    assert_eq!(rig.foreigner().await.cat("dir/read").await, b"newer");
}

/// Another file under the name is not the one that was written to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_that_was_replaced_behind_a_new_handle_is_another() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"old").await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(0, b"new").await.unwrap();
    let elsewhere = rig.foreigner().await;
    elsewhere.remove("file").await.unwrap();
    elsewhere.put("file", b"another").await;
    rig.server.give_new_handles();
    assert_eq!(open.flush().await, Err(Error::Stale));
    assert_eq!(rig.foreigner().await.cat("file").await, b"another");
}

/// For example a log on the server that grows while it is read over a slow link.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_that_others_change_all_the_time_is_read() {
    let rig = Rig::new(Options::default()).await;
    let bytes = pattern(1, 300_000);
    rig.foreigner().await.put("log", &bytes).await;
    rig.server.grow_when_read();
    let open = rig.open(&root(), "log", READ).await.unwrap();
    let mut found = Vec::new();
    while found.len() < bytes.len() + 10 {
        found.extend(open.read(found.len() as u64, 1 << 20).await.unwrap());
    }
    assert!(found[..bytes.len()] == bytes);
    assert!(found[bytes.len()..].iter().all(|byte| *byte == b'+'));

    // What is not sent yet is part of it.
    let ours = rig.open(&root(), "log", WRITE).await.unwrap();
    ours.write(1000, b"ours").await.unwrap();
    let mut both = bytes;
    both[1000..1004].copy_from_slice(b"ours");
    assert!(ours.read(500, 2000).await.unwrap() == both[500..2500]);
}

/// A server describes the file, another client truncates it, and the server reads what is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_of_a_file_that_is_cut_ends_where_the_file_does() {
    let bytes = pattern(1, 300_000);
    for (size, cache_data) in [(0, true), (150_000, true), (0, false), (150_000, false)] {
        let rig = Rig::new(Options { cache_data, ..Options::default() }).await;
        rig.foreigner().await.put("file", &bytes).await;
        let open = rig.open(&root(), "file", READ).await.unwrap();
        rig.server.cut_when_read(size as u64);
        assert!(open.read(0, 300_000).await.unwrap() == bytes[..size], "{size}");

        // A reader that has continued in the meantime finds the end, too.
        rig.foreigner().await.put("file", &bytes).await;
        let other = rig.open(&root(), "file", READ).await.unwrap();
        assert!(other.read(0, 20_000).await.unwrap() == bytes[..20_000]);
        rig.server.cut_when_read(size as u64);
        assert_eq!(other.read(200_000, 1000).await.unwrap(), b"", "{size}");
    }
}

/// Data that an application was told is late, and that the server then refuses, is kept in the
/// cache directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_data_that_the_server_refuses_is_set_aside() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"old content").await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    rig.server.time_out();
    open.write(0, b"new").await.unwrap();
    assert_eq!(open.close().await, Err(Error::TimedOut));
    rig.foreigner().await.remove("file").await.unwrap();
    let rig = rig.kill(Start::NewMount).await;
    rig.sent().await;
    let kept = rig.set_aside();
    let [(name, content)] = &kept[..] else { panic!("{kept:?}") };
    assert!(name.ends_with("_file"), "{name}");
    assert_eq!(content, b"new content");
    assert_eq!(rig.find("file").await, None);
}

/// The server is back after the close that reported its absence, and before the release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_refused_at_the_release_is_set_aside_unless_the_close_said_so() {
    let rig = Rig::new(Options::default()).await;
    for (name, is_late, is_told) in
        [("late", true, false), ("told", false, true), ("both", true, true)]
    {
        rig.put(name, b"old content").await;
        let open = rig.open(&root(), name, WRITE).await.unwrap();
        open.write(0, b"new").await.unwrap();
        if is_late {
            rig.server.time_out();
            assert_eq!(open.flush().await, Err(Error::TimedOut));
            rig.server.reconnect();
        }
        rig.foreigner().await.remove(name).await.unwrap();
        if is_told {
            // Of a descriptor that was duplicated.
            assert_eq!(open.flush().await, Err(Error::Stale));
        }
        rig.client.release(open.ino, open.id).wait().await.unwrap();
    }
    let mut kept = rig.set_aside();
    kept.sort();
    let names: Vec<_> = kept.iter().map(|(name, _)| name.rsplit_once('_').unwrap().1).collect();
    assert_eq!(names, ["late", "both"]);
    assert!(kept.iter().all(|(_, content)| content == b"new content"), "{kept:?}");
}

/// The next process does not know what the earlier one reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_data_that_is_refused_after_a_resume_is_set_aside() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"old content").await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(0, b"new").await.unwrap();
    rig.server.time_out();
    assert_eq!(open.flush().await, Err(Error::TimedOut));
    let names = open.names();
    rig.foreigner().await.remove("file").await.unwrap();
    let rig = rig.kill(Start::Resume).await;
    assert_eq!(rig.again(names).close().await, Err(Error::Stale));
    let kept = rig.set_aside();
    assert_eq!(kept.iter().map(|(_, content)| &content[..]).collect::<Vec<_>>(), [b"new content"]);
}

/// Data that waits for the server when the mount ends is sent by the next mount.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_under_way_at_the_end_of_the_mount_stays_unsent() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"old").await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(0, b"new").await.unwrap();
    rig.server.hold(Some("write"));
    let (server, closed) = (rig.server.clone(), open.close());
    let end = async move {
        while server.calls("write") < 2 {
            tokio::task::yield_now().await;
        }
        server.shutdown();
    };
    let (closed, ()) = tokio::join!(closed, end);
    assert_eq!(closed, Err(Error::Shutdown));
    rig.server.hold(None);
    rig.server.reconnect();
    let rig = rig.reboot().await;
    rig.sent().await;
    assert_eq!(rig.foreigner().await.cat("file").await, b"new");
}

/// Bytes that the server refused are not shown from the kernel's memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discarded_data_leaves_the_kernel() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"old").await;
    rig.server.set_full(true);
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(0, b"longer than before").await.unwrap();
    assert_eq!(open.close().await, Err(Error::NoSpace));
    let ino = rig.find("file").await.unwrap();
    let opened = rig.client.open(&root(), ino, READ).wait().await.unwrap();
    assert!(matches!(opened.path, DataPath::Cached { keep: false }));
}

/// Whether the server's cookies lead back to the beginning, into a page that is cached, or to the
/// end of one: each reader soon gets an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_that_goes_round_over_several_pages_ends() {
    const NAMES: usize = 600;
    let positions = list(&many(NAMES).await, [0]).await.remove(0).unwrap();
    assert_eq!(positions.len(), NAMES);
    for to in [0, positions[0], positions[100], positions[NAMES / 2], positions[NAMES - 2]] {
        for readers in [1, 3] {
            let rig = many(NAMES).await;
            rig.server.set_listings_lead_to(to);
            for listed in list(&rig, vec![0; readers]).await {
                assert_eq!(listed.unwrap_err(), Error::Io, "to {to}, {readers} readers");
            }
        }
    }
}

/// A server with this many names.
async fn many(names: usize) -> Rig {
    let rig = Rig::new(Options::default()).await;
    let at = rig.server.root().await.unwrap().handle;
    for number in 0..names {
        let name = format!("{number:04}");
        let set = SetAttr::default();
        rig.server.make(&root(), &at, name.as_ref(), New::File, set).await.unwrap();
    }
    rig
}

/// Lists the root by readers that take turns; returns the positions that each was given.
async fn list(rig: &Rig, begin: impl IntoIterator<Item = u64>) -> Vec<Result<Vec<u64>, Error>> {
    const CALLS_MAX: usize = 500;
    rig.client.opendir(&root(), Ino::ROOT).wait().await.unwrap();
    let mut readers: Vec<_> =
        begin.into_iter().map(|offset| (Some(offset), Ok(Vec::new()))).collect();
    for _ in 0..CALLS_MAX {
        for (at, listed) in &mut readers {
            let (Some(offset), Ok(positions)) = (*at, listed.as_mut()) else { continue };
            let page = rig.client.readdir(&root(), Ino::ROOT, offset, 4096, false);
            match page.wait().await {
                Ok(page) => {
                    *at = page.last().map(|entry| entry.offset);
                    positions.extend(page.iter().map(|entry| entry.offset));
                }
                Err(error) => (*at, *listed) = (None, Err(error)),
            }
        }
    }
    assert!(readers.iter().all(|(at, _)| at.is_none()), "listed for ever");
    readers.into_iter().map(|(_, listed)| listed).collect()
}

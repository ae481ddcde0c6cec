//! Bytes that met another client's change: the server gets them as a file beside that client's.

use std::ffi::OsStr;

use larder_cache::ConflictKind;
use larder_client::{Options, Start};
use larder_io::{Clock, Image};
use larder_vfs::{Cred, Error, FileSystem, Ino, Remote, SetAttr, Time, Trouble};

use crate::kept::{at_server, generated};
use crate::rig::{PATIENCE, Rig, WRITE, pattern, root};

const MINE: &[u8] = b"what was written here";

/// The names at the server, as another client sees them.
async fn names(rig: &Rig) -> Vec<String> {
    rig.foreigner().await.names().await
}

/// The conflicts on record: what was done, the name that is kept, the one that was wanted, and
/// whether the bytes are in the cache directory.
fn conflicts(rig: &Rig) -> Vec<(ConflictKind, String, String, bool)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let all = rig.cache().conflicts(0, usize::MAX).into_iter().map(|found| found.conflict);
    all.map(|one| (one.kind, text(&one.name), text(&one.wanted), !one.aside.is_empty())).collect()
}

/// A file with a mode, which is written here and kept, and by another client. Answers when it was
/// written here.
async fn written_twice(rig: &Rig, mine: &[u8]) -> Time {
    rig.put("file", &pattern(1, 50_000)).await;
    rig.set("file", SetAttr { mode: Some(0o640), ..SetAttr::default() }).await;
    rig.client.sync(&|_| true).await.unwrap();
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.truncate(0).await.unwrap();
    open.write(0, mine).await.unwrap();
    open.close().await.unwrap();
    let written = rig.clock.wall();
    rig.foreigner().await.put("file", b"theirs").await;
    Time { sec: written.sec, nsec: written.nsec }
}

/// Everything that is unsent or set aside is brought to the server, over as many attempts as it
/// takes.
async fn brought(rig: &Rig) {
    let sent = async {
        while let Err(error) = rig.in_vain(rig.client.sync(&|_| true)).await {
            assert!(matches!(error, Error::Changed | Error::TimedOut), "{error}");
        }
    };
    tokio::time::timeout(PATIENCE, sent).await.expect("it ends");
}

/// Both versions are there, ours once.
async fn both_are_there(rig: &Rig, mine: &[u8], case: &str) {
    let names = names(rig).await;
    let [theirs, ours] = &names[..] else { panic!("{case}: {names:?}") };
    assert!(theirs == "file" && ours.starts_with("file.conflict-here-"), "{case}: {names:?}");
    assert!(at_server(rig, "file").await == b"theirs", "{case}");
    assert!(at_server(rig, ours).await == mine, "{case}");
    let other = rig.foreigner().await;
    assert_eq!(other.stat(ours).await.attr.mode, 0o640, "{case}");
    assert_eq!(rig.set_aside(), [], "{case}: {:?}", conflicts(rig));
    let told = vec![(ConflictKind::Written, ours.clone(), "file".to_owned(), false)];
    assert_eq!(conflicts(rig), told, "{case}");
    assert!(rig.names().await == names, "{case}: this mount lists both");
    assert!(rig.cat(ours).await == mine && rig.cat("file").await == b"theirs", "{case}");
    assert_eq!(rig.client.unsaved(), [], "{case}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_two_clients_wrote_is_at_the_server_twice() {
    let long = pattern(7, 3 << 20);
    for mine in [MINE, &long] {
        for kind in 0..3 {
            let rig = match kind {
                0 => Rig::new(generated()).await,
                1 => Rig::exclusive(generated()).await,
                _ => Rig::offline(generated()).await,
            };
            let written = written_twice(&rig, mine).await;
            brought(&rig).await;
            let case = format!("{kind}, {} bytes", mine.len());
            both_are_there(&rig, mine, &case).await;
            let ours = names(&rig).await.remove(1);
            assert_eq!(rig.foreigner().await.stat(&ours).await.attr.mtime, written, "{case}");
            // What is at the server is in its users' hands.
            rig.remove(&ours).await.unwrap();
            assert_eq!(conflicts(&rig).len(), 1, "{case}");
            brought(&rig).await;
            assert_eq!(names(&rig).await, ["file"], "{case}");
        }
    }
}

/// Whichever request to the server stays without an answer, or is not carried out, and whether the
/// process dies then: the bytes are there once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_two_clients_wrote_is_there_once_whichever_answer_is_lost() {
    let troubles = [Trouble::Unanswered, Trouble::Refused(Error::TimedOut)];
    for (trouble, dies) in troubles.into_iter().flat_map(|one| [(one, false), (one, true)]) {
        let mut calls = 0;
        for count in 0.. {
            let rig = Rig::exclusive(generated()).await;
            written_twice(&rig, MINE).await;
            rig.server.trouble_after(count, trouble);
            let _ = rig.in_vain(rig.client.sync(&|_| true)).await;
            if rig.server.is_trouble_to_come() {
                calls = count;
                break;
            }
            let rig = if dies { rig.kill(Start::NewMount).await } else { rig };
            brought(&rig).await;
            both_are_there(&rig, MINE, &format!("{trouble:?} {dies} {count}")).await;
        }
        println!("{trouble:?}, dies: {dies}: {calls} requests");
        assert!(calls >= 6, "{calls}");
    }
}

/// Wherever the process dies, or the machine, what the server has done is known to the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_two_clients_wrote_is_there_once_wherever_the_process_dies() {
    for count in 0_u64.. {
        let rig = Rig::exclusive(generated()).await;
        written_twice(&rig, MINE).await;
        // From this call on the server carries nothing out.
        rig.server.trouble_after(count, Trouble::Refused(Error::TimedOut));
        let syncing = rig.client.sync(&|_| true);
        tokio::pin!(syncing);
        let is_over = loop {
            tokio::select! {
                biased;
                _ = &mut syncing => break rig.server.is_trouble_to_come(),
                () = tokio::task::yield_now() => {
                    if !rig.server.is_trouble_to_come() {
                        rig.server.time_out();
                    }
                    rig.pass_to_next_wake();
                }
            }
        };
        let machine = rig.last(Image::Synced);
        let next = rig.boot(machine, rig.server.another_client()).await;
        brought(&next).await;
        both_are_there(&next, MINE, &format!("the machine dies at {count}")).await;
        if is_over {
            assert!(count >= 6, "{count}");
            break;
        }
    }
}

/// A directory that takes no new file, a server that has no room for the bytes: they are set aside,
/// and the record says why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_beside_is_set_aside_and_says_why() {
    let user = Cred::new(7, 7, &[]);
    for refused in [Error::AccessDenied, Error::NoSpace] {
        let rig = Rig::exclusive(generated()).await;
        written_twice(&rig, b"").await;
        brought(&rig).await;
        rig.set("file", SetAttr { mode: Some(0o666), ..SetAttr::default() }).await;
        let directory = SetAttr { mode: Some(0o755), ..SetAttr::default() };
        rig.client.setattr(&root(), Ino::ROOT, None, directory).wait().await.unwrap();
        rig.client.sync(&|_| true).await.unwrap();
        let before = names(&rig).await;
        rig.cache().clear_conflicts(None);
        let open = rig.open(&user, "file", WRITE).await.unwrap();
        let written = rig.client.write(
            &user,
            open.ino,
            Some(open.id),
            0,
            MINE,
            larder_vfs::Stability::Unstable,
        );
        written.wait().await.unwrap();
        open.close().await.unwrap();
        rig.foreigner().await.put("file", b"theirs").await;
        if refused == Error::NoSpace {
            let directory = SetAttr { mode: Some(0o777), ..SetAttr::default() };
            let other = rig.foreigner().await;
            other.client.setattr(&root(), Ino::ROOT, None, directory).wait().await.unwrap();
            rig.server.set_full(true);
        }
        brought(&rig).await;
        assert_eq!(names(&rig).await, before, "{refused}: nothing is left at the server");
        let aside = rig.set_aside();
        let [(name, bytes)] = &aside[..] else { panic!("{refused}: {aside:?}") };
        assert!(name.ends_with("_file") && bytes.starts_with(MINE), "{refused}");
        let [found] = &rig.cache().conflicts(0, 9)[..] else { panic!("{refused}") };
        assert_eq!(found.conflict.kind, ConflictKind::Written);
        assert!(found.conflict.reason.contains(&refused.to_string()), "{found:?}");
        assert!(found.conflict.aside.ends_with(name), "{found:?}");
        rig.server.set_full(false);
        brought(&rig).await;
        assert_eq!(
            (names(&rig).await, rig.set_aside().len()),
            (before, 1),
            "it is not tried again"
        );
    }
}

/// A file that another client removed while it was written here comes back under the name of a
/// conflict, if this mount knows that nobody here removed it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_client_removed_comes_back_under_another_name() {
    for has_journal in [true, false] {
        let rig = match has_journal {
            true => Rig::offline(generated()).await,
            false => Rig::new(generated()).await,
        };
        rig.put("file", b"first").await;
        rig.client.sync(&|_| true).await.unwrap();
        let open = rig.open(&root(), "file", WRITE).await.unwrap();
        open.write(0, b"FIRST").await.unwrap();
        open.close().await.unwrap();
        rig.foreigner().await.remove("file").await.unwrap();
        rig.advance(600);
        rig.sent().await;
        brought(&rig).await;
        let names = names(&rig).await;
        let told = conflicts(&rig);
        if has_journal {
            let [ours] = &names[..] else { panic!("{names:?}") };
            assert_eq!(at_server(&rig, ours).await, b"FIRST");
            let wanted = (ConflictKind::Written, ours.clone(), "file".to_owned(), false);
            assert_eq!((told, rig.set_aside().len()), (vec![wanted], 0));
        } else {
            assert_eq!((names.len(), rig.set_aside().len()), (0, 1));
            assert!(told[0].0 == ConflictKind::Refused && told[0].3, "{told:?}");
        }
    }
}

/// Two mounts meet: the one whose bytes are under the name learns of the other one's when it sees
/// the name, once, and each has its own record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_that_sees_what_another_one_kept_has_it_on_record() {
    let rig = Rig::offline(generated()).await;
    rig.put("file", b"first").await;
    rig.client.sync(&|_| true).await.unwrap();
    rig.foreigner().await.put("file.conflict-some-host-1795000000", b"theirs").await;
    rig.foreigner().await.put("other.conflict-some", b"an ordinary name").await;
    rig.advance(600);
    let kept = "file.conflict-some-host-1795000000";
    for round in 0..3 {
        assert!(rig.names().await.contains(&kept.to_owned()));
        rig.advance(600);
        let told = (ConflictKind::Elsewhere, kept.to_owned(), "file".to_owned(), false);
        assert_eq!(conflicts(&rig), [told], "{round}");
    }
    rig.cache().clear_conflicts(None);
    let rig = rig.kill(Start::NewMount).await;
    rig.names().await;
    assert_eq!(conflicts(&rig), [], "a user has seen it");
    let top = rig.server.root().await.unwrap().handle;
    assert!(rig.server.lookup(&root(), &top, OsStr::new(kept)).await.unwrap().found.is_some());
    // Other mounts have no changes of their own that can have met it.
    let plain = Rig::new(Options::default()).await;
    plain.foreigner().await.put(kept, b"theirs").await;
    plain.names().await;
    assert_eq!(conflicts(&plain), []);
}

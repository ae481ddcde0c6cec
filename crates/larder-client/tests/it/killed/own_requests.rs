//! A process dies, or goes on, while the server has not answered requests of it: what these did is
//! not taken for another client's change.

use larder_client::Start;
use larder_vfs::{Error, FileSystem, Ino, OpenFlags, Removal, SetAttr, SetTime, Time, Trouble};

use crate::kept::{at_server, generated};
use crate::rig::{Rig, WRITE, pattern, root};

/// What becomes of the process.
#[derive(Clone, Copy, Debug)]
enum Then {
    GoesOn,
    Dies(Start),
    MachineCrashes,
}

const ALL: [Then; 4] =
    [Then::GoesOn, Then::Dies(Start::Resume), Then::Dies(Start::NewMount), Then::MachineCrashes];

impl Then {
    async fn comes(self, rig: Rig) -> Rig {
        match self {
            Then::GoesOn => rig,
            Then::Dies(start) => rig.kill(start).await,
            Then::MachineCrashes => rig.crash().await,
        }
    }
}

async fn append(rig: &Rig, name: &str, at: u64, bytes: &[u8]) {
    let open = rig.open(&root(), name, WRITE).await.unwrap();
    open.write(at, bytes).await.unwrap();
    open.close().await.unwrap();
}

/// A file is sent, one request of that is carried out and not answered, and more is written.
#[tokio::test]
async fn what_is_written_after_a_request_without_an_answer_is_over_our_own_change() {
    let (first, second) = (pattern(1, 979), pattern(2, 1955));
    for then in ALL {
        for answered in 1.. {
            let rig = Rig::exclusive(generated()).await;
            rig.put("seen", b"").await;
            rig.client.sync(&|_| true).await.unwrap();
            rig.put("file", &first).await;
            rig.advance(5);
            rig.server.trouble_after(answered, Trouble::Unanswered);
            // The time of writing follows the bytes.
            for _ in 0..2 {
                let _ = rig.client.sync(&|_| true).await;
            }
            let is_over = rig.server.is_trouble_to_come();
            rig.server.trouble_after(u64::MAX, Trouble::Unanswered);
            rig.advance(5);
            append(&rig, "file", first.len() as u64, &second).await;
            let rig = then.comes(rig).await;
            rig.sent().await;
            let what = format!("{then:?} after {answered} requests");
            assert!(at_server(&rig, "file").await == [&first[..], &second[..]].concat(), "{what}");
            assert_eq!(rig.set_aside(), [], "{what}");
            if is_over {
                println!("{what}");
                break;
            }
        }
    }
}

/// Attributes of a file are set that has unsent bytes, and the process dies: its bytes are over the
/// version that the file got by that.
#[tokio::test]
async fn what_is_unsent_when_attributes_are_set_is_over_our_own_change() {
    let (first, second) = (pattern(1, 979), pattern(2, 1955));
    let time = Time { sec: 77, nsec: 0 };
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let mtime = SetAttr { mtime: Some(SetTime::To(time)), ..SetAttr::default() };
    for (then, set) in ALL.iter().flat_map(|then| [(*then, mode), (*then, mtime)]) {
        let rig = Rig::exclusive(generated()).await;
        rig.put("file", &first).await;
        rig.client.sync(&|_| true).await.unwrap();
        rig.advance(5);
        append(&rig, "file", first.len() as u64, &second).await;
        rig.set("file", set).await;
        let rig = then.comes(rig).await;
        rig.sent().await;
        let what = format!("{then:?}, {set:?}");
        assert!(at_server(&rig, "file").await == [&first[..], &second[..]].concat(), "{what}");
        assert_eq!(rig.set_aside(), [], "{what}");
    }
}

/// A file is removed or replaced here while the server has carried out a request for its bytes,
/// and has not answered: it has what was removed, and not another client's change.
#[tokio::test]
async fn what_goes_while_its_bytes_are_on_their_way_is_no_other_clients_change() {
    for (is_replaced, method) in
        [(false, "write"), (true, "write"), (false, "setattr"), (true, "setattr")]
    {
        let what = format!("replaced: {is_replaced}, unanswered: {method}");
        let rig = Rig::exclusive(generated()).await;
        for name in ["file", "other"] {
            rig.put(name, &pattern(1, 979)).await;
        }
        rig.client.sync(&|_| true).await.unwrap();
        rig.advance(5);
        append(&rig, "file", 979, &pattern(2, 1955)).await;
        let calls = rig.server.calls(method);
        rig.server.hold_answers(Some(method));
        let sync = || {
            let client = rig.client.clone();
            tokio::spawn(async move { client.sync(&|_| true).await })
        };
        let sending = sync();
        while rig.server.calls(method) == calls {
            tokio::task::yield_now().await;
        }
        match is_replaced {
            true => rig.rename("other", "file").await.unwrap(),
            false => rig.remove("file").await.unwrap(),
        }
        let replaying = sync();
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        rig.server.hold_answers(None);
        let _ = sending.await.unwrap();
        let _ = replaying.await.unwrap();
        rig.client.sync(&|_| true).await.unwrap();
        assert_eq!(rig.cache().conflicts(0, usize::MAX), [], "{what}");
        let foreigner = rig.foreigner().await;
        let left: &[&str] = if is_replaced { &["file"] } else { &["other"] };
        assert_eq!(foreigner.names().await, left, "{what}");
        assert_eq!(rig.set_aside(), [], "{what}");
    }
}

/// A file with unsent bytes is removed or replaced at the server, one request of that is carried
/// out and not answered, and the process goes on or dies: the bytes of what the program has removed
/// are not kept beside it, and `larder sync` ends.
#[tokio::test]
async fn unsent_bytes_of_what_was_removed_without_an_answer_are_dropped() {
    // After a crash of the machine nothing tells of the request: the bytes are kept.
    for (then, is_replaced) in ALL[..3].iter().flat_map(|then| [(*then, false), (*then, true)]) {
        for answered in 0.. {
            let what = format!("{then:?}, replaced: {is_replaced}, after {answered} requests");
            let rig = Rig::offline(generated()).await;
            for name in ["file", "other"] {
                rig.put(name, &pattern(1, 979)).await;
            }
            rig.client.sync(&|_| true).await.unwrap();
            append(&rig, "file", 979, &pattern(2, 1955)).await;
            rig.names().await;
            rig.server.trouble_after(answered, Trouble::Unanswered);
            let gone = match is_replaced {
                true => rig.rename("other", "file").await,
                false => rig.remove("file").await,
            };
            let is_over = rig.server.is_trouble_to_come();
            assert_eq!(is_over, gone.is_ok(), "{what}");
            rig.server.trouble_after(u64::MAX, Trouble::Unanswered);
            let left = rig.foreigner().await.names().await;
            let rig = then.comes(rig).await;
            assert_eq!(rig.client.sync(&|_| true).await, Ok(()), "{what}");
            assert_eq!(rig.cache().conflicts(0, usize::MAX), [], "{what}");
            assert_eq!(rig.set_aside(), [], "{what}");
            assert_eq!(rig.foreigner().await.names().await, left, "{what}");
            if is_over {
                println!("{what}");
                break;
            }
        }
    }
}

/// Another client removes a file with bytes that the server lacks: `larder sync` says so once, and
/// they are kept under another name.
#[tokio::test]
async fn a_sync_keeps_the_bytes_of_a_file_that_another_client_has_removed() {
    let bytes = pattern(1, 979);
    for dies in [false, true] {
        let rig = Rig::offline(generated()).await;
        rig.put("file", b"").await;
        rig.client.sync(&|_| true).await.unwrap();
        append(&rig, "file", 0, &bytes).await;
        rig.foreigner().await.remove("file").await.unwrap();
        let rig = if dies { rig.kill(Start::NewMount).await } else { rig };
        assert_eq!(rig.client.sync(&|_| true).await, Err(Error::Stale));
        assert_eq!(rig.client.sync(&|_| true).await, Ok(()));
        let there = rig.foreigner().await.names().await;
        assert!(matches!(&*there, [one] if one.starts_with("file.conflict-here-")), "{there:?}");
        assert!(at_server(&rig, &there[0]).await == bytes);
    }
}

/// The server describes a file after it has taken one of two names from it, and before it answers
/// that: the bytes that it lacks get to the other name.
#[tokio::test]
async fn unsent_bytes_of_a_file_that_keeps_a_name_are_sent_whatever_is_told_first() {
    let (first, second) = (pattern(1, 979), pattern(2, 1955));
    let rig = Rig::offline(generated()).await;
    rig.server.tell_times();
    rig.put("file", &first).await;
    let ino = rig.find("file").await.unwrap();
    rig.client.link(&root(), ino, Ino::ROOT, "link".as_ref()).wait().await.unwrap();
    rig.client.sync(&|_| true).await.unwrap();
    append(&rig, "file", 979, &second).await;
    rig.server.hold_answers(Some("remove"));
    let client = rig.client.clone();
    let removing = tokio::spawn(async move {
        client.remove(&root(), Ino::ROOT, "link".as_ref(), Removal::File).wait().await
    });
    while rig.server.calls("remove") == 0 {
        tokio::task::yield_now().await;
    }
    rig.advance(60);
    assert_eq!(rig.stat("file").await.attr.nlink, 1);
    rig.server.hold_answers(None);
    removing.await.unwrap().unwrap();
    rig.client.sync(&|_| true).await.unwrap();
    assert!(at_server(&rig, "file").await == [first, second].concat());
}

/// A file is removed while its bytes are sent: that the server does not have it any more is our own
/// doing, also before the removal has returned.
#[tokio::test]
async fn what_is_removed_while_it_is_sent_is_nobody_elses_doing() {
    for round in 0..50 {
        let rig = match round % 2 {
            0 => Rig::exclusive(generated()).await,
            _ => Rig::offline(generated()).await,
        };
        rig.put("file", &pattern(round, 30)).await;
        let client = rig.client.clone();
        let removing = tokio::spawn(async move {
            client.remove(&root(), Ino::ROOT, "file".as_ref(), Removal::File).wait().await
        });
        for _ in 0..round % 7 {
            tokio::task::yield_now().await;
        }
        rig.client.sync(&|_| true).await.unwrap();
        removing.await.unwrap().unwrap();
        rig.client.sync(&|_| true).await.unwrap();
        assert_eq!(rig.cache().conflicts(0, usize::MAX), [], "round {round}");
        assert_eq!(rig.set_aside(), [], "round {round}");
        assert!(rig.foreigner().await.names().await.is_empty(), "round {round}");
    }
}

/// Another client has changed the directory, so that it is not known any more what a name in it
/// stands for, and the file that had it has unsent bytes.
#[tokio::test]
async fn what_is_removed_by_a_name_in_doubt_is_nobody_elses_doing() {
    let rig = Rig::offline(generated()).await;
    rig.names().await;
    rig.put("file", &pattern(1, 30)).await;
    rig.foreigner().await.put("other", b"").await;
    rig.advance(60);
    rig.client.getattr(&root(), Ino::ROOT).wait().await.unwrap();
    rig.remove("file").await.unwrap();
    rig.client.sync(&|_| true).await.unwrap();
    assert_eq!(rig.cache().conflicts(0, usize::MAX), []);
    assert_eq!(rig.set_aside(), []);
    assert_eq!(rig.foreigner().await.names().await, ["other"]);
}

/// A file gets another name: at once, after its unsent bytes, so that what the server says of the
/// file was asked for after the link was; or later. Attributes that are set then while the server
/// is away are over the version that the link has left.
#[tokio::test]
async fn attributes_are_set_over_the_version_that_a_link_has_left() {
    for bytes in [&b"1"[..], b""] {
        let rig = match bytes {
            b"" => Rig::exclusive_ticking(generated()).await,
            _ => Rig::offline_ticking(generated()).await,
        };
        rig.server.tell_times();
        rig.server.hide_before();
        rig.names().await;
        rig.put("file", bytes).await;
        if !bytes.is_empty() {
            let flags = OpenFlags { truncate: true, ..WRITE };
            let open = rig.open(&root(), "file", flags).await.unwrap();
            open.write(0, bytes).await.unwrap();
            open.close().await.unwrap();
        }
        let ino = rig.find("file").await.unwrap();
        rig.client.link(&root(), ino, Ino::ROOT, "link".as_ref()).wait().await.unwrap();
        rig.client.sync(&|_| true).await.unwrap();
        rig.server.time_out();
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        rig.client.setattr(&root(), ino, None, mode).wait().await.unwrap();
        rig.server.reconnect();
        rig.client.sync(&|_| true).await.unwrap();
        assert_eq!(rig.cache().conflicts(0, usize::MAX), [], "{bytes:?}");
        assert_eq!(rig.foreigner().await.stat("link").await.attr.mode & 0o777, 0o600);
    }
}

/// A file with unsent bytes gets another name, and the process dies. The next one knows that the
/// first name is not the last one: what it writes stays when that is removed.
#[tokio::test]
async fn a_dead_processs_link_keeps_the_bytes_of_the_next_one() {
    for start in [Start::Resume, Start::NewMount] {
        let rig = Rig::offline_ticking(generated()).await;
        rig.server.tell_times();
        rig.server.hide_before();
        rig.names().await;
        rig.put("file", &pattern(1, 30)).await;
        rig.put("file", &pattern(2, 30)).await;
        let ino = rig.find("file").await.unwrap();
        rig.client.link(&root(), ino, Ino::ROOT, "link".as_ref()).wait().await.unwrap();
        rig.server.time_out();
        let rig = rig.kill(start).await;
        rig.server.time_out();
        rig.put("link", &pattern(3, 40)).await;
        rig.remove("file").await.unwrap();
        rig.server.reconnect();
        rig.client.sync(&|_| true).await.unwrap();
        assert!(at_server(&rig, "link").await == pattern(3, 40), "{start:?}");
        assert_eq!(rig.foreigner().await.names().await, ["link"], "{start:?}");
    }
}

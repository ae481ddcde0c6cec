//! Mounts that work while their server is out of reach, over deaths of the process and crashes of
//! the machine.

use std::ffi::OsStr;
use std::ops::Range;
use std::pin::pin;
use std::time::Duration;

use larder_client::{Options, Start};
use larder_io::{Clock, Image};
use larder_vfs::{
    Cred, FileSystem, Ino, MemRemote, New, Removal, RenameFlags, SetAttr, SetTime, Time,
};

use crate::rig::{READ, Rig, WRITE, pattern, root};

/// The server as the next process finds it: it does not answer.
fn away(rig: &Rig) -> MemRemote {
    let server = rig.server.another_client();
    server.time_out();
    server
}

/// The server falls silent; the process goes on, or dies and another one does.
async fn falls_silent(rig: Rig, dies: bool) -> Rig {
    if dies {
        return rig.on_image(rig.image(), away(&rig), Start::Resume).await;
    }
    rig.server.time_out();
    rig
}

/// More than a file has here.
const ALL: Range<u64> = 0..1 << 20;

/// What truncate(2) to 0 sets.
fn empty() -> SetAttr {
    SetAttr { size: Some(0), ..SetAttr::default() }
}

/// Sets attributes one after the other; at each crash point the index has an earlier state, or the
/// new one.
async fn set_attributes(rig: &Rig) {
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    rig.set("file", mode(0o600)).await;
    let given = SetTime::To(Time { sec: 500, nsec: 0 });
    rig.set("file", SetAttr { mtime: Some(given), ..SetAttr::default() }).await;
    rig.checkpoint();
    rig.set("file", mode(0o640)).await;
}

/// A mount with `file`, of which all bytes are cached, whose server is out of reach.
async fn away_with(bytes: &[u8]) -> Rig {
    let rig = Rig::offline(Options::default()).await;
    rig.put("file", bytes).await;
    assert!(rig.cat("file").await == bytes);
    rig.checkpoint();
    rig.server.time_out();
    rig
}

/// The process is killed, and the machine crashes, at every change of the cache's disk since the
/// first `first` ones. What a later process reads without the server in a range of `file` has to be
/// right after so many changes; after a crash of the machine, right after any of them.
async fn die_everywhere(
    rig: &Rig,
    (first, range): (usize, Range<u64>),
    is_right: impl Fn(usize, &[u8]) -> bool,
) {
    let len = u32::try_from(range.end - range.start).unwrap();
    let read = async |next: Rig| {
        let open = next.open(&root(), "file", READ).await?;
        open.read(range.start, len).await
    };
    let mut points = 0;
    for point in rig.disk.crash_points().filter(|point| point.logged() >= first) {
        let (at, now) = (point.logged() - first, point.logged());
        let next = rig.on_image(point.image(Image::Written), away(rig), Start::Resume).await;
        let bytes = read(next).await.unwrap_or_else(|error| panic!("killed at {at}: {error}"));
        assert!(is_right(now, &bytes), "killed at {at}");
        let next = rig.boot(point.image(Image::Synced), away(rig)).await;
        let bytes = read(next).await.unwrap_or_else(|error| panic!("booted at {at}: {error}"));
        assert!(is_right(first, &bytes), "booted at {at}");
        points += 1;
    }
    assert!(points > 3, "{points}");
}

/// A kill, or a crash of the machine, at every change of the cache's disk while attributes are set
/// without the server: the file's bytes are cached as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn setting_attributes_without_the_server_leaves_the_bytes_readable_whenever_a_process_dies() {
    let bytes = pattern(1, 50_000);
    let rig = away_with(&bytes).await;
    let first = rig.disk.logged();
    set_attributes(&rig).await;
    die_everywhere(&rig, (first, ALL), |_, read| read == bytes).await;
    let next = rig.kill(Start::Resume).await;
    next.client.write_back_all().await.unwrap();
    assert_eq!(next.foreigner().await.stat("file").await.attr.mode, 0o640);
    assert!(next.cat("file").await == bytes);
}

/// The same while a file is emptied: a later process reads what was there or nothing, without the
/// server, and nothing once that is done. In the end the bytes are gone from the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_emptied_without_the_server_is_readable_whenever_a_process_dies() {
    let bytes = pattern(2, 50_000);
    let rig = away_with(&bytes).await;
    let first = rig.disk.logged();
    rig.set("file", empty()).await;
    let done = rig.disk.logged();
    // The local file with the former bytes leaves the disk.
    rig.checkpoint();
    die_everywhere(&rig, (first, ALL), |at, read| read.is_empty() || (at < done && read == bytes))
        .await;
    let next = rig.kill(Start::Resume).await;
    next.client.write_back_all().await.unwrap();
    assert!(next.cat("file").await.is_empty());
}

/// A file of which a part was changed without the server, which was acknowledged, and that is
/// emptied then. Answers what has changed on the disk before that.
async fn change_and_empty(rig: &Rig, edit: &[u8]) -> usize {
    rig.set("file", SetAttr { mode: Some(0o600), ..SetAttr::default() }).await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(20_000, edit).await.unwrap();
    open.close().await.unwrap();
    let first = rig.disk.logged();
    rig.set("file", empty()).await;
    first
}

/// What was changed is there until the file is empty, and does not come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_changed_and_emptied_without_the_server_is_there_or_all_gone() {
    let (bytes, edit) = (pattern(3, 50_000), pattern(4, 3000));
    let rig = away_with(&bytes).await;
    let first = change_and_empty(&rig, &edit).await;
    let done = rig.disk.logged();
    let is_right = |at, read: &[u8]| read.is_empty() || (at < done && read == edit);
    die_everywhere(&rig, (first, 20_000..23_000), is_right).await;
}

/// Whenever the process dies, the server gets all of it in the end, or is empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_gets_what_was_changed_before_a_file_was_emptied_or_nothing() {
    let (bytes, edit) = (pattern(3, 50_000), pattern(4, 3000));
    let changed = [&bytes[..20_000], &edit, &bytes[23_000..]].concat();
    for number in 0.. {
        let rig = away_with(&bytes).await;
        let first = change_and_empty(&rig, &edit).await;
        let mut points = rig.disk.crash_points().filter(|point| point.logged() >= first);
        let Some(point) = points.nth(number) else {
            assert!(number > 3, "{number}");
            return;
        };
        let server = rig.server.another_client();
        let next = match number % 2 {
            0 => rig.on_image(point.image(Image::Written), server, Start::Resume).await,
            _ => rig.on_image(point.image(Image::Written), server, Start::NewMount).await,
        };
        next.in_vain(next.client.write_back_all()).await.unwrap();
        let read = next.foreigner().await.cat("file").await;
        assert!(read.is_empty() || read == changed, "killed at {number}: {}", read.len());
        assert!(next.set_aside().is_empty(), "killed at {number}: that was no conflict");
    }
}

/// A directory whose names were changed here since it was listed, at the server, which then falls
/// silent: its names are known as before, and what is not among them can be made, in the process
/// that follows a killed one, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_changed_here_takes_no_knowledge_of_other_names() {
    for dies in [false, true] {
        let rig = Rig::offline(Options::default()).await;
        for name in ["kept", "moved", "replaced", "gone"] {
            rig.put(name, name.as_bytes()).await;
        }
        assert_eq!(rig.names().await, ["gone", "kept", "moved", "replaced"]);
        rig.put("made", b"made").await;
        rig.rename("moved", "replaced").await.unwrap();
        rig.remove("gone").await.unwrap();
        rig.checkpoint();
        let rig = falls_silent(rig, dies).await;
        let names = ["kept", "made", "replaced"];
        assert_eq!(rig.names().await, names, "{dies}");
        for name in ["new", "gone", "moved"] {
            assert_eq!(rig.find(name).await, None, "{dies}: {name}");
            rig.put(name, name.as_bytes()).await;
        }
        rig.rename("new", "made").await.unwrap();
        let names = ["gone", "kept", "made", "moved", "replaced"];
        assert_eq!(rig.names().await, names, "{dies}");
        let foreigner = rig.foreigner().await;
        rig.server.reconnect();
        rig.client.write_back_all().await.unwrap();
        assert_eq!(foreigner.names().await, names, "{dies}");
        let bytes = [("replaced", "moved"), ("made", "new"), ("moved", "moved"), ("gone", "gone")];
        for (name, bytes) in bytes {
            assert_eq!(foreigner.cat(name).await, bytes.as_bytes(), "{dies}: {name}");
        }
    }
}

/// A directory that was made at the server, and never listed, which then falls silent: all its
/// names are known, in the process that follows a killed one, too. Online, another client's names
/// are listed with them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_names_of_a_directory_that_was_just_made_are_known() {
    for (dies, is_listed) in [(false, false), (true, false), (false, true)] {
        let rig = Rig::offline(Options::default()).await;
        let (dir, set) = (OsStr::new("dir"), SetAttr { mode: Some(0o755), ..SetAttr::default() });
        let made = rig.client.make(&root(), Ino::ROOT, dir, New::Directory, set).wait().await;
        let dir = made.unwrap().ino;
        for name in ["gone", "old"] {
            rig.create_in(dir, name).await.close().await.unwrap();
        }
        let gone = rig.client.remove(&root(), dir, "gone".as_ref(), Removal::File);
        gone.wait().await.unwrap();
        let foreigner = rig.foreigner().await;
        if is_listed {
            let dir = foreigner.find("dir").await.unwrap();
            foreigner.create_in(dir, "foreign").await.close().await.unwrap();
            rig.advance(100);
            assert_eq!(rig.names_in(dir).await, ["foreign", "old"]);
        }
        rig.checkpoint();
        let rig = falls_silent(rig, dies).await;
        let known: &[&str] = if is_listed { &["foreign", "old"] } else { &["old"] };
        assert_eq!(rig.names_in(dir).await, known, "{dies}");
        for name in ["gone", "new"] {
            assert_eq!(rig.find(&format!("dir/{name}")).await, None, "{dies}: {name}");
            rig.create_in(dir, name).await.close().await.unwrap();
        }
        let all = [&known[..known.len() - 1], &["gone", "new", "old"]].concat();
        assert_eq!(rig.names_in(dir).await, all, "{dies}");
        rig.server.reconnect();
        rig.client.write_back_all().await.unwrap();
        let dir = foreigner.find("dir").await.unwrap();
        assert_eq!(foreigner.names_in(dir).await, all, "{dies}");
    }
}

/// The kernel sends requests again that a process had carried out here before it died. What is
/// known of other names stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_for_again_without_the_server_takes_no_knowledge_of_other_names() {
    let rig = Rig::offline(Options::default()).await;
    for name in ["kept", "moved", "gone"] {
        rig.put(name, name.as_bytes()).await;
    }
    assert_eq!(rig.names().await.len(), 3);
    rig.server.time_out();
    let again = Cred { retried: true, ..root() };
    for cred in [root(), again] {
        let (dir, at) = (Ino::ROOT, |name| (Ino::ROOT, OsStr::new(name)));
        let flags = RenameFlags::default();
        let renamed = rig.client.rename(&cred, at("moved"), at("there"), flags).wait().await;
        assert_eq!(renamed, Ok(()), "{cred:?}");
        let removed = rig.client.remove(&cred, dir, "gone".as_ref(), Removal::File).wait().await;
        assert_eq!(removed, Ok(()), "{cred:?}");
        let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
        let made = rig.client.create(&cred, dir, "made".as_ref(), set, WRITE).wait().await;
        let (entry, opened) = made.unwrap();
        rig.client.release(entry.ino, opened.id).wait().await.unwrap();
    }
    rig.put("new", b"new").await;
    assert_eq!(rig.find("gone").await, None);
    assert_eq!(rig.names().await, ["kept", "made", "new", "there"]);
}

/// Every process of a mount is killed at any moment of a change without the server; the kernel asks
/// for nothing again. The next mount, still without the server, finds the names as they were before
/// the change or after it, each with its bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whenever_a_mount_dies_without_its_server_the_next_one_knows_the_names() {
    let (mut before, mut after) = (0, 0);
    for case in 0..4 {
        let (is_waiting, removes) = (case % 2 == 0, case / 2 == 0);
        for number in 0.. {
            let Some((next, done)) = dying_at(number, is_waiting, removes).await else { break };
            let what = format!("waits: {is_waiting}, removes: {removes}, killed at {number}");
            let is_done = next.find("new").await.is_none();
            assert!(is_done || !done, "{what}");
            let all: &[&str] = if is_done { &["kept", "old"] } else { &["kept", "new", "old"] };
            assert_eq!(next.names().await, all, "{what}");
            assert!(next.find("old").await.is_some(), "{what}");
            next.put("new", b"newer").await;
            next.rename("new", "kept").await.unwrap();
            next.server.reconnect();
            next.client.write_back_all().await.unwrap();
            let foreigner = next.foreigner().await;
            let old: &[u8] = if is_done && !removes { b"new" } else { b"old" };
            assert_eq!(foreigner.cat("kept").await, b"newer", "{what}");
            assert_eq!(foreigner.cat("old").await, old, "{what}");
            assert_eq!(foreigner.names().await, ["kept", "old"], "{what}");
            if is_done { after += 1 } else { before += 1 }
        }
    }
    assert!(before > 3 && after > 3, "{before} {after}");
}

/// A mount that follows one which was killed at a change of its disk while it removed or renamed
/// `new`, without the server, which has the file or has it not; and whether the change was
/// acknowledged. `None`: there are not so many changes.
async fn dying_at(number: usize, is_waiting: bool, removes: bool) -> Option<(Rig, bool)> {
    let rig = Rig::offline(Options::default()).await;
    for name in ["old", "kept"] {
        rig.put(name, b"old").await;
    }
    if !is_waiting {
        rig.put("new", b"new").await;
    }
    rig.names().await;
    rig.server.time_out();
    if is_waiting {
        rig.put("new", b"new").await;
    }
    rig.checkpoint();
    let first = rig.disk.logged();
    match removes {
        true => rig.remove("new").await.unwrap(),
        false => rig.rename("new", "old").await.unwrap(),
    }
    let done = rig.disk.logged();
    let point = rig.disk.crash_points().filter(|point| point.logged() >= first).nth(number)?;
    let is_done = point.logged() >= done;
    let image = point.image(Image::Written);
    Some((rig.on_image(image, away(&rig), Start::NewMount).await, is_done))
}

/// The server falls silent, and nobody has noticed: a file that is cached whole is opened within a
/// moment, and at once while the question about the first one is out. What is not cached waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_of_a_cached_file_does_not_wait_until_silence_is_noticed() {
    for is_sole in [true, false] {
        let rig = match is_sole {
            true => Rig::exclusive(Options::default()).await,
            false => Rig::offline(Options::default()).await,
        };
        let foreigner = rig.foreigner().await;
        for name in ["a", "b", "c"] {
            foreigner.put(name, name.as_bytes()).await;
        }
        for name in ["a", "b"] {
            assert_eq!(rig.cat(name).await, name.as_bytes());
            rig.landed(name).await;
        }
        let inos = [rig.find("a").await, rig.find("b").await, rig.find("c").await];
        // An open soon after a lookup need not ask.
        rig.advance(2);
        rig.server.hold(Some("access"));
        let opened = async |ino: Option<Ino>| {
            let begun = rig.clock.now();
            let mut open = pin!(rig.client.open(&root(), ino.unwrap(), READ).wait());
            for _ in 0..50 {
                tokio::select! {
                    biased;
                    opened = &mut open => return Some((opened.unwrap(), rig.clock.now().since(begun))),
                    () = tokio::task::yield_now() => rig.clock.advance(Duration::from_millis(100)),
                }
            }
            None
        };
        let (_, took) = opened(inos[0]).await.expect("it is answered");
        assert!(took <= Duration::from_millis(1100), "{took:?}");
        let (_, took) = opened(inos[1]).await.expect("it is answered");
        assert_eq!(took, Duration::ZERO);
        let third = opened(inos[2]).await;
        assert!(third.is_none(), "it is not cached: {:?}", third.map(|(_, took)| took));
        rig.server.hold(None);
    }
}

//! Mounts that work while their server is out of reach, over deaths of the process and crashes of
//! the machine.

use std::ops::Range;

use larder_client::{Options, Start};
use larder_io::Image;
use larder_vfs::{MemRemote, SetAttr, SetTime, Time};

use crate::rig::{READ, Rig, WRITE, pattern, root};

/// The server as the next process finds it: it does not answer.
fn away(rig: &Rig) -> MemRemote {
    let server = rig.server.another_client();
    server.time_out();
    server
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

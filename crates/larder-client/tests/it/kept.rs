//! Data that is acknowledged on this machine's disk, and sent later.

use std::sync::Arc;
use std::time::Duration;

use larder_class::{Classes, Level, Sources, load};
use larder_client::{Here, Options, Start, offer};
use larder_io::Image;
use larder_vfs::{Error, FileSystem, Remote, Stability, Time};

use crate::rig::{Rig, WRITE, pass, pattern, root};

/// Ten minutes, and a little.
const LATER: Duration = Duration::from_secs(610);

/// Class generated on a mount that has this machine's disk and no memory: close waits for the disk.
pub(crate) fn generated() -> Options {
    let options = generated_on(Here::DISK);
    assert_eq!(options.classes.mount().raised, "close waits for local");
    options
}

/// Class generated.
pub(crate) fn generated_on(here: Here) -> Options {
    let sources = Sources { class: Some("generated".into()), ..Sources::default() };
    let offer = offer("a mount", here, Duration::from_secs(30));
    Options { classes: Arc::new(load(&sources, &offer).unwrap()), ..Options::default() }
}

/// What the server has of a file in the root directory.
pub(crate) async fn at_server(rig: &Rig, name: &str) -> Vec<u8> {
    let top = rig.server.root().await.unwrap().handle;
    let found = rig.server.lookup(&root(), &top, name.as_ref()).await.unwrap().found.unwrap();
    rig.server.read(&root(), &found.handle, None, 0, 4 << 20).await.unwrap().data.to_vec()
}

/// What the server has beside a file, because it met another client's change.
pub(crate) async fn beside(rig: &Rig, name: &str) -> Vec<Vec<u8>> {
    let (start, mut found) = (format!("{name}.conflict-here-"), Vec::new());
    for name in rig.foreigner().await.names().await {
        if name.starts_with(&start) {
            found.push(at_server(rig, &name).await);
        }
    }
    found
}

pub(crate) async fn level(rig: &Rig, name: &str) -> Level {
    rig.client.durability(rig.find(name).await.unwrap()).unwrap().reached
}

#[tokio::test(start_paused = true)]
async fn a_generated_file_is_kept_at_close_and_sent_within_its_time() {
    let rig = Rig::new(generated()).await;
    let long = pattern(1, 3 << 20);
    rig.put("short", b"bytes").await;
    rig.put("long", &long).await;
    assert_eq!(
        (level(&rig, "short").await, level(&rig, "long").await),
        (Level::Local, Level::Local)
    );
    let written = rig.stat("short").await.attr.mtime;
    pass(&rig.clock, LATER - Duration::from_secs(30)).await;
    assert_eq!(rig.server.calls("write"), 0);
    assert_eq!((rig.cat("short").await, rig.cat("long").await), (b"bytes".to_vec(), long.clone()));
    assert_eq!(rig.client.unsaved().len(), 2);
    pass(&rig.clock, Duration::from_secs(40)).await;
    assert_eq!(
        (at_server(&rig, "short").await, at_server(&rig, "long").await),
        (b"bytes".to_vec(), long)
    );
    assert_eq!(level(&rig, "short").await, Level::Durable);
    assert_eq!(rig.stat("short").await.attr.mtime, written, "as programs saw it before");
    let calls = rig.server.calls("write");
    pass(&rig.clock, LATER).await;
    assert_eq!(rig.server.calls("write"), calls, "nothing is sent twice");
    assert_eq!(rig.cat("short").await, b"bytes");
}

/// Deadlines count on the monotonic clock: if the wall clock is set, forward or back, unsent data
/// is sent neither earlier nor later, and its reports do not change.
#[tokio::test(start_paused = true)]
async fn deadlines_ignore_a_wall_clock_that_is_set() {
    const DAY_S: i64 = 24 * 3600;
    let usual = Options::default().unsent_age_max;
    for jump_s in [DAY_S, -DAY_S] {
        for (options, within) in [(generated(), LATER), (Options::default(), usual)] {
            let rig = Rig::new(options).await;
            rig.put("file", b"").await;
            let open = rig.open(&root(), "file", WRITE).await.unwrap();
            open.write(0, b"bytes").await.unwrap();
            let due = |rig: &Rig| rig.client.unsaved()[0].durability.due;
            let told = due(&rig);
            rig.clock.set_wall_by(jump_s);
            assert_eq!(due(&rig), told);
            pass(&rig.clock, within / 2).await;
            assert_eq!(rig.server.calls("write"), 0, "{jump_s} s, {within:?}");
            rig.clock.set_wall_by(-2 * jump_s);
            open.write(5, b" more").await.unwrap();
            assert_eq!(rig.client.unsent(&|_| true).oldest, Some(within / 2));
            pass(&rig.clock, within / 2 + Duration::from_secs(1)).await;
            assert_eq!(at_server(&rig, "file").await, b"bytes more", "{jump_s} s, {within:?}");
            assert_eq!(rig.client.unsaved(), []);
            open.close().await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_removed_before_is_never_sent() {
    let rig = Rig::new(generated()).await;
    rig.put("file", &pattern(1, 3 << 20)).await;
    rig.remove("file").await.unwrap();
    pass(&rig.clock, LATER).await;
    assert_eq!(rig.server.calls("write"), 0);
    rig.checkpoint();
    let rig = rig.crash().await;
    rig.sent().await;
    assert_eq!(
        (rig.server.calls("write"), rig.names().await, rig.set_aside().len()),
        (0, vec![], 0)
    );
}

/// Bytes that are written again before they are sent cost no call: the same 4 KiB, kept ten times,
/// are one WRITE of 4 KiB, by this process or in the next boot. (Requests have 4 KiB at most here.)
#[tokio::test]
async fn what_is_overwritten_while_it_is_kept_is_sent_once() {
    const PART: usize = 4096;
    for crashes in [false, true] {
        let write_bytes_max = u32::try_from(PART).unwrap();
        let rig = Rig::new(Options { write_bytes_max, ..generated() }).await;
        let below = pattern(1, 16 * PART);
        rig.put("file", &below).await;
        rig.client.sync(&|_| true).await.unwrap();
        rig.server.reset_calls();
        let open = rig.open(&root(), "file", WRITE).await.unwrap();
        let last = pattern(11, PART);
        for seed in 2..=11 {
            open.write(5 * PART as u64, &pattern(seed, PART)).await.unwrap();
            open.flush().await.unwrap();
            assert_eq!(level(&rig, "file").await, Level::Local, "{seed}");
        }
        open.close().await.unwrap();
        assert_eq!(rig.server.calls("write"), 0);
        let rig = if crashes { rig.crash().await } else { rig };
        rig.client.sync(&|_| true).await.unwrap();
        let expected = [&below[..5 * PART], &last, &below[6 * PART..]].concat();
        assert!(at_server(&rig, "file").await == expected, "{crashes}");
        assert_eq!(rig.server.calls("write"), 1, "{crashes}");
        assert_eq!((rig.client.unsaved(), rig.set_aside().len()), (vec![], 0), "{crashes}");
    }
}

/// An fsync promises as much as a close; what is written after it is not promised.
#[tokio::test]
async fn what_was_acknowledged_outlives_a_crash_of_the_machine() {
    let rig = Rig::new(generated()).await;
    rig.put("closed", b"closed").await;
    let open = rig.create("synced").await;
    open.write(0, b"synced").await.unwrap();
    rig.client.fsync(&root(), open.ino, None).wait().await.unwrap();
    open.write(6, b" not").await.unwrap();
    assert_eq!(rig.server.calls("write"), 0);
    let rig = rig.crash().await;
    rig.sent().await;
    assert_eq!(at_server(&rig, "closed").await, b"closed");
    assert_eq!(at_server(&rig, "synced").await, b"synced");
    assert_eq!((rig.cat("synced").await, rig.set_aside().len()), (b"synced".to_vec(), 0));
}

/// At every change of the cache's disk from the first close on, until all is at the server: what a
/// close acknowledged is sent in the next boot, and nothing is set aside.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whenever_the_machine_crashes_what_was_closed_gets_to_the_server() {
    let rig = Rig::recording(generated()).await;
    let (one, two) = (pattern(1, 5_000), pattern(2, 40_000));
    let mut closed = Vec::new();
    for (name, bytes) in [("one", &one), ("two", &two)] {
        rig.put(name, bytes).await;
        closed.push((rig.disk.logged(), name, bytes));
        rig.checkpoint();
    }
    let before = rig.server.another_client();
    let first = closed[0].0;
    let mut images = 0;
    for point in rig.disk.crash_points().filter(|point| point.logged() >= first) {
        let at = point.logged();
        for kind in [Image::Synced, Image::Torn(at as u64)] {
            let next = rig.boot(point.image(kind), before.another_client()).await;
            next.sent().await;
            for (_, name, bytes) in closed.iter().filter(|(logged, ..)| *logged <= at) {
                assert!(at_server(&next, name).await == **bytes, "{name} at {at}, {kind:?}");
            }
            assert_eq!(next.set_aside().len(), 0, "{at} {kind:?}");
            images += 1;
        }
    }
    println!("{images} crashes");
    assert!(images > 4);
}

/// Bytes that were kept, and sent, stay on record until the next commit. If newer ones were
/// acknowledged at the server meanwhile, a crash does not send the older ones again.
#[tokio::test]
async fn what_was_kept_does_not_come_back_over_what_was_acknowledged_later() {
    // In several requests, and in one.
    let (long, short) = (pattern(1, 3 << 20), b"older".to_vec());
    for (file, older, cuts) in
        [("long", &long, false), ("long", &long, true), ("short", &short, false)]
    {
        let rig = Rig::new(generated()).await;
        rig.put(file, older).await;
        rig.client.sync(&|_| true).await.unwrap();
        let open = rig.open(&root(), file, WRITE).await.unwrap();
        let newer = if cuts {
            open.truncate(3).await.unwrap();
            older[..3].to_vec()
        } else {
            let (id, at_once) = (Some(open.id), Stability::FileSync);
            let write = rig.client.write(&root(), open.ino, id, 0, b"newer", at_once);
            assert_eq!(write.wait().await.unwrap().stability, at_once);
            [b"newer", &older[5..]].concat()
        };
        let next = rig.boot(rig.last(Image::Synced), rig.server.another_client()).await;
        next.client.sync(&|_| true).await.unwrap();
        assert!(at_server(&next, file).await == newer, "{file} {cuts}");
        assert!(next.set_aside().is_empty(), "{file} {cuts}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_another_client_changed_meanwhile_is_not_overwritten() {
    for crashes in [false, true] {
        let rig = Rig::new(generated()).await;
        rig.put("file", b"first").await;
        rig.client.sync(&|_| true).await.unwrap();
        rig.put("file", b"ours").await;
        let open = rig.open(&root(), "file", WRITE).await.unwrap();
        open.write(0, b"OURS").await.unwrap();
        open.close().await.unwrap();
        let other = rig.foreigner().await;
        other.put("file", b"theirs").await;
        let rig = if crashes { rig.crash().await } else { rig };
        pass(&rig.clock, LATER).await;
        assert_eq!(at_server(&rig, "file").await, b"theirs", "{crashes}");
        assert_eq!(beside(&rig, "file").await, [b"OURS"], "{crashes}");
        assert_eq!(rig.set_aside(), [], "{crashes}");
        assert_eq!(rig.cat("file").await, b"theirs");
        assert!(rig.client.unsaved().is_empty());
    }
}

/// A caller that waits is told at once; a process that has the file open is told once, by its next
/// fsync or close.
#[tokio::test(start_paused = true)]
async fn a_conflict_is_told() {
    let rig = Rig::new(generated()).await;
    rig.put("file", b"first").await;
    rig.client.sync(&|_| true).await.unwrap();
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(0, b"ours").await.unwrap();
    open.flush().await.unwrap();
    rig.foreigner().await.put("file", b"theirs").await;
    assert_eq!(rig.client.sync(&|_| true).await, Err(Error::Changed));
    assert_eq!(rig.client.sync(&|_| true).await, Ok(()));
    open.write(0, b"more").await.unwrap();
    open.flush().await.unwrap();
    rig.foreigner().await.put("file", b"theirs again").await;
    pass(&rig.clock, LATER).await;
    assert_eq!(open.flush().await, Err(Error::Changed));
    assert_eq!(open.flush().await, Ok(()));
    open.close().await.unwrap();
    let ours = beside(&rig, "file").await;
    // What this client never had of their version is a hole.
    assert_eq!(ours, [&b"ourst"[..], b"more\0\0"]);
    assert_eq!(rig.set_aside().len(), 0);
    assert_eq!(at_server(&rig, "file").await, b"theirs again");
}

/// After a crash between the server's answer and our record of it, data that the server already has
/// is kept again.
#[tokio::test]
async fn what_the_server_has_already_is_no_conflict() {
    for size in [5, 3 << 20] {
        let rig = Rig::new(generated()).await;
        let bytes = pattern(7, size);
        rig.put("file", &bytes).await;
        let kept = rig.disk.crash(Image::Synced);
        rig.client.sync(&|_| true).await.unwrap();
        let next = rig.boot(kept, rig.server.another_client()).await;
        next.sent().await;
        assert!(at_server(&next, "file").await == bytes);
        assert_eq!(next.set_aside().len(), 0);
    }
}

/// A server that accepted a part and went away is sent the rest, by whichever process.
#[tokio::test]
async fn sending_that_was_begun_goes_on() {
    for crashes in [false, true] {
        let rig = Rig::new(generated()).await;
        let bytes = pattern(7, 3 << 20);
        rig.put("file", &bytes).await;
        rig.server.trouble_after(2, larder_vfs::Trouble::Unanswered);
        let _ = rig.client.sync(&|_| true).await;
        let rig =
            if crashes { rig.crash().await } else { rig.kill(larder_client::Start::Resume).await };
        rig.sent().await;
        assert!(at_server(&rig, "file").await == bytes, "{crashes}");
        assert_eq!(rig.set_aside().len(), 0, "{crashes}");
    }
}

#[tokio::test]
async fn a_file_that_gets_another_name_is_sent_first() {
    let rig = Rig::new(generated()).await;
    for name in ["one", "two"] {
        rig.put(name, b"bytes").await;
    }
    rig.rename("one", "renamed").await.unwrap();
    assert_eq!(at_server(&rig, "renamed").await, b"bytes");
    let two = rig.find("two").await.unwrap();
    rig.client.link(&root(), two, larder_vfs::Ino::ROOT, "linked".as_ref()).wait().await.unwrap();
    assert_eq!(at_server(&rig, "linked").await, b"bytes");
    rig.put("three", b"bytes").await;
    let three = rig.find("three").await.unwrap();
    rig.client.set_class(&root(), three, Some("critical")).await.unwrap();
    assert_eq!(at_server(&rig, "three").await, b"bytes");
}

/// What cannot be kept is sent at once.
#[tokio::test]
async fn a_disk_that_does_not_keep_costs_a_close_that_waits_for_the_server() {
    let rig = Rig::new(generated()).await;
    let open = rig.create("file").await;
    open.write(0, b"bytes").await.unwrap();
    rig.disk.inject(larder_io::Fault::EioSyncs);
    open.flush().await.unwrap();
    rig.disk.heal();
    assert_eq!(at_server(&rig, "file").await, b"bytes");
    assert!(Classes::shipped(&offer("a mount", Here::DISK, Duration::from_secs(30))).is_ok());
    open.close().await.unwrap();
}

/// Bytes are written while others of the file are on their way, and the process dies: the next one
/// sends them over what the server has of us.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_while_a_file_is_sent_is_no_conflict_with_that() {
    for start in [Start::Resume, Start::NewMount] {
        let rig = Rig::new(generated()).await;
        rig.put("file", &pattern(1, 50_000)).await;
        rig.client.sync(&|_| true).await.unwrap();
        let open = rig.open(&root(), "file", WRITE).await.unwrap();
        open.write(0, b"mine").await.unwrap();
        let calls = rig.server.calls("write");
        rig.server.hold_answers(Some("write"));
        {
            let wanted = |_| true;
            let sending = rig.client.sync(&wanted);
            tokio::pin!(sending);
            while rig.server.calls("write") == calls {
                tokio::select! {
                    biased;
                    sent = &mut sending => panic!("{sent:?}"),
                    () = tokio::task::yield_now() => {}
                }
            }
            open.write(100, b"more").await.unwrap();
            rig.server.hold_answers(None);
            sending.await.unwrap();
        }
        open.close().await.unwrap();
        assert_eq!(rig.client.unsaved().len(), 1, "{start:?}");
        let rig = rig.kill(start).await;
        while rig.in_vain(rig.client.sync(&|_| true)).await == Err(Error::Changed) {}
        assert_eq!(rig.foreigner().await.names().await, ["file"], "{start:?}");
        let there = at_server(&rig, "file").await;
        assert!(there.starts_with(b"mine") && there[100..].starts_with(b"more"), "{start:?}");
    }
}

/// The file got another name at the server, which moves its change time alone, of which this client
/// knows nothing: its bytes are those below ours. Where another client wrote, they are not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_has_the_same_bytes_is_no_conflict() {
    for (writes, start) in [(false, Start::Resume), (false, Start::NewMount), (true, Start::Resume)]
    {
        let rig = Rig::new(generated()).await;
        let at = |sec| rig.server.set_time(Time { sec, nsec: 0 });
        at(5000);
        rig.put("file", &pattern(1, 50_000)).await;
        rig.client.sync(&|_| true).await.unwrap();
        at(5010);
        let open = rig.open(&root(), "file", WRITE).await.unwrap();
        open.write(0, b"mine").await.unwrap();
        open.close().await.unwrap();
        at(5020);
        let other = rig.foreigner().await;
        other.rename("file", "moved").await.unwrap();
        if writes {
            at(5030);
            other.put("moved", &pattern(2, 50_000)).await;
        }
        let rig = rig.kill(start).await;
        while rig.in_vain(rig.client.sync(&|_| true)).await == Err(Error::Changed) {}
        assert_eq!(rig.client.unsaved(), [], "{start:?}");
        let there = at_server(&rig, "moved").await;
        let below = pattern(if writes { 2 } else { 1 }, 50_000);
        assert!(there[4..] == below[4..] && there.starts_with(b"mine") != writes, "{start:?}");
    }
}

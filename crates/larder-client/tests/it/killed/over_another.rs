//! What a dead process left unsent meets another client's change of the same file, or what that
//! process had sent itself.

use larder_cache::ConflictKind;
use larder_client::{Options, Start};
use larder_vfs::{Error, FileSystem, SetAttr, Stability, Time};

use crate::kept::beside;
use crate::rig::{PATIENCE, Rig, WRITE, pattern, root};

/// What the versions of a server's files say.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tells {
    Changes,
    ChangesOfData,
    Times,
}

const ALL: [Tells; 3] = [Tells::Changes, Tells::ChangesOfData, Tells::Times];

/// A mount of a server of a kind, with a file.
async fn rig(tells: Tells) -> Rig {
    // The task that completes files asks for them, too.
    let rig = Rig::new(Options { fill_after: None, ..Options::default() }).await;
    match tells {
        Tells::Changes => {}
        Tells::ChangesOfData => rig.server.tell_data_changes(),
        Tells::Times => at(&rig, tells, 5000),
    }
    rig.put("file", b"before").await;
    at(&rig, tells, 5010);
    rig
}

/// Sets the clock of a server that has no better version.
fn at(rig: &Rig, tells: Tells, sec: i64) {
    if tells == Tells::Times {
        rig.server.set_time(Time { sec, nsec: 0 });
    }
}

/// Writes, and neither closes nor syncs. The process that resumes the mount finds the file open, if
/// that is not to be made anew.
async fn write(rig: &Rig, start: Start) {
    match start {
        Start::NewMount => {
            let open = rig.open(&root(), "file", WRITE).await.unwrap();
            open.write(0, b"OURS").await.unwrap();
        }
        // As an export of the mount does.
        Start::Resume => {
            let ino = rig.find("file").await.unwrap();
            let write = rig.client.write(&root(), ino, None, 0, b"OURS", Stability::Unstable);
            write.wait().await.unwrap();
        }
    }
}

/// Everything that is unsent or set aside is brought to the server.
async fn brought(rig: &Rig) {
    let sent = async {
        while let Err(error) = rig.in_vain(rig.client.sync(&|_| true)).await {
            assert!(matches!(error, Error::Changed | Error::TimedOut), "{error}");
        }
    };
    tokio::time::timeout(PATIENCE, sent).await.expect("it ends");
    assert_eq!(rig.client.unsaved(), []);
}

/// The file is alone, has these bytes, and nothing was found to be a conflict.
async fn is_sent(rig: &Rig, name: &str, bytes: &[u8], case: &str) {
    let other = rig.foreigner().await;
    assert_eq!(other.names().await, [name], "{case}");
    assert!(other.cat(name).await == bytes, "{case}");
    assert_eq!(rig.cache().conflicts(0, usize::MAX).len(), 0, "{case}");
    assert_eq!(rig.set_aside().len(), 0, "{case}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_process_left_does_not_go_over_another_clients_change() {
    for (tells, start) in
        ALL.into_iter().flat_map(|it| [(it, Start::NewMount), (it, Start::Resume)])
    {
        let case = format!("{tells:?}, {start:?}");
        let rig = rig(tells).await;
        write(&rig, start).await;
        at(&rig, tells, 5020);
        rig.foreigner().await.put("file", b"theirs, longer").await;
        let rig = rig.kill(start).await;
        brought(&rig).await;
        assert_eq!(rig.foreigner().await.cat("file").await, b"theirs, longer", "{case}");
        let ours = beside(&rig, "file").await;
        assert!(matches!(&ours[..], [it] if it.starts_with(b"OURS") && it.len() == 6), "{case}");
        assert_eq!(rig.set_aside().len(), 0, "{case}");
        let found = rig.cache().conflicts(0, usize::MAX);
        let [found] = &found[..] else { panic!("{case}: {} conflicts", found.len()) };
        assert_eq!(found.conflict.kind, ConflictKind::Written, "{case}");
        assert_eq!(found.conflict.wanted, b"file", "{case}");
        rig.advance(100);
        assert_eq!(rig.cat("file").await, b"theirs, longer", "{case}");
    }
}

/// The process died before all requests were made, or had recorded none of the answers; and what
/// was in flight was written again by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_process_had_begun_to_send_is_no_conflict() {
    const LEN: usize = 100_000;
    for (is_rewritten, write_bytes_max) in [(false, 4096), (true, 1 << 20)] {
        let rig = Rig::new(Options { write_bytes_max, ..Options::default() }).await;
        let (before, mut bytes) = (pattern(1, LEN), pattern(2, LEN));
        rig.put("file", &before).await;
        let other = rig.foreigner().await;
        let open = rig.open(&root(), "file", WRITE).await.unwrap();
        open.write(0, &bytes).await.unwrap();
        rig.server.hold_answers(Some("write"));
        {
            let some_arrived = async {
                while other.cat("file").await == before {
                    tokio::task::yield_now().await;
                }
            };
            let flushed = open.flush();
            tokio::pin!(flushed);
            tokio::select! {
                biased;
                flushed = &mut flushed => panic!("{flushed:?}"),
                () = some_arrived => {}
            }
            if is_rewritten {
                open.write(0, b"written again").await.unwrap();
                bytes[..13].copy_from_slice(b"written again");
            }
        }
        assert!(other.cat("file").await != bytes, "something is left to send");
        let rig = rig.kill(Start::NewMount).await;
        brought(&rig).await;
        is_sent(&rig, "file", &bytes, &format!("{is_rewritten}")).await;
    }
}

/// A truncation that the server carried out, and whose answer was lost, is ours, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_without_an_answer_is_no_conflict_with_what_is_written_after_it() {
    let rig = rig(Tells::Changes).await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    rig.server.hold_answers(Some("setattr"));
    {
        let other = rig.foreigner().await;
        let is_cut = async {
            while other.cat("file").await.len() > 3 {
                tokio::task::yield_now().await;
            }
        };
        let cut = open.truncate(3);
        tokio::pin!(cut);
        tokio::select! {
            biased;
            cut = &mut cut => panic!("{cut:?}"),
            () = is_cut => {}
        }
        open.write(0, b"OURS").await.unwrap();
    }
    let rig = rig.kill(Start::NewMount).await;
    brought(&rig).await;
    let other = rig.foreigner().await;
    assert_eq!(other.names().await, ["file"]);
    assert!(other.cat("file").await.starts_with(b"OURS"));
    assert_eq!(rig.cache().conflicts(0, usize::MAX).len(), 0);
}

/// One GETATTR tells that nobody has changed the file; what was sent is not asked for again.
#[tokio::test]
async fn what_a_dead_process_left_costs_one_question_at_most() {
    for tells in ALL {
        let rig = rig(tells).await;
        write(&rig, Start::NewMount).await;
        let rig = rig.kill(Start::NewMount).await;
        rig.sent().await;
        let calls = |method| rig.server.calls(method);
        assert!(calls("getattr") <= 1, "{tells:?}: {} questions", calls("getattr"));
        assert_eq!((calls("write"), calls("read")), (1, 0), "{tells:?}");
        let bytes = rig.foreigner().await.cat("file").await;
        assert_eq!(bytes, b"OURSre", "{tells:?}");
        is_sent(&rig, "file", b"OURSre", &format!("{tells:?}")).await;
        // A process that writes on, and lives, asks nothing before it sends.
        let open = rig.open(&root(), "file", WRITE).await.unwrap();
        let before = calls("getattr");
        open.write(0, b"MORE").await.unwrap();
        open.close().await.unwrap();
        assert_eq!((calls("getattr"), calls("write")), (before, 2), "{tells:?}");
    }
}

/// Another client has given the file another name or another mode: its bytes are those below ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_clients_change_of_a_name_or_a_mode_is_no_conflict_with_bytes() {
    for tells in [Tells::ChangesOfData, Tells::Times] {
        let rig = rig(tells).await;
        write(&rig, Start::NewMount).await;
        at(&rig, tells, 5020);
        let other = rig.foreigner().await;
        other.rename("file", "moved").await.unwrap();
        other.set("moved", SetAttr { mode: Some(0o600), ..SetAttr::default() }).await;
        let rig = rig.kill(Start::NewMount).await;
        brought(&rig).await;
        is_sent(&rig, "moved", b"OURSre", &format!("{tells:?}")).await;
    }
}

/// What has the same bytes is no conflict, whoever wrote them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_client_wrote_as_well_is_no_conflict() {
    let rig = rig(Tells::Changes).await;
    write(&rig, Start::NewMount).await;
    rig.foreigner().await.put("file", b"OURSre").await;
    let rig = rig.kill(Start::NewMount).await;
    brought(&rig).await;
    is_sent(&rig, "file", b"OURSre", "").await;
}

/// After an orderly end of the mount it is not on record whether its requests have changed the
/// file: what it could not send goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_ended_mount_had_begun_to_send_is_no_conflict() {
    let rig = Rig::new(Options { write_bytes_max: 4096, ..Options::default() }).await;
    let (before, bytes) = (pattern(1, 50_000), pattern(2, 50_000));
    rig.put("file", &before).await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(0, &bytes).await.unwrap();
    rig.server.trouble_after(3, larder_vfs::Trouble::Unanswered);
    assert_eq!(open.flush().await, Err(Error::TimedOut));
    rig.client.end_mount();
    // Two more processes: neither knows.
    let rig = rig.kill(Start::NewMount).await;
    let rig = rig.kill(Start::NewMount).await;
    brought(&rig).await;
    is_sent(&rig, "file", &bytes, "").await;
}

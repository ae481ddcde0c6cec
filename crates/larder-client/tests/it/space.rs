//! Room for ranges of files, zeros in them, and holes.

use larder_client::Options;
use larder_vfs::{Error, FileSystem, Result, Seek, SpaceChange, SpaceKind};

use crate::rig::{Open, READ, Random, Rig, WRITE, pattern, root};

fn change(kind: SpaceKind, start: u64, end: u64) -> SpaceChange {
    SpaceChange { kind, range: start..end, keep_size: kind == SpaceKind::Punch }
}

async fn change_space(rig: &Rig, open: &Open<'_>, change: SpaceChange) -> Result<()> {
    rig.client.change_space(&root(), open.ino, open.id, change).wait().await
}

async fn seek(rig: &Rig, open: &Open<'_>, offset: u64, what: Seek) -> Result<u64> {
    rig.client.seek(&root(), open.ino, open.id, offset, what).wait().await
}

/// What is unsent is sent first, and counts; what is cached stays valid under the new version, with
/// zeros.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_punched_file_is_read_from_the_cache() {
    let rig = Rig::new(Options::default()).await;
    let mut content = pattern(1, 200_000);
    rig.put("file", &content).await;
    assert_eq!(rig.cat("file").await, content);
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(50_000, b"unsent").await.unwrap();
    content[50_000..50_006].copy_from_slice(b"unsent");
    rig.server.reset_calls();
    change_space(&rig, &open, change(SpaceKind::Punch, 50_003, 150_001)).await.unwrap();
    content[50_003..150_001].fill(0);
    assert_eq!((rig.server.calls("write"), rig.server.calls("change_space")), (1, 1));
    assert_eq!(open.read(0, 1 << 20).await.unwrap(), content);
    open.write(100_000, b"again").await.unwrap();
    content[100_000..100_005].copy_from_slice(b"again");
    open.close().await.unwrap();
    assert_eq!(rig.cat("file").await, content);
    assert_eq!(rig.server.calls("read"), 0, "what is held is of the new version");
    assert_eq!(rig.foreigner().await.cat("file").await, content);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_with_room_is_longer_everywhere() {
    let rig = Rig::new(Options::default()).await;
    let mut content = pattern(2, 10_000);
    rig.put("file", &content).await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    change_space(&rig, &open, change(SpaceKind::Allocate, 5000, 100_001)).await.unwrap();
    content.resize(100_001, 0);
    assert_eq!(rig.stat("file").await.attr.size, 100_001);
    change_space(&rig, &open, change(SpaceKind::Zero, 9000, 120_000)).await.unwrap();
    content[9000..].fill(0);
    content.resize(120_000, 0);
    assert_eq!(open.read(0, 1 << 20).await.unwrap(), content);
    open.close().await.unwrap();
    let foreigner = rig.foreigner().await;
    assert_eq!(foreigner.cat("file").await, content);
    assert!(foreigner.stat("file").await.attr.used >= 120_000);
}

/// What the server refuses changes nothing here, nor does what it does not support.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn room_that_is_refused_changes_nothing() {
    let rig = Rig::new(Options::default()).await;
    let content = pattern(3, 10_000);
    rig.put("file", &content).await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    rig.server.set_full(true);
    let refused = change_space(&rig, &open, change(SpaceKind::Zero, 100, 50_000)).await;
    assert_eq!(refused, Err(Error::NoSpace));
    rig.server.set_full(false);
    let keep = SpaceChange { keep_size: true, ..change(SpaceKind::Allocate, 0, 50_000) };
    assert_eq!(change_space(&rig, &open, keep).await, Err(Error::NotSupported));
    assert_eq!(
        change_space(&rig, &open, change(SpaceKind::Punch, 7, 7)).await,
        Err(Error::InvalidArgument)
    );
    assert_eq!(open.read(0, 1 << 20).await.unwrap(), content);
    open.close().await.unwrap();
    assert_eq!(rig.cat("file").await, content);

    let read_only = Rig::new(Options { read_only: true, ..Options::default() }).await;
    read_only.server.another_client();
    let ino = read_only.find(".").await.unwrap();
    let refused = read_only.client.change_space(
        &root(),
        ino,
        larder_vfs::OpenId(1),
        change(SpaceKind::Punch, 0, 1),
    );
    assert_eq!(refused.wait().await, Err(Error::ReadOnly));
}

/// A change by another client in between is not taken for our own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_another_client_are_not_lost_by_a_change_of_space() {
    let rig = Rig::new(Options::default()).await;
    let mut content = pattern(4, 50_000);
    rig.put("file", &content).await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    let foreigner = rig.foreigner().await;
    let theirs = foreigner.open(&root(), "file", WRITE).await.unwrap();
    theirs.write(40_000, b"theirs").await.unwrap();
    theirs.close().await.unwrap();
    content[40_000..40_006].copy_from_slice(b"theirs");
    change_space(&rig, &open, change(SpaceKind::Punch, 0, 10_000)).await.unwrap();
    content[..10_000].fill(0);
    open.close().await.unwrap();
    assert_eq!(rig.cat("file").await, content);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holes_are_the_servers_and_what_is_unsent_is_data() {
    let rig = Rig::new(Options::default()).await;
    let open = rig.create("file").await;
    open.write(3 << 20, b"end").await.unwrap();
    open.write(1 << 20, b"middle").await.unwrap();
    assert_eq!(seek(&rig, &open, 0, Seek::Data).await, Ok(1 << 20));
    assert_eq!(seek(&rig, &open, 0, Seek::Hole).await, Ok(0));
    let hole = seek(&rig, &open, 1 << 20, Seek::Hole).await.unwrap();
    assert!((1 << 20) < hole && hole < (3 << 20));
    assert_eq!(seek(&rig, &open, hole, Seek::Data).await, Ok(3 << 20));
    assert_eq!(seek(&rig, &open, 3 << 20, Seek::Hole).await, Ok((3 << 20) + 3));
    assert_eq!(seek(&rig, &open, (3 << 20) + 3, Seek::Data).await, Err(Error::NoData));
    // If the server cannot be asked, all of the file counts as data, including unsent bytes.
    rig.server.time_out();
    open.write(5 << 20, b"more").await.unwrap();
    let data = rig.in_vain(seek(&rig, &open, 5, Seek::Data)).await;
    let hole = rig.in_vain(seek(&rig, &open, 5, Seek::Hole)).await;
    assert_eq!((data, hole), (Ok(5), Ok((5 << 20) + 4)));
}

/// Random changes of a file through two opens here, and now and then by another client: all see the
/// same bytes, and no hole where there is data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_changes_of_space_agree_with_a_model() {
    const END: u64 = 300_000;
    for seed in 0..12 {
        let rig = Rig::new(Options::default()).await;
        let (mut random, mut model) = (Random(seed), pattern(seed, 100_000));
        rig.put("file", &model).await;
        let opens = [
            rig.open(&root(), "file", WRITE).await.unwrap(),
            rig.open(&root(), "file", WRITE).await.unwrap(),
        ];
        for step in 0..60 {
            let open = &opens[random.below(2) as usize];
            let start = random.below(END);
            let end = (start + 1 + random.below(60_000)).min(END);
            let (from, to) = (start as usize, end as usize);
            let mut zero = |range: std::ops::Range<usize>, grows: bool| {
                if grows && model.len() < range.end {
                    model.resize(range.end, 0);
                }
                let end = range.end.min(model.len());
                model[range.start.min(end)..end].fill(0);
            };
            match random.below(6) {
                0 => {
                    change_space(&rig, open, change(SpaceKind::Punch, start, end)).await.unwrap();
                    zero(from..to, false);
                }
                1 => {
                    change_space(&rig, open, change(SpaceKind::Zero, start, end)).await.unwrap();
                    zero(from..to, true);
                }
                2 => {
                    let allocate = change(SpaceKind::Allocate, start, end);
                    change_space(&rig, open, allocate).await.unwrap();
                    model.resize(model.len().max(to), 0);
                }
                3 => {
                    open.truncate(start).await.unwrap();
                    model.resize(from, 0);
                }
                4 => open.flush().await.unwrap(),
                _ => {
                    let data = pattern(step + seed, to - from);
                    open.write(start, &data).await.unwrap();
                    model.resize(model.len().max(to), 0);
                    model[from..to].copy_from_slice(&data);
                }
            }
            let read = open.read(0, 1 << 20).await.unwrap();
            assert!(read == model, "seed {seed}, step {step}");
            let data = seek(&rig, open, start, Seek::Data).await.unwrap_or(END) as usize;
            let hole = &model[from.min(model.len())..data.min(model.len())];
            assert!(hole.iter().all(|byte| *byte == 0), "seed {seed}, step {step}");
        }
        let [first, second] = opens;
        first.close().await.unwrap();
        second.close().await.unwrap();
        assert!(rig.foreigner().await.cat("file").await == model, "seed {seed}");
        let open = rig.open(&root(), "file", READ).await.unwrap();
        assert!(open.read(0, 1 << 20).await.unwrap() == model, "seed {seed}");
    }
}

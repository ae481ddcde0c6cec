//! Calls on one file at the same time.

use std::sync::Arc;

use larder_client::Options;
use larder_vfs::{Error, FileSystem, Remote, SetAttr, SetTime};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::rig::{Open, Random, Rig, WRITE, pattern, root};

/// Bytes of the file that are one writer's alone.
const REGION: usize = 50_000;
const WRITERS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_during_a_truncation_is_sent() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"before the truncation").await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    rig.server.hold(Some("setattr"));
    rig.server.reset_calls();
    let write = async {
        while rig.server.calls("setattr") == 0 {
            tokio::task::yield_now().await;
        }
        open.write(0, b"during").await.unwrap();
        rig.server.hold(None);
    };
    let (truncated, ()) = tokio::join!(open.truncate(6), write);
    truncated.unwrap();
    open.close().await.unwrap();
    assert_eq!(rig.foreigner().await.cat("file").await, b"during");
}

/// One writer: what is in its part of the file is what it wrote there, whatever others do beside it.
async fn work(rig: &Rig, open: &Open<'_>, writer: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut region = vec![0; REGION];
    let start = writer * REGION;
    for step in 0..40 {
        match random.below(10) {
            0..5 => {
                let from = random.below(REGION as u64) as usize;
                let len = (1 + random.below(20_000) as usize).min(REGION - from);
                let bytes = pattern(random.below(u64::MAX), len);
                match open.write((start + from) as u64, &bytes).await {
                    Ok(()) => region[from..from + len].copy_from_slice(&bytes),
                    // It may have been written or not.
                    Err(error) => panic!("{seed} {step}: {error}"),
                }
            }
            5..7 => {
                let flushed = open.flush().await;
                let is_done = flushed.is_ok();
                allow_time_out(flushed, &format!("{seed} {step}"));
                if is_done {
                    let found = server_has(rig, start).await;
                    assert!(found == region, "{seed} {step} {writer}: not at the server");
                }
            }
            7 => {
                let set = match random.below(3) {
                    0 => SetAttr { size: Some((WRITERS * REGION) as u64), ..SetAttr::default() },
                    1 => SetAttr { mode: Some(0o600), ..SetAttr::default() },
                    _ => SetAttr { mtime: Some(SetTime::ServerNow), ..SetAttr::default() },
                };
                let set = rig.client.setattr(&root(), open.ino, Some(open.id), set).wait().await;
                allow_time_out(set.map(drop), &format!("{seed} {step}"));
            }
            _ => {
                let read = open.read(start as u64, REGION as u32).await;
                let Ok(read) = read else { continue };
                let mut found = read.clone();
                found.resize(REGION, 0);
                let differs = found.iter().zip(&region).position(|(a, b)| a != b);
                let last = found.iter().zip(&region).rposition(|(a, b)| a != b);
                let zeros = differs.map(|at| found[at..=last.unwrap()].iter().all(|b| *b == 0));
                assert_eq!(
                    differs,
                    None,
                    "{seed} {step} {writer}: {} to {last:?} zeros {zeros:?}",
                    read.len()
                );
            }
        }
    }
    region
}

/// What a server has of a region.
async fn server_has(rig: &Rig, start: usize) -> Vec<u8> {
    let server = rig.server.another_client();
    let dir = server.root().await.unwrap().handle;
    let file = server.lookup(&root(), &dir, "file".as_ref()).await.unwrap().found.unwrap();
    let read = server.read(&root(), &file.handle, start as u64, REGION as u32).await.unwrap();
    let mut found = read.data.to_vec();
    found.resize(REGION, 0);
    found
}

fn allow_time_out(result: larder_vfs::Result<()>, at: &str) {
    assert!(matches!(result, Ok(()) | Err(Error::TimedOut)), "{at}: {result:?}");
}

/// The server comes and goes, takes its time, and forgets what was not committed, for ever.
async fn trouble(rig: &Rig, seed: u64) {
    let mut random = Random(seed ^ 0x5eed);
    loop {
        match random.below(5) {
            0 => rig.server.restart(),
            1 => rig.server.time_out(),
            2 => rig.server.hold(Some("write")),
            3 => rig.server.hold(Some("commit")),
            _ => rig.server.hold(Some("setattr")),
        }
        for _ in 0..random.below(300) {
            tokio::task::yield_now().await;
        }
        rig.server.hold(None);
        rig.server.reconnect();
        for _ in 0..random.below(100) {
            tokio::task::yield_now().await;
        }
    }
}

/// Writers of parts of one file, each through its own descriptor, while others truncate it to what it has or set its
/// times, and the server restarts and is away: each reads what it wrote, and so does the server when a flush says so, and
/// at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_of_one_file_lose_nothing() {
    let first = std::env::var("LARDER_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in first.map_or(1..61, |seed: u64| seed..seed + 1000) {
        let rig = Arc::new(Rig::ticking(Options::default()).await);
        rig.put("file", b"").await;
        let (worked, calm) = [(); 2].map(|()| Arc::new(Barrier::new(WRITERS + 1))).into();
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            let (rig, worked, calm) = (rig.clone(), worked.clone(), calm.clone());
            writers.spawn(async move {
                let open = rig.open(&root(), "file", WRITE).await.unwrap();
                let region = work(&rig, &open, writer, seed * 10 + writer as u64 + 1).await;
                worked.wait().await;
                calm.wait().await;
                open.close().await.unwrap();
                (writer, region)
            });
        }
        tokio::select! {
            _ = worked.wait() => {}
            failed = writers.join_next() => panic!("{failed:?}"),
            () = trouble(&rig, seed) => unreachable!("it has no end"),
        }
        rig.server.hold(None);
        rig.server.reconnect();
        calm.wait().await;
        for (writer, region) in writers.join_all().await {
            assert!(server_has(&rig, writer * REGION).await == region, "{seed} {writer}");
        }
    }
}

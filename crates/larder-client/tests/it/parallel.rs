//! Calls on one file at the same time.

use std::sync::Arc;

use larder_cache::FileNo;
use larder_client::Options;
use larder_vfs::{
    Error, FileSystem, Ino, MemRemote, OpenId, Remote, Result, SetAttr, SetTime, Stability,
};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::rig::{READ, Random, Rig, WRITE, pattern, root};

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

/// Until a change of ours is answered, descriptions of the file do not count: an open waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_during_a_change_of_ours_sees_what_was_closed_before() {
    let rig = Rig::new(Options::default()).await;
    let other = rig.foreigner().await;
    other.put("file", b"before").await;
    assert_eq!(rig.cat("file").await, b"before");
    rig.server.hold_answers(Some("setattr"));
    rig.server.reset_calls();
    let open = async {
        while rig.server.calls("setattr") == 0 {
            tokio::task::yield_now().await;
        }
        other.put("file", b"behind").await;
        let answer = async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            rig.server.hold_answers(None);
        };
        tokio::join!(rig.cat("file"), answer).0
    };
    let set = rig.set("file", SetAttr { mode: Some(0o600), ..SetAttr::default() });
    let ((), seen) = tokio::join!(set, open);
    assert_eq!(seen, b"behind");
}

/// The server's file ends before the end that the client was told, and unsent bytes lie beyond that
/// end: a read of the whole file returns them, although no version of it lasts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsent_bytes_behind_the_end_at_the_server_are_read() {
    let rig = Rig::new(Options::default()).await;
    let other = rig.foreigner().await;
    other.put("file", &pattern(1, 100_000)).await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    rig.server.hold_answers(Some("setattr"));
    rig.server.reset_calls();
    let read = async {
        while rig.server.calls("setattr") == 0 {
            tokio::task::yield_now().await;
        }
        open.write(150_000, b"unsent").await.unwrap();
        let cut = async {
            // What a change in flight has made of the file is not known, so reads are begun again
            // and again.
            while rig.server.calls("read") < 4 {
                tokio::task::yield_now().await;
            }
            other.set("file", SetAttr { size: Some(50), ..SetAttr::default() }).await;
            rig.server.hold_answers(None);
        };
        tokio::join!(open.read(0, 200_000), cut).0.unwrap()
    };
    let set = rig.set("file", SetAttr { mode: Some(0o600), ..SetAttr::default() });
    let ((), seen) = tokio::join!(set, read);
    let zeros = [0; 150_000 - 50];
    assert!(seen == [&pattern(1, 100_000)[..50], &zeros, b"unsent"].concat(), "{}", seen.len());
    open.close().await.unwrap();
}

/// How a writer reaches the file: through a descriptor, or without one, as a client of an export.
struct Access<'a> {
    rig: &'a Rig,
    ino: Ino,
    open: Option<OpenId>,
}

impl Access<'_> {
    async fn write(&self, offset: usize, data: &[u8]) -> Result<()> {
        let Access { rig, ino, open } = *self;
        let (offset, unstable) = (offset as u64, Stability::Unstable);
        rig.client.write(&root(), ino, open, offset, data, unstable).wait().await.map(drop)
    }

    /// Has the file sent, and says whether that was done.
    async fn flush(&self) -> bool {
        let flushed = match self.open {
            Some(open) => self.rig.client.flush(&root(), self.ino, open, None).wait().await,
            None => self.rig.client.fsync(&root(), self.ino, None).wait().await.map(drop),
        };
        assert!(matches!(flushed, Ok(()) | Err(Error::TimedOut)), "{flushed:?}");
        flushed.is_ok()
    }

    async fn set(&self, set: SetAttr) {
        let set = self.rig.client.setattr(&root(), self.ino, self.open, set).wait().await;
        assert!(matches!(set, Ok(_) | Err(Error::TimedOut)), "{:?}", set.err());
    }

    async fn read(&self, start: usize) -> Option<Vec<u8>> {
        let Access { rig, ino, open } = *self;
        let read = rig.client.read(&root(), ino, open, start as u64, REGION as u32).wait().await;
        read.ok().map(|read| whole_region(read.to_vec()))
    }
}

/// Behind the end of the file are zeros.
fn whole_region(mut read: Vec<u8>) -> Vec<u8> {
    read.resize(REGION, 0);
    read
}

/// One writer: its part of the file contains what it wrote there, whatever others do beside it.
async fn work(access: &Access<'_>, writer: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut region = vec![0; REGION];
    let start = writer * REGION;
    for step in 0..40 {
        match random.below(10) {
            0..5 => {
                let from = random.below(REGION as u64) as usize;
                let len = (1 + random.below(20_000) as usize).min(REGION - from);
                let bytes = pattern(random.below(u64::MAX), len);
                let written = access.write(start + from, &bytes).await;
                written.unwrap_or_else(|error| panic!("{seed} {step}: {error}"));
                region[from..from + len].copy_from_slice(&bytes);
            }
            5..7 => {
                if access.flush().await {
                    let found = server_has(access.rig, start).await;
                    assert!(found == region, "{seed} {step} {writer}: not at the server");
                }
            }
            7 => {
                let set = SetAttr::default();
                access
                    .set(match random.below(3) {
                        0 => SetAttr { size: Some((WRITERS * REGION) as u64), ..set },
                        1 => SetAttr { mode: Some(0o600), ..set },
                        _ => SetAttr { mtime: Some(SetTime::ServerNow), ..set },
                    })
                    .await;
            }
            _ => {
                if let Some(found) = access.read(start).await {
                    let differs = found.iter().zip(&region).position(|(a, b)| a != b);
                    assert_eq!(differs, None, "{seed} {step} {writer}: read");
                }
            }
        }
    }
    region
}

/// What a server has in a region.
async fn server_has(rig: &Rig, start: usize) -> Vec<u8> {
    let server = rig.server.another_client();
    let dir = server.root().await.unwrap().handle;
    let file = server.lookup(&root(), &dir, "file".as_ref()).await.unwrap().found.unwrap();
    let read = server.read(&root(), &file.handle, None, start as u64, REGION as u32).await.unwrap();
    whole_region(read.data.to_vec())
}

/// The server comes and goes, is slow, and loses what was not committed, until the test ends.
pub(crate) async fn trouble(server: &MemRemote, seed: u64) {
    let mut random = Random(seed ^ 0x5eed);
    loop {
        match random.below(5) {
            0 => server.restart(),
            1 => server.time_out(),
            2 => server.hold(Some("write")),
            3 => server.hold(Some("commit")),
            _ => server.hold(Some("setattr")),
        }
        for _ in 0..random.below(300) {
            tokio::task::yield_now().await;
        }
        server.hold(None);
        server.reconnect();
        for _ in 0..random.below(100) {
            tokio::task::yield_now().await;
        }
    }
}

/// Writers of parts of one file, through descriptors of their own and without one, while others
/// truncate it to its present size or set its times, and the server restarts and is away: each
/// reads what it wrote, and so does the server when a flush says so, and at the end.
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
                let ino = rig.find("file").await.unwrap();
                let open = rig.client.open(&root(), ino, WRITE).wait().await.unwrap().id;
                let access = Access { rig: &rig, ino, open: (writer > 0).then_some(open) };
                let region = work(&access, writer, seed * 10 + writer as u64 + 1).await;
                worked.wait().await;
                calm.wait().await;
                assert!(access.flush().await);
                rig.client.release(ino, open).wait().await.unwrap();
                (writer, region)
            });
        }
        tokio::select! {
            _ = worked.wait() => {}
            failed = writers.join_next() => panic!("{failed:?}"),
            () = trouble(&rig.server, seed) => unreachable!("it has no end"),
        }
        rig.server.hold(None);
        rig.server.reconnect();
        calm.wait().await;
        for (writer, region) in writers.join_all().await {
            assert!(server_has(&rig, writer * REGION).await == region, "{seed} {writer}");
        }
    }
}

/// Without cached data the last close forgets the local file. The kernel reports it after close(2)
/// has returned: another process may have opened the file in the meantime, and have bytes in the
/// local file that were not reported yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_being_written_while_an_earlier_close_ends_stays() {
    let rig = Rig::new(Options { cache_data: false, ..Options::default() }).await;
    rig.put("file", &pattern(1, 200)).await;
    let reader = rig.open(&root(), "file", READ).await.unwrap();
    reader.read(0, 200).await.unwrap();
    let file = rig.cache().file(FileNo(reader.ino.0));
    file.write(100, b"in the middle of a write").unwrap();
    reader.close().await.unwrap();
    assert_eq!(file.dirty(), vec![100..124]);
    // The write continues, and its writer closes the file.
    let writer = rig.open(&root(), "file", WRITE).await.unwrap();
    writer.write(124, b", and its end").await.unwrap();
    writer.close().await.unwrap();
    let there = rig.foreigner().await.cat("file").await;
    assert_eq!(&there[100..137], b"in the middle of a write, and its end");
    assert!(file.dirty().is_empty() && rig.held_bytes() == 0, "then it is forgotten");
}

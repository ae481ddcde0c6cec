//! Our NFSv3 client beside nfs-rs, against one nfs-ganesha on loopback.
//!
//! Both clients do the same work in turns, round by round, so that a noisy machine disturbs both
//! alike. Printed are medians of the rate, with the median of the ratios of each round, and of the
//! processor time that the client process takes for a call, which a busy machine blurs less. Run as
//! root:
//!
//! ```text
//! cargo run --release [rounds [row]]
//! ```
//!
//! The first process only starts itself again in a network namespace of its own, where the server
//! finds its ports free.

use bytes::Bytes;
use larder_remote::nfs3::{MountOptions, Nfs3};
use larder_testkit::{Ganesha, Network, Options};
use larder_vfs::{Cred, Handle, Remote, Stability};
use std::future::Future;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

const CHUNK_BYTES: u32 = 1 << 20;
const FILE_BYTES: u64 = 128 << 20;
const NAMESPACE: &str = "RPC_BENCH_IN_NAMESPACE";

/// What is measured: its name, the calls of one round, how many are in flight, and the unit.
#[derive(Clone, Copy)]
struct Row {
    name: &'static str,
    work: Work,
    calls: u64,
    depth: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Work {
    Read,
    Write,
    GetAttr,
}

const CHUNKS: u64 = FILE_BYTES / CHUNK_BYTES as u64;

const ROWS: &[Row] = &[
    Row { name: "WRITE 1 MiB depth 8", work: Work::Write, calls: CHUNKS, depth: 8 },
    Row { name: "READ 1 MiB depth 1", work: Work::Read, calls: 2 * CHUNKS, depth: 1 },
    Row { name: "READ 1 MiB depth 8", work: Work::Read, calls: 2 * CHUNKS, depth: 8 },
    Row { name: "GETATTR depth 1", work: Work::GetAttr, calls: 5000, depth: 1 },
    Row { name: "GETATTR depth 16", work: Work::GetAttr, calls: 20_000, depth: 16 },
];

fn main() {
    if std::env::var_os(NAMESPACE).is_none() {
        let program = std::env::current_exe().expect("a running program has a path");
        let failure = Command::new("unshare")
            .arg("--net")
            .arg(program)
            .args(std::env::args_os().skip(1))
            .env(NAMESPACE, "1")
            .exec();
        panic!("cannot run unshare: {failure}");
    }
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(up.is_ok_and(|status| status.success()), "cannot set lo up");
    let rounds = std::env::args().nth(1).map_or(9, |rounds| rounds.parse().expect("a number"));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let wanted = std::env::args().nth(2).unwrap_or_default();
    runtime.block_on(compare(rounds, &wanted));
}

async fn compare(rounds: usize, wanted: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    std::fs::write(&file, vec![7; FILE_BYTES as usize]).expect("a file");
    let options = Options { network: Network::Shared, ..Options::default() };
    let server = Ganesha::start(dir.path(), &options).unwrap_or_else(|error| panic!("{error}"));
    let ours = Arc::new(Ours::mount(&server).await);
    let theirs = Arc::new(Theirs::mount(&server).await);

    println!(
        "{:<20} {:>9} {:>9} {:>6} {:>11} {:>11} {:>6}   least..most of both, {rounds} rounds",
        "", "ours", "nfs-rs", "ratio", "ours us", "nfs-rs us", "ratio"
    );
    for row in ROWS.iter().filter(|row| row.name.contains(wanted)) {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            // Who goes first alternates; the first round only warms up.
            let pair = if round % 2 == 0 {
                let first = ours.clone().run(*row).await;
                (first, theirs.clone().run(*row).await)
            } else {
                let first = theirs.clone().run(*row).await;
                (ours.clone().run(*row).await, first)
            };
            if round > 0 {
                a.push(pair.0);
                b.push(pair.1);
            }
        }
        let unit = if row.work == Work::GetAttr { "calls/s" } else { "MiB/s" };
        let mut ratios: Vec<_> = a.iter().zip(&b).map(|(a, b)| a.rate / b.rate).collect();
        let ratio = median(&mut ratios);
        let [ours, theirs] = [&a, &b].map(|runs| Summary::of(runs));
        println!(
            "{:<20} {:>9.0} {:>9.0} {:>6.2} {:>11.1} {:>11.1} {:>6.2}   {:.0}..{:.0} {:.0}..{:.0} {unit}",
            row.name,
            ours.rate,
            theirs.rate,
            ratio,
            ours.cpu_us,
            theirs.cpu_us,
            ours.cpu_us / theirs.cpu_us,
            ours.least,
            ours.most,
            theirs.least,
            theirs.most,
        );
    }
}

/// One round: calls for each second, and processor time of each call.
#[derive(Clone, Copy)]
struct Run {
    rate: f64,
    cpu_us: f64,
}

/// Medians and extremes.
struct Summary {
    rate: f64,
    least: f64,
    most: f64,
    cpu_us: f64,
}

impl Summary {
    fn of(runs: &[Run]) -> Summary {
        let mut rates: Vec<_> = runs.iter().map(|run| run.rate).collect();
        let mut costs: Vec<_> = runs.iter().map(|run| run.cpu_us).collect();
        let (rate, cpu_us) = (median(&mut rates), median(&mut costs));
        Summary { rate, least: rates[0], most: rates[rates.len() - 1], cpu_us }
    }
}

/// Processor time of this process so far, in microseconds.
fn cpu_us() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn median(runs: &mut [f64]) -> f64 {
    runs.sort_by(f64::total_cmp);
    runs[runs.len() / 2]
}

/// Makes `row.calls` calls, `row.depth` at a time, and says how many each second.
async fn rate<F: Future<Output = ()> + Send>(
    row: Row,
    call: impl Fn(u64) -> F + Clone + Send + Sync + 'static,
) -> Run {
    let cpu_before_us = cpu_us();
    let next = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let callers: Vec<_> = (0..row.depth)
        .map(|_| {
            let (next, call) = (next.clone(), call.clone());
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= row.calls {
                        return;
                    }
                    call(number).await;
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("no call fails");
    }
    Run {
        rate: row.calls as f64 / started.elapsed().as_secs_f64(),
        cpu_us: (cpu_us() - cpu_before_us) / row.calls as f64,
    }
}

fn offset(number: u64) -> u64 {
    number % CHUNKS * u64::from(CHUNK_BYTES)
}

struct Ours {
    nfs: Nfs3,
    file: Handle,
    cred: Cred,
    data: Bytes,
}

impl Ours {
    async fn mount(server: &Ganesha) -> Ours {
        let options = MountOptions::new("127.0.0.1", server.export().to_str().expect("text"));
        let nfs = Nfs3::mount(&options).await.unwrap_or_else(|error| panic!("{error}"));
        let root = nfs.root().await.expect("root").handle;
        let cred = Cred::root();
        let found = nfs.lookup(&cred, &root, "file".as_ref()).await.expect("lookup").found;
        let data = vec![9; CHUNK_BYTES as usize].into();
        Ours { nfs, file: found.expect("the file").handle, cred, data }
    }

    async fn run(self: Arc<Self>, row: Row) -> Run {
        let this = self.clone();
        let run = rate(row, move |number| {
            let this = this.clone();
            async move {
                let Ours { nfs, file, cred, data } = &*this;
                match row.work {
                    Work::GetAttr => drop(nfs.getattr(cred, file).await.expect("getattr")),
                    Work::Read => {
                        let read = nfs.read(cred, file, offset(number), CHUNK_BYTES).await;
                        assert_eq!(read.expect("read").data.len(), CHUNK_BYTES as usize);
                    }
                    Work::Write => {
                        let data = data.clone();
                        let how = Stability::Unstable;
                        nfs.write(cred, file, offset(number), data, how).await.expect("write");
                    }
                }
            }
        })
        .await;
        if row.work == Work::Write {
            self.nfs.commit(&self.cred, &self.file, 0..0).await.expect("commit");
        }
        run
    }
}

struct Theirs {
    nfs: Box<dyn nfs_rs::Mount>,
    file: Bytes,
    data: Bytes,
}

impl Theirs {
    async fn mount(server: &Ganesha) -> Theirs {
        let url = format!("nfs://127.0.0.1{}?version=3&uid=0&gid=0", server.export().display());
        let nfs =
            nfs_rs::parse_url_and_mount(&url).await.unwrap_or_else(|error| panic!("{error:?}"));
        let file = nfs.lookup_path("file").await.unwrap_or_else(|error| panic!("{error:?}")).fh;
        Theirs { nfs, file, data: vec![9; CHUNK_BYTES as usize].into() }
    }

    async fn run(self: Arc<Self>, row: Row) -> Run {
        let this = self.clone();
        let run = rate(row, move |number| {
            let this = this.clone();
            async move {
                let Theirs { nfs, file, data } = &*this;
                match row.work {
                    Work::GetAttr => drop(nfs.getattr(file.clone()).await.expect("getattr")),
                    Work::Read => {
                        let read = nfs.read(file.clone(), offset(number), CHUNK_BYTES).await;
                        assert_eq!(read.expect("read").len(), CHUNK_BYTES as usize);
                    }
                    Work::Write => {
                        let written = nfs
                            .write(file.clone(), offset(number), data.clone())
                            .await
                            .expect("write");
                        assert_eq!(u64::from(written.count), u64::from(CHUNK_BYTES));
                    }
                }
            }
        })
        .await;
        if row.work == Work::Write {
            self.nfs.commit(self.file.clone(), 0, 0).await.expect("commit");
        }
        run
    }
}

//! Latency of single operations: small files in random order, one operation each.
//!
//! Reads under a capability that the client has (`latency-again`) and after another client's change
//! has ended it (`latency-revoked`) differ by what the client pays for another; a chmod of files
//! without bytes, for which there is no capability (`latency-chmod`), and of files that were just
//! read (`latency-revocation`) by what the metadata server pays for the revocation at the disk. On
//! servers without capabilities each pair is alike. Reads of a large file, each where the client
//! has no capability yet (`latency-getcaps`), differ from reads again by the call that gets one.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::data::{Pattern, Random};
use crate::suite::{Before, Outcome, Test, Work, WorkDir};

const FILE_BYTES: usize = 4096;
/// Where the files are that are read and written, and those whose capabilities end.
const DIR: &str = "latency";
const ENDING: &str = "ending";
/// Where the files are that have no bytes.
const EMPTY: &str = "empty";
/// The large file, and how far apart its places are: farther than a client asks for capabilities at
/// once. Holes are between them.
const LARGE: &str = "large";
const APART_BYTES: u64 = (64 << 20) + (1 << 20);
/// Shares of the operations that are at most as slow as what is recorded.
const PERCENTILES: [(&str, f64); 3] = [("p50_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99)];

/// Reads, then writes over the same files, then what the end of capabilities costs.
pub(super) fn tests(count: u32) -> [Test; 7] {
    let test = |name, before, work| Test { unit: "us", ..Test::timed(name, 1, before, work) };
    let reads = Arc::new(move |place: &WorkDir| read(place, count));
    let writes = Arc::new(move |place: &WorkDir| write(place, count));
    let furnish_in = |dir: &'static str| {
        move |place: &WorkDir| {
            fs::create_dir_all(place.at(dir))?;
            for i in 0..count {
                fs::write(path_in(place, dir, i), old(i).bytes(FILE_BYTES))?;
            }
            Ok(())
        }
    };
    let (furnish, ending) = (furnish_in(DIR), furnish_in(ENDING));
    [
        test("latency-read", Before::RestartEmpty, reads).furnished(furnish),
        test("latency-write", Before::DropMemory, writes).furnished(furnish),
        test("latency-again", Before::Restart, each(count, |_, _| Ok(()), reread))
            .furnished(ending),
        test("latency-revoked", Before::Restart, each(count, chmod_by_other, reread))
            .furnished(ending)
            .beside_another(),
        test("latency-chmod", Before::Restart, alone(count, chmod)).furnished(move |place| {
            fs::create_dir_all(place.at(EMPTY))?;
            let make = |i| File::create(path_in(place, EMPTY, i)).map(drop);
            Ok((0..count).try_for_each(make)?)
        }),
        test("latency-revocation", Before::Restart, each(count, |_, _| Ok(()), chmod))
            .furnished(ending),
        test("latency-getcaps", Before::Restart, Arc::new(move |place| read_apart(place, count)))
            .furnished(move |place| {
                let large = File::create(place.at(LARGE))?;
                let write = |i| large.write_all_at(&old(i).bytes(FILE_BYTES), place_of(i));
                Ok((0..count).try_for_each(write)?)
            }),
    ]
}

/// Where in the large file one of its places is.
fn place_of(i: u32) -> u64 {
    u64::from(i) * APART_BYTES
}

fn read_apart(place: &WorkDir, count: u32) -> Result<Outcome> {
    let path = place.at(LARGE);
    let mut bytes = vec![0; FILE_BYTES];
    let mut latencies = Vec::new();
    for i in shuffled(count) {
        let started = Instant::now();
        let file = File::open(&path)?;
        // Nothing is read ahead.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
        file.read_exact_at(&mut bytes, place_of(i))?;
        drop(file);
        latencies.push(started.elapsed());
        old(i)
            .check(0, &bytes)
            .with_context(|| format!("at {} of {}", place_of(i), path.display()))?;
    }
    Ok(outcome(&latencies))
}

/// A file, as the client sees it that works, and as another one does.
struct Paths {
    own: PathBuf,
    others: PathBuf,
}

/// What is done with one file.
type Step = fn(&Paths, u32) -> Result<()>;

/// Each file is read, which is not timed; `first` is done to it, and after that what is timed.
fn each(count: u32, first: Step, timed: Step) -> Work {
    Arc::new(move |place: &WorkDir| {
        let prepare = |paths: &Paths, i| {
            reread(paths, i)?;
            first(paths, i)
        };
        steps((place, ENDING), count, prepare, timed)
    })
}

/// Each file is done something to that has no bytes: whoever asks for attributes of others gets a
/// capability with them.
fn alone(count: u32, timed: Step) -> Work {
    Arc::new(move |place: &WorkDir| {
        let look = |paths: &Paths, _| {
            paths.own.metadata()?;
            Ok(())
        };
        steps((place, EMPTY), count, look, timed)
    })
}

fn steps(
    (place, dir): (&WorkDir, &str),
    count: u32,
    prepare: impl Fn(&Paths, u32) -> Result<()>,
    timed: Step,
) -> Result<Outcome> {
    let mut latencies = Vec::new();
    for i in shuffled(count) {
        let own = path_in(place, dir, i);
        let others = place.beside.join(own.strip_prefix(&place.dir)?);
        let paths = Paths { own, others };
        prepare(&paths, i)?;
        let started = Instant::now();
        timed(&paths, i)?;
        latencies.push(started.elapsed());
    }
    Ok(outcome(&latencies))
}

/// Reads a file by way of the server: the kernel forgets its bytes before.
fn reread(Paths { own: path, .. }: &Paths, i: u32) -> Result<()> {
    let mut bytes = vec![0; FILE_BYTES];
    let mut file = File::open(path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    file.read_exact(&mut bytes)?;
    drop(file);
    old(i).check(0, &bytes).with_context(|| path.display().to_string())
}

fn chmod(paths: &Paths, _: u32) -> Result<()> {
    change_mode(&paths.own)
}

fn chmod_by_other(paths: &Paths, _: u32) -> Result<()> {
    change_mode(&paths.others)
}

/// Gives a file another mode than it has.
fn change_mode(path: &Path) -> Result<()> {
    let mode = path.metadata()?.permissions().mode() ^ 0o044;
    Ok(fs::set_permissions(path, Permissions::from_mode(mode))?)
}

fn path(place: &WorkDir, i: u32) -> PathBuf {
    path_in(place, DIR, i)
}

fn path_in(place: &WorkDir, dir: &str, i: u32) -> PathBuf {
    place.at(dir).join(format!("f{i}"))
}

/// What a file holds at first, and after it was written.
fn old(i: u32) -> Pattern {
    Pattern((1 << 32) + u64::from(i))
}

fn new(i: u32) -> Pattern {
    Pattern((2 << 32) + u64::from(i))
}

fn read(place: &WorkDir, count: u32) -> Result<Outcome> {
    let mut bytes = vec![0; FILE_BYTES];
    let mut latencies = Vec::new();
    for i in shuffled(count) {
        let path = path(place, i);
        let started = Instant::now();
        let mut file = File::open(&path)?;
        file.read_exact(&mut bytes)?;
        drop(file);
        latencies.push(started.elapsed());
        old(i).check(0, &bytes).with_context(|| path.display().to_string())?;
    }
    Ok(outcome(&latencies))
}

fn write(place: &WorkDir, count: u32) -> Result<Outcome> {
    let mut latencies = Vec::new();
    for i in shuffled(count) {
        let (path, bytes) = (path(place, i), new(i).bytes(FILE_BYTES));
        let started = Instant::now();
        let mut file = OpenOptions::new().write(true).open(path)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        drop(file);
        latencies.push(started.elapsed());
    }
    let place = place.clone();
    Ok(outcome(&latencies).and_check_at_end(move || {
        (0..count).try_for_each(|i| {
            let path = path(&place, i);
            anyhow::ensure!(
                fs::read(&path)? == new(i).bytes(FILE_BYTES),
                "wrong bytes in {}",
                path.display()
            );
            Ok(())
        })
    }))
}

/// The numbers from 0 in an order that is the same each time.
fn shuffled(count: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).collect();
    let mut random = Random(700);
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    order
}

/// The mean, and the percentiles beside it.
fn outcome(latencies: &[Duration]) -> Outcome {
    let mut sorted: Vec<f64> = latencies.iter().map(|one| one.as_secs_f64() * 1e6).collect();
    sorted.sort_by(f64::total_cmp);
    let percentiles = PERCENTILES.map(|(name, share)| (name, percentile(&sorted, share)));
    let extra = percentiles.into_iter().chain([("operations", sorted.len() as f64)]);
    Outcome {
        value: Some(sorted.iter().sum::<f64>() / sorted.len() as f64),
        extra: extra.map(|(name, value)| (name.to_owned(), value)).collect(),
        ..Outcome::default()
    }
}

/// The least of some sorted numbers that a share of them does not exceed.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a directory, where nothing ends: each step works, also a second time.
    #[test]
    fn the_steps_around_the_end_of_a_capability_work() {
        let top = tempfile::tempdir().unwrap();
        let place = WorkDir::local(top.path(), 0);
        for test in tests(3) {
            test.furnish.as_ref().unwrap()(&place).unwrap();
            for _ in 0..2 {
                let outcome = (test.work)(&place).unwrap();
                assert!(outcome.value.unwrap() > 0.0, "{}", test.name);
                if test.name == "latency-write" {
                    break;
                }
            }
        }
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(
            [0.5, 0.9, 0.99, 1.0].map(|share| percentile(&hundred, share)),
            [50.0, 90.0, 99.0, 100.0]
        );
        assert_eq!([0.5, 0.9, 0.99].map(|share| percentile(&[7.0], share)), [7.0; 3]);
        assert_eq!(percentile(&[1.0, 2.0, 3.0], 0.5), 2.0);
    }

    #[test]
    fn the_mean_is_of_operations() {
        let outcome = outcome(&[1, 2, 9].map(Duration::from_micros));
        assert!((outcome.value.unwrap() - 4.0).abs() < 1e-9);
        assert!((outcome.extra["p50_us"] - 2.0).abs() < 1e-9);
    }

    #[test]
    fn every_file_is_used_once_out_of_order() {
        let order = shuffled(700);
        assert_ne!(order[..10], *(0..10).collect::<Vec<_>>());
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..700).collect::<Vec<_>>());
    }
}

//! Latency of single operations: small files in random order, one operation each.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::data::{Pattern, Random};
use crate::suite::{Before, Outcome, Place, Test};

const FILE_BYTES: usize = 4096;
const DIR: &str = "latency";
/// Shares of the operations that are at most as slow as what is recorded.
const PERCENTILES: [(&str, f64); 3] = [("p50_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99)];

/// Reads, then writes over the same files.
pub(super) fn tests(count: u32) -> [Test; 2] {
    let test = |name, before, work| Test { unit: "us", ..Test::timed(name, 1, before, work) };
    let reads = Arc::new(move |place: &Place| read(place, count));
    let writes = Arc::new(move |place: &Place| write(place, count));
    let furnish = move |place: &Place| {
        fs::create_dir_all(place.at(DIR))?;
        for i in 0..count {
            fs::write(path(place, i), old(i).bytes(FILE_BYTES))?;
        }
        Ok(())
    };
    [
        test("latency-read", Before::RestartEmpty, reads).furnished(furnish),
        test("latency-write", Before::DropMemory, writes).furnished(furnish),
    ]
}

fn path(place: &Place, i: u32) -> PathBuf {
    place.at(DIR).join(format!("f{i}"))
}

/// What a file holds at first, and after it was written.
fn old(i: u32) -> Pattern {
    Pattern((1 << 32) + u64::from(i))
}

fn new(i: u32) -> Pattern {
    Pattern((2 << 32) + u64::from(i))
}

fn read(place: &Place, count: u32) -> Result<Outcome> {
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

fn write(place: &Place, count: u32) -> Result<Outcome> {
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
    let percentiles =
        PERCENTILES.map(|(name, share)| (name.to_owned(), percentile(&sorted, share)));
    Outcome {
        value: Some(sorted.iter().sum::<f64>() / sorted.len() as f64),
        extra: BTreeMap::from(percentiles),
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

//! Puts a million files into the index of a cache on a real directory, and prints how long that
//! took and how much memory it needed:
//! `cargo run --release --example fill_index -- DIRECTORY [FILES]`.

#![allow(clippy::disallowed_methods, reason = "it measures by the clock of the machine")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_cache::{Cache, Config, FileNo};
use larder_io::{RealClock, RealDisk};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("usage: fill_index DIRECTORY [FILES]")?;
    let files: u64 = arguments.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let disk = Arc::new(RealDisk::open(Path::new(&dir))?);
    let config =
        Config { checkpoint_interval: Some(Duration::from_secs(5)), ..Config::new(b"example") };
    let cache = Cache::open(disk, Arc::new(RealClock), config)?;
    let start = Instant::now();
    for number in 0..files {
        // 40 bytes, in no order, as file handles are.
        let word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        let key = [word; 5].concat();
        let no = cache.assign(&key);
        cache.put_node(no, &[7; 150]);
        let name = format!("file-{number:08}");
        cache.put_name(FileNo(2 + number / 1000), name.as_bytes(), &no.0.to_le_bytes());
    }
    let put = start.elapsed();
    cache.checkpoint()?;
    let usage = cache.usage();
    println!("{files} files put in {put:?}, durable after {:?}", start.elapsed());
    println!("{:.0} nodes and names/s", 2.0 * files as f64 / start.elapsed().as_secs_f64());
    println!("index {} MiB", usage.index_bytes >> 20);
    let status = std::fs::read_to_string("/proc/self/status")?;
    status.lines().filter(|line| line.starts_with("Vm")).for_each(|line| println!("{line}"));
    let start = Instant::now();
    cache.close()?;
    println!("closed in {:?}", start.elapsed());
    Ok(())
}

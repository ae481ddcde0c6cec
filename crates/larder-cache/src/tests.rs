//! Tests of the whole crate, by topic.

// A list of held ranges often has one range.
#![allow(clippy::single_range_in_vec_init)]

mod aside;
mod asked;
mod boots;
mod bypasses;
mod calls;
mod conflicts;
mod corruption;
mod crash;
mod culling;
mod faults;
mod files;
mod filling;
mod index;
mod kept;
mod killed;
mod lost;
mod many;
mod memory;
mod model;
mod opening;
mod records;
mod removals;
mod room;
mod unwritten;
mod verifying;
mod watched;

use std::sync::Arc;

use larder_io::{Disk, DiskFile, SimClock, SimDisk};

use crate::{Cache, CachedFile, Config, ConflictKind, FileNo, Filled, OpenError};

/// Sizes in chunks read better.
const CHUNK: u64 = crate::CHUNK_BYTES;

/// A configuration without a thread.
fn config() -> Config {
    Config { checkpoint_interval: None, ..Config::new(b"volume") }
}

/// The same, and no file waits in memory to be written.
fn at_once() -> Config {
    Config { unwritten_bytes_max: 0, ..config() }
}

fn try_open(disk: &(impl Disk + Clone + 'static)) -> Result<Cache, OpenError> {
    Cache::open(Arc::new(disk.clone()), Arc::new(SimClock::new()), config())
}

fn open_with(disk: &(impl Disk + Clone + 'static), config: Config) -> Cache {
    Cache::open(Arc::new(disk.clone()), Arc::new(SimClock::new()), config).expect("it opens")
}

fn open(disk: &SimDisk) -> Cache {
    try_open(disk).expect("the cache opens")
}

/// Bytes that differ by seed and place, and are never zero.
fn bytes(seed: u64, range: std::ops::Range<u64>) -> Vec<u8> {
    range
        .map(|at| {
            let mixed =
                (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0xbf58_476d);
            (mixed >> 32) as u8 | 1
        })
        .collect()
}

fn fill(file: &CachedFile, version: &[u8], seed: u64, range: std::ops::Range<u64>) {
    let data = bytes(seed, range.clone());
    assert_eq!(file.fill(version, range.start, &data), Filled::Stored);
}

fn read(file: &CachedFile, range: std::ops::Range<u64>) -> Option<Vec<u8>> {
    let mut buf = vec![0; usize::try_from(range.end - range.start).unwrap()];
    file.read(range.start, &mut buf).ok().map(|()| buf)
}

/// The local file of a whole one, as the kernel would get it.
fn whole(file: &CachedFile) -> Option<Arc<dyn DiskFile>> {
    let mut state = file.state();
    file.whole_file(&mut state).map(|(local, _)| local)
}

/// Begins a bypass on a disk without descriptors.
fn begin_bypass(file: &CachedFile) -> Option<Arc<dyn DiskFile>> {
    let _alone = file.alone();
    let mut state = file.state();
    let (local, stamp) = file.whole_file(&mut state)?;
    file.begin_bypass_of(&mut state, &*local, Some(stamp)).map(|()| local)
}

/// Goes on with the bypass of an earlier run, on a disk without descriptors.
fn go_on_bypassing(file: &CachedFile) -> Option<Arc<dyn DiskFile>> {
    let _alone = file.alone();
    let mut state = file.state();
    let local = file.file_of_kernel(&mut state)?;
    file.begin_bypass_of(&mut state, &*local, None).map(|()| local)
}

/// A file with one filled version.
fn filled(cache: &Cache, version: &[u8], seed: u64, size: u64) -> Arc<CachedFile> {
    let no = cache.assign(&seed.to_le_bytes());
    let file = cache.file(no);
    file.reset(version, size);
    fill(&file, version, seed, 0..size);
    file
}

/// A small generator of test choices (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

/// The seed of a random test: printed, and set again with `LARDER_SEED`.
fn seed(test: &str, default: u64) -> u64 {
    let seed = std::env::var("LARDER_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(default);
    println!("{test}: LARDER_SEED={seed}");
    seed
}

/// The number of histories of a random test, unless `LARDER_ROUNDS` sets another.
fn rounds(default: u64) -> u64 {
    std::env::var("LARDER_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn number(seed: u64) -> FileNo {
    FileNo(seed)
}

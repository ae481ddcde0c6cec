//! The disk of a cache: fills and culling stay within their marks, and a full disk does no lasting
//! harm.

use std::time::Duration;

use larder_io::{Clock, Disk, Fault, OpenMode};

use super::*;
use crate::{Limits, Marks};

const MIB: u64 = 1 << 20;

fn free_bytes(disk: &SimDisk) -> u64 {
    disk.space().unwrap().free_bytes
}

fn with_marks(disk: &SimDisk, clock: &Arc<SimClock>, free_percent: Marks) -> Cache {
    let limits = Limits { free_percent, ..Limits::default() };
    let clock: Arc<dyn Clock> = Arc::clone(clock) as Arc<dyn Clock>;
    Cache::open(Arc::new(disk.clone()), clock, Config { limits, ..config() }).unwrap()
}

/// The parameters of one burst.
#[derive(Debug)]
struct Burst {
    total_bytes: u64,
    free_percent: Marks,
    /// Of one file.
    file_bytes_max: u64,
    fill_bytes_max: u64,
    /// Most fills between the request to cull and its start.
    fills_behind_max: u64,
    pause: Duration,
}

impl Burst {
    fn new(random: &mut Random) -> Burst {
        let total_bytes = (16 + random.below(48)) * MIB;
        let stop = 2 + random.below(20);
        let cull = stop + 1 + random.below(15);
        let run = cull + 1 + random.below(15);
        let small = random.below(2) == 0;
        Burst {
            total_bytes,
            free_percent: Marks { run, cull, stop },
            file_bytes_max: if small { total_bytes / 100 } else { total_bytes / 2 },
            fill_bytes_max: [CHUNK, 4 * CHUNK, MIB][random.below(3) as usize],
            fills_behind_max: [1, 20, 400][random.below(3) as usize],
            pause: Duration::from_micros([1, 1000, 300_000][random.below(3) as usize]),
        }
    }

    /// Bytes of a mark, as far as a small disk has more than the index needs below it.
    fn bytes(&self, percent: u64, index_halves: u64) -> u64 {
        let index_half = (8 * MIB).min(self.total_bytes / 16) / 2;
        (self.total_bytes / 100 * percent).max(index_half * index_halves)
    }

    fn run(&self, random: &mut Random) {
        let (disk, clock) = (SimDisk::new(), Arc::new(SimClock::new()));
        disk.inject(Fault::SpaceBytes(self.total_bytes));
        let cache = with_marks(&disk, &clock, self.free_percent);
        let data = vec![7; usize::try_from(self.fill_bytes_max).unwrap()];
        let (mut offered, mut number, mut behind) = (0, 0_u64, 0);
        while offered < 2 * self.total_bytes {
            number += 1;
            let size = 1 + random.below(self.file_bytes_max);
            let file = cache.file(cache.assign(&number.to_le_bytes()));
            file.reset(b"v1", size);
            for offset in (0..size).step_by(data.len()) {
                if file.fill(b"v1", offset, &data) == Filled::Stored {
                    let (free, stop) = (free_bytes(&disk), self.bytes(self.free_percent.stop, 2));
                    assert!(free >= stop, "{free} bytes are free, {stop} are to be: {self:?}");
                }
                clock.advance(self.pause);
                offered += self.fill_bytes_max.min(size - offset);
                behind += u64::from(cache.store.bell.is_rung());
                if behind > random.below(self.fills_behind_max) {
                    cache.store.bell.wait(Duration::ZERO);
                    behind = 0;
                    self.clean(&cache, &disk);
                }
            }
        }
        assert!(!cache.usage().poisoned, "{self:?}");
        cache.close().unwrap();
    }

    /// The cleaner comes.
    fn clean(&self, cache: &Cache, disk: &SimDisk) {
        let culled_before = cache.usage().culled;
        cache.checkpoint().unwrap();
        let free = free_bytes(disk);
        let slack = self.total_bytes / 50;
        if cache.usage().culled == culled_before {
            let cull = self.bytes(self.free_percent.cull, 3);
            assert!(free + slack >= cull || cache.store.cull_rests(), "{free} < {cull}: {self:?}");
            return;
        }
        let run = self.bytes(self.free_percent.run, 4);
        assert!(free + slack >= run, "culling ended at {free} free, not {run}: {self:?}");
        let end = run + slack.max(self.file_bytes_max);
        assert!(free <= end, "culling went on to {free} free, beyond {end}: {self:?}");
    }
}

/// Fills never pass the stop mark, culling is requested at the cull mark, and stops at the run
/// mark.
#[test]
fn bursts_and_culling_stay_within_two_percent_of_their_marks() {
    let heavy = std::env::var_os("LARDER_HEAVY").is_some();
    let mut random = Random(seed("bursts_and_culling_stay_within_two_percent_of_their_marks", 20));
    for _ in 0..if heavy { 500 } else { 4 } {
        let burst = Burst::new(&mut random);
        burst.run(&mut random);
    }
}

/// Takes all that is free, as another program does.
fn fill_up(disk: &SimDisk, name: &str) {
    let file = disk.open(name, OpenMode::Create).unwrap();
    let start = file.len().unwrap();
    let page = [1; 4096];
    let mut offset = start;
    while file.write_at(&page, offset).is_ok() {
        offset += page.len() as u64;
    }
}

#[test]
fn a_disk_that_others_have_filled_is_opened_and_emptied() {
    let (disk, clock) = (SimDisk::new(), Arc::new(SimClock::new()));
    disk.inject(Fault::SpaceBytes(32 * MIB));
    let marks = Marks { run: 10, cull: 7, stop: 3 };
    let cache = with_marks(&disk, &clock, marks);
    for seed in 0..16 {
        filled(&cache, b"v1", seed, MIB);
    }
    cache.checkpoint().unwrap();
    fill_up(&disk, "data/others");
    // More names than one page of the index holds.
    for number in 0_u64..2000 {
        cache.put_node(FileNo(number + 100), &bytes(number, 0..100));
    }
    cache.checkpoint().unwrap();
    assert!(!cache.usage().poisoned);
    fill_up(&disk, "data/others");
    cache.close().unwrap();
    fill_up(&disk, "data/others");
    assert_eq!(free_bytes(&disk), 0);
    let cache = with_marks(&disk, &clock, marks);
    assert_eq!(cache.node(FileNo(1500)), Some(bytes(1400, 0..100)));
    let held = cache.usage().bytes;
    assert!(held > 0);
    cache.drop_all();
    assert_eq!(cache.usage().bytes, 0);
    assert!(free_bytes(&disk) >= held / 2);
    assert!(!cache.usage().poisoned);
    cache.close().unwrap();
}

/// Each commit begins a segment of the log, for which it needs a block, and ends one, whose blocks
/// other programs may take.
#[test]
fn commits_go_on_with_their_reserve_while_others_take_all_that_gets_free() {
    let disk = SimDisk::new();
    disk.inject(Fault::SpaceBytes(64 * MIB));
    let cache = super::killed::open_in(&disk, 1);
    filled(&cache, b"v1", 1, MIB);
    cache.checkpoint().unwrap();
    fill_up(&disk, "data/others");
    for round in 0..400_u64 {
        for number in 0..8 {
            cache.put_node(FileNo(100 + number), &bytes(round, 0..4000));
        }
        cache.checkpoint().unwrap();
        fill_up(&disk, "data/others");
    }
    assert!(!cache.usage().poisoned);
    drop(cache);
    let cache = super::killed::open_in(&disk, 1);
    assert_eq!(cache.node(FileNo(107)), Some(bytes(399, 0..4000)));
    assert!(!cache.usage().poisoned);
}

#[test]
fn zeros_take_no_space_and_are_held() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let (size, middle) = (64 * CHUNK + 7, 5 * CHUNK..6 * CHUNK);
    let mut data = vec![0; size as usize];
    data[5 * CHUNK as usize..6 * CHUNK as usize].copy_from_slice(&bytes(1, middle));
    let file = cache.file(cache.assign(b"sparse"));
    file.reset(b"v1", size);
    let before = free_bytes(&disk);
    assert_eq!(file.fill(b"v1", 0, &data), Filled::Stored);
    assert_eq!(before - free_bytes(&disk), CHUNK);
    assert!(read(&file, 0..size) == Some(data.clone()));
    let no = file.number();
    cache.checkpoint().unwrap();
    let after = open(&disk.crash(larder_io::Image::Synced));
    assert!(read(&after.file(no), 0..size) == Some(data));
}

/// The parent of a file is its record.
fn parent_in_record(record: &[u8]) -> Option<FileNo> {
    Some(FileNo(u64::from_le_bytes(record.try_into().ok()?)))
}

#[test]
fn what_lies_below_a_pinned_directory_is_not_culled() {
    let disk = SimDisk::new();
    let try_open = || {
        let config = Config { parent_in_record, ..config() };
        Cache::open(Arc::new(disk.clone()), Arc::new(SimClock::new()), config).unwrap()
    };
    let cache = try_open();
    let (dir, sub) = (cache.assign(b"dir"), cache.assign(b"sub"));
    cache.put_node(sub, &dir.0.to_le_bytes());
    cache.pin_tree(dir, Some(b""));
    cache.checkpoint().unwrap();
    cache.close().unwrap();
    let cache = try_open();
    // They come after the pin.
    let [below, beside, moved] = [1, 2, 3].map(|seed| filled(&cache, b"v1", seed, CHUNK).number());
    cache.put_node(below, &sub.0.to_le_bytes());
    cache.put_node(beside, &FileNo::ROOT.0.to_le_bytes());
    cache.put_node(moved, &dir.0.to_le_bytes());
    cache.checkpoint().unwrap();
    let pinned = || cache.list(None, 9).iter().map(|file| file.pinned).collect::<Vec<_>>();
    assert_eq!(pinned(), [true, false, true]);
    cache.put_node(moved, &FileNo::ROOT.0.to_le_bytes());
    assert_eq!(cache.cull(0).files, 2);
    assert!(!cache.file(below).held(0..CHUNK).is_empty());
    cache.pin_tree(dir, None);
    assert_eq!(cache.cull(0).files, 1);
}

#[test]
fn an_open_file_is_not_culled() {
    let cache = open(&SimDisk::new());
    let file = filled(&cache, b"v1", 1, CHUNK);
    cache.checkpoint().unwrap();
    let open = file.hold();
    assert_eq!(cache.cull(0).files, 0);
    cache.drop_all();
    assert_eq!(cache.usage().bytes, CHUNK);
    drop(open);
    assert_eq!(cache.cull(0).files, 1);
}

/// No caller could write to it past the cache: the kernel's local file would lack that.
#[test]
fn a_file_that_the_kernel_writes_takes_writes_beyond_the_stop_mark() {
    let disk = SimDisk::new();
    let mut limits = Limits::in_memory();
    limits.bytes = Marks { run: CHUNK, cull: CHUNK, stop: 2 * CHUNK };
    let config = Config { limits, ..config() };
    let cache = Cache::open(Arc::new(disk.clone()), Arc::new(SimClock::new()), config).unwrap();
    let [bypassed, other] =
        [b"bypassed", &b"another"[..]].map(|name| cache.file(cache.assign(name)));
    for file in [&bypassed, &other] {
        file.reset(b"v1", 0);
    }
    let _kernel = begin_bypass(&bypassed).expect("it is whole");
    filled(&cache, b"v1", 1, 2 * CHUNK);
    assert_eq!(other.write(0, b"x"), Err(crate::NoSpace));
    bypassed.write(0, b"appended").unwrap();
    assert_eq!(read(&bypassed, 0..8), Some(b"appended".to_vec()));
    assert_eq!(bypassed.dirty_bytes(), 8);
}

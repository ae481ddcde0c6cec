//! The cost of the cache's work, in calls of its disk.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Mutex;

use larder_io::MemDisk;

use super::killed::booted;
use super::watched::{Watched, Watcher};
use super::*;
use crate::{Descriptors, lock};

/// Counts calls.
#[derive(Debug, Default)]
pub(super) struct Calls(Mutex<BTreeMap<&'static str, u32>>);

impl Watcher for Calls {
    fn hear(&self, call: &'static str) {
        *lock(&self.0).entry(call).or_default() += 1;
    }
}

/// A disk in memory that counts calls.
pub(super) fn counting() -> Watched<Calls> {
    Watched { disk: Arc::new(MemDisk::default()), watcher: Arc::default() }
}

impl Watched<Calls> {
    /// The calls since the last time, as `name*count ...`.
    pub(super) fn take(&self) -> String {
        let calls = std::mem::take(&mut *lock(&self.watcher.0));
        let shown: Vec<_> = calls.iter().map(|(name, count)| format!("{name}*{count}")).collect();
        shown.join(" ")
    }
}

fn sent(file: &CachedFile, version: &[u8], size: u64) {
    file.begin_sending();
    file.mark_clean(0..u64::MAX);
    file.set_version(version, size);
}

/// The work of unpacking an archive: a short file that the kernel writes, from its creation to its
/// release.
#[test]
fn a_short_new_file_costs_few_calls_of_the_disk() {
    let disk = counting();
    let cache = try_open(&disk).unwrap();
    let file = cache.file(cache.assign(b"new"));
    file.reset(b"v0", 0);
    disk.take();
    let (kernel, _) = file.begin_bypass().unwrap();
    assert_eq!(disk.take(), "open*1 stamp*1", "creation");
    rustix::io::pwrite(kernel.as_fd(), &bytes(1, 0..5000), 0).unwrap();
    assert!(file.try_collect_bypass().unwrap().unwrap().is_some());
    assert_eq!(disk.take(), "data_ranges*1 read*1 stamp*1", "close");
    file.read_dirty(0, &mut [0; 5000]).unwrap();
    sent(&file, b"v1", 5000);
    assert_eq!(disk.take(), "read*1", "sending");
    file.try_collect_bypass().unwrap().unwrap();
    file.try_end_bypass().unwrap().unwrap();
    assert_eq!(disk.take(), "data_ranges*1 read*1 stamp*2", "release");
    assert_eq!(read(&file, 0..5000), Some(bytes(1, 0..5000)));
}

/// What it costs to keep local changes on this disk: the directories above those of local files are
/// synced once.
#[test]
fn keeping_a_change_syncs_the_file_its_directory_and_the_index() {
    let disk = Watched { disk: Arc::new(SimDisk::new()), watcher: Arc::<Calls>::default() };
    let cache = Cache::open(Arc::new(disk.clone()), Arc::new(SimClock::new()), booted(1)).unwrap();
    let file = cache.file(cache.assign(b"new"));
    file.reset(b"v0", 0);
    for dirs in [3, 1, 1] {
        file.write(0, &bytes(1, 0..5000)).unwrap();
        disk.take();
        file.keep().unwrap();
        assert_eq!(disk.take(), format!("sync_data*1 sync_dir*{dirs}"));
    }
}

/// Repeated collection of a file that the kernel may write checks its times, and reads it only if
/// it was written.
#[test]
fn a_file_that_the_kernel_does_not_write_is_not_read_again() {
    let disk = counting();
    let cache = try_open(&disk).unwrap();
    let file = cache.file(cache.assign(b"log"));
    file.reset(b"v0", 0);
    let (kernel, _) = file.begin_bypass().unwrap();
    disk.take();
    assert!(!file.was_bypassed().unwrap(), "not written yet");
    for at in [0, 3] {
        rustix::io::pwrite(kernel.as_fd(), b"log", at).unwrap();
        disk.take();
        assert!(file.was_bypassed().unwrap());
        assert_eq!(disk.take(), "stamp*2 sync_data*1");
        assert!(file.was_bypassed().unwrap(), "nobody has collected it");
        file.try_collect_bypass().unwrap().unwrap();
        disk.take();
        assert!(!file.was_bypassed().unwrap());
        assert_eq!(disk.take(), "stamp*1");
    }
    file.end_bypass().unwrap();
    assert!(!file.was_bypassed().unwrap(), "nobody writes it");
}

/// A file whose chunks all have their sums is not read again to be saved; only its stamp is
/// checked.
#[test]
fn a_checkpoint_of_many_files_opens_each_once_and_syncs_the_disk_once() {
    const FILES: u64 = 100;
    let disk = counting();
    let descriptors = Descriptors { pooled_max: 4, handed_out_max: 4 };
    let config = Config { descriptors, ..config() };
    let cache = Cache::open(Arc::new(disk.clone()), Arc::new(SimClock::new()), config).unwrap();
    for seed in 0..FILES {
        let file = cache.file(cache.assign(&seed.to_le_bytes()));
        file.reset(b"v0", 0);
        let (kernel, _) = file.begin_bypass().unwrap();
        rustix::io::pwrite(kernel.as_fd(), &bytes(seed, 0..5000), 0).unwrap();
        file.end_bypass().unwrap();
        sent(&file, b"v1", 5000);
    }
    disk.take();
    cache.checkpoint().unwrap();
    assert_eq!(disk.take(), format!("open*{FILES} stamp*{FILES} sync_all*1"));
}

/// The work of a database: a write in place, which is sent, again and again.
#[test]
fn a_synced_write_costs_one_write_and_one_read_and_no_sync() {
    let disk = counting();
    let cache = try_open(&disk).unwrap();
    let number = filled(&cache, b"v0", 1, 8 * CHUNK).number();
    cache.close().unwrap();
    let cache = try_open(&disk).unwrap();
    let file = cache.file(number);
    let page = CHUNK / 4;
    let synced = |at: u64, version: u8| {
        disk.take();
        file.write(at, &vec![version; page as usize]).unwrap();
        assert_eq!(file.begin_sending(), [at..at + page]);
        file.read_dirty(at, &mut vec![0; page as usize]).unwrap();
        file.mark_clean(at..at + page);
        file.set_version(&[version], 8 * CHUNK);
        disk.take()
    };
    assert_eq!(synced(0, 1), "open*1 read*2 stamp*1 write*1", "and what it was is verified first");
    for version in 2..10 {
        assert_eq!(synced(0, version), "read*1 write*1");
    }
    // The last page of a chunk that was not verified yet: the next chunk is not, either.
    assert_eq!(synced(2 * CHUNK - page, 10), "read*2 write*1");
}

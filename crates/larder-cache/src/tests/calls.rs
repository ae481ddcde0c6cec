//! The cost of the cache's work, in calls of its disk.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex};

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

/// A new cache on a disk that counts calls, and forgets what is not synced.
fn forgetful() -> (Watched<Calls>, Cache) {
    let disk = Watched { disk: Arc::new(SimDisk::new()), watcher: Arc::<Calls>::default() };
    let cache = Cache::open(Arc::new(disk.clone()), Arc::new(SimClock::new()), booted(1)).unwrap();
    (disk, cache)
}

/// What it costs to keep short changes on this disk, with the name of the file that is made here: a
/// sync of the log. The names of the log's files are synced once.
#[test]
fn a_short_change_is_kept_with_its_name_by_one_sync() {
    let (disk, cache) = forgetful();
    let commits = cache.usage().commits;
    let kept = |key: &[u8], size: u64| {
        let file = cache.file(cache.assign(key));
        file.reset(b"v0", 0);
        let mark = cache.put_names([(7, Some(b"a name".to_vec()))], vec![]);
        file.write(0, &bytes(1, 0..size)).unwrap();
        disk.take();
        file.keep().unwrap();
        cache.keep_names(mark).unwrap();
        let calls = disk.take();
        file.keep().unwrap();
        assert_eq!(disk.take(), "", "it is kept already");
        calls
    };
    assert_eq!(kept(b"first", 5000), "read*1 stamp*1 sync_dir*1 sync_log*1");
    for key in [b"a", b"b", b"c"] {
        assert_eq!(kept(key, 5000), "read*1 stamp*1 sync_log*1");
    }
    assert_eq!(kept(b"long", crate::kept_bytes::OF_A_FILE_MAX), "read*1 stamp*1 sync_log*1");
    assert_eq!(cache.usage().commits, commits, "none is made for that");
}

/// Of longer ones their range and the directory are synced as well; the directories above those of
/// local files once.
#[test]
fn a_long_change_is_kept_by_syncs_of_its_range_its_directory_and_the_log() {
    let (disk, cache) = forgetful();
    let file = cache.file(cache.assign(b"new"));
    file.reset(b"v0", 0);
    for dirs in [4, 1, 1] {
        file.write(0, &bytes(1, 0..crate::kept_bytes::OF_A_FILE_MAX + 1)).unwrap();
        disk.take();
        file.keep().unwrap();
        assert_eq!(disk.take(), format!("sync_dir*{dirs} sync_log*1 sync_range*1"));
    }
}

/// A checkpoint makes the local files of what was kept durable, of many at once.
#[test]
fn what_was_kept_in_its_record_is_drained_once() {
    for (files, expected) in [(1, "sync_data*1 sync_dir*4 sync_index*2"), (40, "sync_all*1")] {
        let (disk, cache) = forgetful();
        let file = |key: u64| {
            let file = cache.file(cache.assign(&key.to_le_bytes()));
            file.reset(b"v0", 0);
            file.write(0, &bytes(key, 0..100)).unwrap();
            file.keep().unwrap();
            file
        };
        let _files: Vec<_> = (0..files).map(file).collect();
        disk.take();
        cache.checkpoint().unwrap();
        let calls = disk.take();
        println!("{files}: {calls}");
        assert!(calls.contains(expected), "{calls}");
        cache.checkpoint().unwrap();
        assert_eq!(disk.take(), "", "nothing is left to do");
    }
}

/// Stops the first sync of the log until it is released.
#[derive(Debug, Default)]
struct Gate {
    syncs: AtomicU32,
    released: Mutex<bool>,
    heard: Condvar,
}

impl Watcher for Gate {
    fn hear(&self, call: &'static str) {
        if call == "sync_log" && self.syncs.fetch_add(1, Ordering::Relaxed) == 0 {
            let closed = lock(&self.released);
            drop(self.heard.wait_while(closed, |released| !*released).unwrap());
        }
    }
}

/// Those who close files while a sync is running share the next one.
#[test]
fn many_who_keep_files_at_the_same_time_share_a_sync() {
    const CALLERS: u64 = 8;
    let gate = Arc::<Gate>::default();
    let disk = Watched { disk: Arc::new(SimDisk::new()), watcher: Arc::clone(&gate) };
    let cache = Cache::open(Arc::new(disk.clone()), Arc::new(SimClock::new()), booted(1)).unwrap();
    let file = |key: u64| {
        let file = cache.file(cache.assign(&key.to_le_bytes()));
        file.reset(b"v0", 0);
        file.write(0, &bytes(key, 0..100)).unwrap();
        file
    };
    let files: Vec<_> = (0..CALLERS).map(file).collect();
    std::thread::scope(|scope| {
        let before = cache.usage().logged;
        for file in &files {
            scope.spawn(|| file.keep().unwrap());
        }
        // Each has logged its record, and one of them is at the gate.
        while cache.usage().logged < before + CALLERS || gate.syncs.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        *lock(&gate.released) = true;
        gate.heard.notify_all();
    });
    assert_eq!((gate.syncs.load(Ordering::Relaxed), cache.usage().log_syncs), (2, 2));
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
    let expected = format!("open*{FILES} stamp*{FILES} sync_all*1 sync_index*2");
    assert_eq!(disk.take(), expected);
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
    let first = "open*1 read*2 stamp*1 sync_index*2 write*1";
    assert_eq!(synced(0, 1), first, "it is marked, and what it was is verified");
    for version in 2..10 {
        assert_eq!(synced(0, version), "read*1 write*1");
    }
    // The last page of a chunk that was not verified yet: the next chunk is not, either.
    assert_eq!(synced(2 * CHUNK - page, 10), "read*2 write*1");
}

//! What a file promises, on a disk that works.

use larder_io::{Disk, MemDisk, RealClock, RealDisk};

use super::*;
use crate::{Descriptors, Limits};

#[test]
fn filled_bytes_are_read_and_others_missed() {
    let cache = open(&SimDisk::new());
    let file = cache.file(cache.assign(b"key"));
    assert_eq!((file.version(), file.size()), (None, 0));
    assert_eq!(file.fill(b"v1", 0, b"x"), Filled::Declined);
    file.reset(b"v1", 3 * CHUNK + 7);
    fill(&file, b"v1", 5, 100..CHUNK + 100);
    assert_eq!(file.held(0..u64::MAX), [100..CHUNK + 100]);
    assert_eq!(read(&file, 100..CHUNK + 100), Some(bytes(5, 100..CHUNK + 100)));
    assert_eq!(read(&file, 99..101), None);
    assert_eq!(file.fill(b"v0", 0, b"x"), Filled::Declined);
    // Bytes past the end are ignored.
    fill(&file, b"v1", 5, 3 * CHUNK..4 * CHUNK);
    assert_eq!(file.held(2 * CHUNK..u64::MAX), [3 * CHUNK..3 * CHUNK + 7]);
    assert!(whole(&file).is_none());
    assert_eq!((cache.usage().hits, cache.usage().misses), (1, 1));
}

#[test]
fn held_chunks_survive_a_restart() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let file = filled(&cache, b"v1", 1, 2 * CHUNK + 9);
    let part = cache.file(cache.assign(b"part"));
    part.reset(b"p1", 2000 * CHUNK);
    // In two pieces, across the border of two groups, and one chunk that is not whole.
    fill(&part, b"p1", 2, 1023 * CHUNK..1023 * CHUNK + 1);
    fill(&part, b"p1", 2, 1023 * CHUNK + 1..1025 * CHUNK + 5);
    let (no, part_no) = (file.number(), part.number());
    drop((file, part));
    cache.close().unwrap();

    let cache = open(&disk);
    assert_eq!(cache.number_of(&1u64.to_le_bytes()), Some(no));
    let file = cache.file(no);
    assert_eq!(file.version().as_deref(), Some(&b"v1"[..]));
    assert!(whole(&file).is_some());
    assert_eq!(read(&file, 0..2 * CHUNK + 9), Some(bytes(1, 0..2 * CHUNK + 9)));
    let part = cache.file(part_no);
    assert_eq!(part.held(0..u64::MAX), [1023 * CHUNK..1025 * CHUNK]);
    assert_eq!(read(&part, 1023 * CHUNK..1025 * CHUNK), Some(bytes(2, 1023 * CHUNK..1025 * CHUNK)));
    assert_eq!(cache.usage().bytes, 5 * CHUNK);
    assert_eq!(cache.usage().files, 2);
}

#[test]
fn states_leave_memory_once_saved_and_come_back() {
    let cache = open(&SimDisk::new());
    let no = filled(&cache, b"v1", 1, CHUNK).number();
    assert_eq!(cache.file(no).held(0..CHUNK), [0..CHUNK]);
    cache.checkpoint().unwrap();
    assert!(lock(&cache_store(&cache).files).is_empty());
    assert_eq!(read(&cache.file(no), 0..CHUNK), Some(bytes(1, 0..CHUNK)));
}

fn cache_store(cache: &Cache) -> Arc<crate::store::Store> {
    Arc::clone(&cache.file(number(u64::MAX)).store)
}

use crate::lock;

#[test]
fn another_version_is_another_local_file() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let file = filled(&cache, b"v1", 1, CHUNK);
    let old = whole(&file).unwrap();
    file.reset(b"v2", CHUNK);
    assert_eq!(file.held(0..CHUNK), []);
    fill(&file, b"v2", 2, 0..CHUNK);
    let new = whole(&file).unwrap();
    let mut buf = vec![0; CHUNK as usize];
    old.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(buf, bytes(1, 0..CHUNK));
    new.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(buf, bytes(2, 0..CHUNK));
    cache.checkpoint().unwrap();
    let data = disk.files().into_iter().filter(|(path, _)| path.starts_with("data/"));
    assert_eq!(data.count(), 1);
}

#[test]
fn local_changes_are_dirty_until_acknowledged() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let file = filled(&cache, b"v1", 1, 2 * CHUNK);
    cache.checkpoint().unwrap();
    file.write(10, b"hello").unwrap();
    file.write(3 * CHUNK, b"far").unwrap();
    assert_eq!(file.size(), 3 * CHUNK + 3);
    assert_eq!(file.dirty(), [10..15, 3 * CHUNK..3 * CHUNK + 3]);
    assert!(cache.list(None, 1)[0].dirty);
    // Clean bytes from the server do not overwrite it.
    assert_eq!(file.fill(b"v1", 0, &[7; 100]), Filled::Stored);
    assert_eq!(read(&file, 10..15).unwrap(), b"hello");
    assert_eq!(read(&file, 2 * CHUNK..3 * CHUNK).unwrap(), vec![0; CHUNK as usize]);
    let mut buf = [0; 5];
    file.read_dirty(10, &mut buf).unwrap();
    assert_eq!(&buf, b"hello");
    assert!(file.read_dirty(9, &mut buf).is_err());

    file.mark_clean(10..15);
    assert_eq!(file.dirty(), [3 * CHUNK..3 * CHUNK + 3]);
    file.mark_clean(0..u64::MAX);
    file.set_version(b"v2", 3 * CHUNK + 3);
    let no = file.number();
    drop(file);
    cache.close().unwrap();
    let cache = open(&disk);
    let file = cache.file(no);
    assert_eq!(file.version().as_deref(), Some(&b"v2"[..]));
    assert_eq!(read(&file, 10..15).unwrap(), b"hello");
    assert_eq!(cache.usage().dirty_dropped, 0);
    assert!(whole(&file).is_some());
}

/// Sending dirty bytes does not delay writers: what the server has then is older.
#[test]
fn what_is_written_while_bytes_are_sent_stays_dirty() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let file = filled(&cache, b"v1", 1, 2 * CHUNK);
    file.write(0, &[1; 100]).unwrap();
    assert_eq!(file.begin_sending(), [0..100]);
    file.write(90, &[2; 5]).unwrap();
    file.write(200, &[2; 5]).unwrap();
    file.mark_clean(0..100);
    assert_eq!(file.dirty(), [90..95, 200..205]);
    assert!(!file.set_version(b"v2", 2 * CHUNK));
    assert!(!file.reset(b"v2", 2 * CHUNK));
    assert_eq!(file.version().as_deref(), Some(&b"v1"[..]));
    assert_eq!(read(&file, 90..95).unwrap(), [2; 5]);

    for range in file.begin_sending() {
        file.mark_clean(range);
    }
    assert!(file.set_version(b"v2", 2 * CHUNK));
    assert_eq!(read(&file, 90..95).unwrap(), [2; 5]);
    assert!(file.reset(b"v3", CHUNK));
    assert_eq!(file.held(0..CHUNK), []);
}

#[test]
fn changes_without_a_new_version_are_not_saved() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let file = filled(&cache, b"v1", 1, 2 * CHUNK);
    cache.checkpoint().unwrap();
    file.write(0, b"x").unwrap();
    file.mark_clean(0..1);
    cache.checkpoint().unwrap();
    let after = open(&disk.crash(larder_io::Image::Written));
    assert_eq!(after.usage().dirty_dropped, 1);
    assert_eq!(after.file(file.number()).version(), None);
    assert_eq!(after.usage().bytes, 0);
    assert_eq!(after.usage().files, 0);
}

#[test]
fn truncation_cuts_and_extends_with_zeros() {
    let cache = open(&SimDisk::new());
    let file = filled(&cache, b"v1", 1, 2 * CHUNK);
    file.truncate(CHUNK + 10).unwrap();
    assert_eq!((file.size(), file.held(0..u64::MAX)), (CHUNK + 10, vec![0..CHUNK + 10]));
    file.truncate(2 * CHUNK).unwrap();
    let mut expected = bytes(1, 0..CHUNK + 10);
    expected.resize(2 * CHUNK as usize, 0);
    assert_eq!(read(&file, 0..2 * CHUNK), Some(expected));
    assert_eq!(file.dirty(), []);
    // A large hole is not held, and costs nothing.
    let before = cache.usage().bytes;
    file.truncate(1 << 24).unwrap();
    assert_eq!(file.held(0..u64::MAX), [0..2 * CHUNK]);
    assert_eq!(cache.usage().bytes, before);
    file.truncate(0).unwrap();
    assert_eq!(cache.usage().bytes, 0);
}

#[test]
fn discarding_changes_forgets_the_file() {
    let cache = open(&SimDisk::new());
    let file = filled(&cache, b"v1", 1, CHUNK);
    file.discard_dirty();
    assert!(file.version().is_some());
    file.write(0, b"x").unwrap();
    file.discard_dirty();
    assert_eq!((file.version(), file.size(), file.dirty()), (None, 0, vec![]));
    assert_eq!(read(&file, 0..1), None);
}

#[test]
fn new_version_of_the_same_bytes_keeps_them() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let file = filled(&cache, b"v1", 1, CHUNK);
    cache.checkpoint().unwrap();
    file.set_version(b"v2", CHUNK);
    assert_eq!(read(&file, 0..CHUNK), Some(bytes(1, 0..CHUNK)));
    cache.checkpoint().unwrap();
    let after = open(&disk.crash(larder_io::Image::Synced));
    assert_eq!(after.file(file.number()).version().as_deref(), Some(&b"v2"[..]));
    // Another size cannot be the same bytes.
    file.set_version(b"v3", CHUNK + 1);
    assert_eq!(file.held(0..u64::MAX), []);
}

#[test]
fn empty_files_are_whole() {
    let cache = Cache::in_memory(Arc::new(RealClock), Limits::in_memory()).unwrap();
    let file = cache.file(cache.assign(b"empty"));
    assert!(file.whole().is_none());
    file.reset(b"v1", 0);
    let backing = file.whole().unwrap();
    assert!(Arc::ptr_eq(&backing, &file.whole().unwrap()));
    assert!(file.begin_bypass().is_some());
    file.end_bypass().unwrap();
}

#[test]
fn culling_takes_the_oldest_and_spares_pinned_dirty_and_open() {
    let disk = Arc::new(MemDisk::new());
    let clock = Arc::new(SimClock::new());
    let mut limits = Limits::in_memory();
    limits.bytes = crate::Marks { run: 6 * CHUNK, cull: 8 * CHUNK, stop: 10 * CHUNK };
    let config = Config { limits, ..config() };
    let cache = Cache::open(disk, Arc::clone(&clock) as Arc<dyn larder_io::Clock>, config).unwrap();
    let mut files = Vec::new();
    for seed in 0..10 {
        files.push(filled(&cache, b"v1", seed, CHUNK));
        clock.advance(std::time::Duration::from_secs(4000));
    }
    let extra = cache.file(cache.assign(b"extra"));
    extra.reset(b"v1", CHUNK);
    assert_eq!(extra.fill(b"v1", 0, &bytes(0, 0..CHUNK)), Filled::Declined);
    assert_eq!(extra.write(0, b"x"), Err(crate::NoSpace));

    cache.pin(files[0].number(), true);
    files[1].write(0, b"dirty").unwrap();
    let open = files[2].whole().unwrap();
    cache.checkpoint().unwrap();
    assert_eq!(cache.usage().bytes, 6 * CHUNK);
    let held: Vec<bool> = files.iter().map(|file| !file.held(0..CHUNK).is_empty()).collect();
    assert_eq!(held, [true, true, true, false, false, false, false, true, true, true]);
    assert_eq!(cache.usage().culled, 4);
    drop(open);
    let listed = cache.list(None, 100);
    // The dirty one was never saved.
    assert_eq!(listed.len(), 5);
    assert_eq!(listed.iter().filter(|file| file.pinned).count(), 1);
    assert_eq!(cache.cull(0).files, 4);
    cache.drop_all();
    assert_eq!(cache.usage().bytes, CHUNK);
    cache.drop_file(files[1].number());
    assert_eq!((cache.usage().bytes, cache.usage().files), (0, 0));
}

#[test]
fn free_space_is_a_limit_too() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let file = filled(&cache, b"v1", 1, CHUNK);
    let space = disk.space().unwrap();
    let used = space.total_bytes - space.free_bytes;
    disk.inject(larder_io::Fault::SpaceBytes(used + used / 100));
    let other = cache.file(cache.assign(b"other"));
    other.reset(b"v1", 1 << 27);
    // The free space is asked for again after a while.
    let mut declined = false;
    for at in 0..5000 {
        declined |= other.fill(b"v1", at * CHUNK, &[1; CHUNK as usize]) == Filled::Declined;
    }
    assert!(declined);
    assert_eq!(read(&file, 0..CHUNK), Some(bytes(1, 0..CHUNK)));
}

#[test]
fn real_disk_keeps_files_whole_and_notices_a_foreign_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    std::fs::create_dir(&path).unwrap();
    let open = || {
        let disk = Arc::new(RealDisk::open(&path).unwrap());
        Cache::open(disk, Arc::new(RealClock), config()).unwrap()
    };
    let cache = open();
    let file = filled(&cache, b"v1", 1, 3 * CHUNK);
    let no = file.number();
    drop(file);
    cache.close().unwrap();
    let cache = open();
    let file = cache.file(no);
    let backing = file.whole().unwrap();
    assert_eq!(cache.usage().bad_chunks, 0);
    let mut buf = vec![0; 100];
    rustix::io::pread(&*backing, &mut buf, CHUNK).unwrap();
    assert_eq!(buf, bytes(1, CHUNK..CHUNK + 100));
    drop((file, backing));
    cache.close().unwrap();

    let local = walk(&path.join("data"));
    let mut damaged = std::fs::read(&local).unwrap();
    damaged[CHUNK as usize] ^= 1;
    std::fs::write(&local, damaged).unwrap();
    let cache = open();
    let file = cache.file(no);
    assert!(file.whole().is_none());
    assert_eq!(file.held(0..u64::MAX), [0..CHUNK, 2 * CHUNK..3 * CHUNK]);
    assert_eq!(cache.usage().bad_chunks, 1);
}

fn walk(dir: &std::path::Path) -> std::path::PathBuf {
    let sub = std::fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
    std::fs::read_dir(sub).unwrap().next().unwrap().unwrap().path()
}

#[test]
fn verify_reads_everything_and_forgets_what_is_bad() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let file = filled(&cache, b"v1", 1, 5 * CHUNK);
    filled(&cache, b"v1", 2, CHUNK);
    cache.checkpoint().unwrap();
    let report = cache.verify(&mut |_| true);
    assert_eq!((report.files, report.chunks, report.bad.len()), (2, 6, 0));
    let path = data_path_of(&disk, file.number());
    disk.corrupt(&path, 2 * CHUNK + 1, 3);
    let report = cache.verify(&mut |_| true);
    assert_eq!(report.bad, [(file.number(), 2)]);
    assert_eq!(read(&file, 2 * CHUNK..3 * CHUNK), None);
    fill(&file, b"v1", 1, 2 * CHUNK..3 * CHUNK);
    assert!(whole(&file).is_some());
    assert_eq!(cache.verify(&mut |_| false).files, 1);
}

#[test]
fn a_change_of_a_damaged_chunk_does_not_hide_the_damage() {
    let (a, b) = (3 * CHUNK + 100, 3 * CHUNK + 200);
    type Change = fn(&CachedFile);
    let changes: [Change; 3] = [
        |file| file.write(3 * CHUNK + 100, &[9; 100]).unwrap(),
        |file| file.truncate(3 * CHUNK + 200).unwrap(),
        |file| file.truncate(5 * CHUNK).unwrap(),
    ];
    for change in changes {
        let disk = SimDisk::new();
        let cache = open(&disk);
        let no = filled(&cache, b"v1", 1, 4 * CHUNK - 1).number();
        cache.close().unwrap();
        disk.corrupt(&data_path_of(&disk, no), 3 * CHUNK + 5, 0);
        let cache = open(&disk);
        let file = cache.file(no);
        change(&file);
        assert_eq!(read(&file, 3 * CHUNK..3 * CHUNK + 10), None);
        assert_eq!(read(&file, 0..CHUNK), Some(bytes(1, 0..CHUNK)));
        if !file.dirty().is_empty() {
            assert_eq!(read(&file, a..b).unwrap(), [9; 100]);
        }
    }
}

fn data_path_of(disk: &SimDisk, no: FileNo) -> String {
    let prefix = format!("data/{:02x}/{:x}.", no.0 & 0xff, no.0);
    let files = disk.files();
    files.into_iter().find(|(path, _)| path.starts_with(&prefix)).unwrap().0
}

#[test]
fn after_close_everything_is_a_miss() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let file = filled(&cache, b"v1", 1, CHUNK);
    let other = cache.clone();
    cache.close().unwrap();
    assert_eq!(read(&file, 0..CHUNK), None);
    assert_eq!(file.fill(b"v1", 0, b"x"), Filled::Declined);
    assert!(file.write(0, b"x").is_err());
    assert!(whole(&file).is_none());
    assert!(matches!(other.checkpoint(), Err(crate::CacheError::Closed)));
    assert!(other.close().is_err());
    // The directory is free for the next process although a file is still held here.
    let again = open(&disk);
    assert_eq!(read(&again.file(file.number()), 0..CHUNK), Some(bytes(1, 0..CHUNK)));
}

#[test]
fn only_so_many_files_are_handed_out_as_there_are_descriptors_for() {
    let descriptors = Descriptors { pooled_max: 4, handed_out_max: 2 };
    let config = Config { descriptors, ..config() };
    let disk: Arc<dyn Disk> = Arc::new(larder_io::MemDisk::new());
    let cache = Cache::open(disk, Arc::new(SimClock::new()), config).unwrap();
    let files: Vec<_> = (0..3).map(|seed| filled(&cache, b"v", seed, CHUNK)).collect();
    let first = files[0].whole().unwrap();
    let second = files[1].begin_bypass().unwrap();
    assert!(files[2].whole().is_none() && files[2].begin_bypass().is_none());
    assert!(files[0].whole().is_some(), "it has its descriptor");
    assert!(files[2].go_on_bypassing().is_some(), "the kernel has it already");
    assert!(files[2].whole().is_none(), "and gave it back");
    drop(first);
    assert!(files[2].whole().is_some());
    drop(second);
}

/// The state of a file that was open stays in memory, so that its next open reads nothing; the
/// cache ends all the same.
#[test]
fn the_state_of_a_closed_file_stays_for_a_while() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let (closed, never_open) = (filled(&cache, b"v", 1, 100), filled(&cache, b"v", 2, 100));
    drop(closed.hold());
    let states = [Arc::downgrade(&closed), Arc::downgrade(&never_open)];
    let numbers = [closed.number(), never_open.number()];
    drop((closed, never_open));
    cache.checkpoint().unwrap();
    let are_loaded = || states.each_ref().map(|state| state.strong_count() > 0);
    assert_eq!(are_loaded(), [true, false]);
    drop(cache.store.still_loaded.shed());
    assert_eq!(are_loaded(), [true, false], "it was closed since the last time");
    drop(cache.store.still_loaded.shed());
    assert_eq!(are_loaded(), [false, false]);
    for (seed, no) in [1, 2].into_iter().zip(numbers) {
        assert_eq!(read(&cache.file(no), 0..100), Some(bytes(seed, 0..100)));
    }
    let last = cache.file(numbers[0]);
    drop(last.hold());
    let state = Arc::downgrade(&last);
    drop(last);
    assert_eq!(state.strong_count(), 1);
    drop(cache);
    assert_eq!(state.strong_count(), 0, "a cache that ends keeps none");
    open(&disk);
}

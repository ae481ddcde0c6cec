//! What people ask of a cache: to verify, to list, to stay within limits, and to end with the
//! process.

use std::time::Duration;

use larder_io::{Clock, Disk, Image};

use super::*;
use crate::pool::data_path;
use crate::{Limits, Marks, VerifyProgress};

/// Files of one, two and three chunks, saved.
fn three(disk: &SimDisk) -> (Cache, Vec<Arc<CachedFile>>) {
    let cache = open(disk);
    let files = (1..4).map(|seed| filled(&cache, b"v1", seed, seed * CHUNK)).collect();
    cache.checkpoint().unwrap();
    (cache, files)
}

/// Progress is reported after each file, and the callback can stop the run.
#[test]
fn verifying_tells_its_progress_and_stops_when_it_is_told_to() {
    let (cache, _files) = three(&SimDisk::new());
    for stop_after in 1..=3 {
        let mut told = Vec::new();
        let report = cache.verify(&mut |progress| {
            told.push(progress);
            progress.files < stop_after
        });
        let chunks = [1, 3, 6][stop_after as usize - 1];
        assert_eq!((report.files, report.chunks, report.bad.len()), (stop_after, chunks, 0));
        assert_eq!(told.len() as u64, stop_after);
        let last = VerifyProgress { files: stop_after, bytes: chunks * CHUNK };
        assert_eq!(told.last(), Some(&last));
    }
}

/// (which chunk of which file is damaged) Verifying finds it even if this run has verified it
/// before, forgets that chunk alone, and finds nothing the next time.
#[test]
fn each_damaged_chunk_is_found_and_forgotten_alone() {
    for damaged in 0..3_u64 {
        for chunk in 0..=damaged {
            let disk = SimDisk::new();
            let (cache, files) = three(&disk);
            let file = &files[damaged as usize];
            let size = file.size();
            assert!(read(file, 0..size).is_some(), "this run trusts all of it");
            let path = data_path(file.number(), file.local_number());
            disk.corrupt(&path, chunk * CHUNK + 77, 3);
            let report = cache.verify(&mut |_| true);
            assert_eq!(report.bad, [(file.number(), chunk)]);
            assert_eq!((report.files, report.chunks), (3, 6), "all others were read too");
            let held: u64 = file.held(0..size).iter().map(|range| range.end - range.start).sum();
            assert_eq!(held, size - CHUNK);
            assert_eq!(read(file, chunk * CHUNK..(chunk + 1) * CHUNK), None);
            assert_eq!(cache.usage().bad_chunks, 1);
            assert_eq!(cache.usage().bytes, 5 * CHUNK);
            assert_eq!(cache.verify(&mut |_| true).bad, []);
            // What is fetched again is held again, even after a crash.
            fill(file, b"v1", damaged + 1, 0..size);
            cache.checkpoint().unwrap();
            let after = open(&disk.crash(Image::Synced));
            let wanted = bytes(damaged + 1, 0..size);
            assert_eq!(read(&after.file(file.number()), 0..size), Some(wanted));
        }
    }
}

/// A file that is used is culled after those that are not, even if the use was in another run.
#[test]
fn what_was_used_last_is_culled_last() {
    for restarts in [false, true] {
        for used in 0..3 {
            let (disk, clock) = (SimDisk::new(), Arc::new(SimClock::new()));
            let open = |disk: &SimDisk| {
                let clock = Arc::clone(&clock) as Arc<dyn Clock>;
                Cache::open(Arc::new(disk.clone()), clock, config()).unwrap()
            };
            let mut cache = open(&disk);
            let numbers: Vec<FileNo> =
                (1..4).map(|seed| filled(&cache, b"v1", seed, CHUNK).number()).collect();
            cache.checkpoint().unwrap();
            clock.advance(Duration::from_secs(2 * 3600));
            cache.file(numbers[used]).touch();
            if restarts {
                cache.close().unwrap();
                cache = open(&disk);
            }
            assert_eq!(cache.cull(CHUNK).files, 2);
            for (at, no) in numbers.iter().enumerate() {
                let is_held = !cache.file(*no).held(0..1).is_empty();
                assert_eq!(is_held, at == used, "used {used}, restarts: {restarts}");
            }
        }
    }
}

/// A cache in memory works like others, within its own limits.
#[test]
fn a_cache_in_memory_holds_what_its_limits_allow() {
    let (small, files) = (Marks::below(10 * CHUNK), Marks { run: 2, cull: 3, stop: 4 });
    let limits = Limits { bytes: small, files, ..Limits::in_memory() };
    // As Cache::in_memory, but without a thread that culls at any time.
    let disk = Arc::new(larder_io::MemDisk::new());
    let config = Config { limits, ..config() };
    let cache = Cache::open(disk, Arc::new(SimClock::new()), config).unwrap();
    let held: Vec<_> = (1..5).map(|seed| filled(&cache, b"v1", seed, CHUNK)).collect();
    for (seed, file) in (1..).zip(&held) {
        assert_eq!(read(file, 0..CHUNK), Some(bytes(seed, 0..CHUNK)));
    }
    // The fifth is one too many until some are culled.
    let fifth = cache.file(cache.assign(b"fifth"));
    fifth.reset(b"v1", CHUNK);
    assert_eq!(fifth.fill(b"v1", 0, &bytes(5, 0..CHUNK)), Filled::Declined);
    assert_eq!(fifth.held(0..CHUNK), []);
    assert_eq!(cache.usage().files, 4);
    drop(held);
    cache.checkpoint().unwrap();
    assert_eq!(cache.usage().files, 2, "down to the mark");
    assert_eq!(fifth.fill(b"v1", 0, &bytes(5, 0..CHUNK)), Filled::Stored);
    // A file that is longer than the limit is held as far as there is room.
    let long = cache.file(cache.assign(b"long"));
    long.reset(b"v1", 20 * CHUNK);
    let mut stored = 0;
    for chunk in 0..20 {
        let range = chunk * CHUNK..(chunk + 1) * CHUNK;
        stored += u64::from(long.fill(b"v1", range.start, &bytes(6, range)) == Filled::Stored);
    }
    assert_eq!(stored, 7, "beside three others");
    assert_eq!(cache.usage().bytes, 10 * CHUNK);
}

/// No call on a closed cache does harm, least of all to the process that has the directory by then.
#[test]
fn a_closed_cache_touches_nothing_any_more() {
    let disk = SimDisk::new();
    let (cache, files) = three(&disk);
    cache.clone().close().unwrap();
    let next = open(&disk);
    let before = (disk.files(), next.usage().bytes);
    let file = &files[0];
    assert_eq!(file.fill(b"v1", 0, &bytes(9, 0..CHUNK)), Filled::Declined);
    assert!(file.write(0, b"x").is_err() && file.truncate(5).is_err());
    assert_eq!((read(file, 0..1), file.held(0..CHUNK)), (None, vec![]));
    assert!(file.reset(b"v9", 10) && file.set_version(b"v10", 10));
    file.discard_dirty();
    cache.pin(file.number(), true);
    cache.put_node(file.number(), b"late");
    cache.drop_all();
    assert_eq!(cache.cull(0).files, 0);
    assert!(cache.checkpoint().is_err());
    assert!(cache.close().is_err());
    drop(files);
    assert_eq!((disk.files(), next.usage().bytes), before);
    for seed in 1..4_u64 {
        let file = next.file(next.number_of(&seed.to_le_bytes()).unwrap());
        assert_eq!(file.version().as_deref(), Some(&b"v1"[..]));
        let size = seed * CHUNK;
        assert_eq!(read(&file, 0..size), Some(bytes(seed, 0..size)));
        assert_eq!(next.node(file.number()), None);
    }
    assert!(disk.space().is_ok());
    next.close().unwrap();
}

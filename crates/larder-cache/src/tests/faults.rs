//! A disk that fails: readers see misses, writers get errors, nothing else happens.

use larder_io::{Disk, Fault, Image};

use super::*;

/// Uses a cache in every way; whatever is read must be right.
fn use_cache(cache: &Cache, round: u64) {
    for seed in 0..4 {
        let no = cache.assign(&(round * 10 + seed).to_le_bytes());
        let file = cache.file(no);
        file.reset(b"v1", 2 * CHUNK);
        let data = bytes(seed, 0..2 * CHUNK);
        let _ = file.fill(b"v1", 0, &data);
        let _ = cache.checkpoint();
        if let Some(found) = read(&file, 0..2 * CHUNK) {
            assert!(found == data);
        }
        let written = file.write(5, b"local").is_ok();
        if let (true, Some(found)) = (written, read(&file, 5..10)) {
            assert_eq!(found, b"local");
        }
        file.mark_clean(0..u64::MAX);
        file.set_version(b"v2", 2 * CHUNK);
        drop(whole(&file));
        cache.put_node(no, b"node");
        if let Some(node) = cache.node(no) {
            assert_eq!(node, b"node");
        }
    }
}

/// What a crash leaves after the faults must still be right.
fn check_after(disk: &SimDisk, round: u64) {
    let cache = open(&disk.crash(Image::Torn(round)));
    for seed in 0..4 {
        let Some(no) = cache.number_of(&(round * 10 + seed).to_le_bytes()) else { continue };
        let file = cache.file(no);
        let mut expected = bytes(seed, 0..2 * CHUNK);
        match file.version().as_deref() {
            Some(b"v1") => (),
            Some(b"v2") => expected[5..10].copy_from_slice(b"local"),
            other => {
                assert_eq!(other, None);
                continue;
            }
        }
        for range in file.held(0..2 * CHUNK) {
            if let Some(found) = read(&file, range.clone()) {
                assert!(found == expected[range.start as usize..range.end as usize]);
            }
        }
    }
}

#[test]
fn one_io_error_anywhere_does_no_harm() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let start = disk.operations();
    use_cache(&cache, 0);
    let operations = disk.operations() - start;
    for number in 1..=operations {
        let disk = SimDisk::new();
        let cache = open(&disk);
        disk.inject(Fault::EioAt(disk.operations() + number));
        use_cache(&cache, 0);
        disk.heal();
        check_after(&disk, 0);
    }
}

#[test]
fn a_dead_disk_gives_misses_and_the_next_open_works() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    use_cache(&cache, 0);
    disk.inject(Fault::EioFrom(0));
    use_cache(&cache, 1);
    assert!(cache.checkpoint().is_err());
    assert!(cache.usage().poisoned);
    // One key keeps one number for as long as the cache is open.
    let no = cache.assign(b"after");
    assert_eq!(cache.assign(b"after"), no);
    assert_eq!(cache.key_of(no).unwrap(), b"after");
    assert_eq!(cache.file(no).fill(b"v1", 0, b"x"), Filled::Declined);
    assert!(cache.close().is_err());
    assert!(matches!(try_open(&disk), Err(OpenError::Unwritable(_))));
    disk.heal();
    check_after(&disk, 0);
}

#[test]
fn a_full_disk_declines_and_goes_on_reading() {
    let disk = SimDisk::new();
    let cache = open_with(&disk, at_once());
    let kept = filled(&cache, b"v1", 77, CHUNK);
    cache.checkpoint().unwrap();
    let space = disk.space().unwrap();
    let used = space.total_bytes - space.free_bytes;
    disk.inject(Fault::SpaceBytes(used + CHUNK / 2));
    let file = cache.file(cache.assign(b"more"));
    file.reset(b"v1", 4 * CHUNK);
    assert_eq!(file.fill(b"v1", 0, &bytes(1, 0..CHUNK)), Filled::Declined);
    assert_eq!(file.write(0, &bytes(1, 0..CHUNK)), Err(crate::NoSpace));
    assert_eq!(read(&kept, 0..CHUNK), Some(bytes(77, 0..CHUNK)));
    use_cache(&cache, 3);
    disk.heal();
    check_after(&disk, 3);
}

#[test]
fn without_descriptors_the_pool_shrinks() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let files: Vec<_> = (0..40).map(|seed| filled(&cache, b"v1", seed, CHUNK)).collect();
    cache.checkpoint().unwrap();
    disk.inject(Fault::OpenFiles(20));
    for (seed, file) in (0..40).zip(&files) {
        assert_eq!(read(file, 0..CHUNK), Some(bytes(seed, 0..CHUNK)));
    }
    // None at all: misses, and nothing is forgotten.
    disk.inject(Fault::OpenFiles(0));
    assert_eq!(
        files.iter().filter(|file| read(file, 0..CHUNK).is_none()).count(),
        40 - open_now(&cache)
    );
    disk.heal();
    for (seed, file) in (0..40).zip(&files) {
        assert_eq!(read(file, 0..CHUNK), Some(bytes(seed, 0..CHUNK)));
    }
    assert_eq!(cache.usage().bad_chunks, 0);
}

fn open_now(cache: &Cache) -> usize {
    let store = Arc::clone(&cache.file(number(u64::MAX)).store);
    store.pool.count()
}

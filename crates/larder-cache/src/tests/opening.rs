//! Which caches may be opened by whom, and what an open finds.

use larder_io::{Disk, Image, OpenMode};

use super::*;

#[test]
fn a_cache_in_use_is_refused_by_pid() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    match try_open(&disk) {
        Err(OpenError::InUse { pid }) => assert_eq!(pid, std::process::id()),
        other => panic!("{other:?}"),
    }
    drop(cache);
    open(&disk);
}

#[test]
fn another_format_is_refused() {
    let disk = SimDisk::new();
    open(&disk).close().unwrap();
    for format in ["larder cache format 2", "larder cache format 23"] {
        let file = disk.open("larder-cache", OpenMode::Existing).unwrap();
        file.set_len(0).unwrap();
        let sum = crc32c::crc32c(format!("{format}\nvolume 01").as_bytes());
        file.write_at(format!("{format}\nvolume 01\ncheck {sum:08x}\nmore\n").as_bytes(), 0)
            .unwrap();
        let error = try_open(&disk).unwrap_err();
        assert!(matches!(&error, OpenError::WrongVersion { found, .. } if found == format));
        assert!(error.to_string().contains("never sent"), "{error}");
    }
}

#[test]
fn a_label_without_checksums_is_read_and_written_anew() {
    let disk = SimDisk::new();
    open(&disk).close().unwrap();
    let file = disk.open("larder-cache", OpenMode::Existing).unwrap();
    let new = disk.files().into_iter().find(|(path, _)| path == "larder-cache").unwrap().1;
    let old = b"larder cache format 1\nvolume 766f6c756d65\n";
    file.set_len(0).unwrap();
    file.write_at(old, 0).unwrap();
    open(&disk).close().unwrap();
    let after = disk.files().into_iter().find(|(path, _)| path == "larder-cache").unwrap().1;
    assert_eq!(after, new);
}

#[test]
fn a_flipped_bit_in_the_label_is_told_from_another_format() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let no = filled(&cache, b"v1", 1, CHUNK).number();
    cache.close().unwrap();
    let label = || disk.open("larder-cache", OpenMode::Existing).unwrap();
    let mut sound = vec![0; usize::try_from(label().len().unwrap()).unwrap()];
    label().read_exact_at(&mut sound, 0).unwrap();
    // The digit of the format.
    let digit = sound.iter().position(|byte| *byte == b'1').unwrap();
    let mut damaged = sound.clone();
    damaged[digit] = b'3';
    label().write_at(&damaged, 0).unwrap();
    let cache = open(&disk);
    assert!(cache.file(no).version().is_some());
    cache.close().unwrap();
    let mut healed = vec![0; sound.len()];
    label().read_exact_at(&mut healed, 0).unwrap();
    assert_eq!(healed, sound);
    let second = digit + sound.len() / 2 + 1;
    damaged[second] = b'3';
    label().write_at(&damaged, 0).unwrap();
    let error = try_open(&disk).map(|_| ()).unwrap_err();
    assert!(matches!(error, OpenError::DamagedHead), "{error}");
    assert!(error.to_string().contains("never sent"), "{error}");
}

#[test]
fn another_volume_and_another_directory_are_refused() {
    let disk = SimDisk::new();
    open(&disk).close().unwrap();
    let other = Config { identity: b"other".to_vec(), ..config() };
    let opened = Cache::open(Arc::new(disk.clone()), Arc::new(SimClock::new()), other);
    assert!(matches!(opened, Err(OpenError::OtherVolume { .. })));
    // The refusal changes nothing: the next start is a clean one.
    open(&disk).close().unwrap();
    assert!(disk.files().iter().any(|(path, _)| path == "clean"));

    let disk = SimDisk::new();
    disk.open("thesis.txt", OpenMode::Create).unwrap();
    assert!(matches!(try_open(&disk), Err(OpenError::NotACache)));
}

#[test]
fn first_start_may_be_cut_short_anywhere() {
    let disk = SimDisk::recording();
    drop(open(&disk));
    for point in disk.crash_points() {
        for image in [Image::Synced, Image::Written, Image::Torn(1)] {
            let cache = open(&point.image(image));
            cache.put_node(FileNo::ROOT, b"record");
            cache.checkpoint().unwrap();
        }
    }
}

#[test]
fn numbers_are_never_given_again() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let first = cache.assign(b"first");
    assert_eq!(cache.assign(b"first"), first);
    assert_ne!(first, FileNo::ROOT);
    cache.checkpoint().unwrap();
    let lost = cache.assign(b"lost in the crash");
    let after = open(&disk.crash(Image::Synced));
    assert_eq!(after.number_of(b"lost in the crash"), None);
    assert_eq!(after.assign(b"first"), first);
    assert!(after.assign(b"another") > lost);
}

#[test]
fn orphans_are_swept_after_an_unclean_stop() {
    let disk = SimDisk::new();
    let cache = open_with(&disk, at_once());
    let kept = filled(&cache, b"v1", 1, CHUNK);
    cache.checkpoint().unwrap();
    for seed in 2..20 {
        filled(&cache, b"v1", seed, CHUNK);
    }
    let image = disk.crash(Image::Written);
    let count =
        |disk: &SimDisk| disk.files().iter().filter(|(path, _)| path.starts_with("data/")).count();
    assert_eq!(count(&image), 19);
    let after = open(&image);
    let young = filled(&after, b"v1", 99, CHUNK);
    for _ in 0..16 {
        after.checkpoint().unwrap();
    }
    assert_eq!(after.usage().orphans_removed, 18);
    assert_eq!(count(&image), 2);
    assert_eq!(read(&after.file(kept.number()), 0..CHUNK), Some(bytes(1, 0..CHUNK)));
    assert_eq!(read(&young, 0..CHUNK), Some(bytes(99, 0..CHUNK)));
}

#[test]
fn touched_index_is_checked_and_an_unusable_one_starts_over() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let file = filled(&cache, b"v1", 1, CHUNK);
    let no = file.number();
    drop(file);
    cache.close().unwrap();
    let index = disk.open("index.redb", OpenMode::Existing).unwrap();
    index.write_at(&[0x55; 4096], 0).unwrap();
    let cache = open(&disk);
    assert_eq!(cache.file(no).version(), None);
    assert!(cache.assign(b"new") > no);
    assert!(!cache.usage().poisoned);
}

#[test]
fn background_thread_saves() {
    let disk = SimDisk::new();
    let config =
        Config { checkpoint_interval: Some(std::time::Duration::from_millis(1)), ..config() };
    let opened = Cache::open(Arc::new(disk.clone()), Arc::new(SimClock::new()), config);
    let cache = opened.unwrap();
    let file = filled(&cache, b"v1", 1, CHUNK);
    let store = Arc::clone(&file.store);
    let is_saved = || crate::lock(&store.unsaved).is_empty() && store.index.waiting().0 == 0;
    while !is_saved() {
        // Polling without a pause would keep the other thread from its locks.
        std::thread::park_timeout(std::time::Duration::from_millis(1));
    }
    let after = open(&disk.crash(Image::Synced));
    assert_eq!(read(&after.file(file.number()), 0..CHUNK), Some(bytes(1, 0..CHUNK)));
    cache.close().unwrap();
    let after = open(&disk);
    assert_eq!(read(&after.file(file.number()), 0..CHUNK), Some(bytes(1, 0..CHUNK)));
}

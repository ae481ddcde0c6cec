//! Short local files that wait to be removed.

use larder_io::{Disk, Fault, Image};

use super::calls::counting;
use super::*;

const SIZE: u64 = 4000;

fn data_files(disk: &SimDisk) -> usize {
    disk.files().iter().filter(|(path, _)| path.starts_with("data/")).count()
}

/// A cache on `disk` with so many files of `size` bytes, which are on the disk.
fn with_files(disk: &SimDisk, count: u64, size: u64) -> (Cache, Vec<FileNo>) {
    let cache = open(disk);
    let files = (0..count).map(|seed| filled(&cache, b"v1", seed, size).number()).collect();
    cache.checkpoint().unwrap();
    (cache, files)
}

/// Who drops a file waits for no call of the disk.
#[test]
fn short_files_that_are_dropped_cost_no_call_of_the_disk_until_the_checkpoint() {
    const FILES: u64 = 100;
    let disk = counting();
    let cache = try_open(&disk).unwrap();
    let files: Vec<_> = (0..FILES).map(|seed| filled(&cache, b"v1", seed, SIZE).number()).collect();
    cache.checkpoint().unwrap();
    disk.take();
    for no in &files {
        cache.drop_file(*no);
        assert_eq!(cache.file(*no).held(0..SIZE), []);
    }
    assert_eq!((disk.take().as_str(), cache.usage().files), ("", 0));
    cache.checkpoint().unwrap();
    let calls = disk.take();
    assert!(calls.split(' ').any(|call| call == format!("remove*{FILES}")), "{calls}");
    cache.checkpoint().unwrap();
    let calls = disk.take();
    assert!(!calls.contains("remove"), "{calls}");
}

/// Whatever drops the room of a long file, or culls, has it at once.
#[test]
fn long_files_and_culled_ones_leave_the_disk_at_once() {
    let disk = SimDisk::new();
    let (cache, files) = with_files(&disk, 2, 1 << 20);
    assert_eq!(data_files(&disk), 2);
    cache.drop_file(files[0]);
    assert_eq!(data_files(&disk), 1);
    let (cache, files) = with_files(&SimDisk::new(), 1, SIZE);
    assert!(cache.cull_file(files[0]) > 0);
    assert_eq!(cache.store.removals.count(), 0);
}

/// A file that is made anew while its former local file waits has its own.
#[test]
fn a_file_that_comes_back_keeps_its_new_local_file() {
    let disk = SimDisk::new();
    let (cache, files) = with_files(&disk, 1, SIZE);
    cache.drop_file(files[0]);
    let file = cache.file(files[0]);
    file.reset(b"v2", 0);
    file.write(0, &bytes(2, 0..SIZE)).unwrap();
    assert_eq!(data_files(&disk), 2);
    cache.checkpoint().unwrap();
    assert_eq!(data_files(&disk), 1);
    assert!(read(&file, 0..SIZE) == Some(bytes(2, 0..SIZE)));
}

/// A close leaves nothing behind, and a crash what the next process removes.
#[test]
fn nothing_that_waits_is_left_behind() {
    let disk = SimDisk::new();
    let (cache, files) = with_files(&disk, 3, SIZE);
    for no in &files {
        cache.drop_file(*no);
    }
    assert_eq!(data_files(&disk), 3);
    let crashed = disk.crash(Image::Written);
    cache.close().unwrap();
    assert_eq!(data_files(&disk), 0);
    let after = open(&crashed);
    for no in &files {
        // The crash came before the checkpoint that would have put the removal on record.
        after.drop_file(*no);
    }
    for _ in 0..32 {
        after.checkpoint().unwrap();
    }
    assert_eq!(data_files(&crashed), 0);
}

/// No more wait than may, and none while the disk has no room for what is new.
#[test]
fn few_wait_and_none_on_a_full_disk() {
    let disk = SimDisk::new();
    let (cache, files) = with_files(&disk, 5000, 100);
    for no in &files {
        cache.drop_file(*no);
    }
    let waiting = cache.store.removals.count();
    assert!((1..=4096).contains(&waiting), "{waiting}");
    assert_eq!(data_files(&disk), waiting);

    let disk = SimDisk::new();
    disk.inject(Fault::SpaceBytes(64 << 20));
    let (cache, files) = with_files(&disk, 1, SIZE);
    let others = disk.open("others", larder_io::OpenMode::Create).unwrap();
    others.allocate(disk.space().unwrap().free_bytes - (64 << 10)).unwrap();
    cache.store.gauge.room_changed();
    cache.drop_file(files[0]);
    assert_eq!((cache.store.removals.count(), data_files(&disk)), (0, 0));
}

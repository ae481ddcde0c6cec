//! Short files that wait in memory to be written.

use larder_io::{Disk, Fault, Image, OpenMode};
use proptest::prelude::*;

use super::calls::counting;
use super::*;

const SIZE: u64 = 4000;

fn data_files(disk: &SimDisk) -> usize {
    disk.files().iter().filter(|(path, _)| path.starts_with("data/")).count()
}

/// A file costs the disk nothing until the checkpoint, and then only one open.
#[test]
fn short_files_cost_no_call_of_the_disk_until_the_checkpoint() {
    const FILES: u64 = 100;
    let disk = counting();
    let cache = try_open(&disk).unwrap();
    disk.take();
    let files: Vec<_> = (0..FILES).map(|seed| filled(&cache, b"v1", seed, SIZE)).collect();
    for (seed, file) in (0..).zip(&files) {
        assert!(file.fills_quickly() && file.version().is_some());
        assert!(read(file, 0..SIZE) == Some(bytes(seed, 0..SIZE)));
    }
    assert_eq!(disk.take(), "");
    cache.checkpoint().unwrap();
    let written = format!("open*{FILES} stamp*{FILES} sync_all*1 sync_index*2 write*{FILES}");
    assert_eq!(disk.take(), written);
    assert_eq!(cache.store.unwritten.bytes(), 0);
    assert!(read(&files[7], 0..SIZE) == Some(bytes(7, 0..SIZE)));
    assert_eq!(disk.take(), "read*1");
}

/// The process dies at any time: before the checkpoint a clean file is a miss and leaves nothing
/// behind, after it all is there.
#[test]
fn what_waits_is_a_miss_after_a_crash_and_what_was_saved_is_not() {
    for kind in [Image::Synced, Image::Written] {
        let disk = SimDisk::new();
        let cache = open(&disk);
        let saved = filled(&cache, b"v1", 1, SIZE).number();
        cache.checkpoint().unwrap();
        let lost = filled(&cache, b"v1", 2, SIZE).number();
        assert_eq!(data_files(&disk), 1);
        let after = open(&disk.crash(kind));
        assert!(read(&after.file(saved), 0..SIZE) == Some(bytes(1, 0..SIZE)), "{kind:?}");
        assert_eq!(after.file(lost).held(0..SIZE), [], "{kind:?}");
        assert!(read(&cache.file(lost), 0..SIZE) == Some(bytes(2, 0..SIZE)));
    }
}

/// A change of a file, or passing it to the kernel, puts it on the disk first: changes survive the
/// process.
#[test]
fn a_local_change_finds_its_file_on_the_disk() {
    type Change = fn(&CachedFile) -> Vec<u8>;
    let write: Change = |file| {
        file.write(10, b"local").unwrap();
        [&bytes(1, 0..10)[..], b"local", &bytes(1, 15..SIZE)].concat()
    };
    let cut: Change = |file| {
        file.truncate(100).unwrap();
        bytes(1, 0..100)
    };
    let kernel: Change = |file| {
        begin_bypass(file).unwrap().write_at(b"kernel", 0).unwrap();
        [b"kernel", &bytes(1, 6..SIZE)[..]].concat()
    };
    let opened: Change = |file| {
        whole(file).unwrap();
        bytes(1, 0..SIZE)
    };
    for (name, change) in [("write", write), ("cut", cut), ("kernel", kernel), ("opened", opened)] {
        let disk = SimDisk::new();
        let cache = open(&disk);
        let file = filled(&cache, b"v1", 1, SIZE);
        assert_eq!(data_files(&disk), 0);
        let expected = change(&file);
        let path = crate::pool::data_path(file.number(), file.local_number());
        let local = disk.open(&path, OpenMode::Existing).unwrap();
        let mut found = vec![0; expected.len()];
        local.read_exact_at(&mut found, 0).unwrap();
        assert!(found == expected && local.len().unwrap() == expected.len() as u64, "{name}");
        assert_eq!(cache.store.unwritten.bytes(), 0, "{name}");
        assert_eq!(read(&file, 0..expected.len() as u64), Some(expected), "{name}");
    }
}

/// Files beyond the bound are written at once; a checkpoint is requested before that.
#[test]
fn no_more_waits_than_was_said() {
    let disk = SimDisk::new();
    let cache = open_with(&disk, Config { unwritten_bytes_max: 10 * SIZE, ..config() });
    let mut files = Vec::new();
    for seed in 0..20_u64 {
        assert_eq!(cache.store.bell.is_rung(), seed > 5, "{seed}");
        assert_eq!(data_files(&disk), (files.len() as u64).saturating_sub(10) as usize);
        files.push(filled(&cache, b"v1", seed, SIZE));
        assert!(cache.store.unwritten.bytes() <= 10 * SIZE);
    }
    let long = filled(&cache, b"v1", 20, 70 << 10);
    assert!(!long.fills_quickly());
    assert_eq!(data_files(&disk), 11);
    cache.checkpoint().unwrap();
    assert_eq!((cache.store.unwritten.bytes(), data_files(&disk)), (0, 21));
    for (seed, file) in (0..).zip(&files) {
        assert!(read(file, 0..SIZE) == Some(bytes(seed, 0..SIZE)));
    }
}

/// A file that is forgotten before it was written was never on the disk, and is in no account.
#[test]
fn what_is_forgotten_in_time_is_never_written() {
    let disk = counting();
    let cache = try_open(&disk).unwrap();
    let gone: [fn(&Cache, Arc<CachedFile>); 4] = [
        |cache, file| cache.drop_file(file.number()),
        |_, file| assert!(file.reset(b"v2", 5)),
        |cache, file| {
            // It is not open.
            drop(file);
            cache.drop_all();
        },
        |_, file| file.drop_content(&mut file.state()),
    ];
    for (seed, gone) in (0..).zip(gone) {
        let file = filled(&cache, b"v1", seed, SIZE);
        assert_eq!((cache.usage().bytes, cache.usage().files), (CHUNK, 1));
        gone(&cache, file);
        assert_eq!((cache.usage().bytes, cache.usage().files), (0, 0), "{seed}");
        assert_eq!(cache.store.unwritten.bytes(), 0, "{seed}");
    }
    cache.checkpoint().unwrap();
    assert!(!disk.take().contains("open"));
}

/// If the disk fills up in the meantime, the unwritten files are lost, which causes only misses.
#[test]
fn a_disk_that_is_full_at_the_checkpoint_costs_misses() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let kept = filled(&cache, b"v1", 1, SIZE);
    // A full disk is relieved of files that are not open.
    let _open = kept.hold();
    cache.checkpoint().unwrap();
    let lost = filled(&cache, b"v1", 2, SIZE);
    let changed = filled(&cache, b"v1", 3, SIZE);
    let space = disk.space().unwrap();
    disk.inject(Fault::SpaceBytes(space.total_bytes - space.free_bytes));
    assert_eq!(changed.write(0, b"local"), Err(crate::NoSpace));
    assert!(read(&lost, 0..SIZE) == Some(bytes(2, 0..SIZE)), "it is in memory yet");
    let _ = cache.checkpoint();
    assert_eq!((read(&lost, 0..SIZE), lost.version()), (None, Some(b"v1".to_vec())));
    assert!(read(&kept, 0..SIZE) == Some(bytes(1, 0..SIZE)));
    assert_eq!((cache.usage().bytes, cache.store.unwritten.bytes()), (CHUNK, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// A file in memory behaves like any other: it reads as what was filled, before it is written
    /// out, after that, and after another start.
    #[test]
    fn a_file_in_memory_reads_as_one_on_the_disk(
        size in 1..4 * CHUNK,
        steps in proptest::collection::vec((0..4_u8, 0..4 * CHUNK, 1..2 * CHUNK), 1..12),
    ) {
        let disk = SimDisk::new();
        let cache = open(&disk);
        let file = cache.file(cache.assign(b"key"));
        file.reset(b"v1", size);
        let mut known = vec![false; usize::try_from(size).unwrap()];
        for (what, start, len) in steps {
            let range = start.min(size)..(start + len).min(size);
            match what {
                0 => cache.checkpoint().unwrap(),
                _ => {
                    fill(&file, b"v1", 1, range.clone());
                    known[range.start as usize..range.end as usize].fill(true);
                }
            }
            let mut held = vec![false; known.len()];
            for range in file.held(0..size) {
                held[range.start as usize..range.end as usize].fill(true);
            }
            prop_assert!(held == known);
            for range in file.held(0..size) {
                prop_assert!(read(&file, range.clone()).unwrap() == bytes(1, range));
            }
        }
        cache.checkpoint().unwrap();
        let after = open(&disk.crash(Image::Synced));
        let after = after.file(file.number());
        for chunk in 0..size.div_ceil(CHUNK) {
            let range = chunk * CHUNK..((chunk + 1) * CHUNK).min(size);
            let is_whole = known[range.start as usize..range.end as usize].iter().all(|it| *it);
            let found = read(&after, range.clone());
            prop_assert!(found == is_whole.then(|| bytes(1, range)), "{chunk}");
        }
    }
}

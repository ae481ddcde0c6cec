//! What the kernel writes to a local file by itself, and how that is found.

use std::ops::Range;

use larder_io::RealClock;

use super::*;
use crate::Limits;
use crate::state::BASES_MAX;

#[test]
fn bypass_finds_what_the_kernel_wrote() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let file = filled(&cache, b"v1", 1, 4 * CHUNK + 5);
    cache.checkpoint().unwrap();
    let kernel = begin_bypass(&file).unwrap();
    // The mark is durable before the kernel can write.
    assert_eq!(open(&disk.crash(larder_io::Image::Synced)).usage().dirty_dropped, 1);
    file.collect_bypass().unwrap();
    assert_eq!(file.dirty(), []);

    kernel.write_at(b"new", CHUNK + 7).unwrap();
    file.collect_bypass().unwrap();
    assert_eq!(file.dirty(), [CHUNK + 7..CHUNK + 10]);
    kernel.write_at(b"grown", 4 * CHUNK + 5).unwrap();
    kernel.write_at(b"far", 6 * CHUNK).unwrap();
    file.end_bypass().unwrap();
    assert_eq!(file.size(), 6 * CHUNK + 3);
    assert_eq!(
        file.dirty(),
        [CHUNK + 7..CHUNK + 10, 4 * CHUNK + 5..4 * CHUNK + 10, 5 * CHUNK..6 * CHUNK + 3]
    );
    assert_eq!(read(&file, 4 * CHUNK + 5..4 * CHUNK + 10).unwrap(), b"grown");
    assert_eq!(cache.usage().bytes, 7 * CHUNK);

    file.mark_clean(0..u64::MAX);
    file.set_version(b"v2", 6 * CHUNK + 3);
    cache.checkpoint().unwrap();
    let after = open(&disk.crash(larder_io::Image::Synced));
    let file = after.file(file.number());
    assert!(whole(&file).is_some());
    assert_eq!(read(&file, CHUNK + 7..CHUNK + 10).unwrap(), b"new");
}

/// A process that opens the file after its writer's close, and before the close was heard of, gets
/// the local file as the kernel left it.
#[test]
fn who_gets_a_local_file_that_the_kernel_writes_leaves_its_end() {
    let cache = Cache::in_memory(Arc::new(RealClock), Limits::in_memory()).unwrap();
    for (before, written) in [(0, 4), (100, 104), (3 * CHUNK, 3 * CHUNK + 4)] {
        let file = filled(&cache, b"v1", before, before);
        let kernel = begin_bypass(&file).unwrap();
        kernel.write_at(b"more", before).unwrap();
        assert!(whole(&file).is_some());
        file.end_bypass().unwrap();
        assert_eq!((file.size(), file.dirty()), (written, vec![before..written]));
        assert_eq!(read(&file, before..written).unwrap(), b"more");
    }
}

/// Another client may have written there meanwhile.
#[test]
fn holes_that_the_kernel_made_are_no_changes() {
    let cache = Cache::in_memory(Arc::new(RealClock), Limits::in_memory()).unwrap();
    let file = filled(&cache, b"v1", 1, 100);
    let kernel = begin_bypass(&file).unwrap();
    kernel.write_at(b"far", 4 * CHUNK + 8192).unwrap();
    file.collect_bypass().unwrap();
    assert_eq!(file.dirty(), [4 * CHUNK + 8192..4 * CHUNK + 8195], "nor is the tail of before");
    kernel.write_at(b"between", 2 * CHUNK).unwrap();
    file.end_bypass().unwrap();
    let expected = [2 * CHUNK..2 * CHUNK + 7, 4 * CHUNK + 8192..4 * CHUNK + 8195];
    assert_eq!(file.dirty(), expected);
    assert_eq!(read(&file, CHUNK..2 * CHUNK).unwrap(), vec![0; usize::try_from(CHUNK).unwrap()]);
}

/// Another client may have written directly beside what was written here, in the same block.
#[test]
fn zeros_beside_what_the_kernel_wrote_are_no_changes() {
    let cache = Cache::in_memory(Arc::new(RealClock), Limits::in_memory()).unwrap();
    let file = filled(&cache, b"v1", 1, 0);
    let kernel = begin_bypass(&file).unwrap();
    let found = |expected: &[Range<u64>]| {
        file.collect_bypass().unwrap();
        assert_eq!(file.dirty(), expected);
        file.mark_clean(0..u64::MAX);
    };
    kernel.write_at(&[7; 61_568], 20_001).unwrap();
    found(&[20_001..81_569]);
    kernel.write_at(b"in the hole", 5000).unwrap();
    found(&[5000..5011]);
    kernel.write_at(b"behind the end", 100_000).unwrap();
    found(&[100_000..100_014]);
    // Zeros that were written: a block of them, and where there were bytes.
    kernel.write_at(&[0; 5000], 8 * CHUNK).unwrap();
    found(&[8 * CHUNK..8 * CHUNK + 5000]);
    kernel.write_at(&[0; 11], 5000).unwrap();
    found(&[5000..5011]);
    file.end_bypass().unwrap();
}

/// Another client may have changed the bytes beside it.
#[test]
fn what_the_kernel_changed_is_found_to_the_byte() {
    let cache = Cache::in_memory(Arc::new(RealClock), Limits::in_memory()).unwrap();
    let file = filled(&cache, b"v1", 1, 80 * CHUNK);
    let kernel = begin_bypass(&file).unwrap();
    let found = |expected: &[Range<u64>]| {
        file.collect_bypass().unwrap();
        assert_eq!(file.dirty(), expected);
        file.mark_clean(0..u64::MAX);
    };
    for round in 0..3 {
        kernel.write_at(&[round; 3], 1000).unwrap();
        kernel.write_at(&[round], CHUNK - 1).unwrap();
        kernel.write_at(&[round; 2], 5 * CHUNK - 1).unwrap();
        found(&[1000..1003, CHUNK - 1..CHUNK, 5 * CHUNK - 1..5 * CHUNK + 1]);
    }
    // What was written here does not count as a change of the kernel, wherever the kernel writes.
    file.write(2000, &[90; 10]).unwrap();
    kernel.write_at(&[91; 10], 2020).unwrap();
    kernel.write_at(&[91; 4], 2008).unwrap();
    found(&[2000..2012, 2020..2030]);
    // Nor does what was truncated, or zeroed, together with the server.
    file.zero(3000..3010).unwrap();
    kernel.write_at(&[7], 3004).unwrap();
    found(&[3004..3005]);
    // Nor what was copied by the server, within the first MiB or beyond it.
    file.take_copied(4000, &[92; 20]).unwrap();
    file.take_copied(75 * CHUNK - 10, &[93; 20]).unwrap();
    found(&[]);
    kernel.write_at(&[7], 4005).unwrap();
    found(&[4005..4006]);
    // Beyond the first MiB the earlier bytes are not kept.
    kernel.write_at(&[0], 70 * CHUNK + 5).unwrap();
    found(&[70 * CHUNK..71 * CHUNK]);
    file.truncate(CHUNK + 10).unwrap();
    kernel.write_at(&[8], CHUNK + 5).unwrap();
    kernel.write_at(&[9; 4], CHUNK + 20).unwrap();
    found(&[CHUNK + 5..CHUNK + 6, CHUNK + 20..CHUNK + 24]);
    kernel.write_at(&[9], CHUNK + 15).unwrap();
    found(&[CHUNK + 15..CHUNK + 16]);
    // The server learns where the end is.
    kernel.write_at(&[0; 10], CHUNK + 24).unwrap();
    found(&[CHUNK + 33..CHUNK + 34]);
    file.end_bypass().unwrap();
    // Where the earlier bytes are not known, the chunk is sent.
    let others: Vec<_> = (2..2 + BASES_MAX as u64)
        .map(|seed| filled(&cache, b"v1", seed, 100))
        .inspect(|other| drop(begin_bypass(other).unwrap()))
        .collect();
    file.set_version(b"v2", CHUNK + 34);
    let kernel = begin_bypass(&file).unwrap();
    kernel.write_at(&[1], CHUNK + 5).unwrap();
    found(&[CHUNK..CHUNK + 34]);
    others.iter().for_each(|other| other.end_bypass().unwrap());
}

/// The bytes of the last chunk are sent again only if something in it was changed: another client
/// may have truncated them in the meantime.
#[test]
fn a_file_that_goes_on_behind_its_last_chunk_has_not_changed_it() {
    for at in [2 * CHUNK, CHUNK + 50, CHUNK + 200] {
        let cache = Cache::in_memory(Arc::new(RealClock), Limits::in_memory()).unwrap();
        let file = filled(&cache, b"v1", 1, CHUNK + 100);
        let kernel = begin_bypass(&file).unwrap();
        kernel.write_at(b"far", 3 * CHUNK).unwrap();
        kernel.write_at(b"X", at).unwrap();
        // A write of another program, through the daemon, makes the daemon check where the file
        // ends.
        file.write(4 * CHUNK, b"end").unwrap();
        file.end_bypass().unwrap();
        let is_dirty = |byte: u64| file.dirty().iter().any(|dirty| dirty.contains(&byte));
        assert!(is_dirty(at), "{at}");
        assert!((CHUNK..CHUNK + 100).all(|byte| byte == at || !is_dirty(byte)), "{at}");
    }
}

/// Also if the kernel continues after the daemon wrote beyond its end.
#[test]
fn a_write_behind_the_end_in_a_bypass_changes_nothing_before_it() {
    let cache = Cache::in_memory(Arc::new(RealClock), Limits::in_memory()).unwrap();
    let file = filled(&cache, b"v1", 1, 4 * CHUNK + 5);
    begin_bypass(&file).unwrap();
    file.truncate(100).unwrap();
    file.write(2 * CHUNK + 7, b"far").unwrap();
    file.collect_bypass().unwrap();
    assert!(!file.dirty().iter().any(|dirty| dirty.start < 100), "{:?}", file.dirty());
    file.end_bypass().unwrap();
    assert!(!file.dirty().iter().any(|dirty| dirty.start < 100), "{:?}", file.dirty());
}

/// The server has made the truncation, so it is not a change to be sent.
#[test]
fn a_truncation_in_a_bypass_is_no_change_but_for_what_the_kernel_wrote() {
    let cache = Cache::in_memory(Arc::new(RealClock), Limits::in_memory()).unwrap();
    let file = filled(&cache, b"v1", 1, 4 * CHUNK + 5);
    let kernel = begin_bypass(&file).unwrap();
    file.truncate(2 * CHUNK + 9).unwrap();
    file.collect_bypass().unwrap();
    assert_eq!(file.dirty(), []);
    file.truncate(5 * CHUNK).unwrap();
    file.collect_bypass().unwrap();
    assert_eq!(file.dirty(), []);
    // This write was not looked for yet.
    kernel.write_at(b"new", CHUNK).unwrap();
    file.truncate(2 * CHUNK - 1).unwrap();
    file.end_bypass().unwrap();
    assert_eq!(file.dirty(), [CHUNK..CHUNK + 3]);
    assert_eq!(read(&file, CHUNK..CHUNK + 3).unwrap(), b"new");
}

/// A hole costs nothing locally, so a program makes one of any size: it is not read, sent or
/// charged.
#[test]
fn large_hole_that_the_kernel_made_is_not_looked_at() {
    let cache = Cache::in_memory(Arc::new(RealClock), Limits::in_memory()).unwrap();
    let file = filled(&cache, b"v1", 1, CHUNK + 5);
    let (far, end) = (1 << 30, (1 << 30) + 3 * CHUNK);
    let kernel = begin_bypass(&file).unwrap();
    kernel.write_at(b"far", far).unwrap();
    kernel.set_len(end).unwrap();
    file.collect_bypass().unwrap();
    assert_eq!(file.size(), end);
    // The last byte is sent too, for the size.
    let dirty = [far..far + 3, end - 1..end];
    assert_eq!(file.dirty(), dirty);
    assert_eq!(cache.usage().bytes, 5 * CHUNK);

    kernel.write_at(b"between", far / 2 + 1).unwrap();
    file.truncate(2 * end).unwrap();
    file.end_bypass().unwrap();
    let between = far / 2..far / 2 + CHUNK;
    let [written, last] = dirty;
    assert_eq!(file.dirty(), [far / 2 + 1..far / 2 + 8, written, last]);
    file.mark_clean(0..u64::MAX);
    file.set_version(b"v2", 2 * end);
    assert_eq!(file.held(0..u64::MAX), [0..2 * CHUNK, between, far..end]);
    assert_eq!(read(&file, 0..CHUNK + 5), Some(bytes(1, 0..CHUNK + 5)));
    assert!(file.whole().is_none());
}

/// A new file that ends in zeros: its last byte is sent for the size, and the few zeros before it
/// go along, as one request.
#[test]
fn a_few_zeros_at_the_end_of_a_new_file_are_sent_with_what_is_before_them() {
    for zeros in 0..9 {
        let cache = Cache::in_memory(Arc::new(RealClock), Limits::in_memory()).unwrap();
        let file = cache.file(cache.assign(b"new"));
        file.reset(b"v1", 0);
        let kernel = begin_bypass(&file).unwrap();
        kernel.write_at(&[1; 100], 0).unwrap();
        let end = 100 + zeros;
        kernel.set_len(end).unwrap();
        file.end_bypass().unwrap();
        let dirty = if zeros < 5 { vec![0..end] } else { vec![0..100, end - 1..end] };
        assert_eq!(file.dirty(), dirty, "{zeros}");
    }
}

#[test]
fn bypass_and_local_changes_mix() {
    let cache = open(&SimDisk::new());
    let file = cache.file(cache.assign(b"new"));
    file.reset(b"v1", 0);
    let kernel = begin_bypass(&file).unwrap();
    kernel.write_at(&bytes(3, 0..100), 0).unwrap();
    // The client does not know the size yet, and truncates.
    file.truncate(200).unwrap();
    file.write(150, b"w").unwrap();
    file.end_bypass().unwrap();
    assert_eq!(file.size(), 200);
    assert_eq!(file.dirty(), [0..151, 199..200], "and the end");
    let mut expected = bytes(3, 0..100);
    expected.resize(200, 0);
    expected[150] = b'w';
    assert_eq!(read(&file, 0..200), Some(expected));
}

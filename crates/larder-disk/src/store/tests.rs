//! The store against an array of bytes, with crashes at every write and sync; and what it refuses.

use larder_io::{Fault, Image, SimDisk};
use larder_wire::capability::{DiskId, VolumeId};
use larder_wire::seal::Setup;
use proptest::prelude::*;

use super::*;

const BLOCKS: u64 = 6;
const SIZE: u64 = BLOCKS * BLOCK_BYTES;
const NAME: &str = "store";

fn identity() -> Identity {
    Identity { volume: VolumeId([7; 16]), disk: DiskId(1), setup: Setup::Secure }
}

fn open(disk: &SimDisk) -> Store {
    Store::open(disk, NAME, &identity(), SIZE).unwrap()
}

/// With or without room that is taken ahead.
fn open_with(disk: &SimDisk, room_ahead: bool) -> Store {
    if room_ahead { open(disk).with_room_ahead() } else { open(disk) }
}

fn extent(offset: u64, length: u64) -> Extent {
    Extent::new(offset, length).unwrap()
}

fn all(store: &Store) -> Vec<u8> {
    store.read(extent(0, SIZE)).unwrap()
}

/// An operation on a store.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write { offset: u64, length: u64, byte: u8 },
    Clear { offset: u64, length: u64 },
    Copy { from: u64, length: u64, to: u64 },
    Flush,
    Reopen,
}

fn range() -> impl Strategy<Value = (u64, u64)> {
    (0..SIZE, 1..3 * BLOCK_BYTES).prop_flat_map(|(offset, length)| {
        let length = length.min(SIZE - offset);
        // Now and then whole blocks.
        prop_oneof![
            2 => Just((offset, length)),
            1 => Just((offset / BLOCK_BYTES * BLOCK_BYTES, BLOCK_BYTES)),
        ]
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (range(), 1..=255_u8)
            .prop_map(|((offset, length), byte)| Step::Write { offset, length, byte }),
        2 => range().prop_map(|(offset, length)| Step::Clear { offset, length }),
        1 => (range(), 0..SIZE).prop_map(|((from, length), to)| Step::Copy { from, length, to }),
        2 => Just(Step::Flush),
        1 => Just(Step::Reopen),
    ]
}

/// Carries a step out on the store and on an array; returns whether what was written is durable
/// now.
fn carry_out(disk: &SimDisk, store: &mut Store, model: &mut [u8], step: Step) -> bool {
    match step {
        Step::Write { offset, length, byte } => {
            let data = vec![byte; length as usize];
            store.write(offset, &data).unwrap();
            model[offset as usize..][..data.len()].copy_from_slice(&data);
            false
        }
        Step::Clear { offset, length } => {
            store.clear(&[extent(offset, length)]).unwrap();
            model[offset as usize..][..length as usize].fill(0);
            true
        }
        Step::Copy { from, length, to } => {
            let source = from as usize..(from + length) as usize;
            match store.copy(extent(from, length), to) {
                Ok(()) => {
                    model.copy_within(source, to as usize);
                    true
                }
                Err(StoreError::Overlap) => {
                    assert!(from < to + length && to < from + length);
                    false
                }
                Err(StoreError::OutOfDisk) => {
                    assert!(to + length > SIZE);
                    false
                }
                Err(error) => panic!("{error}"),
            }
        }
        Step::Flush => {
            store.flush().unwrap();
            true
        }
        Step::Reopen => {
            store.flush().unwrap();
            let room_ahead = store.room.is_some();
            // The lock must be released with the old one first.
            *store = open(&SimDisk::new());
            *store = open_with(disk, room_ahead);
            true
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn a_store_is_an_array_of_bytes(
        steps in prop::collection::vec(step(), 1..40), room_ahead in any::<bool>(),
    ) {
        let disk = SimDisk::new();
        let (mut store, mut model) = (open_with(&disk, room_ahead), vec![0; SIZE as usize]);
        for step in steps {
            carry_out(&disk, &mut store, &mut model, step);
            prop_assert!(all(&store) == model, "after {step:?}");
            let written = (0..BLOCKS).filter(|block| store.map().has(*block)).count() as u64;
            prop_assert_eq!(store.written(), written * BLOCK_BYTES);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// After a crash at any write or sync, each byte has a value that it was given since the last
    /// flush, or the value then. In a block that was not written since it was cleared, that is
    /// zero: never a byte of a previous owner.
    #[test]
    fn a_crash_leaves_what_was_flushed(
        steps in prop::collection::vec(step(), 1..14), seed in any::<u64>(),
        room_ahead in any::<bool>(),
    ) {
        let disk = SimDisk::recording();
        let (mut store, mut model) = (open_with(&disk, room_ahead), vec![0; SIZE as usize]);
        // At each point of the log: the possible values of each byte.
        let begun = disk.logged();
        let mut may_be: Vec<Vec<u8>> = model.iter().map(|byte| vec![*byte]).collect();
        let mut history = vec![(begun, may_be.clone())];
        for step in steps {
            let is_durable = carry_out(&disk, &mut store, &mut model, step);
            for (byte, can) in model.iter().zip(&mut may_be) {
                if !can.contains(byte) { can.push(*byte) }
            }
            // While the step is carried out, either value is possible.
            history.last_mut().unwrap().1 = may_be.clone();
            if is_durable {
                may_be = model.iter().map(|byte| vec![*byte]).collect();
            }
            history.push((disk.logged(), may_be.clone()));
        }
        for point in disk.crash_points() {
            let since = history.iter().rev().find(|(logged, _)| *logged <= point.logged());
            let Some((_, can)) = since else { continue };
            for image in [Image::Synced, Image::Written, Image::Torn(seed)] {
                let store = open(&point.image(image));
                let found = all(&store);
                let wrong = found.iter().zip(can).position(|(byte, can)| !can.contains(byte));
                prop_assert!(
                    wrong.is_none(),
                    "{image:?} after {}: byte {} is {}, not of {:?}",
                    point.logged(), wrong.unwrap(), found[wrong.unwrap()], can[wrong.unwrap()]
                );
                check_fresh_blocks(&store);
            }
        }
    }
}

/// A block that is not written shows zeros around the first byte that is written to it, whatever
/// the medium contains.
fn check_fresh_blocks(store: &Store) {
    for block in (0..BLOCKS).filter(|block| !store.map().has(*block)).collect::<Vec<_>>() {
        let start = block * BLOCK_BYTES;
        store.write(start + 1000, b"x").unwrap();
        let mut expected = vec![0; BLOCK_BYTES as usize];
        expected[1000] = b'x';
        assert!(store.read(extent(start, BLOCK_BYTES)).unwrap() == expected, "block {block}");
    }
}

/// A crash while a store is made leaves a store, or nothing that prevents making one.
#[test]
fn a_crash_while_a_store_is_made_is_made_good() {
    let disk = SimDisk::recording();
    drop(open(&disk));
    for point in disk.crash_points() {
        for image in [Image::Synced, Image::Written, Image::Torn(1), Image::Torn(2)] {
            let store = open(&point.image(image));
            store.write(10, b"works").unwrap();
            assert_eq!(store.read(extent(9, 7)).unwrap(), b"\0works\0");
        }
    }
}

#[test]
fn what_is_not_this_store_is_refused_in_one_line() {
    let disk = SimDisk::new();
    let store = open(&disk);
    store.write(0, b"precious").unwrap();
    store.flush().unwrap();
    drop(store);
    let other = |change: fn(&mut Identity), size| {
        let mut identity = identity();
        change(&mut identity);
        Store::open(&disk, NAME, &identity, size).unwrap_err().to_string()
    };
    let table = [
        (other(|one| one.volume.0[0] = 8, SIZE), "its volume is 07"),
        (other(|one| one.disk = DiskId(2), SIZE), "its disk is 1, not 2"),
        (other(|one| one.setup = Setup::Off, SIZE), "its setup is secure, not off"),
        (other(|_| (), SIZE * 2), "its size is 24576, not 49152"),
        (other(|_| (), SIZE / 2), "its size is 24576, not 12288"),
        (other(|_| (), 0), "a size of 0 bytes"),
        (other(|_| (), 5000), "a size of 5000 bytes"),
    ];
    for (said, expected) in table {
        assert!(said.starts_with(expected) && !said.contains('\n'), "{said}");
    }
    let held = open(&disk);
    assert!(matches!(Store::open(&disk, NAME, &identity(), SIZE), Err(OpenError::InUse)));
    assert_eq!(held.read(extent(0, 8)).unwrap(), b"precious");
}

#[test]
fn a_damaged_or_foreign_file_is_refused_and_left_alone() {
    type Harm = fn(&dyn DiskFile);
    let harms: [(Harm, &str); 5] = [
        (|file| file.set_len(9000).unwrap(), "it has 9000 bytes of the 32768"),
        (|file| file.write_at(b"volume 9", 21).unwrap(), "its superblock is damaged"),
        (|file| file.write_at(b"3", 19).unwrap(), "its superblock is damaged"),
        (|file| file.write_at(b"#!/bin/sh\n", 0).unwrap(), "it is not empty, and not the store"),
        (|file| file.write_at(&[0xff], 0).unwrap(), "it is not empty, and not the store"),
    ];
    for (harm, expected) in harms {
        let disk = SimDisk::new();
        drop(open(&disk));
        let file = disk.open(NAME, larder_io::OpenMode::Existing).unwrap();
        harm(&*file);
        let before = (file.len().unwrap(), disk.logged());
        let said = Store::open(&disk, NAME, &identity(), SIZE).unwrap_err().to_string();
        assert!(said.starts_with(expected), "{said}");
        assert_eq!((file.len().unwrap(), disk.logged()), before);
    }
}

/// One sync makes any number of cleared ranges durable. If blocks were written meanwhile, their
/// bytes are synced first: the map vouches for them.
#[test]
fn ranges_that_are_cleared_together_cost_one_sync() {
    for writes in [false, true] {
        let disk = SimDisk::new();
        let store = open(&disk);
        store.write(0, &[1; SIZE as usize - BLOCK_BYTES as usize]).unwrap();
        store.flush().unwrap();
        let before = disk.syncs();
        if writes {
            store.write(SIZE - 10, b"x").unwrap();
        }
        let whole = |block: u64| extent(block * BLOCK_BYTES, BLOCK_BYTES);
        store.clear(&[whole(0), whole(2), extent(4 * BLOCK_BYTES - 10, 5)]).unwrap();
        assert_eq!(disk.syncs() - before, if writes { 2 } else { 1 });
        let expected = all(&store);
        drop(store);
        assert!(all(&open(&disk.crash(Image::Synced))) == expected);
    }
}

/// After a failed sync nothing is promised any more, and what can be read is read.
#[test]
fn after_a_failed_sync_nothing_is_changed() {
    let disk = SimDisk::new();
    let store = open(&disk);
    store.write(0, b"before").unwrap();
    store.flush().unwrap();
    store.write(4, b"after").unwrap();
    disk.inject(Fault::EioFrom(disk.operations() + 1));
    assert!(matches!(store.flush(), Err(StoreError::Poisoned)));
    disk.heal();
    let poisoned =
        |done: Result<(), StoreError>| assert!(matches!(done, Err(StoreError::Poisoned)));
    poisoned(store.flush());
    poisoned(store.write(0, b"x"));
    poisoned(store.clear(&[extent(0, 1)]));
    poisoned(store.copy(extent(0, 1), BLOCK_BYTES));
    assert_eq!(store.read(extent(0, 9)).unwrap(), b"befoafter");
}

#[test]
fn a_full_medium_is_told_and_spoils_nothing() {
    let disk = SimDisk::new();
    let store = open(&disk);
    store.write(0, &[1; 4096]).unwrap();
    store.flush().unwrap();
    disk.inject(Fault::SpaceBytes(0));
    assert!(matches!(store.write(8192, &[2; 4096]), Err(StoreError::NoSpace)));
    assert_eq!(store.read(extent(8192, 4096)).unwrap(), [0; 4096]);
    disk.heal();
    store.write(8192, &[3; 4096]).unwrap();
    store.flush().unwrap();
    assert_eq!(store.read(extent(8192, 4096)).unwrap(), [3; 4096]);
}

#[test]
fn what_is_behind_the_end_is_refused() {
    let store = open(&SimDisk::new());
    let out = |done: Result<(), StoreError>| assert!(matches!(done, Err(StoreError::OutOfDisk)));
    for range in [extent(SIZE, 1), extent(SIZE - 1, 2), extent(0, u64::MAX)] {
        out(store.read(range).map(drop));
        out(store.clear(&[range]));
        out(store.copy(range, 0));
    }
    out(store.write(SIZE - 1, b"ab"));
    out(store.write(u64::MAX - 2, b"ab"));
    out(store.copy(extent(0, 2), SIZE - 1));
    out(store.copy(extent(0, 2), u64::MAX));
    assert_eq!(store.written(), 0);
}

/// Below the limit and at it, blocks that were written are written again, and others are refused;
/// what was cleared makes room.
#[test]
fn a_store_takes_no_more_blocks_than_its_limit() {
    let disk = SimDisk::new();
    let store = open(&disk);
    let block = |at: u64| at * BLOCK_BYTES;
    let write = |at: u64, length: u64| store.write(at, &vec![7; length as usize]);
    assert_eq!(store.limit(), SIZE);
    write(0, block(3)).unwrap();
    for limit in [0, block(2), block(3), block(4) - 1] {
        store.set_limit(limit);
        write(10, block(2)).unwrap();
        for (at, length) in [(block(3), 1), (block(2), block(2)), (block(5), 1)] {
            let refused = write(at, length);
            assert!(matches!(refused, Err(StoreError::NoSpace)), "{limit} {at} {refused:?}");
        }
        assert_eq!(store.written(), block(3));
    }
    store.set_limit(block(4));
    write(block(2), block(2)).unwrap();
    assert!(matches!(write(block(4), 1), Err(StoreError::NoSpace)));
    store.clear(&[extent(0, block(2))]).unwrap();
    write(block(4), block(2)).unwrap();
    assert_eq!(store.written(), block(4));
    assert!(matches!(write(0, 1), Err(StoreError::NoSpace)));
}

/// A store that is opened again is the same one; a copy keeps the generation that the store had
/// then. A store of format 1 gets a name once, and a damaged state is refused.
#[test]
fn a_store_keeps_its_name_and_a_copy_its_generation() {
    let disk = SimDisk::new();
    let store = open(&disk);
    let first = store.state();
    assert_eq!(first.generation, 0);
    store.raise_generation().unwrap();
    drop(store);
    let copy = disk.crash(Image::Written);
    let store = open(&disk);
    store.raise_generation().unwrap();
    let later = StoreState { generation: 2, ..first };
    assert_eq!(store.state(), later);
    drop(store);
    // What was raised is durable.
    assert_eq!(open(&disk.crash(Image::Synced)).state(), later);
    assert_eq!(open(&copy).state(), StoreState { generation: 1, ..first });
    assert_ne!(open(&SimDisk::new()).state().id, first.id);

    let file = disk.open(NAME, larder_io::OpenMode::Existing).unwrap();
    let lines = "larder disk format 1\nvolume VOLUME\ndisk 1\nsize 24576\nsetup secure\n";
    let lines = lines.replace("VOLUME", &identity().volume.to_text());
    let mut old = format!("{lines}check {:08x}\n", crc32c::crc32c(lines.as_bytes())).into_bytes();
    old.resize(4096, 0);
    file.write_at(&old, 0).unwrap();
    drop(file);
    let named = open(&disk).state();
    assert!(named.id != first.id && named.generation == 0);
    assert_eq!(open(&disk.crash(Image::Synced)).state(), named);
}

/// On a real file: the first small write in a region takes the room of all of it, large ones and a
/// store in memory take none ahead; what is cleared gives room back by regions, but for the last
/// ones that emptied.
#[test]
fn small_writes_find_room() {
    use std::os::unix::fs::MetadataExt;

    const REGION: u64 = REGION_BLOCKS * BLOCK_BYTES;
    let dir = tempfile::tempdir().unwrap();
    let disk = larder_io::RealDisk::open(dir.path()).unwrap();
    let size = 200 * REGION;
    let taken = |name: &str| {
        let taken = dir.path().join(name).metadata().unwrap().blocks() * 512;
        (taken / REGION, taken % REGION < REGION / 4)
    };
    let store = Store::open(&disk, "plain", &identity(), size).unwrap();
    store.write(5, b"x").unwrap();
    store.flush().unwrap();
    assert_eq!(taken("plain"), (0, true));

    let store = Store::open(&disk, "ahead", &identity(), size).unwrap().with_room_ahead();
    store.write(9 * REGION, &vec![1; SMALL_WRITE_MAX + 1]).unwrap();
    store.flush().unwrap();
    assert_eq!(taken("ahead"), (0, true), "a large write");
    store.clear(&[extent(9 * REGION, REGION)]).unwrap();
    for region in 0..100 {
        let offset = region * REGION + 77 * BLOCK_BYTES;
        store.write(offset, &[7; 5000]).unwrap();
        store.write(offset + 2 * BLOCK_BYTES, b"y").unwrap();
        store.flush().unwrap();
        assert_eq!(taken("ahead"), (region + 1, true));
        assert_eq!(
            store.read(extent(offset + 5000, 4000)).unwrap(),
            [vec![0; 3192], vec![b'y'], vec![0; 807]].concat()
        );
    }
    // Some at once, some in the middle of others, and one after the other.
    store.clear(&[extent(0, 10 * REGION), extent(10 * REGION + 5, 20 * REGION)]).unwrap();
    for region in 30..100 {
        store.clear(&[extent(region * REGION + 77 * BLOCK_BYTES, 3 * BLOCK_BYTES)]).unwrap();
    }
    store.flush().unwrap();
    let (regions, is_whole) = taken("ahead");
    assert!((64..=66).contains(&regions) && is_whole, "{regions}");
    assert!(store.read(extent(0, 100 * REGION)).unwrap().iter().all(|byte| *byte == 0));
    assert_eq!(store.written(), 0);
}

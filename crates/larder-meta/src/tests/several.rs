//! Several disks: where the bytes of files lie.

use std::collections::BTreeMap;

use larder_wire::meta::Status;
use larder_wire::meta::words::{ByteRange, DiskId, FileId, Layout};

use super::rig::{Rig, refused};
use crate::rights::Caller;

const MIB: u64 = 1 << 20;
const BLOCKS_PER_MIB: u64 = MIB / 4096;

/// Bytes of each disk.
fn by_disk(layout: &Layout) -> BTreeMap<u32, u64> {
    let mut counted = BTreeMap::new();
    for extent in &layout.extents.0 {
        *counted.entry(extent.disk.0).or_default() += extent.length;
    }
    counted
}

fn file(rig: &mut Rig, name: &str) -> FileId {
    rig.create(&Caller::root(), FileId::ROOT, name).unwrap().file.after.file
}

#[test]
fn a_large_file_lies_on_all_disks_and_small_ones_take_turns() {
    let mut rig = Rig::with_disks(&[64 * BLOCKS_PER_MIB; 3]);
    let large = file(&mut rig, "large");
    let given = rig.alloc(large, 0..12 * MIB).unwrap();
    assert_eq!(by_disk(&given.layout), BTreeMap::from([1, 2, 3].map(|disk| (disk, 4 * MIB))));
    assert_eq!(given.layout.grants.0.len(), 3, "what lies together takes one capability");
    // A file that grows in small steps stays on its disk, up to the next stripe.
    let log = file(&mut rig, "log");
    for at in 0..256 {
        rig.write(log, at * 4096..(at + 1) * 4096).unwrap();
    }
    let lies = rig.layout(log, larder_wire::meta::words::Mode::Read).unwrap().layout;
    assert_eq!(by_disk(&lies).len(), 1);
    let mut counted: BTreeMap<u32, u64> = BTreeMap::new();
    for number in 0..30 {
        let small = file(&mut rig, &format!("f{number}"));
        let given = rig.alloc(small, 0..4096).unwrap();
        for (disk, bytes) in by_disk(&given.layout) {
            *counted.entry(disk).or_default() += bytes / 4096;
        }
    }
    assert_eq!(counted, BTreeMap::from([1, 2, 3].map(|disk| (disk, 10))));
    rig.check();
}

/// Disks of different sizes: each gets its share, and the volume is full when all are.
#[test]
fn disks_are_filled_by_their_room_and_to_the_end() {
    let sizes = [8, 32, 16];
    let mut rig = Rig::with_disks(&sizes.map(|mib| mib * BLOCKS_PER_MIB));
    let half = file(&mut rig, "half");
    let mut counted: BTreeMap<u32, u64> = BTreeMap::new();
    for part in 0..28 {
        let given = rig.alloc(half, part * MIB..(part + 1) * MIB).unwrap();
        for (disk, bytes) in by_disk(&given.layout) {
            *counted.entry(disk).or_default() += bytes;
        }
    }
    for (disk, mib) in (1..).zip(sizes) {
        assert!(counted[&disk].abs_diff(mib * MIB / 2) <= MIB, "{counted:?}");
    }
    let rest = file(&mut rig, "rest");
    rig.alloc(rest, 0..28 * MIB).unwrap();
    assert_eq!(rig.free_bytes(), 0);
    assert_eq!(refused(rig.alloc(rest, 40 * MIB..41 * MIB)), Status::NoSpace);
    // Space that is given back can be allocated again.
    rig.set(half, super::rig::size(0)).unwrap();
    let session = rig.session;
    rig.call(&Caller::root(), larder_wire::meta::calls::EndSession { session }).unwrap();
    assert_eq!(rig.free_bytes_of_all(), 56 * MIB);
    rig.check();
}

#[test]
fn new_bytes_go_to_disks_that_are_there_while_they_have_room() {
    let mut rig = Rig::with_disks(&[8 * BLOCKS_PER_MIB; 2]);
    rig.disks.go_away(DiskId(1));
    let one = file(&mut rig, "one");
    let given = rig.alloc(one, 0..8 * MIB).unwrap();
    assert_eq!(by_disk(&given.layout), BTreeMap::from([(2, 8 * MIB)]));
    let range = ByteRange::from(8 * MIB..9 * MIB);
    let given = rig.alloc(one, 8 * MIB..range.offset + range.length).unwrap();
    assert_eq!(by_disk(&given.layout), BTreeMap::from([(1, MIB)]));
}

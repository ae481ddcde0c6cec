//! Blocks that a client wants on certain disks, because what it copies is there.

use std::collections::BTreeMap;
use std::ops::Range;

use larder_wire::meta::calls::{self, LayoutGiven};
use larder_wire::meta::words::{DiskId, FileId, LeaseKind, Medium, Mode, Near, OpenId};
use larder_wire::meta::{BLOCK_BYTES, Res, Status};
use larder_wire::xdr::Array;

use super::memory::memory;
use super::rig::{Rig, dentry, mode, refused};
use crate::rights::Caller;
use crate::volume::{Joining, NewDisk};

const MIB: u64 = 1 << 20;
const BLOCKS_PER_MIB: u64 = MIB / BLOCK_BYTES;

fn file(rig: &mut Rig, name: &str) -> FileId {
    rig.create(&Caller::root(), FileId::ROOT, name).unwrap().file.after.file
}

/// Allocates a range, of which these parts should be on these sets.
fn alloc(
    rig: &mut Rig,
    file: FileId,
    range: Range<u64>,
    parts: &[(Range<u64>, u32)],
) -> Res<LayoutGiven> {
    let (sequence, open, range) = (rig.next(), OpenId::NONE, range.into());
    let alloc = calls::Alloc { sequence, file, open, range, medium: Medium::Disk };
    let near = |(range, disk): &(Range<u64>, u32)| {
        let (range, disk) = (range.clone().into(), DiskId(*disk));
        Near { range, disk }
    };
    let near = Array(parts.iter().map(near).collect());
    rig.call(&Caller::root(), calls::AllocNear { alloc, near })
}

/// The set of each MiB, from the start of the file on; 0 for one that is on several.
fn by_mib(given: &LayoutGiven) -> Vec<u32> {
    let mut sets: BTreeMap<u64, u32> = BTreeMap::new();
    for extent in &given.layout.extents.0 {
        for mib in extent.offset / MIB..=(extent.offset + extent.length - 1) / MIB {
            let set = sets.entry(mib).or_insert(extent.disk.0);
            *set = if *set == extent.disk.0 { *set } else { 0 };
        }
    }
    sets.into_values().collect()
}

/// MiB, one after the other, each on one of these sets.
fn parts(sets: &[u32]) -> Vec<(Range<u64>, u32)> {
    (0..).zip(sets).map(|(mib, set)| (mib * MIB..(mib + 1) * MIB, *set)).collect()
}

/// With one copy and with two: each part is on the set that is wanted, whatever its turn; the rest
/// takes turns, as if there had been no others.
#[test]
fn blocks_are_where_they_are_wanted_and_others_take_turns() {
    // With two copies the sets are disks 1 and 2, 3 and 4, 5 and 6.
    for (copies, sets) in [(1, [1, 2, 3]), (2, [1, 3, 5])] {
        let mut rig = Rig::with_copies(copies, &vec![64 * BLOCKS_PER_MIB; 3 * copies as usize]);
        let [one, two, three] = sets;
        let (copy, other) = (file(&mut rig, "copy"), file(&mut rig, "other"));
        let wanted = [two, two, one, three, one, two];
        for (at, set) in (0..).zip(wanted) {
            let part = at * MIB..(at + 1) * MIB;
            alloc(&mut rig, copy, part.clone(), &[(part.clone(), set)]).unwrap();
            rig.alloc(other, part).unwrap();
        }
        let given = rig.layout(copy, Mode::Write).unwrap();
        assert_eq!(by_mib(&given), wanted);
        let given = rig.layout(other, Mode::Write).unwrap();
        assert_eq!(by_mib(&given), [one, two, three, one, two, three]);
        // In one call, with a part for which nothing is wanted, and the end of one in a stripe.
        let copy = file(&mut rig, "second");
        let mut wanted = parts(&[three, three, one, two, three]);
        (wanted[4].0.start, wanted[3].0.end) = (4 * MIB - 4096, 4 * MIB - 4096);
        wanted.remove(2);
        let given = alloc(&mut rig, copy, 0..5 * MIB, &wanted).unwrap();
        assert_eq!(by_mib(&given), [three, three, one, 0, three]);
        let edge = given.layout.extents.0.iter().find(|one| one.offset == 4 * MIB - 4096);
        assert_eq!(edge.map(|one| one.disk.0), Some(three));
        rig.check();
    }
}

/// A disk that is away, leaves, is in memory, is unknown, or is full gets nothing because it is
/// wanted; the call succeeds.
#[test]
fn what_cannot_be_where_it_is_wanted_is_elsewhere() {
    let lies_near = |rig: &mut Rig, wanted: u32| {
        let copy = file(rig, "copy");
        let given = alloc(rig, copy, 0..6 * MIB, &parts(&[wanted; 6])).unwrap();
        rig.check();
        by_mib(&given)
    };
    let new = || Rig::with_disks(&[16 * BLOCKS_PER_MIB; 3]);
    assert_eq!(lies_near(&mut new(), 3), [3; 6]);
    assert_eq!(lies_near(&mut new(), 9), [1, 2, 3, 1, 2, 3]);

    let mut rig = new();
    rig.disks.go_away(DiskId(3));
    assert_eq!(lies_near(&mut rig, 3), [1, 2, 1, 1, 2, 1]);
    rig.disks.come_back(DiskId(3));
    let copy = file(&mut rig, "back");
    assert_eq!(by_mib(&alloc(&mut rig, copy, 0..MIB, &parts(&[3])).unwrap()), [3]);

    let mut rig = new();
    rig.remove_disk(DiskId(3)).unwrap();
    assert_eq!(lies_near(&mut rig, 3), [1, 2, 1, 2, 1, 2]);

    let mut rig = new();
    let number = rig.enrol(memory(16 * BLOCKS_PER_MIB), Joining::Anywhere).unwrap();
    assert_eq!(lies_near(&mut rig, number.0), [1, 2, 3, 1, 2, 3]);

    // The last MiB of all disks: what disk 3 has no room for is elsewhere.
    let mut rig = new();
    let other = file(&mut rig, "other");
    rig.alloc(other, 0..42 * MIB).unwrap();
    let lies = lies_near(&mut rig, 3);
    assert_eq!(lies.iter().filter(|set| **set == 3).count(), 2, "{lies:?}");
    let none = refused(alloc(&mut rig, other, 50 * MIB..51 * MIB, &[(50 * MIB..51 * MIB, 3)]));
    assert_eq!((none, rig.free_bytes()), (Status::NoSpace, 0));
}

/// One file is copied again and again, and its disk keeps a quarter of the free bytes of the
/// others; a disk that is new gets its share of the copies.
#[test]
fn a_disk_that_is_much_fuller_than_others_gets_no_copies_because_of_their_source() {
    let mut rig = Rig::with_disks(&[1024 * BLOCKS_PER_MIB; 2]);
    let copy = file(&mut rig, "copy");
    let copied = |rig: &mut Rig, from: u64, count: u64| {
        let mut near = 0;
        for at in from..from + count {
            let part = at * MIB..(at + 1) * MIB;
            let given = alloc(rig, copy, part.clone(), &[(part, 1)]).unwrap();
            let lies = given.layout.extents.0.iter().find(|one| one.offset == at * MIB).unwrap();
            near += u64::from(lies.disk == DiskId(1));
        }
        near
    };
    assert_eq!(copied(&mut rig, 0, 768), 768);
    let near = copied(&mut rig, 768, 512);
    let free: Vec<u64> = (1..=2).map(|disk| free_bytes(&rig, DiskId(disk)) / MIB).collect();
    assert!(near < 256 && free[0] >= free[1] / 4 - 1, "{near} {free:?}");
    let disk =
        NewDisk { id: [1; 16], address: "disk:9".into(), bytes: 4096 * MIB, is_memory: false };
    assert_eq!(rig.enrol(disk, Joining::Anywhere).unwrap(), DiskId(3));
    let near = copied(&mut rig, 1280, 256);
    assert!(near < 32, "{near}");
    rig.check();
}

fn free_bytes(rig: &Rig, disk: DiskId) -> u64 {
    use crate::store::records::Blocks;
    let all = rig.records::<Blocks>(crate::store::key::Pool::Free.tag());
    let of_disk = all.iter().filter(|(key, _)| key[1..5] == disk.0.to_be_bytes());
    of_disk.map(|(_, blocks)| blocks.length).sum()
}

/// Blocks that were given ahead elsewhere are given up, and nothing can be written there any more;
/// those on the wanted disk, and those that the session asked for, stay.
#[test]
fn blocks_given_ahead_elsewhere_are_given_up() {
    let mut rig = Rig::with_disks(&[16 * BLOCKS_PER_MIB; 3]);
    for (wanted, name) in [(1, "a"), (3, "b"), (3, "c")] {
        let create = calls::Create {
            dentry: dentry(FileId::ROOT, name),
            set: mode(0o644),
            if_exists: larder_wire::meta::words::IfExists::Open,
        };
        let (sequence, range) = (rig.next(), (0..8 * BLOCK_BYTES).into());
        let opened = rig.call(
            &Caller::root(),
            calls::Open {
                sequence,
                what: calls::OpenWhat::Create(create),
                mode: Mode::Write,
                lease: LeaseKind::None,
                range,
                allocate: Some(Medium::Disk),
            },
        );
        let opened = opened.unwrap();
        let (copy, ahead) = (opened.file.after.file, opened.layout.extents.0[0]);
        let whole = 0..4 * BLOCK_BYTES;
        let given = alloc(&mut rig, copy, whole.clone(), &[(whole.clone(), wanted)]).unwrap();
        assert_eq!(by_mib(&given), [wanted]);
        if ahead.disk.0 == wanted {
            assert_eq!(given.layout.extents.0[0].position, ahead.position, "{name}");
        }
        // Behind what was asked for.
        let rest = rig.layout(copy, Mode::Write).unwrap().layout;
        let rest = rest.extents.0.iter().find(|one| one.offset + one.length > whole.end).unwrap();
        assert_eq!(rest.disk, ahead.disk);
        // Asked for already.
        let given = alloc(&mut rig, copy, whole.clone(), &[(whole, 2)]).unwrap();
        assert_eq!(by_mib(&given), [wanted]);
        rig.check();
    }
}

#[test]
fn wishes_that_make_no_sense_are_refused_and_change_nothing() {
    let mut rig = Rig::with_disks(&[16 * BLOCKS_PER_MIB; 2]);
    let copy = file(&mut rig, "copy");
    let before = rig.free_bytes();
    for near in [
        vec![(0..MIB, 1), (0..MIB, 2)],
        vec![(MIB..2 * MIB, 1), (0..MIB, 2)],
        vec![(0..4095, 1)],
        vec![(0..0, 1)],
    ] {
        let status = refused(alloc(&mut rig, copy, 0..4 * MIB, &near));
        assert_eq!((status, rig.free_bytes()), (Status::Invalid, before), "{near:?}");
    }
    // Outside what is asked for they do not matter.
    let given = alloc(&mut rig, copy, 0..MIB, &[(0..MIB, 2), (9 * MIB..10 * MIB, 1)]).unwrap();
    assert_eq!(by_mib(&given), [2]);
    rig.check();
}

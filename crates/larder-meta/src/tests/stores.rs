//! Disks whose store is not the one that they had, or is an older copy of it.

use std::ops::Range;

use larder_wire::disk::words::StoreState;
use larder_wire::meta::calls::CommitExtents;
use larder_wire::meta::words::{DiskId, FileId, Mode};
use larder_wire::meta::{BLOCK_BYTES, Status};
use larder_wire::xdr::Array;

use super::mirrors::granted;
use super::rig::{Rig, refused};
use crate::committer::Event;
use crate::rights::Caller;
use crate::store::records::{Blocks, DiskStore};
use crate::volume;

const B: u64 = BLOCK_BYTES;
const BLOCKS: u64 = 16;
const ONE: DiskId = DiskId(1);
const TWO: DiskId = DiskId(2);

fn store(id: u8, generation: u64) -> StoreState {
    StoreState { id: [id; 16], generation }
}

/// The disks report stores: `None` if one was not reached.
fn report(rig: &mut Rig, one: Option<StoreState>, two: Option<StoreState>) {
    let all = [(ONE, one), (TWO, two)];
    let told = all.into_iter().filter_map(|(disk, store)| Some((disk, store?))).collect();
    rig.event(Event::Stores(told));
    rig.acknowledge_all();
}

/// How many bytes are stale, on all disks together.
fn stale(rig: &Rig) -> u64 {
    rig.records::<Blocks>(b't').iter().map(|(_, blocks)| blocks.length).sum()
}

fn recorded(rig: &Rig) -> Vec<StoreState> {
    let all = rig.records::<DiskStore>(b'n').into_iter();
    all.map(|(_, DiskStore { id, generation })| StoreState { id, generation }).collect()
}

/// The disks on which a file may be read.
fn readable(rig: &mut Rig, file: FileId) -> Vec<DiskId> {
    let grants = rig.layout(file, Mode::Read).unwrap().layout.grants.0;
    grants.iter().map(|grant| granted(grant).disk).collect()
}

/// Blocks of a file are written on these disks.
fn write(rig: &mut Rig, file: FileId, bytes: Range<u64>, on: &[DiskId]) {
    let given = rig.alloc(file, bytes.clone()).unwrap();
    let commit = rig.committing(file, &given.layout, bytes);
    rig.call(&Caller::root(), CommitExtents { copies: Array(on.to_vec()), ..commit }).unwrap();
}

fn begin(copies: u32) -> (Rig, FileId) {
    let mut rig = Rig::with_copies(copies, &vec![BLOCKS; copies as usize]);
    report(&mut rig, Some(store(1, 4)), (copies > 1).then(|| store(2, 7)));
    let opened = rig.create(&Caller::root(), FileId::ROOT, "a").unwrap();
    let file = opened.file.after.file;
    write(&mut rig, file, 0..3 * B, &[ONE, TWO][..copies as usize]);
    (rig, file)
}

/// All generations of the disk's own store, and another one; with a crash of the server before and
/// after, and without.
#[test]
fn a_disk_with_another_store_has_nothing_that_counts() {
    for crash in [false, true] {
        for (found, is_own) in [
            (store(2, 7), true),
            (store(2, 8), true),
            (store(2, 20), true),
            (store(2, 6), false),
            (store(2, 0), false),
            (store(3, 0), false),
            (store(3, 9), false),
        ] {
            let (mut rig, file) = begin(2);
            if crash {
                rig = rig.crash();
                rig.resume_all();
            }
            report(&mut rig, Some(store(1, 4)), Some(found));
            assert_eq!(recorded(&rig), [store(1, 4), found]);
            if crash {
                rig = rig.crash();
                rig.resume_all();
            }
            let expected = if is_own { (0, vec![ONE, TWO]) } else { (BLOCKS * B, vec![ONE]) };
            assert_eq!((stale(&rig), readable(&mut rig, file)), expected, "{found:?}");
            // A later report of the same changes nothing.
            report(&mut rig, None, Some(StoreState { generation: found.generation + 1, ..found }));
            assert_eq!(stale(&rig), expected.0);
            rig.check();
        }
    }
}

/// What other disks lack is not given up for a store that may lack it, too.
#[test]
fn another_store_is_not_used_while_something_was_on_the_disk_alone() {
    for copies in [1, 2] {
        let (mut rig, file) = begin(copies);
        let (disk, other) = if copies == 1 { (ONE, store(9, 9)) } else { (TWO, store(2, 6)) };
        if copies == 2 {
            rig.disks.go_away(ONE);
            write(&mut rig, file, 0..B, &[TWO]);
            rig.disks.come_back(ONE);
        }
        let (before, records) = (stale(&rig), recorded(&rig));
        let found = |at| (disk == at).then_some(other);
        report(&mut rig, found(ONE), found(TWO));
        assert_eq!((stale(&rig), recorded(&rig)), (before, records.clone()));
        // Its own store is taken again.
        let own = StoreState { generation: 30, ..records[disk.0 as usize - 1] };
        let found = |at| (disk == at).then_some(own);
        report(&mut rig, found(ONE), found(TWO));
        assert_eq!(recorded(&rig)[disk.0 as usize - 1], own);
        rig.check();
        // And so is another one, once a person says so: of that, only what the other disk has not
        // counts.
        rig.end();
        volume::accept_store(&rig.engine, disk).unwrap();
        assert!(volume::accept_store(&rig.engine, DiskId(8)).is_err());
        let mut rig = rig.crash();
        let found = |at| (disk == at).then_some(other);
        report(&mut rig, found(ONE), found(TWO));
        assert_eq!(recorded(&rig)[disk.0 as usize - 1], other);
        // The one block that the other disk lacks is taken from this one, and nothing else.
        let lacking = if copies == 1 { 0 } else { BLOCKS * B };
        assert_eq!(stale(&rig), lacking);
        rig.check();
    }
}

/// What a session wrote to the earlier store and has not committed is not on this one.
#[test]
fn what_was_not_committed_is_written_again() {
    let (mut rig, file) = begin(2);
    let given = rig.alloc(file, 4 * B..6 * B).unwrap();
    report(&mut rig, None, Some(store(3, 0)));
    assert_eq!(refused(rig.commit(file, &given.layout, 4 * B..6 * B)), Status::NotAllocated);
    write(&mut rig, file, 4 * B..6 * B, &[ONE]);
    rig.check();
}

//! Disks that are added and replaced under a server.

use larder_wire::meta::words::{DiskId, FileId};
use larder_wire::meta::{BLOCK_BYTES, Status};
use larder_wire::xdr::Array;
use tokio::sync::oneshot;

use super::mirrors::{granted, two_copies};
use super::rig::{Rig, refused};
use crate::committer::Event;
use crate::rights::Caller;
use crate::volume::{self, Enrolment, NewDisk};

const B: u64 = BLOCK_BYTES;

/// A disk is replaced by the server: nobody is answered before the capabilities on the lost one are
/// over, and what was written to that alone cannot be committed.
#[test]
fn a_disk_that_is_replaced_lets_nobody_in_when_that_is_answered() {
    let (mut rig, file, _) = two_copies();
    let layout = rig.alloc(file, 2 * B..3 * B).unwrap().layout;
    let lost = layout.grants.0.iter().map(granted).find(|one| one.disk == DiskId(1)).unwrap();
    let own = layout.extents.0.iter().find(|extent| extent.offset == 2 * B).unwrap();
    let bytes = own.position..own.position + B;
    assert!(rig.disks.write(lost.name, &bytes, 7));
    rig.is_quick = false;
    let new = NewDisk { id: [1; 16], address: "disk:9".into(), bytes: 64 * B };
    let (waiter, mut done) = oneshot::channel();
    rig.event(Event::Enrol(Enrolment { new, old: Some(DiskId(1)) }, waiter));
    assert!(done.try_recv().is_err(), "the lost disk was not told yet");
    let mut call = rig.committing(file, &layout, 2 * B..3 * B);
    call.copies = Array(vec![DiskId(1)]);
    assert_eq!(refused(rig.call(&Caller::root(), call)), Status::NotAllocated);
    rig.acknowledge_all();
    assert_eq!(done.try_recv().unwrap().unwrap(), DiskId(3));
    assert!(!rig.disks.write(lost.name, &bytes, 7) && !rig.disks.takes_any(DiskId(1)));
    // The new one is brought what the other one has.
    let copies = volume::copies(&rig.engine).unwrap();
    assert!(copies.disks[&DiskId(3)].stale_bytes >= 2 * B);
    rig.is_quick = true;
    rig.check();
}

/// A disk that is added takes new blocks at once.
#[test]
fn a_disk_that_is_added_to_a_served_volume_takes_new_blocks() {
    let mut rig = Rig::new(2);
    let opened = rig.create(&Caller::root(), FileId::ROOT, "f").unwrap();
    let file = opened.file.after.file;
    assert_eq!(refused(rig.alloc(file, 0..8 * B)), Status::NoSpace);
    let new = NewDisk { id: [1; 16], address: "disk:9".into(), bytes: 64 * B };
    assert_eq!(rig.enrol(new.clone(), None).unwrap(), DiskId(2));
    let layout = rig.alloc(file, 0..8 * B).unwrap().layout;
    assert!(layout.grants.0.iter().any(|grant| granted(grant).disk == DiskId(2)));
    let small = NewDisk { bytes: B - 1, ..new.clone() };
    let refused = rig.enrol(small, None).unwrap_err().to_string();
    assert!(refused.contains("smaller than one block"), "{refused}");
    assert!(rig.enrol(new, Some(DiskId(1))).is_err(), "it has the only copy of what is on it");
    rig.check();
}

/// Disks are used when there are as many as copies, by the room of the smallest.
#[test]
fn a_set_is_used_when_it_has_all_its_disks() {
    let mut rig = Rig::with_copies(2, &[64, 48, 64]);
    assert_eq!(volume::space(&rig.engine).unwrap().bytes, 48 * B);
    assert_eq!(rig.free_bytes(), 48 * B);
    let copies = volume::copies(&rig.engine).unwrap();
    assert_eq!((copies.copies, copies.missing), (2, 1));
    rig.end();
    let new = |blocks: u64| NewDisk { id: [1; 16], address: "disk:1".into(), bytes: blocks * B };
    let engine = &rig.engine;
    let replace = |old, blocks| {
        let error = volume::replace_disk(engine, DiskId(old), &new(blocks)).unwrap_err();
        error.to_string()
    };
    assert!(replace(3, 64).contains("no disk 3 with copies"));
    assert!(replace(1, 47).contains("smaller than disk 1"));
    volume::add_disk(engine, &new(80)).unwrap();
    assert_eq!(volume::space(engine).unwrap().bytes, (48 + 64) * B);
    assert_eq!(volume::replace_disk(engine, DiskId(1), &new(48)).unwrap(), DiskId(5));
    let copies = volume::copies(engine).unwrap();
    assert_eq!((copies.disks[&DiskId(5)].set, copies.missing), (DiskId(1), 0));
    assert_eq!(crate::check(engine).unwrap(), []);
}

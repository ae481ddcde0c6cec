//! Disks that are added and replaced under a server.

use larder_wire::meta::words::{DiskId, FileId};
use larder_wire::meta::{BLOCK_BYTES, Status};
use larder_wire::seal::Setup;
use larder_wire::xdr::Array;
use tokio::sync::oneshot;

use super::mirrors::{granted, two_copies};
use super::rig::{Rig, refused};
use crate::committer::Event;
use crate::rights::Caller;
use crate::store::Record;
use crate::store::records::Volume;
use crate::volume::{self, DisksChange, Joining, NewDisk, Tenure};

const B: u64 = BLOCK_BYTES;

/// The server replaces a disk: no answer is sent before the capabilities on the lost one are over,
/// and what was written only to that cannot be committed.
#[test]
fn a_disk_that_is_replaced_lets_nobody_in_when_that_is_answered() {
    let (mut rig, file, _) = two_copies();
    let layout = rig.alloc(file, 2 * B..3 * B).unwrap().layout;
    let lost = layout.grants.0.iter().map(granted).find(|one| one.disk == DiskId(1)).unwrap();
    let own = layout.extents.0.iter().find(|extent| extent.offset == 2 * B).unwrap();
    let bytes = own.position..own.position + B;
    assert!(rig.disks.write(lost.name, &bytes, 7));
    rig.is_quick = false;
    let new = NewDisk { id: [1; 16], address: "disk:9".into(), bytes: 64 * B, is_memory: false };
    let (waiter, mut done) = oneshot::channel();
    rig.event(Event::Disks(
        DisksChange::Enrol { new, joining: Joining::InsteadOf(DiskId(1)) },
        waiter,
    ));
    assert!(done.try_recv().is_err(), "the lost disk was not told yet");
    let mut call = rig.committing(file, &layout, 2 * B..3 * B);
    call.copies = Array(vec![DiskId(1)]);
    assert_eq!(refused(rig.call(&Caller::root(), call)), Status::NotAllocated);
    rig.acknowledge_all();
    assert_eq!(done.try_recv().unwrap().unwrap().disk, DiskId(3));
    assert!(!rig.disks.write(lost.name, &bytes, 7) && !rig.disks.takes_any(DiskId(1)));
    // The new disk gets the bytes that the other one has.
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
    let new = NewDisk { id: [1; 16], address: "disk:9".into(), bytes: 64 * B, is_memory: false };
    assert_eq!(rig.enrol(new.clone(), Joining::Anywhere).unwrap(), DiskId(2));
    let layout = rig.alloc(file, 0..8 * B).unwrap().layout;
    assert!(layout.grants.0.iter().any(|grant| granted(grant).disk == DiskId(2)));
    let small = NewDisk { bytes: B - 1, ..new.clone() };
    let refused = rig.enrol(small, Joining::Anywhere).unwrap_err().to_string();
    assert!(refused.contains("smaller than one block"), "{refused}");
    assert!(
        rig.enrol(new, Joining::InsteadOf(DiskId(1))).is_err(),
        "it has the only copy of what is on it"
    );
    rig.check();
}

/// Disks are used when there are as many as copies, with the space of the smallest.
#[test]
fn a_set_is_used_when_it_has_all_its_disks() {
    let mut rig = Rig::with_copies(2, &[64, 48, 64]);
    assert_eq!(volume::space(&rig.engine).unwrap().bytes, 48 * B);
    assert_eq!(rig.free_bytes(), 48 * B);
    let copies = volume::copies(&rig.engine).unwrap();
    assert_eq!((copies.copies, copies.missing), (2, 1));
    rig.end();
    let new = |blocks: u64| NewDisk {
        id: [1; 16],
        address: "disk:1".into(),
        bytes: blocks * B,
        is_memory: false,
    };
    let engine = &rig.engine;
    let replace = |old, blocks| {
        let error =
            volume::enrol(engine, &new(blocks), Joining::InsteadOf(DiskId(old))).unwrap_err();
        error.to_string()
    };
    assert!(replace(3, 64).contains("no disk 3 with copies"));
    assert!(replace(1, 47).contains("smaller than disk 1"));
    volume::add_disk(engine, &new(80)).unwrap();
    assert_eq!(volume::space(engine).unwrap().bytes, (48 + 64) * B);
    assert_eq!(volume::enrol(engine, &new(48), Joining::InsteadOf(DiskId(1))).unwrap(), DiskId(5));
    let copies = volume::copies(engine).unwrap();
    assert_eq!((copies.disks[&DiskId(5)].set, copies.missing), (DiskId(1), 0));
    assert_eq!(crate::check(engine).unwrap(), []);
}

/// A disk is removed while the volume is served, and while it is not: only if nothing is on it,
/// and its number is of no other disk.
#[test]
fn an_empty_disk_is_removed_and_no_other_gets_its_number() {
    let mut rig = Rig::new(8);
    let memory = NewDisk { is_memory: true, ..disk_of(8) };
    assert_eq!(rig.enrol(disk_of(8), Joining::Anywhere).unwrap(), DiskId(2));
    assert_eq!(rig.enrol(memory, Joining::Anywhere).unwrap(), DiskId(3));
    let opened = rig.create(&Caller::root(), FileId::ROOT, "f").unwrap();
    let file = opened.file.after.file;
    rig.write(file, 0..10 * B).unwrap();
    let why = |refused: Result<Tenure, volume::VolumeError>| refused.unwrap_err().to_string();
    for used in [1, 2] {
        let before = rig.dump();
        let why = why(rig.remove_disk(DiskId(used)));
        assert!(
            why.contains(&format!("disk {used}: it has")) && why.contains("add a disk"),
            "{why}"
        );
        assert_eq!(rig.dump(), before, "nothing is half done");
    }
    assert_eq!(why(rig.remove_disk(DiskId(9))), "the volume has no disk 9");
    assert_eq!(rig.remove_disk(DiskId(3)).unwrap(), Tenure::Gone);
    rig.check();
    rig.close(opened.open).unwrap();
    rig.remove(FileId::ROOT, "f").unwrap();
    rig.wait(std::time::Duration::from_secs(1));
    rig.remove_disk(DiskId(2)).unwrap();
    rig.check();
    assert_eq!((rig.free_bytes(), volume::disks(&rig.engine).unwrap().len()), (8 * B, 1));
    let opened = rig.create(&Caller::root(), FileId::ROOT, "g").unwrap();
    let file = opened.file.after.file;
    assert_eq!(refused(rig.alloc(file, 0..9 * B)), Status::NoSpace, "there is one disk");
    assert_eq!(rig.enrol(disk_of(8), Joining::Anywhere).unwrap(), DiskId(4));
    rig.end();
    volume::remove_disk(&rig.engine, DiskId(4)).unwrap();
    assert_eq!(volume::next_disk(&rig.engine).unwrap(), DiskId(5));
    let refused = volume::remove_disk(&rig.engine, DiskId(4)).unwrap_err();
    assert!(matches!(refused, volume::VolumeError::Removed(_)));
    assert_eq!(volume::add_disk(&rig.engine, &disk_of(8)).unwrap(), DiskId(5));
    assert_eq!(crate::check(&rig.engine).unwrap(), []);
}

/// A disk that has copies of another's blocks is replaced, and not removed; one whose set lacks
/// others has no blocks.
#[test]
fn a_disk_with_copies_is_not_removed() {
    let mut rig = Rig::with_copies(2, &[8, 8, 8]);
    for disk in [1, 2] {
        let why = rig.remove_disk(DiskId(disk)).unwrap_err().to_string();
        assert!(why.contains("has the same blocks as disk") && why.contains("--replace"), "{why}");
    }
    rig.remove_disk(DiskId(3)).unwrap();
    assert_eq!(volume::copies(&rig.engine).unwrap().missing, 0);
    assert_eq!(rig.enrol(disk_of(8), Joining::Anywhere).unwrap(), DiskId(4));
    rig.check();
}

/// The bytes of `docs/formats/meta-store.md`. A record of an earlier format states no setup, and
/// stays in a format that the earlier version reads.
#[test]
fn a_volume_record_has_the_least_format_that_says_it() {
    let (id, trust_ms) = ([1; 16], 30_000);
    let (next_file, copies, next_disk, key_epoch, setup) = (5, 1, 0, 0, None);
    let plain = Volume { id, next_file, copies, next_disk, trust_ms, key_epoch, setup };
    let fields = [&[1; 16][..], &5_u64.to_be_bytes()].concat();
    let word = u32::to_be_bytes;
    let with = |setup| Volume { setup: Some(setup), ..plain.clone() };
    let longest = [&word(1)[..], &word(0), &word(30_000), &0_u64.to_be_bytes(), &word(1)].concat();
    let stated = [&word(7)[..], &fields, &longest].concat();
    for (record, bytes) in [
        (plain.clone(), [&word(2)[..], &fields].concat()),
        (Volume { copies: 2, ..plain.clone() }, [&word(3)[..], &fields, &word(2)].concat()),
        (
            Volume { next_disk: 7, ..plain.clone() },
            [&word(4)[..], &fields, &word(1), &word(7)].concat(),
        ),
        (
            Volume { trust_ms: 60_000, ..plain.clone() },
            [&word(5)[..], &fields, &word(1), &word(0), &word(60_000)].concat(),
        ),
        (
            Volume { key_epoch: 9, ..plain.clone() },
            [&word(6)[..], &fields, &word(1), &word(0), &word(30_000), &9_u64.to_be_bytes()]
                .concat(),
        ),
        (with(Setup::Off), [&stated[..], &word(0)].concat()),
        (with(Setup::Secure), [&stated[..], &word(1)].concat()),
        (with(Setup::Private), [&stated[..], &word(2)].concat()),
    ] {
        assert_eq!(record.to_bytes(), bytes);
        assert_eq!(Volume::from_bytes(bytes), Ok(record));
    }
}

fn disk_of(blocks: u64) -> NewDisk {
    NewDisk { id: [1; 16], address: "disk:9".into(), bytes: blocks * B, is_memory: false }
}

//! Repair of the records of which files have bytes on which memory disks.

use std::sync::Arc;

use larder_wire::meta::BLOCK_BYTES;
use larder_wire::meta::words::{DiskId, FileId, Mode, Time};

use super::destaging::{DISK, move_all, write};
use super::memory::{MEMORY, lost, with_memory};
use super::rig::Rig;
use crate::check::{FaultKind, repair};
use crate::engine::{Engine, Owner, Writes};
use crate::rights::Caller;
use crate::store::records::{InMemory, NEVER_MS, Owner as OwnerRecord};
use crate::store::{Record, Txn, key};

const B: u64 = BLOCK_BYTES;
const LATER: Time = Time { seconds: 2_000_000_000, nanoseconds: 0 };

/// Changes records behind the server's back.
fn damage(rig: &Rig, change: impl FnOnce(&mut Txn<'_>)) {
    let (view, none) = (rig.engine.view().unwrap(), Writes::new());
    let mut txn = Txn::new(&*view, &none);
    change(&mut txn);
    let owner = txn.get::<OwnerRecord>(&key::owner()).unwrap().map(|owner| owner.to_bytes());
    rig.engine.commit(&txn.finish().0, &Owner { key: key::owner(), value: owner }).unwrap();
}

/// A server of the repaired volume. The memory disk went on meanwhile.
fn after_repair(rig: Rig, faults: &[FileId]) -> Rig {
    let found = crate::check(&rig.engine).unwrap();
    assert_eq!(repair(&rig.engine, LATER).unwrap(), found);
    let of = found.iter().map(|fault| (fault.kind, fault.file)).collect::<Vec<_>>();
    let expected: Vec<_> = faults.iter().map(|file| (FaultKind::Disk, Some(file.0))).collect();
    assert_eq!(of, expected, "{found:?}");
    assert_eq!(crate::check(&rig.engine).unwrap(), []);
    let mut rig = Rig::over(rig.engine.clone(), Arc::clone(&rig.disks), true);
    rig.resume_all();
    rig.session = rig.begin_session([1; 16], 1).unwrap().session;
    rig
}

/// A file with bytes in memory that has no record gets one; how long the bytes may stay there is
/// not known, so they are moved at once.
#[test]
fn a_missing_record_is_made_and_its_bytes_are_due() {
    for due in [None, Some(std::time::Duration::from_secs(3600))] {
        let (mut rig, file) = with_memory(8);
        write(&mut rig, file, 2, 5, due);
        damage(&rig, |txn| txn.delete(key::in_memory(MEMORY, file)));
        let mut rig = after_repair(rig, &[file]);
        let records = rig.records::<InMemory>(b'm');
        assert_eq!(records, [(key::in_memory(MEMORY, file), InMemory { due_ms: 0 })]);
        move_all(&mut rig);
        let layout = rig.layout(file, Mode::Read).unwrap().layout;
        assert_eq!(layout.extents.0.iter().map(|one| one.disk).collect::<Vec<_>>(), [DISK]);
        assert_eq!(rig.disks.block(DISK, layout.extents.0[0].position), 5);
        assert_eq!(rig.records::<InMemory>(b'm'), []);
        rig.check();
    }
}

/// A repaired record finds its file when the memory disk loses everything.
#[test]
fn what_a_repaired_record_tells_of_is_reported_when_it_is_lost() {
    let (mut rig, file) = with_memory(8);
    write(&mut rig, file, 2, 5, None);
    damage(&rig, |txn| txn.delete(key::in_memory(MEMORY, file)));
    let mut rig = after_repair(rig, &[file]);
    rig.disks.restart(MEMORY);
    rig.wait(std::time::Duration::from_secs(1));
    assert_eq!(lost(&rig), [(file, 2 * B)].into());
    move_all(&mut rig);
    let due_ms = NEVER_MS;
    assert_eq!(
        rig.records::<InMemory>(b'm'),
        [(key::in_memory(MEMORY, file), InMemory { due_ms })]
    );
    assert_eq!(rig.due_in(), None);
    rig.check();
}

/// Records of files that are not there, and of disks that are none or keep what they have, are
/// removed. One of a file that has nothing on the memory disk any more is as it should be, and so
/// is that of one that has.
#[test]
fn a_record_that_tells_of_nothing_is_removed() {
    let (mut rig, file) = with_memory(8);
    write(&mut rig, file, 2, 5, None);
    let other = rig.create(&Caller::root(), FileId::ROOT, "g").unwrap().file.after.file;
    let records = rig.records::<InMemory>(b'm');
    let (gone, disk) = (FileId(77), DiskId(9));
    damage(&rig, |txn| {
        for (set, file) in [(DISK, file), (MEMORY, other), (MEMORY, gone), (disk, file)] {
            txn.put(key::in_memory(set, file), &InMemory { due_ms: 5 });
        }
    });
    let rig = after_repair(rig, &[file, gone, file]);
    let mut sound = records;
    sound.push((key::in_memory(MEMORY, other), InMemory { due_ms: 5 }));
    assert_eq!(rig.records::<InMemory>(b'm'), sound);
}

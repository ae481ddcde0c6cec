//! An archive that is level durable, and what it does not have in time.

use std::time::Duration;

use larder_wire::meta::calls::ArchiveTold;
use larder_wire::meta::words::{DiskId, FileId, Mode};
use larder_wire::meta::{BLOCK_BYTES, Status};

use super::super::destaging::{DISK, move_all, wait, write};
use super::super::memory::{MEMORY, memory, with_memory};
use super::super::rig::{Given, Rig, refused, size};
use super::{Scene, WITHIN, every_put};
use crate::archive::{Error, Receipt, Version};
use crate::live::archiving::Work;
use crate::rights::Caller;
use crate::store::records::InMemory;
use crate::volume::{self, Joining};

const B: u64 = BLOCK_BYTES;
/// What the archive does not have by then leaves memory: a tenth of its time after it was due.
const LATE: Duration = Duration::from_millis(22_000);

/// A volume with a disk, a memory disk and an archive that is durable; and a file.
fn with_disk() -> (Rig, FileId) {
    let (rig, file) = with_memory(8);
    (rig.given(Given::Durable), file)
}

/// The same without the disk.
fn without_disk() -> (Rig, DiskId, FileId) {
    let mut rig = Rig::with_disks(&[]).given(Given::Durable);
    let number = rig.enrol(memory(8), Joining::Anywhere).unwrap();
    rig.disks.restart(number);
    wait(&mut rig, Duration::from_secs(1));
    let opened = rig.create(&Caller::root(), FileId::ROOT, "f").unwrap();
    rig.close(opened.open).unwrap();
    (rig, number, opened.file.after.file)
}

fn disks(rig: &mut Rig, file: FileId) -> Vec<DiskId> {
    let layout = rig.layout(file, Mode::Read).unwrap().layout;
    layout.extents.0.iter().map(|extent| extent.disk).collect()
}

/// How many files have lost bytes.
fn lost(rig: &Rig) -> usize {
    volume::lost(&rig.engine).unwrap().len()
}

/// What is put is what the store has.
fn put(rig: &mut Rig, what: u64) -> Version {
    // What a put has left that failed is looked at, too.
    let work = (0..2).find_map(|_| rig.next_to_archive());
    let Some(Work::Put(version, bytes)) = work else { panic!("nothing is due") };
    rig.store.0.lock().unwrap().insert(version, what);
    rig.was_put(version, Ok(Receipt { bytes, root: [1; 32] }));
    version
}

fn away() -> Error {
    Error::Unreachable { store: "it".into(), cause: "cut".into() }
}

/// Histories as of level archive, with a lasting disk and without one. `LARDER_ARCHIVE_STEPS=2`
/// takes longer.
#[test]
fn what_is_durable_in_the_archive_is_what_the_file_had() {
    let others = std::env::var("LARDER_ARCHIVE_STEPS").map_or(1, |steps| steps.parse().unwrap());
    every_put(others, || {
        let (rig, file) = with_disk();
        Scene::of(rig, MEMORY, file, true)
    });
    every_put(others, || {
        let (rig, number, file) = without_disk();
        Scene::of(rig, number, file, true)
    });
}

/// What a class wants durable within a time is put when that is due and not before, stays in memory
/// and is never on a disk; when memory loses it, it is there again.
#[test]
fn what_is_due_goes_to_an_archive_that_is_durable() {
    let (mut rig, file) = with_disk();
    write(&mut rig, file, 1, 7, Some(WITHIN));
    let told = |is_there, due_s: Option<u64>| ArchiveTold {
        is_there,
        due_ms: due_s.map(|seconds| seconds * 1000),
        late_ms: 0,
    };
    assert_eq!(rig.archive_told(file, None), Ok(told(false, Some(20))));
    assert_eq!(rig.records::<InMemory>(b'm')[0].1.due_ms, crate::store::records::NEVER_MS);
    wait(&mut rig, Duration::from_millis(17_900));
    assert_eq!(rig.next_to_archive(), None, "there is time");
    wait(&mut rig, Duration::from_millis(100));
    put(&mut rig, 7);
    wait(&mut rig, WITHIN);
    wait(&mut rig, WITHIN);
    move_all(&mut rig);
    assert_eq!(rig.archive_told(file, None), Ok(told(true, None)));
    assert_eq!(disks(&mut rig, file), [MEMORY]);

    rig.disks.restart(MEMORY);
    rig.wait(Duration::ZERO);
    assert_eq!(refused(rig.layout(file, Mode::Read)), Status::Later);
    move_all(&mut rig);
    let extent = rig.layout(file, Mode::Read).unwrap().layout.extents.0[0];
    assert_eq!((extent.disk, rig.disks.block(MEMORY, extent.position)), (MEMORY, 7));
    assert!(lost(&rig) == 0 && rig.disks.ever_written(DISK).is_empty());
    rig.check();

    // From a change on it has to be there again, and until then memory alone has it.
    write(&mut rig, file, 1, 8, Some(WITHIN));
    assert_eq!(rig.archive_told(file, None), Ok(told(false, Some(20))));
    rig.disks.restart(MEMORY);
    rig.wait(Duration::ZERO);
    assert_eq!(lost(&rig), 1, "an older version is never used");
    rig.check();
}

/// What is removed before it is due is never put, and what needs no time stays in memory.
#[test]
fn what_goes_before_it_is_due_is_never_put() {
    let (mut rig, file) = with_disk();
    write(&mut rig, file, 1, 7, Some(WITHIN));
    wait(&mut rig, Duration::from_secs(17));
    rig.remove(FileId::ROOT, "f").unwrap();
    let opened = rig.create(&Caller::root(), FileId::ROOT, "g").unwrap();
    rig.close(opened.open).unwrap();
    write(&mut rig, opened.file.after.file, 1, 8, None);
    for _ in 0..3 {
        wait(&mut rig, WITHIN);
        assert_eq!(rig.next_to_archive(), None);
        move_all(&mut rig);
    }
    assert!(rig.disks.ever_written(DISK).is_empty());
    rig.check();
}

/// What the archive does not have in time is moved to a disk, a tenth of its time after it was due,
/// whatever level the archive is, and also by the next server. Then it is put when the store is
/// there.
#[test]
fn what_the_archive_does_not_have_in_time_is_moved_to_disks() {
    for (given, is_restarted) in [
        (Given::Durable, false),
        (Given::Durable, true),
        (Given::Archive, false),
        (Given::Archive, true),
        (Given::Nothing, true),
    ] {
        let (mut rig, file) = with_memory(8);
        match given {
            Given::Durable => {
                rig = rig.given(given);
                write(&mut rig, file, 1, 7, Some(WITHIN));
            }
            _ => {
                write(&mut rig, file, 1, 7, None);
                rig.archive_told(file, Some(WITHIN)).unwrap();
            }
        }
        if is_restarted {
            rig = rig.given(given);
        }
        wait(&mut rig, Duration::from_secs(20));
        if let Some(Work::Put(version, _)) = rig.next_to_archive() {
            rig.was_put(version, Err(away()));
        }
        wait(&mut rig, LATE - WITHIN - Duration::from_millis(1));
        move_all(&mut rig);
        assert_eq!(disks(&mut rig, file), [MEMORY], "{given:?}: there is time");
        wait(&mut rig, Duration::from_millis(1));
        move_all(&mut rig);
        assert_eq!(disks(&mut rig, file), [DISK], "{given:?}");
        if given == Given::Nothing {
            rig = rig.given(Given::Archive);
        }
        for _ in 0..3 {
            wait(&mut rig, WITHIN);
        }
        put(&mut rig, 7);
        assert!(rig.archive_told(file, None).unwrap().is_there);
        rig.check();
    }
}

/// A put that is under way is waited for. If it fails, the bytes are moved then; if the store has
/// them, they stay.
#[test]
fn a_put_under_way_decides() {
    for is_put in [true, false] {
        let (mut rig, file) = with_disk();
        write(&mut rig, file, 1, 7, Some(WITHIN));
        wait(&mut rig, WITHIN);
        let Some(Work::Put(version, bytes)) = rig.next_to_archive() else { panic!("it is due") };
        wait(&mut rig, WITHIN);
        move_all(&mut rig);
        assert_eq!(disks(&mut rig, file), [MEMORY]);
        let receipt = Receipt { bytes, root: [1; 32] };
        rig.was_put(version, if is_put { Ok(receipt) } else { Err(away()) });
        move_all(&mut rig);
        assert_eq!(disks(&mut rig, file), [if is_put { MEMORY } else { DISK }]);
        rig.check();
    }
}

/// Without lasting disks nothing is moved, and what wants to be durable at once is refused. What
/// was lost is in memory again when that has room and the store answers.
#[test]
fn a_volume_may_have_memory_disks_and_an_archive_alone() {
    let (mut rig, number, file) = without_disk();
    assert_eq!(refused(rig.alloc(file, 0..B)), Status::NoSpace);
    write(&mut rig, file, 1, 7, Some(WITHIN));
    let mut raised = rig.destage(file, 0);
    rig.begin_moves();
    let told = raised.try_recv().expect("an answer at once");
    assert_eq!(super::super::rig::decode::<Result<(), Status>>(&told), Err(Status::NoSpace));
    wait(&mut rig, LATE);
    rig.begin_moves();
    assert_eq!((rig.copy_moves(), disks(&mut rig, file)), (0, vec![number]));
    let version = put(&mut rig, 7);
    rig.check();

    // The store has not what it had: it is not asked again and again, and not in vain for ever.
    let what = rig.store.0.lock().unwrap().remove(&version);
    assert_eq!(what, Some(7));
    rig.disks.restart(number);
    rig.wait(Duration::ZERO);
    rig.begin_moves();
    assert_eq!(rig.copy_moves(), 1);
    rig.end_moves();
    assert_eq!(rig.due_in(), Some(Duration::from_secs(1)));
    wait(&mut rig, Duration::from_secs(1));
    rig.begin_moves();
    assert_eq!((rig.copy_moves(), lost(&rig)), (0, 1));
    rig.check();
}

/// A class that a client gives to a file leaves its bytes the class's time; one whose present
/// version is there is durable by then.
#[test]
fn a_class_with_a_time_is_kept_by_an_archive_that_is_durable() {
    let (mut rig, file) = with_disk();
    write(&mut rig, file, 1, 7, None);
    let answered = |rig: &mut Rig, within| rig.destage(file, within).try_recv().is_ok();
    assert!(answered(&mut rig, 20_000));
    wait(&mut rig, WITHIN);
    put(&mut rig, 7);
    assert!(answered(&mut rig, 10_000));
    wait(&mut rig, WITHIN);
    wait(&mut rig, WITHIN);
    assert_eq!(rig.next_to_archive(), None);
    move_all(&mut rig);
    assert_eq!(disks(&mut rig, file), [MEMORY]);
    // A cut of it is due, too.
    rig.set(file, size(100)).unwrap();
    assert_eq!(rig.archive_told(file, None).unwrap().due_ms, Some(10_000));
    // At once, it is on a disk.
    assert!(!answered(&mut rig, 0));
    move_all(&mut rig);
    assert_eq!(disks(&mut rig, file), [DISK]);
    // What has no bytes in memory need not be put.
    let opened = rig.create(&Caller::root(), FileId::ROOT, "g").unwrap();
    rig.close(opened.open).unwrap();
    let other = opened.file.after.file;
    rig.write(other, 0..B).unwrap();
    rig.destage(other, 1000);
    assert_eq!(rig.archive_told(other, None).unwrap().due_ms, None);
    rig.check();
}

/// A server without an archive does not say that it will put something.
#[test]
fn a_server_without_an_archive_takes_no_time_for_one() {
    let (rig, file) = with_memory(8);
    let mut rig = rig.given(Given::Nothing);
    write(&mut rig, file, 1, 7, None);
    assert_eq!(rig.archive_told(file, Some(WITHIN)), Err(Status::NotSupported));
    assert!(!rig.archive_told(file, None).unwrap().is_there);
    rig = rig.given(Given::Archive);
    assert_eq!(rig.archive_told(file, Some(WITHIN)).unwrap().due_ms, Some(20_000));
    rig.check();
}

/// A crash of the metadata server's machine loses volatile files of its last moments, and none that
/// the archive has.
#[test]
fn what_the_archive_has_outlives_a_crash_of_the_servers_machine() {
    for is_put in [true, false] {
        let (rig, _) = with_memory(8);
        rig.engine.let_be_late();
        let mut rig = rig.given(Given::Durable);
        // Nobody opens files again.
        for _ in 0..2 {
            wait(&mut rig, Duration::from_secs(20));
        }
        let opened = rig.create_volatile(FileId::ROOT, "g").unwrap();
        rig.close(opened.open).unwrap();
        let file = opened.file.after.file;
        write(&mut rig, file, 1, 7, Some(WITHIN));
        wait(&mut rig, WITHIN);
        if is_put {
            put(&mut rig, 7);
        }
        let mut rig = rig.crash_of_machine(0);
        rig.wait(Duration::ZERO);
        assert_eq!(lost(&rig), usize::from(!is_put));
        rig.disks.restart(MEMORY);
        rig.wait(Duration::ZERO);
        move_all(&mut rig);
        assert_eq!(lost(&rig), usize::from(!is_put));
        rig.check();
    }
}

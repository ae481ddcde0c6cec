//! Bytes in memory that a client wants to be on other disks (DESTAGE). All sequences of events are
//! in [`super::destaging`].

use std::time::Duration;

use larder_wire::meta::words::{DiskId, ExtentState, FileId, Mode};
use larder_wire::meta::{BLOCK_BYTES, Res, Status};
use tokio::sync::oneshot;

use super::destaging::{DISK, move_all, wait, write};
use super::memory::{MEMORY, memory, with_memory};
use super::rig::{Rig, decode, size};
use crate::change::Reply;
use crate::rights::Caller;
use crate::store::records::InMemory;
use crate::volume::Joining;

const B: u64 = BLOCK_BYTES;
const ROOT: FileId = FileId::ROOT;

/// The answer, if it has come.
fn told(reply: &mut oneshot::Receiver<Reply>) -> Option<Res<()>> {
    reply.try_recv().ok().map(|reply| decode(&reply))
}

/// Where a file's bytes are.
fn disks(rig: &mut Rig, file: FileId) -> Vec<DiskId> {
    let layout = rig.layout(file, Mode::Read).unwrap().layout;
    layout.extents.0.iter().map(|extent| extent.disk).collect()
}

/// Another file, which is closed.
fn another(rig: &mut Rig, name: &str) -> FileId {
    let opened = rig.create(&Caller::root(), ROOT, name).unwrap();
    rig.close(opened.open).unwrap();
    opened.file.after.file
}

/// A file that takes several moves, with a class that never leaves memory: each call that waits is
/// answered after the last move, and no other file is touched.
#[test]
fn a_large_file_is_on_the_disk_before_the_answer() {
    let mut rig = Rig::new(4096);
    assert_eq!(rig.enrol(memory(4096), Joining::Anywhere).unwrap(), MEMORY);
    rig.disks.restart(MEMORY);
    wait(&mut rig, Duration::from_secs(1));
    let (file, other) = (another(&mut rig, "large"), another(&mut rig, "other"));
    // 10 MiB.
    write(&mut rig, file, 2560, 7, None);
    write(&mut rig, other, 1, 8, None);
    assert_eq!(rig.due_in(), None);
    let mut replies = [rig.destage(file, 0), rig.destage(file, 0)];
    let mut rounds = 0;
    while rig.due_in() == Some(Duration::ZERO) {
        assert!(replies.iter_mut().all(|reply| told(reply).is_none()), "round {rounds}");
        rig.begin_moves();
        assert!(replies.iter_mut().all(|reply| told(reply).is_none()), "round {rounds}");
        rig.copy_moves();
        rig.end_moves();
        rounds += 1;
    }
    assert_eq!(rounds, 3);
    assert!(replies.iter_mut().all(|reply| told(reply) == Some(Ok(()))));
    assert!(disks(&mut rig, file).iter().all(|disk| *disk == DISK));
    assert_eq!(disks(&mut rig, other), [MEMORY]);
    rig.disks.restart(MEMORY);
    rig.wait(Duration::from_secs(1));
    let layout = rig.layout(file, Mode::Read).unwrap().layout;
    assert!(layout.extents.0.iter().all(|extent| extent.state == ExtentState::Committed));
    assert_eq!(rig.disks.block(DISK, layout.extents.0[0].position), 7);
    rig.check();
}

/// With a time, the call is answered at once, and the bytes are moved when that has passed; an
/// earlier time stays.
#[test]
fn a_class_with_a_deadline_gives_the_bytes_a_time() {
    let (mut rig, file) = with_memory(8);
    write(&mut rig, file, 2, 5, None);
    for (asked, due) in [(20_000, 20), (30_000, 20), (10_000, 10)] {
        assert_eq!(told(&mut rig.destage(file, asked)), Some(Ok(())));
        assert_eq!(rig.due_in(), Some(Duration::from_secs(due)));
    }
    assert_eq!(disks(&mut rig, file), [MEMORY]);
    wait(&mut rig, Duration::from_secs(10));
    move_all(&mut rig);
    assert_eq!(disks(&mut rig, file), [DISK]);
    assert_eq!(rig.records::<InMemory>(b'm'), []);
    rig.check();
}

/// What has nothing in memory is answered at once, and what is gone is refused.
#[test]
fn other_files_are_answered_at_once() {
    let (mut rig, file) = with_memory(8);
    assert_eq!(told(&mut rig.destage(file, 0)), Some(Ok(())));
    rig.write(file, 0..2 * B).unwrap();
    assert_eq!(told(&mut rig.destage(file, 0)), Some(Ok(())));
    assert_eq!(rig.due_in(), None);
    assert_eq!(told(&mut rig.destage(ROOT, 0)), Some(Ok(())));
    assert_eq!(told(&mut rig.destage(FileId(999), 0)), Some(Err(Status::Stale)));
}

/// While no disk has room, or a disk is away, who asks is told, nobody waits for the next try, and
/// nothing is lost. Asked again when that is over, the bytes are moved.
#[test]
fn what_cannot_be_moved_is_told() {
    for (away, status) in
        [(None, Status::NoSpace), (Some(DISK), Status::NoSpace), (Some(MEMORY), Status::Later)]
    {
        let (mut rig, file) = with_memory(8);
        let (second, full) = (another(&mut rig, "second"), another(&mut rig, "full"));
        write(&mut rig, file, 2, 5, None);
        write(&mut rig, second, 2, 6, None);
        match away {
            None => drop(rig.write(full, 0..16 * B).unwrap()),
            Some(disk) => rig.disks.go_away(disk),
        }
        let mut replies = [rig.destage(file, 0), rig.destage(second, 0)];
        rig.begin_moves();
        rig.copy_moves();
        rig.end_moves();
        for reply in &mut replies {
            assert_eq!(told(reply), Some(Err(status)), "{away:?}");
        }
        assert_eq!(disks(&mut rig, file), [MEMORY]);
        rig.check();
        match away {
            None => drop(rig.set(full, size(B)).unwrap()),
            Some(disk) => rig.disks.come_back(disk),
        }
        let mut reply = rig.destage(file, 0);
        wait(&mut rig, Duration::from_secs(1));
        move_all(&mut rig);
        assert_eq!(told(&mut reply), Some(Ok(())), "{away:?}");
        assert_eq!(disks(&mut rig, file), [DISK]);
        rig.check();
    }
}

/// A file of which a part is lost: the rest is moved, and the loss is told.
#[test]
fn a_lost_part_is_told_and_the_rest_is_moved() {
    let (mut rig, file) = with_memory(8);
    write(&mut rig, file, 2, 5, None);
    rig.disks.restart(MEMORY);
    rig.wait(Duration::from_secs(1));
    write(&mut rig, file, 1, 6, None);
    let mut reply = rig.destage(file, 0);
    move_all(&mut rig);
    assert_eq!(told(&mut reply), Some(Err(Status::Lost)));
    let layout = rig.layout(file, Mode::Read).unwrap().layout;
    let states: Vec<_> = layout.extents.0.iter().map(|one| (one.disk, one.state)).collect();
    assert_eq!(states, [(DISK, ExtentState::Committed), (MEMORY, ExtentState::Lost)]);
    assert_eq!(rig.due_in(), None);
    rig.check();
}

/// A file that is removed while somebody waits, and a server that ends.
#[test]
fn nobody_waits_for_what_does_not_come() {
    for is_removed in [false, true] {
        let (mut rig, file) = with_memory(8);
        write(&mut rig, file, 2, 5, None);
        let mut reply = rig.destage(file, 0);
        assert_eq!(told(&mut reply), None);
        let expected = match is_removed {
            true => {
                rig.remove(ROOT, "f").unwrap();
                Status::Stale
            }
            false => {
                rig.end();
                Status::Later
            }
        };
        assert_eq!(told(&mut reply), Some(Err(expected)));
    }
}

/// An open file without a name is moved when it is due, like others; after its last close it is
/// not.
#[test]
fn an_open_file_without_a_name_is_moved_when_it_is_due() {
    for (is_open, is_restarted) in [(true, false), (false, false), (true, true), (false, true)] {
        let (mut rig, file) = with_memory(8);
        let opened = rig.create(&Caller::root(), ROOT, "f").unwrap();
        assert_eq!(opened.file.after.file, file);
        write(&mut rig, file, 2, 5, Some(Duration::from_secs(10)));
        rig.remove(ROOT, "f").unwrap();
        if !is_open {
            rig.close(opened.open).unwrap();
        }
        let mut open = opened.open;
        if is_restarted {
            rig = rig.crash();
            if is_open {
                let what = larder_wire::meta::calls::OpenWhat::File(file);
                open = rig.open(&Caller::root(), what, Mode::ReadWrite).unwrap().open;
            }
        }
        wait(&mut rig, Duration::from_secs(10));
        move_all(&mut rig);
        if is_open {
            assert_eq!(disks(&mut rig, file), [DISK]);
            rig.close(open).unwrap();
        }
        wait(&mut rig, Duration::from_secs(20));
        wait(&mut rig, Duration::from_secs(20));
        assert_eq!(rig.attributes(file).unwrap_err(), Status::Stale);
        assert_eq!(rig.disks.ever_written(DISK).contains(&5), is_open);
        assert_eq!(rig.due_in(), None);
        rig.check();
    }
}

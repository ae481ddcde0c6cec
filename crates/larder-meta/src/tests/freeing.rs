//! What it costs to free the blocks of removed files, and which calls wait for them.

use std::time::Duration;

use larder_wire::meta::words::{
    ByteRange, DiskId, FileId, LeaseKind, Medium, Mode, OpenId, Sequence, SessionId,
};
use larder_wire::meta::{BLOCK_BYTES, Res, Status, calls};
use larder_wire::xdr::Array;
use tokio::sync::oneshot;

use super::memory::{MEMORY, memory};
use super::rig::{Rig, decode, dentry};
use crate::change::{Change, Reply};
use crate::rights::Caller;
use crate::volume::Joining;

const B: u64 = BLOCK_BYTES;
const ROOT: FileId = FileId::ROOT;
const DISK: DiskId = DiskId(1);
const FILES: u64 = 100;
/// So long blocks wait for others before they are cleared, and for a commit after that.
const GATHER: Duration = Duration::from_millis(20);
const FREE: Duration = Duration::from_millis(100);
/// So long a call waits for room.
const ROOM: Duration = Duration::from_secs(1);

fn name(number: u64) -> String {
    format!("f{number}")
}

/// A volume of so many blocks with files of one block each. From now on the disks do what they are
/// asked when the test says so.
fn with_files(files: u64, blocks: u64) -> Rig {
    let mut rig = Rig::new(blocks);
    for number in 0..files {
        let opened = rig.create(&Caller::root(), ROOT, &name(number)).unwrap();
        rig.write(opened.file.after.file, 0..B).unwrap();
        rig.close(opened.open).unwrap();
    }
    rig.is_quick = false;
    rig.disks.take_clears();
    rig
}

/// An empty file.
fn empty(rig: &mut Rig) -> FileId {
    rig.create(&Caller::root(), ROOT, "empty").unwrap().file.after.file
}

fn removing(sequence: Sequence, number: u64) -> Change {
    calls::Remove { sequence, dentry: dentry(ROOT, &name(number)) }.into()
}

/// Removes a file. The disks do all that they are asked at once.
fn remove(rig: &mut Rig, number: u64) {
    let call = removing(rig.next(), number);
    let mut reply = rig.group_call(call);
    rig.acknowledge_at_once();
    assert!(!reply.try_recv().unwrap().failed);
}

/// The same, and asserts that the blocks were not cleared with it.
fn remove_only(rig: &mut Rig, number: u64) {
    remove(rig, number);
    assert_eq!(rig.disks.take_clears(), 0);
}

/// Passes time by milliseconds; the disks do at once what they are asked.
fn pass(rig: &mut Rig, time: Duration) {
    for _ in 0..time.as_millis() {
        rig.pass(Duration::from_millis(1));
        rig.acknowledge_at_once();
    }
}

fn allocating(rig: &mut Rig, file: FileId, blocks: u64) -> oneshot::Receiver<Reply> {
    let (sequence, open) = (rig.next(), OpenId::NONE);
    let (range, medium) = ((0..blocks * B).into(), Medium::Disk);
    rig.group_call(calls::Alloc { sequence, file, open, range, medium })
}

/// What became of it, if it was answered.
fn answered(reply: &mut oneshot::Receiver<Reply>) -> Option<Result<(), Status>> {
    let reply = reply.try_recv().ok()?;
    Some(decode::<Res<calls::LayoutGiven>>(&reply).map(drop))
}

/// One client that removes file after file: each removal is a commit, and beside these there are
/// few. Blocks are cleared by one request in 20 ms, and become free with the next removal, or 100
/// ms after the last clearing.
#[test]
fn files_removed_one_after_another_are_cleared_and_freed_many_at_a_time() {
    let mut rig = with_files(FILES, FILES);
    let commits = rig.engine.commits();
    for number in 0..FILES {
        remove(&mut rig, number);
        pass(&mut rig, Duration::from_millis(1));
    }
    assert_eq!(rig.engine.commits() - commits, FILES, "a removal is one commit");
    assert_eq!(rig.disks.take_clears() as u64, FILES / 20);
    pass(&mut rig, GATHER + FREE);
    assert_eq!(rig.engine.commits() - commits, FILES + 1);
    assert!(rig.disks.take_clears() <= 1);
    assert_eq!(rig.disks.take_cleared(DISK), FILES * B);
    assert_eq!(rig.free_bytes(), FILES * B);
    rig.check();
}

/// Several clients whose calls come together.
#[test]
fn files_removed_by_several_clients_are_cleared_and_freed_together() {
    const CLIENTS: u64 = 4;
    let mut rig = with_files(FILES, FILES);
    let sessions: Vec<SessionId> = (0..CLIENTS)
        .map(|client| rig.begin_session([client as u8 + 2; 16], 1).unwrap().session)
        .collect();
    let commits = rig.engine.commits();
    for round in 0..FILES / CLIENTS {
        let call = |(client, session): (u64, &SessionId)| {
            let sequence = Sequence { session: *session, slot: 0, sequence: round as u32 + 1 };
            removing(sequence, round * CLIENTS + client)
        };
        let root = Caller::root();
        let calls: Vec<Change> = (0..CLIENTS).zip(&sessions).map(call).collect();
        let replies = rig.group(calls.into_iter().map(|call| (&root, call)).collect());
        rig.acknowledge_at_once();
        replies.into_iter().for_each(|mut reply| assert!(!reply.try_recv().unwrap().failed));
        pass(&mut rig, Duration::from_millis(1));
    }
    pass(&mut rig, GATHER + FREE);
    assert_eq!(rig.engine.commits() - commits, FILES / CLIENTS + 1);
    assert_eq!(rig.disks.take_clears(), 2);
    assert_eq!(rig.free_bytes(), FILES * B);
    rig.check();
}

/// Nobody changes anything else: the blocks are free after the two waits, by one commit.
#[test]
fn blocks_are_free_soon_although_nothing_else_is_committed() {
    let mut rig = with_files(2, 2);
    let commits = rig.engine.commits();
    remove_only(&mut rig, 0);
    remove_only(&mut rig, 1);
    pass(&mut rig, GATHER);
    assert_eq!((rig.disks.take_clears(), rig.free_bytes()), (1, 0));
    pass(&mut rig, FREE);
    assert_eq!((rig.engine.commits() - commits, rig.free_bytes()), (3, 2 * B));
    rig.check();
}

/// A full volume: whoever finds no room waits neither for blocks that gather nor for a commit that
/// others make, whatever the blocks wait for.
#[test]
fn a_call_that_finds_no_room_has_what_is_on_its_way() {
    for waited in [Duration::ZERO, GATHER, GATHER + FREE] {
        let mut rig = with_files(3, 3);
        let file = empty(&mut rig);
        remove_only(&mut rig, 0);
        remove_only(&mut rig, 1);
        pass(&mut rig, waited);
        let mut reply = allocating(&mut rig, file, 2);
        rig.acknowledge_at_once();
        assert_eq!(answered(&mut reply), Some(Ok(())), "after {waited:?}");
        assert_eq!(rig.disks.take_clears(), 1);
        // None is on its way: the next call is refused at once.
        let other = empty(&mut rig);
        assert_eq!(other, file);
        let mut reply = allocating(&mut rig, file, 3);
        assert_eq!(answered(&mut reply), Some(Err(Status::NoSpace)));
        rig.check();
    }
}

/// What is given up while a call waits for room does not gather, and the call goes on waiting until
/// it has enough.
#[test]
fn a_call_waits_for_all_that_is_on_its_way() {
    let mut rig = with_files(3, 3);
    let file = empty(&mut rig);
    remove_only(&mut rig, 0);
    let mut reply = allocating(&mut rig, file, 2);
    // The disks have this to do, and have not done it.
    assert_eq!((answered(&mut reply), rig.disks.take_clears()), (None, 1));
    let other = rig.begin_session([2; 16], 1).unwrap().session;
    let sequence = Sequence { session: other, slot: 0, sequence: 1 };
    let mut removed = rig.group_call(removing(sequence, 1));
    rig.acknowledge_at_once();
    assert!(!removed.try_recv().unwrap().failed);
    assert_eq!((answered(&mut reply), rig.disks.take_clears()), (Some(Ok(())), 1));
    rig.check();
}

/// A full volume of two files, of which the first is removed, and a call that wants its block.
fn full_with_a_call() -> (Rig, FileId, oneshot::Receiver<Reply>) {
    let mut rig = with_files(2, 2);
    let file = empty(&mut rig);
    remove_only(&mut rig, 0);
    let reply = allocating(&mut rig, file, 1);
    (rig, file, reply)
}

/// No call waits for room there any more: the block of the second file gathers, and becomes free.
fn check_that_blocks_gather_again(mut rig: Rig) {
    rig.disks.take_clears();
    remove_only(&mut rig, 1);
    pass(&mut rig, GATHER + FREE);
    assert_eq!(rig.free_bytes(), 2 * B);
    rig.check();
}

/// A disk that does not clear: the call is refused when it has waited long enough, and at once if
/// the disk is known to be away. No later call waits for what it did not get.
#[test]
fn a_call_does_not_wait_for_a_disk_that_does_not_clear() {
    let (mut rig, file, mut reply) = full_with_a_call();
    rig.pass(ROOM - Duration::from_millis(1));
    assert_eq!(answered(&mut reply), None);
    rig.pass(Duration::from_millis(1));
    assert_eq!(answered(&mut reply), Some(Err(Status::NoSpace)));
    rig.disks.go_away(DISK);
    let mut reply = allocating(&mut rig, file, 1);
    assert_eq!(answered(&mut reply), Some(Err(Status::NoSpace)));
    rig.disks.come_back(DISK);
    rig.acknowledge_at_once();
    check_that_blocks_gather_again(rig);
}

/// A session that ends while its call waits for room: the call is answered, and blocks gather
/// again.
#[test]
fn a_call_of_a_session_that_ends_does_not_wait_for_room() {
    let (mut rig, _, mut reply) = full_with_a_call();
    let session = rig.session;
    let mut ended = rig.group_call(calls::EndSession { session });
    rig.acknowledge_at_once();
    assert!(!ended.try_recv().unwrap().failed);
    assert_eq!(answered(&mut reply), Some(Err(Status::BadSession)));
    rig.session = rig.begin_session([2; 16], 1).unwrap().session;
    rig.sequence = 0;
    check_that_blocks_gather_again(rig);
}

/// An open that is to bring blocks has them, too, if they are on their way; if not, it is answered
/// without any.
#[test]
fn an_open_that_allocates_has_what_is_on_its_way() {
    for is_given_up in [true, false] {
        let mut rig = with_files(2, 2);
        let file = empty(&mut rig);
        if is_given_up {
            remove_only(&mut rig, 0);
        }
        let (sequence, what) = (rig.next(), calls::OpenWhat::File(file));
        let range = ByteRange { offset: 0, length: B };
        let (mode, lease, allocate) = (Mode::Write, LeaseKind::None, Some(Medium::Disk));
        let call = calls::Open { sequence, what, mode, lease, range, allocate };
        let mut reply = rig.group_call(call);
        rig.acknowledge_at_once();
        let opened = decode::<Res<calls::Opened>>(&reply.try_recv().unwrap()).unwrap();
        assert_eq!(opened.layout.extents.0.len(), usize::from(is_given_up));
        // It is open once.
        let close = calls::Close { sequence: rig.next(), opens: Array(vec![opened.open]) };
        assert_eq!(rig.ask(&Caller::root(), close), Some(Ok(())));
        let file_is_gone = calls::Remove { sequence: rig.next(), dentry: dentry(ROOT, "empty") };
        let mut removed = rig.group_call(file_is_gone);
        rig.acknowledge_all();
        assert!(!removed.try_recv().unwrap().failed);
        rig.check();
    }
}

/// The server dies at each moment between a removal and the commit that frees its blocks: the next
/// one has them cleared, again if need be, and they are free then.
#[test]
fn blocks_on_their_way_are_free_after_a_restart() {
    let step = Duration::from_millis(10);
    for steps in 0..=((GATHER + FREE).as_millis() / step.as_millis()) as u32 {
        for ends in [false, true] {
            let mut rig = with_files(2, 2);
            remove_only(&mut rig, 0);
            pass(&mut rig, step * steps);
            if ends {
                rig.end();
            }
            let mut rig = rig.crash();
            rig.check();
            rig.acknowledge_all();
            assert_eq!(rig.free_bytes(), B, "after {steps} steps");
            rig.check();
        }
    }
}

/// What a memory disk has no room for goes to other disks, so its blocks wait for nothing; and no
/// sync is made for them.
#[test]
fn blocks_of_memory_disks_are_free_at_once() {
    let rig = Rig::new(2);
    rig.engine.let_be_late();
    let mut rig = rig.crash();
    rig.enrol(memory(1), Joining::Anywhere).unwrap();
    rig.disks.restart(MEMORY);
    // Nobody opens files again.
    for _ in 0..2 {
        rig.wait(Duration::from_secs(20));
        rig.attributes(ROOT).unwrap();
    }
    for round in 0..2 {
        let opened = rig.create(&Caller::root(), ROOT, "v").unwrap();
        let file = opened.file.after.file;
        let given = rig.alloc_on(Medium::Memory(1), file, 0..B).unwrap();
        assert_eq!(given.layout.extents.0[0].disk, MEMORY, "in round {round}");
        rig.commit(file, &given.layout, 0..B).unwrap();
        rig.close(opened.open).unwrap();
        rig.is_quick = false;
        let removing = calls::Remove { sequence: rig.next(), dentry: dentry(ROOT, "v") };
        let mut removed = rig.group_call(removing);
        rig.acknowledge_at_once();
        assert!(!removed.try_recv().unwrap().failed);
        rig.is_quick = true;
    }
    assert_eq!(rig.disks.take_cleared(MEMORY), 2 * B);
    rig.check();
}

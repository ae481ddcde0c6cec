//! Allocation, commits, layouts, sizes and holes, case by case.

use larder_wire::meta::calls;
use larder_wire::meta::words::{
    ByteRange, ExtentState, FileId, Layout, Medium, Mode, OpenId, SessionId,
};
use larder_wire::meta::{ALLOCATE_BYTES_MAX, BLOCK_BYTES, EXTENTS_MAX, FILE_BYTES_MAX, Status};
use larder_wire::xdr::Array;

use super::rig::{Rig, mode, refused, size, user};
use crate::rights::Caller;

const ROOT: FileId = FileId::ROOT;
const B: u64 = BLOCK_BYTES;

fn file(rig: &mut Rig) -> FileId {
    rig.create(&Caller::root(), ROOT, "a").unwrap().file.after.file
}

/// Offsets and lengths of extents.
fn extents(layout: &Layout) -> Vec<(u64, u64, ExtentState)> {
    layout.extents.0.iter().map(|extent| (extent.offset, extent.length, extent.state)).collect()
}

#[test]
fn what_is_not_committed_is_its_writers_alone() {
    let mut rig = Rig::new(64);
    let file = file(&mut rig);
    let given = rig.alloc(file, 0..2 * B).unwrap();
    assert_eq!(extents(&given.layout), [(0, 2 * B, ExtentState::Provisional)]);
    assert_eq!(given.layout.grants.0.len(), 1);
    let own = rig.session;
    let other = rig.begin_session([2; 16], 1).unwrap().session;
    rig.session = other;
    let seen = rig.layout(file, Mode::Read).unwrap();
    assert_eq!((extents(&seen.layout), seen.layout.grants.0.len()), (vec![], 0));
    rig.session = own;
    rig.commit(file, &given.layout, 0..5000).unwrap();
    rig.session = other;
    let seen = rig.layout(file, Mode::Read).unwrap();
    assert_eq!(extents(&seen.layout), [(0, 2 * B, ExtentState::Committed)]);
    assert_eq!((seen.attributes.size, seen.attributes.used), (5000, 2 * B));
    rig.check();
}

#[test]
fn a_session_that_ends_frees_what_it_held() {
    let mut rig = Rig::new(8);
    let file = file(&mut rig);
    rig.alloc(file, 0..8 * B).unwrap();
    assert_eq!(refused(rig.alloc(file, 8 * B..9 * B)), Status::NoSpace);
    assert_eq!(rig.free_bytes(), 0);
    let session = rig.session;
    rig.call(&Caller::root(), calls::EndSession { session }).unwrap();
    rig.check();
    rig.session = rig.begin_session([1; 16], 2).unwrap().session;
    assert_eq!(rig.free_bytes(), 8 * B);
    assert_eq!(rig.attributes(file).unwrap().size, 0);
    rig.write(file, 0..8 * B).unwrap();
    rig.check();
}

#[test]
fn a_commit_again_is_no_harm() {
    let mut rig = Rig::new(64);
    let file = file(&mut rig);
    let given = rig.alloc(file, 0..3 * B).unwrap();
    let first = rig.commit(file, &given.layout, 100..2 * B + 1).unwrap().file.after;
    let again = rig.commit(file, &given.layout, 100..2 * B + 1).unwrap().file.after;
    assert_eq!((first.size, first.used), (2 * B + 1, 3 * B));
    assert_eq!((again.size, again.used), (first.size, first.used));
    rig.check();
}

#[test]
fn a_commit_of_what_one_does_not_have_does_nothing() {
    let mut rig = Rig::new(64);
    let file = file(&mut rig);
    let given = rig.alloc(file, 0..2 * B).unwrap();
    // One block more than there is.
    let mut beyond = given.layout.clone();
    beyond.extents.0[0].length = 3 * B;
    assert_eq!(refused(rig.commit(file, &beyond, 0..3 * B)), Status::NotAllocated);
    // Blocks of another session.
    let mut elsewhere = given.layout.clone();
    elsewhere.extents.0[0].position += 10 * B;
    assert_eq!(refused(rig.commit(file, &elsewhere, 0..B)), Status::NotAllocated);
    let after = rig.attributes(file).unwrap();
    assert_eq!((after.size, after.used), (0, 0));
    // Ranges that make no sense.
    let mut call = rig.committing(file, &given.layout, 0..B);
    let part = call.written.0[0];
    for (offset, length) in [(0, 0), (0, u64::MAX), (FILE_BYTES_MAX, 1), (u64::MAX, 2)] {
        call.sequence = rig.next();
        call.written = Array(vec![calls_written(part, offset, length)]);
        assert_eq!(refused(rig.call(&Caller::root(), call.clone())), Status::Invalid);
    }
    for unsorted in [[(0, B), (0, B)], [(B, B), (0, B)], [(0, B + 1), (B, B)]] {
        call.sequence = rig.next();
        let parts = unsorted.map(|(offset, length)| calls_written(part, offset, length));
        call.written = Array(parts.to_vec());
        assert_eq!(refused(rig.call(&Caller::root(), call.clone())), Status::Invalid);
    }
    rig.check();
}

/// Every byte of the store is unchanged when space runs out in the middle of an ALLOC, on the
/// second disk and in the third gap, or its range is invalid; and the remaining space can be
/// allocated afterwards.
#[test]
fn an_alloc_that_is_refused_has_taken_nothing() {
    let mut rig = Rig::with_disks(&[16, 16]);
    let file = file(&mut rig);
    for block in [0, 2, 4] {
        rig.alloc(file, block * B..(block + 1) * B).unwrap();
    }
    let (before, covered) = (rig.dump(), rig.disks.covered());
    let wanted = [
        (0..40 * B, Status::NoSpace),
        (5 * B..5 * B, Status::Invalid),
        (FILE_BYTES_MAX..FILE_BYTES_MAX + 1, Status::Invalid),
        (u64::MAX - B..u64::MAX, Status::Invalid),
    ];
    for (range, status) in wanted {
        assert_eq!(refused(rig.alloc(file, range.clone())), status, "{range:?}");
        assert!(rig.dump() == before, "{range:?}");
        assert_eq!(rig.disks.covered(), covered, "{range:?}");
    }
    rig.alloc(file, 0..32 * B).unwrap();
    assert_eq!(rig.free_bytes(), 0);
    rig.check();
}

fn calls_written(
    part: larder_wire::meta::words::Written,
    offset: u64,
    length: u64,
) -> larder_wire::meta::words::Written {
    let position = part.position.wrapping_add(offset);
    larder_wire::meta::words::Written { offset, length, position, ..part }
}

#[test]
fn a_smaller_size_takes_blocks_away_and_hides_what_was_behind_it() {
    let mut rig = Rig::new(64);
    let file = file(&mut rig);
    rig.write(file, 0..4 * B).unwrap();
    let after = rig.set(file, size(B + 100)).unwrap().file.after;
    assert_eq!((after.size, after.used), (B + 100, 2 * B));
    rig.set(file, size(10 * B)).unwrap();
    let given = rig.layout(file, Mode::ReadWrite).unwrap();
    assert_eq!(extents(&given.layout), [(0, B + 100, ExtentState::Committed)]);
    // Not into the middle of the rest, but from its beginning on.
    assert_eq!(refused(rig.commit(file, &given.layout, B + 200..B + 300)), Status::Invalid);
    rig.commit(file, &given.layout, B + 100..B + 300).unwrap();
    let given = rig.layout(file, Mode::Read).unwrap();
    assert_eq!(extents(&given.layout), [(0, B + 300, ExtentState::Committed)]);
    assert_eq!(given.attributes.size, 10 * B);
    rig.commit(file, &given.layout, B + 300..2 * B).unwrap();
    rig.write(file, 2 * B..3 * B).unwrap();
    rig.check();
    // The blocks after that are elsewhere now, or read as zeros.
    let given = rig.layout(file, Mode::Read).unwrap();
    assert_eq!(given.layout.extents.0.iter().map(|extent| extent.length).sum::<u64>(), 3 * B);
}

#[test]
fn two_clients_that_fill_one_hole() {
    let mut rig = Rig::new(64);
    let file = file(&mut rig);
    let one = rig.alloc(file, 0..2 * B).unwrap();
    let own = rig.session;
    rig.session = rig.begin_session([2; 16], 1).unwrap().session;
    let two = rig.alloc(file, 0..2 * B).unwrap();
    assert_ne!(one.layout.extents, two.layout.extents);
    rig.commit(file, &two.layout, 0..100).unwrap();
    rig.session = own;
    // The first block is there now: half of it would be lost.
    assert_eq!(refused(rig.commit(file, &one.layout, 100..2 * B)), Status::Changed);
    let now = rig.layout(file, Mode::ReadWrite).unwrap();
    let wanted = [(0, B, ExtentState::Committed), (B, B, ExtentState::Provisional)];
    assert_eq!(extents(&now.layout), wanted);
    rig.commit(file, &now.layout, 100..2 * B).unwrap();
    rig.check();
    // All of a block may be replaced.
    let session = rig.session;
    rig.session = rig.begin_session([3; 16], 1).unwrap().session;
    let three = rig.alloc(file, 2 * B..3 * B).unwrap();
    rig.session = session;
    rig.write(file, 2 * B..3 * B).unwrap();
    rig.session = SessionId([4; 16]);
    let _ = three;
    rig.check();
}

#[test]
fn a_hole_is_punched() {
    let mut rig = Rig::new(64);
    let file = file(&mut rig);
    rig.write(file, 0..6 * B + 10).unwrap();
    let mut punch = |offset, length| {
        let (sequence, range) = (rig.next(), ByteRange { offset, length });
        let call = calls::Punch { sequence, file, open: OpenId::NONE, range };
        let punched = rig.call(&Caller::root(), call).map(|changed| changed.file.after);
        rig.check();
        punched
    };
    assert_eq!(punch(B, 2 * B).unwrap().used, 5 * B);
    assert_eq!(refused(punch(B + 1, B)), Status::Invalid);
    assert_eq!(refused(punch(B, B + 1)), Status::Invalid);
    assert_eq!(refused(punch(B, 0)), Status::Invalid);
    assert_eq!(punch(5 * B, B + 10).unwrap().used, 3 * B);
    let after = punch(B, 2 * B).unwrap();
    assert_eq!((after.size, after.used), (6 * B + 10, 3 * B));
    let given = rig.layout(file, Mode::Read).unwrap();
    let wanted = [(0, B, ExtentState::Committed), (3 * B, 2 * B, ExtentState::Committed)];
    assert_eq!(extents(&given.layout), wanted);
    assert_eq!(given.layout.covered.length, 1 << 30);
}

#[test]
fn preallocated_blocks_are_the_files_at_once() {
    let mut rig = Rig::new(64);
    let file = file(&mut rig);
    rig.write(file, B..2 * B + 10).unwrap();
    let preallocate = |rig: &mut Rig, offset, length| {
        let (sequence, range) = (rig.next(), ByteRange { offset, length });
        let call = calls::Preallocate { sequence, file, open: OpenId::NONE, range };
        let done = rig.call(&Caller::root(), call).map(|changed| changed.file);
        rig.check();
        done
    };
    // Within the file, then beyond its end, then where all blocks exist: only the version changes.
    let done = preallocate(&mut rig, 100, 2 * B - 90).unwrap().after;
    assert_eq!((done.size, done.used), (2 * B + 10, 3 * B));
    let done = preallocate(&mut rig, 4 * B + 1, 2 * B - 2).unwrap();
    assert_eq!((done.after.size, done.after.used), (6 * B - 1, 5 * B));
    let again = preallocate(&mut rig, 4 * B, B).unwrap();
    assert_eq!((again.after.size, again.after.used), (6 * B - 1, 5 * B));
    assert!(again.before == done.after.version() && again.after.data_change > again.before.change);
    let given = rig.layout(file, Mode::Read).unwrap();
    let spans = |layout: &larder_wire::meta::words::Layout| -> Vec<(u64, u64)> {
        layout.extents.0.iter().map(|one| (one.offset, one.offset + one.length)).collect()
    };
    assert_eq!(spans(&given.layout).last(), Some(&(4 * B, 6 * B)));
    assert!(given.layout.extents.0.iter().all(|one| one.state == ExtentState::Committed));

    for (offset, length) in [(0, 0), (0, ALLOCATE_BYTES_MAX + 1), (FILE_BYTES_MAX, 1)] {
        assert_eq!(refused(preallocate(&mut rig, offset, length)), Status::Invalid);
    }
    // There is room for all of it, or nothing is given.
    let free = rig.free_bytes();
    assert_eq!(refused(preallocate(&mut rig, 10 * B, free + B)), Status::NoSpace);
    assert_eq!((rig.free_bytes(), rig.attributes(file).unwrap().size), (free, 6 * B - 1));
    let after = preallocate(&mut rig, 10 * B, free).unwrap().after;
    assert_eq!((rig.free_bytes(), after.used), (0, 64 * B));
}

/// A session that has blocks of a hole which is preallocated in the meantime writes them in vain:
/// what it commits goes into the file's blocks, and its own are not seen again.
#[test]
fn preallocating_where_another_client_is_about_to_write() {
    let mut rig = Rig::new(64);
    let file = file(&mut rig);
    let own = rig.session;
    let one = rig.alloc(file, 0..2 * B).unwrap();
    rig.session = rig.begin_session([2; 16], 1).unwrap().session;
    let two = rig.alloc(file, 0..2 * B).unwrap();
    let (sequence, range) = (rig.next(), ByteRange { offset: 0, length: 2 * B });
    let call = calls::Preallocate { sequence, file, open: OpenId::NONE, range };
    rig.call(&Caller::root(), call).unwrap();
    rig.check();
    // Its own provisional blocks are gone, and the capabilities on them.
    assert_eq!(refused(rig.commit(file, &two.layout, 0..100)), Status::NotAllocated);
    rig.session = own;
    // Half of a block of the file would be lost.
    assert_eq!(refused(rig.commit(file, &one.layout, 100..2 * B)), Status::Changed);
    rig.check();
    let now = rig.layout(file, Mode::ReadWrite).unwrap();
    assert_eq!(extents(&now.layout), [(0, 2 * B, ExtentState::Committed)]);
    rig.commit(file, &now.layout, 100..2 * B).unwrap();
    rig.check();
}

#[test]
fn terabytes_of_holes_take_nothing() {
    let mut rig = Rig::new(64);
    let file = file(&mut rig);
    rig.set(file, size(1 << 50)).unwrap();
    rig.write(file, (1 << 45) + 5..(1 << 45) + 6).unwrap();
    let after = rig.attributes(file).unwrap();
    assert_eq!((after.size, after.used), (1 << 50, B));
    assert_eq!(refused(rig.set(file, size(FILE_BYTES_MAX + 1))), Status::FileTooLarge);
    rig.check();
}

#[test]
fn a_layout_that_does_not_fit_says_how_far_it_goes() {
    let mut rig = Rig::new(2000);
    let file = file(&mut rig);
    for block in 0..600 {
        rig.write(file, 2 * block * B..(2 * block + 1) * B).unwrap();
    }
    let (mut at, mut found) = (0, 0);
    let mut parts = 0;
    while at < 1200 * B {
        let range = ByteRange { offset: at, length: 1200 * B - at };
        let (session, open) = (rig.session, OpenId::NONE);
        let call = calls::GetCaps { session, file, open, mode: Mode::Read, range };
        let layout = rig.call(&Caller::root(), call).unwrap().layout;
        assert_eq!(layout.covered.offset, at);
        found += layout.extents.0.len();
        at += layout.covered.length;
        parts += 1;
    }
    assert_eq!((found, parts), (600, 600usize.div_ceil(EXTENTS_MAX)));
    rig.check();
}

#[test]
fn what_was_opened_stays_open_whatever_becomes_of_the_mode() {
    let mut rig = Rig::new(64);
    let file = file(&mut rig);
    rig.set(file, mode(0o666)).unwrap();
    let other = user(5, &[]);
    let opened = rig.open(&other, calls::OpenWhat::File(file), Mode::ReadWrite).unwrap();
    rig.set(file, mode(0o600)).unwrap();
    let mut alloc = |open| {
        let sequence = rig.next();
        let range = ByteRange { offset: 0, length: 1 };
        rig.call(&other, calls::Alloc { sequence, file, open, range, medium: Medium::Disk })
    };
    assert_eq!(refused(alloc(OpenId::NONE)), Status::AccessDenied);
    assert_eq!(refused(alloc(OpenId(99))), Status::BadOpen);
    assert!(alloc(opened.open).is_ok());
    let reader = rig.open(&Caller::root(), calls::OpenWhat::File(file), Mode::Read).unwrap();
    let sequence = rig.next();
    let range = ByteRange { offset: 0, length: 1 };
    let call = calls::Alloc { sequence, file, open: reader.open, range, medium: Medium::Disk };
    assert_eq!(refused(rig.call(&Caller::root(), call)), Status::AccessDenied);
}

#[test]
fn writing_clears_set_uid() {
    let mut rig = Rig::new(64);
    let file = file(&mut rig);
    rig.set(file, mode(0o6777)).unwrap();
    let mut call = rig.alloc(file, 0..B).map(|given| given.layout).unwrap();
    let commit = rig.committing(file, &call, 0..1);
    let after = rig.call(&user(5, &[]), commit).unwrap().file.after;
    assert_eq!(after.mode, 0o777);
    call.extents.0.clear();
}

/// Opens a file for writing, which is made if it does not exist, with blocks given ahead.
fn open_ahead(rig: &mut Rig, text: &str, blocks: u64) -> calls::Opened {
    let create = calls::Create {
        dentry: super::rig::dentry(ROOT, text),
        set: mode(0o644),
        if_exists: larder_wire::meta::words::IfExists::Open,
    };
    let call = calls::Open {
        sequence: rig.next(),
        what: calls::OpenWhat::Create(create),
        mode: Mode::Write,
        lease: larder_wire::meta::words::LeaseKind::None,
        range: (0..blocks * B).into(),
        allocate: Some(Medium::Disk),
    };
    rig.call(&Caller::root(), call).unwrap()
}

/// Blocks that OPEN gave ahead and that were neither requested nor committed are freed some time
/// after the last close; blocks that ALLOC requested stay with the session: a write may be in
/// flight.
#[test]
fn closing_frees_what_was_given_ahead_and_not_what_was_asked_for() {
    let mut rig = Rig::new(16);
    let one = open_ahead(&mut rig, "a", 8);
    let file = one.file.after.file;
    assert_eq!(extents(&one.layout), [(0, 8 * B, ExtentState::Provisional)]);
    let two = open_ahead(&mut rig, "a", 8);
    assert_eq!(two.layout.extents, one.layout.extents, "nothing is given twice");
    assert_eq!(rig.free_bytes(), 8 * B);
    let asked = rig.alloc(file, B..3 * B).unwrap();
    let start = |layout: &Layout| layout.extents.0[0].position - layout.extents.0[0].offset;
    assert_eq!(start(&asked.layout), start(&one.layout), "they are the same blocks");
    let mut commit = rig.committing(file, &one.layout, 0..B);
    commit.open = one.open;
    rig.call(&Caller::root(), commit).unwrap();
    rig.close(one.open).unwrap();
    rig.wait(super::rig::LEASE / 4);
    assert_eq!(rig.free_bytes(), 8 * B, "somebody has it open to write");
    rig.close(two.open).unwrap();
    rig.wait(super::rig::LEASE / 4);
    assert_eq!(rig.free_bytes(), 13 * B, "one block is the file's, two are asked for");
    rig.check();
    rig.commit(file, &asked.layout, B..3 * B).unwrap();
    assert_eq!(rig.attributes(file).unwrap().used, 3 * B);
    rig.check();
}

/// Another session fills a block of a file for which we have one, too, and have written it: ours is
/// given up when we request blocks again, so its content does not appear when the other one is cut
/// off.
#[test]
fn a_block_that_came_too_late_does_not_come_back() {
    for asks_first in [false, true] {
        let mut rig = Rig::new(16);
        let given = open_ahead(&mut rig, "a", 4);
        let file = given.file.after.file;
        if asks_first {
            rig.alloc(file, 0..B).unwrap();
        }
        let own = rig.session;
        rig.session = rig.begin_session([2; 16], 1).unwrap().session;
        rig.write(file, 0..100).unwrap();
        rig.session = own;
        assert_eq!(refused(rig.commit(file, &given.layout, 0..50)), Status::Changed);
        let again = rig.alloc(file, 0..50).unwrap();
        assert_eq!(extents(&again.layout)[0], (0, B, ExtentState::Committed));
        rig.set(file, size(0)).unwrap();
        rig.set(file, size(4 * B)).unwrap();
        let first = |layout: &Layout| layout.extents.0.iter().find(|one| one.offset == 0).copied();
        assert_eq!(first(&rig.layout(file, Mode::Read).unwrap().layout), None, "zeros");
        let written = rig.alloc(file, 0..50).unwrap().layout;
        assert_ne!(first(&written).unwrap().position, first(&given.layout).unwrap().position);
        rig.check();
    }
}

/// No block that was given ahead survives the server, which alone knows of opens; requested blocks
/// do.
#[test]
fn what_was_given_ahead_is_free_after_a_restart_and_a_commit_of_it_does_nothing() {
    let mut rig = Rig::new(16);
    let given = open_ahead(&mut rig, "a", 8);
    let file = given.file.after.file;
    let asked = rig.alloc(file, 0..2 * B).unwrap();
    assert_eq!(rig.free_bytes(), 8 * B);
    let mut rig = rig.crash();
    rig.check();
    rig.mkdir(&Caller::root(), ROOT, "d").unwrap();
    assert_eq!(rig.free_bytes(), 14 * B);
    assert_eq!(refused(rig.commit(file, &given.layout, 0..8 * B)), Status::NotAllocated);
    assert_eq!(rig.attributes(file).unwrap().size, 0);
    rig.commit(file, &asked.layout, 0..2 * B).unwrap();
    assert_eq!(rig.attributes(file).unwrap().used, 2 * B);
    rig.check();
}

/// Many closed files lose what they were given ahead by one request to the disk, without waiting
/// for the next check of sessions; and so they do for a call that finds no room.
#[test]
fn what_closed_files_were_given_ahead_is_freed_many_at_a_time() {
    let mut rig = Rig::new(1024);
    for number in 0..64 {
        let opened = open_ahead(&mut rig, &format!("f{number}"), 8);
        rig.close(opened.open).unwrap();
    }
    rig.mkdir(&Caller::root(), ROOT, "d").unwrap();
    assert_eq!(rig.free_bytes(), 1024 * B);
    let opened = open_ahead(&mut rig, "last", 8);
    rig.close(opened.open).unwrap();
    let file = open_ahead(&mut rig, "full", 0).file.after.file;
    // The call that finds no room waits for them.
    rig.alloc(file, 0..1020 * B).unwrap();
    rig.check();
}

/// O_TRUNC ends the capabilities from before, but not those in the same reply.
#[test]
fn an_open_that_truncates_grants_what_is_good() {
    let mut rig = Rig::new(8);
    let opened = rig.create(&Caller::root(), ROOT, "a").unwrap();
    rig.write(opened.file.after.file, 0..2 * B).unwrap();
    assert!(!rig.disks.covered().is_empty());
    let create = calls::Create {
        dentry: super::rig::dentry(ROOT, "a"),
        set: size(0),
        if_exists: larder_wire::meta::words::IfExists::Open,
    };
    let call = calls::Open {
        sequence: rig.next(),
        what: calls::OpenWhat::Create(create),
        mode: Mode::Write,
        lease: larder_wire::meta::words::LeaseKind::None,
        range: (0..B).into(),
        allocate: Some(Medium::Disk),
    };
    let opened = rig.call(&Caller::root(), call).unwrap();
    assert_eq!((opened.created, opened.file.after.size), (false, 0));
    let position = opened.layout.extents.0[0].position;
    assert_eq!(rig.disks.covered(), vec![position..position + B; 1]);
    rig.check();
}

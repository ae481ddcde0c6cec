//! What is left by a writer that wrote committed blocks in place and does not commit.

use std::ops::Range;

use larder_wire::meta::calls::{self, LookAt};
use larder_wire::meta::words::{
    Attributes, ByteRange, FileId, LeaseKind, Medium, Mode, OpenId, Returned, Sequence, SessionId,
};
use larder_wire::meta::{BLOCK_BYTES, Status};
use larder_wire::xdr::Array;

use super::rig::{LEASE, Rig, mode, refused, user};
use crate::rights::Caller;
use crate::store::records;

const B: u64 = BLOCK_BYTES;

/// A file with two committed blocks, a writer, and a reader.
struct World {
    rig: Rig,
    file: FileId,
    writer: SessionId,
    looker: SessionId,
}

impl World {
    fn new() -> World {
        let mut rig = Rig::new(64);
        let looker = rig.session;
        let file = rig.create(&Caller::root(), FileId::ROOT, "a").unwrap().file.after.file;
        rig.write(file, 0..2 * B).unwrap();
        rig.wait(LEASE / 4);
        let writer = rig.begin_session([2; 16], 1).unwrap().session;
        rig.session = writer;
        World { rig, file, writer, looker }
    }

    fn seen(&self) -> Attributes {
        let call = calls::GetAttr { session: self.looker, file: self.file };
        self.rig.read(&Caller::root(), &call).unwrap()
    }

    /// How many sessions are recorded as having been granted to write in place.
    fn marks(&self) -> usize {
        self.rig.records::<records::InPlace>(b'u').len()
    }

    /// The writer gets access to bytes and writes them, as far as the server can tell.
    fn write(&mut self, bytes: Range<u64>) -> larder_wire::meta::words::Layout {
        self.rig.alloc(self.file, bytes).unwrap().layout
    }

    /// The same, and commits it, or a part of it.
    fn commit(&mut self, all: bool) {
        let layout = self.write(0..2 * B);
        let mut call = self.rig.committing(self.file, &layout, 0..B);
        call.all = all;
        self.rig.call(&Caller::root(), call).unwrap();
    }

    /// The server dies, and another one begins.
    fn crash(&mut self) {
        let rig = std::mem::replace(&mut self.rig, Rig::new(1));
        self.rig = rig.crash_unknown();
    }

    /// The writer does not call any more.
    fn wait_for_its_end(&mut self) {
        for _ in 0..6 {
            self.seen();
            self.rig.wait(LEASE / 4);
        }
    }

    fn end_writer(&mut self) {
        let session = self.writer;
        // It is answered when its capabilities are revoked.
        let _ = self.rig.ask(&Caller::root(), calls::EndSession { session });
    }
}

/// What a writer did, and whether it may have left something uncommitted.
type Deed = (&'static str, fn(&mut World), bool);

const DEEDS: [Deed; 6] = [
    ("nothing", |_| {}, false),
    ("a hole", |world| drop(world.write(4 * B..5 * B)), false),
    ("what it asked for", |world| drop(world.rig.layout(world.file, Mode::Write)), true),
    ("in place", |world| drop(world.write(0..10)), true),
    ("in place, and committed all", |world| world.commit(true), false),
    ("in place, and committed a part", |world| world.commit(false), true),
];

/// How it ended, and whether the server was the same all the time.
type End = (&'static str, fn(&mut World), bool);

const ENDS: [End; 4] = [
    ("in order", World::end_writer, true),
    ("by its time", World::wait_for_its_end, true),
    (
        "while the server was down",
        |world| {
            world.crash();
            world.rig.begin_session([1; 16], 1).unwrap();
            world.wait_for_its_end();
        },
        false,
    ),
    (
        "and the server died before it had done anything about it",
        |world| {
            world.rig.is_quick = false;
            world.end_writer();
            world.rig.is_quick = true;
            world.crash();
            world.rig.resume_all();
        },
        false,
    ),
];

/// A file that was written in place and not committed gets a new data version when its writer's
/// session is over, however it ended; any other file stays as it is.
#[test]
fn what_a_dead_writer_may_have_written_in_place_has_another_version() {
    for (deed, act, leaves) in DEEDS {
        for (end, finish, is_same_server) in ENDS {
            let mut world = World::new();
            act(&mut world);
            let before = world.seen();
            // Only the server that was told knows that everything is committed.
            let leaves = leaves || (!is_same_server && world.marks() > 0);
            finish(&mut world);
            let after = world.seen();
            let is_other = after.data_change > before.data_change;
            assert_eq!(is_other, leaves, "it wrote {deed} and ended {end}");
            assert_eq!((after.mtime, after.size), (before.mtime, before.size));
            world.rig.wait(LEASE / 4);
            assert_eq!(world.marks(), 0, "it wrote {deed} and ended {end}");
            world.rig.session = world.looker;
            world.rig.check();
        }
    }
}

/// The new version comes after the writer's capabilities are revoked and the disks have what it
/// wrote, and readers of the old one are first asked to return their leases.
#[test]
fn the_version_after_a_dead_writer_waits_for_the_disks_and_for_leases() {
    let mut world = World::new();
    let (file, session) = (world.file, world.looker);
    world.write(0..10);
    let before = world.seen();
    let (lease, range) = (LeaseKind::Read, ByteRange { offset: 0, length: 2 * B });
    let look = calls::Look { session, at: LookAt::File(file), lease, range };
    let given = world.rig.call(&Caller::root(), look).unwrap().found.unwrap().lease.unwrap();
    world.rig.is_quick = false;
    world.end_writer();
    let disks = world.rig.disks.clone();
    assert!(disks.covered().len() > 1, "the writer's capability is good");
    for _ in ["revoked", "flushed"] {
        assert_eq!(world.rig.recaller.take(), [], "nobody is asked before it can be told");
        assert!(world.rig.acknowledge());
    }
    let recalled = world.rig.recaller.take();
    assert_eq!(
        recalled.iter().map(|one| (one.session, one.file)).collect::<Vec<_>>(),
        [(session, file)]
    );
    assert_eq!(world.seen(), before);
    let sequence = Sequence { session, slot: 1, sequence: 1 };
    let returned = Array(vec![Returned { file, number: given.number, keep: LeaseKind::None }]);
    world.rig.call(&Caller::root(), calls::ReturnLease { sequence, returned }).unwrap();
    assert!(world.seen().data_change > before.data_change);
    assert_eq!(world.marks(), 0);
}

/// A commit that is refused leaves what was written, too, although the session continues.
#[test]
fn what_was_written_for_a_commit_that_is_refused_has_another_version() {
    let mut world = World::new();
    let (file, open) = (world.file, OpenId::NONE);
    world.rig.session = world.looker;
    world.rig.set(file, mode(0o666)).unwrap();
    world.rig.session = world.writer;
    let (sequence, range) = (world.rig.next(), (0..10).into());
    let other = user(5, &[]);
    let call = calls::Alloc { sequence, file, open, range, medium: Medium::Disk };
    let layout = world.rig.call(&other, call).unwrap().layout;
    world.rig.session = world.looker;
    world.rig.set(file, mode(0o600)).unwrap();
    world.rig.session = world.writer;
    let before = world.seen();
    let call = world.rig.committing(file, &layout, 0..10);
    assert_eq!(refused(world.rig.call(&other, call)), Status::AccessDenied);
    assert!(world.seen().data_change > before.data_change);
    assert_eq!(world.marks(), 0);
    world.rig.check();
}

/// A session that writes and syncs alternately is recorded once, and not again for each write.
#[test]
fn writing_and_committing_by_turns_costs_one_record() {
    let mut world = World::new();
    for _ in 0..10 {
        let layout = world.write(0..10);
        assert_eq!(world.marks(), 1);
        world.rig.commit(world.file, &layout, 0..10).unwrap();
    }
    let commits = world.rig.engine.commits();
    let layout = world.write(0..10);
    assert_eq!(world.rig.engine.commits(), commits, "blocks that are there cost no commit");
    world.rig.wait(LEASE / 4);
    assert_eq!(world.marks(), 1, "it may be writing");
    world.rig.commit(world.file, &layout, 0..10).unwrap();
    world.rig.wait(LEASE / 4);
    assert_eq!(world.marks(), 0);
    world.write(0..10);
    world.rig.remove(FileId::ROOT, "a").unwrap();
    world.rig.wait(2 * LEASE / 4);
    assert_eq!(world.marks(), 0, "of a file that is gone nothing is kept");
    world.rig.check();
}

//! Files whose bytes only their writer has: who asks for them waits until they are at the disks,
//! and what is lost with the writer counts as lost.

use std::time::Duration;

use larder_wire::meta::calls::{self, LookedAt, Retention};
use larder_wire::meta::words::{
    ByteRange, ExtentState, FileId, LeaseKind, LeaseNumber, Mode, OpenId, Returned, Sequence,
    SessionId,
};
use larder_wire::meta::{BLOCK_BYTES, Res, Status};
use larder_wire::xdr::Array;
use tokio::sync::oneshot;

use super::rig::{LEASE, Rig, decode, refused, size};
use crate::change::Reply;
use crate::retained::NO_DISK;
use crate::rights::Caller;
use crate::store::records::Retaining;
use crate::volume;

const ROOT: FileId = FileId::ROOT;
const B: u64 = BLOCK_BYTES;

/// How many bytes of a file are lost, and one of its paths.
type LostFile = (u64, Option<Vec<u8>>);

/// The writer is the session of the rig, and another client asks.
struct Two {
    rig: Rig,
    other: SessionId,
    sequence: u32,
    file: FileId,
}

impl Two {
    /// With an empty file `f`.
    fn new() -> Two {
        let mut rig = Rig::new(64);
        let other = rig.begin_session([2; 16], 1).unwrap().session;
        let opened = rig.create(&Caller::root(), ROOT, "f").unwrap();
        rig.close(opened.open).unwrap();
        Two { rig, other, sequence: 0, file: opened.file.after.file }
    }

    /// The writer has acknowledged so many bytes.
    fn retaining(bytes: u64) -> Two {
        let mut two = Two::new();
        two.rig.retain_bytes(two.file, bytes);
        two
    }

    fn retain(&mut self, what: Retention) -> Res<()> {
        self.rig.retain(self.file, what)
    }

    fn look(&mut self, session: SessionId, lease: LeaseKind) -> oneshot::Receiver<Reply> {
        self.rig.look(session, self.file, lease)
    }

    /// The other client looks, which has the writer's lease recalled.
    fn other_looks(&mut self) -> (oneshot::Receiver<Reply>, LeaseNumber) {
        let (session, writer) = (self.other, self.rig.session);
        let mut looked = self.look(session, LeaseKind::Read);
        assert!(answer(&mut looked).is_none(), "nobody sees the file without its bytes");
        let recalled = self.rig.recaller.take();
        let [recall] = recalled[..] else { panic!("{recalled:?}") };
        assert_eq!((recall.session, recall.file), (writer, self.file));
        (looked, recall.number)
    }

    fn give_back(&mut self, number: LeaseNumber) -> Res<()> {
        let (sequence, file) = (self.rig.next(), self.file);
        let returned = Array(vec![Returned { file, number, keep: LeaseKind::None }]);
        self.rig.call(&Caller::root(), calls::ReturnLease { sequence, returned })
    }

    /// Some time passes, in which the other client calls, and perhaps the writer.
    fn wait(&mut self, lives: bool) {
        for _ in 0..4 {
            self.rig.wait(LEASE / 2 - Duration::from_secs(1));
            for session in [Some(self.other), lives.then_some(self.rig.session)] {
                let Some(session) = session else { continue };
                let asked = calls::GetAttr { session, file: ROOT };
                self.rig.read(&Caller::root(), &asked).unwrap();
            }
        }
    }

    fn next_of_other(&mut self) -> Sequence {
        self.sequence += 1;
        Sequence { session: self.other, slot: 0, sequence: self.sequence }
    }

    /// What the volume lists as lost: bytes of the file, and how many losses.
    fn lost(&self) -> (Option<LostFile>, usize) {
        let mut lost = volume::lost(&self.rig.engine).unwrap();
        let file = lost.remove(&self.file).map(|lost| (lost.bytes, lost.path));
        assert!(lost.is_empty());
        (file, volume::losses(&self.rig.engine).unwrap().len())
    }

    /// The file counts as lost with so many bytes, for everybody, until it is emptied.
    fn check_lost(mut self, bytes: u64) {
        assert_eq!(self.lost(), (Some((bytes, Some(b"/f".to_vec()))), 1));
        let losses = volume::losses(&self.rig.engine).unwrap();
        assert_eq!((losses[0].disk, losses[0].files, losses[0].bytes), (NO_DISK, 1, bytes));
        let (session, file, open) = (self.other, self.file, OpenId::NONE);
        let mut looked = self.look(session, LeaseKind::Read);
        let seen = answer(&mut looked).unwrap().unwrap().found.unwrap();
        assert_eq!(seen.attributes.size, bytes);
        let [lost] = seen.layout.extents.0[..] else { panic!("{:?}", seen.layout) };
        assert_eq!((lost.offset, lost.length, lost.state), (0, bytes, ExtentState::Lost));
        assert!(seen.layout.grants.0.is_empty());
        let root = Caller::root();
        let range = ByteRange { offset: 0, length: B };
        let mode = Mode::Write;
        let given =
            self.rig.call(&root, calls::GetCaps { session, file, open, mode, range }).unwrap();
        assert_eq!(given.layout.extents.0[0].state, ExtentState::Lost);
        let medium = larder_wire::meta::words::Medium::Disk;
        let sequence = self.next_of_other();
        let alloc = calls::Alloc { sequence, file, open, range, medium };
        assert_eq!(refused(self.rig.call(&root, alloc)), Status::Lost);
        let sequence = self.next_of_other();
        let punch = calls::Punch { sequence, file, open, range };
        assert_eq!(refused(self.rig.call(&root, punch)), Status::Lost);
        let sequence = self.next_of_other();
        let preallocate = calls::Preallocate { sequence, file, open, range };
        assert_eq!(refused(self.rig.call(&root, preallocate)), Status::Lost);
        self.rig.check();
        self.rig = self.rig.crash();
        assert_eq!(self.lost(), (Some((bytes, Some(b"/f".to_vec()))), 1), "once");
        for (to, is_done) in [(1, Err(Status::Lost)), (0, Ok(()))] {
            let (sequence, set) = (self.next_of_other(), size(to));
            let set = calls::SetAttr { sequence, file, open, set, guard: None };
            assert_eq!(self.rig.call(&root, set).map(drop), is_done, "{to}");
        }
        assert_eq!(self.lost(), (None, 1));
        let (sequence, medium) = (self.next_of_other(), larder_wire::meta::words::Medium::Disk);
        let alloc = calls::Alloc { sequence, file, open, range, medium };
        assert!(self.rig.call(&root, alloc).is_ok());
        assert_eq!(self.rig.records::<Retaining>(b'c'), []);
        self.rig.check();
    }
}

fn answer(reply: &mut oneshot::Receiver<Reply>) -> Option<Res<LookedAt>> {
    reply.try_recv().ok().map(|reply| decode(&reply))
}

/// Also after a restart of the server, which recalls the lease that the writer had.
#[test]
fn who_asks_for_a_retained_file_waits_until_its_bytes_are_at_the_disks() {
    for (restarts, parts) in [(false, 1), (true, 1), (false, 2), (true, 2)] {
        let mut two = Two::retaining(2 * B);
        two.retain(Retention::Retained(2 * B)).unwrap();
        if restarts {
            two.rig = two.rig.crash();
        }
        let (mut looked, number) = two.other_looks();
        assert_eq!(two.give_back(number), Err(Status::Later));
        for part in 0..parts {
            assert!(answer(&mut looked).is_none());
            let bytes = 2 * B / parts;
            two.rig.write(two.file, part * bytes..(part + 1) * bytes).unwrap();
            assert_eq!(two.give_back(number), Err(Status::Later));
        }
        assert_eq!(two.retain(Retention::Retained(2 * B)), Err(Status::Changed), "as a whole only");
        two.retain(Retention::Released).unwrap();
        assert!(answer(&mut looked).is_none());
        two.give_back(number).unwrap();
        let seen = answer(&mut looked).unwrap().unwrap().found.unwrap();
        assert_eq!(seen.attributes.size, 2 * B);
        let is_there = |one: &larder_wire::meta::words::Extent| one.state == ExtentState::Committed;
        assert!(seen.layout.extents.0.iter().all(is_there));
        assert_eq!(two.retain(Retention::Released), Ok(()), "as often as one likes");
        assert_eq!(two.rig.records::<Retaining>(b'c'), []);
        assert_eq!(two.lost(), (None, 0));
        two.rig.check();
    }
}

#[test]
fn what_a_client_retains_is_lost_with_its_session() {
    for (restarts, is_begun) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut two = Two::retaining(5000);
        if is_begun {
            two.rig.write(two.file, 4096..5000).unwrap();
        }
        if restarts {
            two.rig = two.rig.crash_unknown();
            assert!(two.rig.begin_session([2; 16], 1).unwrap().resumed);
        }
        let mut looked = two.other_looks().0;
        two.wait(false);
        let seen = answer(&mut looked).unwrap().unwrap().found.unwrap();
        assert_eq!(seen.attributes.size, 5000);
        two.check_lost(5000);
    }
}

/// A client that lives, and does not move the bytes, is not waited for longer than one that does
/// not return a lease; nor is one that says that it cannot.
#[test]
fn what_a_client_cannot_move_is_lost() {
    let mut two = Two::retaining(5000);
    let (mut looked, number) = two.other_looks();
    for _ in 0..8 {
        two.rig.wait(LEASE / 4);
        let session = two.other;
        two.rig.read(&Caller::root(), &calls::GetAttr { session, file: ROOT }).unwrap();
        let (sequence, file) = (two.rig.next(), two.file);
        let returned = Array(vec![Returned { file, number, keep: LeaseKind::None }]);
        let _ = two.rig.ask(&Caller::root(), calls::ReturnLease { sequence, returned });
    }
    assert!(answer(&mut looked).unwrap().is_ok());
    two.check_lost(5000);

    let mut two = Two::retaining(5000);
    let (mut looked, number) = two.other_looks();
    two.retain(Retention::GivenUp).unwrap();
    assert_eq!(two.retain(Retention::Retained(1)), Err(Status::Lost));
    two.give_back(number).unwrap();
    assert!(answer(&mut looked).unwrap().is_ok());
    two.check_lost(5000);
}

/// The next process of a client goes on with what is in the machine's memory, and is asked for it.
#[test]
fn the_next_process_of_a_client_retains_what_the_one_before_did() {
    for was_asked in [false, true] {
        let mut two = Two::retaining(5000);
        let asked = was_asked.then(|| two.other_looks().0);
        let next = two.rig.begin_session([1; 16], 2).unwrap();
        assert!(!next.resumed);
        (two.rig.session, two.rig.sequence) = (next.session, 0);
        assert_eq!(two.lost(), (None, 0));
        let (mut looked, number) = match asked {
            None => two.other_looks(),
            Some(mut looked) => {
                assert!(answer(&mut looked).is_none());
                let recalled = two.rig.recaller.take();
                let [recall] = recalled[..] else { panic!("{recalled:?}") };
                assert_eq!(recall.session, next.session, "who knows nothing of it is told");
                (looked, recall.number)
            }
        };
        assert_eq!(two.give_back(number), Err(Status::Later));
        two.rig.write(two.file, 0..5000).unwrap();
        two.retain(Retention::Released).unwrap();
        two.give_back(number).unwrap();
        let seen = answer(&mut looked).unwrap().unwrap().found.unwrap();
        assert_eq!(seen.attributes.size, 5000);
        assert_eq!(two.lost(), (None, 0));
        two.rig.check();
    }
    // One that had not returned the lease has nothing that anybody waits for.
    let mut two = Two::retaining(5000);
    let mut looked = two.other_looks().0;
    two.rig.wait(LEASE / 2 + Duration::from_secs(1));
    two.rig.begin_session([1; 16], 2).unwrap();
    assert!(answer(&mut looked).unwrap().is_ok());
    two.check_lost(5000);
}

/// Only who excludes others retains a file, and only one without bytes at the disks.
#[test]
fn only_an_empty_file_under_a_write_lease_is_retained() {
    let mut two = Two::new();
    assert_eq!(two.retain(Retention::Retained(5)), Err(Status::Changed));
    two.rig.be_alone(two.file);
    two.rig.write(two.file, 0..5).unwrap();
    assert_eq!(two.retain(Retention::Retained(5)), Err(Status::Changed));
    two.rig.set(two.file, size(0)).unwrap();
    assert_eq!(two.retain(Retention::Retained(larder_wire::meta::FILE_BYTES_MAX + 1)), {
        Err(Status::Invalid)
    });
    two.retain(Retention::Retained(5)).unwrap();
    two.rig.check();
    // Emptied again, there is nothing to lose.
    two.rig.set(two.file, size(0)).unwrap();
    assert_eq!(two.rig.records::<Retaining>(b'c'), []);
    two.retain(Retention::Retained(5)).unwrap();
    two.rig.remove(ROOT, "f").unwrap();
    assert_eq!(two.rig.records::<Retaining>(b'c'), []);
    two.wait(false);
    assert_eq!(two.lost(), (None, 0));
    two.rig.check();
}

/// A file without names that is open elsewhere is lost as others are, but nobody is told.
#[test]
fn a_retained_file_without_a_name_is_no_loss() {
    let mut two = Two::new();
    let open = calls::OpenWhat::File(two.file);
    let session = std::mem::replace(&mut two.rig.session, two.other);
    let opened = two.rig.open(&Caller::root(), open, Mode::Read).unwrap().open;
    two.rig.session = session;
    two.rig.be_alone(two.file);
    two.retain(Retention::Retained(5)).unwrap();
    two.rig.remove(ROOT, "f").unwrap();
    two.wait(false);
    assert_eq!(volume::losses(&two.rig.engine).unwrap(), []);
    let (session, file) = (two.other, two.file);
    let range = ByteRange { offset: 0, length: B };
    let asked = calls::GetCaps { session, file, open: opened, mode: Mode::Read, range };
    let given = two.rig.call(&Caller::root(), asked).unwrap();
    assert_eq!(given.layout.extents.0[0].state, ExtentState::Lost);
    two.rig.check();
}

//! Write leases on directories: whoever looks into one of another session waits, nobody else.

use larder_wire::meta::calls::{self, Create, LookAt, LookedAt, OpenWhat};
use larder_wire::meta::words::{
    ByteRange, FileId, IfExists, LeaseGiven, LeaseKind, Mode, Returned, Sequence, SessionId,
};
use larder_wire::meta::{Res, Status};
use larder_wire::xdr::{Array, Decode};
use tokio::sync::oneshot;

use super::rig::{LEASE, Rig, decode, dentry, mode, refused};
use crate::change::Reply;
use crate::rights::Caller;

const ROOT: FileId = FileId::ROOT;
const RANGE: ByteRange = ByteRange { offset: 0, length: 1 << 20 };

/// A server, the session of a holder of leases (the rig's), and another one.
struct Two {
    rig: Rig,
    other: SessionId,
    sequence: u32,
}

impl Two {
    fn new() -> Two {
        let mut rig = Rig::new(64);
        let other = rig.begin_session([2; 16], 1).unwrap().session;
        Two { rig, other, sequence: 0 }
    }

    /// The bearer of the other session's next call.
    fn next(&mut self) -> Sequence {
        self.sequence += 1;
        Sequence { session: self.other, slot: 1, sequence: self.sequence }
    }

    /// The holder gets a write lease.
    fn hold(&mut self, file: FileId) -> LeaseGiven {
        let (session, at, lease) = (self.rig.session, LookAt::File(file), LeaseKind::Write);
        let look = calls::Look { session, at, lease, range: RANGE };
        let looked = self.rig.call(&Caller::root(), look).unwrap();
        let given = looked.found.unwrap().lease.unwrap();
        assert_eq!(given.kind, LeaseKind::Write);
        given
    }

    fn give_back(&mut self, file: FileId, given: LeaseGiven) {
        let sequence = self.rig.next();
        let returned = Array(vec![Returned { file, number: given.number, keep: LeaseKind::None }]);
        self.rig.call(&Caller::root(), calls::ReturnLease { sequence, returned }).unwrap();
    }

    /// The files of which leases were recalled since the last call of this.
    fn recalled(&mut self) -> Vec<FileId> {
        self.rig.recaller.take().iter().map(|recall| recall.file).collect()
    }

    fn look(&mut self, at: LookAt) -> oneshot::Receiver<Reply> {
        let (session, lease) = (self.other, LeaseKind::Read);
        self.rig.group_call(calls::Look { session, at, lease, range: RANGE })
    }

    fn lookup(&mut self, dir: FileId, name: &str) -> oneshot::Receiver<Reply> {
        let session = self.other;
        self.rig.look_in(calls::Lookup { session, dentry: dentry(dir, name) })
    }

    fn list(&mut self, dir: FileId) -> oneshot::Receiver<Reply> {
        let (session, bytes_max) = (self.other, 1 << 16);
        self.rig.look_in(calls::ReadDir { session, dir, cookie: 0, bytes_max, attributes: true })
    }

    fn open(&mut self, what: OpenWhat) -> oneshot::Receiver<Reply> {
        let (sequence, mode, lease) = (self.next(), Mode::Read, LeaseKind::None);
        let allocate = None;
        self.rig.group_call(calls::Open { sequence, what, mode, lease, range: RANGE, allocate })
    }

    fn create(&mut self, dir: FileId, name: &str) -> oneshot::Receiver<Reply> {
        let (dentry, if_exists) = (dentry(dir, name), IfExists::Open);
        self.open(OpenWhat::Create(Create { dentry, set: mode(0o644), if_exists }))
    }
}

fn answer<T: Decode>(reply: &mut oneshot::Receiver<Reply>) -> Option<Res<T>> {
    reply.try_recv().ok().map(|reply| decode(&reply))
}

/// Each call of another session by which a name is looked for waits until the holder has made what
/// it alone knows at the server, and returned its lease.
#[test]
fn who_looks_into_a_directory_waits_for_its_write_lease() {
    type Look = fn(&mut Two, FileId) -> oneshot::Receiver<Reply>;
    let looks: [(&str, Look); 7] = [
        ("lookup", |two, dir| two.lookup(dir, "made")),
        ("lookup of what is there", |two, dir| two.lookup(dir, "old")),
        ("look", |two, dir| two.look(LookAt::Name(dentry(dir, "made")))),
        ("list", Two::list),
        ("open", |two, dir| two.open(OpenWhat::Name(dentry(dir, "made")))),
        ("create", |two, dir| two.create(dir, "made")),
        ("create what is there", |two, dir| two.create(dir, "old")),
    ];
    for (what, look) in looks {
        let mut two = Two::new();
        let dir = two.rig.mkdir(&Caller::root(), ROOT, "dir").unwrap();
        two.rig.create(&Caller::root(), dir, "old").unwrap();
        let given = two.hold(dir);
        let mut reply = look(&mut two, dir);
        assert_eq!(two.recalled(), [dir], "{what}");
        assert!(reply.try_recv().is_err(), "{what} waits");
        let made = two.rig.create(&Caller::root(), dir, "made").unwrap().file.after.file;
        assert!(reply.try_recv().is_err(), "{what} waits on");
        two.give_back(dir, given);
        match what {
            "lookup" => {
                let found = answer::<calls::LookedUp>(&mut reply).unwrap().unwrap().found;
                assert_eq!(found.unwrap().file, made);
            }
            "look" => {
                let found = answer::<LookedAt>(&mut reply).unwrap().unwrap().found;
                assert_eq!(found.unwrap().attributes.file, made);
            }
            "list" => {
                let listed = answer::<calls::Entries>(&mut reply).unwrap().unwrap();
                assert_eq!(listed.entries.0.len(), 2);
            }
            "open" | "create" => {
                let opened = answer::<calls::Opened>(&mut reply).unwrap().unwrap();
                assert!(opened.file.after.file == made && !opened.created, "{what}");
            }
            _ => assert!(reply.try_recv().is_ok(), "{what}"),
        }
    }
}

/// The holder itself, other directories, what is found by its handle, and the way up.
#[test]
fn nobody_else_waits_for_it() {
    let mut two = Two::new();
    let root = Caller::root();
    let dir = two.rig.mkdir(&root, ROOT, "dir").unwrap();
    let file = two.rig.create(&root, dir, "file").unwrap().file.after.file;
    two.rig.mkdir(&root, ROOT, "beside").unwrap();
    two.hold(dir);
    two.rig.create(&root, dir, "other").unwrap();
    let session = two.rig.session;
    let own = calls::ReadDir { session, dir, cookie: 0, bytes_max: 1 << 16, attributes: true };
    assert!(two.rig.look_in(own).try_recv().is_ok());
    let replies = [
        two.list(ROOT),
        two.lookup(ROOT, "beside"),
        two.lookup(dir, ".."),
        two.look(LookAt::Name(dentry(dir, ".."))),
        two.look(LookAt::File(file)),
        two.open(OpenWhat::File(file)),
        two.create(ROOT, "new"),
    ];
    for (at, mut reply) in replies.into_iter().enumerate() {
        assert!(reply.try_recv().is_ok(), "{at}");
    }
    assert_eq!(two.recalled(), []);
    // Who wants to know what the directory itself is does.
    assert!(two.lookup(ROOT, "dir").try_recv().is_err());
    assert_eq!(two.recalled(), [dir]);
}

/// A listing does not describe a file whose bytes another session may have; once it has returned
/// its lease, it does. Looking the file up waits for that.
#[test]
fn what_another_session_may_have_written_is_not_described() {
    let mut two = Two::new();
    let file = two.rig.create(&Caller::root(), ROOT, "file").unwrap().file.after.file;
    two.rig.create(&Caller::root(), ROOT, "other").unwrap();
    let given = two.hold(file);
    let described = |two: &mut Two| {
        let listed = answer::<calls::Entries>(&mut two.list(ROOT)).unwrap().unwrap();
        let described = |entry: &calls::Entry| entry.attributes.as_ref().map(|about| about.size);
        listed.entries.0.iter().map(described).collect::<Vec<_>>()
    };
    assert_eq!(described(&mut two), [None, Some(0)]);
    let session = two.rig.session;
    let own =
        calls::ReadDir { session, dir: ROOT, cookie: 0, bytes_max: 1 << 16, attributes: true };
    let own = answer::<calls::Entries>(&mut two.rig.look_in(own)).unwrap().unwrap();
    assert!(own.entries.0.iter().all(|entry| entry.attributes.is_some()));
    assert_eq!(two.recalled(), [], "a listing waits for no file");
    let mut reply = two.lookup(ROOT, "file");
    assert_eq!(two.recalled(), [file]);
    assert!(reply.try_recv().is_err());
    two.rig.write(file, 0..4096).unwrap();
    two.give_back(file, given);
    let found = answer::<calls::LookedUp>(&mut reply).unwrap().unwrap().found;
    assert_eq!(found.unwrap().size, 4096);
    assert_eq!(described(&mut two), [Some(4096), Some(0)]);
}

/// A reader that took its view before bytes were written does not describe the file by that, even
/// if the lease was returned in the meantime.
#[test]
fn a_lease_that_ends_beside_a_reader_counts() {
    use crate::alone::Alone;
    let (alone, file) = (Alone::default(), FileId(7));
    let (one, two) = (SessionId([1; 16]), SessionId([2; 16]));
    alone.set(file, Some(one));
    let before = alone.before();
    assert!(before.are_free(&alone, one, [file]) && !before.are_free(&alone, two, [file]));
    assert!(before.are_free(&alone, two, [FileId(8)]));
    alone.set(file, None);
    assert!(!before.are_free(&alone, two, [file]));
    assert!(alone.before().are_free(&alone, two, [file]));
    alone.set(file, Some(one));
    let before = alone.before();
    alone.forget(two);
    assert!(before.are_free(&alone, one, [file]));
    alone.forget(one);
    assert!(!alone.is_others(file, two) && !before.are_free(&alone, two, [file]));
}

/// A holder that dies is waited for as long as its session lasts; one that is removed with its
/// directory, not at all.
#[test]
fn a_write_lease_on_a_directory_ends_with_its_session_and_with_the_directory() {
    let mut two = Two::new();
    let dir = two.rig.mkdir(&Caller::root(), ROOT, "dir").unwrap();
    two.hold(dir);
    let mut reply = two.list(dir);
    for _ in 0..3 {
        assert!(reply.try_recv().is_err());
        let session = two.other;
        two.rig.read(&Caller::root(), &calls::GetAttr { session, file: ROOT }).unwrap();
        two.rig.wait(LEASE / 2);
    }
    assert!(answer::<calls::Entries>(&mut reply).unwrap().unwrap().entries.0.is_empty());
    assert!(two.list(dir).try_recv().is_ok(), "nobody has it");
    two.rig.session = two.rig.begin_session([1; 16], 2).unwrap().session;
    two.hold(dir);
    let sequence = two.rig.next();
    two.rig.call(&Caller::root(), calls::RmDir { sequence, dentry: dentry(ROOT, "dir") }).unwrap();
    assert_eq!(refused(answer::<calls::Entries>(&mut two.list(dir)).unwrap()), Status::Stale);
}

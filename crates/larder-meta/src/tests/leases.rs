//! Leases between calls: which clients are notified, which wait, and for how long.

use std::time::Duration;

use larder_wire::meta::calls::{self, LookAt, LookedAt};
use larder_wire::meta::words::{
    ByteRange, FileId, LeaseGiven, LeaseKind, Returned, Sequence, SessionId,
};
use larder_wire::meta::{Res, Status};
use larder_wire::xdr::Array;
use tokio::sync::oneshot;

use super::rig::{LEASE, Rig, decode, dentry, mode, refused, size};
use crate::change::{Change, Reply};
use crate::rights::Caller;

const ROOT: FileId = FileId::ROOT;

/// Two clients of one server.
struct Two {
    rig: Rig,
    sessions: [SessionId; 2],
    sequences: [u32; 2],
}

impl Two {
    fn new() -> Two {
        let mut rig = Rig::new(64);
        let other = rig.begin_session([2; 16], 1).unwrap().session;
        let sessions = [rig.session, other];
        Two { rig, sessions, sequences: [0; 2] }
    }

    fn next(&mut self, who: usize) -> Sequence {
        self.sequences[who] += 1;
        Sequence { session: self.sessions[who], slot: 1, sequence: self.sequences[who] }
    }

    fn look(&mut self, who: usize, at: LookAt) -> Res<LookedAt> {
        let session = self.sessions[who];
        let (lease, range) = (LeaseKind::Read, ByteRange { offset: 0, length: 1 << 20 });
        self.rig.call(&Caller::root(), calls::Look { session, at, lease, range })
    }

    fn lease(&mut self, who: usize, file: FileId) -> Option<LeaseGiven> {
        self.look(who, LookAt::File(file)).unwrap().found.unwrap().lease
    }

    fn begin(&mut self, change: impl Into<Change>) -> oneshot::Receiver<Reply> {
        self.rig.group(vec![(&Caller::root(), change.into())]).pop().unwrap()
    }

    fn give_back(&mut self, who: usize, file: FileId, given: LeaseGiven, keep: LeaseKind) {
        let sequence = self.next(who);
        let returned = Array(vec![Returned { file, number: given.number, keep }]);
        self.rig.call(&Caller::root(), calls::ReturnLease { sequence, returned }).unwrap();
    }
}

fn answer<T: larder_wire::xdr::Decode>(reply: &mut oneshot::Receiver<Reply>) -> Option<Res<T>> {
    reply.try_recv().ok().map(|reply| decode(&reply))
}

/// A change by another client is carried out once the lease was returned, and not seen before.
#[test]
fn a_change_waits_for_the_leases_of_others() {
    let mut two = Two::new();
    let file = two.rig.create(&Caller::root(), ROOT, "a").unwrap().file.after.file;
    let given = two.lease(0, file).unwrap();
    assert_eq!(two.lease(0, file), Some(given), "who asks again has the same");
    assert!(two.lease(1, file).is_some(), "two may read");
    let (sequence, set, open) = (two.next(1), mode(0o600), larder_wire::meta::words::OpenId::NONE);
    let mut reply = two.begin(calls::SetAttr { sequence, file, open, set, guard: None });
    let recalled = two.rig.recaller.take();
    let [recall] = recalled[..] else { panic!("{recalled:?}") };
    assert_eq!((recall.session, recall.file), (two.sessions[0], file));
    assert_eq!((recall.number, recall.keep), (given.number, LeaseKind::None));
    assert!(answer::<calls::FileChanged>(&mut reply).is_none());
    assert_eq!(two.rig.attributes(file).unwrap().mode, 0o644);
    assert_eq!(two.lease(0, file), None, "nobody gets one for which others would wait");
    two.give_back(0, file, given, LeaseKind::None);
    let changed = answer::<calls::FileChanged>(&mut reply).unwrap().unwrap();
    assert_eq!(changed.file.after.mode, 0o600);
    let again = two.lease(0, file).unwrap();
    assert!(again.number > given.number);
    // One's own change breaks no lease of one's own.
    let sequence = two.next(0);
    let mut reply = two.begin(calls::SetAttr { sequence, file, open, set, guard: None });
    let recalled = two.rig.recaller.take();
    let [recall] = recalled[..] else { panic!("{recalled:?}") };
    assert_eq!(recall.session, two.sessions[1]);
    let theirs = LeaseGiven { kind: LeaseKind::Read, number: recall.number };
    two.give_back(1, file, theirs, LeaseKind::None);
    assert!(answer::<calls::FileChanged>(&mut reply).unwrap().is_ok());
    assert_eq!(two.lease(0, file), Some(again));
}

/// A write lease is given once all others on the file were returned, and a reader waits for it.
#[test]
fn who_wants_to_be_alone_waits_for_others_and_they_for_it() {
    let mut two = Two::new();
    let file = two.rig.create(&Caller::root(), ROOT, "a").unwrap().file.after.file;
    let theirs = two.lease(1, file).unwrap();
    let range = ByteRange { offset: 0, length: 1 << 20 };
    let look = |session, lease| calls::Look { session, at: LookAt::File(file), lease, range };
    let mut reply = two.begin(look(two.sessions[0], LeaseKind::Write));
    assert!(answer::<LookedAt>(&mut reply).is_none(), "others may still read");
    assert_eq!(two.rig.recaller.take().len(), 1);
    two.give_back(1, file, theirs, LeaseKind::None);
    let seen = answer::<LookedAt>(&mut reply).unwrap().unwrap().found.unwrap();
    let alone = seen.lease.unwrap();
    assert_eq!(alone.kind, LeaseKind::Write);
    let mut reply = two.begin(look(two.sessions[1], LeaseKind::Read));
    let recalled = two.rig.recaller.take();
    let [recall] = recalled[..] else { panic!("{recalled:?}") };
    assert_eq!((recall.number, recall.keep), (alone.number, LeaseKind::Read));
    assert!(answer::<LookedAt>(&mut reply).is_none());
    // What it has not sent yet is sent meanwhile.
    let (sequence, set, open) = (two.next(0), mode(0o600), larder_wire::meta::words::OpenId::NONE);
    let mut change = two.begin(calls::SetAttr { sequence, file, open, set, guard: None });
    assert!(answer::<calls::FileChanged>(&mut change).unwrap().is_ok());
    two.give_back(0, file, alone, LeaseKind::None);
    let seen = answer::<LookedAt>(&mut reply).unwrap().unwrap().found.unwrap();
    assert_eq!(seen.attributes.mode, 0o600);
}

/// Names, too: leases on the directory, and on the file that loses or gets a name.
#[test]
fn a_change_of_a_directory_recalls_it_and_its_file() {
    let mut two = Two::new();
    let root = Caller::root();
    let file = two.rig.create(&root, ROOT, "a").unwrap().file.after.file;
    let found = two.look(0, LookAt::Name(dentry(ROOT, "a"))).unwrap();
    let of_file = found.found.unwrap().lease.unwrap();
    assert_eq!(found.dir.unwrap().file, ROOT);
    let of_dir = two.lease(0, ROOT).unwrap();
    let sequence = two.next(1);
    let mut reply = two.begin(calls::Remove { sequence, dentry: dentry(ROOT, "a") });
    let mut recalled: Vec<_> = two.rig.recaller.take().iter().map(|one| one.file).collect();
    recalled.sort_unstable();
    assert_eq!(recalled, [ROOT, file]);
    two.give_back(0, ROOT, of_dir, LeaseKind::None);
    assert!(answer::<calls::NameChanged>(&mut reply).is_none(), "the file's is out");
    two.give_back(0, file, of_file, LeaseKind::None);
    assert!(answer::<calls::NameChanged>(&mut reply).unwrap().is_ok());
    let gone = two.look(1, LookAt::Name(dentry(ROOT, "a"))).unwrap();
    assert!(gone.found.is_none() && gone.dir.is_some());
}

/// A client that does not answer is not renewed any more, and its lease ends with its session: its
/// capabilities first.
#[test]
fn a_client_that_does_not_answer_loses_its_capabilities_and_then_its_lease() {
    let mut two = Two::new();
    let file = two.rig.create(&Caller::root(), ROOT, "a").unwrap().file.after.file;
    two.rig.write(file, 0..4096).unwrap();
    let seen = two.look(0, LookAt::File(file)).unwrap().found.unwrap();
    assert_eq!(seen.layout.grants.0.len(), 1, "a look grants reading");
    let sequence = two.next(1);
    let renew = |two: &mut Two, who: usize| {
        let session = two.sessions[who];
        two.rig.read(&Caller::root(), &calls::GetAttr { session, file: ROOT }).map(drop)
    };
    let (set, open) = (size(100), larder_wire::meta::words::OpenId::NONE);
    let mut reply = two.begin(calls::SetAttr { sequence, file, open, set, guard: None });
    two.rig.wait(LEASE / 2 - Duration::from_secs(1));
    assert_eq!((renew(&mut two, 0), renew(&mut two, 1)), (Ok(()), Ok(())));
    assert!(answer::<calls::FileChanged>(&mut reply).is_none());
    two.rig.wait(Duration::from_secs(3));
    assert_eq!(refused(renew(&mut two, 0)), Status::BadSession, "it calls, and is not renewed");
    two.rig.is_quick = false;
    for _ in 0..2 {
        renew(&mut two, 1).unwrap();
        assert!(answer::<calls::FileChanged>(&mut reply).is_none());
        two.rig.wait(LEASE / 2);
    }
    assert!(answer::<calls::FileChanged>(&mut reply).is_none(), "its capabilities are good");
    assert!(!two.rig.disks.covered().is_empty());
    two.rig.acknowledge_all();
    assert!(two.rig.disks.covered().is_empty());
    assert!(answer::<calls::FileChanged>(&mut reply).unwrap().is_ok());
    two.rig.check();
}

/// After a restart nothing is changed until each client knows that its leases are gone.
#[test]
fn a_restart_waits_for_clients_that_may_have_leases() {
    let mut two = Two::new();
    let file = two.rig.create(&Caller::root(), ROOT, "a").unwrap().file.after.file;
    two.lease(0, file).unwrap();
    two.rig = two.rig.crash_unknown();
    assert_eq!(refused(two.look(0, LookAt::File(file))), Status::Restarted);
    assert!(two.rig.begin_session([2; 16], 1).unwrap().resumed);
    assert!(two.lease(1, file).is_some(), "who looks does not wait");
    let (sequence, set, open) = (two.next(1), mode(0o600), larder_wire::meta::words::OpenId::NONE);
    let mut reply = two.begin(calls::SetAttr { sequence, file, open, set, guard: None });
    assert!(answer::<calls::FileChanged>(&mut reply).is_none());
    assert!(two.rig.begin_session([1; 16], 1).unwrap().resumed);
    assert!(answer::<calls::FileChanged>(&mut reply).unwrap().is_ok());
    // Or until its time is over.
    two.rig = two.rig.crash_unknown();
    assert!(two.rig.begin_session([2; 16], 1).unwrap().resumed);
    let sequence = two.next(1);
    let mut reply = two.begin(calls::SetAttr { sequence, file, open, set, guard: None });
    for _ in 0..3 {
        assert!(answer::<calls::FileChanged>(&mut reply).is_none());
        let session = two.sessions[1];
        two.rig.read(&Caller::root(), &calls::GetAttr { session, file: ROOT }).unwrap();
        two.rig.wait(LEASE / 2);
    }
    assert!(answer::<calls::FileChanged>(&mut reply).unwrap().is_ok());
}

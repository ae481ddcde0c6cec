//! Locks between calls and sessions: which requests are refused, and when a session's locks are
//! free.

use std::ops::Range;
use std::time::Duration;

use larder_wire::meta::calls::{self, LockTested};
use larder_wire::meta::recall::LockFree;
use larder_wire::meta::words::{
    Attributes, FileId, LockChange, LockFound, LockMode, Mode, Sequence, SessionId, WaiterNumber,
};
use larder_wire::meta::{LOCK_END, Res, Status};
use larder_wire::xdr::Array;

use super::rig::{LEASE, Rig, dentry, mode, refused, user};
use crate::rights::Caller;

const ROOT: FileId = FileId::ROOT;
const SHARED: Option<LockMode> = Some(LockMode::Shared);
const EXCLUSIVE: Option<LockMode> = Some(LockMode::Exclusive);
const ALL: Range<u64> = 0..LOCK_END;

/// Two clients of one server, and a file.
struct Two {
    rig: Rig,
    file: FileId,
    sessions: [SessionId; 2],
    sequences: [u32; 2],
}

impl Two {
    fn new() -> Two {
        let mut rig = Rig::new(64);
        let file = rig.create(&Caller::root(), ROOT, "a").unwrap().file.after.file;
        let other = rig.begin_session([2; 16], 1).unwrap().session;
        let sessions = [rig.session, other];
        Two { rig, file, sessions, sequences: [0; 2] }
    }

    fn next(&mut self, who: usize) -> Sequence {
        self.sequences[who] += 1;
        Sequence { session: self.sessions[who], slot: 1, sequence: self.sequences[who] }
    }

    /// A call that locks.
    fn locking(&mut self, who: usize, range: Range<u64>, mode: Option<LockMode>) -> calls::Lock {
        let changes = Array(vec![LockChange { range: range.into(), mode }]);
        calls::Lock { sequence: self.next(who), file: self.file, changes, claim: false }
    }

    fn lock(&mut self, who: usize, range: Range<u64>, mode: Option<LockMode>) -> Res<Attributes> {
        let call = self.locking(who, range, mode);
        self.rig.call(&Caller::root(), call)
    }

    fn test(&mut self, who: usize, range: Range<u64>, mode: LockMode) -> Option<LockFound> {
        let call = calls::TestLock {
            session: self.sessions[who],
            file: self.file,
            range: range.into(),
            mode,
        };
        let tested: Res<LockTested> = self.rig.call(&Caller::root(), call);
        tested.unwrap().found
    }

    fn renew(&mut self, who: usize) -> Res<()> {
        let session = self.sessions[who];
        self.rig.read(&Caller::root(), &calls::GetAttr { session, file: ROOT }).map(drop)
    }
}

#[test]
fn sessions_exclude_each_other_and_learn_which_one_holds_a_lock() {
    let mut two = Two::new();
    let attributes = two.lock(0, 10..20, EXCLUSIVE).unwrap();
    assert_eq!(attributes, two.rig.attributes(two.file).unwrap());
    two.lock(0, 15..30, SHARED).unwrap();
    assert_eq!(refused(two.lock(1, 0..11, SHARED)), Status::Locked);
    let found = |range: Range<u64>, mode| Some(LockFound { range: range.into(), mode });
    assert_eq!(two.test(1, 0..100, LockMode::Shared), found(10..15, LockMode::Exclusive));
    assert_eq!(two.test(1, 15..100, LockMode::Shared), None);
    assert_eq!(two.test(1, 15..100, LockMode::Exclusive), found(15..30, LockMode::Shared));
    assert_eq!(two.test(0, ALL, LockMode::Exclusive), None, "its own are not in its way");
    two.lock(1, 15..40, SHARED).unwrap();
    assert_eq!(refused(two.lock(0, 29..31, EXCLUSIVE)), Status::Locked);
    two.lock(0, ALL, None).unwrap();
    two.lock(1, ALL, EXCLUSIVE).unwrap();
}

/// The reply was lost: the repeated call is not refused because of what it locked itself, nor does
/// it lock again what was unlocked since.
#[test]
fn a_lock_that_comes_again_is_answered_as_before() {
    let mut two = Two::new();
    let call = two.locking(0, 0..10, EXCLUSIVE);
    let first = two.rig.call(&Caller::root(), call.clone());
    assert!(first.is_ok());
    assert_eq!(two.rig.call(&Caller::root(), call.clone()), first);
    let mut unlock = two.locking(0, ALL, None);
    unlock.sequence.slot = 2;
    two.rig.call(&Caller::root(), unlock.clone()).unwrap();
    two.lock(1, 0..5, EXCLUSIVE).unwrap();
    assert_eq!(two.rig.call(&Caller::root(), call), first);
    assert_eq!(two.test(1, ALL, LockMode::Exclusive), None, "it has done nothing");
    two.rig.call(&Caller::root(), unlock).unwrap();
    // A refusal is repeated, too.
    let call = two.locking(0, 0..5, SHARED);
    assert_eq!(refused(two.rig.call(&Caller::root(), call.clone())), Status::Locked);
    two.lock(1, ALL, None).unwrap();
    assert_eq!(refused(two.rig.call(&Caller::root(), call)), Status::Locked);
    two.lock(1, ALL, EXCLUSIVE).unwrap();
}

#[test]
fn locks_end_with_their_session() {
    let mut two = Two::new();
    two.lock(1, 0..10, EXCLUSIVE).unwrap();
    let session = two.sessions[1];
    two.rig.call(&Caller::root(), calls::EndSession { session }).unwrap();
    two.lock(0, 0..10, EXCLUSIVE).unwrap();
    two.lock(0, ALL, None).unwrap();
    // A client that does not call.
    two.sessions[1] = two.rig.begin_session([2; 16], 1).unwrap().session;
    two.sequences[1] = 0;
    two.lock(1, 0..10, EXCLUSIVE).unwrap();
    two.rig.wait(LEASE);
    assert_eq!(refused(two.lock(0, 0..10, EXCLUSIVE)), Status::Locked);
    two.rig.wait(Duration::from_secs(1));
    two.lock(0, 0..10, EXCLUSIVE).unwrap();
    assert_eq!(refused(two.renew(1)), Status::BadSession);
}

/// What a client that died has sent to a disk under its lock must not arrive after the next client
/// has the lock.
#[test]
fn a_lock_is_free_when_the_capabilities_of_its_session_are_revoked() {
    let mut two = Two::new();
    let file = two.file;
    two.rig.write(file, 0..4096).unwrap();
    two.rig.session = two.sessions[1];
    two.rig.layout(file, Mode::Write).unwrap();
    two.lock(1, 0..10, EXCLUSIVE).unwrap();
    two.rig.is_quick = false;
    two.rig.wait(LEASE);
    two.renew(0).unwrap();
    two.rig.wait(Duration::from_secs(1));
    assert_eq!(refused(two.renew(1)), Status::BadSession);
    // That of the session whose client is alive is the other one.
    assert_eq!(two.rig.disks.covered().len(), 2);
    assert_eq!(refused(two.lock(0, 0..10, SHARED)), Status::Locked);
    two.rig.acknowledge_all();
    assert_eq!(two.rig.disks.covered().len(), 1);
    two.lock(0, 0..10, SHARED).unwrap();
}

#[test]
fn what_cannot_be_locked_is_refused() {
    let mut two = Two::new();
    let ranges = [0..0, LOCK_END - 1..LOCK_END + 1];
    for range in ranges {
        assert_eq!(refused(two.lock(0, range, SHARED)), Status::Invalid);
    }
    two.lock(0, LOCK_END - 1..LOCK_END, EXCLUSIVE).unwrap();
    two.rig.set(two.file, mode(0o600)).unwrap();
    let stranger = user(1, &[]);
    let call = two.locking(1, 0..1, SHARED);
    assert_eq!(refused(two.rig.call(&stranger, call)), Status::AccessDenied);
    let call = two.locking(1, 0..1, None);
    assert!(two.rig.call(&stranger, call).is_ok(), "to unlock takes no right");
    two.rig.set(two.file, mode(0o602)).unwrap();
    let call = two.locking(1, 0..1, SHARED);
    assert!(two.rig.call(&stranger, call).is_ok());
    let file = std::mem::replace(&mut two.file, ROOT);
    assert_eq!(refused(two.lock(0, 0..1, SHARED)), Status::IsDirectory);
    two.file = file;
    two.rig.sequence = 100;
    let sequence = two.rig.next();
    two.rig
        .call(
            &Caller::root(),
            calls::Rename { sequence, from: dentry(ROOT, "a"), to: dentry(ROOT, "b"), keep: false },
        )
        .unwrap();
    assert_eq!(refused(two.lock(1, ALL, SHARED)), Status::Locked, "it goes with the file");
}

impl Two {
    fn wait(&mut self, who: usize, number: u64, range: Range<u64>, mode: LockMode) -> Res<bool> {
        let changes = Array(vec![LockChange { range: range.into(), mode: Some(mode) }]);
        let (session, file, number) = (self.sessions[who], self.file, WaiterNumber(number));
        let call = calls::AwaitLock { session, file, number, changes };
        self.rig.call(&Caller::root(), call).map(|awaited| awaited.is_free)
    }

    fn forgo(&mut self, who: usize, number: u64) {
        let (session, file, number) = (self.sessions[who], self.file, WaiterNumber(number));
        self.rig.call(&Caller::root(), calls::ForgoLock { session, file, number }).unwrap();
    }

    /// The notified waiters: session and waiter.
    fn told(&mut self) -> Vec<(usize, u64)> {
        let told = self.rig.recaller.take_free();
        let who = |free: &LockFree| self.sessions.iter().position(|one| *one == free.session);
        told.iter().map(|free| (who(free).unwrap(), free.number.0)).collect()
    }
}

#[test]
fn a_waiter_is_called_and_no_other_client_gets_the_lock_before() {
    let mut two = Two::new();
    two.lock(0, ALL, EXCLUSIVE).unwrap();
    assert_eq!(two.wait(1, 1, 0..10, LockMode::Exclusive), Ok(false));
    assert_eq!(two.wait(1, 2, 5..20, LockMode::Shared), Ok(false));
    assert_eq!(two.wait(1, 1, 0..10, LockMode::Exclusive), Ok(false), "asked again");
    two.lock(0, 10..LOCK_END, None).unwrap();
    assert_eq!(two.told(), []);
    two.lock(0, ALL, None).unwrap();
    assert_eq!(two.told(), [(1, 1), (1, 2)]);
    assert_eq!(refused(two.lock(0, 0..1, SHARED)), Status::Locked, "it is kept");
    assert_eq!(two.test(0, 3..4, LockMode::Shared).unwrap().mode, LockMode::Exclusive);
    assert_eq!(two.wait(0, 7, 0..1, LockMode::Shared), Ok(false));
    two.lock(1, 0..10, EXCLUSIVE).unwrap();
    two.forgo(1, 2);
    two.lock(0, 10..20, EXCLUSIVE).unwrap();
    // The client that has it lets it go, or dies.
    let session = two.sessions[1];
    two.rig.call(&Caller::root(), calls::EndSession { session }).unwrap();
    assert_eq!(two.told(), [(0, 7)]);
    two.lock(0, 0..1, SHARED).unwrap();
}

/// A notification may be in flight to a client that cannot receive it.
#[test]
fn a_waiter_that_is_called_and_does_not_come_goes_to_the_end_of_the_queue() {
    let mut two = Two::new();
    two.lock(0, ALL, EXCLUSIVE).unwrap();
    assert_eq!(two.wait(1, 1, ALL, LockMode::Exclusive), Ok(false));
    two.lock(0, ALL, None).unwrap();
    assert_eq!(two.told(), [(1, 1)]);
    assert_eq!(two.wait(0, 2, ALL, LockMode::Exclusive), Ok(false));
    two.rig.wait(LEASE / 5);
    assert_eq!(two.told(), []);
    for (wait, told) in [(LEASE / 4, (0, 2)), (LEASE / 4, (1, 1)), (LEASE / 4, (0, 2))] {
        two.renew(0).unwrap();
        two.renew(1).unwrap();
        two.rig.wait(wait);
        assert_eq!(two.told(), [told]);
    }
    two.lock(0, ALL, EXCLUSIVE).unwrap();
    assert_eq!(refused(two.lock(1, ALL, SHARED)), Status::Locked);
}

/// Earlier sessions claim their locks; other requests are told to come again in the meantime.
#[test]
fn locks_are_claimed_after_a_restart_of_the_server() {
    let mut two = Two::new();
    two.lock(0, 0..10, EXCLUSIVE).unwrap();
    two.rig = two.rig.crash_unknown();
    assert_eq!(refused(two.lock(0, 0..10, EXCLUSIVE)), Status::Restarted);
    two.rig.resume_all();
    assert_eq!(refused(two.lock(1, 5..6, SHARED)), Status::Later);
    let mut claim = two.locking(0, 0..10, EXCLUSIVE);
    claim.claim = true;
    two.rig.call(&Caller::root(), claim).unwrap();
    let mut put_off = two.locking(1, 60..61, SHARED);
    put_off.sequence.slot = 2;
    assert_eq!(refused(two.rig.call(&Caller::root(), put_off.clone())), Status::Later);
    for who in 0..2 {
        assert_eq!(refused(two.lock(1, 50..51, SHARED)), Status::Later);
        let session = two.sessions[who];
        two.rig.call(&Caller::root(), calls::LocksClaimed { session }).unwrap();
    }
    assert_eq!(refused(two.lock(1, 5..6, SHARED)), Status::Locked);
    two.lock(1, 50..51, SHARED).unwrap();
    assert!(two.rig.call(&Caller::root(), put_off).is_ok(), "the same call comes again");
}

/// The client of one session does not come back, that of the other does not report that it is done.
#[test]
fn the_grace_period_ends() {
    let mut two = Two::new();
    two.lock(0, 0..10, EXCLUSIVE).unwrap();
    two.rig = two.rig.crash_unknown();
    assert!(two.rig.begin_session([2; 16], 1).unwrap().resumed);
    two.rig.wait(LEASE - Duration::from_secs(1));
    assert_eq!(refused(two.lock(1, 5..6, SHARED)), Status::Later);
    two.rig.wait(Duration::from_secs(2));
    two.lock(1, 5..6, SHARED).unwrap();
    assert_eq!(refused(two.renew(0)), Status::BadSession);
    let mut claim = two.locking(1, 20..30, SHARED);
    claim.claim = true;
    assert_eq!(refused(two.rig.call(&Caller::root(), claim)), Status::Locked);
}

#[test]
fn a_client_that_begins_another_life_has_its_locks_still() {
    let mut two = Two::new();
    two.lock(0, 0..10, EXCLUSIVE).unwrap();
    assert_eq!(two.wait(1, 1, 0..10, LockMode::Shared), Ok(false));
    two.sessions[0] = two.rig.begin_session([1; 16], 2).unwrap().session;
    two.sequences[0] = 0;
    assert_eq!(two.told(), []);
    two.lock(0, 0..10, EXCLUSIVE).unwrap();
    two.lock(0, 0..10, None).unwrap();
    assert_eq!(two.told(), [(1, 1)]);
}

//! Each call is carried out once, however often it is sent.

use std::time::Duration;

use larder_wire::meta::Status;
use larder_wire::meta::calls::{self, OpenWhat};
use larder_wire::meta::words::{FileId, Mode};

use super::rig::{Rig, dentry, mode, refused};
use crate::rights::Caller;

const ROOT: FileId = FileId::ROOT;

fn mkdir(rig: &Rig, text: &str) -> calls::MkDir {
    calls::MkDir { sequence: rig.same(), dentry: dentry(ROOT, text), set: mode(0o755) }
}

#[test]
fn a_call_that_comes_again_is_answered_as_before() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    rig.next();
    let call = mkdir(&rig, "a");
    let first = rig.call(&root, call.clone()).unwrap();
    let commits = rig.engine.commits();
    assert_eq!(rig.call(&root, call.clone()).unwrap(), first);
    assert_eq!(rig.engine.commits(), commits);
    // In one group, too.
    rig.next();
    let call = mkdir(&rig, "b");
    let replies = rig.group(vec![(&root, call.clone().into()), (&root, call.into())]);
    let replies: Vec<_> = replies.into_iter().map(|mut reply| reply.try_recv().unwrap()).collect();
    assert_eq!(replies[0], replies[1]);
    assert!(!replies[0].failed);
    assert_eq!(rig.attributes(ROOT).unwrap().links, 4);
}

#[test]
fn a_call_that_comes_again_after_a_restart_is_answered_as_before() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    rig.next();
    let call = mkdir(&rig, "a");
    let first = rig.call(&root, call.clone()).unwrap();
    let mut rig = rig.crash();
    assert!(rig.begin_session([1; 16], 1).unwrap().resumed);
    assert_eq!(rig.call(&root, call).unwrap(), first);
    assert_eq!(rig.attributes(ROOT).unwrap().links, 3);
    rig.check();
}

#[test]
fn a_refusal_is_told_again_though_it_would_succeed_now() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    rig.create(&root, ROOT, "a").unwrap();
    rig.next();
    let call = mkdir(&rig, "a");
    assert_eq!(refused(rig.call(&root, call.clone())), Status::Exists);
    // By another slot.
    let mut sequence = rig.same();
    sequence.slot = 1;
    rig.call(&root, calls::Remove { sequence, dentry: dentry(ROOT, "a") }).unwrap();
    assert_eq!(refused(rig.call(&root, call)), Status::Exists);
}

#[test]
fn old_calls_and_strange_sessions_are_refused() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    rig.next();
    let old = mkdir(&rig, "a");
    rig.call(&root, old.clone()).unwrap();
    rig.next();
    let call = mkdir(&rig, "b");
    rig.call(&root, call).unwrap();
    assert_eq!(refused(rig.call(&root, old.clone())), Status::BadSequence);
    let mut strange = old;
    strange.sequence.session.0[3] ^= 1;
    assert_eq!(refused(rig.call(&root, strange)), Status::BadSession);
}

/// While the disks have not acknowledged a revocation, the call that caused it is not answered, nor
/// is the same call sent again; others are.
#[test]
fn a_call_waits_for_the_disks_and_others_do_not() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    let opened = rig.create(&root, ROOT, "a").unwrap();
    let file = opened.file.after.file;
    rig.write(file, 0..4096).unwrap();
    rig.close(opened.open).unwrap();
    rig.layout(file, Mode::Read).unwrap();
    rig.is_quick = false;
    let sequence = rig.next();
    let remove = calls::Remove { sequence, dentry: dentry(ROOT, "a") };
    let set = mode(0o600);
    let chmod = |mut sequence: larder_wire::meta::words::Sequence, slot| {
        sequence.slot = slot;
        let open = larder_wire::meta::words::OpenId::NONE;
        calls::SetAttr { sequence, file, open, set, guard: None }
    };
    assert_eq!(rig.ask(&root, chmod(sequence, 1)), None);
    // Nothing is left to revoke, but an earlier revocation is not done yet.
    assert_eq!(rig.ask(&root, remove.clone()), None);
    let mut again = rig.group(vec![(&root, remove.clone().into())]);
    let mut mkdir = mkdir(&rig, "d");
    mkdir.sequence.slot = 2;
    assert!(rig.ask(&root, mkdir).unwrap().is_ok());
    assert!(again[0].try_recv().is_err());
    assert!(rig.acknowledge());
    assert!(!again[0].try_recv().unwrap().failed);
    assert!(rig.ask(&root, remove).unwrap().is_ok());
    rig.acknowledge_all();
    rig.check();
}

/// A disk that is away delays calls that end capabilities there, and no calls that end others
/// elsewhere.
#[test]
fn a_revocation_that_is_held_up_holds_up_no_others() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    let files = ["a", "b"].map(|name| {
        let opened = rig.create(&root, ROOT, name).unwrap();
        let file = opened.file.after.file;
        rig.write(file, 0..4096).unwrap();
        rig.close(opened.open).unwrap();
        rig.layout(file, Mode::Read).unwrap();
        file
    });
    rig.is_quick = false;
    let chmod = |rig: &mut Rig, file, slot, bits| {
        let mut sequence = rig.next();
        sequence.slot = slot;
        let open = larder_wire::meta::words::OpenId::NONE;
        let call = calls::SetAttr { sequence, file, open, set: mode(bits), guard: None };
        let mut replies = rig.group(vec![(&root, call.into())]);
        replies.pop().unwrap()
    };
    let mut one = chmod(&mut rig, files[0], 0, 0o600);
    let mut other = chmod(&mut rig, files[1], 1, 0o600);
    let mut again = chmod(&mut rig, files[0], 2, 0o640);
    // The second is done, the first is not.
    assert!(rig.acknowledge_at(1));
    assert!(!other.try_recv().unwrap().failed);
    assert!(one.try_recv().is_err());
    assert!(again.try_recv().is_err(), "what it ends is still good");
    assert!(rig.acknowledge());
    assert!(!one.try_recv().unwrap().failed && !again.try_recv().unwrap().failed);
}

#[test]
fn nothing_is_answered_that_is_not_durable() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    rig.engine.fail_after(0);
    assert_eq!(refused(rig.mkdir(&root, ROOT, "a")), Status::Io);
    // Nor is anything changed from then on.
    let file = OpenWhat::File(ROOT);
    assert_eq!(refused(rig.open(&root, file, Mode::Read)), Status::Io);
    assert_eq!(rig.attributes(ROOT).unwrap().links, 2);
    let mut rig = rig.crash();
    assert!(rig.mkdir(&root, ROOT, "a").is_ok());
}

#[test]
fn a_server_that_lost_the_volume_changes_nothing() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    rig.mkdir(&root, ROOT, "a").unwrap();
    let mut other = Rig::over(rig.engine.clone(), Default::default(), true);
    other.session = rig.session;
    other.sequence = rig.sequence;
    other.resume_all();
    assert_eq!(refused(rig.mkdir(&root, ROOT, "b")), Status::Later);
    other.mkdir(&root, ROOT, "b").unwrap();
    other.check();
}

/// Without calls, the volume stays ours; once another process has taken it, it does not.
#[test]
fn an_owner_renews_its_term_whether_or_not_clients_call() {
    let second = Duration::from_secs(1);
    let rig = Rig::new(16);
    rig.engine.give_terms(10 * second);
    let mut rig = rig.crash();
    let commits = rig.engine.commits();
    rig.wait(9 * second);
    assert!(rig.ownership.is_ours() && rig.engine.commits() == commits + 1);
    rig.wait(9 * second);
    assert!(rig.ownership.is_ours());
    rig.clock.advance(10 * second);
    assert!(!rig.ownership.is_ours(), "it was stopped");
    let other = Rig::over(rig.engine.clone(), Default::default(), true);
    rig.wait(Duration::ZERO);
    assert!(!rig.ownership.is_ours() && rig.is_over());
    assert!(!other.is_over());
}

/// A server that has released the volume answers nothing afterwards.
#[test]
fn an_owner_that_ends_has_given_the_volume_up() {
    let rig = Rig::new(16);
    rig.engine.give_terms(Duration::from_secs(10));
    let mut rig = rig.crash();
    rig.wait(Duration::ZERO);
    assert!(rig.ownership.is_ours());
    rig.end();
    assert!(!rig.ownership.is_ours());
    assert_eq!(refused(rig.mkdir(&Caller::root(), ROOT, "a")), Status::Later);
}

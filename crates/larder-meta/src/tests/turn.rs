//! Calls that are carried out beside the committer's thread.

use larder_wire::Procedure;
use larder_wire::meta::calls;
use larder_wire::meta::words::{ByteRange, FileId, LeaseKind};
use larder_wire::xdr::Array;
use tokio::sync::oneshot::Receiver;
use tokio::sync::oneshot::error::TryRecvError;

use super::rig::{Rig, decode, dentry};
use crate::change::Reply;
use crate::rights::Caller;

const ROOT: FileId = FileId::ROOT;

fn look(rig: &Rig, text: &str) -> calls::Look {
    calls::Look {
        session: rig.session,
        at: calls::LookAt::Name(dentry(ROOT, text)),
        lease: LeaseKind::Read,
        range: ByteRange { offset: 0, length: 1 },
    }
}

/// A call that ends the last open of a file without a name: that is on record.
fn forgetting(rig: &mut Rig, text: &str) -> calls::Close {
    let opened = rig.create(&Caller::root(), ROOT, text).unwrap();
    rig.remove(ROOT, text).unwrap();
    calls::Close { sequence: rig.next(), opens: Array(vec![opened.open]) }
}

/// The reply to a call, if there is one by now.
fn reply_to<P: Procedure>(_: &P, reply: &mut Receiver<Reply>) -> Option<P::Res> {
    reply.try_recv().ok().map(|reply| decode(&reply))
}

fn is_to_come(reply: &mut Receiver<Reply>) -> bool {
    matches!(reply.try_recv(), Err(TryRecvError::Empty))
}

#[test]
fn what_writes_nothing_is_answered_without_the_thread() {
    let mut rig = Rig::new(16);
    rig.create(&Caller::root(), ROOT, "a").unwrap();
    let (commits, call) = (rig.engine.commits(), look(&rig, "a"));
    let (mut reply, is_begun) = rig.at_once(call.clone());
    let looked = reply_to(&call, &mut reply).unwrap().unwrap();
    assert!(looked.found.is_some() && !is_begun);
    assert_eq!(rig.engine.commits(), commits);
}

/// The thread is told once. Whoever comes after what is not committed waits for the commit, too.
#[test]
fn what_was_begun_is_answered_when_the_thread_has_committed_it() {
    let mut rig = Rig::new(16);
    rig.create(&Caller::root(), ROOT, "a").unwrap();
    let closing = forgetting(&mut rig, "b");
    let (commits, looking) = (rig.engine.commits(), look(&rig, "a"));
    let (mut closed, is_first) = rig.at_once(closing.clone());
    let (mut looked, is_second) = rig.at_once(looking.clone());
    assert!(is_first && !is_second);
    assert!(is_to_come(&mut closed) && is_to_come(&mut looked));
    assert_eq!(rig.engine.commits(), commits);
    rig.commit_begun();
    assert_eq!(rig.engine.commits(), commits + 1);
    assert_eq!(reply_to(&closing, &mut closed), Some(Ok(())));
    assert!(reply_to(&looking, &mut looked).unwrap().unwrap().found.is_some());
    rig.check();
}

#[test]
fn what_nobody_commits_is_not_answered() {
    let mut rig = Rig::new(16);
    let call = forgetting(&mut rig, "a");
    let (mut closed, _) = rig.at_once(call);
    rig.drop_begun();
    assert!(matches!(closed.try_recv(), Err(TryRecvError::Closed)));
}

//! Calls beside the committer's thread.

use tokio::sync::oneshot;

use super::Rig;
use crate::change::{Change, Reply};
use crate::committer::Event;
use crate::rights::Caller;

impl Rig {
    /// A call that a task carries out: its reply, if it comes before the thread's turn, and whether
    /// the thread must know of it.
    pub(crate) fn at_once<P: Into<Change>>(&mut self, call: P) -> (oneshot::Receiver<Reply>, bool) {
        let (called, reply) = self.called(&Caller::root(), call.into());
        assert!(called.change.is_brief());
        (reply, self.committer.carry_out_at_once(called))
    }

    /// The thread commits what tasks began.
    pub(crate) fn commit_begun(&mut self) {
        self.committer.group(Event::Begun, &mut || None);
    }

    /// Nobody will.
    pub(crate) fn drop_begun(&mut self) {
        self.committer.drop_begun();
    }
}

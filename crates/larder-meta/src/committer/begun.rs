//! What is carried out beside the committer's thread ([`crate::turn`]).

use super::{Called, Committer, Event};

impl Committer {
    /// Whether nothing here waits for another machine to read the store.
    pub(crate) fn has_local_store(&self) -> bool {
        self.engine.term().is_none()
    }

    /// Carries out a call, without a commit. Returns whether the thread must know that a group was
    /// begun, since it is to be committed or more is to be done.
    pub(crate) fn carry_out_at_once(&mut self, called: Called) -> bool {
        let was_begun = self.begun.is_some();
        let group = self.gather(Event::Call(Box::new(called)), &mut || None);
        if self.is_work(&group) || !self.ready.is_empty() || !self.left.is_empty() {
            self.begun = Some(group);
            return !was_begun;
        }
        self.commit(group);
        self.tell_due();
        false
    }

    /// Nothing commits what was begun: its callers are told that it has failed.
    pub(crate) fn drop_begun(&mut self) {
        self.begun = None;
    }
}

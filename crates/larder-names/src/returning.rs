//! What waits in a directory is made at the server before its lease is returned.

use std::sync::Arc;

use crate::dir_lease::{DirLease, Event};
use crate::object::Dir;
use crate::shared::Shared;
use crate::state::State;
use crate::which::Which;

impl Shared {
    /// If a directory's lease has ended, makes all that waits in it at the server.
    pub(crate) async fn replay_returning(self: &Arc<Self>, dir: &Dir) {
        let is_returning = |state: &State| state.dir_leases().get(dir) == DirLease::Returning;
        if !is_returning(&self.state()) {
            return;
        }
        // Also if the server seems to be silent: a call that waits for another client looks like
        // that, and the session goes on.
        let mut left = vec![dir.clone()];
        while let Some(dir) = left.pop() {
            if let Err(error) = self.replay_which(&Which::In(dir.clone())).await {
                tracing::warn!(%error, "names are not at the server before others look there");
            }
            left.extend(self.unleased_in(&dir));
        }
        self.state().dir_leases_mut().apply(dir, Event::Returned);
        self.leases_changed.notify_waiters();
    }

    /// Directories in a directory that the server has and others may look into, and in which
    /// something waits.
    fn unleased_in(&self, dir: &Dir) -> Vec<Dir> {
        let state = self.state();
        let is_one = |below: &&Dir| match below {
            Dir::Made(no) => {
                let object = state.journal().get(*no);
                let is_in = object.is_some_and(|object| object.dentry.dir == *dir);
                let is_leased = matches!(state.dir_leases().get(below), DirLease::Held(_));
                is_in && state.journal().named(*no).is_some() && !is_leased
            }
            Dir::Server(_) => false,
        };
        state.journal().dirs_with_waiting().filter(is_one).cloned().collect()
    }
}

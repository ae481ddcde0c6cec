//! Which of the changes that wait are made at the server.

use std::time::Instant;

use crate::object::{Dir, ObjectNo};
use crate::state::State;

/// Which of the changes that wait are made at the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    All,
    /// Those that are due at this time.
    Due(Instant),
    /// Those of names in a directory.
    In(Dir),
}

impl Which {
    /// Whether a change is among them.
    pub(crate) fn has(&self, state: &State, no: ObjectNo) -> bool {
        let dir = match self {
            Which::All => return true,
            Which::Due(until) => return state.due(no).is_none_or(|due| due <= *until),
            Which::In(dir) => dir,
        };
        if let Some(taken) = state.journal().taken().get(no) {
            let to = taken.dentry.as_ref().map(|dentry| &dentry.dir);
            return taken.origin.dir == *dir || to == Some(dir);
        }
        state.journal().waiting(no).is_some_and(|(dentry, _)| dentry.dir == *dir)
    }
}

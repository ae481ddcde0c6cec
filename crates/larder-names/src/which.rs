//! Which of the changes that wait are made at the server.

use std::collections::BTreeSet;
use std::time::Instant;

use larder_vfs::Handle;

use crate::object::{Dir, ObjectNo, Taken};
use crate::shared::Shared;
use crate::state::State;

/// Which of the changes that wait are made at the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    All,
    /// Those that are due at this time.
    Due(Instant),
    /// Those of names in a directory, and its own removal; and further names of files that have,
    /// get or lose one there: another client may remove them by that.
    In(Dir),
    These(BTreeSet<ObjectNo>),
}

impl Which {
    /// Whether a change is among them.
    pub(crate) fn has(&self, state: &State, no: ObjectNo) -> bool {
        let dir = match self {
            Which::All => return true,
            Which::Due(until) => return state.due(no).is_none_or(|due| due <= *until),
            Which::These(these) => return these.contains(&no),
            Which::In(dir) => dir,
        };
        if let Some(taken) = state.journal().taken().get(no) {
            let to = taken.dentry.as_ref().map(|dentry| &dentry.dir);
            let is_it = || taken.dentry.is_none() && state.journal().dir(&taken.handle) == *dir;
            return taken.origin.dir == *dir || to == Some(dir) || is_it();
        }
        if let Some(linked) = state.journal().links().get(no) {
            return linked.dentry.dir == *dir || has_name_in(state, &linked.file, dir);
        }
        state.journal().waiting(no).is_some_and(|(dentry, _)| dentry.dir == *dir)
    }
}

/// Whether a file has a name in a directory, as far as the journal knows, or gets or loses one
/// there by a change that waits.
fn has_name_in(state: &State, file: &Dir, dir: &Dir) -> bool {
    let journal = state.journal();
    let is_there = match file {
        Dir::Made(no) => journal.dentry_of(*no).is_some_and(|dentry| dentry.dir == *dir),
        Dir::Server(_) => false,
    };
    let is_touched = |taken: &Taken| {
        let to = taken.dentry.as_ref().map(|dentry| &dentry.dir);
        taken.origin.dir == *dir || to == Some(dir)
    };
    let handle = journal.handle_at_server(file);
    is_there || handle.is_some_and(|file| journal.taken().of(&file).any(|(_, one)| is_touched(one)))
}

impl Shared {
    /// The changes of a file that the server does not have: its making, and names taken away.
    pub(crate) fn changes_of(&self, file: &Handle) -> Vec<ObjectNo> {
        let state = self.state();
        let journal = state.journal();
        let made = journal.number_in(file);
        let identity = journal.identity(file);
        let links = journal.links().of(&identity).map(|(no, _)| no);
        if let Some(no) = made.filter(|no| journal.waiting(*no).is_some()) {
            return [no].into_iter().chain(links).collect();
        }
        let named = made.and_then(|no| journal.named(no));
        let server = named.map_or(file, |named| &named.handle);
        let altered = journal.altered(server).filter(|(_, one)| !one.is_done).map(|(no, _)| no);
        let taken = journal.taken().of(server).map(|(no, _)| no);
        altered.into_iter().chain(links).chain(taken).collect()
    }
}

//! What ends with a transaction, once the disks know of it.

use std::collections::BTreeSet;
use std::ops::Range;

use larder_wire::meta::words::{DiskId, SessionId};

use super::Committer;
use crate::in_place::Mark;
use crate::issued::Taken;
use crate::store::txn::{Effects, Revoked};

/// The capabilities and blocks that a transaction ends.
#[derive(Default)]
pub(super) struct Ended {
    /// Whose capabilities end, be there some now or not.
    pub(super) revoked: BTreeSet<Revoked>,
    /// Those that are to be revoked.
    pub(super) capabilities: Vec<Taken>,
    /// Blocks that are free after that.
    pub(super) draining: Vec<(DiskId, Range<u64>)>,
    /// Sessions whose leases end after that.
    pub(super) sessions: Vec<SessionId>,
    /// Files that were written in place under them, without a commit to come.
    pub(super) left: Vec<Mark>,
}

impl Committer {
    /// The consequences of a transaction at the disks.
    pub(super) fn ended(&mut self, effects: Effects) -> Ended {
        let Effects { revoked, untaken, draining, gone, due } = effects;
        let (mut sessions, mut left) = (Vec::new(), Vec::new());
        for one in &revoked {
            left.extend(self.live.left_with(one));
            if let Revoked::All(session) = one {
                self.slots.end(*session);
                sessions.push(*session);
            }
        }
        for file in gone {
            self.leaving.is_gone(file);
            self.live.file_is_gone(file);
        }
        for (set, file, due_ms) in due {
            self.live.is_due(set, file, due_ms);
        }
        self.freeing.drains(&draining);
        Ended { revoked, capabilities: self.live.end(untaken), draining, sessions, left }
    }
}

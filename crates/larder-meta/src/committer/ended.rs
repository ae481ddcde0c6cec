//! What ends with a transaction, once the disks know of it.

use std::collections::BTreeSet;
use std::ops::Range;

use larder_wire::meta::words::{DiskId, SessionId};

use crate::in_place::Mark;
use crate::issued::Taken;
use crate::store::txn::Revoked;

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

//! Blocks on their way from what gave them up to the free ones. They drain: once no capability
//! covers them the disks clear them, and a commit frees them after that.
//!
//! Each step costs syncs, so blocks go together. What is to be cleared gathers for [`CLEAR_AFTER`];
//! what was cleared is freed by the next durable commit, or after [`FREE_AFTER`]. Memory disks sync
//! nothing, and what finds no room there goes to slower disks: their blocks do not wait.
//!
//! A call that finds no room ends both waits. It is carried out again when blocks become free,
//! until it has room or none are on their way, for [`ROOM_WAIT`] at most. So no call is refused for
//! blocks that gather.
//!
//! A pure state machine, except that it has its waits end by [`AwaitTime`]: the committer asks the
//! disks, and commits.
//!
//! Invariants:
//! - The store says that blocks drain until the commit that frees them: a server that begins has
//!   them cleared again.
//! - As long as a call waits for room, no blocks gather.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use larder_wire::meta::words::DiskId;

use crate::leases::CallNumber;
use crate::live::Cleared;

/// For so long blocks that are to be cleared wait for others.
const CLEAR_AFTER: Duration = Duration::from_millis(20);
/// So many ranges of blocks wait for no more.
const GATHERED_MAX: usize = 4096;
/// For so long blocks that were cleared wait for a commit that is made anyway.
const FREE_AFTER: Duration = Duration::from_millis(100);
/// For so long a call waits for blocks that are on their way.
const ROOM_WAIT: Duration = Duration::from_secs(1);

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wake {
    /// Blocks have gathered that are to be cleared.
    Clear,
    /// Blocks that were cleared are to be free.
    Free,
    /// A call has waited for room.
    Room(CallNumber),
}

/// Has the committer learn of the end of a wait.
pub(crate) type AwaitTime = Box<dyn Fn(Duration, Wake) + Send>;

/// Blocks of a set.
type Blocks = Vec<(DiskId, Range<u64>)>;

/// What is on its way.
pub(super) struct Freeing {
    await_time: AwaitTime,
    /// How many ranges of blocks of each set drain.
    draining: BTreeMap<DiskId, usize>,
    /// Those that are to be cleared with others.
    gathered: Blocks,
    /// Those that the disks have cleared, until they are free.
    cleared: Vec<Cleared>,
    /// The waits that have begun and not ended.
    waits: BTreeSet<Wake>,
    /// The calls that found no room and are set aside, and whether they may wait longer.
    short: BTreeMap<CallNumber, bool>,
}

impl Freeing {
    /// These blocks drain.
    pub(super) fn new(await_time: AwaitTime, draining: &Blocks) -> Freeing {
        let (gathered, cleared) = (Vec::new(), Vec::new());
        let (waits, short) = (BTreeSet::new(), BTreeMap::new());
        let none = BTreeMap::new();
        let mut new = Freeing { await_time, draining: none, gathered, cleared, waits, short };
        new.drains(draining);
        new
    }

    /// Blocks begin to drain.
    pub(super) fn drains(&mut self, blocks: &Blocks) {
        for (set, _) in blocks {
            *self.draining.entry(*set).or_default() += 1;
        }
    }

    /// Blocks are to be cleared that nobody can reach any more. Returns those that are to be
    /// cleared now.
    pub(super) fn gather(&mut self, mut blocks: Blocks) -> Blocks {
        self.gathered.append(&mut blocks);
        if self.gathered.len() >= GATHERED_MAX || !self.short.is_empty() {
            return self.take_gathered();
        }
        if !self.gathered.is_empty() {
            self.wait(CLEAR_AFTER, Wake::Clear);
        }
        Vec::new()
    }

    /// Those that have gathered. They wait no longer.
    pub(super) fn take_gathered(&mut self) -> Blocks {
        std::mem::take(&mut self.gathered)
    }

    /// The disks have cleared blocks. Returns those that are to be freed now.
    pub(super) fn are_cleared(&mut self, mut blocks: Vec<Cleared>) -> Vec<Cleared> {
        self.cleared.append(&mut blocks);
        if !self.short.is_empty() {
            return self.take_cleared();
        }
        self.wait(FREE_AFTER, Wake::Free);
        Vec::new()
    }

    /// Those that were cleared and are not free. They wait no longer.
    pub(super) fn take_cleared(&mut self) -> Vec<Cleared> {
        std::mem::take(&mut self.cleared)
    }

    /// They cannot be freed now.
    pub(super) fn put_off(&mut self, blocks: Vec<Cleared>) {
        self.cleared.extend(blocks);
    }

    /// They are free. Returns the calls that may find room now.
    pub(super) fn are_free(&mut self, blocks: &[Cleared]) -> Vec<CallNumber> {
        for Cleared { set, .. } in blocks {
            if let Some(count) = self.draining.get_mut(set) {
                *count = count.saturating_sub(1);
            }
        }
        self.short.keys().copied().collect()
    }

    /// Whether blocks are on their way on a set that is there.
    pub(super) fn comes_room(&self, is_there: impl Fn(DiskId) -> bool) -> bool {
        self.draining.iter().any(|(set, count)| *count > 0 && is_there(*set))
    }

    /// Whether a call that finds no room may be set aside.
    pub(super) fn may_wait(&self, call: CallNumber) -> bool {
        self.short.get(&call) != Some(&false)
    }

    /// A call has found no room, and is set aside.
    pub(super) fn is_short(&mut self, call: CallNumber) {
        self.short.insert(call, true);
        self.wait(ROOM_WAIT, Wake::Room(call));
    }

    /// A call does not wait for room any more.
    pub(super) fn is_not_short(&mut self, call: CallNumber) {
        self.short.remove(&call);
    }

    fn wait(&mut self, time: Duration, wake: Wake) {
        if self.waits.insert(wake) {
            (self.await_time)(time, wake);
        }
    }

    /// A wait is over. If it was a call's: returns the call, which may wait no longer.
    pub(super) fn woken(&mut self, wake: Wake) -> Option<CallNumber> {
        self.waits.remove(&wake);
        let Wake::Room(call) = wake else { return None };
        let may_wait = self.short.get_mut(&call)?;
        *may_wait = false;
        Some(call)
    }
}

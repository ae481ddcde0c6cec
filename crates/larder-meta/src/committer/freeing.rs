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
//! Invariants:
//! - The store says that blocks drain until the commit that frees them: a server that begins has
//!   them cleared again.
//! - As long as a call waits for room, no blocks gather.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use larder_wire::meta::words::DiskId;

use super::{Committer, Event, Group};
use crate::change::Change;
use crate::engine::View;
use crate::leases::CallNumber;
use crate::live::{Cleared, Live};

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

/// Lets a wait end in an [`Event::Wake`].
pub(crate) type AwaitTime = Box<dyn Fn(Duration, Wake) + Send>;

/// What is on its way.
#[derive(Debug, Default)]
pub(super) struct Freeing {
    /// How many ranges of blocks of each set drain.
    draining: BTreeMap<DiskId, usize>,
    /// Those that are to be cleared with others.
    gathered: Vec<(DiskId, Range<u64>)>,
    /// Those that the disks have cleared, until they are free.
    cleared: Vec<Cleared>,
    /// The waits that have begun and not ended.
    waits: BTreeSet<Wake>,
    /// The calls that found no room and are set aside, and whether they may wait longer.
    short: BTreeMap<CallNumber, bool>,
}

impl Freeing {
    /// Blocks begin to drain.
    pub(super) fn drains(&mut self, blocks: &[(DiskId, Range<u64>)]) {
        for (set, _) in blocks {
            *self.draining.entry(*set).or_default() += 1;
        }
    }

    fn are_free(&mut self, blocks: &[Cleared]) {
        for Cleared { set, .. } in blocks {
            if let Some(count) = self.draining.get_mut(set) {
                *count = count.saturating_sub(1);
            }
        }
    }

    /// A call does not wait for room any more.
    pub(super) fn is_not_short(&mut self, call: CallNumber) {
        self.short.remove(&call);
    }
}

impl Committer {
    /// A wait is over.
    pub(super) fn wake(&mut self, view: &dyn View, group: &mut Group, wake: Wake) {
        self.freeing.waits.remove(&wake);
        match wake {
            Wake::Clear => drop(self.clear_gathered()),
            Wake::Free => drop(self.free_cleared(view, group)),
            Wake::Room(call) => {
                if let Some(may_wait) = self.freeing.short.get_mut(&call) {
                    *may_wait = false;
                    self.ready.push_back(call);
                }
            }
        }
    }

    fn wake_after(&mut self, time: Duration, wake: Wake) {
        if self.freeing.waits.insert(wake) {
            (self.await_time)(time, wake);
        }
    }

    /// Has the disks clear blocks that nobody can reach any more, soon.
    pub(super) fn clear(&mut self, draining: Vec<(DiskId, Range<u64>)>) {
        let (memory, mut others): (Vec<_>, Vec<_>) =
            draining.into_iter().partition(|(set, _)| self.live.is_memory(*set));
        self.clear_now(memory);
        self.freeing.gathered.append(&mut others);
        if self.freeing.gathered.len() >= GATHERED_MAX || !self.freeing.short.is_empty() {
            self.clear_gathered();
        } else if !self.freeing.gathered.is_empty() {
            self.wake_after(CLEAR_AFTER, Wake::Clear);
        }
    }

    /// Has the disks clear what has gathered. Returns whether there was anything.
    pub(super) fn clear_gathered(&mut self) -> bool {
        let gathered = std::mem::take(&mut self.freeing.gathered);
        let is_any = !gathered.is_empty();
        self.clear_now(gathered);
        is_any
    }

    /// Has the disks clear blocks.
    fn clear_now(&mut self, blocks: Vec<(DiskId, Range<u64>)>) {
        let mut by_set: BTreeMap<DiskId, Vec<Range<u64>>> = BTreeMap::new();
        for (set, blocks) in blocks {
            by_set.entry(set).or_default().push(blocks);
        }
        // Set by set: blocks that one set has cleared are free although disks of another are away.
        for (set, blocks) in by_set {
            let disks = self.live.disks_of(set);
            let (there, away): (Vec<DiskId>, Vec<DiskId>) =
                disks.iter().partition(|disk| self.disks.is_there(**disk));
            let (asked, missed) = if there.is_empty() { (away, there) } else { (there, away) };
            let of = |disk: DiskId| blocks.iter().map(move |bytes| (disk, bytes.clone()));
            let cleared = self.disks.clear(asked.into_iter().flat_map(of).collect());
            let blocks = blocks.iter().map(|bytes| Cleared {
                set,
                bytes: bytes.clone(),
                missed: missed.clone(),
            });
            (self.await_disks)(cleared, Event::Cleared(blocks.collect()));
        }
    }

    /// The disks have cleared blocks, all of one set.
    pub(super) fn are_cleared(&mut self, view: &dyn View, group: &mut Group, blocks: Vec<Cleared>) {
        if blocks.iter().any(|one| self.live.is_memory(one.set)) {
            self.free(view, group, blocks);
        } else {
            self.freeing.cleared.extend(blocks);
            match self.freeing.short.is_empty() {
                true => self.wake_after(FREE_AFTER, Wake::Free),
                false => drop(self.free_cleared(view, group)),
            }
        }
    }

    /// Frees what the disks have cleared if the group is committed durably anyway, or is the last.
    pub(super) fn free_beside(&mut self, view: &dyn View, group: &mut Group) {
        if group.is_synced() || group.end.is_some() {
            self.free_cleared(view, group);
        }
    }

    /// Frees what the disks have cleared. Returns whether anything is free now; what cannot be read
    /// now is tried again at the next tick.
    pub(super) fn free_cleared(&mut self, view: &dyn View, group: &mut Group) -> bool {
        let blocks = std::mem::take(&mut self.freeing.cleared);
        !blocks.is_empty() && self.free(view, group, blocks)
    }

    fn free(&mut self, view: &dyn View, group: &mut Group, blocks: Vec<Cleared>) -> bool {
        let is_done = self.internal(view, group, |live, txn| {
            blocks.iter().try_for_each(|cleared| live.free(txn, cleared))
        });
        if is_done {
            self.freeing.are_free(&blocks);
            self.ready.extend(self.freeing.short.keys());
            self.remove_emptied(view, group);
        } else {
            self.freeing.cleared.extend(blocks);
        }
        is_done
    }

    /// Whether a call that finds no room may be carried out again when there is more.
    pub(super) fn may_get_room(&self, call: CallNumber) -> bool {
        self.freeing.short.get(&call) != Some(&false) && self.comes_room()
    }

    /// Whether blocks are on their way. A disk that is away may not clear any soon.
    fn comes_room(&self) -> bool {
        let is_there =
            |set: &DiskId| self.live.disks_of(*set).iter().any(|disk| self.disks.is_there(*disk));
        self.freeing.draining.iter().any(|(set, count)| *count > 0 && is_there(set))
    }

    /// A call has found no room. Returns whether it is to be set aside; then it will be ready.
    pub(super) fn waits_for_room(
        &mut self,
        view: &dyn View,
        group: &mut Group,
        (call, change): (CallNumber, &Change),
    ) -> bool {
        let takes_blocks =
            matches!(change, Change::Open(_) | Change::Alloc(_) | Change::Preallocate(_));
        if !takes_blocks || self.freeing.short.get(&call) == Some(&false) {
            return false;
        }
        if self.live.is_release_due() {
            self.internal(view, group, Live::release_closed);
        }
        self.freeing.short.insert(call, true);
        if self.free_cleared(view, group) {
            return true;
        }
        self.clear_gathered();
        let waits = self.comes_room();
        if waits {
            self.wake_after(ROOM_WAIT, Wake::Room(call));
        }
        waits
    }
}

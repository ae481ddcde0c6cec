//! Memory disks whose machines lack memory: each says how many bytes it can hold, and what it holds
//! above that goes elsewhere, whether it is due or not: to other memory disks that can hold it, as
//! many as have it now, otherwise to disks.
//!
//! Nothing of this is on record: a server that starts hears from its disks anew. Nothing new is
//! placed above a limit ([`crate::data::blocks`]). Files to move are those on record for the set,
//! in their order, a few at a time; [`Live::begin_move`] looks again whether a file has to go, and
//! counts what is on its way, so no more is moved than has to be.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use larder_wire::meta::Status;
use larder_wire::meta::words::{DiskId, FileId};

use super::Live;
use crate::data::{blocks, memory};
use crate::disks::Limits;
use crate::store::Txn;

/// Files of a set that are examined in one step: other calls wait for that.
const LOOK_MAX: usize = 64;
/// For so long nothing is moved to memory disks that did not take what was moved there.
const AVOIDED_FOR: Duration = Duration::from_secs(5);

/// The sets that hold more than they can.
#[derive(Debug, Default)]
pub(super) struct Yielding {
    /// Behind which file of a set the search goes on.
    at: BTreeMap<DiskId, FileId>,
    /// How many bytes were moved, since the server began, and how many of them to memory disks.
    moved_bytes: u64,
    moved_to_memory_bytes: u64,
    /// Sets that did not take what was moved to them, and until when nothing is.
    avoided: BTreeMap<DiskId, Instant>,
}

impl Yielding {
    /// So many bytes that were not due are on other disks, and so many of them in memory.
    pub(super) fn moved(&mut self, bytes: u64, in_memory: u64) {
        self.moved_bytes += bytes;
        self.moved_to_memory_bytes += in_memory;
    }

    /// How many there were, and of these in memory.
    pub(super) fn moved_bytes(&self) -> (u64, u64) {
        (self.moved_bytes, self.moved_to_memory_bytes)
    }

    /// A set of memory disks did not take what was moved to it.
    pub(super) fn avoid(&mut self, set: DiskId, now: Instant) {
        self.avoided.insert(set, now + AVOIDED_FOR);
    }

    /// The sets to which nothing is moved now.
    pub(super) fn avoided(&mut self, now: Instant) -> BTreeSet<DiskId> {
        self.avoided.retain(|_, until| *until > now);
        self.avoided.keys().copied().collect()
    }
}

impl Live {
    /// Memory disks have said how many bytes they can hold. What sessions hold on a set that has
    /// too many, and have not committed, is given up: their clients write again elsewhere.
    pub(crate) fn limits_told(&mut self, txn: &mut Txn<'_>, limits: Limits) -> Result<(), Status> {
        self.sets.set_limits(limits);
        for set in self.with_too_much(txn)? {
            memory::give_up_provisional(txn, set)?;
        }
        self.make_room(txn)
    }

    /// Finds more files to be moved from sets that hold more than they can.
    pub(crate) fn make_room(&mut self, txn: &Txn<'_>) -> Result<(), Status> {
        let with_too_much = self.with_too_much(txn)?;
        for set in self.yielding.at.keys().filter(|set| !with_too_much.contains(set)) {
            tracing::info!(set = set.0, "memory disks hold no more than their machines can give");
        }
        self.yielding.at.retain(|set, _| with_too_much.contains(set));
        for set in with_too_much {
            let at = self.yielding.at.entry(set).or_insert_with(|| {
                tracing::warn!(
                    set = set.0,
                    "machines of memory disks lack memory: what is there goes elsewhere"
                );
                FileId(0)
            });
            let files = memory::files_behind(txn, set, *at, LOOK_MAX)?;
            *at = match files.last() {
                Some(last) if files.len() == LOOK_MAX => *last,
                _ => FileId(0),
            };
            files.into_iter().for_each(|file| self.destage.note(set, file, 0));
        }
        Ok(())
    }

    /// Whether a set of memory disks holds more than they can, beside what is on its way to others.
    /// What is on its way to them counts.
    pub(super) fn yields(&self, txn: &Txn<'_>, set: DiskId) -> Result<bool, Status> {
        if !self.sets.is_limited(set) {
            return Ok(false);
        }
        // Blocks for what is on its way count as draining.
        let draining = blocks::draining_bytes_of(txn, set)?;
        let gone = draining.saturating_sub(self.destage.bytes_to(set));
        let gone = gone + self.destage.moving_bytes(set);
        let left = blocks::left(txn, set, &self.sets, gone)?;
        Ok(left.is_some_and(|left| left < 0))
    }

    fn with_too_much(&self, txn: &Txn<'_>) -> Result<Vec<DiskId>, Status> {
        let mut found = Vec::new();
        for (set, _) in self.sets.memory() {
            if self.yields(txn, set)? {
                found.push(set);
            }
        }
        Ok(found)
    }
}

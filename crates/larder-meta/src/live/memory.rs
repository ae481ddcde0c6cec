//! Memory disks that were restarted: what was there is lost. Memory disks that have no room for
//! bytes that are to be there: those go to other disks.
//!
//! The store says to which boot of a memory disk its blocks belong. On a disk that is in another
//! boot nothing is granted before that is recorded, so no client reads zeros in place of lost
//! bytes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use larder_wire::meta::Status;
use larder_wire::meta::words::{DiskId, Time};

use super::Live;
use crate::activity::Instead;
use crate::data;
use crate::retained::NO_DISK;
use crate::store::records::{Loss, MemoryBoot};
use crate::store::{Txn, key};

/// For so long memory disks count as short of room after they were.
const SHORT_FOR: Duration = Duration::from_secs(30);

/// What was noticed of memory disks.
#[derive(Debug, Default)]
pub(super) struct Noticed {
    /// Those that are in another boot than the one to which their blocks belong.
    restarted: BTreeMap<DiskId, u64>,
    /// Losses that are recorded with the next commit, and logged after it.
    losses: Vec<(u64, Loss)>,
    pressure: Pressure,
}

impl Noticed {
    /// A memory disk is in another boot than the one to which its blocks belong.
    pub(super) fn is_restarted(&mut self, disk: DiskId, boot: u64) {
        self.restarted.insert(disk, boot);
    }

    /// Something was lost otherwise, and is recorded with the next commit.
    pub(super) fn is_lost(&mut self, number: u64, loss: Loss) {
        self.losses.push((number, loss));
    }

    /// What the server's status shows.
    pub(super) fn shown(&self) -> Instead {
        self.pressure.shown()
    }
}

/// What went to disks for want of memory, as far as it was looked at.
#[derive(Debug, Default)]
struct Pressure {
    bytes: u64,
    /// When there was more of it last, if memory disks count as short of room.
    since: Option<Instant>,
}

/// What has begun or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Bytes go to disks for want of memory.
    Short,
    /// None did for some time.
    Over,
}

impl Pressure {
    /// By now so many bytes went to disks for want of memory.
    fn look(&mut self, bytes: u64, now: Instant) -> Option<Turn> {
        let was_short = self.since.is_some();
        if bytes > self.bytes {
            (self.bytes, self.since) = (bytes, Some(now));
            return (!was_short).then_some(Turn::Short);
        }
        let is_over = |since: Instant| now.saturating_duration_since(since) >= SHORT_FOR;
        self.since.take_if(|since| is_over(*since)).map(|_| Turn::Over)
    }

    fn shown(&self) -> Instead {
        Instead { bytes: self.bytes, is_short: self.since.is_some() }
    }
}

impl Live {
    /// Whether a set is one of memory disks.
    pub(crate) fn is_memory(&self, set: DiskId) -> bool {
        self.sets.is_memory(set)
    }

    /// Looks for memory disks that were started again.
    pub(crate) fn look_for_restarts(&mut self) {
        for info in self.disks.list() {
            let known = self.sets.boot(info.disk);
            if info.epoch != 0 && known.is_some_and(|boot| boot != info.epoch) {
                self.noticed.is_restarted(info.disk, info.epoch);
            }
        }
    }

    /// Whether there are restarts that are not recorded.
    pub(crate) fn has_restarts(&self) -> bool {
        !self.noticed.restarted.is_empty()
    }

    /// Records what was lost with them. It is noticed now.
    pub(crate) fn note_restarts(&mut self, txn: &mut Txn<'_>, now: Time) -> Result<(), Status> {
        for (disk, boot) in self.noticed.restarted.clone() {
            let lost = data::memory::lose(txn, disk, &self.sets)?;
            txn.put(key::memory_boot(disk), &MemoryBoot { boot });
            self.end_moves_to(txn, disk);
            if let Some(set) = self.sets.of(disk).map(|(set, _)| set) {
                for (file, _) in lost.iter().filter(|(file, _)| self.archive.knows(*file)) {
                    self.destage.note(set, *file, 0);
                }
            }
            if lost.is_empty() {
                tracing::info!(disk = disk.0, "a memory disk was started again: nothing is lost");
                continue;
            }
            let (files, bytes) = (lost.len() as u64, lost.iter().map(|(_, bytes)| bytes).sum());
            let loss = Loss { at_s: now.seconds, disk, files, bytes };
            let number = data::memory::note_loss(txn, &loss)?;
            self.noticed.losses.push((number, loss));
        }
        for (disk, boot) in std::mem::take(&mut self.noticed.restarted) {
            self.sets.set_boot(disk, boot);
        }
        Ok(())
    }

    /// What was recorded is durable: logs the losses among it.
    pub(crate) fn log_losses(&mut self) {
        for (number, Loss { disk, files, bytes, .. }) in self.noticed.losses.drain(..) {
            if disk == NO_DISK {
                tracing::warn!(
                    number,
                    files,
                    bytes,
                    "loss: a client's session is over, and it alone had these bytes"
                );
                continue;
            }
            let disk = disk.0;
            tracing::warn!(
                number,
                disk,
                files,
                bytes,
                "loss: a memory disk was started again, and no other disk has what was there"
            );
        }
    }

    /// Looks at what went to disks for want of memory, and logs when that begins and ends.
    pub(crate) fn look_at_pressure(&mut self, now: Instant) {
        let bytes = self.cursors.instead();
        match self.noticed.pressure.look(bytes, now) {
            Some(Turn::Short) => tracing::warn!(
                bytes,
                "memory disks have no room or cannot be reached: bytes for them go to disks"
            ),
            Some(Turn::Over) => tracing::info!(bytes, "no more bytes for memory disks go to disks"),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_begins_once_and_ends_after_some_time() {
        let (mut pressure, start) = (Pressure::default(), Instant::now());
        let steps = [
            (0, 0, None, false),
            (1, 100, Some(Turn::Short), true),
            (2, 100, None, true),
            (29, 200, None, true),
            (58, 200, None, true),
            (59, 200, Some(Turn::Over), false),
            (60, 200, None, false),
            (90, 300, Some(Turn::Short), true),
        ];
        for (at_s, bytes, turn, is_short) in steps {
            let now = start + Duration::from_secs(at_s);
            assert_eq!(pressure.look(bytes, now), turn, "{at_s}");
            assert_eq!(pressure.shown(), Instead { bytes, is_short }, "{at_s}");
        }
    }
}

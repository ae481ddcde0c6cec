//! Disks of tests: which capabilities they accept, and what was written to them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use larder_wire::capability::{CapabilityId, GroupId};
use larder_wire::meta::BLOCK_BYTES;
use larder_wire::meta::words::{DiskId, DiskInfo, Mode};

use larder_wire::xdr::Opaque;

use crate::disks::{
    Acknowledged, CapabilityName, Copied, Disks, Minted, Outcome, Stored, Witnessed,
};

const CAPABILITY_LASTS: Duration = Duration::from_secs(3600);

/// Disks that revoke when the test says so.
#[derive(Debug, Default)]
pub(crate) struct FakeDisks(Arc<Mutex<Out>>);

#[derive(Debug, Default)]
struct Out {
    next: u32,
    /// Capabilities that a disk takes.
    good: BTreeMap<CapabilityName, (DiskId, Mode, Vec<Range<u64>>)>,
    /// Requests that are not carried out yet.
    asked: VecDeque<Asked>,
    /// Disks that cannot be reached.
    away: BTreeSet<DiskId>,
    /// How many blocks disks hold at most.
    most: BTreeMap<DiskId, usize>,
    /// Boots of memory disks.
    boots: BTreeMap<DiskId, u64>,
    /// What a test wrote to blocks of disks, by position; others are zeros.
    blocks: BTreeMap<(DiskId, u64), u64>,
    /// What was ever written to disks.
    ever: BTreeSet<(DiskId, u64)>,
    /// What was cleared.
    cleared: Vec<(DiskId, Range<u64>)>,
    /// How many requests to clear there were.
    clears: usize,
}

#[derive(Debug)]
enum Asked {
    VoidAll,
    Revoke(Vec<CapabilityName>),
    Clear(Vec<(DiskId, Range<u64>)>),
    Flush,
    AwaitWritten(Vec<(DiskId, Range<u64>)>),
}

impl FakeDisks {
    /// Does something that was asked. Whether all is there that it asks for.
    pub(super) fn carry_out(&self, at: usize) -> bool {
        let mut out = self.0.lock().unwrap();
        match out.asked.remove(at).expect("something was asked") {
            Asked::VoidAll => out.good.clear(),
            Asked::Flush => {}
            Asked::AwaitWritten(blocks) => {
                return blocks.into_iter().all(|(disk, bytes)| {
                    let mut each = bytes.step_by(BLOCK_BYTES as usize);
                    !out.away.contains(&disk) && each.all(|at| out.blocks.contains_key(&(disk, at)))
                });
            }
            Asked::Revoke(names) => names.iter().for_each(|name| drop(out.good.remove(name))),
            Asked::Clear(blocks) => {
                for (disk, _, ranges) in out.good.values() {
                    for range in ranges {
                        let apart = |(of, bytes): &(DiskId, Range<u64>)| {
                            of != disk || range.end <= bytes.start || bytes.end <= range.start
                        };
                        assert!(blocks.iter().all(apart), "{range:?} is covered and cleared");
                    }
                }
                let is_cleared = |disk: DiskId, at: u64| {
                    blocks.iter().any(|(of, bytes)| *of == disk && bytes.contains(&at))
                };
                out.blocks.retain(|(disk, at), _| !is_cleared(*disk, *at));
                out.cleared.extend(blocks);
            }
        }
        true
    }

    /// The test says when it is done.
    fn ask(&self, asked: Asked) -> Acknowledged {
        self.0.lock().unwrap().asked.push_back(asked);
        Box::pin(std::future::ready(()))
    }

    /// The server that asked has died.
    pub(super) fn forget_asked(&self) {
        self.0.lock().unwrap().asked.clear();
    }

    /// From now on a disk cannot be reached.
    pub(crate) fn go_away(&self, disk: DiskId) {
        self.0.lock().unwrap().away.insert(disk);
    }

    /// From now on it can be.
    pub(crate) fn come_back(&self, disk: DiskId) {
        self.0.lock().unwrap().away.remove(&disk);
    }

    /// From now on a disk takes no more blocks than so many, beside those that it has.
    pub(crate) fn hold_at_most(&self, disk: DiskId, blocks: usize) {
        self.0.lock().unwrap().most.insert(disk, blocks);
    }

    /// Writes blocks under a capability. `false` if the disk does not accept it, or is away.
    pub(crate) fn write(&self, name: CapabilityName, bytes: &Range<u64>, what: u64) -> bool {
        let mut out = self.0.lock().unwrap();
        let Some((disk, mode, ranges)) = out.good.get(&name).cloned() else { return false };
        let covers = |range: &Range<u64>| range.start <= bytes.start && bytes.end <= range.end;
        let blocks = bytes.clone().step_by(BLOCK_BYTES as usize);
        let has_room = out.most.get(&disk).is_none_or(|most| {
            let held = out.blocks.keys().filter(|(of, _)| *of == disk).count();
            let new = blocks.clone().filter(|at| !out.blocks.contains_key(&(disk, *at))).count();
            new == 0 || held + new <= *most
        });
        let is_there = !out.away.contains(&disk) && has_room;
        let is_taken = mode.writes() && ranges.iter().any(covers) && is_there;
        if is_taken {
            out.blocks.extend(blocks.map(|at| ((disk, at), what)));
            out.ever.insert((disk, what));
        }
        is_taken
    }

    /// Whether there is a capability that a disk takes.
    pub(crate) fn takes_any(&self, disk: DiskId) -> bool {
        self.0.lock().unwrap().good.values().any(|(on, ..)| *on == disk)
    }

    /// Whether a disk lets a block be read under a capability.
    pub(crate) fn takes(&self, name: CapabilityName, at: u64) -> bool {
        let out = self.0.lock().unwrap();
        let ranges = out.good.get(&name).filter(|(_, mode, _)| mode.reads());
        ranges.is_some_and(|(_, _, ranges)| ranges.iter().any(|range| range.contains(&at)))
    }

    /// A memory disk starts, again or for the first time: it is empty, and accepts no capability
    /// from before.
    pub(crate) fn restart(&self, disk: DiskId) {
        let mut out = self.0.lock().unwrap();
        *out.boots.entry(disk).or_default() += 1;
        out.blocks.retain(|(of, _), _| *of != disk);
        out.good.retain(|_, (of, ..)| *of != disk);
    }

    /// Clears blocks.
    pub(crate) fn clear_now(&self, disk: DiskId, bytes: &Range<u64>) {
        let mut out = self.0.lock().unwrap();
        out.blocks.retain(|(of, at), _| *of != disk || !bytes.contains(at));
    }

    /// What was cleared on a disk since the last call of this, in bytes.
    pub(crate) fn take_cleared(&self, disk: DiskId) -> u64 {
        let cleared = std::mem::take(&mut self.0.lock().unwrap().cleared).into_iter();
        cleared.filter(|(on, _)| *on == disk).map(|(_, bytes)| bytes.end - bytes.start).sum()
    }

    /// How many requests to clear there were since the last call of this.
    pub(crate) fn take_clears(&self) -> usize {
        std::mem::take(&mut self.0.lock().unwrap().clears)
    }

    /// The content of a block of a disk.
    pub(crate) fn block(&self, disk: DiskId, at: u64) -> u64 {
        self.0.lock().unwrap().blocks.get(&(disk, at)).copied().unwrap_or(0)
    }

    /// What was ever written to a disk.
    pub(crate) fn ever_written(&self, disk: DiskId) -> BTreeSet<u64> {
        let out = self.0.lock().unwrap();
        out.ever.iter().filter(|(on, _)| *on == disk).map(|(_, what)| *what).collect()
    }

    /// Copies a block to a position as a task does. `false` if a disk is away or does not accept a
    /// capability.
    pub(crate) fn copy_block(
        &self,
        (from, read): (DiskId, CapabilityName),
        (to, write): (DiskId, CapabilityName),
        positions: (u64, u64),
    ) -> bool {
        self.copied((from, read), (to, write), positions) == Outcome::Done
    }

    /// The same: what became of it.
    fn copied(
        &self,
        (from, read): (DiskId, CapabilityName),
        (to, write): (DiskId, CapabilityName),
        (at, target): (u64, u64),
    ) -> Outcome {
        let what = self.block(from, at);
        let is_readable = {
            let out = self.0.lock().unwrap();
            out.good.contains_key(&read) && !out.away.contains(&from)
        };
        if !is_readable {
            return Outcome::NotRead;
        }
        match self.is_there(to) && self.write(write, &(target..target + BLOCK_BYTES), what) {
            true => Outcome::Done,
            false => Outcome::NotWritten,
        }
    }

    /// The bytes that some capability covers.
    pub(crate) fn covered(&self) -> Vec<Range<u64>> {
        let out = self.0.lock().unwrap();
        out.good.values().flat_map(|(_, _, ranges)| ranges.clone()).collect()
    }
}

impl Disks for FakeDisks {
    fn list(&self) -> Vec<DiskInfo> {
        let out = self.0.lock().unwrap();
        let info = |(disk, epoch): (&DiskId, &u64)| DiskInfo {
            disk: *disk,
            address: Opaque::default(),
            epoch: *epoch,
            is_memory: true,
            leaves: false,
        };
        out.boots.iter().map(info).collect()
    }

    fn is_there(&self, disk: DiskId) -> bool {
        !self.0.lock().unwrap().away.contains(&disk)
    }

    fn mint(&self, disk: DiskId, mode: Mode, bytes: &[Range<u64>]) -> Option<Minted> {
        assert!(bytes.iter().all(|range| range.start < range.end));
        assert!(bytes.is_sorted_by(|one, next| one.end < next.start), "{bytes:?}");
        let mut out = self.0.lock().unwrap();
        out.next += 1;
        let name = CapabilityName { group: GroupId(1), id: CapabilityId(out.next) };
        out.good.insert(name, (disk, mode, bytes.to_vec()));
        let capability = [disk.0, out.next].map(u32::to_be_bytes).concat().into();
        let boot = out.boots.get(&disk).copied().unwrap_or(0);
        Some(Minted { name, capability, secret: [0; 32], lasts: CAPABILITY_LASTS, boot })
    }

    fn revoke(&self, capabilities: Vec<(DiskId, CapabilityName)>) -> Acknowledged {
        self.ask(Asked::Revoke(capabilities.into_iter().map(|(_, name)| name).collect()))
    }

    fn clear(&self, blocks: Vec<(DiskId, Range<u64>)>) -> Acknowledged {
        self.0.lock().unwrap().clears += 1;
        self.ask(Asked::Clear(blocks))
    }

    fn flush(&self, _disks: Vec<DiskId>) -> Acknowledged {
        self.ask(Asked::Flush)
    }

    fn await_written(&self, blocks: Vec<(DiskId, Range<u64>)>) -> Witnessed {
        self.0.lock().unwrap().asked.push_back(Asked::AwaitWritten(blocks));
        Box::pin(std::future::ready(false))
    }

    /// Copies when it is polled.
    fn copy(
        &self,
        from: (DiskId, Minted),
        to: (DiskId, Minted),
        bytes: Range<u64>,
        target: u64,
    ) -> Copied {
        let disks = FakeDisks(Arc::clone(&self.0));
        Box::pin(async move {
            let (from, to) = ((from.0, from.1.name), (to.0, to.1.name));
            let each = (bytes.start..bytes.end).step_by(BLOCK_BYTES as usize);
            let copy = |at| disks.copied(from, to, (at, target + (at - bytes.start)));
            each.map(copy).find(|copied| *copied != Outcome::Done).unwrap_or(Outcome::Done)
        })
    }

    /// Each block is what its first eight bytes say.
    fn write(&self, to: (DiskId, Minted), at: u64, bytes: Bytes) -> Stored {
        let disks = FakeDisks(Arc::clone(&self.0));
        Box::pin(async move {
            let blocks =
                bytes.chunks(BLOCK_BYTES as usize).zip((at..).step_by(BLOCK_BYTES as usize));
            blocks.into_iter().all(|(block, at)| {
                let what = block.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
                disks.write(to.1.name, &(at..at + BLOCK_BYTES), what)
            })
        })
    }

    fn void_all(&self) -> Acknowledged {
        self.ask(Asked::VoidAll)
    }
}

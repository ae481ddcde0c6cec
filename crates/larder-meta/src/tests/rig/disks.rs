//! Disks of tests: what they take, and what was written to them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;

use larder_wire::capability::{CapabilityId, GroupId};
use larder_wire::meta::BLOCK_BYTES;
use larder_wire::meta::words::{DiskId, DiskInfo, Mode};

use crate::disks::{Acknowledged, CapabilityName, Copied, Disks, Minted, Witnessed};

const CAPABILITY_LASTS: Duration = Duration::from_secs(3600);

/// Disks that revoke when the test says so.
#[derive(Debug, Default)]
pub(crate) struct FakeDisks(Mutex<Out>);

#[derive(Debug, Default)]
struct Out {
    next: u32,
    /// Capabilities that a disk takes.
    good: BTreeMap<CapabilityName, (DiskId, Mode, Vec<Range<u64>>)>,
    /// What was asked, and is not done.
    asked: VecDeque<Asked>,
    /// Disks that cannot be reached.
    away: BTreeSet<DiskId>,
    /// What a test wrote to blocks of disks, by where they begin; others are zeros.
    blocks: BTreeMap<(DiskId, u64), u64>,
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
            }
        }
        true
    }

    /// The test says when it is done.
    fn ask(&self, asked: Asked) -> Acknowledged {
        self.0.lock().unwrap().asked.push_back(asked);
        Box::pin(std::future::ready(()))
    }

    /// Whoever asked has died.
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

    /// Writes blocks under a capability. `false` if the disk does not take it, or is away.
    pub(crate) fn write(&self, name: CapabilityName, bytes: &Range<u64>, what: u64) -> bool {
        let mut out = self.0.lock().unwrap();
        let Some((disk, mode, ranges)) = out.good.get(&name).cloned() else { return false };
        let covers = |range: &Range<u64>| range.start <= bytes.start && bytes.end <= range.end;
        let is_taken = mode.writes() && ranges.iter().any(covers) && !out.away.contains(&disk);
        if is_taken {
            let blocks = bytes.clone().step_by(BLOCK_BYTES as usize);
            out.blocks.extend(blocks.map(|at| ((disk, at), what)));
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

    /// Clears blocks.
    pub(crate) fn clear_now(&self, disk: DiskId, bytes: &Range<u64>) {
        let mut out = self.0.lock().unwrap();
        out.blocks.retain(|(of, at), _| *of != disk || !bytes.contains(at));
    }

    /// What a block of a disk has.
    pub(crate) fn block(&self, disk: DiskId, at: u64) -> u64 {
        self.0.lock().unwrap().blocks.get(&(disk, at)).copied().unwrap_or(0)
    }

    /// Copies a block as a task does. `false` if a disk is away or does not take a capability.
    pub(crate) fn copy_block(
        &self,
        (from, read): (DiskId, CapabilityName),
        (to, write): (DiskId, CapabilityName),
        at: u64,
    ) -> bool {
        let what = self.block(from, at);
        let is_readable = {
            let out = self.0.lock().unwrap();
            out.good.contains_key(&read) && !out.away.contains(&from)
        };
        is_readable && self.is_there(to) && self.write(write, &(at..at + BLOCK_BYTES), what)
    }

    /// The bytes that some capability covers.
    pub(crate) fn covered(&self) -> Vec<Range<u64>> {
        let out = self.0.lock().unwrap();
        out.good.values().flat_map(|(_, _, ranges)| ranges.clone()).collect()
    }
}

impl Disks for FakeDisks {
    fn list(&self) -> Vec<DiskInfo> {
        Vec::new()
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
        Some(Minted { name, capability, secret: [0; 32], lasts: CAPABILITY_LASTS })
    }

    fn revoke(&self, capabilities: Vec<(DiskId, CapabilityName)>) -> Acknowledged {
        self.ask(Asked::Revoke(capabilities.into_iter().map(|(_, name)| name).collect()))
    }

    fn clear(&self, blocks: Vec<(DiskId, Range<u64>)>) -> Acknowledged {
        self.ask(Asked::Clear(blocks))
    }

    fn flush(&self, _disks: Vec<DiskId>) -> Acknowledged {
        self.ask(Asked::Flush)
    }

    fn await_written(&self, blocks: Vec<(DiskId, Range<u64>)>) -> Witnessed {
        self.0.lock().unwrap().asked.push_back(Asked::AwaitWritten(blocks));
        Box::pin(std::future::ready(false))
    }

    fn copy(&self, _: (DiskId, Minted), _: (DiskId, Minted), _: Range<u64>) -> Copied {
        unreachable!("a test does what tasks are")
    }

    fn void_all(&self) -> Acknowledged {
        self.ask(Asked::VoidAll)
    }
}

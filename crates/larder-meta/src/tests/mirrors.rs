//! Copies: random histories of writers, disks that come and go, servers that crash and tasks that
//! bring disks up to date, compared with what files should contain.

use std::collections::BTreeMap;
use std::ops::Range;

use larder_wire::capability::{CapabilityId, GroupId};
use larder_wire::meta::calls::{self, CommitExtents};
use larder_wire::meta::words::{
    ByteRange, DiskId, ExtentState, FileId, Grant, Layout, Merged, MergedFrom, Mode, OpenId,
    Written,
};
use larder_wire::meta::{BLOCK_BYTES, Status};
use larder_wire::xdr::Array;
use tokio::sync::oneshot;

use super::commits::commit;
use super::random::Random;
use super::rig::{Rig, refused, size};
use crate::committer::{Event, NextStale};
use crate::disks::CapabilityName;
use crate::live::Doing;
use crate::rights::Caller;
use crate::volume::{self, Joining, NewDisk};

const B: u64 = BLOCK_BYTES;
const DISK_BLOCKS: u64 = 44;
const FILE_BLOCKS: u64 = 6;

/// A grant, as the disks of tests make it.
pub(super) struct Granted {
    set: DiskId,
    pub(super) disk: DiskId,
    pub(super) name: CapabilityName,
}

pub(super) fn granted(grant: &Grant) -> Granted {
    let number = |at: usize| {
        let bytes: [u8; 4] = grant.capability.0[at..at + 4].try_into().unwrap();
        u32::from_be_bytes(bytes)
    };
    let name = CapabilityName { group: GroupId(1), id: CapabilityId(number(4)) };
    Granted { set: grant.disk, disk: DiskId(number(0)), name }
}

/// A write that a disk may still get, long after its client gave it up.
struct Late {
    disk: DiskId,
    name: CapabilityName,
    bytes: Range<u64>,
    what: u64,
}

/// A task that is being done.
struct Doer {
    disk: DiskId,
    from: (DiskId, CapabilityName),
    to: (DiskId, CapabilityName),
    bytes: Range<u64>,
    at: u64,
    is_sound: bool,
    /// A file that may be truncated after it was copied, and before that is reported.
    file: FileId,
}

struct World {
    rig: Rig,
    random: Random,
    /// The content of each block of each file; zeros where there is nothing.
    files: BTreeMap<FileId, Vec<u64>>,
    late: Vec<Late>,
    doers: Vec<Doer>,
    disks: Vec<DiskId>,
    away: Vec<DiskId>,
    next: u64,
    /// Nothing happens by chance any more.
    is_calm: bool,
}

impl World {
    fn new(seed: u64, copies: u32, disks: u32) -> World {
        let mut rig = Rig::with_copies(copies, &vec![DISK_BLOCKS; disks as usize]);
        let mut file = |name: &str| {
            let opened = rig.create(&Caller::root(), FileId::ROOT, name).unwrap();
            rig.close(opened.open).unwrap();
            opened.file.after.file
        };
        let files = ["a", "b", "c"].map(|name| (file(name), vec![0; FILE_BLOCKS as usize]));
        World {
            rig,
            random: Random(seed * 2 + 1),
            files: BTreeMap::from(files),
            late: Vec::new(),
            doers: Vec::new(),
            disks: (1..=disks).map(DiskId).collect(),
            away: Vec::new(),
            next: 1,
            is_calm: false,
        }
    }

    fn file(&mut self) -> FileId {
        let at = self.random.below(self.files.len() as u64) as usize;
        *self.files.keys().nth(at).unwrap()
    }

    fn blocks(&mut self) -> Range<u64> {
        let start = self.random.below(FILE_BLOCKS);
        start..start + 1 + self.random.below(FILE_BLOCKS - start)
    }

    /// New content is written to other blocks, and committed unless the writer dies.
    fn write(&mut self) {
        let (file, blocks) = (self.file(), self.blocks());
        let given = match self.rig.alloc(file, blocks.start * B..blocks.end * B) {
            Ok(given) => given.layout,
            Err(status) => return assert_eq!(status, Status::NoSpace),
        };
        let what = self.next;
        self.next += 2;
        let mut copies: BTreeMap<DiskId, Vec<DiskId>> = BTreeMap::new();
        let grants: Vec<Granted> = given.grants.0.iter().map(granted).collect();
        let mut written = Vec::new();
        for extent in &given.extents.0 {
            assert_eq!(extent.state, ExtentState::Provisional, "nothing is written in place");
            let bytes = extent.position..extent.position + extent.length;
            let mut have = Vec::new();
            for grant in grants.iter().filter(|grant| grant.set == extent.disk) {
                // It may have tried before, in vain.
                if self.random.below(3) == 0 {
                    self.late(grant, &bytes, what + 1);
                }
                // A client does not reach each disk that the server does.
                let is_lost = self.random.below(8) == 0;
                if !is_lost && self.rig.disks.write(grant.name, &bytes, what) {
                    have.push(grant.disk);
                    // A write that a client gave up arrives before its later requests, or never.
                    self.late.retain(|late| late.disk != grant.disk);
                } else {
                    self.late(grant, &bytes, what);
                }
            }
            let all = copies.entry(extent.disk).or_insert_with(|| have.clone());
            all.retain(|disk| have.contains(disk));
            let (offset, length) = (extent.offset, extent.length);
            written.push(Written { offset, length, disk: extent.disk, position: extent.position });
        }
        if self.random.below(6) == 0 {
            return self.writer_dies();
        }
        let is_lost = copies.values().any(Vec::is_empty);
        let call = self.committing(file, written, copies.into_values().flatten().collect(), vec![]);
        let done = self.rig.call(&Caller::root(), call);
        if is_lost {
            // A write that no disk has is not committed. What was allocated is freed with the
            // session.
            return assert!(done.is_err());
        }
        done.unwrap();
        for block in blocks {
            self.files.get_mut(&file).unwrap()[block as usize] = what;
        }
    }

    fn late(&mut self, grant: &Granted, bytes: &Range<u64>, what: u64) {
        let (disk, name) = (grant.disk, grant.name);
        self.late.push(Late { disk, name, bytes: bytes.clone(), what });
    }

    fn committing(
        &mut self,
        file: FileId,
        written: Vec<Written>,
        copies: Vec<DiskId>,
        merged: Vec<Merged>,
    ) -> CommitExtents {
        let (copies, merged) = (Array(copies), Array(merged));
        CommitExtents { copies, merged, ..commit(self.rig.next(), file, written) }
    }

    /// The session ends with all that it has not committed.
    fn writer_dies(&mut self) {
        let session = self.rig.session;
        self.rig.call(&Caller::root(), calls::EndSession { session }).unwrap();
        let boot = self.next;
        self.next += 1;
        self.rig.session = self.rig.begin_session([1; 16], boot).unwrap().session;
        self.rig.sequence = 0;
    }

    /// Whatever disk is read: the file has what was committed.
    fn read(&mut self, file: FileId) {
        let layout = self.rig.layout(file, Mode::Read).unwrap().layout;
        let mut seen = vec![0; FILE_BLOCKS as usize];
        for extent in &layout.extents.0 {
            for at in (0..extent.length).step_by(B as usize) {
                seen[((extent.offset + at) / B) as usize] = self.block(&layout, extent, at);
            }
        }
        assert_eq!(&seen, &self.files[&file], "file {file:?}");
    }

    /// The content of a block on all disks for which there is a grant. There is at least one.
    fn block(&self, layout: &Layout, extent: &larder_wire::meta::words::Extent, at: u64) -> u64 {
        let position = extent.position + at;
        let mut found: Option<u64> = None;
        for grant in layout.grants.0.iter().map(granted) {
            if grant.set == extent.disk && self.rig.disks.takes(grant.name, position) {
                let has = self.rig.disks.block(grant.disk, position);
                assert!(found.is_none_or(|other| other == has), "two versions at {position}");
                found = Some(has);
            }
        }
        found.expect("some disk has it")
    }

    /// Holes get blocks that read as zeros.
    fn preallocate(&mut self) {
        let (file, blocks) = (self.file(), self.blocks());
        let (sequence, open) = (self.rig.next(), OpenId::NONE);
        let range = ByteRange::from(blocks.start * B..blocks.end * B);
        let call = calls::Preallocate { sequence, file, open, range };
        let done = self.rig.call(&Caller::root(), call);
        assert!(matches!(done, Ok(_) | Err(Status::NoSpace)));
    }

    fn cut(&mut self, file: FileId) {
        let left = self.random.below(FILE_BLOCKS);
        self.rig.set(file, size(left * B)).unwrap();
        self.rig.set(file, size(FILE_BLOCKS * B)).unwrap();
        self.files.get_mut(&file).unwrap()[left as usize..].fill(0);
    }

    fn go_or_come(&mut self) {
        let disk = self.disks[self.random.below(self.disks.len() as u64) as usize];
        if let Some(at) = self.away.iter().position(|away| *away == disk) {
            self.away.remove(at);
            self.rig.disks.come_back(disk);
        } else if self.away.len() + 1 < self.disks.len() {
            self.away.push(disk);
            self.rig.disks.go_away(disk);
        }
    }

    fn crash(&mut self) {
        // Unfinished tasks and late writes are forgotten; disks accept no capability from before.
        self.doers.clear();
        let rig = std::mem::replace(&mut self.rig, Rig::new(1));
        self.rig = rig.crash();
    }

    /// A disk is lost, and another one replaces it, through the server or while there is none.
    fn replace(&mut self) {
        let old = self.disks[self.random.below(self.disks.len() as u64) as usize];
        let bytes = DISK_BLOCKS * B;
        let new = NewDisk { id: [1; 16], address: "disk:9".into(), bytes, is_memory: false };
        let is_served = self.random.below(2) == 0;
        let added = if is_served {
            self.rig.enrol(new, Joining::InsteadOf(old))
        } else {
            self.rig.end();
            volume::enrol(&self.rig.engine, &new, Joining::InsteadOf(old))
        };
        if let Ok(added) = added {
            assert!(!is_served || !self.rig.disks.takes_any(old));
            self.disks.retain(|disk| *disk != old);
            self.away.retain(|disk| *disk != old);
            self.disks.push(added);
        }
        if !is_served {
            self.crash();
        }
    }

    /// Asks for the next task. `false` if there is none.
    fn ask(&mut self) -> bool {
        let (asked, mut next) = oneshot::channel();
        self.rig.event(Event::NextStale(asked));
        match next.try_recv().unwrap() {
            NextStale::Rest => return false,
            NextStale::Ask => {}
            NextStale::Do(disk, doing) => self.begin(disk, *doing),
        }
        true
    }

    fn begin(&mut self, disk: DiskId, doing: Doing) {
        match doing {
            Doing::Clear { bytes } => {
                self.rig.disks.clear_now(disk, &bytes);
                self.rig.event(Event::TaskEnded(disk, true));
            }
            Doing::Copy { from, to, bytes } => {
                let [from, to] = [from, to].map(|(disk, minted)| (disk, minted.name));
                let (at, is_sound) = (bytes.start, true);
                let file = self.file();
                self.doers.push(Doer { disk, from, to, bytes, at, is_sound, file });
            }
        }
    }

    /// A task in progress continues, a block at a time.
    fn go_on(&mut self) {
        if self.doers.is_empty() {
            return;
        }
        let at = self.random.below(self.doers.len() as u64) as usize;
        let doer = &mut self.doers[at];
        if doer.at < doer.bytes.end && doer.is_sound {
            doer.is_sound = self.rig.disks.copy_block(doer.from, doer.to, (doer.at, doer.at));
            doer.at += B;
            return;
        }
        let Doer { disk, is_sound, file, .. } = self.doers.remove(at);
        // It may have been done a while ago.
        match self.random.below(4) {
            _ if self.is_calm => {}
            0 => self.cut(file),
            1 => {
                self.rig.disks.go_away(disk);
                self.cut(file);
                self.rig.disks.come_back(disk);
                self.away.retain(|away| *away != disk);
            }
            _ => {}
        }
        self.rig.event(Event::TaskEnded(disk, is_sound));
        if !self.is_calm && self.random.below(2) == 0 {
            self.late_writes();
        }
    }

    fn late_writes(&mut self) {
        for Late { name, bytes, what, .. } in std::mem::take(&mut self.late) {
            self.rig.disks.write(name, &bytes, what);
        }
    }

    fn late_write(&mut self) {
        if !self.late.is_empty() {
            let at = self.random.below(self.late.len() as u64) as usize;
            let Late { name, bytes, what, .. } = self.late.swap_remove(at);
            self.rig.disks.write(name, &bytes, what);
        }
    }

    fn step(&mut self) {
        match self.random.below(40) {
            0..12 => self.write(),
            12..16 => {
                let file = self.file();
                self.read(file);
            }
            16 => {
                let file = self.file();
                self.cut(file);
            }
            17..19 => self.preallocate(),
            19..21 => self.go_or_come(),
            21..23 => self.late_write(),
            23 => self.crash(),
            24 => self.replace(),
            25..32 => drop(self.ask()),
            _ => self.go_on(),
        }
    }

    fn bring_up_to_date(&mut self) {
        for _ in 0..3 {
            loop {
                while !self.doers.is_empty() {
                    self.go_on();
                }
                if !self.ask() {
                    break;
                }
            }
        }
    }

    /// All disks are there, and brought up to date.
    fn heal(&mut self) {
        self.is_calm = true;
        for disk in std::mem::take(&mut self.away) {
            self.rig.disks.come_back(disk);
        }
        self.bring_up_to_date();
        self.late_writes();
        for file in self.files.keys().copied().collect::<Vec<_>>() {
            self.read(file);
        }
        self.writer_dies();
        self.bring_up_to_date();
        let copies = volume::copies(&self.rig.engine).unwrap();
        for (disk, on) in &copies.disks {
            assert_eq!(on.stale_bytes, 0, "disk {disk:?}");
        }
        for file in self.files.keys().copied().collect::<Vec<_>>() {
            self.read(file);
            let layout = self.rig.layout(file, Mode::Read).unwrap().layout;
            let sets = layout.extents.0.iter().map(|extent| extent.disk);
            for set in sets {
                let grants = layout.grants.0.iter().filter(|grant| grant.disk == set);
                assert_eq!(grants.count(), copies.copies, "each copy can be read");
            }
        }
        self.rig.check();
    }
}

#[test]
fn copies_are_the_same_whichever_server_dies_and_whatever_is_lost() {
    for seed in 0..120 {
        let (copies, disks) = [(2, 2), (2, 4), (3, 3)][seed as usize % 3];
        let mut world = World::new(seed, copies, disks);
        let steps = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..150 {
                world.step();
            }
            world.heal();
        }));
        assert!(steps.is_ok(), "seed {seed}");
    }
}

/// A rig with two copies, a file of two blocks, and the location of its first one.
pub(super) fn two_copies() -> (Rig, FileId, MergedFrom) {
    let mut rig = Rig::with_copies(2, &[64, 64]);
    let opened = rig.create(&Caller::root(), FileId::ROOT, "f").unwrap();
    let file = opened.file.after.file;
    write(&mut rig, file, 0..2 * B, vec![]).unwrap();
    let layout = rig.layout(file, Mode::Read).unwrap().layout;
    let extent = layout.extents.0[0];
    (rig, file, MergedFrom { disk: extent.disk, position: extent.position, length: 4096 })
}

fn write(
    rig: &mut Rig,
    file: FileId,
    range: Range<u64>,
    merged: Vec<Merged>,
) -> larder_wire::meta::Res<calls::FileChanged> {
    let layout = rig.alloc(file, range.clone()).unwrap().layout;
    let mut call = rig.committing(file, &layout, range);
    call.copies = Array(vec![DiskId(1), DiskId(2)]);
    call.merged = Array(merged);
    rig.call(&Caller::root(), call)
}

/// Two clients that write parts of one block do not undo each other's writes: the second one writes
/// again.
#[test]
fn a_block_is_merged_with_what_the_file_has() {
    let (mut rig, file, from) = two_copies();
    let merged = |from| vec![Merged { offset: 0, from }];
    write(&mut rig, file, 0..100, merged(Some(from))).unwrap();
    let again = write(&mut rig, file, 0..100, merged(Some(from)));
    assert_eq!(refused(again), Status::Changed, "it is another block now");
    assert_eq!(refused(write(&mut rig, file, 0..100, merged(None))), Status::Changed);
    // Without the name of the merged block, the rest would be lost.
    assert_eq!(refused(write(&mut rig, file, 0..100, vec![])), Status::Changed);
    rig.set(file, size(0)).unwrap();
    write(&mut rig, file, 0..100, merged(None)).unwrap();
    assert_eq!(rig.attributes(file).unwrap().size, 100);
    rig.check();
}

/// Where there are copies, no client writes committed blocks.
#[test]
fn no_client_gets_to_write_what_is_committed() {
    let (mut rig, file, _) = two_copies();
    let layout = rig.layout(file, Mode::Write).unwrap().layout;
    assert!(layout.grants.0.is_empty() && !layout.extents.0.is_empty());
    let committed = rig.layout(file, Mode::Read).unwrap().layout;
    let given = rig.alloc(file, 0..B).unwrap().layout;
    let is_other = |extent: &larder_wire::meta::words::Extent| {
        let other = committed.extents.0[0];
        extent.position + extent.length <= other.position
            || other.position + other.length <= extent.position
    };
    let own = given.extents.0.iter().filter(|one| one.state == ExtentState::Provisional);
    assert!(own.clone().count() == 1 && own.clone().all(is_other), "{given:?}");
    // Both disks are written, each under a capability of its own.
    let disks: Vec<DiskId> = given.grants.0.iter().map(|grant| granted(grant).disk).collect();
    assert_eq!(disks, [DiskId(1), DiskId(2)]);
    // Blocks that no disk has cannot be committed.
    let mut call = rig.committing(file, &given, 0..B);
    call.copies = Array::default();
    assert_eq!(refused(rig.call(&Caller::root(), call)), Status::NotAllocated);
}

/// A disk that missed a write is not read for it; it delays no client, and is brought up to date.
#[test]
fn a_disk_that_missed_something_is_not_read_for_it() {
    let (mut rig, file, _) = two_copies();
    rig.disks.go_away(DiskId(2));
    let layout = rig.alloc(file, 0..B).unwrap().layout;
    let disks: Vec<DiskId> = layout.grants.0.iter().map(|grant| granted(grant).disk).collect();
    assert_eq!(disks, [DiskId(1)]);
    let mut call = rig.committing(file, &layout, 0..B);
    call.copies = Array(disks);
    rig.call(&Caller::root(), call).unwrap();
    rig.disks.come_back(DiskId(2));
    let range = ByteRange { offset: 0, length: B };
    let (session, open, mode) = (rig.session, OpenId::NONE, Mode::Read);
    let call = calls::GetCaps { session, file, open, mode, range };
    let layout = rig.call(&Caller::root(), call).unwrap().layout;
    let disks: Vec<DiskId> = layout.grants.0.iter().map(|grant| granted(grant).disk).collect();
    assert_eq!(disks, [DiskId(1)]);
    // The block that it has, and the one that was freed while it was away.
    let copies = volume::copies(&rig.engine).unwrap();
    assert_eq!(copies.disks[&DiskId(2)].stale_bytes, 2 * B);
    assert_eq!(copies.disks[&DiskId(1)].stale_bytes, 0);
    rig.check();
}

/// Gives a rig a block that the second disk has missed, and the grant that the client still has for
/// that disk; and the task that copies the block.
fn missed(
    rig: &mut Rig,
    file: FileId,
) -> (CapabilityName, Range<u64>, [(DiskId, CapabilityName); 2]) {
    let layout = rig.alloc(file, 2 * B..3 * B).unwrap().layout;
    let own = layout.extents.0.iter().find(|extent| extent.offset == 2 * B).unwrap();
    let bytes = own.position..own.position + B;
    let grants: Vec<Granted> = layout.grants.0.iter().map(granted).collect();
    assert!(rig.disks.write(grants[0].name, &bytes, 7));
    let mut call = rig.committing(file, &layout, 2 * B..3 * B);
    call.copies = Array(vec![DiskId(1)]);
    rig.call(&Caller::root(), call).unwrap();
    loop {
        let (asked, mut next) = oneshot::channel();
        rig.event(Event::NextStale(asked));
        if let NextStale::Do(disk, doing) = next.try_recv().unwrap() {
            let Doing::Copy { from, to, bytes: copied } = *doing else { unreachable!() };
            assert_eq!((disk, &copied), (DiskId(2), &bytes));
            let task = [from, to].map(|(disk, minted)| (disk, minted.name));
            return (grants[1].name, bytes, task);
        }
    }
}

fn stale_bytes(rig: &Rig) -> u64 {
    volume::copies(&rig.engine).unwrap().disks[&DiskId(2)].stale_bytes
}

/// A write that its client gave up arrives when the disk is being brought up to date.
#[test]
fn a_late_write_does_not_reach_what_was_copied() {
    let (mut rig, file, _) = two_copies();
    let (late, bytes, [from, to]) = missed(&mut rig, file);
    assert!(!rig.disks.write(late, &bytes, 5), "it ended before the task began");
    assert!(rig.disks.copy_block(from, to, (bytes.start, bytes.start)));
    rig.event(Event::TaskEnded(DiskId(2), true));
    assert_eq!((rig.disks.block(DiskId(2), bytes.start), stale_bytes(&rig)), (7, 0));
    // Nor does the task's own.
    assert!(!rig.disks.copy_block(from, to, (bytes.start, bytes.start)));
    rig.check();
}

/// The blocks are given up, and the disk misses that, between the copy and its report.
#[test]
fn a_copy_that_was_overtaken_is_not_taken_for_one() {
    let (mut rig, file, _) = two_copies();
    let (_, bytes, [from, to]) = missed(&mut rig, file);
    assert!(rig.disks.copy_block(from, to, (bytes.start, bytes.start)));
    rig.disks.go_away(DiskId(2));
    rig.set(file, size(0)).unwrap();
    rig.disks.come_back(DiskId(2));
    rig.event(Event::TaskEnded(DiskId(2), true));
    assert_eq!(rig.disks.block(DiskId(2), bytes.start), 7, "it was not cleared there");
    assert_eq!(stale_bytes(&rig), 3 * B);
    rig.check();
}

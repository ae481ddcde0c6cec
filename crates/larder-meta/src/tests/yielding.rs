//! Memory disks whose machines lack memory.

use std::collections::BTreeMap;
use std::time::Duration;

use larder_wire::meta::BLOCK_BYTES;
use larder_wire::meta::words::{DiskId, ExtentState, FileId, Medium, Mode};

use super::destaging::{DISK, move_all, wait, write};
use super::memory::{MEMORY, memory, with_memory};
use super::mirrors::granted;
use super::rig::{Rig, size};
use crate::committer::Event;
use crate::rights::Caller;
use crate::volume::Joining;

const B: u64 = BLOCK_BYTES;
const BLOCKS: u64 = 8;

/// A memory disk says how many blocks it can hold.
pub(super) fn limit(rig: &mut Rig, disk: DiskId, blocks: u64) {
    rig.event(Event::Limits([(disk, blocks * B)].into()));
}

/// How many blocks of a disk hold something.
fn held(rig: &Rig, disk: DiskId) -> u64 {
    (0..BLOCKS).filter(|at| rig.disks.block(disk, at * B) != 0).count() as u64
}

/// What happens to two files of two blocks each, and to the memory disk, which has room for what
/// replaces them, too.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// One of the files is written to memory, as a whole; nothing is ever due.
    Write(usize),
    /// A session takes blocks in memory for one of them, and does not write.
    Take(usize),
    /// The memory disk can hold so many blocks from now on.
    Limit(u64),
    /// Moves begin.
    Begin,
    /// They are copied.
    Copy,
    /// The server learns that.
    End,
    /// The memory disk is started again, and the server learns that.
    Restart,
    /// One of the files is cut to nothing.
    Cut(usize),
    /// The server is started again, and hears from the disk.
    Crash,
}

const STEPS: [Step; 12] = [
    Step::Write(0),
    Step::Write(1),
    Step::Take(0),
    Step::Limit(0),
    Step::Limit(2),
    Step::Limit(BLOCKS),
    Step::Begin,
    Step::Copy,
    Step::End,
    Step::Restart,
    Step::Cut(0),
    Step::Crash,
];

struct Scene {
    rig: Rig,
    files: [FileId; 2],
    /// What each has, if it was written and not cut.
    has: [Option<u64>; 2],
    is_lost: [bool; 2],
    next: u64,
    limit: u64,
    /// The least limit so far.
    least: u64,
}

impl Scene {
    fn new() -> Scene {
        let (mut rig, first) = with_memory(BLOCKS);
        let opened = rig.create(&Caller::root(), FileId::ROOT, "g").unwrap();
        rig.close(opened.open).unwrap();
        let files = [first, opened.file.after.file];
        let (has, is_lost) = ([None; 2], [false; 2]);
        Scene { rig, files, has, is_lost, next: 0, limit: BLOCKS, least: BLOCKS }
    }

    /// Where the blocks of a file are.
    fn disks_of(&mut self, which: usize) -> Vec<DiskId> {
        let layout = self.rig.layout(self.files[which], Mode::Read).unwrap().layout;
        layout.extents.0.iter().map(|extent| extent.disk).collect()
    }

    fn is_in_memory(&mut self, which: usize) -> bool {
        self.disks_of(which).contains(&MEMORY)
    }

    fn limited(&mut self, blocks: u64) {
        (self.limit, self.least) = (blocks, self.least.min(blocks));
        limit(&mut self.rig, MEMORY, blocks);
    }

    fn go(&mut self, step: Step) {
        let before = held(&self.rig, MEMORY);
        match step {
            Step::Write(which) => {
                self.next += 1;
                write(&mut self.rig, self.files[which], 2, self.next, None);
                (self.has[which], self.is_lost[which]) = (Some(self.next), false);
            }
            Step::Take(which) => {
                let file = self.files[which];
                self.rig.alloc_on(Medium::Memory(1), file, 4 * B..6 * B).unwrap();
            }
            Step::Limit(blocks) => self.limited(blocks),
            Step::Begin => self.rig.begin_moves(),
            Step::Copy => drop(self.rig.copy_moves()),
            Step::End => {
                self.rig.end_moves();
                for which in 0..2 {
                    // What was copied before the memory disk was started again is there after all.
                    self.is_lost[which] &= self.is_in_memory(which);
                }
            }
            Step::Restart => {
                for which in 0..2 {
                    self.is_lost[which] |= self.has[which].is_some() && self.is_in_memory(which);
                }
                self.rig.disks.restart(MEMORY);
                self.rig.wait(Duration::ZERO);
            }
            Step::Cut(which) => {
                self.rig.set(self.files[which], size(0)).unwrap();
                (self.has[which], self.is_lost[which]) = (None, false);
            }
            Step::Crash => {
                let rig = std::mem::replace(&mut self.rig, Rig::new(1));
                self.rig = rig.crash();
                self.limited(self.limit);
            }
        }
        let after = held(&self.rig, MEMORY);
        assert!(after <= before.max(self.limit), "the memory disk got {after} blocks");
    }

    /// A reader gets what was written last, or is told that it is lost; and nothing leaves memory
    /// without need.
    fn look(&mut self, of: &[Step]) {
        for which in 0..2 {
            let layout = self.rig.layout(self.files[which], Mode::Read).unwrap().layout;
            assert_eq!(layout.extents.0.is_empty(), self.has[which].is_none(), "{of:?}");
            for extent in &layout.extents.0 {
                let is_lost = self.is_lost[which] && extent.disk == MEMORY;
                let state = if is_lost { ExtentState::Lost } else { ExtentState::Committed };
                assert_eq!(extent.state, state, "{of:?}");
                assert!(extent.disk == MEMORY || self.least < BLOCKS, "{of:?}");
                let blocks = (extent.position..extent.position + extent.length).step_by(B as usize);
                for at in blocks.filter(|_| !is_lost) {
                    let grant =
                        layout.grants.0.iter().map(granted).find(|one| one.disk == extent.disk);
                    assert!(self.rig.disks.takes(grant.unwrap().name, at), "{of:?}");
                    assert_eq!(
                        Some(self.rig.disks.block(extent.disk, at)),
                        self.has[which],
                        "{of:?}"
                    );
                }
            }
        }
    }

    fn check(mut self, of: &[Step]) {
        self.look(of);
        self.rig.check();
        // In the end the memory disk holds no more than it can.
        self.rig.copy_moves();
        self.go(Step::End);
        wait(&mut self.rig, Duration::from_secs(1));
        move_all(&mut self.rig);
        self.look(of);
        self.rig.check();
        let held = held(&self.rig, MEMORY);
        assert!(held <= self.limit, "{of:?}: it holds {held} blocks");
        assert_eq!(self.rig.due_in(), None, "{of:?}");
    }
}

/// All sequences of what may happen to a memory disk whose machine lacks memory and has it again:
/// nothing is placed above the limit, what is above it goes to the disk and nothing else does, and
/// every reader gets what was written or is told that it is lost. `LARDER_YIELD_STEPS=5` takes
/// longer.
#[test]
fn a_memory_disk_holds_no_more_than_its_machine_can_give() {
    let longest = std::env::var("LARDER_YIELD_STEPS").map_or(3, |steps| steps.parse().unwrap());
    let begun = [Step::Write(0), Step::Write(1), Step::Limit(2), Step::Begin, Step::Copy];
    for from in [2, 5] {
        for length in 0..=longest {
            for code in 0..STEPS.len().pow(length) {
                let more = (0..length).map(|at| STEPS[code / STEPS.len().pow(at) % STEPS.len()]);
                let steps: Vec<Step> = begun[..from].iter().copied().chain(more).collect();
                let mut scene = Scene::new();
                steps.iter().for_each(|step| scene.go(*step));
                scene.check(&steps);
            }
        }
    }
}

/// As few files leave as must, and later bytes are in memory again when there is room.
#[test]
fn as_little_leaves_as_must_and_memory_is_used_again() {
    let (mut rig, first) = with_memory(64);
    let mut files = vec![first];
    for number in 0..15 {
        let opened = rig.create(&Caller::root(), FileId::ROOT, &format!("g{number}")).unwrap();
        rig.close(opened.open).unwrap();
        files.push(opened.file.after.file);
    }
    for (file, what) in files.iter().zip(1..) {
        write(&mut rig, *file, 1, what, None);
    }
    let count = |rig: &mut Rig, disk: DiskId| {
        let on = |file: &&FileId| {
            let layout = rig.layout(**file, Mode::Read).unwrap().layout;
            layout.extents.0[0].disk == disk
        };
        files.iter().filter(on).count()
    };
    for (blocks, expected) in [(64, 16), (16, 16), (13, 13), (14, 13), (5, 5), (0, 0), (64, 0)] {
        limit(&mut rig, MEMORY, blocks);
        move_all(&mut rig);
        let there = (count(&mut rig, MEMORY), count(&mut rig, DISK));
        assert_eq!(there, (expected, 16 - expected), "{blocks}");
    }
    limit(&mut rig, MEMORY, 3);
    for (at, file) in files[..6].iter().enumerate() {
        write(&mut rig, *file, 1, 100 + at as u64, None);
    }
    assert_eq!(count(&mut rig, MEMORY), 3);
    rig.check();
}

/// While no disk has room, what is above the limit stays, and goes when there is some.
#[test]
fn what_must_leave_waits_for_room() {
    let (mut rig, file) = with_memory(BLOCKS);
    write(&mut rig, file, 2, 1, None);
    let full = rig.create(&Caller::root(), FileId::ROOT, "full").unwrap();
    rig.write(full.file.after.file, 0..16 * B).unwrap();
    rig.close(full.open).unwrap();
    limit(&mut rig, MEMORY, 1);
    rig.begin_moves();
    assert_eq!((rig.copy_moves(), rig.due_in()), (0, Some(Duration::from_secs(1))));
    rig.remove(FileId::ROOT, "full").unwrap();
    wait(&mut rig, Duration::from_secs(1));
    move_all(&mut rig);
    let layout = rig.layout(file, Mode::Read).unwrap().layout;
    assert!(layout.extents.0.iter().all(|extent| extent.disk == DISK));
    assert_eq!(held(&rig, MEMORY), 0);
}

/// Of two memory disks beside each other the one with less memory decides; a set by itself is not
/// concerned.
#[test]
fn of_a_set_the_least_limit_counts() {
    let (mut rig, file) = with_memory(8);
    let beside = rig.enrol(memory(8), Joining::Beside(MEMORY)).unwrap();
    let alone = rig.enrol(memory(8), Joining::Anywhere).unwrap();
    [beside, alone].iter().for_each(|disk| rig.disks.restart(*disk));
    rig.wait(Duration::from_secs(1));
    let layout = rig.alloc_on(Medium::Memory(2), file, 0..4 * B).unwrap().layout;
    for grant in layout.grants.0.iter().map(granted) {
        assert!(rig.disks.write(grant.name, &(0..4 * B), 7));
    }
    let mut call = rig.committing(file, &layout, 0..4 * B);
    call.copies = larder_wire::xdr::Array(vec![MEMORY, beside]);
    rig.call(&Caller::root(), call).unwrap();
    let set = |rig: &mut Rig| {
        let layout = rig.layout(file, Mode::Read).unwrap().layout;
        layout.extents.0[0].disk
    };
    let limits = |of: &[(DiskId, u64)]| -> BTreeMap<DiskId, u64> {
        of.iter().map(|(disk, blocks)| (*disk, blocks * B)).collect()
    };
    rig.event(Event::Limits(limits(&[(MEMORY, 8), (beside, 4), (alone, 0)])));
    move_all(&mut rig);
    assert_eq!(set(&mut rig), MEMORY);
    rig.event(Event::Limits(limits(&[(MEMORY, 8), (beside, 3), (alone, 0)])));
    move_all(&mut rig);
    assert_eq!(set(&mut rig), DISK);
    rig.check();
}

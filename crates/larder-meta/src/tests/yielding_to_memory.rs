//! Memory disks whose machines lack memory, beside others that have some.

use std::collections::BTreeSet;
use std::time::Duration;

use larder_wire::meta::words::{DiskId, ExtentState, FileId, Layout, Medium, Mode};
use larder_wire::meta::{BLOCK_BYTES, Res};

use super::destaging::{DISK, move_all, wait, write};
use super::memory::{MEMORY, memory, with_memory};
use super::mirrors::granted;
use super::rig::{Rig, decode, size};
use super::yielding::limit;
use crate::committer::Event;
use crate::rights::Caller;
use crate::volume::{self, Joining};

const B: u64 = BLOCK_BYTES;
const BLOCKS: u64 = 8;
/// The other memory disk.
const OTHER: DiskId = DiskId(3);
const BOTH: [DiskId; 2] = [MEMORY, OTHER];

/// A running volume with a disk and two memory disks that are not beside each other.
fn with_two() -> (Rig, FileId) {
    let (mut rig, file) = with_memory(BLOCKS);
    assert_eq!(rig.enrol(memory(BLOCKS), Joining::Anywhere).unwrap(), OTHER);
    rig.disks.restart(OTHER);
    rig.wait(Duration::from_secs(1));
    (rig, file)
}

/// Memory disks say how many blocks they can hold.
fn limits(rig: &mut Rig, of: &[(DiskId, u64)]) {
    rig.event(Event::Limits(of.iter().map(|(disk, blocks)| (*disk, blocks * B)).collect()));
}

/// Where the bytes of a file are.
fn disks_of(rig: &mut Rig, file: FileId) -> BTreeSet<DiskId> {
    let layout = rig.layout(file, Mode::Read).unwrap().layout;
    layout.extents.0.iter().map(|extent| extent.disk).collect()
}

/// How many blocks of a disk hold something.
fn held(rig: &Rig, disk: DiskId) -> u64 {
    (0..BLOCKS).filter(|at| rig.disks.block(disk, at * B) != 0).count() as u64
}

/// What happens to two files of two blocks each, and to the memory disks. Those without a number
/// happen to [`MEMORY`] with 0, and to [`OTHER`] with 1.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// One of the files is written to memory, as a whole; nothing is ever due.
    Write(usize),
    /// A memory disk can hold so many blocks from now on.
    Limit(usize, u64),
    /// It takes no bytes any more, and the server has not heard that.
    Refuse(usize),
    /// It is started again, and the server learns that.
    Restart(usize),
    /// It is started again, and the server does not know yet.
    RestartUnseen(usize),
    /// Moves begin.
    Begin,
    /// They are copied.
    Copy,
    /// The server learns that.
    End,
    /// One of the files is cut to nothing.
    Cut(usize),
    /// So much time passes that disks which refused are asked again.
    Wait,
    /// The server is started again, and hears from the disks.
    Crash,
}

const STEPS: [Step; 15] = [
    Step::Write(0),
    Step::Limit(0, 0),
    Step::Limit(0, BLOCKS),
    Step::Limit(1, 0),
    Step::Limit(1, 2),
    Step::Refuse(1),
    Step::Restart(0),
    Step::Restart(1),
    Step::RestartUnseen(1),
    Step::Begin,
    Step::Copy,
    Step::End,
    Step::Cut(0),
    Step::Wait,
    Step::Crash,
];

struct Scene {
    rig: Rig,
    files: [FileId; 2],
    /// What each has, if it was written and not cut.
    has: [Option<u64>; 2],
    /// On which memory disk it was lost.
    lost_on: [Option<DiskId>; 2],
    /// Disks to which it may have been copied when they were started again unseen.
    may_be_lost_on: BTreeSet<DiskId>,
    next: u64,
    limits: [u64; 2],
}

impl Scene {
    fn new() -> Scene {
        let (mut rig, first) = with_two();
        let opened = rig.create(&Caller::root(), FileId::ROOT, "g").unwrap();
        rig.close(opened.open).unwrap();
        let files = [first, opened.file.after.file];
        let (has, lost_on, limits) = ([None; 2], [None; 2], [BLOCKS; 2]);
        let may_be_lost_on = BTreeSet::new();
        Scene { rig, files, has, lost_on, may_be_lost_on, next: 0, limits }
    }

    fn limited(&mut self) {
        let [first, second] = self.limits;
        limits(&mut self.rig, &[(MEMORY, first), (OTHER, second)]);
    }

    /// Writes a file, unless a disk does not take it.
    fn write(&mut self, file: FileId, what: u64) -> bool {
        let layout = self.rig.alloc_on(Medium::Memory(1), file, 0..2 * B).unwrap().layout;
        let own = layout.extents.0.iter().filter(|one| one.state == ExtentState::Provisional);
        let own = Layout { extents: larder_wire::xdr::Array(own.copied().collect()), ..layout };
        for extent in &own.extents.0 {
            let grant = own.grants.0.iter().map(granted).find(|one| one.disk == extent.disk);
            let bytes = extent.position..extent.position + extent.length;
            if !grant.is_some_and(|grant| self.rig.disks.write(grant.name, &bytes, what)) {
                return false;
            }
        }
        let call = self.rig.committing(file, &own, 0..2 * B);
        self.rig.call(&Caller::root(), call).is_ok()
    }

    fn restart(&mut self, disk: DiskId) {
        for which in 0..2 {
            let is_there = self.has[which].is_some()
                && self.lost_on[which].is_none()
                && disks_of(&mut self.rig, self.files[which]).contains(&disk);
            if is_there {
                self.lost_on[which] = Some(disk);
            }
        }
        self.rig.disks.restart(disk);
    }

    fn go(&mut self, step: Step) {
        let before = BOTH.map(|disk| held(&self.rig, disk));
        match step {
            Step::Write(which) => {
                self.next += 1;
                if self.write(self.files[which], self.next) {
                    (self.has[which], self.lost_on[which]) = (Some(self.next), None);
                }
            }
            Step::Limit(which, blocks) => {
                self.limits[which] = blocks;
                self.rig.disks.hold_at_most(BOTH[which], blocks as usize);
                self.limited();
            }
            Step::Refuse(which) => self.rig.disks.hold_at_most(BOTH[which], 0),
            Step::Restart(which) => {
                self.restart(BOTH[which]);
                self.rig.wait(Duration::ZERO);
            }
            Step::RestartUnseen(which) => {
                self.restart(BOTH[which]);
                self.may_be_lost_on.insert(BOTH[which]);
            }
            Step::Begin => self.rig.begin_moves(),
            Step::Copy => drop(self.rig.copy_moves()),
            Step::End => {
                self.rig.end_moves();
                for which in 0..2 {
                    // What was copied before the memory disk was started again is there after all.
                    let there = disks_of(&mut self.rig, self.files[which]);
                    self.lost_on[which] = self.lost_on[which].filter(|disk| there.contains(disk));
                }
            }
            Step::Cut(which) => {
                self.rig.set(self.files[which], size(0)).unwrap();
                (self.has[which], self.lost_on[which]) = (None, None);
            }
            Step::Wait => wait(&mut self.rig, Duration::from_secs(6)),
            Step::Crash => {
                let rig = std::mem::replace(&mut self.rig, Rig::new(1));
                self.rig = rig.crash();
                self.limited();
            }
        }
        for (disk, (before, limit)) in BOTH.iter().zip(before.into_iter().zip(self.limits)) {
            let after = held(&self.rig, *disk);
            assert!(after <= before.max(limit), "{disk:?} got {after} blocks");
        }
    }

    /// A reader gets what was written last, or is told that it is lost; and nothing goes to the
    /// disk without need.
    fn look(&mut self, of: &[Step]) {
        // Restarts are noticed.
        self.rig.wait(Duration::ZERO);
        let was_full = of.iter().any(|step| {
            matches!(step, Step::Limit(1, _) | Step::Refuse(_) | Step::Restart(_))
                || matches!(step, Step::RestartUnseen(_))
        });
        for which in 0..2 {
            let layout = self.rig.layout(self.files[which], Mode::Read).unwrap().layout;
            assert_eq!(layout.extents.0.is_empty(), self.has[which].is_none(), "{of:?}");
            for extent in &layout.extents.0 {
                assert!(extent.disk != DISK || was_full, "{of:?}");
                if self.lost_on[which] == Some(extent.disk) {
                    assert_eq!(extent.state, ExtentState::Lost, "{of:?}");
                    continue;
                }
                if extent.state == ExtentState::Lost {
                    assert!(self.may_be_lost_on.contains(&extent.disk), "{of:?}");
                    continue;
                }
                let blocks = (extent.position..extent.position + extent.length).step_by(B as usize);
                for at in blocks {
                    let mut grants = layout.grants.0.iter().map(granted);
                    let grant = grants.find(|one| one.disk == extent.disk).unwrap();
                    assert!(self.rig.disks.takes(grant.name, at), "{of:?}");
                    let has = self.rig.disks.block(extent.disk, at);
                    assert_eq!(Some(has), self.has[which], "{of:?}");
                }
            }
        }
    }

    fn check(mut self, of: &[Step]) {
        self.look(of);
        self.rig.check();
        // In the end no memory disk holds more than it can.
        self.rig.copy_moves();
        self.go(Step::End);
        wait(&mut self.rig, Duration::from_secs(1));
        move_all(&mut self.rig);
        self.look(of);
        self.rig.check();
        for (disk, limit) in BOTH.iter().zip(self.limits) {
            let held = held(&self.rig, *disk);
            assert!(held <= limit, "{of:?}: {disk:?} holds {held} blocks");
        }
        assert_eq!(self.rig.due_in(), None, "{of:?}");
    }
}

/// All sequences of what may happen to two memory disks of which one or both lack memory, refuse
/// what is moved to them, or are started again before, while and after that: nothing is placed
/// above a limit, what is above one leaves, nothing goes to the disk while the other memory disk
/// can take it, and every reader gets what was written or is told that it is lost.
/// `LARDER_YIELD_STEPS=4` takes longer.
#[test]
fn what_a_memory_disk_cannot_hold_goes_to_another_one() {
    let longest = std::env::var("LARDER_YIELD_STEPS").map_or(3, |steps| steps.parse().unwrap());
    let begun = [
        Step::Limit(1, 0),
        Step::Write(0),
        Step::Write(1),
        Step::Limit(1, BLOCKS),
        Step::Limit(0, 2),
        Step::Begin,
        Step::Copy,
    ];
    for from in [5, 7] {
        for length in 0..=longest {
            for code in 0..STEPS.len().pow(length) {
                let more = (0..length).map(|at| STEPS[code / STEPS.len().pow(at) % STEPS.len()]);
                let steps: Vec<Step> = begun[..from].iter().copied().chain(more).collect();
                let mut scene = Scene::new();
                steps.iter().for_each(|step| scene.go(*step));
                scene.check(&steps[4..]);
            }
        }
    }
}

/// Only when no memory disk can hold it any more is something on the disk.
#[test]
fn the_disk_gets_what_no_memory_disk_can_hold() {
    let (mut rig, first) = with_two();
    limits(&mut rig, &[(OTHER, 0)]);
    let mut files = vec![first];
    for number in 0..7 {
        let opened = rig.create(&Caller::root(), FileId::ROOT, &format!("g{number}")).unwrap();
        rig.close(opened.open).unwrap();
        files.push(opened.file.after.file);
    }
    for (file, what) in files.iter().zip(1..) {
        write(&mut rig, *file, 1, what, None);
    }
    let steps = [((8, 8), (8, 0)), ((6, 8), (6, 2)), ((3, 4), (3, 4)), ((8, 1), (6, 1))];
    for ((here, there), (is_here, is_there)) in steps {
        limits(&mut rig, &[(MEMORY, here), (OTHER, there)]);
        move_all(&mut rig);
        let mut count =
            |disk| files.iter().filter(|file| disks_of(&mut rig, **file) == [disk].into()).count();
        let counted = (count(MEMORY), count(OTHER));
        assert_eq!(counted, (is_here, is_there), "{here} and {there} blocks");
        assert_eq!(count(DISK), 8 - is_here - is_there);
    }
    rig.check();
}

/// A file on as many memory disks as are beside each other, and what it is moved to.
fn on_pair() -> (Rig, FileId, [DiskId; 2]) {
    let (mut rig, file) = with_memory(BLOCKS);
    let beside = rig.enrol(memory(BLOCKS), Joining::Beside(MEMORY)).unwrap();
    rig.disks.restart(beside);
    rig.wait(Duration::from_secs(1));
    let layout = rig.alloc_on(Medium::Memory(2), file, 0..4 * B).unwrap().layout;
    let pair = [MEMORY, beside];
    commit_on(&mut rig, file, &layout, &pair);
    (rig, file, pair)
}

fn commit_on(rig: &mut Rig, file: FileId, layout: &Layout, disks: &[DiskId]) {
    for grant in layout.grants.0.iter().map(granted) {
        assert!(rig.disks.write(grant.name, &(0..4 * B), 7));
    }
    let mut call = rig.committing(file, layout, 0..4 * B);
    call.copies = larder_wire::xdr::Array(disks.to_vec());
    rig.call(&Caller::root(), call).unwrap();
}

/// What is on two memory disks goes to two, or to the disk: never to one, also if one of the two
/// does not take it.
#[test]
fn as_many_memory_disks_have_it_as_before() {
    for (has_pair, refuses, expected) in
        [(false, false, DISK), (true, false, DiskId(5)), (true, true, DISK)]
    {
        let (mut rig, file, pair) = on_pair();
        let alone = rig.enrol(memory(64), Joining::Anywhere).unwrap();
        rig.disks.restart(alone);
        if has_pair {
            let first = rig.enrol(memory(BLOCKS), Joining::Anywhere).unwrap();
            let second = rig.enrol(memory(BLOCKS), Joining::Beside(first)).unwrap();
            assert_eq!((first, second), (DiskId(5), DiskId(6)));
            [first, second].into_iter().for_each(|disk| rig.disks.restart(disk));
            if refuses {
                rig.disks.hold_at_most(second, 0);
            }
        }
        rig.wait(Duration::from_secs(1));
        limits(&mut rig, &[(pair[1], 0)]);
        move_all(&mut rig);
        assert_eq!(disks_of(&mut rig, file), [expected].into(), "{has_pair} {refuses}");
        let layout = rig.layout(file, Mode::Read).unwrap().layout;
        let position = layout.extents.0[0].position;
        let copies: Vec<DiskId> =
            (1..=6).map(DiskId).filter(|disk| rig.disks.block(*disk, position) == 7).collect();
        let has = if expected == DISK { vec![DISK] } else { vec![DiskId(5), DiskId(6)] };
        assert_eq!(copies, has);
        rig.check();
    }
}

/// What was to be on a disk at some time is there then, wherever it was moved before; and a client
/// that wants it there while it is moved to other memory waits until it is.
#[test]
fn what_was_moved_to_other_memory_stays_due() {
    let due = Duration::from_secs(20);
    let (mut rig, file) = with_two();
    limits(&mut rig, &[(OTHER, 0)]);
    write(&mut rig, file, 2, 7, Some(due));
    limit(&mut rig, MEMORY, 0);
    move_all(&mut rig);
    assert_eq!(disks_of(&mut rig, file), [OTHER].into());
    assert_eq!(rig.due_in(), Some(due));
    wait(&mut rig, due);
    move_all(&mut rig);
    assert_eq!(disks_of(&mut rig, file), [DISK].into());

    write(&mut rig, file, 2, 8, None);
    assert_eq!(disks_of(&mut rig, file), [OTHER].into());
    limits(&mut rig, &[(OTHER, 0)]);
    rig.begin_moves();
    let mut reply = rig.destage(file, 0);
    rig.copy_moves();
    rig.end_moves();
    assert_eq!(disks_of(&mut rig, file), [MEMORY].into());
    assert!(reply.try_recv().is_err(), "it is in memory");
    move_all(&mut rig);
    assert_eq!(disks_of(&mut rig, file), [DISK].into());
    assert_eq!(decode::<Res<()>>(&reply.try_recv().unwrap()), Ok(()));
    rig.check();
}

/// While a memory disk refuses what is moved there, nothing waits for it; it is asked again when
/// some time has passed.
#[test]
fn a_memory_disk_that_refuses_is_not_asked_again_soon() {
    let (mut rig, file) = with_two();
    limits(&mut rig, &[(OTHER, 0)]);
    write(&mut rig, file, 2, 7, None);
    rig.disks.hold_at_most(OTHER, 0);
    limits(&mut rig, &[(MEMORY, 0)]);
    move_all(&mut rig);
    assert_eq!(disks_of(&mut rig, file), [DISK].into());
    for (seconds, is_asked) in [(1, false), (6, true)] {
        limits(&mut rig, &[(OTHER, 0)]);
        write(&mut rig, file, 2, 8, None);
        assert_eq!(disks_of(&mut rig, file), [MEMORY].into());
        wait(&mut rig, Duration::from_secs(seconds));
        rig.disks.hold_at_most(OTHER, 8);
        limits(&mut rig, &[(MEMORY, 0)]);
        move_all(&mut rig);
        let there = if is_asked { OTHER } else { DISK };
        assert_eq!(disks_of(&mut rig, file), [there].into());
    }
    let disks = volume::copies(&rig.engine).unwrap().disks;
    assert_eq!(disks[&OTHER].bytes_free, (BLOCKS - 2) * B);
    rig.check();
}

/// A memory disk that cannot be read while it is to give its bytes away: the one to which they go
/// is not to blame, and gets them when they can be read.
#[test]
fn a_memory_disk_that_is_not_read_is_no_fault_of_the_one_that_gets_its_bytes() {
    let (mut rig, file) = with_two();
    limits(&mut rig, &[(OTHER, 0)]);
    write(&mut rig, file, 2, 7, None);
    assert_eq!(disks_of(&mut rig, file), [MEMORY].into());
    limits(&mut rig, &[(MEMORY, 0)]);
    rig.begin_moves();
    rig.disks.go_away(MEMORY);
    assert_eq!(rig.copy_moves(), 1);
    rig.end_moves();
    rig.disks.come_back(MEMORY);
    wait(&mut rig, Duration::from_secs(2));
    move_all(&mut rig);
    assert_eq!(disks_of(&mut rig, file), [OTHER].into());
    rig.check();
}

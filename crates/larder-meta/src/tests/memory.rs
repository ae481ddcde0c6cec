//! Memory disks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use larder_wire::meta::calls::{self, LostTold};
use larder_wire::meta::words::{DiskId, ExtentState, FileId, Layout, Medium, Mode};
use larder_wire::meta::{BLOCK_BYTES, Status};
use larder_wire::xdr::{Array, Opaque};

use super::mirrors::granted;
use super::rig::{Rig, refused};
use crate::activity::Instead;
use crate::committer::{Event, NextStale};
use crate::live::Doing;
use crate::rights::Caller;
use crate::store::Record;
use crate::store::records::Disk;
use crate::volume::{self, Joining, NewDisk, VolumeError};

const B: u64 = BLOCK_BYTES;

/// A memory disk with this many blocks.
pub(super) fn memory(blocks: u64) -> NewDisk {
    NewDisk { id: [2; 16], address: "memory:1".into(), bytes: blocks * B, is_memory: true }
}

/// With one copy and with two: ordinary files get no space on a memory disk, even when the volume
/// is full, and it does not complete a set, nor replace a disk.
#[test]
fn ordinary_files_are_never_placed_on_a_memory_disk() {
    for (copies, disks) in [(1, vec![16]), (2, vec![16, 16]), (2, vec![16, 16, 16])] {
        let mut rig = Rig::with_copies(copies, &disks);
        let lasting = rig.free_bytes();
        assert_eq!(lasting, 16 * B);
        let number = rig.enrol(memory(64), Joining::Anywhere).unwrap();
        assert_eq!(rig.free_bytes(), lasting);
        let room = volume::space(&rig.engine).unwrap();
        assert_eq!((room.bytes, room.bytes_free), (16 * B, lasting));
        let opened = rig.create(&Caller::root(), FileId::ROOT, "f").unwrap();
        let file = opened.file.after.file;
        for block in 0..16 {
            let layout = rig.alloc(file, block * B..(block + 1) * B).unwrap().layout;
            assert!(layout.extents.0.iter().all(|extent| extent.disk != number));
        }
        assert_eq!(refused(rig.alloc(file, 16 * B..17 * B)), Status::NoSpace);
        let all = volume::copies(&rig.engine).unwrap().disks;
        assert!(all[&number].is_memory && all[&number].bytes_free == 64 * B);
        assert!(!all[&DiskId(1)].is_memory);
        for (new, old) in [(memory(64), 1), (NewDisk { is_memory: false, ..memory(64) }, number.0)]
        {
            let refused = rig.enrol(new, Joining::InsteadOf(DiskId(old)));
            assert!(matches!(refused, Err(VolumeError::Replaced(_))), "{refused:?}");
        }
        rig.check();
    }
}

/// The bytes of `docs/formats/meta-store.md`: earlier versions read the records of disks that they
/// know.
#[test]
fn a_disk_record_has_the_least_format_that_says_it() {
    let plain = Disk {
        id: [1; 16],
        address: larder_wire::xdr::Opaque::copy_from_slice(b"d:1"),
        blocks: 5,
        set: 0,
        is_memory: false,
        leaves: false,
    };
    let fields = [&[1; 16][..], &[0, 0, 0, 3], b"d:1\0", &5_u64.to_be_bytes()].concat();
    let word = u32::to_be_bytes;
    let memory = Disk { is_memory: true, ..plain.clone() };
    for (disk, bytes) in [
        (plain.clone(), [&word(1)[..], &fields].concat()),
        (Disk { set: 9, ..plain.clone() }, [&word(2)[..], &fields, &word(9)].concat()),
        (memory.clone(), [&word(3)[..], &fields, &word(0), &word(1)].concat()),
        (
            Disk { leaves: true, ..plain },
            [&word(4)[..], &fields, &word(0), &word(0), &word(1)].concat(),
        ),
    ] {
        assert_eq!(disk.to_bytes(), bytes);
        assert_eq!(Disk::from_bytes(bytes), Ok(disk));
    }
    let later = [&word(5)[..], &memory.to_bytes()[4..]].concat();
    assert!(Disk::from_bytes(later).unwrap_err().contains("format 5"));
}

/// The memory disk of the volumes below.
pub(super) const MEMORY: DiskId = DiskId(2);

/// A running volume with a disk and a memory disk of this many blocks.
pub(super) fn with_memory(blocks: u64) -> (Rig, FileId) {
    let mut rig = Rig::new(16);
    assert_eq!(rig.enrol(memory(blocks), Joining::Anywhere).unwrap(), MEMORY);
    rig.disks.restart(MEMORY);
    rig.wait(Duration::from_secs(1));
    let opened = rig.create(&Caller::root(), FileId::ROOT, "f").unwrap();
    rig.close(opened.open).unwrap();
    (rig, opened.file.after.file)
}

/// How many bytes are lost, by file. There is one file.
pub(super) fn lost(rig: &Rig) -> BTreeMap<FileId, u64> {
    let lost = volume::lost(&rig.engine).unwrap();
    assert!(lost.values().all(|lost| lost.path.as_deref() == Some(b"/f")));
    lost.into_iter().map(|(file, lost)| (file, lost.bytes)).collect()
}

/// What happens to a file of one block, its memory disk and its server.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// It is written to memory.
    Write,
    /// Commits the last write.
    Commit,
    /// It is written to a disk, and committed.
    WriteToDisk,
    /// The memory disk is started again.
    Restart,
    /// Some time passes.
    Tick,
    /// It is cut to nothing.
    Cut,
    /// The metadata server is started again.
    Crash,
}

const STEPS: [Step; 7] = [
    Step::Write,
    Step::Commit,
    Step::WriteToDisk,
    Step::Restart,
    Step::Tick,
    Step::Cut,
    Step::Crash,
];

/// Bytes that were written: content, and the boot of the memory disk if it was there.
type Put = (u64, Option<u64>);

/// A file of one block, and its expected content.
struct Scene {
    rig: Rig,
    file: FileId,
    boot: u64,
    next: u64,
    /// What was written and not committed.
    pending: Option<(Layout, Put)>,
    has: Option<Put>,
    /// What the server has told to be lost, in this order.
    told: Vec<u64>,
}

impl Scene {
    /// Writes to a medium, as a client does that is granted it.
    fn write(&mut self, medium: Medium) -> Option<(Layout, Put)> {
        let layout = self.rig.alloc_on(medium, self.file, 0..B).unwrap().layout;
        let own = layout.extents.0.iter().find(|one| one.state == ExtentState::Provisional)?;
        let grant = layout.grants.0.iter().map(granted).find(|one| one.disk == own.disk)?;
        self.next += 1;
        let bytes = own.position..own.position + B;
        let boot = (own.disk == MEMORY).then_some(self.boot);
        self.rig
            .disks
            .write(grant.name, &bytes, self.next)
            .then(|| (layout.clone(), (self.next, boot)))
    }

    fn commit(&mut self, (layout, put): (Layout, Put)) {
        let own = layout.extents.0.iter().filter(|one| one.state == ExtentState::Provisional);
        let own =
            Layout { extents: larder_wire::xdr::Array(own.copied().collect()), ..layout.clone() };
        match self.rig.commit(self.file, &own, 0..B) {
            Ok(_) => self.has = Some(put),
            Err(status) => assert_eq!(status, Status::NotAllocated),
        }
    }

    fn go(mut self, step: Step) -> Scene {
        let had = self.has;
        match step {
            Step::Write => self.pending = self.write(Medium::Memory(1)),
            Step::Commit => {
                if let Some(pending) = self.pending.take() {
                    self.commit(pending);
                }
            }
            Step::WriteToDisk => {
                if let Some(written) = self.write(Medium::Disk) {
                    self.commit(written);
                }
            }
            Step::Restart => {
                self.rig.disks.restart(MEMORY);
                self.boot += 1;
            }
            Step::Tick => self.rig.wait(Duration::from_secs(1)),
            Step::Cut => {
                self.rig.set(self.file, super::rig::size(0)).unwrap();
                self.has = None;
            }
            Step::Crash => self.rig = self.rig.crash(),
        }
        self.hear(had);
        self
    }

    /// What the server tells newly is the loss of what the file had, which was not told before.
    fn hear(&mut self, had: Option<Put>) {
        let losses = volume::losses(&self.rig.engine).unwrap();
        let numbers: Vec<u64> = losses.iter().map(|loss| loss.number).collect();
        assert!(numbers.iter().copied().eq(1..=losses.len() as u64), "{losses:?}");
        let [before @ .., last] = &losses[..] else { return };
        if before.len() < self.told.len() {
            return assert_eq!(losses.len(), self.told.len());
        }
        assert_eq!((before.len(), last.disk), (self.told.len(), MEMORY));
        assert_eq!((last.files, last.bytes), (1, B));
        let (lost, boot) = had.expect("it had something");
        assert!(boot.is_some_and(|boot| boot < self.boot) && !self.told.contains(&lost));
        self.told.push(lost);
    }

    /// What a reader is granted is what was written; once the server knows of the restart, lost
    /// bytes are reported as lost, and no others.
    fn look(&mut self, of: &[Step]) {
        let is_lost = self.has.is_some_and(|(_, boot)| boot.is_some_and(|boot| boot != self.boot));
        for is_known in [false, true] {
            let layout = self.rig.layout(self.file, Mode::Read).unwrap().layout;
            let extent = layout.extents.0.first();
            let state = extent.map(|extent| extent.state);
            let expected = match (self.has, is_lost) {
                (None, _) => None,
                (Some(_), true) => Some(ExtentState::Lost),
                (Some(_), false) => Some(ExtentState::Committed),
            };
            assert!(state == expected || (is_lost && !is_known), "{of:?}: {state:?}");
            let grant = layout.grants.0.first().map(granted);
            let (Some(extent), Some((what, _)), Some(grant)) = (extent, self.has, grant) else {
                assert!(!is_known || is_lost || self.has.is_none(), "{of:?}: nothing is granted");
                continue;
            };
            assert!(!is_lost, "{of:?}: lost bytes are granted");
            if self.rig.disks.takes(grant.name, extent.position) {
                assert_eq!(self.rig.disks.block(grant.disk, extent.position), what, "{of:?}");
            }
        }
        self.hear(self.has);
        assert_eq!(is_lost, self.has.is_some_and(|(what, _)| self.told.contains(&what)), "{of:?}");
        let lost = lost(&self.rig);
        let expected = if is_lost { BTreeMap::from([(self.file, B)]) } else { BTreeMap::new() };
        assert_eq!(lost, expected, "{of:?}");
        self.rig.check();
    }
}

/// All sequences of events: a reader gets what was committed last, or is told that it is lost; it
/// is lost only if it was in memory alone, and the memory disk was restarted since; and each loss
/// is on record once.
/// `LARDER_MEMORY_STEPS=5` takes half a minute.
#[test]
fn whatever_happens_lost_bytes_are_told_and_others_are_there() {
    let longest = std::env::var("LARDER_MEMORY_STEPS").map_or(4, |steps| steps.parse().unwrap());
    for length in 1..=longest {
        for code in 0..STEPS.len().pow(length) {
            let steps: Vec<Step> =
                (0..length).map(|at| STEPS[code / STEPS.len().pow(at) % STEPS.len()]).collect();
            let (rig, file) = with_memory(4);
            let (pending, has, told) = (None, None, Vec::new());
            let mut scene = Scene { rig, file, boot: 1, next: 0, pending, has, told };
            for step in &steps {
                scene = scene.go(*step);
            }
            scene.look(&steps);
        }
    }
}

/// The last 64 losses are on record, with numbers that go on.
#[test]
fn the_last_losses_are_on_record() {
    let (mut rig, first) = with_memory(8);
    let second = rig.create(&Caller::root(), FileId::ROOT, "g").unwrap().file.after.file;
    for _ in 0..70 {
        for (file, blocks) in [(first, 2), (second, 1)] {
            let layout = rig.alloc_on(Medium::Memory(1), file, 0..blocks * B).unwrap().layout;
            rig.commit(file, &layout, 0..blocks * B).unwrap();
        }
        rig.disks.restart(MEMORY);
        rig.wait(Duration::from_secs(1));
        for file in [first, second] {
            rig.set(file, super::rig::size(0)).unwrap();
        }
        // Nothing is there.
        rig.disks.restart(MEMORY);
        rig.wait(Duration::from_secs(1));
    }
    let losses = volume::losses(&rig.engine).unwrap();
    let numbers: Vec<u64> = losses.iter().map(|loss| loss.number).collect();
    assert_eq!(numbers, (7..=70).collect::<Vec<_>>());
    assert!(losses.iter().all(|loss| (loss.files, loss.bytes, loss.disk) == (2, 3 * B, MEMORY)));
    assert!(losses.is_sorted_by(|one, next| one.at_s <= next.at_s));
    rig.check();
}

/// A client has the server look, and is told what is lost: where it is, and whose. It is told
/// nothing if there was no other loss than those that it knows.
#[test]
fn who_asks_is_told_what_is_lost() {
    let (mut rig, first) = with_memory(8);
    let dir = rig.mkdir(&Caller::root(), FileId::ROOT, "d").unwrap();
    let user = super::rig::user(1000, &[]);
    rig.set(dir, super::rig::mode(0o777)).unwrap();
    let second = rig.create(&user, dir, "g").unwrap().file.after.file;
    let fill = |rig: &mut Rig| {
        for file in [first, second] {
            let layout = rig.alloc_on(Medium::Memory(1), file, 0..B).unwrap().layout;
            rig.commit(file, &layout, 0..B).unwrap();
        }
    };
    let ask = |rig: &Rig, since, after| {
        let call = calls::Lost { session: rig.session, look: false, since, after };
        rig.read(&Caller::root(), &call).unwrap()
    };
    let none = |number| LostTold { number, files: Array(Vec::new()), end: true };
    fill(&mut rig);
    rig.disks.restart(MEMORY);
    assert_eq!(ask(&rig, 0, FileId(0)), none(0));
    let (waiter, mut noticed) = tokio::sync::oneshot::channel();
    rig.event(Event::Look(waiter));
    assert!(!noticed.try_recv().unwrap().failed);
    let lost =
        |file, uid, path: &[u8]| calls::LostFile { file, uid, path: Opaque::copy_from_slice(path) };
    let all = Array(vec![lost(first, 0, b"f"), lost(second, 1000, b"d/g")]);
    let told = LostTold { number: 1, files: all, end: true };
    assert_eq!(ask(&rig, 0, FileId(0)), told);
    assert_eq!(ask(&rig, 0, first).files.0, told.files.0[1..]);
    assert_eq!(ask(&rig, 1, FileId(0)), none(1));
    rig = rig.crash();
    rig.resume_all();
    assert_eq!(ask(&rig, 0, FileId(0)), told);
    // A client may still have it open.
    rig.remove(dir, "g").unwrap();
    assert_eq!(ask(&rig, 0, first).files.0, [lost(second, 1000, b"")]);
}

/// What the server reports of bytes that were to be in memory.
fn instead(rig: &mut Rig) -> Instead {
    let (asked, mut answer) = tokio::sync::oneshot::channel();
    rig.event(Event::Activity(asked));
    answer.try_recv().unwrap().instead
}

/// Where memory disks have no space, or are away, bytes go to disks. Later ones go to memory again.
#[test]
fn without_room_in_memory_bytes_go_to_disks() {
    let (mut rig, file) = with_memory(2);
    let on = |layout: &Layout| -> Vec<u32> {
        layout.extents.0.iter().map(|extent| extent.disk.0).collect()
    };
    let layout = rig.alloc_on(Medium::Memory(1), file, 0..3 * B).unwrap().layout;
    assert_eq!(on(&layout), [2, 1]);
    assert_eq!(instead(&mut rig), Instead { bytes: B, is_short: true });
    rig.commit(file, &layout, 0..3 * B).unwrap();
    // A session that wants the bytes on disks gets other blocks there.
    let layout = rig.alloc_on(Medium::Disk, file, 0..B).unwrap().layout;
    assert_eq!(on(&layout), [1]);
    rig.commit(file, &layout, 0..B).unwrap();
    let layout = rig.layout(file, Mode::Read).unwrap().layout;
    assert_eq!(on(&layout), [1, 2, 1]);
    rig.disks.go_away(MEMORY);
    let other = rig.create(&Caller::root(), FileId::ROOT, "g").unwrap().file.after.file;
    assert_eq!(on(&rig.alloc_on(Medium::Memory(1), other, 0..B).unwrap().layout), [1]);
    rig.disks.come_back(MEMORY);
    assert_eq!(on(&rig.alloc_on(Medium::Memory(1), other, 8 * B..9 * B).unwrap().layout), [2]);
    assert_eq!(instead(&mut rig), Instead { bytes: 2 * B, is_short: true });
    rig.wait(Duration::from_secs(29));
    assert_eq!(instead(&mut rig), Instead { bytes: 2 * B, is_short: true });
    rig.wait(Duration::from_secs(1));
    assert_eq!(instead(&mut rig), Instead { bytes: 2 * B, is_short: false });
    rig.check();
    // A volume without memory disks is not short of them.
    let mut rig = Rig::new(16);
    let file = rig.create(&Caller::root(), FileId::ROOT, "f").unwrap().file.after.file;
    assert_eq!(on(&rig.alloc_on(Medium::Memory(1), file, 0..B).unwrap().layout), [1]);
    assert_eq!(instead(&mut rig), Instead::default());
}

/// What a client keeps from memory disks, since they do not take it, is on disks, and counted once.
#[test]
fn what_a_client_keeps_from_memory_disks_counts_as_what_has_no_room_there() {
    let (mut rig, file) = with_memory(4);
    let mut on = |medium, bytes| -> (Vec<u32>, u64) {
        let layout = rig.alloc_on(medium, file, bytes).unwrap().layout;
        (layout.extents.0.iter().map(|extent| extent.disk.0).collect(), instead(&mut rig).bytes)
    };
    assert_eq!(on(Medium::Memory(1), 0..2 * B), (vec![2], 0));
    assert_eq!(on(Medium::INSTEAD, 0..B), (vec![1], B), "what it had in memory is given up");
    assert_eq!(on(Medium::INSTEAD, 0..B), (vec![1], B), "it has them");
    assert_eq!(on(Medium::Disk, 8 * B..9 * B), (vec![1], B));
    assert_eq!(on(Medium::Memory(1), 4 * B..5 * B), (vec![2], B));
    assert!(instead(&mut rig).is_short);
    rig.check();
}

/// A lost file can be written again as a whole, truncated and removed; then nothing of it is lost.
#[test]
fn a_lost_file_can_be_written_again_cut_and_removed() {
    for how in 0..3 {
        let (mut rig, file) = with_memory(4);
        let layout = rig.alloc_on(Medium::Memory(1), file, 0..2 * B).unwrap().layout;
        rig.commit(file, &layout, 0..2 * B).unwrap();
        rig.disks.restart(MEMORY);
        rig.wait(Duration::from_secs(1));
        assert_eq!(lost(&rig), BTreeMap::from([(file, 2 * B)]));
        match how {
            0 => drop(rig.set(file, super::rig::size(0)).unwrap()),
            1 => drop(rig.remove(FileId::ROOT, "f").unwrap()),
            _ => {
                let layout = rig.alloc_on(Medium::Memory(1), file, 0..2 * B).unwrap().layout;
                let own = layout.extents.0.iter().all(|one| one.state == ExtentState::Provisional);
                assert!(own, "{layout:?}");
                rig.commit(file, &layout, 0..2 * B).unwrap();
            }
        }
        assert_eq!(lost(&rig), BTreeMap::new());
        let free = volume::copies(&rig.engine).unwrap().disks[&MEMORY];
        let bytes_free = if how == 2 { 2 * B } else { 4 * B };
        assert_eq!((free.bytes_free, free.stale_bytes), (bytes_free, 0));
        rig.check();
    }
}

/// What happens to a file whose bytes are on two memory disks beside each other.
#[derive(Clone, Copy, Debug)]
enum Blow {
    /// One of them is started again.
    Restart(DiskId),
    /// Some time passes.
    Tick,
    /// Stale bytes are brought up to date, as far as a disk has them.
    Resilver,
    /// The metadata server is started again.
    Crash,
}

/// The disk beside [`MEMORY`].
const BESIDE: DiskId = DiskId(3);

/// Brings up to date what is possible.
fn resilver(rig: &mut Rig) {
    loop {
        let (asked, mut next) = tokio::sync::oneshot::channel();
        rig.event(Event::NextStale(asked));
        match next.try_recv().unwrap() {
            NextStale::Rest => return,
            NextStale::Ask => {}
            NextStale::Do(disk, doing) => {
                let is_done = match *doing {
                    Doing::Clear { bytes } => {
                        rig.disks.clear_now(disk, &bytes);
                        true
                    }
                    Doing::Copy { from, to, bytes } => bytes.step_by(B as usize).all(|at| {
                        rig.disks.copy_block((from.0, from.1.name), (to.0, to.1.name), (at, at))
                    }),
                };
                rig.event(Event::TaskEnded(disk, is_done));
            }
        }
    }
}

/// All sequences of restarts of two memory disks that have the same bytes: they are lost if there
/// was a moment at which no disk had them, the file is reported once, and otherwise a reader gets
/// them. `LARDER_MEMORY_STEPS=6` takes longer.
#[test]
fn bytes_in_two_memories_are_lost_with_both_alone() {
    let longest = std::env::var("LARDER_MEMORY_STEPS").map_or(4, |steps| steps.parse().unwrap());
    let blows =
        [Blow::Restart(MEMORY), Blow::Restart(BESIDE), Blow::Tick, Blow::Resilver, Blow::Crash];
    let mut counts = [0; 2];
    for length in 1..=longest {
        for code in 0..blows.len().pow(length) {
            let steps: Vec<Blow> =
                (0..length).map(|at| blows[code / blows.len().pow(at) % blows.len()]).collect();
            let is_lost = go_through(&steps);
            counts[usize::from(is_lost)] += 1;
        }
    }
    assert!(counts[0] > 100 && counts[1] > 100, "{counts:?}");
}

/// Answers whether the bytes were lost.
fn go_through(steps: &[Blow]) -> bool {
    let (mut rig, file) = with_memory(4);
    assert_eq!(rig.enrol(memory(4), Joining::Beside(MEMORY)).unwrap(), BESIDE);
    rig.disks.restart(BESIDE);
    rig.wait(Duration::from_secs(1));
    let layout = rig.alloc_on(Medium::Memory(2), file, 0..2 * B).unwrap().layout;
    let grants: Vec<_> = layout.grants.0.iter().map(granted).collect();
    assert_eq!(grants.iter().map(|one| one.disk).collect::<Vec<_>>(), [MEMORY, BESIDE]);
    let at = layout.extents.0[0].position;
    for grant in &grants {
        assert!(rig.disks.write(grant.name, &(at..at + 2 * B), 7));
    }
    let mut call = rig.committing(file, &layout, 0..2 * B);
    call.copies = larder_wire::xdr::Array(vec![MEMORY, BESIDE]);
    rig.call(&Caller::root(), call).unwrap();
    // The disks that have the bytes, and those that the server knows to be restarted.
    let mut have = BTreeSet::from([MEMORY, BESIDE]);
    for step in steps {
        match step {
            Blow::Restart(disk) => {
                rig.disks.restart(*disk);
                have.remove(disk);
            }
            Blow::Tick => rig.wait(Duration::from_secs(1)),
            Blow::Resilver => {
                rig.wait(Duration::from_secs(1));
                resilver(&mut rig);
                if !have.is_empty() {
                    have = BTreeSet::from([MEMORY, BESIDE]);
                }
            }
            Blow::Crash => rig = rig.crash(),
        }
    }
    rig.wait(Duration::from_secs(1));
    let expected = if have.is_empty() { BTreeMap::from([(file, 2 * B)]) } else { BTreeMap::new() };
    assert_eq!(lost(&rig), expected, "{steps:?}");
    let layout = rig.layout(file, Mode::Read).unwrap().layout;
    let grants: Vec<_> = layout.grants.0.iter().map(granted).collect();
    assert_eq!(grants.iter().map(|one| one.disk).collect::<BTreeSet<_>>(), have, "{steps:?}");
    for grant in grants {
        assert!(rig.disks.takes(grant.name, at));
        assert_eq!(rig.disks.block(grant.disk, at), 7, "{steps:?}");
    }
    rig.check();
    have.is_empty()
}

/// Memory disks beside each other are on machines of their own, as far as their addresses tell.
#[test]
fn memory_disks_of_one_machine_are_not_beside_each_other() {
    let (mut rig, _) = with_memory(4);
    let at = |address: &str| NewDisk { address: address.into(), ..memory(4) };
    let first = rig.enrol(at("192.0.2.1:2051"), Joining::Anywhere).unwrap();
    let second = rig.enrol(at("192.0.2.2:2051"), Joining::Beside(first)).unwrap();
    for beside in [first, second] {
        let refused = rig.enrol(at("192.0.2.1:2052"), Joining::Beside(beside)).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains(&format!("disk {} is on 192.0.2.1, too", first.0)), "{refused}");
    }
    rig.enrol(at("192.0.2.3:2051"), Joining::Beside(first)).unwrap();
    rig.enrol(at("192.0.2.1:2052"), Joining::Anywhere).unwrap();
    rig.check();
}

/// Bytes that are to be in two memories go to a disk where no two memory disks are beside each
/// other, and bytes that are to be in one go to a single memory disk first.
#[test]
fn as_many_memories_as_are_wanted_or_a_disk() {
    let (mut rig, file) = with_memory(4);
    let on = |layout: &Layout| layout.extents.0.iter().map(|one| one.disk.0).collect::<Vec<_>>();
    let wanted = Medium::Memory(2);
    assert_eq!(on(&rig.alloc_on(wanted, file, 0..B).unwrap().layout), [1]);
    let other = rig.enrol(memory(4), Joining::Anywhere).unwrap();
    assert_eq!(rig.enrol(memory(4), Joining::Beside(other)).unwrap(), DiskId(4));
    for (new, beside, told) in [
        (memory(4), DiskId(1), "no memory disk 1"),
        (memory(2), other, "smaller"),
        (NewDisk { is_memory: false, ..memory(4) }, other, "--memory"),
    ] {
        let refused = rig.enrol(new, Joining::Beside(beside)).unwrap_err().to_string();
        assert!(refused.contains(told), "{refused}");
    }
    assert_eq!(on(&rig.alloc_on(wanted, file, B..2 * B).unwrap().layout), [3]);
    assert_eq!(on(&rig.alloc_on(Medium::Memory(1), file, 2 * B..3 * B).unwrap().layout), [2]);
    // Bytes that are to be in more memories are moved there before they are committed.
    assert_eq!(on(&rig.alloc_on(wanted, file, 2 * B..3 * B).unwrap().layout), [3]);
    rig.disks.go_away(DiskId(4));
    assert_eq!(on(&rig.alloc_on(wanted, file, 3 * B..4 * B).unwrap().layout), [1]);
    rig.check();
}

//! Bytes in memory that are due on other disks.

mod on_time;

use std::collections::BTreeSet;
use std::time::Duration;

use larder_wire::meta::words::{DiskId, ExtentState, FileId, Layout, Medium, Mode};
use larder_wire::meta::{BLOCK_BYTES, Res, Status};

use super::memory::{MEMORY, lost, memory, with_memory};
use super::mirrors::granted;
use super::rig::{Rig, decode, size};
use crate::change::Reply;
use crate::rights::Caller;
use crate::store::records::InMemory;
use crate::volume::{self, Joining};
use tokio::sync::oneshot;

const B: u64 = BLOCK_BYTES;
pub(super) const DISK: DiskId = DiskId(1);
/// When bytes are due on a disk after they were written.
const DUE: Duration = Duration::from_secs(20);

/// What happens to a file of one block.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// It is written to memory, as a whole.
    Write,
    /// As much time passes as makes due what was just written.
    Wait,
    /// What is due begins to be moved.
    Begin,
    /// It is copied.
    Copy,
    /// The server learns that it was.
    End,
    /// The memory disk is started again, and the server learns that.
    Restart,
    /// The file is cut to nothing.
    Cut,
    /// It is removed.
    Remove,
    /// The server is started again.
    Crash,
    /// A client asks for it to be on the disk, and waits for that.
    Raise,
}

const STEPS: [Step; 10] = [
    Step::Write,
    Step::Wait,
    Step::Begin,
    Step::Copy,
    Step::End,
    Step::Restart,
    Step::Cut,
    Step::Remove,
    Step::Crash,
    Step::Raise,
];

/// Writes blocks of a file to memory; they are due then on a disk.
pub(super) fn write(rig: &mut Rig, file: FileId, blocks: u64, what: u64, due: Option<Duration>) {
    let layout = rig.alloc_on(Medium::Memory(1), file, 0..blocks * B).unwrap().layout;
    let own = layout.extents.0.iter().filter(|one| one.state == ExtentState::Provisional);
    let own = Layout { extents: larder_wire::xdr::Array(own.copied().collect()), ..layout.clone() };
    for extent in &own.extents.0 {
        let grant = layout.grants.0.iter().map(granted).find(|one| one.disk == extent.disk);
        let bytes = extent.position..extent.position + extent.length;
        assert!(rig.disks.write(grant.unwrap().name, &bytes, what));
    }
    let mut call = rig.committing(file, &own, 0..blocks * B);
    call.due_ms = due.map(|due| u32::try_from(due.as_millis()).unwrap());
    rig.call(&Caller::root(), call).unwrap();
}

/// Some time passes, and the client renews its session.
pub(super) fn wait(rig: &mut Rig, time: Duration) {
    rig.wait(time);
    rig.attributes(FileId::ROOT).unwrap();
}

/// Moves all that is due.
pub(super) fn move_all(rig: &mut Rig) {
    while rig.due_in() == Some(Duration::ZERO) {
        rig.begin_moves();
        rig.copy_moves();
        rig.end_moves();
    }
}

/// A file that was written, and what is to become of it.
struct Scene {
    rig: Rig,
    file: FileId,
    /// Nothing if it was cut, or is gone.
    has: Option<u64>,
    is_removed: bool,
    is_lost: bool,
    next: u64,
    since_write: Duration,
    /// What was given up before it was due.
    never: BTreeSet<u64>,
    /// Replies to come, and what the file had when they were asked for.
    raised: Vec<(oneshot::Receiver<Reply>, Option<u64>)>,
    was_restarted: bool,
}

impl Scene {
    fn new() -> Scene {
        let (rig, file) = with_memory(4);
        let (never, since_write) = (BTreeSet::new(), Duration::ZERO);
        let (has, is_removed, is_lost, was_restarted) = (None, false, false, false);
        let (next, raised) = (0, Vec::new());
        let scene = Scene {
            rig,
            file,
            has,
            is_removed,
            is_lost,
            next,
            since_write,
            never,
            raised,
            was_restarted,
        };
        scene.go(Step::Write)
    }

    /// Where the file's block is, if it has one.
    fn disk(&mut self) -> Option<DiskId> {
        let layout = self.rig.layout(self.file, Mode::Read).ok()?.layout;
        layout.extents.0.first().map(|extent| extent.disk)
    }

    /// What it has is given up.
    fn give_up(&mut self) {
        if let Some(had) = self.has.take().filter(|_| self.since_write < DUE) {
            self.never.insert(had);
        }
        self.is_lost = false;
    }

    fn go(mut self, step: Step) -> Scene {
        match step {
            _ if self.is_removed && matches!(step, Step::Write | Step::Cut | Step::Remove) => {}
            Step::Write => {
                self.give_up();
                self.next += 1;
                write(&mut self.rig, self.file, 1, self.next, Some(DUE));
                (self.has, self.since_write) = (Some(self.next), Duration::ZERO);
            }
            Step::Wait => {
                wait(&mut self.rig, DUE);
                self.since_write += DUE;
            }
            Step::Begin => self.rig.begin_moves(),
            Step::Copy => drop(self.rig.copy_moves()),
            Step::End => {
                self.rig.end_moves();
                // What was copied before the memory disk was started again is there after all.
                self.is_lost &= self.disk() == Some(MEMORY);
            }
            Step::Restart => {
                self.is_lost |= self.has.is_some() && self.disk() == Some(MEMORY);
                self.rig.disks.restart(MEMORY);
                self.rig.wait(Duration::ZERO);
                self.was_restarted = true;
            }
            Step::Cut => {
                self.rig.set(self.file, size(0)).unwrap();
                self.give_up();
            }
            Step::Remove => {
                self.rig.remove(FileId::ROOT, "f").unwrap();
                self.give_up();
                self.is_removed = true;
            }
            Step::Crash => {
                self.rig = self.rig.crash();
                self.raised.clear();
            }
            Step::Raise => {
                self.raised.push((self.rig.destage(self.file, 0), self.has));
                self.since_write += DUE;
            }
        }
        self.hear();
        self
    }

    /// What whoever asked for the bytes to be on the disk is told.
    fn hear(&mut self) {
        for (mut reply, had) in std::mem::take(&mut self.raised) {
            let Ok(reply) = reply.try_recv() else {
                self.raised.push((reply, had));
                continue;
            };
            match decode::<Res<()>>(&reply) {
                // It may have been written to memory again since, as somebody else wanted.
                Ok(()) if self.has == had => {
                    let is_there = !self.is_lost && self.disk() != Some(MEMORY);
                    assert!(is_there, "it is not on the disk");
                }
                Ok(()) => {}
                Err(Status::Lost) => assert!(self.is_lost),
                Err(Status::Stale) => assert!(self.is_removed),
                // What was being copied was lost meanwhile; or it has no name, and clients from
                // before the server's start may still have it open.
                Err(status) => {
                    let is_uncertain = self.was_restarted || self.is_removed;
                    assert!(status == Status::Later && is_uncertain, "{status}");
                }
            }
        }
    }

    /// A reader gets what was written last, or is told that it is lost.
    fn look(&mut self, of: &[Step]) {
        if self.is_removed {
            return;
        }
        let layout = self.rig.layout(self.file, Mode::Read).unwrap().layout;
        let Some(extent) = layout.extents.0.first() else {
            return assert_eq!(self.has, None, "{of:?}");
        };
        let state = if self.is_lost { ExtentState::Lost } else { ExtentState::Committed };
        assert_eq!(extent.state, state, "{of:?}");
        let is_due = self.since_write >= DUE;
        assert!(is_due || extent.disk == MEMORY, "{of:?}: it was moved before its time");
        if !self.is_lost {
            let grant = granted(&layout.grants.0[0]);
            assert!(self.rig.disks.takes(grant.name, extent.position), "{of:?}");
            let has = self.rig.disks.block(grant.disk, extent.position);
            assert_eq!(Some(has), self.has, "{of:?}");
        }
        assert_eq!(lost(&self.rig).len(), usize::from(self.is_lost), "{of:?}");
    }

    fn check(mut self, of: &[Step]) {
        self.look(of);
        self.rig.check();
        // In the end all that is not lost is on the disk, and nothing is left.
        self.rig.copy_moves();
        self = self.go(Step::End).go(Step::Wait);
        move_all(&mut self.rig);
        // By then no client can have a file open since before the server was started.
        self = self.go(Step::Wait);
        self.look(of);
        self.rig.check();
        assert!(self.raised.is_empty(), "{of:?}: somebody waits");
        let is_there = self.has.is_some() && !self.is_lost;
        assert!(!is_there || self.disk() == Some(DISK), "{of:?}: it was not moved");
        assert_eq!(self.rig.due_in(), None, "{of:?}");
        let blocks = u64::from(self.is_lost);
        let records = self.rig.records::<InMemory>(b'm').len() as u64;
        assert!(records <= 1 && (!is_there || records == 0), "{of:?}");
        let disks = volume::copies(&self.rig.engine).unwrap().disks;
        let free = |disk: DiskId| disks[&disk].bytes_free / B;
        assert_eq!((free(MEMORY), free(DISK)), (4 - blocks, 16 - u64::from(is_there)), "{of:?}");
        let there = self.rig.disks.ever_written(DISK);
        assert!(there.is_disjoint(&self.never), "{of:?}: {there:?} was to be never on a disk");
    }
}

/// All sequences of what may happen to bytes that are due on a disk, before that and while they are
/// moved. `LARDER_DESTAGE_STEPS=4` takes longer.
#[test]
fn bytes_in_memory_are_on_a_disk_when_they_are_due_and_not_before() {
    let longest = std::env::var("LARDER_DESTAGE_STEPS").map_or(3, |steps| steps.parse().unwrap());
    let begun = [Step::Wait, Step::Begin, Step::Copy];
    for from in [0, 2, 3] {
        for length in 0..=longest {
            for code in 0..STEPS.len().pow(length) {
                let more = (0..length).map(|at| STEPS[code / STEPS.len().pow(at) % STEPS.len()]);
                let steps: Vec<Step> = begun[..from].iter().copied().chain(more).collect();
                steps.iter().fold(Scene::new(), |scene, step| scene.go(*step)).check(&steps);
            }
        }
    }
}

/// The shortest time of a file's bytes counts; what may stay in memory does.
#[test]
fn the_first_bytes_of_a_file_that_are_due_take_the_others_along() {
    let (mut rig, file) = with_memory(8);
    write(&mut rig, file, 2, 1, None);
    assert_eq!(rig.due_in(), None);
    // A part of it.
    for (due, first) in [(20, 20), (10, 10), (15, 10)] {
        write(&mut rig, file, 1, 2, Some(Duration::from_secs(due)));
        assert_eq!(rig.due_in(), Some(Duration::from_secs(first)));
    }
    // All of it.
    write(&mut rig, file, 2, 3, Some(Duration::from_secs(30)));
    assert_eq!(rig.due_in(), Some(Duration::from_secs(10)), "it is looked at");
    wait(&mut rig, Duration::from_secs(10));
    rig.begin_moves();
    assert_eq!((rig.copy_moves(), rig.due_in()), (0, Some(Duration::from_secs(20))));
    wait(&mut rig, Duration::from_secs(20));
    move_all(&mut rig);
    let layout = rig.layout(file, Mode::Read).unwrap().layout;
    assert!(layout.extents.0.iter().all(|extent| extent.disk == DISK));
    rig.check();
}

/// Files that are due together are moved together, each once, and as much of a large one at a time
/// as memory of the server bears.
#[test]
fn many_files_are_moved_at_once() {
    let mut rig = Rig::new(4096);
    assert_eq!(rig.enrol(memory(4096), Joining::Anywhere).unwrap(), MEMORY);
    rig.disks.restart(MEMORY);
    wait(&mut rig, Duration::from_secs(1));
    let mut files = Vec::new();
    for number in 0..40 {
        let opened = rig.create(&Caller::root(), FileId::ROOT, &format!("f{number}")).unwrap();
        rig.close(opened.open).unwrap();
        files.push(opened.file.after.file);
        write(&mut rig, files[number], 1, number as u64 + 1, Some(DUE));
    }
    // 8 MiB.
    write(&mut rig, files[0], 2048, 77, Some(DUE));
    wait(&mut rig, DUE);
    let mut rounds = Vec::new();
    while rig.due_in() == Some(Duration::ZERO) {
        rig.begin_moves();
        rounds.push(rig.copy_moves());
        rig.end_moves();
    }
    assert_eq!(rounds.iter().sum::<usize>(), 41);
    assert_eq!(rounds[0], 32);
    for file in files {
        let layout = rig.layout(file, Mode::Read).unwrap().layout;
        assert!(layout.extents.0.iter().all(|extent| extent.disk == DISK));
    }
    assert_eq!(rig.records::<InMemory>(b'm'), []);
    rig.check();
}

/// While no disk has room, or all are away, bytes stay in memory, and are moved when that is over.
#[test]
fn what_is_due_waits_for_room() {
    for is_full in [false, true] {
        let (mut rig, file) = with_memory(8);
        let other = rig.create(&Caller::root(), FileId::ROOT, "g").unwrap().file.after.file;
        if is_full {
            rig.write(other, 0..16 * B).unwrap();
        } else {
            rig.disks.go_away(DISK);
        }
        write(&mut rig, file, 2, 5, Some(DUE));
        wait(&mut rig, DUE);
        for _ in 0..3 {
            rig.begin_moves();
            assert_eq!(rig.copy_moves(), 0);
            assert_eq!(rig.due_in(), Some(Duration::from_secs(1)));
            wait(&mut rig, Duration::from_secs(1));
        }
        rig.check();
        if is_full {
            rig.set(other, size(B)).unwrap();
        } else {
            rig.disks.come_back(DISK);
        }
        move_all(&mut rig);
        let layout = rig.layout(file, Mode::Read).unwrap().layout;
        assert!(layout.extents.0.iter().all(|extent| extent.disk == DISK));
        assert!(lost(&rig).is_empty());
        rig.check();
    }
}

/// On a volume with two copies both disks get the bytes; one that is away has missed them.
#[test]
fn bytes_that_leave_memory_are_in_all_copies() {
    for is_away in [false, true] {
        let mut rig = Rig::with_copies(2, &[16, 16]);
        let number = rig.enrol(memory(8), Joining::Anywhere).unwrap();
        rig.disks.restart(number);
        wait(&mut rig, Duration::from_secs(1));
        let file = rig.create(&Caller::root(), FileId::ROOT, "f").unwrap().file.after.file;
        write(&mut rig, file, 2, 5, Some(DUE));
        wait(&mut rig, DUE);
        rig.begin_moves();
        if is_away {
            rig.disks.go_away(DiskId(2));
        }
        rig.copy_moves();
        rig.end_moves();
        let extent = rig.layout(file, Mode::Read).unwrap().layout.extents.0[0];
        assert_eq!(extent.disk, DISK);
        let has = |disk| rig.disks.block(DiskId(disk), extent.position);
        assert_eq!((has(1), has(2)), (5, if is_away { 0 } else { 5 }));
        let stale = volume::copies(&rig.engine).unwrap().disks[&DiskId(2)].stale_bytes;
        assert_eq!(stale, if is_away { 2 * B } else { 0 });
        rig.check();
    }
}

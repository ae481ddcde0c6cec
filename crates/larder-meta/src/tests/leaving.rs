//! Disks that leave: what is on them goes to others while clients write.

mod random;

use std::time::Duration;

use larder_wire::meta::words::{
    DiskId, Extent, ExtentState, FileId, Layout, Medium, Merged, MergedFrom, Mode, SessionId,
};
use larder_wire::meta::{BLOCK_BYTES, Status};
use larder_wire::xdr::Array;
use tokio::sync::oneshot;

use super::memory::memory;
use super::mirrors::granted;
use super::rig::{Rig, refused, size};
use crate::committer::Event;
use crate::disks::CapabilityName;
use crate::rights::Caller;
use crate::volume::{self, DisksChange, Joining, NewDisk, Tenure};

const B: u64 = BLOCK_BYTES;

fn disk_of(blocks: u64) -> NewDisk {
    NewDisk { id: [1; 16], address: "disk:9".into(), bytes: blocks * B, is_memory: false }
}

fn is_there(rig: &Rig, disk: DiskId) -> bool {
    volume::disks(&rig.engine).unwrap().iter().any(|(one, _)| *one == disk)
}

/// Moves all that can be moved now.
fn move_all(rig: &mut Rig) {
    while rig.due_in() == Some(Duration::ZERO) {
        rig.begin_moves();
        rig.copy_moves();
        rig.end_moves();
    }
}

/// Two clients that call by turns: the session and the last sequence of each.
struct Clients {
    all: [(SessionId, u32); 2],
    now: usize,
}

impl Clients {
    /// That of the rig, and another one.
    fn new(rig: &mut Rig) -> Clients {
        let other = rig.begin_session([2; 16], 1).unwrap().session;
        Clients { all: [(rig.session, rig.sequence), (other, 0)], now: 0 }
    }

    /// The next calls are of this one.
    fn turn_to(&mut self, rig: &mut Rig, client: usize) {
        self.all[self.now] = (rig.session, rig.sequence);
        self.now = client;
        (rig.session, rig.sequence) = self.all[client];
    }
}

/// One block of a file that a client may write to, and the grant for it.
#[derive(Clone, Debug)]
struct Held {
    file: FileId,
    layout: Layout,
    extent: Extent,
    name: CapabilityName,
    /// What it was written with.
    written: Option<u64>,
}

impl Held {
    /// Asks for block `block` of a file for writing.
    fn get(rig: &mut Rig, file: FileId, block: u64) -> Result<Held, Status> {
        let range = block * B..(block + 1) * B;
        let mut layout = rig.alloc(file, range.clone())?.layout;
        let extent = *layout.extents.0.iter().find(|one| one.offset == range.start).unwrap();
        let grants = layout.grants.0.iter().map(granted);
        let name = grants.into_iter().find(|one| one.disk == extent.disk).unwrap().name;
        layout.extents.0.retain(|one| *one == extent);
        Ok(Held { file, layout, extent, name, written: None })
    }

    /// Whether it is a block that the file has.
    fn is_in_place(&self) -> bool {
        self.extent.state == ExtentState::Committed
    }

    /// Writes to it. `false` if the disk does not take that.
    fn write(&mut self, rig: &Rig, what: u64) -> bool {
        let bytes = self.extent.position..self.extent.position + B;
        let is_taken = rig.disks.write(self.name, &bytes, what);
        self.written = self.written.filter(|_| !is_taken).or(is_taken.then_some(what));
        is_taken
    }

    fn commit(&self, rig: &mut Rig) -> Result<(), Status> {
        let range = self.extent.offset..self.extent.offset + B;
        rig.commit(self.file, &self.layout, range).map(drop)
    }
}

/// What a reader finds at a block of a file: zeros where nothing is.
fn content(rig: &mut Rig, file: FileId, block: u64) -> u64 {
    let layout = rig.layout(file, Mode::Read).unwrap().layout;
    let offset = block * B;
    let holds = |one: &&Extent| one.offset <= offset && offset < one.offset + one.length;
    let Some(extent) = layout.extents.0.iter().find(holds) else { return 0 };
    assert_eq!(extent.state, ExtentState::Committed);
    let position = extent.position + (offset - extent.offset);
    let mut grants = layout.grants.0.iter().map(granted);
    assert!(grants.any(|grant| rig.disks.takes(grant.name, position)), "it can be read");
    rig.disks.block(extent.disk, position)
}

/// What happens to a file of one block, and to its disk.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A client asks for the block, to write it.
    Hold,
    /// It writes there, even if that was long ago.
    Write,
    /// It commits what it wrote.
    Commit,
    /// The disk is to be removed.
    Leave,
    /// It is kept after all.
    Keep,
    /// What is found to be moved begins to be.
    Begin,
    /// It is copied.
    Copy,
    /// The server learns that it was.
    End,
    /// The file is cut to nothing.
    Cut,
    /// The disk goes away, or comes back.
    Away,
    /// The server is started again.
    Crash,
}

const STEPS: [Step; 11] = [
    Step::Hold,
    Step::Write,
    Step::Commit,
    Step::Leave,
    Step::Keep,
    Step::Begin,
    Step::Copy,
    Step::End,
    Step::Cut,
    Step::Away,
    Step::Crash,
];

struct Scene {
    rig: Rig,
    file: FileId,
    disk: DiskId,
    held: Option<Held>,
    /// What the block may have: what was committed last, and what was written in place since.
    can_be: Vec<u64>,
    next: u64,
    is_wanted: bool,
    is_away: bool,
}

impl Scene {
    fn new() -> Scene {
        let mut rig = Rig::with_disks(&[8, 8]);
        let opened = rig.create(&Caller::root(), FileId::ROOT, "f").unwrap();
        rig.close(opened.open).unwrap();
        let file = opened.file.after.file;
        let mut scene = Scene {
            rig,
            file,
            disk: DiskId(0),
            held: None,
            can_be: vec![0],
            next: 0,
            is_wanted: true,
            is_away: false,
        };
        scene = scene.go(Step::Hold).go(Step::Write);
        scene.disk = scene.held.as_ref().unwrap().extent.disk;
        scene.go(Step::Commit)
    }

    fn is_gone(&self) -> bool {
        !is_there(&self.rig, self.disk)
    }

    fn go(mut self, step: Step) -> Scene {
        match step {
            Step::Hold => self.held = Some(Held::get(&mut self.rig, self.file, 0).unwrap()),
            Step::Write => {
                self.next += 1;
                let what = self.next;
                let Some(held) = &mut self.held else { return self };
                if held.write(&self.rig, what) && held.is_in_place() {
                    self.can_be.push(what);
                }
            }
            Step::Commit => {
                let Some(held) = &self.held else { return self };
                let Some(what) = held.written else { return self };
                match held.commit(&mut self.rig) {
                    Ok(()) => {
                        self.can_be = vec![what];
                        // It is the file's now, and its client asks before it writes there again.
                        self.held = self.held.take().filter(Held::is_in_place);
                    }
                    Err(Status::NotAllocated | Status::Changed) => self.held = None,
                    Err(status) => panic!("{status:?}"),
                }
            }
            Step::Leave => {
                let was_gone = self.is_gone();
                let left = self.rig.remove_disk(self.disk);
                assert_eq!(left.is_err(), was_gone);
                self.is_wanted = false;
            }
            Step::Keep => {
                let leaves = !self.is_wanted && !self.is_gone();
                assert_eq!(self.rig.keep_disk(self.disk).is_ok(), leaves);
                self.is_wanted |= leaves;
            }
            Step::Begin => self.rig.begin_moves(),
            Step::Copy => drop(self.rig.copy_moves()),
            Step::End => self.rig.end_moves(),
            Step::Cut => {
                self.rig.set(self.file, size(0)).unwrap();
                self.can_be = vec![0];
            }
            Step::Away => {
                self.is_away = !self.is_away;
                match self.is_away {
                    true => self.rig.disks.go_away(self.disk),
                    false => self.rig.disks.come_back(self.disk),
                }
            }
            Step::Crash => self.rig = self.rig.crash(),
        }
        self
    }

    fn look(&mut self, of: &[Step]) {
        let has = content(&mut self.rig, self.file, 0);
        assert!(self.can_be.contains(&has), "{of:?}: {has} and not {:?}", self.can_be);
    }

    fn check(mut self, of: &[Step]) {
        self.look(of);
        self.rig.check();
        if self.is_away {
            self = self.go(Step::Away);
        }
        self = self.go(Step::Copy).go(Step::End);
        // What could not be read is tried again after a second, and searched for after two.
        for _ in 0..3 {
            move_all(&mut self.rig);
            self.rig.wait(Duration::from_secs(1));
        }
        self.look(of);
        assert_eq!(self.is_gone(), !self.is_wanted, "{of:?}");
        self.rig.check();
        self = self.go(Step::Commit);
        self.look(of);
        // Whatever a client had before: it can write again.
        self = self.go(Step::Hold).go(Step::Write).go(Step::Commit);
        assert_eq!(self.can_be, [self.next], "{of:?}");
        self.look(of);
        assert!(self.is_wanted || !self.rig.disks.takes_any(self.disk), "{of:?}");
        self.rig.check();
    }
}

/// All sequences of what may happen to a block while its disk leaves, before that and while it is
/// moved. `LARDER_LEAVING_STEPS=4` takes longer.
#[test]
fn what_is_on_a_disk_that_leaves_is_on_others_whatever_happens() {
    let longest = std::env::var("LARDER_LEAVING_STEPS").map_or(3, |steps| steps.parse().unwrap());
    let begun = [Step::Leave, Step::Begin, Step::Copy, Step::Keep];
    for from in 0..=begun.len() {
        for length in 0..=longest {
            for code in 0..STEPS.len().pow(length) {
                let more = (0..length).map(|at| STEPS[code / STEPS.len().pow(at) % STEPS.len()]);
                let steps: Vec<Step> = begun[..from].iter().copied().chain(more).collect();
                steps.iter().fold(Scene::new(), |scene, step| scene.go(*step)).check(&steps);
            }
        }
    }
}

/// A rig of two disks with files of one block, which lie on both.
fn two_disks(files: u64) -> (Rig, Vec<FileId>) {
    let mut rig = Rig::with_disks(&[64, 64]);
    let mut made = Vec::new();
    for number in 0..files {
        let name = format!("f{number}");
        let opened = rig.create(&Caller::root(), FileId::ROOT, &name).unwrap();
        rig.close(opened.open).unwrap();
        let file = opened.file.after.file;
        let mut held = Held::get(&mut rig, file, 0).unwrap();
        assert!(held.write(&rig, number + 1));
        held.commit(&mut rig).unwrap();
        made.push(file);
    }
    (rig, made)
}

/// Nothing is copied before those who may write it in place cannot any more.
#[test]
fn a_block_is_copied_when_nobody_writes_it_any_more() {
    let (mut rig, files) = two_disks(1);
    let mut held = Held::get(&mut rig, files[0], 0).unwrap();
    assert!(held.is_in_place());
    assert_eq!(rig.remove_disk(held.extent.disk).unwrap(), Tenure::Leaves);
    rig.is_quick = false;
    rig.begin_moves();
    assert_eq!(rig.copy_moves(), 0, "the disk was not told yet");
    assert!(held.write(&rig, 7), "the disk was not told yet");
    rig.acknowledge_all();
    assert!(!held.write(&rig, 8));
    assert_eq!(rig.copy_moves(), 1);
    rig.is_quick = true;
    rig.end_moves();
    assert_eq!(content(&mut rig, files[0], 0), 7);
    // Its writer does not know where it is now.
    assert_eq!(refused(held.commit(&mut rig)), Status::NotAllocated);
    rig.check();
}

/// A disk that leaves gets no new blocks, and counts for `df` with what is in use alone.
#[test]
fn a_disk_that_leaves_gets_nothing_new() {
    let (mut rig, files) = two_disks(8);
    let held = Held::get(&mut rig, files[7], 9).unwrap();
    let (leaves, stays) = match held.extent.disk {
        DiskId(1) => (DiskId(1), DiskId(2)),
        other => (other, DiskId(1)),
    };
    assert_eq!(rig.remove_disk(leaves).unwrap(), Tenure::Leaves);
    assert_eq!(rig.remove_disk(leaves).unwrap(), Tenure::Leaves, "as before");
    let about = volume::copies(&rig.engine).unwrap().disks;
    assert!(about[&leaves].leaves && !about[&stays].leaves);
    let in_use = 64 * B - about[&leaves].bytes_free;
    assert_eq!(in_use, 4 * B, "what the client held is given up");
    let space = volume::space(&rig.engine).unwrap();
    assert_eq!((space.bytes, space.bytes_free), (64 * B + in_use, about[&stays].bytes_free));
    assert_eq!(refused(held.commit(&mut rig)), Status::NotAllocated);
    for block in 1..20 {
        let held = Held::get(&mut rig, files[0], block).unwrap();
        assert_eq!(held.extent.disk, stays);
    }
    rig.check();
}

/// While the others have no room nothing is half done; a disk that was let go waits for room that
/// others have taken since.
#[test]
fn a_disk_waits_for_room() {
    let mut rig = Rig::with_disks(&[8, 8]);
    let file = rig.create(&Caller::root(), FileId::ROOT, "f").unwrap().file.after.file;
    rig.write(file, 0..4 * B).unwrap();
    let from = rig.layout(file, Mode::Read).unwrap().layout.extents.0[0].disk;
    assert_eq!(rig.remove_disk(from).unwrap(), Tenure::Leaves);
    rig.write(file, 4 * B..10 * B).unwrap();
    for _ in 0..3 {
        rig.begin_moves();
        rig.copy_moves();
        rig.end_moves();
        rig.wait(Duration::from_secs(1));
    }
    assert!(is_there(&rig, from));
    rig.check();
    rig.enrol(disk_of(8), Joining::Anywhere).unwrap();
    rig.wait(Duration::from_secs(1));
    move_all(&mut rig);
    assert!(!is_there(&rig, from));
    rig.check();
}

/// The server is killed after each commit between the request and the end: the next one goes on,
/// and whatever was copied before is copied again or counts.
#[test]
fn a_server_that_is_killed_goes_on_from_each_commit() {
    let finished = |commits: u32| {
        let (mut rig, files) = two_disks(6);
        let large = files[0];
        rig.write(large, B..30 * B).unwrap();
        let from = DiskId(1);
        rig.engine.fail_after(commits);
        let (waiter, _done) = oneshot::channel();
        rig.event(Event::Disks(DisksChange::Remove(from), waiter));
        for _ in 0..20 {
            rig.begin_moves();
            rig.copy_moves();
            rig.end_moves();
        }
        let is_over = !is_there(&rig, from);
        let mut rig = rig.crash();
        rig.check();
        rig.remove_disk(from).ok();
        for _ in 0..3 {
            move_all(&mut rig);
            rig.wait(Duration::from_secs(1));
        }
        assert!(!is_there(&rig, from), "after {commits} commits");
        for (number, file) in files.iter().enumerate() {
            assert_eq!(content(&mut rig, *file, 0), number as u64 + 1, "after {commits} commits");
        }
        rig.check();
        is_over
    };
    let needed = (0..100).find(|commits| finished(*commits)).unwrap();
    assert!(needed > 3, "{needed} commits");
}

/// A client that merges a part into a block, and one that writes the block in place under a grant
/// from before: neither undoes what the other was told is there. When the disk leaves, and when it
/// is kept.
#[test]
fn parts_that_are_merged_and_written_in_place_do_not_undo_each_other() {
    let merging = |rig: &mut Rig, held: &Held, before: &Extent| {
        let range = held.extent.offset..held.extent.offset + B;
        let mut call = rig.committing(held.file, &held.layout, range);
        let (disk, position) = (before.disk, before.position);
        let from = Some(MergedFrom { disk, position, length: 4096 });
        call.merged = Array(vec![Merged { offset: held.extent.offset, from }]);
        rig.call(&Caller::root(), call)
    };
    let (mut rig, files) = two_disks(2);
    let mut clients = Clients::new(&mut rig);
    let mut old = Held::get(&mut rig, files[0], 0).unwrap();
    let other = if old.extent.disk == DiskId(1) { DiskId(2) } else { DiskId(1) };
    // The other disk leaves: this block is not moved.
    rig.remove_disk(other).unwrap();
    clients.turn_to(&mut rig, 1);
    let mut new = Held::get(&mut rig, files[0], 0).unwrap();
    assert!(old.is_in_place() && !new.is_in_place());
    assert!(new.write(&rig, 50), "with the rest as it was");
    assert!(old.write(&rig, 60));
    clients.turn_to(&mut rig, 0);
    assert_eq!(refused(old.commit(&mut rig)), Status::Changed);
    clients.turn_to(&mut rig, 1);
    merging(&mut rig, &new, &old.extent).unwrap();
    assert_eq!(content(&mut rig, files[0], 0), 50);

    let before = new.extent;
    let mut new = Held::get(&mut rig, files[0], 0).unwrap();
    assert!(!new.is_in_place() && new.write(&rig, 70));
    assert_eq!(rig.keep_disk(other).unwrap(), Tenure::Stays);
    clients.turn_to(&mut rig, 0);
    let mut old = Held::get(&mut rig, files[0], 0).unwrap();
    assert!(old.is_in_place() && old.write(&rig, 80));
    old.commit(&mut rig).unwrap();
    clients.turn_to(&mut rig, 1);
    assert_eq!(refused(merging(&mut rig, &new, &before)), Status::NotAllocated);
    assert_eq!(content(&mut rig, files[0], 0), 80);
    rig.check();
}

/// A memory disk leaves like another one: its bytes go to disks. What it has lost does not.
#[test]
fn a_memory_disk_leaves() {
    let mut rig = Rig::new(16);
    let number = rig.enrol(memory(8), Joining::Anywhere).unwrap();
    rig.disks.restart(number);
    rig.wait(Duration::from_secs(1));
    let file = rig.create(&Caller::root(), FileId::ROOT, "f").unwrap().file.after.file;
    let layout = rig.alloc_on(Medium::Memory(1), file, 0..2 * B).unwrap().layout;
    let grant = granted(&layout.grants.0[0]);
    assert_eq!(grant.disk, number);
    let position = layout.extents.0[0].position;
    assert!(rig.disks.write(grant.name, &(position..position + 2 * B), 5));
    rig.commit(file, &layout, 0..2 * B).unwrap();
    assert_eq!(rig.remove_disk(number).unwrap(), Tenure::Leaves);
    move_all(&mut rig);
    assert!(!is_there(&rig, number));
    assert_eq!((content(&mut rig, file, 0), content(&mut rig, file, 1)), (5, 5));
    rig.check();
}

/// A disk leaves a volume that no server has: the next server moves what is on it, or the disk is
/// kept.
#[test]
fn a_disk_leaves_a_volume_that_is_not_served() {
    let (mut rig, files) = two_disks(6);
    rig.end();
    let leave = |rig: &Rig| volume::remove_disk(&rig.engine, DiskId(1)).unwrap();
    let removal = leave(&rig);
    assert_eq!((removal.tenure, removal.used_bytes), (Tenure::Leaves, 3 * B));
    assert_eq!(volume::keep_disk(&rig.engine, DiskId(1)).unwrap().tenure, Tenure::Stays);
    assert!(volume::keep_disk(&rig.engine, DiskId(1)).is_err());
    leave(&rig);
    let mut rig = rig.crash();
    move_all(&mut rig);
    assert!(!is_there(&rig, DiskId(1)));
    for (number, file) in files.iter().enumerate() {
        assert_eq!(content(&mut rig, *file, 0), number as u64 + 1);
    }
    rig.check();
}

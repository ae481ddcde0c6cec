//! Versions of a file that go to the archive, and come back from there.

mod durable;

use std::time::Duration;

use larder_wire::meta::calls::ArchiveTold;
use larder_wire::meta::words::{DiskId, ExtentState, FileId, Layout, Medium, Mode};
use larder_wire::meta::{BLOCK_BYTES, Status};

use super::destaging::{wait, write};
use super::memory::{MEMORY, with_memory};
use super::mirrors::granted;
use super::rig::{Rig, size};
use crate::archive::{Error, Receipt, Version};
use crate::live::archiving::Work;
use crate::rights::Caller;
use crate::store::records::{Archived, NEVER_MS, Unneeded};

const B: u64 = BLOCK_BYTES;
/// Within which time a version is to be there.
const WITHIN: Duration = Duration::from_secs(20);

/// What happens to a file of one block.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// It is written to memory, as a whole.
    Write,
    /// It is cut to nothing.
    Cut,
    /// Its name goes.
    Remove,
    /// So much time passes that what was written is due.
    Wait,
    /// The worker asks what to do.
    Begin,
    /// It reads the bytes of the version that it puts.
    Read,
    /// The store has done what it was asked for.
    End,
    /// It has done so, and does not say so.
    Fail,
    /// The memory disk is started again, and the server learns that.
    Restart,
    /// What the archive has of what was lost is written to the disk.
    Restore,
    /// The server is started again.
    Crash,
}

const STEPS: [Step; 11] = [
    Step::Write,
    Step::Cut,
    Step::Remove,
    Step::Wait,
    Step::Begin,
    Step::Read,
    Step::End,
    Step::Fail,
    Step::Restart,
    Step::Restore,
    Step::Crash,
];

struct Scene {
    rig: Rig,
    /// The memory disk.
    memory: DiskId,
    /// Whether the archive is level durable.
    is_durable: bool,
    file: FileId,
    /// What its block has; nothing if it was cut.
    has: Option<u64>,
    is_removed: bool,
    /// Whether it is lost, and no archive has it.
    is_lost: bool,
    last: u64,
    work: Option<Work>,
    /// What the worker has read of the version that it puts.
    read: Option<u64>,
}

impl Scene {
    fn new() -> Scene {
        let (rig, file) = with_memory(8);
        Scene::of(rig, MEMORY, file, false)
    }

    fn of(rig: Rig, memory: DiskId, file: FileId, is_durable: bool) -> Scene {
        let (has, is_removed, is_lost, last) = (None, false, false, 0);
        let (work, read) = (None, None);
        let scene =
            Scene { rig, memory, is_durable, file, has, is_removed, is_lost, last, work, read };
        scene.go(Step::Write)
    }

    /// The version that the archive has, as it is on record.
    fn held(&self) -> Option<u64> {
        let records = self.rig.records::<Archived>(b'z');
        records.first().map(|(_, record)| record.version).filter(|version| *version != 0)
    }

    /// Whether that is the file's.
    fn is_held(&self) -> bool {
        let attributes = self.rig.attributes(self.file);
        self.held().is_some() && attributes.ok().map(|one| one.data_change.0) == self.held()
    }

    fn write(&mut self) {
        let (rig, file) = (&mut self.rig, self.file);
        let layout = match rig.alloc_on(Medium::Memory(1), file, 0..B) {
            Ok(given) => given.layout,
            // It is being read from the archive.
            Err(status) => return assert_eq!(status, Status::Later),
        };
        let own = layout.extents.0.iter().filter(|one| one.state == ExtentState::Provisional);
        let own =
            Layout { extents: larder_wire::xdr::Array(own.copied().collect()), ..layout.clone() };
        self.last += 1;
        for extent in &own.extents.0 {
            let grant = layout.grants.0.iter().map(granted).find(|one| one.disk == extent.disk);
            let bytes = extent.position..extent.position + B;
            assert!(rig.disks.write(grant.unwrap().name, &bytes, self.last));
        }
        let mut call = rig.committing(file, &own, 0..B);
        let within = Some(u32::try_from(WITHIN.as_millis()).unwrap());
        match self.is_durable {
            true => call.due_ms = within,
            false => call.archive_ms = within,
        }
        rig.call(&Caller::root(), call).unwrap();
        (self.has, self.is_lost) = (Some(self.last), false);
    }

    fn go(mut self, step: Step) -> Scene {
        match step {
            Step::Write | Step::Cut | Step::Remove if self.is_removed => {}
            Step::Write => self.write(),
            Step::Cut => {
                self.rig.set(self.file, size(0)).unwrap();
                (self.has, self.is_lost) = (None, false);
            }
            Step::Remove => {
                self.rig.remove(FileId::ROOT, "f").unwrap();
                (self.has, self.is_removed, self.is_lost) = (None, true, false);
            }
            Step::Wait => wait(&mut self.rig, WITHIN),
            Step::Begin if self.work.is_none() => {
                (self.work, self.read) = (self.rig.next_to_archive(), None);
            }
            Step::Read => self.read(),
            Step::End | Step::Fail => {
                self.end(matches!(step, Step::End));
                // What was read before the memory disk was started again is not lost.
                self.is_lost &= !self.is_held();
            }
            Step::Restart => {
                let was_there = self.disk() == Some(self.memory);
                self.is_lost |= self.has.is_some() && was_there && !self.is_held();
                self.rig.disks.restart(self.memory);
                self.rig.wait(Duration::ZERO);
            }
            Step::Restore => {
                self.rig.begin_moves();
                self.rig.copy_moves();
                self.rig.end_moves();
            }
            Step::Crash => {
                self.rig = self.rig.crash();
                self.work = None;
            }
            Step::Begin => {}
        }
        self
    }

    /// Where the file's block is; where it was if it is being read from the archive.
    fn disk(&mut self) -> Option<DiskId> {
        match self.rig.layout(self.file, Mode::Read) {
            Ok(given) => given.layout.extents.0.first().map(|extent| extent.disk),
            Err(Status::Later) => Some(self.memory),
            Err(_) => None,
        }
    }

    fn read(&mut self) {
        let Some(Work::Put(version, bytes)) = self.work else { return };
        let Ok(part) = self.rig.part(version, 0..bytes) else { return };
        assert_eq!(part.end, bytes);
        // The disk reads only under what the server has not revoked.
        let read = part.reads.into_iter().map(|read| {
            let (disk, minted) = read.from;
            let is_good = self.rig.disks.takes(minted.name, read.bytes.start);
            is_good.then(|| self.rig.disks.block(disk, read.bytes.start))
        });
        self.read = match (bytes, read.collect::<Option<Vec<_>>>()) {
            (0, Some(_)) => Some(0),
            (_, Some(blocks)) => blocks.first().copied(),
            (_, None) => None,
        };
    }

    fn end(&mut self, is_told: bool) {
        let away = || Error::Unreachable { store: "it".into(), cause: "cut".into() };
        let store = std::sync::Arc::clone(&self.rig.store);
        match self.work.take() {
            Some(Work::Put(version, bytes)) => {
                let Some(read) = self.read.take() else {
                    let nothing = std::io::Error::other("it was not read");
                    return self.rig.was_put(version, Err(Error::Source(nothing)));
                };
                store.0.lock().unwrap().insert(version, read);
                let receipt = Receipt { bytes, root: [1; 32] };
                self.rig.was_put(version, if is_told { Ok(receipt) } else { Err(away()) });
            }
            Some(Work::Delete(version)) => {
                store.0.lock().unwrap().remove(&version);
                self.rig.was_deleted(version, if is_told { Ok(()) } else { Err(away()) });
            }
            None => {}
        }
    }

    /// A reader gets what was written last, is told to come again, or that it is lost.
    fn look(&mut self, of: &[Step]) {
        let objects = self.rig.store.0.lock().unwrap().clone();
        let unneeded = self.rig.records::<Unneeded>(b'q');
        let is_known = |version: &Version| {
            let key = crate::store::key::unneeded(FileId(version.ino), version.data_version);
            self.held() == Some(version.data_version) || unneeded.iter().any(|(one, _)| *one == key)
        };
        assert!(objects.keys().all(is_known), "{of:?}: nobody knows some of {objects:?}");
        if let Some(held) = self.held() {
            let what = objects.iter().find(|(version, _)| version.data_version == held);
            let what = *what.unwrap_or_else(|| panic!("{of:?}: it is not there")).1;
            let is_right = self.is_removed || what == self.has.unwrap_or(0);
            assert!(!self.is_held() || is_right, "{of:?}: {what}");
        }
        if self.is_removed {
            return;
        }
        let layout = match self.rig.layout(self.file, Mode::Read) {
            Ok(given) => given.layout,
            Err(status) => {
                assert!(status == Status::Later && self.is_held(), "{of:?}: {status}");
                return;
            }
        };
        let Some(extent) = layout.extents.0.first() else {
            return assert_eq!(self.has, None, "{of:?}");
        };
        let state = if self.is_lost { ExtentState::Lost } else { ExtentState::Committed };
        assert_eq!(extent.state, state, "{of:?}");
        if !self.is_lost {
            let grant = granted(&layout.grants.0[0]);
            assert!(self.rig.disks.takes(grant.name, extent.position), "{of:?}");
            let has = self.rig.disks.block(grant.disk, extent.position);
            assert_eq!(Some(has), self.has, "{of:?}");
        }
    }

    fn check(mut self, of: &[Step]) {
        self.look(of);
        self.rig.check();
        // In the end the archive has the present version, and nothing else.
        self.end(true);
        for _ in 0..4 {
            for step in [Step::Wait, Step::Wait, Step::Begin, Step::Read, Step::End, Step::Restore]
            {
                self = self.go(step);
            }
        }
        self.look(of);
        self.rig.check();
        let due = self.rig.records::<Archived>(b'z');
        let is_due = due.iter().any(|(_, record)| record.due_ms != NEVER_MS);
        assert_eq!(is_due, self.is_lost, "{of:?}: what is lost cannot be put");
        if self.is_lost {
            return;
        }
        assert_eq!(self.is_held(), !self.is_removed, "{of:?}");
        let objects = self.rig.store.0.lock().unwrap().len();
        assert_eq!(objects, usize::from(!self.is_removed), "{of:?}");
    }
}

/// Every history of three steps; of the steps that archive a version and restore it, with two
/// others among them.
#[test]
fn an_archived_version_is_the_one_that_the_file_had() {
    for one in STEPS {
        for two in STEPS {
            for three in STEPS {
                let of = [one, two, three];
                of.into_iter().fold(Scene::new(), Scene::go).check(&of);
            }
        }
    }
    every_put(2, Scene::new);
}

/// Every history of a version that is put and restored, with one or two other steps among these.
fn every_put(others: usize, scene: impl Fn() -> Scene) {
    let usual = [Step::Wait, Step::Begin, Step::Read, Step::End, Step::Restart, Step::Restore];
    for (at, one) in (0..=usual.len()).flat_map(|at| STEPS.map(|one| (at, one))) {
        if others == 1 {
            let mut of = usual.to_vec();
            of.insert(at, one);
            of.iter().fold(scene(), |scene, step| scene.go(*step)).check(&of);
            continue;
        }
        for (next, two) in (at..=usual.len()).flat_map(|next| STEPS.map(|two| (next, two))) {
            let mut of = usual.to_vec();
            of.insert(next, two);
            of.insert(at, one);
            of.iter().fold(scene(), |scene, step| scene.go(*step)).check(&of);
        }
    }
}

/// A file that was written before anybody said that it is to be in the archive is due there from
/// then on, within the time that was said; one whose present version is there is not put again. And
/// whoever asks is told when it is due, and for how long it has been.
#[test]
fn a_file_that_is_there_is_due_when_somebody_wants_it_in_the_archive() {
    let (mut rig, file) = with_memory(8);
    write(&mut rig, file, 1, 7, None);
    let told = |is_there, due_s: Option<u64>, late_s: u64| ArchiveTold {
        is_there,
        due_ms: due_s.map(|seconds| seconds * 1000),
        late_ms: late_s * 1000,
    };
    assert_eq!(rig.archive_told(file, None), Ok(told(false, None, 0)));
    assert_eq!(rig.archive_told(FileId::ROOT, Some(WITHIN)), Err(Status::IsDirectory));
    assert_eq!(rig.archive_told(FileId(99), None), Err(Status::Stale));
    assert_eq!(rig.archive_told(file, Some(WITHIN)), Ok(told(false, Some(20), 0)));
    wait(&mut rig, Duration::from_secs(5));
    assert_eq!(rig.archive_told(file, Some(WITHIN)), Ok(told(false, Some(15), 0)));
    assert_eq!(rig.next_to_archive(), None, "there is time");
    rig = rig.crash();
    wait(&mut rig, Duration::from_secs(18));
    assert_eq!(rig.archive_told(file, None), Ok(told(false, Some(0), 3)));
    let Some(Work::Put(version, _)) = rig.next_to_archive() else { panic!("it is due") };
    let receipt = Receipt { bytes: B, root: [7; 32] };
    rig.was_put(version, Ok(receipt));
    for within in [None, Some(WITHIN)] {
        assert_eq!(rig.archive_told(file, within), Ok(told(true, None, 0)));
    }
    wait(&mut rig, WITHIN);
    assert_eq!(rig.next_to_archive(), None, "it is there");
    write(&mut rig, file, 1, 8, None);
    assert_eq!(rig.archive_told(file, None), Ok(told(false, Some(20), 0)));
    rig.check();
}

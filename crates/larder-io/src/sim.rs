//! A disk that crashes, tears, fails and forgets on demand: [`SimDisk`].
//!
//! Every changing operation goes into a log, and the disk is the result of applying the log to an
//! empty tree. So after a run, every point of the log yields a crash image without running anything
//! again: [`SimDisk::crash_points`].
//!
//! What a crash may leave ([`Image`]):
//! - of a file: the bytes of its last sync, over which, for each 512-byte sector separately, any of
//!   the writes since may have reached the medium, so writes are lost, torn and reordered; the same
//!   for changes of length and holes, each as a whole;
//! - of a directory: the names of its last sync, and any of the changes since. A rename is one
//!   change. Directories themselves are not modelled: a file's name is durable once its own
//!   directory was synced.
//!
//! Invariant: nothing depends on time, addresses or hash order, so a run repeats exactly.

mod content;
mod tree;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::disk::{Disk, DiskFile, FsKind, OpenMode, Space, Stamp};
use crate::mem::children;
use content::PAGE_BYTES;
use tree::{Chance, Change, Inode, NameChange, Op, Tree, pages_of};

/// Which of the writes that no sync covered are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// Nothing.
    Synced,
    /// Everything.
    Written,
    /// A pseudo-random choice made from this seed: torn and out of order.
    Torn(u64),
}

/// A failure to inject; see [`SimDisk::inject`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Files may hold this many bytes together; what exceeds them gets `ENOSPC`.
    SpaceBytes(u64),
    /// The operation with this number, counted from 1 by [`SimDisk::operations`], gets `EIO`.
    EioAt(u64),
    /// All operations from this number on get `EIO`.
    EioFrom(u64),
    /// All syncs get `EIO`.
    EioSyncs,
    /// At most this many files may be open; more get `EMFILE`.
    OpenFiles(usize),
}

fn to_index(offset: u64) -> usize {
    usize::try_from(offset).expect("a simulated file fits in memory")
}

#[derive(Debug, Default)]
struct Faults {
    space_bytes: Option<u64>,
    eio_at: Option<u64>,
    eio_from: Option<u64>,
    eio_syncs: bool,
    open_files: Option<usize>,
}

#[derive(Debug, Default)]
struct Sim {
    start: Tree,
    tree: Tree,
    log: Vec<Op>,
    operations: u64,
    syncs: u64,
    next_ino: u64,
    open_files: usize,
    locked: BTreeMap<u64, ()>,
    faults: Faults,
}

impl Sim {
    /// Counts an operation, and fails it if a fault was set for it.
    fn step(&mut self) -> io::Result<()> {
        self.operations += 1;
        let number = self.operations;
        let hit = self.faults.eio_at == Some(number)
            || self.faults.eio_from.is_some_and(|from| number >= from);
        if hit { Err(Errno::IO.into()) } else { Ok(()) }
    }

    fn record(&mut self, op: Op, logs: bool) {
        self.tree.apply(&op);
        if logs {
            self.log.push(op);
        }
    }

    fn used_bytes(&self) -> u64 {
        let pages = |(_, ino)| self.tree.inode(ino).map_or(0, |inode| inode.blocks().count());
        self.tree.names().map(pages).sum::<u64>() * PAGE_BYTES
    }

    fn check_room(&self, ino: u64, offset: u64, data: &[u8]) -> io::Result<()> {
        let Some(limit) = self.faults.space_bytes else { return Ok(()) };
        let inode = self.tree.inode(ino);
        let is_new = |page: &u64| inode.is_none_or(|inode| !inode.blocks().has(*page));
        let more = pages_of(offset, data.len()).filter(is_new).count() as u64 * PAGE_BYTES;
        if more > 0 && self.used_bytes() + more > limit {
            return Err(Errno::NOSPC.into());
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Shared {
    sim: Mutex<Sim>,
    records: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Sim> {
        self.sim.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self, op: Op) -> io::Result<()> {
        let mut sim = self.lock();
        sim.step()?;
        match &op {
            Op::File(ino, Change::Write { offset, data }) => {
                sim.check_room(*ino, *offset, data)?;
            }
            Op::File(..) | Op::Name(_) => {}
            Op::SyncFile(_) | Op::SyncRange(..) | Op::SyncDir(_) | Op::SyncAll => {
                sim.syncs += 1;
                if sim.faults.eio_syncs {
                    return Err(Errno::IO.into());
                }
            }
        }
        sim.record(op, self.records.load(Ordering::Relaxed));
        Ok(())
    }
}

/// A disk in memory that keeps what is synced apart from what is only written.
///
/// Clones are handles of the same disk.
#[derive(Clone, Debug, Default)]
pub struct SimDisk {
    shared: Arc<Shared>,
}

impl SimDisk {
    /// An empty disk that keeps no log.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty disk that logs every change for [`SimDisk::crash_points`].
    pub fn recording() -> Self {
        let disk = Self::default();
        disk.shared.records.store(true, Ordering::Relaxed);
        disk
    }

    fn from_tree(tree: Tree) -> Self {
        let disk = Self::default();
        {
            let mut sim = disk.shared.lock();
            sim.next_ino = tree.last_ino();
            sim.start = tree.clone();
            sim.tree = tree;
        }
        disk
    }

    /// Changing operations logged so far: the crash point reached.
    pub fn logged(&self) -> usize {
        self.shared.lock().log.len()
    }

    /// Number of operations so far, including reads and failed ones.
    pub fn operations(&self) -> u64 {
        self.shared.lock().operations
    }

    /// Number of syncs so far, of files, ranges, directories or the whole disk, including failed
    /// ones.
    pub fn syncs(&self) -> u64 {
        self.shared.lock().syncs
    }

    /// All states of the disk between two changes, from the first to now.
    pub fn crash_points(&self) -> CrashPoints {
        let sim = self.shared.lock();
        CrashPoints { tree: sim.start.clone(), log: sim.log.clone(), next: 0 }
    }

    /// The states of [`SimDisk::crash_points`] that have at least `begin` changes before them. With
    /// `points_max`, at most so many of them, at equal distances, of which the first depends on the
    /// seed.
    ///
    /// # Panics
    /// If fewer changes than `begin` are logged, or if `points_max` is 0.
    pub fn crash_points_from(
        &self,
        begin: usize,
        points_max: Option<usize>,
        seed: u64,
    ) -> impl Iterator<Item = CrashPoint> + use<> {
        assert!(begin <= self.logged(), "the history reaches its begin");
        let count = self.logged() + 1 - begin;
        let distance = points_max.map_or(1, |points_max| count.div_ceil(points_max));
        let first = (Chance::new(!seed).next() % distance as u64) as usize;
        self.crash_points().skip(begin + first).step_by(distance)
    }

    /// The disk that a crash now would leave.
    pub fn crash(&self, image: Image) -> SimDisk {
        SimDisk::from_tree(self.shared.lock().tree.image(image))
    }

    /// Lets operations fail from now on, together with the faults injected before.
    pub fn inject(&self, fault: Fault) {
        let faults = &mut self.shared.lock().faults;
        match fault {
            Fault::SpaceBytes(limit) => faults.space_bytes = Some(limit),
            Fault::EioAt(number) => faults.eio_at = Some(number),
            Fault::EioFrom(number) => faults.eio_from = Some(number),
            Fault::EioSyncs => faults.eio_syncs = true,
            Fault::OpenFiles(limit) => faults.open_files = Some(limit),
        }
    }

    /// Takes all faults back.
    pub fn heal(&self) {
        self.shared.lock().faults = Faults::default();
    }

    /// Flips one bit on the medium; the stamp does not change.
    ///
    /// # Panics
    /// If there is no such file or byte.
    pub fn corrupt(&self, path: &str, offset: u64, bit: u8) {
        let mut sim = self.shared.lock();
        let ino = sim.tree.ino(path).expect("the file to corrupt exists");
        sim.tree.flip(ino, offset, bit);
    }

    /// A byte on the medium.
    ///
    /// # Panics
    /// If there is no such file or byte.
    pub fn byte(&self, path: &str, offset: u64) -> u8 {
        let sim = self.shared.lock();
        let inode =
            sim.tree.ino(path).and_then(|ino| sim.tree.inode(ino)).expect("the file exists");
        let mut byte = [0];
        assert_eq!(inode.read(&mut byte, offset), 1, "the file is so long");
        byte[0]
    }

    /// Paths and lengths in bytes of all files.
    pub fn files(&self) -> Vec<(String, u64)> {
        let sim = self.shared.lock();
        let len = |ino| sim.tree.inode(ino).map_or(0, Inode::len);
        sim.tree.names().map(|(path, ino)| (path.to_owned(), len(ino))).collect()
    }
}

/// How many histories a random test runs that crashes, or fails, each of them at a few points only:
/// `normal`, or the number in the environment variable `LARDER_ROUNDS` if that is greater.
///
/// A smaller number, or none at all, leaves `normal`: the variable also sets the rounds of tests
/// that crash a history at every point, of which a few take as long as a thousand of these.
pub fn many_histories(normal: u64) -> u64 {
    let rounds = std::env::var("LARDER_ROUNDS").ok().and_then(|text| text.parse().ok());
    rounds.unwrap_or(normal).max(normal)
}

/// An iterator over the crash points of a log; see [`SimDisk::crash_points`].
#[derive(Debug)]
pub struct CrashPoints {
    tree: Tree,
    log: Vec<Op>,
    next: usize,
}

impl Iterator for CrashPoints {
    type Item = CrashPoint;

    fn next(&mut self) -> Option<CrashPoint> {
        if self.next > self.log.len() {
            return None;
        }
        if let Some(op) = self.next.checked_sub(1).and_then(|at| self.log.get(at)) {
            self.tree.apply(op);
        }
        let point = CrashPoint { tree: self.tree.clone(), logged: self.next };
        self.next += 1;
        Some(point)
    }

    /// Skips without building the points between.
    fn nth(&mut self, skip: usize) -> Option<CrashPoint> {
        for _ in 0..skip {
            if self.next > self.log.len() {
                return None;
            }
            if let Some(op) = self.next.checked_sub(1).and_then(|at| self.log.get(at)) {
                self.tree.apply(op);
            }
            self.next += 1;
        }
        self.next()
    }
}

/// The disk between two changes.
#[derive(Debug)]
pub struct CrashPoint {
    tree: Tree,
    logged: usize,
}

impl CrashPoint {
    /// Number of changes before this point, as [`SimDisk::logged`] counts.
    pub fn logged(&self) -> usize {
        self.logged
    }

    /// The disk after a crash here.
    pub fn image(&self, image: Image) -> SimDisk {
        SimDisk::from_tree(self.tree.image(image))
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut sim = self.shared.lock();
        sim.step()?;
        if sim.faults.open_files.is_some_and(|limit| sim.open_files >= limit) {
            return Err(Errno::MFILE.into());
        }
        let ino = match (sim.tree.ino(path), mode) {
            (Some(_), OpenMode::CreateNew) => return Err(Errno::EXIST.into()),
            (Some(ino), _) => ino,
            (None, OpenMode::Existing) => return Err(Errno::NOENT.into()),
            (None, _) => {
                sim.next_ino += 1;
                let ino = sim.next_ino;
                let logs = self.shared.records.load(Ordering::Relaxed);
                sim.record(Op::Name(NameChange::Create { path: path.to_owned(), ino }), logs);
                ino
            }
        };
        sim.open_files += 1;
        Ok(Arc::new(SimFile {
            shared: Arc::clone(&self.shared),
            ino,
            locks: AtomicBool::new(false),
        }))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        if self.shared.lock().tree.ino(path).is_none() {
            return Err(Errno::NOENT.into());
        }
        self.shared.apply(Op::Name(NameChange::Remove { path: path.to_owned() }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        if self.shared.lock().tree.ino(from).is_none() {
            return Err(Errno::NOENT.into());
        }
        let change = NameChange::Rename { from: from.to_owned(), to: to.to_owned() };
        self.shared.apply(Op::Name(change))
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let mut sim = self.shared.lock();
        sim.step()?;
        Ok(children(sim.tree.names().map(|(path, _)| path), dir))
    }

    fn create_dir_all(&self, _dir: &str) -> io::Result<()> {
        self.shared.lock().step()
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.shared.apply(Op::SyncDir(dir.to_owned()))
    }

    fn sync_all(&self) -> io::Result<()> {
        self.shared.apply(Op::SyncAll)
    }

    fn space(&self) -> io::Result<Space> {
        let mut sim = self.shared.lock();
        sim.step()?;
        let total_bytes = sim.faults.space_bytes.unwrap_or(1 << 40);
        let free_bytes = total_bytes.saturating_sub(sim.used_bytes());
        Ok(Space { total_bytes, free_bytes, total_inodes: 0, free_inodes: 0 })
    }

    fn kind(&self) -> io::Result<FsKind> {
        Ok(FsKind(0xef53))
    }
}

#[derive(Debug)]
struct SimFile {
    shared: Arc<Shared>,
    ino: u64,
    locks: AtomicBool,
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut sim = self.shared.lock();
        sim.open_files -= 1;
        if self.locks.load(Ordering::Relaxed) {
            sim.locked.remove(&self.ino);
        }
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut sim = self.shared.lock();
        sim.step()?;
        let Some(inode) = sim.tree.inode(self.ino) else {
            return Ok(0);
        };
        Ok(inode.read(buf, offset))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.shared.apply(Op::File(self.ino, Change::Write { offset, data: data.into() }))
    }

    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        self.shared.apply(Op::File(self.ino, Change::SetLen(len_bytes)))
    }

    fn allocate(&self, len_bytes: u64) -> io::Result<()> {
        // Pages count only where space does.
        let limit = self.shared.lock().faults.space_bytes;
        let zeros = vec![0; limit.map_or(0, |_| to_index(len_bytes))];
        self.set_len(len_bytes).and_then(|()| self.write_at(&zeros, 0))
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.shared.apply(Op::File(self.ino, Change::PunchHole(range)))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.shared.apply(Op::SyncFile(self.ino))
    }

    fn sync_range(&self, range: Range<u64>) -> io::Result<()> {
        self.shared.apply(Op::SyncRange(self.ino, range))
    }

    fn stamp(&self) -> io::Result<Stamp> {
        let mut sim = self.shared.lock();
        sim.step()?;
        let inode = sim.tree.inode(self.ino).ok_or(io::ErrorKind::NotFound)?;
        let (ino, size) = (self.ino, inode.len());
        Ok(Stamp { ino, size, mtime_ns: inode.modified_at(), ctime_ns: inode.changed_at() })
    }

    fn set_modified(&self, mtime_ns: i64) -> io::Result<()> {
        self.shared.apply(Op::File(self.ino, Change::SetModified(mtime_ns)))
    }

    fn try_lock_exclusive(&self) -> io::Result<bool> {
        let mut sim = self.shared.lock();
        if sim.locked.contains_key(&self.ino) {
            return Ok(self.locks.load(Ordering::Relaxed));
        }
        sim.locked.insert(self.ino, ());
        self.locks.store(true, Ordering::Relaxed);
        Ok(true)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with so many logged changes.
    fn changed(changes: usize) -> SimDisk {
        let disk = SimDisk::recording();
        let file = disk.open("file", OpenMode::CreateNew).unwrap();
        (disk.logged()..changes).for_each(|at| file.write_at(b"x", at as u64).unwrap());
        assert_eq!(disk.logged(), changes);
        disk
    }

    /// Whatever the seed, a few points lie at equal distances, none before the begin, and over all
    /// seeds every point is among them; without a limit all are there.
    #[test]
    fn a_few_crash_points_are_spread_over_the_history() {
        const CHANGES: usize = 12;
        let disk = changed(CHANGES);
        let logged = |begin, points_max, seed| -> Vec<usize> {
            let points = disk.crash_points_from(begin, points_max, seed);
            points.map(|point| point.logged()).collect()
        };
        for begin in 0..=CHANGES {
            let all: Vec<usize> = (begin..=CHANGES).collect();
            assert_eq!(logged(begin, None, 7), all);
            for points_max in 1..=CHANGES + 2 {
                let distance = all.len().div_ceil(points_max);
                let mut seen = std::collections::BTreeSet::new();
                for seed in 0..400 {
                    let few = logged(begin, Some(points_max), seed);
                    assert!((1..=points_max).contains(&few.len()), "{begin} {seed}: {few:?}");
                    assert!((begin..begin + distance).contains(&few[0]), "{begin} {seed}: {few:?}");
                    assert!(few.windows(2).all(|two| two[1] - two[0] == distance), "{few:?}");
                    assert!(few[few.len() - 1] + distance > CHANGES, "{begin} {seed}: {few:?}");
                    seen.extend(few);
                }
                assert!(seen.iter().eq(&all), "{begin}, {points_max}: only {seen:?}");
            }
        }
    }
}

//! The state that the handles and files of one cache share.
//!
//! Order of locks: `checkpoint`, then `filling`, then a file's locks that precede its state, then
//! the state of one file, then any of the others; of those none is held while another is taken,
//! except inside [`Index`] and [`Pool`], and that of [`Index`] under `conflicts`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

use larder_io::{Clock, Disk, DiskFile, Monotonic};

use crate::aside_dir::{ASIDE_DIR, name_among, names};
use crate::beside::{Beside, Next, Step, StepEvent, beside_key};
use crate::conflicts::{
    CONFLICTS_MAX, Conflict, ConflictKind, Conflicts, FoundConflict, decode, key_of,
};
use crate::file::CachedFile;
use crate::gauge::{Gauge, Reserved};
use crate::index::Index;
use crate::kept_on_disk::KeptOnDisk;
use crate::kept_record::WithBytes;
use crate::log::Change;
use crate::marks::Mark;
use crate::memory::{Memory, is_in_memory};
use crate::pool::{Pool, data_path};
use crate::recent::Recent;
use crate::records::{FileRecord, key, tag};
use crate::removals::Removals;
use crate::slots::Slots;
use crate::still_loaded::StillLoaded;
use crate::turns::Turns;
use crate::unwritten::{SHORT_BYTES_MAX, Unwritten};
use crate::{FileNo, lock};

/// Files that may wait to be saved before a checkpoint is asked for, besides those that the last
/// one could not save.
pub(crate) const UNSAVED_MAX: usize = 8 * 1024;
/// At this many times as many, new data is declined.
const UNSAVED_STALL_FACTOR: usize = 4;

/// From this many files on, one sync of the whole file system is cheaper than one for each: every
/// fdatasync of a new file costs a journal commit.
pub(crate) const SYNC_EACH_MAX: usize = 16;

/// Culling that did not reach its marks scans all records again only after this time: what is left
/// is pinned, dirty or open, or other programs fill the disk.
const CULL_PAUSE: Duration = Duration::from_secs(10);
/// The same if a file was closed since.
const CULL_PAUSE_AFTER_CLOSE: Duration = Duration::from_secs(1);

/// Asks the maintenance thread to come.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Mutex<Rung>,
    heard: Condvar,
}

#[derive(Debug, Default)]
struct Rung {
    wanted: bool,
    stop: bool,
}

impl Bell {
    pub(crate) fn ring(&self) {
        lock(&self.rung).wanted = true;
        self.heard.notify_one();
    }

    #[cfg(test)]
    pub(crate) fn is_rung(&self) -> bool {
        lock(&self.rung).wanted
    }

    pub(crate) fn stop(&self) {
        lock(&self.rung).stop = true;
        self.heard.notify_one();
    }

    /// Waits for a ring or the time; `false` if it is time to stop.
    pub(crate) fn wait(&self, interval: Duration) -> bool {
        let rung = lock(&self.rung);
        let idle = |rung: &mut Rung| !rung.wanted && !rung.stop;
        let (mut rung, _) = self
            .heard
            .wait_timeout_while(rung, interval, idle)
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        rung.wanted = false;
        !rung.stop
    }
}

/// The shared part of a cache.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) index: Index,
    pub(crate) pool: Pool,
    /// Data files in the kernel's hands.
    pub(crate) handed_out: Arc<Slots>,
    /// Files whose content from before the kernel changed them is known.
    pub(crate) bases: Arc<Slots>,
    pub(crate) gauge: Gauge,
    /// Files whose changes were in memory when the boot before this one ended.
    pub(crate) lost_in_memory: BTreeSet<FileNo>,
    /// Data files that lie in memory.
    pub(crate) memory: Memory,
    /// Short data files that are not on the disk yet.
    pub(crate) unwritten: Unwritten,
    /// Short data files that are not wanted any more, and still on the disk.
    pub(crate) removals: Removals,
    /// Recently filled bytes.
    pub(crate) recent: Recent,
    pub(crate) bell: Arc<Bell>,
    /// Number of this run.
    pub(crate) session: u64,
    /// Stamps of earlier runs do not stand for checksums.
    pub(crate) trust_floor: u64,
    /// States in use.
    pub(crate) files: Mutex<HashMap<FileNo, Weak<CachedFile>>>,
    /// States that nobody uses any more, but may use soon.
    pub(crate) still_loaded: StillLoaded<Arc<CachedFile>>,
    /// States that the index does not have yet; kept alive until it has.
    pub(crate) unsaved: Mutex<BTreeMap<FileNo, Arc<CachedFile>>>,
    /// How many of them the last checkpoint could not save: most have bytes that are unsent, for
    /// as long as their class allows. Another checkpoint would not help.
    pub(crate) unsavable: AtomicUsize,
    /// Files with local changes of an earlier run, until they are loaded.
    pub(crate) carried: Mutex<BTreeSet<FileNo>>,
    /// Files of which the disk may have a record of kept changes.
    pub(crate) kept: Mutex<KeptOnDisk>,
    /// Of these, the records with bytes in them.
    pub(crate) kept_bytes: Mutex<WithBytes>,
    /// Directories with names that are not durable yet.
    pub(crate) new_names: Mutex<BTreeSet<String>>,
    /// Data directories that a crash leaves where they are. They are never removed.
    pub(crate) durable_dirs: Mutex<BTreeSet<String>>,
    /// Conflicts on record. The index is changed while this is held.
    pub(crate) conflicts: Mutex<Conflicts>,
    /// Assignments of numbers to keys take turns.
    pub(crate) assigning: Mutex<()>,
    /// Held by fills of any file; a close has it exclusively.
    pub(crate) filling: Turns,
    /// Checkpoints take turns.
    pub(crate) checkpoint: Mutex<()>,
    /// When culling last did not reach its marks, and whether a file was closed since.
    pub(crate) cull_failed: Mutex<Option<(Monotonic, bool)>>,
    /// Data directories still to be searched for orphans.
    pub(crate) to_sweep: AtomicU32,
    /// See [`crate::Config::parent_in_record`].
    pub(crate) parent_in_record: fn(&[u8]) -> Option<FileNo>,
    pub(crate) closed: AtomicBool,
    /// Held while the cache is open.
    pub(crate) lock_file: Mutex<Option<Arc<dyn DiskFile>>>,
}

impl Store {
    /// A file's kept changes are on record, with so many bytes in it; since `put`, if this run put
    /// it there.
    pub(crate) fn note_kept(&self, no: FileNo, bytes: usize, put: Option<Mark>) {
        let key = self.key_of(no);
        lock(&self.kept).put(no, key, put);
        if lock(&self.kept_bytes).set(no, bytes) {
            self.bell.ring();
        }
    }

    /// After the record of a file's kept changes was put, if this run did.
    pub(crate) fn mark_of_kept(&self, no: FileNo) -> Option<Mark> {
        lock(&self.kept).mark(no)
    }

    /// The record of a file's kept changes was removed.
    pub(crate) fn note_unkept(&self, no: FileNo) {
        lock(&self.kept_bytes).set(no, 0);
        let gone = self.index.mark();
        lock(&self.kept).remove(no, gone, |mark| self.index.is_durable(mark));
    }

    /// The key of a number.
    pub(crate) fn key_of(&self, no: FileNo) -> Option<Vec<u8>> {
        self.index.get(&key(tag::KEY_OF_NUMBER, no, &[]))
    }

    /// Makes the name of a local file in this data directory durable. Always syncs: another thread
    /// that does may not have finished.
    ///
    /// # Errors
    /// Those of fsync(2).
    pub(crate) fn sync_name_in(&self, data_dir: String) -> io::Result<()> {
        let is_durable = lock(&self.durable_dirs).contains(&data_dir);
        if !is_durable {
            self.disk.sync_dir("")?;
            self.disk.sync_dir("data")?;
        }
        self.disk.sync_dir(&data_dir)?;
        lock(&self.durable_dirs).insert(data_dir);
        Ok(())
    }

    /// The disk of a local file.
    ///
    /// # Errors
    /// `NotFound` if it is in memory and this cache has no place there.
    pub(crate) fn disk_of(&self, serial: u64) -> io::Result<&Arc<dyn Disk>> {
        match is_in_memory(serial) {
            false => Ok(&self.disk),
            true => self.memory.disk().ok_or_else(|| io::ErrorKind::NotFound.into()),
        }
    }

    /// What is on record of a local file on its way to the server.
    fn beside(&self, (no, serial): (FileNo, u64)) -> Option<Beside> {
        let key = beside_key(no, serial);
        Beside::decode(&key, &self.index.get(&key)?)
    }

    /// A local file is set aside: that is a conflict on record, and so is that it is to be at the
    /// server, if that was [intended](Store::intend_beside).
    pub(crate) fn put_aside(&self, local: (FileNo, u64), conflict: Conflict) {
        let found = |number| match self.beside(local) {
            Some(intended) if matches!(intended.step, Step::Intended { .. }) => {
                let Next::Step(step) = intended.step.clone().apply(StepEvent::SetAside) else {
                    unreachable!("what was intended goes on")
                };
                let beside = Beside { number, step, ..intended };
                vec![(beside.key(), Some(beside.encode()))]
            }
            _ => vec![],
        };
        self.put_numbered(conflict, found);
    }

    /// Whether a local file was set aside, if so by a process that died before it dropped the
    /// changes: that is on record now, if it was not.
    pub(crate) fn was_set_aside(&self, no: FileNo, serial: u64) -> bool {
        let names = names(&*self.disk);
        let Some(name) = name_among(&names, no, serial) else { return false };
        let aside = format!("{ASIDE_DIR}/{name}");
        match self.beside((no, serial)).map(|beside| beside.step) {
            Some(Step::Intended { conflict }) => {
                let known = decode(&conflict).map(|(_, conflict)| conflict);
                let unknown = || Conflict::aside(no, aside, "", ConflictKind::Written, "");
                self.put_aside((no, serial), known.unwrap_or_else(unknown));
            }
            // It was put on record together with the conflict.
            Some(_) => {}
            None => {
                let all = self.conflicts_above(0, CONFLICTS_MAX);
                if all.iter().all(|found| found.conflict.aside != aside) {
                    let conflict = Conflict::aside(no, aside, "", ConflictKind::Refused, "");
                    self.put_with_conflicts(Vec::new(), vec![conflict]);
                }
            }
        }
        true
    }

    /// The state of a file, shared by all callers.
    pub(crate) fn file(self: &Arc<Self>, no: FileNo) -> Arc<CachedFile> {
        let mut files = lock(&self.files);
        if let Some(file) = files.get(&no).and_then(Weak::upgrade) {
            return file;
        }
        let file = CachedFile::new(no, Arc::clone(self));
        files.insert(no, Arc::downgrade(&file));
        file
    }

    /// Whether nothing can be stored any more.
    pub(crate) fn is_out_of_use(&self) -> bool {
        self.is_closed() || self.index.is_poisoned()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether so many files wait to be saved that no new ones may be started.
    pub(crate) fn is_crowded(&self) -> bool {
        self.to_save(lock(&self.unsaved).len()) > UNSAVED_MAX * UNSAVED_STALL_FACTOR
    }

    /// Whether so many files wait to be saved that a checkpoint was requested.
    pub(crate) fn has_many_unsaved(&self) -> bool {
        self.to_save(lock(&self.unsaved).len()) > UNSAVED_MAX
    }

    /// How many of the files that wait a checkpoint may be able to save.
    fn to_save(&self, waiting: usize) -> usize {
        waiting.saturating_sub(self.unsavable.load(Ordering::Relaxed))
    }

    /// Keeps a file until the next checkpoint.
    pub(crate) fn queue(&self, no: FileNo, file: Arc<CachedFile>) {
        let waiting = {
            let mut unsaved = lock(&self.unsaved);
            unsaved.insert(no, file);
            unsaved.len()
        };
        if self.to_save(waiting) > UNSAVED_MAX {
            self.bell.ring();
        }
    }

    /// Reserves chunks, and requests culling when a mark is passed. Keep the result until they are
    /// written.
    pub(crate) fn reserve(&self, chunks: u64) -> Option<Reserved<'_>> {
        let reserved = self.gauge.reserve(chunks, &*self.disk, &*self.clock);
        let wants_cull = reserved.as_ref().is_none_or(|reserved| reserved.wants_cull);
        if wants_cull && !self.cull_rests() {
            self.bell.ring();
        }
        reserved
    }

    /// Removes the local file of a file of `size` bytes from the disk on which it is: a short one
    /// with the next checkpoint, unless the disk's room is wanted now.
    pub(crate) fn remove_local_file(&self, no: FileNo, serial: u64, size: u64) {
        let may_wait = size <= SHORT_BYTES_MAX
            && !is_in_memory(serial)
            && !self.is_closed()
            && !self.gauge.wants_cull(&*self.disk, &*self.clock);
        if !may_wait {
            return self.remove_from_disk(no, serial);
        }
        let (waits, is_filling) = self.removals.put(no, serial);
        if is_filling {
            self.bell.ring();
        }
        if !waits {
            self.remove_from_disk(no, serial);
        }
    }

    /// Removes the local files that wait for it.
    pub(crate) fn remove_waiting(&self) {
        for (no, serial) in self.removals.take() {
            self.remove_from_disk(no, serial);
        }
    }

    /// Removes a local file from the disk on which it is.
    pub(crate) fn remove_from_disk(&self, no: FileNo, serial: u64) {
        self.pool.forget(no, serial);
        // If this fails the file is an orphan, which the sweep after the next unclean start
        // removes.
        let _ = self.disk_of(serial).and_then(|disk| disk.remove(&data_path(no, serial)));
    }

    /// Whether culling was in vain a moment ago.
    pub(crate) fn cull_rests(&self) -> bool {
        let now = self.clock.now();
        lock(&self.cull_failed).is_some_and(|(at, has_closed)| {
            now.since(at) < if has_closed { CULL_PAUSE_AFTER_CLOSE } else { CULL_PAUSE }
        })
    }

    /// The disk refused a write.
    pub(crate) fn note_error(&self, error: &std::io::Error) {
        if error.kind() == std::io::ErrorKind::StorageFull {
            self.gauge.disk_is_full(&*self.clock);
            self.bell.ring();
        }
    }

    /// Whether the stamp in a record stands for the file's checksums.
    pub(crate) fn trusts(&self, record: &FileRecord) -> bool {
        record.session >= self.trust_floor
    }

    pub(crate) fn now_sec(&self) -> u64 {
        u64::try_from(self.clock.wall().sec).unwrap_or(0)
    }
}

/// Conflicts on record.
impl Store {
    /// Changes the index, and puts conflicts on record in the same step.
    pub(crate) fn put_with_conflicts(&self, mut changes: Vec<Change>, found: Vec<Conflict>) {
        if found.is_empty() {
            return self.index.put_all(changes);
        }
        let mut conflicts = lock(&self.conflicts);
        changes.extend(conflicts.add(found, self.now_sec()));
        self.index.put_all(changes);
    }

    /// Puts a conflict on record, in the same step as changes of the index that tell its number.
    pub(crate) fn put_numbered(&self, found: Conflict, of: impl FnOnce(u64) -> Vec<Change>) {
        let mut conflicts = lock(&self.conflicts);
        let mut changes = of(conflicts.next_number());
        changes.extend(conflicts.add(vec![found], self.now_sec()));
        self.index.put_all(changes);
    }

    /// See [`crate::Cache::conflicts`].
    pub(crate) fn conflicts_above(&self, number: u64, count_max: usize) -> Vec<FoundConflict> {
        let numbers = lock(&self.conflicts).above(number, count_max);
        let read = |number| {
            let (found_sec, conflict) = decode(&self.index.get(&key_of(number))?)?;
            Some(FoundConflict { number, found_sec, conflict })
        };
        numbers.into_iter().filter_map(read).collect()
    }

    /// See [`crate::Cache::clear_conflicts`].
    pub(crate) fn clear_conflicts(&self, number: Option<u64>) -> u64 {
        let mut conflicts = lock(&self.conflicts);
        let changes = conflicts.clear(number);
        let count = changes.len() as u64;
        self.index.put_all(changes);
        count
    }
}

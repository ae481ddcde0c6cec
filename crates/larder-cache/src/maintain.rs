//! Background work of a cache: checkpoints, culling, removing orphans.
//!
//! A local file is an orphan if its number is not the one in the file's state: a crash came between
//! its creation and the commit that would have named it, or before its removal. After an unclean
//! start the data directories are searched for them, a few at each checkpoint, so that opening
//! stays O(1).

use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::config::{CacheError, Culled};
use crate::file::CachedFile;
use crate::gauge::count;
use crate::pool::parse_data_name;
use crate::records::{FileRecord, key, number_in_key, tag};
use crate::save::Saves;
use crate::store::Store;
use crate::{FileNo, lock};

/// Data directories, one for each value of a number's last byte.
pub(crate) const DATA_DIRS: u32 = 256;
/// Directories searched at a checkpoint: all of them within 80 s by default.
const SWEEP_DIRS: u32 = 16;
/// Victims picked in one walk over the records.
const VICTIMS_MAX: usize = 4096;
/// With fewer changes than this between two checkpoints a cache is idle, and its index returns
/// memory.
const IDLE_ENTRIES_MAX: usize = 100;
/// Files used within the same hour are culled by size.
const RECENCY_STEP_SEC: u64 = 3600;
/// The disk must show this share of what was culled.
const SHOWN_SHARE: u64 = 8;
/// Records read at a time.
const PAGE: usize = 1024;

/// A file that may be culled.
#[derive(Clone, Copy, Debug)]
struct Victim {
    no: FileNo,
    /// When it was used last.
    hour: u64,
    held_bytes: u64,
}

impl Store {
    /// The loop of the maintenance thread.
    pub(crate) fn maintain(self: &Arc<Self>, interval: Duration) {
        let mut was_busy = false;
        while self.bell.wait(interval) {
            let is_busy = self.index.waiting().0 > IDLE_ENTRIES_MAX;
            let which = if self.has_many_unsaved() { Saves::All } else { Saves::AllAtRest };
            match self.checkpoint(which) {
                Ok(()) => (),
                Err(CacheError::Closed) => return,
                // The index has logged that already; what is in memory can still be read.
                Err(CacheError::Poisoned | CacheError::Disk(_)) => (),
            }
            if was_busy && !is_busy {
                self.index.shed();
            }
            was_busy = is_busy;
            drop(self.still_loaded.shed());
        }
    }

    /// Saves, culls if a mark is passed, sweeps a little.
    pub(crate) fn checkpoint(self: &Arc<Self>, which: Saves) -> Result<(), CacheError> {
        let _turn = lock(&self.checkpoint);
        if self.is_closed() {
            return Err(CacheError::Closed);
        }
        let saved = self.save(which);
        self.remove_waiting();
        self.gauge.room_changed();
        saved?;
        self.cull_to_marks();
        self.index.take_reserve_back();
        self.sweep();
        Ok(())
    }

    /// A file may be culled now.
    pub(crate) fn file_closed(&self) {
        if let Some((_, has_closed)) = &mut *lock(&self.cull_failed) {
            *has_closed = true;
        }
    }

    /// Culls if a mark is passed, but not over and over where it is in vain.
    fn cull_to_marks(self: &Arc<Self>) {
        if self.cull_rests() || !self.gauge.wants_cull(&*self.disk, &*self.clock) {
            return;
        }
        let is_in_vain = loop {
            let (bytes, files) = self.gauge.cull_targets(&*self.disk, &*self.clock);
            if self.gauge.bytes() <= bytes && self.gauge.files() <= files {
                break false;
            }
            let free_before = self.gauge.free_bytes(&*self.disk, &*self.clock);
            let culled = self.cull(bytes, files);
            if culled.files == 0 || !self.has_become_free(free_before, culled.bytes) {
                break true;
            }
        };
        *lock(&self.cull_failed) = is_in_vain.then(|| (self.clock.now(), false));
    }

    /// Whether the disk shows that something was culled. Some file systems free blocks late, others
    /// free less than was counted (small files, compression): until it does, the disk's report
    /// causes no more culling.
    fn has_become_free(&self, free_before: u64, culled_bytes: u64) -> bool {
        let shows = || {
            self.gauge.room_changed();
            let free = self.gauge.free_bytes(&*self.disk, &*self.clock);
            free.saturating_sub(free_before) >= culled_bytes / SHOWN_SHARE
        };
        // A failed sync shows in the next checkpoint.
        shows() || (self.disk.sync_all().is_ok() && shows())
    }

    /// Removes the least valuable data down to the targets. The caller holds `checkpoint`.
    pub(crate) fn cull(self: &Arc<Self>, bytes_target: u64, files_target: u64) -> Culled {
        let mut culled = Culled::default();
        loop {
            let before = culled.files;
            let victims = self.victims();
            for hour in victims.chunk_by(|a, b| a.hour == b.hour) {
                self.cull_hour(hour, bytes_target, files_target, &mut culled);
            }
            // The victims leave the index, so that the next scan finds others.
            let saved = self.save(Saves::All);
            self.remove_waiting();
            self.gauge.room_changed();
            if culled.files == before || saved.is_err() {
                return culled;
            }
        }
    }

    /// Culls among files that were last used within the same hour, large before small. A file that
    /// is larger than what is still to be freed is taken only if smaller ones do not suffice, and
    /// then the smallest of those.
    fn cull_hour(
        self: &Arc<Self>,
        hour: &[Victim],
        bytes_target: u64,
        files_target: u64,
        culled: &mut Culled,
    ) {
        let mut take = |victim: &Victim| {
            if let Some(bytes) = self.file(victim.no).cull(false) {
                culled.files += 1;
                culled.bytes += bytes;
                count(&self.gauge.counters.culled);
            }
        };
        let excess = || self.gauge.bytes().saturating_sub(bytes_target);
        let too_many = || self.gauge.files() > files_target;
        let mut larger = Vec::new();
        for victim in hour {
            match excess() {
                0 if !too_many() => return,
                excess if victim.held_bytes > excess && !too_many() => larger.push(victim),
                _ => take(victim),
            }
        }
        for victim in larger.iter().rev() {
            if excess() == 0 && !too_many() {
                return;
            }
            take(victim);
        }
    }

    /// Drops all clean data of files that are not open. The caller holds `checkpoint`.
    pub(crate) fn drop_all(self: &Arc<Self>) {
        let in_memory: Vec<Arc<CachedFile>> = {
            let files = lock(&self.files);
            files.values().filter_map(std::sync::Weak::upgrade).collect()
        };
        for file in in_memory {
            file.cull(true);
        }
        self.each_record(None, |no, _| {
            self.file(no).cull(true);
            true
        });
        // A failure leaves records of files that are gone, which are misses.
        let _ = self.save(Saves::All);
        self.remove_waiting();
        self.gauge.room_changed();
        self.index.take_reserve_back();
    }

    /// Calls `visit` for every file record after `after`, until it returns `false`.
    pub(crate) fn each_record(
        &self,
        after: Option<FileNo>,
        mut visit: impl FnMut(FileNo, FileRecord) -> bool,
    ) {
        let prefix = [tag::FILE];
        let mut start = match after {
            Some(no) => key(tag::FILE, no, &[0]),
            None => prefix.to_vec(),
        };
        loop {
            let (records, next) = self.index.scan(&prefix, &start, PAGE);
            for (key, value) in records {
                let (no, record) = (number_in_key(&key), FileRecord::decode(&value));
                let (Some(no), Some(record)) = (no, record) else {
                    continue;
                };
                if !visit(no, record) {
                    return;
                }
            }
            match next {
                Some(next) => start = next,
                None => return,
            }
        }
    }

    /// Files by value, least first: long unused before recently used, then large before small.
    fn victims(&self) -> Vec<Victim> {
        let mut worst = BinaryHeap::new();
        let mut pins = self.pins();
        self.each_record(None, |no, record| {
            if record.serial != 0 && !record.pinned && !pins.cover(no) {
                let hour = record.last_use_sec / RECENCY_STEP_SEC;
                worst.push((hour, u64::MAX - record.held_bytes, no));
                if worst.len() > VICTIMS_MAX {
                    worst.pop();
                }
            }
            true
        });
        let victim = |(hour, smallness, no)| Victim { no, hour, held_bytes: u64::MAX - smallness };
        worst.into_sorted_vec().into_iter().map(victim).collect()
    }

    /// Removes the orphans of the next few data directories.
    fn sweep(self: &Arc<Self>) {
        for _ in 0..SWEEP_DIRS {
            let left = self.to_sweep.load(Ordering::Relaxed);
            if left == 0 {
                return;
            }
            self.sweep_dir(left - 1);
            self.to_sweep.store(left - 1, Ordering::Relaxed);
        }
    }

    fn sweep_dir(self: &Arc<Self>, number: u32) {
        let dir = format!("data/{number:02x}");
        // A directory that is missing or cannot be read has nothing that we could remove.
        for name in self.disk.list(&dir).unwrap_or_default() {
            let Some((no, serial)) = parse_data_name(&name) else {
                continue;
            };
            let record = self.index.get(&key(tag::FILE, no, &[]));
            let record = record.as_deref().and_then(FileRecord::decode);
            if record.is_some_and(|record| record.serial == serial) || self.index.is_poisoned() {
                continue;
            }
            let file = self.file(no);
            // Local files are created under this lock, so none appears at the same time.
            let state = file.state();
            if state.serial() != serial && self.disk.remove(&format!("{dir}/{name}")).is_ok() {
                count(&self.gauge.counters.orphans_removed);
            }
        }
    }
}

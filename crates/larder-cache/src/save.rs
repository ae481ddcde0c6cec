//! Checkpoints: from the states in memory to the index.
//!
//! Data first, then the index: a file is *prepared* (its records are made), *synced* together with
//! all others, and *finished* (its records are put, unless a local change came in between). So
//! everything that the index commits was durable before it was put there.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use larder_io::{DiskFile, Monotonic, Stamp};

use crate::config::CacheError;
use crate::file::CachedFile;
use crate::memory::is_in_memory;
use crate::ranges::RangeSet;
use crate::records::{FileRecord, bytes_key, encode_group, encode_pair, key, tag};
use crate::state::State;
use crate::store::{SYNC_EACH_MAX, Store};
use crate::sums::{GROUP_CHUNKS, chunks_of};
use crate::{CHUNK_BYTES, FileNo, lock};

/// A periodic checkpoint saves a file with a dirty mark only if it was not changed for this long. A
/// saved file that is changed again first needs a commit of the index, two syncs that the writer
/// waits for: a database would pay that after each checkpoint. Until the file is saved, a crash of
/// the machine drops it from the cache.
const MARKED_FOR: Duration = Duration::from_secs(30);

/// Which files a checkpoint saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Saves {
    /// All that are clean.
    All,
    /// These, except those with a dirty mark that were changed recently (see [`MARKED_FOR`]).
    AllAtRest,
}

/// A file that is being saved.
struct Saving {
    file: Arc<CachedFile>,
    changes: u64,
    touched: RangeSet,
    record: Option<FileRecord>,
    groups: Vec<(u32, Option<Vec<u8>>)>,
    /// The local file's stamp, if it was written for this.
    stamp: Option<Stamp>,
    /// The local file has bytes to sync. It is not kept open: a checkpoint of many files would
    /// take a descriptor for each.
    has_data: bool,
}

impl Store {
    /// Makes what is clean durable. The caller holds `checkpoint`.
    pub(crate) fn save(self: &Arc<Self>, which: Saves) -> Result<(), CacheError> {
        if self.index.is_poisoned() {
            return Err(CacheError::Poisoned);
        }
        self.drain_kept();
        let files: Vec<_> = lock(&self.unsaved).values().cloned().collect();
        let now = self.clock.now();
        let savings: Vec<_> = files.iter().filter_map(|file| file.prepare(which, now)).collect();
        for saving in self.sync(savings) {
            saving.finish();
        }
        let left = {
            let unsaved = lock(&self.unsaved);
            files.iter().filter(|file| unsaved.contains_key(&file.number())).count()
        };
        self.unsavable.store(left, Ordering::Relaxed);
        let value = encode_pair(self.gauge.saved());
        let usage = usage_key();
        if self.index.get(&usage).as_ref() != Some(&value) {
            self.index.put(usage, Some(value));
        }
        self.index.commit()
    }

    /// Makes the local changes of these files durable, and has the next commit record that. No
    /// caller may change them at the same time.
    pub(crate) fn sync_unsent(self: &Arc<Self>, files: &[FileNo]) {
        if files.is_empty() {
            return;
        }
        let on_disk = files.iter().map(|no| self.file(*no)).filter(|file| !file.is_in_memory());
        match self.disk.sync_all() {
            Ok(()) => on_disk.for_each(|file| file.note_synced()),
            Err(error) => tracing::warn!(
                %error,
                "the cache disk does not sync; what is unsent is lost with the next boot"
            ),
        }
    }

    /// Makes bytes and names durable; returns the files for which that succeeded.
    fn sync(&self, savings: Vec<Saving>) -> Vec<Saving> {
        let names = std::mem::take(&mut *lock(&self.new_names));
        let count = savings.iter().filter(|saving| saving.has_data).count();
        let at_once = count + names.len() > SYNC_EACH_MAX;
        let synced = if at_once {
            self.disk.sync_all()
        } else {
            names.iter().try_for_each(|dir| self.disk.sync_dir(dir))
        };
        if let Err(error) = synced {
            tracing::warn!(%error, "the cache disk does not sync; nothing new is kept");
            lock(&self.new_names).extend(names);
            savings.into_iter().for_each(Saving::distrust);
            return Vec::new();
        }
        let mut kept = Vec::with_capacity(savings.len());
        for saving in savings {
            let file = if at_once { Ok(None) } else { saving.to_sync() };
            match file.map(|file| file.map_or(Ok(()), |file| file.sync_data())) {
                Ok(Ok(())) => kept.push(saving),
                Ok(Err(_)) => saving.distrust(),
                Err(_) => saving.file.state().put_back(&saving.touched),
            }
        }
        kept
    }
}

/// Key of the sums over all file records.
pub(crate) fn usage_key() -> Vec<u8> {
    bytes_key(tag::META, b"usage")
}

impl CachedFile {
    /// Makes the records of the file as it is now; `None` if it must wait.
    fn prepare(self: &Arc<Self>, which: Saves, now: Monotonic) -> Option<Saving> {
        let mut state = self.state();
        let is_at_rest = state.changes().begun_at().is_none_or(|at| now.since(at) >= MARKED_FOR);
        let may_wait = which == Saves::AllAtRest && state.recorded().is_marked();
        if let Some(record) = state.record_beside_changes() {
            // Another run may have to send the changes, and the pin must be known to that one, too.
            self.store.index.put(key(tag::FILE, self.number(), &[]), Some(record.encode()));
        }
        if !state.is_clean() || (may_wait && !is_at_rest) {
            return None;
        }
        if is_in_memory(state.serial()) {
            // Bytes that the server has need not stay in memory, where they would not survive the
            // boot.
            if self.is_in_use(&state) {
                return None;
            }
            self.drop_content(&mut state);
        }
        let stamp = self.write_to_save(&mut state);
        let touched = state.begin_save();
        if self.sum_completed(&mut state, &touched).is_err() {
            state.put_back(&touched);
            return None;
        }
        let groups = changed_groups(&state, &touched);
        let held = state.sums().count();
        let is_trusted = state.local().is_stamped() || state.sums().are_verified();
        let record = (held > 0 || state.is_pinned()).then(|| FileRecord {
            serial: if held > 0 { state.serial() } else { 0 },
            size: state.size(),
            held_bytes: held * CHUNK_BYTES,
            last_use_sec: state.last_use_sec(),
            // A new stamp must not stand for chunks that were not verified.
            session: if is_trusted { self.store.session } else { 0 },
            stamp: state.recorded().record().stamp,
            pinned: state.is_pinned(),
            version: state.version().map(<[u8]>::to_vec),
        });
        let has_data = state.local().is_there() && held > 0 && !touched.is_empty();
        let changes = state.changes().count();
        drop(state);
        Some(Saving { file: Arc::clone(self), changes, touched, record, groups, stamp, has_data })
    }

    /// Writes the local file to the disk, and returns its stamp if it was not there yet.
    fn write_to_save(&self, state: &mut State) -> Option<Stamp> {
        state.local().unwritten()?;
        let written = self.write_out(state).and_then(|()| self.local(state)?.stamp());
        written
            .inspect_err(|error| {
                // It is clean: the server has it.
                self.store.note_error(error);
                self.drop_content(state);
            })
            .ok()
    }

    /// Gives sums to chunks that became complete piece by piece. Opens the local file only if there
    /// are any.
    ///
    /// # Errors
    /// The disk fails to open the local file.
    fn sum_completed(&self, state: &mut State, touched: &RangeSet) -> io::Result<()> {
        let mut chunks = Vec::new();
        for window in touched.iter() {
            let bytes = window.start * CHUNK_BYTES..window.end.saturating_mul(CHUNK_BYTES);
            for range in state.known().clip(bytes) {
                chunks.extend(chunks_of(&range));
            }
        }
        let is_unsummed = |chunk: &u64| {
            state.sums().get(*chunk).is_none() && state.presence().is_complete(*chunk)
        };
        chunks.retain(is_unsummed);
        chunks.dedup();
        if !state.local().is_there() || chunks.is_empty() {
            return Ok(());
        }
        let file = self.local(state)?;
        for chunk in chunks {
            match self.sum_on_disk(state, &file, chunk) {
                Ok(sum) => state.set_sum(chunk, sum),
                Err(_) => self.forget_chunk(state, chunk),
            }
        }
        Ok(())
    }
}

fn changed_groups(state: &State, touched: &RangeSet) -> Vec<(u32, Option<Vec<u8>>)> {
    let mut numbers = state.sums().group_numbers();
    numbers.extend(state.recorded().groups());
    let is_changed = |number: &u32| {
        let first = u64::from(*number) * GROUP_CHUNKS;
        touched.intersects(first..first + GROUP_CHUNKS)
            || state.sums().group(*number).is_none()
            || state.serial() != state.recorded().record().serial
    };
    let encoded = |number: u32| {
        let group = state.sums().group(number);
        let group = group.map(|group| encode_group(state.serial(), group));
        (number, group)
    };
    numbers.into_iter().filter(is_changed).map(encoded).collect()
}

impl Saving {
    /// The local file, if its bytes are still to be made durable.
    fn to_sync(&self) -> io::Result<Option<Arc<dyn DiskFile>>> {
        let state = self.file.state();
        // If the file has changed since, nothing is put into the index; see [`Saving::finish`].
        if !self.has_data || state.changes().count() != self.changes {
            return Ok(None);
        }
        self.file.local(&state).map(Some)
    }

    /// Puts the records, now that the data is durable.
    fn finish(self) {
        let (file, store) = (&self.file, &self.file.store);
        let mut state = file.state();
        let mut record = self.record.clone();
        let is_stamped = match &mut record {
            Some(record) if record.serial != 0 => {
                let look = || file.local(&state).and_then(|local| local.stamp());
                let stamp = self.stamp.map_or_else(look, Ok);
                stamp.map(|stamp| record.stamp = stamp).is_ok()
            }
            _ => true,
        };
        if !is_stamped || state.changes().count() != self.changes {
            state.put_back(&self.touched);
            return;
        }
        let no = file.number();
        let mut puts = Vec::with_capacity(2 + self.groups.len());
        if record.is_some() || state.recorded().is_there() {
            puts.push((key(tag::FILE, no, &[]), record.as_ref().map(FileRecord::encode)));
        }
        let groups: Vec<_> = self.groups.iter().map(|(no, group)| (*no, group.is_some())).collect();
        for (number, group) in self.groups {
            puts.push((key(tag::GROUP, no, &number.to_be_bytes()), group));
        }
        if state.recorded().is_marked() {
            puts.push((key(tag::DIRTY, no, &[]), None));
        }
        let counts = |state: &State| {
            let record = state.recorded().record();
            (record.held_bytes, u64::from(record.serial != 0))
        };
        let before = counts(&state);
        state.end_save(record, groups);
        store.gauge.change_saved(before, counts(&state));
        store.index.put_all(puts);
        if state.leave_queue() {
            lock(&store.unsaved).remove(&no);
        }
    }

    /// What was written may be lost although the page cache still shows it.
    fn distrust(self) {
        if self.has_data {
            let mut state = self.file.state();
            if state.is_clean() {
                self.file.drop_content(&mut state);
                return;
            }
        }
        self.file.state().put_back(&self.touched);
    }
}

#[cfg(test)]
mod tests {
    use larder_io::{Image, SimClock, SimDisk};

    use super::*;
    use crate::store::UNSAVED_MAX;
    use crate::{Cache, Config};

    fn open(disk: &SimDisk) -> Cache {
        let config = Config { checkpoint_interval: None, ..Config::new(b"volume") };
        Cache::open(Arc::new(disk.clone()), Arc::new(SimClock::new()), config).unwrap()
    }

    #[test]
    fn a_change_between_preparing_and_finishing_is_not_vouched_for() {
        let disk = SimDisk::new();
        let cache = open(&disk);
        let file = cache.file(cache.assign(b"key"));
        file.reset(b"v1", CHUNK_BYTES);
        file.fill(b"v1", 0, &[1; CHUNK_BYTES as usize]);
        let saving = file.prepare(Saves::All, file.store.clock.now()).unwrap();
        file.write(0, b"local").unwrap();
        saving.finish();
        file.store.index.commit().unwrap();
        let after = open(&disk.crash(Image::Written));
        assert_eq!(after.file(file.number()).version(), None);
        // A fill in between does no harm, and is saved the next time.
        file.mark_clean(0..5);
        file.set_version(b"v2", CHUNK_BYTES);
        cache.checkpoint().unwrap();
        assert_eq!(open(&disk.crash(Image::Synced)).file(file.number()).version().unwrap(), b"v2");
    }

    /// A database changes a cached file, syncs it, and repeats that: only its first change waits
    /// for a commit.
    #[test]
    fn a_file_that_is_changed_again_and_again_is_marked_once() {
        let (disk, clock) = (SimDisk::new(), Arc::new(SimClock::new()));
        let config = Config { checkpoint_interval: None, ..Config::new(b"volume") };
        let cache = Cache::open(Arc::new(disk.clone()), clock.clone(), config).unwrap();
        let file = cache.file(cache.assign(b"key"));
        file.reset(b"v0", CHUNK_BYTES);
        file.fill(b"v0", 0, &[1; CHUNK_BYTES as usize]);
        cache.checkpoint().unwrap();
        assert!(!file.writes_quickly(), "the index vouches for it");
        let version = || open(&disk.crash(Image::Synced)).file(file.number()).version();
        for change in 1..10_u8 {
            file.write(0, &[change; 100]).unwrap();
            assert!(file.writes_quickly());
            file.mark_clean(0..CHUNK_BYTES);
            file.set_version(&[change], CHUNK_BYTES);
            clock.advance(Duration::from_secs(5));
            file.store.checkpoint(Saves::AllAtRest).unwrap();
            assert!(file.writes_quickly() && version().is_none(), "{change}");
        }
        clock.advance(MARKED_FOR);
        file.store.checkpoint(Saves::AllAtRest).unwrap();
        assert_eq!((file.writes_quickly(), version()), (false, Some(vec![9])));
    }

    /// A tree that was made here waits for the server: the files of it that are not sent yet ask
    /// for no checkpoint each time that another one is made, nor do they keep the cache from
    /// filling.
    #[test]
    fn files_that_no_checkpoint_can_save_ask_for_none() {
        let cache = open(&SimDisk::new());
        let store = &cache.store;
        let write = |number: usize| {
            let file = cache.file(cache.assign(&number.to_be_bytes()));
            file.reset(b"v1", 0);
            file.write(0, b"local").unwrap();
            file
        };
        let files: Vec<_> = (0..=UNSAVED_MAX).map(write).collect();
        assert!(store.has_many_unsaved());
        cache.checkpoint().unwrap();
        write(UNSAVED_MAX + 1);
        assert!(!store.has_many_unsaved() && !store.is_crowded());
        // As soon as they are sent they can be saved.
        for file in &files {
            file.mark_clean(0..5);
            file.set_version(b"v2", 5);
        }
        cache.checkpoint().unwrap();
        assert_eq!(lock(&store.unsaved).len(), 1);
        assert_eq!(store.unsavable.load(Ordering::Relaxed), 1);
    }
}

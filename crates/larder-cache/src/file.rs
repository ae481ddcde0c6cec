//! The data of one file.
//!
//! A method locks the state, loads it from the index if necessary, checks the local file
//! once (does it exist, and does it have the stamp in the index?), and then works on both.
//! Reading itself happens outside the lock: known bytes change only by a local write, which may
//! race with a read here as it may in a kernel; a new version is a new local file.
//!
//! [`crate::fill`] stores what the server returned, [`crate::change`] makes local changes,
//! [`crate::save`] writes the state to the index, [`crate::local`] records local changes;
//! [`crate::state`] has the invariants.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLockWriteGuard, Weak};

use bytes::Bytes;
use larder_io::{DiskFile, OpenMode};

use crate::gauge::count;
use crate::memory::is_in_memory;
use crate::pool::data_dir;
use crate::records::{FileRecord, decode_group, group_in_key, key, tag};
use crate::state::{Found, State};
use crate::store::Store;
use crate::sums::{Summer, chunk_range, chunks_of};
use crate::turns::Filling;
use crate::unwritten::{UnwrittenFile, room_of};
use crate::{FileNo, lock};

/// Not all wanted bytes are held, or the disk fails to return them. Ask the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not in the cache")]
pub struct Miss;

/// A local change does not fit or the disk refuses it. Send it to the server instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no space in the cache")]
pub struct NoSpace;

/// What happened to clean bytes that were offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// They are held.
    Stored,
    /// They are not: another version is current, a limit is reached or the disk refuses.
    Declined,
}

/// The data of one file.
///
/// All methods may read the local disk; only those that say so wait for a sync. Methods may be
/// called from any thread; those of one file take turns.
///
/// The order after a local change has reached the server: [`CachedFile::mark_clean`], then
/// [`CachedFile::set_version`] with the validator that the server gave for it. Until then the index
/// on disk does not record the file as valid, so a crash drops it.
#[derive(Debug)]
pub struct CachedFile {
    no: FileNo,
    pub(crate) store: Arc<Store>,
    me: Weak<CachedFile>,
    pub(crate) state: Mutex<State>,
    /// Held by the caller that verifies it; taken before `filling`.
    pub(crate) verifying: Mutex<()>,
    /// Shared by fills, exclusive for changes (see [`crate::fill`]); taken before `state`.
    filling: Filling,
    /// How many have it open.
    pub(crate) holders: AtomicU32,
    /// The next local file is to lie in memory.
    pub(crate) prefers_memory: AtomicBool,
    /// What the account of memory includes for it.
    pub(crate) memory_bytes: AtomicU64,
}

impl CachedFile {
    pub(crate) fn new(no: FileNo, store: Arc<Store>) -> Arc<CachedFile> {
        Arc::new_cyclic(|me| CachedFile {
            no,
            store,
            me: Weak::clone(me),
            state: Mutex::default(),
            verifying: Mutex::default(),
            filling: Filling::default(),
            holders: AtomicU32::new(0),
            prefers_memory: AtomicBool::new(false),
            memory_bytes: AtomicU64::new(0),
        })
    }

    /// The file's number.
    pub fn number(&self) -> FileNo {
        self.no
    }

    /// The validator of the clean bytes held; `None` if nothing is known about the file.
    pub fn version(&self) -> Option<Vec<u8>> {
        self.state().version().map(<[u8]>::to_vec)
    }

    /// End of file with local changes, in bytes; 0 without a version.
    pub fn size(&self) -> u64 {
        self.state().size()
    }

    /// Fills `buf` from `offset`. A chunk that this run has not yet verified is verified first.
    ///
    /// # Errors
    /// [`Miss`] unless all bytes are held and right; a chunk that turns out bad is forgotten.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Miss> {
        let end = offset.checked_add(buf.len() as u64).ok_or(Miss)?;
        let found = self.find(offset..end).and_then(|file| match file {
            Some(file) => file.read_exact_at(buf, offset).map_err(|error| {
                self.lose(offset..end, &error);
                Miss
            }),
            None => Ok(()),
        });
        let counters = &self.store.gauge.counters;
        count(if found.is_ok() { &counters.hits } else { &counters.misses });
        found
    }

    /// The bytes of a range, if they are held and were filled by [`CachedFile::fill_ahead`] a
    /// moment ago; they may be returned only once. Reads no disk.
    pub fn read_recent(&self, range: &Range<u64>) -> Option<Bytes> {
        if self.store.recent.bytes() == 0 {
            return None;
        }
        let mut state = self.state();
        self.check_local(&mut state).ok()?;
        let is_held = !range.is_empty() && state.known().contains(range.clone());
        debug_assert!(!state.is_bypassed() || self.store.recent.has_none_of(self.no));
        let found =
            is_held.then(|| self.store.recent.take(self.no, state.serial(), range)).flatten()?;
        count(&self.store.gauge.counters.hits);
        Some(found)
    }

    /// Forgets all bytes and starts over with another version of `size` bytes, unless there are
    /// local changes. Returns whether it did.
    ///
    /// The new version gets a new local file; descriptors of the old one keep showing it.
    pub fn reset(&self, version: &[u8], size: u64) -> bool {
        let _alone = self.alone();
        let mut state = self.state();
        let is_clean = !state.has_changes();
        if is_clean {
            self.reset_locked(&mut state, version, size);
        }
        is_clean
    }

    /// Drops all bytes and the version too, unless there are local changes. Returns whether it did.
    /// The next fill or version begins with a [`CachedFile::reset`].
    pub fn give_up(&self) -> bool {
        let _alone = self.alone();
        let mut state = self.state();
        let is_clean = !state.has_changes();
        if is_clean {
            self.forget_locked(&mut state);
        }
        is_clean
    }

    /// Forgets all bytes, dirty ones too, and starts over.
    #[cfg(test)]
    pub(crate) fn start_over(&self, version: &[u8], size: u64) {
        let _alone = self.alone();
        self.reset_locked(&mut self.state(), version, size);
    }

    /// Declares the held bytes valid under a newer validator too, unless some are dirty. Returns
    /// whether they are.
    ///
    /// To be called after the server has acknowledged our own changes and reports that no other
    /// client made any. Without a version before, or if the size is not the one here, it is a
    /// [`CachedFile::reset`], except for a file that is bypassed.
    pub fn set_version(&self, version: &[u8], size: u64) -> bool {
        let _alone = self.alone();
        let mut state = self.state();
        if !state.dirty().is_empty() {
            return false;
        }
        let is_other_size = state.size() != size && !state.is_bypassed();
        let is_whole_new = state.version().is_none() || is_other_size;
        if is_whole_new {
            self.reset_locked(&mut state, version, size);
            return true;
        }
        if state.vouch(version) {
            self.queue(&mut state);
            self.note(&mut state);
        }
        true
    }

    /// Says that the file was used, for the order of culling.
    pub fn touch(&self) {
        let mut state = self.state();
        if state.touch(self.store.now_sec()) {
            self.queue(&mut state);
        }
    }
}

/// Within the crate.
impl CachedFile {
    /// The state, loaded.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        if !state.is_loaded() {
            self.load(&mut state);
        }
        state
    }

    /// Held by callers that fill it.
    pub(crate) fn filling(&self) -> &Filling {
        &self.filling
    }

    /// The state, if it is not locked and is loaded or can be loaded from the index alone.
    pub(crate) fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        let mut state = self.state.try_lock().ok()?;
        if !state.is_loaded() {
            if lock(&self.store.carried).contains(&self.number()) {
                return None;
            }
            self.load(&mut state);
        }
        Some(state)
    }

    /// Exclusive access for a change of the local file. Waits for fills in progress. To be taken
    /// before the state.
    pub(crate) fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        let alone = self.filling.turns.alone();
        self.store.recent.forget(self.no);
        alone
    }

    /// Exempts the file from culling, or not.
    pub(crate) fn pin(&self, pinned: bool) {
        let mut state = self.state();
        if state.pin(pinned) {
            self.queue(&mut state);
        }
    }

    /// Forgets everything, dirty bytes too.
    pub(crate) fn forget(&self) {
        let _alone = self.alone();
        self.forget_locked(&mut self.state());
    }

    pub(crate) fn forget_locked(&self, state: &mut State) {
        self.drop_content(state);
        state.start(None, 0);
    }

    /// Drops the data if it is clean and the file is not open; returns the bytes freed.
    pub(crate) fn cull(&self, even_pinned: bool) -> Option<u64> {
        let mut state = self.state();
        if self.is_in_use(&state)
            || !state.is_clean()
            || (state.is_pinned() && !even_pinned)
            || !state.local().is_there()
        {
            return None;
        }
        let freed = state.presence().charged() * crate::CHUNK_BYTES;
        self.drop_content(&mut state);
        Some(freed)
    }

    /// Whether a caller has it open, or works on its local file.
    pub(crate) fn is_in_use(&self, state: &State) -> bool {
        let is_open = self.holders.load(Ordering::Acquire) > 0;
        is_open || !self.filling.turns.is_free() || state.local().is_handed_out()
    }

    /// Puts the file into the list of those to save.
    pub(crate) fn queue(&self, state: &mut State) {
        if !state.recorded().is_queued()
            && let Some(me) = self.me.upgrade()
        {
            state.queue();
            self.store.queue(self.no, me);
        }
    }

    /// The local file, which must exist. After a close it may belong to another process.
    pub(crate) fn local(&self, state: &State) -> io::Result<Arc<dyn DiskFile>> {
        if self.store.is_closed() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if !state.local().is_there() {
            return Err(io::ErrorKind::NotFound.into());
        }
        if let Some(file) = state.local().unwritten() {
            return Ok(Arc::clone(file) as Arc<dyn DiskFile>);
        }
        let disk = self.store.disk_of(state.serial())?;
        self.store.pool.get(&**disk, self.no, state.serial(), OpenMode::Existing)
    }

    /// The checksum of what the disk has for a chunk.
    pub(crate) fn sum_on_disk(
        &self,
        state: &State,
        file: &Arc<dyn DiskFile>,
        chunk: u64,
    ) -> io::Result<u32> {
        Summer::new().sum(&**file, chunk, state.size())
    }

    /// Forgets the clean bytes of a bad chunk.
    pub(crate) fn forget_chunk(&self, state: &mut State, chunk: u64) {
        count(&self.store.gauge.counters.bad_chunks);
        tracing::warn!(file = self.no.0, chunk, "a cached chunk is damaged and is forgotten");
        let range = chunk_range(chunk, state.size());
        state.forget_clean(range);
        self.recharge(state);
        self.queue(state);
    }

    /// Forgets all data and removes the local file; the version stays.
    pub(crate) fn drop_content(&self, state: &mut State) {
        let recorded = state.recorded();
        let is_named = recorded.noted().is_some() || state.serial() == recorded.record().serial;
        // After a close, the file that the index names belongs to the next user of the directory.
        let is_left = is_named && self.store.is_closed();
        self.drop_note(state);
        if !is_left {
            self.remove_local(state);
        }
        self.store.gauge.change_chunks(state.presence().charged(), 0);
        if state.drop_content() {
            self.queue(state);
        }
    }
}

/// Steps of the above; all work on a locked state.
impl CachedFile {
    pub(crate) fn load(&self, state: &mut State) {
        self.load_saved(state);
        self.load_local(state);
    }

    fn load_saved(&self, state: &mut State) {
        let (index, now_sec) = (&self.store.index, self.store.now_sec());
        let record = index.get(&key(tag::FILE, self.no, &[]));
        let Some(record) = record.as_deref().and_then(FileRecord::decode) else {
            return state.load(now_sec, None);
        };
        let (mut numbers, mut groups) = (BTreeSet::new(), Vec::new());
        for (key, value) in index.scan_all(&key(tag::GROUP, self.no, &[])) {
            let Some(number) = group_in_key(&key) else {
                continue;
            };
            numbers.insert(number);
            if let Some((serial, group)) = decode_group(&value)
                && serial == record.serial
            {
                groups.push((number, group));
            }
        }
        let held_bytes = record.held_bytes;
        state.load(now_sec, Some(Found { record, numbers, groups }));
        let charged_bytes = state.presence().charged() * crate::CHUNK_BYTES;
        self.store.gauge.change_bytes(held_bytes, charged_bytes);
    }

    /// Checks the local file, once: drops what is held if it is gone, and compares its stamp with
    /// the recorded one.
    pub(crate) fn check_local(&self, state: &mut State) -> io::Result<()> {
        if self.store.is_closed() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if state.local().is_checked() {
            return Ok(());
        }
        match self.local(state).and_then(|file| file.stamp()) {
            Ok(stamp) => {
                let record = state.recorded().record();
                let as_recorded = stamp == record.stamp && self.store.trusts(record);
                state.set_checked(as_recorded);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.drop_content(state);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// The local file for reading a range that is held and right; `None` for an empty range.
    fn find(&self, range: Range<u64>) -> Result<Option<Arc<dyn DiskFile>>, Miss> {
        let mut state = self.state();
        if self.check_local(&mut state).is_err() || !state.known().contains(range.clone()) {
            return Err(Miss);
        }
        if range.is_empty() {
            return Ok(None);
        }
        for chunk in chunks_of(&range) {
            self.verify_chunk(&mut state, chunk).map_err(|_| Miss)?;
        }
        if !state.known().contains(range) {
            return Err(Miss);
        }
        self.local(&state).map(Some).map_err(|_| Miss)
    }

    /// A read failed: forgets what cannot be read, unless the cause lies elsewhere.
    fn lose(&self, range: Range<u64>, error: &io::Error) {
        tracing::debug!(file = self.no.0, %error, "a read of the local file failed");
        let mut state = self.state();
        for chunk in chunks_of(&range) {
            if state.known().intersects(chunk_range(chunk, state.size())) {
                self.forget_chunk(&mut state, chunk);
            }
        }
    }

    /// Verifies a chunk unless this run has; forgets it if it is bad.
    ///
    /// # Errors
    /// The disk fails to open the local file.
    pub(crate) fn verify_chunk(&self, state: &mut State, chunk: u64) -> io::Result<()> {
        let Some(sum) = state.sums().get(chunk) else {
            return Ok(());
        };
        if state.sums().is_verified(chunk) {
            return Ok(());
        }
        let file = self.local(state)?;
        match self.sum_on_disk(state, &file, chunk) {
            Ok(found) if found == sum => state.set_sum(chunk, sum),
            _ => self.forget_chunk(state, chunk),
        }
        Ok(())
    }

    pub(crate) fn reset_locked(&self, state: &mut State, version: &[u8], size: u64) {
        self.drop_content(state);
        state.start(Some(version), size);
        // A reset is saved anyway.
        state.touch(self.store.now_sec());
    }

    /// The local file, on the disk, created if it is missing.
    pub(crate) fn create_local(&self, state: &mut State) -> io::Result<Arc<dyn DiskFile>> {
        if state.local().is_there() {
            self.write_out(state)?;
            return self.local(state);
        }
        if !self.store.gauge.reserve_file() {
            self.store.bell.ring();
            return Err(io::ErrorKind::StorageFull.into());
        }
        let created = self.create_anywhere(state.size());
        match created {
            Ok((serial, file)) => {
                state.create_local(serial);
                Ok(file)
            }
            Err(error) => {
                self.store.gauge.release_file();
                Err(error)
            }
        }
    }

    /// A new local file: in memory, if that is wanted and possible, or on the disk.
    fn create_anywhere(&self, size: u64) -> io::Result<(u64, Arc<dyn DiskFile>)> {
        let serial = self.store.index.next_number();
        if self.prefers_memory.load(Ordering::Relaxed) {
            let wanted = self.store.memory.number_of_new(serial, size);
            if let Ok(file) = self.create_file(wanted, size) {
                return Ok((wanted, file));
            }
        }
        Ok((serial, self.create_file(serial, size)?))
    }

    pub(crate) fn create_file(&self, serial: u64, size: u64) -> io::Result<Arc<dyn DiskFile>> {
        let (store, dir) = (&self.store, data_dir(self.no));
        let disk = store.disk_of(serial)?;
        let create = || store.pool.get(&**disk, self.no, serial, OpenMode::CreateNew);
        let is_durable = !is_in_memory(serial);
        let new_names = |names: &[&str]| {
            let names = names.iter().filter(|_| is_durable).map(|name| (*name).to_owned());
            lock(&store.new_names).extend(names);
        };
        let file = match create() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                disk.create_dir_all(&dir)?;
                new_names(&["", "data"]);
                create()?
            }
            other => other?,
        };
        new_names(&[&dir]);
        // A new file has no bytes.
        if size > 0
            && let Err(error) = file.set_len(size)
        {
            self.store.remove_from_disk(self.no, serial);
            return Err(error);
        }
        Ok(file)
    }

    /// Updates the accounts to what is known.
    pub(crate) fn recharge(&self, state: &mut State) {
        let (before, now) = state.recharge();
        self.store.gauge.change_chunks(before, now);
    }

    /// Writes the local file to the disk, if it is still only in memory.
    ///
    /// # Errors
    /// The disk's; it is still only in memory then.
    pub(crate) fn write_out(&self, state: &mut State) -> io::Result<()> {
        let Some(file) = state.local().unwritten().cloned() else { return Ok(()) };
        let serial = state.serial();
        // Writing makes it as long as it is.
        if let Err(error) = file.write_out(|| self.create_file(serial, 0)) {
            self.store.remove_from_disk(self.no, serial);
            return Err(error);
        }
        state.set_written();
        self.wrote_out(&file);
        Ok(())
    }

    /// A file that waited is written, or not coming.
    pub(crate) fn wrote_out(&self, file: &UnwrittenFile) {
        self.store.unwritten.give_back(file.size());
        self.store.gauge.has_written(room_of(file.size()));
    }

    /// Removes the local file, if it exists.
    fn remove_local(&self, state: &State) {
        if !state.local().is_there() {
            return;
        }
        if let Some(file) = state.local().unwritten() {
            self.wrote_out(file);
        } else {
            self.store.remove_local_file(self.no, state.serial(), state.size());
        }
        self.store.gauge.release_file();
        self.store.memory.change(self.memory_bytes.swap(0, Ordering::Relaxed), 0);
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        let state = lock(&self.state);
        let recorded = state.recorded();
        if state.is_loaded() {
            // What was known but not saved is lost.
            let charged_bytes = state.presence().charged() * crate::CHUNK_BYTES;
            self.store.gauge.change_bytes(charged_bytes, recorded.record().held_bytes);
        }
        let is_saved = state.serial() == recorded.record().serial;
        if !is_saved && recorded.noted().is_none() && !state.has_changes() {
            self.remove_local(&state);
        }
        drop(state);
        let mut files = lock(&self.store.files);
        if files.get(&self.no).is_some_and(|file| file.strong_count() == 0) {
            files.remove(&self.no);
        }
    }
}

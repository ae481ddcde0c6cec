//! The handle of a cache: numbers, records, files, maintenance.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use larder_io::{Clock, Disk, MemDisk, OpenMode};

use crate::aside_dir::{self, ASIDE_DIR};
use crate::config::{
    CacheError, Config, Culled, Limits, Listed, OpenError, Usage, VerifyProgress, VerifyReport,
};
use crate::conflicts::{Conflict, FoundConflict};
use crate::file::CachedFile;
use crate::index::INDEX_FILE;
use crate::local::with_local_changes;
use crate::marks::Mark;
use crate::records::{bytes_key, decode_number, encode_number, key, number_in_key, tag};
use crate::save::Saves;
use crate::store::Store;
use crate::{FileNo, lock, open};

/// A cache. Clones are handles of the same one.
///
/// Methods on records search memory and then the index: they may read the disk, but never wait for
/// a sync unless more than four times the pending limit is queued in memory. What they put is
/// durable after the next [`Cache::checkpoint`]; once the index has failed it is dropped.
///
/// If the last handle is dropped without [`Cache::close`], nothing more is saved, and the next open
/// treats that as a crash.
#[derive(Clone, Debug)]
pub struct Cache {
    pub(crate) store: Arc<Store>,
    /// Shared by the handles; the last one stops the thread.
    _keeper: Arc<Keeper>,
}

/// How much of the journal of names was put: see [`Cache::put_names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamesMark(Mark);

impl Cache {
    /// Opens a cache, creating it in an empty directory. O(1), also after a crash.
    ///
    /// If the process died and the machine kept running ([`Config::boot`]), unacknowledged changes
    /// are still there, see [`Cache::unsent`]. After a crash every chunk is verified at first use,
    /// and files with unacknowledged changes are dropped and counted. An index that cannot be read
    /// is replaced by an empty one, with one line in the log.
    ///
    /// # Errors
    /// As [`OpenError`] says.
    pub fn open(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        config: Config,
    ) -> Result<Cache, OpenError> {
        let store = open::open(disk, clock, &config)?;
        store.drop_intended();
        let keeper = Keeper::start(Arc::clone(&store), config.checkpoint_interval);
        Ok(Cache { store, _keeper: Arc::new(keeper) })
    }

    /// A cache that ends with the process.
    ///
    /// # Errors
    /// `Unwritable` if the kernel grants no memory file.
    pub fn in_memory(clock: Arc<dyn Clock>, limits: Limits) -> Result<Cache, OpenError> {
        let config = Config { limits, ..Config::new(b"memory") };
        Cache::open(Arc::new(MemDisk::new()), clock, config)
    }

    /// The number of a key: the one it has, or the next new one.
    pub fn assign(&self, key: &[u8]) -> FileNo {
        if let Some(no) = self.number_of(key) {
            return no;
        }
        // Another caller with the same key gets the same number.
        let _turn = lock(&self.store.assigning);
        if let Some(no) = self.number_of(key) {
            return no;
        }
        let no = FileNo(self.store.index.next_number());
        self.put_number(no, key);
        no
    }

    /// Gives [`FileNo::ROOT`] to a key, taking it from another one.
    pub fn assign_root(&self, key: &[u8]) -> FileNo {
        let _turn = lock(&self.store.assigning);
        if self.number_of(key) != Some(FileNo::ROOT) {
            self.give_key(FileNo::ROOT, key);
        }
        FileNo::ROOT
    }

    /// The number of a key, if it has one.
    pub fn number_of(&self, key: &[u8]) -> Option<FileNo> {
        let value = self.store.index.get(&bytes_key(tag::NUMBER_OF_KEY, key))?;
        decode_number(&value).map(FileNo)
    }

    /// The key of a number.
    pub fn key_of(&self, no: FileNo) -> Option<Vec<u8>> {
        self.store.key_of(no)
    }

    /// Gives a number another key: the server gave the same file a new handle. Records and data
    /// stay. A number that had `new_key` before loses it.
    pub fn rekey(&self, no: FileNo, new_key: &[u8]) {
        let _turn = lock(&self.store.assigning);
        self.give_key(no, new_key);
    }

    /// Removes a number's key, which the server may give to another file. Records and data stay.
    pub fn drop_key(&self, no: FileNo) {
        let _turn = lock(&self.store.assigning);
        self.store.index.put_all(self.without_key(no));
    }

    /// The record of a file.
    pub fn node(&self, no: FileNo) -> Option<Vec<u8>> {
        self.store.index.get(&key(tag::NODE, no, &[]))
    }

    /// Sets the record of a file.
    pub fn put_node(&self, no: FileNo, record: &[u8]) {
        self.store.index.put(key(tag::NODE, no, &[]), Some(record.to_vec()));
    }

    /// Forgets a file's record and key, so the number is never given again. Its data goes with
    /// [`Cache::drop_file`], its pages with [`Cache::drop_listing`].
    pub fn drop_node(&self, no: FileNo) {
        let _turn = lock(&self.store.assigning);
        let tags = [tag::NODE, tag::PIN, tag::CLASS];
        let mut changes: Vec<_> = tags.map(|tag| (key(tag, no, &[]), None)).into();
        changes.extend(self.without_key(no));
        self.store.index.put_all(changes);
    }

    /// The record of a name in a directory.
    pub fn name(&self, dir: FileNo, name: &[u8]) -> Option<Vec<u8>> {
        self.store.index.get(&key(tag::NAME, dir, name))
    }

    /// All names of a directory with their records, in the order of their bytes.
    pub fn names_in(&self, dir: FileNo) -> Vec<(Vec<u8>, Vec<u8>)> {
        let prefix = key(tag::NAME, dir, &[]);
        let records = self.store.index.scan_all(&prefix);
        records.into_iter().map(|(key, record)| (key[prefix.len()..].to_vec(), record)).collect()
    }

    /// Sets the record of a name in a directory.
    pub fn put_name(&self, dir: FileNo, name: &[u8], record: &[u8]) {
        self.store.index.put(key(tag::NAME, dir, name), Some(record.to_vec()));
    }

    /// Forgets a name in a directory.
    pub fn drop_name(&self, dir: FileNo, name: &[u8]) {
        self.store.index.put(key(tag::NAME, dir, name), None);
    }

    /// A page of a directory's listing.
    pub fn listing(&self, dir: FileNo, page: u32) -> Option<Vec<u8>> {
        self.store.index.get(&key(tag::LISTING, dir, &page.to_be_bytes()))
    }

    /// Sets a page of a directory's listing.
    pub fn put_listing(&self, dir: FileNo, page: u32, record: &[u8]) {
        self.store.index.put(key(tag::LISTING, dir, &page.to_be_bytes()), Some(record.to_vec()));
    }

    /// Forgets all pages of a directory's listing.
    pub fn drop_listing(&self, dir: FileNo) {
        let pages = self.store.index.scan_all(&key(tag::LISTING, dir, &[]));
        self.store.index.put_all(pages.into_iter().map(|(key, _)| (key, None)).collect());
    }

    /// The data of a file; the state is shared by all holders. Does not touch the disk.
    ///
    /// A state without holders leaves memory once it is saved, and a while later if it was held.
    /// Parts that cannot be saved are lost with it: the version of a file without a whole chunk,
    /// and parts of chunks.
    pub fn file(&self, no: FileNo) -> Arc<CachedFile> {
        self.store.file(no)
    }

    /// Keeps a record of the caller about a file's class until the file's number is dropped; or
    /// removes the record.
    pub fn put_class(&self, no: FileNo, record: Option<&[u8]>) {
        self.store.index.put(key(tag::CLASS, no, &[]), record.map(<[u8]>::to_vec));
    }

    /// All records of [`Cache::put_class`], by number.
    pub fn classes(&self) -> Vec<(FileNo, Vec<u8>)> {
        let records = self.store.index.scan_all(&[tag::CLASS]);
        let record = |(key, value): (Vec<u8>, _)| Some((number_in_key(&key)?, value));
        records.into_iter().filter_map(record).collect()
    }

    /// Changes records of the journal of names, each under its number: all of them or none, in the
    /// order of the calls. They survive the process, if the cache knows the boot, and a crash of
    /// the machine once [`Cache::keep_names`] has returned for the mark that this returns.
    /// Conflicts that were found by that are put on record with them.
    pub fn put_names(
        &self,
        changes: impl IntoIterator<Item = (u64, Option<Vec<u8>>)>,
        conflicts: Vec<Conflict>,
    ) -> NamesMark {
        let record = |(no, record)| (key(tag::MADE, FileNo(no), &[]), record);
        self.store.put_with_conflicts(changes.into_iter().map(record).collect(), conflicts);
        self.names_mark()
    }

    /// The conflicts on record with a number above `above`, in order; at most `count_max`.
    pub fn conflicts(&self, above: u64, count_max: usize) -> Vec<FoundConflict> {
        self.store.conflicts_above(above, count_max)
    }

    /// How many conflicts are on record, and how many gave way to later ones.
    pub fn count_conflicts(&self) -> (u64, u64) {
        lock(&self.store.conflicts).counts()
    }

    /// Clears one conflict, or all: forgets them, and changes nothing else. Returns how many.
    pub fn clear_conflicts(&self, number: Option<u64>) -> u64 {
        self.store.clear_conflicts(number)
    }

    /// Whether what was put so far survives the process without [`Cache::keep_names`]: it does
    /// unless the disk has refused to log a change.
    pub fn names_outlive_process(&self) -> bool {
        self.store.index.logs_all()
    }

    /// All records of [`Cache::put_names`], by number.
    pub fn names(&self) -> Vec<(u64, Vec<u8>)> {
        let records = self.store.index.scan_all(&[tag::MADE]);
        let record = |(key, value): (Vec<u8>, _)| Some((number_in_key(&key)?.0, value));
        records.into_iter().filter_map(record).collect()
    }

    /// Marks what was put so far.
    pub fn names_mark(&self) -> NamesMark {
        NamesMark(self.store.index.mark())
    }

    /// Whether what was put before the mark is durable.
    pub fn has_kept_names(&self, mark: NamesMark) -> bool {
        self.store.index.is_durable(mark.0)
    }

    /// Makes durable what was put before `mark`. Waits for a sync of the disk, which concurrent
    /// callers share.
    ///
    /// # Errors
    /// The disk's. Nothing is promised then, now or later.
    pub fn keep_names(&self, mark: NamesMark) -> Result<(), CacheError> {
        self.store.index.make_durable(mark.0)
    }

    /// Whether [`Cache::keep_names`] keeps its promise: the cache is on a disk, knows the boot, and
    /// has not failed.
    pub fn keeps_names(&self) -> bool {
        self.store.keeps().is_ok() && !self.store.index.is_poisoned()
    }

    /// Stores a record of the caller about the volume, which replaces the previous one.
    pub fn put_volume(&self, record: &[u8]) {
        self.store.index.put(vec![tag::VOLUME], Some(record.to_vec()));
    }

    /// The record of [`Cache::put_volume`].
    pub fn volume(&self) -> Option<Vec<u8>> {
        self.store.index.get(&[tag::VOLUME])
    }

    /// Keeps a record of the caller for as long as the machine runs: it survives the process, and
    /// is gone after a reboot. Without [`Config::boot`] it is not kept at all.
    pub fn put_session(&self, record: &[u8], value: &[u8]) {
        if self.store.index.is_logged() {
            self.store.index.put(bytes_key(tag::SESSION, record), Some(value.to_vec()));
        }
    }

    /// Forgets a record of [`Cache::put_session`].
    pub fn drop_session(&self, record: &[u8]) {
        if self.store.index.is_logged() {
            self.store.index.put(bytes_key(tag::SESSION, record), None);
        }
    }

    /// The record of [`Cache::put_session`].
    pub fn session_record(&self, record: &[u8]) -> Option<Vec<u8>> {
        self.store.index.get(&bytes_key(tag::SESSION, record))
    }

    /// All records of [`Cache::put_session`], also of runs that died since the machine was booted,
    /// in the order of their keys.
    pub fn session_records(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let records = self.store.index.scan_all(&[tag::SESSION]);
        records.into_iter().map(|(key, value)| (key[1..].to_vec(), value)).collect()
    }

    /// Files with changes that no server has acknowledged: after the open, those of runs that died
    /// since the machine was booted. Empty without [`Config::boot`].
    pub fn unsent(&self) -> Vec<FileNo> {
        with_local_changes(&self.store.index).into_iter().collect()
    }

    /// Paths, in the cache directory, of files with changes that no server accepted, until a person
    /// removes them.
    pub fn set_aside(&self) -> Vec<String> {
        let names = aside_dir::names(&*self.store.disk).into_iter();
        names.map(|name| format!("{ASIDE_DIR}/{name}")).collect()
    }

    /// Files whose changes were in memory when the machine stopped, and are lost with it.
    pub fn lost_in_memory(&self) -> &BTreeSet<FileNo> {
        &self.store.lost_in_memory
    }

    /// Makes everything so far durable: syncs the data, then commits the index. Then culls if
    /// a mark is passed.
    ///
    /// # Errors
    /// `Poisoned` after a failure of the index, `Closed` after [`Cache::close`].
    pub fn checkpoint(&self) -> Result<(), CacheError> {
        self.store.checkpoint(Saves::All)
    }

    /// Stops the cache for all holders: checkpoint, then a mark that this was a clean stop.
    /// Afterwards everything is a miss and nothing is stored. Unsent changes, if there are any, are
    /// synced, and stay for the next open, with the session records; without any, these stay for an
    /// open in this boot.
    ///
    /// # Errors
    /// As [`Cache::checkpoint`]; the next open then treats it as a crash.
    pub fn close(self) -> Result<(), CacheError> {
        let _turn = lock(&self.store.checkpoint);
        // Afterwards the directory may be another process's.
        let _alone = self.store.filling.alone();
        if self.store.is_closed() {
            return Err(CacheError::Closed);
        }
        self.store.empty_memory();
        let unsent = self.unsent();
        self.store.sync_unsent(&unsent);
        let saved = self.store.save(Saves::All);
        let unsent = !unsent.is_empty();
        let keeps_log = unsent || !self.session_records().is_empty();
        let is_clean = lock(&self.store.unsaved).is_empty() && !unsent;
        self.store.remove_waiting();
        self.store.closed.store(true, Ordering::Release);
        self.store.bell.stop();
        let closed = saved.and_then(|()| self.store.index.close());
        self.store.index.end_log(closed.is_ok() && !keeps_log);
        self.store.pool.clear();
        if closed.is_ok() && is_clean && self.store.to_sweep.load(Ordering::Relaxed) == 0 {
            open::write_clean_flag(&*self.store.disk)?;
        }
        let unsaved = std::mem::take(&mut *lock(&self.store.unsaved));
        if !unsaved.is_empty() {
            let files = unsaved.len();
            tracing::warn!(files, "closed with changes that never reached the server");
        }
        drop((unsaved, self.store.still_loaded.end()));
        lock(&self.store.lock_file).take();
        closed
    }

    /// What is held, and counters.
    pub fn usage(&self) -> Usage {
        let (store, gauge) = (&self.store, &self.store.gauge);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (pending_entries, pending_bytes) = store.index.waiting();
        let index_file = store.disk.open(INDEX_FILE, OpenMode::Existing);
        Usage {
            bytes: gauge.bytes(),
            bytes_max: gauge.limits.bytes.stop,
            files: gauge.files(),
            files_max: gauge.limits.files.stop,
            index_bytes: index_file.and_then(|file| file.len()).unwrap_or(0),
            pending_entries: pending_entries as u64,
            pending_bytes: pending_bytes as u64,
            commits: read(&store.index.counters.commits),
            logged: read(&store.index.counters.logged),
            log_syncs: read(&store.index.counters.log_syncs),
            hits: read(&gauge.counters.hits),
            misses: read(&gauge.counters.misses),
            declined: read(&gauge.counters.declined),
            culled: read(&gauge.counters.culled),
            bad_chunks: read(&gauge.counters.bad_chunks),
            dirty_dropped: read(&gauge.counters.dirty_dropped),
            orphans_removed: read(&gauge.counters.orphans_removed),
            set_aside: aside_dir::count(&*store.disk),
            memory_bytes: store.memory.bytes(),
            memory_bytes_max: store.memory.bytes_max(),
            turned_away: store.memory.turned_away(),
            poisoned: store.index.is_poisoned(),
        }
    }

    /// Up to `count_max` files with data, by number, after `after`. As of the last checkpoint.
    pub fn list(&self, after: Option<FileNo>, count_max: usize) -> Vec<Listed> {
        let mut listed = Vec::new();
        if count_max == 0 {
            return listed;
        }
        let mut pins = self.store.pins();
        self.store.each_record(after, |no, record| {
            let dirty = self.store.file(no).state().has_changes();
            listed.push(Listed {
                no,
                key: self.key_of(no),
                held_bytes: record.held_bytes,
                size: record.size,
                pinned: record.pinned || pins.cover(no),
                dirty,
                last_use_sec: record.last_use_sec,
            });
            listed.len() < count_max
        });
        listed
    }

    /// Reads all held chunks and forgets those with a wrong checksum. `progress` is called after
    /// each file and stops the run by returning `false`.
    pub fn verify(&self, progress: &mut dyn FnMut(VerifyProgress) -> bool) -> VerifyReport {
        let mut report = VerifyReport::default();
        let mut done = VerifyProgress::default();
        self.store.each_record(None, |no, record| {
            let (chunks, bad) = self.store.file(no).verify();
            report.files += 1;
            report.chunks += chunks;
            report.bad.extend(bad.into_iter().map(|chunk| (no, chunk)));
            done.files += 1;
            done.bytes += record.held_bytes;
            progress(done)
        });
        report
    }

    /// Removes data of files until at most `bytes_target` bytes are held: least recently used
    /// first, larger before smaller; never pinned, dirty or open ones.
    pub fn cull(&self, bytes_target: u64) -> Culled {
        let _turn = lock(&self.store.checkpoint);
        if self.store.is_closed() || self.store.save(Saves::All).is_err() {
            return Culled::default();
        }
        self.store.cull(bytes_target, u64::MAX)
    }

    /// Exempts a file from culling, or takes that back.
    pub fn pin(&self, no: FileNo, pinned: bool) {
        self.store.file(no).pin(pinned);
    }

    /// Exempts everything below a directory from culling, now and later, or ends that with `None`.
    /// The place where a file was last seen counts. The record is kept with the pin.
    pub fn pin_tree(&self, top: FileNo, record: Option<&[u8]>) {
        self.store.pin_tree(top, record);
    }

    /// The tops of all pinned trees, with their records.
    pub fn pinned_trees(&self) -> Vec<(FileNo, Vec<u8>)> {
        self.store.pinned_trees()
    }

    /// How many bytes may be held in all without anything being culled. May ask the disk how full
    /// it is.
    pub fn capacity(&self) -> u64 {
        self.store.gauge.capacity(&*self.store.disk, &*self.store.clock)
    }

    /// Removes a file's data, even of a pinned one; not if it has unacknowledged changes or is
    /// open. Returns how many bytes were freed, in whole chunks.
    pub fn cull_file(&self, no: FileNo) -> u64 {
        let freed = self.store.file(no).cull(true).unwrap_or(0);
        self.store.remove_waiting();
        freed
    }

    /// Forgets a file's data, including dirty bytes. Open descriptors stay readable.
    pub fn drop_file(&self, no: FileNo) {
        self.store.file(no).forget();
    }

    /// Drops all clean data of files that are not open. Numbers and records stay.
    pub fn drop_all(&self) {
        let _turn = lock(&self.store.checkpoint);
        if !self.store.is_closed() {
            self.store.drop_all();
        }
    }

    /// The changes that remove a number's key. The caller holds `assigning`.
    fn without_key(&self, no: FileNo) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let Some(old_key) = self.key_of(no) else { return Vec::new() };
        let mut changes = vec![(key(tag::KEY_OF_NUMBER, no, &[]), None)];
        if self.number_of(&old_key) == Some(no) {
            changes.push((bytes_key(tag::NUMBER_OF_KEY, &old_key), None));
        }
        changes
    }

    /// Gives a key to `no`, taking it from its previous owner. The caller holds `assigning`.
    fn give_key(&self, no: FileNo, new_key: &[u8]) {
        let mut changes = Vec::new();
        if let Some(old_key) = self.key_of(no).filter(|old_key| old_key != new_key) {
            changes.push((bytes_key(tag::NUMBER_OF_KEY, &old_key), None));
        }
        if let Some(other) = self.number_of(new_key).filter(|other| *other != no) {
            changes.push((key(tag::KEY_OF_NUMBER, other, &[]), None));
        }
        self.store.index.put_all(changes);
        self.put_number(no, new_key);
    }

    fn put_number(&self, no: FileNo, new_key: &[u8]) {
        let number = encode_number(no.0);
        self.store.index.put_all(vec![
            (bytes_key(tag::NUMBER_OF_KEY, new_key), Some(number)),
            (key(tag::KEY_OF_NUMBER, no, &[]), Some(new_key.to_vec())),
        ]);
    }
}

/// The maintenance thread of a cache.
#[derive(Debug)]
struct Keeper {
    store: Arc<Store>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    fn start(store: Arc<Store>, interval: Option<Duration>) -> Keeper {
        let thread = interval.and_then(|interval| {
            let store = Arc::clone(&store);
            let run = move || store.maintain(interval);
            // Without the thread, checkpoints happen on request and under pressure.
            let spawned = thread::Builder::new().name("larder-cache".to_owned()).spawn(run);
            spawned.inspect_err(|error| tracing::error!(%error, "no thread for the cache")).ok()
        });
        Keeper { store, thread }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.store.bell.stop();
        if let Some(thread) = self.thread.take() {
            // It does not panic; even if it did, there would be nothing left to clean up.
            let _ = thread.join();
        }
        self.store.closed.store(true, Ordering::Release);
        self.store.index.end_log(false);
        // Files hold the store: without this they would keep each other alive for ever.
        let unsaved = std::mem::take(&mut *lock(&self.store.unsaved));
        drop((unsaved, self.store.still_loaded.end()));
        lock(&self.store.lock_file).take();
    }
}

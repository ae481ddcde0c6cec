//! The index: sealed records in one redb table, behind an overlay of changes not yet committed.
//!
//! Invariants:
//! - A value is returned only if its checksum over key and value is right.
//! - Commits are atomic and immediate; [`Index::put_all`] goes into one commit as a whole.
//! - After the first failure, be it an error or a panic inside redb, the database is not touched
//!   again until the next open: reads are misses, changes are dropped except the numbers of files,
//!   which are kept in memory so that one key keeps one number for this run.
//! - With a session log ([`crate::log`]), changes that are not committed survive the process.
//! - A number handed out by [`Index::next_number`] is never handed out again: blocks of numbers are
//!   reserved in the database before they are used.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};

use larder_io::{BootId, Disk, OpenMode};

use crate::backend::Backend;
use crate::config::CacheError;
use crate::engine::{Engine, Table, guarded, open_engine, write_batch};
use crate::gauge::{IndexCounters, count};
use crate::lock;
use crate::log::{Change, Left, Log, NO_BOOT};
use crate::marks::{Mark, Marks};
use crate::overlay::{Batch, OF_A_SESSION, Overlay};
use crate::records::{bytes_key, decode_number, encode_number, tag, unseal};
use crate::reserve::Reserve;

/// Name of the database file.
pub(crate) const INDEX_FILE: &str = "index.redb";
/// Exists while a failure of the index waits to be examined at the next open.
pub(crate) const SUSPECT_FILE: &str = "suspect";

/// Entries and bytes in memory at which a commit is asked for.
pub(crate) const PENDING_ENTRIES_MAX: usize = 16 * 1024;
pub(crate) const PENDING_BYTES_MAX: usize = 8 << 20;
/// At this many times the limits, a caller that puts more commits first.
pub(crate) const PENDING_STALL_FACTOR: usize = 4;
/// Numbers reserved at a time. A crash wastes the unused ones, which 64 bits allow.
const NUMBER_BLOCK: u64 = 1 << 20;
/// So many generations after the last one, no segment of a log has been begun.
const UNUSED: u64 = 8;

type Record = (Vec<u8>, Vec<u8>);

#[derive(Debug)]
struct Numbers {
    next: u64,
    /// Below this, numbers are reserved in the database.
    granted: u64,
    /// Below this, they will be with the next commit.
    requested: u64,
}

/// The index of a cache.
pub(crate) struct Index {
    disk: Arc<dyn Disk>,
    /// Taken before `overlay`, by code that changes it: the log has the order of the changes.
    log: Mutex<Option<Log>>,
    overlay: Mutex<Overlay>,
    engine: RwLock<Option<Engine>>,
    /// Commits take turns.
    turn: Mutex<()>,
    numbers: Mutex<Numbers>,
    poisoned: AtomicBool,
    /// The first error that the disk gave, as opposed to damage that redb found.
    disk_error: Arc<Mutex<Option<io::Error>>>,
    reserve: Reserve,
    pub(crate) counters: IndexCounters,
    /// Syncs of the log take turns, so that callers who come meanwhile share the next one.
    syncing: Mutex<()>,
    marks: Marks,
    /// Called when a commit should happen soon.
    wake: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("poisoned", &self.is_poisoned()).finish_non_exhaustive()
    }
}

impl Index {
    /// Opens or creates the database; with `checks`, every page is verified.
    ///
    /// # Errors
    /// `Disk` if the disk failed; `Poisoned` if redb refuses the file or panics over it.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        checks: bool,
        wake: Box<dyn Fn() + Send + Sync>,
    ) -> Result<Index, CacheError> {
        let reserve = Reserve::open(&**disk);
        reserve.lend(&**disk);
        let file = disk.open(INDEX_FILE, OpenMode::Create)?;
        let disk_error = Arc::new(Mutex::new(None));
        let backend = Backend { file, disk_error: Arc::clone(&disk_error) };
        let engine = guarded(|| open_engine(backend, checks)).map_err(|message| {
            tracing::warn!("the cache index does not open: {message}");
            lock(&disk_error).take().map_or(CacheError::Poisoned, CacheError::Disk)
        })?;
        let index = Index {
            disk: Arc::clone(disk),
            log: Mutex::default(),
            overlay: Mutex::default(),
            engine: RwLock::new(Some(engine)),
            turn: Mutex::default(),
            numbers: Mutex::new(Numbers { next: 0, granted: 0, requested: 0 }),
            poisoned: AtomicBool::new(false),
            disk_error,
            reserve,
            counters: IndexCounters::default(),
            syncing: Mutex::default(),
            marks: Marks::default(),
            wake,
        };
        let stored = OF_A_SESSION.iter().flat_map(|tag| index.scan_all(&[*tag]));
        let stored = Overlay::new(stored.map(|(key, _)| key));
        *lock(&index.overlay) = stored;
        Ok(index)
    }

    /// Applies what the log of an earlier run has beyond the last commit, and logs from the next
    /// commit on, if the boot is known. Returns whether the log was whole and of this boot: then
    /// nothing is lost.
    pub(crate) fn replay(&self, boot: Option<BootId>) -> bool {
        let generation = self.get(&log_key()).as_deref().and_then(decode_number);
        let (log, left) = Log::open(Arc::clone(&self.disk), boot.unwrap_or(NO_BOOT), generation);
        let (is_whole, changes) = match left {
            Left::Nothing => (false, Vec::new()),
            Left::All(changes) => (true, changes),
            Left::Beginning(changes) => (false, changes),
        };
        let mut overlay = lock(&self.overlay);
        for (key, value) in changes {
            overlay.put(key, value);
        }
        if boot.is_some() {
            drop(overlay);
            *lock(&self.log) = Some(log);
        } else if let Some(generation) = generation {
            // Nothing is logged, so nobody may replay those segments over later commits.
            overlay.put(log_key(), Some(encode_number(generation + UNUSED)));
        }
        is_whole
    }

    /// Whether changes are logged.
    pub(crate) fn is_logged(&self) -> bool {
        lock(&self.log).is_some()
    }

    /// Whether all changes since the last commit are in the log.
    pub(crate) fn logs_all(&self) -> bool {
        !self.is_poisoned() && lock(&self.log).as_ref().is_some_and(Log::is_whole)
    }

    /// Stops logging, for instance because another process may use the directory from now on; with
    /// `removes`, deletes the log.
    pub(crate) fn end_log(&self, removes: bool) {
        if let Some(mut log) = lock(&self.log).take()
            && removes
        {
            log.remove();
        }
    }

    /// Reserves the first block of numbers: past all that were ever reserved, or from `at_first` on
    /// if that was not recorded. Durable with the next commit, which must come before
    /// [`Index::next_number`].
    pub(crate) fn reserve_numbers(&self, at_first: u64) {
        let stored = self.get(&numbers_key()).as_deref().and_then(decode_number);
        let mut numbers = lock(&self.numbers);
        numbers.next = stored.unwrap_or(at_first);
        self.request_block(&mut numbers);
    }

    /// The record goes into the overlay before `requested` is visible, so the commit that grants it
    /// contains it. It is not logged: an assigned number is always committed.
    fn request_block(&self, numbers: &mut Numbers) {
        numbers.requested = numbers.next.saturating_add(NUMBER_BLOCK);
        debug_assert!(numbers.requested >= numbers.granted, "no grant is taken back");
        let value = encode_number(numbers.requested);
        lock(&self.overlay).put(numbers_key(), Some(value));
    }

    /// A number never handed out before. Commits only if a million were taken since the last one.
    pub(crate) fn next_number(&self) -> u64 {
        let mut numbers = lock(&self.numbers);
        if numbers.next >= numbers.granted && !self.is_poisoned() {
            drop(numbers);
            // After a failed commit nothing becomes durable any more; counting in memory keeps
            // numbers unique for this run.
            let _ = self.commit();
            numbers = lock(&self.numbers);
        }
        let number = numbers.next;
        debug_assert!(
            number < numbers.granted || self.is_poisoned(),
            "no number is handed out that the next run may hand out again"
        );
        numbers.next += 1;
        if numbers.requested.saturating_sub(number) < NUMBER_BLOCK / 2 {
            self.request_block(&mut numbers);
        }
        number
    }

    /// The value of a key, if it exists and its checksum is right.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        if let Some(change) = lock(&self.overlay).get(key) {
            return change.map(<[u8]>::to_vec);
        }
        self.read(|view| {
            let sealed = view.get(key)?;
            Ok(sealed.and_then(|sealed| unseal(key, sealed.value()).map(<[u8]>::to_vec)))
        })?
    }

    /// Changes one record.
    pub(crate) fn put(&self, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.put_all(vec![(key, value)]);
    }

    /// Changes records together. May commit first if too much is pending.
    pub(crate) fn put_all(&self, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        let poisoned = self.is_poisoned();
        let (mut log_is_long, mut log_is_full) = (false, false);
        let ((entries, bytes), (pending_entries, pending_bytes)) = {
            let mut log = lock(&self.log);
            if let Some(log) = log.as_mut().filter(|_| !poisoned) {
                log.append(&changes);
                count(&self.counters.logged);
                (log_is_long, log_is_full) = (log.wants_commit(), log.is_full());
            }
            self.marks.put();
            let mut overlay = lock(&self.overlay);
            for (key, value) in changes {
                match value {
                    _ if poisoned && !is_number_record(&key) => (),
                    None => overlay.remove(key),
                    value => overlay.put(key, value),
                }
            }
            (overlay.total(), overlay.pending())
        };
        let (entries_max, bytes_max) = (PENDING_ENTRIES_MAX, PENDING_BYTES_MAX);
        if self.is_poisoned() {
            return self.give_up_log();
        }
        let is_full = entries > entries_max * PENDING_STALL_FACTOR
            || bytes > bytes_max * PENDING_STALL_FACTOR;
        if is_full || log_is_full {
            // A failure poisons the index, which is all that can be done about it here.
            let _ = self.commit();
        } else if pending_entries > entries_max || pending_bytes > bytes_max || log_is_long {
            (self.wake)();
        }
    }

    /// Up to `count_max` records whose keys begin with `prefix`, from `start` on, and where to
    /// continue. Records with a wrong checksum are left out.
    pub(crate) fn scan(
        &self,
        prefix: &[u8],
        start: &[u8],
        count_max: usize,
    ) -> (Vec<Record>, Option<Vec<u8>>) {
        let (changes, mut stored, last) = self.scan_layers(prefix, start, count_max);
        for (key, change) in changes {
            match change {
                Some(value) => stored.insert(key.into_vec(), value.into_vec()),
                None => stored.remove(&*key),
            };
        }
        let next = last.map(|mut key| {
            key.push(0);
            key
        });
        (stored.into_iter().collect(), next)
    }

    #[allow(clippy::type_complexity)]
    fn scan_layers(
        &self,
        prefix: &[u8],
        start: &[u8],
        count_max: usize,
    ) -> (Batch, std::collections::BTreeMap<Vec<u8>, Vec<u8>>, Option<Vec<u8>>) {
        let start = start.max(prefix);
        // The overlay first: a commit in between moves its entries to the database, and seeing
        // them twice does no harm.
        let mut changes = lock(&self.overlay).scan(prefix, start, None);
        let found = self.read(|view| {
            let mut records = std::collections::BTreeMap::new();
            let mut last = None;
            for entry in view.range(start..)?.take(count_max) {
                let (key, sealed) = entry?;
                let key = key.value();
                if !key.starts_with(prefix) {
                    return Ok((records, None));
                }
                last = Some(key.to_vec());
                if let Some(value) = unseal(key, sealed.value()) {
                    records.insert(key.to_vec(), value.to_vec());
                }
            }
            Ok((records, last))
        });
        let (records, last) = found.unwrap_or_default();
        if let Some(last) = &last {
            changes.retain(|key, _| **key <= **last);
        }
        (changes, records, last)
    }

    /// All records whose keys begin with `prefix`, which must be few.
    pub(crate) fn scan_all(&self, prefix: &[u8]) -> Vec<Record> {
        let mut all = Vec::new();
        let mut start = prefix.to_vec();
        loop {
            let (records, next) = self.scan(prefix, &start, 1024);
            all.extend(records);
            match next {
                Some(next) => start = next,
                None => return all,
            }
        }
    }

    /// Commits what waits. Durable on return; blocks for two syncs.
    ///
    /// # Errors
    /// `Disk` if the disk fails now; `Poisoned` if the file is damaged or something failed before.
    pub(crate) fn commit(&self) -> Result<(), CacheError> {
        let _turn = lock(&self.turn);
        if self.is_poisoned() {
            return Err(CacheError::Poisoned);
        }
        self.reserve.lend(&*self.disk);
        let requested = lock(&self.numbers).requested;
        let (batch, mark) = self.begin_commit();
        let written = self.write(&batch);
        drop(batch);
        let ended = self.end_commit(written, requested);
        if ended.is_ok() {
            self.marks.reach(mark);
        }
        // After the log's older segments are gone: otherwise other programs get the blocks that
        // they free, which belong to the reserve.
        self.take_reserve_back();
        ended
    }

    /// Marks what was put so far.
    pub(crate) fn mark(&self) -> Mark {
        self.marks.now()
    }

    /// Whether what was put before the mark survives a crash of the machine.
    pub(crate) fn is_durable(&self, mark: Mark) -> bool {
        self.marks.has_reached(mark)
    }

    /// Makes durable what was put before the mark: by one sync of the log, which callers share who
    /// come at the same time, or by a commit where there is no log. Blocks for that.
    ///
    /// # Errors
    /// As [`Index::commit`].
    pub(crate) fn make_durable(&self, mark: Mark) -> Result<(), CacheError> {
        if self.is_durable(mark) {
            return Ok(());
        }
        let turn = lock(&self.syncing);
        if self.is_durable(mark) {
            return Ok(());
        }
        if self.is_poisoned() {
            return Err(CacheError::Poisoned);
        }
        if self.sync_log() {
            return Ok(());
        }
        drop(turn);
        self.commit()
    }

    /// Syncs what was logged so far. Returns `false` if that did not make it durable.
    fn sync_log(&self) -> bool {
        let (unsynced, mark) = {
            let log = lock(&self.log);
            let Some(unsynced) = log.as_ref().and_then(Log::unsynced) else { return false };
            (unsynced, self.marks.now())
        };
        count(&self.counters.log_syncs);
        let synced = unsynced.sync(&*self.disk);
        if let Some(log) = &mut *lock(&self.log) {
            match &synced {
                Ok(()) => log.note_synced(&unsynced),
                Err(error) => log.break_off(error),
            }
        }
        if synced.is_ok() {
            self.marks.reach(mark);
        }
        synced.is_ok()
    }

    fn end_commit(&self, written: Result<(), String>, requested: u64) -> Result<(), CacheError> {
        match written {
            Ok(()) => {
                lock(&self.overlay).end_commit();
                lock(&self.numbers).granted = requested;
                if let Some(log) = &mut *lock(&self.log) {
                    log.retire();
                }
                if self.is_poisoned() {
                    self.give_up_log();
                }
                Ok(())
            }
            Err(message) => {
                self.poison(&message);
                self.give_up_log();
                Err(lock(&self.disk_error).take().map_or(CacheError::Poisoned, CacheError::Disk))
            }
        }
    }

    /// The pending changes, with the generation of the log that follows them, and their mark.
    fn begin_commit(&self) -> (Arc<Batch>, Mark) {
        let mut log = lock(&self.log);
        let mark = self.marks.now();
        if let Some(log) = &mut *log
            && (log.wants_commit() || lock(&self.overlay).pending().0 > 0)
        {
            let generation = encode_number(log.next());
            lock(&self.overlay).put(log_key(), Some(generation));
        }
        (lock(&self.overlay).begin_commit(), mark)
    }

    /// Readers wait only while the new view is put in place, not for the sync.
    fn write(&self, batch: &Batch) -> Result<(), String> {
        if batch.is_empty() {
            return Ok(());
        }
        count(&self.counters.commits);
        let database = {
            let slot = self.engine.read().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(&slot.as_ref().ok_or("the index is closed")?.database)
        };
        let view = guarded(|| write_batch(&database, batch))?;
        let mut slot = self.engine.write().unwrap_or_else(PoisonError::into_inner);
        let old = slot.as_mut().map(|engine| std::mem::replace(&mut engine.view, view));
        drop(slot);
        guarded(|| {
            drop(old);
            Ok(())
        })
    }

    /// Commits and closes the database for good.
    ///
    /// # Errors
    /// As [`Index::commit`].
    pub(crate) fn close(&self) -> Result<(), CacheError> {
        self.commit()?;
        let _turn = lock(&self.turn);
        let engine = self.engine.write().unwrap_or_else(PoisonError::into_inner).take();
        let engine = engine.ok_or(CacheError::Closed)?;
        self.reserve.lend(&*self.disk);
        let closed = guarded(|| engine.close());
        self.take_reserve_back();
        closed.map_err(|message| {
            self.poison(&message);
            CacheError::Poisoned
        })
    }

    /// Frees the memory that redb keeps of the file: closes the database and opens it again, since
    /// there is no other way. Writes a few pages and syncs; readers wait for that.
    pub(crate) fn shed(&self) {
        let _turn = lock(&self.turn);
        self.reserve.lend(&*self.disk);
        let mut slot = self.engine.write().unwrap_or_else(PoisonError::into_inner);
        let Some(engine) = slot.take() else { return };
        let reopened = guarded(|| {
            engine.close()?;
            let file = self.disk.open(INDEX_FILE, OpenMode::Create).map_err(|e| e.to_string())?;
            open_engine(Backend { file, disk_error: Arc::clone(&self.disk_error) }, false)
        });
        self.take_reserve_back();
        match reopened {
            Ok(engine) => *slot = Some(engine),
            Err(message) => {
                drop(slot);
                self.poison(&message);
            }
        }
    }

    /// Takes back the blocks that were lent for commits, if the disk has room.
    pub(crate) fn take_reserve_back(&self) {
        self.reserve.take_back();
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// Entries and bytes that wait in memory.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        lock(&self.overlay).total()
    }

    fn read<T>(&self, run: impl FnOnce(&Table) -> Result<T, redb::StorageError>) -> Option<T> {
        if self.is_poisoned() {
            return None;
        }
        let slot = self.engine.read().unwrap_or_else(PoisonError::into_inner);
        let engine = slot.as_ref()?;
        let result = guarded(|| run(&engine.view).map_err(|error| error.to_string()));
        drop(slot);
        result.map_err(|message| self.poison(&message)).ok()
    }

    /// Puts the database out of use. Logs that once.
    fn poison(&self, message: &str) {
        if self.poisoned.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::error!("the cache index failed and is out of use until the next mount: {message}");
        self.give_up_log();
        // Best effort: if this cannot be written either, the next open finds the damage by itself.
        let _ = self.disk.open(SUSPECT_FILE, OpenMode::Create).and_then(|_| self.disk.sync_dir(""));
        lock(&self.overlay).keep_only(is_number_record);
        // Dropping it would make redb write, on a state that cannot be trusted.
        let engine = self.engine.write().unwrap_or_else(PoisonError::into_inner).take();
        std::mem::forget(engine);
    }
}

impl Index {
    /// After a failure: what is put from now on is not logged. The thread that holds the log now
    /// (perhaps this one) does this when it releases it.
    fn give_up_log(&self) {
        let mut log = match self.log.try_lock() {
            Ok(log) => log,
            Err(TryLockError::Poisoned(log)) => log.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if let Some(log) = &mut *log {
            log.give_up();
        }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        let engine = self.engine.write().unwrap_or_else(PoisonError::into_inner).take();
        // redb writes when it is dropped, and a damaged file can make it panic even then.
        let dropped = guarded(|| {
            drop(engine);
            Ok(())
        });
        if let Err(message) = dropped {
            tracing::warn!("the cache index did not close: {message}");
        }
    }
}

fn numbers_key() -> Vec<u8> {
    bytes_key(tag::META, b"numbers")
}

/// The generation of the log's first segment that the index does not have.
fn log_key() -> Vec<u8> {
    bytes_key(tag::META, b"log")
}

fn is_number_record(key: &[u8]) -> bool {
    matches!(key.first(), Some(&tag::NUMBER_OF_KEY | &tag::KEY_OF_NUMBER))
}

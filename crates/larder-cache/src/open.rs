//! Opens and closes a cache directory.
//!
//! `docs/formats/cache.md` describes its content: the label (what this is, for which volume), the
//! lock file (which process has it), the index, the data, and the clean file, which exists only
//! between a clean stop and the next start and holds the stamp that the index had.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use larder_io::{BootId, Clock, Disk, DiskFile, FsKind, OpenMode, Stamp};

use crate::codec::{Reader, Writer};
use crate::config::{CacheError, Config, OpenError};
use crate::conflicts::Conflicts;
use crate::gauge::Gauge;
use crate::index::{INDEX_FILE, Index, SUSPECT_FILE};
use crate::kept_record;
use crate::label::{self, Found};
use crate::local::{BootEnded, keep_synced, with_local_changes};
use crate::maintain::DATA_DIRS;
use crate::memory::Memory;
use crate::pool::{Pool, data_path};
use crate::recent::Recent;
use crate::records::{
    FileRecord, bytes_key, decode_pair, encode_pair, key, number_in_key, put_stamp, seal, stamp,
    tag, unseal,
};
use crate::removals::Removals;
use crate::save::usage_key;
use crate::slots::Slots;
use crate::state::BASES_MAX;
use crate::still_loaded::{STILL_LOADED_MAX, StillLoaded};
use crate::store::{Bell, Store};
use crate::turns::Turns;
use crate::unwritten::Unwritten;
use crate::{FileNo, lock};

pub(crate) const LOCK_FILE: &str = "lock";
const CLEAN_FILE: &str = "clean";
/// Small files of the cache are read whole up to this length; a longer one is not a file of the
/// cache.
const SMALL_FILE_BYTES_MAX: usize = 16 << 10;
/// 2^24 numbers for each second: where numbering starts over, it starts past all earlier ones.
const NUMBERS_PER_SEC_SHIFT: u32 = 24;

/// Opens a cache: label, lock, clean flag, index; in this order. A directory that is refused
/// because of its label is not changed.
pub(crate) fn open(
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    config: &Config,
) -> Result<Arc<Store>, OpenError> {
    if disk.kind().map_err(OpenError::Unwritable)? == FsKind::FUSE {
        return Err(OpenError::OnFuse);
    }
    let (lock_file, is_new) = take(&*disk, config)?;
    let clean_stamp = take_clean_flag(&*disk).map_err(OpenError::Unwritable)?;
    let bell = Arc::new(Bell::default());
    let numbers = u64::try_from(clock.wall().sec).unwrap_or(0).max(1) << NUMBERS_PER_SEC_SHIFT;
    let how = How { clean_stamp, is_new, numbers, boot: config.boot };
    let started = start_index(&disk, &bell, how).map_err(unwritable)?;
    let Started { index, start, session, trust_floor, usage, dropped, lost_in_memory } = started;
    let left = |had: u64, gone: u64| had.saturating_sub(gone);
    let gauge =
        Gauge::new(config.limits, left(usage.0, dropped.bytes), left(usage.1, dropped.files));
    gauge.counters.dirty_dropped.store(dropped.marks, Ordering::Relaxed);
    let to_sweep = if matches!(start, Start::Clean | Start::First) { 0 } else { DATA_DIRS };
    // Where nothing outlives the process, its disk is its memory.
    let unwritten_bytes_max = if disk.outlives_process() { config.unwritten_bytes_max } else { 0 };
    let conflicts = Mutex::new(Conflicts::recover(&index));
    let store = Arc::new(Store {
        disk,
        clock,
        index,
        pool: Pool::new(config.descriptors.pooled_max),
        handed_out: Slots::new(config.descriptors.handed_out_max),
        bases: Slots::new(BASES_MAX),
        gauge,
        lost_in_memory,
        memory: Memory::new(config.memory.clone()),
        unwritten: Unwritten::new(unwritten_bytes_max),
        removals: Removals::default(),
        recent: Recent::new(config.recent_bytes_max, config.recent_piece_bytes_min),
        bell,
        session,
        trust_floor,
        files: Mutex::default(),
        still_loaded: StillLoaded::new(STILL_LOADED_MAX),
        unsaved: Mutex::default(),
        unsavable: AtomicUsize::new(0),
        carried: Mutex::default(),
        kept: Mutex::default(),
        kept_bytes: Mutex::default(),
        new_names: Mutex::default(),
        durable_dirs: Mutex::default(),
        conflicts,
        assigning: Mutex::default(),
        filling: Turns::default(),
        checkpoint: Mutex::default(),
        cull_failed: Mutex::default(),
        to_sweep: AtomicU32::new(to_sweep),
        parent_in_record: config.parent_in_record,
        closed: AtomicBool::new(false),
        lock_file: Mutex::new(Some(lock_file)),
    });
    lock(&store.carried).extend(with_local_changes(&store.index));
    for (no, kept) in kept_record::all(&store.index) {
        store.note_kept(no, kept.bytes_len(), None);
    }
    store.sweep_memory();
    if store.gauge.wants_cull(&*store.disk, &*store.clock) {
        // Others may have filled the disk meanwhile.
        store.bell.ring();
    }
    Ok(store)
}

/// Takes the directory for this process: an existing cache, or a new one. Returns its lock, and
/// whether it is new.
fn take(disk: &dyn Disk, config: &Config) -> Result<(Arc<dyn DiskFile>, bool), OpenError> {
    label::recognise(disk, config)?;
    // It contains bytes of all users: only its owner may access it.
    disk.make_private().map_err(OpenError::Unwritable)?;
    let lock_file = take_lock(disk)?;
    // Checked again: another process may have made it a cache before we had the lock.
    let found = label::recognise(disk, config)?;
    match found {
        Found::Nothing => label::write(disk, config).map_err(OpenError::Unwritable)?,
        Found::Cache { is_sound: true } => {}
        Found::Cache { is_sound: false } => {
            if let Err(error) = label::write(disk, config) {
                tracing::warn!(%error, "the damaged label of the cache cannot be written anew");
            }
        }
    }
    Ok((lock_file, found == Found::Nothing))
}

/// Writes the clean flag; the index is closed and nothing more is written.
pub(crate) fn write_clean_flag(disk: &dyn Disk) -> io::Result<()> {
    let stamp = disk.open(INDEX_FILE, OpenMode::Existing)?.stamp()?;
    let flag = disk.open(CLEAN_FILE, OpenMode::Create)?;
    flag.set_len(0)?;
    let mut value = Writer::default();
    put_stamp(&mut value, stamp);
    flag.write_at(&seal(CLEAN_FILE.as_bytes(), &value.into_bytes()), 0)?;
    flag.sync_data()?;
    disk.sync_dir("")
}

/// How the last run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// There was none.
    First,
    Clean,
    Unclean,
    /// The index was unusable or gone and is a new one.
    Discarded,
}

fn unwritable(error: CacheError) -> OpenError {
    OpenError::Unwritable(match error {
        CacheError::Disk(error) => error,
        other => io::Error::other(other),
    })
}

pub(crate) fn read_small(disk: &dyn Disk, path: &str) -> io::Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Existing)?;
    let mut bytes = vec![0; SMALL_FILE_BYTES_MAX];
    let count = file.read_at(&mut bytes, 0)?;
    bytes.truncate(count);
    Ok(bytes)
}

fn take_lock(disk: &dyn Disk) -> Result<Arc<dyn DiskFile>, OpenError> {
    let file = disk.open(LOCK_FILE, OpenMode::Create).map_err(OpenError::Unwritable)?;
    if !file.try_lock_exclusive().map_err(OpenError::Unwritable)? {
        let text = read_small(disk, LOCK_FILE).unwrap_or_default();
        let pid = String::from_utf8_lossy(&text).trim().parse().unwrap_or(0);
        return Err(OpenError::InUse { pid });
    }
    let pid = format!("{}\n", std::process::id());
    // Overwrites what is there, for which a full disk has a block; it is for people to read, so it
    // may fail.
    let written = file.write_at(pid.as_bytes(), 0).and_then(|()| file.set_len(pid.len() as u64));
    if let Err(error) = written {
        tracing::warn!(%error, "cannot say in the cache's lock file who has it");
    }
    Ok(file)
}

/// Reads the clean flag and removes it, durably: from now on this run may change things.
fn take_clean_flag(disk: &dyn Disk) -> io::Result<Option<Stamp>> {
    let found = match read_small(disk, CLEAN_FILE) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // A flag that cannot be read says nothing.
        Err(_) => Vec::new(),
    };
    disk.remove(CLEAN_FILE)?;
    disk.sync_dir("")?;
    Ok(unseal(CLEAN_FILE.as_bytes(), &found).and_then(|value| {
        let mut input = Reader::new(value);
        let stamp = stamp(&mut input)?;
        input.end(stamp)
    }))
}

/// The result of starting the index.
struct Started {
    index: Index,
    start: Start,
    session: u64,
    trust_floor: u64,
    usage: (u64, u64),
    dropped: Dropped,
    lost_in_memory: BTreeSet<FileNo>,
}

/// What a start knows of the last stop.
#[derive(Clone, Copy, Debug)]
struct How {
    clean_stamp: Option<Stamp>,
    is_new: bool,
    /// From here on numbers are new if their record is lost.
    numbers: u64,
    boot: Option<BootId>,
}

/// How hard to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    AsItIs,
    Checked,
    Anew,
}

/// Opens the index: as it is, else after redb's integrity check, else a new one.
///
/// # Errors
/// The disk failed, which is no reason to throw the index away; or even a new index cannot be made.
fn start_index(disk: &Arc<dyn Disk>, bell: &Arc<Bell>, how: How) -> Result<Started, CacheError> {
    let How { clean_stamp, is_new, .. } = how;
    let stamp = disk.open(INDEX_FILE, OpenMode::Existing).and_then(|file| file.stamp()).ok();
    let is_suspect = disk.open(SUSPECT_FILE, OpenMode::Existing).is_ok();
    let was_touched = clean_stamp.is_some() && clean_stamp != stamp;
    let start = match stamp {
        None if is_new => Start::First,
        None => Start::Discarded,
        Some(_) if clean_stamp.is_some() && !was_touched && !is_suspect => Start::Clean,
        Some(_) => Start::Unclean,
    };
    let mut attempt = if was_touched || is_suspect { Attempt::Checked } else { Attempt::AsItIs };
    loop {
        let error = match try_start(disk, bell, attempt, start, how) {
            Ok(started) => return Ok(started),
            Err(error) => error,
        };
        attempt = match (&error, attempt) {
            (CacheError::Disk(_), _) | (_, Attempt::Anew) => return Err(error),
            (_, Attempt::AsItIs) => Attempt::Checked,
            (_, Attempt::Checked) => {
                tracing::error!("the cache index is unusable, so the cache starts over empty");
                disk.remove(INDEX_FILE)?;
                Attempt::Anew
            }
        };
    }
}

fn try_start(
    disk: &Arc<dyn Disk>,
    bell: &Arc<Bell>,
    attempt: Attempt,
    start: Start,
    how: How,
) -> Result<Started, CacheError> {
    let start = match attempt {
        Attempt::AsItIs => start,
        Attempt::Checked if start == Start::Clean => Start::Unclean,
        Attempt::Checked => start,
        Attempt::Anew => Start::Discarded,
    };
    let ringing = Arc::clone(bell);
    let wake = Box::new(move || ringing.ring());
    let index = Index::open(disk, attempt == Attempt::Checked, wake)?;
    let continued = index.replay(how.boot);
    // If the count of numbers was lost, it continues past all that can have been assigned.
    let first = if start == Start::First { FileNo::ROOT.0 + 1 } else { how.numbers };
    index.reserve_numbers(first);
    let (session, trust_floor) = next_session(&index, start);
    let usage = saved_usage(&index);
    let BootEnded { survived, lost, lost_in_memory } = match continued {
        true => BootEnded { survived: with_local_changes(&index), ..BootEnded::default() },
        false => end_boot(&**disk, &index)?,
    };
    let mut dropped = drop_dirty(&**disk, &index, |no| survived.contains(&no));
    if continued {
        // They reached the server, or are still here: only clean bytes went.
        dropped.marks = 0;
    } else {
        dropped.tell(&lost);
    }
    index.commit()?;
    if attempt != Attempt::AsItIs && disk.open(SUSPECT_FILE, OpenMode::Existing).is_ok() {
        disk.remove(SUSPECT_FILE)?;
    }
    if matches!(start, Start::First | Start::Discarded) {
        disk.sync_dir("")?;
    }
    Ok(Started { index, start, session, trust_floor, usage, dropped, lost_in_memory })
}

/// Number of this run, and of the first run whose stamps are to be trusted.
fn next_session(index: &Index, start: Start) -> (u64, u64) {
    let session_key = bytes_key(tag::META, b"session");
    let stored = index.get(&session_key).as_deref().and_then(decode_pair);
    // Without the record no stamp can be trusted, so the numbers must be new as well.
    let (last, floor) = stored.unwrap_or((index.next_number(), u64::MAX));
    let session = last + 1;
    let floor = if start == Start::Clean { floor.min(session) } else { session };
    index.put(session_key, Some(encode_pair((session, floor))));
    (session, floor)
}

/// Drops what is of no use without the process, the boot or the log to which it belongs.
///
/// # Errors
/// The disk's, if it does not take bytes that were kept in their records.
fn end_boot(disk: &dyn Disk, index: &Index) -> io::Result<BootEnded> {
    let ended = keep_synced(disk, index)?;
    // The records belong to the kept changes.
    if ended.survived.is_empty() {
        let records = index.scan_all(&[tag::SESSION]);
        index.put_all(records.into_iter().map(|(key, _)| (key, None)).collect());
    }
    Ok(ended)
}

/// What [`drop_dirty`] dropped.
#[derive(Debug, Default)]
struct Dropped {
    /// Files with lost changes.
    marks: u64,
    marked: BTreeSet<FileNo>,
    bytes: u64,
    files: u64,
}

impl Dropped {
    /// Counts the files whose local changes are lost, including those of `unsent`, and logs it.
    fn tell(&mut self, unsent: &BTreeSet<FileNo>) {
        let files = self.marked.union(unsent).count() as u64;
        self.marks = files;
        if files > 0 {
            tracing::warn!(files, "files with changes that never reached the server were dropped");
        }
    }
}

/// Drops the files whose durable records are no longer true, unless `keeps` says that their local
/// changes are known.
fn drop_dirty(disk: &dyn Disk, index: &Index, keeps: impl Fn(FileNo) -> bool) -> Dropped {
    let mut dropped = Dropped::default();
    for (mark, _) in index.scan_all(&[tag::DIRTY]) {
        let Some(no) = number_in_key(&mark).filter(|no| !keeps(*no)) else {
            continue;
        };
        let file_key = key(tag::FILE, no, &[]);
        let record = index.get(&file_key).as_deref().and_then(FileRecord::decode);
        if let Some(record) = record {
            // If this fails the file is an orphan, and this is an unclean start.
            let _ = disk.remove(&data_path(no, record.serial));
            dropped.bytes += record.held_bytes;
            dropped.files += u64::from(record.serial != 0);
        }
        let groups = index.scan_all(&key(tag::GROUP, no, &[]));
        let keys = groups.into_iter().map(|(key, _)| key).chain([file_key, mark]);
        index.put_all(keys.map(|key| (key, None)).collect());
        dropped.marked.insert(no);
    }
    dropped
}

/// The sums over all file records: as stored, or counted if that record is damaged.
fn saved_usage(index: &Index) -> (u64, u64) {
    if let Some(usage) = index.get(&usage_key()).as_deref().and_then(decode_pair) {
        return usage;
    }
    let (mut bytes, mut files) = (0, 0);
    let mut start = vec![tag::FILE];
    loop {
        let (records, next) = index.scan(&[tag::FILE], &start, 1024);
        for record in records.iter().filter_map(|(_, value)| FileRecord::decode(value)) {
            bytes += record.held_bytes;
            files += u64::from(record.serial != 0);
        }
        match next {
            Some(next) => start = next,
            None => return (bytes, files),
        }
    }
}

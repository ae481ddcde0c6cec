//! Local changes as records, so that they survive the process; and a reboot, if they were synced at
//! the end (see [`crate::log`]).
//!
//! A file with local changes has a [`LocalRecord`], and a record for each dirty range: its end,
//! under its start, so that a write costs one record however many ranges there are. They are put
//! after the local file was written and before the write is acknowledged. After the process died
//! they override everything else that the index says of the file: only the dirty bytes are known,
//! in the same local file; clean bytes are fetched again. Without a session log none of this is
//! recorded.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_io::{Disk, DiskFile, Stamp};

use crate::file::CachedFile;
use crate::gauge::count;
use crate::index::Index;
use crate::kept_record::{self, Keeping, KeptRecord, kept_key};
use crate::local_record::LocalRecord;
use crate::memory::is_in_memory;
use crate::records::{decode_number, encode_number, key, number_in_key, tag};
use crate::state::State;
use crate::sums::{Sums, chunk_range, chunks_of};
use crate::{CHUNK_BYTES, FileNo, aside_dir, kept_restore, lock};

/// Memory is taken in such pieces.
const PAGE_BYTES: u64 = 4 << 10;

/// Files that have records of local changes.
pub(crate) fn with_local_changes(index: &Index) -> BTreeSet<FileNo> {
    let records = index.scan_all(&[tag::LOCAL]);
    records.iter().filter_map(|(key, _)| number_in_key(key)).collect()
}

/// What became of local changes in another boot.
#[derive(Debug, Default)]
pub(crate) struct BootEnded {
    /// Files whose changes are there.
    pub(crate) survived: BTreeSet<FileNo>,
    /// Those whose are not.
    pub(crate) lost: BTreeSet<FileNo>,
    /// Of these, those whose changes lay in memory.
    pub(crate) lost_in_memory: BTreeSet<FileNo>,
}

/// Drops local changes that may not be on the disk as their records say; those that were kept
/// ([`crate::kept`]) stay as they were when they were kept.
///
/// # Errors
/// The disk's, if it does not take bytes that were kept in their records: these stay there.
pub(crate) fn keep_synced(disk: &dyn Disk, index: &Index) -> io::Result<BootEnded> {
    let BootEnded { mut survived, mut lost, mut lost_in_memory } = BootEnded::default();
    for (record_key, value) in index.scan_all(&[tag::LOCAL]) {
        let Some(no) = number_in_key(&record_key) else { continue };
        let record = LocalRecord::decode(&value);
        if record.as_ref().is_some_and(|record| record.synced) {
            survived.insert(no);
        } else {
            lost.insert(no);
            if record.is_some_and(|record| is_in_memory(record.serial)) {
                lost_in_memory.insert(no);
            }
            index.put(record_key, None);
        }
    }
    let ranges = index.scan_all(&[tag::DIRTY_RANGE]).into_iter();
    let is_there = |key: &[u8]| number_in_key(key).is_some_and(|no| survived.contains(&no));
    index.put_all(ranges.filter(|(key, _)| !is_there(key)).map(|(key, _)| (key, None)).collect());
    let set_aside = aside_dir::names(disk);
    for (no, record) in kept_record::all(index) {
        // An orderly stop has synced more.
        if survived.insert(no) {
            lost.remove(&no);
            lost_in_memory.remove(&no);
            if !aside_dir::is_among(&set_aside, no, record.local.serial) {
                kept_restore::write_out(disk, no, &record)?;
            }
            restore(index, no, record);
        }
    }
    Ok(BootEnded { survived, lost, lost_in_memory })
}

/// In another boot, replaces later records by what was kept.
fn restore(index: &Index, no: FileNo, kept: KeptRecord) {
    let local = LocalRecord { synced: true, bypass: false, ..kept.local };
    let mut puts = vec![(key(tag::LOCAL, no, &[]), Some(local.encode()))];
    puts.extend(
        kept.ranges
            .into_iter()
            .map(|range| (range_key(no, range.start), Some(encode_number(range.end)))),
    );
    index.put_all(puts);
}

fn range_key(no: FileNo, start: u64) -> Vec<u8> {
    key(tag::DIRTY_RANGE, no, &start.to_be_bytes())
}

fn decode_range(key: &[u8], value: &[u8]) -> Option<Range<u64>> {
    let start = u64::from_be_bytes(key.get(9..)?.try_into().ok()?);
    Some(start..decode_number(value)?)
}

impl CachedFile {
    /// Brings the account of memory in line with the local file.
    fn account_memory(&self, state: &State) {
        let charged = state.presence().charged() * CHUNK_BYTES;
        let now = match is_in_memory(state.serial()) {
            true => charged.min(state.size().next_multiple_of(PAGE_BYTES)),
            false => 0,
        };
        let before = self.memory_bytes.swap(now, Ordering::Relaxed);
        if before != now {
            self.store.memory.change(before, now);
        }
    }

    /// Brings the records of local changes up to date.
    pub(crate) fn note(&self, state: &mut State) {
        self.account_memory(state);
        let index = &self.store.index;
        if !index.is_logged() {
            state.forget_notes();
            return;
        }
        let notes = state.take_notes();
        let mut puts = Vec::with_capacity(1 + notes.ranges.len());
        let mut unkept = false;
        if let Some(record) = notes.record {
            if record.is_none() && state.set_keeping(Keeping::Nothing, None) != Keeping::Nothing {
                puts.push((kept_key(self.number()), None));
                unkept = true;
            }
            let value = record.as_ref().map(LocalRecord::encode);
            puts.push((key(tag::LOCAL, self.number(), &[]), value));
        }
        for (start, end) in notes.ranges {
            let end = end.map(encode_number);
            puts.push((range_key(self.number(), start), end));
        }
        index.put_all(puts);
        if unkept {
            self.store.note_unkept(self.number());
        }
    }

    /// The local file with its changes was synced: the next commit makes them survive the boot.
    pub(crate) fn note_synced(&self) {
        let mut state = self.state();
        state.set_synced();
        self.note(&mut state);
    }

    /// Removes the records, as the changes are given up.
    pub(crate) fn drop_note(&self, state: &mut State) {
        if !state.drop_notes() {
            return;
        }
        let index = &self.store.index;
        let ranges = index.scan_all(&key(tag::DIRTY_RANGE, self.number(), &[]));
        let keys = ranges.into_iter().map(|(key, _)| key);
        let keys = keys.chain([key(tag::LOCAL, self.number(), &[])]);
        let kept = state.set_keeping(Keeping::Nothing, None) != Keeping::Nothing;
        let keys = keys.chain(kept.then(|| kept_key(self.number())));
        index.put_all(keys.map(|key| (key, None)).collect());
        if kept {
            self.store.note_unkept(self.number());
        }
    }

    /// Restores the local changes of an earlier run, if there are any, after the rest was loaded.
    pub(crate) fn load_local(&self, state: &mut State) {
        if !lock(&self.store.carried).remove(&self.number()) {
            return;
        }
        let (index, no) = (&self.store.index, self.number());
        let record = index.get(&key(tag::LOCAL, no, &[]));
        let Some(record) = record.as_deref().and_then(LocalRecord::decode) else {
            return;
        };
        let ranges = index.scan_all(&key(tag::DIRTY_RANGE, no, &[]));
        let ranges = ranges.iter().filter_map(|(key, value)| decode_range(key, value));
        let ranges: Vec<_> = ranges.filter(|range| !range.is_empty()).collect();
        let is_bypassed = record.bypass;
        let sums = self.take_up(state, record, &ranges);
        state.set_keeping(kept_record::found(index, no), None);
        if state.local().is_there() {
            let found = self.local(state).and_then(|file| Ok((file.stamp()?, file)));
            match found {
                Ok((stamp, file)) if is_bypassed => self.find_bypassed(state, &sums, stamp, &file),
                // That run died while it truncated the file: that is the only way a local file gets
                // too short.
                Ok((stamp, _)) => state.set_size(stamp.size.min(state.size())),
                // It died in the middle of that.
                Err(_) if self.store.was_set_aside(no, state.serial()) => {
                    self.drop_content(state);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    tracing::error!(file = no.0, "the local file with unsent data is gone");
                    count(&self.store.gauge.counters.dirty_dropped);
                    self.drop_content(state);
                }
                // A reader will find out.
                _ => (),
            }
        }
        // Once the server has them, they are to be saved.
        state.touch_all();
        self.recharge(state);
        state.check();
        self.queue(state);
        self.note(state);
    }

    /// Replaces the loaded state by the changes; only its checksums are left.
    fn take_up(&self, state: &mut State, record: LocalRecord, dirty: &[Range<u64>]) -> Sums {
        let gauge = &self.store.gauge;
        match (state.local().is_there(), record.serial != 0) {
            (false, true) => gauge.take_file(),
            (true, false) => gauge.release_file(),
            _ => (),
        }
        let is_marked = self.store.index.get(&key(tag::DIRTY, self.number(), &[])).is_some();
        state.take_up(record, dirty, is_marked).into_sums()
    }

    /// Marks what the kernel may have written in the bypass of a run that died: the whole local
    /// file, except chunks that still have the checksums of the version on which the changes are
    /// based. Those are known only if the index saved that version, in this local file. The kernel
    /// may go on: `stamp` is what the file had a moment ago.
    fn find_bypassed(
        &self,
        state: &mut State,
        sums: &Sums,
        stamp: Stamp,
        file: &Arc<dyn DiskFile>,
    ) {
        let len = stamp.size;
        state.set_size(len);
        state.find_bypassed(stamp);
        let saved = state.recorded().record();
        let comparable = saved.serial == state.serial()
            && saved.version.as_deref() == state.version()
            && !state.changes().is_acknowledged();
        state.know_all();
        for chunk in chunks_of(&(0..len)) {
            let range = chunk_range(chunk, len);
            let saved = sums.get(chunk).filter(|_| comparable);
            let found = saved.and_then(|_| self.sum_on_disk(state, file, chunk).ok());
            match found {
                Some(sum) if saved == found && !state.dirty().intersects(range.clone()) => {
                    state.set_sum(chunk, sum);
                }
                _ => state.suspect(range),
            }
        }
    }
}

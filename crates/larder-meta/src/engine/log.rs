//! The log of the embedded engine: commits that are not in the tree yet.
//!
//! One file, written from its start again after each checkpoint, so that a sync has no length and
//! no new block to record. A record begins at a multiple of [`UNIT_BYTES`]: writing one can never
//! tear another that is durable already. The format is in `docs/formats/meta-store.md`.
//!
//! Invariants:
//! - Records have consecutive numbers from the file's start on. What follows the last one is older,
//!   or was never whole, or was late: appended without a sync, when one before it was not durable.
//! - A record says which one before it is the last that was durable, if that is not the previous
//!   one. So a crash that keeps a late record and loses one before it is told from damage.

use std::io;
use std::sync::Arc;

use larder_io::{Disk, DiskFile, OpenMode};

use super::Writes;

/// Name of the log.
pub(super) const LOG_FILE: &str = "log";
/// Records begin at multiples of this many bytes: more than what a disk writes atomically.
const UNIT_BYTES: u64 = 4096;
/// Before the payload: u32 length, u32 checksum, u64 number.
const HEADER_BYTES: usize = 16;
/// Written as a length where there is no value.
const NO_VALUE: u32 = u32::MAX;
/// In a record behind late ones: the number of the last one that is durable.
const SYNCED: &[u8] = b"\0synced";

/// An open log.
#[derive(Debug)]
pub(super) struct Log {
    file: Arc<dyn DiskFile>,
    seed: u64,
    size_bytes: u64,
    at: u64,
    next: u64,
    /// Number of the last record that is durable.
    synced: u64,
}

/// A record as it is found.
struct Found {
    writes: Writes,
    /// With its header, in bytes.
    length: u64,
    number: u64,
    /// Number of the last record that was durable when it was appended.
    synced: u64,
}

/// Why a log cannot be continued.
#[derive(Debug, thiserror::Error)]
pub(super) enum LogError {
    #[error(transparent)]
    Disk(#[from] io::Error),
    #[error(
        "the log is damaged at byte {0}, before its last record: restore the store from a copy"
    )]
    Damaged(u64),
}

impl Log {
    /// Opens the log, which is made with `size_bytes` if it does not exist, and reads what follows
    /// record `applied`. The next record goes after it.
    pub(super) fn open(
        disk: &dyn Disk,
        size_bytes: u64,
        seed: u64,
        applied: u64,
    ) -> Result<(Log, Vec<Writes>), LogError> {
        let file = match disk.open(LOG_FILE, OpenMode::Existing) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(disk, size_bytes)?,
            Err(error) => return Err(error.into()),
        };
        let size_bytes = file.len()?.max(size_bytes);
        let mut log = Log { file, seed, size_bytes, at: 0, next: applied + 1, synced: applied };
        let mut records = Vec::new();
        while let Some(found) = log.read(log.at, |number| number == log.next)? {
            records.push(found.writes);
            log.at += rounded(found.length);
            log.next += 1;
        }
        log.erase_rest()?;
        // A process that was killed may have left late records.
        log.file.sync_data()?;
        log.synced = log.last();
        Ok((log, records))
    }

    /// Appends a record, and syncs it unless it is late. `false` if there is no room: nothing was
    /// written.
    pub(super) fn append(&mut self, writes: &Writes, is_late: bool) -> io::Result<bool> {
        let record = self.encoded(writes);
        let length = record.len() as u64;
        if self.at + length > self.size_bytes {
            return Ok(false);
        }
        self.file.write_at(&record, self.at)?;
        self.at += rounded(length);
        self.next += 1;
        if !is_late {
            self.file.sync_data()?;
            self.synced = self.last();
        }
        Ok(true)
    }

    /// The file, and the number of the last record: that one is durable once the file is synced.
    pub(super) fn to_sync(&self) -> (Arc<dyn DiskFile>, u64) {
        (Arc::clone(&self.file), self.last())
    }

    /// The file was synced when this was the last record.
    pub(super) fn is_synced(&mut self, number: u64) {
        self.synced = self.synced.max(number);
    }

    fn encoded(&self, writes: &Writes) -> Vec<u8> {
        let synced = Some(self.synced).filter(|synced| *synced != self.last());
        encode(self.seed, self.next, writes, synced)
    }

    /// Begins at the start again: all records so far are in the tree.
    pub(super) fn rewind(&mut self) {
        self.at = 0;
        self.synced = self.last();
    }

    /// Makes room for a record that is larger than the log ever was.
    pub(super) fn grow(&mut self, writes: &Writes) {
        self.size_bytes = self.size_bytes.max(rounded(self.encoded(writes).len() as u64));
    }

    /// Number of the last record.
    pub(super) fn last(&self) -> u64 {
        self.next - 1
    }

    /// The record at `at` if it is whole and its number is wanted.
    fn read(&self, at: u64, wanted: impl Fn(u64) -> bool) -> Result<Option<Found>, LogError> {
        let mut header = [0; HEADER_BYTES];
        if self.file.read_at(&mut header, at)? < HEADER_BYTES {
            return Ok(None);
        }
        let (length, sum, number) = split(&header);
        let room = self.file.len()?.saturating_sub(at + HEADER_BYTES as u64);
        if !wanted(number) || u64::from(length) > room {
            return Ok(None);
        }
        let mut payload = vec![0; length as usize];
        self.file.read_exact_at(&mut payload, at + HEADER_BYTES as u64)?;
        if checksum(self.seed, number, &payload) != sum {
            return Ok(None);
        }
        let Some(mut writes) = decode(&payload) else { return Ok(None) };
        let synced = match writes.remove(SYNCED) {
            None => number - 1,
            Some(synced) => {
                let synced = synced.as_deref().and_then(<[u8]>::first_chunk);
                let Some(synced) = synced else { return Ok(None) };
                u64::from_le_bytes(*synced)
            }
        };
        let length = HEADER_BYTES as u64 + u64::from(length);
        Ok(Some(Found { writes, length, number, synced }))
    }

    /// Records after the end were late, and one before them is lost: they must not follow what is
    /// appended now. But if the one that is missing was durable, it is damaged.
    fn erase_rest(&self) -> Result<(), LogError> {
        let end = self.file.len()?;
        let mut late = Vec::new();
        let mut at = self.at + UNIT_BYTES;
        while at < end {
            // Each record before it takes a unit at least. What lies within a longer record may
            // look like the head of any other, and would be read for nothing.
            let last = self.next + (at - self.at) / UNIT_BYTES;
            if let Some(found) = self.read(at, |number| (self.next + 1..=last).contains(&number))? {
                if found.synced >= self.next {
                    return Err(LogError::Damaged(self.at));
                }
                tracing::info!(number = found.number, "a late record is dropped: one is missing");
                late.push(at);
            }
            at += UNIT_BYTES;
        }
        for at in late {
            self.file.write_at(&[0; HEADER_BYTES], at)?;
        }
        Ok(())
    }
}

/// A log of zeros, so that no write to it needs a new block.
fn create(disk: &dyn Disk, size_bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
    let file = disk.open(LOG_FILE, OpenMode::Create)?;
    let zeros = vec![0; 1 << 20];
    let mut at = 0;
    while at < size_bytes {
        let length = (size_bytes - at).min(zeros.len() as u64);
        file.write_at(&zeros[..length as usize], at)?;
        at += length;
    }
    file.sync_data()?;
    disk.sync_dir("")?;
    Ok(file)
}

fn rounded(length: u64) -> u64 {
    length.next_multiple_of(UNIT_BYTES)
}

fn split(header: &[u8; HEADER_BYTES]) -> (u32, u32, u64) {
    let (length, rest) = header.split_first_chunk().expect("16 bytes");
    let (sum, number) = rest.split_first_chunk().expect("12 bytes");
    let number = number.first_chunk().expect("8 bytes");
    (u32::from_le_bytes(*length), u32::from_le_bytes(*sum), u64::from_le_bytes(*number))
}

fn encode(seed: u64, number: u64, writes: &Writes, synced: Option<u64>) -> Vec<u8> {
    let mut record = vec![0; HEADER_BYTES];
    if let Some(synced) = synced {
        put(&mut record, Some(&SYNCED.to_vec()));
        put(&mut record, Some(&synced.to_le_bytes().to_vec()));
    }
    for (key, value) in writes {
        put(&mut record, Some(key));
        put(&mut record, value.as_ref());
    }
    let length = u32::try_from(record.len() - HEADER_BYTES).expect("batches are below 4 GiB");
    let sum = checksum(seed, number, &record[HEADER_BYTES..]);
    record[..4].copy_from_slice(&length.to_le_bytes());
    record[4..8].copy_from_slice(&sum.to_le_bytes());
    record[8..16].copy_from_slice(&number.to_le_bytes());
    record
}

fn put(record: &mut Vec<u8>, bytes: Option<&Vec<u8>>) {
    let length = bytes.map_or(NO_VALUE, |bytes| {
        u32::try_from(bytes.len()).expect("keys and values are below 4 GiB")
    });
    record.extend_from_slice(&length.to_le_bytes());
    record.extend_from_slice(bytes.map_or(&[], Vec::as_slice));
}

fn decode(mut payload: &[u8]) -> Option<Writes> {
    let mut writes = Writes::new();
    while !payload.is_empty() {
        let key = take(&mut payload)??;
        writes.insert(key, take(&mut payload)?);
    }
    Some(writes)
}

/// The next bytes of a payload. `None` if there are none; `Some(None)` for [`NO_VALUE`].
fn take(payload: &mut &[u8]) -> Option<Option<Vec<u8>>> {
    let (length, rest) = payload.split_first_chunk()?;
    *payload = rest;
    let length = u32::from_le_bytes(*length);
    if length == NO_VALUE {
        return Some(None);
    }
    let (bytes, rest) = payload.split_at_checked(length as usize)?;
    *payload = rest;
    Some(Some(bytes.to_vec()))
}

/// The seed is the store's own and random, so that no client can forge a record inside a record.
fn checksum(seed: u64, number: u64, payload: &[u8]) -> u32 {
    let head = crc32c::crc32c_append(crc32c::crc32c(&seed.to_le_bytes()), &number.to_le_bytes());
    crc32c::crc32c_append(head, payload)
}

#[cfg(test)]
mod tests {
    use larder_io::{Image, SimDisk};

    use super::*;

    fn writes(number: u8, value_bytes: usize) -> Writes {
        let value = Some(vec![number; value_bytes]);
        Writes::from([(vec![number], value), (vec![number, 1], None)])
    }

    fn open(disk: &SimDisk, applied: u64) -> Result<(Log, Vec<Writes>), LogError> {
        Log::open(disk, 1 << 16, 77, applied)
    }

    #[test]
    fn records_come_back_in_order() {
        let disk = SimDisk::new();
        let (mut log, none) = open(&disk, 0).unwrap();
        assert!(none.is_empty());
        let wanted: Vec<Writes> =
            (1..6).map(|number| writes(number, 3000 * number as usize)).collect();
        for record in &wanted {
            assert!(log.append(record, false).unwrap());
        }
        let (log, found) = open(&disk.crash(Image::Synced), 0).unwrap();
        assert_eq!((found, log.last()), (wanted, 5));
    }

    #[test]
    fn a_log_that_begins_again_forgets_what_was_there() {
        let disk = SimDisk::new();
        let (mut log, _) = open(&disk, 0).unwrap();
        for number in 1..5 {
            assert!(log.append(&writes(number, 10), false).unwrap());
        }
        log.rewind();
        assert_eq!(open(&disk, 4).unwrap().1, []);
        assert!(log.append(&writes(9, 10), false).unwrap());
        assert_eq!(open(&disk, 4).unwrap().1, [writes(9, 10)]);
    }

    #[test]
    fn a_full_log_takes_nothing() {
        let (mut log, _) = open(&SimDisk::new(), 0).unwrap();
        assert!(!log.append(&writes(1, 1 << 16), false).unwrap());
        for _ in 0..16 {
            assert!(log.append(&writes(1, 1), false).unwrap());
        }
        assert!(!log.append(&writes(1, 1), false).unwrap());
    }

    #[test]
    fn a_damaged_record_is_told_from_an_unfinished_one() {
        let disk = SimDisk::new();
        let (mut log, _) = open(&disk, 0).unwrap();
        for number in 1..4 {
            assert!(log.append(&writes(number, 10), false).unwrap());
        }
        disk.corrupt(LOG_FILE, 2 * UNIT_BYTES + 20, 0);
        assert_eq!(open(&disk, 0).unwrap().1.len(), 2, "the last one counts as unfinished");
        disk.corrupt(LOG_FILE, UNIT_BYTES + 20, 0);
        disk.corrupt(LOG_FILE, 2 * UNIT_BYTES + 20, 0);
        assert!(matches!(open(&disk, 0), Err(LogError::Damaged(UNIT_BYTES))));
    }

    /// A crash that keeps a late record and loses the one before it: what is appended then is not
    /// followed by the one that was kept.
    #[test]
    fn late_records_behind_a_lost_one_are_gone() {
        let disk = SimDisk::new();
        let (mut log, _) = open(&disk, 0).unwrap();
        assert!(log.append(&writes(1, 10), false).unwrap());
        for number in 2..5 {
            assert!(log.append(&writes(number, 10), true).unwrap());
        }
        disk.corrupt(LOG_FILE, UNIT_BYTES + 20, 0);
        let (mut log, found) = open(&disk, 0).unwrap();
        assert_eq!((found, log.last()), (vec![writes(1, 10)], 1));
        assert!(log.append(&writes(9, 10), true).unwrap());
        assert_eq!(open(&disk, 0).unwrap().1, [writes(1, 10), writes(9, 10)]);
    }

    /// A late record that was synced is durable: a later one says so.
    #[test]
    fn a_damaged_record_that_was_late_and_synced_is_told_from_a_lost_one() {
        let disk = SimDisk::new();
        let (mut log, _) = open(&disk, 0).unwrap();
        assert!(log.append(&writes(1, 10), true).unwrap());
        assert!(log.append(&writes(2, 10), true).unwrap());
        let (file, last) = log.to_sync();
        file.sync_data().unwrap();
        log.is_synced(last);
        assert!(log.append(&writes(3, 10), true).unwrap());
        disk.corrupt(LOG_FILE, UNIT_BYTES + 20, 0);
        assert!(matches!(open(&disk, 0), Err(LogError::Damaged(UNIT_BYTES))));
    }

    /// How many operations of the disk an open takes that finds the log begun again over a long
    /// record, whose inside is full of heads with this number.
    fn operations_to_open(number: u64) -> u64 {
        const UNITS: usize = 12;
        let mut unit = vec![0; UNIT_BYTES as usize];
        unit[..4].copy_from_slice(&100u32.to_le_bytes());
        unit[8..16].copy_from_slice(&number.to_le_bytes());
        // What is before the value in the record: its heads begin where records do.
        let before = UNIT_BYTES as usize - HEADER_BYTES - 4 - 1 - 4;
        let value = [vec![0; before], unit.repeat(UNITS)].concat();
        let disk = SimDisk::new();
        let (mut log, _) = open(&disk, 0).unwrap();
        assert!(log.append(&Writes::from([(vec![1], Some(value))]), false).unwrap());
        log.rewind();
        assert!(log.append(&writes(2, 1), false).unwrap());
        let before = disk.operations();
        assert_eq!(open(&disk, 1).unwrap().1, [writes(2, 1)]);
        disk.operations() - before
    }

    /// What cannot be a later record, since fewer would fit before it, is not read.
    #[test]
    fn a_start_reads_nothing_for_what_looks_like_a_far_later_record() {
        let nothing = operations_to_open(0);
        for number in [1 << 8, 1 << 40, u64::MAX] {
            assert_eq!(operations_to_open(number), nothing, "{number}");
        }
        // Record 5 could be at the third unit behind the last record, and those behind it.
        assert!(operations_to_open(5) > nothing);
    }

    /// What is in a payload is not taken for a record, whatever it looks like.
    #[test]
    fn a_record_cannot_be_put_into_a_record() {
        let disk = SimDisk::new();
        let (mut log, _) = open(&disk, 0).unwrap();
        let mut value = vec![0; UNIT_BYTES as usize - HEADER_BYTES - 4 - 1 - 4];
        value.extend(encode(0, 50, &writes(9, 1), None));
        assert!(log.append(&Writes::from([(vec![1], Some(value))]), false).unwrap());
        log.rewind();
        assert!(log.append(&writes(2, 1), false).unwrap());
        assert_eq!(open(&disk, 1).unwrap().1, [writes(2, 1)]);
    }
}

//! The ledger: which files are open, and by which backing id, in memory that survives the process.
//!
//! It is a log in a memory file whose descriptor is held by the process that keeps the mount alive.
//! Records are appended; when most of the log describes files that were closed, the records of open
//! files are written again after it, and then one word at its beginning says where to start. So the
//! ledger is correct at every moment at which the process can be killed: a record counts from its
//! first byte on, which is put there last ([`Tail`]). It does not survive the machine, and need
//! not.

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use larder_io::Tail;
use rustix::fs::{FallocateFlags, MemfdFlags};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Where the log begins at first; before it are the word that holds its beginning, and the header.
const FIRST: u64 = 8192;

/// Other state that the next process must know is stored here; see [`put_header`].
const HEADER: u64 = 64;

/// Number of records after which the log is rewritten, unless most of them still count.
const RECORDS_MAX: u64 = 4096;

/// Identifies the local file: as long as it is open, no other file has these numbers.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The identity of an open file.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub(crate) fn of(file: BorrowedFd<'_>) -> io::Result<FileId> {
        let stat = rustix::fs::fstat(file)?;
        Ok(FileId { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) ino: u64,
    pub(crate) open: u64,
    /// The backing id that its inode is bound to; 0: none.
    pub(crate) backing: u32,
    /// The file that it stands for.
    pub(crate) file: FileId,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Line {
    /// 0: the log ends here.
    kind: u8,
    unused: [u8; 3],
    backing: u32,
    ino: u64,
    open: u64,
    file: FileId,
}

const LINE_BYTES: u64 = size_of::<Line>() as u64;
const OPENED: u8 = 1;
const RELEASED: u8 = 2;

/// The log, at its end.
#[derive(Debug)]
pub(crate) struct Ledger {
    memory: OwnedFd,
    begin: u64,
    tail: Tail,
    open: HashMap<u64, Record>,
}

/// Writes other state that the next process must know.
///
/// # Errors
/// If it is too long, or the memory refuses it.
pub(crate) fn put_header(memory: &OwnedFd, header: &[u8]) -> io::Result<()> {
    let fits = header.len() as u64 <= FIRST - HEADER;
    let written = if fits { rustix::io::pwrite(memory, header, HEADER)? } else { 0 };
    if written == header.len() { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Reads it: as much as was written, or more.
///
/// # Errors
/// If the memory cannot be read.
pub(crate) fn header(memory: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut header = vec![0; (FIRST - HEADER) as usize];
    let len = rustix::io::pread(memory, &mut header, HEADER)?;
    header.truncate(len);
    Ok(header)
}

impl Ledger {
    /// Memory for an empty one.
    ///
    /// # Errors
    /// If the system has none.
    pub(crate) fn memory() -> io::Result<OwnedFd> {
        Ok(rustix::fs::memfd_create("larder-ledger", MemfdFlags::CLOEXEC)?)
    }

    /// Continues a log, and returns what is open.
    ///
    /// # Errors
    /// If the memory cannot be read.
    pub(crate) fn open(memory: OwnedFd) -> io::Result<(Ledger, Vec<Record>)> {
        let mut word = [0; 8];
        rustix::io::pread(&memory, &mut word, 0)?;
        let begin = u64::from_ne_bytes(word).max(FIRST);
        let (mut end, mut known) = (begin, HashMap::new());
        while let Some(line) = read(&memory, end)? {
            end += LINE_BYTES;
            let Line { kind, backing, ino, open, file, .. } = line;
            match kind {
                OPENED => drop(known.insert(open, Record { ino, open, backing, file })),
                _ => drop(known.remove(&open)),
            }
        }
        let records = known.values().copied().collect();
        let tail = Tail::of_memory(memory.try_clone()?, end);
        Ok((Ledger { memory, begin, tail, open: known }, records))
    }

    /// A file was opened.
    pub(crate) fn opened(&mut self, record: Record) {
        self.open.insert(record.open, record);
        self.append(line(OPENED, &record));
    }

    /// A file was closed.
    pub(crate) fn released(&mut self, ino: u64, open: u64) {
        if self.open.remove(&open).is_none() {
            return;
        }
        let file = FileId::default();
        self.append(line(RELEASED, &Record { ino, open, backing: 0, file }));
        let records = (self.tail.len_bytes() - self.begin) / LINE_BYTES;
        if records > RECORDS_MAX && self.open.len() as u64 * 2 < records {
            self.write_anew();
        }
    }

    fn append(&mut self, line: Line) {
        remembered(self.tail.append(line.as_bytes()));
    }

    fn write_anew(&mut self) {
        let lines: Vec<Line> = self.open.values().map(|record| line(OPENED, record)).collect();
        self.tail.skip(LINE_BYTES);
        let begin = self.tail.len_bytes();
        self.begin = begin;
        remembered(self.tail.append(lines.as_bytes()));
        let moved = rustix::io::pwrite(&self.memory, &begin.to_ne_bytes(), 0);
        remembered(moved.map(drop).map_err(io::Error::from));
        let old = FIRST..begin / 4096 * 4096;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Some(len) = old.end.checked_sub(old.start).filter(|len| *len > 0) {
            // Memory that is not given back is all that comes of a failure.
            let _ = rustix::fs::fallocate(&self.memory, flags, old.start, len);
        }
    }
}

/// Says so if a record may not be in the log.
fn remembered(put: io::Result<()>) {
    if let Err(error) = put {
        tracing::error!(%error, "no memory to remember open files: a restart would not know them");
    }
}

/// The record at this place; none at the end of the log.
fn read(memory: &OwnedFd, at: u64) -> io::Result<Option<Line>> {
    let mut bytes = [0; LINE_BYTES as usize];
    let len = rustix::io::pread(memory, &mut bytes, at)?;
    let line = Line::read_from_bytes(&bytes).ok().filter(|line| line.kind != 0);
    Ok(line.filter(|_| len == bytes.len()))
}

fn line(kind: u8, record: &Record) -> Line {
    let Record { ino, open, backing, file } = *record;
    Line { kind, unused: [0; 3], backing, ino, open, file }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(open: u64) -> Record {
        let file = FileId { device: 1, inode: open * 10 };
        Record { ino: open / 2, open, backing: open as u32 % 3, file }
    }

    fn reopened(memory: &OwnedFd) -> Vec<Record> {
        let (_, mut records) = Ledger::open(memory.try_clone().unwrap()).unwrap();
        records.sort_by_key(|record| record.open);
        records
    }

    /// The process died while it put a record: the rest of it is there, and not its first byte.
    #[test]
    fn a_record_that_is_not_whole_is_the_end() {
        let memory = Ledger::memory().unwrap();
        let (mut ledger, _) = Ledger::open(memory.try_clone().unwrap()).unwrap();
        ledger.opened(record(7));
        let end = ledger.tail.len_bytes();
        let cut = line(OPENED, &record(8));
        rustix::io::pwrite(&memory, &cut.as_bytes()[1..], end + 1).unwrap();
        assert_eq!(reopened(&memory), [record(7)]);
        let (mut next, _) = Ledger::open(memory.try_clone().unwrap()).unwrap();
        next.opened(record(9));
        next.released(record(7).ino, 7);
        assert_eq!(reopened(&memory), [record(9)]);
    }

    #[test]
    fn what_is_open_is_known_after_any_number_of_records() {
        let memory = Ledger::memory().unwrap();
        let (mut ledger, records) = Ledger::open(memory.try_clone().unwrap()).unwrap();
        assert!(records.is_empty());
        for open in 1..=3 * RECORDS_MAX {
            ledger.opened(record(open));
            if open > 100 {
                ledger.released(record(open - 100).ino, open - 100);
            }
            if open % 511 == 0 {
                let known = reopened(&memory);
                assert_eq!(known.len() as u64, open.min(100));
                assert!(known.iter().all(|known| *known == record(known.open)));
            }
        }
        assert!(ledger.begin > FIRST, "it was written anew");
        let held = rustix::fs::fstat(&memory).unwrap().st_blocks * 512;
        assert!(held < 1 << 20, "{held}");
    }
}

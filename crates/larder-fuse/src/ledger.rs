//! The ledger: which files are open, and by which backing id, in memory that survives the process.
//!
//! It is a log in a memory file whose descriptor is held by the process that keeps the mount alive.
//! Records are appended; when most of the log describes files that were closed, the records of open
//! files are written again after it, and then one word at its beginning says where to start. So the
//! ledger is correct at every moment at which the process can be killed. It does not survive the
//! machine, and need not.

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

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
    kind: u32,
    backing: u32,
    ino: u64,
    open: u64,
    file: FileId,
}

const LINE_BYTES: u64 = size_of::<Line>() as u64;
const OPENED: u32 = 1;
const RELEASED: u32 = 2;

/// The log, at its end.
#[derive(Debug)]
pub(crate) struct Ledger {
    memory: OwnedFd,
    begin: u64,
    end: u64,
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
        let mut ledger = Ledger { memory, begin, end: begin, open: HashMap::new() };
        while let Some(line) = ledger.read(ledger.end)? {
            ledger.end += LINE_BYTES;
            let Line { kind, backing, ino, open, file } = line;
            match kind {
                OPENED => drop(ledger.open.insert(open, Record { ino, open, backing, file })),
                _ => drop(ledger.open.remove(&open)),
            }
        }
        let records = ledger.open.values().copied().collect();
        Ok((ledger, records))
    }

    fn read(&self, at: u64) -> io::Result<Option<Line>> {
        let mut bytes = [0; LINE_BYTES as usize];
        let len = rustix::io::pread(&self.memory, &mut bytes, at)?;
        let line = Line::read_from_bytes(&bytes).ok().filter(|line| line.kind != 0);
        Ok(line.filter(|_| len == bytes.len()))
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
        let records = (self.end - self.begin) / LINE_BYTES;
        if records > RECORDS_MAX && self.open.len() as u64 * 2 < records {
            self.write_anew();
        }
    }

    fn append(&mut self, line: Line) {
        self.write(line.as_bytes(), self.end);
        self.end += LINE_BYTES;
    }

    fn write_anew(&mut self) {
        let lines: Vec<Line> = self.open.values().map(|record| line(OPENED, record)).collect();
        let begin = self.end + LINE_BYTES;
        self.write(lines.as_bytes(), begin);
        self.write(&begin.to_ne_bytes(), 0);
        let old = FIRST..begin / 4096 * 4096;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Some(len) = old.end.checked_sub(old.start).filter(|len| *len > 0) {
            // Memory that is not given back is all that comes of a failure.
            let _ = rustix::fs::fallocate(&self.memory, flags, old.start, len);
        }
        self.begin = begin;
        self.end = begin + lines.len() as u64 * LINE_BYTES;
    }

    fn write(&self, bytes: &[u8], at: u64) {
        let written = rustix::io::pwrite(&self.memory, bytes, at);
        if written != Ok(bytes.len()) {
            tracing::error!(
                ?written,
                "no memory to remember open files: a restart would not know them"
            );
        }
    }
}

fn line(kind: u32, record: &Record) -> Line {
    let Record { ino, open, backing, file } = *record;
    Line { kind, backing, ino, open, file }
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

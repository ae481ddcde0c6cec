//! The session log: changes of the index that are not committed yet.
//!
//! It serves two ends. The page cache survives the process, so whatever was appended is there for
//! the next process of this boot, without a sync. What was synced as well ([`Log::unsynced`])
//! outlives the machine: changes become durable by one sync of the log, where a commit of the index
//! takes two.
//!
//! The log is cut into *segments*, numbered by generation; one of three files holds each. A commit
//! begins a new segment and writes its generation into the index, so the index always says from
//! which segment on to replay the log: it contains all older ones. Two segments can be live (the
//! one that a commit is writing, and the new one), and a start that replays them needs a third.
//!
//! Invariants:
//! - A change is in the log before it is visible in the index.
//! - A segment replays a beginning of the changes of its time. In another boot that may be less
//!   than was appended, and is never less than what was synced.
//! - A segment is replayed behind another one only if that one is there to its end: each says how
//!   long the one before is.
//! - A segment of which changes are missing, because an append failed, says that it is of no boot.
//!   The log is *broken* then until the next commit.

use std::io;
use std::sync::Arc;

use larder_io::{BootId, Disk, DiskFile, OpenMode, Tail};

use crate::codec::{Reader, Writer};

/// One change: key, and value or deletion.
pub(crate) type Change = (Vec<u8>, Option<Vec<u8>>);

const MAGIC: [u8; 16] = *b"larder log 2\n\0\0\0";
/// The format before: it does not say how long the segment before is, and was never synced.
const MAGIC_1: [u8; 16] = *b"larder log 1\n\0\0\0";
/// Length and checksum before each group of changes.
const GROUP_HEADER_BYTES: usize = 4 + 4;
/// A segment of this length (on a small disk [`SEGMENT_SHARE`] of it) requests a commit: changes of
/// one key are pending as one entry, but are logged one by one.
const SEGMENT_BYTES_MAX: u64 = 64 << 20;
const SEGMENT_SHARE: u64 = 64;
/// At this many times that length, a caller that puts more commits first.
const SEGMENT_STALL_FACTOR: u64 = 2;
/// A buffer that grew past this is given back.
const BUFFER_BYTES_MAX: usize = 1 << 20;
const SLOTS: u64 = 3;
/// Of a segment of which changes are missing. A process that does not know its boot has none of its
/// own.
pub(crate) const NO_BOOT: BootId = BootId(0);
/// The length of a segment that nothing may follow.
const NO_END: u64 = u64::MAX;

/// The log of one cache.
#[derive(Debug)]
pub(crate) struct Log {
    disk: Arc<dyn Disk>,
    boot: BootId,
    generation: u64,
    /// The present segment; `None` while the log is broken, and before the first commit.
    present: Option<Segment>,
    broken: bool,
    /// The present segment follows something durable: the index, or a segment that is whole.
    follows: bool,
    segment_bytes_max: u64,
    buffer: Vec<u8>,
    /// Segments before the present one that still have bytes.
    older: Vec<Older>,
    /// Files whose names may not be durable: those that were made since the directory was last
    /// synced, and what an earlier run has left.
    new_names: u64,
    /// Nothing more is logged in this run.
    is_over: bool,
    /// The log was synced in this run.
    is_synced: bool,
}

/// The segment that is appended to.
#[derive(Debug)]
struct Segment {
    tail: Tail,
    file: Arc<dyn DiskFile>,
    /// So much of it is durable.
    synced_bytes: u64,
}

#[derive(Debug)]
struct Older {
    generation: u64,
    bytes: u64,
    /// The file, if it is not durable to its end.
    unsynced: Option<Arc<dyn DiskFile>>,
}

/// What must be synced for all changes so far to be durable.
#[derive(Debug)]
pub(crate) struct Unsynced {
    generation: u64,
    bytes: u64,
    files: Vec<Arc<dyn DiskFile>>,
    new_names: u64,
}

impl Unsynced {
    /// Syncs it. Waits for the disk, without the log.
    pub(crate) fn sync(&self, disk: &dyn Disk) -> io::Result<()> {
        self.files.iter().try_for_each(|file| file.sync_data())?;
        if self.new_names > 0 { disk.sync_dir("") } else { Ok(()) }
    }
}

/// What earlier runs have left.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing that can be used.
    Nothing,
    /// All changes, of this boot.
    All(Vec<Change>),
    /// The changes up to some moment, not before the last one that was synced.
    Beginning(Vec<Change>),
}

/// A segment on the disk.
struct Found {
    header: Header,
    /// Up to the last group that is whole.
    bytes: u64,
    changes: Vec<Change>,
}

/// What a segment says of itself.
struct Header {
    boot: BootId,
    generation: u64,
    /// Length of the segment before; `None` in format 1.
    previous_bytes: Option<u64>,
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.raw(if self.previous_bytes.is_some() { &MAGIC } else { &MAGIC_1 });
        out.raw(&self.boot.0.to_le_bytes());
        out.u64(self.generation);
        if let Some(bytes) = self.previous_bytes {
            out.u64(bytes);
        }
        let mut bytes = out.into_bytes();
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    fn decode(input: &mut Reader<'_>) -> Option<Header> {
        let is_format_1 = match input.raw(MAGIC.len())? {
            magic if magic == MAGIC => false,
            magic if magic == MAGIC_1 => true,
            _ => return None,
        };
        let boot = BootId(u128::from_le_bytes(input.raw(16)?.try_into().ok()?));
        let generation = input.u64()?;
        let previous_bytes = if is_format_1 { None } else { Some(input.u64()?) };
        let header = Header { boot, generation, previous_bytes };
        let encoded = header.encode();
        let sum = input.raw(4)?;
        encoded.ends_with(sum).then_some(header)
    }
}

/// Path of a segment.
fn path(generation: u64) -> String {
    format!("log.{}", generation % SLOTS)
}

impl Log {
    /// A log without a present segment, and what the segments from `generation` on have. They stay
    /// until [`Log::retire`].
    pub(crate) fn open(disk: Arc<dyn Disk>, boot: BootId, generation: Option<u64>) -> (Log, Left) {
        let share = disk.space().map_or(u64::MAX, |space| space.total_bytes / SEGMENT_SHARE);
        let mut log = Log {
            disk,
            boot,
            generation: generation.unwrap_or(0),
            present: None,
            broken: false,
            follows: false,
            segment_bytes_max: share.min(SEGMENT_BYTES_MAX),
            buffer: Vec::new(),
            older: Vec::new(),
            new_names: 1,
            is_over: false,
            is_synced: false,
        };
        let left = generation.map_or(Left::Nothing, |_| log.find());
        if left == Left::Nothing {
            log.remove();
        }
        (log, left)
    }

    fn find(&mut self) -> Left {
        let Some(first) = self.read(self.generation) else { return Left::Nothing };
        let is_ours = |found: &Found| found.header.boot == self.boot && self.boot != NO_BOOT;
        let mut is_whole = is_ours(&first);
        if first.header.previous_bytes.is_none() && !is_whole {
            return Left::Nothing;
        }
        let mut changes = first.changes;
        let follows =
            |newer: &Found| newer.header.previous_bytes.is_none_or(|it| it == first.bytes);
        if let Some(newer) = self.read(self.generation + 1).filter(follows) {
            is_whole &= is_ours(&newer);
            changes.extend(newer.changes);
            self.older.push(Older { generation: self.generation, bytes: NO_END, unsynced: None });
            self.generation += 1;
        }
        if is_whole { Left::All(changes) } else { Left::Beginning(changes) }
    }

    /// Begins the next segment and returns its generation, for the commit that covers all older
    /// ones.
    pub(crate) fn next(&mut self) -> u64 {
        let (mut bytes, mut unsynced) = (NO_END, None);
        if let Some(segment) = self.present.take() {
            bytes = segment.tail.len_bytes();
            unsynced = (segment.synced_bytes < bytes).then_some(segment.file);
        }
        self.older.push(Older { generation: self.generation, bytes, unsynced });
        debug_assert!(
            self.older.is_sorted_by(|one, next| one.generation < next.generation),
            "segments are replayed in this order"
        );
        self.follows &= bytes != NO_END;
        self.generation += 1;
        self.is_over = false;
        self.broken = false;
        self.present = self.begin(bytes).inspect_err(tell).ok();
        self.generation
    }

    fn begin(&mut self, previous_bytes: u64) -> io::Result<Segment> {
        let path = path(self.generation);
        let file = match self.disk.open(&path, OpenMode::Existing) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.new_names += 1;
                self.disk.open(&path, OpenMode::Create)?
            }
            opened => opened?,
        };
        file.set_len(0)?;
        let mut tail = Tail::new(Arc::clone(&file));
        if self.is_synced {
            tail.expect_syncs();
        }
        let (boot, generation) = (self.boot, self.generation);
        let header = Header { boot, generation, previous_bytes: Some(previous_bytes) };
        tail.append(&header.encode())?;
        Ok(Segment { tail, file, synced_bytes: 0 })
    }

    /// The commit is durable: the older segments are no longer needed.
    pub(crate) fn retire(&mut self) {
        self.follows = true;
        for older in std::mem::take(&mut self.older) {
            let emptied = self.disk.open(&path(older.generation), OpenMode::Existing);
            // A remaining segment is not replayed: the index names a newer generation.
            let _ = emptied.and_then(|file| file.set_len(0));
        }
    }

    /// Appends changes that belong together. Does nothing while the log is broken.
    pub(crate) fn append(&mut self, changes: &[Change]) {
        let Some(segment) = &mut self.present else { return };
        self.buffer.clear();
        self.buffer.extend_from_slice(&[0; GROUP_HEADER_BYTES]);
        let mut out = Writer::behind(std::mem::take(&mut self.buffer));
        for (key, value) in changes {
            out.bytes(key);
            out.flag(value.is_some());
            out.bytes(value.as_deref().unwrap_or_default());
        }
        self.buffer = out.into_bytes();
        let (head, body) = self.buffer.split_at_mut(GROUP_HEADER_BYTES);
        let len =
            u32::try_from(body.len()).expect("changes that belong together are far below 4 GiB");
        let at = segment.tail.len_bytes();
        debug_assert!(segment.synced_bytes <= at, "what is durable stays");
        head[..4].copy_from_slice(&len.to_le_bytes());
        head[4..].copy_from_slice(&checksum(self.generation, at, body).to_le_bytes());
        if let Err(error) = segment.tail.append(&self.buffer) {
            self.break_off(&error);
        }
        if self.buffer.capacity() > BUFFER_BYTES_MAX {
            self.buffer = Vec::new();
        }
    }

    /// Whether changes are appended: not after a failure, until the next segment begins.
    pub(crate) fn is_whole(&self) -> bool {
        self.present.is_some()
    }

    /// Whether a commit should come soon: the segment is long, or an append failed.
    pub(crate) fn wants_commit(&self) -> bool {
        self.broken || self.present_bytes() > self.segment_bytes_max
    }

    /// Whether the segment is so long that a commit comes before anything else.
    pub(crate) fn is_full(&self) -> bool {
        self.present_bytes() / SEGMENT_STALL_FACTOR > self.segment_bytes_max
    }

    fn present_bytes(&self) -> u64 {
        self.present.as_ref().map_or(0, |segment| segment.tail.len_bytes())
    }

    /// What to sync so that all changes so far outlive the machine; `None` if it takes a commit.
    pub(crate) fn unsynced(&self) -> Option<Unsynced> {
        let segment = self.present.as_ref().filter(|_| self.follows)?;
        let bytes = segment.tail.len_bytes();
        // In this order: the present segment counts only behind the whole of the one before.
        let older = self.older.iter().filter_map(|older| older.unsynced.clone());
        let present = (segment.synced_bytes < bytes).then(|| Arc::clone(&segment.file));
        let files = older.chain(present).collect();
        Some(Unsynced { generation: self.generation, bytes, files, new_names: self.new_names })
    }

    /// That was synced.
    pub(crate) fn note_synced(&mut self, synced: &Unsynced) {
        self.new_names -= synced.new_names.min(self.new_names);
        for older in &mut self.older {
            let is_there = older.generation < synced.generation
                || (older.generation == synced.generation && older.bytes == synced.bytes);
            if is_there {
                older.unsynced = None;
            }
        }
        if let Some(segment) = &mut self.present
            && self.generation == synced.generation
        {
            debug_assert!(synced.bytes <= segment.tail.len_bytes(), "it was appended before");
            segment.synced_bytes = segment.synced_bytes.max(synced.bytes);
            segment.tail.expect_syncs();
        }
        self.is_synced = true;
    }

    /// A change is not in the present segment, or a sync failed, after which nobody knows what of
    /// it the disk has. No process takes it for all that there was from now on, and only a commit
    /// makes changes durable. What was synced stays.
    pub(crate) fn break_off(&mut self, error: &io::Error) {
        tell(error);
        self.broken = true;
        let Some(segment) = self.present.take() else { return };
        if disown(&*segment.file).is_err() {
            let _ = segment.file.set_len(segment.synced_bytes);
        }
    }

    /// The index has failed, and what is put into it from now on is dropped. The next process finds
    /// what was logged before as if the machine had failed.
    pub(crate) fn give_up(&mut self) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        self.present = None;
        let older = std::mem::take(&mut self.older).into_iter().map(|older| older.generation);
        for generation in older.chain([self.generation]) {
            let file = self.disk.open(&path(generation), OpenMode::Existing);
            if let Err(error) = file.and_then(|file| disown(&*file)) {
                tracing::debug!(%error, generation, "a segment of the log is left as it is");
            }
        }
    }

    /// Removes all segments; nothing more is logged.
    pub(crate) fn remove(&mut self) {
        self.present = None;
        self.older.clear();
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        for slot in 0..SLOTS {
            // A file that cannot be removed has a generation that the index does not name.
            let _ = self.disk.remove(&path(slot));
        }
    }

    /// The changes of a segment up to the first group that is not whole; `None` if its header is
    /// damaged.
    fn read(&self, generation: u64) -> Option<Found> {
        let file = self.disk.open(&path(generation), OpenMode::Existing).ok()?;
        let mut bytes = vec![0; usize::try_from(file.len().ok()?).ok()?];
        let count = file.read_at(&mut bytes, 0).ok()?;
        bytes.truncate(count);
        let (mut rest, mut changes) = (Reader::new(&bytes), Vec::new());
        let header = Header::decode(&mut rest).filter(|it| it.generation == generation)?;
        let mut at = header.encode().len() as u64;
        while let Some(group) = take_group(generation, at, &mut rest) {
            at += (GROUP_HEADER_BYTES + group.len()) as u64;
            changes.append(&mut decode(group)?);
        }
        Some(Found { header, bytes: at, changes })
    }
}

fn tell(error: &io::Error) {
    tracing::warn!(%error, "the cache's session log is interrupted: unsent data is at risk");
}

/// Makes a segment one of no boot.
fn disown(file: &dyn DiskFile) -> io::Result<()> {
    let header = Header { boot: NO_BOOT, generation: 0, previous_bytes: Some(0) };
    let mut bytes = header.encode();
    let count = file.read_at(&mut bytes, 0)?;
    // One without a header is not replayed.
    match Header::decode(&mut Reader::new(&bytes[..count])) {
        Some(found) => file.write_at(&Header { boot: NO_BOOT, ..found }.encode(), 0),
        None => Ok(()),
    }
}

/// A group's checksum: valid for this place in this segment only.
fn checksum(generation: u64, at: u64, body: &[u8]) -> u32 {
    let sum = crc32c::crc32c(&generation.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(sum, &at.to_le_bytes()), body)
}

fn take_group<'a>(generation: u64, at: u64, rest: &mut Reader<'a>) -> Option<&'a [u8]> {
    let len = usize::try_from(rest.u32()?).ok().filter(|len| *len > 0)?;
    let sum = rest.u32()?;
    let body = rest.raw(len)?;
    (checksum(generation, at, body) == sum).then_some(body)
}

fn decode(body: &[u8]) -> Option<Vec<Change>> {
    let (mut body, mut changes) = (Reader::new(body), Vec::new());
    while !body.is_at_end() {
        let key = body.bytes()?.to_vec();
        let (present, value) = (body.flag()?, body.bytes()?);
        changes.push((key, present.then(|| value.to_vec())));
    }
    Some(changes)
}

#[cfg(test)]
mod tests;

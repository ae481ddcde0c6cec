//! The session log: changes of the index that are not committed yet, in case the process dies while
//! the machine runs.
//!
//! Nothing here is ever synced: the page cache survives the process, and after a reboot, which the
//! boot's id shows, the log is useless.
//!
//! The log is cut into *segments*, numbered by generation; one of three files holds each. A commit
//! begins a new segment and writes its generation into the index, so the index always says from
//! which segment on to replay the log: it contains all older ones. Two segments can be live (the
//! one that a commit is writing, and the new one), and a start that replays them needs a third.
//!
//! Invariants:
//! - A change is in the log before it is visible in the index.
//! - After its last group a segment has zeros, or a part of a group that was being written when the
//!   process died.
//! - A segment has all changes of its time, or none: if an append fails the segment is emptied, and
//!   the log is *broken* until the next commit.

use std::io;
use std::sync::Arc;

use larder_io::{BootId, Disk, OpenMode, Tail};

use crate::codec::{Reader, Writer};

/// One change: key, and value or deletion.
pub(crate) type Change = (Vec<u8>, Option<Vec<u8>>);

const MAGIC: [u8; 16] = *b"larder log 1\n\0\0\0";
/// Magic, boot, generation, checksum.
const HEADER_BYTES: usize = 16 + 16 + 8 + 4;
/// Length and checksum before each group of changes.
const GROUP_HEADER_BYTES: usize = 4 + 4;
/// A segment of this length (on a small disk [`SEGMENT_SHARE`] of it) requests a commit: changes of
/// one key are pending as one entry, but are logged one by one.
const SEGMENT_BYTES_MAX: u64 = 64 << 20;
const SEGMENT_SHARE: u64 = 64;
/// A buffer that grew past this is given back.
const BUFFER_BYTES_MAX: usize = 1 << 20;
const SLOTS: u64 = 3;

/// The log of one cache.
#[derive(Debug)]
pub(crate) struct Log {
    disk: Arc<dyn Disk>,
    boot: BootId,
    generation: u64,
    /// The present segment; `None` while the log is broken, and before the first commit.
    file: Option<Tail>,
    broken: bool,
    segment_bytes_max: u64,
    buffer: Vec<u8>,
    /// Generations before the present one that still have bytes.
    older: Vec<u64>,
    /// All files of the log were removed.
    removed: bool,
}

/// Path of a segment.
fn path(generation: u64) -> String {
    format!("log.{}", generation % SLOTS)
}

impl Log {
    /// A log without a present segment, and the content of the segments from `generation` on;
    /// `None` if they are not whole, or of another boot. Then they are removed.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        boot: BootId,
        generation: Option<u64>,
    ) -> (Log, Option<Vec<Change>>) {
        let first = generation.unwrap_or(0);
        let (file, buffer, older) = (None, Vec::new(), Vec::new());
        let share = disk.space().map_or(u64::MAX, |space| space.total_bytes / SEGMENT_SHARE);
        let mut log = Log {
            disk,
            boot,
            generation: first,
            file,
            broken: false,
            segment_bytes_max: share.min(SEGMENT_BYTES_MAX),
            buffer,
            older,
            removed: false,
        };
        let Some(mut changes) = generation.and_then(|first| log.read(first)) else {
            log.remove();
            return (log, None);
        };
        if let Some(newer) = log.read(first + 1) {
            changes.extend(newer);
            log.older.push(first);
            log.generation = first + 1;
        }
        (log, Some(changes))
    }

    /// Begins the next segment and returns its generation, for the commit that covers all older
    /// ones.
    pub(crate) fn next(&mut self) -> u64 {
        self.older.push(self.generation);
        self.generation += 1;
        self.removed = false;
        let begun = self.begin();
        self.broken = false;
        self.file = begun.inspect_err(|error| self.tell(error)).ok();
        self.generation
    }

    fn begin(&self) -> io::Result<Tail> {
        let file = self.disk.open(&path(self.generation), OpenMode::Create)?;
        file.set_len(0)?;
        let mut tail = Tail::new(file);
        tail.append(&self.header(self.generation))?;
        Ok(tail)
    }

    /// The commit is durable: the older segments are no longer needed.
    pub(crate) fn retire(&mut self) {
        for generation in std::mem::take(&mut self.older) {
            let emptied = self.disk.open(&path(generation), OpenMode::Existing);
            // A remaining segment is not replayed: the index names a newer generation.
            let _ = emptied.and_then(|file| file.set_len(0));
        }
    }

    /// Appends changes that belong together. Does nothing while the log is broken.
    pub(crate) fn append(&mut self, changes: &[Change]) {
        let Some(file) = &mut self.file else { return };
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
        head[..4].copy_from_slice(&len.to_le_bytes());
        head[4..].copy_from_slice(&checksum(self.generation, file.len_bytes(), body).to_le_bytes());
        if let Err(error) = file.append(&self.buffer) {
            self.tell(&error);
            let _ = self.file.take().map(|file| file.into_file().set_len(0));
            self.broken = true;
        }
        if self.buffer.capacity() > BUFFER_BYTES_MAX {
            self.buffer = Vec::new();
        }
    }

    /// Whether changes are appended: not after a failure, until the next segment begins.
    pub(crate) fn is_whole(&self) -> bool {
        self.file.is_some()
    }

    /// Whether a commit should come soon: the segment is long, or an append failed.
    pub(crate) fn wants_commit(&self) -> bool {
        self.broken
            || self.file.as_ref().is_some_and(|file| file.len_bytes() > self.segment_bytes_max)
    }

    /// Removes all segments; nothing more is logged.
    pub(crate) fn remove(&mut self) {
        self.file = None;
        if std::mem::replace(&mut self.removed, true) {
            return;
        }
        for slot in 0..SLOTS {
            // A file that cannot be removed has a generation that the index does not name.
            let _ = self.disk.remove(&path(slot));
        }
    }

    fn tell(&self, error: &io::Error) {
        tracing::warn!(%error, "the cache's session log is interrupted: unsent data is at risk");
    }

    fn header(&self, generation: u64) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.boot.0.to_le_bytes());
        out.extend_from_slice(&generation.to_le_bytes());
        out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
        out
    }

    /// The changes of a segment up to the first group that is not whole; `None` if its header is
    /// damaged.
    fn read(&self, generation: u64) -> Option<Vec<Change>> {
        let file = self.disk.open(&path(generation), OpenMode::Existing).ok()?;
        let mut bytes = vec![0; usize::try_from(file.len().ok()?).ok()?];
        let count = file.read_at(&mut bytes, 0).ok()?;
        bytes.truncate(count);
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
        if header != self.header(generation) {
            return None;
        }
        let (mut rest, mut changes) = (Reader::new(rest), Vec::new());
        let mut at = HEADER_BYTES as u64;
        while let Some(group) = take_group(generation, at, &mut rest) {
            at += (GROUP_HEADER_BYTES + group.len()) as u64;
            changes.append(&mut decode(group)?);
        }
        Some(changes)
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
mod tests {
    use larder_io::{Fault, SimDisk};

    use super::*;

    const BOOT: BootId = BootId(7);

    fn change(n: u8) -> Change {
        (vec![b'a', n], (!n.is_multiple_of(3)).then(|| vec![n; usize::from(n)]))
    }

    fn open(disk: &SimDisk, boot: BootId, generation: u64) -> (Log, Option<Vec<Change>>) {
        Log::open(Arc::new(disk.clone()), boot, Some(generation))
    }

    /// A log whose segments 1 and 2 are live.
    fn written(disk: &SimDisk) -> Log {
        let mut log = open(disk, BOOT, 0).0;
        for (generation, first) in [(1, 0), (2, 10)] {
            assert_eq!(log.next(), generation);
            log.append(&[change(first), change(first + 1)]);
            log.append(&[change(first + 2)]);
        }
        log
    }

    #[test]
    fn segments_are_replayed_in_order_from_the_generation_that_the_index_names() {
        let disk = SimDisk::new();
        written(&disk);
        let second: Vec<_> = [10, 11, 12].map(change).into();
        let both: Vec<_> = [0, 1, 2, 10, 11, 12].map(change).into();
        assert_eq!(open(&disk, BOOT, 1).1, Some(both));
        assert_eq!(open(&disk, BOOT, 2).1, Some(second));
        let mut log = open(&disk, BOOT, 1).0;
        assert_eq!(log.next(), 3);
        log.retire();
        assert_eq!(open(&disk, BOOT, 3).1, Some(vec![]));
        assert_eq!(open(&disk, BOOT, 1).1, None, "retired");
        assert_eq!(disk.files(), [], "and removed, as nothing can be made of it");
    }

    #[test]
    fn another_boot_gets_nothing() {
        let disk = SimDisk::new();
        written(&disk);
        assert_eq!(open(&disk, BootId(8), 1).1, None);
        assert_eq!(disk.files(), []);
    }

    /// At every length, a segment gives the groups that are whole.
    #[test]
    fn a_cut_segment_gives_whole_groups() {
        let whole = SimDisk::new();
        written(&whole);
        let len = whole.files().iter().find(|(path, _)| path == "log.2").unwrap().1;
        let mut counts = Vec::new();
        for cut in 0..=len {
            let disk = SimDisk::new();
            written(&disk);
            disk.open("log.2", OpenMode::Existing).unwrap().set_len(cut).unwrap();
            counts.push(open(&disk, BOOT, 2).1.map(|changes| changes.len()));
        }
        counts.dedup();
        assert_eq!(counts, [None, Some(0), Some(2), Some(3)]);
    }

    /// The space beyond the last group is allocated already: a part of an interrupted group may be
    /// there.
    #[test]
    fn a_group_that_is_there_in_part_ends_the_replay() {
        let disk = SimDisk::new();
        let mut log = written(&disk);
        let file = disk.open("log.2", OpenMode::Existing).unwrap();
        let before = file.len().unwrap();
        log.append(&[change(13), change(14)]);
        let mut group = vec![0; (file.len().unwrap() - before) as usize];
        file.read_exact_at(&mut group, before).unwrap();
        for len in 0..=group.len() {
            let part = [&group[..len], &vec![0; group.len() - len + 100]].concat();
            file.write_at(&part, before).unwrap();
            let count = Log::open(Arc::new(disk.crash(larder_io::Image::Written)), BOOT, Some(2));
            let expected = if len == group.len() { 5 } else { 3 };
            assert_eq!(count.1.map(|changes| changes.len()), Some(expected), "{len}");
        }
    }

    /// No flipped bit brings a change that was not made.
    #[test]
    fn damage_ends_the_replay() {
        let whole = SimDisk::new();
        written(&whole);
        let expected: Vec<_> = [10, 11, 12].map(change).into();
        let len = whole.files().iter().find(|(path, _)| path == "log.2").unwrap().1;
        for at in 0..len {
            let disk = SimDisk::new();
            written(&disk);
            disk.corrupt("log.2", at, 3);
            let found = open(&disk, BOOT, 2).1.unwrap_or_default();
            assert!(found.len() < 3 && expected.starts_with(&found), "{at}");
        }
    }

    #[test]
    fn a_failed_append_breaks_the_log_until_the_next_segment() {
        let disk = SimDisk::new();
        let mut log = written(&disk);
        disk.inject(Fault::EioAt(disk.operations() + 1));
        log.append(&[change(20)]);
        log.append(&[change(21)]);
        assert!(log.wants_commit());
        assert_eq!(log.next(), 3);
        log.append(&[change(22)]);
        assert!(!log.wants_commit());
        assert_eq!(open(&disk, BOOT, 3).1, Some(vec![change(22)]));
        assert_eq!(open(&disk, BOOT, 2).1, None, "a part of a segment is none");
    }
}

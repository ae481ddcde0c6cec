//! Conflicts: what was done on this machine, and could not be done so at the server. Each has a
//! number and the time at which it was found, and stays on record until a person clears it.
//!
//! The format of the records is that of `docs/formats/cache.md`.
//!
//! Invariants:
//! - A number is given once, and a later conflict has a larger one.
//! - There are at most [`CONFLICTS_MAX`] records; the oldest ones give way, and are counted.
//! - A record is put together with the change after which nothing else tells of the conflict.

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::FileNo;
use crate::codec::{Reader, Writer};
use crate::index::Index;
use crate::log::Change;
use crate::records::{key, number_in_key, tag};

/// Most conflicts on record.
pub const CONFLICTS_MAX: usize = 1 << 16;

const FORMAT: u8 = 1;
/// The record of the head.
const HEAD: u64 = 0;

/// What was done here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConflictKind {
    /// An object was made under a name that another client has made, too.
    Made,
    /// An object was renamed to such a name.
    Renamed,
    /// A file got such a name as another one.
    Linked,
    /// An object was removed that another client has changed: it stays.
    Removed,
    /// Attributes of a file were set that another client has changed: they are not.
    Attributes,
    /// A file was written that another client has changed.
    Written,
    /// A file was written, and the server refuses the bytes.
    Refused,
    /// Nothing: another machine has kept what it did under the name of a conflict.
    Elsewhere,
    /// Something was made or named here in a directory, or of a file, that is gone at the server.
    Gone,
}

/// In the order of their numbers on record.
const KINDS: [ConflictKind; 9] = [
    ConflictKind::Made,
    ConflictKind::Renamed,
    ConflictKind::Linked,
    ConflictKind::Removed,
    ConflictKind::Attributes,
    ConflictKind::Written,
    ConflictKind::Refused,
    ConflictKind::Elsewhere,
    ConflictKind::Gone,
];

/// What a name of a conflict has between the wanted name and the machine's.
const CONFLICT_MARK: &str = ".conflict-";

/// `NAME.conflict-HOST-TIME`, the time in seconds since 1970, with a number from the second on: the
/// name under which a machine keeps what was to be NAME. Of a long name the beginning is left, so
/// that it has at most `bytes_max`.
pub fn conflict_name(
    wanted: &[u8],
    host: &str,
    time_sec: i64,
    number: u32,
    bytes_max: usize,
) -> Vec<u8> {
    let mut end = format!("{CONFLICT_MARK}{host}-{time_sec}");
    if number > 1 {
        end.push_str(&format!("-{number}"));
    }
    let room = bytes_max.saturating_sub(end.len());
    [&wanted[..wanted.len().min(room)], end.as_bytes()].concat()
}

/// The name that what is kept under the name of a conflict was to have; `None` if it is not such a
/// name.
pub fn wanted_of_conflict(name: &[u8]) -> Option<&[u8]> {
    let mark = CONFLICT_MARK.as_bytes();
    let at = name.windows(mark.len()).rposition(|part| part == mark)?;
    let (wanted, end) = (&name[..at], &name[at + mark.len()..]);
    let is_number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    let mut parts = end.rsplit(|byte| *byte == b'-');
    let last = parts.next().filter(|part| is_number(part))?;
    // A host's name may have hyphens, and there may be a number behind the time.
    let has_host = end.len() > last.len() + 1;
    (has_host && !wanted.is_empty()).then_some(wanted)
}

/// What was done here, and what was kept where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// What was done here.
    pub kind: ConflictKind,
    /// The directory of the object, if that is known.
    pub dir: Option<FileNo>,
    /// The object, if it has a number.
    pub file: Option<FileNo>,
    /// The object's name in `dir`; without that its path when it was found, or empty.
    pub name: Vec<u8>,
    /// The name that it was to have. If that is `name`, the object stays under it.
    pub wanted: Vec<u8>,
    /// Where the bytes that were written here are in the cache directory; empty if they are at the
    /// server.
    pub aside: String,
    /// The server's reason, for people; may be empty.
    pub reason: String,
}

impl Conflict {
    /// The data of a file was set aside, which was last seen at `path`.
    pub(crate) fn aside(
        no: FileNo,
        aside: String,
        path: &str,
        kind: ConflictKind,
        reason: &str,
    ) -> Conflict {
        let name = path.as_bytes().to_vec();
        let wanted = path.rsplit('/').next().unwrap_or_default().as_bytes().to_vec();
        let (file, reason) = (Some(no), reason.to_owned());
        Conflict { kind, dir: None, file, name, wanted, aside, reason }
    }
}

/// A conflict on record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundConflict {
    /// Counted from 1.
    pub number: u64,
    /// When it was found, in seconds since 1970.
    pub found_sec: u64,
    /// What it is.
    pub conflict: Conflict,
}

/// Which conflicts are on record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Conflicts {
    next: u64,
    /// How many gave way.
    forgotten: u64,
    numbers: BTreeSet<u64>,
}

impl Default for Conflicts {
    fn default() -> Conflicts {
        Conflicts { next: 1, forgotten: 0, numbers: BTreeSet::new() }
    }
}

/// The key of a record.
pub(crate) fn key_of(number: u64) -> Vec<u8> {
    key(tag::CONFLICT, FileNo(number), &[])
}

impl Conflicts {
    /// As the index has them.
    pub(crate) fn recover(index: &Index) -> Conflicts {
        let head = index.get(&key_of(HEAD)).as_deref().and_then(decode_head);
        let (next, forgotten) = head.unwrap_or((1, 0));
        let mut numbers = BTreeSet::new();
        let mut start = Some(vec![tag::CONFLICT]);
        while let Some(from) = start {
            let (records, rest) = index.scan(&[tag::CONFLICT], &from, 1024);
            numbers.extend(records.iter().filter_map(|(key, _)| Some(number_in_key(key)?.0)));
            start = rest;
        }
        numbers.remove(&HEAD);
        let beyond = numbers.last().map_or(1, |last| last + 1);
        Conflicts { next: next.max(beyond), forgotten, numbers }
    }

    /// The number of the next conflict.
    pub(crate) fn next_number(&self) -> u64 {
        self.next
    }

    /// How many there are, and how many gave way.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.numbers.len() as u64, self.forgotten)
    }

    /// The numbers above one, in order; at most so many.
    pub(crate) fn above(&self, number: u64, count_max: usize) -> Vec<u64> {
        let above = (Bound::Excluded(number), Bound::Unbounded);
        self.numbers.range(above).copied().take(count_max).collect()
    }

    /// Adds conflicts; returns the changes of the index.
    pub(crate) fn add(&mut self, found: Vec<Conflict>, now_sec: u64) -> Vec<Change> {
        let (mut changes, before) = (Vec::new(), self.forgotten);
        for conflict in found {
            if self.numbers.len() >= CONFLICTS_MAX
                && let Some(oldest) = self.numbers.pop_first()
            {
                changes.push((key_of(oldest), None));
                self.forgotten += 1;
            }
            let number = self.next;
            self.next += 1;
            self.numbers.insert(number);
            changes.push((key_of(number), Some(encode(now_sec, &conflict))));
        }
        if self.forgotten > before {
            tracing::warn!(count = self.forgotten, "conflicts gave way to later ones");
        }
        if !changes.is_empty() {
            changes.push((key_of(HEAD), Some(encode_head((self.next, self.forgotten)))));
        }
        changes
    }

    /// Clears one conflict, or all; returns the changes of the index.
    pub(crate) fn clear(&mut self, number: Option<u64>) -> Vec<Change> {
        let cleared = match number {
            Some(number) => self.numbers.take(&number).into_iter().collect(),
            None => std::mem::take(&mut self.numbers),
        };
        cleared.into_iter().map(|number| (key_of(number), None)).collect()
    }
}

fn encode_head((next, forgotten): (u64, u64)) -> Vec<u8> {
    let mut out = Writer::with_capacity(17);
    out.u8(FORMAT);
    out.u64(next);
    out.u64(forgotten);
    out.into_bytes()
}

fn decode_head(bytes: &[u8]) -> Option<(u64, u64)> {
    let mut input = Reader::new(bytes);
    if input.u8()? != FORMAT {
        return None;
    }
    let head = (input.u64()?, input.u64()?);
    input.end(head)
}

/// The record of a conflict.
pub(crate) fn encode(found_sec: u64, conflict: &Conflict) -> Vec<u8> {
    let Conflict { kind, dir, file, name, wanted, aside, reason } = conflict;
    let mut out = Writer::with_capacity(64);
    out.u8(FORMAT);
    out.u8(*kind as u8);
    out.u64(found_sec);
    for number in [dir, file] {
        out.option(number.map(|number| number.0), Writer::u64);
    }
    for text in [name, wanted, aside.as_bytes(), reason.as_bytes()] {
        out.bytes(text);
    }
    out.into_bytes()
}

/// When a conflict was found, in seconds since 1970, and what it is.
pub(crate) fn decode(bytes: &[u8]) -> Option<(u64, Conflict)> {
    let mut input = Reader::new(bytes);
    if input.u8()? != FORMAT {
        return None;
    }
    let kind = *KINDS.get(usize::from(input.u8()?))?;
    let found_sec = input.u64()?;
    let (dir, file) = (input.option(Reader::u64)?, input.option(Reader::u64)?);
    let (name, wanted) = (input.bytes()?.to_vec(), input.bytes()?.to_vec());
    let mut text = || String::from_utf8(input.bytes()?.to_vec()).ok();
    let (aside, reason) = (text()?, text()?);
    let (dir, file) = (dir.map(FileNo), file.map(FileNo));
    input.end((found_sec, Conflict { kind, dir, file, name, wanted, aside, reason }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(kind: ConflictKind) -> Conflict {
        Conflict {
            kind,
            dir: Some(FileNo(7)),
            file: None,
            name: b"a.conflict-here-9".to_vec(),
            wanted: b"a".to_vec(),
            aside: String::new(),
            reason: String::new(),
        }
    }

    fn all() -> Vec<Conflict> {
        let aside = Conflict {
            dir: None,
            file: Some(FileNo(8)),
            aside: "set-aside/8.1_a".into(),
            reason: "no space".into(),
            ..one(ConflictKind::Written)
        };
        KINDS.map(one).into_iter().chain([aside]).collect()
    }

    #[test]
    fn the_wanted_name_is_told_by_the_name_of_a_conflict() {
        for (wanted, host, number) in [("a", "here", 1), ("a.b-c", "some-host", 2), ("x", "9", 17)]
        {
            let name = conflict_name(wanted.as_bytes(), host, 1_795_000_000, number, 255);
            assert!(name.starts_with(format!("{wanted}.conflict-{host}-1795000000").as_bytes()));
            assert_eq!(wanted_of_conflict(&name), Some(wanted.as_bytes()));
            let again = conflict_name(&name, host, 1_795_000_009, 1, 255);
            assert_eq!(wanted_of_conflict(&again), Some(&name[..]));
        }
        let long = conflict_name(&[b'x'; 255], "here", 1, 2, 255);
        assert!(long.len() == 255 && long.ends_with(b"x.conflict-here-1-2"));
        for other in ["a", ".conflict-here-9", "a.conflict-here", "a.conflict-9", "a.conflict-"] {
            assert_eq!(wanted_of_conflict(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn kinds_have_their_numbers() {
        assert!(KINDS.iter().enumerate().all(|(number, kind)| number == *kind as usize));
    }

    /// The bytes of `docs/formats/cache.md`.
    #[test]
    fn records_are_the_documented_bytes() {
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
        let text = include_str!("../../../docs/formats/cache.md");
        for bytes in [encode_head((5, 0)), encode(1_795_000_000, &one(ConflictKind::Made))] {
            assert!(text.contains(&hex(&bytes)), "not in the document: {}", hex(&bytes));
        }
    }

    #[test]
    fn every_record_survives_encoding_and_hostile_bytes_do_not_panic() {
        assert_eq!(decode_head(&encode_head((5, 2))), Some((5, 2)));
        for conflict in all() {
            let bytes = encode(9, &conflict);
            assert_eq!(decode(&bytes), Some((9, conflict)));
            for len in 0..bytes.len() {
                assert_eq!(decode(&bytes[..len]), None);
                for value in 0..=u8::MAX {
                    let mut changed = bytes.clone();
                    changed[len] = value;
                    let _ = decode(&changed);
                }
            }
            assert_eq!(decode(&[bytes, vec![0]].concat()), None);
        }
    }

    #[test]
    fn the_oldest_ones_give_way_and_numbers_are_given_once() {
        let mut conflicts = Conflicts::default();
        let many = vec![one(ConflictKind::Made); CONFLICTS_MAX];
        assert_eq!(conflicts.add(many, 1).len(), CONFLICTS_MAX + 1);
        assert_eq!(conflicts.clear(Some(9)).len(), 1);
        assert_eq!(conflicts.clear(Some(9)).len(), 0);
        let changes = conflicts.add(vec![one(ConflictKind::Linked); 3], 2);
        assert!(changes.contains(&(key_of(1), None)) && changes.contains(&(key_of(2), None)));
        assert!(!changes.contains(&(key_of(3), None)));
        assert_eq!(conflicts.counts(), (CONFLICTS_MAX as u64, 2));
        assert_eq!(conflicts.above(8, 2), [10, 11]);
        assert_eq!(conflicts.clear(None).len(), CONFLICTS_MAX);
        conflicts.add(vec![one(ConflictKind::Made)], 3);
        assert_eq!(conflicts.numbers, [CONFLICTS_MAX as u64 + 4].into());
    }
}

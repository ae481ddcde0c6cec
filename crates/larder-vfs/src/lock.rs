//! Locks on ranges of files: advisory, in two modes, as fcntl(2) and flock(2) have them.
//!
//! Both interfaces have locks. A front door asks on behalf of one of its many owners, each a
//! process or an open file description ([`crate::FileSystem::lock`]). A client asks a server on
//! behalf of its whole mount, which is one holder there ([`crate::Remote::lock`]); the client
//! itself keeps track of which of its processes has which lock.

use std::any::Any;
use std::ops::Range;
use std::pin::Pin;

/// The end of the largest range: offsets are signed in the kernel, so no byte lies beyond it.
pub const LOCK_END: u64 = 1 << 63;

/// What a lock prevents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockMode {
    /// Other holders may have the range in this mode too.
    Shared,
    /// No other holder may have any part of the range.
    Exclusive,
}

impl LockMode {
    /// Whether one holder may have this beside another holder's `other`.
    pub fn allows(self, other: LockMode) -> bool {
        self == LockMode::Shared && other == LockMode::Shared
    }
}

/// Which call a lock comes from. On one machine the two kinds ignore each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockKind {
    /// fcntl(2), lockf(3), open file description locks: of ranges.
    Range,
    /// flock(2): of the whole file.
    Whole,
}

/// The holder of a lock: the same number and kind is the same holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockOwner {
    /// Which call the lock comes from.
    pub kind: LockKind,
    /// A number that the front door chooses.
    pub id: u64,
}

/// A lock, held or wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// The owner that holds or wants it.
    pub owner: LockOwner,
    /// The process, for people; 0 if it is not known.
    pub pid: u32,
    /// Bytes that it covers; not empty, and not beyond [`LOCK_END`].
    pub range: Range<u64>,
    /// What it prevents.
    pub mode: LockMode,
}

/// Ends once the caller no longer waits for the lock: then the wait ends with
/// [`crate::Error::Interrupted`], unless the lock has been granted.
pub type GivenUp = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A lock that a server reserves for a waiter, until it is asked for. Dropping this gives it up.
pub type ReservedLock = Box<dyn Any + Send>;

/// Bytes of a file, and how they are to be locked from now on; `None`: not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockChange {
    /// The bytes; not empty, and not beyond [`LOCK_END`].
    pub range: Range<u64>,
    /// How they are locked afterwards, whatever they were before.
    pub mode: Option<LockMode>,
}

/// Which bytes of a file are locked, and how: ranges that do not overlap, in order; adjacent ranges
/// of one mode are one range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockMap(Vec<(Range<u64>, LockMode)>);

impl LockMap {
    /// Whether nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, LockMode)> + '_ {
        self.0.iter().cloned()
    }

    /// The parts of the ranges that lie in `within`, in order.
    pub fn within(&self, within: &Range<u64>) -> impl Iterator<Item = (Range<u64>, LockMode)> {
        let within = within.clone();
        self.0.iter().filter_map(move |(range, mode)| {
            let part = range.start.max(within.start)..range.end.min(within.end);
            (!part.is_empty()).then_some((part, *mode))
        })
    }

    /// How the byte at `offset` is locked.
    pub fn at(&self, offset: u64) -> Option<LockMode> {
        self.0.iter().find(|(range, _)| range.contains(&offset)).map(|(_, mode)| *mode)
    }

    /// Sets how the bytes of `range` are locked, whatever they were before.
    ///
    /// # Panics
    /// If the range is empty or goes beyond [`LOCK_END`].
    pub fn set(&mut self, range: Range<u64>, mode: Option<LockMode>) {
        assert!(range.start < range.end && range.end <= LOCK_END, "{range:?}");
        let mut parts: Vec<(Range<u64>, LockMode)> = Vec::with_capacity(self.0.len() + 2);
        for (held, mode) in self.0.drain(..) {
            let before = held.start..held.end.min(range.start);
            let after = held.start.max(range.end)..held.end;
            parts.extend(
                [before, after].into_iter().filter(|it| !it.is_empty()).map(|it| (it, mode)),
            );
        }
        parts.extend(mode.map(|mode| (range, mode)));
        parts.sort_unstable_by_key(|(range, _)| range.start);
        for (range, mode) in parts {
            match self.0.last_mut() {
                Some((last, same)) if *same == mode && last.end == range.start => {
                    last.end = range.end;
                }
                _ => self.0.push((range, mode)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODES: [Option<LockMode>; 3] = [None, Some(LockMode::Shared), Some(LockMode::Exclusive)];

    /// All sequences of three changes of a file of four bytes, against one entry a byte.
    #[test]
    fn a_map_is_what_it_says_byte_by_byte() {
        let ranges: Vec<Range<u64>> =
            (0..4).flat_map(|start| (start + 1..=4).map(move |end| start..end)).collect();
        let changes: Vec<_> =
            ranges.iter().flat_map(|range| MODES.map(|mode| (range.clone(), mode))).collect();
        let mut count = 0;
        for first in &changes {
            for second in &changes {
                for third in &changes {
                    let (mut map, mut bytes) = (LockMap::default(), [None; 4]);
                    for (range, mode) in [first, second, third] {
                        map.set(range.clone(), *mode);
                        bytes[range.start as usize..range.end as usize].fill(*mode);
                    }
                    for (at, mode) in bytes.iter().enumerate() {
                        assert_eq!(map.at(at as u64), *mode);
                    }
                    let merged = |pair: &[(Range<u64>, LockMode)]| {
                        pair[0].0.end < pair[1].0.start
                            || pair[0].0.end == pair[1].0.start && pair[0].1 != pair[1].1
                    };
                    assert!(map.0.windows(2).all(merged), "{map:?}");
                    count += 1;
                }
            }
        }
        assert_eq!(count, 27_000);
    }
}

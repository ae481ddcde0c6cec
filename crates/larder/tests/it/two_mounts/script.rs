//! The operations of the two mounts: a list that follows from a seed alone, so that its beginning
//! can be repeated.

use std::fmt;

use super::model::{Path, Who};
use crate::rounds::Random;

/// Descriptors of each mount.
pub(crate) const SLOTS: usize = 4;

pub(crate) const DIRS: [&str; 2] = ["x", "y"];
pub(crate) const FILES: [&str; 4] = ["a", "b", "c", "d"];

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
    pub(crate) truncate: bool,
    pub(crate) create: bool,
    pub(crate) exclusive: bool,
}

/// One operation of a mount. With a slot that is not open, or is open already, it does nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// Reads all of it at once, if `look`.
    Open {
        slot: usize,
        path: Path,
        flags: Flags,
        look: bool,
    },
    Close {
        slot: usize,
        sync: bool,
    },
    Sync {
        slot: usize,
    },
    Read {
        slot: usize,
        at: u64,
        len: u64,
    },
    Write {
        slot: usize,
        at: u64,
        len: u64,
    },
    Append {
        slot: usize,
        len: u64,
    },
    Truncate {
        slot: usize,
        size: u64,
    },
    SizeOf {
        slot: usize,
    },
    Stat {
        path: Path,
    },
    Map {
        path: Path,
    },
    Link {
        from: Path,
        to: Path,
    },
    Rename {
        from: Path,
        to: Path,
    },
    Unlink {
        path: Path,
    },
    Mkdir {
        dir: &'static str,
    },
    Rmdir {
        dir: &'static str,
    },
    List {
        dir: Option<&'static str>,
    },
}

/// An operation of one of the mounts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) who: Who,
    pub(crate) what: Operation,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", ["A", "B"][self.who], self.what)
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Flags { read, write, append, truncate, create, exclusive } = *self;
        let access = match (read, write) {
            (_, false) => "RDONLY",
            (false, true) => "WRONLY",
            (true, true) => "RDWR",
        };
        write!(f, "{access}")?;
        let more =
            [(append, "|APPEND"), (truncate, "|TRUNC"), (create, "|CREAT"), (exclusive, "|EXCL")];
        more.iter().filter(|more| more.0).try_for_each(|more| write!(f, "{}", more.1))
    }
}

impl Operation {
    /// The descriptor that it is about.
    pub(crate) fn slot(&self) -> Option<usize> {
        match self {
            Operation::Close { slot, .. }
            | Operation::Sync { slot }
            | Operation::Read { slot, .. }
            | Operation::Write { slot, .. }
            | Operation::Append { slot, .. }
            | Operation::Truncate { slot, .. }
            | Operation::SizeOf { slot } => Some(*slot),
            _ => None,
        }
    }
}

fn one_of<T: Copy>(random: &mut Random, all: &[T]) -> T {
    all[usize::try_from(random.below(all.len() as u64)).expect("a place in a list")]
}

fn path(random: &mut Random) -> Path {
    let dir = match random.below(5) {
        below @ 0..2 => Some(DIRS[usize::from(below == 1)]),
        _ => None,
    };
    Path { dir, name: one_of(random, &FILES) }
}

/// Offsets and lengths near pages, chunks and requests, so that edges are tested.
fn place(random: &mut Random) -> u64 {
    let around = [0, 0, 4096, 16_384, 20_000, 65_536, 140_000];
    let at = one_of(random, &around) + random.below(3);
    if random.below(3) == 0 { at + random.below(30_000) } else { at }
}

fn length(random: &mut Random) -> u64 {
    let bound = one_of(random, &[10, 5000, 5000, 40_000, 140_000]);
    1 + random.below(bound)
}

fn flags(random: &mut Random) -> Flags {
    let mut one_in = |bound| random.below(bound) == 0;
    let write = !one_in(3);
    let (append, truncate) = (write && one_in(4), write && one_in(5));
    let create = write && !one_in(3);
    let (read, exclusive) = (!write || !one_in(3), create && one_in(6));
    Flags { read, write, append, truncate, create, exclusive }
}

/// The next operation.
pub(crate) fn next(random: &mut Random) -> Step {
    let who = usize::from(random.below(2) == 1);
    let slot = usize::try_from(random.below(SLOTS as u64)).expect("a slot");
    let what = match random.below(100) {
        0..20 => {
            let (path, flags, look) = (path(random), flags(random), random.below(2) == 0);
            Operation::Open { slot, path, flags, look }
        }
        20..31 => Operation::Close { slot, sync: random.below(3) == 0 },
        31..34 => Operation::Sync { slot },
        34..44 => Operation::Read { slot, at: place(random), len: length(random) },
        44..57 => Operation::Write { slot, at: place(random), len: length(random) },
        57..61 => Operation::Append { slot, len: length(random) },
        61..66 => Operation::Truncate { slot, size: place(random) },
        66..69 => Operation::SizeOf { slot },
        69..75 => Operation::Stat { path: path(random) },
        75..79 => Operation::Map { path: path(random) },
        79..82 => Operation::Link { from: path(random), to: path(random) },
        82..87 => Operation::Rename { from: path(random), to: path(random) },
        87..91 => Operation::Unlink { path: path(random) },
        91..95 => Operation::Mkdir { dir: one_of(random, &DIRS) },
        95..97 => Operation::Rmdir { dir: one_of(random, &DIRS) },
        _ => Operation::List { dir: one_of(random, &[None, Some("x"), Some("y")]) },
    };
    Step { who, what }
}

//! Where the bytes of a file are at the server.

use std::time::Duration;

/// What a part of a file is kept on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Medium {
    /// Memory of machines: gone when they are restarted.
    Memory,
    /// A disk.
    Disk,
}

/// Bytes of a file that are kept in the same way. Holes are in no part: they are not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPart {
    /// What they are on.
    pub medium: Medium,
    /// How many.
    pub bytes: u64,
    /// The numbers of the disks, or memory disks, that have all of them and can be read now.
    pub disks: Vec<u32>,
    /// No disk has them any more.
    pub is_lost: bool,
}

/// The present version of a file and the archive, if it is there or is to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InArchive {
    /// Whether it is there.
    pub is_there: bool,
    /// In which time it is due there; zero if it has been due.
    pub due: Option<Duration>,
    /// For how long it has been due.
    pub late: Duration,
}

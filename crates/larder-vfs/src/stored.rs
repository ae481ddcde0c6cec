//! Where the bytes of a file are at the server.

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

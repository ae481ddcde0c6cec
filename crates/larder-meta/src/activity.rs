//! What a metadata server is doing, as reported on request.

use std::collections::BTreeMap;
use std::time::Duration;

use larder_wire::meta::words::DiskId;

/// What a metadata server is doing now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Clients that have a session.
    pub sessions: usize,
    /// Leases that these have.
    pub leases: usize,
    /// Calls that wait until a lease is given back.
    pub calls_waiting: usize,
    /// The bytes that were brought up to date on disks that have stale blocks.
    pub resilvering: BTreeMap<DiskId, Progress>,
    /// What leaves memory disks.
    pub destaging: Destaging,
    /// What was to be on memory disks, and is not.
    pub instead: Instead,
    /// The bytes that were moved from disks that leave, since this server knows that they do.
    pub leaving: BTreeMap<DiskId, Progress>,
    /// What goes to the archive.
    pub archiving: Archiving,
}

/// What is in the archive, and goes there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Archiving {
    /// Where the archive is, if the server has one.
    pub url: Option<String>,
    /// Whether it is the volume's level durable, for what may be in memory for a time.
    pub is_durable: bool,
    /// Files of which a version is there.
    pub held_files: usize,
    /// Bytes of these versions.
    pub held_bytes: u64,
    /// Files whose present version is to be there now or later.
    pub due_files: usize,
    /// For how long the first of them has been due.
    pub late: Duration,
    /// Versions that are to be deleted, or are being put.
    pub unneeded: usize,
    /// Bytes that were put since the server began.
    pub put_bytes: u64,
    /// Versions that were deleted since the server began.
    pub deleted: u64,
    /// Why the archive did not do what it was asked for last.
    pub trouble: Option<ArchiveTrouble>,
}

/// Why an archive does nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveTrouble {
    /// One line.
    pub text: String,
    /// Whether it will be so until somebody does something.
    pub needs_somebody: bool,
}

/// Bytes that were to be on memory disks and went to other disks, because no memory disk had room
/// or could be reached. Volumes without memory disks do not count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instead {
    /// How many, since the server began.
    pub bytes: u64,
    /// Whether there were some lately.
    pub is_short: bool,
}

/// What goes from memory disks to others when it is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destaging {
    /// Files that have something there which is due now or later.
    pub files: usize,
    /// Bytes that were moved since the server began.
    pub moved_bytes: u64,
    /// How long after they were due bytes were on other disks, at the latest since then.
    pub late_max: Duration,
    /// Bytes that were moved before they were due, because the memory disks' machines lacked
    /// memory.
    pub yielded_bytes: u64,
    /// How many of these are on other memory disks.
    pub yielded_to_memory_bytes: u64,
    /// Whether the other disks had no room lately for what was due, or leaves a disk.
    pub is_short: bool,
}

/// How far a disk has been brought up to date, or emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that were copied, cleared or moved since this began.
    pub bytes: u64,
    /// For how long it has been going on.
    pub elapsed: Duration,
}

impl Progress {
    /// How long this many more bytes take at the rate so far. `None` while that is not known.
    pub fn time_left(&self, bytes: u64) -> Option<Duration> {
        let per_byte = (self.bytes > 0).then(|| self.elapsed.as_secs_f64() / self.bytes as f64)?;
        Duration::try_from_secs_f64(per_byte * bytes as f64).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_takes_as_long_as_what_was_done() {
        let second = Duration::from_secs(1);
        let left = |bytes, elapsed, left| Progress { bytes, elapsed }.time_left(left);
        assert_eq!(left(100, 10 * second, 50), Some(5 * second));
        assert_eq!(left(100, 10 * second, 0), Some(Duration::ZERO));
        assert_eq!(left(0, 10 * second, 50), None);
    }
}

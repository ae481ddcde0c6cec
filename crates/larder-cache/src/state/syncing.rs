//! Makes what is dirty durable in the local file, without the rest of it.

use std::io;
use std::ops::Range;

use larder_io::DiskFile;

use super::State;

/// More ranges are not synced one by one: each sync waits for the disk.
const RANGES_MAX: usize = 4;

impl State {
    /// Dirty bytes that the local file's disk may lack, for [`sync_ranges`]; after a failure they
    /// go to [`State::not_synced`].
    pub(crate) fn begin_sync(&mut self) -> Vec<Range<u64>> {
        self.presence.begin_sync()
    }

    /// These were not synced after all.
    pub(crate) fn not_synced(&mut self, ranges: Vec<Range<u64>>) {
        self.presence.not_synced(ranges);
    }
}

/// Makes ranges of a local file durable. What a reader has just had stored in a large file is not
/// synced with them.
///
/// # Errors
/// The disk's.
pub(crate) fn sync_ranges(file: &dyn DiskFile, ranges: &[Range<u64>]) -> io::Result<()> {
    if ranges.len() > RANGES_MAX {
        return file.sync_data();
    }
    ranges.iter().try_for_each(|range| file.sync_range(range.clone()))
}

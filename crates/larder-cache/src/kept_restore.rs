//! After a crash of the machine: bytes that were kept within their record go into the local file.

use std::io;

use larder_io::{Disk, OpenMode};

use crate::FileNo;
use crate::kept_record::{KeptBytes, KeptRecord, places};
use crate::pool::{data_dir, data_path};

/// Writes what a record has in it into the local file, which may be as it was at any time, or may
/// not exist.
///
/// # Errors
/// The disk's.
pub(crate) fn write_out(disk: &dyn Disk, no: FileNo, kept: &KeptRecord) -> io::Result<()> {
    let Some(KeptBytes { mtime_ns, bytes }) = &kept.bytes else { return Ok(()) };
    let path = data_path(no, kept.local.serial);
    let file = match disk.open(&path, OpenMode::Create) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            disk.create_dir_all(&data_dir(no))?;
            disk.open(&path, OpenMode::Create)?
        }
        opened => opened?,
    };
    let end = kept.ranges.last().map_or(0, |range| range.end);
    file.set_len(kept.local.size.max(end))?;
    for (place, offset) in places(&kept.ranges) {
        file.write_at(&bytes[place], offset)?;
    }
    file.set_modified(*mtime_ns)
}

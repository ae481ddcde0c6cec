//! Fixtures that tests of several modules share.

use larder_vfs::{Attr, Device, Kind, Time};

/// A file that was changed last at this time.
pub(crate) fn file_of(time: Time) -> Attr {
    Attr {
        kind: Kind::File,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        device: Device::default(),
        size: 10,
        used: 10,
        fsid: 1,
        fileid: 2,
        atime: time,
        mtime: time,
        ctime: time,
        change: None,
        data_change: None,
        birth: None,
    }
}

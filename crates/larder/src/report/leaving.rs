//! Report of a disk that leaves its volume.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::options::Bytes;

/// How far a disk is that is to be removed when what is on it is on others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeavingStatus {
    /// Bytes of it that are in use.
    pub(crate) left_bytes: u64,
    /// Bytes that were moved since the metadata server began, or the disk began to leave.
    pub(crate) moved_bytes: u64,
    /// How long the rest takes at the rate so far.
    pub(crate) left_s: Option<u64>,
    /// Whether the other disks had no room lately.
    pub(crate) is_short_of_room: bool,
}

impl fmt::Display for LeavingStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeavingStatus { left_bytes, moved_bytes, left_s, is_short_of_room } = *self;
        write!(f, "{} are left, {} were moved", Bytes(left_bytes), Bytes(moved_bytes))?;
        match left_s {
            _ if is_short_of_room => f.write_str("; the other disks have no room"),
            Some(left) => write!(f, ", about {left} s are left"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_leaves_says_how_much_is_left() {
        let mut leaving = LeavingStatus {
            left_bytes: 3 << 20,
            moved_bytes: 1 << 20,
            left_s: Some(3),
            is_short_of_room: false,
        };
        let said = "3.00 MiB are left, 1.00 MiB were moved";
        assert_eq!(leaving.to_string(), format!("{said}, about 3 s are left"));
        leaving.is_short_of_room = true;
        assert_eq!(leaving.to_string(), format!("{said}; the other disks have no room"));
        leaving = LeavingStatus { left_s: None, is_short_of_room: false, ..leaving };
        assert_eq!(leaving.to_string(), said);
    }
}

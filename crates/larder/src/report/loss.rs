//! Reports of losses: bytes of a volume that nothing has any more.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::options::{Bytes, Utc};

/// A file of which bytes are lost.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LostFile {
    /// One of its names, from the volume's root on; none if it has no name, and is open.
    pub(crate) path: Option<String>,
    pub(crate) bytes: u64,
}

/// A loss: a memory disk was started again, and no other disk had what was there; the metadata
/// server's machine crashed; or a client's session ended that alone had the bytes. It is on record
/// once, whatever was started again since.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LossTold {
    /// Losses of a volume are numbered from 1.
    pub(crate) number: u64,
    /// When the metadata server noticed it: seconds since 1970.
    pub(crate) at_s: i64,
    /// 0 if they were lost with a client.
    pub(crate) disk: u32,
    /// Files that lost bytes which they had had until then.
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

impl fmt::Display for LossTold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LossTold { number, at_s, disk, files, bytes } = self;
        let (bytes, at) = (Bytes(*bytes), Utc(*at_s));
        if *disk == 0 {
            let with = "lost with the client that alone had them";
            return write!(f, "{number}, {at}: {bytes} of {files} files {with}");
        }
        write!(f, "{number}, {at}: disk {disk}: {bytes} of {files} files lost")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_reads_well() {
        let loss = LossTold { number: 3, at_s: 1_795_733_000, disk: 2, files: 7, bytes: 8192 };
        let said = "3, 2026-11-26 22:43:20 UTC: disk 2: 8.00 KiB of 7 files lost";
        assert_eq!(loss.to_string(), said);
        let said = "3, 2026-11-26 22:43:20 UTC: 8.00 KiB of 7 files lost with the client that alone had them";
        assert_eq!(LossTold { disk: 0, ..loss }.to_string(), said);
    }
}

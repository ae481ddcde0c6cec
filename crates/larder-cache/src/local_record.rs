//! The record of a file's local changes, without the dirty ranges.

use crate::codec::{Reader, Writer};

/// What the index records of local changes, without the dirty ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalRecord {
    /// Number of the local file; 0 without one.
    pub(crate) serial: u64,
    /// End of file, unless the last dirty range ends beyond it.
    pub(crate) size: u64,
    /// The kernel may be writing the local file.
    pub(crate) bypass: bool,
    /// Bytes were acknowledged since the version was set.
    pub(crate) acknowledged: bool,
    /// All of the local file was synced before the index committed this.
    pub(crate) synced: bool,
    /// Validator of the bytes below the changes.
    pub(crate) version: Vec<u8>,
}

impl LocalRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::with_capacity(17 + self.version.len());
        out.flags([self.bypass, self.acknowledged, self.synced]);
        out.u64(self.serial);
        out.u64(self.size);
        out.raw(&self.version);
        out.into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<LocalRecord> {
        let mut input = Reader::new(bytes);
        let [bypass, acknowledged, synced] = input.flags()?;
        let (serial, size, version) = (input.u64()?, input.u64()?, input.rest().to_vec());
        Some(LocalRecord { serial, size, bypass, acknowledged, synced, version })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn survives_encoding(
            numbers: (u64, u64), flags: [bool; 3],
            version in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let ((serial, size), [bypass, acknowledged, synced]) = (numbers, flags);
            let record = LocalRecord { serial, size, bypass, acknowledged, synced, version };
            let bytes = record.encode();
            for len in 0..17 {
                prop_assert_eq!(LocalRecord::decode(&bytes[..len]), None, "cut short");
            }
            prop_assert_eq!(LocalRecord::decode(&bytes), Some(record));
        }
    }
}

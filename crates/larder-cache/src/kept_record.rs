//! The record of local changes that were kept ([`crate::kept`]).

use std::ops::Range;

use crate::FileNo;
use crate::codec::{Reader, Writer};
use crate::index::Index;
use crate::local_record::LocalRecord;
use crate::records::{key, number_in_key, tag};

/// The kept changes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptRecord {
    pub(crate) local: LocalRecord,
    /// Requests that send it may have been made.
    pub(crate) is_sent: bool,
    /// Dirty ranges, in order.
    pub(crate) ranges: Vec<Range<u64>>,
}

/// Whether local changes are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keeping {
    /// They are not.
    #[default]
    Nothing,
    /// They are, and no request was made that sends them.
    Kept,
    /// They are, and are being sent ([`CachedFile::keep_until_sent`]), in this run or an earlier
    /// one.
    Sending,
}

/// What is known of a record of kept changes, also when the index has failed.
#[derive(Debug)]
pub(crate) struct KeptOnDisk {
    /// Of the file.
    pub(crate) key: Option<Vec<u8>>,
    /// The commit that makes its removal durable, if it was removed.
    pub(crate) gone: Option<u64>,
}

impl KeptRecord {
    const FORMAT: u8 = 1;

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::with_capacity(40 + 16 * self.ranges.len());
        out.u8(KeptRecord::FORMAT);
        out.flag(self.is_sent);
        out.u32(u32::try_from(self.ranges.len()).expect("there are few"));
        for range in &self.ranges {
            out.u64(range.start);
            out.u64(range.end);
        }
        out.raw(&self.local.encode());
        out.into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<KeptRecord> {
        let mut input = Reader::new(bytes);
        if input.u8()? != KeptRecord::FORMAT {
            return None;
        }
        let is_sent = input.flag()?;
        let (count, mut ranges, mut end) = (input.u32()?, Vec::new(), 0);
        for _ in 0..count {
            let range = input.u64()?..input.u64()?;
            if range.start < end || range.is_empty() {
                return None;
            }
            end = range.end;
            ranges.push(range);
        }
        Some(KeptRecord { local: LocalRecord::decode(input.rest())?, is_sent, ranges })
    }
}

/// Key of the record of a file.
pub(crate) fn kept_key(no: FileNo) -> Vec<u8> {
    key(tag::KEPT, no, &[])
}

/// Whether there is a record of a file, and whether it says that the file is being sent.
pub(crate) fn found(index: &Index, no: FileNo) -> Keeping {
    match index.get(&kept_key(no)).as_deref().and_then(KeptRecord::decode) {
        None => Keeping::Nothing,
        Some(KeptRecord { is_sent: false, .. }) => Keeping::Kept,
        Some(_) => Keeping::Sending,
    }
}

/// All kept changes, by file.
pub(crate) fn all(index: &Index) -> Vec<(FileNo, KeptRecord)> {
    let records = index.scan_all(&[tag::KEPT]).into_iter();
    let decode = |(key, value): (Vec<u8>, Vec<u8>)| {
        Some((number_in_key(&key)?, KeptRecord::decode(&value)?))
    };
    records.filter_map(decode).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(version: &[u8], ranges: &[Range<u64>]) -> KeptRecord {
        let (bypass, acknowledged, synced) = (false, true, false);
        let version = version.to_vec();
        let local = LocalRecord { serial: 7, size: 9, bypass, acknowledged, synced, version };
        KeptRecord { local, is_sent: false, ranges: ranges.to_vec() }
    }

    proptest! {
        #[test]
        fn a_kept_record_survives_encoding_and_a_damaged_one_is_none(
            lens in proptest::collection::vec((0_u64..9, 1_u64..9), 0..5), version: [u8; 3],
        ) {
            let mut at = 0;
            let ranges = lens.into_iter().map(|(gap, len)| {
                let start = at + gap;
                at = start + len;
                start..at
            });
            let record = record(&version, &ranges.collect::<Vec<_>>());
            let bytes = record.encode();
            for len in 0..bytes.len() - version.len() {
                prop_assert_eq!(KeptRecord::decode(&bytes[..len]), None, "cut short");
            }
            for bit in 0..8 * bytes.len() {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                if let Some(other) = KeptRecord::decode(&damaged) {
                    prop_assert_eq!(KeptRecord::decode(&other.encode()), Some(other));
                }
            }
            prop_assert_eq!(KeptRecord::decode(&bytes), Some(record));
        }
    }

    /// The bytes of `docs/formats/cache.md`.
    #[test]
    fn a_kept_record_is_these_bytes() {
        let bytes = record(b"v1", std::slice::from_ref(&(2..5))).encode();
        let expected = [
            &[1, 0, 1, 0, 0, 0][..],
            &[2, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0],
            &[2, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0],
            b"v1",
        ];
        assert_eq!(bytes, expected.concat());
        let empty_range = [&[1, 0, 1, 0, 0, 0][..], &[0; 16], &[0; 17]].concat();
        assert_eq!(KeptRecord::decode(&empty_range), None);
    }
}

//! The record of local changes that were kept ([`crate::kept`]).

use std::collections::BTreeMap;
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
    /// What is in them. `None`: the local file has been synced.
    pub(crate) bytes: Option<KeptBytes>,
}

/// What a local file has in the dirty ranges of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptBytes {
    /// When the local file was last written, in nanoseconds since the epoch.
    pub(crate) mtime_ns: i64,
    /// One range after the other.
    pub(crate) bytes: Vec<u8>,
}

/// Where the bytes of each range lie in [`KeptBytes`], with the offset of the range in the file.
pub(crate) fn places(ranges: &[Range<u64>]) -> impl Iterator<Item = (Range<usize>, u64)> {
    let mut at = 0;
    ranges.iter().map(move |range| {
        let len = usize::try_from(range.end - range.start).expect("what is in memory is short");
        at += len;
        (at - len..at, range.start)
    })
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

/// Most bytes of all records, which are in memory until they are drained; further files are synced.
const OF_ALL_MAX: usize = 8 << 20;
/// From this share on a checkpoint is asked for.
const FULL_SHARE: usize = 2;

/// Which records have bytes.
#[derive(Debug, Default)]
pub(crate) struct WithBytes {
    files: BTreeMap<FileNo, usize>,
    total: usize,
}

impl WithBytes {
    /// A file's record has so many now. Returns whether there are so many in all that they
    /// should be drained.
    pub(crate) fn set(&mut self, no: FileNo, bytes: usize) -> bool {
        let before = match bytes {
            0 => self.files.remove(&no),
            _ => self.files.insert(no, bytes),
        };
        self.total = self.total - before.unwrap_or(0) + bytes;
        self.total > OF_ALL_MAX / FULL_SHARE
    }

    /// Whether so many more fit.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.total + bytes <= OF_ALL_MAX
    }

    /// Whether a file's record has any.
    pub(crate) fn has(&self, no: FileNo) -> bool {
        self.files.contains_key(&no)
    }

    /// The files whose records have some; from now on none has.
    pub(crate) fn take(&mut self) -> Vec<FileNo> {
        self.total = 0;
        std::mem::take(&mut self.files).into_keys().collect()
    }
}

impl KeptRecord {
    const FORMAT: u8 = 1;
    /// With bytes.
    const FORMAT_2: u8 = 2;

    /// How many bytes are in it.
    pub(crate) fn bytes_len(&self) -> usize {
        self.bytes.as_ref().map_or(0, |kept| kept.bytes.len())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::with_capacity(80 + 16 * self.ranges.len() + self.bytes_len());
        out.u8(if self.bytes.is_some() { KeptRecord::FORMAT_2 } else { KeptRecord::FORMAT });
        out.flag(self.is_sent);
        out.u32(u32::try_from(self.ranges.len()).expect("there are few"));
        for range in &self.ranges {
            out.u64(range.start);
            out.u64(range.end);
        }
        let local = self.local.encode();
        match &self.bytes {
            None => out.raw(&local),
            Some(KeptBytes { mtime_ns, bytes }) => {
                out.bytes(&local);
                out.i64(*mtime_ns);
                out.raw(bytes);
            }
        }
        out.into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<KeptRecord> {
        let mut input = Reader::new(bytes);
        let has_bytes = match input.u8()? {
            KeptRecord::FORMAT => false,
            KeptRecord::FORMAT_2 => true,
            _ => return None,
        };
        let is_sent = input.flag()?;
        let (count, mut ranges, mut end, mut len) = (input.u32()?, Vec::new(), 0, 0_u64);
        for _ in 0..count {
            let range = input.u64()?..input.u64()?;
            if range.start < end || range.is_empty() {
                return None;
            }
            end = range.end;
            len = len.checked_add(range.end - range.start)?;
            ranges.push(range);
        }
        let local = if has_bytes { input.bytes()? } else { input.rest() };
        let local = LocalRecord::decode(local)?;
        let bytes = match has_bytes {
            false => None,
            true => Some(KeptBytes { mtime_ns: input.i64()?, bytes: input.rest().to_vec() }),
        };
        let fits = bytes.as_ref().is_none_or(|kept| kept.bytes.len() as u64 == len);
        fits.then_some(KeptRecord { local, is_sent, ranges, bytes })
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
        KeptRecord { local, is_sent: false, ranges: ranges.to_vec(), bytes: None }
    }

    proptest! {
        #[test]
        fn a_kept_record_survives_encoding_and_a_damaged_one_is_none(
            lens in proptest::collection::vec((0_u64..9, 1_u64..9), 0..5), version: [u8; 3],
            has_bytes: bool,
        ) {
            let mut at = 0;
            let ranges = lens.into_iter().map(|(gap, len)| {
                let start = at + gap;
                at = start + len;
                start..at
            });
            let mut record = record(&version, &ranges.collect::<Vec<_>>());
            if has_bytes {
                let len: u64 = record.ranges.iter().map(|range| range.end - range.start).sum();
                record.bytes = Some(KeptBytes { mtime_ns: -1, bytes: vec![5; len as usize] });
            }
            let bytes = record.encode();
            // What ends with the version may be shorter.
            let end = bytes.len() - if has_bytes { 0 } else { version.len() };
            for len in 0..end {
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
        let long = record(b"v1", std::slice::from_ref(&(2..5)));
        let expected = [
            &[1, 0, 1, 0, 0, 0][..],
            &[2, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0],
            &[2, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0],
            b"v1",
        ];
        assert_eq!(long.encode(), expected.concat());
        // Versions that put no bytes into a record wrote all of them so.
        assert_eq!(KeptRecord::decode(&expected.concat()), Some(long));
        let mut short = record(b"v1", std::slice::from_ref(&(2..5)));
        short.bytes = Some(KeptBytes { mtime_ns: 3, bytes: b"abc".to_vec() });
        let expected = [
            &[2, 0, 1, 0, 0, 0][..],
            &[2, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0],
            &[19, 0, 0, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0],
            b"v1",
            &[3, 0, 0, 0, 0, 0, 0, 0],
            b"abc",
        ];
        assert_eq!(short.encode(), expected.concat());
        assert_eq!(KeptRecord::decode(&expected.concat()), Some(short));
        let empty_range = [&[1, 0, 1, 0, 0, 0][..], &[0; 16], &[0; 17]].concat();
        assert_eq!(KeptRecord::decode(&empty_range), None);
    }
}

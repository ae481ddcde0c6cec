//! The records of the index as bytes; the format is that of `docs/formats/cache.md`.
//!
//! Numbers in keys are big-endian, so that they sort; numbers in values are little-endian. Every
//! stored value ends in a checksum over its key and itself, so a value that strays to another key
//! is as wrong as one with a flipped bit. Decoding hostile bytes gives `None`, never a panic.

use larder_io::Stamp;

use crate::FileNo;
use crate::codec::{Reader, Writer};
use crate::sums::Group;

/// First byte of every key: the table.
pub(crate) mod tag {
    pub(crate) const META: u8 = b'm';
    pub(crate) const NUMBER_OF_KEY: u8 = b'k';
    pub(crate) const KEY_OF_NUMBER: u8 = b'n';
    pub(crate) const NODE: u8 = b'a';
    pub(crate) const NAME: u8 = b'e';
    pub(crate) const LISTING: u8 = b'l';
    pub(crate) const FILE: u8 = b'f';
    pub(crate) const GROUP: u8 = b'g';
    pub(crate) const DIRTY: u8 = b'd';
    pub(crate) const LOCAL: u8 = b'w';
    pub(crate) const DIRTY_RANGE: u8 = b'x';
    pub(crate) const SESSION: u8 = b's';
    pub(crate) const VOLUME: u8 = b'v';
    pub(crate) const PIN: u8 = b'p';
    pub(crate) const CLASS: u8 = b'c';
    pub(crate) const KEPT: u8 = b'j';
    pub(crate) const MADE: u8 = b'o';
    pub(crate) const CONFLICT: u8 = b'q';
    pub(crate) const BESIDE: u8 = b'b';
}

/// Key of a record that belongs to a number: tag, number, rest.
pub(crate) fn key(tag: u8, no: FileNo, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + rest.len());
    key.push(tag);
    key.extend_from_slice(&no.0.to_be_bytes());
    key.extend_from_slice(rest);
    key
}

/// Key of a record that belongs to bytes: tag, bytes.
pub(crate) fn bytes_key(tag: u8, bytes: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + bytes.len());
    key.push(tag);
    key.extend_from_slice(bytes);
    key
}

/// The number in a key made by [`key`].
pub(crate) fn number_in_key(key: &[u8]) -> Option<FileNo> {
    let number = key.get(1..9)?.try_into().ok()?;
    Some(FileNo(u64::from_be_bytes(number)))
}

/// The group's number in the key of a group.
pub(crate) fn group_in_key(key: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(key.get(9..13)?.try_into().ok()?))
}

fn checksum(key: &[u8], value: &[u8]) -> u32 {
    // With the key's length in the sum, a byte cannot move between key and value unnoticed.
    let sum = crc32c::crc32c(&(key.len() as u64).to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(sum, key), value)
}

/// The value as it is stored: with its checksum.
pub(crate) fn seal(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(value.len() + 4);
    sealed.extend_from_slice(value);
    sealed.extend_from_slice(&checksum(key, value).to_le_bytes());
    sealed
}

/// The value without its checksum, if that is right.
pub(crate) fn unseal<'a>(key: &[u8], sealed: &'a [u8]) -> Option<&'a [u8]> {
    let (value, sum) = sealed.split_last_chunk::<4>()?;
    (checksum(key, value) == u32::from_le_bytes(*sum)).then_some(value)
}

/// What the index records of a file's data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileRecord {
    /// Number of the local file; 0 without one.
    pub(crate) serial: u64,
    /// End of file, in bytes.
    pub(crate) size: u64,
    /// Bytes in held chunks, each counted whole.
    pub(crate) held_bytes: u64,
    /// Last use, in seconds since 1970.
    pub(crate) last_use_sec: u64,
    /// The run that took `stamp`.
    pub(crate) session: u64,
    /// The local file when it was synced.
    pub(crate) stamp: Stamp,
    /// Never culled.
    pub(crate) pinned: bool,
    /// Validator; `None` if there is only a pin.
    pub(crate) version: Option<Vec<u8>>,
}

impl FileRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let version = self.version.as_deref();
        let mut out = Writer::with_capacity(74 + version.map_or(0, <[u8]>::len));
        out.flags([self.pinned, version.is_some()]);
        for number in [self.serial, self.size, self.held_bytes, self.last_use_sec, self.session] {
            out.u64(number);
        }
        put_stamp(&mut out, self.stamp);
        out.raw(version.unwrap_or_default());
        out.into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<FileRecord> {
        let mut input = Reader::new(bytes);
        let [pinned, has_version] = input.flags()?;
        Some(FileRecord {
            serial: input.u64()?,
            size: input.u64()?,
            held_bytes: input.u64()?,
            last_use_sec: input.u64()?,
            session: input.u64()?,
            stamp: stamp(&mut input)?,
            pinned,
            version: has_version.then(|| input.rest().to_vec()),
        })
    }
}

pub(crate) fn put_stamp(out: &mut Writer, stamp: Stamp) {
    out.u64(stamp.ino);
    out.u64(stamp.size);
    out.i64(stamp.mtime_ns);
    out.i64(stamp.ctime_ns);
}

pub(crate) fn stamp(input: &mut Reader<'_>) -> Option<Stamp> {
    let (ino, size) = (input.u64()?, input.u64()?);
    Some(Stamp { ino, size, mtime_ns: input.i64()?, ctime_ns: input.i64()? })
}

/// A number that is a record of its own.
pub(crate) fn encode_number(number: u64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

/// See [`encode_number`].
pub(crate) fn decode_number(bytes: &[u8]) -> Option<u64> {
    let mut input = Reader::new(bytes);
    let number = input.u64()?;
    input.end(number)
}

/// Two numbers that are a record of their own.
pub(crate) fn encode_pair((first, second): (u64, u64)) -> Vec<u8> {
    [first.to_le_bytes(), second.to_le_bytes()].concat()
}

/// See [`encode_pair`].
pub(crate) fn decode_pair(bytes: &[u8]) -> Option<(u64, u64)> {
    let mut input = Reader::new(bytes);
    let pair = (input.u64()?, input.u64()?);
    input.end(pair)
}

/// A group's checksums together with the local file they are for.
pub(crate) fn encode_group(serial: u64, group: &Group) -> Vec<u8> {
    let sums = group.sums();
    let mut out = Writer::with_capacity(10 + sums.len() / 8 + sums.len() * 4);
    out.u64(serial);
    out.u16(u16::try_from(sums.len()).unwrap_or(0));
    for eight in sums.chunks(8) {
        out.flags::<8>(std::array::from_fn(|at| eight.get(at).is_some_and(Option::is_some)));
    }
    for sum in sums.iter().flatten() {
        out.u32(*sum);
    }
    out.into_bytes()
}

/// The local file's number and the checksums in the record of a group.
pub(crate) fn decode_group(bytes: &[u8]) -> Option<(u64, Group)> {
    let mut input = Reader::new(bytes);
    let (serial, count) = (input.u64()?, usize::from(input.u16()?));
    let bits = input.raw(count.div_ceil(8))?;
    let mut group = Group::default();
    for slot in 0..count {
        if bits[slot / 8] & 1 << (slot % 8) != 0 {
            group.set(slot, input.u32()?, false);
        }
    }
    Some((serial, group))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sums::GROUP_CHUNKS;

    proptest! {
        #[test]
        fn file_record_survives_encoding(
            numbers in any::<[u64; 7]>(), times in any::<[i64; 2]>(), pinned: bool,
            version in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40)),
        ) {
            let [serial, size, held_bytes, last_use_sec, session, ino, stamp_size] = numbers;
            let [mtime_ns, ctime_ns] = times;
            let stamp = Stamp { ino, size: stamp_size, mtime_ns, ctime_ns };
            let record =
                FileRecord { serial, size, held_bytes, last_use_sec, session, stamp, pinned, version };
            prop_assert_eq!(FileRecord::decode(&record.encode()), Some(record));
        }

        #[test]
        fn group_survives_encoding(
            serial: u64,
            sums in proptest::collection::btree_map(0..GROUP_CHUNKS as usize, any::<u32>(), 0..50),
        ) {
            let mut group = Group::default();
            for (&slot, &sum) in &sums {
                group.set(slot, sum, false);
            }
            let (found_serial, found) = decode_group(&encode_group(serial, &group)).unwrap();
            prop_assert_eq!(found_serial, serial);
            for slot in 0..GROUP_CHUNKS as usize {
                prop_assert_eq!(found.get(slot), sums.get(&slot).copied());
            }
        }

        #[test]
        fn hostile_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = FileRecord::decode(&bytes);
            let _ = decode_group(&bytes);
            let _ = unseal(b"key", &bytes);
        }

        #[test]
        fn seal_notices_a_flipped_bit(
            value in proptest::collection::vec(any::<u8>(), 0..50), bit in any::<proptest::sample::Index>(),
        ) {
            let mut sealed = seal(b"key", &value);
            prop_assert_eq!(unseal(b"key", &sealed), Some(&value[..]));
            prop_assert_eq!(unseal(b"kex", &sealed), None);
            let bit = bit.index(sealed.len() * 8);
            sealed[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(unseal(b"key", &sealed), None);
        }
    }
}

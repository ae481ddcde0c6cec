//! Records as bytes: the one codec of the index, of the session log, and of the client's records in
//! them.
//!
//! Numbers are little-endian and have a fixed length; a field of variable length is preceded by its
//! length, as a u32, or is the last. This module knows no record: each kind of record defines its
//! own fields and format number. Reading hostile bytes gives `None`, never a panic, and never takes
//! more memory than the bytes do.

/// Puts a record together.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// A record with room for this many bytes.
    pub fn with_capacity(bytes: usize) -> Writer {
        Writer(Vec::with_capacity(bytes))
    }

    /// A record appended to existing bytes.
    pub fn behind(bytes: Vec<u8>) -> Writer {
        Writer(bytes)
    }

    /// The record.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// A byte.
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    /// A byte that is 1 or 0.
    pub fn flag(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    /// A byte with a bit for each flag, the first one lowest.
    pub fn flags<const N: usize>(&mut self, flags: [bool; N]) {
        const { assert!(N <= 8, "a byte has eight bits") };
        self.u8(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) {
        self.raw(&value.to_le_bytes());
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    /// Eight bytes.
    pub fn i64(&mut self, value: i64) {
        self.raw(&value.to_le_bytes());
    }

    /// Bytes whose length the reader knows.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Bytes after their length.
    ///
    /// # Panics
    /// If they are 4 GiB or more.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).expect("what a record holds is far below 4 GiB"));
        self.raw(bytes);
    }

    /// A byte that says whether there is a value, and the value.
    pub fn option<T>(&mut self, value: Option<T>, put: impl FnOnce(&mut Writer, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            put(self, value);
        }
    }
}

/// Decodes a record, in the order in which it was encoded.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads from the first byte on.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// Whether all has been read.
    pub fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    /// `value`, if all has been read: a longer record is none of this kind.
    pub fn end<T>(self, value: T) -> Option<T> {
        self.is_at_end().then_some(value)
    }

    /// All that has not been read.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// So many bytes.
    pub fn raw(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    /// See [`Writer::u8`].
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// See [`Writer::flag`]. Any byte but 0 is true.
    pub fn flag(&mut self) -> Option<bool> {
        Some(self.u8()? != 0)
    }

    /// See [`Writer::flags`]. Higher bits mean nothing.
    pub fn flags<const N: usize>(&mut self) -> Option<[bool; N]> {
        let bits = self.u8()?;
        Some(std::array::from_fn(|at| bits >> at & 1 != 0))
    }

    /// See [`Writer::u16`].
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// See [`Writer::u32`].
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// See [`Writer::u64`].
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// See [`Writer::i64`].
    pub fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    /// See [`Writer::bytes`].
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u32()?).ok()?;
        self.raw(len)
    }

    /// See [`Writer::option`]. The outer `None` says that this is no record.
    #[allow(
        clippy::option_option,
        reason = "one says that the record is damaged, one that it holds no value"
    )]
    pub fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        match self.u8()? {
            0 => Some(None),
            1 => read(self).map(Some),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_written_is_read(
            numbers: (u8, u16, u32, u64, i64), flags: [bool; 8], few: [bool; 3],
            bytes in proptest::collection::vec(any::<u8>(), 0..40), option: Option<u64>,
        ) {
            let mut out = Writer::default();
            let (a, b, c, d, e) = numbers;
            out.u8(a);
            out.u16(b);
            out.u32(c);
            out.u64(d);
            out.i64(e);
            out.flags(flags);
            out.flags(few);
            out.flag(flags[0]);
            out.bytes(&bytes);
            out.option(option, Writer::u64);
            out.raw(&bytes);
            let record = out.into_bytes();
            let mut input = Reader::new(&record);
            prop_assert_eq!((input.u8(), input.u16(), input.u32()), (Some(a), Some(b), Some(c)));
            prop_assert_eq!((input.u64(), input.i64()), (Some(d), Some(e)));
            prop_assert_eq!((input.flags(), input.flags()), (Some(flags), Some(few)));
            prop_assert_eq!((input.flag(), input.bytes()), (Some(flags[0]), Some(&bytes[..])));
            prop_assert_eq!(input.option(Reader::u64), Some(option));
            prop_assert_eq!((input.rest(), input.end(())), (&bytes[..], Some(())));
        }

        #[test]
        fn hostile_bytes_end_the_reading(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut input = Reader::new(&bytes);
            while let Some(found) = input.bytes() {
                prop_assert!(found.len() < bytes.len());
            }
            prop_assert_eq!(Reader::new(&bytes).raw(bytes.len() + 1), None);
        }
    }
}

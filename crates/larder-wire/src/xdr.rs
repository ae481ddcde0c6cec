//! XDR, the external data representation (RFC 4506).
//!
//! [`Encode`] appends to an [`Encoder`], [`Decode`] consumes a [`Bytes`]. Both work in units of
//! four bytes, big-endian. What is decoded as [`Opaque`] shares memory with the input.

use crate::record::MARK_BYTES;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use thiserror::Error;

/// Payloads of at least this many bytes become a segment of their own instead of being copied
/// into the head. Below it a copy is cheaper than one more entry in the vectored write.
const SEGMENT_BYTES_MIN: usize = 4096;

/// Why bytes are not the value that was expected.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum XdrError {
    /// The input ends inside the value.
    #[error("the message ends inside a value")]
    Short,
    /// A length exceeds what the protocol, or we, allow for the field.
    #[error("a length of {length} exceeds the limit of {limit}")]
    TooLong {
        /// The length on the wire, in elements.
        length: usize,
        /// The largest that is accepted.
        limit: usize,
    },
    /// A boolean, an enumeration or a union with a value that does not exist.
    #[error("{0} is not a value of the enumeration")]
    Discriminant(u32),
    /// A name that no entry of a directory can have.
    #[error("a name is empty, or has a slash or a NUL in it")]
    Name,
    /// Extents of a capability that cannot be.
    #[error("extents are missing, empty, out of order, overlap, or end too late")]
    Extents,
}

/// A value that can be written as XDR.
pub trait Encode {
    /// Appends the value to `out`.
    fn encode(&self, out: &mut Encoder);
}

/// A value that can be read from XDR.
pub trait Decode: Sized {
    /// Reads the value from the front of `input` and consumes its bytes.
    ///
    /// # Errors
    /// [`XdrError`] if the bytes are not such a value; how much of `input` is then left is not
    /// defined.
    fn decode(input: &mut Bytes) -> Result<Self, XdrError>;
}

/// Collects a message as segments: small values are copied, large payloads are kept as they are.
#[derive(Debug, Default)]
pub struct Encoder {
    /// Whether the message begins with a record mark, which is known only at its end.
    framing: Framing,
    /// Small values before the first payload.
    head: BytesMut,
    /// The parts between the head and the tail.
    segments: Vec<Bytes>,
    segments_bytes: usize,
    tail: BytesMut,
}

/// How messages are delimited on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// Each is a datagram of its own.
    #[default]
    Datagram,
    /// Each follows a record mark on a stream ([`crate::record`]).
    Record,
}

impl Encoder {
    /// An empty message, with room for `capacity` bytes of small values. A record mark is kept
    /// room for, and written at the end.
    pub fn new(framing: Framing, capacity: usize) -> Encoder {
        let mut encoder =
            Encoder { framing, tail: BytesMut::with_capacity(capacity), ..Encoder::default() };
        if framing == Framing::Record {
            encoder.put_u32(0);
        }
        encoder
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.head.len() + self.segments_bytes + self.tail.len()
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends one unit.
    pub fn put_u32(&mut self, value: u32) {
        self.tail.put_u32(value);
    }

    /// Appends two units.
    pub fn put_u64(&mut self, value: u64) {
        self.tail.put_u64(value);
    }

    /// Appends a length.
    ///
    /// # Panics
    /// If the length does not fit 32 bits: no limit in this crate comes near.
    pub fn put_length(&mut self, length: usize) {
        self.put_u32(u32::try_from(length).expect("XDR lengths have 32 bits"));
    }

    /// Appends bytes of a length both sides know, and their padding. Always copies.
    pub fn put_fixed(&mut self, bytes: &[u8]) {
        self.tail.put_slice(bytes);
        self.tail.put_bytes(0, padding(bytes.len()));
    }

    /// Appends a length, the bytes and their padding. Always copies.
    pub fn put_slice(&mut self, bytes: &[u8]) {
        self.put_length(bytes.len());
        self.put_fixed(bytes);
    }

    /// Appends a length, the bytes and their padding. Large payloads are shared, not copied.
    pub fn put_opaque(&mut self, bytes: &Bytes) {
        if bytes.len() < SEGMENT_BYTES_MIN {
            return self.put_slice(bytes);
        }
        self.put_length(bytes.len());
        self.cut();
        self.segments.push(bytes.clone());
        self.segments_bytes += bytes.len();
        self.tail.put_bytes(0, padding(bytes.len()));
    }

    /// The message, with its mark if it is a record.
    ///
    /// # Panics
    /// If a record is longer than a mark can express: 2 GiB.
    pub fn finish(mut self) -> Segments {
        self.cut();
        let total_bytes = self.len();
        if self.framing == Framing::Record {
            let mark = crate::record::mark(total_bytes - MARK_BYTES);
            self.head[..MARK_BYTES].copy_from_slice(&mark);
        }
        if !self.head.is_empty() {
            self.segments.insert(0, self.head.freeze());
        }
        Segments { segments: self.segments, total_bytes }
    }

    /// Ends the run of small values.
    fn cut(&mut self) {
        let run = self.tail.split();
        if self.is_empty() {
            self.head = run;
        } else if !run.is_empty() {
            self.segments_bytes += run.len();
            self.segments.push(run.freeze());
        }
    }
}

/// An encoded message in pieces that follow each other on the wire. Cloning shares the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    segments: Vec<Bytes>,
    total_bytes: usize,
}

impl Segments {
    /// Length of the message, in bytes.
    pub fn len(&self) -> usize {
        self.total_bytes
    }

    /// Whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.total_bytes == 0
    }

    /// The pieces, in order.
    pub fn as_slice(&self) -> &[Bytes] {
        &self.segments
    }

    /// The pieces, in order.
    pub fn into_vec(self) -> Vec<Bytes> {
        self.segments
    }

    /// The message in one piece: without a copy if it is one already.
    pub fn to_bytes(&self) -> Bytes {
        match self.segments.as_slice() {
            [] => Bytes::new(),
            [only] => only.clone(),
            several => several.concat().into(),
        }
    }
}

/// Encodes one value.
pub fn to_segments(value: &impl Encode) -> Segments {
    let mut out = Encoder::default();
    value.encode(&mut out);
    out.finish()
}

/// Bytes that follow `length` bytes of opaque data up to the next unit.
pub const fn padding(length: usize) -> usize {
    length.wrapping_neg() % 4
}

/// Length of an opaque value with its length word and padding, in bytes.
pub const fn opaque_len(length: usize) -> usize {
    4 + length + padding(length)
}

/// Takes `length` bytes and their padding from the front of `input`, without a copy.
///
/// Padding that is not zero is accepted: it is never used.
///
/// # Errors
/// [`XdrError::Short`]
pub fn take_fixed(input: &mut Bytes, length: usize) -> Result<Bytes, XdrError> {
    let padded = length + padding(length);
    if input.len() < padded {
        return Err(XdrError::Short);
    }
    let bytes = input.split_to(length);
    input.advance(padded - length);
    Ok(bytes)
}

/// Takes a length that may be at most `limit`.
///
/// # Errors
/// [`XdrError::Short`], [`XdrError::TooLong`]
pub fn take_length(input: &mut Bytes, limit: usize) -> Result<usize, XdrError> {
    let length = u32::decode(input)? as usize;
    if length > limit {
        return Err(XdrError::TooLong { length, limit });
    }
    Ok(length)
}

/// Bytes of variable length: both XDR's `opaque<LIMIT>` and `string<LIMIT>`, because NFS names are
/// plain bytes.
///
/// Decoding checks the limit; the sender must respect the receiver's.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opaque<const LIMIT: usize>(pub Bytes);

impl<const LIMIT: usize> Opaque<LIMIT> {
    /// Copies `bytes`.
    pub fn copy_from_slice(bytes: &[u8]) -> Self {
        Opaque(Bytes::copy_from_slice(bytes))
    }
}

impl<const LIMIT: usize> std::ops::Deref for Opaque<LIMIT> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<const LIMIT: usize> From<Bytes> for Opaque<LIMIT> {
    fn from(bytes: Bytes) -> Self {
        Opaque(bytes)
    }
}

impl<const LIMIT: usize> From<&'static str> for Opaque<LIMIT> {
    fn from(text: &'static str) -> Self {
        Opaque(Bytes::from_static(text.as_bytes()))
    }
}

impl<const LIMIT: usize> std::fmt::Debug for Opaque<LIMIT> {
    /// Payloads are cut short: a log line must stay one.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.0[..self.0.len().min(64)];
        write!(f, "\"{}\"", shown.escape_ascii())?;
        match self.0.len() - shown.len() {
            0 => Ok(()),
            more => write!(f, " and {more} bytes"),
        }
    }
}

impl<const LIMIT: usize> Encode for Opaque<LIMIT> {
    fn encode(&self, out: &mut Encoder) {
        out.put_opaque(&self.0);
    }
}

impl<const LIMIT: usize> Decode for Opaque<LIMIT> {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        let length = take_length(input, LIMIT)?;
        take_fixed(input, length).map(Opaque)
    }
}

impl Encode for u32 {
    fn encode(&self, out: &mut Encoder) {
        out.put_u32(*self);
    }
}

impl Decode for u32 {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        input.try_get_u32().map_err(|_| XdrError::Short)
    }
}

impl Encode for u64 {
    fn encode(&self, out: &mut Encoder) {
        out.put_u64(*self);
    }
}

impl Decode for u64 {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        input.try_get_u64().map_err(|_| XdrError::Short)
    }
}

/// XDR's `hyper`: two's complement.
impl Encode for i64 {
    fn encode(&self, out: &mut Encoder) {
        out.put_u64(self.cast_unsigned());
    }
}

impl Decode for i64 {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        u64::decode(input).map(u64::cast_signed)
    }
}

impl Encode for bool {
    fn encode(&self, out: &mut Encoder) {
        out.put_u32(u32::from(*self));
    }
}

impl Decode for bool {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        match u32::decode(input)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(XdrError::Discriminant(other)),
        }
    }
}

impl Encode for () {
    fn encode(&self, _out: &mut Encoder) {}
}

impl Decode for () {
    fn decode(_input: &mut Bytes) -> Result<Self, XdrError> {
        Ok(())
    }
}

impl<const N: usize> Encode for [u8; N] {
    fn encode(&self, out: &mut Encoder) {
        out.put_fixed(self);
    }
}

impl<const N: usize> Decode for [u8; N] {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        let mut array = [0; N];
        array.copy_from_slice(&take_fixed(input, N)?);
        Ok(array)
    }
}

/// XDR's optional data, and the RFCs' `union switch (bool)` with one void arm.
impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Encoder) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        bool::decode(input)?.then(|| T::decode(input)).transpose()
    }
}

/// A linked list of optional entries (`*nextentry` in the RFCs), as a vector.
///
/// Memory stays bounded by the message: each entry takes bytes from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(pub Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        List(Vec::new())
    }
}

impl<T: Encode> Encode for List<T> {
    fn encode(&self, out: &mut Encoder) {
        for entry in &self.0 {
            true.encode(out);
            entry.encode(out);
        }
        false.encode(out);
    }
}

impl<T: Decode> Decode for List<T> {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        let mut entries = Vec::new();
        while bool::decode(input)? {
            entries.push(T::decode(input)?);
        }
        Ok(List(entries))
    }
}

/// An array of at most `LIMIT` elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array<T, const LIMIT: usize>(pub Vec<T>);

impl<T, const LIMIT: usize> Default for Array<T, LIMIT> {
    fn default() -> Self {
        Array(Vec::new())
    }
}

impl<T: Encode, const LIMIT: usize> Encode for Array<T, LIMIT> {
    fn encode(&self, out: &mut Encoder) {
        debug_assert!(self.0.len() <= LIMIT);
        out.put_length(self.0.len());
        self.0.iter().for_each(|element| element.encode(out));
    }
}

impl<T: Decode, const LIMIT: usize> Decode for Array<T, LIMIT> {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        let length = take_length(input, LIMIT)?;
        (0..length).map(|_| T::decode(input)).collect::<Result<_, _>>().map(Array)
    }
}

#[cfg(test)]
mod tests;

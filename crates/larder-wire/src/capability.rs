//! Capabilities: they let a client read or write bytes of a disk without asking another server.
//!
//! The metadata server mints a [`Capability`] and gives it to a client together with its secret
//! ([`crate::seal::Secret`]), which only the disk can compute again: the disk keeps no table of
//! capabilities. The client presents the capability with each request and seals the request under
//! the secret. This module has each check that a disk makes besides the seal, field by field; the
//! disk decides their order.
//!
//! Invariant: the extents of a capability are not empty, in order, and do not overlap; none ends
//! beyond the last byte that a disk can have. [`Extents`] cannot be made otherwise, not even by
//! decoding.

use bytes::Bytes;
use thiserror::Error;

use crate::xdr::{Decode, Encode, Encoder, XdrError, take_length};

/// Most extents of a capability. A file in more pieces is used by several capabilities.
pub const EXTENTS_MAX: usize = 64;

xdr_newtype! {
    /// Names a volume: random bytes, chosen when it was made.
    VolumeId([u8; 16]);
    /// Number of a disk in its volume, never given to another one.
    DiskId(u32);
    /// Identifies the time between two starts of a disk: a random number, drawn at each start.
    BootEpoch(u64);
    /// Identifies the key of a disk with which a capability is made. Keys are used in order.
    KeyEpoch(u32);
    /// Identifies a group of capabilities. A disk never sees one twice: later ones are higher.
    GroupId(u64);
    /// Number of a capability in its group, below [`GROUP_CAPABILITIES`].
    CapabilityId(u32);
}

/// Capabilities in a group. A disk keeps a bit for each: whether it is revoked.
pub const GROUP_CAPABILITIES: u32 = 8192;

xdr_enum! {
    /// What a capability allows its holder to do with its bytes.
    Mode { Read = 1, Write = 2, ReadWrite = 3 }
}

impl KeyEpoch {
    /// Whether a disk that was told this key epoch last accepts capabilities that were made with
    /// another one: it does if that is the one before.
    pub fn accepts(self, made_with: KeyEpoch) -> bool {
        made_with == self || made_with.0.checked_add(1) == Some(self.0)
    }
}

impl Mode {
    /// Whether it includes reading.
    pub fn reads(self) -> bool {
        self != Mode::Write
    }

    /// Whether it includes writing.
    pub fn writes(self) -> bool {
        self != Mode::Read
    }
}

/// Bytes of a disk. Not empty, and its end fits 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    offset: u64,
    length: u64,
}

impl Extent {
    /// `length` bytes from `offset` on.
    ///
    /// # Errors
    /// [`ExtentsError::Empty`], [`ExtentsError::Overflow`]
    pub fn new(offset: u64, length: u64) -> Result<Extent, ExtentsError> {
        if length == 0 {
            return Err(ExtentsError::Empty);
        }
        offset.checked_add(length).ok_or(ExtentsError::Overflow)?;
        Ok(Extent { offset, length })
    }

    /// Its first byte.
    pub fn offset(self) -> u64 {
        self.offset
    }

    /// How many bytes it has; never zero.
    pub fn length(self) -> u64 {
        self.length
    }

    /// The byte after its last one.
    pub fn end(self) -> u64 {
        self.offset + self.length
    }
}

impl Encode for Extent {
    fn encode(&self, out: &mut Encoder) {
        self.offset.encode(out);
        self.length.encode(out);
    }
}

impl Decode for Extent {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        let (offset, length) = (u64::decode(input)?, u64::decode(input)?);
        Extent::new(offset, length).map_err(|_| XdrError::Extents)
    }
}

/// Why a capability cannot have these extents.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ExtentsError {
    /// An extent has no bytes.
    #[error("an extent has no bytes")]
    Empty,
    /// An extent ends beyond 2^64 - 1.
    #[error("an extent ends behind the last byte that there can be")]
    Overflow,
    /// An extent begins before the end of the one before it.
    #[error("extents overlap, or are not in order")]
    Order,
    /// There are none.
    #[error("there is no extent")]
    None,
    /// There are too many.
    #[error("there are {0} extents, of at most {EXTENTS_MAX}")]
    Many(usize),
}

/// One to [`EXTENTS_MAX`] extents, in order, without overlaps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Extents(Vec<Extent>);

impl Extents {
    /// These extents.
    ///
    /// # Errors
    /// [`ExtentsError`]
    pub fn new(extents: Vec<Extent>) -> Result<Extents, ExtentsError> {
        match extents.len() {
            0 => return Err(ExtentsError::None),
            1..=EXTENTS_MAX => {}
            many => return Err(ExtentsError::Many(many)),
        }
        let is_sorted = extents.is_sorted_by(|before, after| before.end() <= after.offset);
        if is_sorted { Ok(Extents(extents)) } else { Err(ExtentsError::Order) }
    }

    /// They, in order.
    pub fn as_slice(&self) -> &[Extent] {
        &self.0
    }

    /// Whether each byte of `range` is in one of them. Extents that touch count as one.
    pub fn cover(&self, range: Extent) -> bool {
        let first = self.0.partition_point(|extent| extent.end() <= range.offset);
        let mut at = range.offset;
        for extent in &self.0[first..] {
            if extent.offset > at {
                return false;
            }
            at = extent.end();
            if at >= range.end() {
                return true;
            }
        }
        false
    }
}

impl Encode for Extents {
    fn encode(&self, out: &mut Encoder) {
        out.put_length(self.0.len());
        self.0.iter().for_each(|extent| extent.encode(out));
    }
}

impl Decode for Extents {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        let count = take_length(input, EXTENTS_MAX)?;
        let extents = (0..count).map(|_| Extent::decode(input)).collect::<Result<_, _>>()?;
        Extents::new(extents).map_err(|_| XdrError::Extents)
    }
}

xdr_struct! {
    /// What a client may do with which bytes of a disk, and until when.
    ///
    /// `expiry_ms` is a time of the disk's own clock: milliseconds since it started, in the boot
    /// that `boot` names. At that time the capability expires.
    #[derive(Hash)]
    Capability {
        volume: VolumeId, disk: DiskId, boot: BootEpoch, key: KeyEpoch, group: GroupId,
        id: CapabilityId, mode: Mode, expiry_ms: u64, extents: Extents,
    }
}

#[cfg(test)]
impl crate::sample::Sample for Extent {
    fn sample(source: &mut crate::sample::Source<'_>) -> Self {
        let (offset, length) = (u64::sample(source) / 2, u64::sample(source) / 2);
        Extent::new(offset, length.max(1)).expect("half of all and half of all fit")
    }
}

#[cfg(test)]
impl crate::sample::Sample for Extents {
    fn sample(source: &mut crate::sample::Source<'_>) -> Self {
        let mut at = u64::from(source.byte());
        let count = usize::from(source.byte()) % EXTENTS_MAX + 1;
        let next = |_| {
            let offset = at + u64::from(source.byte());
            let length = u64::from(u32::sample(source)) + 1;
            at = offset + length;
            Extent::new(offset, length).expect("small numbers")
        };
        Extents::new((0..count).map(next).collect()).expect("each begins where the last ended")
    }
}

#[cfg(test)]
mod tests;

//! The form in which requests and replies travel: a head, data, and a seal over both.
//!
//! ```text
//! request   session u64 · sequence u64 · head opaque<2560> · seal 16 bytes · data opaque<1 MiB>
//! reply     head opaque<2560> · seal 16 bytes · data opaque<1 MiB>
//! ```
//!
//! The seal covers the procedure's number, session and sequence too, so that none of them can be
//! changed, and a reply is to its request. Heads stay readable, since they name the keys.

use std::marker::PhantomData;

use bytes::Bytes;

use super::words::{Head, Res, SessionId};
use super::{DATA_BYTES_MAX, HEAD_BYTES_MAX, PROGRAM, VERSION};
use crate::seal::{Forged, SealKey, Setup, TAG_BYTES, Tag};
use crate::xdr::{Decode, Encode, Encoder, Framing, Opaque, XdrError};

/// A request, as it travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed<H> {
    /// The session to which it belongs; zero in a setup without sessions.
    pub session: SessionId,
    /// Its number in the session, never used twice.
    pub sequence: u64,
    head: Opaque<HEAD_BYTES_MAX>,
    seal: Tag,
    data: Opaque<DATA_BYTES_MAX>,
    kind: PhantomData<fn() -> H>,
}

/// A reply, as it travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedReply<H> {
    head: Opaque<HEAD_BYTES_MAX>,
    seal: Tag,
    data: Opaque<DATA_BYTES_MAX>,
    kind: PhantomData<fn() -> H>,
}

/// A request of each head is a procedure.
impl<H: Head> crate::Procedure for Sealed<H> {
    type Res = Res<SealedReply<H>>;
    const PROGRAM: u32 = PROGRAM;
    const VERSION: u32 = VERSION;
    const NUMBER: u32 = H::NUMBER;
}

/// What a seal covers besides the head and the data.
#[derive(Clone, Copy, Debug)]
struct Address {
    procedure: u32,
    session: SessionId,
    sequence: u64,
}

/// Length of an address, in bytes.
const ADDRESS_BYTES: usize = 20;

impl Address {
    /// It and a head, in one piece, and the head alone.
    fn with(self, head: &impl Encode) -> (Vec<u8>, Bytes) {
        let mut out = Encoder::new(Framing::Datagram, ADDRESS_BYTES + HEAD_BYTES_USUAL);
        out.put_u32(self.procedure);
        self.session.encode(&mut out);
        out.put_u64(self.sequence);
        head.encode(&mut out);
        let bytes = out.finish().to_bytes();
        (bytes.to_vec(), checked(bytes.slice(ADDRESS_BYTES..)))
    }

    /// The same with a head as it travels.
    fn before(self, head: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ADDRESS_BYTES + head.len());
        bytes.extend(self.procedure.to_be_bytes());
        bytes.extend(self.session.0.to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(head);
        bytes
    }
}

impl<H: Head> Sealed<H> {
    /// A request under seal.
    pub fn seal(
        key: &SealKey,
        setup: Setup,
        session: SessionId,
        sequence: u64,
        head: &H,
        data: Bytes,
    ) -> Sealed<H> {
        let address = Address { procedure: H::NUMBER, session, sequence };
        let (sealed, head) = address.with(head);
        let (seal, data) = key.seal(setup, sequence, sealed, data);
        Sealed {
            session,
            sequence,
            head: Opaque(head),
            seal,
            data: Opaque(data),
            kind: PhantomData,
        }
    }

    /// A request without a seal, in a setup that has none.
    pub fn open_to_all(head: &H, data: Bytes) -> Sealed<H> {
        Sealed {
            session: SessionId(0),
            sequence: 0,
            head: Opaque(encoded(head)),
            seal: [0; TAG_BYTES],
            data: Opaque(data),
            kind: PhantomData,
        }
    }

    /// The head as received: nothing is checked yet.
    ///
    /// # Errors
    /// [`XdrError`]
    pub fn claimed_head(&self) -> Result<H, XdrError> {
        decoded(&self.head.0)
    }

    /// Its data, as it came: nothing is checked yet.
    pub fn claimed_data(&self) -> &Bytes {
        &self.data.0
    }

    /// Checks the seal, and gives the data.
    ///
    /// # Errors
    /// [`Forged`]
    pub fn open(self, key: &SealKey, setup: Setup) -> Result<Bytes, Forged> {
        let address = self.address();
        key.open(setup, self.sequence, address.before(&self.head), &self.seal, self.data.0)
    }

    fn address(&self) -> Address {
        Address { procedure: H::NUMBER, session: self.session, sequence: self.sequence }
    }
}

impl<H: Head> SealedReply<H> {
    /// A reply under seal, to the request with this number of a session.
    pub fn seal(
        key: &SealKey,
        setup: Setup,
        session: SessionId,
        sequence: u64,
        head: &Res<H::Done>,
        data: Bytes,
    ) -> SealedReply<H> {
        let address = Address { procedure: H::NUMBER, session, sequence };
        let (sealed, head) = address.with(head);
        let (seal, data) = key.seal(setup, sequence, sealed, data);
        SealedReply { head: Opaque(head), seal, data: Opaque(data), kind: PhantomData }
    }

    /// A reply without a seal, in a setup that has none.
    pub fn open_to_all(head: &Res<H::Done>, data: Bytes) -> SealedReply<H> {
        let head = Opaque(encoded(head));
        SealedReply { head, seal: [0; TAG_BYTES], data: Opaque(data), kind: PhantomData }
    }

    /// Checks the seal, and returns the disk's answer, and the data.
    ///
    /// # Errors
    /// [`ReplyError`]
    pub fn open(
        self,
        key: &SealKey,
        setup: Setup,
        session: SessionId,
        sequence: u64,
    ) -> Result<(Res<H::Done>, Bytes), ReplyError> {
        let address = Address { procedure: H::NUMBER, session, sequence }.before(&self.head);
        let data = key.open(setup, sequence, address, &self.seal, self.data.0);
        Ok((decoded(&self.head.0)?, data?))
    }

    /// The disk's answer, and the data, in a setup without seals.
    ///
    /// # Errors
    /// [`ReplyError::Malformed`]
    pub fn open_unsealed(self) -> Result<(Res<H::Done>, Bytes), ReplyError> {
        Ok((decoded(&self.head.0)?, self.data.0))
    }
}

/// Why a reply is not one.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReplyError {
    /// It is not from the disk, or not to the request.
    #[error("{0}")]
    Forged(#[from] Forged),
    /// It cannot be read.
    #[error("{0}")]
    Malformed(#[from] XdrError),
}

/// Room for most heads: a capability with one extent takes 92 bytes.
const HEAD_BYTES_USUAL: usize = 160;

fn encoded(value: &impl Encode) -> Bytes {
    let mut out = Encoder::new(Framing::Datagram, HEAD_BYTES_USUAL);
    value.encode(&mut out);
    checked(out.finish().to_bytes())
}

fn checked(head: Bytes) -> Bytes {
    assert!(head.len() <= HEAD_BYTES_MAX, "heads have bounded parts only");
    head
}

/// Decodes all of a head. Trailing bytes make it a different, unknown one.
fn decoded<T: Decode>(bytes: &Bytes) -> Result<T, XdrError> {
    let mut input = bytes.clone();
    let value = T::decode(&mut input)?;
    match input.len() {
        0 => Ok(value),
        length => Err(XdrError::TooLong { length: bytes.len(), limit: bytes.len() - length }),
    }
}

impl<H> Encode for Sealed<H> {
    fn encode(&self, out: &mut Encoder) {
        self.session.encode(out);
        self.sequence.encode(out);
        self.head.encode(out);
        self.seal.encode(out);
        self.data.encode(out);
    }
}

impl<H> Decode for Sealed<H> {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        Ok(Sealed {
            session: Decode::decode(input)?,
            sequence: Decode::decode(input)?,
            head: Decode::decode(input)?,
            seal: Decode::decode(input)?,
            data: Decode::decode(input)?,
            kind: PhantomData,
        })
    }
}

impl<H> Encode for SealedReply<H> {
    fn encode(&self, out: &mut Encoder) {
        self.head.encode(out);
        self.seal.encode(out);
        self.data.encode(out);
    }
}

impl<H> Decode for SealedReply<H> {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        Ok(SealedReply {
            head: Decode::decode(input)?,
            seal: Decode::decode(input)?,
            data: Decode::decode(input)?,
            kind: PhantomData,
        })
    }
}

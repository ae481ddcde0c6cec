//! What the targets of codecs (`*_codec`) expect of bytes: they decode to an error, or to a value
//! whose encoding is no longer than they were and decodes to the same value again.

use bytes::Bytes;
use larder_wire::Procedure;
use larder_wire::xdr::{Decode, Encode, to_segments};

/// Bytes as a value.
///
/// # Panics
/// If they decode to a value whose encoding is longer, or does not decode to the same again.
pub fn survives<T: Encode + Decode>(input: &[u8]) {
    let Ok(value) = T::decode(&mut Bytes::copy_from_slice(input)) else { return };
    let bytes = to_segments(&value).to_bytes();
    assert!(bytes.len() <= input.len(), "more than came in");
    let again = T::decode(&mut bytes.clone()).expect("own encoding");
    assert_eq!(to_segments(&again).to_bytes(), bytes);
}

/// Bytes as the arguments of a procedure, and as its results.
///
/// # Panics
/// As [`survives`].
pub fn both<P: Procedure>(input: &[u8]) {
    survives::<P>(input);
    survives::<P::Res>(input);
}

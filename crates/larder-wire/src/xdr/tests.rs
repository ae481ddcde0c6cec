//! Which memory is shared, which bytes are refused, and how padding works.

use super::*;

#[test]
fn large_payloads_are_not_copied() {
    let payload = Bytes::from(vec![7; SEGMENT_BYTES_MIN + 1]);
    let message = to_segments(&Opaque::<{ 1 << 20 }>(payload.clone()));
    let [length, data, pad] = message.as_slice() else {
        panic!("{} segments", message.as_slice().len());
    };
    assert_eq!((length.len(), pad.len()), (4, 3));
    assert_eq!(data.as_ptr(), payload.as_ptr());

    let joined = message.to_bytes();
    let decoded = Opaque::<{ 1 << 20 }>::decode(&mut joined.clone()).unwrap();
    assert_eq!(decoded.0.as_ptr(), joined[4..].as_ptr());
}

#[test]
fn lengths_are_checked_before_anything_is_allocated() {
    let hostile =
        |words: &[u32]| -> Bytes { words.iter().flat_map(|word| word.to_be_bytes()).collect() };
    let too_long = |length, limit| XdrError::TooLong { length, limit };
    let huge = u32::MAX as usize;

    assert_eq!(Opaque::<8>::decode(&mut hostile(&[u32::MAX])), Err(too_long(huge, 8)));
    assert_eq!(Opaque::<8>::decode(&mut hostile(&[9, 0, 0, 0])), Err(too_long(9, 8)));
    assert_eq!(Opaque::<{ usize::MAX }>::decode(&mut hostile(&[1 << 30, 0])), Err(XdrError::Short));
    assert_eq!(Array::<u32, 4>::decode(&mut hostile(&[5])), Err(too_long(5, 4)));
    assert_eq!(Array::<u32, 4>::decode(&mut hostile(&[2, 1])), Err(XdrError::Short));
    assert_eq!(List::<u32>::decode(&mut hostile(&[1, 7, 1])), Err(XdrError::Short));
    assert_eq!(bool::decode(&mut hostile(&[2])), Err(XdrError::Discriminant(2)));
}

#[test]
fn padding_fills_the_unit() {
    assert_eq!([0, 1, 2, 3, 4, 5].map(padding), [0, 3, 2, 1, 0, 3]);
    assert_eq!([0, 1, 4, 5].map(opaque_len), [4, 8, 8, 12]);
}

#[test]
fn a_record_begins_with_its_mark() {
    for payload_bytes in [0, 5, SEGMENT_BYTES_MIN, SEGMENT_BYTES_MIN + 2] {
        let mut out = Encoder::new(Framing::Record, 16);
        out.put_u64(7);
        out.put_opaque(&Bytes::from(vec![1; payload_bytes]));
        assert_eq!(out.len(), 4 + 8 + opaque_len(payload_bytes));
        let message = out.finish();
        let bytes = message.to_bytes();
        assert_eq!(bytes.len(), message.len());
        assert_eq!(bytes[..4], crate::record::mark(bytes.len() - 4));
        assert_eq!(bytes[4..12], 7_u64.to_be_bytes());
    }
}

//! Bytes as arguments and results of the metadata program: they decode to an error, or to a value
//! whose encoding decodes to the same value again, and memory is taken only for what is there.

#![no_main]

use bytes::Bytes;
use larder_wire::Procedure;
use larder_wire::meta::{calls, recall};
use larder_wire::xdr::{Decode, Encode, to_segments};
use libfuzzer_sys::fuzz_target;

fn survives<T: Encode + Decode>(input: &[u8]) {
    let Ok(value) = T::decode(&mut Bytes::copy_from_slice(input)) else { return };
    let bytes = to_segments(&value).to_bytes();
    assert!(bytes.len() <= input.len(), "more than came in");
    let again = T::decode(&mut bytes.clone()).expect("own encoding");
    assert_eq!(to_segments(&again).to_bytes(), bytes);
}

fn both<P: Procedure>(input: &[u8]) {
    survives::<P>(input);
    survives::<P::Res>(input);
}

fuzz_target!(|input: &[u8]| {
    let Some((which, rest)) = input.split_first() else { return };
    match which {
        0 => both::<calls::Session>(rest),
        1 => both::<calls::Renew>(rest),
        2 => both::<calls::GetAttr>(rest),
        3 => both::<calls::SetAttr>(rest),
        4 => both::<calls::Lookup>(rest),
        5 => both::<calls::Open>(rest),
        6 => both::<calls::GetCaps>(rest),
        7 => both::<calls::Alloc>(rest),
        8 => both::<calls::CommitExtents>(rest),
        9 => both::<calls::Symlink>(rest),
        10 => both::<calls::MkNod>(rest),
        11 => both::<calls::Link>(rest),
        12 => both::<calls::Rename>(rest),
        13 => both::<calls::ReadDir>(rest),
        14 => both::<calls::Access>(rest),
        15 => both::<calls::FsStat>(rest),
        16 => both::<calls::GetXattr>(rest),
        17 => both::<calls::SetXattr>(rest),
        18 => both::<calls::ListXattr>(rest),
        19 => both::<calls::ReadLink>(rest),
        20 => both::<recall::Recall>(rest),
        21 => both::<calls::Lock>(rest),
        22 => both::<calls::TestLock>(rest),
        23 => both::<calls::AwaitLock>(rest),
        _ => (),
    }
});

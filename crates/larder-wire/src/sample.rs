//! Draws values of every wire type from a string of bytes, for the property tests.

use crate::xdr::{Array, Decode, Encode, List, Opaque, XdrError, to_segments};
use bytes::Bytes;

/// A string of bytes to draw from; zeros follow its end, so that drawing always ends.
pub(crate) struct Source<'a>(pub(crate) &'a [u8]);

impl Source<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    pub(crate) fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    fn bytes(&mut self, limit: usize) -> Bytes {
        let length = usize::from(self.byte()).min(limit);
        // Sometimes a payload that the encoder keeps as a segment of its own.
        let length = if length == 255 { 5001.min(limit) } else { length };
        (0..length).map(|_| self.byte()).collect()
    }
}

pub(crate) trait Sample {
    fn sample(source: &mut Source<'_>) -> Self;
}

impl Sample for u32 {
    fn sample(source: &mut Source<'_>) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| source.byte()))
    }
}

impl Sample for u64 {
    fn sample(source: &mut Source<'_>) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| source.byte()))
    }
}

impl Sample for i64 {
    fn sample(source: &mut Source<'_>) -> i64 {
        u64::sample(source).cast_signed()
    }
}

impl Sample for bool {
    fn sample(source: &mut Source<'_>) -> bool {
        source.byte() % 2 == 1
    }
}

impl Sample for () {
    fn sample(_source: &mut Source<'_>) {}
}

impl<const N: usize> Sample for [u8; N] {
    fn sample(source: &mut Source<'_>) -> [u8; N] {
        std::array::from_fn(|_| source.byte())
    }
}

impl<T: Sample> Sample for Option<T> {
    fn sample(source: &mut Source<'_>) -> Option<T> {
        bool::sample(source).then(|| T::sample(source))
    }
}

impl<const LIMIT: usize> Sample for Opaque<LIMIT> {
    fn sample(source: &mut Source<'_>) -> Opaque<LIMIT> {
        Opaque(source.bytes(LIMIT))
    }
}

impl<T: Sample> Sample for List<T> {
    fn sample(source: &mut Source<'_>) -> List<T> {
        let length = source.byte() % 8;
        List((0..length).map(|_| T::sample(source)).collect())
    }
}

impl<T: Sample, const LIMIT: usize> Sample for Array<T, LIMIT> {
    fn sample(source: &mut Source<'_>) -> Array<T, LIMIT> {
        let length = usize::from(source.byte() % 8).min(LIMIT);
        Array((0..length).map(|_| T::sample(source)).collect())
    }
}

impl Sample for crate::nfs3::nfs_fh3 {
    fn sample(source: &mut Source<'_>) -> Self {
        Self::new(&source.bytes(crate::nfs3::FHSIZE)).expect("bounded by FHSIZE")
    }
}

impl Sample for crate::nfs3::filename3 {
    fn sample(source: &mut Source<'_>) -> Self {
        let bytes = source.bytes(crate::nfs3::NAME_BYTES_MAX);
        let clean = bytes.iter().map(|byte| if matches!(byte, b'/' | 0) { b'x' } else { *byte });
        let name: Vec<u8> = clean.chain([b'n']).take(crate::nfs3::NAME_BYTES_MAX).collect();
        Self::new(name.into()).expect("cleaned, and not empty")
    }
}

impl<T: Sample, E: Sample> Sample for crate::nfs3::Res3<T, E> {
    fn sample(source: &mut Source<'_>) -> Self {
        match crate::nfs3::nfsstat3::sample(source) {
            crate::nfs3::nfsstat3::NFS3_OK => Ok(T::sample(source)),
            status => Err(crate::nfs3::Fail { status, detail: E::sample(source) }),
        }
    }
}

impl Sample for crate::mount3::mountres3 {
    fn sample(source: &mut Source<'_>) -> Self {
        match crate::mount3::mountstat3::sample(source) {
            crate::mount3::mountstat3::MNT3_OK => Ok(Sample::sample(source)),
            status => Err(status),
        }
    }
}

/// True for every wire type: what was encoded decodes to the same value and leaves nothing; each
/// truncation of it is refused; random bytes never panic.
pub(crate) fn check<T>(entropy: &[u8], noise: &[u8])
where
    T: Sample + Encode + Decode + PartialEq + std::fmt::Debug,
{
    let value = T::sample(&mut Source(entropy));
    let segments = to_segments(&value);
    let bytes = segments.to_bytes();
    assert_eq!(bytes.len(), segments.len());
    assert_eq!(bytes.len() % 4, 0, "XDR comes in units of four bytes");

    let mut input = bytes.clone();
    assert_eq!(T::decode(&mut input).expect("own encoding"), value);
    assert!(input.is_empty(), "{} bytes left of {value:?}", input.len());

    for end in (0..bytes.len()).step_by(bytes.len() / 256 + 1) {
        assert_eq!(T::decode(&mut bytes.slice(..end)), Err(XdrError::Short));
    }

    let mut damaged = bytes.to_vec();
    for (at, byte) in noise.iter().enumerate() {
        if let Some(there) = damaged.get_mut(at * 7 % bytes.len().max(1)) {
            *there ^= byte;
        }
    }
    let _ = T::decode(&mut Bytes::from(damaged));
    let _ = T::decode(&mut Bytes::copy_from_slice(noise));
}

/// Runs [`check`] on each type with random input.
macro_rules! check_types {
    ($test:ident: $( $type:ty ),+ $(,)?) => {
        proptest::proptest! {
            #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
            #[test]
            fn $test(
                entropy in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..700),
                noise in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
            ) {
                $( $crate::sample::check::<$type>(&entropy, &noise); )+
            }
        }
    };
}
pub(crate) use check_types;

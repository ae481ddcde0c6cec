//! How bytes are cut into sections and objects, and what proves that they are what was put.

use std::ops::Range;

use aws_lc_rs::digest::{SHA256, digest};

/// Bytes of a checksum.
pub(crate) const SUM_BYTES: usize = 32;

/// A checksum: SHA-256.
pub(crate) type Sum = [u8; SUM_BYTES];

/// What proves that bytes are those of a version. It is kept with the file's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// How many bytes the version has.
    pub bytes: u64,
    /// The checksum of its sections' checksums; of its only section if it has one.
    pub root: [u8; 32],
}

/// How bytes are cut. A version is read with the shape with which it was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a section, which is also a part of a multipart upload: stores want at least 5 MiB.
    pub section_bytes: usize,
    /// How many sections an object has at most. Stores take no more than 10,000 parts.
    pub object_sections: u64,
}

impl Default for Shape {
    /// Sections of 8 MiB, and objects of 64 GiB.
    fn default() -> Shape {
        Shape { section_bytes: 8 << 20, object_sections: 8192 }
    }
}

impl Shape {
    /// How many sections a version has: an empty one has an empty section.
    pub(crate) fn sections(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.section_bytes as u64).max(1)
    }

    /// How many objects its bytes are in.
    pub(crate) fn objects(&self, bytes: u64) -> u64 {
        self.sections(bytes).div_ceil(self.object_sections)
    }

    /// Which bytes of the version a section has.
    pub(crate) fn section(&self, bytes: u64, section: u64) -> Range<u64> {
        assert!(section < self.sections(bytes), "a section of the version");
        let length = self.section_bytes as u64;
        section * length..bytes.min((section + 1) * length)
    }

    /// Which sections an object has.
    pub(crate) fn of_object(&self, bytes: u64, object: u64) -> Range<u64> {
        let begin = object * self.object_sections;
        begin..self.sections(bytes).min(begin + self.object_sections)
    }

    /// In which object a section is, and where in it.
    pub(crate) fn place(&self, bytes: u64, section: u64) -> (u64, Range<u64>) {
        let range = self.section(bytes, section);
        let object = section / self.object_sections;
        let begin = object * self.object_sections * self.section_bytes as u64;
        (object, range.start - begin..range.end - begin)
    }
}

/// The checksum of some bytes.
pub(crate) fn sum(bytes: &[u8]) -> Sum {
    digest(&SHA256, bytes).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// The receipt for a version whose sections have these checksums.
pub(crate) fn receipt(bytes: u64, sums: &[Sum]) -> Receipt {
    let root = match sums {
        [only] => *only,
        _ => sum(sums.as_flattened()),
    };
    Receipt { bytes, root }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { section_bytes: 10, object_sections: 3 };

    #[test]
    fn sections_cover_a_version_once_and_in_order() {
        for bytes in 0..100 {
            let mut at = 0;
            let mut seen = 0;
            for object in 0..SHAPE.objects(bytes) {
                let mut within = 0;
                for section in SHAPE.of_object(bytes, object) {
                    let range = SHAPE.section(bytes, section);
                    let (place, inner) = SHAPE.place(bytes, section);
                    assert_eq!((range.start, place, inner.start), (at, object, within));
                    assert_eq!(inner.end - inner.start, range.end - range.start);
                    assert!(range.end > range.start || bytes == 0);
                    (at, within, seen) = (range.end, inner.end, seen + 1);
                }
            }
            assert_eq!((at, seen), (bytes, SHAPE.sections(bytes)));
        }
    }

    #[test]
    fn a_receipt_depends_on_every_section_and_their_order() {
        let (a, b) = (sum(b"a"), sum(b"b"));
        assert_eq!(receipt(1, &[a]).root, a);
        let roots = [receipt(2, &[a, b]), receipt(2, &[b, a]), receipt(2, &[a, a])];
        assert!(roots[0] != roots[1] && roots[1] != roots[2] && roots[0] != roots[2]);
    }
}

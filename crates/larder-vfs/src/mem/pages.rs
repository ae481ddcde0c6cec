//! The bytes of a file: pages that were written, and zeros between them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

const PAGE_BYTES: usize = 4096;

/// A sparse array of bytes with an end.
///
/// Invariant: bytes past `size` in the last page are zeros, and no page lies past `size`.
#[derive(Clone, Default)]
pub(super) struct Pages {
    size: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE_BYTES]>>,
}

impl Pages {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Bytes that are stored.
    pub(super) fn used(&self) -> u64 {
        (self.pages.len() * PAGE_BYTES) as u64
    }

    /// Up to `len` bytes from `offset` on; fewer at the end.
    pub(super) fn read(&self, offset: u64, len: u32) -> Vec<u8> {
        let end = self.size.min(offset.saturating_add(len.into()));
        let mut data = vec![0; end.saturating_sub(offset) as usize];
        let mut done = 0;
        while done < data.len() {
            let (page, start) = locate(offset + done as u64);
            let len = (PAGE_BYTES - start).min(data.len() - done);
            if let Some(bytes) = self.pages.get(&page) {
                data[done..done + len].copy_from_slice(&bytes[start..start + len]);
            }
            done += len;
        }
        data
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let (page, start) = locate(offset + done as u64);
            let len = (PAGE_BYTES - start).min(data.len() - done);
            let bytes = match self.pages.entry(page) {
                Entry::Occupied(there) => there.into_mut(),
                Entry::Vacant(hole) => hole.insert(Box::new([0; PAGE_BYTES])),
            };
            bytes[start..start + len].copy_from_slice(&data[done..done + len]);
            done += len;
        }
        if !data.is_empty() {
            self.size = self.size.max(offset + data.len() as u64);
        }
    }

    pub(super) fn set_size(&mut self, size: u64) {
        let (page, start) = locate(size);
        if size < self.size {
            drop(self.pages.split_off(&(page + u64::from(start > 0))));
            if let Some(last) = self.pages.get_mut(&page) {
                last[start..].fill(0);
            }
        }
        self.size = size;
    }
}

fn locate(offset: u64) -> (u64, usize) {
    (offset / PAGE_BYTES as u64, (offset % PAGE_BYTES as u64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_and_ends() {
        let mut pages = Pages::default();
        pages.write(10_000, b"abc");
        assert_eq!((pages.size(), pages.used()), (10_003, 4096));
        assert_eq!(pages.read(9_998, 9), b"\0\0abc");
        assert_eq!(pages.read(20_000, 9), b"");
        pages.set_size(10_001);
        pages.set_size(10_005);
        assert_eq!(pages.read(9_999, 9), b"\0a\0\0\0\0");
        pages.set_size(8192);
        assert_eq!(pages.used(), 0);
        pages.write(1 << 60, b"");
        assert_eq!(pages.size(), 8192);
    }

    #[test]
    fn agrees_with_a_vector() {
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let (mut pages, mut model) = (Pages::default(), Vec::new());
        for _ in 0..2000 {
            let (offset, len) = (random(20_000), random(9_000));
            match random(3) {
                0 => {
                    pages.set_size(offset);
                    model.resize(offset as usize, 0);
                }
                _ => {
                    let data = vec![random(255) as u8 + 1; len as usize];
                    pages.write(offset, &data);
                    let end = (offset + len) as usize;
                    if len > 0 {
                        model.resize(model.len().max(end), 0);
                        model[offset as usize..end].copy_from_slice(&data);
                    }
                }
            }
            assert!(pages.read(0, 100_000) == model);
        }
    }
}

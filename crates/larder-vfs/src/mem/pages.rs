//! The bytes of a file: written pages, and zeros between them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

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

    /// Makes a range within the file read as zeros. Its whole pages are no longer stored.
    pub(super) fn punch(&mut self, range: Range<u64>) {
        let end = range.end.min(self.size);
        let mut at = range.start;
        while at < end {
            let (page, start) = locate(at);
            let len = ((PAGE_BYTES - start) as u64).min(end - at);
            if start == 0 && (len == PAGE_BYTES as u64 || at + len == self.size) {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page) {
                bytes[start..start + len as usize].fill(0);
            }
            at += len;
        }
    }

    /// Stores all pages of a range, within the file.
    pub(super) fn allocate(&mut self, range: Range<u64>) {
        let end = range.end.min(self.size).div_ceil(PAGE_BYTES as u64);
        for page in range.start / PAGE_BYTES as u64..end {
            self.pages.entry(page).or_insert_with(|| Box::new([0; PAGE_BYTES]));
        }
    }

    /// What is stored, page by page.
    pub(super) fn data(&self) -> impl Iterator<Item = Range<u64>> {
        let span = |page: &u64| page * PAGE_BYTES as u64..(page + 1) * PAGE_BYTES as u64;
        self.pages.keys().map(span)
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
        pages.allocate(0..8192);
        assert_eq!(pages.used(), 8192);
        pages.punch(4095..8192);
        assert_eq!((pages.size(), pages.used()), (8192, 4096));
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
            match random(5) {
                0 => {
                    pages.set_size(offset);
                    model.resize(offset as usize, 0);
                }
                1 => {
                    pages.punch(offset..offset + len);
                    let end = model.len().min((offset + len) as usize);
                    model[end.min(offset as usize)..end].fill(0);
                }
                2 => pages.allocate(offset..offset + len),
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
            let is_data = |at: u64| pages.data().any(|range| range.contains(&at));
            let told =
                (0_u64..).zip(&model).step_by(997).all(|(at, byte)| *byte == 0 || is_data(at));
            assert!(told, "a hole where there is data");
        }
    }
}

//! The bytes of a simulated file ([`Content`]), and which of its pages have a block ([`Blocks`]).
//!
//! A test makes thousands of disks, one for each crash image, and changes little of each. So clones
//! of a content share their pages; a page is copied when one of them changes it.
//!
//! Invariant: the page table covers the length and no more, and bytes beyond the length are zeros.

use std::ops::Range;
use std::sync::Arc;

use super::to_index;

/// Bytes of a page, the unit of space.
const PAGE: usize = 4096;

/// Unit of space.
pub(super) const PAGE_BYTES: u64 = PAGE as u64;

/// The bytes of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    len: usize,
    /// A page of zeros may be absent.
    pages: Vec<Option<Arc<[u8; PAGE]>>>,
}

impl Content {
    /// Length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len as u64
    }

    /// Cuts the file, or grows it with zeros.
    pub(super) fn set_len(&mut self, len_bytes: u64) {
        let len = to_index(len_bytes);
        self.zero(len..self.len);
        self.pages.resize(len.div_ceil(PAGE), None);
        self.len = len;
    }

    /// Writes `data` at `offset`; the file grows if necessary.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let (start, end) = (to_index(offset), to_index(offset) + data.len());
        if end > self.len {
            self.set_len(end as u64);
        }
        let mut data = data;
        for (page, range) in pieces(start..end) {
            let (piece, rest) = data.split_at(range.len());
            self.page(page)[range].copy_from_slice(piece);
            data = rest;
        }
    }

    /// Zeros a range, as far as the file has it.
    pub(super) fn zero(&mut self, range: Range<usize>) {
        for (page, range) in pieces(range.start..range.end.min(self.len)) {
            if range.len() == PAGE {
                self.pages[page] = None;
            } else if self.pages[page].is_some() {
                self.page(page)[range].fill(0);
            }
        }
    }

    /// Reads from `offset` on, up to the end of the file; returns how many bytes there were.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let start = to_index(offset).min(self.len);
        let count = buf.len().min(self.len - start);
        let mut buf = &mut buf[..count];
        for (page, range) in pieces(start..start + count) {
            let (piece, rest) = buf.split_at_mut(range.len());
            match &self.pages[page] {
                Some(bytes) => piece.copy_from_slice(&bytes[range]),
                None => piece.fill(0),
            }
            buf = rest;
        }
        count
    }

    /// The byte at `offset`, if the file is that long, for changing it in place.
    pub(super) fn byte_mut(&mut self, offset: u64) -> Option<&mut u8> {
        let at = to_index(offset);
        (at < self.len).then(|| &mut self.page(at / PAGE)[at % PAGE])
    }

    /// A page, of this content alone.
    fn page(&mut self, number: usize) -> &mut [u8; PAGE] {
        Arc::make_mut(self.pages[number].get_or_insert_with(|| Arc::new([0; PAGE])))
    }
}

/// The parts of a range, page by page: the page's number, and the part within it.
fn pieces(range: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        (at < range.end).then(|| {
            let (page, start) = (at / PAGE, at % PAGE);
            let stop = PAGE.min(start + (range.end - at));
            at += stop - start;
            (page, start..stop)
        })
    })
}

/// Pages of a file that have a block of their own; the others are holes.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    has: Vec<bool>,
}

impl Blocks {
    /// Every page of a file of this length.
    pub(super) fn whole(len_bytes: u64) -> Blocks {
        Blocks { has: vec![true; to_index(len_bytes.div_ceil(PAGE_BYTES))] }
    }

    /// Gives all pages of a range a block.
    pub(super) fn allocate(&mut self, pages: Range<u64>) {
        let pages = to_index(pages.start)..to_index(pages.end);
        self.has.resize(self.has.len().max(pages.end), false);
        self.has[pages].fill(true);
    }

    /// Frees the blocks of pages that are wholly beyond a length.
    pub(super) fn cut(&mut self, len_bytes: u64) {
        self.has.truncate(to_index(len_bytes.div_ceil(PAGE_BYTES)));
    }

    /// Takes the blocks of a range of pages.
    pub(super) fn free(&mut self, pages: Range<u64>) {
        let end = to_index(pages.end).min(self.has.len());
        self.has[to_index(pages.start).min(end)..end].fill(false);
    }

    /// Whether a page has one.
    pub(super) fn has(&self, page: u64) -> bool {
        self.has.get(to_index(page)).is_some_and(|has| *has)
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.has.iter().filter(|has| **has).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::Chance;
    use super::*;

    /// Longest file that is made.
    const LEN_MAX: u64 = 5 * PAGE_BYTES;

    /// Every change has the same result as on a vector, and no clone sees the changes of another.
    #[test]
    fn content_is_what_a_vector_is() {
        let mut chance = Chance::new(1);
        for _ in 0..200 {
            let (mut content, mut model) = (Content::default(), Vec::<u8>::new());
            let mut clones = Vec::new();
            for step in 0..40_u8 {
                let mut below = |most: u64| chance.next() % most;
                let (start, len) = (below(LEN_MAX), below(2 * PAGE_BYTES));
                let end = to_index(start + len);
                match below(4) {
                    0 => {
                        content.set_len(start);
                        model.resize(to_index(start), 0);
                    }
                    1 => {
                        content.zero(to_index(start)..end);
                        let end = end.min(model.len());
                        model[to_index(start).min(end)..end].fill(0);
                    }
                    2 => clones.push((content.clone(), model.clone())),
                    _ => {
                        content.write(start, &vec![step + 1; to_index(len)]);
                        if len > 0 {
                            model.resize(model.len().max(end), 0);
                            model[to_index(start)..end].fill(step + 1);
                        }
                    }
                }
                clones.truncate(3);
                let all = [(content.clone(), model.clone())];
                for (content, model) in clones.iter().chain(&all) {
                    let mut read = vec![0xff; model.len() + 10];
                    assert_eq!(content.read(&mut read, 0), model.len());
                    assert!(read[..model.len()] == model[..], "step {step}");
                    assert_eq!(content.len(), model.len() as u64);
                    let from = start.min(content.len());
                    let count = content.read(&mut read, from);
                    assert!(read[..count] == model[to_index(from)..], "step {step} from {from}");
                }
            }
        }
    }

    #[test]
    fn blocks_follow_writes_cuts_and_holes() {
        let mut blocks = Blocks::default();
        blocks.allocate(2..4);
        assert_eq!((blocks.count(), blocks.has(1), blocks.has(3)), (2, false, true));
        blocks.free(3..9);
        assert_eq!((blocks.count(), blocks.has(3)), (1, false));
        blocks.allocate(0..6);
        blocks.cut(PAGE_BYTES + 1);
        assert_eq!((blocks.count(), blocks.has(1), blocks.has(2)), (2, true, false));
        assert_eq!(Blocks::whole(PAGE_BYTES + 1).count(), 2);
    }
}

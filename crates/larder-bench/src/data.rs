//! Bytes that are the same on every machine and in every run, and that can be checked at any
//! offset.

use anyhow::{Result, ensure};

/// Bytes of one file, made from a seed. The byte at an offset depends on seed and offset alone, so
/// a piece from the middle is checked without the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern(pub u64);

impl Pattern {
    /// Fills `buffer` with the bytes from `offset` on.
    pub fn fill(self, offset: u64, buffer: &mut [u8]) {
        let mut at = offset;
        let mut rest = buffer;
        while !rest.is_empty() {
            let word = mix(self.0 ^ (at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes();
            let skip = (at % 8) as usize;
            let count = rest.len().min(8 - skip);
            let (now, later) = rest.split_at_mut(count);
            now.copy_from_slice(&word[skip..skip + count]);
            at += count as u64;
            rest = later;
        }
    }

    /// The first `len` bytes.
    pub fn bytes(self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(0, &mut bytes);
        bytes
    }

    /// Checks bytes that were read from `offset`.
    ///
    /// # Errors
    /// The offset of the first wrong byte.
    pub fn check(self, offset: u64, read: &[u8]) -> Result<()> {
        let mut expected = vec![0; read.len()];
        self.fill(offset, &mut expected);
        let wrong = read.iter().zip(&expected).position(|(read, expected)| read != expected);
        ensure!(wrong.is_none(), "wrong byte at offset {}", offset + wrong.unwrap_or(0) as u64);
        Ok(())
    }

    /// `len` bytes of lines of words, for files that are searched and compiled.
    pub fn text(self, len: usize) -> Vec<u8> {
        const WORDS: [&str; 16] = [
            "file", "handle", "server", "client", "cache", "block", "extent", "lease", "write",
            "read", "name", "inode", "dirty", "commit", "verifier", "offset",
        ];
        let mut random = Random(self.0);
        let mut text = String::with_capacity(len + 16);
        while text.len() < len {
            text.push_str(WORDS[random.below(16) as usize]);
            text.push(if random.below(9) == 0 { '\n' } else { ' ' });
        }
        text.truncate(len);
        text.into_bytes()
    }
}

/// Bytes of a page: every page of a stamped file begins with bytes of its own.
pub const PAGE_BYTES: usize = 4096;

/// A writer's memory: 64 KiB that all files repeat, in which the first word of every page is that
/// of the file's [`Pattern`] at its offset. Costs next to nothing to make, so that a loop that is
/// timed can write what differs from file to file and from page to page. Does not shrink when
/// compressed within 32 KiB.
#[derive(Clone, Debug)]
pub struct Stamped(Vec<u8>);

impl Stamped {
    /// The pattern repeats after this many bytes, except for the stamps; no piece is longer.
    pub const BYTES: usize = 64 << 10;

    /// The memory, filled.
    #[expect(clippy::new_without_default, reason = "it takes time to fill")]
    pub fn new() -> Stamped {
        Stamped(Pattern(0x57a3).bytes(Stamped::BYTES))
    }

    /// The `len` bytes from `offset` on of the file of a pattern.
    ///
    /// # Panics
    /// If the piece does not consist of whole pages, or crosses a multiple of [`Stamped::BYTES`].
    pub fn piece(&mut self, pattern: Pattern, offset: u64, len: usize) -> &[u8] {
        let start = (offset % Stamped::BYTES as u64) as usize;
        assert!(
            start.is_multiple_of(PAGE_BYTES) && len.is_multiple_of(PAGE_BYTES),
            "{offset} {len}"
        );
        let piece = &mut self.0[start..start + len];
        for (page, at) in piece.chunks_mut(PAGE_BYTES).zip((offset..).step_by(PAGE_BYTES)) {
            pattern.fill(at, &mut page[..8]);
        }
        piece
    }

    /// Checks a piece that was read.
    ///
    /// # Errors
    /// If it differs.
    ///
    /// # Panics
    /// As [`Stamped::piece`].
    pub fn check(&mut self, pattern: Pattern, offset: u64, read: &[u8]) -> Result<()> {
        let piece = self.piece(pattern, offset, read.len());
        ensure!(read == piece, "wrong bytes among the {} from offset {offset} on", read.len());
        Ok(())
    }
}

/// The stamps of pages that were read: collected while the time is measured, at hardly any cost,
/// and compared afterwards.
#[derive(Clone, Debug, Default)]
pub struct Stamps(Vec<(Pattern, u64, [u8; 8])>);

impl Stamps {
    /// With room for the stamps of this many bytes.
    pub fn with_room_for(bytes: u64) -> Stamps {
        Stamps(Vec::with_capacity((bytes / PAGE_BYTES as u64) as usize))
    }

    /// Keeps the stamps of a piece that was read from `offset` of the file of a pattern.
    ///
    /// # Panics
    /// If the piece ends within the first word of a page.
    pub fn keep(&mut self, pattern: Pattern, offset: u64, read: &[u8]) {
        for (page, at) in read.chunks(PAGE_BYTES).zip((offset..).step_by(PAGE_BYTES)) {
            let stamp = page.first_chunk().expect("pages are longer than a word");
            self.0.push((pattern, at, *stamp));
        }
    }

    /// Checks them.
    ///
    /// # Errors
    /// Where the first wrong byte is.
    pub fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(|(pattern, at, stamp)| pattern.check(*at, stamp))
    }
}

/// A small generator of random numbers (splitmix64): the same sequence for a seed, everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Random(pub u64);

impl Random {
    /// A number from 0 up to, not including, `bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % bound
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_agree_with_the_whole() {
        let whole = Pattern(7).bytes(100);
        for start in 0..100 {
            for end in start..100 {
                let mut piece = vec![0; end - start];
                Pattern(7).fill(start as u64, &mut piece);
                assert_eq!(piece, whole[start..end]);
            }
        }
    }

    #[test]
    fn a_wrong_byte_is_found() {
        let mut bytes = Pattern(7).bytes(100);
        Pattern(7).check(0, &bytes).unwrap();
        bytes[60] ^= 1;
        assert_eq!(Pattern(7).check(0, &bytes).unwrap_err().to_string(), "wrong byte at offset 60");
        assert!(Pattern(8).check(0, &Pattern(7).bytes(100)).is_err());
    }

    #[test]
    fn stamped_pieces_differ_by_file_and_page_and_agree_with_each_other() {
        let mut memory = Stamped::new();
        let far = 7 * Stamped::BYTES as u64;
        let whole = memory.piece(Pattern(1), far, Stamped::BYTES).to_vec();
        for at in (0..Stamped::BYTES).step_by(2 * PAGE_BYTES) {
            let piece = &whole[at..at + 2 * PAGE_BYTES];
            memory.check(Pattern(1), far + at as u64, piece).unwrap();
            assert!(memory.check(Pattern(2), far + at as u64, piece).is_err(), "another file's");
            assert!(memory.check(Pattern(1), at as u64, piece).is_err(), "another place's");
        }
        let mut wrong = whole.clone();
        wrong[5000] ^= 1;
        assert!(memory.check(Pattern(1), far, &wrong).is_err());
    }

    #[test]
    fn stamps_tell_files_and_pages_apart() {
        let mut memory = Stamped::new();
        for (pattern, offset, fine) in
            [(Pattern(1), 8192, true), (Pattern(2), 8192, false), (Pattern(1), 4096, false)]
        {
            let mut stamps = Stamps::default();
            stamps.keep(pattern, offset, memory.piece(Pattern(1), 8192, 8192));
            assert_eq!((stamps.0.len(), stamps.check().is_ok()), (2, fine));
        }
    }

    #[test]
    fn text_is_of_the_length_and_of_words() {
        let text = String::from_utf8(Pattern(1).text(1000)).unwrap();
        assert_eq!(text.len(), 1000);
        assert!(text.lines().count() > 5 && text.contains("cache"));
    }
}

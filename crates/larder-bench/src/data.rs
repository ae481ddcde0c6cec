//! Bytes that are the same on every machine and in every run, and that can be checked at any offset.

use anyhow::{Result, ensure};

/// Bytes of one file, made from a seed. The byte at an offset depends on seed and offset alone, so a
/// piece from the middle is checked without the rest.
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
    /// Where the first wrong byte is.
    pub fn check(self, offset: u64, read: &[u8]) -> Result<()> {
        let mut expected = vec![0; read.len()];
        self.fill(offset, &mut expected);
        let wrong = read.iter().zip(&expected).position(|(read, expected)| read != expected);
        ensure!(wrong.is_none(), "wrong byte at offset {}", offset + wrong.unwrap_or(0) as u64);
        Ok(())
    }

    /// `len` bytes of lines of words, for what is searched and compiled rather than stored.
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
    fn text_is_of_the_length_and_of_words() {
        let text = String::from_utf8(Pattern(1).text(1000)).unwrap();
        assert_eq!(text.len(), 1000);
        assert!(text.lines().count() > 5 && text.contains("cache"));
    }
}

//! Files that are written from memory and read in pieces of equal length.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::data::{Pattern, Stamped, Stamps};

/// What a file holds: stamped pages. Its length is a multiple of that of a piece, or is one piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content {
    /// Its stamps are of this, which no other file has.
    pub(super) pattern: Pattern,
    pub(super) bytes: u64,
    pub(super) piece_bytes: usize,
}

impl Content {
    /// Offset and length of every piece, in order.
    fn pieces(self) -> impl Iterator<Item = (u64, usize)> {
        let len = self.piece_bytes.min(self.bytes as usize);
        (0..self.bytes).step_by(len).map(move |offset| (offset, len))
    }

    /// Makes the file, writes it and closes it.
    pub(super) fn write(self, path: &Path, memory: &mut Stamped) -> Result<()> {
        let mut file = File::create_new(path)?;
        for (offset, len) in self.pieces() {
            file.write_all(memory.piece(self.pattern, offset, len))?;
        }
        Ok(())
    }

    /// Opens the file, reads it into a buffer that holds a piece, keeps its stamps and closes it.
    pub(super) fn read(self, path: &Path, buffer: &mut [u8], stamps: &mut Stamps) -> Result<()> {
        let mut file = File::open(path)?;
        for (offset, len) in self.pieces() {
            file.read_exact(&mut buffer[..len])?;
            stamps.keep(self.pattern, offset, &buffer[..len]);
        }
        Ok(())
    }

    /// Reads the file and compares every byte.
    pub(super) fn check(self, path: &Path) -> Result<()> {
        let wrong = || path.display().to_string();
        let len = path.metadata().with_context(wrong)?.len();
        ensure!(len == self.bytes, "{len} bytes instead of {} in {}", self.bytes, wrong());
        let (mut memory, mut buffer) = (Stamped::new(), vec![0; self.piece_bytes]);
        let mut file = File::open(path)?;
        for (offset, len) in self.pieces() {
            file.read_exact(&mut buffer[..len])?;
            memory.check(self.pattern, offset, &buffer[..len]).with_context(wrong)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_written_is_read_and_anything_else_is_found() {
        let dir = tempfile::tempdir().unwrap();
        for (bytes, piece_bytes, pieces) in
            [(4096, 65536, 1), (65536, 65536, 1), (1 << 20, 65536, 16), (1 << 20, 8192, 128)]
        {
            let path = dir.path().join(format!("{bytes}-{piece_bytes}"));
            let content = Content { pattern: Pattern(bytes), bytes, piece_bytes };
            assert_eq!(content.pieces().count(), pieces);
            content.write(&path, &mut Stamped::new()).unwrap();
            let mut stamps = Stamps::with_room_for(bytes);
            content.read(&path, &mut vec![0; piece_bytes], &mut stamps).unwrap();
            stamps.check().unwrap();
            content.check(&path).unwrap();
            assert!(Content { pattern: Pattern(1), ..content }.check(&path).is_err());
            let mut made = fs::read(&path).unwrap();
            *made.last_mut().unwrap() ^= 1;
            fs::write(&path, &made).unwrap();
            assert!(content.check(&path).is_err());
            fs::write(&path, &made[1..]).unwrap();
            let error = content.check(&path).unwrap_err().to_string();
            assert!(error.contains("bytes instead of"), "{error}");
        }
    }
}

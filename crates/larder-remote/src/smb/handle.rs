//! The content of a [`Handle`] of an SMB share: never a name, so that it survives a rename.
//!
//! The first byte is a version. Version 1 holds the server's identification of the file: its file
//! id, whether it is a directory, and the volume. Version 2 is for servers that make ids up: a hash
//! of the path, which therefore changes when the file is renamed, and means another file when one
//! takes the name.
//!
//! The creation time is left out on purpose, although it would distinguish a file from a later one
//! that got its number. Samba makes the time up for files that it did not create, as the earliest
//! of the others, so it moves when the file is read or written, and the file would lose its cache.
//! NTFS counts the uses of a number in the id itself; elsewhere the later file counts as a new
//! version of the earlier one, as its times and size show.

use larder_vfs::Handle;

const BY_ID: u8 = 1;
const BY_PATH: u8 = 2;
/// Version, kind, file id, volume.
const LEN: usize = 1 + 1 + 8 + 8;

/// A server's identification of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    /// Number of the file on its volume; it may be reused after the file was deleted.
    pub(super) file_id: u64,
    /// Whether it is a directory: never another version of a file.
    pub(super) directory: bool,
}

impl Identity {
    /// Whether a server made the id up: a server that has none sends all zeros or all ones
    /// (MS-FSCC, 2.4.27).
    pub(super) fn is_invented(&self) -> bool {
        matches!(self.file_id, 0 | u64::MAX)
    }

    /// The handle of the file on this volume.
    pub(super) fn handle(&self, volume: u64) -> Handle {
        let mut bytes = [BY_ID; LEN];
        bytes[1] = u8::from(self.directory);
        bytes[2..10].copy_from_slice(&self.file_id.to_le_bytes());
        bytes[10..].copy_from_slice(&volume.to_le_bytes());
        Handle::new(&bytes)
    }
}

/// The handle of the file at this path of a server without ids.
pub(super) fn by_path(path: &str) -> Handle {
    let mut bytes = [BY_PATH; 17];
    bytes[1..].copy_from_slice(&hash(path.as_bytes()).to_le_bytes());
    Handle::new(&bytes)
}

/// Whether it is known to mean a directory.
pub(super) fn is_directory(handle: &Handle) -> bool {
    matches!(handle.as_bytes(), [BY_ID, 1, ..])
}

/// A number for the file: files that were made one after another mostly have consecutive numbers;
/// not unique.
pub(super) fn number(handle: &Handle) -> u64 {
    // The file id, or a part of the hash. A handle from elsewhere may be shorter.
    let bytes = handle.as_bytes().get(2..10).and_then(|bytes| bytes.try_into().ok());
    u64::from_le_bytes(bytes.unwrap_or_default())
}

/// FNV-1a with 128 bits: the same in every process, so that handles survive a mount.
pub(super) fn hash(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_counts() {
        let file = Identity { file_id: 1, directory: false };
        assert_eq!(file.handle(3), file.handle(3));
        assert_ne!(file.handle(3), file.handle(4));
        assert_ne!(file.handle(3), Identity { file_id: 2, ..file }.handle(3));
        assert_ne!(file.handle(3), Identity { directory: true, ..file }.handle(3));
        assert_ne!(by_path("a\\b"), by_path("a\\c"));
        assert_eq!((number(&file.handle(3)), number(&Handle::new(b"short"))), (1, 0));
        assert_ne!(number(&by_path("a\\b")), number(&by_path("a\\c")));
        assert_eq!(
            file.handle(3).as_bytes(),
            [1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]
        );
    }
}

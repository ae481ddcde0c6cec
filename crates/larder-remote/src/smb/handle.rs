//! What a [`Handle`] of an SMB share is made of: never a name, so that it survives a rename.
//!
//! The first byte is a version. Version 1 holds what the server calls the file: its file id, when it
//! was created and the volume. Version 2 is for servers that make ids up: a hash of the path, which
//! therefore changes when the file is renamed, and means another file when one takes the name.

use larder_vfs::Handle;

const BY_ID: u8 = 1;
const BY_PATH: u8 = 2;

/// What a server calls a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    /// Number of the file on its volume; of a deleted file it may be given again.
    pub(super) file_id: u64,
    /// When it was created, as FILETIME.
    pub(super) created: u64,
}

impl Identity {
    /// Whether a server made the id up: one that has none says so with all zeros or all ones
    /// (MS-FSCC, 2.4.27).
    pub(super) fn is_invented(&self) -> bool {
        matches!(self.file_id, 0 | u64::MAX)
    }

    /// The handle of the file on this volume.
    pub(super) fn handle(&self, volume: u64) -> Handle {
        let mut bytes = [BY_ID; 25];
        bytes[1..9].copy_from_slice(&self.file_id.to_le_bytes());
        bytes[9..17].copy_from_slice(&self.created.to_le_bytes());
        bytes[17..].copy_from_slice(&volume.to_le_bytes());
        Handle::new(&bytes)
    }

    /// What a handle of version 1 was made of.
    pub(super) fn of(handle: &Handle) -> Option<Identity> {
        let bytes: &[u8; 25] = handle.as_bytes().try_into().ok()?;
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        (bytes[0] == BY_ID).then(|| Identity { file_id: number(1), created: number(9) })
    }
}

/// The handle of what lies at this path of a server without ids.
pub(super) fn by_path(path: &str) -> Handle {
    let mut bytes = [BY_PATH; 17];
    bytes[1..].copy_from_slice(&hash(path.as_bytes()).to_le_bytes());
    Handle::new(&bytes)
}

/// FNV-1a with 128 bits: the same in every process, so that handles outlive a mount.
pub(super) fn hash(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_tells_what_it_was_made_of() {
        for number in [0, 1, 77, u64::MAX / 3, u64::MAX] {
            let identity = Identity { file_id: number, created: number.rotate_left(9) };
            assert_eq!(Identity::of(&identity.handle(number ^ 5)), Some(identity));
        }
        assert_ne!(
            Identity { file_id: 1, created: 2 }.handle(3),
            Identity { file_id: 1, created: 3 }.handle(3)
        );
    }

    #[test]
    fn other_bytes_are_no_identity() {
        for bytes in [&[][..], &[1], &[1; 24], &[1; 26], &[2; 25]] {
            assert_eq!(Identity::of(&Handle::new(bytes)), None, "{bytes:?}");
        }
        assert_eq!(Identity::of(&by_path("a\\b")), None);
        assert_ne!(by_path("a\\b"), by_path("a\\c"));
    }
}

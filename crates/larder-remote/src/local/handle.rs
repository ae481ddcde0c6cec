//! The handles given to clients: a kernel handle under the seal of the export.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | version of this format: 2 |
//! | 1 | the kernel handle's type |
//! | 4 to 46 | the kernel handle |
//! | 16 | the seal: HMAC-SHA-256 (RFC 2104) of the export's identity and all bytes before, cut to 128 bits |
//!
//! At most 64 bytes, which is all that NFSv3 carries (RFC 1813, 2.4); ext4 needs 26, xfs and tmpfs
//! 30 to 34, btrfs 38, overlayfs about 50. Nothing in it depends on our process, so it stays valid
//! over restarts as long as the key is kept ([`HandleKey`]).
//!
//! A kernel handle is hardly more than an inode number, which can be guessed, and it can name any
//! file of the file system. So a handle from a client is opened only if its seal is ours: then some
//! earlier answer has named that file.
//!
//! Version 1 had no seal. Its handles are stale.

use hmac::{Hmac, KeyInit, Mac};
use larder_io::handle::KernelHandle;
use larder_vfs::{Error, Handle, Result};
use sha2::Sha256;

use super::key::HandleKey;

const VERSION: u8 = 2;
const VERSION_WITHOUT_SEAL: u8 = 1;
const HEADER_BYTES: usize = 2;
const SEAL_BYTES: usize = 16;
const KERNEL_BYTES_MAX: usize = 64 - HEADER_BYTES - SEAL_BYTES;

/// Makes the handles of one export, and knows them again.
#[derive(Clone)]
pub(super) struct Seals {
    /// Keyed, and fed with the export's identity.
    mac: Hmac<Sha256>,
}

impl std::fmt::Debug for Seals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seals")
    }
}

impl Seals {
    /// The sealer for the export of the directory with this kernel handle on this file system.
    pub(super) fn new(key: &HandleKey, fsid: u64, root: &KernelHandle) -> Seals {
        let mut mac = Hmac::new_from_slice(key.as_bytes()).expect("HMAC takes keys of any length");
        mac.update(&fsid.to_be_bytes());
        mac.update(&root.kind.to_be_bytes());
        mac.update(&(root.bytes.len() as u64).to_be_bytes());
        mac.update(&root.bytes);
        Seals { mac }
    }

    /// The handle of a file, unless it would be too long for NFSv3.
    pub(super) fn seal(&self, kernel: &KernelHandle) -> Option<Handle> {
        let kind = u8::try_from(kernel.kind).ok()?;
        if kernel.bytes.len() > KERNEL_BYTES_MAX {
            return None;
        }
        let mut bytes = Vec::with_capacity(64);
        bytes.extend([VERSION, kind]);
        bytes.extend(&kernel.bytes);
        let seal = self.mac.clone().chain_update(&bytes).finalize().into_bytes();
        bytes.extend(&seal[..SEAL_BYTES]);
        Some(Handle::new(&bytes))
    }

    /// The kernel handle in `handle`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it does not look like one of ours; [`Error::Stale`] if this
    /// export has not sealed it.
    pub(super) fn open(&self, handle: &Handle) -> Result<KernelHandle> {
        let bytes = handle.as_bytes();
        match bytes {
            [VERSION_WITHOUT_SEAL, _, ..] => return Err(Error::Stale),
            [VERSION, _, rest @ ..] if rest.len() > SEAL_BYTES && bytes.len() <= 64 => {}
            _ => return Err(Error::InvalidArgument),
        }
        let (sealed, seal) = bytes.split_at(bytes.len() - SEAL_BYTES);
        // Compared in constant time, so that the duration reveals nothing to a client that tries
        // many seals.
        let checked = self.mac.clone().chain_update(sealed).verify_truncated_left(seal);
        checked.map_err(|_| Error::Stale)?;
        let (header, kernel) = sealed.split_at(HEADER_BYTES);
        Ok(KernelHandle { kind: i32::from(header[1]), bytes: kernel.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(kind: i32, len: usize) -> KernelHandle {
        KernelHandle { kind, bytes: (0..len).map(|i| i as u8).collect() }
    }

    #[test]
    fn what_is_sealed_is_opened_by_the_same_export_with_the_same_key_only() {
        let key = HandleKey::from_bytes([3; 32]);
        let ours = Seals::new(&key, 7, &kernel(1, 8));
        let others = [
            Seals::new(&key, 8, &kernel(1, 8)),
            Seals::new(&key, 7, &kernel(1, 9)),
            Seals::new(&key, 7, &kernel(2, 8)),
            Seals::new(&HandleKey::from_bytes([4; 32]), 7, &kernel(1, 8)),
        ];
        for len in 1..=KERNEL_BYTES_MAX {
            let sealed = ours.seal(&kernel(0x81, len)).unwrap();
            assert!(sealed.as_bytes().len() <= 64);
            assert_eq!(ours.open(&sealed).unwrap(), kernel(0x81, len));
            for other in &others {
                assert_eq!(other.open(&sealed), Err(Error::Stale));
            }
        }
        assert!(ours.seal(&kernel(1, KERNEL_BYTES_MAX + 1)).is_none());
        assert!(ours.seal(&kernel(256, 8)).is_none());
        assert!(ours.seal(&kernel(-1, 8)).is_none());
    }

    #[test]
    fn every_changed_bit_breaks_the_seal() {
        let ours = Seals::new(&HandleKey::from_bytes([3; 32]), 7, &kernel(1, 8));
        let good = ours.seal(&kernel(1, 8)).unwrap();
        for bit in 0..good.as_bytes().len() * 8 {
            let mut bytes = good.as_bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(ours.open(&Handle::new(&bytes)).is_err(), "bit {bit}");
        }
        for len in 0..good.as_bytes().len() {
            assert!(ours.open(&Handle::new(&good.as_bytes()[..len])).is_err(), "{len} bytes");
        }
        let longer = [good.as_bytes(), &[0]].concat();
        assert_eq!(ours.open(&Handle::new(&longer)), Err(Error::Stale));
    }

    #[test]
    fn malformed_and_former_handles_are_refused() {
        let ours = Seals::new(&HandleKey::from_bytes([3; 32]), 7, &kernel(1, 8));
        for len in 0..=HEADER_BYTES + SEAL_BYTES {
            let short = Handle::new(&vec![VERSION; len]);
            assert_eq!(ours.open(&short), Err(Error::InvalidArgument));
        }
        assert_eq!(ours.open(&Handle::new(&[VERSION; 65])), Err(Error::InvalidArgument));
        assert_eq!(ours.open(&Handle::new(&[9; 30])), Err(Error::InvalidArgument));
        assert_eq!(ours.open(&Handle::new(&[VERSION_WITHOUT_SEAL; 16])), Err(Error::Stale));
    }
}

//! The handles that leave us: a kernel handle behind the name of the export.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | version of this format: 1 |
//! | 6 | the export: a hash of the file system's id and of the exported directory's kernel handle |
//! | 1 | the kernel handle's type |
//! | 4 to 56 | the kernel handle |
//!
//! At most 64 bytes, which is all that NFSv3 carries (RFC 1813, 2.4); ext4 needs 16, xfs and tmpfs
//! 20 to 24, btrfs 28, overlayfs about 40. Nothing in it depends on our process, so it stays good
//! over restarts.

use larder_io::handle::KernelHandle;
use larder_vfs::{Error, Handle, Result};

const VERSION: u8 = 1;
const HEADER_BYTES: usize = 8;
const KERNEL_BYTES_MAX: usize = 64 - HEADER_BYTES;

/// Names an export in its handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExportId([u8; 6]);

impl ExportId {
    /// The export of the directory with this kernel handle on this file system.
    pub(super) fn new(fsid: u64, root: &KernelHandle) -> ExportId {
        // FNV-1a: it must come out the same in every version of larder, and need not resist anybody.
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        let kind = root.kind.to_be_bytes();
        for byte in fsid.to_be_bytes().iter().chain(&kind).chain(&root.bytes) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let [a, b, c, d, e, f, _, _] = hash.to_be_bytes();
        ExportId([a, b, c, d, e, f])
    }

    /// Wraps a kernel handle, unless it is too long for NFSv3.
    pub(super) fn wrap(self, kernel: &KernelHandle) -> Option<Handle> {
        let kind = u8::try_from(kernel.kind).ok()?;
        if kernel.bytes.len() > KERNEL_BYTES_MAX {
            return None;
        }
        let mut bytes = [0; HEADER_BYTES + KERNEL_BYTES_MAX];
        bytes[0] = VERSION;
        bytes[1..7].copy_from_slice(&self.0);
        bytes[7] = kind;
        let end = HEADER_BYTES + kernel.bytes.len();
        bytes[HEADER_BYTES..end].copy_from_slice(&kernel.bytes);
        Some(Handle::new(&bytes[..end]))
    }

    /// The kernel handle in `handle`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is none of ours, [`Error::Stale`] if it is another export's.
    pub(super) fn unwrap(self, handle: &Handle) -> Result<KernelHandle> {
        match handle.as_bytes() {
            [VERSION, a, b, c, d, e, f, kind, kernel @ ..]
                if !kernel.is_empty() && kernel.len() <= KERNEL_BYTES_MAX =>
            {
                if [*a, *b, *c, *d, *e, *f] != self.0 {
                    return Err(Error::Stale);
                }
                Ok(KernelHandle { kind: i32::from(*kind), bytes: kernel.to_vec() })
            }
            _ => Err(Error::InvalidArgument),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(kind: i32, len: usize) -> KernelHandle {
        KernelHandle { kind, bytes: (0..len).map(|i| i as u8).collect() }
    }

    #[test]
    fn what_is_wrapped_unwraps_for_the_same_export_only() {
        let ours = ExportId::new(7, &kernel(1, 8));
        for len in 1..=KERNEL_BYTES_MAX {
            let wrapped = ours.wrap(&kernel(0x81, len)).unwrap();
            assert!(wrapped.as_bytes().len() <= 64);
            assert_eq!(ours.unwrap(&wrapped).unwrap(), kernel(0x81, len));
            for other in [ExportId::new(8, &kernel(1, 8)), ExportId::new(7, &kernel(1, 9))] {
                assert_eq!(other.unwrap(&wrapped), Err(Error::Stale));
            }
        }
        assert!(ours.wrap(&kernel(1, KERNEL_BYTES_MAX + 1)).is_none());
        assert!(ours.wrap(&kernel(256, 8)).is_none());
        assert!(ours.wrap(&kernel(-1, 8)).is_none());
    }

    #[test]
    fn malformed_handles_are_refused() {
        let ours = ExportId::new(7, &kernel(1, 8));
        let good = ours.wrap(&kernel(1, 8)).unwrap();
        for len in 0..=HEADER_BYTES {
            let cut = Handle::new(&good.as_bytes()[..len]);
            assert_eq!(ours.unwrap(&cut), Err(Error::InvalidArgument));
        }
        let mut version = good.as_bytes().to_vec();
        version[0] = 2;
        assert_eq!(ours.unwrap(&Handle::new(&version)), Err(Error::InvalidArgument));
        assert_eq!(ours.unwrap(&Handle::new(&[VERSION; 65])), Err(Error::InvalidArgument));
    }
}

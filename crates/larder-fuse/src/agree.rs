//! The negotiation with the kernel when a mount begins (INIT), which holds for the life of the
//! mount.
//!
//! Asked for, where the kernel offers it:
//! - `DO_READDIRPLUS` without `READDIRPLUS_AUTO`: the adaptive mode stops asking for attributes
//!   after the first part of a listing, which costs `ls -l` one lookup for each further name.
//! - `ATOMIC_O_TRUNC`: `O_TRUNC` comes with the open, not as a setattr after it.
//! - `PARALLEL_DIROPS`, `ASYNC_READ`, `ASYNC_DIO`, `BIG_WRITES`, `MAX_PAGES`: more and larger
//!   requests at a time. `CACHE_SYMLINKS`: a target is asked for once per inode and time to live.
//! - `DIRECT_IO_ALLOW_MMAP`: a file that is served directly (beside a passthrough open) can be
//!   mapped.
//! - `PASSTHROUGH`: the kernel reads and writes local files by itself.
//! - `HAS_RESEND`: requests that a process had not answered when it died are sent to the next one.
//! - `OVER_IO_URING`, if the mount is to use it.
//! - `POSIX_LOCKS`, `FLOCK_LOCKS`, if the mount passes locks on: otherwise the kernel keeps them,
//!   for this machine, whichever process serves, and at no cost.
//!
//! Not asked for, and why:
//! - `AUTO_INVAL_DATA`: the kernel would drop all pages when the modification time changed, even
//!   through our own writes, and ask for attributes before reads. `EXPLICIT_INVAL_DATA`: then a
//!   file that grew on the server would show zeros from the tail of its last page until our
//!   invalidation arrives. So the kernel drops pages when the size changed, and the file system
//!   says when else to drop them (`DataPath::Cached`, `Kernel::invalidate`).
//! - `WRITEBACK_CACHE`: it excludes passthrough, and hides writes from the file system.
//! - `HANDLE_KILLPRIV` and `_V2`: whatever writes to a set-uid file without the file system
//!   (passthrough) must clear the bit, and that is the kernel, by a setattr. This costs nothing on
//!   other files, except on a mount with extended attributes, where the kernel asks for
//!   `security.capability` before each write.
//! - `POSIX_ACL`: we carry no access control lists; without the flag the kernel checks mode bits,
//!   and the server's own decision is asked for at open and lookup.
//! - `EXPORT_SUPPORT`: the file system has no lookup of `.`. Use larder's own NFS server.
//! - `DONT_MASK`: the kernel has applied the umask to the mode that we get.
//! - `SUBMOUNTS`: a server's file systems show as one, as the NFS mount protocol gives them.
//! - `NO_OPEN_SUPPORT`, `NO_OPENDIR_SUPPORT` (the kernel stops sending opens once one is refused):
//!   an open is where freshness and the server's rights are checked.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::abi::{self, InitIn, InitOut, init};
use crate::options::MountOptions;

/// Requests without a waiting process (readahead) that the kernel has in flight at most, and the
/// number from which it considers the mount congested. Enough for a window of 1 MiB requests on a
/// long fat link.
const BACKGROUND_MAX: u16 = 128;
const CONGESTED_FROM: u16 = 96;

const PAGE_BYTES: u32 = 4096;

/// Without these the mount would not behave as it should.
const NEEDED: [(u64, &str); 3] = [
    (init::ATOMIC_O_TRUNC, "ATOMIC_O_TRUNC"),
    (init::DO_READDIRPLUS, "DO_READDIRPLUS"),
    (init::PARALLEL_DIROPS, "PARALLEL_DIROPS"),
];

const WANTED: u64 = init::ASYNC_READ
    | init::ASYNC_DIO
    | init::BIG_WRITES
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::DIRECT_IO_ALLOW_MMAP
    | init::HAS_RESEND
    | init::INIT_EXT;

/// Locks of fcntl(2) and flock(2) come to us: both, or neither.
const LOCKS: u64 = init::POSIX_LOCKS | init::FLOCK_LOCKS;

/// The result, which every process that serves the mount must know. The kernel negotiates only
/// once.
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Agreed {
    flags: u64,
    /// The kernel's minor version, or ours if that is lower.
    minor: u32,
    /// Most bytes of a read or a write.
    pub(crate) io_bytes_max: u32,
    /// Whether files for passthrough were tried, and the kernel took them.
    passthrough: u32,
    padding: u32,
}

impl Agreed {
    /// The features to use, of those that the kernel offers, and the reply that selects them.
    /// `uring`: ask for requests over io_uring; `stack_depth`: how deep file systems may be
    /// stacked, 0: no passthrough.
    ///
    /// # Errors
    /// What the kernel lacks.
    pub(crate) fn on(
        offer: &InitIn,
        options: &MountOptions,
        uring: bool,
        stack_depth: u32,
    ) -> Result<(Agreed, InitOut), String> {
        if offer.major != abi::MAJOR || offer.minor < abi::MINOR_MIN {
            let InitIn { major, minor, .. } = offer;
            return Err(format!(
                "it speaks version {major}.{minor} of FUSE; 7.{} (Linux 5.4) is needed",
                abi::MINOR_MIN
            ));
        }
        let offered = u64::from(offer.flags) | (u64::from(offer.flags2) << 32);
        if let Some((_, name)) = NEEDED.iter().find(|(flag, _)| offered & flag == 0) {
            return Err(format!("it lacks FUSE_{name}"));
        }
        let mut flags = NEEDED.iter().fold(WANTED, |flags, (flag, _)| flags | flag);
        if stack_depth > 0 {
            flags |= init::PASSTHROUGH;
        }
        if uring {
            flags |= init::OVER_IO_URING;
        }
        if options.pass_locks {
            flags |= LOCKS;
        }
        flags &= offered;
        if uring && flags & init::OVER_IO_URING == 0 {
            return Err("it has no FUSE over io_uring".to_owned());
        }
        let minor = offer.minor.min(abi::MINOR);
        let pages = options.io_bytes_max.div_ceil(PAGE_BYTES).min(u32::from(u16::MAX));
        let out = InitOut {
            major: abi::MAJOR,
            minor,
            max_readahead: offer.max_readahead,
            flags: flags as u32,
            max_background: BACKGROUND_MAX,
            congestion_threshold: CONGESTED_FROM,
            max_write: options.io_bytes_max,
            time_gran: 1,
            max_pages: pages as u16,
            flags2: (flags >> 32) as u32,
            max_stack_depth: if flags & init::PASSTHROUGH == 0 { 0 } else { stack_depth },
            ..InitOut::default()
        };
        let io_bytes_max = options.io_bytes_max;
        Ok((Agreed { flags, minor, io_bytes_max, passthrough: 0, padding: 0 }, out))
    }

    /// Whether passthrough may be tried.
    pub(crate) fn offers_passthrough(&self) -> bool {
        self.flags & init::PASSTHROUGH != 0
    }

    /// Whether passthrough works.
    pub(crate) fn passthrough(&self) -> bool {
        self.passthrough != 0
    }

    /// It was tried.
    pub(crate) fn set_passthrough(&mut self, works: bool) {
        self.passthrough = u32::from(works);
    }

    /// Whether the kernel can be told to distrust all names.
    pub(crate) fn epochs(&self) -> bool {
        self.minor >= abi::EPOCHS_SINCE
    }

    /// Whether locks come to us.
    pub(crate) fn locks(&self) -> bool {
        self.flags & LOCKS == LOCKS
    }

    /// Whether requests come over io_uring.
    pub(crate) fn uring(&self) -> bool {
        self.flags & init::OVER_IO_URING != 0
    }

    /// Whether the kernel sends unanswered requests once more.
    pub(crate) fn resend(&self) -> bool {
        self.flags & init::HAS_RESEND != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(minor: u32, flags: u64) -> InitIn {
        let (flags, flags2) = (flags as u32, (flags >> 32) as u32);
        InitIn { major: 7, minor, max_readahead: 131_072, flags, flags2, ..InitIn::default() }
    }

    #[test]
    fn what_the_kernel_has_is_used_and_no_more() {
        let options = MountOptions::new("x");
        let (agreed, out) = Agreed::on(&offer(45, u64::MAX), &options, false, 1).unwrap();
        assert!(agreed.offers_passthrough() && agreed.resend() && !agreed.uring());
        assert_eq!((out.minor, out.max_pages, out.max_stack_depth), (45, 256, 1));
        let chosen = u64::from(out.flags) | (u64::from(out.flags2) << 32);
        assert_eq!(
            chosen & (1 << 16 | 1 << 12 | 1 << 20),
            0,
            "neither writeback, auto_inval nor ACLs"
        );

        let (agreed, out) = Agreed::on(&offer(99, u64::MAX), &options, true, 0).unwrap();
        assert!(agreed.uring() && !agreed.offers_passthrough());
        assert_eq!((out.minor, out.max_stack_depth), (abi::MINOR, 0));

        assert!(!agreed.locks(), "the kernel keeps them");
        let passing = MountOptions { pass_locks: true, ..options.clone() };
        let (agreed, out) = Agreed::on(&offer(45, u64::MAX), &passing, false, 1).unwrap();
        assert!(agreed.locks());
        assert_eq!(u64::from(out.flags) & LOCKS, LOCKS);

        let old = NEEDED.iter().fold(0, |flags, (flag, _)| flags | flag);
        let (agreed, out) = Agreed::on(&offer(31, old), &options, false, 1).unwrap();
        assert!(!agreed.offers_passthrough() && !agreed.resend());
        assert_eq!((out.flags2, out.max_stack_depth), (0, 0));
    }

    #[test]
    fn what_is_missing_is_said() {
        let options = MountOptions::new("x");
        let refused = |offer, uring| Agreed::on(&offer, &options, uring, 0).unwrap_err();
        assert!(refused(offer(23, u64::MAX), false).contains("7.23"));
        assert!(refused(offer(45, 0), false).contains("ATOMIC_O_TRUNC"));
        assert!(refused(offer(45, !init::OVER_IO_URING), true).contains("io_uring"));
    }
}

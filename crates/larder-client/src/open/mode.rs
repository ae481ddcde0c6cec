//! The I/O mode of an open file: the path that its data takes. [`mode`] alone decides it.
//!
//! Facts about the kernel (measured on 6.18): a passthrough open beside a page-cached open of the
//! same inode fails with EIO, beside a direct one it works, and one inode takes one local file at a
//! time. A mode cannot be changed while the file is open. A direct open cannot be mapped shared
//! beside a passthrough one. A mapping of a passthrough file holds the local file alone: the kernel
//! releases the open file at the last close(2), and tells nobody of what is stored after that.
//!
//! Facts about larder: what the kernel wrote itself is found only by comparing the whole local
//! file, at each close and fsync. A write that passes through the daemon is known exactly, and
//! costs a request. So the kernel itself writes files that are short when they are opened; not
//! large files that are changed in place, nor files that the process can map to write them, which
//! it opens for reading, too: what it stored after its close would be lost. If locks are passed to
//! the server, the kernel writes no file itself unless it has to: a process that locks a file must
//! see what others wrote under their locks.

use larder_vfs::OpenFlags;

/// Up to this size the kernel itself may write a file that was not truncated to nothing: comparing
/// it costs about as much as one request.
pub(crate) const BYPASSED_BYTES_MAX: u64 = 256 << 10;

/// Up to this size a file is read through the kernel's page cache, if the pages there belong to the
/// present version: passing it the local file costs more calls than reading it again, should the
/// pages be gone.
pub(crate) const PAGES_BYTES_MAX: u64 = 64 << 10;

/// The path that an open file's data takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The kernel reads the local file itself.
    Passthrough = 1,
    /// The same, and the kernel may write it.
    Bypass,
    /// Through the kernel's page cache; a read of what is not there, and each write, is a request.
    Cached,
    /// Each read and each write is a request.
    Direct,
}

impl Mode {
    /// The mode with this number.
    pub(crate) fn of(code: u8) -> Option<Mode> {
        let all = [Mode::Passthrough, Mode::Bypass, Mode::Cached, Mode::Direct];
        all.into_iter().find(|mode| *mode as u8 == code)
    }

    /// Whether the kernel gets the local file.
    pub(crate) fn passes_through(self) -> bool {
        matches!(self, Mode::Passthrough | Mode::Bypass)
    }
}

/// A file that is being opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Case {
    pub(crate) flags: OpenFlags,
    /// Every write through this open must be at the server when it returns.
    pub(crate) synchronous: bool,
    /// The kernel accepts local files, the cache keeps them, and nothing prevents the use of this
    /// one.
    pub(crate) local_file: bool,
    /// Size in bytes, with local changes.
    pub(crate) size: u64,
    /// Programs sync files of this directory again and again while they write them.
    pub(crate) synced_here: bool,
    /// Locks are passed on to the server: a process that locks a file must see what others wrote
    /// into it in the meantime, and a file that the kernel writes itself cannot be updated.
    pub(crate) locks_passed: bool,
    /// Open files of this inode: some are passthrough (or bypass).
    pub(crate) passthrough: bool,
    /// Some are bypass.
    pub(crate) bypass: bool,
    /// Some are page-cached.
    pub(crate) cached: bool,
    /// The pages that they see are of another version.
    pub(crate) other_pages: bool,
}

/// The mode of a new open file.
pub(crate) fn mode(case: &Case) -> Mode {
    // The kernel would append where it believes the end of the file to be, but only the client
    // knows where the end is.
    let appends = case.flags.write && case.flags.append;
    let may_pass = case.local_file && !case.cached && !case.flags.direct;
    if may_pass && !case.flags.write {
        // No file of the disk is opened for a reader whose bytes are all in memory.
        let pages_serve = !case.other_pages && case.size <= PAGES_BYTES_MAX && !case.passthrough;
        if pages_serve { Mode::Cached } else { Mode::Passthrough }
    } else if may_pass && !case.synchronous && may_be_bypassed(case) {
        Mode::Bypass
    } else if case.flags.direct || appends || case.passthrough || (case.cached && case.other_pages)
    {
        Mode::Direct
    } else {
        Mode::Cached
    }
}

/// Whether the kernel should write the local file itself, if it can.
fn may_be_bypassed(case: &Case) -> bool {
    let flags = &case.flags;
    let is_mappable = flags.read;
    let is_short = case.size <= BYPASSED_BYTES_MAX;
    let suits = !is_mappable && is_short && !case.synced_here && !case.locks_passed;
    // Beside a passthrough open the choice is page-cached or direct; a process that may map the
    // file needs page-cached.
    suits || case.bypass || (case.passthrough && flags.read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{Bypass, Cached, Direct, Passthrough};

    const READ: OpenFlags = OpenFlags::READ;
    const WRITE: OpenFlags = OpenFlags::WRITE;
    const APPEND: OpenFlags = OpenFlags { append: true, ..WRITE };
    const UPDATE: OpenFlags = OpenFlags::READ_WRITE;
    const ANEW: OpenFlags = OpenFlags { truncate: true, ..UPDATE };
    const NEW: OpenFlags = OpenFlags { exclusive: true, ..UPDATE };
    const SHORT: u64 = BYPASSED_BYTES_MAX;

    fn case(flags: OpenFlags, size: u64) -> Case {
        Case {
            flags,
            synchronous: false,
            local_file: true,
            size,
            synced_here: false,
            locks_passed: false,
            passthrough: false,
            bypass: false,
            cached: false,
            other_pages: false,
        }
    }

    /// (flags, size, mode without other opens, beside a passthrough open, beside a bypass, beside a
    /// page-cached open)
    #[test]
    fn the_mode_of_an_open_is_that_of_the_table() {
        for (flags, size, modes) in [
            (READ, PAGES_BYTES_MAX, [Cached, Passthrough, Passthrough, Cached]),
            (READ, PAGES_BYTES_MAX + 1, [Passthrough, Passthrough, Passthrough, Cached]),
            (READ, SHORT, [Passthrough, Passthrough, Passthrough, Cached]),
            (READ, SHORT + 1, [Passthrough, Passthrough, Passthrough, Cached]),
            (WRITE, SHORT, [Bypass, Bypass, Bypass, Cached]),
            (WRITE, SHORT + 1, [Cached, Direct, Bypass, Cached]),
            (APPEND, SHORT, [Bypass, Bypass, Bypass, Direct]),
            (APPEND, SHORT + 1, [Direct, Direct, Bypass, Direct]),
            (UPDATE, 0, [Cached, Bypass, Bypass, Cached]),
            (UPDATE, SHORT + 1, [Cached, Bypass, Bypass, Cached]),
            (ANEW, 0, [Cached, Bypass, Bypass, Cached]),
            (NEW, 0, [Cached, Bypass, Bypass, Cached]),
        ] {
            let alone = case(flags, size);
            let beside = [
                alone,
                Case { passthrough: true, ..alone },
                Case { passthrough: true, bypass: true, ..alone },
                Case { cached: true, ..alone },
            ];
            assert_eq!(beside.map(|case| mode(&case)), modes, "{flags:?} {size}");
        }
    }

    #[test]
    fn a_short_file_is_read_through_pages_only_if_they_are_of_its_version() {
        for size in [0, 1, PAGES_BYTES_MAX] {
            assert_eq!(mode(&case(READ, size)), Cached);
            assert_eq!(mode(&Case { other_pages: true, ..case(READ, size) }), Passthrough);
        }
    }

    #[test]
    fn without_a_local_file_opens_are_page_cached_unless_pages_or_others_forbid_it() {
        for flags in [READ, WRITE, UPDATE, ANEW] {
            let alone = Case { local_file: false, ..case(flags, 0) };
            assert_eq!(mode(&alone), Cached);
            assert_eq!(mode(&Case { passthrough: true, ..alone }), Direct);
            assert_eq!(mode(&Case { cached: true, ..alone }), Cached);
            assert_eq!(mode(&Case { cached: true, other_pages: true, ..alone }), Direct);
        }
    }

    #[test]
    fn what_must_be_at_the_server_at_once_or_is_synced_again_and_again_is_not_bypassed() {
        let synchronous = Case { synchronous: true, ..case(WRITE, 0) };
        assert_eq!(mode(&synchronous), Cached);
        assert_eq!(mode(&Case { passthrough: true, bypass: true, ..synchronous }), Direct);
        assert_eq!(mode(&Case { synced_here: true, ..case(WRITE, 0) }), Cached);
        assert_eq!(mode(&Case { synced_here: true, ..case(READ, SHORT) }), Passthrough);
        assert_eq!(mode(&case(OpenFlags { direct: true, ..WRITE }, 0)), Direct);
        assert_eq!(mode(&case(OpenFlags { direct: true, ..READ }, 0)), Direct);
    }

    #[test]
    fn what_others_may_write_under_locks_is_not_bypassed() {
        for (flags, wanted) in
            [(READ, Cached), (WRITE, Cached), (APPEND, Direct), (ANEW, Cached), (NEW, Cached)]
        {
            let alone = Case { locks_passed: true, ..case(flags, 0) };
            assert_eq!(mode(&alone), wanted, "{flags:?}");
        }
        // A direct open could not be mapped to be written.
        let beside = Case { locks_passed: true, passthrough: true, ..case(UPDATE, SHORT + 1) };
        assert_eq!(mode(&beside), Bypass);
    }

    /// A mode that the kernel refuses is never returned, whatever else is open.
    #[test]
    fn no_mode_meets_one_that_the_kernel_refuses_beside_it() {
        for bits in 0..1u32 << 13 {
            let bit = |at: u32| bits >> at & 1 != 0;
            let flags = OpenFlags {
                read: bit(0),
                write: bit(1),
                truncate: bit(2),
                direct: bit(3),
                exclusive: bit(4),
                ..OpenFlags::default()
            };
            let case = Case {
                flags,
                synchronous: bit(5),
                local_file: bit(6),
                size: if bit(7) { SHORT } else { SHORT + 1 },
                synced_here: bit(8),
                locks_passed: bit(12),
                passthrough: bit(9),
                bypass: bit(9) && bit(10),
                cached: !bit(9) && bit(10),
                other_pages: bit(11),
            };
            let found = mode(&case);
            assert!(!(found.passes_through() && case.cached), "{case:?}");
            assert!(!(found == Cached && case.passthrough), "{case:?}");
            assert!(found != Bypass || flags.write, "{case:?}");
            assert!(!found.passes_through() || case.local_file, "{case:?}");
        }
    }
}

//! What the page cache holds of a file (`cachestat(2)`, Linux 6.5), so that a measurement can prove
//! its initial state.
//!
//! Neither `rustix` nor `libc` wraps the call, so this module makes it by number.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::{Errno, Result};

/// `cachestat(2)`; the same number on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range`. A length of 0 means to the end of the file.
#[repr(C)]
#[derive(Default)]
struct Range {
    offset: u64,
    length: u64,
}

/// `struct cachestat`, in pages.
#[repr(C)]
#[derive(Default)]
struct Counts {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Bytes of the open file `fd` that the page cache holds, in whole pages. Reads nothing in.
///
/// # Errors
/// `ENOSYS` before Linux 6.5; `EOPNOTSUPP` for hugetlbfs.
pub fn resident_bytes(fd: impl AsFd) -> Result<u64> {
    let (range, mut counts) = (Range::default(), Counts::default());
    // SAFETY: both structures have the kernel's layout and outlive the call, which writes `counts`
    // and nothing else.
    let status = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            fd.as_fd().as_raw_fd(),
            &raw const range,
            &raw mut counts,
            0_u32,
        )
    };
    if status != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(counts.cached * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_was_written_is_resident_until_it_is_dropped() {
        let mut file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.write_all(&[1; 100_000]).unwrap();
        // Once the file is on the disk, the kernel may drop it on another process's demand.
        assert!(resident_bytes(&file).unwrap() >= 100_000);
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert_eq!(resident_bytes(&file).unwrap(), 0);
    }
}

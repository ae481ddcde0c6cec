//! Memory that the kernel copies to or from without allocating a page.
//!
//! While the kernel copies a FUSE request into a worker, or an answer out of it, the worker may be
//! killed. A process that was killed allocates no page any more: the kernel then fails the request
//! with EIO to its caller, and the next worker does not get it. So such memory was written to
//! before. Zeros would not do: the machine allocates a page of them when it is first used.

/// Bytes to be overwritten, in pages that are there. All are 255.
pub fn resident_bytes(len: usize) -> Vec<u8> {
    vec![u8::MAX; len]
}

/// Words to be overwritten, in pages that are there: structures of 8 bytes are aligned in them. All
/// bits are set.
pub fn resident_words(len: usize) -> Vec<u64> {
    vec![u64::MAX; len]
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    /// The kernel's word about a page of ours, see proc_pid_pagemap(5).
    fn is_present(address: usize) -> bool {
        let mut entry = [0; 8];
        let of_page = (address / 4096 * 8) as u64;
        File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut entry, of_page).unwrap();
        u64::from_ne_bytes(entry) >> 63 == 1
    }

    fn are_present(start: *const u8, bytes: usize) -> bool {
        (0..bytes).step_by(4096).all(|at| is_present(start as usize + at))
    }

    #[test]
    fn what_the_kernel_copies_is_in_pages_that_are_there() {
        let (bytes, words) = (resident_bytes((1 << 20) + 77), resident_words((1 << 17) + 512));
        assert!(are_present(bytes.as_ptr(), bytes.len()));
        assert!(are_present(words.as_ptr().cast(), 8 * words.len()));
        // More than any allocator keeps of what was used before.
        let unused = Vec::<u8>::with_capacity(64 << 20);
        assert!(!is_present(unused.as_ptr() as usize + (32 << 20)), "it can be told");
    }
}

//! Memory of this process.

/// Gives memory that was freed back to the machine. The C library keeps it for later otherwise: after a walk
/// over a million files a hundred megabytes. Takes some milliseconds; to be called after much was freed.
#[allow(unsafe_code)]
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) may be called at any time from any thread; it takes a number and touches free
    // memory alone.
    unsafe {
        libc::malloc_trim(0);
    }
}

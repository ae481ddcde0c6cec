//! Descriptors that a service manager passed to this process at its start (sd_listen_fds(3)).

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Takes them, with the names that they have there. A second call gets none.
pub fn descriptors() -> Vec<(OwnedFd, String)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::AcqRel) {
        return Vec::new();
    }
    match sd_notify::listen_fds_with_names() {
        Ok(given) => given.map(|(fd, name)| (own(fd), name)).collect(),
        Err(error) => {
            tracing::warn!(%error, "what the service manager gave is not understood");
            Vec::new()
        }
    }
}

#[allow(unsafe_code)]
fn own(fd: i32) -> OwnedFd {
    // SAFETY: the service manager opened it for this process (`LISTEN_PID` is ours) before it
    // began, so nothing else here owns it, and it is taken once.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

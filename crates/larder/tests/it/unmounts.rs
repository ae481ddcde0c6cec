//! Unmounting on a busy machine: a process that had a file open may not have closed it yet, and the
//! disk, on which the daemon's cache is closed, may take longer than the command waits.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::harness::{Mount, eventually};

/// How many measurements the machine may spoil.
pub(crate) const TRIES: usize = 5;

/// Whether a mount is unmounted without a complaint, in the promised time.
pub(crate) fn is_unmounted_in_time(mount: &Mount) -> bool {
    let begin = Instant::now();
    let unmounted = mount.larder().arg("umount").arg(mount.path("")).output().unwrap();
    println!("{unmounted:?} after {:?}", begin.elapsed());
    unmounted.status.success() && begin.elapsed() < Duration::from_secs(5)
}

/// Unmounts a mount that we no longer use, which must succeed. A process that another test is just
/// starting has our earlier open files until it runs its program.
pub(crate) fn when_unused(mountpoint: &Path, mut unmount: impl FnMut() -> Output) {
    eventually("nobody uses it", || {
        let Output { status, stderr, .. } = unmount();
        let said = String::from_utf8_lossy(&stderr);
        if said.contains("is unmounted, but the daemon did not answer") {
            eventually("its daemon ends", || processes_of(mountpoint).is_empty());
            return true;
        }
        let is_used = ["in use", "busy"].iter().any(|word| said.contains(word));
        assert!(status.success() || is_used, "{status}: {said}");
        status.success()
    });
}

/// Processes that were started with this path, as pgrep(1) lists them: including a mount's daemon.
pub(crate) fn processes_of(path: &Path) -> Vec<u8> {
    Command::new("pgrep").arg("-f").arg(path).output().unwrap().stdout
}

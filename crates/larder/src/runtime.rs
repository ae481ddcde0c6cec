//! The runtime of a process that serves: mounts, exports, disks, metadata servers.

use anyhow::{Context as _, Result};
use tokio::runtime::{Builder, Runtime};

/// Starts one with a thread for each CPU. What the process frees is returned to the machine from
/// now on.
///
/// # Errors
/// If no thread can be started.
pub(crate) fn start() -> Result<Runtime> {
    build(&mut Builder::new_multi_thread())
}

/// [`start`] for a process that stores data: requests use the store on the threads that read them,
/// and one that waits for the medium must not delay the others. So there are two for each CPU.
///
/// # Errors
/// If no thread can be started.
pub(crate) fn start_storing() -> Result<Runtime> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from) * 2;
    build(Builder::new_multi_thread().worker_threads(threads.max(4)))
}

fn build(builder: &mut Builder) -> Result<Runtime> {
    larder_io::allocator::return_what_is_freed();
    builder.enable_all().build().context("cannot start the runtime")
}

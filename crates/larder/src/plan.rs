//! The source, options and mountpoint of a mount.

use std::path::PathBuf;

use crate::backend::Backend;

/// The source and the mountpoint, with all options.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) back: Backend,
    /// Where, without symbolic links.
    pub(crate) mountpoint: PathBuf,
}

impl Plan {
    /// Whether another process continues the mount if the one that serves it dies. What that
    /// process must know is in the cache on disk.
    pub(crate) fn survives(&self) -> bool {
        let front_door = self.back.options.front_door;
        let uring = front_door.transport == larder_fuse::Transport::Uring;
        self.back.cache.is_some() && !uring && front_door.survive.unwrap_or(true)
    }
}

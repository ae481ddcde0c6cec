//! What a mount's cache holds.

use serde::{Deserialize, Serialize};

/// The cache of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CacheState {
    /// Its directory.
    pub(crate) dir: String,
    /// Bytes of file data held.
    pub(crate) bytes: u64,
    /// Most bytes that it may hold.
    pub(crate) bytes_max: u64,
    /// Files with data.
    pub(crate) files: u64,
    /// Most files that it may hold.
    pub(crate) files_max: u64,
    /// Commits of its index since the worker began.
    #[serde(default)]
    pub(crate) commits: u64,
    /// Writes to its session log since then.
    #[serde(default)]
    pub(crate) logged: u64,
    /// Lookups that found what was wanted.
    pub(crate) hits: u64,
    /// Looks that did not.
    pub(crate) misses: u64,
    /// Data not stored because of a limit or a fault.
    pub(crate) declined: u64,
    /// Files culled.
    pub(crate) culled: u64,
    /// Chunks forgotten because their checksum was wrong.
    pub(crate) bad_chunks: u64,
    /// Files in its directory with changes that the server refused after their writer was told
    /// that they are late.
    #[serde(default)]
    pub(crate) set_aside: u64,
    /// Whether it is out of use after a fault of its disk.
    pub(crate) failed: bool,
}

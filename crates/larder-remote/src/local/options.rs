//! Options of an export of a directory.

use std::time::Duration;

/// Which users' ids are not accepted as sent (exports(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// The superuser acts as the anonymous user, and so does the superuser's group.
    #[default]
    Root,
    /// Nobody's.
    None,
    /// Everybody acts as the anonymous user.
    All,
}

/// How a directory is exported.
#[derive(Clone, Copy, Debug)]
pub struct LocalOptions {
    /// Which users' ids are not accepted as sent.
    pub squash: Squash,
    /// The anonymous user.
    pub anonymous_uid: u32,
    /// The anonymous user's group.
    pub anonymous_gid: u32,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Whether changes of names and attributes are on the disk before they are answered, as the
    /// RFC asks (3.3.8 and others). Without it (exports(5): `async`) a crash of the server may
    /// undo what was answered. This does not concern data, for which the caller says how
    /// durable it is to be.
    pub durable_names: bool,
    /// Whether other processes of this machine change files of the directory. Where its file
    /// system has leases, they show for each change whether that can have happened; elsewhere
    /// this option decides.
    pub shared: bool,
    /// How long each operation of the disk takes, one after the other; zero: the disk's own time.
    /// For measuring what a server with a slow disk would do.
    pub disk_latency: Duration,
}

impl Default for LocalOptions {
    fn default() -> LocalOptions {
        LocalOptions {
            squash: Squash::Root,
            anonymous_uid: 65_534,
            anonymous_gid: 65_534,
            read_only: false,
            durable_names: true,
            shared: false,
            disk_latency: Duration::ZERO,
        }
    }
}

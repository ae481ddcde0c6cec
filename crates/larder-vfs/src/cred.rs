//! On whose behalf a call is made.

use std::sync::Arc;

/// The caller's identity, which travels with each call to the server (AUTH_SYS, RFC 5531, appendix A).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cred {
    /// Effective (file system) user id.
    pub uid: u32,
    /// Effective (file system) group id.
    pub gid: u32,
    /// Supplementary groups. A protocol that carries fewer takes the first ones.
    pub groups: Arc<[u32]>,
    /// Process that asks, or 0 where there is none. Never sent to a server.
    pub pid: u32,
}

impl Cred {
    /// The superuser, without supplementary groups.
    pub fn root() -> Cred {
        Cred::new(0, 0, &[])
    }

    /// A user with a primary group and supplementary groups.
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        Cred { uid, gid, groups: groups.into(), pid: 0 }
    }

    /// Whether `gid` is the caller's primary group or one of its supplementary ones.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

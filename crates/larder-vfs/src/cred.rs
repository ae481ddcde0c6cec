//! [`Cred`]: on whose behalf a call is made.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::Deadline;

/// The caller's identity, which travels with each call to the server (AUTH_SYS, RFC 5531, appendix
/// A).
///
/// Two are equal if they are the same process with the same rights; which request it is, whether it
/// is sent once more, and how long it may take, is not compared.
#[derive(Clone, Debug)]
pub struct Cred {
    /// Effective (file system) user id.
    pub uid: u32,
    /// Effective (file system) group id.
    pub gid: u32,
    /// Supplementary groups. A protocol that carries fewer uses the first ones.
    pub groups: Arc<[u32]>,
    /// Process that makes the call, or 0 if there is none. Never sent to a server.
    pub pid: u32,
    /// The front door sends this request again: an earlier attempt, by a process of ours that died
    /// before it answered, may have been carried out. Not part of the identity.
    pub retried: bool,
    /// Number of the request at the front door, the same when it is sent again; 0 if there is
    /// none. Not part of the identity.
    pub request: u64,
    /// When the call that this belongs to ends; `None` if no caller waits for it. Not part of the
    /// identity.
    pub deadline: Option<Deadline>,
}

impl PartialEq for Cred {
    fn eq(&self, other: &Cred) -> bool {
        let ids = |cred: &Cred| (cred.uid, cred.gid, cred.pid);
        ids(self) == ids(other) && self.groups == other.groups
    }
}

impl Eq for Cred {}

impl Hash for Cred {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.uid, self.gid, self.pid, &self.groups).hash(state);
    }
}

impl Cred {
    /// The superuser, without supplementary groups.
    pub fn root() -> Cred {
        Cred::new(0, 0, &[])
    }

    /// A user with a primary group and supplementary groups, who makes a request for the first
    /// time.
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        Cred { uid, gid, groups: groups.into(), pid: 0, retried: false, request: 0, deadline: None }
    }

    /// The same caller, for work that outlives the request: not a retry, and without a deadline.
    pub fn first_time(&self) -> Cred {
        Cred { retried: false, deadline: None, ..self.clone() }
    }

    /// The same caller, which waits until `deadline`.
    #[must_use]
    pub fn until(&self, deadline: Option<Deadline>) -> Cred {
        Cred { deadline, ..self.clone() }
    }

    /// Whether `gid` is the caller's primary group or one of its supplementary ones.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

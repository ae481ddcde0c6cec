//! A change of ours takes a name away, and what the name led to is thought to have lost it.
//!
//! What a name leads to is known before the server is asked, and the server may have to wait for
//! other clients first. One of them may have moved the object meanwhile: then it was something else
//! that lost its name, or nothing was replaced, and an object that goes on to live must not be
//! given up. A server that gives leases is asked about it. Others are not: they tell so little of a
//! directory's changes that each removal would cost another call.

use std::ffi::OsStr;
use std::sync::Arc;

use larder_vfs::{Cred, Error, Removal};

use crate::core::Core;
use crate::node::Node;

impl Core {
    /// The epoch of a directory in which a name of it leads to `child`.
    pub(super) fn seen_in(
        &self,
        dir: &Node,
        name: &OsStr,
        child: Option<&Arc<Node>>,
    ) -> Option<u64> {
        let held = self.name(dir, name)?;
        (held.child == child.map(|child| child.ino)).then_some(held.epoch)
    }

    /// A change of ours has taken a name away, which in the epoch `seen` led to `child`.
    pub(super) async fn lost_name(
        self: &Arc<Self>,
        cred: &Cred,
        child: &Arc<Node>,
        (dir, name): (&Arc<Node>, &OsStr),
        what: Removal,
        seen: Option<u64>,
    ) {
        let tells = self.remote.gives_leases() && !self.remote.limits().by_name;
        let is_certain = seen == Some(dir.state().known().epoch);
        if tells && !is_certain && !self.is_over(cred, child).await {
            return self.doubt([Some(child.clone())]);
        }
        self.keep_removal(child).await;
        self.unlinked(child, (dir, name), what);
    }

    /// Whether the server does not have a file any more.
    async fn is_over(self: &Arc<Self>, cred: &Cred, child: &Arc<Node>) -> bool {
        match self.revalidate(child, cred).await {
            Ok(()) => child.state().known().attr.nlink == 0,
            Err(error) => error == Error::Stale,
        }
    }
}

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
use crate::journal::Name;
use crate::node::Node;

/// What was known before the server was asked to take a name away.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// The epoch of the directory in which the name led to what is to lose it.
    epoch: Option<u64>,
    /// How many names that had.
    links: u32,
}

impl Core {
    /// What is known of a name of a directory that leads to `child`.
    pub(super) fn seen_in(&self, dir: &Node, name: &OsStr, child: Option<&Arc<Node>>) -> Seen {
        let held = self.name(dir, name);
        let is_it = |held: &Name| held.child == child.map(|child| child.ino);
        let links = child.map_or(0, |child| child.state().known().attr.nlink);
        Seen { epoch: held.filter(is_it).map(|held| held.epoch), links }
    }

    /// A change of ours has taken a name away, which led to `child` as was `seen` before.
    pub(super) async fn lost_name(
        self: &Arc<Self>,
        cred: &Cred,
        child: &Arc<Node>,
        (dir, name): (&Arc<Node>, &OsStr),
        what: Removal,
        seen: Seen,
    ) {
        let tells = self.remote.gives_leases() && !self.remote.limits().by_name;
        let is_certain = seen.epoch == Some(dir.state().known().epoch);
        if tells && !is_certain && !self.is_over(cred, child).await {
            return self.doubt([Some(child.clone())]);
        }
        self.keep_removal(child).await;
        self.unlinked(child, (dir, name), what, seen.links);
    }

    /// Whether the server does not have a file any more.
    pub(super) async fn is_over(self: &Arc<Self>, cred: &Cred, child: &Arc<Node>) -> bool {
        match self.revalidate(child, cred).await {
            Ok(()) => child.state().known().attr.nlink == 0,
            Err(error) => error == Error::Stale,
        }
    }
}

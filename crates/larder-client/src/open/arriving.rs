//! Opens that are on their way, beside calls that take a name from the file.
//!
//! A file that a process has open keeps its bytes when this machine removes its last name: it is
//! hidden ([`crate::names`]). A process that is opening the file counts as well, although the
//! server is still being asked. And an open that comes when a name is about to go waits for the end
//! of that: then the file is hidden or has another name, and the open succeeds, or it is gone, and
//! the kernel looks the name up again. The call that takes the name waits for no open, so the two
//! never wait for each other.

use std::sync::Arc;

use larder_vfs::{Cred, Result};

use crate::core::Core;
use crate::node::Node;

/// A process is opening the file.
pub(super) struct Arriving(Arc<Node>);

/// A name of the file is about to go.
pub(crate) struct NameLeaving(Arc<Node>);

impl NameLeaving {
    pub(crate) fn begin(node: &Arc<Node>) -> NameLeaving {
        node.state().opens_mut().begin_leaving();
        NameLeaving(Arc::clone(node))
    }
}

impl Drop for NameLeaving {
    fn drop(&mut self) {
        self.0.state().opens_mut().end_leaving();
        self.0.released.notify_waiters();
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.0.state().opens_mut().end_arriving();
    }
}

impl Core {
    /// An open begins, once no name of the file is about to go.
    ///
    /// # Errors
    /// [`larder_vfs::Error::TimedOut`] at the caller's deadline.
    pub(super) async fn arrive(&self, node: &Arc<Node>, cred: &Cred) -> Result<Arriving> {
        while !node.state().opens_mut().try_arrive() {
            self.before_deadline(cred, node.names_have_left()).await?;
        }
        Ok(Arriving(Arc::clone(node)))
    }

    /// An open has failed. If the file was hidden for it alone, its hidden name goes.
    pub(super) async fn after_failed_open(&self, node: &Arc<Node>, cred: &Cred) {
        let is_left = {
            let state = node.state();
            state.opens().is_unused() && state.hidden().is_left_to_release()
        };
        if is_left && let Err(error) = self.remove_hidden(node, cred).await {
            tracing::warn!(ino = node.ino.0, %error, "the hidden name of a file stays");
        }
    }
}

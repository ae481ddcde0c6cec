//! A file gets another name while its last one may be about to go.
//!
//! A file that has lost its last name gets none again (link(2): ENOENT). An open one has a hidden
//! name until its last release ([`super::hidden`]), so a server does not refuse that. A kernel lets
//! no file get a name while it loses one; exports do, and so the two wait for each other here.

use std::sync::Arc;

use larder_vfs::{Cred, Error, Result};

use crate::core::Core;
use crate::node::Node;

/// A call that asks for another name of a file, until its answer was processed.
pub(super) struct Linking<'a>(&'a Node);

impl Drop for Linking<'_> {
    fn drop(&mut self) {
        self.0.state().hidden_mut().end_link();
        self.0.released.notify_waiters();
    }
}

impl Core {
    /// A file is to get another name. Waits until no call decides any more whether it has one.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it has none; [`Error::TimedOut`] at the caller's deadline.
    pub(super) async fn begin_link<'a>(
        self: &Arc<Self>,
        cred: &Cred,
        node: &'a Arc<Node>,
    ) -> Result<Linking<'a>> {
        loop {
            let decided = node.until(|state| !state.hidden().is_undecided());
            self.before_deadline(cred, decided).await?;
            if node.state().hidden_mut().begin_link() {
                break;
            }
        }
        let linking = Linking(node);
        let has_none = || {
            let state = node.state();
            state.hidden().name().is_some() && state.attr().nlink == 0
        };
        if has_none() {
            // Another client may have given it one.
            self.revalidate(node, cred).await?;
        }
        if has_none() { Err(Error::NotFound) } else { Ok(linking) }
    }

    /// Waits for something on behalf of a caller.
    ///
    /// # Errors
    /// [`Error::TimedOut`] at the caller's deadline.
    pub(crate) async fn before_deadline<T>(
        &self,
        cred: &Cred,
        wait: impl Future<Output = T>,
    ) -> Result<T> {
        match cred.deadline {
            None => Ok(wait.await),
            Some(deadline) => {
                let waited = self.clock.timeout_at(deadline.at(), wait).await;
                waited.map_err(|_| Error::TimedOut)
            }
        }
    }
}

//! Unsent data that is acknowledged in this machine's memory, although other clients see the name
//! of its file: it is *retained*.
//!
//! The server is told of it before, and excludes other clients from the file. One that asks for it
//! waits until the data was sent ([`larder_vfs::Watcher::write_back`]). If this client is gone
//! before, the file counts as lost. Only files are retained that the server has empty, so nobody
//! finds a part of a file, or an older one.

use std::sync::Arc;

use larder_vfs::{Deadline, Result};

use super::schedule::{RETRY_AFTER, UNLIMITED};
use crate::core::Core;
use crate::node::Node;
use crate::options::Keeps;

impl Core {
    /// Whether the server has other clients wait for a file whose data is on this machine alone.
    pub(super) fn has_others_wait(&self) -> bool {
        self.options.keeps == Keeps::Alone
    }

    /// Has other clients wait for what is unsent of a file, which stays on this machine. Returns
    /// `false` if that cannot be had: then it must be sent.
    ///
    /// # Errors
    /// As [`Core::retain`].
    pub(super) async fn leave_alone(
        &self,
        node: &Arc<Node>,
        deadline: Option<Deadline>,
    ) -> Result<bool> {
        if self.remote.deferring().is_none() {
            return self.retain(node, deadline).await;
        }
        // The server knows nothing of a file whose name waits. If another client looks for it, its
        // bytes are put on this machine's disk before it gets there ([`Core::keep_before_names`]).
        Ok(!self.has_unsent(node) || self.may_keep_alone(node, &self.file(node), deadline).await)
    }

    /// Has the server take note that what is unsent of a file is here. Returns `false` if that
    /// cannot be had: then it must be sent.
    ///
    /// # Errors
    /// The server's, if it may have taken note or not.
    pub(super) async fn retain(
        &self,
        node: &Arc<Node>,
        deadline: Option<Deadline>,
    ) -> Result<bool> {
        if !self.has_unsent(node) {
            return Ok(true);
        }
        // What is being sent was asked for.
        let _transfer = node.transfer.begin(deadline).await?;
        let file = self.file(node);
        self.collect(node, &file).await?;
        if !self.has_unsent(node) {
            return Ok(true);
        }
        let may_be = {
            let state = node.state();
            !state.is_gone() && state.server_end() == 0
        };
        if !may_be || !self.may_keep_alone(node, &file, deadline).await {
            return Ok(false);
        }
        self.note_unfinished(node.ino, &mut node.state());
        let mut cred = self.writer(node);
        cred.deadline = deadline;
        self.remote.retain(&cred, &node.handle()?, file.size()).await
    }

    /// The server asks for a file of which nothing is unsent: it was not told that, or not in vain.
    pub(crate) async fn release_sent(&self, node: &Node) {
        if let Err(error) = self.release_retained(node, false).await {
            tracing::warn!(ino = node.ino.0, %error, "the server does not know that it has all");
        }
    }

    /// What somebody else waits for could not be sent: the engine tries again, although the class
    /// gives it no time.
    pub(crate) fn send_again(&self, node: &Node) {
        let age = node.state().unsent().age(self.options.unsent_age_max);
        if age == UNLIMITED && self.has_others_wait() {
            self.leave_unsent(node, RETRY_AFTER);
        }
    }

    /// What was retained of a file has been sent, or is kept. `by_others`: an earlier process may
    /// have retained it.
    ///
    /// # Errors
    /// The server's: it lets nobody see the file, and is to be told again.
    pub(super) async fn release_retained(&self, node: &Node, by_others: bool) -> Result<()> {
        if !self.has_others_wait() {
            return Ok(());
        }
        let mut classes = self.options.classes.all();
        let by_others = by_others && classes.any(|(_, it)| it.is_ok_and(|it| it.is_retained));
        if !by_others && !self.is_retained(node) {
            return Ok(());
        }
        let handle = node.handle()?;
        let cred = self.writer(node);
        self.remote.release(&cred, &handle, by_others).await
    }
}

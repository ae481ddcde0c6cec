//! What is sent before a process is told the time of a file that it writes.
//!
//! The server gives its own time to what it is sent. A process that asks for the time of a file
//! which it has written and not closed yet would be told this machine's time, and would take the
//! file for changed later on, as git does. So what is unsent of a short file is sent first, like
//! with the kernel's NFS client (`nfs_getattr` in `fs/nfs/inode.c`). As long as it is not written
//! again, its close then finds nothing to send.

use std::sync::Arc;

use larder_class::Level;
use larder_vfs::{Answer, Cred, Fresh, Ino};

use crate::core::Core;
use crate::node::Node;

/// Longest file for which a process waits in stat(2), in bytes.
const SIZE_MAX: u64 = 1 << 20;

impl Core {
    /// Attributes for a process that asks for them, not for the kernel itself.
    pub(crate) fn stat(self: &Arc<Self>, cred: &Cred, ino: Ino) -> Answer<Fresh> {
        let node = match self.node(ino) {
            Ok(node) if self.is_sent_before_stat(&node) => node,
            Ok(node) => return self.getattr_of(cred, node),
            Err(error) => return Answer::fail(error),
        };
        let (core, cred) = (self.clone(), self.caller(cred));
        Answer::later(async move {
            if let Err(error) = core.upload(&node, cred.deadline).await {
                // The close meets the same error, and reports it.
                tracing::debug!(ino = ino.0, %error, "not sent before its time is told");
            }
            core.getattr_of(&cred, node).wait().await
        })
    }

    /// Whether the file is short, has unsent bytes that a close would send, and was not sent for
    /// this reason again and again.
    fn is_sent_before_stat(&self, node: &Node) -> bool {
        if !node.state().has_unsent() || !self.remote.reachable() || self.is_kept_enough() {
            return false;
        }
        let open = self.open_files.of(node.ino);
        let mut writers = open.iter().filter(|(_, open)| open.flags.write).peekable();
        let is_written = writers.peek().is_some();
        let sends = |class: &larder_class::Class| class.promised.close >= Some(Level::Durable);
        if !is_written || !writers.all(|(_, open)| sends(&open.class())) {
            return false;
        }
        self.refresh_local_end(node);
        let mut state = node.state();
        let is_short = state.unsent().end().is_some_and(|end| end.size <= SIZE_MAX);
        is_short && state.unsent().given_time().is_none() && state.opens_mut().count_stat()
    }
}

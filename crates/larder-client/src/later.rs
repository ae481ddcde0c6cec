//! Write-back that nobody waits for.

use std::sync::Arc;
use std::time::Duration;

use larder_vfs::Error;

use crate::core::Core;
use crate::node::Node;

/// Time between attempts to write back what the server did not take.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(5);

impl Core {
    /// Tries again and again to write back what could not be sent when the file was closed, for as
    /// long as the server is out of reach. What it refuses then is set aside.
    pub(crate) fn retry_later(self: &Arc<Self>, node: &Arc<Node>) {
        self.retry_after(node, RETRY_AFTER);
    }

    /// The same, with the first try after `wait`.
    pub(crate) fn retry_after(self: &Arc<Self>, node: &Arc<Node>, mut wait: Duration) {
        let (core, node) = (self.clone(), node.clone());
        self.runtime.clone().spawn(async move {
            loop {
                tokio::time::sleep(std::mem::replace(&mut wait, RETRY_AFTER)).await;
                match core.upload(&node, core.deadline()).await {
                    Err(Error::TimedOut) => {}
                    // It is the next mount's to send.
                    Err(Error::Shutdown) => return,
                    Ok(()) => return tracing::debug!(ino = node.ino.0, "written back at last"),
                    // Their closes tell them, and try again.
                    Err(_) if core.is_written(&node) => return,
                    Err(error) => return core.set_aside(&node, error).await,
                }
            }
        });
    }
}

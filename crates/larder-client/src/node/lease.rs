//! Leases: while one holds, the client needs to ask nothing about its file.
//!
//! A lease comes with attributes, and is stored beside them in the node: they are fresh for as long
//! as it holds, and a change of ours that began and ended under it was the only one. When the
//! server withdraws it, or the connection is lost, the ordinary rules apply again: close-to-open
//! and timeouts. A directory's lease may be only a notice that comes after the change (SMB's
//! CHANGE_NOTIFY), so when it ends the names in the directory are not trusted, even if a later
//! description shows nothing new.

use larder_vfs::{Handle, Ino, LeaseHandled, Watcher};

use super::table::Node;
use crate::core::Core;

impl Core {
    /// The node of a handle, if there is one in memory.
    fn leased_node(&self, file: &Handle) -> Option<std::sync::Arc<Node>> {
        let no = self.cache.number_of(file.as_bytes())?;
        self.table.get(Ino(no.0))
    }

    /// Nothing that the lease vouched for counts any more.
    fn give_up_lease(&self, node: &Node) {
        tracing::debug!(ino = node.ino.0, "lease ended");
        let mut state = node.state();
        state.leasing_mut().end();
        state.withdraw(self.now());
        if state.is_directory() {
            state.forget_contents();
        }
        self.table.persist(node.ino, &mut state);
    }

    /// Has the kernel drop what it holds of a file, and waits until it has done so.
    async fn have_kernel_drop(&self, node: &Node) {
        let directory = {
            let mut state = node.state();
            self.drop_pages(node.ino, &mut state);
            state.is_directory()
        };
        let Some(kernel) = self.kernel.get() else { return };
        if directory {
            kernel.distrust_names();
        }
        let (tell, told) = tokio::sync::oneshot::channel();
        kernel.after(Box::new(move || {
            let _ = tell.send(());
        }));
        let _ = told.await;
    }
}

impl Watcher for Core {
    fn distrust<'a>(&'a self, file: &'a Handle) -> LeaseHandled<'a> {
        Box::pin(async move {
            if let Some(node) = self.leased_node(file) {
                self.give_up_lease(&node);
                self.have_kernel_drop(&node).await;
            }
        })
    }

    fn write_back<'a>(&'a self, file: &'a Handle) -> LeaseHandled<'a> {
        Box::pin(async move {
            let Some(node) = self.leased_node(file) else { return };
            if node.state().is_directory() {
                return self.keep_before_names().await;
            }
            if !self.has_unsent(&node) {
                return self.release_sent(&node).await;
            }
            if let Err(error) = self.upload(&node, self.deadline()).await {
                let ino = node.ino.0;
                tracing::warn!(ino, %error, "cannot write back before somebody else goes on");
                self.send_again(&node);
            }
            // The replies describe the file as it was before the other client continues.
            node.state().withdraw(self.now());
        })
    }

    fn locks_lost(&self, file: &Handle) {
        self.lose_locks(file);
    }
}

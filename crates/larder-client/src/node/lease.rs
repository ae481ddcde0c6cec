//! Leases: while one holds, nothing needs to be asked about its file.
//!
//! A lease comes with attributes, and stands beside them in the node: they are fresh for as long as
//! it holds, and a change of ours that began and ended under it was nobody else's. When the server
//! withdraws it, or the connection is lost, the ordinary rules apply again: close-to-open and
//! timeouts. A directory's lease may be no more than a notice that comes after the change (SMB's
//! CHANGE_NOTIFY), so when it ends the names in the directory are not believed, even if a later
//! description shows nothing new.

use std::future::Future;
use std::pin::Pin;

use larder_vfs::{Handle, Ino, Watcher};

use crate::core::Core;

impl Core {
    /// The lease on `node` has ended: sends what only we have, and gives up what was believed.
    async fn give_up_lease(&self, ino: Ino) {
        let Some(node) = self.table.get(ino) else { return };
        let directory = {
            let mut state = node.state();
            state.leasing_mut().end();
            state.distrust();
            if state.is_directory() {
                state.forget_contents();
            }
            self.table.persist(ino, &mut state);
            state.is_directory()
        };
        if let Err(error) = self.upload(&node, self.deadline()).await {
            tracing::warn!(ino = ino.0, %error, "cannot write back before somebody else goes on");
        }
        self.drop_pages(ino, &mut node.state());
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
    fn broken<'a>(&'a self, file: &'a Handle) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            if let Some(no) = self.cache.number_of(file.as_bytes()) {
                tracing::debug!(ino = no.0, "lease ended");
                self.give_up_lease(Ino(no.0)).await;
            }
        })
    }

    fn locks_lost(&self, file: &Handle) {
        self.lose_locks(file);
    }
}

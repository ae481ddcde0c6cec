//! Leases: while one holds, nothing needs to be asked about its file.
//!
//! A lease comes with attributes, and stands beside them in the node: they are fresh for as long as it
//! holds, and a change of ours that began and ended under it was nobody else's. When the server
//! withdraws it, or the connection is lost, the ordinary rules apply again: close-to-open and
//! timeouts. A directory's lease may be no more than a notice that comes after the change (SMB's
//! CHANGE_NOTIFY), so when it ends the names in the directory are not believed, even if a later
//! description shows nothing new.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use larder_vfs::{Cred, Handle, Ino, Lease, Watcher};

use super::state::Seen;
use super::table::Node;
use crate::core::Core;

impl Core {
    /// Whether asking for rights may bring a lease that we do not have.
    pub(crate) fn wants_lease(&self, node: &Node) -> bool {
        if !self.remote.gives_leases() || !self.remote.reachable() {
            return false;
        }
        node.state().leasing().is_wanted(self.now())
    }

    /// Asks for a lease on a directory, and does not wait for it.
    pub(crate) fn lease_later(self: &Arc<Self>, dir: &Arc<Node>, cred: &Cred) {
        if !self.wants_lease(dir) || dir.state().leasing_mut().begin_asking() {
            return;
        }
        let (core, dir, cred) = (self.clone(), dir.clone(), self.caller(cred));
        self.runtime.spawn(async move {
            let answer = core.ask_rights(&dir, &cred).await;
            dir.state().leasing_mut().end_asking();
            if let Err(error) = answer {
                tracing::debug!(ino = dir.ino.0, %error, "no lease on a directory");
            }
        });
    }

    /// Keeps a lease that came with attributes, unless those count for nothing; or remembers that the
    /// server gave none.
    pub(crate) fn take_lease(&self, node: &Node, seen: Seen, lease: Option<Lease>) {
        let now = self.now();
        let mut state = node.state();
        state.forget_old_rights(now);
        match lease {
            None => state.leasing_mut().refuse(now),
            Some(lease) if seen != Seen::Older => {
                if state.is_directory() && state.known().doubtful {
                    // Names from before the lease are not asked about again while it holds.
                    state.forget_contents();
                    self.table.persist(node.ino, &mut state);
                }
                state.leasing_mut().take(lease);
            }
            Some(_) => {}
        }
    }

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
        node.state().opens_mut().drop_pages();
        let Some(kernel) = self.kernel.get() else { return };
        kernel.invalidate(ino, false);
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
}

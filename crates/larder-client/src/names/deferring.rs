//! Names that are made on this machine first, and at the server later ([`larder_vfs::Deferring`]),
//! if the class of each name that a change touches allows it: close and fsync of such a class wait
//! for this machine's disk at most. Every other change goes to the server as usual.

use std::ffi::OsStr;
use std::sync::Arc;

use larder_cache::Keeping;
use larder_class::{Class, Level};
use larder_vfs::{Cred, Deferring, Ino, Remote, Result};

use crate::core::Core;
use crate::node::Node;

impl Core {
    /// The server for a change of these names, which may be answered here.
    pub(crate) fn server_of_names(&self, cred: &Cred, names: &[(&Node, &OsStr)]) -> &dyn Remote {
        match self.remote.deferring() {
            Some(here) if self.may_defer_names(cred, names) => here.names(),
            _ => &*self.remote,
        }
    }

    /// Whoever may answer here for a change of a file's attributes.
    pub(crate) fn deferring_attributes(&self, cred: &Cred, node: &Node) -> Option<&dyn Deferring> {
        self.remote.deferring().filter(|_| self.may_defer(&self.class_for(node, cred)))
    }

    /// Whether a change of these names need not be at the server when it is acknowledged.
    fn may_defer_names(&self, cred: &Cred, names: &[(&Node, &OsStr)]) -> bool {
        self.remote.deferring().is_some()
            && names.iter().all(|(dir, name)| self.may_defer(&self.class_at(dir, name, cred)))
    }

    /// Whether a file that is kept here may have another name before it is sent. Not one of a file
    /// that the server has: if this machine's disk were lost then, so were both.
    pub(crate) fn may_rename_unsent(
        &self,
        cred: &Cred,
        from: (&Node, &OsStr),
        to: (&Node, &OsStr),
    ) -> bool {
        let Some(here) = self.remote.deferring() else { return false };
        let waits = |node: Arc<Node>| {
            let name = node.handle().ok().and_then(|handle| here.awaited(&handle));
            name.is_some_and(|name| name.due.is_some())
        };
        self.may_defer_names(cred, &[from, to]) && self.child(to.0, to.1).is_none_or(waits)
    }

    fn may_defer(&self, class: &Class) -> bool {
        !self.options.sync && !class.is_synchronous() && class.promised.close <= Some(Level::Local)
    }

    /// The class of the file that has a name, or would have it.
    fn class_at(&self, dir: &Node, name: &OsStr, cred: &Cred) -> Arc<Class> {
        match self.child(dir, name) {
            Some(child) => self.class_for(&child, cred),
            None => self.class_of_name(dir, name, cred),
        }
    }

    /// What was made here is at the server within the time of its class.
    pub(crate) fn promise_name(&self, node: &Node, cred: &Cred) {
        let Some(here) = self.remote.deferring() else { return };
        let within = self.class_for(node, cred).durable_within();
        if let Ok(handle) = node.handle() {
            here.promise(&handle, within.unwrap_or(self.options.unsent_age_max));
        }
    }

    /// A file has lost a name, and what is kept of it may go: not before the former outlives a
    /// crash of the machine, else the name would come back without its bytes.
    pub(crate) async fn keep_removal(&self, node: &Node) {
        let Some(here) = self.remote.deferring() else { return };
        if self.file(node).keeping() != Keeping::Nothing
            && let Err(error) = here.keep().await
        {
            tracing::debug!(ino = node.ino.0, %error, "a removal is not kept on this disk");
        }
    }

    /// Changes of names are where the class of a directory wants them after an fsync.
    pub(crate) async fn sync_names(&self, cred: &Cred, dir: Ino) -> Result<()> {
        let class = self.class_for(&*self.node(dir)?, cred);
        match self.remote.deferring() {
            None => Ok(()),
            Some(here)
                if class.promised.fsync <= Some(Level::Local) && here.keep().await.is_ok() =>
            {
                Ok(())
            }
            Some(here) => here.settle(None).await,
        }
    }
}

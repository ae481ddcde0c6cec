//! Names that are made on this machine first, and at the server later ([`larder_vfs::Deferring`]),
//! if the class of each name that a change touches allows it: close and fsync of such a class wait
//! for this machine's disk at most. Every other change goes to the server as usual.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use larder_cache::Keeping;
use larder_class::{Class, Level};
use larder_vfs::{Cred, Deferring, Ino, Remote, Result};

use super::hiding::Ending;
use crate::core::Core;
use crate::node::Node;

impl Core {
    /// The server for a change of these names: the change may be answered on this machine.
    pub(crate) fn server_of_names(&self, cred: &Cred, names: &[(&Node, &OsStr)]) -> &dyn Remote {
        match self.remote.deferring() {
            Some(here) if self.may_defer_names(cred, names) => here.names(),
            _ => &*self.remote,
        }
    }

    /// The caller for a second attempt of a change of these names that the server did not answer,
    /// if this machine may answer for the server by now. The server may have made the change.
    pub(super) fn again_here<T>(
        &self,
        cred: &Cred,
        names: &[(&Node, &OsStr)],
        answer: &Result<T>,
    ) -> Option<Cred> {
        let is_unanswered = Ending::of(answer) == Ending::Unanswered;
        let is_here = is_unanswered && self.is_away() && self.may_defer_names(cred, names);
        is_here.then(|| Cred { retried: true, ..cred.clone() })
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

    /// By when, counted from now, the server must have another name of a file: the earlier one of
    /// what the classes of the file and of the name promise. `None`: before the call returns, with
    /// the file's bytes.
    pub(crate) fn link_within(
        &self,
        cred: &Cred,
        node: &Node,
        (dir, name): (&Node, &OsStr),
    ) -> Option<Duration> {
        let classes = [self.class_for(node, cred), self.class_at(dir, name, cred)];
        let may_wait = self.remote.deferring().is_some()
            && self.remote.limits().links
            && classes.iter().all(|class| self.may_defer(class));
        let ages =
            classes.iter().map(|class| self.age_in(class).unwrap_or(self.options.unsent_age_max));
        ages.min().filter(|_| may_wait)
    }

    /// The server for that.
    pub(crate) fn server_of_link(&self, within: Option<Duration>) -> &dyn Remote {
        let here = self.remote.deferring().filter(|_| within.is_some());
        here.map_or(&*self.remote, Deferring::names)
    }

    /// Ensures that another name of a file is at the server by then. Returns whether it is not
    /// there yet.
    pub(crate) fn promise_link(&self, dir: &Node, name: &OsStr, within: Duration) -> bool {
        let Some((here, dir)) = self.remote.deferring().zip(dir.handle().ok()) else {
            return false;
        };
        here.promise_link(&dir, name, within)
    }

    /// Whether a file whose unsent bytes are kept here may be renamed before they are sent. Not one
    /// of a file that the server has: if this machine's disk were lost then, so were both.
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
        // While the server is away, the replaced file is safe there: it is replaced only once the
        // bytes are sent.
        self.may_defer_names(cred, &[from, to])
            && (here.is_away() || self.child(to.0, to.1).is_none_or(waits))
    }

    /// Before a rename: sends the bytes to the place that the class of the new name demands.
    /// Returns whether the name had no deadline before and has one now.
    ///
    /// # Errors
    /// The server's error.
    pub(crate) async fn prepare_to_rename(
        &self,
        cred: &Cred,
        node: &Arc<Node>,
        from: (&Node, &OsStr),
        to: (&Node, &OsStr),
    ) -> Result<bool> {
        if !self.may_rename_unsent(cred, from, to) {
            self.send_kept(node).await?;
            return Ok(false);
        }
        self.keep_before_name(node).await;
        let (before, after) = (self.class_for(node, cred), self.class_at(to.0, to.1, cred));
        if self.file(node).is_in_memory() && !after.is_in_memory() {
            self.bring_to(node, after.promised.close, self.deadline()).await?;
            self.keep_closed(node, &after);
        }
        let goes = before.stays_here() && !after.stays_here();
        if goes {
            self.promise(node, &after);
        }
        Ok(goes)
    }

    fn may_defer(&self, class: &Class) -> bool {
        !self.options.sync
            && !class.is_synchronous()
            && (class.promised.close <= Some(Level::Local) || self.is_kept_enough())
    }

    /// The class of the file that has a name, or would have it.
    fn class_at(&self, dir: &Node, name: &OsStr, cred: &Cred) -> Arc<Class> {
        match self.child(dir, name) {
            Some(child) => self.class_for(&child, cred),
            None => self.class_of_name(dir, name, cred),
        }
    }

    /// Ensures that what was made here is at the server within the time of its class.
    pub(crate) fn promise_name(&self, node: &Node, cred: &Cred) {
        let Some(here) = self.remote.deferring() else { return };
        let class = self.class_for(node, cred);
        let within = self.age_in(&class);
        if let Ok(handle) = node.handle() {
            here.promise(&handle, within.unwrap_or(self.options.unsent_age_max));
        }
        if let Some(within) = class.local_within() {
            self.keep_names_within(within);
        }
    }

    /// A file has lost a name, and its kept bytes may be deleted, but not before the removal
    /// survives a crash of the machine: otherwise the name would come back without its bytes.
    pub(crate) async fn keep_removal(&self, node: &Node) {
        let Some(here) = self.remote.deferring() else { return };
        if self.file(node).keeping() != Keeping::Nothing
            && let Err(error) = here.keep().await
        {
            tracing::debug!(ino = node.ino.0, %error, "a removal is not kept on this disk");
        }
    }

    /// Makes changes of names as durable as the class of a directory requires after an fsync.
    pub(crate) async fn sync_names(&self, cred: &Cred, dir: Ino) -> Result<()> {
        let class = self.class_for(&*self.node(dir)?, cred);
        match self.remote.deferring() {
            None => Ok(()),
            Some(here)
                if (class.promised.fsync <= Some(Level::Local) || here.is_kept_enough())
                    && here.keep().await.is_ok() =>
            {
                Ok(())
            }
            Some(here) => here.replay(None).await,
        }
    }
}

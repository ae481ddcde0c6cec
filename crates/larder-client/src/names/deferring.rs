//! Names that are made on this machine first, and at the server later ([`larder_vfs::Deferring`]),
//! if the class of each name that a change touches allows it: close and fsync of such a class wait
//! for this machine's disk at most. Every other change goes to the server as usual.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use larder_class::{Class, Level};
use larder_vfs::{Cred, Deferred, Deferring, Handle, Ino, Remote, Result};

use super::hiding::Ending;
use crate::core::Core;
use crate::node::Node;

impl Core {
    /// The server for a change of these names: the change may be answered on this machine. To be
    /// called between [`Core::begin_change`] of the directories and its end.
    pub(crate) fn server_of_names(&self, cred: &Cred, names: &[(&Node, &OsStr)]) -> &dyn Remote {
        let Some(here) = self.remote.deferring() else { return &*self.remote };
        let class_at = |(dir, name): &(&Node, &OsStr)| self.class_at(dir, name, cred);
        let classes: Vec<_> = names.iter().map(class_at).collect();
        if !classes.iter().all(|class| self.may_defer(class)) {
            return &*self.remote;
        }
        self.owe_names(here, names, &classes);
        here.names()
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
        let here = self.remote.deferring()?;
        self.begin_owed_names(here).ok()?;
        self.may_defer(&self.class_for(node, cred)).then_some(here)
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
        let here = here.filter(|here| self.begin_owed_names(*here).is_ok());
        here.map_or(&*self.remote, Deferring::names)
    }

    /// Ensures that another name of a file is at the server by then. Returns whether it is not
    /// there yet.
    pub(crate) fn promise_link(
        &self,
        cred: &Cred,
        node: &Node,
        (dir, name): (&Node, &OsStr),
        within: Duration,
    ) -> bool {
        let Some((here, handle)) = self.remote.deferring().zip(dir.handle().ok()) else {
            return false;
        };
        let waits = here.promise_link(&handle, name, within);
        if waits {
            let classes = [self.class_for(node, cred), self.class_of_name(dir, name, cred)];
            self.owe_names(here, &[(dir, name)], &classes);
        }
        waits
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

    /// The root's node, which has the record of what fsyncs of directories are to bring to the
    /// server. To be called before anything is changed here: what waits at the first call was left
    /// by an earlier process.
    fn begin_owed_names(&self, here: &dyn Deferring) -> Result<Arc<Node>> {
        let root = self.node(Ino::ROOT)?;
        if !root.state().has_owed_names() {
            let left = here.deferred();
            let from_before = left.iter().filter_map(|left| self.promised_to(left)).max();
            root.state().begin_owed_names(from_before);
        }
        Ok(root)
    }

    /// What an fsync promises for a name that waits, by the class that its owner's files have
    /// there.
    fn promised_to(&self, left: &Deferred) -> Option<Level> {
        let node = |handle: &Handle| {
            let no = self.cache.number_of(handle.as_bytes())?;
            self.table.get(Ino(no.0))
        };
        let Some(dir) = left.dir.as_ref().and_then(node) else { return Some(Level::Archive) };
        let owner = node(&left.file).map(|file| {
            let state = file.state();
            Cred::new(state.known().attr.uid, state.known().attr.gid, &[])
        });
        let cred = owner.unwrap_or_else(Cred::root);
        self.class_of_name(&dir, &left.name, &cred).promised.fsync
    }

    /// Names that files of these classes have, get or lose are changed here.
    fn owe_names(&self, here: &dyn Deferring, names: &[(&Node, &OsStr)], classes: &[Arc<Class>]) {
        let promised = classes.iter().filter_map(|class| class.promised.fsync).max();
        // Without the root no fsync of a directory succeeds.
        if let Ok(root) = self.begin_owed_names(here) {
            let mut state = root.state();
            names.iter().for_each(|(dir, _)| state.owe_names(dir.ino, promised));
        }
    }

    /// Makes changes of names in a directory as durable as the strongest class requires after an
    /// fsync: the directory's own, or that of a name which was changed in it since they were last
    /// at the server.
    pub(crate) async fn sync_names(&self, cred: &Cred, dir: Ino) -> Result<()> {
        let node = self.node(dir)?;
        let Some(here) = self.remote.deferring() else { return Ok(()) };
        let root = self.begin_owed_names(here)?;
        let owed = root.state().owed_names(dir);
        // Only now: what is owed, and does not change any more, is known to the server of names.
        let is_quiet = match owed.is_anywhere() {
            false => !node.state().changing(),
            true => self.table.select(|node| node.state().changing()).is_empty(),
        };
        let promised = self.class_for(&node, cred).promised.fsync.max(owed.promised());
        let is_local = promised <= Some(Level::Local) || here.is_kept_enough();
        if is_local && here.keep().await.is_ok() {
            return Ok(());
        }
        here.replay(None).await?;
        root.state().names_are_at_server(dir, owed, is_quiet);
        Ok(())
    }
}

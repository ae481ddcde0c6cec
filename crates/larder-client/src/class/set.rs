//! Sets the class of a file or directory; the extended attributes that report classes.
//!
//! `user.larder.class` is the class that was set for the file itself; setting and removing it sets
//! the class. `user.larder.durability` reports how durable the file is, and cannot be set. Neither
//! is ever the server's.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_class::Class;
use larder_vfs::{Access, Cred, Error, Ino, OpenId, Result, SetXattr};

use super::raise::leaves_within;
use crate::client::Client;
use crate::core::{Core, blocking};
use crate::node::Node;
use crate::open::OpenFile;

/// Name of the extended attribute with a file's own class, without its prefix.
const CLASS: &str = "larder.class";
/// The same of how durable a file is.
const DURABILITY: &str = "larder.durability";

impl Client {
    /// Sets the class of a file, or of a directory for the files in it, or removes the class again:
    /// from the next open on. Open files that are to be more durable from now on are sent first.
    /// The record in the cache is durable on return; it is removed with the file, and with the
    /// cache.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such class; [`Error::NotPermitted`] if the caller
    /// is not the owner and the new class is weaker; [`Error::Busy`] if every write is to be at the
    /// server, and the kernel itself writes the file for a process that has it open; the server's
    /// error for unsent data, or for bytes in memory of other machines that are to be on its disk.
    /// Then nothing has changed.
    pub async fn set_class(&self, cred: &Cred, ino: Ino, name: Option<&str>) -> Result<()> {
        self.core.set_class(&self.core.caller(cred), ino, name).await
    }
}

impl Core {
    /// As [`Client::set_class`].
    pub(super) async fn set_class(
        self: &Arc<Self>,
        cred: &Cred,
        ino: Ino,
        name: Option<&str>,
    ) -> Result<()> {
        self.refuse_read_only()?;
        let node = self.node(ino)?;
        self.demand_path(&node, cred).await?;
        self.refuse_classless(&node)?;
        let before = self.class_for_owner(&node).class;
        let place = self.place(&node);
        let after = match name {
            Some(name) => self.options.classes.get(name).map_err(|_| Error::InvalidArgument)?,
            None => self.class_without_own(&node).class,
        };
        if cred.uid != 0 && cred.uid != node.state().known().attr.uid {
            self.demand(&node, cred, Access::MODIFY, false).await?;
            if !after.promised.keeps(&before.promised) {
                return Err(Error::NotPermitted);
            }
        }
        // Later opens have the new one.
        let held = self.set_classes.set(ino, name.map(str::to_owned))?;
        let opens = self.open_files.of(ino);
        // Whoever sets a class of the server's disk means it, whatever class the file had.
        let within = match after.is_volatile() {
            true => leaves_within(&before, &after),
            false => Some(Duration::ZERO),
        };
        let done = async {
            self.change_open_files(cred, (&node, &opens), &after, within).await?;
            if node.state().is_directory() {
                let places = (place, self.place(&node));
                Box::pin(self.raise_below(cred, &node, places)).await?;
            }
            self.keep_class(ino).await
        };
        let done = done.await;
        if done.is_err() {
            // Never fails: the old class had a place in the table, or removing the class needs
            // none.
            let _ = self.set_classes.set(ino, held);
            let _ = self.keep_class(ino).await;
        }
        done
    }

    async fn keep_class(self: &Arc<Self>, ino: Ino) -> Result<()> {
        let core = self.clone();
        blocking(move || core.set_classes.keep(&core.cache, ino)).await?
    }

    /// The class of one open file from now on, as its program wants it.
    pub(crate) async fn hint_class(&self, cred: &Cred, open: OpenId, name: &str) -> Result<()> {
        let class = self.options.classes.get(name).map_err(|_| Error::InvalidArgument)?;
        let file = self.open_file(open)?;
        let weakens = !class.promised.keeps(&file.class().promised);
        let owner = file.node.state().known().attr.uid;
        if weakens && cred.uid != 0 && cred.uid != owner {
            return Err(Error::NotPermitted);
        }
        match self.set_classes.of(file.node.ino) {
            Some(_) => Ok(()),
            None => {
                let within = leaves_within(&file.class(), &class);
                let opens = [(open, file.clone())];
                self.change_open_files(cred, (&file.node, &opens), &class, within).await
            }
        }
    }

    /// Gives the class to these open files of a file. Bytes that were written before, and are to be
    /// more durable, are sent first, and leave the memory of other machines within this time. If
    /// the class has a level `archive`, what the file has is due there from now on.
    pub(super) async fn change_open_files(
        &self,
        cred: &Cred,
        (node, opens): (&Arc<Node>, &[(OpenId, Arc<OpenFile>)]),
        class: &Arc<Class>,
        within: Option<Duration>,
    ) -> Result<()> {
        if class.is_synchronous() {
            self.await_end_of_bypass(node).await;
            if node.state().opens().bypassing() {
                return Err(Error::Busy);
            }
        }
        let change = |(_, open): &(_, Arc<OpenFile>)| open.set_class(class.clone());
        let before: Vec<Arc<Class>> = opens.iter().map(change).collect();
        let is_stronger = before.iter().any(|held| !held.promised.keeps(&class.promised));
        let file = self.file(node);
        let leaves_memory = file.is_in_memory() && !class.is_in_memory();
        let is_kept = self.is_left_here(node);
        let done = async {
            if is_stronger || is_kept || leaves_memory || within.is_some() {
                self.upload(node, self.deadline()).await?;
            }
            if let Some(within) = within {
                self.leave_memory(cred, node, within).await?;
            }
            match class.archive_within() {
                Some(within) => self.archive_file(cred, node, within).await,
                None => Ok(()),
            }
        };
        if let Err(refused) = done.await {
            for ((_, open), held) in opens.iter().zip(before) {
                open.set_class(held);
            }
            return Err(refused);
        }
        for (id, open) in opens {
            self.promise(node, &open.class());
            self.note_class(*id, &class.name);
        }
        Ok(())
    }

    /// The class of a file that is renamed over another file: the class that was set for the
    /// replaced file, unless the new one has a class of its own. Editors replace files in this way.
    /// Unsent bytes are sent first: the file is to be as durable as the one that it replaces,
    /// before it replaces it.
    ///
    /// # Errors
    /// The server's error for unsent data.
    pub(crate) async fn send_to_inherit(
        &self,
        node: Option<&Arc<Node>>,
        replaced: Option<&Arc<Node>>,
    ) -> Result<Option<String>> {
        let (Some(node), Some(replaced)) = (node, replaced) else { return Ok(None) };
        let class = self.set_classes.of(replaced.ino);
        let class = class.filter(|_| self.set_classes.of(node.ino).is_none());
        if class.is_some() {
            self.upload(node, self.deadline()).await?;
        }
        Ok(class)
    }

    /// It has that class from its next open on.
    pub(crate) async fn inherit_class(self: &Arc<Self>, node: &Node, name: String) {
        if self.set_classes.set(node.ino, Some(name)).is_ok() {
            // Said in the log if it fails.
            let _ = self.keep_class(node.ino).await;
        }
    }

    /// An extended attribute of ours; `None` if it is not one of ours.
    pub(crate) async fn own_xattr(&self, node: &Arc<Node>, name: &OsStr) -> Option<Option<Bytes>> {
        match name.to_str()? {
            CLASS => Some(self.set_classes.of(node.ino).map(Bytes::from)),
            DURABILITY => Some(Some(self.durability_line(node).await.into())),
            _ => None,
        }
    }

    /// The names of those of larder's own attributes that a copy of the file should have too.
    pub(crate) fn own_xattrs(&self, node: &Node) -> Option<OsString> {
        self.set_classes.of(node.ino).map(|_| CLASS.into())
    }

    /// Sets an extended attribute of ours; `None` if it is not one of ours.
    pub(crate) async fn set_own_xattr(
        self: &Arc<Self>,
        cred: &Cred,
        ino: Ino,
        set: &SetXattr,
    ) -> Option<Result<()>> {
        match set.name.to_str()? {
            CLASS => Some(self.set_class_by_xattr(cred, ino, set).await),
            DURABILITY => Some(Err(Error::NotPermitted)),
            _ => None,
        }
    }

    async fn set_class_by_xattr(
        self: &Arc<Self>,
        cred: &Cred,
        ino: Ino,
        set: &SetXattr,
    ) -> Result<()> {
        let held = self.set_classes.of(ino).map(Bytes::from);
        if cred.retried && set.is_done(held.as_ref()) {
            return Ok(());
        }
        set.judge(held.as_ref())?;
        if set.value.is_none() && held.is_none() {
            return Err(Error::NoAttribute);
        }
        let name = set.value.as_deref().map(std::str::from_utf8).transpose();
        let name = name.map_err(|_| Error::InvalidArgument)?;
        self.set_class(cred, ino, name.map(|name| name.trim_end_matches(['\n', '\0']))).await
    }
}

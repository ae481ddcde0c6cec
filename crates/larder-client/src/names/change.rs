//! Changes of names: making, removing, renaming and linking.
//!
//! A cached name is trusted while its directory's attributes are fresh and no other client's change
//! has begun a new epoch there. Our own changes keep the epoch: only the names that they touch are
//! rewritten. A removed file that is still open first gets a hidden name
//! ([`crate::names::hidden`]).

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use larder_vfs::{
    Cred, Entry, Error, Ino, Kind, Lookup, New, Removal, RenameFlags, Result, SetAttr,
};

use super::hidden::Hiding;
use super::hiding::Ending;
use super::recover::on_handle;
use crate::core::Core;
use crate::node::{Node, Seen};
use crate::open::NameLeaving;

impl Core {
    /// Makes an object that is not opened.
    pub(crate) async fn make(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &OsStr,
        new: New,
        set: SetAttr,
    ) -> Result<Entry> {
        let dir = self.node(parent)?;
        let (child, _) = self.make_node(&dir, cred, name, new, set).await?;
        Ok(self.entry(&dir, &child))
    }

    /// Removes an entry.
    pub(crate) async fn remove(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Ino,
        name: &OsStr,
        what: Removal,
    ) -> Result<()> {
        self.refuse_read_only()?;
        let dir = self.node(parent)?;
        self.demand_path(&dir, cred).await?;
        if what == Removal::File && self.was_lost_before(cred, (&dir, name)).await {
            return Ok(());
        }
        let child = self.child_to_go(cred, &dir, name, what == Removal::Directory).await;
        let seen = self.seen_in(&dir, name, child.as_ref());
        let _leaving = child.as_ref().map(NameLeaving::begin);
        if let Some(child) = &child
            && what == Removal::File
            && self.hide_if_open(cred, (&dir, name), child, Hiding::ToRemove).await?
        {
            return Ok(());
        }
        if let Some(child) = &child
            && what == Removal::Directory
        {
            self.clear_of_hidden_names(cred, child, &dir).await;
        }
        let doubtful = self.doubtful(&dir, name);
        self.remove_entry(cred, &dir, name, what).await?;
        self.doubt([doubtful]);
        if let Some(child) = child {
            self.lost_name(cred, &child, (&dir, name), what, seen).await;
        }
        Ok(())
    }

    /// What a rename of `moved` to this name replaces, as far as it is known.
    async fn child_to_replace(
        self: &Arc<Self>,
        cred: &Cred,
        (dir, name): (&Arc<Node>, &OsStr),
        moved: Option<&Arc<Node>>,
    ) -> Option<Arc<Node>> {
        if self.was_lost_before(cred, (dir, name)).await {
            return None;
        }
        let found = self.child_to_go(cred, dir, name, false).await;
        found.filter(|node| moved.is_none_or(|moved| moved.ino != node.ino))
    }

    /// Renames.
    pub(crate) async fn rename(
        self: &Arc<Self>,
        cred: &Cred,
        from: (Ino, &OsStr),
        to: (Ino, &OsStr),
        flags: RenameFlags,
    ) -> Result<()> {
        self.refuse_read_only()?;
        if flags != RenameFlags::default() {
            return Err(Error::InvalidArgument);
        }
        let (from_dir, to_dir) = (self.node(from.0)?, self.node(to.0)?);
        self.demand_path(&from_dir, cred).await?;
        self.demand_path(&to_dir, cred).await?;
        let source = self.child(&from_dir, from.1);
        // If an earlier attempt has renamed it, it is no longer known under its old name.
        let moved = source.clone().or_else(|| self.doubtful(&from_dir, from.1));
        let replaced = self.child_to_replace(cred, (&to_dir, to.1), moved.as_ref()).await;
        let seen = self.seen_in(&to_dir, to.1, replaced.as_ref());
        let mut goes = false;
        if let Some(source) = &source {
            let (from, to) = ((&*from_dir, from.1), (&*to_dir, to.1));
            goes = self.prepare_to_rename(cred, source, from, to).await?;
        }
        let inherited = self.send_to_inherit(source.as_ref(), replaced.as_ref()).await?;
        let raised = self.child_to_raise(cred, (&from_dir, from.1), source.as_ref()).await?;
        if let Some(raised) = &raised {
            self.raise_for_name(cred, raised, (&to_dir, to.1), inherited.as_deref()).await?;
        }
        let mut hidden = false;
        let _leaving = replaced.as_ref().map(NameLeaving::begin);
        if let Some(replaced) = &replaced
            && replaced.state().known().attr.kind != Kind::Directory
        {
            if source.is_none() && !cred.retried && !replaced.state().opens().is_empty() {
                // While a file is hidden, nobody finds its name. Not for a rename that will fail.
                let found = self.lookup_remote(&from_dir, cred, from.1).await;
                if matches!(found, Ok(Lookup::Absent { .. })) {
                    return Err(Error::NotFound);
                }
            }
            let at = (&to_dir, to.1);
            hidden = self.hide_if_open(cred, at, replaced, Hiding::ToReplace).await?;
        } else if let Some(replaced) = &replaced {
            self.clear_of_hidden_names(cred, replaced, &to_dir).await;
        }
        let doubtful = [self.doubtful(&from_dir, from.1), self.doubtful(&to_dir, to.1)];
        let renamed = self.rename_entry(cred, (&from_dir, from.1), (&to_dir, to.1)).await;
        let is_refused = Ending::of(&renamed) == Ending::Refused;
        match replaced.as_ref().filter(|_| hidden) {
            Some(hidden) if is_refused => self.show_again(cred, (&to_dir, to.1), hidden).await,
            Some(hidden) => self.was_replaced(cred, hidden).await,
            None => {}
        }
        renamed?;
        self.doubt(doubtful);
        if let Some(source) = source.as_ref().filter(|_| goes) {
            self.promise_name(source, cred);
        }
        if let (Some(source), Some(class)) = (source, inherited) {
            self.inherit_class(&source, class).await;
        }
        if let Some(replaced) = replaced.filter(|_| !hidden) {
            let directory = replaced.state().is_directory();
            let what = if directory { Removal::Directory } else { Removal::File };
            self.lost_name(cred, &replaced, (&to_dir, to.1), what, seen).await;
        }
        Ok(())
    }

    /// Gives a file another name.
    pub(crate) async fn link(
        self: &Arc<Self>,
        cred: &Cred,
        ino: Ino,
        parent: Ino,
        name: &OsStr,
    ) -> Result<Entry> {
        self.refuse_read_only()?;
        let (node, dir) = (self.node(ino)?, self.node(parent)?);
        self.demand_path(&dir, cred).await?;
        self.raise_for_name(cred, &node, (&dir, name), None).await?;
        let _linking = self.begin_link(cred, &node).await?;
        self.give_name(cred, &node, &dir, name).await
    }

    /// Gives a file another name, or the one back that it had.
    pub(super) async fn give_name(
        self: &Arc<Self>,
        cred: &Cred,
        node: &Arc<Node>,
        dir: &Arc<Node>,
        name: &OsStr,
    ) -> Result<Entry> {
        let mut within = self.link_within(cred, node, (dir, name));
        if within.is_none() {
            self.send_kept(node).await?;
        }
        let asked = self.now();
        self.begin_change(dir);
        let mut changing = self.begin_name_change(dir, name);
        let ask = async |cred: &Cred, within: Option<Duration>| {
            on_handle!(self, cred, node, handle => async {
                let target = dir.handle()?;
                let server = self.server_of_link(within);
                server.link(cred, &handle, &target, name).await
            })
        };
        let mut answer = ask(cred, within).await;
        let again = self.again_here(cred, &[(&**dir, name)], &answer);
        let cred = again.as_ref().unwrap_or(cred);
        if again.is_some() {
            within = self.link_within(cred, node, (dir, name));
            answer = ask(cred, within).await;
        }
        let answer = self.resolve_link(cred, node, (dir, name), answer).await;
        changing.answered(&answer);
        if let Ok((attr, _)) = &answer {
            if let Some(attr) = attr {
                // First: a process that knows the name, and only one link, would drop the bytes of
                // the file with its other name.
                let mut state = node.state();
                state.has_links(attr.nlink);
                self.table.persist(node.ino, &mut state);
            }
            self.put_name(dir, name, Some(node.ino));
        }
        self.end_names_change(dir, answer.as_ref().ok().map(|(_, change)| *change));
        self.distrust_if_refused(&[node, dir], (dir, name), &answer);
        let (attr, _) = answer?;
        let is_here =
            within.is_some_and(|within| self.promise_link(cred, node, (dir, name), within));
        match attr {
            Some(attr) => {
                node.state().linked();
                if self.observe(node, attr, asked) == Seen::Older {
                    // Meanwhile somebody has asked later, and been told before.
                    node.state().move_ctime(self.now());
                }
            }
            // Nothing at the server has changed so far.
            None if is_here => {
                let mut state = node.state();
                state.gain_link();
                self.table.persist(node.ino, &mut state);
            }
            None => {
                node.state().linked();
                self.revalidate(node, cred).await?;
            }
        }
        self.put_name(dir, name, Some(node.ino));
        Ok(self.entry(dir, node))
    }
}

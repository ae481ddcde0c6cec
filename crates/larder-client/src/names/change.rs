//! Names: looking them up, making, removing, renaming and linking them.
//!
//! A name is believed while its directory's attributes are fresh and no foreign change has begun a
//! new epoch there. Changes of our own keep the epoch: only the names that they touch are rewritten.
//! A removed file that is still open gets a hidden name first ([`crate::names::hidden`]).

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use larder_vfs::{
    Access, Answer, Change, Cred, Entry, Error, Ino, KeptOpen, Kind, LookedUp, Lookup, New,
    Removal, RenameFlags, Result, SetAttr,
};

use crate::core::{Core, on_handle};
use crate::journal::{Name, name_bytes};
use crate::node::Node;
use crate::node::RootSquash;
use crate::options::LookupCache;

impl Core {
    /// Looks a name up, in memory if what is held is fresh enough.
    pub(crate) fn lookup(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Ino,
        name: &OsStr,
    ) -> Answer<Lookup> {
        let dir = match self.node(parent) {
            Ok(dir) => dir,
            Err(error) => return Answer::fail(error),
        };
        if let Some(answer) = self.lookup_held(&dir, cred, name) {
            return Answer::Now(answer);
        }
        let (core, cred, name) = (self.clone(), self.caller(cred), name.to_owned());
        Answer::later(async move { core.lookup_remote(&dir, &cred, &name).await })
    }

    /// The answer, if it is held and fresh.
    fn lookup_held(&self, dir: &Node, cred: &Cred, name: &OsStr) -> Option<Result<Lookup>> {
        if name == ".." || !dir.state().is_directory() || !self.is_fresh(dir) {
            return None;
        }
        if self.options.lookup_cache == LookupCache::None && self.remote.reachable() {
            return None;
        }
        let granted = self.known_rights(dir, cred, Access::LOOKUP)?;
        if !granted.contains(Access::LOOKUP) {
            return Some(Err(Error::AccessDenied));
        }
        let held = self.name(dir, name)?;
        if self.wants_lease(dir) {
            return None;
        }
        let Some(child) = held.child else {
            let cached = self.options.lookup_cache == LookupCache::All;
            let ttl = self.name_ttl(dir, false);
            return cached.then_some(Ok(Lookup::Absent { ttl }));
        };
        let child = self.table.get(child).filter(|child| !child.state().is_gone())?;
        self.is_fresh(&child).then(|| Ok(Lookup::Found(self.entry(dir, &child))))
    }

    /// The answer, if a lease on the directory makes one of what is held. Where the file would have to be asked
    /// about in any case, nobody waits for the lease, and later lookups have it.
    async fn lookup_leased(
        self: &Arc<Self>,
        dir: &Arc<Node>,
        cred: &Cred,
        name: &OsStr,
    ) -> Result<Option<Result<Lookup>>> {
        if !self.wants_lease(dir) {
            return Ok(None);
        }
        let held = self.name(dir, name);
        let child = held.as_ref().map(|held| held.child.and_then(|ino| self.table.get(ino)));
        match child {
            None if self.is_fresh(dir) => {}
            Some(child) if child.as_ref().is_none_or(|child| self.is_fresh(child)) => {
                self.ask_rights(dir, cred).await?;
                return Ok(self.lookup_held(dir, cred, name));
            }
            _ => self.lease_later(dir, cred),
        }
        Ok(None)
    }

    /// What the index says of a name, if it is of the directory's present epoch.
    pub(crate) fn name(&self, dir: &Node, name: &OsStr) -> Option<Name> {
        let record = self.cache.name(dir.no(), name_bytes(name))?;
        Name::decode(&record).filter(|held| held.epoch == dir.state().known().epoch)
    }

    /// Records what a name stands for. What is on record is not written once more: that would cost a
    /// listing that brings nothing new as much as the first one.
    pub(crate) fn put_name(&self, dir: &Node, name: &OsStr, child: Option<Ino>) {
        let epoch = dir.state().known().epoch;
        let record = Name { epoch, child }.encode();
        if self.cache.name(dir.no(), name_bytes(name)).as_ref() != Some(&record) {
            self.cache.put_name(dir.no(), name_bytes(name), &record);
        }
    }

    pub(crate) async fn lookup_remote(
        self: &Arc<Self>,
        dir: &Arc<Node>,
        cred: &Cred,
        name: &OsStr,
    ) -> Result<Lookup> {
        if name == ".." {
            return self.lookup_parent(dir, cred).await;
        }
        self.settle_root_squash(dir, cred).await?;
        if let Some(answer) = self.lookup_leased(dir, cred, name).await? {
            return answer;
        }
        let asked = self.now();
        let answer = on_handle!(self, cred, dir, handle => self.remote.lookup(cred, &handle, name));
        let LookedUp { found, dir: dir_attr } = match answer {
            Err(Error::TimedOut) => {
                // From now on the server is known to be out of reach, so what is held is an answer.
                return self.lookup_held(dir, cred, name).unwrap_or(Err(Error::TimedOut));
            }
            answer => answer?,
        };
        if let Some(attr) = dir_attr {
            self.observe(dir, attr, asked);
        }
        dir.state().set_searched(cred, asked);
        // What we changed in the directory meanwhile is known better than by this answer.
        let current = !dir.state().changed_since(asked);
        let Some(found) = found else {
            if current {
                self.put_name(dir, name, None);
            }
            let ttl = if current { self.name_ttl(dir, false) } else { Duration::ZERO };
            return Ok(Lookup::Absent { ttl });
        };
        let child = self.learn(&found, asked, Some((dir.ino, name.to_owned())));
        if current {
            self.put_name(dir, name, Some(child.ino));
        }
        child.state().looked_up(cred.pid, self.now());
        Ok(Lookup::Found(self.entry(dir, &child)))
    }

    /// `..`, for doors that ask for it: by where the directory was last seen, else by the server.
    async fn lookup_parent(self: &Arc<Self>, dir: &Arc<Node>, cred: &Cred) -> Result<Lookup> {
        let hint = dir.state().known().hint.as_ref().map(|(parent, _)| *parent);
        let parent = match hint.and_then(|ino| self.table.get(ino)) {
            _ if dir.ino == Ino::ROOT => dir.clone(),
            Some(parent) => parent,
            None => {
                let asked = self.now();
                let up = OsStr::new("..");
                let answer =
                    on_handle!(self, cred, dir, handle => self.remote.lookup(cred, &handle, up))?;
                self.learn(&answer.found.ok_or(Error::NotFound)?, asked, None)
            }
        };
        if !self.is_fresh(&parent) {
            self.revalidate(&parent, cred).await?;
        }
        Ok(Lookup::Found(self.entry(dir, &parent)))
    }

    /// The first private directory tells whether the server squashes root; one question per mount.
    async fn settle_root_squash(&self, dir: &Node, cred: &Cred) -> Result<()> {
        let private = !dir.state().searchable_by_all();
        if private && self.squash.known() == RootSquash::Unknown {
            self.ask_rights(dir, &Cred::root().until(cred.deadline)).await?;
        }
        Ok(())
    }

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

    /// Makes an object at the server and takes in what it says of it. A file may be open at the server yet.
    pub(crate) async fn make_node(
        &self,
        dir: &Arc<Node>,
        cred: &Cred,
        name: &OsStr,
        new: New,
        set: SetAttr,
    ) -> Result<(Arc<Node>, KeptOpen)> {
        self.refuse_read_only()?;
        let target = match &new {
            New::Symlink(target) => Some(target.clone()),
            _ => None,
        };
        self.demand_path(dir, cred).await?;
        let (asked, moment) = (self.now(), self.table.moment());
        self.begin_change(dir);
        let answer = on_handle!(self, cred, dir, handle =>
            self.remote.make(cred, &handle, name, new.clone(), set));
        let answer = self.settle_make(cred, dir, name, (&new, set), answer).await;
        self.distrust_if_refused(&[dir], (dir, name), &answer);
        self.end_names_change(dir, answer.as_ref().ok().map(|made| made.dir));
        let made = answer?;
        if made.created {
            self.times.see_step(&made.dir);
        }
        dir.state().set_searched(cred, asked);
        let child = self.learn_made(&made, (asked, moment), (dir.ino, name.to_owned()));
        if let Some(target) = target {
            child.state().leads_to(target);
        }
        self.put_name(dir, name, Some(child.ino));
        Ok((child, made.kept))
    }

    /// Ends our change of a directory: its listing is no longer what the server would give.
    fn end_names_change(&self, dir: &Node, change: Option<Change>) {
        if change.is_some() {
            dir.state().end_listing();
        }
        self.end_change(dir, change);
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
        let child = self.child_to_go(cred, &dir, name, what == Removal::Directory).await;
        if let Some(child) = &child
            && what == Removal::File
            && self.hide_if_open(cred, &dir, name, child).await?
        {
            return Ok(());
        }
        if let Some(child) = &child
            && what == Removal::Directory
        {
            self.await_hidden_names(child).await;
        }
        let doubtful = self.doubtful(&dir, name);
        self.remove_entry(cred, &dir, name, what).await?;
        self.doubt([doubtful]);
        if let Some(child) = child {
            self.unlinked(&child, (&dir, name), what);
        }
        Ok(())
    }

    pub(crate) async fn remove_entry(
        &self,
        cred: &Cred,
        dir: &Arc<Node>,
        name: &OsStr,
        what: Removal,
    ) -> Result<()> {
        self.begin_change(dir);
        let answer =
            on_handle!(self, cred, dir, handle => self.remote.remove(cred, &handle, name, what));
        let answer = Core::settle_remove(cred, answer);
        self.distrust_if_refused(&[dir], (dir, name), &answer);
        self.end_names_change(dir, answer.as_ref().ok().copied());
        answer?;
        self.put_name(dir, name, None);
        Ok(())
    }

    /// The node that a name stands for, as far as we know.
    pub(crate) fn child(&self, dir: &Node, name: &OsStr) -> Option<Arc<Node>> {
        let child = self.name(dir, name)?.child.and_then(|ino| self.table.get(ino));
        child.filter(|child| !child.state().is_gone())
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
        let replaced = self
            .child_to_go(cred, &to_dir, to.1, false)
            .await
            .filter(|node| source.as_ref().is_none_or(|source| source.ino != node.ino));
        let mut hidden = false;
        if let Some(replaced) = &replaced
            && replaced.state().known().attr.kind != Kind::Directory
        {
            hidden = self.hide_if_open(cred, &to_dir, to.1, replaced).await?;
        } else if let Some(replaced) = &replaced {
            self.await_hidden_names(replaced).await;
        }
        let doubtful = [self.doubtful(&from_dir, from.1), self.doubtful(&to_dir, to.1)];
        let renamed = self.rename_entry(cred, (&from_dir, from.1), (&to_dir, to.1)).await;
        let late = [Err(Error::TimedOut), Err(Error::Shutdown)].contains(&renamed);
        if let Some(hidden) = replaced.as_ref().filter(|_| hidden && renamed.is_err() && !late) {
            self.show_again(cred, (&to_dir, to.1), hidden).await;
        }
        renamed?;
        self.doubt(doubtful);
        if let Some(replaced) = replaced.filter(|_| !hidden) {
            let directory = replaced.state().is_directory();
            let what = if directory { Removal::Directory } else { Removal::File };
            self.unlinked(&replaced, (&to_dir, to.1), what);
        }
        Ok(())
    }

    pub(crate) async fn rename_entry(
        &self,
        cred: &Cred,
        from: (&Arc<Node>, &OsStr),
        to: (&Arc<Node>, &OsStr),
    ) -> Result<()> {
        let same_dir = from.0.ino == to.0.ino;
        let child = self.child(from.0, from.1);
        self.begin_change(from.0);
        if !same_dir {
            self.begin_change(to.0);
        }
        let answer = on_handle!(self, cred, from.0, handle => async {
            let target = to.0.handle()?;
            self.remote.rename(cred, (&handle, from.1), (&target, to.1)).await
        });
        let answer = self.settle_rename(cred, child.as_ref(), to, answer).await;
        self.distrust_if_refused(&[from.0, to.0], (from.0, from.1), &answer);
        let changes = answer.as_ref().ok().copied();
        self.end_names_change(from.0, changes.map(|(change, _)| change));
        if !same_dir {
            self.end_names_change(to.0, changes.map(|(_, change)| change));
        }
        answer?;
        let child = child.map(|child| (child, true));
        let moved = child.or_else(|| Some((self.doubtful(from.0, from.1)?, false)));
        self.put_name(from.0, from.1, None);
        let Some((child, is_certain)) = moved else {
            self.cache.drop_name(to.0.no(), name_bytes(to.1));
            return Ok(());
        };
        if is_certain {
            self.put_name(to.0, to.1, Some(child.ino));
        } else {
            self.put_doubtful_name(to.0, to.1, child.ino);
        }
        let mut state = child.state();
        state.seen_at((to.0.ino, to.1.to_owned()));
        state.move_ctime(self.now());
        self.table.persist(child.ino, &mut state);
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
        let asked = self.now();
        self.begin_change(&dir);
        let answer = on_handle!(self, cred, &node, handle => async {
            let target = dir.handle()?;
            self.remote.link(cred, &handle, &target, name).await
        });
        let answer = self.settle_link(cred, &node, (&dir, name), answer).await;
        self.end_names_change(&dir, answer.as_ref().ok().map(|(_, change)| *change));
        self.distrust_if_refused(&[&node, &dir], (&dir, name), &answer);
        let (attr, _) = answer?;
        node.state().linked();
        match attr {
            Some(attr) => {
                self.observe(&node, attr, asked);
            }
            None => self.revalidate(&node, cred).await?,
        }
        self.put_name(&dir, name, Some(ino));
        Ok(self.entry(&dir, &node))
    }
}

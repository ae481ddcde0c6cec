//! Changes of a directory's entries at the server, each with its consequences for what is cached.

use std::ffi::OsStr;
use std::sync::Arc;

use larder_vfs::{
    Change, Cred, Deferring, Found, Kind, Made, New, Removal, Result, SetAttr, Token,
};

use super::recover::on_handle;
use crate::class::volatile;
use crate::core::Core;
use crate::journal::{ListingState, Page, Record};
use crate::node::{Node, State};

impl Core {
    /// Makes an object at the server and processes the description in the reply. A file that was
    /// made may be open at the server.
    pub(crate) async fn make_node(
        &self,
        dir: &Arc<Node>,
        cred: &Cred,
        name: &OsStr,
        new: New,
        set: SetAttr,
    ) -> Result<(Arc<Node>, Option<Token>)> {
        self.refuse_read_only()?;
        let target = match &new {
            New::Symlink(target) => Some(target.clone()),
            _ => None,
        };
        self.demand_path(dir, cred).await?;
        let may_be_lost = !self.options.sync
            && match new {
                New::File | New::FileExclusive => true,
                // Its bytes are sent later.
                New::Node(Kind::File, _) => false,
                // What waits here for the server has its directory there already.
                New::Directory | New::Symlink(_) | New::Node(..) => {
                    self.remote.deferring().is_none()
                }
            };
        let class = may_be_lost.then(|| self.class_of_name(dir, name, cred));
        let in_memory = class.as_deref().and_then(volatile);
        let is_directory = matches!(new, New::Directory);
        let is_file = matches!(new, New::File | New::FileExclusive);
        let retained = is_file && class.is_some_and(|class| class.is_retained);
        let set = SetAttr { in_memory, retained, ..set };
        let (asked, moment) = (self.now(), self.table.moment());
        self.begin_change(dir);
        let mut changing = self.begin_name_change(dir, name);
        let names = [(&**dir, name)];
        let ask = async |cred: &Cred| {
            on_handle!(self, cred, dir, handle =>
                self.server_of_names(cred, &names).make(cred, &handle, name, new.clone(), set))
        };
        let mut answer = ask(cred).await;
        let again = self.again_here(cred, &names, &answer);
        let cred = again.as_ref().unwrap_or(cred);
        if again.is_some() {
            answer = ask(cred).await;
        }
        let answer = self.resolve_make(cred, dir, name, (&new, set), answer).await;
        changing.answered(&answer);
        self.distrust_if_refused(&[dir], (dir, name), &answer);
        let child = answer.as_ref().ok().map(|made| {
            let child = self.learn_made(made, (asked, moment), (dir.ino, name.to_owned()));
            self.put_name(dir, name, Some(child.ino));
            child
        });
        self.end_names_change(dir, answer.as_ref().ok().map(|made| made.dir));
        let made = answer?;
        let child = child.expect("what was made is known");
        if made.created {
            self.times.see_step(&made.dir);
        }
        dir.state().set_searched(cred, asked);
        if is_directory {
            self.know_empty(&child, &made);
        }
        self.promise_name(&child, cred);
        if let Some(target) = target {
            child.state().leads_to(target);
        }
        self.put_name(dir, name, Some(child.ino));
        Ok((child, made.token))
    }

    /// A directory that was just made has no names, if it still is as the server made it. What
    /// waits here for the server is not: its description is ours.
    fn know_empty(&self, dir: &Node, made: &Made) {
        let (here, Found { handle, attr }) = (self.remote.deferring(), &made.found);
        if here.is_some_and(|here| here.awaited(handle).is_some()) {
            return;
        }
        let mut state = dir.state();
        let is_as_made = state.known().attr.validator().same(&attr.validator());
        if is_as_made && !state.changing() {
            if made.created {
                state.whole_mut().set_empty(&self.room_of_names);
            }
            if here.is_some_and(Deferring::may_be_offline) {
                self.put_empty_listing(dir, &mut state);
            }
        }
    }

    /// For the time without the server: which names a directory has that was just made is then
    /// known from this and from those that were made in it since. Readers get another listing.
    fn put_empty_listing(&self, dir: &Node, state: &mut State) {
        let page = Page { eof: true, ..Page::default() };
        self.cache.put_listing(dir.no(), 0, &page.encode());
        let epoch = state.known().epoch;
        state.set_listing(ListingState { epoch, pages: 1, complete: true, is_changed: true });
        self.table.persist(dir.ino, state);
    }

    /// Ends our change of a directory: the cached listing is no longer what the server would
    /// return. The names must be on record as they are now, or unsettled: this puts the version
    /// after the change on record, and a process that continues from there believes all names of
    /// it. The names are to be put on record once more, since the epoch may have ended.
    pub(super) fn end_names_change(&self, dir: &Node, change: Option<Change>) {
        // A request that the kernel sends again, and that the journal of names has from the process
        // that died: no other client is behind it.
        let is_away = self.is_away();
        let change = change.filter(|change| change.after.is_some() || !is_away);
        // While the server is out of reach, the cached listing stays as the server last gave it:
        // the journal of names knows what has changed here since.
        if change.is_some() && !is_away {
            match self.remote.deferring() {
                Some(_) => dir.state().change_listing(),
                None => dir.state().end_listing(),
            }
        }
        self.end_change(dir, change);
    }

    pub(crate) async fn remove_entry(
        &self,
        cred: &Cred,
        dir: &Arc<Node>,
        name: &OsStr,
        what: Removal,
    ) -> Result<()> {
        self.begin_change(dir);
        let mut changing = self.begin_name_change(dir, name);
        let names = [(&**dir, name)];
        let ask = async |cred: &Cred| {
            on_handle!(self, cred, dir, handle =>
                self.server_of_names(cred, &names).remove(cred, &handle, name, what))
        };
        let mut answer = ask(cred).await;
        let again = self.again_here(cred, &names, &answer);
        let cred = again.as_ref().unwrap_or(cred);
        if again.is_some() {
            answer = ask(cred).await;
        }
        let answer = Core::resolve_remove(cred, answer);
        changing.answered(&answer);
        self.distrust_if_refused(&[dir], (dir, name), &answer);
        if answer.is_ok() {
            self.put_name(dir, name, None);
        }
        self.end_names_change(dir, answer.as_ref().ok().copied());
        answer?;
        self.put_name(dir, name, None);
        changing.is_gone();
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
        let mut changing = [from, to].map(|(dir, name)| self.begin_name_change(dir, name));
        let names = [(&**from.0, from.1), (&**to.0, to.1)];
        let ask = async |cred: &Cred| {
            on_handle!(self, cred, from.0, handle => async {
                let target = to.0.handle()?;
                let server = self.server_of_names(cred, &names);
                server.rename(cred, (&handle, from.1), (&target, to.1)).await
            })
        };
        let mut answer = ask(cred).await;
        let again = self.again_here(cred, &names, &answer);
        let cred = again.as_ref().unwrap_or(cred);
        if again.is_some() {
            answer = ask(cred).await;
        }
        let answer = self.resolve_rename(cred, child.as_ref(), to, answer).await;
        changing.iter_mut().for_each(|one| one.answered(&answer));
        self.distrust_if_refused(&[from.0, to.0], (from.0, from.1), &answer);
        let changes = answer.as_ref().ok().copied();
        // A process that was asked before this one, and died, may have put both names on record.
        let is_on_record = child.is_none() && self.is_away() && self.name(to.0, to.1).is_some();
        if changes.is_some() && !is_on_record {
            self.unsettle_name(from.0, from.1);
            self.unsettle_name(to.0, to.1);
        }
        self.end_names_change(from.0, changes.map(|(change, _)| change));
        if !same_dir {
            self.end_names_change(to.0, changes.map(|(_, change)| change));
        }
        answer?;
        let child = child.map(|child| (child, true));
        let moved = child.or_else(|| Some((self.doubtful(from.0, from.1)?, false)));
        if moved.is_none() && is_on_record {
            return Ok(());
        }
        if moved.as_ref().is_some_and(|(child, _)| has_one_name(child)) {
            self.put_name(from.0, from.1, None);
            changing[0].is_gone();
        } else {
            // To rename a file to another of its names does nothing (rename(2)).
            self.forget_name(from.0, from.1);
        }
        let Some((child, is_certain)) = moved else {
            self.forget_name(to.0, to.1);
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
}

/// Whether a file has no name but one, as far as is known.
fn has_one_name(node: &Node) -> bool {
    let state = node.state();
    let attr = &state.known().attr;
    attr.kind == Kind::Directory || attr.nlink == 1
}

//! Hidden names of files that are removed while they are open.
//!
//! A removed file that is still open first gets a hidden name, as with NFS clients (".nfs..."), and
//! loses it at the last release. If its directory is removed before that, the name moves to the
//! directory above. If a file is reached only by its names (SMB), a hidden name is given to each
//! open file that loses a name here, and stays where it is: only the server knows which other names
//! the file has, and for how long.
//!
//! To hide a file the client must know what a name stands for. Others may have changed the
//! directory since the last lookup; then what the name stood for before is *doubtful*, and the
//! server is asked if that file is open here.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::Duration;

use larder_vfs::{Cred, Error, Lookup, Removal, Result};

use super::hiding::{Dentry, Ending};
use crate::core::Core;
use crate::node::{Node, State};

/// Longest wait, before a directory is removed, for the removal of hidden names in it that has
/// begun.
const HIDDEN_WAIT_MAX: Duration = Duration::from_secs(2);

/// What follows when a file is hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hiding {
    /// Nothing: its name was to be removed.
    ToRemove,
    /// Another file gets its name, unless the server refuses that.
    ToReplace,
}

impl Core {
    /// The same as [`Core::child`] for a name that is about to be removed or replaced. A change of
    /// the directory by other clients makes its names unknown. Then the server is asked if a file
    /// that is open here, or has bytes that the server lacks, was last seen under this name, even
    /// if this was one of its names only before that change: such a file must be hidden, and its
    /// bytes end with its last name. It is also asked for a directory, in which hidden names may be
    /// about to be removed.
    pub(crate) async fn child_to_go(
        self: &Arc<Self>,
        cred: &Cred,
        dir: &Arc<Node>,
        name: &OsStr,
        directory: bool,
    ) -> Option<Arc<Node>> {
        let known = self.child(dir, name);
        let matters = |was: Arc<Node>| {
            let state = was.state();
            !state.opens().is_empty() || state.may_have_unsent()
        };
        let did_matter = || self.doubtful(dir, name).is_some_and(matters);
        let asks = || directory || self.is_open_at(dir, name) || did_matter();
        if known.is_some() || !asks() {
            return known;
        }
        match self.lookup_remote(dir, cred, name).await {
            Ok(Lookup::Found(entry)) => self.table.get(entry.ino),
            _ => None,
        }
    }

    /// Whether a file is open here that was last seen under this name.
    fn is_open_at(&self, dir: &Node, name: &OsStr) -> bool {
        self.open_files.all().iter().any(|open| {
            let state = open.node.state();
            state.known().hint.as_ref().is_some_and(|(at, is)| *at == dir.ino && is == name)
        })
    }

    /// If the file is open and this is its last name, or the last one that is sure to lead to it,
    /// renames it to a hidden one, to be removed at its last release. Returns whether it did. If
    /// the file is to be replaced, its last release leaves the name until the caller has ended that
    /// ([`Core::show_again`], [`Core::was_replaced`]).
    pub(crate) async fn hide_if_open(
        &self,
        cred: &Cred,
        (dir, name): (&Arc<Node>, &OsStr),
        child: &Arc<Node>,
        for_what: Hiding,
    ) -> Result<bool> {
        let begun = cred.retried && {
            let state = child.state();
            state.hidden().name().is_some() && !state.opens().is_empty()
        };
        let by_name = self.remote.limits().by_name;
        if begun {
            self.finish_hiding(cred, (dir, name), child).await?;
            if by_name && self.stands_for(cred, (dir, name), child).await? {
                // It was hidden when it lost another name.
                return Ok(false);
            }
            self.put_name(dir, name, None);
            if for_what == Hiding::ToReplace {
                child.state().hidden_mut().keep();
            }
            return Ok(true);
        }
        let Some(hidden) = self.begin_to_hide(cred, dir, child).await? else { return Ok(false) };
        let renamed = self.rename_entry(cred, (dir, name), (dir, &hidden)).await;
        if Ending::of(&renamed) == Ending::Refused {
            dir.hidden_name_is_gone(&hidden);
        }
        self.end_naming(cred, child, renamed, for_what).await?;
        Ok(true)
    }

    /// The server was asked for a hidden name of a file, with this result.
    async fn end_naming(
        &self,
        cred: &Cred,
        child: &Arc<Node>,
        renamed: Result<()>,
        for_what: Hiding,
    ) -> Result<()> {
        let released = {
            let mut state = child.state();
            state.hidden_mut().end(Ending::of(&renamed));
            if for_what == Hiding::ToReplace {
                state.hidden_mut().keep();
            }
            self.note_unfinished(child.ino, &mut state);
            state.opens().is_unused() && state.hidden().is_left_to_release()
        };
        child.released.notify_waiters();
        if released {
            // The last release came while the server was asked, and found nothing to remove.
            let removed = self.remove_hidden(child, cred).await;
            return renamed.and(removed);
        }
        renamed
    }

    /// Before a file is renamed to a hidden name: returns that, if it is open, or being opened, and
    /// about to lose the last name that leads to it. Waits for calls that are giving it others.
    async fn begin_to_hide(
        &self,
        cred: &Cred,
        dir: &Arc<Node>,
        child: &Arc<Node>,
    ) -> Result<Option<OsString>> {
        let by_name = self.remote.limits().by_name;
        let hides = |state: &State| {
            let loses_its_way = by_name || state.known().attr.nlink <= 1;
            !state.opens().is_unused() && loses_its_way && state.hidden().name().is_none()
        };
        let mut has_waited = false;
        loop {
            if child.state().opens().is_unused() {
                return Ok(None);
            }
            self.before_deadline(cred, child.until(|state| !state.hidden().is_busy())).await?;
            if !hides(&child.state()) {
                return Ok(None);
            }
            if !has_waited {
                self.await_release(child).await;
                has_waited = true;
            }
            let new = self.hidden_name(child);
            let mut state = child.state();
            if state.hidden().is_busy() || !hides(&state) {
                continue;
            }
            let (hidden, is_new) = state.hidden_mut().begin(dir.ino, || new);
            self.note_unfinished(child.ino, &mut state);
            drop(state);
            if is_new {
                dir.state().hidden_mut().add_inside(&hidden);
            }
            return Ok(Some(hidden));
        }
    }

    /// A file was hidden to be replaced, and the rename that was to replace it was refused (not
    /// merely unanswered): it gets its name back, unless another file has taken that, and loses the
    /// hidden one.
    pub(crate) async fn show_again(
        self: &Arc<Self>,
        cred: &Cred,
        (dir, name): (&Arc<Node>, &OsStr),
        child: &Arc<Node>,
    ) {
        if let Err(error) = self.give_name(cred, child, dir, name).await {
            tracing::warn!(ino = child.ino.0, %error, "a file that was not replaced stays hidden");
            return self.was_replaced(cred, child).await;
        }
        child.state().seen_at((dir.ino, name.to_owned()));
        if let Err(error) = self.remove_hidden(child, cred).await {
            tracing::warn!(ino = child.ino.0, %error, "the hidden name of a file stays");
        }
    }

    /// A file was hidden to be replaced, and was, or perhaps was.
    pub(crate) async fn was_replaced(&self, cred: &Cred, child: &Arc<Node>) {
        let released = {
            let mut state = child.state();
            state.hidden_mut().leave_to_release();
            state.opens().is_unused()
        };
        child.released.notify_waiters();
        if released && let Err(error) = self.remove_hidden(child, cred).await {
            tracing::warn!(ino = child.ino.0, %error, "the hidden name of a file stays");
        }
    }

    fn hidden_name(&self, child: &Node) -> OsString {
        let fileid = child.state().known().attr.fileid;
        let count = self.next_number();
        format!(".nfs{fileid:016x}{:04x}{count:08x}", self.session & 0xffff).into()
    }

    /// The last open file of a hidden name was released: removes it.
    pub(crate) async fn remove_hidden(&self, child: &Arc<Node>, cred: &Cred) -> Result<()> {
        let names = child.state().hidden_mut().begin_removal();
        if names.is_empty() {
            return Ok(());
        }
        let removed = self.remove_one_of(cred, &names).await;
        self.hidden_names_are_gone(&names);
        if let Ok((dir, name)) = &removed {
            self.keep_removal(child).await;
            self.unlinked(child, (dir, name), Removal::File, 1);
        }
        let mut state = child.state();
        state.hidden_mut().end_removal();
        if Ending::of(&removed) == Ending::Unanswered {
            // The next mount will find the hidden file, or find that it is gone.
            state.hidden_mut().set(names);
        }
        self.note_unfinished(child.ino, &mut state);
        drop(state);
        child.released.notify_waiters();
        match removed {
            // It never got the name, or another client removed it.
            Err(Error::NotFound) => Ok(()),
            removed => removed.map(drop),
        }
    }

    /// Removes a file by the one of these hidden names that it has. Returns which that was.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it has none of them.
    pub(crate) async fn remove_one_of(
        &self,
        cred: &Cred,
        names: &[Dentry],
    ) -> Result<(Arc<Node>, OsString)> {
        // If there are several, that one of them is not there does not say that this was done.
        let cred = &if names.len() > 1 { cred.first_time() } else { cred.clone() };
        let mut result = Err(Error::NotFound);
        for (dir, name) in names {
            let removed = match self.node(*dir) {
                Ok(dir) => {
                    let removed = self.remove_entry(cred, &dir, name, Removal::File).await;
                    removed.map(|()| (dir, name.clone()))
                }
                Err(error) => Err(error),
            };
            let is_elsewhere = matches!(removed, Err(Error::NotFound | Error::Stale));
            if !is_elsewhere || names.len() == 1 {
                return removed;
            }
            result = removed;
        }
        result
    }

    /// Before a directory is removed or replaced, of which `parent` lists the name: a process that
    /// has removed all files in it expects it to be empty. The last releases, which remove the
    /// hidden names, arrive after close(2) has returned: waits for those that are under way. The
    /// hidden names of files that stay open move to `parent`.
    pub(crate) async fn clear_of_hidden_names(
        &self,
        cred: &Cred,
        dir: &Arc<Node>,
        parent: &Arc<Node>,
    ) {
        for open in self.open_files.hidden_in(dir) {
            self.await_release(&open.node).await;
        }
        // A share finds an open file by its name; it was not tried whether that may move.
        if !self.remote.limits().by_name {
            for open in self.open_files.hidden_in(dir) {
                self.move_hidden_name(cred, &open.node, dir, parent).await;
            }
        }
        if !self.open_files.hidden_in(dir).is_empty() {
            // The server will say that the directory is not empty.
            return;
        }
        let gone = dir.until(|state| state.hidden().inside().is_empty());
        // If it takes longer the server will say so.
        let _ = self.clock.timeout(HIDDEN_WAIT_MAX, gone).await;
    }

    /// Moves the hidden name of an open file to another directory. If that fails it stays.
    async fn move_hidden_name(
        &self,
        cred: &Cred,
        file: &Arc<Node>,
        from: &Arc<Node>,
        to: &Arc<Node>,
    ) {
        let begun = {
            let mut state = file.state();
            let begun = state.hidden_mut().begin_move(from.ino, to.ino);
            self.note_unfinished(file.ino, &mut state);
            begun
        };
        let Some((name, is_new)) = begun else { return };
        if is_new {
            to.state().hidden_mut().add_inside(&name);
        }
        let moved = match self.rename_entry(cred, (from, &name), (to, &name)).await {
            // Only this mount knows the name: it was moved when the server did not answer.
            Err(Error::NotFound) if !is_new => Ok(()),
            moved => moved,
        };
        match Ending::of(&moved) {
            Ending::Done => from.hidden_name_is_gone(&name),
            Ending::Refused => to.hidden_name_is_gone(&name),
            Ending::Unanswered => {}
        }
        if let Err(error) = self.end_naming(cred, file, moved, Hiding::ToRemove).await {
            tracing::debug!(ino = file.ino.0, %error, "a hidden name stays in its directory");
        }
    }

    /// The kernel sent the removal or replacement of an open file again, and the first attempt had
    /// begun to hide the file: continues where that ended.
    pub(crate) async fn finish_hiding(
        &self,
        cred: &Cred,
        (dir, name): (&Arc<Node>, &OsStr),
        child: &Arc<Node>,
    ) -> Result<()> {
        let Some((hidden_dir, hidden)) = child.state().hidden().name().cloned() else {
            return Ok(());
        };
        let hidden_dir = self.node(hidden_dir)?;
        let at = (&hidden_dir, hidden.as_os_str());
        if self.stands_for(cred, at, child).await? {
            self.forget_names(&hidden_dir);
        } else if self.stands_for(cred, (dir, name), child).await? {
            // The server may still be about to carry the first attempt out: then this one finds it
            // done.
            self.rename_entry(cred, (dir, name), at).await?;
        } else if self.stands_for(cred, at, child).await? {
            // It was carried out while we were looking for it.
            self.forget_names(&hidden_dir);
        } else {
            let mut state = child.state();
            state.hidden_mut().take();
            self.note_unfinished(child.ino, &mut state);
        }
        Ok(())
    }

    /// Distrusts all names in a directory: a request of an earlier process has changed it.
    fn forget_names(&self, dir: &Node) {
        let mut state = dir.state();
        state.forget_contents();
        state.distrust();
        self.table.persist(dir.ino, &mut state);
    }
}

//! Opening and closing: freshness and rights. Open files are counted by their mode, from which the
//! mode of a new one follows ([`crate::open::mode`]).

use std::ffi::OsStr;
use std::sync::Arc;

use larder_class::Level;
use larder_vfs::{
    Access, Answer, Cred, Deadline, Entry, Error, Ino, Intent, Kind, LockOwner, New, OpenFlags,
    OpenId, Opened, Result, SetAttr, Token,
};

use super::choose::as_of_class;
use super::open_file::{OpenFile, intent};
use crate::core::{Core, blocking, blocking_unless};
use crate::names::on_handle;
use crate::node::{Node, verdicts};
use crate::write::{Event, RETRY_AFTER};

/// The rights of which opens want some.
fn rights_of_opens() -> Access {
    Access::READ | Access::MODIFY | Access::EXTEND | Access::EXECUTE
}

impl Core {
    /// Opens a regular file.
    pub(crate) fn open(
        self: &Arc<Self>,
        cred: &Cred,
        ino: Ino,
        flags: OpenFlags,
    ) -> Answer<Opened> {
        if flags.write && self.options.read_only {
            return Answer::fail(Error::ReadOnly);
        }
        let node = match self.node(ino) {
            Ok(node) => node,
            Err(error) => return Answer::fail(error),
        };
        self.opened_after_lookup(&node);
        let (core, cred) = (self.clone(), self.caller(cred));
        Answer::later(async move {
            let arriving = core.arrive(&node, &cred).await?;
            let opened = core.open_arrived(&node, &cred, flags).await;
            drop(arriving);
            if opened.is_err() {
                core.after_failed_open(&node, &cred).await;
            }
            opened
        })
    }

    /// An open that counts already as one for calls which take a name from the file.
    async fn open_arrived(
        self: &Arc<Self>,
        node: &Arc<Node>,
        cred: &Cred,
        flags: OpenFlags,
    ) -> Result<Opened> {
        let before = self.opened_before(cred);
        let token = match before {
            Some(_) => None,
            None => self.check_and_empty(node, cred, &flags).await?,
        };
        // The reply to an open has no attributes: its caller uses the size that the kernel holds.
        self.tell_what_is_left(node);
        self.told(node).await;
        let opened = match before {
            Some((_, opened)) => opened,
            None => self.clone().choose_away(node.clone(), cred.clone(), flags, token).await?,
        };
        if flags.truncate {
            // Last: if the open fails, the kernel keeps the size that it believes in. It holds no
            // lock meanwhile, so another process's write may count after it.
            let others = self.open_files.of(node.ino);
            let is_sole = others.iter().all(|(id, open)| *id == opened.id || !open.flags.write);
            node.state().opens_mut().emptied_by_open(is_sole);
        }
        Ok(opened)
    }

    /// What comes before an open, and is not done again for one that the kernel sends again: checks
    /// freshness and rights, and empties the file if the open does. Returns the open at the server,
    /// if the reply has one.
    async fn check_and_empty(
        self: &Arc<Self>,
        node: &Arc<Node>,
        cred: &Cred,
        flags: &OpenFlags,
    ) -> Result<Option<Token>> {
        let token = self.check_open_in_time(node, cred, flags).await?;
        if flags.truncate {
            self.refuse_executed(node, flags).await?;
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            self.setattr(cred, node.ino, None, set).await?;
        }
        Ok(token)
    }

    /// Refuses an open for reading that truncates a file which is being executed. Otherwise the
    /// kernel refuses it, but it checks only after we have opened, and truncated, the file.
    async fn refuse_executed(&self, node: &Node, flags: &OpenFlags) -> Result<()> {
        if flags.write || !self.is_executed(node) {
            return Ok(());
        }
        // The program may have ended, and its release not have arrived yet.
        self.await_release(node).await;
        if self.is_executed(node) { Err(Error::Executed) } else { Ok(()) }
    }

    /// [`Core::check_open`], without the server if that takes its time and all that is needed is
    /// held.
    async fn check_open_in_time(
        self: &Arc<Self>,
        node: &Arc<Node>,
        cred: &Cred,
        flags: &OpenFlags,
    ) -> Result<Option<Token>> {
        if !self.may_open_as_held(node, cred, flags) {
            return self.check_open(node, cred, flags).await;
        }
        let (core, asked, by, with) = (self.clone(), node.clone(), cred.clone(), *flags);
        let asking = async move { core.check_open(&asked, &by, &with).await };
        self.in_time(asking).await.unwrap_or(Ok(None))
    }

    /// Whether an open needs nothing that is not held: bytes, attributes and rights.
    fn may_open_as_held(&self, node: &Node, cred: &Cred, flags: &OpenFlags) -> bool {
        if flags.truncate || !self.remote.reachable() || !self.may_do_without(node) {
            return false;
        }
        if !verdicts::suffice(flags, self.rights_as_held(node, cred, rights_of_opens())) {
            return false;
        }
        let file = self.file(node);
        let (attr, is_certain) = {
            let state = node.state();
            let is_certain = !state.known().doubtful && !state.unsent().is_mixed();
            let is_present = file.version() == Some(state.version().bytes());
            (state.attr(), is_certain && is_present && !state.is_gone())
        };
        attr.kind == Kind::File && is_certain && file.holds(0..attr.size)
    }

    /// Checks freshness and rights; asks the server at most once, unless the caller got here by
    /// names that the kernel held for others. Returns the open at the server, if the reply has one.
    async fn check_open(
        &self,
        node: &Node,
        cred: &Cred,
        flags: &OpenFlags,
    ) -> Result<Option<Token>> {
        let intent = Intent { rights: rights_of_opens(), ..intent(flags) };
        let turn = self.await_own_change(node, cred).await;
        let asks = !self.is_fresh_for_open(node, cred) || self.wants_lease(node);
        let (granted, token) = self.rights_to_open(node, cred, intent, asks).await?;
        drop(turn);
        {
            let state = node.state();
            if state.known().attr.kind == Kind::Directory {
                return Err(Error::IsDirectory);
            }
            if state.is_gone() && state.opens().is_empty() {
                // The kernel then looks the name up again.
                return Err(Error::Stale);
            }
        }
        if verdicts::suffice(flags, granted) { Ok(token) } else { Err(Error::AccessDenied) }
    }

    /// Creates a regular file and opens it.
    pub(crate) async fn create(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Ino,
        name: &OsStr,
        set: SetAttr,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        let dir = self.node(parent)?;
        if let Some((node, opened)) = self.opened_before(cred) {
            return Ok((self.entry(&dir, &node), opened));
        }
        let new = if flags.exclusive { New::FileExclusive } else { New::File };
        let set = SetAttr { size: flags.truncate.then_some(0).or(set.size), ..set };
        let (node, token) = self.make_node(&dir, cred, name, new, set).await?;
        let entry = self.entry(&dir, &node);
        let opened = self.clone().choose_away(node, cred.clone(), flags, token).await?;
        Ok((entry, opened))
    }

    /// Chooses the mode of a new open file, on this thread unless that may wait for the local disk.
    async fn choose_away(
        self: Arc<Self>,
        node: Arc<Node>,
        cred: Cred,
        flags: OpenFlags,
        token: Option<Token>,
    ) -> Result<Opened> {
        self.give_up_doubtful(&node).await;
        if flags.read {
            self.update_older(&node, &cred).await;
        }
        let class = self.class_for(&node, &cred);
        let file = self.file(&node);
        let quick = self.chooses_quickly(&node, &file, &as_of_class(flags, &class));
        let core = self.clone();
        let opened = blocking_unless(quick, move || core.choose(&node, cred, flags, class)).await?;
        if let Ok(open) = self.open_file(opened.id) {
            match token {
                Some(token) => drop(open.replace_token(Some(token))),
                None => self.open_at_server(&open).await,
            }
        }
        Ok(opened)
    }

    /// Opens an open file at the server too, if the server has opens. If that fails, its bytes are
    /// requested without an open, and the server finds it as long as it keeps its name.
    pub(crate) async fn open_at_server(&self, open: &OpenFile) {
        if !self.remote.limits().opens || !self.remote.reachable() {
            return;
        }
        let (node, cred, intent) = (&*open.node, &self.caller(&open.cred), open.intent());
        let answer =
            on_handle!(self, cred, node, handle => self.remote.open(cred, &handle, intent));
        match answer {
            Ok(opened) => drop(open.replace_token(opened.token)),
            Err(error) => tracing::debug!(ino = node.ino.0, %error, "not open at the server"),
        }
    }

    /// A descriptor of the open file was closed.
    pub(crate) fn flush(
        self: &Arc<Self>,
        ino: Ino,
        id: OpenId,
        owner: Option<LockOwner>,
    ) -> Answer<()> {
        let open = match self.open_file(id) {
            Ok(open) => open,
            Err(error) => return Answer::fail(error),
        };
        open.set_flushed(true);
        let owner = owner.filter(|owner| self.locks.has(ino, *owner));
        if !open.flags.write && owner.is_none() {
            return Answer::ok(());
        }
        let (core, deadline) = (self.clone(), self.deadline());
        Answer::later(async move {
            let lost = core.refuse_lost(ino, Some(id));
            let sent = core.send_at_close(&open, deadline).await;
            if let Some(owner) = owner {
                core.end_owner(ino, owner).await;
            }
            lost.and(sent)
        })
    }

    /// Sends what was written when a descriptor is closed; if that fails, the close reports why.
    async fn send_at_close(&self, open: &OpenFile, deadline: Option<Deadline>) -> Result<()> {
        if !open.flags.write {
            return Ok(());
        }
        let class = open.class();
        let result = self.bring_to(&open.node, class.promised.close, deadline).await;
        self.keep_closed(&open.node, &class);
        let earlier = self.take_write_error(&open.node, Some(open));
        let told = result.and(earlier.map_or(Ok(()), Err));
        let is_late = matches!(told, Err(Error::TimedOut | Error::Shutdown | Error::Locked));
        open.set_refused(told.is_err() && !is_late);
        if is_late {
            let node = &open.node;
            self.unsent_event(node.ino, &mut node.state(), Event::ToldLate);
        }
        told
    }

    /// The last descriptor is closed.
    pub(crate) async fn release(self: &Arc<Self>, id: OpenId) -> Result<()> {
        let Some(open) = self.open_files.remove(id) else { return Ok(()) };
        let (node, mut refused) = (&open.node, None);
        let is_sent_later = open.class().promised.close <= Some(Level::Local);
        if open.flags.write && is_sent_later && self.has_unsent(node) {
            self.leave_kept(node, &open.class());
        } else if open.flags.write {
            match self.upload(node, self.deadline()).await {
                Err(Error::TimedOut | Error::Locked) => self.leave_unsent(node, RETRY_AFTER),
                // Unsent data is left to the next mount.
                Ok(()) | Err(Error::Shutdown) => {}
                Err(error) => refused = Some(error),
            }
        }
        self.end_open(node.ino, id).await;
        self.refresh_local_end(node);
        let token = open.replace_token(None);
        let (last, last_writer) = {
            let mut state = node.state();
            let last_writer = state.opens_mut().uncount(open.mode);
            if state.opens().is_empty() {
                state.dropped_mut().end();
            }
            (state.opens().is_empty(), last_writer)
        };
        if last_writer {
            // First: an open on record whose local file the kernel writes, and which the cache does
            // not know, would look like lost data.
            self.forget_open(id);
            let file = self.file(node);
            let ended = match file.try_end_bypass() {
                Some(ended) => Ok(ended),
                None => {
                    let bypassed = file.clone();
                    blocking(move || bypassed.end_bypass()).await
                }
            };
            if !matches!(ended, Ok(Ok(()))) {
                tracing::warn!(ino = node.ino.0, "cannot read back a cached file");
            }
            // First: a write-back of the file waits for the end of this, to know what is unsent.
            self.keep_unsent(node, &file);
            // First: code that learns of another version before this leaves the mixture to this
            // function.
            node.state().opens_mut().end_of_bypass();
            self.end_mixture(node, &file);
            node.released.notify_waiters();
        }
        // No caller is left to which an error could be reported, unless others write the file:
        // their closes will report it.
        if let Some(error) = refused.filter(|_| !self.is_written(node)) {
            if open.is_refused() && !node.state().unsent().is_late() {
                self.give_up(node, error);
            } else {
                self.set_aside(node, error).await;
            }
        }
        if last {
            node.released.notify_waiters();
        }
        if let Some(token) = token.filter(|_| self.remote.reachable()) {
            // The open ends with the connection, if the server cannot be told.
            let _ = self.remote.close(&self.caller(&open.cred), token).await;
        }
        let closed = if last { self.closed(node, &self.caller(&open.cred)).await } else { Ok(()) };
        // Forget the open last: if the worker dies before this, its successor still finds the file
        // open, and the kernel sends the release again.
        self.forget_open(id);
        closed
    }

    /// The file is not open any more.
    async fn closed(self: &Arc<Self>, node: &Arc<Node>, cred: &Cred) -> Result<()> {
        node.flights.closed();
        let (hidden, removed, unused) = {
            let state = node.state();
            (state.hidden().is_left_to_release(), state.is_gone(), state.opens().is_unused())
        };
        if hidden {
            // Else to the last release or failed open of those that came in the meantime.
            if unused {
                self.remove_hidden(node, cred).await?;
            }
        } else if removed {
            self.note_unfinished(node.ino, &mut node.state());
            self.cache.drop_file(node.no());
            self.cache.drop_node(node.no());
        } else if !self.options.cache_data && !self.has_unsent(node) {
            // Not what was written by a process that has opened the file in the meantime.
            self.file(node).give_up();
        } else {
            self.offer_to_fill(node, cred);
        }
        Ok(())
    }
}

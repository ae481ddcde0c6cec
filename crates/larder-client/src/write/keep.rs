//! Unsent data that is acknowledged when it is safe on this machine's disk: kept there, and sent
//! later ([`super::engine`]).
//!
//! Kept data may be sent long after it was written, so another client may have changed the file at
//! the server meanwhile. Before the first request that sends it the server is asked for the file's
//! version. If that is not the version on which our changes are based, ours are *set aside*, and
//! nothing of the other one is overwritten; unless the server has our bytes already: then a crash
//! came between its answer and our record of it. From the first request on the kept data counts as
//! being sent, and each later attempt continues that: this is recorded as well.
//!
//! A server that excludes other clients from a file on request ([`larder_vfs::Remote::exclude`]) is
//! asked for that first, before data is kept and before kept data is sent. So nobody reads what is
//! older than a close here, and nobody writes between that question and our data. Such a client
//! waits until we have sent, so it is not much that is kept of one file. Where versions say nothing
//! reliable, only files are kept that the server has empty ([`Keeps`]).

use std::sync::Arc;

use larder_cache::{BegunKeeping, CachedFile, Keeping};
use larder_class::{Class, Level};
use larder_vfs::{
    Cred, Deadline, Deferring, Error, Remote, Result, SetAttr, SetTime, Time, Validator,
};

use super::compared::is_late;
use super::schedule::{RETRY_AFTER, UNLIMITED};
use super::unsent::Event;
use crate::class::Wanted;
use crate::core::{Core, blocking};
use crate::journal::Version;
use crate::names::on_handle;
use crate::node::{Node, have_same_bytes};
use crate::options::Keeps;

/// Most bytes that are kept of a file for which another client may have to wait.
const KEPT_ALONE_BYTES_MAX: u64 = 64 << 20;
/// How often the server is asked again because other clients write all the time.
const CLAIMS_MAX: u32 = 3;

impl Core {
    /// Brings what is unsent to `level`, or to a stronger one, by the caller's `deadline`.
    pub(crate) async fn bring_to(
        &self,
        node: &Arc<Node>,
        level: Option<Level>,
        deadline: Option<Deadline>,
    ) -> Result<()> {
        if level <= Some(Level::Memory) && !self.options.sync {
            // The local file and the journal of names, where it is now, outlive the daemon.
            if !self.has_others_wait() || self.leave_alone(node, deadline).await? {
                return Ok(());
            }
            return self.upload(node, deadline).await;
        }
        let is_enough = level <= Some(Level::Local) || self.is_kept_enough();
        if is_enough && !self.options.sync && self.keep(node, deadline).await? {
            return self.bring_names_to(node, level.min(Some(Level::Local))).await;
        }
        self.upload(node, deadline).await?;
        self.bring_names_to(node, Some(Level::Durable)).await
    }

    /// Makes the names of a file as durable as its bytes: at `level`, or at a stronger one.
    async fn bring_names_to(&self, node: &Node, level: Option<Level>) -> Result<()> {
        let Some(here) = self.remote.deferring() else { return Ok(()) };
        match level {
            None | Some(Level::Memory) => return Ok(()),
            Some(Level::Local) if here.keep().await.is_ok() => return Ok(()),
            Some(_) => {}
        }
        here.replay(Some(&node.handle()?)).await
    }

    /// Whether the file was made here and is removed. Its bytes must survive a crash of the machine
    /// until the removal does: they are deleted after the name.
    pub(super) fn is_removed_here(&self, node: &Node) -> bool {
        let removed = || Some(self.remote.deferring()?.is_removed(&node.handle().ok()?));
        removed().unwrap_or(false)
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

    /// Keeps what is unsent on this machine's disk. Returns `false` if that is not possible.
    async fn keep(&self, node: &Arc<Node>, deadline: Option<Deadline>) -> Result<bool> {
        if !self.has_unsent(node) {
            return Ok(true);
        }
        // No task may send what is being recorded as unsent.
        let _transfer = node.transfer.begin(deadline).await?;
        let file = self.file(node);
        self.collect(node, &file).await?;
        let is_kept = self.keep_collected(node, file, deadline).await?;
        if is_kept {
            // If the machine crashes now, they are not lost.
            self.release_retained(node, false).await?;
        }
        Ok(is_kept)
    }

    /// The same in the file's turn, after what the kernel wrote was found.
    pub(super) async fn keep_collected(
        &self,
        node: &Arc<Node>,
        file: Arc<CachedFile>,
        deadline: Option<Deadline>,
    ) -> Result<bool> {
        let entry = self.keep_soon.entry(node.ino);
        let Some(begun) = self.begin_keeping(node, file, deadline).await? else { return Ok(false) };
        let kept = blocking(|| begun.wait()).await?;
        if self.options.keeps == Keeps::Alone
            && !node.handle().is_ok_and(|it| self.remote.is_excluding(&it))
        {
            // Another client waits, or has gone on.
            return Ok(false);
        }
        match &kept {
            Ok(()) => self.keep_soon.kept(node.ino, entry),
            Err(error) => {
                tracing::debug!(ino = node.ino.0, %error, "not kept on this disk: sent at once");
            }
        }
        Ok(kept.is_ok())
    }

    /// The same but for the wait for the disk; `None` if it is not possible.
    pub(super) async fn begin_keeping(
        &self,
        node: &Arc<Node>,
        file: Arc<CachedFile>,
        deadline: Option<Deadline>,
    ) -> Result<Option<BegunKeeping>> {
        debug_assert!(node.transfer.is_taken(), "no task sends what is being recorded as unsent");
        let (mode, server_end) = {
            let state = node.state();
            if state.is_gone() {
                return Ok(None);
            }
            (state.known().attr.mode, state.server_end())
        };
        // A share lets nobody write to a read-only file, and what is sent later is sent without the
        // open by which it was written.
        let may_write = mode & 0o200 != 0;
        let may_keep = match self.options.keeps {
            Keeps::Any => true,
            Keeps::Alone => self.may_keep_alone(node, &file, deadline).await,
            Keeps::Empty => may_write && server_end == 0,
        };
        if !may_keep {
            return Ok(None);
        }
        self.note_unfinished(node.ino, &mut node.state());
        let begun = blocking(move || file.begin_keeping()).await?;
        if let Err(error) = &begun {
            tracing::debug!(ino = node.ino.0, %error, "not kept on this disk: sent at once");
        }
        Ok(begun.ok())
    }

    /// Whether a file may be kept whose other clients are to be excluded. They are, then.
    pub(super) async fn may_keep_alone(
        &self,
        node: &Arc<Node>,
        file: &CachedFile,
        deadline: Option<Deadline>,
    ) -> bool {
        if file.unsent().bytes > KEPT_ALONE_BYTES_MAX {
            return false;
        }
        let mut cred = self.writer(node);
        cred.deadline = deadline;
        // What only this machine has need not be made at the server for that.
        let server = self.remote.deferring().map_or(&*self.remote, Deferring::names);
        match self.exclude(server, node, &cred).await {
            // What is over another client's change is sent now: its writer is still there.
            Ok(is_alone) => is_alone && !node.state().unsent().is_mixed(),
            Err(error) => {
                tracing::debug!(ino = node.ino.0, %error, "others are not excluded: sent at once");
                false
            }
        }
    }

    /// Excludes other clients from a file, and learns what it is. `false` if that cannot be had.
    async fn exclude(&self, server: &dyn Remote, node: &Arc<Node>, cred: &Cred) -> Result<bool> {
        let asked = self.now();
        let attr = on_handle!(self, cred, node, handle => server.exclude(cred, &handle))?;
        let Some(attr) = attr else { return Ok(false) };
        self.observe(node, attr, asked);
        Ok(true)
    }

    /// Sends what is kept of a file before a rename: callers that find it by the new name may rely
    /// on more.
    ///
    /// # Errors
    /// The server's error.
    pub(crate) async fn send_kept(&self, node: &Arc<Node>) -> Result<()> {
        if self.is_left_here(node) || self.file(node).is_in_memory() {
            self.upload(node, self.deadline()).await?;
        }
        Ok(())
    }

    /// Whether a close has left bytes of the file on this machine.
    pub(crate) fn is_left_here(&self, node: &Node) -> bool {
        self.file(node).keeping() != Keeping::Nothing || self.keep_soon.entry(node.ino).is_some()
    }

    /// Decides whether what was kept may be sent, before it is sent for the first time.
    ///
    /// # Errors
    /// [`Error::Changed`] if another client has changed the file: our data is set aside. The
    /// server's error if it cannot be asked.
    pub(super) async fn begin_sending_kept(&self, node: &Arc<Node>, cred: &Cred) -> Result<()> {
        let file = self.file(node);
        match file.keeping() {
            Keeping::Kept => {}
            // An earlier process may have died before it sent the first of them.
            Keeping::Sending if self.is_claimed(node) => {
                return self.compare_before_bytes(node, cred).await;
            }
            Keeping::Sending | Keeping::Nothing => return Ok(()),
        }
        let mut attempts = 0..CLAIMS_MAX;
        loop {
            self.compare_before_bytes(node, cred).await?;
            match self.claim(node, cred).await {
                // Another client has changed it after that question.
                Err(Error::TryAgain) if attempts.next().is_some() => {}
                Err(Error::TryAgain) => return Err(Error::TimedOut),
                claimed => break claimed?,
            }
        }
        let is_durable = self.pieces(&file.dirty(), true).len() > 1;
        let noted = blocking(move || file.keep_until_sent(is_durable)).await?;
        noted.map_err(|error| {
            tracing::error!(ino = node.ino.0, %error, "the cache's disk does not keep records");
            Error::Io
        })
    }

    /// Asks the server for the file's version, and sets our data aside if that is another client's.
    ///
    /// # Errors
    /// As [`Core::begin_sending_kept`].
    async fn compare_before_bytes(&self, node: &Arc<Node>, cred: &Cred) -> Result<()> {
        if self.options.keeps == Keeps::Alone {
            // It is sent later if another client is just about to go on.
            self.exclude(&*self.remote, node, cred).await?.then_some(()).ok_or(Error::TimedOut)?;
        } else {
            self.set_before_bytes(node, cred).await?;
            let asked = self.now();
            let attr = on_handle!(self, cred, node, handle => self.remote.getattr(cred, &handle))?;
            self.observe(node, attr, asked);
        }
        let file = self.file(node);
        let is_over_another = {
            let state = node.state();
            let is_empty = self.options.keeps == Keeps::Empty && state.known().attr.size == 0;
            let now = state.known().attr.validator();
            state.unsent().is_mixed()
                && !is_empty
                && !is_over_same_bytes(&file, &now, state.unsent().asked_time())
        };
        if is_over_another && !self.is_sent_already(node, cred).await? {
            self.set_aside(node, Error::Changed).await;
            return Err(Error::Changed);
        }
        Ok(())
    }

    /// Claims a file before the first of its bytes goes, if other machines may have changed it
    /// without the server, too: the one that claims it has no other one's bytes below its own.
    ///
    /// # Errors
    /// [`Error::TryAgain`] if the server has another version by now.
    async fn claim(&self, node: &Arc<Node>, cred: &Cred) -> Result<()> {
        let Some(here) = self.remote.deferring() else { return Ok(()) };
        let (handle, shown) = (node.handle()?, node.state().known().attr);
        if self.options.keeps != Keeps::Any
            || !node.state().unsent().is_from_away()
            || here.lacks_bytes(&handle)
        {
            return Ok(());
        }
        here.claim(cred, &handle, &shown).await
    }

    fn is_claimed(&self, node: &Node) -> bool {
        let claimed = || Some(self.remote.deferring()?.is_claimed(&node.handle().ok()?));
        claimed().unwrap_or(false)
    }

    /// Has the server empty a file that was emptied here, and set what else was set, or gives that
    /// up: so it is decided before the bytes are on record as being sent, which is never asked
    /// again, that the server's version is the one below them. What was made here goes to the
    /// server with its bytes.
    async fn set_before_bytes(&self, node: &Arc<Node>, cred: &Cred) -> Result<()> {
        let is_made_here = |here: &dyn Deferring| Ok(here.lacks_bytes(&node.handle()?));
        if self.remote.deferring().map_or(Ok(true), is_made_here)? {
            return Ok(());
        }
        // Where no client is excluded, this only has everything set on which it depends.
        on_handle!(self, cred, node, handle => self.remote.exclude(cred, &handle)).map(drop)
    }

    /// What was kept of the file, and is at the server by now, is not sent again after a crash of
    /// the machine: other bytes come next, or are acknowledged.
    ///
    /// # Errors
    /// [`Error::Io`] if this machine's disk does not record that.
    pub(crate) async fn forget_kept(&self, node: &Node) -> Result<()> {
        let file = self.file(node);
        if !file.may_come_back() {
            return Ok(());
        }
        let forgotten = blocking(move || file.forget_kept()).await?;
        forgotten.map_err(|error| {
            tracing::error!(ino = node.ino.0, %error, "the cache's disk does not forget what it kept");
            Error::Io
        })
    }

    /// A file that is sent long after it was written gets the time at which it was written:
    /// programs compare times. A caller that may not set the time does without.
    pub(super) async fn set_time_of_writing(&self, node: &Arc<Node>, cred: &Cred, mtime: Time) {
        let set = SetAttr { mtime: Some(SetTime::To(mtime)), ..SetAttr::default() };
        node.state().unsent_mut().ask_for_time(Some(mtime));
        self.begin_change(node);
        let answer = on_handle!(self, cred, node, handle =>
            self.remote.setattr(cred, &handle, set, None));
        if !answer.as_ref().is_err_and(|error| is_late(*error)) {
            node.state().unsent_mut().ask_for_time(None);
        }
        self.end_change(node, answer.as_ref().ok().copied());
        if let Err(error) = answer {
            tracing::debug!(ino = node.ino.0, %error, "it has the time at which it was sent");
        }
    }

    /// No caller is told any more of data that was written since the file was last kept: it is sent
    /// with that.
    pub(crate) fn leave_kept(&self, node: &Node, class: &Class) {
        node.state().unsent_mut().leave_for(Wanted::by(class));
        let age = node.state().unsent().age(self.options.unsent_age_max);
        // Nobody asks for what the server was not told of.
        let is_unknown = age == UNLIMITED && self.has_others_wait() && !self.is_retained(node);
        let wait = if is_unknown { RETRY_AFTER } else { age };
        self.unsent_event(node.ino, &mut node.state(), Event::Left { wait });
    }
}

/// Whether the changes of a file are over the bytes of a version, although that is another one: the
/// file was given another name or other attributes, perhaps by a request of ours to which an
/// earlier process had no answer, or it may have got this time by one. A conflict is about bytes.
fn is_over_same_bytes(file: &CachedFile, now: &Validator, asked_time: Option<Time>) -> bool {
    let below = file.version().and_then(|version| Version::times_in(&version));
    below.is_some_and(|below| {
        let has_asked_time = below.size == now.size && asked_time == Some(now.mtime);
        has_asked_time || have_same_bytes(&below, now)
    })
}

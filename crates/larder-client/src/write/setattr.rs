//! Sets attributes, including size: at the server, after sending what is unsent; or here, beside
//! what is unsent, if this machine answers for the file's name ([`larder_vfs::Deferring`]).

use std::sync::Arc;

use larder_cache::NoSpace;
use larder_vfs::{Change, Cred, Deferring, Error, Fresh, Ino, OpenId, Result, SetAttr};

use super::local_end::{LocalEnd, time_of};
use super::unsent::Event;
use crate::core::{Core, blocking};
use crate::limits::Transferring;
use crate::names::on_handle;
use crate::node::{Node, replacing};

impl Core {
    /// Sets attributes for the front door, which takes a new size from the answer. No other write
    /// or truncation of the file is under way there: the kernel holds the inode's lock.
    pub(crate) async fn setattr_for_kernel(
        self: &Arc<Self>,
        cred: &Cred,
        ino: Ino,
        open: Option<OpenId>,
        set: SetAttr,
    ) -> Result<Fresh> {
        let fresh = self.setattr(cred, ino, open, set).await?;
        if set.size.is_some() {
            self.node(ino)?.state().opens_mut().set_believed_end(fresh.attr.size);
        }
        Ok(fresh)
    }

    /// Sets attributes. What is set at the server is set after unsent data was sent, so that a time
    /// that is set stays.
    pub(crate) async fn setattr(
        self: &Arc<Self>,
        cred: &Cred,
        ino: Ino,
        open: Option<OpenId>,
        set: SetAttr,
    ) -> Result<Fresh> {
        self.refuse_read_only()?;
        let node = self.node(ino)?;
        let deadline = cred.deadline;
        let opened_by = self.open_cred(open);
        if opened_by.is_none() {
            self.demand_path(&node, cred).await?;
        }
        let cred = opened_by.unwrap_or_else(|| cred.clone());
        let set = self.without_dropped(&node, &cred, set);
        if set == SetAttr::default() {
            return Ok(self.fresh(&node));
        }
        let transfer = node.transfer.begin(deadline).await?;
        let here = self.set_here(&node, &cred, set).await;
        let cred = &cred.until(transfer.extend(deadline));
        match here {
            Some(answer) => answer?,
            None => self.set_there(&node, &transfer, cred, set).await?,
        }
        if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            node.state().mode_was_set();
        }
        drop(transfer);
        if node.state().fresh_for(self.session, self.now()).is_zero() {
            self.revalidate(&node, cred).await?;
        }
        Ok(self.fresh(&node))
    }

    /// Sets attributes at the server, after sending what is unsent.
    async fn set_there(
        &self,
        node: &Arc<Node>,
        transfer: &Transferring<'_>,
        cred: &Cred,
        set: SetAttr,
    ) -> Result<()> {
        if self.has_unsent(node) {
            self.upload_locked(node, transfer, cred.deadline).await?;
        }
        if set.size.is_some() {
            self.forget_kept(node).await?;
        }
        let cred = &cred.until(transfer.extend(cred.deadline));
        self.begin_change(node);
        let answer = on_handle!(self, cred, node, handle =>
            self.remote.setattr(cred, &handle, set, None));
        let followed = match (&answer, set.size) {
            (Ok(_), Some(size)) => self.truncate_held(node, size).await,
            _ => Ok(()),
        };
        // What is cached may not be what the server has now, so it cannot stay valid under the new
        // version.
        let told = answer.as_ref().ok().filter(|_| followed.is_ok());
        self.end_change(node, told.copied());
        let change = answer?;
        followed?;
        // To set a size that the file has may change nothing.
        if set.size.is_none() {
            self.times.see_step(&change);
        }
        Ok(())
    }

    /// Sets attributes of a file on this machine. Its unsent bytes stay unsent, except those that a
    /// new size cuts off. `None` if that cannot be answered here: then nothing has happened.
    async fn set_here(&self, node: &Arc<Node>, cred: &Cred, set: SetAttr) -> Option<Result<()>> {
        let here = self.deferring_attributes(cred, node)?;
        let Some(size) = set.size else { return self.set_but_size(node, cred, set) };
        let is_servers = !here.lacks_bytes(&node.handle().ok()?);
        if is_servers && size > 0 {
            return None;
        }
        // What the kernel wrote must be known first.
        if let Err(error) = self.collect(node, &self.file(node)).await {
            return Some(Err(error));
        }
        if is_servers {
            return self.empty_here(node, cred, set).await;
        }
        let others = SetAttr { size: None, mtime: None, ..set };
        if let Err(error) = self.set_but_size(node, cred, others)? {
            return Some(Err(error));
        }
        if let Err(error) = self.cut_here(node, cred, size).await {
            return Some(Err(error));
        }
        // Recorded after the bytes that were cut off are no longer kept: where names are kept,
        // those are too. If a write-back is about to ask the server for the file, the time is set
        // there.
        let time = SetAttr { size: set.size, mtime: set.mtime, ..SetAttr::default() };
        self.set_but_size(node, cred, time).or(Some(Ok(())))
    }

    /// Empties a file of the server's on this machine. That is on record before its bytes go: if
    /// the process dies in between, the next one goes on with it ([`Core::empty_recorded`]).
    async fn empty_here(&self, node: &Arc<Node>, cred: &Cred, set: SetAttr) -> Option<Result<()>> {
        if let Err(error) = self.set_but_size(node, cred, set)? {
            return Some(Err(error));
        }
        Some(self.cut_here(node, cred, 0).await)
    }

    /// An earlier process may have died after it had recorded that a file of the server's is empty
    /// now, and before its bytes were gone: they go. May read the local disk.
    pub(crate) fn empty_recorded(&self) {
        let emptied = self.remote.deferring().map_or_else(Vec::new, Deferring::emptied);
        for (handle, attr) in emptied {
            let Some(node) = self.held_node(&handle) else { continue };
            let known = node.state().known().attr.validator();
            if !known.same_data(&attr.validator()) {
                self.begin_change(&node);
                let change = Change { before: None, after: Some(attr) };
                self.end_change(&node, Some(replacing(&known, change)));
            }
            let version = node.state().version();
            if !version.validator.same_data(&attr.validator()) {
                continue;
            }
            let (file, version) = (self.file(&node), version.bytes());
            // What was written after it was emptied is over this version.
            let is_older = file.version().is_some_and(|held| held != version);
            if is_older && file.empty(&version).is_err() {
                tracing::warn!(ino = node.ino.0, "no room to truncate the cached copy");
            }
        }
    }

    /// The same, except for a size, which the caller must change.
    fn set_but_size(&self, node: &Node, cred: &Cred, set: SetAttr) -> Option<Result<()>> {
        let (here, handle) = (self.deferring_attributes(cred, node)?, node.handle().ok()?);
        let written_ns = self.has_unsent(node).then(|| self.file(node).local_mtime_ns()).flatten();
        self.begin_change(node);
        let answer = here.set_here(cred, &handle, &set, written_ns);
        let told = answer.as_ref().and_then(|answer| answer.as_ref().ok());
        self.end_change(node, told.copied());
        let change = match answer? {
            Ok(change) => change,
            Err(error) => return Some(Err(error)),
        };
        if let (Some(_), Some(written_ns), Some(attr)) = (set.mtime, written_ns, change.after) {
            self.refresh_local_end(node);
            let given = Event::TimeGiven { time: attr.mtime, over: time_of(written_ns) };
            self.unsent_event(node.ino, &mut node.state(), given);
        }
        Some(Ok(()))
    }

    /// Truncates or extends a file of which the server has no byte. New bytes are zeros; the last
    /// one is sent, and with it the size.
    async fn cut_here(&self, node: &Arc<Node>, cred: &Cred, size: u64) -> Result<()> {
        debug_assert!(node.transfer.is_taken(), "a file is truncated in its turn");
        let file = self.file(node);
        self.prepare(node, &file);
        let (cut, version) = (file.clone(), node.state().version().bytes());
        let done = blocking(move || -> Result<(), NoSpace> {
            match size {
                0 => cut.empty(&version)?,
                _ => cut.truncate(size)?,
            }
            let last = size.checked_sub(1);
            let is_sent =
                |last| cut.dirty().iter().any(|range: &std::ops::Range<u64>| range.contains(&last));
            match last.filter(|last| !is_sent(*last)) {
                Some(last) => cut.write(last, &[0]),
                None => Ok(()),
            }
        });
        done.await?.map_err(|NoSpace| Error::NoSpace)?;
        self.cut_older(node, &file, size);
        // The next process finds this time, which may be a moment before the present one.
        let mtime = file.local_mtime_ns().map_or_else(|| self.wall(), time_of);
        let end = LocalEnd { size, mtime };
        let will_close = self.is_written(node);
        // None of its bytes are kept any more.
        if size == 0 && !node.state().opens().bypassing() {
            self.make_clean(node, &file);
        }
        let mut state = node.state();
        let event = match size {
            0 => Event::Cut(None),
            _ => Event::Written { end, writer: cred, is_over_another: false },
        };
        self.unsent_event(node.ino, &mut state, event);
        if state.opens().bypassing() {
            let end = state.opens().local_end();
            state.opens_mut().set_collected(end);
        }
        drop(state);
        if !will_close {
            self.leave_kept(node, &self.class_for(node, cred));
        }
        Ok(())
    }

    /// Updates the local file after a truncation at the server. What was written in the meantime
    /// stays unsent.
    pub(crate) async fn truncate_held(&self, node: &Node, size: u64) -> Result<()> {
        debug_assert!(node.transfer.is_taken(), "a file is truncated in its turn");
        let file = self.file(node);
        let version = node.state().version().bytes();
        // A process for which the kernel writes the local file sees that file, whatever version the
        // server has.
        let held = file.version() == Some(version) || node.state().opens().bypassing();
        // What is beyond the end of another version is not known.
        if held || (size < file.size() && !file.dirty().is_empty()) {
            let cut = file.clone();
            let truncated = blocking(move || cut.truncate(size)).await?;
            if truncated.is_err() {
                tracing::warn!(ino = node.ino.0, "no room to truncate the cached copy");
            }
        }
        self.cut_older(node, &file, size);
        let mut state = node.state();
        let is_dirty = !file.dirty().is_empty();
        let end = is_dirty.then(|| LocalEnd { size: file.size(), mtime: self.wall() });
        self.unsent_event(node.ino, &mut state, Event::Cut(end));
        if held {
            let end = state.opens().local_end();
            state.opens_mut().set_collected(end);
        }
        Ok(())
    }
}

//! Accepts writes: into the local file, and on to the server if they must be there at once.

use std::sync::Arc;

use bytes::Bytes;
use larder_class::Level;
use larder_vfs::{
    Answer, Change, Cred, Deadline, Error, Ino, OpenId, Result, Stability, Verifier, Written,
};

use super::local_end::LocalEnd;
use super::unsent::Event;
use super::{RETRY_AFTER, UNLIMITED};
use crate::core::{Core, blocking_unless};
use crate::names::on_handle;
use crate::node::Node;
use crate::open::OpenFile;

impl Core {
    /// Accepts a write: into the local file, and on to the server if it must be there at once.
    pub(crate) fn write(
        self: &Arc<Self>,
        cred: &Cred,
        ino: Ino,
        open: Option<OpenId>,
        offset: u64,
        data: &[u8],
        stability: Stability,
    ) -> Answer<Written> {
        let node = match self.refuse_read_only().and_then(|()| self.node(ino)) {
            Ok(node) => node,
            Err(error) => return Answer::fail(error),
        };
        if let Err(lost) = self.refuse_lost(ino, open) {
            return Answer::fail(lost);
        }
        let open = open.and_then(|id| self.open_file(id).ok());
        let synchronous = self.is_synchronous(&node, open.as_deref(), cred, stability);
        let (retried, deadline) = (cred.retried, self.deadline());
        let cred = open.as_ref().map_or(cred, |open| &open.cred);
        let cred = Cred { retried, ..cred.until(deadline) };
        let quick = self.file(&node).writes_quickly();
        // An append needs to know where the file ends.
        let asks = open.as_ref().is_some_and(|open| open.flags.append)
            && !self.has_unsent(&node)
            && !self.is_fresh(&node);
        let drops = open.as_ref().is_some_and(|open| self.drops_unsaid(&node, open.mode, &cred));
        let waits = synchronous || asks || drops || self.too_dirty(&node);
        if open.is_some()
            && quick
            && !waits
            && let Some(written) = self.write_held(&node, open.as_deref(), &cred, offset, data)
        {
            return Answer::ok(written);
        }
        let (core, data) = (self.clone(), Bytes::copy_from_slice(data));
        Answer::later(async move {
            if drops {
                core.drop_by_write(&node).await;
            }
            if open.is_none() {
                core.demand_bytes(&node, &cred, larder_vfs::Access::MODIFY, false).await?;
            }
            if asks {
                core.ask_attributes(&node, &cred).await?;
            }
            let first = !core.has_unsent(&node);
            let (writer, target) = (core.clone(), (node.clone(), cred.clone(), data.clone()));
            let is_open = open.is_some();
            let write = move || {
                let (node, cred, data) = target;
                writer.write_held(&node, open.as_deref(), &cred, offset, &data)
            };
            let written = blocking_unless(quick, write).await?;
            let Some(mut written) = written else {
                return core.write_through(&node, &cred, offset, data).await;
            };
            if synchronous || core.too_dirty(&node) {
                core.upload(&node, deadline).await?;
                written.stability = Stability::FileSync;
            } else if first && !is_open {
                // No close will come, and the commit of a caller that died neither.
                core.leave_unsent(&node, RETRY_AFTER);
            }
            Ok(written)
        })
    }

    /// Whether a write is to be on the server's disk when it is answered.
    fn is_synchronous(
        &self,
        node: &Node,
        open: Option<&OpenFile>,
        cred: &Cred,
        stability: Stability,
    ) -> bool {
        let asks = stability != Stability::Unstable || self.options.sync;
        asks || match open {
            Some(open) => open.is_synchronous(),
            None => self.class_for(node, cred).is_synchronous(),
        }
    }

    /// Changes the local file; `None` if the cache has no room or too much is dirty already.
    fn write_held(
        self: &Arc<Self>,
        node: &Arc<Node>,
        open: Option<&OpenFile>,
        cred: &Cred,
        offset: u64,
        data: &[u8],
    ) -> Option<Written> {
        if data.is_empty() {
            // Nothing is unsent, and the file's time stays.
            return Some(self.taken(0, Stability::Unstable));
        }
        let file = self.file(node);
        self.prepare(node, &file);
        let at = match open {
            // The kernel passes the end that it knows: it may remember one from before another
            // client truncated the file. A request that is sent again goes where the first attempt
            // went.
            Some(open) if open.flags.append => {
                self.refresh_local_end(node);
                let end = node.state().attr().size;
                if cred.retried { offset.min(end) } else { end }
            }
            _ => offset,
        };
        file.write(at, data).ok()?;
        self.write_older(node, &file, at, data);
        let end = at + data.len() as u64;
        let mut state = node.state();
        let size = state.attr().size.max(end);
        // The server may have reported another version in the meantime.
        let is_over_another =
            !state.has_unsent() && file.version() != Some(state.version().bytes());
        let end = LocalEnd { size, mtime: self.wall() };
        let written = Event::Written { end, writer: cred, is_over_another };
        self.unsent_event(node.ino, &mut state, written);
        state.opens_mut().raise_believed_end(size);
        drop(state);
        // Long writes go to the server while they are still being made.
        if file.dirty_bytes() > self.options.dirty_bytes_max && !self.may_stay_unsent(node) {
            self.send_early(node);
        }
        let len = u32::try_from(data.len()).expect("a write request is short");
        Some(self.taken(len, Stability::Unstable))
    }

    fn taken(&self, len: u32, stability: Stability) -> Written {
        Written { len, stability, verifier: self.verifier(), change: Change::default() }
    }

    /// Our own verifier, for front doors that pass commits on: a restart of ours loses what was not
    /// synced.
    pub(crate) fn verifier(&self) -> Verifier {
        Verifier(self.session)
    }

    fn too_dirty(&self, node: &Node) -> bool {
        self.file(node).dirty_bytes() > 4 * self.options.dirty_bytes_max
            && !self.may_stay_unsent(node)
    }

    /// Whether nothing of the file need be at the server.
    fn may_stay_unsent(&self, node: &Node) -> bool {
        node.state().unsent().age(self.options.unsent_age_max) == UNLIMITED
    }

    /// The cache cannot take the write: dirty data is sent first, then this write is sent straight
    /// to the server's disk. What the cache held of the file is given up.
    ///
    /// # Errors
    /// The server's error; [`Error::NoSpace`] if the kernel writes the same file locally.
    async fn write_through(
        &self,
        node: &Arc<Node>,
        cred: &Cred,
        offset: u64,
        data: Bytes,
    ) -> Result<Written> {
        let transfer = node.transfer.begin(cred.deadline).await?;
        self.upload_locked(node, &transfer, cred.deadline).await?;
        if node.state().opens().bypassing() {
            return Err(Error::NoSpace);
        }
        self.forget_kept(node).await?;
        let len = u32::try_from(data.len()).expect("a write request is short");
        let cred = &cred.until(transfer.extend(cred.deadline));
        self.begin_change(node);
        let open = self.open_files.token(node.ino, true);
        self.say_archived(node, cred).await?;
        let answer = on_handle!(self, cred, node, handle =>
            self.remote.write(cred, &handle, open.as_ref(), offset, data.clone(), Stability::FileSync));
        let changes = answer.as_ref().ok().map(|written| written.change);
        if changes.is_some() {
            node.state().wrote(offset + data.len() as u64);
        }
        // Without a version, so that the change cannot make the cached bytes valid under a new one.
        // What was written in the meantime, and found room, stays; other cached bytes are dropped
        // once that is sent.
        if !self.file(node).give_up() {
            node.state().unsent_mut().mix();
        }
        self.end_change(node, changes);
        answer?;
        self.write_older(node, &self.file(node), offset, &data);
        Ok(self.taken(len, Stability::FileSync))
    }

    /// On return, everything written so far is where the classes of the open files require it: on
    /// the server's disk, if the file is not open.
    pub(crate) async fn fsync(
        &self,
        ino: Ino,
        open: Option<OpenId>,
        deadline: Option<Deadline>,
    ) -> Result<Verifier> {
        let node = self.node(ino)?;
        let class = self.open_files.strongest_fsync(ino).unwrap_or(Some(Level::Durable));
        let result = self.bring_to(&node, class, deadline).await;
        self.count_sync(&node);
        let open = open.and_then(|open| self.open_file(open).ok());
        let earlier = self.take_write_error(&node, open.as_deref());
        result.and(earlier.map_or(Ok(self.verifier()), Err))
    }
}

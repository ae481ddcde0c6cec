//! Writes: into the cache first, then to the server.
//!
//! A write changes the local file and marks the bytes dirty. Close and fsync carry dirty bytes to the
//! server: one FILE_SYNC request where all fits, else UNSTABLE requests in parallel and a COMMIT. If
//! the commit's verifier differs from a write's, the server restarted and may have lost it, so
//! everything is sent again (RFC 1813, 3.3.7 and 3.3.21). Bytes become clean when the server has them
//! on its disk and nobody else wrote meanwhile; then what is held is valid under the new version.
//!
//! What nobody closes or syncs is sent by the [`super::engine`], when its [`super::schedule`] says so.
//!
//! A failed write-back is reported once, by the close or fsync that waited for it, or the next one.
//! The bytes stay dirty and are tried again while the file is open or the server is out of reach.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_cache::CachedFile;
use larder_vfs::{
    Answer, Change, Cred, Deadline, Error, Ino, OpenId, Result, Stability, Verifier, Written,
};

use super::RETRY_AFTER;
use super::send::Sent;
use super::unsent::{Event, LocalEnd};
use crate::core::{Core, blocking, blocking_unless, on_handle};
use crate::journal::Version;
use crate::limits::Transferring;
use crate::names::last_path;
use crate::node::{Node, replacing};
use crate::open::OpenFile;

/// More than this is read and sent by the runtime: whoever received the request has others to receive.
const SENT_IN_PLACE_BYTES: u64 = 256 << 10;

impl Core {
    /// Takes a write: into the local file, and on to the server if it must be there at once.
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
        let open = open.and_then(|id| self.open_file(id).ok());
        let synchronous = stability != Stability::Unstable
            || self.options.sync
            || open.as_ref().is_some_and(|open| open.flags.sync);
        let (retried, deadline) = (cred.retried, self.deadline());
        let cred = open.as_ref().map_or(cred, |open| &open.cred);
        let cred = Cred { retried, ..cred.until(deadline) };
        let quick = self.file(&node).writes_quickly();
        // An append needs to know where the file ends.
        let asks = open.as_ref().is_some_and(|open| open.flags.append)
            && !self.has_unsent(&node)
            && !self.is_fresh(&node);
        let drops = open.as_ref().is_some_and(|open| self.drops_unsaid(&node, open.mode, &cred));
        if open.is_some()
            && !synchronous
            && !asks
            && !drops
            && quick
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

    /// Changes the local file; `None` if the cache has no room or too much is dirty already.
    fn write_held(
        self: &Arc<Self>,
        node: &Arc<Node>,
        open: Option<&OpenFile>,
        cred: &Cred,
        offset: u64,
        data: &[u8],
    ) -> Option<Written> {
        let file = self.file(node);
        self.prepare(node, &file);
        let at = match open {
            // The kernel says where it believes the end to be: it may remember one from before somebody else
            // cut the file. A request that comes once more goes where the first try went.
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
        // The server may have told of another version since we looked.
        let is_over_another =
            !state.has_unsent() && file.version() != Some(state.version().bytes());
        let end = LocalEnd { size, mtime: self.wall() };
        let written = Event::Written { end, writer: cred, is_over_another };
        self.unsent_event(node.ino, &mut state, written);
        drop(state);
        // Long writes go to the server while they are still being made.
        if file.dirty_bytes() > self.options.dirty_bytes_max {
            self.send_early(node);
        }
        let len = u32::try_from(data.len()).expect("a write request is short");
        Some(self.taken(len, Stability::Unstable))
    }

    fn taken(&self, len: u32, stability: Stability) -> Written {
        Written { len, stability, verifier: self.verifier(), change: Change::default() }
    }

    /// Our own verifier, for doors that pass commits on: a restart of ours loses what was not synced.
    pub(crate) fn verifier(&self) -> Verifier {
        Verifier(self.session)
    }

    fn too_dirty(&self, node: &Node) -> bool {
        self.file(node).dirty_bytes() > 4 * self.options.dirty_bytes_max
    }

    /// The cache cannot take the write: what is dirty goes first, then this write, straight to the
    /// server's disk. What the cache held of the file is given up.
    ///
    /// # Errors
    /// What the server answers; [`Error::NoSpace`] if the kernel writes the same file locally.
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
        let len = u32::try_from(data.len()).expect("a write request is short");
        let cred = &cred.until(transfer.extend(cred.deadline));
        self.begin_change(node);
        let answer = on_handle!(self, cred, node, handle =>
            self.remote.write(cred, &handle, offset, data.clone(), Stability::FileSync));
        let changes = answer.as_ref().ok().map(|written| written.change);
        // Under a version that no server gives, so that the change cannot carry it on. What was written
        // meanwhile, and did find room, stays; what is held beside it goes once that is sent.
        if !self.file(node).reset(b"given up", 0) {
            node.state().unsent_mut().mix();
        }
        self.end_change(node, changes);
        answer?;
        self.write_older(node, &self.file(node), offset, &data);
        Ok(self.taken(len, Stability::FileSync))
    }

    /// Everything written so far is on the server's disk on return.
    pub(crate) async fn fsync(&self, ino: Ino, deadline: Option<Deadline>) -> Result<Verifier> {
        let node = self.node(ino)?;
        let result = self.upload(&node, deadline).await;
        self.count_sync(&node);
        let earlier = self.take_write_error(&node);
        result.and(earlier.map_or(Ok(self.verifier()), Err))
    }

    /// The failure of a write-back that nobody was told of yet.
    pub(crate) fn take_write_error(&self, node: &Node) -> Option<Error> {
        let mut state = node.state();
        let earlier = state.unsent_mut().take_failure();
        if earlier.is_some() {
            self.note_unfinished(node.ino, &mut state);
        }
        earlier
    }

    /// Whether the file may have bytes that the server lacks.
    pub(crate) fn has_unsent(&self, node: &Node) -> bool {
        node.state().has_unsent()
    }

    /// Carries dirty bytes to the server's disk, for a caller who waits until `deadline`, or longer while they move.
    pub(crate) async fn upload(&self, node: &Arc<Node>, deadline: Option<Deadline>) -> Result<()> {
        if !self.has_unsent(node) {
            return Ok(());
        }
        let transfer = node.transfer.begin(deadline).await?;
        self.upload_locked(node, &transfer, deadline).await
    }

    /// The same, for who holds [`Node::transfer`].
    pub(crate) async fn upload_locked(
        &self,
        node: &Arc<Node>,
        transfer: &Transferring<'_>,
        deadline: Option<Deadline>,
    ) -> Result<()> {
        if !self.has_unsent(node) {
            return Ok(());
        }
        let file = self.file(node);
        if node.state().is_gone() {
            file.discard_dirty();
            self.unsent_event(node.ino, &mut node.state(), Event::GivenUp);
            return Ok(());
        }
        let compared = self.collect(node, &file).await?;
        let deadline = deadline.map(|deadline| deadline.extended(compared));
        let dirty = file.begin_sending();
        if dirty.is_empty() {
            self.settle_clean(node, &file);
            return Ok(());
        }
        if dirty.iter().map(|range| range.end - range.start).sum::<u64>() > SENT_IN_PLACE_BYTES {
            tokio::task::yield_now().await;
        }
        let cred = self.writer(node).until(transfer.extend(deadline));
        self.lease_many_requests(node, &cred, &dirty).await;
        self.begin_change(node);
        let sent = self.send_until_stable(node, transfer, &file, &cred, &dirty).await;
        let held = node.state().version();
        self.end_upload(node, &file, &dirty, held, sent)
    }

    /// [`Core::upload`] for nobody who waits: a file that the kernel has to write, and has not written since it was last
    /// compared, is not compared again.
    pub(super) async fn upload_later(&self, node: &Arc<Node>) -> Result<()> {
        let file = self.file(node);
        let is_quiet = {
            let state = node.state();
            state.opens().bypassing() && state.unsent().end().is_none()
        };
        if is_quiet && file.dirty().is_empty() {
            let written = file.clone();
            if let Ok(false) = blocking(move || written.was_bypassed()).await? {
                return Ok(());
            }
        }
        self.upload(node, self.deadline()).await
    }

    /// A server that gives leases does not tell what it saw before a WRITE: only a lease proves that nobody else
    /// wrote between several of them. One costs a request, and reading the file again would cost many.
    async fn lease_many_requests(&self, node: &Node, cred: &Cred, dirty: &[Range<u64>]) {
        if self.pieces(dirty).len() > 1
            && self.wants_lease(node)
            && let Err(error) = self.ask_rights(node, cred).await
        {
            tracing::debug!(ino = node.ino.0, %error, "no lease for a write-back");
        }
    }

    /// Finds what the kernel wrote past us; answers how long that took.
    async fn collect(&self, node: &Node, file: &Arc<CachedFile>) -> Result<Duration> {
        if !node.state().opens().bypassing() {
            return Ok(Duration::ZERO);
        }
        let begun = self.now();
        let collected = match file.try_collect_bypass() {
            Some(collected) => collected,
            None => {
                let bypassed = file.clone();
                blocking(move || bypassed.collect_bypass()).await?
            }
        };
        let before = collected.map_err(|error| {
            tracing::error!(ino = node.ino.0, %error, "cannot read back what was written locally");
            Error::Io
        })?;
        let before = before.map(|stamp| LocalEnd::of(&stamp));
        let mut state = node.state();
        state.opens_mut().set_collected(before);
        let took = self.now().since(begun);
        // It is unsent until the server has it, whether the file stays open or not.
        let found = (!file.dirty().is_empty()).then_some(before);
        self.unsent_event(node.ino, &mut state, Event::Compared { took, found });
        Ok(took)
    }

    fn writer(&self, node: &Node) -> Cred {
        if let Some(cred) = node.state().unsent().writer().cloned() {
            return cred;
        }
        let opens = self.open_table();
        let writer = opens.values().find(|open| open.flags.write && open.node.ino == node.ino);
        writer.map_or_else(Cred::root, |open| open.cred.clone())
    }

    /// Draws the conclusions of a write-back from the versions that the server reported.
    fn end_upload(
        &self,
        node: &Node,
        file: &CachedFile,
        dirty: &[Range<u64>],
        held: Version,
        mut sent: Sent,
    ) -> Result<()> {
        let mut state = node.state();
        let mut changes = std::mem::take(&mut sent.changes);
        if let ([whole], [Change { after: Some(after), .. }]) = (dirty, &mut *changes)
            && *whole == (0..after.size)
        {
            // Nothing is left of what anybody wrote before.
            changes[0] = replacing(&held.validator, changes[0]);
            state.replaced_whole();
        }
        let settled = self.end_change_of(&mut state, changes);
        let ours = settled.is_some_and(|settled| settled.ours);
        if ours {
            state.carry_shown(held);
        } else if sent.result.is_ok() {
            state.unsent_mut().mix();
        }
        self.table.persist(node.ino, &mut state);
        drop(state);
        // After the server's new size was recorded: what is clean and not held is asked for up to there.
        sent.result?;
        dirty.iter().for_each(|range| file.mark_clean(range.clone()));
        self.settle_clean(node, file);
        Ok(())
    }

    /// If nothing is dirty any more, what is held is the server's present version, or goes.
    fn settle_clean(&self, node: &Node, file: &CachedFile) {
        let mut state = node.state();
        let attr = state.known().attr;
        let version = state.version().bytes();
        let settled = match (state.unsent().is_mixed(), state.opens().bypassing()) {
            (false, _) => file.set_version(&version, attr.size),
            (true, false) => file.reset(&version, attr.size),
            // Its writer keeps the local file for now, see [`Core::end_mixture`].
            (true, true) => file.dirty().is_empty(),
        };
        if settled {
            self.unsent_event(node.ino, &mut state, Event::Sent);
        }
    }

    /// Nobody writes the local file past us any more: if all is sent, and what is held mixes two versions, it goes.
    pub(crate) fn end_mixture(&self, node: &Node, file: &CachedFile) {
        // Whoever is just sending does so himself.
        let transfer = node.transfer.try_begin();
        if transfer.is_some() && node.state().unsent().is_mixed() {
            self.settle_clean(node, file);
        }
    }

    /// The kernel writes the file no more: what it wrote last is unsent until the server has it.
    pub(crate) fn keep_unsent(&self, node: &Node, file: &CachedFile) {
        let is_dirty = !file.dirty().is_empty();
        let mut state = node.state();
        let end = (is_dirty && !state.is_gone())
            .then(|| LocalEnd { size: file.size(), mtime: self.wall() });
        self.unsent_event(node.ino, &mut state, Event::KernelEnded(end));
    }

    /// The server refuses the bytes for good, and their writer was told so.
    pub(crate) fn give_up(&self, node: &Node, error: Error) {
        tracing::error!(ino = node.ino.0, %error, "the server refused the data; it is discarded");
        self.file(node).discard_dirty();
        self.forget_changes(node);
    }

    /// The server refuses bytes for good whose writer knows only that they are late.
    pub(crate) async fn set_aside(&self, node: &Node, error: Error) {
        let path = last_path(&self.cache, node.no()).unwrap_or_default();
        let file = self.file(node);
        if let Ok(true) = blocking(move || set_aside(&file, &path, error)).await {
            self.forget_changes(node);
        }
    }

    /// What was changed here is gone, also from the kernel's memory.
    fn forget_changes(&self, node: &Node) {
        let mut state = node.state();
        state.opens_mut().drop_pages();
        self.unsent_event(node.ino, &mut state, Event::GivenUp);
        drop(state);
        self.invalidate(node.ino);
    }

    /// The local file follows a truncation that the server has made. What was written meanwhile stays unsent.
    pub(crate) async fn truncate_held(&self, node: &Node, size: u64) -> Result<()> {
        let file = self.file(node);
        let version = node.state().version().bytes();
        // Who writes the local file by way of the kernel sees that one, whatever version the server has.
        let held = file.version() == Some(version) || node.state().opens().bypassing();
        // What lies behind the end of another version is not known.
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

/// Keeps for people what cannot be sent because of `error`, and says so. Answers whether nothing is to be sent
/// any more. Waits for the disk.
pub(crate) fn set_aside(file: &CachedFile, path: &Path, error: Error) -> bool {
    let path = path.to_string_lossy();
    match file.set_aside(&path) {
        Ok(Some(kept)) => {
            tracing::error!(%path, %error, kept, "unsent data was refused: it is kept in the cache directory");
        }
        Ok(None) => tracing::error!(%path, %error, "unsent data was refused: it is discarded"),
        Err(fault) => {
            tracing::error!(%path, %error, %fault, "unsent data was refused, and cannot be set aside");
            return false;
        }
    }
    true
}

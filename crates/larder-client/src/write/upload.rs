//! Writes: into the cache first, then to the server.
//!
//! A write changes the local file and marks the bytes dirty. Close and fsync send dirty bytes to
//! the server: one FILE_SYNC request if all fits, otherwise UNSTABLE requests in parallel and a
//! COMMIT. If the commit's verifier differs from a write's, the server restarted and may have lost
//! it, so everything is sent again (RFC 1813, 3.3.7 and 3.3.21). Bytes become clean when the server
//! has them on its disk and no other client wrote meanwhile; then the cached bytes are valid under
//! the new version.
//!
//! The [`super::engine`] sends files that are not closed or synced, when their [`super::schedule`]
//! says so.
//!
//! A failed write-back is reported by the close or fsync that waited for it, or by the next one;
//! and once by each other file that is open then. The bytes stay dirty and are tried again while
//! the file is open or the server is out of reach.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use larder_cache::{CachedFile, ConflictKind, Keeping};
use larder_vfs::{Attr, Change, Cred, Deadline, Error, Result, Time};

use super::local_end::LocalEnd;
use super::send::Sent;
use super::unsent::Event;
use crate::core::{Core, blocking};
use crate::journal::{Place, Record, Version};
use crate::limits::Transferring;
use crate::names::last_path;
use crate::node::{Node, replacing};
use crate::open::OpenFile;

/// More than this is read and sent by the runtime: the thread that received the request has to
/// receive others.
const SENT_IN_PLACE_BYTES: u64 = 256 << 10;

/// What the requests of a file without its bytes count, within a limit on bytes per second.
const FILE_BYTES: u64 = 2 * larder_io::REQUEST_BYTES;

impl Core {
    /// The failure of a write-back that was not reported yet: to `open`, if the caller has one.
    /// Each file that is open at the first report gets it once.
    pub(crate) fn take_write_error(&self, node: &Node, open: Option<&OpenFile>) -> Option<Error> {
        let earlier = {
            let mut state = node.state();
            let earlier = state.unsent_mut().take_failure();
            if earlier.is_some() {
                self.note_unfinished(node.ino, &mut state);
            }
            earlier
        };
        if let Some(error) = earlier {
            self.open_files.of(node.ino).iter().for_each(|(_, other)| other.owe(error));
        }
        let owed = open.and_then(OpenFile::take_owed);
        earlier.or(owed)
    }

    /// Sends dirty bytes to the server's disk, until the caller's `deadline`, or longer while they
    /// move.
    pub(crate) async fn upload(&self, node: &Arc<Node>, deadline: Option<Deadline>) -> Result<()> {
        if !node.state().may_have_unsent() {
            return Ok(());
        }
        let transfer = node.transfer.begin(deadline).await?;
        self.upload_locked(node, &transfer, deadline).await
    }

    /// The same on behalf of nobody, within the mount's limit on bytes per second; a caller that
    /// waits for the file's turn ends that limit for the file.
    pub(crate) async fn upload_limited(&self, node: &Arc<Node>) -> Result<()> {
        if !node.state().may_have_unsent() {
            return Ok(());
        }
        // Not while the file's turn is taken: callers would wait for the names of others.
        if let (Some(here), Ok(handle)) = (self.remote.deferring(), node.handle()) {
            here.make_limited(&handle).await;
        }
        let deadline = self.deadline();
        let transfer = node.transfer.begin_limited(deadline).await?;
        transfer.pass(&self.options.rate, FILE_BYTES).await;
        self.upload_locked(node, &transfer, deadline).await
    }

    /// [`Core::upload`], for a caller that holds [`Node::transfer`].
    pub(crate) async fn upload_locked(
        &self,
        node: &Arc<Node>,
        transfer: &Transferring<'_>,
        deadline: Option<Deadline>,
    ) -> Result<()> {
        debug_assert!(transfer.is_of(&node.transfer), "a file is sent by its own turn");
        self.await_search(node).await;
        if !self.has_unsent(node) {
            return Ok(());
        }
        if self.is_lost(node) {
            self.end_removed(node);
            return Ok(());
        }
        match self.upload_if_there(node, transfer, deadline).await {
            // What was asked of the server before it went away, or by an earlier process, is known
            // only now.
            Err(Error::Stale) if self.is_lost(node) || self.was_to_go(node) => {
                self.end_removed(node);
                Ok(())
            }
            sent => sent,
        }
    }

    /// The end of an upload that nobody waits for who removes names. The server may have removed
    /// the file for a program on this machine whose call has not ended: nothing of it is sent then,
    /// and that is no failure.
    pub(crate) async fn after_upload(&self, node: &Node, sent: Result<()>) -> Result<()> {
        if sent != Err(Error::Stale) {
            return sent;
        }
        node.names_have_left().await;
        if !self.is_lost(node) && !self.was_to_go(node) {
            return sent;
        }
        self.keep_removal(node).await;
        self.end_removed(node);
        Ok(())
    }

    /// Whether the file was removed by a program on this machine.
    fn is_lost(&self, node: &Node) -> bool {
        node.state().is_gone() || self.is_removed_here(node)
    }

    /// Whether such a program has asked the server for that.
    fn was_to_go(&self, node: &Node) -> bool {
        let asked = || Some(self.remote.deferring()?.loses_name(&node.handle().ok()?));
        asked().unwrap_or(false)
    }

    async fn upload_if_there(
        &self,
        node: &Arc<Node>,
        transfer: &Transferring<'_>,
        deadline: Option<Deadline>,
    ) -> Result<()> {
        let file = self.file(node);
        let compared = self.collect(node, &file).await?;
        let deadline = deadline.map(|deadline| deadline.extended(compared));
        let entry = self.keep_soon.entry(node.ino);
        if entry.is_some() {
            // What was closed is sent as what is kept: over nobody else's changes, and with the
            // time at which it was written.
            self.keep_collected(node, file.clone(), deadline).await?;
            self.keep_soon.kept(node.ino, entry);
        }
        let dirty = file.begin_sending();
        if dirty.is_empty() {
            self.make_clean(node, &file);
            return Ok(());
        }
        if dirty.iter().map(|range| range.end - range.start).sum::<u64>() > SENT_IN_PLACE_BYTES {
            tokio::task::yield_now().await;
        }
        let cred = self.writer(node).until(transfer.extend(deadline));
        let written_at = match file.keeping() {
            Keeping::Nothing if self.is_retained(node) => Some(node.state().attr().mtime),
            Keeping::Nothing => node.state().unsent().given_time(),
            Keeping::Kept | Keeping::Sending => Some(node.state().attr().mtime),
        };
        let is_all_kept = file.is_all_kept();
        // What an earlier process has told the server is not known.
        let by_others = node.state().unsent().is_late();
        self.begin_sending_kept(node, &cred).await?;
        if !self.is_retained(node) {
            let asked = self.ask_before_left(node, &file, &cred).await;
            if asked == Err(Error::Changed) {
                self.set_aside(node, Error::Changed).await;
            }
            asked?;
        }
        let requests = self.pieces(&dirty, transfer.is_limited()).len();
        self.lease_before_many_are_lost(node, &file, &cred, &dirty, requests).await;
        let _shown = TimeOnWay::show(node, written_at);
        self.begin_change(node);
        let sent = self.send_until_stable(node, transfer, &file, &cred, &dirty).await;
        let held = node.state().version();
        let ended = self.end_upload(node, &file, &dirty, held, sent);
        if ended == Err(Error::Changed) {
            self.set_aside(node, Error::Changed).await;
        }
        ended?;
        self.release_retained(node, by_others).await?;
        if let Some(mtime) = written_at.filter(|_| !self.has_unsent(node)) {
            self.set_time_of_writing(node, &cred, mtime).await;
        }
        if !is_all_kept {
            self.forget_kept(node).await?;
        }
        Ok(())
    }

    /// Nothing of a removed file is sent.
    fn end_removed(&self, node: &Node) {
        self.file(node).discard_dirty();
        self.unsent_event(node.ino, &mut node.state(), Event::GivenUp);
    }

    /// [`Core::upload_limited`] when it is due: a file that the kernel may write, but has not
    /// written since it was last compared, is not compared again.
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
        self.upload_limited(node).await
    }

    /// A server that grants leases does not report the attributes from before a WRITE: only a lease
    /// proves that no other client wrote between several of them, or beside one that does not
    /// replace the whole file. A lease costs one request, and reading the file again would cost
    /// many.
    async fn lease_before_many_are_lost(
        &self,
        node: &Node,
        file: &CachedFile,
        cred: &Cred,
        dirty: &[Range<u64>],
        requests: usize,
    ) {
        if requests > 1 || self.reads_if_doubted(node, file, dirty) > 1 {
            self.lease_before_change(node, cred).await;
        }
    }

    /// How many requests it takes to read what is cached, once `dirty` was sent, if other clients
    /// may have written meanwhile.
    fn reads_if_doubted(&self, node: &Node, file: &CachedFile, dirty: &[Range<u64>]) -> u64 {
        let end = node.state().attr().size;
        let replaces_all = matches!(dirty, [whole] if *whole == (0..end));
        if replaces_all || !self.options.cache_data {
            return 0;
        }
        let held: u64 = file.held(0..end).iter().map(|range| range.end - range.start).sum();
        held.div_ceil(u64::from(self.request_bytes_max()))
    }

    /// Asks for a lease under which a change of ours is proven to be the only one.
    pub(super) async fn lease_before_change(&self, node: &Node, cred: &Cred) {
        if self.wants_lease(node)
            && let Err(error) = self.ask_rights(node, cred).await
        {
            tracing::debug!(ino = node.ino.0, %error, "no lease for a change");
        }
    }

    /// Finds what the kernel wrote itself; returns how long that took.
    pub(super) async fn collect(&self, node: &Node, file: &Arc<CachedFile>) -> Result<Duration> {
        debug_assert!(node.transfer.is_taken(), "a local file is compared in its file's turn");
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

    pub(crate) fn writer(&self, node: &Node) -> Cred {
        // The writer of what was left before writers were recorded is not known.
        node.state().unsent().writer().cloned().unwrap_or_else(Cred::root)
    }

    /// Draws the conclusions of a write-back from the versions that the server reported.
    fn end_upload(
        &self,
        node: &Node,
        file: &CachedFile,
        dirty: &[Range<u64>],
        held: Version,
        sent: Sent,
    ) -> Result<()> {
        let mut state = node.state();
        let (mut changes, result) = sent.into_parts();
        if let ([whole], [Change { after: Some(after), .. }]) = (dirty, &mut *changes)
            && *whole == (0..after.size)
        {
            // Nothing is left of what any client wrote before.
            changes[0] = replacing(&held.validator, changes[0]);
            state.replaced_whole();
        }
        debug_assert!(
            dirty.is_sorted_by(|a, b| a.end <= b.start),
            "the end of the last range is that of all bytes that were sent"
        );
        if let (Ok(()), Some(last)) = (&result, dirty.last()) {
            state.wrote(last.end);
        }
        let ended = self.end_change_of(&mut state, changes);
        node.released.notify_waiters();
        if result.is_err() {
            state.is_told_in_part();
        }
        let ours = ended.is_some_and(|ended| ended.ours);
        if ours {
            state.carry_shown(held);
        } else if result.is_ok() {
            state.unsent_mut().mix();
        }
        self.table.persist(node.ino, &mut state);
        drop(state);
        // After the server's new size was recorded: clean bytes that are not cached are requested
        // up to there.
        result?;
        dirty.iter().for_each(|range| file.mark_clean(range.clone()));
        self.make_clean(node, file);
        Ok(())
    }

    /// If nothing is dirty any more, the cached bytes belong to the server's present version, or
    /// are dropped.
    pub(super) fn make_clean(&self, node: &Node, file: &CachedFile) {
        debug_assert!(node.transfer.is_taken(), "bytes become clean in their file's turn");
        let mut state = node.state();
        let (version, end) = (state.version().bytes(), state.server_end());
        let is_clean = match (state.unsent().is_mixed(), state.opens().bypassing()) {
            (false, _) => file.set_version(&version, end),
            (true, false) => file.reset(&version, end),
            // Its writer keeps the local file for now, see [`Core::end_mixture`].
            (true, true) => file.dirty().is_empty(),
        };
        if is_clean {
            self.unsent_event(node.ino, &mut state, Event::Sent);
        } else if !state.unsent().is_mixed() {
            // What was written meanwhile is over what was sent.
            file.carry_changes(&version);
        }
    }

    /// The kernel no longer writes the local file itself: if all is sent, and the cached bytes mix
    /// two versions, they are dropped.
    pub(crate) fn end_mixture(&self, node: &Node, file: &CachedFile) {
        // A write-back in progress does so itself.
        let transfer = node.transfer.try_begin();
        if transfer.is_some() && node.state().unsent().is_mixed() {
            self.make_clean(node, file);
        }
    }

    /// The kernel no longer writes the file: what it wrote last is unsent until the server has it.
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

    /// Where the bytes of a file are to be at the server that it does not take because of `error`;
    /// `None` if they are for people alone.
    ///
    /// A file that is gone at the server may be one that a program here has removed before the
    /// machine crashed; only a mount with a journal of names knows that it was not.
    fn place_beside(&self, node: &Node, error: Error) -> Option<Place> {
        let is_conflict = match error {
            Error::Changed => true,
            Error::Stale => self.remote.deferring().is_some(),
            _ => false,
        };
        if !is_conflict || self.options.read_only {
            return None;
        }
        let writer = self.writer(node);
        let state = node.state();
        let Attr { uid, gid, mode, .. } = state.known().attr;
        let end = state.unsent().end();
        let mtime = state.unsent().given_time().or(end.map(|end| end.mtime));
        let (dir, name) = state.known().hint.clone()?;
        let mtime = mtime.unwrap_or_else(|| self.wall());
        Some(Place { dir, name, uid, gid, mode, mtime, writer })
    }

    /// The server refuses bytes for good whose writer was told only that they are late.
    ///
    /// A file may be gone because it was removed here meanwhile: that is no refusal.
    pub(crate) async fn set_aside(&self, node: &Node, error: Error) {
        if error == Error::Stale && self.is_removed_here(node) {
            self.keep_removal(node).await;
            return self.end_removed(node);
        }
        let path = last_path(&self.cache, node.no()).unwrap_or_default();
        let place = self.place_beside(node, error);
        let is_wanted = place.is_some();
        let file = self.file(node);
        if let Ok(true) = blocking(move || set_aside(&file, &path, error, place)).await {
            self.forget_changes(node);
            if is_wanted {
                self.placing.ring();
            }
        }
    }

    /// What was changed here is dropped, also from the kernel's memory.
    fn forget_changes(&self, node: &Node) {
        let mut state = node.state();
        self.unsent_event(node.ino, &mut state, Event::GivenUp);
        self.drop_pages(node.ino, &mut state);
    }
}

/// Sets aside what cannot be sent because of `error`, and logs that: for people, or until the
/// server has it at its `place`. Returns whether nothing is to be sent any more. Waits for the
/// disk.
pub(crate) fn set_aside(
    file: &CachedFile,
    path: &Path,
    error: Error,
    place: Option<Place>,
) -> bool {
    let path = path.to_string_lossy();
    let (kind, reason) = match error {
        _ if place.is_some() => (ConflictKind::Written, String::new()),
        Error::Changed => (ConflictKind::Written, String::new()),
        error => (ConflictKind::Refused, error.to_string()),
    };
    match file.set_aside_for(&path, kind, &reason, place.map(|place| place.encode())) {
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

/// While this lives, applications see the modification time that the server gets after the bytes,
/// and not that of the WRITE.
struct TimeOnWay<'a>(&'a Node);

impl TimeOnWay<'_> {
    fn show(node: &Node, time: Option<Time>) -> TimeOnWay<'_> {
        node.state().unsent_mut().set_time_on_way(time);
        TimeOnWay(node)
    }
}

impl Drop for TimeOnWay<'_> {
    fn drop(&mut self) {
        self.0.state().unsent_mut().set_time_on_way(None);
    }
}

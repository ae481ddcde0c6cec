//! Coherence: processes replies, and makes the kernel drop what is no longer true.
//!
//! A node's [`State`] decides what a reply means; this module applies the consequences: it updates
//! the index, carries valid data over to the new version, and notifies the kernel. It also decides
//! how long the kernel may trust what it is shown.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use larder_cache::{CachedFile, FileNo, wanted_of_conflict};
use larder_io::Monotonic;
use larder_vfs::{Attr, Change, Entry, Found, Fresh, Ino, Kind, Told, Validator};

use super::changes::{Ended, Seen};
use super::server_times::Age;
use super::squash::RootSquash;
use super::state::State;
use super::table::Node;
use crate::core::Core;
use crate::journal::{Known, Version};
use crate::options::LookupCache;

impl Core {
    /// Processes a reply that named and described a file; the call was made at `asked`.
    pub(crate) fn learn(
        &self,
        found: &Found,
        asked: Monotonic,
        hint: Option<(Ino, std::ffi::OsString)>,
    ) -> Arc<Node> {
        self.times.see(&found.attr, self.now());
        let is_young = self.age(&found.attr, asked).is_young();
        let ttl = self.ttl_range(found.attr.kind).at_first();
        let (node, is_new) = self.table.get_or_insert(&found.handle, || Known {
            // Not a number that old names may have, in case the record was lost.
            epoch: self.session,
            hint: hint.clone(),
            // Nothing is cached of it yet, except names in it that come with the same reply.
            doubtful: is_young && found.attr.kind == Kind::Directory,
            ..Known::described(found.attr, self.session, asked, ttl)
        });
        if is_new {
            if let Some((dir, name)) = &hint {
                self.see_name(*dir, name);
            }
            return node;
        }
        let is_moved = hint.is_some_and(|dentry| node.state().seen_at(dentry));
        self.observe_at(&node, found.attr, asked, is_moved);
        node
    }

    /// An object of which nothing was known has this name. If another machine gave it that because
    /// it met somebody else's changes, those may be ours: its user is not the only one to know.
    fn see_name(&self, dir: Ino, name: &OsStr) {
        if self.remote.deferring().is_some()
            && let Some(wanted) = wanted_of_conflict(name.as_bytes())
        {
            self.cache.saw_conflict(FileNo(dir.0), name.as_bytes(), wanted);
        }
    }

    /// Processes a description that came with the reply to a call made at `asked`.
    pub(crate) fn observe(&self, node: &Node, attr: Attr, asked: Monotonic) -> Seen {
        self.times.see(&attr, self.now());
        self.observe_at(node, attr, asked, false)
    }

    /// The same for a description that came with bytes requested for `version`. To be called before
    /// the cache gets them: if that version was too young when they were requested, they may lack a
    /// change that its validator does not show.
    pub(crate) fn observe_bytes(
        &self,
        node: &Node,
        version: &Version,
        attr: Attr,
        asked: Monotonic,
    ) {
        self.observe(node, attr, asked);
        if !self.age(&attr, asked).is_young() {
            return;
        }
        let mut state = node.state();
        let is_known =
            version.same(&state.version()) && attr.validator().same_data(&version.validator);
        if is_known && state.doubt_what_is_held() {
            self.table.persist(node.ino, &mut state);
        }
    }

    /// The same for the reply to a question about names in a directory, asked in `epoch`. Returns
    /// the epoch to which the names in it belong, unless that question's epoch has ended: another
    /// client may have changed the directory after the server made the reply, and a later reply
    /// have told us that already.
    pub(crate) fn observe_names(
        &self,
        dir: &Node,
        attr: Option<Attr>,
        (asked, epoch): (Monotonic, u64),
    ) -> Option<u64> {
        attr.iter().for_each(|attr| self.times.see(attr, self.now()));
        let mut state = dir.state();
        let is_of_epoch = state.known().epoch == epoch;
        if let Some(attr) = attr {
            self.observe_in(dir, &mut state, attr, asked, false);
        }
        is_of_epoch.then(|| state.known().epoch)
    }

    /// The same for a file that was perhaps found under another name.
    fn observe_at(&self, node: &Node, attr: Attr, asked: Monotonic, is_moved: bool) -> Seen {
        self.observe_in(node, &mut node.state(), attr, asked, is_moved)
    }

    fn observe_in(
        &self,
        node: &Node,
        state: &mut State,
        attr: Attr,
        asked: Monotonic,
        is_moved: bool,
    ) -> Seen {
        if state.is_newest(asked, self.session) {
            self.see_next(state, &attr);
        }
        let age = self.age(&attr, asked);
        let ttl = self.ttl_range(state.known().attr.kind);
        let before = Attr { atime: attr.atime, ..state.known().attr };
        let is_shown = state.is_shown(self.session);
        let believed = (state.known().epoch, state.known().doubtful);
        let seen = state.observe(attr, self.session, asked, ttl, age);
        let is_believed = (state.known().epoch, state.known().doubtful) == believed;
        let is_same = seen == Seen::Same && before == attr && !is_moved && is_believed;
        if is_same {
            state.confirm();
        }
        if !is_same && (seen != Seen::Older || is_moved) {
            self.table.persist(node.ino, state);
        }
        if let Seen::Moved { from } | Seen::SameData { from } = seen {
            self.carry(node, state, from);
        }
        if matches!(seen, Seen::SameData { .. }) && is_shown {
            self.outdate_attributes(node.ino, state);
        }
        if seen == Seen::Changed {
            tracing::debug!(ino = node.ino.0, "changed on the server");
        }
        if seen == Seen::Changed && is_shown {
            self.outdate(node.ino, state);
        }
        seen
    }

    /// Learns what time the server's clock has from a description that is newer than the known one.
    fn see_next(&self, state: &State, attr: &Attr) {
        let known = state.known();
        let before = (known.session == self.session).then_some(known.asked);
        self.times.see_next(&known.attr, before, attr, self.now());
    }

    /// How old a version was at `asked`.
    fn age(&self, attr: &Attr, asked: Monotonic) -> Age {
        self.times.age(attr, asked, (self.now(), || self.clock.wall()))
    }

    /// What is cached under the version `from` is valid under the present one too, and what is
    /// unsent is over that one now, if only attributes changed.
    pub(crate) fn carry(&self, node: &Node, state: &mut State, from: Validator) {
        let from = Version { validator: from, ..state.version() };
        let attr = state.known().attr;
        if attr.kind != Kind::File {
            return;
        }
        state.carry_shown(from);
        let file = self.file(node);
        if file.version() != Some(from.bytes()) {
            return;
        }
        let version = state.version().bytes();
        if file.dirty().is_empty() {
            file.set_version(&version, attr.size);
        } else if from.validator.size == attr.size {
            // What cuts a file changes what is beneath its unsent bytes.
            file.carry_changes(&version);
        }
    }

    /// Before a change of ours is sent. The next process must know of it: it would take the version
    /// that it finds for another client's, and what is unsent here for a conflict with that.
    pub(crate) fn begin_change(&self, node: &Node) {
        let mut state = node.state();
        state.begin_change();
        if self.tells_requests() && state.has_unsent() && state.unsent_mut().requests_mut().make() {
            self.note_unfinished(node.ino, &mut state);
        }
    }

    /// Ends a change of ours that [`Core::begin_change`] began, and keeps what is still valid.
    pub(crate) fn end_change(&self, node: &Node, replies: impl IntoIterator<Item = Change>) {
        let replies: Vec<Change> = replies.into_iter().collect();
        let mut state = node.state();
        let ended = self.end_change_of(&mut state, replies);
        node.released.notify_waiters();
        let Some(ended) = ended else {
            return;
        };
        self.table.persist(node.ino, &mut state);
        if ended.ours {
            self.carry(node, &mut state, ended.from);
        } else if state.is_shown(self.session) {
            self.outdate(node.ino, &mut state);
        }
    }

    /// The part of it that concerns the node's state.
    pub(crate) fn end_change_of(&self, state: &mut State, replies: Vec<Change>) -> Option<Ended> {
        let (now, ttl) = (self.now(), self.ttl_range(state.known().attr.kind));
        for attr in replies.iter().filter_map(|change| change.after) {
            self.times.see(&attr, now);
            self.see_next(state, &attr);
        }
        let is_coarse = self.times.is_coarse(&state.known().attr);
        state.end_change(replies, self.session, now, ttl, is_coarse)
    }

    /// What the kernel may hold of a file belongs to an obsolete version: has the kernel drop it.
    /// To be called with the lock under which the new version was recorded, so that every caller
    /// that sees the new version finds this queued ([`Core::told`]).
    pub(crate) fn outdate(&self, ino: Ino, state: &mut State) {
        let has_pages = state.opens_mut().drop_pages();
        if let Some(kernel) = self.kernel.get() {
            kernel.invalidate(ino, !has_pages);
        }
    }

    /// The same for attributes alone: the bytes are those that the kernel holds. If it may believe
    /// the file to be longer than it is, it drops them too: the notification must not overtake a
    /// read of the file's end (see [`crate::read`]'s `file_end`).
    pub(super) fn outdate_attributes(&self, ino: Ino, state: &mut State) {
        let end = state.attr().size;
        state.opens_mut().tell();
        if let Some(kernel) = self.kernel.get() {
            kernel.invalidate(ino, !state.opens().may_believe_beyond(end));
        }
    }

    /// What the kernel holds of a file belongs to no version: has it drop all of that.
    pub(crate) fn drop_pages(&self, ino: Ino, state: &mut State) {
        state.opens_mut().drop_pages();
        if let Some(kernel) = self.kernel.get() {
            kernel.invalidate(ino, false);
        }
    }

    /// What the kernel holds of a file may belong to an older version than the one known here: an
    /// earlier process may have died before it could tell the kernel. Has the kernel drop all that
    /// it had from that process, once for as long as the node stays in memory.
    pub(crate) fn tell_what_is_left(&self, node: &Node) {
        if !self.succeeds {
            return;
        }
        let mut state = node.state();
        if state.opens_mut().take_over() && state.is_shown(self.session) {
            self.outdate(node.ino, &mut state);
        }
    }

    /// The same for all files that were open when that process died: their readers continue without
    /// a request to us.
    pub(crate) fn tell_of_open_files(&self) {
        for open in self.open_files.all() {
            self.tell_what_is_left(&open.node);
        }
    }

    /// Waits until the kernel has dropped what it was told to drop of a file. Not to be called with
    /// a lock held that a read or a write needs.
    pub(crate) async fn told(&self, node: &Node) {
        let waits = self.kernel.get().and_then(|kernel| kernel.told(node.ino));
        if let Some(told) = waits {
            told.await;
        }
    }

    /// Resolves once the kernel has dropped what it was told to drop of a file that a process reads
    /// through the kernel's pages; `None` if there is nothing to wait for. The kernel takes no size
    /// from an answer that crosses a notification, and until it has dropped its pages, that process
    /// can read bytes behind the end that such an answer told it.
    ///
    /// A page may wait for a read that waits for a process which asks for these very attributes
    /// (the command that makes a lost file again): whoever answers waits for a limited time.
    pub(super) fn pages_to_drop(&self, node: &Node) -> Option<Told> {
        let is_read = node.state().opens().has_cached();
        is_read.then(|| self.kernel.get()?.told(node.ino)).flatten()
    }

    /// Attributes for the front door.
    pub(crate) fn fresh(&self, node: &Node) -> Fresh {
        self.refresh_local_end(node);
        let mut state = node.state();
        let attr = state.attr();
        state.opens_mut().raise_believed_end(attr.size);
        let ttl = if state.is_as_reported() {
            state.fresh_for(self.session, self.now())
        } else {
            Duration::ZERO
        };
        Fresh { attr, ttl }
    }

    /// An entry for the front door: how long it may trust the name depends on the directory.
    pub(crate) fn entry(&self, dir: &Node, child: &Node) -> Entry {
        let ttl = self.name_ttl(dir, true);
        Entry { ino: child.ino, fresh: self.fresh(child), ttl }
    }

    /// For how long the front door may trust that a name in `dir` exists, or that it does not.
    pub(crate) fn name_ttl(&self, dir: &Node, exists: bool) -> Duration {
        let cached = match self.options.lookup_cache {
            LookupCache::All => true,
            LookupCache::Positive => exists,
            LookupCache::None => false,
        };
        // Without a lease, we would not be notified when the name is no longer true.
        if self.wants_lease(dir) {
            return Duration::ZERO;
        }
        let state = dir.state();
        if !cached || (!state.searchable_by_all() && !self.kernel_may_judge()) {
            return Duration::ZERO;
        }
        state.names_fresh_for(self.session, self.now())
    }

    /// Whether the kernel's own check of mode bits is as strict as the server's. It lets user 0
    /// pass everywhere; a server that squashes root does not. While we do not know, or know that it
    /// does, the kernel must ask for each name in a private directory.
    fn kernel_may_judge(&self) -> bool {
        self.squash.known() == RootSquash::No
    }

    /// Whether asking for rights may bring a lease that we do not have.
    pub(crate) fn wants_lease(&self, node: &Node) -> bool {
        if !self.remote.gives_leases() || !self.remote.reachable() {
            return false;
        }
        node.state().leasing().is_wanted(self.now())
    }

    /// Makes the present version that of the cached bytes, unless they include local changes.
    pub(crate) fn prepare(&self, node: &Node, file: &CachedFile) {
        let is_ready = |state: &State| {
            let changed_here = state.has_unsent() || !file.dirty().is_empty();
            let is_present = || file.version() == Some(state.version().bytes());
            state.known().attr.kind != Kind::File || changed_here || is_present()
        };
        if is_ready(&node.state()) {
            return;
        }
        let (shown, beneath) = self.beneath(node);
        let state = node.state();
        if is_ready(&state) {
            return;
        }
        let (version, size) = (state.version(), state.server_end());
        let is_held = shown.same(&version.validator) && beneath.is_some() && {
            file.version() == beneath.map(|validator| Version { validator, ..version }.bytes())
        };
        match is_held {
            true => file.set_version(&version.bytes(), size),
            false => file.reset(&version.bytes(), size),
        };
    }

    /// The present version of a file, and the server's version that has the same bytes if
    /// attributes were set here that the server lacks. The cache may have recorded the bytes under
    /// that one when the last process died.
    fn beneath(&self, node: &Node) -> (Validator, Option<Validator>) {
        let (shown, handle) = {
            let state = node.state();
            (state.version().validator, state.handle())
        };
        let beneath = self.remote.deferring().and_then(|here| here.beneath(&handle.ok()?, &shown));
        (shown, beneath)
    }

    /// Whether attributes may be used as they are. Own changes in flight count as fresh: their
    /// replies will bring the next description.
    pub(crate) fn is_fresh(&self, node: &Node) -> bool {
        let state = node.state();
        let fresh_for = state.fresh_for(self.session, self.now());
        self.is_usable(&state, fresh_for)
    }

    /// The same for the names in a directory.
    pub(crate) fn has_fresh_names(&self, dir: &Node) -> bool {
        let state = dir.state();
        let fresh_for = state.names_fresh_for(self.session, self.now());
        self.is_usable(&state, fresh_for)
    }

    fn is_usable(&self, state: &State, fresh_for: Duration) -> bool {
        !fresh_for.is_zero() || state.changing() || state.is_gone() || !self.remote.reachable()
    }
}

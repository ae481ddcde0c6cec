//! Continues after the previous process died: with its mount, or with a new mount on its cache.
//!
//! *Resume*: the kernel still has the same mount. Open files exist again under their numbers, with
//! their modes and local files; hidden files, errors not yet reported and unsent data are as they
//! were. The server is asked nothing: cached knowledge is as good as it was, because the clock
//! continues (except for replies that confirmed what was known: these are not recorded, so the
//! server is asked again sooner).
//!
//! *New mount*: no process has the open files any more. Hidden files are removed at the server,
//! unsent data is sent in the background: over another client's change only if the earlier process
//! may have begun to send it ([`crate::write`]'s `recovered`).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use larder_cache::Keeping;
use larder_vfs::{Cred, Error, Handle, Ino, OpenId, Result};

use super::session::{Carried, OpenRecord, Unfinished};
use crate::core::Core;
use crate::locks::Table as LockTable;
use crate::names::Dentry;
use crate::node::{Node, State};
use crate::open::{Mode, OpenFile};
use crate::options::Start;
use crate::read::Shown;
use crate::write::{Event, LocalEnd, RETRY_AFTER, set_aside, time_of};

impl Core {
    /// Restores what an earlier run left. May read the local disk.
    pub(crate) fn take_up(self: &Arc<Self>, start: Start, carried: &Carried) {
        debug_assert_eq!(self.open_files.count(), 0, "what was left is taken up before any open");
        // Removed files stay in memory until all is restored: nothing else leads to them.
        let removed = carried.unfinished.iter().filter(|(_, left)| left.removed);
        let _gone: Vec<_> = removed.filter_map(|(&ino, _)| self.table.get_gone(ino)).collect();
        self.empty_recorded();
        match start {
            Start::Resume => self.resume(carried),
            Start::NewMount => self.begin_anew(carried),
        }
        if !self.tells_requests() {
            self.note_requests_told(false);
        } else if !self.options.read_only {
            // What a read-only mount does not send stays as it is.
            self.note_requests_told(true);
        }
    }

    fn resume(self: &Arc<Self>, carried: &Carried) {
        let unsent = self.nodes_left_unsent();
        for node in &unsent {
            self.mark_unsent(node);
        }
        let mut closed = Vec::new();
        for (&ino, left) in &carried.unfinished {
            match self.node(ino) {
                Ok(node) => {
                    self.set_unfinished(&node, left);
                    closed.push(node);
                }
                Err(_) => self.forget_unfinished(ino),
            }
        }
        // Of the opens of one file, the one for writing determines which local file the kernel has
        // now.
        let mut opens: Vec<_> = carried.opens.iter().collect();
        opens.sort_by_key(|(id, open)| (open.mode != Mode::Bypass, **id));
        for (id, open) in opens {
            self.restore(*id, open);
        }
        self.restore_locks(&carried.locks);
        for node in unsent.iter().filter(|node| !self.is_written(node)) {
            self.enter_left(node);
            self.doubt_left(node, carried);
            self.send_left(node);
        }
        if !carried.tells_requests {
            self.doubt_written(carried);
        }
        closed.retain(|node| node.state().opens().is_empty());
        for node in closed {
            let (core, cred) = (self.clone(), carried.cred_of(node.ino));
            self.runtime.spawn(async move {
                let done = core.finish_closed(&node, &cred).await;
                done.unwrap_or_else(|error| tell_left(&node, error));
            });
        }
        let (opens, files) = (carried.opens.len(), unsent.len());
        tracing::info!(opens, unsent = files, "going on with the mount of a process that died");
    }

    /// Of files that are still being written, the next process must not take unknown requests for
    /// none.
    fn doubt_written(&self, carried: &Carried) {
        for ino in carried.opens.values().filter(|open| open.flags.write).map(|open| open.ino) {
            if let Ok(node) = self.node(ino)
                && node.state().has_unsent()
            {
                self.doubt_left(&node, carried);
            }
        }
    }

    /// The last release of a hidden or removed file may have been interrupted.
    async fn finish_closed(&self, node: &Arc<Node>, cred: &Cred) -> Result<()> {
        if node.state().hidden().name().is_some() {
            self.send_to_other_names(node, cred).await?;
        }
        self.remove_hidden(node, cred).await?;
        let removed = {
            let mut state = node.state();
            self.note_unfinished(node.ino, &mut state);
            state.is_gone()
        };
        if removed {
            self.cache.drop_file(node.no());
            self.cache.drop_node(node.no());
        }
        Ok(())
    }

    fn begin_anew(self: &Arc<Self>, carried: &Carried) {
        for (&ino, left) in &carried.unfinished {
            let node = self.node(ino).ok();
            match &node {
                Some(node) if !left.hidden.is_empty() => {
                    self.drop_hidden(node, left.hidden.clone(), carried.cred_of(ino));
                    continue;
                }
                Some(node) if left.removed => {
                    self.cache.drop_file(node.no());
                    self.cache.drop_node(node.no());
                }
                _ => {}
            }
            if let Some(error) = left.write_error {
                tracing::error!(ino = ino.0, %error, "an earlier run could not write this back");
            }
            match node {
                Some(node) => self.set_writer(&node, left),
                None => self.forget_unfinished(ino),
            }
        }
        for lock in &carried.locks {
            self.note_locks(lock.ino, &LockTable::default(), lock.holder.owner);
        }
        let hidden = |node: &Arc<Node>| {
            carried.unfinished.get(&node.ino).is_some_and(|left| !left.hidden.is_empty())
        };
        for node in self.nodes_left_unsent().iter().filter(|node| !hidden(node)) {
            let is_open = |open: &OpenRecord| open.ino == node.ino && open.flags.write;
            self.send_from_before(node, &carried.cred_of(node.ino), |core| {
                // Of a file that was being written some bytes may be at the server.
                if !carried.opens.values().any(is_open) {
                    core.enter_left(node);
                }
                core.doubt_left(node, carried);
            });
        }
        // Only now: the records of open files say whose data it is.
        for &id in carried.opens.keys() {
            self.forget_open(id);
        }
    }

    /// Only the writer still matters, and only if there are bytes to send.
    fn set_writer(&self, node: &Node, left: &Unfinished) {
        let mut state = node.state();
        state.note(left.clone());
        restore_unsent(&mut state, left, None);
    }

    /// Nodes with local changes that no server has.
    fn nodes_left_unsent(&self) -> Vec<Arc<Node>> {
        let mut nodes = Vec::new();
        for no in self.cache.unsent() {
            match self.node(Ino(no.0)) {
                Ok(node) => nodes.push(node),
                Err(unknown) => {
                    if set_aside(&self.cache.file(no), Path::new(""), unknown, None) {
                        self.cache.drop_file(no);
                    }
                }
            }
        }
        nodes
    }

    /// Restores the state of unsent data. If the server's version is not the one on which that data
    /// is based, another client may have written: then what is cached is dropped once our data is
    /// sent.
    fn mark_unsent(&self, node: &Node) {
        self.correct_attributes(node);
        let file = self.file(node);
        let wall = self.wall();
        let written = file.local_mtime_ns();
        let mtime = written.map_or(wall, time_of);
        let given =
            written.and_then(|ns| self.remote.deferring()?.given_time(&node.handle().ok()?, ns));
        let mut state = node.state();
        let end = LocalEnd { size: file.size(), mtime };
        let is_over_another = file.version() != Some(state.version().bytes());
        self.unsent_event(node.ino, &mut state, Event::Recovered { end, is_over_another });
        if let Some(time) = given {
            self.unsent_event(node.ino, &mut state, Event::TimeGiven { time, over: mtime });
        }
    }

    /// Takes the attributes of a file that the server lacks from the journal of names: the earlier
    /// process may have died between a change of them and its record here.
    fn correct_attributes(&self, node: &Node) {
        let here = |handle: Handle| self.remote.deferring()?.attributes_here(&handle);
        if let Some(attr) = node.handle().ok().and_then(here) {
            self.observe(node, attr, self.now());
        }
    }

    fn set_unfinished(&self, node: &Node, left: &Unfinished) {
        for (dir, name) in &left.hidden {
            if let Ok(dir) = self.node(*dir) {
                dir.state().hidden_mut().add_inside(name);
            }
        }
        let mut state = node.state();
        state.hidden_mut().set(left.hidden.clone());
        if left.removed {
            state.go();
        }
        restore_unsent(&mut state, left, left.write_error);
        state.note(left.clone());
    }

    /// Puts an open file back into the table.
    fn restore(self: &Arc<Self>, id: OpenId, open: &OpenRecord) {
        let Ok(node) = self.node(open.ino) else {
            tracing::warn!(ino = open.ino.0, "an open file of the earlier run is not known");
            return self.forget_open(id);
        };
        let file = self.file(&node);
        {
            let mut state = node.state();
            let same = open.local != 0 && file.local_number() == open.local;
            let restored = state.opens_mut().restore(open.mode, &file, same);
            self.unsent_event(open.ino, &mut state, Event::OpensChanged);
            if open.mode == Mode::Bypass {
                state.unsent_mut().may_be_of(&open.cred);
            }
            if !restored {
                tracing::error!(ino = open.ino.0, "what the kernel wrote itself is lost");
                self.unsent_event(open.ino, &mut state, Event::Failed(Error::Io));
            }
            if open.mode == Mode::Cached {
                let version = state.version();
                state.opens_mut().keep_pages(version);
            }
            self.note_unfinished(open.ino, &mut state);
        }
        let now = node.state().shown();
        // The earlier process may have made other versions by what it sent.
        let is_known = |epoch: &u64| now.version.same(&open.version) || open.epoch == Some(*epoch);
        let epoch = now.epoch.filter(is_known);
        let class = self.class_on_record(open.class.as_deref());
        if open.flags.write {
            self.promise(&node, &class);
        }
        let opened = OpenFile::new(node, file, open.cred.clone(), open.flags, open.mode, class);
        opened.stream().shown = Some(Shown { version: open.version, epoch });
        let opened = Arc::new(opened);
        self.open_files.insert(id, opened.clone());
        if self.remote.limits().opens {
            let core = self.clone();
            self.runtime.spawn(async move { core.open_at_server(&opened).await });
        }
    }

    /// Sends what an earlier mount left unsent, and logs that; does something `before`, when that
    /// is known to be unsent, and its record is still the earlier one.
    fn send_from_before(
        self: &Arc<Self>,
        node: &Arc<Node>,
        cred: &Cred,
        before: impl FnOnce(&Core),
    ) {
        let bytes = self.file(node).dirty_bytes();
        let name = node.state().known().hint.as_ref().map(|(_, name)| name.clone());
        if self.options.read_only {
            tracing::warn!(ino = node.ino.0, ?name, bytes, "unsent data stays: read-only mount");
            return;
        }
        tracing::info!(ino = node.ino.0, ?name, bytes, "sending what an earlier mount left unsent");
        self.mark_unsent(node);
        node.state().unsent_mut().may_be_of(cred);
        before(self);
        self.note_unfinished(node.ino, &mut node.state());
        self.send_left(node);
    }

    /// What was closed just before the earlier process died, and was yet to be kept, is sent as
    /// what is kept: over nobody else's changes.
    fn enter_left(&self, node: &Node) {
        let class = self.class_for(node, &self.writer(node));
        if self.file(node).keeping() == Keeping::Nothing {
            self.keep_closed(node, &class);
        }
    }

    fn send_left(self: &Arc<Self>, node: &Arc<Node>) {
        self.leave_unsent(node, Duration::ZERO);
    }

    /// Removes a hidden file of an earlier mount in the background, for as long as it takes.
    fn drop_hidden(self: &Arc<Self>, node: &Arc<Node>, hidden: Vec<Dentry>, cred: Cred) {
        if self.options.read_only {
            return;
        }
        let (core, node) = (self.clone(), node.clone());
        self.runtime.spawn(async move {
            loop {
                let sent = core.send_to_other_names(&node, &cred).await;
                let removed = match sent {
                    Ok(()) => core.remove_left_behind(&node, &hidden, &cred).await,
                    Err(error) => Err(error),
                };
                match removed {
                    Err(Error::TimedOut) => core.clock.sleep(RETRY_AFTER).await,
                    Err(Error::Shutdown) => return,
                    done => {
                        match done {
                            Ok(true) => {
                                core.cache.drop_file(node.no());
                                core.cache.drop_node(node.no());
                            }
                            Ok(false) if core.cache.unsent().contains(&node.no()) => {
                                // It has another record from now on.
                                core.forget_unfinished(node.ino);
                                return core.send_from_before(&node, &cred, |core| {
                                    core.doubt_left(&node, &Carried::default());
                                });
                            }
                            Ok(false) => {}
                            Err(error) => tell_left(&node, error),
                        }
                        return core.forget_unfinished(node.ino);
                    }
                }
            }
        });
    }

    /// Data of a hidden file need not be sent any more, unless the file has other names.
    ///
    /// # Errors
    /// If that cannot be sent now. What the server refuses is set aside.
    async fn send_to_other_names(&self, node: &Arc<Node>, cred: &Cred) -> Result<()> {
        let has_others = node.state().known().attr.nlink > 1;
        if !has_others || !self.cache.unsent().contains(&node.no()) {
            return Ok(());
        }
        self.mark_unsent(node);
        node.state().unsent_mut().send_for(cred.clone());
        match self.upload(node, self.deadline()).await {
            sent @ (Ok(()) | Err(Error::TimedOut | Error::Shutdown)) => sent,
            Err(refused) => {
                self.set_aside(node, refused).await;
                Ok(())
            }
        }
    }

    /// Removes a hidden file at the server, by the one of these names that it has. Returns `false`
    /// if it never got a hidden name, and still has its former one.
    async fn remove_left_behind(
        &self,
        node: &Node,
        hidden: &[Dentry],
        cred: &Cred,
    ) -> Result<bool> {
        match self.remove_one_of(cred, hidden).await {
            // Or it had that name, and the earlier run was killed after it had removed it.
            Err(Error::NotFound) => match self.remote.getattr(cred, &node.handle()?).await {
                Err(Error::Stale) => Ok(true),
                there => there.map(|_| false),
            },
            removed => removed.map(|_| true),
        }
    }
}

/// Restores what is on record of a file's unsent data.
fn restore_unsent(state: &mut State, left: &Unfinished, failure: Option<Error>) {
    let unsent = state.unsent_mut();
    unsent.restore(left.writer.clone(), failure);
    if left.has_requests {
        unsent.requests_mut().make();
    }
}

fn tell_left(node: &Node, error: Error) {
    tracing::warn!(ino = node.ino.0, %error, "a hidden file of an earlier run cannot be removed");
}

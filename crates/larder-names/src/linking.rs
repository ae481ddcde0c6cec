//! Other names of files that were made here are made at the server.
//!
//! A name is made at the server after the file, after its bytes (the server may give a file another
//! version for a new name), and before the file loses any name there. A name that comes in the
//! place of a removed file replaces that in one step, as [`crate::retake`] does it. If another
//! client has made the name, ours gets `NAME.conflict-HOST-TIME`; if that client's name is the file
//! itself, it is ours, since the answer to an earlier attempt may have been lost.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use larder_cache::ConflictKind;
use larder_vfs::{Change, Deadline, Error, Found, Handle, Result};
use tokio::task::JoinSet;

use crate::doubt::Sizes;
use crate::linked::Linked;
use crate::met::Met;
use crate::object::{Dentry, Dir, ObjectNo, Taken, is_unanswered};
use crate::replay::{CONFLICTS_MAX, DIRECTORIES_MAX, is_silence};
use crate::retake::is_removed_file;
use crate::shared::Shared;
use crate::which::Which;

impl Shared {
    /// Whether a file of the server's is to have further names there.
    pub(crate) fn has_links(&self, server: &Handle) -> bool {
        let state = self.state();
        state.journal().links().count_of(&state.journal().identity(server)) > 0
    }

    /// Before a file loses a name at the server, it gets all others there; and if it has others,
    /// its bytes. Its version may be another one afterwards.
    pub(crate) async fn prepare_loss(
        &self,
        taken: &Taken,
        deadline: Option<Deadline>,
        under_way: &mut Vec<ObjectNo>,
    ) -> Result<()> {
        if taken.dentry.is_some() || taken.is_unseen() {
            return Ok(());
        }
        let links: Vec<ObjectNo> = {
            let state = self.state();
            let journal = state.journal();
            journal.links().of(&journal.identity(&taken.handle)).map(|(no, _)| no).collect()
        };
        let has_links = !links.is_empty();
        for no in links {
            self.replay_change(no, deadline, under_way).await?;
        }
        if !taken.is_last || has_links {
            self.send_bytes(taken).await?;
        }
        Ok(())
    }

    /// Makes a name at the server, after everything on which it depends.
    pub(crate) async fn replay_link(
        &self,
        no: ObjectNo,
        deadline: Option<Deadline>,
        under_way: &mut Vec<ObjectNo>,
    ) -> Result<()> {
        let link = |no| self.state().journal().links().get(no).cloned();
        let Some(Linked { dentry, file, .. }) = link(no) else { return Ok(()) };
        for one in [&dentry.dir, &file] {
            let waits = match one {
                Dir::Made(no) if self.state().journal().waiting(*no).is_some() => Some(*no),
                _ => None,
            };
            if let Some(no) = waits {
                self.make_after_above(no, deadline, under_way).await?;
            }
        }
        let in_the_way = {
            let state = self.state();
            let taken = state.journal().taken();
            let other = taken.from(&dentry.dir, &dentry.name);
            let is_free = |taken: &Taken| {
                is_removed_file(taken) && state.journal().identity(&taken.handle) != file
            };
            other.map(|other| (other, taken.get(other).is_some_and(is_free)))
        };
        let mut own = None;
        match in_the_way {
            Some((_, true)) => own = Some(self.own_name(no)),
            Some((other, false)) => self.replay_change(other, deadline, under_way).await?,
            None => {}
        }
        // Perhaps it was made for something that had to be made before.
        let Some(linked) = link(no) else { return Ok(()) };
        let server =
            self.state().journal().handle_at_server(&linked.file).ok_or(Error::TimedOut)?;
        self.send_bytes_of(&server, linked.kind).await?;
        self.learn_links(&linked, &server).await;
        if linked.is_attempted && own.is_none() {
            own = self.own_of(no, &linked, &server, deadline).await?;
        }
        let marked = self.mark_links(&[no]).await?;
        if link(no).is_some_and(|linked| linked.dentry != dentry) {
            // Until it was marked, a caller has renamed it.
            self.mark_links_as(marked.into_iter(), false);
            return self.replay_change(no, deadline, under_way).await;
        }
        let made = self.link_at_server(no, own, deadline).await;
        let moved = made.map_err(|error| self.link_late(no, error))?;
        match moved {
            Some(moved) => self.replay_change(moved, deadline, under_way).await,
            None => Ok(()),
        }
    }

    /// Learns how many names of a file the server has, before it is asked for further ones.
    async fn learn_links(&self, linked: &Linked, server: &Handle) {
        if self.state().knows_links(&linked.file) {
            return;
        }
        if let Ok(attr) = self.remote.getattr(&linked.linker.cred(), server).await {
            self.show_unaltered(server, attr);
        }
    }

    /// The temporary name under which an earlier attempt has made a name, without an answer.
    async fn own_of(
        &self,
        no: ObjectNo,
        linked: &Linked,
        server: &Handle,
        deadline: Option<Deadline>,
    ) -> Result<Option<OsString>> {
        let own = Dentry { name: self.own_name(no), ..linked.dentry.clone() };
        let cred = linked.linker.cred().until(self.extend(deadline));
        match self.at_dentry(&cred, &own).await {
            Ok(found) => Ok(found.filter(|found| found.handle == *server).map(|_| own.name)),
            Err(Error::Stale) => Err(self.link_late(no, Error::Stale)),
            Err(_) => Err(self.link_late(no, Error::TimedOut)),
        }
    }

    /// The server may have these names from now on; this survives a crash of the machine. Returns
    /// those of which that was not so before.
    async fn mark_links(&self, all: &[ObjectNo]) -> Result<Vec<ObjectNo>> {
        let marked = self.mark_links_as(all.iter().copied(), true);
        self.keep().await.map(|()| marked)
    }

    fn mark_links_as(
        &self,
        all: impl Iterator<Item = ObjectNo>,
        is_attempted: bool,
    ) -> Vec<ObjectNo> {
        let mut state = self.state();
        let mut marked = Vec::new();
        for no in all {
            let linked = state.journal().links().get(no).cloned();
            if let Some(linked) = linked.filter(|linked| linked.is_attempted != is_attempted) {
                state.journal_mut().put_link(no, Some(Linked { is_attempted, ..linked }));
                marked.push(no);
            }
        }
        self.record(&mut state);
        marked
    }

    /// Makes a name at the server that is marked as attempted, and whose directory and file are
    /// there; if a temporary name is given, under that: then returns the move to its place.
    async fn link_at_server(
        &self,
        no: ObjectNo,
        own: Option<OsString>,
        deadline: Option<Deadline>,
    ) -> Result<Option<ObjectNo>> {
        let Some(linked) = self.state().journal().links().get(no).cloned() else {
            return Ok(None);
        };
        let server = self.state().journal().handle_at_server(&linked.file).ok_or(Error::Stale)?;
        let dir = self.server_dir(&linked.dentry.dir)?;
        let cred = linked.linker.cred().until(self.extend(deadline));
        let wanted = own.clone().unwrap_or_else(|| linked.dentry.name.clone());
        let (mut given, mut conflicts) = (wanted.clone(), 0);
        let (attr, change) = loop {
            let asking = self.remote.link(&cred, &server, &dir, &given);
            let refused = match self.on_record(&cred, &server, Sizes::KEPT, asking).await {
                Ok(answer) => break answer,
                Err(error) if is_unanswered(error) => return Err(error),
                Err(error) => error,
            };
            // An earlier attempt may have made it, whatever is said of this one.
            let found = match self.remote.lookup(&cred, &dir, &given).await {
                Ok(answer) => answer.found,
                // The directory is gone, and with it what was made in it.
                Err(Error::Stale) if refused == Error::Stale => return Err(refused),
                Err(_) => return Err(Error::TimedOut),
            };
            match found {
                Some(found) if found.handle == server => {
                    break (Some(found.attr), Change::default());
                }
                Some(_) if refused == Error::Exists && conflicts < CONFLICTS_MAX => {
                    conflicts += 1;
                    given = self.name_of_conflict(&wanted, conflicts);
                }
                None if refused == Error::Exists => return Err(Error::TryAgain),
                Some(_) | None => return Err(refused),
            }
        };
        let attr = match attr {
            Some(attr) => attr,
            None => {
                let attr = self.remote.getattr(&cred, &server).await;
                attr.map_err(|_| Error::TimedOut)?
            }
        };
        let found = Found { handle: server.clone(), attr };
        let is_conflict = conflicts > 0;
        let moved = self.note_link(no, &linked, (&wanted, given), found, change, own.is_some());
        let below = self.show_unaltered(&server, attr).validator();
        {
            let mut state = self.state();
            state.follow_altered(&server, below);
            self.record(&mut state);
        }
        self.ctime_moves(&server);
        if is_conflict {
            self.distrust(&linked.dentry.dir).await;
        }
        Ok(moved)
    }

    /// The server has the name. Returns the move to its place, if it `is_own`, a temporary one.
    fn note_link(
        &self,
        no: ObjectNo,
        linked: &Linked,
        (wanted, given): (&OsStr, OsString),
        Found { handle, attr }: Found,
        change: Change,
        is_own: bool,
    ) -> Option<ObjectNo> {
        let mut state = self.state();
        let state = &mut *state;
        let dir = &linked.dentry.dir;
        if let Some(known) = state.known_mut(dir) {
            known.replayed(&change, |names| {
                names.insert(given.clone());
            });
        }
        let place = state.journal().links().get(no).map(|link| link.dentry.clone());
        state.journal_mut().put_link(no, None);
        state.waits_no_more(no);
        if let Dir::Made(file) = linked.file {
            state.journal_mut().linked(file);
            // Its bytes are the same.
            state.journal_mut().follow_version(file, attr.validator());
        }
        state.is_linked(&linked.file);
        state.has_another_name(&handle);
        let is_conflict = !is_own && given != *wanted;
        if is_conflict {
            tracing::error!(name = ?wanted, kept = ?given,
                "somebody else made a name that was made here: both are kept");
        }
        let origin = Dentry { dir: dir.clone(), name: given };
        if is_conflict {
            let (kind, at, wanted) = (ConflictKind::Linked, origin.clone(), wanted.to_owned());
            state.journal_mut().meet(Met::Name { kind, at, wanted });
        }
        let taken = Taken {
            origin,
            dentry: place,
            handle,
            fileid: linked.fileid,
            kind: linked.kind,
            is_last: false,
            version: attr.validator(),
            taker: linked.linker.clone(),
            is_attempted: false,
            asked: None,
        };
        let moved = is_own.then(|| state.journal_mut().take(taken));
        if let Some(moved) = moved {
            self.set_due(state, moved, None);
        }
        self.record(state);
        self.tell_replayed();
        moved
    }

    /// Records why a name was not made; returns the error for its waiting callers.
    fn link_late(&self, no: ObjectNo, error: Error) -> Error {
        let mut state = self.state();
        let Some(linked) = state.journal().links().get(no).cloned() else { return Error::TimedOut };
        if state.failure(no) != Some(error) {
            tracing::warn!(name = ?linked.dentry.name, %error,
                "a name that a file was given here is not at the server");
        }
        // A server that refused has not made it.
        let is_attempted = is_unanswered(error);
        state.journal_mut().put_link(no, Some(Linked { is_attempted, ..linked }));
        state.fail(no, error);
        self.record(&mut state);
        Error::TimedOut
    }

    /// Makes the names that nothing blocks at the server, in several directories at the same time;
    /// those of which the server was asked before come first, one after the other.
    pub(crate) async fn make_links(
        self: &Arc<Self>,
        which: &Which,
        refused: &mut BTreeMap<ObjectNo, Error>,
    ) -> Result<()> {
        let asked: Vec<ObjectNo> = {
            let state = self.state();
            let links = state.journal().links().all().filter(|(_, linked)| linked.is_attempted);
            let due = links.map(|(no, _)| no).filter(|no| which.has(&state, *no));
            due.filter(|no| !refused.contains_key(no)).collect()
        };
        self.replay_some(asked, refused).await?;
        let mut groups: BTreeMap<Dir, Vec<ObjectNo>> = BTreeMap::new();
        let mut files = BTreeMap::new();
        {
            let state = self.state();
            let journal = state.journal();
            for (no, linked) in journal.links().all().filter(|(no, _)| which.has(&state, *no)) {
                let Dentry { dir, name } = &linked.dentry;
                let is_free = journal.taken().from(dir, name).is_none();
                let has_dir = journal.handle_at_server(dir).is_some();
                let Some(server) = journal.handle_at_server(&linked.file) else { continue };
                let is_asked = linked.is_attempted;
                if is_free && has_dir && !is_asked && !refused.contains_key(&no) {
                    files.insert(linked.file.clone(), (server, linked.clone()));
                    groups.entry(dir.clone()).or_default().push(no);
                }
            }
        }
        if groups.is_empty() {
            return Ok(());
        }
        for (file, (server, linked)) in files {
            let sent = self.send_bytes_of(&server, linked.kind).await;
            self.learn_links(&linked, &server).await;
            let Err(error) = sent else { continue };
            let state = self.state();
            refused.extend(state.journal().links().of(&file).map(|(no, _)| (no, error)));
        }
        groups.values_mut().for_each(|group| group.retain(|no| !refused.contains_key(no)));
        let all: Vec<ObjectNo> = groups.values().flatten().copied().collect();
        let marked = self.mark_links(&all).await?;
        let renamed = self.renamed_of(&groups);
        let unmarked = renamed.iter().copied().filter(|no| marked.contains(no));
        self.mark_links_as(unmarked, false);
        groups.values_mut().for_each(|group| group.retain(|no| !renamed.contains(no)));
        self.replay_some(renamed, refused).await?;
        let mut groups = groups.into_values();
        let (mut making, mut silence) = (JoinSet::new(), None);
        loop {
            while making.len() < DIRECTORIES_MAX
                && silence.is_none()
                && let Some(group) = groups.next()
            {
                let shared = self.clone();
                making.spawn(async move { shared.link_group(group).await });
            }
            let Some(ended) = making.join_next().await else { break };
            let (failed, unasked) = ended.unwrap_or_default();
            silence = silence.or(failed.iter().map(|one| one.1).find(|error| is_silence(*error)));
            refused.extend(failed);
            self.mark_links_as(unasked.into_iter().filter(|no| marked.contains(no)), false);
        }
        self.mark_links_as(groups.flatten().filter(|no| marked.contains(no)), false);
        silence.map_or(Ok(()), Err)
    }

    /// Of names that were free, in directories that the server has, those that callers have renamed
    /// until they were marked: to names that are not free yet, or elsewhere.
    fn renamed_of(&self, groups: &BTreeMap<Dir, Vec<ObjectNo>>) -> Vec<ObjectNo> {
        let state = self.state();
        let journal = state.journal();
        let is_renamed = |dir: &Dir, no: ObjectNo| {
            let dentry = journal.links().get(no).map(|linked| &linked.dentry);
            dentry.is_some_and(|at| {
                at.dir != *dir || journal.taken().from(&at.dir, &at.name).is_some()
            })
        };
        let all = groups.iter().flat_map(|(dir, group)| group.iter().map(move |no| (dir, *no)));
        all.filter(|(dir, no)| is_renamed(dir, *no)).map(|(_, no)| no).collect()
    }

    /// Makes names in one directory, one after the other. Returns those that were not made, and
    /// those for which the server was not asked.
    async fn link_group(&self, group: Vec<ObjectNo>) -> (Vec<(ObjectNo, Error)>, Vec<ObjectNo>) {
        let (mut failed, mut group) = (Vec::new(), group.into_iter());
        for no in &mut group {
            if let Err(error) = self.link_at_server(no, None, None).await {
                self.link_late(no, error);
                failed.push((no, error));
                if is_silence(error) {
                    break;
                }
            }
        }
        (failed, group.collect())
    }
}

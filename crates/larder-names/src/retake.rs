//! Removing and renaming at the server the names that were taken away here.
//!
//! An object that was moved is renamed, once its directory is there and its bytes are; an object
//! that was removed is removed, once nothing is left in it. What blocks it is done first: taking
//! away a name before another object comes to it. A file in the place of one that is removed
//! replaces it in one step, so the server has one of both at any time; for this, an object that was
//! made here is first made under a temporary name. Such a name also resolves cycles.
//!
//! Each is right only while the server still has the object under its earlier name, and, for a file
//! that is removed, with its earlier bytes. So the server is asked before; NFSv3 cannot do both in
//! one step. If another client has changed it, its content stays as it is: an object that was to be
//! removed stays, and an object that was to be moved to a name that another client has made gets
//! `NAME.conflict-HOST-TIME`. Either is a conflict on record.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use larder_cache::ConflictKind;
use larder_vfs::{Change, Cred, Deadline, Error, Found, Handle, Kind, Removal, Result, Validator};
use tokio::task::JoinSet;

use crate::met::Met;
use crate::object::{Body, Dentry, Dir, ObjectNo, Taken};
use crate::replay::{CONFLICTS_MAX, DIRECTORIES_MAX, is_silence};
use crate::shared::Shared;
use crate::which::Which;

/// A recursion that waits.
type Settling<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// How deep one change may depend on others.
const DEPTH_MAX: usize = 4096;

impl Shared {
    /// Makes one change at the server, after everything on which it depends. `under_way` are the
    /// changes that wait for it.
    pub(crate) fn replay_change<'a>(
        &'a self,
        no: ObjectNo,
        deadline: Option<Deadline>,
        under_way: &'a mut Vec<ObjectNo>,
    ) -> Settling<'a> {
        Box::pin(async move {
            if under_way.len() > DEPTH_MAX {
                return Err(Error::TimedOut);
            }
            if self.state().journal().get_altered(no).is_some() {
                return self.replay_altered(no, deadline).await;
            }
            if self.state().journal().taken().get(no).is_some() {
                return self.replay_taken(no, deadline, under_way).await;
            }
            if self.state().journal().links().get(no).is_some() {
                return self.replay_link(no, deadline, under_way).await;
            }
            let is_replacing = self.make_after_above(no, deadline, under_way).await?;
            match self.moved_of(no).filter(|_| is_replacing) {
                Some(moved) => self.replay_change(moved, deadline, under_way).await,
                None => Ok(()),
            }
        })
    }

    /// Makes an object at the server, after the directories above it. Returns whether it has a name
    /// of its own there, since it is to replace another one.
    pub(crate) async fn make_after_above(
        &self,
        no: ObjectNo,
        deadline: Option<Deadline>,
        under_way: &mut Vec<ObjectNo>,
    ) -> Result<bool> {
        let mut is_replacing = false;
        while let Some(next) = self.first_above(no) {
            is_replacing = self.replay_made(next, deadline, under_way).await?;
        }
        Ok(is_replacing)
    }

    /// Makes an object at the server whose directory is there, when its name is free. Returns
    /// whether it has a name of its own there until it replaces a file.
    async fn replay_made(
        &self,
        no: ObjectNo,
        deadline: Option<Deadline>,
        under_way: &mut Vec<ObjectNo>,
    ) -> Result<bool> {
        let (place, in_the_way) = {
            let state = self.state();
            let Some((dentry, waiting)) = state.journal().waiting(no) else { return Ok(false) };
            let taken = state.journal().taken();
            let other = taken.from(&dentry.dir, &dentry.name);
            let is_file = waiting.body == Body::File;
            let is_free = |other| is_file && taken.get(other).is_some_and(is_removed_file);
            (dentry.clone(), other.map(|other| (other, is_free(other))))
        };
        let mut own = None;
        match in_the_way {
            Some((_, true)) => own = Some(self.own_name(no)),
            Some((other, false)) => self.replay_change(other, deadline, under_way).await?,
            None => {}
        }
        let marked = self.mark_attempted(&[no]).await?;
        let is_elsewhere = |(dentry, _): (&Dentry, _)| *dentry != place;
        if self.state().journal().waiting(no).is_some_and(is_elsewhere) {
            // Until it was marked, a caller has renamed it: who made it here looks again.
            self.unmark(marked.into_iter().collect());
            return Ok(false);
        }
        let (is_again, is_replacing) = (marked.is_empty(), own.is_some());
        let made = self.make_as(no, own, is_again, deadline).await;
        made.map_err(|error| self.late_error(no, error))?;
        Ok(is_replacing)
    }

    /// The move that gives an object of the server its name.
    fn moved_of(&self, no: ObjectNo) -> Option<ObjectNo> {
        let state = self.state();
        let dentry = &state.journal().get(no)?.dentry;
        state.journal().taken().from(&dentry.dir, &dentry.name)
    }

    async fn replay_taken(
        &self,
        no: ObjectNo,
        deadline: Option<Deadline>,
        under_way: &mut Vec<ObjectNo>,
    ) -> Result<()> {
        let Some(taken) = self.waiting_taken(no) else { return Ok(()) };
        if under_way.contains(&no) {
            return self.give_way(no, &taken, deadline).await;
        }
        under_way.push(no);
        let replayed = match &taken.dentry {
            Some(to) => self.replay_moved(no, to, deadline, under_way).await,
            None => self.replay_removed(no, &taken.handle, deadline, under_way).await,
        };
        under_way.pop();
        replayed
    }

    fn waiting_taken(&self, no: ObjectNo) -> Option<Taken> {
        let state = self.state();
        state.journal().taken().get(no).cloned()
    }

    async fn replay_moved(
        &self,
        no: ObjectNo,
        to: &Dentry,
        deadline: Option<Deadline>,
        under_way: &mut Vec<ObjectNo>,
    ) -> Result<()> {
        if let Dir::Made(dir) = to.dir {
            self.replay_change(dir, deadline, under_way).await?;
        }
        let (other, file) = {
            let state = self.state();
            let taken = state.journal().taken();
            let file = taken.get(no).filter(|taken| taken.kind != Kind::Directory);
            (taken.from(&to.dir, &to.name), file.map(|taken| taken.handle.clone()))
        };
        let other = other.filter(|other| *other != no);
        if let Some(taken) = other.and_then(|other| self.waiting_taken(other)) {
            self.prepare_loss(&taken, deadline, under_way).await?;
        }
        let replaced = other.and_then(|other| Some((other, self.waiting_taken(other)?)));
        let replaced = match replaced {
            // It had to give way to one of its other names.
            Some((_, taken)) if taken.origin != *to => None,
            // To rename a file to another of its names does nothing.
            Some((other, taken))
                if is_removed_file(&taken) && file.is_some_and(|file| file != taken.handle) =>
            {
                Some((other, taken))
            }
            Some((other, _)) => {
                self.replay_change(other, deadline, under_way).await?;
                None
            }
            None => None,
        };
        // Perhaps it had to be renamed temporarily in the meantime.
        let Some(taken) = self.waiting_taken(no) else { return Ok(()) };
        self.send_bytes(&taken).await?;
        if let Some((_, gone)) = &replaced {
            self.set_before_loss(&gone.handle, deadline).await;
        }
        self.mark_taken(&[no]).await?;
        let moved = self.move_at_server(no, &taken, to, replaced, deadline).await;
        moved.map_err(|error| self.taken_late(no, error))
    }

    async fn replay_removed(
        &self,
        no: ObjectNo,
        removed: &Handle,
        deadline: Option<Deadline>,
        under_way: &mut Vec<ObjectNo>,
    ) -> Result<()> {
        loop {
            let inner = {
                let state = self.state();
                let dir = state.journal().dir(removed);
                state.journal().taken().origins_in(&dir).map(|(_, inner)| inner).next()
            };
            let Some(inner) = inner else { break };
            self.replay_change(inner, deadline, under_way).await?;
        }
        if let Some(taken) = self.waiting_taken(no) {
            self.prepare_loss(&taken, deadline, under_way).await?;
        }
        // Perhaps it had to give way in the meantime, and has another name.
        let Some(taken) = self.waiting_taken(no) else { return Ok(()) };
        self.set_before_loss(&taken.handle, deadline).await;
        self.mark_taken(&[no]).await?;
        let removed = self.remove_at_server(no, &taken, deadline).await;
        removed.map_err(|error| self.taken_late(no, error))
    }

    async fn move_at_server(
        &self,
        no: ObjectNo,
        taken: &Taken,
        to: &Dentry,
        replaced: Option<(ObjectNo, Taken)>,
        deadline: Option<Deadline>,
    ) -> Result<()> {
        let cred = taken.taker.cred().until(self.extend(deadline));
        let is_it = |found: &Option<Found>| {
            found.as_ref().is_some_and(|found| found.handle == taken.handle)
        };
        let (there, is_replaceable) = match &replaced {
            None => (self.at_taken(&cred, to, taken).await?, false),
            Some(gone) => self.look_at_taken(&cred, (to, taken), gone, deadline).await?,
        };
        let before = match self.at_taken(&cred, &taken.origin, taken).await {
            // It was moved out before its directory went.
            Err(Error::Stale) if is_it(&there) => None,
            before => before?,
        };
        if !is_it(&before) {
            // An earlier attempt has moved it, or another client changed it.
            let is_moved = is_it(&there);
            let given = if is_moved { to.clone() } else { taken.origin.clone() };
            let replaced = replaced.filter(|_| is_moved).map(|(other, _)| other);
            self.note_moved(no, taken, &given, replaced, None, !is_moved);
            if is_moved {
                self.follow_version(&cred, taken).await;
            }
            self.distrust_dentries([&taken.origin, to]).await;
            return Ok(());
        }
        let (mut given, mut conflicts, mut found) = (to.clone(), 0, there);
        loop {
            let is_free = match (&found, &replaced) {
                (None, _) => true,
                (Some(_), Some(_)) if conflicts == 0 => is_replaceable,
                (Some(_), _) => is_it(&found),
            };
            if is_free {
                break;
            }
            conflicts += 1;
            if conflicts > CONFLICTS_MAX {
                return Err(Error::Exists);
            }
            given.name = self.name_of_conflict(&to.name, conflicts);
            found = self.at_dentry(&cred, &given).await?;
        }
        let changes = self.rename_at_server(taken, (&taken.origin, &given), deadline).await?;
        let replaced = replaced.filter(|_| conflicts == 0).map(|(other, _)| other);
        self.note_moved(no, taken, &given, replaced, Some(changes), conflicts > 0);
        self.follow_version(&cred, taken).await;
        if conflicts > 0 {
            self.distrust_dentries([&given]).await;
        }
        Ok(())
    }

    /// A rename changes times that identify versions of objects made here: for holders of cached
    /// data nothing has changed.
    async fn follow_version(&self, cred: &Cred, taken: &Taken) {
        self.ctime_moves(&taken.handle);
        let Some(no) = self.state().journal().of_server(&taken.handle) else { return };
        let Ok(attr) = self.remote.getattr(cred, &taken.handle).await else { return };
        let mut state = self.state();
        state.journal_mut().follow_version(no, attr.validator());
        self.record(&mut state);
    }

    /// What the server has under a name that was taken away here, and whether that is what was
    /// taken away (`gone`), with the same bytes. What requests of ours do to it meanwhile is no
    /// other client's change.
    async fn look_at_taken(
        &self,
        cred: &Cred,
        (at, taken): (&Dentry, &Taken),
        gone: &(ObjectNo, Taken),
        deadline: Option<Deadline>,
    ) -> Result<(Option<Found>, bool)> {
        let gone_now = || self.waiting_taken(gone.0).unwrap_or_else(|| gone.1.clone());
        loop {
            let before = gone_now().version;
            let Some(found) = self.at_taken(cred, at, taken).await? else {
                return Ok((None, false));
            };
            let gone = gone_now();
            if self.is_as_taken(&found, &gone) {
                return Ok((Some(found), true));
            }
            let has_followed = gone.version != before;
            if !has_followed && !self.await_own_changes(&gone.handle, deadline).await? {
                let (now, then) = (&found.attr, &gone.version);
                tracing::info!(name = ?at.name, size = now.size, mtime = ?now.mtime,
                    size_here = then.size, mtime_here = ?then.mtime,
                    "the server has something else than was taken away here");
                return Ok((Some(found), false));
            }
        }
    }

    /// Whether the server still has the object whose name was taken, with the same bytes.
    fn is_as_taken(&self, found: &Found, taken: &Taken) -> bool {
        if taken.is_unseen() {
            let attr = &found.attr;
            let is_empty = attr.kind == Kind::File && attr.size == 0;
            return is_empty && attr.uid == taken.taker.uid && !self.is_known(&found.handle);
        }
        if found.handle != taken.handle {
            return false;
        }
        let now = self.show_unaltered(&found.handle, found.attr).validator();
        let same =
            |now: &Validator, then: &Validator| (now.size, now.mtime) == (then.size, then.mtime);
        // If no other client changes names there, only the name counts, as when a name is removed
        // at the server at once.
        self.excludes_others(&taken.origin.dir)
            || taken.kind != Kind::File
            || same(&now, &taken.version)
    }

    fn note_moved(
        &self,
        no: ObjectNo,
        taken: &Taken,
        given: &Dentry,
        replaced: Option<ObjectNo>,
        changes: Option<(Change, Change)>,
        is_conflict: bool,
    ) {
        let mut state = self.state();
        let state = &mut *state;
        let unseen = Change::default();
        let (from_change, to_change) = changes.unwrap_or((unseen, unseen));
        let is_same_dir = taken.origin.dir == given.dir;
        if let Some(known) = state.known_mut(&taken.origin.dir).filter(|_| !is_same_dir) {
            known.replayed(&from_change, |names| {
                names.remove(&taken.origin.name);
            });
        }
        if let Some(known) = state.known_mut(&given.dir) {
            known.replayed(&to_change, |names| {
                if is_same_dir {
                    names.remove(&taken.origin.name);
                }
                names.insert(given.name.clone());
            });
        }
        let other = replaced.and_then(|no| Some((no, state.journal().taken().get(no)?.clone())));
        if let Some((no, _)) = &other {
            state.journal_mut().put_taken(*no, None);
            state.waits_no_more(*no);
        }
        let lost = state.journal_mut().renamed(&taken.origin, given);
        state.forget_if_it_was(lost, other.as_ref().map(|(_, other)| &other.handle));
        let wanted =
            taken.dentry.as_ref().map(|dentry| dentry.name.clone()).filter(|_| is_conflict);
        if is_conflict {
            tracing::error!(name = ?taken.origin.name, kept = ?given.name,
                "somebody else has changed what was renamed here: both are kept");
        }
        if let Some(wanted) = wanted {
            let (kind, at) = (ConflictKind::Renamed, given.clone());
            state.journal_mut().meet(Met::Name { kind, at, wanted });
        }
        state.journal_mut().put_taken(no, None);
        state.waits_no_more(no);
        self.record(state);
    }

    async fn remove_at_server(
        &self,
        no: ObjectNo,
        taken: &Taken,
        deadline: Option<Deadline>,
    ) -> Result<()> {
        let cred = taken.taker.cred().until(self.extend(deadline));
        // An earlier attempt has removed it, or another client has, or has moved it.
        let gone_before = (Change::default(), self.licence.sole);
        let (at, gone) = ((&taken.origin, taken), (no, taken.clone()));
        let (change, is_removed) = match self.look_at_taken(&cred, at, &gone, deadline).await? {
            (None, _) => gone_before,
            // A rename of ours, whose answer has not come, has replaced it.
            (Some(found), false) if self.may_be_renamed_to(&found.handle, &taken.origin) => {
                gone_before
            }
            (Some(_), true) => {
                let dir = self.server_dir(&taken.origin.dir)?;
                let what = match taken.kind {
                    Kind::Directory => Removal::Directory,
                    _ => Removal::File,
                };
                match self.remote.remove(&cred, &dir, &taken.origin.name, what).await {
                    Ok(change) => {
                        self.ctime_moves(&taken.handle);
                        (change, true)
                    }
                    Err(Error::NotFound) => gone_before,
                    // Another client has made something in it.
                    Err(Error::NotEmpty) => return self.leave(no, taken).await,
                    Err(error) => return Err(error),
                }
            }
            (Some(_), false) => return self.leave(no, taken).await,
        };
        let mut state = self.state();
        if let Some(known) = state.known_mut(&taken.origin.dir) {
            known.replayed(&change, |names| {
                names.remove(&taken.origin.name);
            });
        }
        let dir = state.journal().dir(&taken.handle);
        state.dir_leases_mut().forget(&dir);
        let lost = state.journal_mut().removed(&taken.origin);
        state.journal_mut().put_taken(no, None);
        // It may have had several names.
        let is_last = taken.is_last && self.licence.sole && !state.journal().is_gone(&taken.handle);
        let made = || state.journal().of_server(&taken.handle).filter(|_| is_last);
        let lost = lost.or_else(made);
        state.forget_if_it_was(lost, is_removed.then_some(&taken.handle));
        state.waits_no_more(no);
        self.record(&mut state);
        Ok(())
    }

    /// Whether the server was asked to give the object with this handle this name, and may have
    /// done so.
    fn may_be_renamed_to(&self, file: &Handle, to: &Dentry) -> bool {
        let state = self.state();
        let mut all = state.journal().taken().of(file).map(|(_, taken)| taken);
        all.any(|taken| taken.is_attempted && taken.dentry.as_ref() == Some(to))
    }

    /// Another client has changed an object that was to be removed. What nobody here has seen was
    /// never there, and is not reported.
    async fn leave(&self, no: ObjectNo, taken: &Taken) -> Result<()> {
        let is_told = !taken.is_unseen();
        if is_told {
            tracing::error!(name = ?taken.origin.name,
                "somebody else has changed what was removed here: it stays");
        }
        {
            let mut state = self.state();
            if is_told {
                state.journal_mut().meet(Met::Stays { at: taken.origin.clone() });
            }
            state.journal_mut().put_taken(no, None);
            state.waits_no_more(no);
            self.record(&mut state);
        }
        self.distrust_dentries([&taken.origin]).await;
        Ok(())
    }

    async fn distrust_dentries<const COUNT: usize>(&self, dentries: [&Dentry; COUNT]) {
        for dentry in dentries {
            self.distrust(&dentry.dir).await;
        }
    }

    /// Moves, and the making of objects in the place of ones that were taken away.
    pub(crate) fn in_the_way(&self, which: &Which) -> Vec<ObjectNo> {
        let state = self.state();
        let journal = state.journal();
        let is_one = |no: ObjectNo| match journal.taken().get(no) {
            Some(taken) => taken.dentry.is_some(),
            None if journal.get_altered(no).is_some() => true,
            None => {
                let linked = journal.links().get(no).map(|linked| &linked.dentry);
                let dentry = linked.or_else(|| Some(journal.waiting(no)?.0));
                dentry.is_some_and(|at| journal.taken().from(&at.dir, &at.name).is_some())
            }
        };
        let mut all: Vec<ObjectNo> = state
            .all_due()
            .map(|(no, _)| no)
            .filter(|no| which.has(&state, *no) && is_one(*no))
            .collect();
        all.sort_unstable();
        all
    }

    /// The names that are due to be taken away.
    pub(crate) fn taken_due(&self, which: &Which) -> Vec<ObjectNo> {
        let state = self.state();
        let taken = state.journal().taken();
        taken.waiting().map(|(no, _)| no).filter(|no| which.has(&state, *no)).collect()
    }

    /// Makes these changes, one after the other, each after everything on which it depends.
    pub(crate) async fn replay_some(
        &self,
        all: Vec<ObjectNo>,
        refused: &mut BTreeMap<ObjectNo, Error>,
    ) -> Result<()> {
        for no in all {
            if self.replay_change(no, None, &mut Vec::new()).await.is_ok() {
                continue;
            }
            let failure = self.state().failure(no);
            refused.insert(no, failure.unwrap_or(Error::TimedOut));
            // Nobody is there: the others would wait as long. That something on which this one
            // depends was refused does not concern them.
            if failure.map_or_else(|| !self.remote.reachable(), is_silence) {
                self.keep().await?;
                return Err(Error::TimedOut);
            }
        }
        Ok(())
    }

    /// Removes objects that are not directories, in several directories at the same time.
    pub(crate) async fn remove_files(
        self: &Arc<Self>,
        which: &Which,
        refused: &mut BTreeMap<ObjectNo, Error>,
    ) -> Result<()> {
        let mut groups: BTreeMap<Dir, Vec<(ObjectNo, Taken)>> = BTreeMap::new();
        for no in self.taken_due(which) {
            let is_one = |taken: &Taken| {
                is_removed_file(taken) && taken.is_last && !self.has_links(&taken.handle)
            };
            let taken = self.waiting_taken(no).filter(is_one);
            if let Some(taken) = taken.filter(|_| !refused.contains_key(&no)) {
                groups.entry(taken.origin.dir.clone()).or_default().push((no, taken));
            }
        }
        let all: Vec<ObjectNo> = groups.values().flatten().map(|(no, _)| *no).collect();
        if all.is_empty() {
            return Ok(());
        }
        self.mark_taken(&all).await?;
        let mut groups = groups.into_values();
        let mut removing = JoinSet::new();
        loop {
            while removing.len() < DIRECTORIES_MAX
                && let Some(group) = groups.next()
            {
                let shared = self.clone();
                removing.spawn(async move { shared.remove_group(group).await });
            }
            let Some(ended) = removing.join_next().await else { return Ok(()) };
            refused.extend(ended.unwrap_or_default());
        }
    }

    async fn remove_group(&self, group: Vec<(ObjectNo, Taken)>) -> Vec<(ObjectNo, Error)> {
        let mut refused = Vec::new();
        for (no, taken) in group {
            if let Err(error) = self.remove_at_server(no, &taken, None).await {
                self.taken_late(no, error);
                refused.push((no, error));
                if matches!(error, Error::TimedOut | Error::Shutdown) {
                    break;
                }
            }
        }
        refused
    }
}

/// Whether the object is to be removed and can be replaced by a file in one step.
pub(crate) fn is_removed_file(taken: &Taken) -> bool {
    taken.dentry.is_none() && taken.kind != Kind::Directory
}

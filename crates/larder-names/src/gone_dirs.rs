//! What waits for a directory that is gone at the server: another client has removed it, or the
//! server was restored from a backup and has another object in its place.
//!
//! The directory is looked for where it was last seen. If one has its name there, what waits goes
//! on in that: each change has its own precondition. Otherwise what was made here is made in a
//! directory `NAME.conflict-HOST-TIME`, beside where the other one was, with a conflict on record.
//! What was removed in the directory is gone with it. A file whose attributes wait is looked for in
//! the same way ([`Shared::find_again`]).
//!
//! Invariants:
//! - Only the server's own answers count: it says that the directory is stale, and that its place
//!   is empty, and knows its root. Silence and refusals change nothing.
//! - Each decision is one change of the journal, with the conflict: a process that dies finds it
//!   whole or not at all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};

use larder_cache::ConflictKind;
use larder_vfs::{Access, Attr, Cred, Deadline, Error, Handle, Kind, Result};

use crate::met::Met;
use crate::object::{Body, Dentry, Dir, Maker, ObjectNo, Waiting, is_unanswered};
use crate::shared::Shared;
use crate::state::State;

/// Deepest path on which a directory is looked for.
const DEPTH_MAX: usize = 256;
/// The name of a directory of which nobody knows where it was.
const UNKNOWN: &str = "unknown";
/// What it takes to make something in a directory.
const TO_MAKE: Access = Access(Access::LOOKUP.0 | Access::MODIFY.0 | Access::EXTEND.0);

/// Where an object is that went stale.
enum Sought {
    /// The server has one in its place.
    There(Handle),
    /// It has none: the directory above, and the names from there on.
    Gone { above: Dir, path: VecDeque<OsString> },
}

/// What the server called stale.
#[derive(Default)]
struct Stale {
    dirs: BTreeSet<Dir>,
    links: BTreeSet<ObjectNo>,
}

/// Directories that were made by this attempt for what waits: in which, and for which names.
type Made = BTreeMap<(Dir, OsString), ObjectNo>;

impl Shared {
    /// Finds out where the directories are for which changes were refused as stale, and has what
    /// waits there wait elsewhere. To be called by the task that makes things at the server.
    /// Returns whether that has changed anything, so that it is worth another attempt.
    pub(crate) async fn settle_gone(&self, deadline: Option<Deadline>) -> bool {
        let Stale { dirs, links } = self.state().stale();
        if dirs.is_empty() && links.is_empty() {
            return false;
        }
        // A server that does not know its root lacks more than a directory.
        let Ok(root) = self.ask_root(deadline).await else { return false };
        let root_cred = Cred::root().until(deadline);
        let mut is_settled = false;
        for no in links {
            is_settled |= self.settle_link(&root_cred, no).await;
        }
        let mut made = Made::new();
        for dir in dirs {
            // Who changed names in it could search the directories above it.
            let asker = self.state().journal().asker_in(&dir);
            let cred = asker.map_or_else(|| root_cred.clone(), |who| who.cred().until(deadline));
            let is_dir = |attr: &Attr| attr.kind == Kind::Directory;
            match self.seek(&cred, &root.handle, &dir, is_dir).await {
                Ok(Sought::There(handle)) => {
                    is_settled |= self.go_on_in(&dir, &handle).await;
                }
                Ok(Sought::Gone { above, path }) => {
                    self.keep_beside(&cred, &dir, (above, path), &mut made).await;
                    is_settled = true;
                }
                Err(error) => tracing::debug!(%error, "a directory that went stale is not found"),
            }
        }
        is_settled
    }

    /// Whether the server says that an object is gone.
    async fn is_stale(&self, cred: &Cred, handle: &Handle) -> Result<bool> {
        match self.remote.getattr(cred, handle).await {
            Ok(_) => Ok(false),
            Err(Error::Stale) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Where an object is that the server called stale: there after all, perhaps, or what has its
    /// name and `is_it`.
    async fn seek(
        &self,
        cred: &Cred,
        root: &Handle,
        object: &Dir,
        is_it: impl Fn(&Attr) -> bool,
    ) -> Result<Sought> {
        let (mut at, mut path) = (object.clone(), VecDeque::new());
        let mut below = None;
        let mut handle = loop {
            let handle = self.state().journal().handle_at_server(&at).ok_or(Error::TimedOut)?;
            if !self.is_stale(cred, &handle).await? {
                break handle;
            }
            let held = self.holder();
            if held.is_some_and(|held| held.is_root(&handle)) {
                break root.clone();
            }
            if let Some((above, name)) = self.was_at(&at).filter(|_| path.len() < DEPTH_MAX) {
                path.push_front(name);
                below = Some(std::mem::replace(&mut at, above));
                continue;
            }
            // The client may have found it again meanwhile, by another handle.
            let again = below.as_ref().and_then(|below| self.was_at(below));
            let Some((above, name)) = again.filter(|(above, _)| *above != at) else {
                path.push_front(UNKNOWN.into());
                return Ok(Sought::Gone { above: Dir::Server(root.clone()), path });
            };
            (at, path[0]) = (above, name);
        };
        while let Some(name) = path.front() {
            let is_last = path.len() == 1;
            let found = self.remote.lookup(cred, &handle, name).await?.found;
            let is_there = |attr: &Attr| match is_last {
                true => is_it(attr),
                false => attr.kind == Kind::Directory,
            };
            let Some(found) = found.filter(|found| is_there(&found.attr)) else {
                let above = self.state().journal().dir(&handle);
                return Ok(Sought::Gone { above, path });
            };
            handle = found.handle;
            path.pop_front();
        }
        Ok(Sought::There(handle))
    }

    /// Looks for an object that the server does not know by its handle any more: what has its name,
    /// and `is_it`, is the same object, by another handle.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if the server does not answer, or knows the object after all.
    pub(crate) async fn find_again(
        &self,
        cred: &Cred,
        before: &Handle,
        is_it: impl Fn(&Attr) -> bool,
    ) -> Result<()> {
        let object = Dir::Server(before.clone());
        let sought = async {
            let root = self.ask_root(cred.deadline).await?;
            self.seek(cred, &root.handle, &object, is_it).await
        };
        match sought.await {
            Ok(Sought::There(now)) if now == *before => Err(Error::TimedOut),
            Ok(Sought::There(now)) => {
                self.found_again(before, &now);
                Ok(())
            }
            Err(error) if is_unanswered(error) => Err(error),
            Ok(Sought::Gone { .. }) | Err(_) => Ok(()),
        }
    }

    /// The directory and the name under which the server had an object, as far as is known.
    fn was_at(&self, object: &Dir) -> Option<(Dir, OsString)> {
        let of_journal = {
            let state = self.state();
            let journal = state.journal();
            let server = journal.handle_at_server(object)?;
            let moved = journal.taken().of(&server).map(|(_, taken)| &taken.origin).next();
            let made = match object {
                Dir::Made(no) => journal.get(*no).map(|object| &object.dentry),
                Dir::Server(_) => None,
            };
            moved.or(made).cloned()
        };
        let dentry = match (of_journal, object) {
            (Some(dentry), _) => dentry,
            (None, Dir::Server(handle)) => {
                let held = self.holder()?;
                let (dir, name) = held.last_seen(handle)?;
                Dentry { dir: self.state().journal().dir(&dir), name }
            }
            (None, Dir::Made(_)) => return None,
        };
        Some((dentry.dir, dentry.name))
    }

    /// What waits for a directory goes on in the one that has its place. Returns whether that is
    /// another one.
    async fn go_on_in(&self, dir: &Dir, handle: &Handle) -> bool {
        let to = {
            let mut state = self.state();
            let to = state.journal().dir(handle);
            if to == *dir {
                return false;
            }
            tracing::warn!(
                "another directory is where one was that is gone at the server: \
                what waits for that goes there"
            );
            state.journal_mut().rehome_named(dir, &to);
            self.rehome(&mut state, dir, &to);
            to
        };
        self.distrust(dir).await;
        self.distrust(&to).await;
        true
    }

    /// What waits for a directory that is gone waits for one that is made beside where it was.
    async fn keep_beside(
        &self,
        cred: &Cred,
        dir: &Dir,
        (above, path): (Dir, VecDeque<OsString>),
        made: &mut Made,
    ) {
        let client_handle = self.state().journal().client_handle(dir);
        let held = self.holder();
        let was = held.and_then(|held| held.held(&client_handle));
        let maker = self.state().journal().maker_in(dir);
        let above = match &maker {
            Some(maker) => self.where_it_may_be(cred, maker, above).await,
            None => above,
        };
        {
            let mut state = self.state();
            let state = &mut *state;
            let ended = state.journal_mut().end_taken_in(dir);
            ended.into_iter().for_each(|no| state.is_settled(no));
            if let Some(maker) = maker {
                let at = self.make_beside(state, (&above, path), (&maker, was), made);
                self.rehome(state, dir, &Dir::Made(at));
            } else {
                self.forget_dir(state, dir);
            }
        }
        self.distrust(dir).await;
        self.distrust(&above).await;
    }

    /// The nearest directory, from that one upwards, in which the user may make something; if there
    /// is none, the first: what waits there is listed with the server's reason.
    async fn where_it_may_be(&self, cred: &Cred, maker: &Maker, above: Dir) -> Dir {
        let maker = maker.cred().until(cred.deadline);
        let mut at = above.clone();
        for _ in 0..DEPTH_MAX {
            let Some(handle) = self.state().journal().handle_at_server(&at) else { break };
            let Ok(judged) = self.remote.access(&maker, &handle, TO_MAKE).await else { break };
            if judged.granted.contains(TO_MAKE) {
                return at;
            }
            let Some((next, _)) = self.was_at(&at) else { break };
            at = next;
        }
        above
    }

    /// Makes directories here, the first one under the name of a conflict, unless that was done
    /// before. Returns the last one.
    fn make_beside(
        &self,
        state: &mut State,
        (above, path): (&Dir, VecDeque<OsString>),
        (maker, was): (&Maker, Option<Attr>),
        made: &mut Made,
    ) -> ObjectNo {
        let (mut at, mut last) = (above.clone(), None);
        for wanted in path {
            let key = (at.clone(), wanted.clone());
            let is_directory = |no: &ObjectNo| {
                let waiting = state.journal().waiting(*no);
                waiting.is_some_and(|(_, waiting)| waiting.body == Body::Directory)
            };
            let ours = || {
                let waiting = state.journal().waiting_at(&at, &wanted);
                waiting.filter(|no| last.is_some() && is_directory(no))
            };
            let known = made.get(&key).copied().or_else(ours);
            let no = known.unwrap_or_else(|| {
                let is_first = last.is_none();
                let name = match is_first {
                    true => self.name_of_conflict(&wanted, 1),
                    false => wanted.clone(),
                };
                let tried = u32::from(is_first);
                let other = |_: &OsStr, number| self.name_of_conflict(&wanted, number + tried);
                let name = state.journal().free_name(&at, &name, &other);
                self.make_directory(state, Dentry { dir: at.clone(), name }, (maker, was))
            });
            if last.is_none() && known.is_none() {
                let at = state.journal().get(no).expect("it was made").dentry.clone();
                tracing::error!(?wanted, kept = ?at.name, "a directory is gone at the server: what \
                    was made in it here is kept beside where it was");
                state.journal_mut().meet(Met::Name { kind: ConflictKind::Gone, at, wanted });
            }
            made.insert(key, no);
            (at, last) = (Dir::Made(no), Some(no));
        }
        last.expect("a path has a name")
    }

    /// Makes a directory of a user here, with the permissions of the one that was there.
    fn make_directory(
        &self,
        state: &mut State,
        dentry: Dentry,
        (maker, was): (&Maker, Option<Attr>),
    ) -> ObjectNo {
        let now = state.time(&*self.clock);
        let owner = was.filter(|_| maker.uid == 0).map(|was| (was.uid, was.gid));
        let (uid, gid) = owner.unwrap_or((maker.uid, maker.gid));
        let waiting = Waiting {
            body: Body::Directory,
            mode: was.map_or(0, |was| was.mode & 0o1777) | 0o700,
            uid,
            gid,
            atime: now,
            mtime: now,
            ctime: now,
            maker: maker.clone(),
            is_attempted: false,
        };
        let no = state.journal_mut().make(dentry, waiting);
        state.set_due_at(no, self.clock.instant());
        no
    }

    /// What waits in a directory that is gone waits in another one from now on.
    fn rehome(&self, state: &mut State, from: &Dir, to: &Dir) {
        let other = |name: &OsStr, number| self.name_of_conflict(name, number);
        let settled = state.journal_mut().rehome(from, to, &other);
        settled.into_iter().for_each(|no| state.is_settled(no));
        let now = self.clock.instant();
        state.is_due_in(to, now);
        self.alarm.set(now);
        self.forget_dir(state, from);
    }

    fn forget_dir(&self, state: &mut State, dir: &Dir) {
        state.forget_dir(dir);
        if let Dir::Made(no) = dir {
            state.journal_mut().gone(*no);
        }
        self.record(state);
        self.tell_replayed();
    }

    /// Ends the waiting of another name of a file that is gone.
    async fn settle_link(&self, cred: &Cred, no: ObjectNo) -> bool {
        let file = {
            let state = self.state();
            let journal = state.journal();
            let file = journal.links().get(no).map(|linked| linked.file.clone());
            file.and_then(|file| journal.handle_at_server(&file))
        };
        let Some(file) = file else { return false };
        if self.is_stale(cred, &file).await != Ok(true) {
            return false;
        }
        let mut state = self.state();
        state.journal_mut().end_link(no);
        state.waits_no_more(no);
        self.record(&mut state);
        true
    }

    /// The client knows that the server has an object of its own under another handle now.
    pub(crate) fn found_again(&self, before: &Handle, now: &Handle) {
        let other = |name: &OsStr, number| self.name_of_conflict(name, number);
        let mut state = self.state();
        let settled = state.journal_mut().rekey(before, now, &other);
        settled.into_iter().for_each(|no| state.is_settled(no));
        self.record(&mut state);
    }
}

impl State {
    /// A change waits for another directory, for which nothing was refused yet, or no more.
    fn is_settled(&mut self, no: ObjectNo) {
        let journal = self.journal();
        let waits = journal.waiting(no).is_some()
            || journal.taken().get(no).is_some()
            || journal.links().get(no).is_some();
        if waits { self.fail_no_more(no) } else { self.waits_no_more(no) }
    }

    /// What was called stale when changes were refused.
    fn stale(&self) -> Stale {
        let mut stale = Stale::default();
        let journal = self.journal();
        for no in self.failed_as(Error::Stale) {
            let dirs = if let Some((dentry, _)) = journal.waiting(no) {
                vec![&dentry.dir]
            } else if let Some(taken) = journal.taken().get(no) {
                let to = taken.dentry.as_ref().map(|dentry| &dentry.dir);
                [&taken.origin.dir].into_iter().chain(to).collect()
            } else if let Some(linked) = journal.links().get(no) {
                stale.links.insert(no);
                vec![&linked.dentry.dir]
            } else {
                continue;
            };
            let at_server = dirs.into_iter().filter(|dir| journal.handle_at_server(dir).is_some());
            stale.dirs.extend(at_server.cloned());
        }
        stale
    }
}

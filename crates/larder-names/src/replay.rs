//! Makes waiting objects at the server.
//!
//! One task does so at a time. An object is ready when the server has its directory. The task marks
//! it as attempted, durably, and then sends the request: one after the other in each directory, and
//! in several directories at once. If the answer does not arrive, the mark stays. The next attempt
//! may find the object there: then it is ours if it looks as we asked for it, and has not been
//! touched. A directory is taken as ours in any case: two directories that are made as one have the
//! entries of both.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_vfs::{
    Attr, Change, Cred, Deadline, Error, Found, Handle, Kind, Made, New, Result, SetAttr, SetTime,
    Time,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::known::Known;
use crate::object::{Body, Dir, Named, ObjectNo, Shown, Waiting};
use crate::shared::Shared;

/// Most directories in which something is made at once.
const DIRECTORIES_MAX: usize = 16;
/// Most objects that are asked for before that they are is on the disk again.
const BATCH_MAX: usize = 1024;
/// Most names that are tried for what somebody else has made the name of.
const CONFLICTS_MAX: u32 = 16;
/// After a failure nobody is asked for so long.
const RETRY_AFTER: Duration = Duration::from_secs(10);

impl Shared {
    /// Makes one object at the server, after the directories that it is in.
    ///
    /// # Errors
    /// [`Error::TimedOut`] whatever the server said: it waits on, and so does all that needs it.
    pub(crate) async fn settle_one(&self, no: ObjectNo, deadline: Option<Deadline>) -> Result<()> {
        let _turn = match deadline {
            None => self.turn.lock().await,
            Some(deadline) => {
                let turn = self.clock.timeout_at(deadline.at(), self.turn.lock()).await;
                turn.map_err(|_| Error::TimedOut)?
            }
        };
        while let Some(next) = self.first_above(no) {
            self.mark_attempted(&[next]).await?;
            let made = self.make_at_server(next, deadline).await;
            made.map_err(|error| self.told_late(next, error))?;
        }
        self.keep().await
    }

    /// Makes all objects at the server for which it is time at `until`; `None`: all.
    ///
    /// # Errors
    /// What the server said to the first that it did not take; the others were tried too.
    pub(crate) async fn settle_all(self: &Arc<Self>, until: Option<Instant>) -> Result<()> {
        let _turn = self.turn.lock().await;
        let mut refused = BTreeMap::new();
        loop {
            let ready = self.ready(until, &refused);
            if ready.is_empty() {
                break;
            }
            let all: Vec<ObjectNo> = ready.values().flatten().copied().collect();
            self.mark_attempted(&all).await?;
            let mut making = JoinSet::new();
            for group in ready.into_values() {
                let shared = self.clone();
                making.spawn(async move {
                    let mut refused = Vec::new();
                    for no in group {
                        if let Err(error) = shared.make_at_server(no, None).await {
                            refused.push((no, error));
                            // Nobody is there: the others would wait as long.
                            if matches!(error, Error::TimedOut | Error::Shutdown) {
                                break;
                            }
                        }
                    }
                    refused
                });
            }
            let mut is_away = None;
            while let Some(group) = making.join_next().await {
                for (no, error) in group.unwrap_or_default() {
                    self.told_late(no, error);
                    refused.insert(no, error);
                    if matches!(error, Error::TimedOut | Error::Shutdown) {
                        is_away = Some(error);
                    }
                }
            }
            if let Some(error) = is_away {
                self.keep().await?;
                return Err(error);
            }
        }
        self.keep().await?;
        refused.into_values().next().map_or(Ok(()), Err)
    }

    /// What can be made now, by directory, of what is due at `until` and what that is in.
    fn ready(
        &self,
        until: Option<Instant>,
        refused: &BTreeMap<ObjectNo, Error>,
    ) -> BTreeMap<Dir, Vec<ObjectNo>> {
        let state = self.state();
        let mut wanted = BTreeSet::new();
        for (no, due) in state.all_due() {
            if until.is_some_and(|until| due > until) {
                continue;
            }
            // The topmost that is not at the server.
            let mut at = no;
            while let Some((place, _)) = state.journal().waiting(at) {
                match place.dir {
                    Dir::Made(above) if state.journal().waiting(above).is_some() => at = above,
                    _ => break,
                }
            }
            wanted.insert(at);
        }
        let mut groups: BTreeMap<Dir, Vec<ObjectNo>> = BTreeMap::new();
        let mut count = 0;
        for no in wanted.into_iter().filter(|no| !refused.contains_key(no)) {
            let Some((place, _)) = state.journal().waiting(no) else { continue };
            if count == BATCH_MAX {
                break;
            }
            if groups.len() == DIRECTORIES_MAX && !groups.contains_key(&place.dir) {
                continue;
            }
            groups.entry(place.dir.clone()).or_default().push(no);
            count += 1;
        }
        groups
    }

    /// Of an object and what it is in, the topmost that the server does not have.
    fn first_above(&self, no: ObjectNo) -> Option<ObjectNo> {
        let state = self.state();
        let (mut first, mut at) = (None, no);
        while let Some((place, _)) = state.journal().waiting(at) {
            first = Some(at);
            let Dir::Made(above) = place.dir else { break };
            at = above;
        }
        first
    }

    /// From now on the server may have these, also after a crash of the machine.
    async fn mark_attempted(&self, objects: &[ObjectNo]) -> Result<()> {
        {
            let mut state = self.state();
            for no in objects {
                let Some((_, waiting)) = state.journal().waiting(*no) else { continue };
                if !waiting.is_attempted {
                    let waiting = Waiting { is_attempted: true, ..waiting.clone() };
                    state.journal_mut().change(*no, waiting);
                }
            }
            self.record(&mut state);
        }
        self.keep().await
    }

    /// Notes why an object was not made; answers what who waits for it is told.
    fn told_late(&self, no: ObjectNo, error: Error) -> Error {
        let mut state = self.state();
        let Some((place, waiting)) = state.journal().waiting(no) else { return Error::TimedOut };
        if state.failure(no) != Some(error) {
            tracing::warn!(name = ?place.name, %error, "a name that was made here is not at the server");
        }
        // Who said no has not made it.
        let waiting = Waiting { is_attempted: is_unanswered(error), ..waiting.clone() };
        state.journal_mut().change(no, waiting);
        state.fail(no, error);
        self.record(&mut state);
        Error::TimedOut
    }

    /// Makes one object whose directory the server has, and which is marked.
    async fn make_at_server(&self, no: ObjectNo, deadline: Option<Deadline>) -> Result<()> {
        let (dir, parent, name, waiting) = {
            let state = self.state();
            let Some((place, waiting)) = state.journal().waiting(no) else { return Ok(()) };
            let parent = match &place.dir {
                Dir::Server(handle) => handle.clone(),
                Dir::Made(above) => {
                    state.journal().named(*above).ok_or(Error::Stale)?.handle.clone()
                }
            };
            (place.dir.clone(), parent, place.name.clone(), waiting.clone())
        };
        let cred = waiting.maker.cred().until(deadline);
        let (mut given, mut conflicts) = (name.clone(), 0);
        let (found, change, is_new) = loop {
            let refused = match self.ask(&cred, &parent, &given, &waiting).await {
                Ok(made) => break (made.found, made.dir, true),
                Err(error) if is_unanswered(error) => return Err(error),
                Err(error) => error,
            };
            // An earlier try may have made it, whatever is said of this one.
            match self.look_for_ours(&cred, &parent, &given, &waiting).await {
                Ok(There::Ours(found)) => break (found, Change::default(), false),
                Ok(There::Another) if refused == Error::Exists && conflicts < CONFLICTS_MAX => {
                    conflicts += 1;
                    given = self.name_of_conflict(&name, conflicts);
                }
                Ok(There::Nothing) if refused == Error::Exists => return Err(Error::TryAgain),
                Ok(There::Another | There::Nothing) => return Err(refused),
                Err(_) => return Err(Error::TimedOut),
            }
        };
        let attr = self.complete(&cred, &found, &waiting).await;
        let change = match change.after {
            Some(_) => change,
            // Its version is to be known, if anything is known of it.
            None if self.state().known(&dir).is_some() => {
                Change { after: self.remote.getattr(&cred, &parent).await.ok(), before: None }
            }
            None => change,
        };
        self.note_named(
            no,
            &dir,
            (&name, given),
            &waiting,
            Found { attr, ..found },
            change,
            is_new,
        );
        if conflicts > 0 {
            self.distrust(&dir).await;
        }
        Ok(())
    }

    async fn ask(
        &self,
        cred: &Cred,
        parent: &Handle,
        name: &OsStr,
        waiting: &Waiting,
    ) -> Result<Made> {
        let (atime, mtime) = (SetTime::To(waiting.atime), SetTime::To(waiting.mtime));
        let set = SetAttr {
            mode: Some(waiting.mode),
            atime: Some(atime),
            mtime: Some(mtime),
            ..SetAttr::default()
        };
        let new = match &waiting.body {
            // In one request with its times, by which it is known again.
            Body::File => New::Node(Kind::File, larder_vfs::Device::default()),
            Body::Directory => New::Directory,
            Body::Symlink(target) => New::Symlink(target.clone()),
            Body::Node(kind, device) => New::Node(*kind, *device),
        };
        self.remote.make(cred, parent, name, new, set).await
    }

    /// What the server has under that name: ours, if an earlier try of ours may have made it and
    /// nothing was done with it since.
    async fn look_for_ours(
        &self,
        cred: &Cred,
        parent: &Handle,
        name: &OsStr,
        waiting: &Waiting,
    ) -> Result<There> {
        let Some(found) = self.remote.lookup(cred, parent, name).await?.found else {
            return Ok(There::Nothing);
        };
        let attr = &found.attr;
        let is_ours = self.state().journal().of_server(&found.handle).is_none()
            && attr.kind == waiting.body.kind()
            && match &waiting.body {
                Body::File => attr.size == 0 && self.is_time(attr.mtime, waiting.mtime),
                Body::Directory => true,
                Body::Symlink(target) => {
                    self.remote.readlink(cred, &found.handle).await?.0 == *target
                }
                Body::Node(_, device) => attr.device == *device,
            };
        Ok(if is_ours { There::Ours(found) } else { There::Another })
    }

    /// Whether a time that the server keeps is one that it was given.
    fn is_time(&self, kept: Time, given: Time) -> bool {
        let delta = self.remote.limits().time_delta_ns.max(1);
        let nanoseconds = |time: Time| i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
        (nanoseconds(given) - nanoseconds(kept)).unsigned_abs() < u128::from(delta)
    }

    /// The attributes of what was made, after those that the server did not take with it.
    async fn complete(&self, cred: &Cred, found: &Found, waiting: &Waiting) -> Attr {
        let attr = self.give_owner(cred, found, waiting).await;
        let mode = (attr.mode != waiting.mode).then_some(waiting.mode);
        let mtime =
            (!self.is_time(attr.mtime, waiting.mtime)).then_some(SetTime::To(waiting.mtime));
        let set = SetAttr { mode, mtime, ..SetAttr::default() };
        if attr.kind == Kind::Symlink || set == SetAttr::default() {
            return attr;
        }
        match self.remote.setattr(cred, &found.handle, set, None).await {
            Ok(change) => change.after.unwrap_or(attr),
            Err(error) => {
                tracing::debug!(%error, "the server gives it other attributes than it has here");
                attr
            }
        }
    }

    /// Gives what was made the owner that it has here, before its mode: that may lose bits of it.
    async fn give_owner(&self, cred: &Cred, found: &Found, waiting: &Waiting) -> Attr {
        let attr = found.attr;
        let is_his = (attr.uid, attr.gid) == (waiting.uid, waiting.gid);
        if is_his || waiting.maker.uid != 0 {
            return attr;
        }
        let set = SetAttr { uid: Some(waiting.uid), gid: Some(waiting.gid), ..SetAttr::default() };
        match self.remote.setattr(cred, &found.handle, set, None).await {
            Ok(change) => change.after.unwrap_or(attr),
            Err(error) => {
                tracing::warn!(uid = waiting.uid, gid = waiting.gid, %error,
                    "the server does not give what was made here the owner that it has here");
                attr
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "all of it is one answer")]
    fn note_named(
        &self,
        no: ObjectNo,
        dir: &Dir,
        (wanted, given): (&OsStr, OsString),
        waiting: &Waiting,
        Found { handle, attr }: Found,
        change: Change,
        is_new: bool,
    ) {
        let mut state = self.state();
        let state = &mut *state;
        // What happened here meanwhile counts: entries that were made in a directory.
        let (mtime, ctime) = match state.journal().waiting(no) {
            Some((_, now)) => (now.mtime, now.ctime),
            None => (waiting.mtime, waiting.ctime),
        };
        let shown = Shown { server: attr.validator(), mtime, ctime };
        if let Some(known) = state.known_mut(dir) {
            known.replayed(&change, &given);
        }
        if attr.kind == Kind::Directory {
            let known = if is_new { Known::made(attr, shown) } else { Known::new(attr) };
            state.learn(Dir::Made(no), known);
        }
        let is_conflict = given != *wanted;
        if is_conflict {
            tracing::error!(name = ?wanted, kept = ?given,
                "somebody else made a name that was made here: both are kept");
        }
        let wanted = is_conflict.then(|| wanted.to_owned());
        let named = Named { handle, fileid: attr.fileid, shown, is_linked: false, wanted };
        state.journal_mut().name(no, given, named);
        self.record(state);
        state.is_named(no);
    }

    /// `NAME.conflict-HOST-TIME`, the time in seconds since 1970, with a number from the second on.
    fn name_of_conflict(&self, name: &OsStr, number: u32) -> OsString {
        let time = self.clock.wall().sec;
        let mut end = format!(".conflict-{}-{time}", self.host);
        if number > 1 {
            end.push_str(&format!("-{number}"));
        }
        let room = (self.remote.limits().name_max.min(255) as usize).saturating_sub(end.len());
        let begin = &name.as_bytes()[..name.len().min(room)];
        OsString::from_vec([begin, end.as_bytes()].concat())
    }

    /// The client does not believe what it holds of a directory's names.
    async fn distrust(&self, dir: &Dir) {
        let handle = match dir {
            Dir::Server(handle) => handle.clone(),
            Dir::Made(no) => self.state().journal().handle(*no),
        };
        if let Some(watcher) = self.watcher.get().and_then(std::sync::Weak::upgrade) {
            watcher.distrust(&handle).await;
        }
    }

    /// When something is due next.
    fn next_due(&self) -> Option<Instant> {
        self.state().all_due().map(|(_, due)| due).min()
    }
}

/// What the server has under a name.
enum There {
    Ours(Found),
    Another,
    Nothing,
}

/// Whether the server may have carried out a call that ended so.
fn is_unanswered(error: Error) -> bool {
    matches!(error, Error::TimedOut | Error::Shutdown | Error::Io)
}

/// Makes at the server what is due, as long as somebody else holds `shared`. `more` tells that
/// there is more.
pub(crate) async fn run(shared: std::sync::Weak<Shared>, more: Arc<Notify>) {
    while let Some(held) = shared.upgrade() {
        let (clock, due) = (held.clock.clone(), held.next_due());
        let now = clock.instant();
        let is_due = due.is_some_and(|due| due <= now);
        let is_late = is_due && held.settle_all(Some(now)).await.is_err();
        drop(held);
        if is_late {
            clock.sleep(RETRY_AFTER).await;
        } else if !is_due {
            let wait = due.map_or(RETRY_AFTER, |due| due - now).min(RETRY_AFTER);
            let _ = clock.timeout(wait, more.notified()).await;
        }
    }
}

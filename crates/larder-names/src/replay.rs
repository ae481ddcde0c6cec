//! Makes waiting objects at the server.
//!
//! One task does so at a time, in the order of [`crate::making`]. An object is ready when the
//! server has its directory. The task marks it as attempted, durably, and then sends the request.
//! If the answer does not arrive, the mark stays. The next attempt may find the object there: then
//! it is ours if it has the requested attributes, and has not been changed since. A directory is
//! taken as ours in any case: if two clients make the same directory, it has the entries of both.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use larder_cache::{ConflictKind, conflict_name};
use larder_vfs::{
    Attr, Change, Cred, Deadline, Error, Found, Handle, Kind, Made, New, Result, SetAttr, SetTime,
    Time, Volatile,
};

use crate::met::Met;
use crate::object::{Body, Dentry, Dir, Named, ObjectNo, Shown, Waiting, is_unanswered};
use crate::server_dir::ServerDir;
use crate::shared::Shared;

/// Most directories in which changes are made at the same time.
pub(crate) const DIRECTORIES_MAX: usize = 64;
/// Most names that are tried for an object whose name another client has made.
pub(crate) const CONFLICTS_MAX: u32 = 16;

impl Shared {
    /// Of an object and the directories above it, the topmost that the server does not have.
    pub(crate) fn first_above(&self, no: ObjectNo) -> Option<ObjectNo> {
        let state = self.state();
        let (mut first, mut at) = (None, no);
        while let Some((dentry, _)) = state.journal().waiting(at) {
            first = Some(at);
            let Dir::Made(above) = dentry.dir else { break };
            at = above;
        }
        first
    }

    /// From now on the server may have these objects; this survives a crash of the machine. Returns
    /// those of which that was not so before.
    pub(crate) async fn mark_attempted(&self, objects: &[ObjectNo]) -> Result<BTreeSet<ObjectNo>> {
        let mut marked = BTreeSet::new();
        {
            let mut state = self.state();
            for no in objects {
                let Some((_, waiting)) = state.journal().waiting(*no) else { continue };
                if !waiting.is_attempted {
                    let waiting = Waiting { is_attempted: true, ..waiting.clone() };
                    state.journal_mut().change(*no, waiting);
                    marked.insert(*no);
                }
            }
            self.record(&mut state);
        }
        self.keep().await.map(|()| marked)
    }

    /// The server was not asked for these objects after all, and never before.
    pub(crate) fn unmark(&self, objects: Vec<ObjectNo>) {
        if objects.is_empty() {
            return;
        }
        let mut state = self.state();
        for no in objects {
            let Some((_, waiting)) = state.journal().waiting(no) else { continue };
            let waiting = Waiting { is_attempted: false, ..waiting.clone() };
            state.journal_mut().change(no, waiting);
        }
        self.record(&mut state);
    }

    /// Records why an object was not made; returns the error for its waiting callers.
    pub(crate) fn late_error(&self, no: ObjectNo, error: Error) -> Error {
        let mut state = self.state();
        let Some((dentry, waiting)) = state.journal().waiting(no) else { return Error::TimedOut };
        if state.failure(no) != Some(error) {
            tracing::warn!(name = ?dentry.name, %error, "a name that was made here is not at the server");
        }
        // A server that refused has not made it.
        let waiting = Waiting { is_attempted: is_unanswered(error), ..waiting.clone() };
        state.journal_mut().change(no, waiting);
        state.fail(no, error);
        self.record(&mut state);
        Error::TimedOut
    }

    /// Makes one object whose directory the server has, and which is marked as attempted; under a
    /// temporary name if one is given: applications still see it at its place. `is_again`: an
    /// earlier attempt was not answered.
    pub(crate) async fn make_as(
        &self,
        no: ObjectNo,
        own: Option<OsString>,
        is_again: bool,
        deadline: Option<Deadline>,
    ) -> Result<()> {
        let (dir, parent, place_name, waiting, in_memory) = {
            let state = self.state();
            let Some((dentry, waiting)) = state.journal().waiting(no) else { return Ok(()) };
            let parent = match &dentry.dir {
                Dir::Server(handle) => handle.clone(),
                Dir::Made(above) => {
                    state.journal().named(*above).ok_or(Error::Stale)?.handle.clone()
                }
            };
            (dentry.dir.clone(), parent, dentry.name.clone(), waiting.clone(), state.volatile(no))
        };
        let name = own.clone().unwrap_or_else(|| place_name.clone());
        let cred = waiting.maker.cred().until(self.extend(deadline));
        let (mut given, mut conflicts) = (name.clone(), 0);
        let (found, change, is_new) = loop {
            let refused = match self.ask(&cred, (&parent, &given), &waiting, in_memory).await {
                Ok(made) => break (made.found, made.dir, true),
                Err(error) if is_unanswered(error) => return Err(error),
                Err(error) => error,
            };
            // An earlier try may have made it, whatever is said of this one.
            match self.look_for_ours(&cred, (&parent, &given), &waiting, is_again).await {
                Ok(There::Ours(found)) => break (found, Change::default(), false),
                Ok(There::Another) if refused == Error::Exists && conflicts < CONFLICTS_MAX => {
                    conflicts += 1;
                    given = self.name_of_conflict(&name, conflicts);
                }
                Ok(There::Nothing) if refused == Error::Exists => return Err(Error::TryAgain),
                Ok(There::Another | There::Nothing) => return Err(refused),
                // The directory is gone, and with it what was made in it.
                Err(Error::Stale) if refused == Error::Stale => return Err(refused),
                Err(_) => return Err(Error::TimedOut),
            }
        };
        let is_directory = found.attr.kind == Kind::Directory;
        let is_leased = is_directory && self.lease_made(no, &cred, &found.handle).await;
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
            (is_new, is_leased),
            own.map(|_| place_name),
        );
        if conflicts > 0 {
            self.distrust(&dir).await;
        }
        Ok(())
    }

    async fn ask(
        &self,
        cred: &Cred,
        (parent, name): (&Handle, &OsStr),
        waiting: &Waiting,
        in_memory: Option<Volatile>,
    ) -> Result<Made> {
        let (atime, mtime) = (SetTime::To(waiting.atime), SetTime::To(waiting.mtime));
        let set = SetAttr {
            mode: Some(waiting.mode),
            atime: Some(atime),
            mtime: Some(mtime),
            in_memory,
            ..SetAttr::default()
        };
        let new = match &waiting.body {
            // In one request with its times, by which it is recognised later.
            Body::File => New::Node(Kind::File, larder_vfs::Device::default()),
            Body::Directory => New::Directory,
            Body::Symlink(target) => New::Symlink(target.clone()),
            Body::Node(kind, device) => New::Node(*kind, *device),
        };
        let made = self.remote.make(cred, parent, name, new, set).await?;
        self.close_made(cred, made.token.as_ref()).await;
        Ok(made)
    }

    /// The object that the server has under that name: ours, if an earlier attempt may have made it
    /// and it was not changed since.
    async fn look_for_ours(
        &self,
        cred: &Cred,
        (parent, name): (&Handle, &OsStr),
        waiting: &Waiting,
        is_again: bool,
    ) -> Result<There> {
        let Some(found) = self.remote.lookup(cred, parent, name).await?.found else {
            return Ok(There::Nothing);
        };
        let attr = &found.attr;
        let is_ours = !self.is_known(&found.handle)
            && attr.kind == waiting.body.kind()
            && match &waiting.body {
                Body::File => {
                    let is_made = || self.is_time(attr.mtime, waiting.mtime);
                    let is_half_made = || is_again && self.is_half_made(attr, waiting);
                    attr.size == 0 && (is_made() || is_half_made())
                }
                Body::Directory => true,
                Body::Symlink(target) => {
                    self.remote.readlink(cred, &found.handle).await?.0 == *target
                }
                Body::Node(_, device) => attr.device == *device,
            };
        Ok(if is_ours { There::Ours(found) } else { There::Another })
    }

    /// Whether a file may be what a server has made for us that died before it gave the file its
    /// times: made for the same user, after ours was made here, and untouched. That is enough where
    /// the user says that no other client makes names, after an attempt without an answer (ADR
    /// 119).
    fn is_half_made(&self, attr: &Attr, waiting: &Waiting) -> bool {
        let is_untouched = attr.atime == attr.mtime && attr.nlink == 1;
        self.licence.sole
            && is_untouched
            && attr.uid == waiting.maker.uid
            && attr.mtime >= waiting.ctime
    }

    /// Whether the journal knows what the server has under this handle.
    pub(crate) fn is_known(&self, handle: &Handle) -> bool {
        let state = self.state();
        state.journal().of_server(handle).is_some()
            || state.journal().taken().of(handle).next().is_some()
    }

    /// Whether a time that the server keeps is one that it was given.
    fn is_time(&self, kept: Time, given: Time) -> bool {
        let delta = self.remote.limits().time_delta_ns.max(1);
        let nanoseconds = |time: Time| i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
        (nanoseconds(given) - nanoseconds(kept)).unsigned_abs() < u128::from(delta)
    }

    /// The attributes of the new object, after setting those that the server did not set when
    /// making it.
    async fn complete(&self, cred: &Cred, found: &Found, waiting: &Waiting) -> Attr {
        let attr = self.give_owner(cred, found, waiting).await;
        let mode = (attr.mode != waiting.mode).then_some(waiting.mode);
        let has_times = self.is_time(attr.mtime, waiting.mtime);
        let [atime, mtime] =
            [waiting.atime, waiting.mtime].map(|time| (!has_times).then_some(SetTime::To(time)));
        let set = SetAttr { mode, atime, mtime, ..SetAttr::default() };
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

    /// Sets the owner that it has here on the new object, before its mode: setting the owner may
    /// clear mode bits.
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
        (is_new, is_leased): (bool, bool),
        seen_as: Option<OsString>,
    ) {
        let mut state = self.state();
        let state = &mut *state;
        // Changes made here in the meantime count: entries that were made in a directory.
        let (mtime, ctime) = match state.journal().waiting(no) {
            Some((_, now)) => (now.mtime, now.ctime),
            None => (waiting.mtime, waiting.ctime),
        };
        let shown = Shown { server: attr.validator(), mtime, ctime };
        if let Some(known) = state.known_mut(dir) {
            known.replayed(&change, |names| {
                names.insert(given.clone());
            });
        }
        if attr.kind == Kind::Directory {
            let known = if is_new { ServerDir::made(attr, shown) } else { ServerDir::new(attr) };
            let known = state.learn(Dir::Made(no), known);
            if self.licence.leased {
                known.doubt_names();
            }
        }
        let is_conflict = given != *wanted;
        if is_conflict {
            tracing::error!(name = ?wanted, kept = ?given,
                "somebody else made a name that was made here: both are kept");
        }
        let own = Dentry { dir: dir.clone(), name: given.clone() };
        if is_conflict && seen_as.is_none() {
            let (kind, at, wanted) = (ConflictKind::Made, own.clone(), wanted.to_owned());
            state.journal_mut().meet(Met::Name { kind, at, wanted });
        }
        let named = Named { handle: handle.clone(), fileid: attr.fileid, shown, is_linked: false };
        let server = handle.clone();
        state.journal_mut().name(no, given, named);
        if is_leased {
            self.note_lease(state, no, &server);
        }
        if let Some(name) = seen_as {
            let found = Found { handle, attr: Attr { fileid: no.fileid(), ..attr } };
            let to = Dentry { dir: dir.clone(), name };
            let moved = state.take(&waiting.maker.cred(), own, &found, Some(to));
            self.set_due(state, moved, None);
        }
        if attr.kind != Kind::Directory {
            state.count_links(&Dir::Made(no), attr.nlink);
        }
        self.record(state);
        state.is_named(no);
        self.tell_replayed();
    }

    /// `NAME.conflict-HOST-TIME`, the time in seconds since 1970, with a number from the second on.
    pub(crate) fn name_of_conflict(&self, name: &OsStr, number: u32) -> OsString {
        let bytes_max = self.remote.limits().name_max.min(255) as usize;
        let time_sec = self.clock.wall().sec;
        let name = conflict_name(name.as_bytes(), &self.host, time_sec, number, bytes_max);
        OsString::from_vec(name)
    }

    /// Has the client stop trusting its cached names of a directory.
    pub(crate) async fn distrust(&self, dir: &Dir) {
        let handle = match dir {
            Dir::Server(handle) => handle.clone(),
            Dir::Made(no) => self.state().journal().handle(*no),
        };
        if let Some(watcher) = self.watcher.get().and_then(std::sync::Weak::upgrade) {
            watcher.distrust(&handle).await;
        }
    }
}

/// Whether the server did not answer, so that other calls would wait as long.
pub(crate) fn is_silence(error: Error) -> bool {
    matches!(error, Error::TimedOut | Error::Shutdown)
}

/// The object that the server has under a name.
enum There {
    Ours(Found),
    Another,
    Nothing,
}

//! Changes of names that are answered here.
//!
//! Each returns `None` if it cannot be answered here: then nothing has happened, and the server
//! must answer it.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use larder_vfs::{
    Access, Attr, Before, Change, Cookie, Cred, Error, Handle, Kind, Made, New, Removal, Result,
    SetAttr, SetTime, Time,
};

use crate::known::Known;
use crate::object::{Body, Dir, Given, Maker, ObjectNo, Place, Waiting, after};
use crate::shared::{Shared, Target};
use crate::state::State;

/// Names in larger directories are looked up at the server.
const NAMES_MAX: usize = 1 << 15;
/// Longest target of a link; servers are asked about longer ones.
const TARGET_LEN_MAX: usize = 1023;
const SET_GID: u32 = 0o2000;
/// The server may refuse these, or drop them.
const SET_IDS: u32 = 0o6000;
const STICKY: u32 = 0o1000;
/// Rights that changing a directory takes.
const TO_CHANGE: u32 = 0o3;

impl Shared {
    /// Makes an object.
    pub(crate) async fn make_here(
        &self,
        cred: &Cred,
        dir: &Handle,
        name: &OsStr,
        new: &New,
        set: &SetAttr,
    ) -> Option<Result<Made>> {
        let mode = match new {
            New::Symlink(_) => 0o777,
            _ => set.mode?,
        };
        let is_plain = set.uid.is_none() && set.gid.is_none() && set.size.unwrap_or(0) == 0;
        let is_plain = is_plain && (mode & SET_IDS == 0 || cred.uid == 0);
        if !is_plain || !self.takes(name) || !self.has_room() {
            return None;
        }
        let body = body_of(new)?;
        self.may_change(cred, dir).await?;
        let waits = {
            let state = self.state();
            state.journal().waiting_at(&state.journal().dir(dir), name)
        };
        if let Some(no) = waits {
            return self.make_again(cred, no, new, set);
        }
        self.is_absent_at_server(cred, dir, name).await?;
        let mut state = self.state();
        let state = &mut *state;
        // The first object that somebody makes is made at the server, and tells.
        if !state.is_himself(cred) {
            return None;
        }
        let place = state.place(dir, name);
        if state.has(&place.dir, name) == Some(true) {
            return None;
        }
        let before = state.dir_attr(&place.dir)?;
        let now = state.time(&*self.clock);
        let at = |time: Option<SetTime>| match time {
            Some(SetTime::To(time)) => time,
            Some(SetTime::ServerNow) | None => now,
        };
        let inherits = before.mode & SET_GID != 0;
        let is_directory = body == Body::Directory;
        let waiting = Waiting {
            mode: if inherits && is_directory { mode | SET_GID } else { mode },
            uid: cred.uid,
            gid: if inherits { before.gid } else { cred.gid },
            atime: at(set.atime),
            mtime: at(set.mtime),
            ctime: now,
            maker: Maker::of(cred),
            is_attempted: false,
            body,
        };
        let no = state.journal_mut().make(place.clone(), waiting);
        state.set_due(no, self.clock.instant(), None);
        let dir = state.touch(&place.dir, before, now);
        self.record(state);
        let found = state.found(no).expect("it was made");
        self.more.notify_one();
        Some(Ok(Made { found, dir, created: false, token: None }))
    }

    /// Makes what waits to have that name already.
    fn make_again(
        &self,
        cred: &Cred,
        no: ObjectNo,
        new: &New,
        set: &SetAttr,
    ) -> Option<Result<Made>> {
        let kind = self.state().attr(no)?.kind;
        if *new != New::File || kind != Kind::File {
            return Some(Err(Error::Exists));
        }
        if set.size.is_some() {
            let set = SetAttr { size: set.size, ..SetAttr::default() };
            if let Err(error) = self.set_here(cred, no, &set, None)? {
                return Some(Err(error));
            }
        }
        let found = self.state().found(no)?;
        Some(Ok(Made { found, dir: Change::default(), created: false, token: None }))
    }

    /// Removes an entry of which the server has never heard.
    pub(crate) async fn remove_here(
        &self,
        cred: &Cred,
        dir: &Handle,
        name: &OsStr,
        what: Removal,
    ) -> Option<Result<Change>> {
        self.may_change(cred, dir).await?;
        if self.is_nowhere(cred, dir, name).await {
            return Some(Err(Error::NotFound));
        }
        let mut state = self.state();
        let state = &mut *state;
        let place = state.place(dir, name);
        let before = state.dir_attr(&place.dir).filter(|_| state.is_himself(cred))?;
        let no = state.untouched_at(&place)?;
        state.may_take_away(cred, &before, no)?;
        let kind = state.attr(no)?.kind;
        match (what, kind) {
            (Removal::File, Kind::Directory) => return Some(Err(Error::IsDirectory)),
            (Removal::Directory, Kind::Directory) if state.holds_some(no) => {
                return Some(Err(Error::NotEmpty));
            }
            (Removal::File, _) | (Removal::Directory, Kind::Directory) => {}
            (Removal::Directory, _) => return Some(Err(Error::NotDirectory)),
        }
        state.journal_mut().forget(no);
        state.waits_no_more(no);
        let now = state.time(&*self.clock);
        let change = state.touch(&place.dir, before, now);
        self.record(state);
        Some(Ok(change))
    }

    /// Renames what the server does not have, to a name that it does not have either.
    pub(crate) async fn rename_here(
        &self,
        cred: &Cred,
        from: (&Handle, &OsStr),
        to: (&Handle, &OsStr),
    ) -> Option<Result<(Change, Change)>> {
        if !self.takes(to.1) {
            return None;
        }
        self.may_change(cred, from.0).await?;
        self.may_change(cred, to.0).await?;
        if self.is_nowhere(cred, from.0, from.1).await {
            return Some(Err(Error::NotFound));
        }
        self.is_absent_at_server(cred, to.0, to.1).await?;
        let mut state = self.state();
        let state = &mut *state;
        let (from, to) = (state.place(from.0, from.1), state.place(to.0, to.1));
        let (from_before, to_before) = (state.dir_attr(&from.dir)?, state.dir_attr(&to.dir)?);
        let no = state.untouched_at(&from).filter(|_| state.is_himself(cred))?;
        state.may_take_away(cred, &from_before, no)?;
        let kind = state.attr(no)?.kind;
        if state.journal().is_within(&to.dir, no) {
            return Some(Err(Error::InvalidArgument));
        }
        let replaced = match state.journal().waiting_at(&to.dir, &to.name) {
            None => None,
            Some(other) if other == no => return Some(Ok(Default::default())),
            Some(_) => Some(state.untouched_at(&to)?),
        };
        if let Some(other) = replaced {
            state.may_take_away(cred, &to_before, other)?;
            let is_directory = |kind| kind == Kind::Directory;
            match (is_directory(kind), is_directory(state.attr(other)?.kind)) {
                (true, false) => return Some(Err(Error::NotDirectory)),
                (false, true) => return Some(Err(Error::IsDirectory)),
                (true, true) if state.holds_some(other) => return Some(Err(Error::NotEmpty)),
                _ => state.waits_no_more(other),
            }
        } else if state.has(&to.dir, &to.name) == Some(true) {
            return None;
        }
        state.journal_mut().rename(no, to.clone());
        let now = state.time(&*self.clock);
        state.change(no, |waiting| waiting.ctime = now);
        let from_change = state.touch(&from.dir, from_before, now);
        let to_change =
            if to.dir == from.dir { from_change } else { state.touch(&to.dir, to_before, now) };
        self.record(state);
        Some(Ok((from_change, to_change)))
    }

    /// Sets attributes of what the server does not have. A size moves the times alone: to the
    /// server the file is empty, and bytes are the client's.
    pub(crate) fn set_here(
        &self,
        cred: &Cred,
        no: ObjectNo,
        set: &SetAttr,
        written_ns: Option<i64>,
    ) -> Option<Result<Change>> {
        let mut state = self.state();
        let state = &mut *state;
        let (_, waiting) = state.journal().waiting(no)?;
        let is_owner = cred.uid == waiting.uid || cred.uid == 0;
        let keeps_owner = set.uid.is_none_or(|uid| uid == waiting.uid)
            && set.gid.is_none_or(|gid| gid == waiting.gid);
        // Another owner is for root to give, who makes it; what that does to set-id bits is for the
        // server to say.
        let may_give = cred.uid == 0
            && waiting.maker.uid == 0
            && set.mode.unwrap_or(waiting.mode) & SET_IDS == 0;
        let has_size = set.size.is_none() || waiting.body == Body::File;
        let keeps_ids = set.mode.is_none_or(|mode| mode & SET_IDS == 0 || cred.uid == 0);
        let is_plain = (keeps_owner || may_give) && has_size && keeps_ids && state.is_himself(cred);
        if waiting.is_attempted || !is_owner || !is_plain {
            return None;
        }
        let before = state.attr(no)?;
        let now = state.time(&*self.clock);
        let at = |time: Option<SetTime>, held: Time| match time {
            Some(SetTime::To(time)) => time,
            Some(SetTime::ServerNow) => now,
            None => held,
        };
        state.change(no, |waiting| {
            waiting.mode = set.mode.unwrap_or(waiting.mode);
            waiting.uid = set.uid.unwrap_or(waiting.uid);
            waiting.gid = set.gid.unwrap_or(waiting.gid);
            waiting.atime = at(set.atime, waiting.atime);
            let held = if set.size.is_some() { now } else { waiting.mtime };
            waiting.mtime = at(set.mtime, held);
            waiting.ctime = now;
        });
        if let (Some(time), Some(over_ns)) = (set.mtime, written_ns) {
            state.journal_mut().give(no, Given { mtime: at(Some(time), now), over_ns });
        }
        self.record(state);
        Some(Ok(Change { before: Some(as_before(&before)), after: state.attr(no) }))
    }

    fn takes(&self, name: &OsStr) -> bool {
        let bytes = name.as_bytes();
        !bytes.is_empty()
            && bytes != b"."
            && bytes != b".."
            && !bytes.contains(&b'/')
            && bytes.len() <= self.remote.limits().name_max.min(255) as usize
    }

    /// `Some` if the caller may make and remove names in a directory, as far as its mode decides,
    /// or the server has said so.
    async fn may_change(&self, cred: &Cred, dir: &Handle) -> Option<()> {
        let server = match self.target(dir).ok()? {
            Target::Server(server) => server,
            Target::Waiting(no) => {
                let attr = self.state().attr(no)?;
                let is_directory = attr.kind == Kind::Directory;
                return (is_directory && has_rights(&attr, cred, TO_CHANGE)).then_some(());
            }
        };
        let writer = Maker::of(cred);
        let is_known = |state: &State| {
            let known = state.known(&state.journal().dir(dir));
            known.is_some_and(|known| known.has_writer(&writer))
        };
        if is_known(&self.state()) {
            return Some(());
        }
        let wanted = Access::LOOKUP | Access::MODIFY | Access::EXTEND;
        let judged = self.remote.access(cred, &server, wanted).await.ok()?;
        let attr = match judged.attr {
            Some(attr) => attr,
            None => self.remote.getattr(cred, &server).await.ok()?,
        };
        let mut state = self.state();
        state.see_file_system(attr.fsid);
        let key = state.journal().dir(dir);
        match state.known_mut(&key) {
            Some(known) => known.observe(attr),
            None => drop(state.learn(key.clone(), Known::new(attr))),
        }
        let granted = judged.granted.contains(wanted) && attr.kind == Kind::Directory;
        if granted {
            state.known_mut(&key)?.learn_writer(writer);
        }
        granted.then_some(())
    }

    /// Whether there is no such name.
    async fn is_nowhere(&self, cred: &Cred, dir: &Handle, name: &OsStr) -> bool {
        let waits = {
            let state = self.state();
            state.journal().waiting_at(&state.journal().dir(dir), name).is_some()
        };
        !waits && self.is_absent_at_server(cred, dir, name).await.is_some()
    }

    /// `Some` if the server has no such name. Lists a directory at the first time: it is not asked
    /// for others then.
    async fn is_absent_at_server(&self, cred: &Cred, dir: &Handle, name: &OsStr) -> Option<()> {
        let Target::Server(server) = self.target(dir).ok()? else { return Some(()) };
        let held = {
            let state = self.state();
            state.known(&state.journal().dir(dir))?.has(name)
        };
        if let Some(is_there) = held {
            return (!is_there).then_some(());
        }
        if let Some(names) = self.list_names(cred, dir, &server).await {
            return (!names.contains(name)).then_some(());
        }
        let answer = self.remote.lookup(cred, &server, name).await.ok()?;
        answer.found.is_none().then_some(())
    }

    /// All names that the server has in a directory, if they are not too many.
    async fn list_names(
        &self,
        cred: &Cred,
        dir: &Handle,
        server: &Handle,
    ) -> Option<HashSet<OsString>> {
        let bytes_max = self.remote.limits().readdir_preferred;
        let (mut names, mut cookie, mut version) = (HashSet::new(), Cookie::default(), None);
        loop {
            let page = self.remote.readdir(cred, server, cookie, bytes_max).await.ok()?;
            let said = page.dir?;
            if *version.get_or_insert(said.validator()) != said.validator() {
                return None;
            }
            let last = page.entries.last().map(|entry| entry.position);
            names.extend(page.entries.into_iter().map(|entry| entry.name));
            if names.len() > NAMES_MAX {
                return None;
            }
            if page.eof {
                let mut state = self.state();
                let key = state.journal().dir(dir);
                let known = state.known_mut(&key)?;
                known.observe(said);
                known.learn_names(names.clone());
                return Some(names);
            }
            cookie = Cookie { position: last?, verifier: page.verifier };
        }
    }
}

impl State {
    /// What waits in that place, if the server was never asked for it.
    fn untouched_at(&self, place: &Place) -> Option<ObjectNo> {
        let no = self.journal().waiting_at(&place.dir, &place.name)?;
        let (_, waiting) = self.journal().waiting(no)?;
        (!waiting.is_attempted).then_some(no)
    }

    fn holds_some(&self, no: ObjectNo) -> bool {
        self.journal().waiting_in(&Dir::Made(no)).next().is_some()
    }

    /// `Some` unless a directory's sticky bit keeps the caller from taking a name away.
    fn may_take_away(&self, cred: &Cred, dir: &Attr, no: ObjectNo) -> Option<()> {
        let owner = self.attr(no)?.uid;
        let may = dir.mode & STICKY == 0 || [0, dir.uid, owner].contains(&cred.uid);
        may.then_some(())
    }

    fn change(&mut self, no: ObjectNo, change: impl FnOnce(&mut Waiting)) {
        let (_, waiting) = self.journal().waiting(no).expect("it waits");
        let mut waiting = waiting.clone();
        change(&mut waiting);
        self.journal_mut().change(no, waiting);
    }

    /// A directory's names have changed here.
    fn touch(&mut self, dir: &Dir, before: Attr, now: Time) -> Change {
        // The server's times may be newer than ours.
        let now = now.max(after(before.ctime));
        match dir {
            Dir::Made(no) if self.journal().waiting(*no).is_some() => {
                self.change(*no, |waiting| (waiting.mtime, waiting.ctime) = (now, now));
            }
            _ => self.known_mut(dir).expect("it was looked at").touch(now),
        }
        Change { before: Some(as_before(&before)), after: self.dir_attr(dir) }
    }
}

/// What is told of an object that is made here, if it may be.
fn body_of(new: &New) -> Option<Body> {
    match new {
        New::File | New::FileExclusive => Some(Body::File),
        New::Directory => Some(Body::Directory),
        New::Symlink(target) if target.is_empty() || target.len() > TARGET_LEN_MAX => None,
        New::Symlink(target) => Some(Body::Symlink(target.clone())),
        New::Node(kind @ (Kind::Fifo | Kind::Socket), device) => Some(Body::Node(*kind, *device)),
        // Who may make devices is for the server to say.
        New::Node(..) => None,
    }
}

/// Whether the mode bits of `attr` let somebody do all of `bits` (4 read, 2 write, 1 search).
pub(crate) fn has_rights(attr: &Attr, cred: &Cred, bits: u32) -> bool {
    if cred.uid == 0 {
        return true;
    }
    let shift = match () {
        () if cred.uid == attr.uid => 6,
        () if cred.in_group(attr.gid) => 3,
        () => 0,
    };
    attr.mode >> shift & bits == bits
}

fn as_before(attr: &Attr) -> Before {
    let Attr { size, mtime, ctime, change, data_change, .. } = *attr;
    Before { size, mtime, ctime, change, data_change }
}

//! Changes of names that are answered here.
//!
//! Each returns `None` if it cannot be answered here: then nothing has happened, and the server
//! must answer it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use larder_vfs::{
    Access, Attr, Change, Cred, Error, Handle, Kind, Made, New, Removal, Result, SetAttr, SetTime,
    Time,
};

use crate::leased::Right;
use crate::linked::Linked;
use crate::object::{Body, Dir, Given, Maker, ObjectNo, Waiting, as_before, has_rights};
use crate::overlay::There;
use crate::server_dir::ServerDir;
use crate::shared::{Shared, Target};
use crate::state::State;
use crate::under_way::UnderWay;

/// Longest target of a link; servers are asked about longer ones.
const TARGET_LEN_MAX: usize = 1023;
const SET_GID: u32 = 0o2000;
/// The server may refuse these, or drop them.
const SET_IDS: u32 = 0o6000;
/// Rights that changing a directory takes.
const TO_CHANGE: u32 = 0o3;

impl Shared {
    /// Makes an object.
    pub(crate) async fn make_here(
        &self,
        cred: &Cred,
        (dir, name): (&Handle, &OsStr),
        new: &New,
        set: &SetAttr,
        change: &UnderWay<'_>,
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
        let right = self.right_to(cred, dir).await?;
        self.may_change(cred, dir).await?;
        match self.is_here(dir, name) {
            Some(Some(there)) => return self.make_again(cred, &there, new, set),
            Some(None) => {}
            None => self.is_absent_at_server(cred, dir, name, right).await?,
        }
        let mut state = self.state();
        let state = &mut *state;
        // A user's first object is made at the server, which shows whether the server maps the
        // user.
        if !self.is_same_user(state, cred) || !self.has_still(state, dir, right) {
            return None;
        }
        let dentry = state.dentry(dir, name);
        if change.crosses(state) || state.has(&dentry.dir, name) == Some(true) {
            return None;
        }
        let before = state.dir_attr(&dentry.dir)?;
        let now = state.time(&*self.clock);
        let at = |time: Option<SetTime>| match time {
            Some(SetTime::To(time)) => time,
            Some(SetTime::ServerNow) | None => now,
        };
        let inherits = before.mode & SET_GID != 0;
        let passes_on = inherits && body == Body::Directory;
        let waiting = Waiting {
            mode: if passes_on { mode | SET_GID } else { mode },
            uid: cred.uid,
            gid: if inherits { before.gid } else { cred.gid },
            atime: at(set.atime),
            mtime: at(set.mtime),
            ctime: now,
            maker: Maker::of(cred),
            is_attempted: false,
            body,
        };
        if waiting.body == Body::File && self.may_be_done(cred) {
            state.expect_unseen(cred, &dentry, now, self.clock.instant());
        }
        let no = state.journal_mut().make(dentry.clone(), waiting);
        self.set_due(state, no, None);
        state.set_volatile(no, set.in_memory);
        let dir = state.touch(&dentry.dir, before, now);
        if let Err(error) = self.record_for_caller(state) {
            return Some(Err(error));
        }
        let found = state.found(no).expect("it was made");
        Some(Ok(Made { found, dir, created: false, token: None }))
    }

    /// Makes the waiting object that has that name already.
    fn make_again(
        &self,
        cred: &Cred,
        there: &There,
        new: &New,
        set: &SetAttr,
    ) -> Option<Result<Made>> {
        let Dir::Made(no) = self.state().identity_of(there)? else { return None };
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

    /// Removes an entry.
    pub(crate) async fn remove_here(
        self: &Arc<Self>,
        cred: &Cred,
        (dir, name): (&Handle, &OsStr),
        what: Removal,
        under_way: &UnderWay<'_>,
    ) -> Option<Result<Change>> {
        if !self.can_record() {
            return None;
        }
        let right = self.right_to(cred, dir).await?;
        self.may_change(cred, dir).await?;
        let Some(there) = self.what_is_at(cred, dir, name, right).await? else {
            return Some(Err(Error::NotFound));
        };
        let may_look = what == Removal::Directory;
        let going = self.begin_to_go(cred, Some(&there), under_way, may_look).await?;
        let mut state = self.state();
        let state = &mut *state;
        if under_way.crosses(state) || !self.has_still(state, dir, right) {
            return None;
        }
        self.has_still_to_go(state, &going)?;
        let dentry = state.dentry(dir, name);
        let before = state.dir_attr(&dentry.dir).filter(|_| self.is_same_user(state, cred))?;
        let kind = state.kind_of(&there).filter(|_| state.is_still(&dentry, Some(&there)))?;
        state.may_take(cred, &before, &there)?;
        match (what, kind) {
            (Removal::File, Kind::Directory) => return Some(Err(Error::IsDirectory)),
            (Removal::Directory, Kind::Directory) if !going.is_empty => {
                return Some(Err(Error::NotEmpty));
            }
            (Removal::File, _) | (Removal::Directory, Kind::Directory) => {}
            (Removal::Directory, _) => return Some(Err(Error::NotDirectory)),
        }
        if !self.has_room_for(state, &there) || !state.may_drop(&there) {
            return None;
        }
        let file = state.identity_of(&there)?;
        let dropped = state.drop_there(cred, &dentry, &there);
        self.is_due(state, [dropped, None]);
        let now = state.time(&*self.clock);
        state.touch_file(&file, now);
        let change = state.touch(&dentry.dir, before, now);
        Some(self.record_for_caller(state).map(|()| change))
    }

    /// Renames. Directories that the server has stay in their parent: only the server knows which
    /// directory is above which.
    pub(crate) async fn rename_here(
        self: &Arc<Self>,
        cred: &Cred,
        from: (&Handle, &OsStr),
        to: (&Handle, &OsStr),
        under_way: &UnderWay<'_>,
    ) -> Option<Result<(Change, Change)>> {
        if !self.takes(to.1) || !self.can_record() {
            return None;
        }
        let rights = self.rights_to_rename(cred, from.0, to.0).await?;
        let Some(source) = self.what_is_at(cred, from.0, from.1, rights[0]).await? else {
            return Some(Err(Error::NotFound));
        };
        let target = self.what_is_at(cred, to.0, to.1, rights[1]).await?;
        let going = self.begin_to_go(cred, target.as_ref(), under_way, true).await?;
        let mut state = self.state();
        let state = &mut *state;
        self.have_still(state, [from.0, to.0], rights)?;
        self.has_still_to_go(state, &going)?;
        let (from, to) = (state.dentry(from.0, from.1), state.dentry(to.0, to.1));
        let (from_before, to_before) = (state.dir_attr(&from.dir)?, state.dir_attr(&to.dir)?);
        let is_still = state.is_still(&from, Some(&source)) && state.is_still(&to, target.as_ref());
        if !is_still || under_way.crosses(state) || !self.is_same_user(state, cred) {
            return None;
        }
        state.may_take(cred, &from_before, &source)?;
        let is_directory = state.kind_of(&source)? == Kind::Directory;
        match &source {
            There::Waiting(no) if state.journal().is_within(&to.dir, *no) => {
                return Some(Err(Error::InvalidArgument));
            }
            There::Waiting(_) => {}
            There::Moved(_) | There::Server(_) if is_directory && from.dir != to.dir => {
                return None;
            }
            There::Moved(_) | There::Server(_) | There::Linked(_) => {}
        }
        if let Some(target) = &target {
            if state.is_same(&source, target) {
                return Some(Ok(Default::default()));
            }
            state.may_take(cred, &to_before, target)?;
            match (is_directory, state.kind_of(target)? == Kind::Directory) {
                (true, false) => return Some(Err(Error::NotDirectory)),
                (false, true) => return Some(Err(Error::IsDirectory)),
                (true, true) if !going.is_empty => return Some(Err(Error::NotEmpty)),
                _ => {}
            }
            if !self.has_room_for(state, target) || !state.may_drop(target) {
                return None;
            }
        }
        self.has_room_for(state, &source).then_some(())?;
        let replaced = target.as_ref().and_then(|target| state.identity_of(target));
        let dropped = target.and_then(|target| state.drop_there(cred, &to, &target));
        let moved = state.move_there(cred, (&from, &to), &source);
        state.is_asked(moved.filter(|_| self.may_be_done(cred)), (&source, &to));
        self.is_due(state, [dropped, moved]);
        let now = state.time(&*self.clock);
        if let There::Waiting(no) = source {
            state.change(no, |waiting| waiting.ctime = now);
        }
        replaced.iter().for_each(|file| state.touch_file(file, now));
        let from_change = state.touch(&from.dir, from_before, now);
        let to_change =
            if to.dir == from.dir { from_change } else { state.touch(&to.dir, to_before, now) };
        Some(self.record_for_caller(state).map(|()| (from_change, to_change)))
    }

    async fn rights_to_rename(
        &self,
        cred: &Cred,
        from: &Handle,
        to: &Handle,
    ) -> Option<[Right; 2]> {
        let rights = [self.right_to(cred, from).await?, self.right_to(cred, to).await?];
        self.may_change(cred, from).await?;
        self.may_change(cred, to).await?;
        Some(rights)
    }

    /// Whether an earlier attempt of the call may have reached the server, which does not say.
    pub(crate) fn may_be_done(&self, cred: &Cred) -> bool {
        cred.retried && self.is_away()
    }

    /// Whether the table has room for one more removed name of the server, if there is one.
    fn has_room_for(&self, state: &State, there: &There) -> bool {
        !matches!(there, There::Server(_)) || self.has_room_in(state)
    }

    /// The server is to hear of these soon.
    fn is_due(&self, state: &mut State, taken: [Option<ObjectNo>; 2]) {
        for no in taken.into_iter().flatten() {
            if state.journal().taken().get(no).is_some() && state.due(no).is_none() {
                self.set_due(state, no, None);
            }
        }
    }

    /// Sets attributes of an object that the server does not have. A size only changes the times:
    /// to the server the file is empty, and the client keeps the bytes.
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
        // Only root may give another owner, and it makes the object; the server decides what that
        // does to set-id bits.
        let may_give = cred.uid == 0
            && waiting.maker.uid == 0
            && set.mode.unwrap_or(waiting.mode) & SET_IDS == 0;
        let has_size = set.size.is_none() || waiting.body == Body::File;
        let keeps_ids = set.mode.is_none_or(|mode| mode & SET_IDS == 0 || cred.uid == 0);
        let is_plain =
            (keeps_owner || may_give) && has_size && keeps_ids && self.is_same_user(state, cred);
        if waiting.is_attempted || !is_owner || !is_plain || !self.can_record() {
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
        let recorded = self.record_for_caller(state);
        let after = state.attr(no);
        Some(recorded.map(|()| Change { before: Some(as_before(&before)), after }))
    }

    /// Gives a file another name. The attributes of a file that the server has are not part of the
    /// answer.
    pub(crate) async fn link_here(
        self: &Arc<Self>,
        cred: &Cred,
        file: &Handle,
        (dir, name): (&Handle, &OsStr),
        under_way: &UnderWay<'_>,
    ) -> Option<Result<(Option<Attr>, Change)>> {
        if !self.remote.limits().links || !self.takes(name) || !self.has_room() {
            return None;
        }
        let target = self.target(file).ok()?;
        let attr = match &target {
            Target::Waiting(no) => self.state().attr(*no)?,
            // No lease keeps another client from removing it, with all names that the server knows.
            Target::Server(_) if self.licence.leased => return None,
            Target::Server(server) => self.describe_to_link(cred, file, server).await?,
        };
        if attr.kind == Kind::Directory {
            return None;
        }
        let right = self.right_to(cred, dir).await?;
        self.may_change(cred, dir).await?;
        if self.what_is_at(cred, dir, name, right).await?.is_some() {
            return Some(Err(Error::Exists));
        }
        let mut state = self.state();
        let state = &mut *state;
        let is_alone = !under_way.crosses(state) && self.is_same_user(state, cred);
        if !is_alone || !self.has_still(state, dir, right) {
            return None;
        }
        let dentry = state.dentry(dir, name);
        let identity = state.journal().identity(file);
        let has_changed = match &target {
            Target::Waiting(no) => {
                state.journal().waiting(*no).is_none_or(|(_, waiting)| waiting.is_attempted)
            }
            Target::Server(server) => state.journal().is_gone(server),
        };
        (!has_changed && state.is_still(&dentry, None)).then_some(())?;
        let before = state.dir_attr(&dentry.dir)?;
        let now = state.time(&*self.clock);
        let fileid = match identity {
            Dir::Made(no) => no.fileid(),
            Dir::Server(_) => attr.fileid,
        };
        let linked = Linked {
            dentry: dentry.clone(),
            file: identity.clone(),
            kind: attr.kind,
            fileid,
            linker: Maker::of(cred),
            is_attempted: self.may_be_done(cred) && matches!(target, Target::Server(_)),
        };
        if let Some(no) = state.link(linked) {
            self.set_due(state, no, None);
        }
        state.touch_file(&identity, now);
        let change = state.touch(&dentry.dir, before, now);
        if let Err(error) = self.record_for_caller(state) {
            return Some(Err(error));
        }
        let attr = match target {
            Target::Waiting(no) => state.attr(no),
            Target::Server(_) => None,
        };
        Some(Ok((attr, change)))
    }

    /// What is known of a file of the server, to give it another name.
    async fn describe_to_link(&self, cred: &Cred, file: &Handle, server: &Handle) -> Option<Attr> {
        let held = self.held_any().and_then(|held| held.held(file));
        match held {
            Some(attr) => Some(attr),
            None if self.is_away() => None,
            None => {
                let attr = self.remote.getattr(cred, server).await.ok()?;
                Some(self.show(file, attr))
            }
        }
    }

    pub(crate) fn takes(&self, name: &OsStr) -> bool {
        let bytes = name.as_bytes();
        !bytes.is_empty()
            && bytes != b"."
            && bytes != b".."
            && !bytes.contains(&b'/')
            && bytes.len() <= self.remote.limits().name_max.min(255) as usize
    }

    /// `Some` if the caller may make and remove names in a directory, as far as its mode decides,
    /// or the server has decided it.
    pub(crate) async fn may_change(&self, cred: &Cred, dir: &Handle) -> Option<()> {
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
        if self.is_away() {
            return self.may_change_as_held(cred, dir);
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
            None => drop(state.learn(key.clone(), ServerDir::new(attr))),
        }
        let granted = judged.granted.contains(wanted) && attr.kind == Kind::Directory;
        if granted {
            state.known_mut(&key)?.learn_writer(writer);
        }
        granted.then_some(())
    }

    /// The same from the cached attributes of a directory of the server, while that is out of
    /// reach.
    fn may_change_as_held(&self, cred: &Cred, dir: &Handle) -> Option<()> {
        let key = self.state().journal().dir(dir);
        let known = self.state().dir_attr(&key);
        let attr = known.or_else(|| self.held()?.held(dir))?;
        if attr.kind != Kind::Directory || !has_rights(&attr, cred, TO_CHANGE) {
            return None;
        }
        if known.is_none() {
            let mut state = self.state();
            state.see_file_system(attr.fsid);
            // Waiting objects are counted again when the attributes are shown.
            let nlink = attr.nlink.saturating_sub(state.journal().subdirectories(&key));
            state.learn(key, ServerDir::new(Attr { nlink, ..attr }));
        }
        Some(())
    }
}

/// The attributes of an object that is made here, if that is permitted.
fn body_of(new: &New) -> Option<Body> {
    match new {
        New::File | New::FileExclusive => Some(Body::File),
        New::Directory => Some(Body::Directory),
        New::Symlink(target) if target.is_empty() || target.len() > TARGET_LEN_MAX => None,
        New::Symlink(target) => Some(Body::Symlink(target.clone())),
        New::Node(kind @ (Kind::Fifo | Kind::Socket), device) => Some(Body::Node(*kind, *device)),
        // The server decides which users may make devices.
        New::Node(..) => None,
    }
}

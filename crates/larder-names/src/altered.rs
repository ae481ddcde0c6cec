//! Attributes of what the server has, set here while it is out of reach, and set there later.
//!
//! A size is answered only if it is 0: then no byte of the file at the server counts any more, and
//! what is written afterwards is sent after the file is truncated there. The record says on top of
//! which version the attributes were set. If the server later has another one, another client has
//! changed the file: it stays as it is, and what was set here is given up, which is logged. The
//! request itself is guarded by the time of the last change that we know.

use larder_io::secret;
use larder_vfs::{
    Attr, Change, Cred, Deadline, Error, Handle, Kind, Result, SetAttr, SetTime, Time,
};

use crate::met::Met;
use crate::object::{
    Altered, Maker, ObjectNo, after, as_before, as_unanswered, has_all, has_rights, is_unanswered,
};
use crate::setting::{Answer, Next, Setting, There};
use crate::shared::Shared;

/// By less than this a time is [unlike those of others](unlike_others).
const MARK_NS_MAX: u32 = 1_000_000;
const SECOND_NS: u32 = 1_000_000_000;
/// The server may refuse these, or drop them.
const SET_IDS: u32 = 0o6000;

impl Shared {
    /// Sets attributes of an object that the server has, while the server is out of reach.
    pub(crate) fn alter_here(
        &self,
        cred: &Cred,
        (file, handle): (&Handle, Handle),
        set: &SetAttr,
    ) -> Option<Result<Change>> {
        let held = self.held()?;
        let (before, is_ctime_old) = (held.held(file)?, held.is_ctime_old(file));
        let mut state = self.state();
        let state = &mut *state;
        let may = may_set(cred, &before, set)? && self.is_same_user(state, cred);
        if !may || !self.has_room_in(state) {
            return None;
        }
        let now = state.time(&*self.clock).max(after(before.ctime));
        let now = if set.size.is_some() { unlike_others(now, before.ctime) } else { now };
        let at = |time: Option<SetTime>| {
            time.map(|time| match time {
                SetTime::To(time) => SetTime::To(time),
                SetTime::ServerNow => SetTime::To(now),
            })
        };
        let known = state.journal().altered(&handle).map(|(_, altered)| altered.clone());
        if known.as_ref().is_some_and(|altered| altered.is_attempted && !altered.is_done) {
            return None;
        }
        let earlier = known.as_ref().filter(|altered| !altered.is_done);
        let earlier_set = earlier.map_or_else(SetAttr::default, |altered| altered.set);
        let is_cut = set.size.is_some();
        let mtime = at(set.mtime).or(set.size.map(|_| SetTime::To(now)));
        let set = after_set(earlier_set, &SetAttr { atime: at(set.atime), mtime, ..*set });
        let shown_mtime = match mtime {
            Some(SetTime::To(time)) => time,
            _ => before.mtime,
        };
        let (below, of_data) = match &known {
            Some(known) => (known.below, known.seen_data()),
            None => (before.validator(), before.data_change),
        };
        // A rename that is not answered may have moved it, too.
        let is_moved = state.journal().taken().of(&handle).any(|(_, taken)| taken.is_attempted);
        if is_ctime_old || is_moved {
            state.doubt_version(cred, &handle);
        }
        let altered = Altered {
            handle,
            below,
            set,
            mtime: shown_mtime,
            ctime: now,
            // Change times of a file only grow: no earlier version had this one.
            data_change: of_data.filter(|_| !is_cut).unwrap_or(nanoseconds(now)),
            setter: Maker::of(cred),
            is_attempted: false,
            is_done: false,
            claims: None,
        };
        let mut after = before;
        Altered { below: before.validator(), ..altered.clone() }.apply(&mut after, false);
        let no = state.journal_mut().alter(altered);
        if state.due(no).is_none() {
            self.set_due(state, no, None);
        }
        let recorded = self.record_for_caller(state);
        Some(recorded.map(|()| Change { before: Some(as_before(&before)), after: Some(after) }))
    }

    /// Files of the server's that were emptied here and that no other client has changed since,
    /// with their attributes as applications see them.
    pub(crate) fn emptied(&self) -> Vec<(Handle, Attr)> {
        let Some(held) = self.holder() else {
            return Vec::new();
        };
        let emptied: Vec<Altered> = {
            let state = self.state();
            let altered = state.journal().all_altered();
            altered.filter(|altered| altered.set.size.is_some()).cloned().collect()
        };
        let shown = |altered: Altered| {
            let file = self.known_as(&altered.handle);
            let attr = altered.over(held.held(&file)?)?;
            Some((file, attr))
        };
        emptied.into_iter().filter_map(shown).collect()
    }

    /// How far the server is with attributes that were set here.
    pub(crate) fn setting_of(&self, server: &Handle) -> Option<Setting> {
        self.state().journal().altered(server).map(|(_, altered)| altered.setting())
    }

    /// The change of a file's attributes that the server has been asked for and not answered yet,
    /// if the file has another version there than before that.
    pub(crate) fn asked_meanwhile(&self, file: &Handle, attr: &Attr) -> Option<ObjectNo> {
        let version = self.show_unaltered(file, *attr).validator();
        let state = self.state();
        let (no, altered) = state.journal().altered(state.journal().server_handle(file)?)?;
        let is_asked = altered.is_attempted && !altered.is_done && attr.kind != Kind::Directory;
        (is_asked && !altered.below.same(&version)).then_some(no)
    }

    /// Sets at the server what was set here.
    pub(crate) async fn replay_altered(
        &self,
        no: ObjectNo,
        deadline: Option<Deadline>,
    ) -> Result<()> {
        let altered = self.state().journal().get_altered(no).cloned();
        let Some(altered) = altered.filter(|altered| !altered.is_done) else { return Ok(()) };
        let set = self.alter_at_server(no, &altered, deadline).await;
        set.map_err(|error| self.altered_late(no, altered.setting(), error))
    }

    /// Sets what was set here of an object before it loses a name at the server, which may be the
    /// end of it. What the server refuses waits on.
    pub(crate) async fn set_before_loss(&self, server: &Handle, deadline: Option<Deadline>) {
        if let Some(no) = self.altered_of(server) {
            // A server that does not answer changes no name either.
            let _ = self.replay_altered(no, deadline).await;
        }
    }

    async fn alter_at_server(
        &self,
        no: ObjectNo,
        altered: &Altered,
        deadline: Option<Deadline>,
    ) -> Result<()> {
        let cred = altered.setter.cred().until(self.extend(deadline));
        let attr = match self.remote.getattr(&cred, &altered.handle).await {
            Ok(attr) => attr,
            Err(Error::Stale | Error::NotFound) => {
                let Some(again) = self.find_altered(&cred, no, altered).await? else {
                    self.give_up_altered(no, None).await;
                    return Ok(());
                };
                return Box::pin(self.alter_at_server(no, &again, deadline)).await;
            }
            // That this is refused tells nothing of an earlier attempt.
            Err(error) if altered.is_attempted => return Err(as_unanswered(error)),
            Err(error) => return Err(error),
        };
        match altered.setting().next(self.there(altered, attr)) {
            Next::Conclude(Setting::Done) => self.has_set(no, altered, attr),
            Next::Conclude(_) => self.give_up_altered(no, Some(attr)).await,
            Next::Ask => {
                self.mark_altered(no).await?;
                let after = self.ask_to_set(&cred, altered, attr.ctime).await?;
                self.has_set(no, altered, after);
            }
        }
        Ok(())
    }

    /// The change of an object that the server does not know by its handle any more, with the one
    /// by which it does, if that is found out: under the name under which the client has seen the
    /// object last, in a version that comes from the one below, or from what was set. The client
    /// may find it meanwhile.
    async fn find_altered(
        &self,
        cred: &Cred,
        no: ObjectNo,
        before: &Altered,
    ) -> Result<Option<Altered>> {
        let is_it = |attr: &Attr| {
            let there = self.there(before, *attr);
            attr.kind != Kind::Directory && (there.is_below || there.is_made)
        };
        self.find_again(cred, &before.handle, is_it).await?;
        let known = self.state().journal().get_altered(no).cloned();
        Ok(known.filter(|known| known.handle != before.handle))
    }

    /// What the server has, by its description of an object.
    fn there(&self, altered: &Altered, attr: Attr) -> There {
        altered.there(&attr, &self.show_unaltered(&altered.handle, attr).validator())
    }

    /// Asks the server to set attributes, if the object has this change time; that it may have been
    /// asked is on record. Returns what it has then.
    pub(crate) async fn ask_to_set(
        &self,
        cred: &Cred,
        altered: &Altered,
        guard: Time,
    ) -> Result<Attr> {
        let change = self.remote.setattr(cred, &altered.handle, altered.set, Some(guard)).await?;
        if let Some(after) = change.after {
            return Ok(after);
        }
        let attr = self.remote.getattr(cred, &altered.handle).await.map_err(as_unanswered)?;
        // Another client may have changed it since: the next attempt finds that out.
        if self.there(altered, attr).is_made { Ok(attr) } else { Err(Error::Io) }
    }

    /// The server has set attributes, and describes the object like this.
    pub(crate) fn has_set(&self, no: ObjectNo, altered: &Altered, after: Attr) {
        let shown = self.show_unaltered(&altered.handle, after);
        {
            let mut state = self.state();
            let (below, is_file) = (shown.validator(), after.kind != Kind::Directory);
            let done = Altered { below, is_done: true, is_attempted: false, ..altered.clone() };
            state.journal_mut().put_altered(no, Some(done).filter(|_| is_file));
            state.waits_no_more(no);
            self.record(&mut state);
        }
        self.tell_replayed();
        self.follow_taken(&altered.handle, Some(shown));
    }

    /// From now on the server may have been asked; this survives a crash of the machine.
    async fn mark_altered(&self, no: ObjectNo) -> Result<()> {
        {
            let mut state = self.state();
            if let Some(altered) = state.journal().get_altered(no).cloned() {
                let altered = Altered { is_attempted: true, ..altered };
                state.journal_mut().put_altered(no, Some(altered));
            }
            self.record(&mut state);
        }
        self.keep().await
    }

    /// Another client has changed the object, which the server describes like this, or it is gone:
    /// that counts. If it has all that was set here, only the bytes are another client's.
    async fn give_up_altered(&self, no: ObjectNo, attr: Option<Attr>) {
        let handle = {
            let mut state = self.state();
            let Some(altered) = state.journal().get_altered(no).cloned() else { return };
            let is_set = attr.is_some_and(|attr| has_all(&attr, &altered.set));
            if altered.claims.is_none() && !is_set {
                tracing::error!(set = ?altered.set,
                    "somebody else has changed a file whose attributes were set here: they are given up");
                state.journal_mut().meet(Met::Attributes { of: altered.handle.clone() });
            }
            state.journal_mut().put_altered(no, None);
            state.waits_no_more(no);
            self.record(&mut state);
            altered.handle
        };
        self.tell_replayed();
        let handle = self.known_as(&handle);
        if let Some(watcher) = self.watcher.get().and_then(std::sync::Weak::upgrade) {
            watcher.distrust(&handle).await;
        }
    }

    /// Records why attributes are not set, by how far the server was `before`; returns the error
    /// for waiting callers.
    fn altered_late(&self, no: ObjectNo, before: Setting, error: Error) -> Error {
        let mut state = self.state();
        let Some(altered) = state.journal().get_altered(no).cloned() else {
            return Error::TimedOut;
        };
        if altered.claims.is_some() && !is_unanswered(error) && error != Error::TryAgain {
            // The bytes go without, or are refused themselves.
            state.journal_mut().put_altered(no, None);
            state.waits_no_more(no);
            self.record(&mut state);
            return Error::TimedOut;
        }
        if state.failure(no) != Some(error) {
            tracing::warn!(%error, "attributes that were set here are not set at the server");
        }
        let answer = if is_unanswered(error) { Answer::None } else { Answer::Refused };
        let is_attempted = before.after(answer) == Setting::Asked;
        state.journal_mut().put_altered(no, Some(Altered { is_attempted, ..altered }));
        state.fail(no, error);
        self.record(&mut state);
        Error::TimedOut
    }
}

/// What is to be set at the server once more was `set` here.
fn after_set(earlier: SetAttr, set: &SetAttr) -> SetAttr {
    SetAttr {
        mode: set.mode.or(earlier.mode),
        uid: set.uid.or(earlier.uid),
        gid: set.gid.or(earlier.gid),
        size: set.size.or(earlier.size),
        atime: set.atime.or(earlier.atime),
        mtime: set.mtime.or(earlier.mtime),
        ..SetAttr::default()
    }
}

/// Whether a user may set that, as far as this machine can determine; `None`: it cannot.
fn may_set(cred: &Cred, attr: &Attr, set: &SetAttr) -> Option<bool> {
    let is_owner = cred.uid == 0 || cred.uid == attr.uid;
    let is_plain = attr.kind != Kind::Symlink
        && set.size.is_none_or(|size| size == 0 && attr.kind == Kind::File)
        && (cred.uid == 0 || set.mode.unwrap_or(attr.mode) & SET_IDS == 0)
        && (cred.uid == 0 || (set.uid.is_none() && set.gid.is_none()));
    if !is_plain {
        return None;
    }
    let to = |time: Option<SetTime>| matches!(time, Some(SetTime::To(_)));
    let is_writing = set.mode.is_none()
        && set.uid.is_none()
        && set.gid.is_none()
        && !to(set.atime)
        && !to(set.mtime);
    Some(is_owner || (is_writing && has_rights(attr, cred, 2)))
}

/// A time near `now` that no other machine gives a file that it empties as well, with its clock
/// before the server's: the time tells whose emptying the server has. It is later than the change
/// `before`, and if possible not later than `now`.
pub(crate) fn unlike_others(now: Time, before: Time) -> Time {
    let by = u32::from_le_bytes(secret::random()) % MARK_NS_MAX;
    let earlier = match now.nsec.checked_sub(by) {
        Some(nsec) => Time { nsec, ..now },
        None => Time { sec: now.sec - 1, nsec: now.nsec + SECOND_NS - by },
    };
    if earlier > before {
        return earlier;
    }
    let nsec = now.nsec + by;
    Time { sec: now.sec + i64::from(nsec / SECOND_NS), nsec: nsec % SECOND_NS }
}

/// A time as one number.
fn nanoseconds(time: Time) -> u64 {
    time.sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(u64::from(time.nsec))
}

//! What the server was asked to change, and whether it has answered ([`crate::doubt`]).
//!
//! That it may have changed an object is on record before it is asked, so that is known to the next
//! process, too. When the server is back, the version that it has by then counts as ours, if the
//! size is one to which our requests can have led: a change by another client during the same time
//! cannot be told from ours. Then what was removed, replaced or set here is not taken for something
//! that another client has changed.

use std::sync::Weak;

use larder_vfs::{Cred, Deadline, Error, Handle, Result, Validator};

use crate::doubt::{Asking, Doubt, Sizes};
use crate::object::{Altered, Maker, ObjectNo, Taken, is_unanswered};
use crate::shared::Shared;
use crate::state::State;

/// A request in flight. Dropped before it was answered, it was not answered.
struct Asked<'a> {
    shared: &'a Shared,
    handle: Handle,
    is_answered: bool,
    loses_name: bool,
}

impl Asked<'_> {
    /// The server has answered or refused, or it has not: by the result. To be called after the
    /// conclusions of the answer are on record.
    fn end<T>(mut self, answer: &Result<T>) {
        self.is_answered = !answer.as_ref().is_err_and(|error| is_unanswered(*error));
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        let state = &mut *state;
        let Some(asking) = state.asking_mut().get_mut(&self.handle) else { return };
        asking.in_flight -= 1;
        asking.is_unanswered |= !self.is_answered;
        asking.is_told |= self.is_answered && self.loses_name;
        let Asking { in_flight, is_unanswered, is_told } = *asking;
        if in_flight > 0 {
            return;
        }
        if is_told && !is_unanswered {
            return self.shared.answered.notify_waiters();
        }
        state.asking_mut().remove(&self.handle);
        let known = state.journal().doubts().of(&self.handle).map(|(no, _)| no);
        if let Some(no) = known.filter(|_| !is_unanswered) {
            state.journal_mut().put_doubt(no, None);
            self.shared.record(state);
        }
        self.shared.answered.notify_waiters();
    }
}

impl Shared {
    /// Asks the server to change an object, and has on record that it may have done so until it has
    /// answered. `asking` also puts the conclusions of the answer on record.
    ///
    /// # Errors
    /// Those of `asking`.
    pub(crate) async fn on_record<T>(
        &self,
        cred: &Cred,
        handle: &Handle,
        sizes: Sizes,
        asking: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let asked = self.ask_to_change(cred, handle, sizes, false);
        let answer = asking.await;
        asked.into_iter().for_each(|asked| asked.end(&answer));
        answer
    }

    /// The same of a request that takes a name from a file with bytes that the server lacks: if
    /// the file is gone afterwards, it was to be, and its bytes are dropped, in whichever process.
    /// After an answer, the record stays until the next replay: the process may die before the
    /// client knows what is gone.
    ///
    /// # Errors
    /// Those of `asking`.
    pub(crate) async fn on_record_of_loss<T>(
        &self,
        cred: &Cred,
        file: Option<&Handle>,
        asking: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let asked = file.and_then(|it| self.ask_to_change(cred, it, Sizes::KEPT, true));
        let answer = asking.await;
        // A server that was restarted says so, too, of what it has done before that.
        let is_unclear = matches!(answer, Err(Error::NotFound));
        asked.into_iter().filter(|_| !is_unclear).for_each(|asked| asked.end(&answer));
        answer
    }

    /// Before the server is asked to change an object. `None` where nothing is ever answered here
    /// in the server's place.
    fn ask_to_change(
        &self,
        cred: &Cred,
        handle: &Handle,
        sizes: Sizes,
        loses_name: bool,
    ) -> Option<Asked<'_>> {
        if !self.licence.answers() {
            return None;
        }
        let mut state = self.state();
        let state = &mut *state;
        let known = state.journal().doubts().of(handle).map(|(no, doubt)| (no, doubt.clone()));
        let asking = state
            .asking_mut()
            .entry(handle.clone())
            .or_insert_with(|| Asking { is_unanswered: known.is_some(), ..Asking::default() });
        asking.in_flight += 1;
        let before = known.as_ref().map(|(_, doubt)| (doubt.sizes, doubt.loses_name));
        let after = before.map_or((sizes, loses_name), |(earlier, lost)| {
            (earlier.with(sizes), lost || loses_name)
        });
        if before != Some(after) {
            let (sizes, loses_name) = after;
            let (handle, asker) = (handle.clone(), Maker::of(cred));
            let doubt = Doubt { handle, sizes, asker, loses_name };
            state.journal_mut().doubt(known.map(|(no, _)| no), doubt);
            self.record(state);
        }
        Some(Asked { shared: self, handle: handle.clone(), is_answered: false, loses_name })
    }

    /// Asks the server which version it has of the objects that it may have changed for us. To be
    /// called by the task that makes things there.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if it does not answer.
    pub(crate) async fn resolve_doubts(&self, deadline: Option<Deadline>) -> Result<()> {
        let unanswered = {
            let mut state = self.state();
            state.forget_told();
            self.record(&mut state);
            state.unanswered()
        };
        for (no, doubt) in unanswered {
            self.resolve_doubt(no, &doubt, deadline).await?;
        }
        Ok(())
    }

    async fn resolve_doubt(
        &self,
        no: ObjectNo,
        doubt: &Doubt,
        deadline: Option<Deadline>,
    ) -> Result<()> {
        let cred = doubt.asker.cred().until(deadline);
        let (found, is_gone) = match self.remote.getattr(&cred, &doubt.handle).await {
            Err(error) if is_unanswered(error) => return Err(Error::TimedOut),
            Err(error) => (None, matches!(error, Error::Stale | Error::NotFound)),
            Ok(attr) => (Some(attr), attr.nlink == 0),
        };
        let handle = self.known_as(&doubt.handle);
        let version = found.map(|attr| self.show_unaltered(&doubt.handle, attr).validator());
        {
            let mut state = self.state();
            if let Some(version) = version {
                state.follow_doubt(doubt, version);
            }
            state.doubt_no_more(no, &doubt.handle);
            if doubt.loses_name && is_gone {
                let made = state.journal().of_server(&doubt.handle);
                made.into_iter().for_each(|made| state.journal_mut().gone(made));
            }
            self.record(&mut state);
        }
        if let (true, true, Some(held)) = (doubt.loses_name, is_gone, self.holder()) {
            held.removed_here(&handle);
        }
        if let (Some(attr), Some(held)) = (found, self.holder()) {
            let attr = self.show(&doubt.handle, attr);
            let before = held.held(&handle);
            if before.is_some_and(|before| doubt.sizes.lead(before.size, attr.size)) {
                held.changed_here(&handle, attr);
            }
        }
        // What the client has of it may be from before.
        if let Some(watcher) = self.watcher.get().and_then(Weak::upgrade) {
            watcher.distrust(&handle).await;
        }
        Ok(())
    }

    /// Before an object is asked for: has the version known that requests without an answer have
    /// left.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if the server does not answer.
    pub(crate) async fn know_version(
        &self,
        server: &Handle,
        deadline: Option<Deadline>,
    ) -> Result<()> {
        match self.version_in_doubt(server) {
            Some((no, doubt)) => self.resolve_doubt(no, &doubt, deadline).await,
            None => Ok(()),
        }
    }

    /// The request without an answer that may have changed an object, if none is in flight: what
    /// the server says of it may be our own doing.
    pub(crate) fn version_in_doubt(&self, server: &Handle) -> Option<(ObjectNo, Doubt)> {
        let state = self.state();
        let is_settling = state.asking().get(server).is_some_and(Asking::is_settling);
        let (no, doubt) = state.journal().doubts().of(server).filter(|_| !is_settling)?;
        Some((no, doubt.clone()))
    }

    /// Waits until no request of ours that may change an object is in flight, and the version is
    /// known that those without an answer have left. Returns whether there was any. Not to be
    /// called by such a request.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if the server does not answer.
    pub(crate) async fn await_own_changes(
        &self,
        handle: &Handle,
        deadline: Option<Deadline>,
    ) -> Result<bool> {
        let mut is_any = false;
        loop {
            let mut answered = std::pin::pin!(self.answered.notified());
            answered.as_mut().enable();
            let (known, in_flight) = {
                let state = self.state();
                let asking = state.asking().get(handle);
                let is_told = asking.is_some_and(|it| it.is_told && it.in_flight == 0);
                let known = state.journal().doubts().of(handle).filter(|_| !is_told);
                (
                    known.map(|(no, doubt)| (no, doubt.clone())),
                    asking.is_some_and(|asking| asking.in_flight > 0),
                )
            };
            let Some((no, doubt)) = known else { return Ok(is_any) };
            is_any = true;
            match in_flight {
                true => answered.await,
                false => self.resolve_doubt(no, &doubt, deadline).await?,
            }
        }
    }

    /// Forgets what an earlier process was not answered, where that matters for nothing that waits
    /// and this process answers nothing in the server's place.
    pub(crate) fn drop_doubts(&self) {
        if self.licence.answers() {
            return;
        }
        let mut state = self.state();
        for (no, doubt) in state.unanswered() {
            if !state.is_concerned(&doubt.handle) {
                state.doubt_no_more(no, &doubt.handle);
            }
        }
        self.record(&mut state);
    }
}

impl State {
    /// Objects of which a change was not answered.
    fn unanswered(&self) -> Vec<(ObjectNo, Doubt)> {
        let is_one = |doubt: &Doubt| {
            self.asking().get(&doubt.handle).is_none_or(|asking| asking.is_unanswered)
        };
        let all = self.journal().doubts().all().filter(|(_, doubt)| is_one(doubt));
        all.map(|(no, doubt)| (no, doubt.clone())).collect()
    }

    /// What the client was told some time ago, it knows by now.
    fn forget_told(&mut self) {
        let is_over = |one: &Asking| one.is_told && one.in_flight == 0;
        let told = self.asking().iter().filter(|(_, one)| is_over(one));
        for handle in told.map(|(handle, _)| handle.clone()).collect::<Vec<_>>() {
            self.asking_mut().remove(&handle);
            let no = self.journal().doubts().of(&handle).map(|(no, _)| no);
            no.into_iter().for_each(|no| self.journal_mut().put_doubt(no, None));
        }
    }

    /// Whether something that waits depends on the version of an object.
    fn is_concerned(&self, handle: &Handle) -> bool {
        let altered = self.journal().altered(handle);
        altered.is_some_and(|(_, altered)| !altered.is_done)
            || self.journal().taken().of(handle).next().is_some()
    }

    /// Bytes may have followed the claim of a file, by a request without an answer.
    fn doubt_claim(&mut self, server: &Handle) {
        let claim = self.journal().altered(server).filter(|(_, one)| one.claims.is_some());
        if let Some((no, claim)) = claim.filter(|(_, claim)| claim.is_done) {
            let claim = Altered { is_attempted: true, ..claim.clone() };
            self.journal_mut().put_altered(no, Some(claim));
        }
    }

    /// A request was carried out that has moved an object's change time, to a time that nobody here
    /// knows.
    pub(crate) fn doubt_version(&mut self, cred: &Cred, handle: &Handle) {
        if self.journal().doubts().of(handle).is_none() {
            let (sizes, asker) = (Sizes::KEPT, Maker::of(cred));
            let doubt = Doubt { handle: handle.clone(), sizes, asker, loses_name: false };
            self.journal_mut().doubt(None, doubt);
        }
    }

    fn doubt_no_more(&mut self, no: ObjectNo, handle: &Handle) {
        self.doubt_claim(handle);
        match self.asking_mut().get_mut(handle) {
            Some(asking) => asking.is_unanswered = false,
            None => self.journal_mut().put_doubt(no, None),
        }
    }

    /// What waits is about the version that the server has now.
    fn follow_doubt(&mut self, doubt: &Doubt, version: Validator) {
        let taken = self.journal().taken().of(&doubt.handle);
        let taken: Vec<_> = taken.map(|(no, taken)| (no, taken.clone())).collect();
        for (no, taken) in taken {
            if doubt.sizes.lead(taken.version.size, version.size) {
                self.journal_mut().put_taken(no, Some(Taken { version, ..taken }));
            }
        }
        let altered = self.journal().altered(&doubt.handle).filter(|(_, altered)| {
            // Whether a claim is over the right version, the client decides.
            let may_follow = !altered.is_done && altered.claims.is_none();
            may_follow && doubt.sizes.lead(altered.below.size, version.size)
        });
        if let Some((no, altered)) = altered {
            let altered = Altered { below: version, ..altered.clone() };
            self.journal_mut().put_altered(no, Some(altered));
        }
    }
}

//! By what right this machine answers for a change of names ([`crate::dir_lease`]).

use std::pin::pin;

use larder_vfs::{Cred, Handle};

use crate::dir_lease::{DirLease, Event, Grant, Then};
use crate::object::{Dir, ObjectNo};
use crate::server_dir::ServerDir;
use crate::shared::{Shared, Target};
use crate::state::State;

/// Most changes that wait in a directory of which the server gives leases. Making them there takes
/// less time than the server waits for a lease, at 4 ms for each.
pub(crate) const WAITING_IN_DIR_MAX: usize = 2000;

/// Why this machine may answer for names in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// The licence is for all names.
    Licence,
    /// The server lacks the directory, so no other client can look into it.
    Made,
    /// The server gives it no other client to look into.
    Leased(Grant),
}

/// A question for a lease. Dropped before it was answered, the lease is not granted.
struct Asking<'a> {
    shared: &'a Shared,
    dir: Dir,
    is_answered: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.shared.state().dir_leases_mut().apply(&self.dir, Event::Refused);
        }
        self.shared.leases_changed.notify_waiters();
    }
}

impl Shared {
    /// The right to answer for a change of names in a directory. Asks the server for a lease if
    /// necessary, which may have to wait for other clients. `None`: the change is to be made at the
    /// server.
    pub(crate) async fn right_to(&self, cred: &Cred, dir: &Handle) -> Option<Right> {
        if !self.licence.leased || self.is_away() {
            return Some(Right::Licence);
        }
        let mut has_waited = false;
        loop {
            let mut changed = pin!(self.leases_changed.notified());
            changed.as_mut().enable();
            let Target::Server(server) = self.target(dir).ok()? else { return Some(Right::Made) };
            let (key, then) = {
                let mut state = self.state();
                let key = state.journal().dir(dir);
                if !self.has_room_below(&mut state, &key) {
                    return None;
                }
                let is_held = matches!(state.dir_leases().get(&key), DirLease::Held(_));
                // Its end is about to be reported.
                if is_held && !self.remote.is_excluding(&server) {
                    return None;
                }
                let then = state.dir_leases_mut().apply(&key, Event::Wanted);
                (key, then)
            };
            match then {
                Then::AnswerHere(grant) => return Some(Right::Leased(grant)),
                Then::Ask => return self.ask_for_lease(cred, (key, &server)).await,
                Then::Await if !has_waited => match cred.deadline {
                    None => changed.await,
                    Some(deadline) => {
                        self.clock.timeout_at(deadline.at(), changed).await.ok()?;
                    }
                },
                _ => return None,
            }
            has_waited = true;
        }
    }

    async fn ask_for_lease(&self, cred: &Cred, (dir, server): (Dir, &Handle)) -> Option<Right> {
        let mut asking = Asking { shared: self, dir, is_answered: false };
        let excluded = self.remote.exclude(cred, server).await;
        let attr = excluded.inspect_err(|error| tracing::debug!(%error, "no lease")).ok()??;
        let mut state = self.state();
        // A recall may have overtaken the answer.
        if !self.remote.is_excluding(server) {
            drop(state);
            return None;
        }
        asking.is_answered = true;
        let grant = state.dir_leases_mut().next_grant();
        let then = state.dir_leases_mut().apply(&asking.dir, Event::Granted(grant));
        let Then::AnswerHere(grant) = then else { return None };
        state.see_file_system(attr.fsid);
        match state.known_mut(&asking.dir) {
            Some(known) => known.confirm(attr),
            None => drop(state.learn(asking.dir.clone(), ServerDir::new(attr))),
        }
        Some(Right::Leased(grant))
    }

    /// Whether this machine has had the right since it was given, and may answer for one more
    /// change. To be asked in the step in which the change is recorded.
    pub(crate) fn has_still(&self, state: &mut State, dir: &Handle, right: Right) -> bool {
        let key = state.journal().dir(dir);
        let is_right = match right {
            Right::Licence => return true,
            Right::Made => {
                let no = state.journal().number_in(dir);
                let waiting = no.and_then(|no| state.journal().waiting(no));
                // Of what is being made at the server, others know soon.
                waiting.is_some_and(|(_, waiting)| !waiting.is_attempted)
            }
            Right::Leased(grant) => {
                let server = state.journal().server_handle(dir);
                state.dir_leases().get(&key) == DirLease::Held(grant)
                    && server.is_some_and(|server| self.remote.is_excluding(server))
            }
        };
        is_right && self.has_room_below(state, &key)
    }

    /// The same of two directories; `None` if it has not.
    pub(crate) fn have_still(
        &self,
        state: &mut State,
        dirs: [&Handle; 2],
        rights: [Right; 2],
    ) -> Option<()> {
        let has = |(dir, right)| self.has_still(state, dir, right);
        dirs.into_iter().zip(rights).all(has).then_some(())
    }

    /// Whether one more change may wait in a directory. If not, what waits there is made at the
    /// server soon.
    fn has_room_below(&self, state: &mut State, dir: &Dir) -> bool {
        let has_room = state.journal().count_in(dir) < WAITING_IN_DIR_MAX;
        if !has_room {
            state.is_due_in(dir, self.clock.instant());
            self.alarm.ring();
        }
        has_room
    }

    /// A lease of the server's has ended: what is known under it is not trusted any more.
    pub(crate) fn lease_ended(&self, dir: &Dir) {
        {
            let mut state = self.state();
            if self.licence.leased {
                state.dir_leases_mut().apply(dir, Event::Ended);
            }
            if let Some(known) = state.known_mut(dir) {
                known.doubt_names();
            }
        }
        self.leases_changed.notify_waiters();
    }

    /// Whether no other client changes names in a directory: by the licence, or as long as its
    /// lease is not returned.
    pub(crate) fn excludes_others(&self, dir: &Dir) -> bool {
        let still_excludes = |server: Handle| self.remote.still_excludes(&server);
        self.licence.sole || (self.licence.leased && self.server_dir(dir).is_ok_and(still_excludes))
    }

    /// Excludes other clients from a directory that was just made at the server, if something waits
    /// in it: before its name is there to be found, as long as that is so for the directory above.
    pub(crate) async fn lease_made(&self, no: ObjectNo, cred: &Cred, server: &Handle) -> bool {
        let waits = self.state().journal().count_in(&Dir::Made(no)) > 0;
        if !self.licence.leased || !waits {
            return false;
        }
        let excluded = self.remote.exclude(cred, server).await;
        excluded.is_ok_and(|attr| attr.is_some())
    }

    /// The same, when the journal knows the server's handle: the lease may have ended by now.
    pub(crate) fn note_lease(&self, state: &mut State, no: ObjectNo, server: &Handle) {
        if !self.remote.is_excluding(server) {
            return;
        }
        let (dir, leases) = (Dir::Made(no), state.dir_leases_mut());
        leases.apply(&dir, Event::Wanted);
        let grant = leases.next_grant();
        leases.apply(&dir, Event::Granted(grant));
        if let Some(known) = state.known_mut(&dir) {
            known.trust_names();
        }
    }
}

//! Claims: before bytes go over a file that was changed here without the server, the server is
//! asked to give it a modification time that no other machine gives, if it still has the version
//! below the bytes.
//!
//! NFSv3 has no guard for a WRITE. A claim has one, that of SETATTR, and it moves the modification
//! time: of several machines that have changed the file without the server one claims it, and each
//! other one finds a version that is not below its bytes, whenever it asks. A claim is attributes
//! that are set ([`crate::altered`]), with the same rules ([`crate::setting`]), except that no
//! caller has set them: applications do not see the time, and a claim that is given up, or that the
//! server does not permit, is dropped without a report.

use larder_vfs::{Attr, Cred, Error, Handle, Kind, Result, SetAttr, SetTime, Time, Validator};

use crate::altered::unlike_others;
use crate::object::{Altered, Maker, ObjectNo, after, is_unanswered};
use crate::shared::{Shared, Target};
use crate::state::State;

/// A claim that is on record, and what was on record of the file's attributes before it.
struct Begun {
    no: ObjectNo,
    claim: Altered,
    former: Option<Altered>,
    /// The server's change time of the version below.
    guard: Time,
}

impl Shared {
    /// Claims a file that applications see as `shown`, unless it is claimed, or cannot be.
    ///
    /// # Errors
    /// [`Error::TryAgain`] if the server has another version; [`Error::TimedOut`] if it does not
    /// answer.
    pub(crate) async fn claim(&self, cred: &Cred, file: &Handle, shown: &Attr) -> Result<()> {
        // The server lets only the owner set such a time.
        let is_owner = cred.uid == 0 || cred.uid == shown.uid;
        if self.licence.sole || !self.licence.offline || !is_owner || shown.kind != Kind::File {
            return Ok(());
        }
        let Target::Server(server) = self.target(file)? else { return Ok(()) };
        let Some(begun) = self.begin_claim(cred, server, shown)? else { return Ok(()) };
        let Begun { no, claim, former, guard } = begun;
        let asked = match self.keep().await {
            Ok(()) => self.ask_to_set(cred, &claim, guard).await,
            Err(error) => Err(error),
        };
        match asked {
            Ok(attr) => self.has_set(no, &claim, attr),
            // The change time alone may have moved.
            Err(Error::TryAgain) => {
                self.replay_altered(no, cred.deadline).await?;
                if self.state().journal().get_altered(no).is_none_or(|one| !one.is_done) {
                    return Err(Error::TryAgain);
                }
            }
            Err(error) if is_unanswered(error) => {
                let mut state = self.state();
                self.set_due(&mut state, no, None);
                state.fail(no, error);
                return Err(Error::TimedOut);
            }
            Err(error) => {
                tracing::debug!(%error, "a file is written without a claim");
                let mut state = self.state();
                state.journal_mut().put_altered(no, former);
                self.record(&mut state);
            }
        }
        Ok(())
    }

    /// Puts a claim on record, as one that the server may have been asked for: a task that replays
    /// changes meanwhile does not take it for another client's change.
    fn begin_claim(&self, cred: &Cred, server: Handle, shown: &Attr) -> Result<Option<Begun>> {
        let mut state = self.state();
        let state = &mut *state;
        if !self.has_room_in(state) {
            return Ok(None);
        }
        let former = state.journal().altered(&server).map(|(_, altered)| altered.clone());
        let below = match &former {
            Some(former) if !former.is_done => return Err(Error::TryAgain),
            // Who empties a file claims it.
            Some(former) if former.claims.is_some() || former.set.size.is_some() => {
                return Ok(None);
            }
            Some(former) => former.below,
            None => shown.validator(),
        };
        let now = state.time(&*self.clock).max(after(shown.ctime));
        let mtime = Some(SetTime::To(unlike_others(now, shown.ctime)));
        let guard = state.server_ctime(&server, &below);
        let claim = Altered {
            handle: server,
            below,
            set: SetAttr { mtime, ..SetAttr::default() },
            mtime: shown.mtime,
            ctime: shown.ctime,
            data_change: 0,
            setter: Maker::of(cred),
            is_attempted: true,
            is_done: false,
            claims: Some(shown.validator()),
        };
        let no = state.journal_mut().alter(claim.clone());
        self.record(state);
        Ok(Some(Begun { no, claim, former, guard }))
    }
}

impl State {
    /// Whether a file is claimed, and the server was asked for no change of it since.
    pub(crate) fn is_claimed(&self, server: &Handle) -> bool {
        let claim = self.journal().altered(server).filter(|(_, one)| one.claims.is_some());
        claim.is_some_and(|(_, claim)| claim.is_done && !claim.is_attempted)
            && self.journal().doubts().of(server).is_none()
    }

    /// The change time at the server of a version that applications see like this. That of a file
    /// that was made here may be another one.
    fn server_ctime(&self, server: &Handle, version: &Validator) -> Time {
        let journal = self.journal();
        let named = journal.of_server(server).and_then(|no| journal.named(no));
        let shown = named.map(|named| &named.shown);
        let shown =
            shown.filter(|shown| (shown.mtime, shown.ctime) == (version.mtime, version.ctime));
        shown.map_or(version.ctime, |shown| shown.server.ctime)
    }
}

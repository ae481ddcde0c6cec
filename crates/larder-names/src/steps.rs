//! Steps of the changes that are made at the server: the bytes before a change of names, the mark
//! before a request, the question what is under a name, and why a change is late.

use larder_vfs::{Change, Cred, Deadline, Error, Found, Handle, Kind, Result};

use crate::object::{Dentry, ObjectNo, Taken, as_unanswered, is_unanswered};
use crate::shared::Shared;

impl Shared {
    /// The bytes of a file, and attributes set on it, are at the server before it replaces another
    /// one: both depend on its version, which a rename may change.
    pub(crate) async fn send_bytes(&self, taken: &Taken) -> Result<()> {
        self.send_bytes_of(&taken.handle, taken.kind).await
    }

    /// The same before the server gives it another name.
    pub(crate) async fn send_bytes_of(&self, server: &Handle, kind: Kind) -> Result<()> {
        if let Some(no) = self.altered_of(server) {
            self.replay_altered(no, None).await?;
        }
        if kind != Kind::File {
            return Ok(());
        }
        let held = self.holder();
        let Some(held) = held else { return Ok(()) };
        held.bring(&self.known_as(server)).await.map_err(|_| Error::TimedOut)
    }

    /// Asks for a rename between two dentries.
    pub(crate) async fn rename_at_server(
        &self,
        taken: &Taken,
        (from, to): (&Dentry, &Dentry),
        deadline: Option<Deadline>,
    ) -> Result<(Change, Change)> {
        let cred = taken.taker.cred().until(self.extend(deadline));
        let (from_dir, to_dir) = (self.server_dir(&from.dir)?, self.server_dir(&to.dir)?);
        self.remote.rename(&cred, (&from_dir, &from.name), (&to_dir, &to.name)).await
    }

    /// From now on the server may have made these changes; this survives a crash of the machine.
    pub(crate) async fn mark_taken(&self, all: &[ObjectNo]) -> Result<()> {
        {
            let mut state = self.state();
            for no in all {
                let taken = state.journal().taken().get(*no).filter(|taken| !taken.is_attempted);
                if let Some(taken) = taken.cloned() {
                    let taken = Taken { is_attempted: true, ..taken };
                    state.journal_mut().put_taken(*no, Some(taken));
                }
            }
            self.record(&mut state);
        }
        self.keep().await
    }

    /// Records why a name was not taken away; returns the error for its waiting callers.
    pub(crate) fn taken_late(&self, no: ObjectNo, error: Error) -> Error {
        let mut state = self.state();
        let Some(taken) = state.journal().taken().get(no).cloned() else { return Error::TimedOut };
        if state.failure(no) != Some(error) {
            tracing::warn!(name = ?taken.origin.name, %error,
                "a name that was taken away here is not at the server");
        }
        let is_attempted = is_unanswered(error);
        let asked = taken.asked.clone().filter(|_| is_attempted);
        state.journal_mut().put_taken(no, Some(Taken { is_attempted, asked, ..taken }));
        state.fail(no, error);
        self.record(&mut state);
        Error::TimedOut
    }

    /// What the server has under a name of a change, of which `taken` is as it was before it was
    /// marked. That a question is refused tells nothing of an earlier attempt, unless the directory
    /// is gone: then so is the name.
    pub(crate) async fn at_taken(
        &self,
        cred: &Cred,
        at: &Dentry,
        taken: &Taken,
    ) -> Result<Option<Found>> {
        let found = self.at_dentry(cred, at).await;
        let is_open = |error| taken.is_attempted && error != Error::Stale;
        found.map_err(|error| if is_open(error) { as_unanswered(error) } else { error })
    }
}

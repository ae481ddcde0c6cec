//! Changes that wait for each other at the server: two names that were exchanged, or a directory
//! that is removed and something from in it that gets its name. One of them gets a temporary name.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use larder_vfs::{Deadline, Result};

use crate::object::{Dentry, Dir, ObjectNo, Taken};
use crate::shared::Shared;

impl Shared {
    /// Where something is at the server for the moment.
    pub(crate) fn own_name(&self, no: ObjectNo) -> OsString {
        format!("{}{}", self.state().journal().own_names_begin(), no.0).into()
    }

    /// Whether a name at the server is a temporary one, which applications never see.
    pub(crate) fn is_own_name(&self, name: &OsStr) -> bool {
        let name = name.as_bytes();
        name.starts_with(b".larder-")
            && name.starts_with(self.state().journal().own_names_begin().as_bytes())
    }

    /// The server may give an object this temporary name from now on; this survives a crash of the
    /// machine. [`Shared::resolve_asked`] finds out whether it has.
    async fn mark_giving_way(&self, no: ObjectNo, own: &Dentry) -> Result<()> {
        {
            let mut state = self.state();
            if let Some(taken) = state.journal().taken().get(no).cloned() {
                let taken = Taken { is_attempted: true, asked: Some(own.clone()), ..taken };
                state.journal_mut().put_taken(no, Some(taken));
            }
            self.record(&mut state);
        }
        self.keep().await
    }

    /// Gives the object of a change that waits for itself a temporary name.
    pub(crate) async fn give_way(
        &self,
        no: ObjectNo,
        taken: &Taken,
        deadline: Option<Deadline>,
    ) -> Result<()> {
        self.send_bytes(taken).await?;
        // That may have changed its version.
        let Some(taken) = &self.state().journal().taken().get(no).cloned() else { return Ok(()) };
        let own = Dentry { dir: self.staying(&taken.origin.dir), name: self.own_name(no) };
        self.mark_giving_way(no, &own).await?;
        let cred = taken.taker.cred().until(self.extend(deadline));
        // The answer to an earlier attempt may have been lost.
        let has_given_way = match self.at_dentry(&cred, &own).await {
            Ok(found) => found.is_some_and(|found| found.handle == taken.handle),
            Err(error) => return Err(self.taken_late(no, error)),
        };
        let moved = match has_given_way {
            true => Ok(Default::default()),
            false => self.rename_at_server(taken, (&taken.origin, &own), deadline).await,
        };
        let changes = match moved {
            Ok(changes) => changes,
            Err(error) => return Err(self.taken_late(no, error)),
        };
        let mut state = self.state();
        let is_same = own.dir == taken.origin.dir;
        if let Some(known) = state.known_mut(&own.dir) {
            known.replayed(&changes.1, |names| {
                if is_same {
                    names.remove(&taken.origin.name);
                }
                names.insert(own.name.clone());
            });
        }
        if !is_same && let Some(known) = state.known_mut(&taken.origin.dir) {
            known.replayed(&changes.0, |names| {
                names.remove(&taken.origin.name);
            });
        }
        // Nothing had that name.
        let _ = state.journal_mut().renamed(&taken.origin, &own);
        let left = Taken { origin: own, is_attempted: false, asked: None, ..taken.clone() };
        state.journal_mut().put_taken(no, Some(left));
        self.record(&mut state);
        Ok(())
    }

    /// A directory, or if it is to be removed, the nearest one above it that is not: what gives way
    /// to its removal must not stay in it.
    fn staying(&self, dir: &Dir) -> Dir {
        let state = self.state();
        let journal = state.journal();
        let mut dir = dir.clone();
        loop {
            let server = match &dir {
                Dir::Server(handle) => Some(handle),
                Dir::Made(no) => journal.named(*no).map(|named| &named.handle),
            };
            let removed = server.and_then(|server| {
                journal.taken().of(server).map(|(_, taken)| taken).find(|one| one.dentry.is_none())
            });
            match removed {
                Some(removed) => dir = removed.origin.dir.clone(),
                None => return dir,
            }
        }
    }
}

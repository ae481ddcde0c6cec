//! Renames that the server was asked for without an answer, and that were then answered here in its
//! place: it may have made them. Where it has the object is found out before anything else is made
//! there, so that what it did for us is not taken for another client's change.

use larder_vfs::{Change, Cred, Deadline, Error, Found, Handle, Result};

use crate::object::{Altered, Dentry, Dir, ObjectNo, Taken};
use crate::shared::Shared;
use crate::state::State;

impl Shared {
    /// Asks the server which of these renames it has made, and then which version it has of what
    /// it may have changed ([`crate::unanswered`]). To be called by the task that makes
    /// things there.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if it does not answer.
    pub(crate) async fn resolve_asked(&self, deadline: Option<Deadline>) -> Result<()> {
        loop {
            let next = {
                let state = self.state();
                state.journal().taken().first_asked().map(|(no, taken)| (no, taken.clone()))
            };
            let Some((no, taken)) = next else { return self.resolve_doubts(deadline).await };
            let Some(to) = &taken.asked else { return Ok(()) };
            let cred = taken.taker.cred().until(deadline);
            let mut moved = None;
            for (dentry, is_moved) in [(&taken.origin, false), (to, true)] {
                match self.at_dentry(&cred, dentry).await {
                    Ok(Some(found)) if found.handle == taken.handle => {
                        moved = is_moved.then_some(found);
                        break;
                    }
                    // What is wrong there is found when the change is made.
                    Ok(_) | Err(Error::AccessDenied | Error::NotPermitted | Error::Stale) => {}
                    Err(_) => return Err(Error::TimedOut),
                }
            }
            let below = moved
                .as_ref()
                .map(|Found { handle, attr }| self.show_unaltered(handle, *attr).validator());
            let mut state = self.state();
            state.resolve(no, moved.is_some());
            if let Some(below) = below {
                state.follow_rename(&taken, below);
            }
            self.record(&mut state);
        }
    }

    /// The server's handle of a directory.
    pub(crate) fn server_dir(&self, dir: &Dir) -> Result<Handle> {
        match dir {
            Dir::Server(handle) => Ok(handle.clone()),
            Dir::Made(no) => {
                let state = self.state();
                Ok(state.journal().named(*no).ok_or(Error::Stale)?.handle.clone())
            }
        }
    }

    /// The object that the server has under a name.
    ///
    /// # Errors
    /// [`Error::Stale`] if the directory is gone.
    pub(crate) async fn at_dentry(&self, cred: &Cred, dentry: &Dentry) -> Result<Option<Found>> {
        let dir = self.server_dir(&dentry.dir)?;
        match self.remote.lookup(cred, &dir, &dentry.name).await {
            Ok(answer) => Ok(answer.found),
            Err(Error::NotFound) => Ok(None),
            Err(Error::NotDirectory) => Err(Error::Stale),
            Err(error) => Err(error),
        }
    }
}

impl State {
    /// The server has made a rename that it was asked for, or has not.
    fn resolve(&mut self, no: ObjectNo, is_done: bool) {
        let Some(taken) = self.journal().taken().get(no).cloned() else { return };
        let Some(to) = taken.asked.clone() else { return };
        if is_done {
            // What had the name is gone.
            let replaced = self.journal().taken().from(&to.dir, &to.name);
            if let Some(replaced) = replaced.filter(|other| *other != no) {
                self.journal_mut().put_taken(replaced, None);
                self.waits_no_more(replaced);
            }
            for dir in [&taken.origin.dir, &to.dir] {
                if let Some(known) = self.known_mut(dir) {
                    known.replayed(&Change::default(), |_| ());
                }
            }
            // What was replaced stays known: nobody says that it was that.
            let _ = self.journal_mut().renamed(&taken.origin, &to);
        }
        let origin = if is_done { to } else { taken.origin.clone() };
        let is_left = taken.dentry.as_ref() != Some(&origin);
        if !is_left {
            self.waits_no_more(no);
        }
        let left = is_left.then_some(Taken { origin, asked: None, ..taken });
        self.journal_mut().put_taken(no, left);
    }

    /// The rename has moved the change time of the object: its bytes are the same.
    fn follow_rename(&mut self, taken: &Taken, now: larder_vfs::Validator) {
        if let Some(made) = self.journal().of_server(&taken.handle) {
            self.journal_mut().follow_version(made, now);
        }
        self.follow_altered(&taken.handle, now);
    }

    /// The server has another version of an object, with the same bytes.
    pub(crate) fn follow_altered(&mut self, handle: &Handle, now: larder_vfs::Validator) {
        let altered = self.journal().altered(handle);
        let altered = altered.filter(|(_, altered)| {
            (altered.below.size, altered.below.mtime) == (now.size, now.mtime)
        });
        if let Some((no, altered)) = altered {
            let altered = Altered { below: now, ..altered.clone() };
            self.journal_mut().put_altered(no, Some(altered));
        }
    }
}

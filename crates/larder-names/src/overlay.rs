//! What a name stands for here, and what happens to the object when the name is removed or moved:
//! changes of the journal, without the server.

use std::time::Instant;

use larder_vfs::{Attr, Change, Cred, Found, Handle, Kind, Time, Validator};

use crate::object::{Dentry, Dir, Maker, ObjectNo, Taken, Waiting, after, as_before};
use crate::state::State;

/// The object that has a name.
#[derive(Clone, Debug)]
pub(crate) enum There {
    /// Something that was made here, and that the server lacks.
    Waiting(ObjectNo),
    /// Something of the server's that was moved here.
    Moved(ObjectNo),
    /// An object that has this name at the server: with the server's handle, described as
    /// applications see it.
    Server(Box<Found>),
}

impl State {
    /// Whether that is still true, and no change of the object is in flight at the server.
    pub(crate) fn is_still(&self, dentry: &Dentry, there: Option<&There>) -> bool {
        let journal = self.journal();
        let waiting = journal.waiting_at(&dentry.dir, &dentry.name);
        let moved = journal.taken().at(&dentry.dir, &dentry.name);
        let is_taken = journal.taken().from(&dentry.dir, &dentry.name).is_some();
        match there {
            None => waiting.is_none() && moved.is_none(),
            Some(There::Waiting(no)) => self.untouched_at(dentry) == Some(*no),
            Some(There::Moved(no)) => {
                let taken = journal.taken().get(*no);
                moved == Some(*no) && taken.is_some_and(|taken| !taken.is_attempted)
            }
            Some(There::Server(_)) => waiting.is_none() && moved.is_none() && !is_taken,
        }
    }

    /// The kind of an object.
    pub(crate) fn kind_of(&self, there: &There) -> Option<Kind> {
        match there {
            There::Waiting(no) => Some(self.attr(*no)?.kind),
            There::Moved(no) => Some(self.journal().taken().get(*no)?.kind),
            There::Server(found) => Some(found.attr.kind),
        }
    }

    /// Whether these are one object.
    pub(crate) fn is_same(&self, one: &There, other: &There) -> bool {
        let handle = |there: &There| match there {
            There::Waiting(_) => None,
            There::Moved(no) => Some(self.journal().taken().get(*no)?.handle.clone()),
            There::Server(found) => Some(found.handle.clone()),
        };
        match (one, other) {
            (There::Waiting(one), There::Waiting(other)) => one == other,
            _ => handle(one).is_some_and(|one| handle(other) == Some(one)),
        }
    }

    /// `Some` unless a directory's sticky bit may prevent the caller from removing a name.
    pub(crate) fn may_take(&self, cred: &Cred, dir: &Attr, there: &There) -> Option<()> {
        let owner = match there {
            There::Waiting(no) => Some(self.attr(*no)?.uid),
            There::Moved(_) => None,
            There::Server(found) => Some(found.attr.uid),
        };
        let is_theirs = [Some(0), Some(dir.uid), owner].contains(&Some(cred.uid));
        (dir.mode & 0o1000 == 0 || is_theirs).then_some(())
    }

    /// A name of the server is taken away: its object is now at `to`, or removed.
    pub(crate) fn take(
        &mut self,
        cred: &Cred,
        origin: Dentry,
        found: &Found,
        to: Option<Dentry>,
    ) -> ObjectNo {
        let Found { handle, attr } = found;
        let fileid = match self.journal().of_server(handle) {
            Some(no) => no.fileid(),
            None => attr.fileid,
        };
        let version: Validator = match self.journal().altered(handle) {
            Some((_, altered)) if !altered.is_done => altered.below,
            _ => attr.validator(),
        };
        if to.is_none() {
            self.forget_altered(handle);
        }
        self.journal_mut().acknowledge(&origin);
        self.journal_mut().take(Taken {
            origin,
            dentry: to,
            handle: handle.clone(),
            fileid,
            kind: attr.kind,
            is_last: attr.kind == Kind::Directory || attr.nlink <= 1,
            version,
            taker: Maker::of(cred),
            is_attempted: false,
            asked: None,
            wanted: None,
        })
    }

    /// The attributes set on an object do not matter any more: it is removed.
    fn forget_altered(&mut self, handle: &Handle) {
        if let Some((no, _)) = self.journal().altered(handle) {
            self.journal_mut().put_altered(no, None);
            self.waits_no_more(no);
        }
    }

    /// The object with a name loses it, and is gone.
    pub(crate) fn drop_there(
        &mut self,
        cred: &Cred,
        dentry: &Dentry,
        there: &There,
    ) -> Option<ObjectNo> {
        match there {
            There::Waiting(no) => {
                self.journal_mut().forget(*no);
                self.waits_no_more(*no);
                None
            }
            There::Moved(no) => {
                let taken = self.journal().taken().get(*no)?.clone();
                self.forget_altered(&taken.handle);
                self.journal_mut().put_taken(*no, Some(Taken { dentry: None, ..taken }));
                Some(*no)
            }
            There::Server(found) => Some(self.take(cred, dentry.clone(), found, None)),
        }
    }

    /// The object with a name gets another one.
    pub(crate) fn move_there(
        &mut self,
        cred: &Cred,
        (from, to): (&Dentry, &Dentry),
        there: &There,
    ) -> Option<ObjectNo> {
        match there {
            There::Waiting(no) => {
                self.journal_mut().rename(*no, to.clone());
                None
            }
            There::Moved(no) => {
                let taken = self.journal().taken().get(*no)?.clone();
                // Where the server has it under that name, nothing is left to do.
                let is_there = taken.origin == *to && taken.asked.is_none();
                let left = (!is_there).then(|| Taken { dentry: Some(to.clone()), ..taken });
                if left.is_none() {
                    self.waits_no_more(*no);
                }
                let is_left = left.is_some();
                self.journal_mut().put_taken(*no, left);
                is_left.then_some(*no)
            }
            There::Server(found) => Some(self.take(cred, from.clone(), found, Some(to.clone()))),
        }
    }

    /// The server was asked to make a file at this dentry, and may have.
    pub(crate) fn expect_unseen(
        &mut self,
        cred: &Cred,
        dentry: &Dentry,
        now: Time,
        instant: Instant,
    ) {
        if self.journal().taken().from(&dentry.dir, &dentry.name).is_none() {
            let unseen = self.journal_mut().take(Taken::unseen(dentry.clone(), cred, now));
            self.set_due(unseen, instant, None);
        }
    }

    /// The server was asked to move something of its own there, and may have.
    pub(crate) fn is_asked(&mut self, moved: Option<ObjectNo>, (what, to): (&There, &Dentry)) {
        let Some(no) = moved.filter(|_| matches!(what, There::Server(_))) else { return };
        let Some(taken) = self.journal().taken().get(no).cloned() else { return };
        let taken = Taken { asked: Some(to.clone()), ..taken };
        self.journal_mut().put_taken(no, Some(taken));
    }

    /// Whether a directory, waiting or of the server, contains something that was made or moved
    /// here.
    pub(crate) fn holds_some(&self, no: ObjectNo) -> bool {
        let key = Dir::Made(no);
        self.journal().waiting_in(&key).next().is_some()
            || self.journal().taken().in_dir(&key).next().is_some()
    }
}

impl State {
    /// The waiting object at that dentry, if the server was never asked to make it.
    pub(crate) fn untouched_at(&self, dentry: &Dentry) -> Option<ObjectNo> {
        let no = self.journal().waiting_at(&dentry.dir, &dentry.name)?;
        let (_, waiting) = self.journal().waiting(no)?;
        (!waiting.is_attempted).then_some(no)
    }

    pub(crate) fn change(&mut self, no: ObjectNo, change: impl FnOnce(&mut Waiting)) {
        let (_, waiting) = self.journal().waiting(no).expect("it waits");
        let mut waiting = waiting.clone();
        change(&mut waiting);
        self.journal_mut().change(no, waiting);
    }

    /// A directory's names have changed here.
    pub(crate) fn touch(&mut self, dir: &Dir, before: Attr, now: Time) -> Change {
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

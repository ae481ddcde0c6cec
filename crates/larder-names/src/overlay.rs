//! What a name stands for here, and what happens to the object when the name is removed or moved:
//! changes of the journal, without the server.

use std::time::Instant;

use larder_vfs::{Attr, Change, Cred, Found, Handle, Kind, Time, Validator};

use crate::linked::Linked;
use crate::object::{Dentry, Dir, Maker, ObjectNo, Taken, Waiting, after, as_before};
use crate::state::State;

/// The object that has a name.
#[derive(Clone, Debug)]
pub(crate) enum There {
    /// Something that was made here, and that the server lacks.
    Waiting(ObjectNo),
    /// Something of the server's that was moved here.
    Moved(ObjectNo),
    /// A file that was given this name as another one.
    Linked(ObjectNo),
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
        let linked = journal.links().at(&dentry.dir, &dentry.name);
        let is_taken = journal.taken().from(&dentry.dir, &dentry.name).is_some();
        match there {
            None => waiting.is_none() && moved.is_none() && linked.is_none(),
            Some(There::Waiting(no)) => self.untouched_at(dentry) == Some(*no),
            Some(There::Moved(no)) => {
                let taken = journal.taken().get(*no);
                moved == Some(*no) && taken.is_some_and(|taken| !taken.is_attempted)
            }
            Some(There::Linked(no)) => {
                let link = journal.links().get(*no);
                linked == Some(*no) && link.is_some_and(|link| !link.is_attempted)
            }
            Some(There::Server(_)) => {
                waiting.is_none() && moved.is_none() && linked.is_none() && !is_taken
            }
        }
    }

    /// The kind of an object.
    pub(crate) fn kind_of(&self, there: &There) -> Option<Kind> {
        match there {
            There::Waiting(no) => Some(self.attr(*no)?.kind),
            There::Moved(no) => Some(self.journal().taken().get(*no)?.kind),
            There::Linked(no) => Some(self.journal().links().get(*no)?.kind),
            There::Server(found) => Some(found.attr.kind),
        }
    }

    /// Whether these are one object.
    pub(crate) fn is_same(&self, one: &There, other: &There) -> bool {
        let one = self.identity_of(one);
        one.is_some() && one == self.identity_of(other)
    }

    /// Whose identity an object has.
    pub(crate) fn identity_of(&self, there: &There) -> Option<Dir> {
        let journal = self.journal();
        match there {
            There::Waiting(no) => Some(Dir::Made(*no)),
            There::Moved(no) => Some(journal.identity(&journal.taken().get(*no)?.handle)),
            There::Linked(no) => Some(journal.links().get(*no)?.file.clone()),
            There::Server(found) => Some(journal.identity(&found.handle)),
        }
    }

    /// `Some` unless a directory's sticky bit may prevent the caller from removing a name.
    pub(crate) fn may_take(&self, cred: &Cred, dir: &Attr, there: &There) -> Option<()> {
        let owner = match there {
            There::Waiting(no) => Some(self.attr(*no)?.uid),
            There::Moved(_) => None,
            There::Linked(no) => match self.journal().links().get(*no)?.file {
                Dir::Made(file) => self.attr(file).map(|attr| attr.uid),
                Dir::Server(_) => None,
            },
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
        let links = self.journal().links().count_of(&self.journal().identity(handle));
        let no = self.journal_mut().take(Taken {
            origin,
            dentry: to,
            handle: handle.clone(),
            fileid,
            kind: attr.kind,
            is_last: attr.kind == Kind::Directory || attr.nlink.saturating_sub(links) <= 1,
            version,
            taker: Maker::of(cred),
            is_attempted: false,
            asked: None,
        });
        self.forget_altered(handle);
        no
    }

    /// If an object is gone, the attributes set on it do not matter any more.
    fn forget_altered(&mut self, handle: &Handle) {
        let is_gone = self.journal().is_gone(handle);
        if let Some((no, _)) = self.journal().altered(handle).filter(|_| is_gone) {
            self.journal_mut().put_altered(no, None);
            self.waits_no_more(no);
        }
    }

    /// Whether a name may be taken from its object here: if the object waits and has other names,
    /// it is made under one of these, for which its maker must have asked.
    pub(crate) fn may_drop(&self, there: &There) -> bool {
        let There::Waiting(no) = there else { return true };
        let links = self.journal().links();
        links.count_of(&Dir::Made(*no)) == 0 || self.name_to_take(*no).is_some()
    }

    /// The other name that a waiting file gets when it loses its own.
    fn name_to_take(&self, no: ObjectNo) -> Option<ObjectNo> {
        let (_, waiting) = self.journal().waiting(no)?;
        let file = Dir::Made(no);
        let mut links = self.journal().links().of(&file);
        links.find(|(_, link)| link.linker == waiting.maker).map(|(link, _)| link)
    }

    /// The object with a name loses it, and is gone if it has no other one.
    pub(crate) fn drop_there(
        &mut self,
        cred: &Cred,
        dentry: &Dentry,
        there: &There,
    ) -> Option<ObjectNo> {
        match there {
            There::Waiting(no) => {
                match self.name_to_take(*no) {
                    Some(link) => {
                        self.journal_mut().take_link(*no, link);
                        let dues = [self.due(*no), self.due(link)];
                        let due = dues.into_iter().flatten().min();
                        self.waits_no_more(link);
                        due.into_iter().for_each(|due| self.set_due_at(*no, due));
                    }
                    None => {
                        self.journal_mut().forget(*no);
                        self.waits_no_more(*no);
                    }
                }
                None
            }
            There::Moved(no) => {
                let taken = self.journal().taken().get(*no)?.clone();
                let handle = taken.handle.clone();
                self.journal_mut().put_taken(*no, Some(Taken { dentry: None, ..taken }));
                self.forget_altered(&handle);
                Some(*no)
            }
            There::Linked(no) => {
                let linked = self.journal().links().get(*no)?.clone();
                self.journal_mut().put_link(*no, None);
                self.waits_no_more(*no);
                let server = self.journal().handle_at_server(&linked.file);
                server.iter().for_each(|handle| self.forget_altered(handle));
                None
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
            There::Linked(no) => {
                let linked = self.journal().links().get(*no)?.clone();
                self.put_link_at(*no, Linked { dentry: to.clone(), ..linked });
                None
            }
            There::Server(found) => Some(self.take(cred, from.clone(), found, Some(to.clone()))),
        }
    }

    /// Another name of a file is to be at this dentry. Where the server still has the file under
    /// that name, nothing is left to do.
    fn put_link_at(&mut self, no: ObjectNo, linked: Linked) {
        let taken = self.taken_from_file(&linked);
        self.journal_mut().put_link(no, (taken.is_none()).then_some(linked));
        if let Some(taken) = taken {
            self.waits_no_more(no);
            self.give_back(taken);
        }
    }

    /// The same of a new one. Returns its number, if it is to be made.
    pub(crate) fn link(&mut self, linked: Linked) -> Option<ObjectNo> {
        if let Some(taken) = self.taken_from_file(&linked) {
            self.give_back(taken);
            return None;
        }
        Some(self.journal_mut().link(linked))
    }

    /// A file that has lost a name here has it again.
    fn give_back(&mut self, no: ObjectNo) {
        let Some(handle) = self.journal().taken().get(no).map(|taken| taken.handle.clone()) else {
            return;
        };
        self.journal_mut().put_taken(no, None);
        self.waits_no_more(no);
        self.has_another_name(&handle);
    }

    /// The removal here of the same name of the same file at the server.
    fn taken_from_file(&self, linked: &Linked) -> Option<ObjectNo> {
        let journal = self.journal();
        let no = journal.taken().from(&linked.dentry.dir, &linked.dentry.name)?;
        let taken = journal.taken().get(no)?;
        let is_of_file = journal.identity(&taken.handle) == linked.file;
        (is_of_file && taken.dentry.is_none() && !taken.is_attempted).then_some(no)
    }

    /// The objects of which each must be at the server, with what is above it, when a change is
    /// made there: that itself; of another name of a file, its directory and the file.
    pub(crate) fn needed_for(&self, no: ObjectNo) -> Vec<ObjectNo> {
        let Some(linked) = self.journal().links().get(no) else { return vec![no] };
        let made = |object: &Dir| match object {
            Dir::Made(no) => Some(*no),
            Dir::Server(_) => None,
        };
        [&linked.dentry.dir, &linked.file].into_iter().filter_map(made).collect()
    }

    /// An object that was made here has lost the name that it was known by at the server, since
    /// the one with this handle there has. It is gone if it is that one.
    pub(crate) fn forget_if_it_was(&mut self, lost: Option<ObjectNo>, gone: Option<&Handle>) {
        let Some(no) = lost else { return };
        if self.journal().named(no).is_some_and(|named| Some(&named.handle) == gone) {
            self.journal_mut().gone(no);
        }
    }

    /// A file has another name at the server: it loses none of its last ones any more.
    pub(crate) fn has_another_name(&mut self, handle: &Handle) {
        let last = self.journal().taken().of(handle).filter(|(_, taken)| taken.is_last);
        let last: Vec<_> = last.map(|(no, taken)| (no, taken.clone())).collect();
        for (no, taken) in last {
            self.journal_mut().put_taken(no, Some(Taken { is_last: false, ..taken }));
        }
    }

    /// Names of a file that waits have changed here: applications see its change time move. That
    /// of one that the server has is part of a version of which others have notes.
    pub(crate) fn touch_file(&mut self, file: &Dir, now: Time) {
        let Dir::Made(no) = file else { return };
        if self.attr(*no).is_some_and(|attr| attr.kind != Kind::Directory) {
            self.change(*no, |waiting| waiting.ctime = now.max(after(waiting.ctime)));
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
            || self.journal().links().count_in(&key) > 0
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

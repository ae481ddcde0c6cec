//! What waits in a directory of the server's waits in another one from now on, since the server has
//! that in its place, or nothing: changes of the records, without I/O.

use std::ffi::{OsStr, OsString};

use larder_cache::ConflictKind;
use larder_vfs::Handle;

use super::Journal;
use crate::linked::Linked;
use crate::met::Met;
use crate::object::{Altered, Dentry, Dir, Maker, ObjectNo, Stage, Taken};

/// The name of a conflict for the wanted name, by how many were tried before it, from 1 on.
pub(crate) type OtherName<'a> = &'a dyn Fn(&OsStr, u32) -> OsString;

impl Journal {
    /// Whether something has this name here that it does not have at the server.
    fn is_given(&self, dir: &Dir, name: &OsStr) -> bool {
        self.waiting_at(dir, name).is_some()
            || self.taken.at(dir, name).is_some()
            || self.links.at(dir, name).is_some()
    }

    /// A name in a directory that nothing else has here: the wanted one, or that of a conflict.
    pub(crate) fn free_name(&self, dir: &Dir, wanted: &OsStr, other: OtherName<'_>) -> OsString {
        let (mut name, mut tried) = (wanted.to_owned(), 0);
        while self.is_given(dir, &name) {
            tried += 1;
            name = other(wanted, tried);
        }
        name
    }

    fn come_to(
        &mut self,
        dir: &Dir,
        wanted: OsString,
        kind: ConflictKind,
        other: OtherName<'_>,
    ) -> Dentry {
        let name = self.free_name(dir, &wanted, other);
        let at = Dentry { dir: dir.clone(), name };
        if at.name != wanted {
            self.meet(Met::Name { kind, at: at.clone(), wanted });
        }
        at
    }

    /// What waits in a directory waits in another one from now on. If something waits there under
    /// the same name, both are kept, and that is a conflict. Returns what came, or waits no more.
    pub(crate) fn rehome(&mut self, from: &Dir, to: &Dir, other: OtherName<'_>) -> Vec<ObjectNo> {
        let mut came = self.rehome_taken(from, to, other);
        let waiting: Vec<_> =
            self.waiting_in(from).map(|(name, no)| (name.to_owned(), no)).collect();
        for (name, no) in waiting {
            let dentry = self.come_to(to, name, ConflictKind::Made, other);
            self.change_object(no, |object| object.dentry = dentry);
            came.push(no);
        }
        let links: Vec<_> = self.links.in_dir(from).map(|(_, no)| no).collect();
        for no in links {
            let linked = self.links.get(no).expect("it is in the table").clone();
            let dentry = self.come_to(to, linked.dentry.name.clone(), ConflictKind::Linked, other);
            self.put_link(no, Some(Linked { dentry, ..linked }));
            came.push(no);
        }
        came
    }

    /// The server has a directory in the place of another one: what it had there of what was made
    /// here is known to be in that.
    pub(crate) fn rehome_named(&mut self, from: &Dir, to: &Dir) {
        let named = self.by_dentry.iter().filter(|(dentry, _)| dentry.dir == *from);
        let named: Vec<_> = named.map(|(dentry, no)| (dentry.name.clone(), *no)).collect();
        for (name, no) in named {
            let dentry = Dentry { dir: to.clone(), name };
            if !self.by_dentry.contains_key(&dentry) {
                self.change_object(no, |object| object.dentry = dentry);
            }
        }
    }

    /// As [`Journal::rehome`], of names that were taken there, and of what was moved there.
    fn rehome_taken(&mut self, from: &Dir, to: &Dir, other: OtherName<'_>) -> Vec<ObjectNo> {
        let is_one = |one: &Taken| {
            let dentries = [Some(&one.origin), one.dentry.as_ref(), one.asked.as_ref()];
            dentries.into_iter().flatten().any(|dentry| dentry.dir == *from)
        };
        let all = self.taken.waiting().filter(|(_, one)| is_one(one));
        let all: Vec<_> = all.map(|(no, one)| (no, one.clone())).collect();
        let mut came = Vec::new();
        for (no, one) in all {
            let at = |dentry: Dentry| match dentry.dir == *from {
                true => Dentry { dir: to.clone(), ..dentry },
                false => dentry,
            };
            let origin = at(one.origin.clone());
            let earlier = self.taken.from(&origin.dir, &origin.name);
            if earlier.is_some_and(|earlier| earlier != no) {
                // It was taken from what is there now, too.
                came.extend(self.end_taken(no));
                continue;
            }
            let dentry = match one.dentry.clone() {
                Some(dentry) if dentry.dir == *from => {
                    Some(self.come_to(to, dentry.name, ConflictKind::Renamed, other))
                }
                dentry => dentry,
            };
            let asked = one.asked.clone().map(at);
            self.put_taken(no, Some(Taken { origin, dentry, asked, ..one }));
            came.push(no);
        }
        came
    }

    /// Nothing is left at the server of what a name was taken from. What was to get another name is
    /// on record as gone, and what was to give way to it stays. Returns what waits no more.
    fn end_taken(&mut self, no: ObjectNo) -> Vec<ObjectNo> {
        let mut ended = vec![no];
        let to = self.taken.get(no).and_then(|taken| taken.dentry.clone());
        self.put_taken(no, None);
        if let Some(to) = to {
            ended.extend(self.taken.from(&to.dir, &to.name));
            ended[1..].iter().for_each(|other| self.put_taken(*other, None));
            self.meet_gone(to);
        }
        ended
    }

    /// What had this name here is gone at the server.
    fn meet_gone(&mut self, at: Dentry) {
        let wanted = at.name.clone();
        self.meet(Met::Name { kind: ConflictKind::Gone, at, wanted });
    }

    /// A directory of the server's is gone: what was removed in it is, too, and what was moved out
    /// of it. Returns what waits no more.
    pub(crate) fn end_taken_in(&mut self, dir: &Dir) -> Vec<ObjectNo> {
        let mut ended = Vec::new();
        loop {
            let next = self.taken.origins_in(dir).map(|(_, no)| no).next();
            let Some(no) = next else { return ended };
            ended.extend(self.end_taken(no));
        }
    }

    /// The file is gone at the server that was to have another name.
    pub(crate) fn end_link(&mut self, no: ObjectNo) {
        if let Some(at) = self.links.get(no).map(|linked| linked.dentry.clone()) {
            self.put_link(no, None);
            self.meet_gone(at);
        }
    }

    /// On whose behalf the first of what waits in a directory is made there; `None` if nothing
    /// does.
    pub(crate) fn maker_in(&self, dir: &Dir) -> Option<Maker> {
        let waiting = self.waiting_in(dir).map(|(_, no)| no);
        let links = self.links.in_dir(dir).map(|(_, no)| no);
        let moved = self.taken.in_dir(dir).map(|(_, no)| no);
        // What is moved out again does not come.
        let comes = |no: &ObjectNo| self.taken.get(*no).is_none_or(|one| one.origin.dir != *dir);
        let first = waiting.chain(links).chain(moved.filter(comes)).min()?;
        let maker = |stage: &Stage| match stage {
            Stage::Waiting(waiting) => Some(waiting.maker.clone()),
            Stage::Named(_) => None,
        };
        let of_object = self.objects.get(&first).and_then(|object| maker(&object.stage));
        let of_link = || Some(self.links.get(first)?.linker.clone());
        of_object.or_else(of_link).or_else(|| Some(self.taken.get(first)?.taker.clone()))
    }

    /// On whose behalf the server is asked about a directory.
    pub(crate) fn asker_in(&self, dir: &Dir) -> Option<Maker> {
        let taker = || {
            let (_, no) = self.taken.origins_in(dir).next()?;
            Some(self.taken.get(no)?.taker.clone())
        };
        self.maker_in(dir).or_else(taker)
    }

    /// The server knows an object by another handle: its content and its names are the same.
    /// Returns as [`Journal::rehome`].
    pub(crate) fn rekey(
        &mut self,
        before: &Handle,
        now: &Handle,
        other: OtherName<'_>,
    ) -> Vec<ObjectNo> {
        let [was, is] = [before, now].map(|handle| Dir::Server(handle.clone()));
        let settled = self.rehome(&was, &is, other);
        self.rehome_named(&was, &is);
        let taken: Vec<_> = self.taken.of(before).map(|(no, one)| (no, one.clone())).collect();
        for (no, one) in taken {
            self.put_taken(no, Some(Taken { handle: now.clone(), ..one }));
        }
        let links: Vec<_> = self.links.of(&was).map(|(no, one)| (no, one.clone())).collect();
        for (no, one) in links {
            self.put_link(no, Some(Linked { file: is.clone(), ..one }));
        }
        let altered = self.altered(before).filter(|_| self.altered(now).is_none());
        if let Some((no, one)) = altered.map(|(no, one)| (no, one.clone())) {
            self.put_altered(no, Some(Altered { handle: now.clone(), ..one }));
        }
        settled
    }
}

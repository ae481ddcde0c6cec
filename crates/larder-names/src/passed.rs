//! Changes of names that are made at the server while the caller waits: everything on which they
//! depend is made there first.

use std::cell::Cell;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use larder_vfs::{
    Attr, Change, Cred, Error, Found, Handle, Kind, Made, New, Removal, Result, SetAttr,
};

use crate::crossing::Part;
use crate::object::{Dir, ObjectNo, is_unanswered};
use crate::server_dir::ServerDir;
use crate::shared::{Shared, Target};
use crate::under_way::UnderWay;

impl Shared {
    /// Makes an object at the server, for a caller that waits for it.
    pub(crate) async fn make_there(
        self: &Arc<Self>,
        cred: &Cred,
        dir: &Handle,
        name: &OsStr,
        new: New,
        set: SetAttr,
    ) -> Result<Made> {
        let server = self.at_server(cred, dir).await?;
        self.clear(cred, dir, name).await?;
        let owner_is_told = set.uid.is_none() && set.gid.is_none();
        let is_absent = {
            let state = self.state();
            state.has(&state.journal().dir(dir), name) == Some(false)
        };
        let is_made = new != New::File || is_absent;
        let answer = self.remote.make(cred, &server, name, new, set).await;
        if answer.as_ref().is_err_and(|error| is_unanswered(*error)) {
            let mut state = self.state();
            let key = state.journal().dir(dir);
            if let Some(known) = state.known_mut(&key) {
                known.lose_names();
            }
        }
        let made = answer?;
        if is_made {
            let mut state = self.state();
            let attr = &made.found.attr;
            state.learn_time(&*self.clock, attr.ctime);
            let known = state.known(&state.journal().dir(dir));
            let inherits = known.is_none_or(ServerDir::passes_group_on);
            if owner_is_told && !inherits {
                state.learn_owner(cred, attr);
            }
        }
        let change = self.show_names_change(dir, made.dir, |names| {
            names.insert(name.to_owned());
        });
        Ok(Made { found: self.show_found(made.found), dir: change, ..made })
    }

    /// The bytes of a file leave the memory of machines. The server has none yet of one that waits:
    /// it is made there as one that is not to be lost.
    pub(crate) async fn leave_memory(
        &self,
        cred: &Cred,
        file: &Handle,
        within: Duration,
    ) -> Result<()> {
        match self.target(file)? {
            Target::Server(server) => self.remote.leave_memory(cred, &server, within).await,
            Target::Waiting(no) => {
                self.state().set_volatile(no, None);
                Ok(())
            }
        }
    }

    /// Removes an entry at the server.
    pub(crate) async fn remove_there(
        self: &Arc<Self>,
        cred: &Cred,
        (dir, name): (&Handle, &OsStr),
        what: Removal,
        under_way: &UnderWay<'_>,
    ) -> Result<Change> {
        let server = self.at_server(cred, dir).await?;
        self.clear(cred, dir, name).await?;
        match what {
            Removal::Directory => self.refuse_full(cred, dir, name, under_way).await?,
            Removal::File => self.link_file_of(cred, dir, name, under_way).await?,
        }
        let asking = self.remote.remove(cred, &server, name, what);
        let file = self.unsent_at(dir, name);
        let change = self.on_record_of_loss(cred, file.as_ref(), asking).await?;
        let lost = {
            let mut state = self.state();
            let dentry = state.dentry(dir, name);
            state.journal_mut().removed(&dentry)
        };
        self.forget_gone(cred, lost).await;
        Ok(self.show_names_change(dir, change, |names| {
            names.remove(name);
        }))
    }

    /// Renames at the server.
    pub(crate) async fn rename_there(
        self: &Arc<Self>,
        cred: &Cred,
        from: (&Handle, &OsStr),
        to: (&Handle, &OsStr),
        under_way: &UnderWay<'_>,
    ) -> Result<(Change, Change)> {
        let from_dir = self.at_server(cred, from.0).await?;
        let to_dir = self.at_server(cred, to.0).await?;
        self.clear(cred, from.0, from.1).await?;
        self.clear(cred, to.0, to.1).await?;
        self.refuse_full(cred, to.0, to.1, under_way).await?;
        self.link_file_of(cred, to.0, to.1, under_way).await?;
        let asking = self.remote.rename(cred, (&from_dir, from.1), (&to_dir, to.1));
        // Both may be names of one file.
        let source = self.held_at(from.0, from.1);
        let replaced = self.unsent_at(to.0, to.1).filter(|it| Some(it) != source.as_ref());
        let renamed = self.on_record_of_loss(cred, replaced.as_ref(), asking).await?;
        let (is_same_dir, replaced) = {
            let mut state = self.state();
            let (from, to) = (state.dentry(from.0, from.1), state.dentry(to.0, to.1));
            let replaced = state.journal_mut().renamed(&from, &to);
            self.record(&mut state);
            (from.dir == to.dir, replaced)
        };
        self.forget_gone(cred, replaced).await;
        let was_there = Cell::new(true);
        let to_change = self.show_names_change(to.0, renamed.1, |names| {
            was_there.set(!names.insert(to.1.to_owned()));
        });
        // Both may be names of one file: then both stay.
        if is_same_dir {
            self.lose_name(from.0, from.1, was_there.get());
            return Ok((to_change, to_change));
        }
        let from_change = self.show_names_change(from.0, renamed.0, |_| ());
        self.lose_name(from.0, from.1, was_there.get());
        Ok((from_change, to_change))
    }

    /// Gives a file another name at the server.
    pub(crate) async fn link_there(
        self: &Arc<Self>,
        cred: &Cred,
        file: &Handle,
        dir: &Handle,
        name: &OsStr,
    ) -> Result<(Option<Attr>, Change)> {
        let server_dir = self.at_server(cred, dir).await?;
        let server = self.at_server(cred, file).await?;
        self.clear(cred, dir, name).await?;
        // They are sent for the version that the file has before it gets the name.
        self.send_bytes_of(&server, Kind::File).await?;
        {
            let mut state = self.state();
            if let Dir::Made(no) = state.journal().dir(file) {
                state.journal_mut().linked(no);
                self.record(&mut state);
            }
        }
        let (attr, change) = self.remote.link(cred, &server, &server_dir, name).await?;
        let change = self.show_names_change(dir, change, |names| {
            names.insert(name.to_owned());
        });
        Ok((attr.map(|attr| self.show(file, attr)), change))
    }

    /// An object that was made here has lost the name at the server that it was known by. It is
    /// forgotten, unless another client had given that name to something else and the object has
    /// another one: what waits in it, and callers who know it, need its identity.
    async fn forget_gone(&self, cred: &Cred, lost: Option<ObjectNo>) {
        let Some(no) = lost else { return };
        let handle = self.state().journal().named(no).map(|named| named.handle.clone());
        let Some(handle) = handle else { return };
        let is_gone = self.licence.sole
            || match self.remote.getattr(cred, &handle).await {
                Ok(attr) => attr.nlink == 0,
                Err(error) => matches!(error, Error::Stale | Error::NotFound),
            };
        if is_gone {
            let mut state = self.state();
            state.journal_mut().gone(no);
            self.record(&mut state);
        }
    }

    /// Makes what waits under this name at the server, so that that can be asked about it.
    async fn clear(&self, cred: &Cred, dir: &Handle, name: &OsStr) -> Result<()> {
        loop {
            let no = {
                let state = self.state();
                let (journal, key) = (state.journal(), state.journal().dir(dir));
                let waiting = journal.waiting_at(&key, name);
                let taken = journal.taken();
                let moved = taken.at(&key, name).or_else(|| taken.from(&key, name));
                waiting.or(moved).or_else(|| journal.links().at(&key, name))
            };
            let Some(no) = no else { break };
            self.replay_one(no, cred.deadline).await?;
        }
        self.set_of(cred, dir, name).await;
        self.keep_left(dir, name).await
    }

    /// The server's handle of what has this name, as far as the client knows.
    fn held_at(&self, dir: &Handle, name: &OsStr) -> Option<Handle> {
        let found = self.holder()?.held_name(dir, name)??;
        self.state().journal().server_handle(&found.handle).cloned()
    }

    /// The same of a file with bytes that the server lacks.
    fn unsent_at(&self, dir: &Handle, name: &OsStr) -> Option<Handle> {
        let file = self.held_at(dir, name)?;
        self.holder()?.has_unsent(&self.known_as(&file)).then_some(file)
    }

    /// Sets what was set here of the object that the client knows by this name, before that is
    /// another's. What the server refuses waits on.
    async fn set_of(&self, cred: &Cred, dir: &Handle, name: &OsStr) {
        let held = self.held_at(dir, name);
        if let Some(no) = held.and_then(|server| self.altered_of(&server)) {
            let _ = self.replay_one(no, cred.deadline).await;
        }
    }

    /// The file with this name at the server gets all its other names there, before it loses this
    /// one.
    async fn link_file_of(
        &self,
        cred: &Cred,
        dir: &Handle,
        name: &OsStr,
        under_way: &UnderWay<'_>,
    ) -> Result<()> {
        under_way.add(&mut self.state(), Part::Loss(None));
        if self.state().journal().links().count() == 0 {
            return Ok(());
        }
        let Some(found) = self.look_up(cred, dir, name).await?.found else { return Ok(()) };
        loop {
            let link = {
                let state = self.state();
                let journal = state.journal();
                journal.links().of(&journal.identity(&found.handle)).map(|(no, _)| no).next()
            };
            let Some(no) = link else { return Ok(()) };
            self.replay_one(no, cred.deadline).await?;
        }
    }

    /// A change is about to remove or replace this, if it is a directory; `None`: it may be any.
    fn goes_whole(&self, under_way: &UnderWay<'_>, found: Option<&Found>) {
        if found.is_some_and(|found| found.attr.kind != Kind::Directory) {
            return;
        }
        let mut state = self.state();
        let whole = found.map(|found| state.journal().dir(&found.handle));
        under_way.add(&mut state, Part::Whole(whole));
    }

    /// Fails if a directory of the server contains a waiting object, which would be lost with it.
    /// Names that were taken away from it here are taken away at the server.
    async fn refuse_full(
        &self,
        cred: &Cred,
        dir: &Handle,
        name: &OsStr,
        under_way: &UnderWay<'_>,
    ) -> Result<()> {
        // The server is not asked only to learn which directory it is.
        match self.held_any().and_then(|held| held.held_name(dir, name)) {
            Some(None) => {}
            found => self.goes_whole(under_way, found.flatten().as_ref()),
        }
        if self.state().journal().counts().0 == 0 {
            return Ok(());
        }
        let Some(found) = self.look_up(cred, dir, name).await?.found else { return Ok(()) };
        self.goes_whole(under_way, Some(&found));
        loop {
            let taken = {
                let state = self.state();
                let (journal, key) = (state.journal(), state.journal().dir(&found.handle));
                let moved = journal.taken().in_dir(&key);
                let mut moved = moved.chain(journal.links().in_dir(&key));
                if journal.waiting_in(&key).next().is_some() || moved.next().is_some() {
                    return Err(Error::NotEmpty);
                }
                journal.taken().origins_in(&key).map(|(_, no)| no).next()
            };
            let Some(no) = taken else { return Ok(()) };
            self.replay_one(no, cred.deadline).await?;
        }
    }
}

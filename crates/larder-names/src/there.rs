//! What a name stands for here, as far as this machine can determine without a request, or with
//! one.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};

use larder_vfs::{Cookie, Cred, Found, Handle, Held, Kind};

use crate::leased::Right;
use crate::overlay::There;
use crate::server_dir::ServerDir;
use crate::shared::{Shared, Target};
use crate::state::State;

/// Names in larger directories are looked up at the server.
const NAMES_MAX: usize = 1 << 15;

impl Shared {
    /// The object with a name; `None`: the server must decide.
    #[allow(clippy::option_option, reason = "nothing is there, or nobody knows")]
    pub(crate) async fn what_is_at(
        &self,
        cred: &Cred,
        dir: &Handle,
        name: &OsStr,
        right: Right,
    ) -> Option<Option<There>> {
        if let Some(here) = self.is_here(dir, name) {
            return Some(here);
        }
        let Target::Server(server) = self.target(dir).ok()? else { return Some(None) };
        let held = self.held_any().filter(|held| self.is_of_now(&**held, dir, right));
        match held.and_then(|held| held.held_name(dir, name)) {
            Some(None) => return Some(None),
            Some(Some(found)) => {
                let Target::Server(handle) = self.target(&found.handle).ok()? else { return None };
                let attr = match right {
                    Right::Leased(_) => {
                        let attr = self.remote.getattr(cred, &handle).await.ok()?;
                        self.show(&handle, attr)
                    }
                    Right::Licence | Right::Made => found.attr,
                };
                return Some(Some(There::Server(Box::new(Found { handle, attr }))));
            }
            None if self.is_away() => return None,
            None => {}
        }
        if self.is_absent_at_server(cred, dir, name, right).await.is_some() {
            return Some(None);
        }
        let found = self.remote.lookup(cred, &server, name).await.ok()?.found;
        let Some(Found { handle, attr }) = found else { return Some(None) };
        let attr = self.show(&handle, attr);
        Some(Some(There::Server(Box::new(Found { handle, attr }))))
    }

    /// Whether what is cached of a directory's names is what the server has: under a lease, if it
    /// is cached for the version that the directory has.
    fn is_of_now(&self, held: &dyn Held, dir: &Handle, right: Right) -> bool {
        if right == Right::Licence {
            return true;
        }
        let state = self.state();
        let now = state.dir_attr(&state.journal().dir(dir));
        let held = held.held(dir);
        now.zip(held).is_some_and(|(now, held)| now.validator().same(&held.validator()))
    }

    /// `Some` if the server has no such name. Lists the directory at the first call, so that
    /// further names need no request.
    pub(crate) async fn is_absent_at_server(
        &self,
        cred: &Cred,
        dir: &Handle,
        name: &OsStr,
        right: Right,
    ) -> Option<()> {
        let Target::Server(server) = self.target(dir).ok()? else { return Some(()) };
        let held = {
            let state = self.state();
            state.known(&state.journal().dir(dir))?.has(name)
        };
        if let Some(is_there) = held {
            return (!is_there).then_some(());
        }
        if self.is_away() {
            return self.is_absent_as_held(dir, name);
        }
        if let Some(names) = self.list_names(cred, (dir, &server), right).await {
            return (!names.contains(name)).then_some(());
        }
        let answer = self.remote.lookup(cred, &server, name).await.ok()?;
        answer.found.is_none().then_some(())
    }

    /// `Some` if the cache has no such name of the server, although it would have it.
    fn is_absent_as_held(&self, dir: &Handle, name: &OsStr) -> Option<()> {
        let held = self.held()?.held_name(dir, name)?;
        let state = self.state();
        let waits = state.journal().waiting_at(&state.journal().dir(dir), name).is_some();
        (waits || held.is_none()).then_some(())
    }

    /// All names that the server has in a directory, if they are not too many.
    async fn list_names(
        &self,
        cred: &Cred,
        (dir, server): (&Handle, &Handle),
        right: Right,
    ) -> Option<HashSet<OsString>> {
        let bytes_max = self.remote.limits().readdir_preferred;
        let (mut names, mut cookie, mut version) = (HashSet::new(), Cookie::default(), None);
        let known_version = |state: &State| {
            let known = state.known(&state.journal().dir(dir));
            known.map(ServerDir::version)
        };
        let before = known_version(&self.state());
        loop {
            let page = self.remote.readdir(cred, server, cookie, bytes_max).await.ok()?;
            let said = page.dir?;
            if *version.get_or_insert(said.validator()) != said.validator() {
                return None;
            }
            let last = page.entries.last().map(|entry| entry.position);
            names.extend(page.entries.into_iter().map(|entry| entry.name));
            if names.len() > NAMES_MAX {
                return None;
            }
            if page.eof {
                let mut state = self.state();
                let key = state.journal().dir(dir);
                // A change that was answered meanwhile may be missing in the first page.
                if known_version(&state) != before {
                    return Some(names);
                }
                let is_certain = self.has_still(&mut state, dir, right);
                let known = state.known_mut(&key)?;
                known.observe(said);
                if is_certain {
                    known.learn_names(names.clone());
                }
                return Some(names);
            }
            cookie = Cookie { position: last?, verifier: page.verifier };
        }
    }

    /// What the journal says of a name, if that decides.
    #[allow(clippy::option_option, reason = "nothing is there, or the server has a say")]
    pub(crate) fn is_here(&self, dir: &Handle, name: &OsStr) -> Option<Option<There>> {
        let state = self.state();
        let (journal, key) = (state.journal(), state.journal().dir(dir));
        if let Some(no) = journal.waiting_at(&key, name) {
            return Some(Some(There::Waiting(no)));
        }
        if let Some(no) = journal.taken().at(&key, name) {
            return Some(Some(There::Moved(no)));
        }
        if let Some(no) = journal.links().at(&key, name) {
            return Some(Some(There::Linked(no)));
        }
        journal.taken().from(&key, name).is_some().then_some(None)
    }

    /// Whether a directory is empty, as applications see it; `None`: that is not known.
    pub(crate) async fn is_empty(
        self: &std::sync::Arc<Self>,
        cred: &Cred,
        there: &There,
    ) -> Option<bool> {
        let handle = {
            let state = self.state();
            match there {
                There::Waiting(no) => state.journal().handle(*no),
                There::Moved(no) => {
                    let taken = state.journal().taken().get(*no)?;
                    if taken.kind != Kind::Directory {
                        return Some(true);
                    }
                    taken.handle.clone()
                }
                There::Linked(_) => return Some(true),
                There::Server(found) if found.attr.kind != Kind::Directory => return Some(true),
                There::Server(found) => found.handle.clone(),
            }
        };
        if let There::Waiting(no) = there {
            return Some(!self.state().holds_some(*no));
        }
        let handle = self.known_as(&handle);
        let mut cookie = Cookie::default();
        let bytes_max = self.remote.limits().readdir_preferred;
        loop {
            let page = self.list(cred, &handle, cookie, bytes_max).await.ok()?;
            let Some(last) = page.entries.last() else { return Some(true) };
            if page.entries.iter().any(|entry| entry.name != "." && entry.name != "..") {
                return Some(false);
            }
            if page.eof {
                return Some(true);
            }
            cookie = Cookie { position: last.position, verifier: page.verifier };
        }
    }
}

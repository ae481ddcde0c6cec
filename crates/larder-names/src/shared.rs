//! The journal and what is known of the server, in one place; translates handles and attributes
//! between client and server.

use std::ffi::{OsStr, OsString};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use larder_cache::Cache;
use larder_io::{Clock, secret};
use larder_vfs::{Attr, Change, Cred, Error, Found, Handle, Kind, Remote, Result, Watcher};
use tokio::sync::Notify;

use crate::journal::Journal;
use crate::object::{AS_MADE, Dir, ObjectNo};
use crate::state::State;

/// Most objects that wait, and most that are known at all; beyond, names are made at the server at
/// once. Both are in memory.
const WAITING_MAX: usize = 1 << 16;
const OBJECTS_MAX: usize = 1 << 20;

/// What all parts of this crate share.
pub(crate) struct Shared {
    pub(crate) remote: Arc<dyn Remote>,
    pub(crate) cache: Cache,
    pub(crate) clock: Arc<dyn Clock>,
    /// How this machine is called, in names of conflicts.
    pub(crate) host: String,
    state: Mutex<State>,
    /// Who makes things at the server has this.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// Something waits that did not.
    pub(crate) more: Arc<Notify>,
    pub(crate) watcher: OnceLock<Weak<dyn Watcher>>,
}

/// What a handle of the client stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// What the server does not have.
    Waiting(ObjectNo),
    /// What it does.
    Server(Handle),
}

impl Shared {
    pub(crate) fn open(
        remote: Arc<dyn Remote>,
        cache: Cache,
        clock: Arc<dyn Clock>,
        host: String,
    ) -> Shared {
        let records = cache.names().into_iter().map(|(no, record)| (no, Some(record)));
        let (journal, lost) = Journal::recover(records.collect(), secret::random());
        if lost > 0 {
            tracing::error!(
                lost,
                "names that were made here are lost: the cache's disk is damaged"
            );
        }
        let state = State::new(journal, clock.instant(), cache.names_mark());
        Shared {
            remote,
            cache,
            clock,
            host,
            state: Mutex::new(state),
            turn: tokio::sync::Mutex::default(),
            more: Arc::default(),
            watcher: OnceLock::new(),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what has changed in the journal. It survives the process on return.
    pub(crate) fn record(&self, state: &mut State) {
        let changes = state.journal_mut().take_changes();
        if !changes.is_empty() {
            state.set_recorded(self.cache.put_names(changes));
        }
    }

    /// All that was recorded outlives a crash of the machine on return.
    pub(crate) async fn keep(&self) -> Result<()> {
        let recorded = self.state().recorded();
        if self.cache.has_kept_names(recorded) {
            return Ok(());
        }
        let cache = self.cache.clone();
        let kept = tokio::task::spawn_blocking(move || cache.keep_names(recorded)).await;
        if !matches!(kept, Ok(Ok(()))) {
            tracing::error!("the cache's disk does not keep names");
            return Err(Error::Io);
        }
        self.state().forget_kept(|mark| self.cache.has_kept_names(mark));
        Ok(())
    }

    /// Whether one more object may be made here.
    pub(crate) fn has_room(&self) -> bool {
        let (waiting, all) = self.state().journal().counts();
        waiting < WAITING_MAX && all < OBJECTS_MAX && self.cache.keeps_names()
    }

    /// What a handle of the client stands for.
    ///
    /// # Errors
    /// [`Error::Stale`] if it was made here and is gone.
    pub(crate) fn target(&self, handle: &Handle) -> Result<Target> {
        let state = self.state();
        let Some(no) = state.journal().number_in(handle) else {
            return Ok(Target::Server(handle.clone()));
        };
        if let Some(named) = state.journal().named(no) {
            return Ok(Target::Server(named.handle.clone()));
        }
        let waits = state.journal().waiting(no).is_some();
        if waits { Ok(Target::Waiting(no)) } else { Err(Error::Stale) }
    }

    /// The server's handle of what the client knows by `handle`, which is made there first if it
    /// has to be. Then that is durable on this machine.
    pub(crate) async fn at_server(&self, cred: &Cred, handle: &Handle) -> Result<Handle> {
        loop {
            match self.target(handle)? {
                Target::Server(server) => {
                    if self.is_unkept(handle) {
                        self.keep().await?;
                    }
                    return Ok(server);
                }
                Target::Waiting(no) => self.settle_one(no, cred.deadline).await?,
            }
        }
    }

    /// Whether a crash of the machine would make us forget that the server has this.
    fn is_unkept(&self, handle: &Handle) -> bool {
        let state = self.state();
        let named = state.journal().number_in(handle).and_then(|no| state.unkept(no));
        named.is_some_and(|named| !self.cache.has_kept_names(named))
    }

    /// What the server names, as the client knows it.
    pub(crate) fn show_found(&self, found: Found) -> Found {
        let handle = self.known_as(&found.handle);
        let attr = self.show(&found.handle, found.attr);
        Found { handle, attr }
    }

    /// The handle by which the client knows what the server calls `handle`.
    pub(crate) fn known_as(&self, handle: &Handle) -> Handle {
        let state = self.state();
        match state.journal().of_server(handle) {
            Some(no) => state.journal().handle(no),
            None => handle.clone(),
        }
    }

    /// The attributes that the server gives the object with this handle (the server's or the
    /// client's), as applications see them.
    pub(crate) fn show(&self, handle: &Handle, attr: Attr) -> Attr {
        let mut state = self.state();
        state.see_file_system(attr.fsid);
        let dir = state.journal().dir(handle);
        let mut shown = attr;
        if attr.kind == Kind::Directory {
            if let Some(known) = state.known_mut(&dir) {
                known.observe(attr);
                shown = known.show(attr);
            }
            shown.nlink += state.journal().subdirectories(&dir);
        }
        if let Dir::Made(no) = dir {
            shown.fileid = no.fileid();
            if attr.kind != Kind::Directory
                && let Some(named) = state.journal().named(no)
            {
                named.shown.apply(&mut shown, AS_MADE);
            }
        }
        shown
    }

    /// A change of a file or of a directory's attributes, as applications see it.
    pub(crate) fn show_change(&self, handle: &Handle, mut change: Change) -> Change {
        {
            let mut state = self.state();
            let dir = state.journal().dir(handle);
            if let Some(known) = state.known_mut(&dir) {
                known.forget_writers();
                change = known.passed(change, |_| ());
            } else if let Dir::Made(no) = dir
                && let Some(named) = state.journal().named(no)
                && let Some(before) = &mut change.before
            {
                named.shown.apply_before(before, AS_MADE);
            }
        }
        Change { after: change.after.map(|attr| self.show(handle, attr)), ..change }
    }

    /// A change of a directory's names that was made at the server, as its caller is told of it.
    pub(crate) fn show_names_change(
        &self,
        handle: &Handle,
        change: Change,
        names: impl FnOnce(&mut std::collections::HashSet<OsString>),
    ) -> Change {
        let change = {
            let mut state = self.state();
            let dir = state.journal().dir(handle);
            match state.known_mut(&dir) {
                Some(known) => known.passed(change, names),
                None => change,
            }
        };
        Change { after: change.after.map(|attr| self.show(handle, attr)), ..change }
    }

    /// A name of a directory was renamed. If it `may_stay`, nobody is told that it is not there.
    pub(crate) fn lose_name(&self, dir: &Handle, name: &OsStr, may_stay: bool) {
        let mut state = self.state();
        let key = state.journal().dir(dir);
        if let Some(known) = state.known_mut(&key).filter(|_| !may_stay) {
            known.lose_name(name);
        }
    }
}

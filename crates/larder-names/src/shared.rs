//! The journal and what is known of the server, in one place; translates handles and attributes
//! between client and server.

use std::ffi::{OsStr, OsString};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use larder_cache::Cache;
use larder_io::{Alarm, Clock, Rate, secret};
use larder_vfs::{
    Attr, Change, Cred, Deadline, Error, Found, Handle, Held, Kind, Progress, Remote, Result,
    Token, Watcher,
};
use tokio::sync::Notify;

use crate::journal::Journal;
use crate::licence::Licence;
use crate::object::{AS_MADE, Altered, Dir, ObjectNo, Taken};
use crate::state::State;

/// The state that all parts of this crate share.
pub(crate) struct Shared {
    pub(crate) remote: Arc<dyn Remote>,
    pub(crate) cache: Cache,
    pub(crate) clock: Arc<dyn Clock>,
    /// How this machine is called, in names of conflicts.
    pub(crate) host: String,
    state: Mutex<State>,
    /// Held by the task that makes things at the server.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// Of the task that makes at the server what is due.
    pub(crate) alarm: Arc<Alarm>,
    /// The server has something that it lacked.
    pub(crate) replayed: Notify,
    /// When it last got something. One task at a time makes changes there, and may have thousands
    /// to make: a caller that waits for its turn, or for names that are due before its own, does
    /// not wait for a silent server.
    progress: Progress,
    pub(crate) watcher: OnceLock<Weak<dyn Watcher>>,
    pub(crate) licence: Licence,
    /// Set once, if at all: the limit of what nobody waits for.
    pub(crate) rate: OnceLock<Arc<Rate>>,
    /// Most changes that may wait; `due_times::WAITING_MAX`, except in tests.
    pub(crate) waiting_max: usize,
    /// How often this machine was seen to answer in the server's place.
    stood_in: AtomicU64,
    /// Up to which of these times what is known of the server's directories was checked with it.
    checked: AtomicU64,
    pub(crate) held: OnceLock<Weak<dyn Held>>,
    /// Set once; for tasks that outlive a call.
    pub(crate) this: OnceLock<Weak<Shared>>,
    /// A lease on a directory was given, refused or ended.
    pub(crate) leases_changed: Notify,
    /// The last request in flight about some object has ended ([`crate::unanswered`]).
    pub(crate) answered: Notify,
}

/// The object for which a handle of the client stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// An object that the server does not have.
    Waiting(ObjectNo),
    /// An object that the server has.
    Server(Handle),
}

impl Shared {
    pub(crate) fn open(
        remote: Arc<dyn Remote>,
        cache: Cache,
        clock: Arc<dyn Clock>,
        host: String,
        licence: Licence,
        waiting_max: usize,
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
        let shared = Shared {
            remote,
            cache,
            clock,
            host,
            state: Mutex::new(state),
            turn: tokio::sync::Mutex::default(),
            alarm: Arc::default(),
            replayed: Notify::new(),
            progress: Progress::default(),
            watcher: OnceLock::new(),
            licence,
            rate: OnceLock::new(),
            waiting_max,
            stood_in: AtomicU64::new(0),
            checked: AtomicU64::new(0),
            held: OnceLock::new(),
            this: OnceLock::new(),
            leases_changed: Notify::new(),
            answered: Notify::new(),
        };
        // What an earlier version left of conflicts.
        shared.record(&mut shared.state());
        shared.drop_lost();
        shared.drop_doubts();
        shared
    }

    /// The server is to have this object soon, or `within` that time.
    pub(crate) fn set_due(&self, state: &mut State, no: ObjectNo, within: Option<Duration>) {
        let now = self.clock.instant();
        self.alarm.set(state.set_due(no, now, within));
        if state.make_room(now) {
            self.alarm.ring();
        }
    }

    /// Drops waiting files whose bytes were lost with the machine's memory: made at the server they
    /// would be empty files that no program has written.
    fn drop_lost(&self) {
        let mut state = self.state();
        for no in self.cache.lost_in_memory() {
            let key = self.cache.key_of(*no).filter(|key| key.len() <= Handle::LEN_MAX);
            let handle = key.map(|key| Handle::new(&key));
            let made = handle.and_then(|handle| state.journal().number_in(&handle));
            let waits = made.and_then(|no| Some((no, state.journal().waiting(no)?.0)));
            let Some((no, dentry)) = waits else { continue };
            tracing::error!(name = %dentry.name.to_string_lossy(),
                "a file that was in this machine's memory alone is lost with it");
            let links: Vec<_> =
                state.journal().links().of(&Dir::Made(no)).map(|(link, _)| link).collect();
            state.journal_mut().forget(no);
            links.into_iter().chain([no]).for_each(|no| state.waits_no_more(no));
        }
        self.record(&mut state);
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bytes per second go to the server without a caller that waits for them.
    pub(crate) fn rate(&self) -> &Rate {
        self.rate.get_or_init(Arc::default)
    }

    /// The server has something that it lacked.
    pub(crate) fn tell_replayed(&self) {
        self.progress.note(self.clock.instant());
        self.replayed.notify_waiters();
    }

    /// `deadline`, counted again from when a change was last made at the server.
    pub(crate) fn extend(&self, deadline: Option<Deadline>) -> Option<Deadline> {
        deadline.map(|deadline| self.progress.extend(deadline))
    }

    /// The server is out of reach, and this machine answers for it.
    pub(crate) fn is_away(&self) -> bool {
        let is_away = self.licence.is_away(&*self.remote);
        if is_away {
            self.stood_in.fetch_add(1, Ordering::AcqRel);
        }
        is_away
    }

    /// How often this machine was seen to answer in the server's place, if what is known of the
    /// server's directories was not checked with it since.
    pub(crate) fn unchecked(&self) -> Option<u64> {
        let stood_in = self.stood_in.load(Ordering::Acquire);
        (self.checked.load(Ordering::Acquire) != stood_in).then_some(stood_in)
    }

    /// What was known of the server's directories after so many times was checked with it.
    pub(crate) fn set_checked(&self, stood_in: u64) {
        self.checked.store(stood_in, Ordering::Release);
    }

    /// Waits for a server that is out of reach, as long as calls on this mount wait for it; a mount
    /// that works without it does not wait. To be called before something is marked as attempted,
    /// after which it cannot be changed here.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if the server does not answer.
    pub(crate) async fn reach(&self, deadline: Option<Deadline>) -> Result<()> {
        if self.remote.reachable() {
            return Ok(());
        }
        if self.licence.offline {
            return Err(Error::TimedOut);
        }
        match self.ask_root(deadline).await {
            Err(Error::TimedOut | Error::Shutdown) => Err(Error::TimedOut),
            // A server that refuses is there.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// What the server says of its root.
    pub(crate) async fn ask_root(&self, deadline: Option<Deadline>) -> Result<Found> {
        let asked = self.remote.root();
        match deadline {
            None => asked.await,
            Some(deadline) => {
                let answer = self.clock.timeout_at(deadline.at(), asked).await;
                answer.unwrap_or(Err(Error::TimedOut))
            }
        }
    }

    /// Closes a file that the server opened when it made it: nobody has it open by that, and its
    /// bytes come later.
    pub(crate) async fn close_made(&self, cred: &Cred, token: Option<&Token>) {
        let Some(token) = token else { return };
        if let Err(error) = self.remote.close(cred, token.clone()).await {
            tracing::debug!(%error, "a file that was made stays open at the server");
        }
    }

    /// The client, which holds what the server said last; `None` until it has told this.
    pub(crate) fn holder(&self) -> Option<Arc<dyn Held>> {
        self.held.get().and_then(Weak::upgrade)
    }

    /// What is cached of the server's files, while it is out of reach.
    pub(crate) fn held(&self) -> Option<Arc<dyn Held>> {
        self.holder().filter(|_| self.is_away())
    }

    /// The same, also where no other client changes what is cached.
    pub(crate) fn held_any(&self) -> Option<Arc<dyn Held>> {
        self.holder().filter(|_| self.licence.holds(&*self.remote))
    }

    /// Whether the server treats a user as the same user as this machine does; while it cannot be
    /// asked, this is assumed unless it was seen not to.
    pub(crate) fn is_same_user(&self, state: &State, cred: &Cred) -> bool {
        state.is_same_user(cred) || (self.is_away() && !state.is_somebody_else(cred))
    }

    /// The object for which a handle of the client stands.
    ///
    /// # Errors
    /// [`Error::Stale`] if it was made here and is gone.
    pub(crate) fn target(&self, handle: &Handle) -> Result<Target> {
        let state = self.state();
        let server = |server: &Handle| match state.journal().is_gone(server) {
            true => Err(Error::Stale),
            false => Ok(Target::Server(server.clone())),
        };
        let Some(no) = state.journal().number_in(handle) else { return server(handle) };
        if let Some(named) = state.journal().named(no) {
            return server(&named.handle);
        }
        let waits = state.journal().waiting(no).is_some();
        if waits { Ok(Target::Waiting(no)) } else { Err(Error::Stale) }
    }

    /// The attributes that were set on the object with this handle at the server, and are not set
    /// there yet.
    pub(crate) fn altered_of(&self, server: &Handle) -> Option<ObjectNo> {
        let state = self.state();
        let (no, altered) = state.journal().altered(server)?;
        (!altered.is_done).then_some(no)
    }

    /// An object that the server reports, as the client knows it.
    pub(crate) fn show_found(&self, found: Found) -> Found {
        let handle = self.known_as(&found.handle);
        let attr = self.show(&found.handle, found.attr);
        Found { handle, attr }
    }

    /// The handle by which the client knows the object with the server's `handle`.
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
        let mut shown = self.show_unaltered(handle, attr);
        let mut state = self.state();
        let server = state.journal().server_handle(handle);
        let Some((no, altered)) = server.and_then(|server| state.journal().altered(server)) else {
            return shown;
        };
        // What the server was asked to set is shown until it has other bytes.
        let (altered, version) = (altered.clone(), shown.validator());
        let is_in_doubt = state.journal().doubts().of(&altered.handle).is_some();
        altered.apply(&mut shown, is_in_doubt);
        if altered.is_done && (altered.is_before(&version) || altered.is_followed_by(&version)) {
            let follows = altered.is_followed_by(&version);
            let followed = follows.then_some(Altered { below: version, ..altered });
            state.journal_mut().put_altered(no, followed);
            self.record(&mut state);
        }
        shown
    }

    /// The same, without the attributes that were set here and that the server lacks.
    pub(crate) fn show_unaltered(&self, handle: &Handle, attr: Attr) -> Attr {
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
        } else {
            let server = match &dir {
                Dir::Server(handle) => Some(handle),
                Dir::Made(no) => state.journal().named(*no).map(|named| &named.handle),
            };
            let removed = server.map_or(0, |server| state.journal().taken().removed(server));
            shown.nlink = state.count_links(&dir, shown.nlink).saturating_sub(removed);
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
            let server = state.journal().server_handle(handle);
            let altered = server.and_then(|server| state.journal().altered(server));
            if let (Some((_, altered)), Some(before)) = (altered, &mut change.before) {
                altered.apply_before(before);
            }
        }
        let change = Change { after: change.after.map(|attr| self.show(handle, attr)), ..change };
        self.follow_taken(handle, change.after);
        change
    }

    /// The server has given an object another name, or taken one from it, and the client was not
    /// told what it is like since.
    pub(crate) fn ctime_moves(&self, server: &Handle) {
        if let Some(held) = self.holder() {
            held.ctime_moves(&self.known_as(server));
        }
    }

    /// A file was changed here after a name of it was taken away: that is its version now.
    pub(crate) fn follow_taken(&self, handle: &Handle, after: Option<Attr>) {
        let mut state = self.state();
        let (journal, Some(after)) = (state.journal(), after) else { return };
        let named = journal.number_in(handle).and_then(|no| journal.named(no));
        let server = named.map_or(handle, |named| &named.handle);
        let all: Vec<_> =
            journal.taken().of(server).map(|(no, taken)| (no, taken.clone())).collect();
        for (no, taken) in all {
            let version = after.validator();
            state.journal_mut().put_taken(no, Some(Taken { version, ..taken }));
        }
        self.record(&mut state);
    }

    /// A change of a directory's names that was made at the server, as it is reported to its
    /// caller.
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

    /// A name of a directory was renamed. If it `may_stay`, it is not reported as absent.
    pub(crate) fn lose_name(&self, dir: &Handle, name: &OsStr, may_stay: bool) {
        let mut state = self.state();
        let key = state.journal().dir(dir);
        if let Some(known) = state.known_mut(&key).filter(|_| !may_stay) {
            known.lose_name(name);
        }
    }
}

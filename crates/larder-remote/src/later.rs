//! [`Later`]: a server that is not connected yet, as [`Remote`].
//!
//! A client whose cache has enough can begin without a server, and need not wait for it. Until the
//! server is reached it counts as out of reach, limits are those of the last connection, and calls
//! wait as for any silent server: within their limit, which for all of them began with the first
//! attempt. Attempts continue for ever, with growing pauses.

use bytes::Bytes;
use larder_io::{Clock, RealClock};
use larder_rpc::patience::{gives_up, retry_pauses};
use larder_vfs::{
    Access, Attr, Change, Changed, Committed, Cookie, CopyEnd, Cred, Deadline, Error, Found,
    Future, Handle, InArchive, Intent, Judged, Listing, LockChange, LockMode, LookedUp, Made, New,
    Remote, RemoteCopied, RemoteLimits, RemoteOpened, RemoteRead, RemoteWritten, Removal,
    ReservedLock, Result, Seek, SetAttr, SetXattr, SpaceChange, Stability, StatFs, StoredPart,
    Time, Token, Watcher,
};
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Display};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// What must be known of a server before it is reached.
#[derive(Clone, Copy, Debug)]
pub struct Remembered {
    /// What [`Remote::limits`] returned when it was last reached.
    pub limits: RemoteLimits,
    /// What [`Remote::gives_leases`] returned.
    pub gives_leases: bool,
}

impl Remembered {
    /// What `remote` returns now.
    pub fn of(remote: &dyn Remote) -> Remembered {
        Remembered { limits: remote.limits(), gives_leases: remote.gives_leases() }
    }
}

/// A server that may not have been reached yet. Clones are the same one; when the last is dropped,
/// the attempts end.
pub struct Later<R> {
    inner: Arc<Inner<R>>,
}

struct Inner<R> {
    state: watch::Sender<State<R>>,
    /// As long as it is not reached.
    remembered: Remembered,
    /// How long a call waits for it to be reached; `None`: for ever.
    limit: Option<Duration>,
    clock: Arc<dyn Clock>,
    /// Since when it has been tried.
    since: Instant,
    /// A caller was told that it does not answer.
    has_failed_calls: AtomicBool,
    watcher: OnceLock<Weak<dyn Watcher>>,
}

enum State<R> {
    /// Why the last try failed.
    Away(String),
    Reached(Arc<R>),
    /// No clone is left, and it was not reached.
    Shut,
}

impl<R> Clone for Later<R> {
    fn clone(&self) -> Later<R> {
        Later { inner: Arc::clone(&self.inner) }
    }
}

impl<R> fmt::Debug for Later<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self.inner.state.borrow() {
            State::Away(_) => "Later(away)",
            State::Reached(_) => "Later(reached)",
            State::Shut => "Later(shut)",
        })
    }
}

impl<R: Remote> Later<R> {
    /// A server that was reached already.
    pub fn reached(remote: R) -> Later<R> {
        let remembered = Remembered::of(&remote);
        Later::new(State::Reached(Arc::new(remote)), remembered, None, Arc::new(RealClock))
    }

    /// Begins to reach a server by `connect`, on the tokio runtime of the caller, after an attempt
    /// that failed because of `problem`. Calls end with [`Error::TimedOut`] at their deadlines, and
    /// once the attempts have lasted for `limit` (`None`: calls wait for ever); the first that does
    /// is logged.
    pub fn begin<F, E>(
        remembered: Remembered,
        problem: String,
        limit: Option<Duration>,
        clock: Arc<dyn Clock>,
        mut connect: impl FnMut() -> F + Send + 'static,
    ) -> Later<R>
    where
        F: std::future::Future<Output = Result<R, E>> + Send,
        E: Display + Send,
    {
        let later = Later::new(State::Away(problem), remembered, limit, Arc::clone(&clock));
        let (inner, mut state) = (Arc::downgrade(&later.inner), later.inner.state.subscribe());
        tokio::spawn(async move {
            tokio::select! {
                () = reach(&inner, &*clock, &mut connect) => {}
                // An error means that no clone is left that could use the server.
                _ = state.wait_for(|state| matches!(state, State::Shut)) => {}
            }
        });
        later
    }

    fn new(
        state: State<R>,
        remembered: Remembered,
        limit: Option<Duration>,
        clock: Arc<dyn Clock>,
    ) -> Later<R> {
        let (state, watcher) = (watch::Sender::new(state), OnceLock::new());
        let (since, has_failed_calls) = (clock.instant(), AtomicBool::new(false));
        let inner = Inner { state, remembered, limit, clock, since, has_failed_calls, watcher };
        Later { inner: Arc::new(inner) }
    }

    /// The server itself, once it was reached.
    pub fn get(&self) -> Option<Arc<R>> {
        match &*self.inner.state.borrow() {
            State::Reached(remote) => Some(Arc::clone(remote)),
            _ => None,
        }
    }

    /// Why it is out of reach, if it has not been reached yet.
    pub fn problem(&self) -> Option<String> {
        match &*self.inner.state.borrow() {
            State::Away(problem) => Some(problem.clone()),
            _ => None,
        }
    }

    /// The server, as soon as it is reached, for a caller that waits until `deadline`.
    async fn server(&self, deadline: Option<Deadline>) -> Result<Arc<R>> {
        if let Some(remote) = self.get() {
            return Ok(remote);
        }
        let mut state = self.inner.state.subscribe();
        let known = state.wait_for(|state| matches!(state, State::Reached(_) | State::Shut));
        let known = match self.inner.limit {
            None => known.await,
            Some(limit) => {
                let clock = &self.inner.clock;
                let until = gives_up(
                    clock.instant(),
                    limit,
                    deadline.map(|one| one.at()),
                    Some(self.inner.since),
                );
                match clock.timeout_at(until, known).await {
                    Ok(known) => known,
                    Err(_) => return Err(self.timed_out()),
                }
            }
        };
        match known.as_deref() {
            Ok(State::Reached(remote)) => Ok(Arc::clone(remote)),
            _ => Err(Error::Shutdown),
        }
    }

    /// A call has waited in vain.
    fn timed_out(&self) -> Error {
        if !self.inner.has_failed_calls.swap(true, Ordering::Relaxed) {
            let problem = self.problem().unwrap_or_default();
            tracing::warn!(%problem, "calls fail: the server has not been reached, still trying");
        }
        Error::TimedOut
    }
}

/// Tries until the server is reached.
async fn reach<R: Remote, F, E>(
    inner: &Weak<Inner<R>>,
    clock: &dyn Clock,
    connect: &mut impl FnMut() -> F,
) where
    F: std::future::Future<Output = Result<R, E>>,
    E: Display,
{
    let mut backoff = retry_pauses();
    loop {
        clock.sleep(backoff.pause()).await;
        match connect().await {
            Ok(remote) => return arrived(inner, Arc::new(remote)),
            Err(problem) => still_away(inner, problem.to_string()),
        }
    }
}

fn still_away<R>(inner: &Weak<Inner<R>>, problem: String) {
    let Some(inner) = inner.upgrade() else { return };
    inner.state.send_if_modified(|state| match state {
        State::Away(before) => {
            if *before != problem {
                tracing::info!(%problem, "the server cannot be reached yet");
            }
            *before = problem;
            true
        }
        State::Reached(_) | State::Shut => false,
    });
}

fn arrived<R: Remote>(inner: &Weak<Inner<R>>, remote: Arc<R>) {
    let Some(inner) = inner.upgrade() else { return };
    let is_wanted = inner.state.send_if_modified(|state| {
        if matches!(state, State::Shut) {
            return false;
        }
        // Under the lock of the state: code that sets the watcher later sees that it was reached.
        if let Some(watcher) = inner.watcher.get() {
            remote.watch(watcher.clone());
        }
        let seconds = (inner.clock.instant() - inner.since).as_secs_f32();
        tracing::info!("the server is reached, after {seconds:.1} s");
        *state = State::Reached(Arc::clone(&remote));
        true
    });
    if !is_wanted {
        remote.shutdown();
    }
}

/// Methods that wait for the server and ask it.
macro_rules! ask_when_reached {
    ($(fn $name:ident(cred: $cred:ty, $($argument:ident: $kind:ty),*) -> $answer:ty;)*) => {$(
        fn $name<'a>(&'a self, cred: $cred, $($argument: $kind),*) -> Future<'a, $answer> {
            Box::pin(async move {
                self.server(cred.deadline).await?.$name(cred, $($argument),*).await
            })
        }
    )*};
}

impl<R: Remote> Remote for Later<R> {
    fn root(&self) -> Future<'_, Found> {
        Box::pin(async move { self.server(None).await?.root().await })
    }

    ask_when_reached! {
        fn getattr(cred: &'a Cred, file: &'a Handle) -> Attr;
        fn setattr(
            cred: &'a Cred,
            file: &'a Handle,
            set: SetAttr,
            guard: Option<Time>
        ) -> Changed;
        fn access(cred: &'a Cred, file: &'a Handle, wanted: Access) -> Judged;
        fn exclude(cred: &'a Cred, file: &'a Handle) -> Option<Attr>;
        fn retain(cred: &'a Cred, file: &'a Handle, bytes: u64) -> bool;
        fn release(cred: &'a Cred, file: &'a Handle, by_others: bool) -> ();
        fn open(cred: &'a Cred, file: &'a Handle, intent: Intent) -> RemoteOpened;
        fn close(cred: &'a Cred, token: Token) -> ();
        fn lock(cred: &'a Cred, file: &'a Handle, changes: &'a [LockChange]) -> Attr;
        fn await_lock(
            cred: &'a Cred,
            file: &'a Handle,
            changes: &'a [LockChange]
        ) -> Option<ReservedLock>;
        fn test_lock(
            cred: &'a Cred,
            file: &'a Handle,
            range: Range<u64>,
            mode: LockMode
        ) -> Option<LockMode>;
        fn xattr(cred: &'a Cred, file: &'a Handle, name: &'a OsStr) -> Option<Bytes>;
        fn xattrs(cred: &'a Cred, file: &'a Handle) -> Vec<OsString>;
        fn set_xattr(cred: &'a Cred, file: &'a Handle, set: SetXattr) -> Change;
        fn lookup(cred: &'a Cred, dir: &'a Handle, name: &'a OsStr) -> LookedUp;
        fn readlink(cred: &'a Cred, file: &'a Handle) -> (OsString, Option<Attr>);
        fn read(
            cred: &'a Cred,
            file: &'a Handle,
            open: Option<&'a Token>,
            offset: u64,
            len: u32
        ) -> RemoteRead;
        fn write(
            cred: &'a Cred,
            file: &'a Handle,
            open: Option<&'a Token>,
            offset: u64,
            data: Bytes,
            stability: Stability
        ) -> RemoteWritten;
        fn commit(
            cred: &'a Cred,
            file: &'a Handle,
            open: Option<&'a Token>,
            range: Range<u64>
        ) -> Committed;
        fn change_space(
            cred: &'a Cred,
            file: &'a Handle,
            open: Option<&'a Token>,
            change: &'a SpaceChange
        ) -> Change;
        fn seek(
            cred: &'a Cred,
            file: &'a Handle,
            open: Option<&'a Token>,
            offset: u64,
            what: Seek
        ) -> u64;
        fn is_lost(cred: &'a Cred, file: &'a Handle, open: Option<&'a Token>) -> bool;
        fn leave_memory(cred: &'a Cred, file: &'a Handle, within: Duration) -> ();
        fn archive_within(cred: &'a Cred, file: &'a Handle, within: Duration) -> ();
        fn in_archive(
            cred: &'a Cred,
            file: &'a Handle,
            within: Option<Duration>
        ) -> Option<InArchive>;
        fn stored(cred: &'a Cred, file: &'a Handle) -> Vec<StoredPart>;
        fn copy_range(
            cred: &'a Cred,
            from: CopyEnd<'a>,
            to: CopyEnd<'a>,
            len: u64
        ) -> RemoteCopied;
        fn make(
            cred: &'a Cred,
            dir: &'a Handle,
            name: &'a OsStr,
            new: New,
            set: SetAttr
        ) -> Made;
        fn remove(cred: &'a Cred, dir: &'a Handle, name: &'a OsStr, what: Removal) -> Change;
        fn rename(
            cred: &'a Cred,
            from: (&'a Handle, &'a OsStr),
            to: (&'a Handle, &'a OsStr)
        ) -> (Change, Change);
        fn link(
            cred: &'a Cred,
            file: &'a Handle,
            dir: &'a Handle,
            name: &'a OsStr
        ) -> (Option<Attr>, Change);
        fn readdir(cred: &'a Cred, dir: &'a Handle, cookie: Cookie, bytes_max: u32) -> Listing;
        fn statfs(cred: &'a Cred, file: &'a Handle) -> StatFs;
    }

    fn limits(&self) -> RemoteLimits {
        self.get().map_or(self.inner.remembered.limits, |remote| remote.limits())
    }

    fn gives_leases(&self) -> bool {
        self.get().map_or(self.inner.remembered.gives_leases, |remote| remote.gives_leases())
    }

    fn is_excluding(&self, file: &Handle) -> bool {
        self.get().is_some_and(|remote| remote.is_excluding(file))
    }

    fn retains(&self, file: &Handle) -> bool {
        self.get().is_some_and(|remote| remote.retains(file))
    }

    fn still_excludes(&self, file: &Handle) -> bool {
        self.get().is_some_and(|remote| remote.still_excludes(file))
    }

    /// Perhaps, as long as it is not known.
    fn tells_holes(&self) -> bool {
        self.get().is_none_or(|remote| remote.tells_holes())
    }

    /// Perhaps, as long as it is not known.
    fn copies(&self) -> bool {
        self.get().is_none_or(|remote| remote.copies())
    }

    fn watch(&self, watcher: Weak<dyn Watcher>) {
        // Only the first counts, as the trait has it.
        let _ = self.inner.watcher.set(watcher.clone());
        if let Some(remote) = self.get() {
            remote.watch(watcher);
        }
    }

    fn call_limit(&self) -> Option<Duration> {
        self.get().map_or(self.inner.limit, |remote| remote.call_limit())
    }

    fn reachable(&self) -> bool {
        match &*self.inner.state.borrow() {
            State::Away(_) | State::Shut => false,
            State::Reached(remote) => remote.reachable(),
        }
    }

    fn shutdown(&self) {
        self.inner.state.send_if_modified(|state| {
            let is_away = matches!(state, State::Away(_));
            if is_away {
                *state = State::Shut;
            }
            is_away
        });
        if let Some(remote) = self.get() {
            remote.shutdown();
        }
    }
}

#[cfg(test)]
mod tests;

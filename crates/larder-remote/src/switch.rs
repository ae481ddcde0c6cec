//! [`Switch`]: a server that can be switched off, as [`Remote`].
//!
//! While it is off every call ends at once with [`Error::TimedOut`], including calls in flight, and
//! the server counts as out of reach: the client answers from its cache. It is off for one of two
//! reasons. A user has switched it off: then nothing is sent at all. Or the server is *away*: a
//! call was not answered for some seconds, and neither was a probe sent for that reason. Then it is
//! probed repeatedly, and is on when it answers.
//!
//! A change that was in flight when it was switched off may have been made: its caller gets the
//! same error as from a server that does not answer.
//!
//! Before it is off, what the client knows is brought to this machine's disk ([`BeforeOff`]): from
//! then on nothing else answers, and the process may die before the server is back.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use larder_io::Clock;
use larder_vfs::{
    Access, Attr, Change, Changed, Committed, Cookie, CopyEnd, Cred, Error, Found, Future, Handle,
    Intent, Judged, Listing, LockChange, LockMode, LookedUp, Made, New, Remote, RemoteCopied,
    RemoteLimits, RemoteOpened, RemoteRead, RemoteWritten, Removal, ReservedLock, Result, Seek,
    SetAttr, SetXattr, SpaceChange, Stability, StatFs, Time, Token, Watcher,
};
use tokio::sync::{Mutex, Notify, watch};

/// A call that waits longer than this causes a probe of the server.
const PATIENCE: Duration = Duration::from_secs(3);
/// A call that ends without an answer after less than [`PATIENCE`] causes a probe, too, unless it
/// waited for so short a time that it may have come too late to be sent.
const IN_VAIN_AFTER: Duration = Duration::from_secs(1);
/// Longest wait for the answer to that.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How often a server that is away is asked.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// Longest wait until what the client knows is on this machine's disk.
const KEEP_MAX: Duration = Duration::from_secs(2);

/// What is done each time before a [`Switch`] that was on is off. Calls wait for it, for two
/// seconds at most.
pub type BeforeOff = Arc<dyn Fn() -> Future<'static, ()> + Send + Sync>;

/// Why calls are not sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Off {
    /// A user has switched it off.
    pub by_hand: bool,
    /// The server does not answer.
    pub is_away: bool,
}

impl Off {
    fn is_off(self) -> bool {
        self.by_hand || self.is_away
    }
}

/// See the module.
pub struct Switch {
    inner: Arc<Inner>,
}

struct Inner {
    remote: Arc<dyn Remote>,
    clock: Arc<dyn Clock>,
    off: watch::Sender<Off>,
    /// Held by who changes that.
    turn: Mutex<()>,
    before_off: BeforeOff,
    /// A call waits.
    waits: Notify,
}

impl Switch {
    /// A switch before `remote`, off from the beginning if a user has switched it off (`by_hand`)
    /// or the server is known to be out of reach. Probes the server on the tokio runtime of the
    /// caller until it is dropped.
    ///
    /// # Panics
    /// Outside an async runtime.
    pub fn new(
        remote: Arc<dyn Remote>,
        clock: Arc<dyn Clock>,
        by_hand: bool,
        before_off: BeforeOff,
    ) -> Switch {
        let off = watch::Sender::new(Off { by_hand, is_away: !remote.reachable() });
        let (turn, waits) = (Mutex::default(), Notify::new());
        let inner = Arc::new(Inner { remote, clock, off, turn, before_off, waits });
        tokio::spawn(watch_server(Arc::downgrade(&inner)));
        Switch { inner }
    }

    /// Whether it is off, and why.
    pub fn off(&self) -> Off {
        *self.inner.off.borrow()
    }

    /// Switches it off by hand, or no longer.
    pub async fn set(&self, by_hand: bool) {
        self.inner.change(|off| off.by_hand = by_hand).await;
    }

    /// Asks the server now whether it is there.
    pub async fn ask(&self) {
        self.inner.find_out().await;
    }
}

impl Inner {
    /// Asks the server whether it is there; answers that, too.
    async fn find_out(&self) -> bool {
        let answers = self.answers().await;
        self.change(|off| off.is_away = !answers).await;
        answers
    }

    async fn change(&self, change: impl Fn(&mut Off)) {
        let _turn = self.turn.lock().await;
        let before = *self.off.borrow();
        let mut after = before;
        change(&mut after);
        if after.is_off() && !before.is_off() {
            self.keep().await;
        }
        self.off.send_if_modified(|off| {
            let before = *off;
            change(off);
            if before != *off {
                let Off { by_hand, is_away } = *off;
                tracing::info!(
                    by_hand,
                    is_away,
                    "calls to the server: {}",
                    match off.is_off() {
                        true => "off, what is held here answers",
                        false => "on",
                    }
                );
            }
            before != *off
        });
    }

    async fn keep(&self) {
        let error = match self.clock.timeout(KEEP_MAX, (self.before_off)()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => Error::TimedOut,
        };
        tracing::warn!(%error, "what is known here is not on this machine's disk yet");
    }

    /// Whether the server answers a question soon.
    async fn answers(&self) -> bool {
        let answer = self.clock.timeout(ANSWER_MAX, self.remote.root()).await;
        // A server that refuses is there.
        !matches!(answer, Err(_) | Ok(Err(Error::TimedOut | Error::Shutdown)))
    }

    /// An answer of the server, as long as it is on.
    async fn pass<'a, T>(&self, call: impl FnOnce() -> Future<'a, T>) -> Result<T> {
        let mut off = self.off.subscribe();
        if off.borrow_and_update().is_off() {
            return Err(Error::TimedOut);
        }
        let is_off = off.wait_for(|off| off.is_off());
        let (mut call, mut is_off) = (call(), std::pin::pin!(is_off));
        let soon = async {
            tokio::select! {
                biased;
                answer = &mut call => answer,
                _ = &mut is_off => Err(Error::TimedOut),
            }
        };
        let begun = self.clock.now();
        let answer = match self.clock.timeout(PATIENCE, soon).await {
            Ok(answer) => answer,
            Err(_) => {
                self.waits.notify_one();
                tokio::select! {
                    biased;
                    answer = &mut call => answer,
                    _ = &mut is_off => Err(Error::TimedOut),
                }
            }
        };
        // The caller is to know whether the server is away: then this machine answers for it, and
        // takes into account that the server may have done what it was asked for.
        let is_in_vain = self.clock.now().since(begun) >= IN_VAIN_AFTER;
        if matches!(answer, Err(Error::TimedOut)) && is_in_vain && !self.off.borrow().is_off() {
            self.find_out().await;
        }
        answer
    }
}

/// Probes the server when a call waits, and while the server is away, as long as the switch exists.
async fn watch_server(inner: Weak<Inner>) {
    while let Some(held) = inner.upgrade() {
        let clock = held.clock.clone();
        let Off { by_hand, is_away } = *held.off.borrow();
        if is_away && !by_hand {
            let answers = held.find_out().await;
            drop(held);
            if !answers {
                clock.sleep(ASK_EVERY).await;
            }
            continue;
        }
        // From time to time it is checked whether the switch still exists.
        if clock.timeout(ASK_EVERY, held.waits.notified()).await.is_ok() && !by_hand {
            held.find_out().await;
        }
    }
}

/// Methods that ask the server.
macro_rules! ask {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)*) => {$(
        fn $name<'a>(&'a self, $($argument: $kind),*) -> Future<'a, $answer> {
            Box::pin(self.inner.pass(move || self.inner.remote.$name($($argument),*)))
        }
    )*};
}

impl Remote for Switch {
    fn root(&self) -> Future<'_, Found> {
        Box::pin(self.inner.pass(|| self.inner.remote.root()))
    }

    ask! {
        fn getattr(cred: &'a Cred, file: &'a Handle) -> Attr;
        fn setattr(
            cred: &'a Cred,
            file: &'a Handle,
            set: SetAttr,
            guard: Option<Time>
        ) -> Changed;
        fn access(cred: &'a Cred, file: &'a Handle, wanted: Access) -> Judged;
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
        self.inner.remote.limits()
    }

    fn gives_leases(&self) -> bool {
        self.inner.remote.gives_leases()
    }

    fn tells_holes(&self) -> bool {
        self.inner.remote.tells_holes()
    }

    fn copies(&self) -> bool {
        self.inner.remote.copies()
    }

    fn watch(&self, watcher: Weak<dyn Watcher>) {
        self.inner.remote.watch(watcher);
    }

    fn call_limit(&self) -> Option<Duration> {
        self.inner.remote.call_limit()
    }

    fn reachable(&self) -> bool {
        !self.off().is_off() && self.inner.remote.reachable()
    }

    fn shutdown(&self) {
        self.inner.remote.shutdown();
    }
}

#[cfg(test)]
mod tests;

//! [`MemRemote`]: a server in memory, the model that other servers are compared with.
//!
//! It checks rights by mode bits, as a POSIX server does that knows no open files: the owner of a
//! file may always read and write it (RFC 1813, 4.4). Its clock is a counter, so any two changes
//! have different times; access times change only when they are set. [`MemRemote::restart`] loses
//! unstable writes.
//!
//! A `MemRemote` is one client's connection. [`MemRemote::another_client`] is a second connection
//! to the same server, for changes that the first does not make itself; counts, faults and
//! reachability belong to the connection. After [`MemRemote::give_leases`] it grants leases too, on
//! files and on directories.
//!
//! Absent on purpose: a disk, a clock, a runtime. Calls are answered at the first poll, except
//! while the server is out of reach.

mod alone;
mod copy;
mod leases;
mod locks;
mod names;
mod node;
mod open;
mod pages;
mod remote;
mod server;
mod space;
mod xattrs;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};

use crate::{
    Access, Cred, Error, Future, Handle, Judged, Lease, RemoteLimits, Result, Time, Token, Watcher,
};
use open::Open;
use server::Server;

/// A server in memory, as one client reaches it.
pub struct MemRemote {
    server: Arc<Mutex<Server>>,
    connection: Mutex<Connection>,
    /// Distinguishes connections of one server.
    number: u64,
    /// Files that are open by it.
    opens: Arc<AtomicUsize>,
}

/// State of one client's connection to the server.
#[derive(Default)]
struct Connection {
    calls: BTreeMap<&'static str, u64>,
    /// Those of them that carried an open's token.
    opened: BTreeMap<&'static str, u64>,
    /// How many objects were to be made that may be lost.
    volatile: u64,
    /// The errors of the next calls, in order.
    faults: VecDeque<Error>,
    /// After how many more calls one fails, and how.
    trouble: Option<(u64, Trouble)>,
    reach: Reach,
    /// Calls of this method wait.
    held: Option<&'static str>,
    held_file: Option<Handle>,
    /// Answers to calls of this method wait.
    unanswered: Option<&'static str>,
    /// Calls that wait for the server to return or to release them.
    waiting: Vec<Waker>,
    /// How it makes leases, if it grants any.
    gives_leases: Option<fn() -> Lease>,
    /// Another client writes to whatever is read.
    grows: bool,
    /// Another client truncates the file that is read next to this size.
    cut: Option<u64>,
    /// How many WRITEs are carried out before another client's write.
    meddled_after: Option<u64>,
    /// A WRITE's answer has no attributes from before it.
    hides_before: bool,
    /// User 0 writes as nobody.
    squashes_root: bool,
    watcher: Option<Weak<dyn Watcher>>,
    alone: alone::Alone,
}

/// How one call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It is not carried out, and fails with this error.
    Refused(Error),
    /// It is carried out, and its caller gets no answer.
    Unanswered,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Reach {
    #[default]
    Reachable,
    /// Calls wait.
    Silent,
    /// Calls fail with [`Error::TimedOut`].
    TimingOut,
    /// Calls fail with [`Error::Shutdown`].
    ShutDown,
}

impl Default for MemRemote {
    fn default() -> Self {
        MemRemote::new()
    }
}

impl MemRemote {
    /// An empty server whose root belongs to the superuser and is writable by everyone.
    pub fn new() -> MemRemote {
        MemRemote::with_limits(RemoteLimits {
            read_max: 1 << 20,
            write_max: 1 << 20,
            readdir_preferred: 64 << 10,
            file_size_max: i64::MAX as u64,
            name_max: 255,
            time_delta_ns: 1,
            links: true,
            symlinks: true,
            case_insensitive: false,
            opens: false,
            by_name: false,
        })
    }

    /// An empty server with these limits. It respects all except `case_insensitive` and `by_name`.
    pub fn with_limits(limits: RemoteLimits) -> MemRemote {
        MemRemote::connect(Arc::new(Mutex::new(Server::new(limits))))
    }

    /// Another connection to the same server, with nothing counted and no faults.
    pub fn another_client(&self) -> MemRemote {
        MemRemote::connect(Arc::clone(&self.server))
    }

    fn connect(server: Arc<Mutex<Server>>) -> MemRemote {
        let number = server.lock().unwrap_or_else(PoisonError::into_inner).leases.connect();
        MemRemote { server, connection: Mutex::default(), number, opens: Arc::default() }
    }

    /// From now on this connection gets leases.
    pub fn give_leases(&self) {
        self.connection().gives_leases = Some(Lease::new);
    }

    /// The same for leases whose end may be reported late ([`Lease::ending_late`]).
    pub fn give_leases_ending_late(&self) {
        self.connection().gives_leases = Some(|| Lease::new().ending_late());
    }

    /// The server withdraws all leases of this connection, without any cause on this side. When the
    /// future ends, their end was reported.
    pub async fn take_leases_back(&self) {
        let taken = self.server().leases.take_back(self.number);
        for (file, held) in taken {
            if let Some(watcher) = held.watcher.and_then(|watcher| watcher.upgrade()) {
                watcher.broken(&file).await;
            }
        }
    }

    /// The server crashes and comes back: unstable writes are lost, the write verifier is new.
    pub fn restart(&self) {
        self.server().restart();
    }

    /// From now on a new file gets the number of a removed one, and with it its handle.
    pub fn give_handles_again(&self) {
        self.server().gives_again = true;
    }

    /// From now on listings do not end: their last entry has this position, at which they continue.
    pub fn set_listings_lead_to(&self, position: u64) {
        self.server().listings_lead_to = Some(position);
    }

    /// The server is restored from elsewhere: every file has a new handle, and the old ones are
    /// stale.
    pub fn give_new_handles(&self) {
        self.server().give_new_handles();
    }

    /// Says whether replies to changes leave out the attributes, as servers may (RFC 1813, 2.6).
    pub fn set_terse(&self, terse: bool) {
        self.server().set_terse(terse);
    }

    /// Says whether the server's disk is full.
    pub fn set_full(&self, full: bool) {
        self.server().set_full(full);
    }

    /// The next `count` calls fail with `error`, after errors that were queued before, and are not
    /// carried out.
    pub fn fail_next(&self, count: usize, error: Error) {
        self.connection().faults.extend(std::iter::repeat_n(error, count));
    }

    /// The call after `count` others goes wrong. Unlocks and closes never go wrong.
    pub fn trouble_after(&self, count: u64, trouble: Trouble) {
        self.connection().trouble = Some((count, trouble));
    }

    /// Whether that call has not come yet.
    pub fn is_trouble_to_come(&self) -> bool {
        self.connection().trouble.is_some()
    }

    /// The server is out of reach: calls wait until [`MemRemote::reconnect`].
    pub fn cut_off(&self) {
        self.connection().reach = Reach::Silent;
        self.server().leases.disconnect(self.number);
    }

    /// The server is out of reach, and the limit of waiting has passed: calls fail at once with
    /// [`Error::TimedOut`], including those that wait.
    pub fn time_out(&self) {
        self.set_reach(Reach::TimingOut);
    }

    /// The server is back: calls that wait are carried out.
    pub fn reconnect(&self) {
        self.set_reach(Reach::Reachable);
    }

    /// Calls of `method` wait from now on; with `None`, all continue.
    pub fn hold(&self, method: Option<&'static str>) {
        self.connection().held = method;
        self.wake();
    }

    /// Calls that change this file or directory wait from now on; with `None`, all continue.
    pub fn hold_changes_of(&self, file: Option<Handle>) {
        self.connection().held_file = file;
        self.wake();
    }

    /// Calls of `method` are carried out and not answered from now on; with `None`, all answers are
    /// delivered.
    pub fn hold_answers(&self, method: Option<&'static str>) {
        self.connection().unanswered = method;
        self.wake();
    }

    /// From now on another client appends a byte (`+`) to each file that is read through this
    /// connection, before each READ: the file is never in the version that was known before.
    pub fn grow_when_read(&self) {
        self.connection().grows = true;
    }

    /// Another client truncates the file that is read next through this connection to `size`, after
    /// the server has described it and before it reads the bytes.
    pub fn cut_when_read(&self, size: u64) {
        self.connection().cut = Some(size);
    }

    /// Another client writes a `!` at the start of the file just before a WRITE through this
    /// connection, after `count` others.
    pub fn meddle_after(&self, count: u64) {
        self.connection().meddled_after = Some(count);
    }

    /// From now on WRITEs through this connection are answered without the attributes from before,
    /// as by nfs-ganesha and Linux.
    pub fn hide_before(&self) {
        self.connection().hides_before = true;
    }

    /// From now on user 0 writes as nobody through this connection, as over an export with
    /// `root_squash`.
    pub fn squash_root(&self) {
        self.connection().squashes_root = true;
    }

    /// The server gets a coarse clock, which the caller sets: every change from now on has this
    /// time, as has, at the first call, everything that exists. The server has no change attribute
    /// any more.
    pub fn set_time(&self, time: Time) {
        self.server().set_time(time);
    }

    /// From now on the server tells versions apart by their times alone, as over NFSv3.
    pub fn tell_times(&self) {
        self.server().tell_times();
    }

    /// The server says from now on in which version a file's data last changed.
    pub fn tell_data_changes(&self) {
        self.server().tell_data_changes();
    }

    /// How often `method` of [`Remote`] was called on this connection, failed calls included.
    pub fn calls(&self, method: &str) -> u64 {
        self.connection().calls.get(method).copied().unwrap_or(0)
    }

    /// How many of them carried the token of an open.
    pub fn calls_opened(&self, method: &str) -> u64 {
        self.connection().opened.get(method).copied().unwrap_or(0)
    }

    /// How many objects were to be made that may be lost ([`SetAttr::in_memory`]).
    pub fn made_volatile(&self) -> u64 {
        self.connection().volatile
    }

    /// How many opens of this connection are not closed.
    pub fn opens(&self) -> usize {
        self.opens.load(Ordering::SeqCst)
    }

    /// How many calls of any method there were on this connection.
    pub fn calls_total(&self) -> u64 {
        self.connection().calls.values().sum()
    }

    /// The server drops the locks of this connection, as after a restart during which another
    /// client took them, and their loss is reported.
    pub fn lose_locks(&self) {
        let files = self.server().locks.end(self.number);
        let watcher = self.connection().watcher.clone();
        if let Some(watcher) = watcher.and_then(|watcher| watcher.upgrade()) {
            files.iter().for_each(|file| watcher.locks_lost(file));
        }
    }

    /// Resets the counts.
    pub fn reset_calls(&self) {
        let mut connection = self.connection();
        connection.calls.clear();
        connection.opened.clear();
        connection.volatile = 0;
    }

    fn set_reach(&self, reach: Reach) {
        self.server().leases.disconnect(self.number);
        self.connection().reach = reach;
        self.wake();
    }

    /// Wakes the calls that wait, so that each sees whether it still must.
    fn wake(&self) {
        let waiting = std::mem::take(&mut self.connection().waiting);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// [`MemRemote::enter`] for a call that may go wrong. Answers whether its answer is lost.
    async fn begin(&self, method: &'static str) -> Result<bool> {
        self.enter(method).await?;
        let mut connection = self.connection();
        match connection.trouble {
            Some((0, trouble)) => {
                connection.trouble = None;
                match trouble {
                    Trouble::Refused(error) => Err(error),
                    Trouble::Unanswered => Ok(true),
                }
            }
            left => {
                connection.trouble = left.map(|(count, trouble)| (count - 1, trouble));
                Ok(false)
            }
        }
    }

    /// Waits while the server is out of reach or holds calls of this method. Returns whether the
    /// call may be carried out.
    async fn enter(&self, method: &'static str) -> Result<()> {
        *self.connection().calls.entry(method).or_default() += 1;
        std::future::poll_fn(|context| {
            let mut connection = self.connection();
            match connection.reach {
                Reach::TimingOut => Poll::Ready(Err(Error::TimedOut)),
                Reach::ShutDown => Poll::Ready(Err(Error::Shutdown)),
                Reach::Reachable if connection.held != Some(method) => {
                    Poll::Ready(connection.faults.pop_front().map_or(Ok(()), Err))
                }
                Reach::Silent | Reach::Reachable => {
                    connection.waiting.push(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Waits while changes of one of these files are held.
    async fn await_hold(&self, files: &[Handle]) {
        std::future::poll_fn(|context| {
            let mut connection = self.connection();
            if connection.held_file.as_ref().is_none_or(|held| !files.contains(held)) {
                return Poll::Ready(());
            }
            connection.waiting.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Waits for the answer to a call that was carried out.
    async fn leave(&self, method: &'static str) {
        std::future::poll_fn(|context| {
            let mut connection = self.connection();
            if connection.unanswered != Some(method) {
                return Poll::Ready(());
            }
            connection.waiting.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn call<'a, T: Send + 'a>(
        &'a self,
        method: &'static str,
        carry_out: impl FnOnce(&mut Server) -> Result<T> + Send + 'a,
    ) -> Future<'a, T> {
        Box::pin(async move {
            let is_lost = self.begin(method).await?;
            let answer = carry_out(&mut self.server());
            self.leave(method).await;
            if is_lost { Err(Error::TimedOut) } else { answer }
        })
    }

    /// The same for a call that changes `files`: other clients with a lease on one of them are
    /// notified first.
    fn change<'a, T: Send + 'a>(
        &'a self,
        method: &'static str,
        files: Vec<Handle>,
        carry_out: impl FnOnce(&mut Server) -> Result<T> + Send + 'a,
    ) -> Future<'a, T> {
        Box::pin(async move {
            let is_lost = self.begin(method).await?;
            self.await_hold(&files).await;
            let answer = loop {
                let (file, held) = {
                    let mut server = self.server();
                    match server.leases.revoke(self.number, &files) {
                        None => break carry_out(&mut server),
                        Some(revoked) => revoked,
                    }
                };
                if let Some(watcher) = held.watcher.and_then(|watcher| watcher.upgrade()) {
                    watcher.broken(&file).await;
                }
            };
            self.leave(method).await;
            if is_lost { Err(Error::TimedOut) } else { answer }
        })
    }

    fn judge(
        &self,
        server: &mut Server,
        cred: &Cred,
        file: &Handle,
        wanted: Access,
    ) -> Result<Judged> {
        let mut judged = server.access(cred, file, wanted)?;
        let (gives, watcher) = {
            let connection = self.connection();
            (connection.gives_leases, connection.watcher.clone())
        };
        judged.lease = gives.map(|new| server.leases.grant((self.number, new), file, watcher));
        Ok(judged)
    }

    /// Counts a call that carried a valid token.
    fn count_opened(&self, method: &'static str, file: &Handle, open: Option<&Token>) {
        if open.and_then(Token::get::<Open>).is_some_and(|open| open.is_of(file)) {
            *self.connection().opened.entry(method).or_default() += 1;
        }
    }

    /// The objects that a change of the entry `name` of `dir` changes.
    fn touched(&self, dir: &Handle, name: &OsStr) -> Vec<Handle> {
        let looked_up = self.server().lookup(&Cred::root(), dir, name);
        let found = looked_up.ok().and_then(|looked_up| looked_up.found);
        [Some(dir.clone()), found.map(|found| found.handle)].into_iter().flatten().collect()
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Files that are open here, and whether the server knows that.
//!
//! Under a lease it need not: no other client removes the file, or changes its rights, before the
//! lease was returned, and before that the server is told of the opens. So an open that follows a
//! lookup costs nothing. Without a lease the server is told at once; and again when it was
//! restarted or has lost the session. A file that is open at the server exists until it is closed,
//! whatever happens to its names.
//!
//! A file that we have made is open at the server from the beginning, and has blocks for its first
//! bytes, which the server gave ahead. Nothing depends on them: when they are taken back, the disk
//! refuses their capability, and uncommitted bytes in them count as lost.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use larder_vfs::Cred;
use larder_wire::meta::CLOSES_MAX;
use larder_wire::meta::calls::{Close, Open as OpenCall, OpenWhat};
use larder_wire::meta::words::{ByteRange, FileId, Layout, LeaseKind, Mode, OpenId};
use larder_wire::xdr::Array;
use tokio::sync::{Notify, watch};

use super::closing::{Known, Step, Waiting};
use super::session::Session;

/// All files that are open.
#[derive(Debug, Default)]
pub(super) struct Opens {
    open: Mutex<HashMap<FileId, Vec<Weak<Open>>>>,
    closing: Closing,
}

/// An open file.
#[derive(Debug)]
pub(super) struct Open {
    session: Weak<Session>,
    file: FileId,
    mode: Mode,
    at_server: Mutex<AtServer>,
    /// The file has lost its last name.
    is_nameless: AtomicBool,
    /// Held while the server is being told.
    turn: tokio::sync::Mutex<()>,
    /// Where the first bytes of a new file go.
    ahead: Mutex<Option<Ahead>>,
}

/// Blocks that were given ahead.
#[derive(Debug)]
struct Ahead {
    layout: Layout,
    /// Whether something of them may have been written.
    is_touched: bool,
}

impl Ahead {
    fn covers(&self, offset: u64, end: u64) -> bool {
        let covered = self.layout.covered;
        covered.offset <= offset && end <= covered.offset + covered.length
    }
}

/// Represents an open in a token: the open ends when the last one is dropped.
#[derive(Debug)]
pub(super) struct Held(pub(super) Arc<Open>);

/// Whether the server knows of an open. An open at the server is closed by whoever gets it from
/// [`told`](AtServer::told) or [`close`](AtServer::close): by exactly one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtServer {
    /// It does not know, or is being told: then nobody else tells it.
    Untold,
    /// The server knows it so.
    Open(Known),
    /// It is not open any more.
    Closed,
}

impl AtServer {
    /// The number by which the server knows it in this life of the session.
    fn id(self, life: u64) -> OpenId {
        match self {
            AtServer::Open((of, id)) if of == life => id,
            _ => OpenId::NONE,
        }
    }

    /// Whether the server must be told.
    fn is_untold(self, life: u64) -> bool {
        self != AtServer::Closed && self.id(life) == OpenId::NONE
    }

    /// The server was told, and knows it so from now on. Returns what it must close: the file was
    /// closed here in the meantime.
    fn told(&mut self, known: Known) -> Option<Known> {
        if *self == AtServer::Closed {
            return Some(known);
        }
        *self = AtServer::Open(known);
        None
    }

    /// The file is closed here. Returns what the server must close.
    fn close(&mut self) -> Option<Known> {
        match std::mem::replace(self, AtServer::Closed) {
            AtServer::Open(known) => Some(known),
            AtServer::Untold | AtServer::Closed => None,
        }
    }
}

impl Opens {
    /// What the server is to close.
    pub(super) fn closing(&self) -> &Closing {
        &self.closing
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<FileId, Vec<Weak<Open>>>> {
        lock(&self.open)
    }

    /// A file is open from now on, without the server's knowledge.
    pub(super) fn begin(&self, session: &Arc<Session>, file: FileId, mode: Mode) -> Held {
        self.add(session, (file, mode), AtServer::Untold, None)
    }

    /// A file is open that the server opened on request in a life of the session; its first bytes
    /// are to be written to `ahead`.
    pub(super) fn opened(
        &self,
        session: &Arc<Session>,
        file: FileId,
        (life, id): (u64, OpenId),
        ahead: Option<Layout>,
    ) -> Held {
        self.add(session, (file, Mode::Write), AtServer::Open((life, id)), ahead)
    }

    fn add(
        &self,
        session: &Arc<Session>,
        (file, mode): (FileId, Mode),
        at_server: AtServer,
        ahead: Option<Layout>,
    ) -> Held {
        let open = Arc::new(Open {
            session: Arc::downgrade(session),
            file,
            mode,
            at_server: Mutex::new(at_server),
            is_nameless: AtomicBool::new(false),
            turn: tokio::sync::Mutex::default(),
            ahead: Mutex::new(ahead.map(|layout| Ahead { layout, is_touched: false })),
        });
        self.lock().entry(file).or_default().push(Arc::downgrade(&open));
        Held(open)
    }

    fn of(&self, file: FileId) -> Vec<Arc<Open>> {
        self.lock().get(&file).into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    /// Tells the server of all opens of a file, so that it continues to exist without a lease.
    pub(super) async fn keep(&self, file: FileId) {
        for open in self.of(file) {
            open.keep(&Cred::root()).await;
        }
    }

    /// The same of all files.
    pub(super) async fn keep_all(&self) {
        let all: Vec<FileId> = self.lock().keys().copied().collect();
        for file in all {
            self.keep(file).await;
        }
    }

    /// A file has lost its last name, and goes with its last close.
    pub(super) async fn without_names(&self, session: &Arc<Session>, file: FileId) {
        self.of(file).iter().for_each(|open| open.is_nameless.store(true, Relaxed));
        self.closing.without_names(session, file).await;
    }

    /// What was written of a file is lost: the blocks that it was given ahead may have been taken
    /// back.
    pub(super) fn forget_ahead(&self, file: FileId) {
        self.of(file).iter().for_each(|open| open.forget_ahead());
    }

    fn remove(&self, of: &Open) {
        let mut all = self.lock();
        let Some(opens) = all.get_mut(&of.file) else { return };
        opens.retain(|open| !std::ptr::eq(open.as_ptr(), of));
        if opens.is_empty() {
            all.remove(&of.file);
        }
    }
}

impl Open {
    /// Which file it is.
    pub(super) fn file(&self) -> FileId {
        self.file
    }

    /// Whether it is open for reading.
    pub(super) fn reads(&self) -> bool {
        self.mode.reads()
    }

    /// Where to write a part of a new file, if no request is needed for that.
    pub(super) fn ahead(&self, offset: u64, end: u64) -> Option<Layout> {
        let mut ahead = lock(&self.ahead);
        let ahead = ahead.as_mut().filter(|ahead| ahead.covers(offset, end))?;
        ahead.is_touched = true;
        Some(ahead.layout.clone())
    }

    /// Where to write the first bytes of a new file, up to `end`, if nothing of it was written yet.
    /// From now on it counts as written.
    pub(super) fn untouched_ahead(&self, end: u64) -> Option<Layout> {
        let mut ahead = lock(&self.ahead);
        let ahead = ahead.as_mut().filter(|ahead| !ahead.is_touched && ahead.covers(0, end))?;
        ahead.is_touched = true;
        Some(ahead.layout.clone())
    }

    /// They are of no use any more.
    pub(super) fn forget_ahead(&self) {
        *lock(&self.ahead) = None;
    }

    /// The number by which the server knows it; none as long as the server was not told, or has
    /// forgotten it.
    pub(super) fn id(&self) -> OpenId {
        let life = self.session.upgrade().map(|session| session.life());
        life.map_or(OpenId::NONE, |life| lock(&self.at_server).id(life))
    }

    /// Opens the file at the server, unless it is open there, on behalf of `cred`. The caller's
    /// rights were checked when it opened the file. If it cannot be opened at the server, its bytes
    /// are requested without an open, and it exists as long as it has a name.
    pub(super) async fn keep(&self, cred: &Cred) {
        let Some(session) = self.session.upgrade() else { return };
        let _turn = self.turn.lock().await;
        let (file, mode, life) = (self.file, self.mode, session.life());
        if !lock(&self.at_server).is_untold(life) {
            return;
        }
        let root = Cred { deadline: cred.deadline, ..Cred::root() };
        let opened = session.change(&root, |sequence| OpenCall {
            sequence,
            what: OpenWhat::File(file),
            mode,
            lease: LeaseKind::None,
            range: ByteRange { offset: 0, length: 0 },
            allocate: None,
        });
        match opened.await {
            Ok(opened) => {
                let over = lock(&self.at_server).told((life, opened.open));
                if let Some(known) = over {
                    session.opens().closing.add(&session, file, known);
                }
            }
            Err(error) => tracing::debug!(file = file.0, ?error, "not open at the server"),
        }
    }

    /// The file is not open any more. The server is told soon, if it knows of the open. Again, this
    /// does nothing.
    pub(super) fn close(&self) {
        let Some(session) = self.session.upgrade() else { return };
        session.opens().remove(self);
        let Some(known) = lock(&self.at_server).close() else { return };
        session.opens().closing.add(&session, self.file, known);
        if self.is_nameless.load(Relaxed) {
            session.opens().closing.hurry(&session);
        }
    }

    /// The same, and waits until the server has been told if the file has no name: it is gone then.
    pub(super) async fn close_and_wait(&self) {
        self.close();
        if let (true, Some(session)) = (self.is_nameless.load(Relaxed), self.session.upgrade()) {
            let closing = &session.opens().closing;
            closing.settled(&session, closing.hurry(&session)).await;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Longest wait until the server has closed what lost its last name.
const SETTLED_MAX: Duration = Duration::from_secs(1);

/// The closes that the server was not told of yet.
#[derive(Debug, Default)]
pub(super) struct Closing {
    waiting: Mutex<Waiting>,
    /// There are enough, or somebody waits.
    enough: Arc<Notify>,
    /// How many closes are done, of all.
    done: watch::Sender<u64>,
}

impl Closing {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server is to close an open of a file. If no runtime is here, it is told with the next
    /// one.
    pub(super) fn add(&self, session: &Arc<Session>, file: FileId, open: Known) {
        let now = session.rpc().config().clock.instant();
        let mut waiting = self.lock();
        let is_enough = waiting.add(now, file, open);
        self.attend(session, &mut waiting);
        drop(waiting);
        if is_enough {
            self.enough.notify_one();
        }
    }

    /// Sees to it that a task sends what waits.
    fn attend(&self, session: &Arc<Session>, waiting: &mut Waiting) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current()
            && waiting.attend()
        {
            runtime.spawn(send(Arc::downgrade(session), Arc::clone(&self.enough)));
        }
    }

    /// What waits is sent at once. Returns how many closes there were so far, for
    /// [`settled`](Self::settled).
    pub(super) fn hurry(&self, session: &Arc<Session>) -> u64 {
        let mut waiting = self.lock();
        let (added, is_hurried) = (waiting.added(), waiting.hurry());
        self.attend(session, &mut waiting);
        drop(waiting);
        if is_hurried {
            self.enough.notify_one();
        }
        added
    }

    /// Waits, for a limited time, until the server has answered the first `count` closes.
    pub(super) async fn settled(&self, session: &Session, count: u64) {
        if *self.done.borrow() >= count {
            return;
        }
        let mut done = self.done.subscribe();
        let clock = Arc::clone(&session.rpc().config().clock);
        let _ = clock.timeout(SETTLED_MAX, done.wait_for(|done| *done >= count)).await;
    }

    /// A file has lost its last name: what waits of it is closed, too.
    pub(super) async fn without_names(&self, session: &Arc<Session>, file: FileId) {
        if self.lock().has(file) {
            self.settled(session, self.hurry(session)).await;
        }
    }

    fn note_done(&self, count: u64) {
        self.done.send_if_modified(|done| std::mem::replace(done, count.max(*done)) < count);
    }

    /// The session is not used any more, but may last: tells the server what still waits.
    pub(super) async fn flush(&self, session: &Session) {
        let opens = self.lock().end(session.life());
        for opens in opens.chunks(CLOSES_MAX) {
            tell(session, opens.to_vec()).await;
        }
    }

    /// The session ends, and all opens with it.
    pub(super) fn drop_all(&self) {
        let _ = self.lock().end(0);
    }
}

/// Tells the server what was closed, until there is nothing left.
async fn send(session: Weak<Session>, enough: Arc<Notify>) {
    loop {
        let Some(alive) = session.upgrade() else { return };
        let clock = Arc::clone(&alive.rpc().config().clock);
        let closing = alive.opens().closing();
        let (step, taken) = {
            let mut waiting = closing.lock();
            (waiting.step(clock.instant(), alive.life()), waiting.taken())
        };
        match step {
            Step::End => return closing.note_done(taken),
            Step::Send(opens) => {
                tell(&alive, opens).await;
                closing.note_done(taken);
            }
            Step::Wait(time) => {
                drop(alive);
                let _ = clock.timeout(time, enough.notified()).await;
            }
        }
    }
}

/// The opens end with the session, if the server cannot be told.
async fn tell(session: &Session, opens: Vec<OpenId>) {
    let count = opens.len();
    let close = |sequence| Close { sequence, opens: Array(opens.clone()) };
    let closed = session.change(&Cred::root(), close).await;
    tracing::trace!(count, ?closed, "closed");
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every sequence of events: what the server opened is handed over to be closed once, when the
    /// file is closed here, and not before.
    #[test]
    fn what_the_server_has_open_is_closed_once_in_every_sequence() {
        const EVENTS: u32 = 5;
        for script in 0..EVENTS.pow(8) {
            let (mut state, mut life, mut next) = (AtServer::Untold, 1, 0);
            let (mut at_server, mut is_telling, mut is_closed) = (BTreeSet::new(), None, false);
            for at in 0..8 {
                let mut over = None;
                match script / EVENTS.pow(at) % EVENTS {
                    // One at a time.
                    0 if is_telling.is_none() && state.is_untold(life) => {
                        assert!(!is_closed);
                        is_telling = Some(life);
                    }
                    // The server has opened it, and the answer is here.
                    1 => {
                        if let Some(of) = is_telling.take() {
                            next += 1;
                            let known = (of, OpenId(next));
                            if of == life {
                                at_server.insert(known);
                            }
                            over = state.told(known);
                        }
                    }
                    // It refuses, or the caller gives up.
                    2 => is_telling = None,
                    // It was restarted.
                    3 => {
                        life += 1;
                        at_server.clear();
                    }
                    4 => {
                        is_closed = true;
                        over = state.close();
                    }
                    _ => {}
                }
                if let Some(known) = over {
                    assert!(is_closed, "{script}");
                    assert!(at_server.remove(&known) || known.0 != life, "{script}: {known:?}");
                }
                assert!(!is_closed || state.id(life) == OpenId::NONE);
                assert!(at_server.len() <= 1, "{script}");
                assert!(!is_closed || at_server.is_empty(), "{script}: {at_server:?} stays open");
            }
        }
    }
}

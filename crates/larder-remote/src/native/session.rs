//! The session with the metadata server: carries out calls once, and stays alive.
//!
//! A changing call takes a slot for as long as it is in flight. The slot and its next sequence
//! number identify the call: however often it is sent, even over reconnects and restarts of the
//! server, it is carried out once. If the server has dropped the session, another one is begun.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use larder_io::Backoff;
use larder_rpc::{CallOptions, Recovery, Reply, RpcClient, random_u64};
use larder_vfs::{Cred, Error, Result};
use larder_wire::Procedure;
use larder_wire::meta::calls::{EndSession, Renew, Session as BeginSession, SessionGiven};
use larder_wire::meta::words::{Disks, Sequence, SessionId};
use larder_wire::meta::{Res, SLOTS_MAX, Status};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::leases::Leases;
use super::locks::Locks;
use super::opens::Opens;
use super::retained::Retained;
use super::{convert, locking};

/// First and longest pause before repeating a request to which the server answered "not now".
const LATER_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// How many sessions one call may begin: a server that forgets each one at once is broken.
const SESSIONS_MAX: u32 = 3;

/// The client's side of a session.
#[derive(Debug)]
pub(super) struct Session {
    /// For tasks in the background.
    this: Weak<Session>,
    client: RpcClient,
    /// Names this process to the server.
    name: [u8; 16],
    boot: u64,
    begun: Mutex<Arc<Begun>>,
    leases: Leases,
    locks: Locks,
    opens: Opens,
    retained: Retained,
    /// How often it was begun or resumed.
    lives: watch::Sender<u64>,
    /// How often locks may have been lost with it.
    lapses: AtomicU64,
    /// Held while a session is begun: one at a time.
    beginning: tokio::sync::Mutex<()>,
}

/// A session that the server has given.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) given: SessionGiven,
    slots: Arc<Slots>,
}

/// Slots that have no call in flight.
#[derive(Debug)]
struct Slots {
    /// A slot that is reserved for the calls that resume the session, one after the other.
    aside: Mutex<Slot>,
    free: Mutex<Vec<Slot>>,
    count: Arc<Semaphore>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    number: u32,
    /// Of the call before.
    sequence: u32,
}

/// A slot for one call. It is free again when this is dropped: a later call has a higher sequence,
/// so a call that was given up does no harm.
struct Taken {
    slots: Arc<Slots>,
    slot: Slot,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Taken {
    fn drop(&mut self) {
        lock(&self.slots.free).push(self.slot);
    }
}

impl Slots {
    fn new(count: u32) -> Arc<Slots> {
        let (aside, others) = (Slot { number: 0, sequence: 0 }, 1..count.max(2));
        let free: Vec<_> = others.rev().map(|number| Slot { number, sequence: 0 }).collect();
        let count = Arc::new(Semaphore::new(free.len()));
        Arc::new(Slots { aside: Mutex::new(aside), free: Mutex::new(free), count })
    }

    /// The slot aside, for its next call.
    fn next_aside(&self) -> Slot {
        let mut aside = lock(&self.aside);
        aside.sequence = aside.sequence.wrapping_add(1);
        *aside
    }

    async fn take(self: &Arc<Self>) -> Result<Taken> {
        let permit = Arc::clone(&self.count).acquire_owned().await;
        let permit = permit.map_err(|_| Error::Shutdown)?;
        let mut slot = lock(&self.free).pop().ok_or(Error::Io)?;
        slot.sequence = slot.sequence.wrapping_add(1);
        Ok(Taken { slots: Arc::clone(self), slot, _permit: permit })
    }
}

impl Session {
    /// Begins a session over `client`, and keeps it alive on the tokio runtime of the caller.
    ///
    /// # Errors
    /// As the call that begins it.
    pub(super) async fn begin(client: RpcClient, name: Option<[u8; 16]>) -> Result<Arc<Session>> {
        let name = name.unwrap_or_else(|| {
            let mut name = [0; 16];
            name[..8].copy_from_slice(&random_u64().to_be_bytes());
            name[8..].copy_from_slice(&random_u64().to_be_bytes());
            name
        });
        let boot = random_u64();
        let begun_at = client.config().clock.instant();
        let begun = given(&client, name, boot, None).await?;
        let session = Arc::new_cyclic(|this| Session {
            this: Weak::clone(this),
            client,
            name,
            boot,
            begun: Mutex::new(begun),
            leases: Leases::default(),
            locks: Locks::default(),
            opens: Opens::default(),
            retained: Retained::default(),
            lives: watch::Sender::new(1),
            lapses: AtomicU64::new(0),
            beginning: tokio::sync::Mutex::new(()),
        });
        tokio::spawn(keep_alive(Arc::downgrade(&session), begun_at));
        tokio::spawn(keep_open(Arc::downgrade(&session), session.lives.subscribe()));
        Ok(session)
    }

    /// The transport below.
    pub(super) fn rpc(&self) -> &RpcClient {
        &self.client
    }

    /// The session as it is now.
    pub(super) fn now(&self) -> Arc<Begun> {
        Arc::clone(&lock(&self.begun))
    }

    /// The leases that it has.
    pub(super) fn leases(&self) -> &Leases {
        &self.leases
    }

    /// What this mount has locked.
    pub(super) fn locks(&self) -> &Locks {
        &self.locks
    }

    /// The files whose bytes only this machine has.
    pub(super) fn retained(&self) -> &Retained {
        &self.retained
    }

    /// The files that are open by it.
    pub(super) fn opens(&self) -> &Opens {
        &self.opens
    }

    /// Changes when the server may have forgotten what is open.
    pub(super) fn life(&self) -> u64 {
        *self.lives.borrow()
    }

    /// How often another client may have had what was locked here.
    pub(super) fn lapses(&self) -> u64 {
        self.lapses.load(Ordering::Relaxed)
    }

    /// Another client may have, or have had, what is locked here.
    pub(super) fn note_lapse(&self) {
        self.lapses.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends all leases, before the server may think that they have ended.
    fn end_leases(&self) {
        self.leases.end_all(self.now().given.volume);
    }

    /// Ends the session, so that no other client waits for what it holds.
    pub(super) async fn end(&self) {
        self.opens.closing().drop_all();
        let session = self.now().given.session;
        let credential = self.client.auth_sys(0, 0, &[]);
        let options = CallOptions::default();
        let ended = self.client.call(&credential, &EndSession { session }, options).await;
        tracing::debug!(?ended, "the session was ended");
    }

    /// Makes a call that changes nothing.
    pub(super) async fn ask<P, T>(
        &self,
        cred: &Cred,
        args: impl Fn(SessionId) -> P,
    ) -> Result<T, Failed>
    where
        P: Procedure<Res = Res<T>>,
    {
        for _ in 0..SESSIONS_MAX {
            let begun = self.now();
            let reply = self.send(cred, &args(begun.given.session)).await?;
            match reply.results {
                Err(Status::BadSession | Status::Restarted) => self.begin_again(&begun).await?,
                results => return results.map_err(Failed::Status),
            }
        }
        Err(Failed::Call(Error::Io))
    }

    /// Makes a call that changes something, once.
    pub(super) async fn change<P, T>(
        &self,
        cred: &Cred,
        args: impl Fn(Sequence) -> P,
    ) -> Result<T, Failed>
    where
        P: Procedure<Res = Res<T>>,
    {
        for _ in 0..SESSIONS_MAX {
            let begun = self.now();
            let taken = begun.slots.take().await?;
            let Slot { number, sequence } = taken.slot;
            let session = begun.given.session;
            let args = args(Sequence { session, slot: number, sequence });
            let (results, was_sent_before) = self.send_through(cred, &args, session).await?;
            match results {
                Err(Status::BadSession) => {
                    self.begin_again(&self.now()).await?;
                    // The session that remembers the outcome is gone.
                    if was_sent_before {
                        return Err(Failed::Call(Error::TimedOut));
                    }
                }
                results => return results.map_err(Failed::Status),
            }
        }
        Err(Failed::Call(Error::Io))
    }

    /// Makes a call in a session that other calls do not use yet, through the reserved slot: all
    /// others may be taken by calls that wait for the session.
    pub(super) async fn send_aside<P, T>(
        &self,
        begun: &Begun,
        args: impl Fn(Sequence) -> P,
    ) -> Result<Res<T>>
    where
        P: Procedure<Res = Res<T>>,
    {
        let Slot { number, sequence } = begun.slots.next_aside();
        let args = args(Sequence { session: begun.given.session, slot: number, sequence });
        Ok(self.send(&Cred::root(), &args).await?.results)
    }

    /// Sends a call in a slot, again if the server was restarted and still knows the session. Also
    /// returns whether an earlier transmission may have been carried out.
    async fn send_through<P, T>(
        &self,
        cred: &Cred,
        args: &P,
        session: SessionId,
    ) -> Result<(Res<T>, bool)>
    where
        P: Procedure<Res = Res<T>>,
    {
        let mut was_sent_before = false;
        for _ in 0..SESSIONS_MAX {
            let begun = self.now();
            let reply = self.send(cred, args).await?;
            was_sent_before |= reply.transmissions > 1;
            match reply.results {
                Err(Status::Restarted) => self.begin_again(&begun).await?,
                results => return Ok((results, was_sent_before)),
            }
            if self.now().given.session != session {
                return Ok((Err(Status::BadSession), was_sent_before));
            }
        }
        Err(Error::Io)
    }

    /// Sends a call until the server has an answer other than "not now".
    async fn send<P, T>(&self, cred: &Cred, args: &P) -> Result<Reply<Res<T>>>
    where
        P: Procedure<Res = Res<T>>,
    {
        let config = self.client.config();
        let deadline = cred.deadline.map(|deadline| deadline.at());
        let soft_end = || deadline.unwrap_or_else(|| config.clock.instant() + config.limit());
        let ends = (config.recovery == Recovery::Soft).then(soft_end);
        let credential = self.client.auth_sys(cred.uid, cred.gid, &cred.groups);
        let options = CallOptions { deadline, ..CallOptions::default() };
        let mut backoff = Backoff::new(LATER_PAUSES.0, LATER_PAUSES.1);
        loop {
            let reply = self.client.call(&credential, args, options).await;
            let reply = reply.map_err(|cause| {
                let server = &config.server;
                tracing::debug!(server, procedure = P::NUMBER, %cause, "call failed");
                convert::rpc_error(cause)
            })?;
            match &reply.results {
                Ok(_) => return Ok(reply),
                Err(Status::Later) => {}
                Err(_) => {
                    self.client.count_refused(P::NUMBER);
                    return Ok(reply);
                }
            }
            let pause = backoff.pause();
            if ends.is_some_and(|ends| config.clock.instant() + pause > ends) {
                return Err(Error::TimedOut);
            }
            config.clock.sleep(pause).await;
        }
    }

    /// Begins a session in place of `old`, unless another task has. Boxed, as every call has room
    /// for it and hardly any makes it.
    fn begin_again<'a>(&'a self, old: &'a Arc<Begun>) -> larder_vfs::Future<'a, ()> {
        Box::pin(self.replace(old))
    }

    async fn replace(&self, old: &Arc<Begun>) -> Result<()> {
        let _turn = self.beginning.lock().await;
        if !Arc::ptr_eq(&self.now(), old) {
            return Ok(());
        }
        self.end_leases();
        let mut begun = given(&self.client, self.name, self.boot, Some(old)).await?;
        self.locks.doubt_all();
        for _ in 0..SESSIONS_MAX {
            let is_resumed = begun.given.resumed && begun.given.session == old.given.session;
            if !is_resumed {
                self.note_lapse();
                break;
            }
            if locking::claim(self, &begun).await? {
                break;
            }
            begun = given(&self.client, self.name, self.boot, Some(old)).await?;
        }
        // Leases that were granted in the meantime belong to the old session, too.
        self.end_leases();
        tracing::info!(server = %self.client.config().server, "the session was begun anew");
        *lock(&self.begun) = begun;
        self.locks.tell_all();
        if let Some(this) = self.this.upgrade() {
            locking::resolve_doubtful(&this);
        }
        self.lives.send_modify(|lives| *lives += 1);
        Ok(())
    }

    /// Asks the metadata server for the present addresses of the disks.
    ///
    /// # Errors
    /// As a call.
    pub(super) async fn learn_disks(&self) -> Result<()> {
        let renewed = self.ask(&Cred::root(), |session| Renew { session }).await?;
        self.note_disks(&self.now(), renewed.disks);
        Ok(())
    }

    /// Notes where the disks are now.
    fn note_disks(&self, old: &Arc<Begun>, disks: Disks) {
        let mut begun = lock(&self.begun);
        if Arc::ptr_eq(&begun, old) && begun.given.disks != disks {
            let given = SessionGiven { disks, ..begun.given.clone() };
            *begun = Arc::new(Begun { given, slots: Arc::clone(&begun.slots) });
        }
    }
}

/// Why a call has no results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// The status in the server's reply.
    Status(Status),
    /// There is no answer.
    Call(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Call(error)
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Error {
        match failed {
            Failed::Status(status) => convert::error(status),
            Failed::Call(error) => error,
        }
    }
}

/// Asks for a session. It must be of the volume that was there before.
async fn given(
    client: &RpcClient,
    name: [u8; 16],
    boot: u64,
    before: Option<&Arc<Begun>>,
) -> Result<Arc<Begun>> {
    let credential = client.auth_sys(0, 0, &[]);
    let args = BeginSession { client: name, boot, slots: SLOTS_MAX };
    let config = client.config();
    let ends = config.clock.instant() + config.limit();
    let mut backoff = Backoff::new(LATER_PAUSES.0, LATER_PAUSES.1);
    let given = loop {
        let reply = client.call(&credential, &args, CallOptions::default()).await;
        let results = reply.map_err(convert::rpc_error)?.results;
        // Its server is about to be another one, or waits for its database.
        let is_later = results == Err(Status::Later);
        if !is_later {
            break results.map_err(convert::error)?;
        }
        if config.recovery == Recovery::Soft && config.clock.instant() > ends {
            return Err(Error::TimedOut);
        }
        config.clock.sleep(backoff.pause()).await;
    };
    if before.is_some_and(|before| before.given.volume != given.volume) {
        tracing::warn!(server = %client.config().server, "another volume is served there now");
        return Err(Error::Stale);
    }
    let slots = match before {
        // Its slots go on where they were.
        Some(before) if given.resumed && before.given.session == given.session => {
            Arc::clone(&before.slots)
        }
        _ => Slots::new(given.slots.clamp(1, SLOTS_MAX)),
    };
    Ok(Arc::new(Begun { given, slots }))
}

/// Calls often enough to keep the session alive, as long as it is in use. Leases end when the
/// server may consider it expired.
async fn keep_alive(session: Weak<Session>, mut renewed_at: Instant) {
    let root = Cred::root();
    let Some(alive) = session.upgrade() else { return };
    let clock = Arc::clone(&alive.client.config().clock);
    drop(alive);
    loop {
        let Some(alive) = session.upgrade() else { return };
        let lease = Duration::from_millis(u64::from(alive.now().given.lease_ms));
        drop(alive);
        clock.sleep(lease / 3).await;
        let Some(alive) = session.upgrade() else { return };
        let sent = clock.instant();
        let left = (renewed_at + lease).saturating_duration_since(sent);
        let renew = alive.ask(&root, |session| Renew { session });
        match clock.timeout(left, renew).await {
            Ok(Ok(renewed)) => {
                renewed_at = sent;
                alive.note_disks(&alive.now(), renewed.disks);
                locking::resolve_doubtful(&alive);
            }
            Ok(Err(Failed::Call(Error::Shutdown))) => return,
            // The next call that needs the session finds out.
            Ok(Err(_)) if clock.instant() < renewed_at + lease * 2 / 3 => {}
            Ok(Err(_)) | Err(_) => alive.end_leases(),
        }
    }
}

/// Opens at the server what is open here, when the server may have forgotten that.
async fn keep_open(session: Weak<Session>, mut lives: watch::Receiver<u64>) {
    while lives.changed().await.is_ok() {
        let Some(session) = session.upgrade() else { return };
        session.opens.keep_all().await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

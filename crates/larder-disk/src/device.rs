//! The disk: sessions, the checks of requests, and their effect on the store.
//!
//! [`crate::control`] has what the metadata server may do, but for [`fetch`].

mod fetch;
mod requests;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use bytes::Bytes;
use larder_io::{Clock, Headroom, Monotonic, Rate};
use larder_wire::capability::{BootEpoch, Capability, Extent, Extents};
use larder_wire::disk::sealed::{Sealed, SealedReply};
use larder_wire::disk::words::{
    Done, Ending, HandshakeCall, HandshakeDone, Head, Hello, Refusal, Res, SessionId, Shown,
    StatusDone, Welcome,
};
use larder_wire::seal::{KEY_BYTES, MasterKey, RequestKeys, Secret, Setup};
use larder_wire::xdr::Array;

use fetch::Sources;
pub(crate) use requests::ClientHead;
use tokio::sync::Notify;

use crate::control::{ControlHead, With};
use crate::counts::Counts;
use crate::limit::{Limit, Measured};
use crate::sessions::{Kind, SESSIONS_MAX, Session, SessionKeys, Sessions};
use crate::standing::{Deed, Standing};
use crate::store::{Identity, Store, StoreError};
use crate::underway::{Entered, Underway};

/// Longest time for which a disk trusts what it knows without hearing from the metadata server.
pub const TRUST_MAX: Duration = Duration::from_secs(600);

/// Identity of a disk, and how many sessions its clients may hold.
#[derive(Clone, Debug)]
pub struct Config {
    /// The disk's volume and number.
    pub identity: Identity,
    /// The secret that it shares with the metadata server.
    pub master: MasterKey,
    /// Most sessions of clients.
    pub sessions_max: usize,
    /// Most bytes a second, read and written; none: as many as can be.
    pub rate: Option<u64>,
    /// The clock that it uses.
    pub clock: Arc<dyn Clock>,
}

impl Config {
    /// A disk with default limits.
    pub fn new(identity: Identity, master: MasterKey, clock: Arc<dyn Clock>) -> Config {
        Config { identity, master, sessions_max: SESSIONS_MAX, rate: None, clock }
    }
}

/// A disk that has started.
#[derive(Debug)]
pub struct Device {
    config: Config,
    store: Arc<Store>,
    standing: RwLock<Standing>,
    sessions: Sessions,
    /// By which the metadata server identifies itself.
    control: Secret,
    /// Requests of clients.
    underway: Underway,
    /// Requests of the metadata server.
    orders: Underway,
    counts: Counts,
    limit: Mutex<Limit>,
    rate: Rate,
    /// The other disks that it has read.
    sources: Sources,
    /// Something was written.
    written: Notify,
    /// Whether the store's generation is of this boot.
    is_raised: tokio::sync::Mutex<bool>,
    started: Monotonic,
}

/// How to seal the reply to a request: with the request's number, once. Nothing is sealed in a
/// setup without seals.
struct ReplySeal(Option<(Arc<RequestKeys>, Setup, SessionId, u64)>);

impl ReplySeal {
    fn seal<H: Head>(self, results: &Res<H::Done>, data: Bytes) -> SealedReply<H> {
        match self.0 {
            None => SealedReply::open_to_all(results, data),
            Some((keys, setup, session, sequence)) => {
                SealedReply::seal(&keys.from_disk, setup, session, sequence, results, data)
            }
        }
    }
}

impl Device {
    /// Starts a disk: a new boot, which has heard nothing from the metadata server yet.
    pub fn start(config: Config, store: Store) -> Device {
        let Identity { volume, disk, .. } = config.identity;
        let boot = BootEpoch(u64::from_be_bytes(larder_io::secret::random()));
        let rate = Rate::new(config.rate);
        Device {
            store: Arc::new(store),
            standing: RwLock::new(Standing::new(volume, disk, boot)),
            sessions: Sessions::new(config.sessions_max, boot.0 >> 32 << 32),
            control: config.master.control_secret(volume, disk),
            underway: Underway::default(),
            orders: Underway::default(),
            counts: Counts::default(),
            limit: Mutex::new(Limit::Size),
            rate,
            sources: Sources::default(),
            written: Notify::new(),
            is_raised: tokio::sync::Mutex::default(),
            started: config.clock.now(),
            config,
        }
    }

    /// The disk's clock: milliseconds since it started.
    pub fn now_ms(&self) -> u64 {
        let passed = self.config.clock.now().since(self.started);
        u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
    }

    /// Counts of refusals and revocations.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The bytes.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The memory of the disk's machine was measured. To be called for memory disks alone: from
    /// then on the disk takes no more than the machine can give.
    pub fn note_headroom(&self, headroom: Headroom) {
        let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        let (size, held) = (self.store.size(), self.store.written());
        let next = limit.apply(Measured { size, held, headroom });
        let before = std::mem::replace(&mut *limit, next);
        self.store.set_limit(next.bytes(size));
        match (before, next) {
            (Limit::Size, Limit::Bytes(limit)) => tracing::warn!(
                limit,
                held,
                "the machine lacks memory: the memory disk holds no more than that"
            ),
            (Limit::Bytes(_), Limit::Size) => {
                tracing::info!("there is memory for all of the memory disk again");
            }
            _ => {}
        }
    }

    /// How many sessions there are.
    pub fn sessions(&self) -> usize {
        self.sessions.count()
    }

    /// How many keys of requests it keeps.
    pub fn keys(&self) -> usize {
        self.sessions.keys()
    }

    /// How it does.
    pub fn status(&self) -> StatusDone {
        let (store, standing) = (&self.store, self.standing());
        StatusDone {
            setup: self.config.identity.setup,
            size: store.size(),
            written: store.written(),
            limit: store.limit(),
            clock_ms: self.now_ms(),
            trusted_until_ms: standing.trusted_until_ms(),
            key: standing.key(),
            sessions: u32::try_from(self.sessions()).unwrap_or(u32::MAX),
            poisoned: store.is_poisoned(),
            groups: Array(standing.groups().status()),
            refusals: Array(self.counts.all()),
        }
    }

    /// Answers a handshake.
    ///
    /// # Errors
    /// [`Refusal`], counted.
    pub async fn handshake(&self, call: &HandshakeCall) -> Res<HandshakeDone> {
        let answered = self.shake_hands(call).await;
        self.count(answered)
    }

    /// Carries out a request of a client, unless it is refused.
    ///
    /// # Errors
    /// [`Refusal`], counted; those under seal are in the reply.
    pub(crate) async fn serve<H: ClientHead>(&self, request: Sealed<H>) -> Res<SealedReply<H>> {
        let (head, data, reply) = self.count(self.admit_client(request))?;
        let (results, data) = match self.count(self.carry_out(&head, data).await) {
            Ok(data) => (Ok(Done {}), data),
            Err(refusal) => (Err(refusal), Bytes::new()),
        };
        Ok(reply.seal(&results, data))
    }

    /// Carries out a request of the metadata server, unless it is refused.
    ///
    /// # Errors
    /// [`Refusal`], counted; those under seal are in the reply.
    pub(crate) async fn order<H: ControlHead>(
        &self,
        request: Sealed<H>,
        beside: IpAddr,
    ) -> Res<SealedReply<H>> {
        let _entered = H::IS_WAITED_FOR.then(|| self.orders.enter());
        let (head, data, reply) = self.count(self.admit_control(request))?;
        self.counts.ordered::<H>();
        let results = self.count(head.carry_out(self, With { data, beside }).await);
        Ok(reply.seal(&results, Bytes::new()))
    }

    async fn shake_hands(&self, call: &HandshakeCall) -> Res<HandshakeDone> {
        let Hello { volume, disk, shows, nonce, ends } = &call.hello;
        self.standing().is_meant(*volume, *disk)?;
        let (secret, kind) = match shows {
            Shown::Capability(capability) => {
                let secret = self.secret(capability)?;
                secret.check_hello(&call.hello, &call.mac).map_err(|_| Refusal::Forged)?;
                if !self.is_off() {
                    let now_ms = self.now_ms();
                    self.standing().check(capability, Deed::Handshake, now_ms)?;
                }
                (secret, Kind::Client(capability.group, capability.id))
            }
            Shown::Control(owner) => {
                let secret = self.control.clone();
                secret.check_hello(&call.hello, &call.mac).map_err(|_| Refusal::Forged)?;
                self.standing_mut().owned_by(owner.owner)?;
                self.sessions.end_owners_before(owner.owner);
                self.orders.settled().await;
                (secret, Kind::Control(owner.owner))
            }
            Shown::Observer => {
                let secret = self.control.clone();
                secret.check_hello(&call.hello, &call.mac).map_err(|_| Refusal::Forged)?;
                (secret, Kind::Observer)
            }
        };
        if let Some(ending) = ends {
            self.end(ending, nonce).await?;
        }
        let is_open = self.is_off() && matches!(kind, Kind::Client(..));
        if is_open {
            return Ok(self.welcome(&secret, kind, SessionId(0), nonce).1);
        }
        self.sessions.begin(kind, *nonce, |number| self.welcome(&secret, kind, number, nonce))
    }

    /// Ends a session for its client, and waits for the requests that were admitted in it.
    async fn end(&self, ending: &Ending, nonce: &[u8; KEY_BYTES]) -> Res<()> {
        if let Ok(session) = self.sessions.get(ending.session) {
            session.key().check_ending(nonce, &ending.proof).map_err(|_| Refusal::Forged)?;
            self.sessions.end(ending.session);
        }
        self.underway.settled().await;
        Ok(())
    }

    fn welcome(
        &self,
        secret: &Secret,
        kind: Kind,
        session: SessionId,
        nonce: &[u8; KEY_BYTES],
    ) -> (SessionKeys, HandshakeDone) {
        let boot = self.standing().boot();
        let welcome = Welcome {
            session,
            boot,
            setup: self.config.identity.setup,
            nonce: larder_io::secret::random(),
        };
        let key = secret.session_key(nonce, &welcome.nonce);
        let mac = key.sign_welcome(&welcome);
        let shows_none = !matches!(kind, Kind::Client(..));
        let orders = shows_none.then(|| Arc::new(key.request_keys(secret)));
        (SessionKeys { key, orders }, HandshakeDone { welcome, mac })
    }

    /// Admits a client's request, with its data, if it comes from the client that holds this
    /// capability.
    fn admit_client<H: ClientHead>(&self, request: Sealed<H>) -> Res<(H, Bytes, ReplySeal)> {
        let head = |request: &Sealed<H>| request.claimed_head().map_err(|_| Refusal::Malformed);
        if self.is_off() {
            return Ok((head(&request)?, request.claimed_data().clone(), ReplySeal(None)));
        }
        let number = request.session;
        let head = head(&request).or_else(|fault| self.sessions.get(number).and(Err(fault)))?;
        let capability = head.capability();
        let (session, known) = self.sessions.find(number, capability)?;
        let (keys, is_first) = match known {
            Some(keys) => {
                self.standing().is_current(capability)?;
                (keys, false)
            }
            None => (Arc::new(session.key().request_keys(&self.secret(capability)?)), true),
        };
        let setup = self.config.identity.setup;
        let opened = self.open(request, &session, &keys, setup)?;
        match is_first {
            true => self.keep_keys(number, capability, &keys),
            false => self.sessions.used(number),
        }
        Ok((head, opened.0, opened.1))
    }

    /// Keeps keys that have shown to be right. An order that ends capabilities forgets their keys
    /// after it has ended them, so either that finds these, or they are found to be over here.
    fn keep_keys(&self, session: SessionId, capability: &Capability, keys: &Arc<RequestKeys>) {
        self.sessions.used_first(session, capability, keys);
        let Capability { group, id, .. } = *capability;
        let standing = self.standing();
        let ended =
            standing.is_current(capability).and_then(|()| standing.groups().check(group, id));
        drop(standing);
        if ended.is_err() {
            self.sessions.forget(group, id);
        }
    }

    /// Admits an order, with its data, if it comes from the latest owner of the volume, or needs no
    /// owner.
    fn admit_control<H: ControlHead>(&self, request: Sealed<H>) -> Res<(H, Bytes, ReplySeal)> {
        let number = request.session;
        let session = self.sessions.get(number)?;
        let owner = match session.kind() {
            Kind::Control(owner) => Some(owner),
            Kind::Observer if H::IS_FOR_OBSERVERS => None,
            Kind::Observer | Kind::Client(..) => return Err(Refusal::NotControl),
        };
        let head = request.claimed_head().map_err(|_| Refusal::Malformed)?;
        let keys = session.orders().ok_or(Refusal::NotControl)?;
        let setup = if H::HAS_SECRET { Setup::Private } else { Setup::Secure };
        let (data, reply) = self.open(request, &session, keys, setup)?;
        self.sessions.used(number);
        owner.map_or(Ok(()), |owner| self.standing().is_owner(owner))?;
        Ok((head, data, reply))
    }

    /// Checks the seal and the number of a request; returns its data, and how to seal the reply.
    fn open<H: Head>(
        &self,
        request: Sealed<H>,
        session: &Session,
        keys: &Arc<RequestKeys>,
        setup: Setup,
    ) -> Res<(Bytes, ReplySeal)> {
        let (number, sequence) = (request.session, request.sequence);
        let data = request.open(&keys.to_disk, setup).map_err(|_| Refusal::Forged)?;
        session.take(sequence)?;
        Ok((data, ReplySeal(Some((Arc::clone(keys), setup, number, sequence)))))
    }

    /// Carries out a client's request, if its capability allows it.
    async fn carry_out<H: ClientHead>(&self, head: &H, data: Bytes) -> Result<Bytes, Refusal> {
        let deed = head.deed(&data)?;
        if let Deed::Read(range) | Deed::Write(range) = deed {
            self.rate.pass(&*self.config.clock, range.length()).await;
        }
        let entered = self.underway.enter();
        let source = head.source().map(|(request, bytes)| bytes.map(|bytes| (request, bytes)));
        let source = source.transpose()?;
        if !self.is_off() {
            self.standing().check(head.capability(), deed, self.now_ms())?;
            if let Some((request, bytes)) = source {
                let shown = &request.source.capability;
                let secret = self.secret(shown)?;
                let proof = &request.source.proof;
                secret.check_source(&request.claim(), proof).map_err(|_| Refusal::Forged)?;
                self.standing().check(shown, Deed::Read(bytes), self.now_ms())?;
            }
        }
        let data = match source {
            Some((_, bytes)) => self.store.read(bytes).map(Bytes::from).map_err(refusal)?,
            None => data,
        };
        match deed {
            Deed::Handshake => Ok(Bytes::new()),
            Deed::Read(range) => self.store.read(range).map(Bytes::from).map_err(refusal),
            Deed::Write(range) => {
                self.write(range, &data)?;
                match head.is_stable() {
                    true => self.flush(entered).await,
                    false => Ok(Bytes::new()),
                }
            }
            Deed::Flush => self.flush(entered).await,
        }
    }

    fn write(&self, range: Extent, data: &[u8]) -> Result<(), Refusal> {
        self.store.write(range.offset(), data).map_err(refusal)?;
        self.written.notify_waiters();
        Ok(())
    }

    /// Waits until all blocks of these extents have been written; returns whether they are when the
    /// time is over.
    pub(crate) async fn await_written(
        &self,
        extents: &Extents,
        wait: Duration,
    ) -> Result<bool, Refusal> {
        let until = self.config.clock.instant() + wait;
        loop {
            // Before the blocks are checked: a later write wakes us.
            let written = self.written.notified();
            if self.store.has_written(extents.as_slice()).map_err(refusal)? {
                return Ok(true);
            }
            let left = until.saturating_duration_since(self.config.clock.instant());
            if self.config.clock.timeout(left, written).await.is_err() {
                return Ok(false);
            }
        }
    }

    async fn flush(&self, entered: Entered) -> Result<Bytes, Refusal> {
        self.blocking(entered, Store::flush).await.map(|()| Bytes::new())
    }

    /// The metadata server lets the disk serve from its store in this boot: the store is not as any
    /// copy of it from before, durably.
    pub(crate) async fn begin_to_serve(&self) -> Result<(), Refusal> {
        let mut is_raised = self.is_raised.lock().await;
        if !*is_raised {
            self.blocking(self.orders().enter(), Store::raise_generation).await?;
            *is_raised = true;
        }
        Ok(())
    }

    /// Runs work that may take long on a thread of its own. It continues if its caller has given
    /// up, and counts as in flight until it is done.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        entered: Entered,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let store = Arc::clone(&self.store);
        let done = tokio::task::spawn_blocking(move || {
            let done = work(&store);
            drop(entered);
            done
        });
        done.await.map_err(|_| Refusal::Failed)?.map_err(refusal)
    }

    /// The secret that belongs to a capability, whatever its content.
    fn secret(&self, capability: &Capability) -> Res<Secret> {
        if !self.is_off() {
            self.standing().is_current(capability)?;
        }
        Ok(self.config.master.disk_key(capability.key).secret(capability))
    }

    fn is_off(&self) -> bool {
        self.config.identity.setup == Setup::Off
    }

    /// The disk's volume and number.
    pub fn identity(&self) -> &Identity {
        &self.config.identity
    }

    /// Requests of clients that were let in and are not done.
    pub(crate) fn underway(&self) -> &Underway {
        &self.underway
    }

    /// Orders of the metadata server that are not done.
    pub(crate) fn orders(&self) -> &Underway {
        &self.orders
    }

    /// The sessions, with the keys of capabilities.
    pub(crate) fn client_sessions(&self) -> &Sessions {
        &self.sessions
    }

    pub(crate) fn standing(&self) -> RwLockReadGuard<'_, Standing> {
        self.standing.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn standing_mut(&self) -> RwLockWriteGuard<'_, Standing> {
        self.standing.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn count<T>(&self, answered: Res<T>) -> Res<T> {
        if let Err(refusal) = &answered {
            self.counts.refused(*refusal);
        }
        answered
    }
}

/// The refusal that a remote caller gets for a failure of the store; the log has the rest.
pub(crate) fn refusal(error: StoreError) -> Refusal {
    match error {
        StoreError::OutOfDisk => Refusal::OutOfDisk,
        StoreError::Overlap => Refusal::Malformed,
        StoreError::NoSpace => Refusal::NoSpace,
        StoreError::Poisoned => Refusal::Poisoned,
        StoreError::Io(cause) => {
            tracing::error!(%cause, "the store failed");
            Refusal::Failed
        }
    }
}

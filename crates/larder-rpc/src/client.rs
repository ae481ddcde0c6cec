//! The client: calls to one program on one server, over TCP or UDP (RFC 5531).
//!
//! [`RpcClient`] keeps several connections ([`Config::connections`]) and many calls in flight on
//! each. A call is encoded once; its small values and its payload leave in one vectored write, on
//! the caller's own thread if nothing else is being sent. A reply's payload is read by the kernel's
//! copy straight into the buffer that is handed up.
//!
//! Promises:
//! - **A call ends.** [`Recovery::Soft`] calls fail after [`Config::limit`], at the deadline of the
//!   caller if that comes first, and at once while the server has been silent for the limit.
//!   [`Recovery::Hard`] ones wait for the server however long it takes, but dropping their future
//!   or [`RpcClient::shutdown`] ends them at once.
//! - **A reply is to its call.** Retransmissions and replays after a reconnect bear the same xid,
//!   so that a server's duplicate request cache knows them; [`Reply::transmissions`] says that the
//!   call may have been carried out before its reply was made.
//! - **Bounded memory.** Replies have a largest size, calls in flight a window, idle buffers a
//!   limit.
//!
//! What it does is counted: by procedure and connection since the start ([`RpcClient::stats`]),
//! and, if somebody asks, slice by slice of time ([`RpcClient::record`]).
//!
//! Whether the server answers is a state of its own ([`ServerState`]), found out by the calls and,
//! while it does not answer, by a probe; each change is logged once.
//!
//! Absent on purpose: RPCSEC_GSS. What the procedures mean is the caller's business.

mod connection;
mod places;
mod pool;
mod retry;
mod socket;

pub use connection::{CALLBACK_BYTES_MAX, Callbacks};
pub use places::Place;
pub use retry::TimerClass;

use crate::patience::{gives_up, retry_pauses};
use crate::program::{DATAGRAM_BYTES_MAX, Program, RECORD_BYTES_MAX, Transport};
use crate::series::{Moment, RecordError, Recorded, Recorders, Recording};
use crate::stats::{self, Snapshot};
use crate::tls::ClientTls;
use bytes::Bytes;
use connection::{Connection, Wait};
use larder_io::{Clock, RealClock};
use larder_wire::Procedure;
use larder_wire::rpc::{
    AuthSys, CallHeader, Credential, GROUPS_MAX, MACHINE_NAME_BYTES_MAX, Outcome, Xid, encode_call,
};
use larder_wire::xdr::{Array, Decode, Encode, Encoder, Opaque, XdrError};
use places::Places;
use pool::Pool;
use socket::Socket;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::watch;

/// Which port calls come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourcePort {
    /// One that only the superuser may bind, as servers demand unless told `insecure`. Any other if
    /// there is none.
    Reserved,
    /// Any.
    Any,
}

impl SourcePort {
    /// What it comes to in this process: only the superuser may bind a reserved port.
    pub fn possible(self) -> SourcePort {
        if rustix::process::geteuid().is_root() { self } else { SourcePort::Any }
    }
}

/// What happens to a call that is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// It fails after [`Config::limit`], or sooner.
    Soft,
    /// It waits for the server.
    Hard,
}

/// How to reach a server and how long to wait for it.
#[derive(Clone, Debug)]
pub struct Config {
    /// The server as messages name it, `HOST:PORT`.
    pub server: String,
    /// Where the program listens.
    pub address: SocketAddr,
    /// Where else it may listen: one who takes its place if it is gone. A place that cannot be
    /// reached, or is silent, is left for the next, in turn.
    pub others: Vec<Place>,
    /// How messages travel.
    pub transport: Transport,
    /// The program.
    pub program: Program,
    /// How many connections to use (`nconnect`), at least one.
    pub connections: usize,
    /// Calls in flight on one connection; others wait. UDP starts lower and adapts.
    pub in_flight_max: u32,
    /// How long to wait for a reply before doing something about it (`timeo`): UDP sends again,
    /// TCP connects again if nothing at all was heard meanwhile.
    pub timeout: Duration,
    /// How often that is done before the server counts as gone (`retrans`).
    pub retransmissions: u32,
    /// What happens then.
    pub recovery: Recovery,
    /// Largest reply, in bytes.
    pub record_bytes_max: usize,
    /// Our name in AUTH_SYS.
    pub machine_name: String,
    /// Which port calls come from.
    pub source_port: SourcePort,
    /// TLS, over TCP. Then nothing is sent without it: a server that does not speak it is as good
    /// as gone.
    pub tls: Option<ClientTls>,
    /// What answers calls of the server on our connections, over TCP. Without it, they count as
    /// replies that belong to no call.
    pub callbacks: Option<Callbacks>,
    /// By which it waits.
    pub clock: Arc<dyn Clock>,
}

impl Config {
    /// The defaults of `mount.nfs`, but a shorter timeout on TCP: larder says earlier that a server
    /// is gone, and a slow reply costs nothing while the connection is alive.
    pub fn new(address: SocketAddr, transport: Transport, program: Program) -> Config {
        let (timeout, retransmissions) = match transport {
            Transport::Tcp => (Duration::from_secs(15), 2),
            Transport::Udp => (Duration::from_millis(1100), 5),
        };
        Config {
            server: address.to_string(),
            address,
            others: Vec::new(),
            transport,
            program,
            connections: 1,
            in_flight_max: 256,
            timeout,
            retransmissions,
            recovery: Recovery::Soft,
            record_bytes_max: RECORD_BYTES_MAX,
            machine_name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            source_port: SourcePort::Reserved,
            tls: None,
            callbacks: None,
            clock: Arc::new(RealClock),
        }
    }

    /// The place of this number.
    pub(super) fn place(&self, number: usize) -> (SocketAddr, Option<&ClientTls>) {
        match number % (1 + self.others.len()) {
            0 => (self.address, self.tls.as_ref()),
            other => (self.others[other - 1].address, self.others[other - 1].tls.as_ref()),
        }
    }

    /// After how long a call without a reply means that the server is gone.
    pub fn limit(&self) -> Duration {
        self.timeout * (self.retransmissions + 1)
    }
}

/// What one call wants beyond its arguments.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    /// Whose round-trip estimate applies (UDP).
    pub class: TimerClass,
    /// Fail at once with [`RpcError::Unreachable`] while the server is known to be gone.
    pub fail_fast: bool,
    /// Until when the caller waits; a [`Recovery::Hard`] call waits on.
    pub deadline: Option<Instant>,
}

/// An answered call.
#[derive(Clone, Copy, Debug)]
pub struct Reply<T> {
    /// What the procedure answered.
    pub results: T,
    /// How often the call was sent. If more than once, the server may have carried it out before:
    /// an error such as "exists" may be about our own first try.
    pub transmissions: u32,
}

/// Why a call has no results.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RpcError {
    /// No reply within the limit of a soft mount.
    #[error("no reply within {} s", .limit.as_secs_f32())]
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// The server is known to be gone and the call was not to wait.
    #[error("the server is not responding")]
    Unreachable,
    /// The client was shut down.
    #[error("the client is shut down")]
    Shutdown,
    /// The RPC layer of the server refused the call.
    #[error("{0}")]
    Refused(Outcome),
    /// The reply is not one.
    #[error("the reply cannot be read: {0}")]
    Garbled(XdrError),
    /// The call is too long for a datagram.
    #[error("a call of {bytes} bytes does not fit a datagram")]
    TooLong {
        /// Its length, in bytes.
        bytes: usize,
    },
}

/// Why there is no connection to begin with.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The operating system could not connect.
    #[error("cannot connect to {server}: {cause}")]
    Failed {
        /// The server.
        server: String,
        /// Why.
        cause: std::io::Error,
    },
    /// The server did not answer.
    #[error("cannot connect to {server}: no answer within {} s", .limit.as_secs_f32())]
    TimedOut {
        /// The server.
        server: String,
        /// How long was waited.
        limit: Duration,
    },
}

/// Whether the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// It did, the last time it was asked.
    Reachable,
    /// It does not.
    Unreachable {
        /// Since when it has been asked in vain.
        since: Instant,
    },
}

impl ServerState {
    /// Since when it has been asked in vain, if it has.
    fn silent_since(self) -> Option<Instant> {
        match self {
            ServerState::Reachable => None,
            ServerState::Unreachable { since } => Some(since),
        }
    }
}

/// A client of one program on one server. Clones share the connections, which end with the last.
#[derive(Clone, Debug)]
pub struct RpcClient {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    connections: Vec<Arc<Connection>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// What the connections have in common.
#[derive(Debug)]
struct Shared {
    config: Config,
    procedures: stats::Procedures,
    state: watch::Sender<ServerState>,
    /// Becomes true once.
    shutdown: watch::Sender<bool>,
    pool: Arc<Pool>,
    machine_name: Opaque<MACHINE_NAME_BYTES_MAX>,
    xid: AtomicU32,
    places: Places,
}

impl RpcClient {
    /// Connects to the server, on the tokio runtime of the caller. Over UDP this says nothing of
    /// the server: [`ping`](Self::ping) does.
    ///
    /// # Errors
    /// [`ConnectError`], at the latest after ten seconds or the configured limit for each place,
    /// for the first connection. The others are made in the background.
    pub async fn connect(config: Config) -> Result<RpcClient, ConnectError> {
        let (first, place) = Socket::first(&config).await?;
        let shared = Arc::new(Shared {
            procedures: stats::Procedures::new(config.program.procedures),
            state: watch::Sender::new(ServerState::Reachable),
            shutdown: watch::Sender::new(false),
            pool: Arc::default(),
            machine_name: machine_name(&config),
            // Servers take an xid that they have seen lately for a retransmission, also if it was
            // sent by the client's previous life.
            xid: AtomicU32::new(random_u64() as u32),
            places: Places::new(place),
            config,
        });
        let mut sockets = std::iter::once(first).map(Some).chain(std::iter::repeat_with(|| None));
        let connections: Vec<_> = (0..shared.config.connections.max(1))
            .map(|_| Connection::start(&shared, sockets.next().flatten()))
            .collect();
        let inner = Arc::new(Inner { shared, connections });
        tokio::spawn(probe(Arc::clone(&inner.shared), Arc::clone(&inner.connections[0])));
        Ok(RpcClient { inner })
    }

    /// The credential that a user's calls bear, on our word: the first sixteen groups are all that
    /// fit.
    pub fn auth_sys(&self, uid: u32, gid: u32, groups: &[u32]) -> Credential {
        let groups = groups.iter().copied().take(GROUPS_MAX).collect();
        Credential::Sys(AuthSys {
            stamp: 0,
            machine_name: self.inner.shared.machine_name.clone(),
            uid,
            gid,
            groups: Array(groups),
        })
    }

    /// Calls a procedure and waits for its results.
    ///
    /// Dropping the future gives the call up; the server may still carry it out.
    ///
    /// # Errors
    /// [`RpcError`]
    pub async fn call<P: Procedure>(
        &self,
        credential: &Credential,
        args: &P,
        options: CallOptions,
    ) -> Result<Reply<P::Res>, RpcError> {
        debug_assert_eq!(P::PROGRAM, self.config().program.number);
        let reply = self.call_raw(credential, args, options).await?;
        let mut body = reply.results;
        let results = P::Res::decode(&mut body).map_err(|cause| {
            self.inner.shared.procedures.of(P::NUMBER).errors.fetch_add(1, Relaxed);
            RpcError::Garbled(cause)
        })?;
        Ok(Reply { results, transmissions: reply.transmissions })
    }

    /// Counts a call of `procedure` that was answered with a status other than success: only the
    /// program knows its statuses.
    pub fn count_refused(&self, procedure: u32) {
        self.inner.shared.procedures.of(procedure).refused.fetch_add(1, Relaxed);
    }

    /// Calls a procedure and hands up its results undecoded: the reply past its RPC header.
    ///
    /// # Errors
    /// [`RpcError`]
    pub async fn call_raw<P: Procedure>(
        &self,
        credential: &Credential,
        args: &P,
        options: CallOptions,
    ) -> Result<Reply<Bytes>, RpcError> {
        let shared = &self.inner.shared;
        if options.fail_fast && !self.reachable() {
            return Err(RpcError::Unreachable);
        }
        let offered = shared.now();
        let until = shared.until(offered, options.deadline, shared.silent_since());
        if until.is_some_and(|until| until <= offered) {
            return Err(RpcError::TimedOut { limit: shared.config.limit() });
        }
        let xid = shared.next_xid();
        let message = encode_call(xid, credential, args, shared.config.transport.framing());
        if shared.config.transport == Transport::Udp && message.len() > DATAGRAM_BYTES_MAX {
            return Err(RpcError::TooLong { bytes: message.len() });
        }
        self.connection()
            .call(xid, P::NUMBER, message, Wait { class: options.class, offered, until })
            .await
    }

    /// Calls procedure 0, which does nothing, and waits for its reply.
    ///
    /// # Errors
    /// [`RpcError`]
    pub async fn ping(&self) -> Result<(), RpcError> {
        self.inner.shared.ping(self.connection()).await
    }

    /// The least loaded connection, of those that are connected if there are any.
    fn connection(&self) -> &Connection {
        let connections = &self.inner.connections;
        match connections.as_slice() {
            [only] => only,
            several => several
                .iter()
                .min_by_key(|connection| connection.load())
                .expect("there is at least one connection"),
        }
    }

    /// How it was configured.
    pub fn config(&self) -> &Config {
        &self.inner.shared.config
    }

    /// Whether the server answered the last time it was asked.
    pub fn reachable(&self) -> bool {
        matches!(*self.inner.shared.state.borrow(), ServerState::Reachable)
    }

    /// Follows whether the server answers.
    pub fn state(&self) -> watch::Receiver<ServerState> {
        self.inner.shared.state.subscribe()
    }

    /// The accounts so far.
    pub fn stats(&self) -> Snapshot {
        Snapshot {
            procedures: self.inner.shared.procedures.snapshot(),
            connections: self.inner.connections.iter().map(|one| one.snapshot()).collect(),
        }
    }

    /// Begins to record what each connection does, in slices of `width`. Whoever asks for a
    /// recording takes from it often enough: see [`Slice::dropped`](crate::Slice::dropped).
    ///
    /// # Errors
    /// [`RecordError`]
    pub fn record(&self, width: Duration) -> Result<Recording, RecordError> {
        Recording::begin(Arc::clone(&self.inner) as Arc<dyn Recorded>, width)
    }

    /// Ends all calls with [`RpcError::Shutdown`], now and later. Does not block.
    pub fn shutdown(&self) {
        self.inner.shut_down();
    }
}

impl Recorded for Inner {
    fn each(&self, look: &mut dyn FnMut(&mut Recorders, &Moment)) {
        self.connections.iter().for_each(|connection| connection.recorders(look));
    }

    fn now(&self) -> Instant {
        self.shared.now()
    }

    fn is_over(&self) -> bool {
        *self.shared.shutdown.borrow()
    }
}

impl Inner {
    fn shut_down(&self) {
        self.shared.shutdown.send_replace(true);
        self.connections.iter().for_each(|connection| connection.close());
    }
}

impl Shared {
    fn now(&self) -> Instant {
        self.config.clock.instant()
    }

    /// Something was heard from the server.
    fn heard(&self) {
        if matches!(*self.state.borrow(), ServerState::Reachable) {
            return;
        }
        let was = self.state.send_replace(ServerState::Reachable);
        if let ServerState::Unreachable { since } = was {
            let seconds = (self.now() - since).as_secs_f32();
            tracing::info!("server {} OK again after {seconds:.1} s", self.config.server);
        }
    }

    /// The server does not answer, nor has it `since`.
    fn lost(&self, since: Instant) {
        let mut was_reachable = false;
        self.state.send_if_modified(|state| {
            was_reachable = *state == ServerState::Reachable;
            // A call may have waited for longer than the connection was being made anew.
            let earlier = |known: Instant| known.min(since);
            let since = state.silent_since().map_or(since, earlier);
            let before = std::mem::replace(state, ServerState::Unreachable { since });
            before != *state
        });
        if was_reachable && !*self.shutdown.borrow() {
            tracing::warn!("server {} not responding, still trying", self.config.server);
        }
    }

    /// Since when the server has been asked in vain, if it has.
    fn silent_since(&self) -> Option<Instant> {
        self.state.borrow().silent_since()
    }

    /// When a call that was `offered` then fails, if it does not wait for the server.
    fn until(
        &self,
        offered: Instant,
        caller: Option<Instant>,
        silent: Option<Instant>,
    ) -> Option<Instant> {
        let is_soft = self.config.recovery == Recovery::Soft;
        is_soft.then(|| gives_up(offered, self.config.limit(), caller, silent))
    }

    fn next_xid(&self) -> Xid {
        Xid(self.xid.fetch_add(1, Relaxed))
    }

    async fn ping(&self, connection: &Connection) -> Result<(), RpcError> {
        let xid = self.next_xid();
        let mut out = Encoder::new(self.config.transport.framing(), 64);
        let header = CallHeader {
            xid,
            program: self.config.program.number,
            version: self.config.program.version,
            procedure: 0,
            credential: Credential::None,
        };
        header.encode(&mut out);
        // It may be how the return of a silent server is found out.
        let offered = self.now();
        let wait =
            Wait { class: TimerClass::FIXED, offered, until: self.until(offered, None, None) };
        connection.call(xid, 0, out.finish(), wait).await.map(drop)
    }

    /// Resolves when the client is shut down.
    async fn until_shutdown(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.shutdown.subscribe().wait_for(|shutdown| *shutdown).await;
    }
}

/// Our name, as far as it fits.
fn machine_name(config: &Config) -> Opaque<MACHINE_NAME_BYTES_MAX> {
    let name = config.machine_name.as_bytes();
    Opaque::copy_from_slice(&name[..name.len().min(MACHINE_NAME_BYTES_MAX)])
}

/// Asks a server that does not answer again and again, until the client is shut down.
async fn probe(shared: Arc<Shared>, connection: Arc<Connection>) {
    let (clock, mut state) = (&shared.config.clock, shared.state.subscribe());
    loop {
        let lost = state.wait_for(|state| *state != ServerState::Reachable);
        tokio::select! {
            biased;
            () = shared.until_shutdown() => return,
            // The sender lives in `shared`, so waiting cannot fail.
            _ = lost => (),
        }
        let mut backoff = retry_pauses();
        while *shared.state.borrow() != ServerState::Reachable {
            let ping = shared.ping(&connection);
            let ping = clock.timeout(shared.config.timeout, ping);
            match ping.await {
                Ok(Err(RpcError::Shutdown)) => return,
                // Whatever else came of it, the connection has noted what it heard.
                Ok(_) | Err(_) => clock.sleep(backoff.pause()).await,
            }
        }
    }
}

/// For xids, ports and verifiers: unlike those of this program's previous life, and not secret.
pub fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    // Cannot fail for so few bytes but on kernels without the call; then they start at 0.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests;

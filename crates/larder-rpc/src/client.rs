//! The client: calls to one program on one server, over TCP or UDP (RFC 5531).
//!
//! [`RpcClient`] keeps several connections ([`Config::connections`]) and many calls in flight on
//! each. A call is encoded once; its small values and its payload leave in one vectored write, on
//! the caller's own thread if nothing else is being sent. The kernel copies a reply's payload
//! straight into the buffer that is passed up.
//!
//! Promises:
//! - **A call ends.** [`Recovery::Soft`] calls fail after [`Config::limit`], at the deadline of the
//!   caller if that comes first, and at once while the server has been silent for the limit.
//!   [`Recovery::Hard`] ones wait for the server however long it takes, but dropping their future
//!   or [`RpcClient::shutdown`] ends them at once.
//! - **A reply is to its call.** Retransmissions and replays after a reconnect carry the same xid,
//!   so that a server's duplicate request cache recognises them; [`Reply::transmissions`] says that
//!   the call may have been carried out before its reply was made.
//! - **Bounded memory.** Replies have a largest size, calls in flight a window, idle buffers a
//!   limit.
//!
//! The client counts what it does: by procedure and connection since the start
//! ([`RpcClient::stats`]), and, on request, slice by slice of time ([`RpcClient::record`]).
//!
//! [`ServerState`] says whether the server answers. Calls find that out and, while it does not
//! answer, a probe; each change is logged once.
//!
//! Absent on purpose: RPCSEC_GSS, and the meaning of the procedures.

mod callbacks;
mod config;
mod connection;
mod endpoints;
mod errors;
mod pool;
mod retry;
mod shared;
mod socket;
mod tls_socket;

pub use callbacks::Callbacks;
pub use config::{Config, Recovery, SourcePort};
pub use connection::{CALLBACK_BYTES_MAX, Reply};
pub use endpoints::Endpoint;
pub use errors::{ConnectError, RpcError};
pub use retry::TimerClass;
pub use shared::ServerState;

use crate::patience::retry_pauses;
use crate::program::{DATAGRAM_BYTES_MAX, Transport};
use crate::series::{Moment, RecordError, Recorded, Recorders, Recording};
use crate::stats::{self, Snapshot};
use bytes::Bytes;
use connection::{Connection, Wait};
use endpoints::Endpoints;
use larder_wire::Procedure;
use larder_wire::rpc::{
    AuthSys, CallHeader, Credential, GROUPS_MAX, MACHINE_NAME_BYTES_MAX, encode_call,
};
use larder_wire::xdr::{Array, Decode, Encode, Encoder, Opaque};
use shared::Shared;
use socket::Socket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The parameters of one call besides its arguments.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    /// Which round-trip estimate applies (UDP).
    pub class: TimerClass,
    /// Fail at once with [`RpcError::Unreachable`] while the server is known to be gone.
    pub fail_fast: bool,
    /// When the caller gives up; a [`Recovery::Hard`] call waits on.
    pub deadline: Option<Instant>,
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

impl RpcClient {
    /// Connects to the server, on the tokio runtime of the caller. Over UDP this says nothing of
    /// the server: [`ping`](Self::ping) does.
    ///
    /// # Errors
    /// [`ConnectError`], if the first connection cannot be made within ten seconds, or the
    /// configured limit, for each endpoint. The others are made in the background.
    pub async fn connect(config: Config) -> Result<RpcClient, ConnectError> {
        let (first, endpoint) = Box::pin(Socket::first(&config)).await?;
        let shared = Arc::new(Shared {
            procedures: stats::Procedures::new(config.program.procedures),
            state: watch::Sender::new(ServerState::Reachable),
            shutdown: watch::Sender::new(false),
            pool: Arc::default(),
            machine_name: machine_name(&config),
            // Servers take an xid that they have seen recently for a retransmission, even if an
            // earlier process of this client sent it.
            xid: AtomicU32::new(crate::random::random_u64() as u32),
            endpoints: Endpoints::new(endpoint),
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

    /// The credential for a user's calls. It carries only the first sixteen groups: more do not
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
    /// If the future is dropped, the call is given up; the server may still execute it.
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

    /// Calls a procedure and returns its results undecoded: the reply without its RPC header.
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
        ping(&self.inner.shared, self.connection()).await
    }

    /// The least loaded connection; one that is connected, if there is any.
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

    /// The client's configuration.
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

    /// The counters so far.
    pub fn stats(&self) -> Snapshot {
        Snapshot {
            procedures: self.inner.shared.procedures.snapshot(),
            connections: self.inner.connections.iter().map(|one| one.snapshot()).collect(),
        }
    }

    /// Starts a recording of what each connection does, in slices of `width`. The caller must take
    /// slices often enough: see [`Slice::dropped`](crate::Slice::dropped).
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

/// Calls procedure 0 on a connection.
async fn ping(shared: &Shared, connection: &Connection) -> Result<(), RpcError> {
    let xid = shared.next_xid();
    let mut out = Encoder::new(shared.config.transport.framing(), 64);
    let header = CallHeader {
        xid,
        program: shared.config.program.number,
        version: shared.config.program.version,
        procedure: 0,
        credential: Credential::None,
    };
    header.encode(&mut out);
    // The ping may be what finds out that a silent server has returned.
    let offered = shared.now();
    let wait = Wait { class: TimerClass::FIXED, offered, until: shared.until(offered, None, None) };
    connection.call(xid, 0, out.finish(), wait).await.map(drop)
}

/// The machine's name, cut to the length that AUTH_SYS allows.
fn machine_name(config: &Config) -> Opaque<MACHINE_NAME_BYTES_MAX> {
    let name = config.machine_name.as_bytes();
    Opaque::copy_from_slice(&name[..name.len().min(MACHINE_NAME_BYTES_MAX)])
}

/// Pings a server that does not answer, until it answers or the client is shut down.
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
            let ping = ping(&shared, &connection);
            let ping = clock.timeout(shared.config.timeout, ping);
            match ping.await {
                Ok(Err(RpcError::Shutdown)) => return,
                // Whatever the result, the connection has recorded that it heard from the server.
                Ok(_) | Err(_) => clock.sleep(backoff.pause()).await,
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! From a message to its reply, on any transport.
//!
//! A message is checked in the order of RFC 5531, 9: that it is a call, in our version of RPC, with
//! a credential that can be decoded, to a program, version and procedure of ours, by a caller who
//! is admitted; then whether it came before ([`super::duplicates`]); then the procedure runs. What
//! RPC cannot answer is not answered.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use bytes::Bytes;
use larder_io::Clock;
use larder_wire::record::MARK_BYTES;
use larder_wire::rpc::{
    AUTH_BADCRED, AUTH_TOOWEAK, CallError, CallHeader, Outcome, ReplyHeader, Xid, encode_reply,
};
use larder_wire::xdr::{Decode, Encode, Encoder, Framing, Segments};

use super::backchannel::Backchannel;
use super::config::{Config, SourcePorts};
use super::counters::{CallbackCounts, Counters, Stats};
use super::duplicates::{Duplicates, Key, Verdict};
use super::owner;
use crate::program::{Program, Transport};

/// The version of RPC that we speak (RFC 5531, 9).
const RPC_VERSION: u32 = 2;
/// Longest answer over UDP to an unproven sender, unless the call was longer: if the address was
/// forged, its owner gets little more than was sent in its name.
const UNPROVEN_REPLY_BYTES_MAX: usize = 128;
/// First port that any user may bind.
const UNRESERVED_PORT: u16 = 1024;

/// The programs of a server, and how calls to them are handled.
///
/// A service is called on the task that read the call, so an answer that needs no waiting costs no
/// change of thread.
pub trait Service: Send + Sync + 'static {
    /// The caller, as the service sees it.
    type Caller: Send;

    /// The programs that are served.
    fn programs(&self) -> &[Program];

    /// Checks the credential of a call to one of [`programs`](Self::programs).
    ///
    /// # Errors
    /// The reply to a caller that is refused; usually [`Outcome::AuthError`].
    fn admit(&self, header: &CallHeader) -> Result<Self::Caller, Outcome>;

    /// Whether executing a procedure again has the same effect (idempotence). Replies to other
    /// procedures are kept for a while, and returned again to a client that repeats the call.
    fn is_repeatable(&self, _program: u32, _procedure: u32) -> bool {
        false
    }

    /// Whether a program answers senders that have not yet proved that they receive our replies.
    /// Over UDP, where addresses can be forged, such answers are not much longer than their calls.
    fn answers_anybody(&self, _program: u32) -> bool {
        false
    }

    /// Most bytes of data in the results of a call, without the few hundred bytes that any results
    /// may have. `call` is the whole message, not checked yet.
    fn results_bytes_max(&self, _program: u32, _procedure: u32, _call: &[u8]) -> usize {
        0
    }

    /// Whether the service calls its callers back, on their connections ([`Call::backchannel`]).
    fn calls_back(&self) -> bool {
        false
    }

    /// Executes a call. It must be safe to drop the future.
    fn call(&self, call: Call<Self::Caller>) -> impl Future<Output = Answer> + Send;
}

/// Where a message came from.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The address of its sender.
    pub address: SocketAddr,
    /// The transport that brought it.
    pub transport: Transport,
    /// Its messages come over TLS, and it has presented a certificate if the server requires one.
    pub is_encrypted: bool,
    /// Whether its calls are executed, as far as its port or its socket's owner decides that.
    pub(crate) admitted: bool,
}

impl Peer {
    /// Reads two files in `/proc` if `ports` requires the owner of a socket of this machine.
    pub(crate) fn new(address: SocketAddr, transport: Transport, ports: SourcePorts) -> Peer {
        let admitted = match ports {
            SourcePorts::Any => true,
            SourcePorts::Reserved => {
                address.port() < UNRESERVED_PORT || owner::is_root(address, transport)
            }
        };
        Peer { address, transport, is_encrypted: false, admitted }
    }

    /// A server that calls us back over a connection that we made.
    pub(crate) fn server(address: SocketAddr) -> Peer {
        Peer { address, transport: Transport::Tcp, is_encrypted: false, admitted: true }
    }

    fn framing(&self) -> Framing {
        self.transport.framing()
    }
}

/// A call to an existing procedure, by an admitted caller.
#[derive(Debug)]
pub struct Call<C> {
    /// Program, version and procedure.
    pub header: CallHeader,
    /// The caller, as [`Service::admit`] returned it.
    pub caller: C,
    /// The sender of the call.
    pub peer: Peer,
    /// The backchannel to the caller, if the service [calls back](Service::calls_back) and the
    /// call came over TCP.
    pub backchannel: Option<Backchannel>,
    arguments: Bytes,
}

impl<C> Call<C> {
    /// Decodes the arguments. To be called once.
    ///
    /// # Errors
    /// The answer if they cannot be decoded.
    pub fn arguments<A: Decode>(&mut self) -> Result<A, Answer> {
        A::decode(&mut self.arguments).map_err(|_| self.refuse(Outcome::GarbageArgs))
    }

    /// The answer of a procedure that ran. `failed` says whether its status is other than success,
    /// for the counters.
    pub fn reply(&self, results: &impl Encode, failed: bool) -> Answer {
        let header = ReplyHeader { xid: self.header.xid, outcome: Outcome::Success };
        Answer { reply: encode_reply(header, results, self.peer.framing()), failed }
    }

    /// The answer to a call whose procedure did not run.
    pub fn refuse(&self, outcome: Outcome) -> Answer {
        refuse(self.header.xid, outcome, self.peer.framing())
    }
}

/// A reply, ready to be sent.
#[derive(Debug)]
pub struct Answer {
    reply: Segments,
    /// Whether its status is other than success.
    failed: bool,
}

/// Passes calls to a service: everything that the transports share.
#[derive(Debug)]
pub struct Dispatcher<S> {
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    pub(super) callbacks: Arc<CallbackCounts>,
    service: S,
    duplicates: Mutex<Duplicates>,
}

impl<S: Service> Dispatcher<S> {
    /// A dispatcher to `service`. It does not listen: [`Server`](super::Server) does, or a caller
    /// brings the messages ([`answer`](Self::answer)).
    pub fn new(config: Config, service: S) -> Dispatcher<S> {
        let counters = Counters::new(service.programs());
        let callbacks = Arc::default();
        Dispatcher { config, counters, callbacks, service, duplicates: Mutex::default() }
    }

    /// Counts of served calls since the start.
    pub fn stats(&self) -> Stats {
        let CallbackCounts { calls, failed, strays } = &*self.callbacks;
        Stats {
            callbacks: calls.load(Relaxed),
            callbacks_failed: failed.load(Relaxed),
            stray_replies: strays.load(Relaxed),
            ..self.counters.snapshot()
        }
    }

    /// Serves one message as if it were a datagram from `address`. `None` if it gets no reply.
    pub async fn answer(self: Arc<Self>, address: SocketAddr, message: Bytes) -> Option<Bytes> {
        let peer = Peer::new(address, Transport::Udp, self.config.source_ports);
        let reply = self.serve(peer, message, None, || ()).await?;
        Some(reply.to_bytes())
    }

    pub(crate) fn service(&self) -> &S {
        &self.service
    }

    /// Whether messages from this address are read.
    pub(crate) fn allows(&self, address: IpAddr) -> bool {
        self.config.allow.iter().any(|network| network.contains(address))
    }

    /// Serves one message. `None` if it gets no answer. `on_good` is called before the execution of
    /// a call to one of our procedures by an admitted caller.
    ///
    /// The future may be dropped: a call that was begun may then be tried again.
    pub(crate) async fn serve(
        self: Arc<Self>,
        peer: Peer,
        message: Bytes,
        backchannel: Option<Backchannel>,
        on_good: impl FnOnce() + Send,
    ) -> Option<Segments> {
        let mut arguments = message.clone();
        let framing = peer.framing();
        let header = match CallHeader::decode(&mut arguments) {
            Ok(header) => header,
            Err(error) => {
                self.counters.refused.fetch_add(1, Relaxed);
                return refusal(&error, framing).map(|answered| answered.reply);
            }
        };
        let (program, procedure, xid) = (header.program, header.procedure, header.xid);
        let Some(index) = self.find(program, header.version) else {
            self.counters.refused.fetch_add(1, Relaxed);
            return Some(refuse(xid, Outcome::ProgUnavail, framing).reply);
        };
        self.counters.call(index, procedure, message.len());
        let admitted = self.admit(&header, index, peer);
        if admitted.is_ok() && peer.admitted {
            on_good();
        }
        let answered = match admitted {
            Err(outcome) => {
                self.counters.refused.fetch_add(1, Relaxed);
                refuse(xid, outcome, framing)
            }
            Ok(caller) => {
                let call = Call { header, caller, peer, backchannel, arguments };
                if self.service.answers_anybody(program) {
                    let answered = self.service.call(call).await;
                    let bytes_max = message.len().max(UNPROVEN_REPLY_BYTES_MAX);
                    let long = peer.transport == Transport::Udp && answered.reply.len() > bytes_max;
                    if long { refuse(xid, Outcome::SystemErr, framing) } else { answered }
                } else if self.service.is_repeatable(program, procedure) {
                    self.service.call(call).await
                } else {
                    self.serve_once(call, &message).await?
                }
            }
        };
        self.counters.reply(index, procedure, answered.reply.len(), answered.failed);
        Some(answered.reply)
    }

    /// The service's program with this number and version; failing that, the first with this
    /// number.
    fn find(&self, number: u32, version: u32) -> Option<usize> {
        let programs = self.service.programs();
        let exact = |one: &Program| (one.number, one.version) == (number, version);
        let first = || programs.iter().position(|one| one.number == number);
        programs.iter().position(exact).or_else(first)
    }

    /// Checks that the program at `index` has the procedure, and that its caller is admitted.
    fn admit(&self, header: &CallHeader, index: usize, peer: Peer) -> Result<S::Caller, Outcome> {
        let programs = self.service.programs();
        let program = &programs[index];
        debug_assert_eq!(
            program.number, header.program,
            "the call is to the program that was found"
        );
        if header.version != program.version {
            let versions = || programs.iter().filter(|one| one.number == program.number);
            let low = versions().map(|one| one.version).min().unwrap_or(program.version);
            let high = versions().map(|one| one.version).max().unwrap_or(program.version);
            return Err(Outcome::ProgMismatch { low, high });
        }
        if header.procedure as usize >= program.procedures.len() {
            return Err(Outcome::ProcUnavail);
        }
        // Every caller may ask whether the server is there (RFC 5531, 12.1).
        if header.procedure != 0 && !peer.admitted {
            return Err(Outcome::AuthError(AUTH_TOOWEAK));
        }
        if header.procedure != 0 && self.wants_tls(peer) {
            return Err(Outcome::AuthError(AUTH_TOOWEAK));
        }
        self.service.admit(header)
    }

    /// Whether a peer must use TLS and does not.
    fn wants_tls(&self, peer: Peer) -> bool {
        !peer.is_encrypted && self.config.tls.as_ref().is_some_and(|tls| tls.is_required)
    }

    /// Serves a call that must not be executed twice.
    async fn serve_once(&self, call: Call<S::Caller>, message: &Bytes) -> Option<Answer> {
        let peer = call.peer;
        let (key, verdict) = self.judge(&call.header, peer, message);
        let earlier = match verdict {
            Verdict::New => None,
            Verdict::Done(reply) => Some(reply),
            // Over UDP the client asks again soon. Over TCP it has reconnected, and may not ask
            // again for a long time.
            Verdict::Running(_) if peer.transport == Transport::Udp => {
                self.counters.dropped.fetch_add(1, Relaxed);
                return None;
            }
            Verdict::Running(mut reply) => {
                let reply = reply.wait_for(Option::is_some).await.ok()?;
                reply.clone()
            }
        };
        if let Some(reply) = earlier {
            self.counters.replayed.fetch_add(1, Relaxed);
            return Some(replay(&reply, peer.framing()));
        }
        let (duplicates, clock) = (&self.duplicates, &*self.config.clock);
        debug_assert!(
            !self.service.is_repeatable(call.header.program, call.header.procedure),
            "replies to calls that may be repeated are not kept"
        );
        let mut underway = Underway { duplicates, clock, key, reply: None };
        let answered = self.service.call(call).await;
        underway.reply = Some(unframed(&answered.reply, peer.framing()));
        Some(answered)
    }

    /// Whether the call is a retransmission.
    fn judge(&self, header: &CallHeader, peer: Peer, message: &Bytes) -> (Key, Verdict) {
        let mut duplicates = lock(&self.duplicates);
        let key = duplicates.key(peer.address.ip(), header.xid.0, message);
        (key, duplicates.begin(key, self.config.clock.instant()))
    }
}

fn lock(duplicates: &Mutex<Duplicates>) -> MutexGuard<'_, Duplicates> {
    duplicates.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of a future if it is ready at the first poll. If not, it must be polled again,
/// perhaps by another task.
pub(crate) async fn poll_once<T>(mut future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// A call in execution. If its future is dropped or panics, the call may be tried again.
struct Underway<'a> {
    duplicates: &'a Mutex<Duplicates>,
    clock: &'a dyn Clock,
    key: Key,
    reply: Option<Bytes>,
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        let reply = self.reply.take();
        lock(self.duplicates).finish(self.key, reply, self.clock.instant());
    }
}

fn refuse(xid: Xid, outcome: Outcome, framing: Framing) -> Answer {
    let reply = ReplyHeader { xid, outcome };
    Answer { reply: encode_reply(reply, &(), framing), failed: true }
}

/// The answer to a message that is not a valid call.
fn refusal(error: &CallError, framing: Framing) -> Option<Answer> {
    match error {
        CallError::Malformed(_) => None,
        CallError::RpcVersion { xid, .. } => {
            let versions = Outcome::RpcMismatch { low: RPC_VERSION, high: RPC_VERSION };
            Some(refuse(*xid, versions, framing))
        }
        CallError::Credential { xid, .. } => {
            Some(refuse(*xid, Outcome::AuthError(AUTH_BADCRED), framing))
        }
    }
}

/// A reply without its record mark: it may be sent again over another transport.
fn unframed(reply: &Segments, framing: Framing) -> Bytes {
    let bytes = reply.to_bytes();
    match framing {
        Framing::Record => {
            assert!(bytes.len() > MARK_BYTES, "a reply in a record has its mark");
            bytes.slice(MARK_BYTES..)
        }
        Framing::Datagram => bytes,
    }
}

/// A reply that was sent before.
fn replay(message: &Bytes, framing: Framing) -> Answer {
    let mut out = Encoder::new(framing, MARK_BYTES + message.len());
    out.put_fixed(message);
    Answer { reply: out.finish(), failed: false }
}

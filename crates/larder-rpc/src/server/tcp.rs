//! A TCP connection: records in, replies out, in whatever order they are ready.
//!
//! One task reads. It answers at once what the service answers at once; longer work continues in a
//! task of its own. Replies that become ready together leave together.
//!
//! Invariants:
//! - Requests in flight and replies not yet accepted by the kernel cost at most [`WINDOW_KIB`] by
//!   [`cost_kib`], which is no less than they hold; beyond that nothing is read. In addition one
//!   record is being assembled.
//! - If the service calls back, the client's replies follow its calls on the stream. So calls for
//!   which the window has no room are parked, up to [`PARKED_BYTES_MAX`], and reading continues:
//!   otherwise two clients, each with a full window of calls that wait for the other's reply, would
//!   wait for ever.
//! - A reply is written whole or the connection ends.
//! - A caller that will not be served ([`super::admission`]) costs some KiB, and that for at most
//!   [`Config::first_call_max`](super::Config::first_call_max).

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use larder_io::Elapsed;
use larder_wire::record::{Heap, RecordAssembler};
use larder_wire::rpc::{AUTH_TLS, CallHeader, Credential, MessageKind, Xid, encode_starttls};
use larder_wire::xdr::Framing;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, OwnedSemaphorePermit, watch};
use tokio_rustls::server::TlsStream;

use super::admission::{Admission, Newcomer, Source, Verdict};
use super::backchannel::Backchannel;
use super::dispatch::{Dispatcher, Peer, Service, poll_once};
use super::outbox::{BATCH_BYTES_MAX, Outbox, WINDOW_KIB, Writer};
use crate::program::Transport;

/// Cost of the smallest call, in KiB; at most 256 such calls are in flight.
const CALL_KIB_MIN: u32 = 32;
/// Bytes taken from the socket at a time, unless a large record is read in place.
const READ_BYTES: usize = 64 << 10;
/// Longest record of a stranger, and the bytes read from its socket at a time: enough for calls of
/// procedure 0, which ask whether the server is there.
const STRANGER_BYTES_MAX: usize = 1024;
/// The rest of a record is read in place if it has at least this many bytes.
const IN_PLACE_BYTES_MIN: usize = 16 << 10;
/// Most bytes of calls that wait for room in the window, if the service calls back. At the limit,
/// nothing more is read.
const PARKED_BYTES_MAX: usize = 4 << 20;
/// What such a call counts in addition to its bytes: its memory, so that empty calls count as well.
const PARKED_CALL_BYTES: usize = 128;
/// A connection that brought nothing for this long is closed, as Linux does; clients reconnect.
const IDLE_MAX: Duration = Duration::from_secs(6 * 60);
/// Pause after a failed accept, before connections are accepted again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves a connection until its end. After `shutdown` becomes true, it ends when all replies are
/// sent.
async fn serve<S: Service>(
    dispatcher: Arc<Dispatcher<S>>,
    stream: TcpStream,
    peer: Peer,
    standing: Standing,
    shutdown: watch::Receiver<bool>,
) {
    // Replies are written whole; delaying them to fill packets would only cost time.
    if let Err(cause) = stream.set_nodelay(true) {
        tracing::debug!(%cause, "no TCP_NODELAY");
    }
    let (reader, writer) = stream.into_split();
    let connection = Connection::new(&dispatcher, peer, &standing, Writer::Tcp(writer));
    let ended = connection.run(reader, &shutdown).await;
    let Ok(Ended::Tls(xid, reader)) = ended else { return connection.end(ended).await };
    let Some(writer) = connection.into_writer() else { return };
    let Writer::Tcp(writer) = writer else { return };
    let securing = secure(&dispatcher, reader, writer, xid);
    let limit = dispatcher.config.first_call_max;
    let secured = dispatcher.config.clock.timeout(limit, securing).await;
    match secured.map_err(too_late).flatten() {
        Ok(stream) => {
            let (reader, writer) = tokio::io::split(stream);
            let peer = Peer { is_encrypted: true, ..peer };
            let writer = Writer::Tls(writer);
            let connection = Connection::new(&dispatcher, peer, &standing, writer);
            let ended = connection.run(reader, &shutdown).await;
            connection.end(ended).await;
        }
        Err(cause) => tracing::debug!(peer = %peer.address, %cause, "no TLS"),
    }
}

/// Confirms that TLS is spoken, and shakes hands.
async fn secure<S: Service>(
    dispatcher: &Dispatcher<S>,
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    xid: Xid,
) -> io::Result<TlsStream<TcpStream>> {
    let tls = dispatcher.config.tls.as_ref().ok_or(io::ErrorKind::Unsupported)?;
    let mut stream = reader.reunite(writer).map_err(io::Error::other)?;
    stream.write_all(&encode_starttls(xid, Framing::Record).to_bytes()).await?;
    tls.acceptor.accept(stream).await
}

/// How a connection ended.
enum Ended<R> {
    /// It is closed.
    Over,
    /// Its first call asks for TLS.
    Tls(Xid, R),
}

struct Connection<S: Service> {
    dispatcher: Arc<Dispatcher<S>>,
    peer: Peer,
    standing: Standing,
    outbox: Arc<Outbox>,
    /// The backchannel, if the service calls back.
    backchannel: Closing,
}

/// Closes a backchannel when replies are no longer read.
struct Closing(Option<Backchannel>);

impl Drop for Closing {
    fn drop(&mut self) {
        if let Some(backchannel) = &self.0 {
            backchannel.close();
        }
    }
}

/// What the acceptor and a connection report to each other.
#[derive(Clone, Default)]
struct Standing {
    /// A good call came.
    proven: Arc<AtomicBool>,
    /// The connection must be closed in favour of another.
    displaced: Arc<Notify>,
}

impl<S: Service> Connection<S> {
    fn new(
        dispatcher: &Arc<Dispatcher<S>>,
        peer: Peer,
        standing: &Standing,
        writer: Writer,
    ) -> Connection<S> {
        let outbox = Arc::new(Outbox::new(writer, &dispatcher.config.clock));
        let backchannel = (dispatcher.service().calls_back() && peer.admitted)
            .then(|| Backchannel::new(&outbox, &dispatcher.config.clock, &dispatcher.callbacks));
        let (dispatcher, standing) = (Arc::clone(dispatcher), standing.clone());
        Connection { dispatcher, peer, standing, outbox, backchannel: Closing(backchannel) }
    }

    /// Sends the answers of the calls in flight.
    async fn end<R>(self, ended: io::Result<Ended<R>>) {
        if let Err(cause) = ended {
            tracing::debug!(peer = %self.peer.address, %cause, "connection closed");
        }
        let Connection { outbox, backchannel, .. } = self;
        drop(backchannel);
        outbox.drain().await;
    }

    /// The stream that it wrote to, if no call is in flight.
    fn into_writer(self) -> Option<Writer> {
        let Connection { outbox, .. } = self;
        Some(Arc::into_inner(outbox)?.into_writer())
    }

    /// Whether a record, the first of an unencrypted connection, asks for TLS and TLS is offered.
    fn asks_for_tls(&self, record: &Bytes) -> Option<Xid> {
        self.dispatcher.config.tls.as_ref().filter(|_| self.peer.admitted)?;
        let header = CallHeader::decode(&mut record.clone()).ok()?;
        let is_tls = matches!(header.credential, Credential::Other { flavor: AUTH_TLS, .. });
        (is_tls && header.procedure == 0 && !self.peer.is_encrypted).then_some(header.xid)
    }

    /// Longest record, and the bytes taken from the socket at a time.
    fn sizes(&self) -> (usize, usize) {
        match self.peer.admitted {
            true => (self.dispatcher.config.record_bytes_max, READ_BYTES),
            false => (STRANGER_BYTES_MAX, STRANGER_BYTES_MAX),
        }
    }

    /// Reads and starts calls. At shutdown only the reading is cancelled, never a reply that is
    /// being written.
    async fn run<R: AsyncRead + Unpin>(
        &self,
        mut reader: R,
        shutdown: &watch::Receiver<bool>,
    ) -> io::Result<Ended<R>> {
        let mut shutdown = shutdown.clone();
        let mut is_first = true;
        let (record_bytes_max, read_bytes) = self.sizes();
        let mut records = RecordAssembler::new(Heap, record_bytes_max);
        let mut buffer = vec![0; read_bytes];
        let (mut ready, mut parked) = (Vec::new(), Parked::default());
        let (clock, first_call_max) =
            (&self.dispatcher.config.clock, self.dispatcher.config.first_call_max);
        // A stranger never makes a good call: for it, this is how long the connection may last.
        let mut first_call_until = (!self.peer.admitted).then(|| clock.instant() + first_call_max);
        loop {
            let gap = records.gap();
            let in_place = gap.len() >= IN_PLACE_BYTES_MIN;
            let proven = self.standing.proven.load(Relaxed);
            let until = first_call_until.filter(|_| !proven);
            let until = until.unwrap_or_else(|| clock.instant() + IDLE_MAX);
            let target = if in_place { gap } else { &mut buffer };
            let cost_kib = parked.calls.front().map(|call| self.cost_kib(call));
            let event = tokio::select! {
                read = clock.timeout_at(until, reader.read(target)),
                    if parked.calls.is_empty() || parked.bytes <= PARKED_BYTES_MAX =>
                {
                    Event::Read(read.map_err(too_late)??)
                }
                permit = self.outbox.room(cost_kib.unwrap_or_default()), if cost_kib.is_some() => {
                    Event::Room(permit)
                }
                () = self.outbox.broken.notified() => return Ok(Ended::Over),
                () = self.standing.displaced.notified() => return Ok(Ended::Over),
                // An error means that the server was dropped, which counts as shutdown.
                _ = shutdown.wait_for(|down| *down) => return Ok(Ended::Over),
            };
            let count = match event {
                Event::Read(0) => return Ok(Ended::Over),
                Event::Read(count) => count,
                Event::Room(permit) => {
                    if let Some(call) = parked.pop() {
                        self.begin(call, permit).await;
                        self.outbox.flush().await;
                    }
                    continue;
                }
            };
            first_call_until.get_or_insert_with(|| clock.instant() + first_call_max);
            let mut deliver = |record| ready.push(record);
            if in_place {
                records.fill(count, &mut deliver);
            } else {
                let pushed = records.push(&buffer[..count], &mut deliver);
                pushed.map_err(|cause| io::Error::new(io::ErrorKind::InvalidData, cause))?;
            }
            if let Some(record) = ready.first().filter(|_| std::mem::take(&mut is_first))
                && let Some(xid) = self.asks_for_tls(record)
            {
                // Bytes that have already arrived were not sent by the peer of the handshake that
                // follows.
                let is_alone = ready.len() == 1 && records.is_between();
                return if is_alone { Ok(Ended::Tls(xid, reader)) } else { Ok(Ended::Over) };
            }
            for record in ready.drain(..) {
                self.take(record, &mut parked).await;
            }
            self.outbox.flush().await;
        }
    }

    /// A record arrived.
    async fn take(&self, record: Bytes, parked: &mut Parked) {
        let Some(backchannel) = &self.backchannel.0 else {
            let permit = self.outbox.admit(self.cost_kib(&record)).await;
            return self.begin(record, permit).await;
        };
        if MessageKind::of(&record) == Some(MessageKind::Reply) {
            backchannel.deliver(record);
            return;
        }
        let permit = match parked.calls.is_empty() {
            true => self.outbox.try_admit(self.cost_kib(&record)),
            false => None,
        };
        match permit {
            Some(permit) => self.begin(record, permit).await,
            None => parked.push(record),
        }
    }

    fn cost_kib(&self, record: &[u8]) -> u32 {
        cost_kib(self.dispatcher.service(), record)
    }

    /// Answers a call, or starts to execute it.
    async fn begin(&self, record: Bytes, permit: OwnedSemaphorePermit) {
        let proven = Arc::clone(&self.standing.proven);
        let on_good = move || proven.store(true, Relaxed);
        let dispatcher = Arc::clone(&self.dispatcher);
        let back = self.backchannel.0.clone();
        let mut call = Box::pin(dispatcher.serve(self.peer, record, back, on_good));
        if let Some(reply) = poll_once(call.as_mut()).await {
            self.outbox.put(reply, permit);
            if self.outbox.waiting_bytes() > BATCH_BYTES_MAX {
                self.outbox.flush().await;
            }
            return;
        }
        let outbox = Arc::clone(&self.outbox);
        tokio::spawn(async move {
            outbox.put(call.await, permit);
            outbox.flush().await;
        });
    }
}

/// What a connection waits for.
enum Event {
    /// This many bytes arrived; 0 at the end.
    Read(usize),
    /// The window has room for the first waiting call.
    Room(OwnedSemaphorePermit),
}

/// Calls that wait for room in the window, in order of arrival.
#[derive(Default)]
struct Parked {
    calls: VecDeque<Bytes>,
    bytes: usize,
}

impl Parked {
    fn push(&mut self, call: Bytes) {
        self.bytes += PARKED_CALL_BYTES + call.len();
        self.calls.push_back(call);
    }

    fn pop(&mut self) -> Option<Bytes> {
        let call = self.calls.pop_front()?;
        self.bytes -= PARKED_CALL_BYTES + call.len();
        debug_assert_eq!(self.calls.is_empty(), self.bytes == 0);
        Some(call)
    }
}

/// What a call and its reply may occupy in memory, in KiB.
fn cost_kib(service: &impl Service, record: &[u8]) -> u32 {
    let unit = |at: usize| {
        record
            .get(at..at + 4)
            .map_or(0, |unit| u32::from_be_bytes([unit[0], unit[1], unit[2], unit[3]]))
    };
    // Program and procedure are at fixed offsets (RFC 5531, 9).
    let results_bytes = service.results_bytes_max(unit(12), unit(20), record);
    let kib = |bytes: usize| u32::try_from(bytes >> 10).unwrap_or(WINDOW_KIB).min(WINDOW_KIB / 4);
    CALL_KIB_MIN + kib(record.len()) + kib(results_bytes)
}

fn too_late(Elapsed: Elapsed) -> io::Error {
    io::ErrorKind::TimedOut.into()
}

/// Accepts connections until `shutdown` becomes true, then waits until they are drained.
pub(crate) async fn accept<S: Service>(
    dispatcher: Arc<Dispatcher<S>>,
    listener: tokio::net::TcpListener,
    shutdown: watch::Receiver<bool>,
) {
    let mut acceptor = Acceptor::new(dispatcher, shutdown.clone());
    let (clock, mut down) = (Arc::clone(&acceptor.dispatcher.config.clock), shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(ended) = acceptor.tasks.join_next() => {
                acceptor.ended(ended);
                continue;
            }
            _ = down.wait_for(|down| *down) => break,
        };
        match accepted {
            Ok((stream, address)) => acceptor.accepted(stream, address),
            Err(cause) => {
                // Most likely the process is out of descriptors: do not try again at once.
                tracing::warn!(%cause, "cannot accept a connection");
                clock.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while acceptor.tasks.join_next().await.is_some() {}
}

/// The connections of a listener.
struct Acceptor<S: Service> {
    dispatcher: Arc<Dispatcher<S>>,
    shutdown: watch::Receiver<bool>,
    admission: Admission,
    /// How to tell a connection that it must give way.
    displacing: HashMap<u64, Arc<Notify>>,
    /// Each answers its number when it has ended.
    tasks: tokio::task::JoinSet<u64>,
    next_number: u64,
}

impl<S: Service> Acceptor<S> {
    fn new(dispatcher: Arc<Dispatcher<S>>, shutdown: watch::Receiver<bool>) -> Acceptor<S> {
        let (all_max, source_max) =
            (dispatcher.config.connections_max, dispatcher.config.source_connections_max);
        Acceptor {
            dispatcher,
            shutdown,
            admission: Admission::new(all_max, source_max),
            displacing: HashMap::new(),
            tasks: tokio::task::JoinSet::new(),
            next_number: 0,
        }
    }

    /// Serves a connection, or drops it.
    fn accepted(&mut self, stream: TcpStream, address: std::net::SocketAddr) {
        if !self.dispatcher.allows(address.ip()) {
            tracing::warn!(%address, "a connection from a network that is not allowed was refused");
            return;
        }
        let peer = Peer::new(address, Transport::Tcp, self.dispatcher.config.source_ports);
        let standing = Standing::default();
        let newcomer = Newcomer {
            source: Source::new(address.ip()),
            stranger: !peer.admitted,
            proven: Arc::clone(&standing.proven),
        };
        let number = self.next_number;
        self.next_number += 1;
        match self.admission.come(number, newcomer) {
            Verdict::Admitted => {}
            Verdict::Instead(oldest) => {
                tracing::debug!(%address, "an older connection without a good call gives way");
                if let Some(displaced) = self.displacing.remove(&oldest) {
                    displaced.notify_one();
                }
            }
            Verdict::Refused => {
                tracing::warn!(%address, "a connection was refused: there are too many");
                return;
            }
        }
        self.dispatcher.counters.connections.fetch_add(1, Relaxed);
        self.displacing.insert(number, Arc::clone(&standing.displaced));
        let (dispatcher, shutdown) = (Arc::clone(&self.dispatcher), self.shutdown.clone());
        self.tasks.spawn(async move {
            // A call that fails by a mistake of ours ends its connection, and the count must be
            // right.
            let served = tokio::spawn(serve(dispatcher, stream, peer, standing, shutdown));
            if let Err(cause) = served.await
                && !cause.is_cancelled()
            {
                tracing::error!(%cause, "a connection failed");
            }
            number
        });
    }

    fn ended(&mut self, ended: Result<u64, tokio::task::JoinError>) {
        let number = match ended {
            Ok(number) => number,
            // The runtime ends, and with it the listener.
            Err(cause) if cause.is_cancelled() => return,
            Err(cause) => {
                panic!("the task that waits for a connection does nothing else: {cause}")
            }
        };
        self.admission.leave(number);
        self.displacing.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Program, RECORD_BYTES_MAX};
    use crate::server::{Answer, Call, Config};
    use larder_wire::rpc::{CallHeader, Outcome};

    /// A service whose results are as long as the call says at its end.
    struct Talkative;

    impl Service for Talkative {
        type Caller = ();

        fn programs(&self) -> &[Program] {
            &[Program { number: 7, version: 1, procedures: &["NULL", "TALK"] }]
        }

        fn admit(&self, _header: &CallHeader) -> Result<(), Outcome> {
            Ok(())
        }

        fn results_bytes_max(&self, program: u32, procedure: u32, call: &[u8]) -> usize {
            match (program, procedure, call.last_chunk()) {
                (7, 1, Some(last)) => u32::from_be_bytes(*last) as usize,
                _ => 0,
            }
        }

        async fn call(&self, call: Call<()>) -> Answer {
            call.reply(&(), false)
        }
    }

    /// Whoever ends the runtime ends its tasks, in any order.
    #[tokio::test]
    async fn a_connection_that_ends_with_the_runtime_is_no_mistake() {
        let config = Config::new(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
        let dispatcher = Arc::new(Dispatcher::new(config, Talkative));
        let mut acceptor = Acceptor::new(dispatcher, watch::channel(false).1);
        acceptor.tasks.spawn(std::future::pending());
        acceptor.tasks.abort_all();
        let ended = acceptor.tasks.join_next().await.unwrap();
        assert!(ended.as_ref().is_err_and(tokio::task::JoinError::is_cancelled));
        acceptor.ended(ended);
    }

    /// Records without any bytes are no way around the limit.
    #[test]
    fn calls_that_are_put_aside_count_however_short_they_are() {
        let mut parked = Parked::default();
        let calls = PARKED_BYTES_MAX / PARKED_CALL_BYTES + 1;
        (0..calls).for_each(|_| parked.push(Bytes::new()));
        assert!(parked.bytes > PARKED_BYTES_MAX);
        (0..calls).for_each(|_| assert!(parked.pop().is_some()));
        assert!(parked.pop().is_none());
    }

    #[test]
    fn what_a_call_costs_covers_what_it_holds() {
        let cost_kib = |record: &[u8]| cost_kib(&Talkative, record);
        assert_eq!(cost_kib(&[]), CALL_KIB_MIN);
        assert_eq!(cost_kib(&[0; 7]), CALL_KIB_MIN);
        let largest = vec![0xff; RECORD_BYTES_MAX];
        assert_eq!(cost_kib(&largest), CALL_KIB_MIN + (RECORD_BYTES_MAX >> 10) as u32);

        let mut read = vec![0; 128];
        read[12..16].copy_from_slice(&7u32.to_be_bytes());
        read[20..24].copy_from_slice(&1u32.to_be_bytes());
        read[124..].copy_from_slice(&(256u32 << 10).to_be_bytes());
        assert_eq!(cost_kib(&read), CALL_KIB_MIN + 256);
        read[124..].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(cost_kib(&read) + cost_kib(&largest) < WINDOW_KIB);
    }
}

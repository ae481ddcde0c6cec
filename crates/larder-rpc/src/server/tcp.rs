//! A TCP connection: records in, replies out, in whatever order they are ready.
//!
//! One task reads. What the service answers at once is answered by that task, without a switch;
//! what takes time goes on as a task of its own. Replies that become ready together leave
//! together.
//!
//! Invariants:
//! - Requests in flight and replies not yet taken by the kernel cost at most [`WINDOW_KIB`] by
//!   [`cost_kib`], which is no less than they hold; past that nothing is read. Beside it one record is being
//!   assembled.
//! - A reply is written whole or the connection ends.
//! - Who will not be served ([`super::admission`]) costs some KiB, and that for
//!   [`Config::first_call_max`](super::Config::first_call_max) at most.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use larder_io::{Clock, Elapsed};
use larder_wire::record::{Heap, RecordAssembler};
use larder_wire::xdr::Segments;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use super::admission::{Admission, Newcomer, Source, Verdict};
use super::dispatch::{Dispatcher, Peer, Service, poll_once};
use crate::program::Transport;

/// What calls in flight on a connection may cost, in KiB: as much as keeps a link of 10 Gbit/s and
/// 6 ms busy.
const WINDOW_KIB: u32 = 8 << 10;
/// What the smallest call costs, in KiB: so there are at most 256 in flight.
const CALL_KIB_MIN: u32 = 32;
/// Bytes taken from the socket at a time, unless a large record is read in place.
const READ_BYTES: usize = 64 << 10;
/// Longest record of a stranger, and the bytes taken from his socket at a time: calls that ask nothing
/// but whether we are there.
const STRANGER_BYTES_MAX: usize = 1024;
/// A rest of a record of at least this many bytes is read in place.
const IN_PLACE_BYTES_MIN: usize = 16 << 10;
/// Replies wait for others that are ready, up to this many bytes.
const BATCH_BYTES_MAX: usize = 64 << 10;
/// Most pieces of one vectored write (IOV_MAX is 1024).
const PIECES_MAX: usize = 256;
/// A connection on which nothing was heard for so long is closed, as Linux does; clients reconnect.
const IDLE_MAX: Duration = Duration::from_secs(6 * 60);
/// Pause before connections are accepted again after that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Who takes nothing of a reply for so long is gone.
const STALL_MAX: Duration = Duration::from_secs(60);

/// Serves a connection until its end, or until `shutdown` becomes true and all replies are out.
async fn serve<S: Service>(
    dispatcher: Arc<Dispatcher<S>>,
    stream: TcpStream,
    peer: Peer,
    standing: Standing,
    shutdown: watch::Receiver<bool>,
) {
    // Replies are sent when they are whole; waiting for more would only delay them.
    if let Err(cause) = stream.set_nodelay(true) {
        tracing::debug!(%cause, "no TCP_NODELAY");
    }
    let (reader, writer) = stream.into_split();
    let outbox = Arc::new(Outbox::new(writer, &dispatcher.config.clock));
    let connection = Connection { dispatcher, peer, standing, outbox: Arc::clone(&outbox) };
    if let Err(cause) = connection.run(reader, shutdown).await {
        tracing::debug!(peer = %peer.address, %cause, "connection closed");
    }
    outbox.drain().await;
}

struct Connection<S: Service> {
    dispatcher: Arc<Dispatcher<S>>,
    peer: Peer,
    standing: Standing,
    outbox: Arc<Outbox>,
}

/// What the acceptor and a connection tell each other.
#[derive(Default)]
struct Standing {
    /// A good call came.
    proven: Arc<AtomicBool>,
    /// The connection must give way to another.
    displaced: Arc<Notify>,
}

impl<S: Service> Connection<S> {
    /// Reads and begins calls. Only the reading is given up when it is time to end, never a reply
    /// that is being written.
    async fn run(
        &self,
        mut reader: OwnedReadHalf,
        mut shutdown: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let (record_bytes_max, read_bytes) = match self.peer.admitted {
            true => (self.dispatcher.config.record_bytes_max, READ_BYTES),
            false => (STRANGER_BYTES_MAX, STRANGER_BYTES_MAX),
        };
        let mut records = RecordAssembler::new(Heap, record_bytes_max);
        let mut buffer = vec![0; read_bytes];
        let mut ready = Vec::new();
        let (clock, first_call_max) =
            (&self.dispatcher.config.clock, self.dispatcher.config.first_call_max);
        // A stranger makes none: it is the time of his stay.
        let mut first_call_until = (!self.peer.admitted).then(|| clock.instant() + first_call_max);
        loop {
            let gap = records.gap();
            let in_place = gap.len() >= IN_PLACE_BYTES_MIN;
            let proven = self.standing.proven.load(Relaxed);
            let until = first_call_until.filter(|_| !proven);
            let until = until.unwrap_or_else(|| clock.instant() + IDLE_MAX);
            let target = if in_place { gap } else { &mut buffer };
            let count = tokio::select! {
                read = clock.timeout_at(until, reader.read(target)) => read.map_err(too_late)??,
                () = self.outbox.broken.notified() => return Ok(()),
                () = self.standing.displaced.notified() => return Ok(()),
                // An error means that the server is gone, which is shutdown, too.
                _ = shutdown.wait_for(|down| *down) => return Ok(()),
            };
            if count == 0 {
                return Ok(());
            }
            first_call_until.get_or_insert_with(|| clock.instant() + first_call_max);
            let mut deliver = |record| ready.push(record);
            if in_place {
                records.fill(count, &mut deliver);
            } else {
                let pushed = records.push(&buffer[..count], &mut deliver);
                pushed.map_err(|cause| io::Error::new(io::ErrorKind::InvalidData, cause))?;
            }
            for record in ready.drain(..) {
                self.begin(record).await;
            }
            self.outbox.flush().await;
        }
    }

    /// Answers a call, or begins to.
    async fn begin(&self, record: Bytes) {
        let permit = self.outbox.admit(cost_kib(self.dispatcher.service(), &record)).await;
        let proven = Arc::clone(&self.standing.proven);
        let on_good = move || proven.store(true, Relaxed);
        let mut call = Box::pin(Arc::clone(&self.dispatcher).serve(self.peer, record, on_good));
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

/// What a call and its reply may hold in memory, in KiB.
fn cost_kib(service: &impl Service, record: &[u8]) -> u32 {
    let unit = |at: usize| {
        record
            .get(at..at + 4)
            .map_or(0, |unit| u32::from_be_bytes([unit[0], unit[1], unit[2], unit[3]]))
    };
    // Program and procedure are at fixed places (RFC 5531, 9).
    let results_bytes = service.results_bytes_max(unit(12), unit(20), record);
    let kib = |bytes: usize| u32::try_from(bytes >> 10).unwrap_or(WINDOW_KIB).min(WINDOW_KIB / 4);
    CALL_KIB_MIN + kib(record.len()) + kib(results_bytes)
}

/// Replies on their way out.
struct Outbox {
    clock: Arc<dyn Clock>,
    waiting: Mutex<Waiting>,
    writer: tokio::sync::Mutex<OwnedWriteHalf>,
    window: Arc<Semaphore>,
    /// Told once the connection cannot be written to.
    broken: Notify,
}

#[derive(Default)]
struct Waiting {
    replies: VecDeque<(Segments, OwnedSemaphorePermit)>,
    bytes: usize,
    broken: bool,
}

impl Outbox {
    fn new(writer: OwnedWriteHalf, clock: &Arc<dyn Clock>) -> Outbox {
        Outbox {
            clock: Arc::clone(clock),
            waiting: Mutex::default(),
            writer: tokio::sync::Mutex::new(writer),
            window: Arc::new(Semaphore::new(WINDOW_KIB as usize)),
            broken: Notify::new(),
        }
    }

    /// Waits until the window has room. What waits to be sent is sent before, since it takes room.
    async fn admit(&self, cost_kib: u32) -> OwnedSemaphorePermit {
        if let Ok(permit) = Arc::clone(&self.window).try_acquire_many_owned(cost_kib) {
            return permit;
        }
        self.flush().await;
        let permit = Arc::clone(&self.window).acquire_many_owned(cost_kib).await;
        permit.expect("the window is never closed")
    }

    /// Leaves a reply to be sent. Its place in the window is free once it is.
    fn put(&self, reply: Option<Segments>, permit: OwnedSemaphorePermit) {
        let Some(reply) = reply else { return };
        let mut waiting = self.waiting();
        if !waiting.broken {
            waiting.bytes += reply.len();
            waiting.replies.push_back((reply, permit));
        }
    }

    fn waiting_bytes(&self) -> usize {
        self.waiting().bytes
    }

    /// Sends what waits, unless somebody is doing so: who does, looks again when done.
    async fn flush(&self) {
        loop {
            let Ok(mut writer) = self.writer.try_lock() else { return };
            while let Some(batch) = self.next_batch() {
                let (replies, permits): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
                let pieces = replies.into_iter().flat_map(Segments::into_vec).collect();
                let written = self.clock.timeout(STALL_MAX, write_all(&mut writer, pieces)).await;
                drop(permits);
                if !matches!(written, Ok(Ok(()))) {
                    self.fail();
                    return;
                }
            }
            drop(writer);
            // Somebody may have come between the last look and the unlocking.
            if self.waiting().replies.is_empty() {
                return;
            }
        }
    }

    fn next_batch(&self) -> Option<Vec<(Segments, OwnedSemaphorePermit)>> {
        let mut waiting = self.waiting();
        let mut batch = Vec::new();
        let (mut pieces, mut bytes) = (0, 0);
        while let Some((reply, _)) = waiting.replies.front() {
            pieces += reply.as_slice().len();
            bytes += reply.len();
            if !batch.is_empty() && (pieces > PIECES_MAX || bytes > BATCH_BYTES_MAX) {
                break;
            }
            batch.extend(waiting.replies.pop_front());
        }
        waiting.bytes -= batch.iter().map(|(reply, _)| reply.len()).sum::<usize>();
        (!batch.is_empty()).then_some(batch)
    }

    /// Gives the connection up.
    fn fail(&self) {
        let mut waiting = self.waiting();
        *waiting = Waiting { broken: true, ..Waiting::default() };
        drop(waiting);
        self.broken.notify_one();
    }

    /// Waits until the calls in flight are answered and sent, as far as the client takes them.
    async fn drain(&self) {
        self.flush().await;
        // Each reply is bounded by the limit on stalls; calls by that of what is behind us.
        let all = self.clock.timeout(STALL_MAX, self.window.acquire_many(WINDOW_KIB)).await;
        if all.is_err() {
            tracing::warn!("calls were still in flight when a connection ended");
        }
        if let Ok(mut writer) = self.writer.try_lock()
            && let Err(cause) = writer.shutdown().await
        {
            tracing::debug!(%cause, "shutdown of a connection");
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn too_late(Elapsed: Elapsed) -> io::Error {
    io::ErrorKind::TimedOut.into()
}

/// Writes pieces of memory one behind the other, without copying them together.
async fn write_all(writer: &mut OwnedWriteHalf, pieces: Vec<Bytes>) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let count = writer.write_vectored(rest).await?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut rest, count);
    }
    Ok(())
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
                // Out of descriptors, most likely: it does not help to try again at once.
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
            // A call that fails by a mistake of ours ends its connection, and the count must be right.
            let served = tokio::spawn(serve(dispatcher, stream, peer, standing, shutdown));
            if let Err(cause) = served.await {
                tracing::error!(%cause, "a connection failed");
            }
            number
        });
    }

    fn ended(&mut self, ended: Result<u64, tokio::task::JoinError>) {
        let number = ended.expect("the task that waits for a connection does nothing else");
        self.admission.leave(number);
        self.displacing.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Program, RECORD_BYTES_MAX};
    use crate::server::{Answer, Call};
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

//! Messages that leave by one TCP connection: replies, and calls to the client, each whole.
//!
//! A task puts its message here, and sends everything that waits unless another task is sending.
//! Messages that are ready together leave together.
//!
//! Invariants: the cost of calls in flight is within the window; a message is written whole or the
//! connection ends; a connection ends whose client accepts nothing for [`STALL_MAX`].

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use larder_io::Clock;
use larder_wire::xdr::Segments;
use tokio::io::{AsyncWriteExt, WriteHalf};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_rustls::server::TlsStream;

/// Limit on the cost of calls in flight on a connection, in KiB: enough to keep a link of 10 Gbit/s
/// and 6 ms busy.
pub(super) const WINDOW_KIB: u32 = 8 << 10;
/// Replies that are ready are sent together, up to this many bytes.
pub(super) const BATCH_BYTES_MAX: usize = 64 << 10;
/// Most pieces of one vectored write (IOV_MAX is 1024).
const PIECES_MAX: usize = 256;
/// A client that accepts no byte of a reply for this long counts as gone.
const STALL_MAX: Duration = Duration::from_secs(60);

/// The stream that messages are written to.
pub(super) enum Writer {
    Tcp(OwnedWriteHalf),
    Tls(WriteHalf<TlsStream<TcpStream>>),
}

impl Writer {
    async fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Writer::Tcp(writer) => writer.write_vectored(pieces).await,
            Writer::Tls(writer) => writer.write_vectored(pieces).await,
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        match self {
            Writer::Tcp(_) => Ok(()),
            Writer::Tls(writer) => writer.flush().await,
        }
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        match self {
            Writer::Tcp(writer) => writer.shutdown().await,
            Writer::Tls(writer) => writer.shutdown().await,
        }
    }
}

/// Messages that wait to be sent.
pub(super) struct Outbox {
    clock: Arc<dyn Clock>,
    waiting: Mutex<Waiting>,
    writer: tokio::sync::Mutex<Writer>,
    window: Arc<Semaphore>,
    /// Notified once the connection cannot be written to.
    pub(super) broken: Notify,
}

/// The resource that a message holds until it is sent.
enum Room {
    /// The part of the window that its call and it cost.
    Reply { _window: OwnedSemaphorePermit },
    /// A slot among the calls to the client, which is held until the call is answered as well.
    Callback { _slot: Arc<OwnedSemaphorePermit> },
}

#[derive(Default)]
struct Waiting {
    messages: VecDeque<(Segments, Room)>,
    bytes: usize,
    broken: bool,
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("bytes", &self.waiting_bytes()).finish_non_exhaustive()
    }
}

impl Outbox {
    pub(super) fn new(writer: Writer, clock: &Arc<dyn Clock>) -> Outbox {
        Outbox {
            clock: Arc::clone(clock),
            waiting: Mutex::default(),
            writer: tokio::sync::Mutex::new(writer),
            window: Arc::new(Semaphore::new(WINDOW_KIB as usize)),
            broken: Notify::new(),
        }
    }

    /// The stream that it wrote to.
    pub(super) fn into_writer(self) -> Writer {
        self.writer.into_inner()
    }

    /// A part of the window, if it is free now.
    pub(super) fn try_admit(&self, cost_kib: u32) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.window).try_acquire_many_owned(cost_kib).ok()
    }

    /// Waits until the window has room. Sends queued messages first, because they occupy the
    /// window.
    pub(super) async fn admit(&self, cost_kib: u32) -> OwnedSemaphorePermit {
        if let Ok(permit) = Arc::clone(&self.window).try_acquire_many_owned(cost_kib) {
            return permit;
        }
        self.flush().await;
        self.room(cost_kib).await
    }

    /// Waits until the window has room. Sends nothing in the meantime, so the future may be
    /// dropped.
    pub(super) async fn room(&self, cost_kib: u32) -> OwnedSemaphorePermit {
        let permit = Arc::clone(&self.window).acquire_many_owned(cost_kib).await;
        permit.expect("the window is never closed")
    }

    /// Queues a reply. Its part of the window is free once it is sent.
    pub(super) fn put(&self, reply: Option<Segments>, permit: OwnedSemaphorePermit) {
        let Some(reply) = reply else { return };
        self.push(reply, Room::Reply { _window: permit });
    }

    /// Queues a call to the client.
    pub(super) fn put_callback(&self, call: Segments, slot: Arc<OwnedSemaphorePermit>) {
        self.push(call, Room::Callback { _slot: slot });
    }

    fn push(&self, message: Segments, room: Room) {
        let mut waiting = self.waiting();
        if !waiting.broken {
            waiting.bytes += message.len();
            waiting.messages.push_back((message, room));
        }
    }

    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting().bytes
    }

    /// Sends what is queued, unless another task is sending: that task checks the queue again when
    /// it is done.
    pub(super) async fn flush(&self) {
        loop {
            let Ok(mut writer) = self.writer.try_lock() else { return };
            while let Some(batch) = self.next_batch() {
                let (messages, rooms): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
                let pieces = messages.into_iter().flat_map(Segments::into_vec).collect();
                let written = self.clock.timeout(STALL_MAX, write_all(&mut writer, pieces)).await;
                drop(rooms);
                if !matches!(written, Ok(Ok(()))) {
                    self.fail();
                    return;
                }
            }
            drop(writer);
            // A message may have arrived between the last check and the unlocking.
            if self.waiting().messages.is_empty() {
                return;
            }
        }
    }

    fn next_batch(&self) -> Option<Vec<(Segments, Room)>> {
        let mut waiting = self.waiting();
        let mut batch = Vec::new();
        let (mut pieces, mut bytes) = (0, 0);
        while let Some((message, _)) = waiting.messages.front() {
            pieces += message.as_slice().len();
            bytes += message.len();
            if !batch.is_empty() && (pieces > PIECES_MAX || bytes > BATCH_BYTES_MAX) {
                break;
            }
            batch.extend(waiting.messages.pop_front());
        }
        let taken: usize = batch.iter().map(|(message, _)| message.len()).sum();
        assert!(waiting.bytes >= taken, "the bytes of every message that waits are counted");
        waiting.bytes -= taken;
        debug_assert!(
            !waiting.messages.is_empty() || waiting.bytes == 0,
            "no bytes are counted when no message waits"
        );
        (!batch.is_empty()).then_some(batch)
    }

    /// Gives up the connection.
    fn fail(&self) {
        let mut waiting = self.waiting();
        debug_assert!(!waiting.broken, "a connection that is given up is not written to again");
        *waiting = Waiting { broken: true, ..Waiting::default() };
        drop(waiting);
        self.broken.notify_one();
    }

    /// Waits until the calls in flight are answered and sent, as long as the client takes them.
    pub(super) async fn drain(&self) {
        self.flush().await;
        // The limit on stalls bounds each reply; the service bounds calls.
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

/// Writes pieces of memory in sequence, without copying them into one buffer.
async fn write_all(writer: &mut Writer, pieces: Vec<Bytes>) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let count = writer.write_vectored(rest).await?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut rest, count);
    }
    // Under TLS, written bytes may still be buffered.
    writer.flush().await
}

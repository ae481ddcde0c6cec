//! The tasks of a connection: they keep it up, receive replies, and hand them to their callers.

use super::answering::Slots;
use super::sending::{Outgoing, Sender};
use super::{Arrived, Connection, Pending};
use crate::client::errors::RpcError;
use crate::client::pool::ReplyBuffers;
use crate::client::retry::TimerClass;
use crate::client::socket::Socket;
use crate::patience::{RECONNECT_MAX, retry_pauses};
use crate::program::{DATAGRAM_BYTES_MAX, Transport};
use bytes::Bytes;
use larder_io::sockets::DATAGRAM_BUFFER_BYTES;
use larder_io::{Backoff, Elapsed};
use larder_wire::record::{Buffers, RecordAssembler};
use larder_wire::rpc::{MessageKind, ReplyHeader, Xid};
use larder_wire::xdr::Decode;
use std::convert::Infallible;
use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Bytes that one read takes beside a large payload: marks, headers and whole small replies. More
/// saves reads when replies are small, but is copied once more.
const STAGING_BYTES: usize = 4096;
/// Pause after an error of a datagram socket, so that one which lasts does not spin.
const DATAGRAM_ERROR_PAUSE: Duration = Duration::from_millis(10);

impl Connection {
    /// Keeps the connection up and receives replies, until the client is shut down.
    pub(super) async fn run(self: Arc<Connection>, mut first: Option<Socket>) {
        let mut source_port = None;
        // Reconnect with growing pauses to a server that accepts connections and drops them.
        let mut backoff = retry_pauses();
        loop {
            let socket = match first.take() {
                Some(socket) => socket,
                None => tokio::select! {
                    biased;
                    () = self.shared.until_shutdown() => return,
                    socket = self.reconnect(source_port, &mut backoff) => socket,
                },
            };
            source_port = socket.source_port();
            let Some(heard) = self.serve(Arc::new(socket)).await else { return };
            if heard {
                backoff.reset();
            } else {
                tokio::select! {
                    () = self.shared.until_shutdown() => return,
                    () = self.shared.config.clock.sleep(backoff.pause()) => (),
                }
            }
        }
    }

    /// Serves one socket until it breaks. Returns whether a reply came, or `None` on shutdown.
    async fn serve(self: &Arc<Connection>, socket: Arc<Socket>) -> Option<bool> {
        let epoch = self.attach(&socket);
        let writer = tokio::spawn({
            let (connection, socket) = (Arc::clone(self), Arc::clone(&socket));
            async move { connection.write_loop(&socket, epoch).await }
        });
        let ended = tokio::select! {
            biased;
            () = self.shared.until_shutdown() => None,
            ended = self.receive(&socket, epoch) => Some(ended),
        };
        writer.abort();
        let heard = self.detach(&socket);
        ended.map(|cause| {
            tracing::debug!(server = %self.shared.config.server, ?cause, "connection lost");
            heard
        })
    }

    /// Connects, and retries until that succeeds.
    async fn reconnect(&self, source_port: Option<u16>, backoff: &mut Backoff) -> Socket {
        let config = &self.shared.config;
        let limit = config.limit().min(RECONNECT_MAX);
        loop {
            let begun = self.shared.now();
            let endpoint = self.shared.endpoints.current();
            let connecting = Box::pin(Socket::connect(config, endpoint, source_port));
            match config.clock.timeout(limit, connecting).await {
                Ok(Ok(socket)) => {
                    self.endpoint.store(endpoint, Relaxed);
                    return socket;
                }
                Ok(Err(error)) => tracing::debug!(server = %config.server, %error, "connecting"),
                Err(Elapsed) => tracing::debug!(server = %config.server, "connecting: no answer"),
            }
            self.shared.endpoints.leave(endpoint);
            self.shared.lost(begun);
            self.shared.config.clock.sleep(backoff.pause()).await;
        }
    }

    /// Makes a socket the current one and sends all pending calls on it.
    fn attach(&self, socket: &Arc<Socket>) -> u64 {
        let mut state = self.lock();
        if let Some(calls_max) = socket.calls_max() {
            state.window.limit(calls_max.min(self.shared.config.in_flight_max));
        }
        assert!(state.socket.is_none(), "the socket before was detached");
        let is_idle = state.sender == Sender::Nobody && state.outgoing.is_empty();
        assert!(is_idle, "without a socket nothing is sent");
        state.epoch += 1;
        state.attached = self.shared.now();
        if state.epoch > 1 {
            self.stats.reconnects.fetch_add(1, Relaxed);
        }
        state.socket = Some(Arc::clone(socket));
        let mut calls: Vec<_> = state.pending.values().map(|one| Arc::clone(&one.call)).collect();
        calls.sort_unstable_by_key(|call| call.xid.0);
        let epoch = state.epoch;
        if epoch == 1 {
            self.tell_small_buffer(socket);
        }
        if self.shared.config.transport == Transport::Udp {
            drop(state);
            calls.iter().for_each(|call| self.send_datagram(socket, call));
        } else {
            state.outgoing.clear();
            state.outgoing.extend(calls.into_iter().map(Outgoing::call));
            if !state.outgoing.is_empty() {
                state.sender = Sender::Writer;
                self.to_send.notify_one();
            }
        }
        self.connected.store(true, Relaxed);
        epoch
    }

    /// Logs a warning if the system's receive buffer is too small for the replies that keep a link
    /// busy.
    fn tell_small_buffer(&self, socket: &Socket) {
        let wanted = 2 * DATAGRAM_BUFFER_BYTES;
        if let (Some(bytes), Some(calls)) = (socket.receive_buffer_bytes(), socket.calls_max())
            && bytes < wanted
        {
            tracing::warn!(server = %self.shared.config.server, bytes, wanted, calls,
                "the system's limit for receive buffers is low (sysctl net.core.rmem_max): UDP is slow");
        }
    }

    /// Forgets a broken socket; pending calls stay. Returns whether a reply came over it.
    fn detach(&self, socket: &Socket) -> bool {
        socket.shut_down();
        self.connected.store(false, Relaxed);
        let mut state = self.lock();
        let is_current = |current: &Arc<Socket>| std::ptr::eq(&**current, socket);
        assert!(state.socket.as_ref().is_some_and(is_current), "one socket at a time");
        state.epoch += 1;
        state.socket = None;
        state.sender = Sender::Nobody;
        state.outgoing.clear();
        state.heard >= state.attached
    }

    /// Receives replies until the connection breaks.
    async fn receive(self: &Arc<Connection>, socket: &Socket, epoch: u64) -> io::Error {
        match self.shared.config.transport {
            Transport::Tcp => match self.receive_stream(socket, epoch).await {
                Ok(()) => io::ErrorKind::UnexpectedEof.into(),
                Err(error) => error,
            },
            Transport::Udp => match self.receive_datagrams(socket).await {},
        }
    }

    async fn receive_stream(self: &Arc<Connection>, socket: &Socket, epoch: u64) -> io::Result<()> {
        let buffers = ReplyBuffers(Arc::clone(&self.shared.pool));
        let mut records = RecordAssembler::new(buffers, self.shared.config.record_bytes_max);
        let mut staging = vec![0; STAGING_BYTES];
        let (callbacks, slots) = (self.shared.config.callbacks.as_ref(), Slots::new());
        let mut is_excessive = false;
        loop {
            let gap = records.gap();
            let gap_bytes = gap.len();
            let pieces = &mut [IoSliceMut::new(gap), IoSliceMut::new(&mut staging)];
            let received = socket.receive(pieces).await?;
            if received == 0 {
                return Ok(());
            }
            let at = self.shared.now();
            let mut deliver = |record: Bytes| match callbacks {
                Some(callbacks) if MessageKind::of(&record) == Some(MessageKind::Call) => {
                    is_excessive |= !self.called(callbacks, (epoch, &slots), record);
                }
                _ => self.deliver(record, at),
            };
            let in_place = received.min(gap_bytes);
            records.fill(in_place, &mut deliver);
            records
                .push(&staging[..received - in_place], &mut deliver)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if is_excessive {
                let text = "the server calls more or at greater length than it may";
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            tokio::task::consume_budget().await;
        }
    }

    async fn receive_datagrams(&self, socket: &Socket) -> Infallible {
        let mut buffers = ReplyBuffers(Arc::clone(&self.shared.pool));
        loop {
            let mut buffer = buffers.take(DATAGRAM_BYTES_MAX);
            match socket.receive(&mut [IoSliceMut::new(buffer.as_mut())]).await {
                Ok(length) => self.deliver(buffers.freeze(buffer, length), self.shared.now()),
                // ICMP reported that a datagram did not arrive: this may be temporary.
                Err(error) => {
                    self.note_datagram_error(&error);
                    self.shared.config.clock.sleep(DATAGRAM_ERROR_PAUSE).await;
                }
            }
            tokio::task::consume_budget().await;
        }
    }

    /// Hands a reply to its caller.
    fn deliver(&self, record: Bytes, at: Instant) {
        self.shared.heard();
        let bytes = record.len();
        let mut body = record;
        let xid = body.first_chunk().map(|xid| Xid(u32::from_be_bytes(*xid)));
        let pending = xid.and_then(|xid| self.answered(xid, at));
        let Some(pending) = pending else {
            self.stats.orphans.fetch_add(1, Relaxed);
            return;
        };
        let arrived = match ReplyHeader::decode(&mut body) {
            Ok(ReplyHeader { outcome, .. }) => Ok(Arrived { body, outcome, at, bytes }),
            Err(cause) => Err(RpcError::Garbled(cause)),
        };
        // The caller may have gone in the meantime.
        let _ = pending.reply.send(arrived);
    }

    /// The call with this xid is answered: it no longer waits, and its duration is counted.
    fn answered(&self, xid: Xid, at: Instant) -> Option<Pending> {
        let mut state = self.change(at);
        state.heard = at;
        let pending = state.pending.remove(&xid)?;
        state.totals.completed += 1;
        if pending.call.transmissions.load(Relaxed) == 1 {
            let time = at.saturating_duration_since(self.sent_at(&pending.call));
            if pending.class != TimerClass::FIXED {
                state.round_trips[pending.class.index()].sample(time);
            }
            state.window.replied();
        }
        state.promise_slots();
        Some(pending)
    }
}

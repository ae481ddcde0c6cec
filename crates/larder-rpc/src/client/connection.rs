//! One connection: the calls in flight on it, the messages to send, and the tasks that serve it.
//!
//! All state is behind one lock that is held for a few instructions, never over a system call.
//! [`Sender`] records which thread sends: at first the caller, on its own thread; if the socket is
//! full or others keep arriving, it hands over to the writer task. So messages are never
//! interleaved, and their order is kept.
//!
//! Invariants:
//! - A call is in `pending` from its offer until its reply, its end or its cancellation; the slot
//!   that it takes in the window is returned with it.
//! - A sender sends for one epoch. When a connection breaks the epoch changes, and a sender for the
//!   old one stops without touching the state.
//! - Totals, pending calls, the window and its waiters change only under a lock from
//!   [`Connection::change`], so that recorders see the state before each change.
//! - After a reconnect every pending call is sent again, in the order of their xids. A message that
//!   was sent in part is sent again from its start.

mod answering;
mod sending;
mod serving;

pub use answering::CALLBACK_BYTES_MAX;

use super::errors::RpcError;
use super::retry::{RoundTrip, TimerClass, Window};
use super::shared::Shared;
use super::socket::Socket;
use crate::patience::is_in_vain;
use crate::program::Transport;
use crate::series::{Moment, Recorders, Totals};
use crate::stats::{ConnectionSnapshot, ConnectionStats};
use bytes::Bytes;
use larder_wire::rpc::{Outcome, Xid};
use larder_wire::xdr::Segments;
use sending::{Outgoing, Sender};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// Pause while the reader task has datagrams that it has not read yet.
const UNREAD_PAUSE: Duration = Duration::from_millis(5);

/// The reply to a call.
#[derive(Clone, Copy, Debug)]
pub struct Reply<T> {
    /// The procedure's results.
    pub results: T,
    /// How often the call was sent. If more than once, the server may have executed it before: an
    /// error such as "exists" may be the result of our own first transmission.
    pub transmissions: u32,
}

/// A call in flight.
#[derive(Debug)]
struct Call {
    xid: Xid,
    message: Segments,
    /// How often it was sent completely.
    transmissions: AtomicU32,
    /// When it was last sent completely, in microseconds since the connection was created.
    sent_us: AtomicU64,
    /// No caller waits for the reply any more, so the message need not be sent if sending has not
    /// begun.
    cancelled: AtomicBool,
}

impl Call {
    /// When it was last sent completely, since the connection was created.
    fn sent(&self) -> Duration {
        Duration::from_micros(self.sent_us.load(Relaxed))
    }
}

/// A reply as the reader task received it.
#[derive(Debug)]
struct Arrived {
    body: Bytes,
    outcome: Outcome,
    at: Instant,
    bytes: usize,
}

type ReplySender = oneshot::Sender<Result<Arrived, RpcError>>;

#[derive(Debug)]
struct Pending {
    call: Arc<Call>,
    class: TimerClass,
    reply: ReplySender,
}

#[derive(Debug)]
struct State {
    socket: Option<Arc<Socket>>,
    epoch: u64,
    pending: HashMap<Xid, Pending, BuildHasherDefault<XidHasher>>,
    outgoing: VecDeque<Outgoing>,
    sender: Sender,
    window: Window,
    /// Callers that wait for the window, first come, first served.
    waiting: VecDeque<oneshot::Sender<()>>,
    /// Slots of the window that were promised to callers and not taken yet.
    promised: u32,
    round_trips: [RoundTrip; TimerClass::COUNT],
    totals: Totals,
    recorders: Recorders,
    /// When a reply last came.
    heard: Instant,
    /// When the current socket, or the last one, was connected.
    attached: Instant,
    closed: bool,
}

/// One connection to the server.
#[derive(Debug)]
pub(super) struct Connection {
    shared: Arc<Shared>,
    birth: Instant,
    state: Mutex<State>,
    /// Wakes the writer task.
    to_send: Notify,
    stats: ConnectionStats,
    /// Calls on this connection, for choosing among connections.
    load: AtomicU32,
    connected: AtomicBool,
    /// The address of the current socket, or of the last one.
    endpoint: AtomicUsize,
}

/// How long a call waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// Which round-trip estimate applies.
    pub(super) class: TimerClass,
    /// When the call was made.
    pub(super) offered: Instant,
    /// When the call fails; `None`: it waits for the server.
    pub(super) until: Option<Instant>,
}

/// Gives a call up when its future ends or is dropped.
struct Cancel<'a> {
    connection: &'a Connection,
    call: &'a Arc<Call>,
    wait: Wait,
    /// The call is no longer pending.
    answered: bool,
}

impl Drop for Cancel<'_> {
    fn drop(&mut self) {
        self.connection.load.fetch_sub(1, Relaxed);
        if self.answered {
            return;
        }
        let mut state = self.connection.change_now();
        if state.pending.remove(&self.call.xid).is_some() {
            self.call.cancelled.store(true, Relaxed);
            state.promise_slots();
        }
        let heard = state.heard;
        drop(state);
        // At its deadline a call is ended by its own timer or by its caller's: what was waited
        // counts in either case.
        if self.wait.until.is_some_and(|until| until <= self.connection.shared.now()) {
            self.connection.asked_in_vain(self.wait.offered, heard);
        }
    }
}

impl State {
    /// Wakes callers that the window has room for.
    fn promise_slots(&mut self) {
        while self.taken() < self.window.calls() {
            let Some(waiter) = self.waiting.pop_front() else { return };
            // A caller that is gone takes no slot.
            self.promised += u32::from(waiter.send(()).is_ok());
        }
    }

    fn taken(&self) -> u32 {
        count(self.pending.len()).saturating_add(self.promised)
    }

    fn moment(&self) -> Moment {
        Moment {
            totals: self.totals,
            in_flight: count(self.pending.len()),
            window: self.window.calls(),
            backlog: count(self.waiting.len()),
        }
    }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Xids are counted up, which spreads them over a table as well as any hash would.
#[derive(Debug, Default)]
struct XidHasher(u64);

impl Hasher for XidHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u32(&mut self, xid: u32) {
        // The table uses the lowest and the highest bits.
        self.0 = u64::from(xid) | u64::from(xid) << 57;
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("an xid is one u32");
    }
}

impl Connection {
    /// Starts the tasks of a connection; without a socket, they make one.
    pub(super) fn start(shared: &Arc<Shared>, socket: Option<Socket>) -> Arc<Connection> {
        let config = &shared.config;
        let window = match config.transport {
            Transport::Tcp => Window::fixed(config.in_flight_max),
            Transport::Udp => Window::congestion(config.in_flight_max),
        };
        let now = shared.now();
        let connection = Arc::new(Connection {
            shared: Arc::clone(shared),
            birth: now,
            state: Mutex::new(State {
                socket: None,
                epoch: 0,
                pending: HashMap::default(),
                outgoing: VecDeque::new(),
                sender: Sender::Nobody,
                window,
                waiting: VecDeque::new(),
                promised: 0,
                round_trips: [RoundTrip::new(config.timeout); TimerClass::COUNT],
                totals: Totals::default(),
                recorders: Recorders::default(),
                heard: now,
                attached: now,
                closed: false,
            }),
            to_send: Notify::new(),
            stats: ConnectionStats::default(),
            load: AtomicU32::new(0),
            connected: AtomicBool::new(false),
            endpoint: AtomicUsize::new(shared.endpoints.current()),
        });
        tokio::spawn(Arc::clone(&connection).run(socket));
        connection
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state for a change that happens at `now`, or a moment after.
    fn change(&self, now: Instant) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        if !state.recorders.is_empty() {
            let before = state.moment();
            state.recorders.note(now, &before);
        }
        state
    }

    /// Locks the state for a change that happens now.
    fn change_now(&self) -> MutexGuard<'_, State> {
        self.change(self.shared.now())
    }

    /// Passes the recorders to `look`, with the current state.
    pub(super) fn recorders(&self, look: &mut dyn FnMut(&mut Recorders, &Moment)) {
        let mut state = self.lock();
        let now = state.moment();
        look(&mut state.recorders, &now);
    }

    /// For choosing a connection: the smallest value is best.
    pub(super) fn load(&self) -> (bool, u32) {
        (!self.connected.load(Relaxed), self.load.load(Relaxed))
    }

    pub(super) fn snapshot(&self) -> ConnectionSnapshot {
        let state = self.lock();
        let Moment { totals, in_flight, window, backlog } = state.moment();
        ConnectionSnapshot {
            connected: self.connected.load(Relaxed),
            offered: totals.offered,
            completed: totals.completed,
            in_flight: in_flight.into(),
            backlog: backlog.into(),
            window: window.into(),
            retransmits: totals.retransmits,
            timeouts: totals.timeouts,
            reconnects: self.stats.reconnects.load(Relaxed),
            orphans: self.stats.orphans.load(Relaxed),
            receive_buffer_bytes: state
                .socket
                .as_ref()
                .and_then(|socket| socket.receive_buffer_bytes())
                .map(|bytes| bytes as u64),
        }
    }

    /// Ends all calls, now and later.
    pub(super) fn close(&self) {
        let mut state = self.change_now();
        state.closed = true;
        state.waiting.clear();
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        for (_, pending) in pending {
            // A caller that is gone does not need the error.
            let _ = pending.reply.send(Err(RpcError::Shutdown));
        }
    }

    fn now_us(&self) -> u64 {
        u64::try_from((self.shared.now() - self.birth).as_micros()).unwrap_or(u64::MAX)
    }
}

/// The caller's side.
impl Connection {
    /// Sends a call and waits for its reply.
    pub(super) async fn call(
        &self,
        xid: Xid,
        procedure: u32,
        message: Segments,
        wait: Wait,
    ) -> Result<Reply<Bytes>, RpcError> {
        let account = self.shared.procedures.of(procedure);
        account.bytes_sent.fetch_add(message.len() as u64, Relaxed);
        self.load.fetch_add(1, Relaxed);
        let call = Arc::new(Call {
            xid,
            message,
            transmissions: AtomicU32::new(0),
            sent_us: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
        });

        let mut cancel = Cancel { connection: self, call: &call, wait, answered: false };
        let arrived = self.exchange(&call, procedure, wait).await;
        cancel.answered = arrived.is_ok();
        drop(cancel);

        account.calls.fetch_add(1, Relaxed);
        let transmissions = call.transmissions.load(Relaxed);
        account.retransmits.fetch_add(u64::from(transmissions.saturating_sub(1)), Relaxed);
        let body = arrived.and_then(|arrived| {
            account.bytes_received.fetch_add(arrived.bytes as u64, Relaxed);
            account.latency.record(arrived.at - wait.offered);
            account.round_trip.record(arrived.at.saturating_duration_since(self.sent_at(&call)));
            match arrived.outcome {
                Outcome::Success => Ok(arrived.body),
                refused => Err(RpcError::Refused(refused)),
            }
        });
        if body.is_err() {
            account.errors.fetch_add(1, Relaxed);
        }
        body.map(|results| Reply { results, transmissions })
    }

    /// Waits for the window, sends the call, and waits for the reply; sends again as often as
    /// necessary.
    async fn exchange(
        &self,
        call: &Arc<Call>,
        procedure: u32,
        Wait { class, offered, until: deadline }: Wait,
    ) -> Result<Arrived, RpcError> {
        let config = &self.shared.config;
        let limit = config.limit();
        let timed_out = Err(RpcError::TimedOut { limit });

        let mut reply = match deadline {
            None => self.offer(call, class, offered).await?,
            Some(deadline) => {
                match config.clock.timeout_at(deadline, self.offer(call, class, offered)).await {
                    Ok(offered) => offered?,
                    Err(_) => return timed_out,
                }
            }
        };
        let mut from = match config.transport {
            // Saves reading the clock for each call. The call may have waited for the window, but
            // `timed_out` uses the time at which it was sent.
            Transport::Tcp => offered,
            Transport::Udp => self.shared.now(),
        };
        loop {
            let until = from + self.patience(class);
            let until = deadline.map_or(until, |deadline| until.min(deadline));
            match config.clock.timeout_at(until, &mut reply).await {
                Ok(Ok(arrived)) => return arrived,
                Ok(Err(_sender_gone)) => return Err(RpcError::Shutdown),
                Err(_elapsed) => (),
            }
            if self.reply_may_be_here(class, from, deadline) {
                config.clock.sleep(UNREAD_PAUSE).await;
                continue;
            }
            self.shared.procedures.of(procedure).timeouts.fetch_add(1, Relaxed);
            self.timed_out(call, class, offered);
            from = self.shared.now();
            if deadline.is_some_and(|deadline| from >= deadline) {
                return timed_out;
            }
        }
    }

    /// Whether it is too early to treat a datagram as lost: replies became slower while this one
    /// was waited for since `from`, or our own side has unread datagrams. Otherwise a machine that
    /// stood still for a moment would send a windowful again.
    fn reply_may_be_here(
        &self,
        class: TimerClass,
        from: Instant,
        deadline: Option<Instant>,
    ) -> bool {
        let config = &self.shared.config;
        let now = self.shared.now();
        let waited = now - from;
        if config.transport == Transport::Tcp || deadline.is_some_and(|deadline| now >= deadline) {
            return false;
        }
        let socket = self.lock().socket.clone();
        let unread = socket.is_some_and(|socket| socket.has_unread());
        waited < self.patience(class) || unread && waited < config.timeout
    }

    /// How long to wait for a reply before doing something about it.
    fn patience(&self, class: TimerClass) -> Duration {
        match self.shared.config.transport {
            Transport::Tcp => self.shared.config.timeout,
            Transport::Udp => self.lock().round_trips[class.index()].timeout(),
        }
    }

    /// Waits for the window and sends the call, or leaves sending to the task that reconnects.
    async fn offer(
        &self,
        call: &Arc<Call>,
        class: TimerClass,
        offered: Instant,
    ) -> Result<oneshot::Receiver<Result<Arrived, RpcError>>, RpcError> {
        let (sender, receiver) = oneshot::channel();
        let pending = Pending { call: Arc::clone(call), class, reply: sender };
        let slot = {
            let mut state = self.change(offered);
            state.totals.offered += 1;
            if state.taken() < state.window.calls() && state.waiting.is_empty() {
                return self.launch(state, pending).map(|()| receiver);
            }
            if state.closed {
                return Err(RpcError::Shutdown);
            }
            let (slot, promise) = oneshot::channel();
            state.waiting.push_back(slot);
            promise
        };
        let mut slot = Promise { connection: self, slot, fulfilled: false };
        (&mut slot.slot).await.map_err(|_| RpcError::Shutdown)?;
        slot.fulfilled = true;
        let mut state = self.change_now();
        state.promised -= 1;
        self.launch(state, pending).map(|()| receiver)
    }

    /// Makes a call pending and sends it, if it can be sent now.
    fn launch(&self, mut state: MutexGuard<'_, State>, pending: Pending) -> Result<(), RpcError> {
        if state.closed {
            return Err(RpcError::Shutdown);
        }
        let call = Arc::clone(&pending.call);
        state.pending.insert(call.xid, pending);
        let Some(socket) = state.socket.clone() else {
            return Ok(()); // The task that reconnects sends all that is pending.
        };
        match self.shared.config.transport {
            Transport::Udp => {
                drop(state);
                self.send_datagram(&socket, &call);
            }
            Transport::Tcp => {
                state.outgoing.push_back(Outgoing::call(call));
                self.send_as_caller(state, &socket);
            }
        }
        Ok(())
    }

    /// A call that was `offered` at this time had no reply within its timeout.
    fn timed_out(&self, call: &Arc<Call>, class: TimerClass, offered: Instant) {
        let config = &self.shared.config;
        let now = self.shared.now();
        let mut state = self.change(now);
        state.totals.timeouts += 1;
        let heard = state.heard;
        let quiet = now.saturating_duration_since(heard);
        match (config.transport, state.socket.clone()) {
            (Transport::Udp, Some(socket)) => {
                let (sent, now) = (call.sent(), now.saturating_duration_since(self.birth));
                state.round_trips[class.index()].timed_out(sent, now);
                state.window.timed_out(sent, now);
                drop(state);
                self.send_datagram(&socket, call);
            }
            (Transport::Tcp, Some(socket)) => {
                let begun = self.sent_at(call).max(state.attached);
                let waited = now.saturating_duration_since(begun);
                drop(state);
                // A live connection with a slow reply is left alone; but a reply that is overdue by
                // the whole limit was lost by the server, which only a replay can mend.
                if waited >= config.timeout && quiet >= config.timeout || waited >= config.limit() {
                    tracing::debug!(xid = call.xid.0, ?waited, "no reply: connecting again");
                    self.shared.endpoints.leave(self.endpoint.load(Relaxed));
                    socket.shut_down();
                }
            }
            (_, None) => drop(state),
        }
        self.asked_in_vain(offered, heard);
    }

    /// A call that was `offered` at this time has no reply. Notes that the server does not answer,
    /// if the call waited long enough to prove that, and no other was answered meanwhile: the
    /// last message came when it was `heard`.
    fn asked_in_vain(&self, offered: Instant, heard: Instant) {
        let waited = self.shared.now().saturating_duration_since(offered);
        if heard <= offered && is_in_vain(waited, self.shared.config.limit()) {
            self.shared.lost(offered);
        }
    }

    /// When a call was last sent; if never, when the connection was created.
    fn sent_at(&self, call: &Call) -> Instant {
        self.birth + call.sent()
    }

    fn send_datagram(&self, socket: &Socket, call: &Arc<Call>) {
        let pieces: Vec<_> =
            call.message.as_slice().iter().map(|piece| IoSlice::new(piece)).collect();
        match socket.send(&pieces) {
            Ok(_) => self.mark_sent(call),
            // Treat it as a lost datagram: it will be sent again.
            Err(error) => self.note_datagram_error(&error),
        }
    }

    fn note_datagram_error(&self, error: &io::Error) {
        use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
        if matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable) {
            self.shared.lost(self.shared.now());
        }
    }

    fn mark_sent(&self, call: &Call) {
        call.sent_us.store(self.now_us(), Relaxed);
        if call.transmissions.fetch_add(1, Relaxed) > 0 {
            self.change_now().totals.retransmits += 1;
        }
    }
}

/// A caller's place in the queue for the window.
struct Promise<'a> {
    connection: &'a Connection,
    slot: oneshot::Receiver<()>,
    fulfilled: bool,
}

impl Drop for Promise<'_> {
    /// A promised slot that is no longer wanted goes to the next waiter.
    fn drop(&mut self) {
        if self.fulfilled {
            return;
        }
        self.slot.close();
        if self.slot.try_recv().is_ok() {
            let mut state = self.connection.change_now();
            state.promised -= 1;
            state.promise_slots();
        }
    }
}

#[cfg(test)]
mod tests;

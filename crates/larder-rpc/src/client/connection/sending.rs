//! Sending on a stream: whole messages, in order, without blocking.

use super::{Call, Connection, State};
use crate::client::socket::Socket;
use larder_wire::xdr::Segments;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};
use tokio::sync::OwnedSemaphorePermit;

/// Pieces in one vectored write. The kernel's limit is 1024; a WRITE has three.
const PIECES_MAX: usize = 64;
/// Rounds that a caller sends for others before it leaves that to the writer task.
const ROUNDS_MAX: u32 = 4;

/// A message that is to be sent, or the rest of one.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) what: What,
    pub(super) sent_bytes: usize,
}

#[derive(Debug)]
pub(super) enum What {
    Call(Arc<Call>),
    /// The reply to a call of the server, with that call's slot.
    Reply {
        message: Segments,
        _slot: OwnedSemaphorePermit,
    },
}

impl Outgoing {
    pub(super) fn call(call: Arc<Call>) -> Outgoing {
        Outgoing { what: What::Call(call), sent_bytes: 0 }
    }

    fn message(&self) -> &Segments {
        match &self.what {
            What::Call(call) => &call.message,
            What::Reply { message, .. } => message,
        }
    }

    /// Whether it still must be sent: no caller waits for the reply to an abandoned call.
    fn is_wanted(&self) -> bool {
        match &self.what {
            What::Call(call) => self.sent_bytes > 0 || !call.cancelled.load(Relaxed),
            What::Reply { .. } => true,
        }
    }
}

/// Which thread sends on the current socket: only one at a time, or messages would be interleaved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    Nobody,
    /// A caller with a message to send, on its own thread.
    Caller,
    /// The writer task. It may be woken for nothing, since a wake-up may be left from an earlier
    /// socket.
    Writer,
}

/// What remains to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// Nothing, and it stops sending.
    All,
    /// Messages that do not fit now; it still sends.
    Full,
    /// Messages that others should send; it still sends.
    More,
    /// A broken or replaced connection.
    Broken,
}

impl Connection {
    /// Sends what is queued, unless another thread is sending. The writer task sends the rest. Does
    /// not block.
    pub(super) fn send_as_caller(&self, mut state: MutexGuard<'_, State>, socket: &Socket) {
        if state.sender != Sender::Nobody {
            return;
        }
        state.sender = Sender::Caller;
        let epoch = state.epoch;
        drop(state);
        if let Sent::Full | Sent::More = self.send_outgoing(socket, epoch, Sender::Caller) {
            let mut state = self.lock();
            if state.epoch == epoch {
                state.sender = Sender::Writer;
                self.to_send.notify_one();
            }
        }
    }

    /// Sends what is queued, if `sender` is the one that sends now. Does not block.
    fn send_outgoing(&self, socket: &Socket, epoch: u64, sender: Sender) -> Sent {
        let mut batch = VecDeque::new();
        let mut full = false;
        for round in 0.. {
            {
                let mut state = self.lock();
                if state.epoch != epoch {
                    return Sent::Broken;
                }
                if state.sender != sender {
                    debug_assert!(batch.is_empty() && sender == Sender::Writer);
                    return Sent::All;
                }
                // The rest of a partly sent batch returns to the front.
                while let Some(rest) = batch.pop_back() {
                    state.outgoing.push_front(rest);
                }
                if full {
                    return Sent::Full;
                }
                if state.outgoing.is_empty() && round > 0 {
                    state.sender = Sender::Nobody;
                    return Sent::All;
                }
                if round == ROUNDS_MAX {
                    return Sent::More;
                }
                std::mem::swap(&mut state.outgoing, &mut batch);
            }
            batch.retain(Outgoing::is_wanted);
            match self.send_batch(socket, &mut batch) {
                Ok(done) => full = !done,
                Err(error) => {
                    tracing::debug!(%error, "sending failed");
                    socket.shut_down();
                    return Sent::Broken;
                }
            }
        }
        unreachable!("the loop returns after ROUNDS_MAX")
    }

    /// Sends from the front of the batch. Returns whether the kernel has all of it, and what was
    /// sent before.
    fn send_batch(&self, socket: &Socket, batch: &mut VecDeque<Outgoing>) -> io::Result<bool> {
        while !batch.is_empty() {
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let (count, wanted) = gather(batch, &mut pieces);
            let sent = match socket.send(&pieces[..count]) {
                Ok(sent) => sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            };
            self.advance(batch, sent);
            if sent < wanted {
                return Ok(false);
            }
        }
        socket.flush()
    }

    /// Counts bytes as sent.
    fn advance(&self, batch: &mut VecDeque<Outgoing>, mut sent_bytes: usize) {
        while let Some(front) = batch.front_mut() {
            let left = front.message().len() - front.sent_bytes;
            if sent_bytes < left {
                front.sent_bytes += sent_bytes;
                return;
            }
            sent_bytes -= left;
            if let Some(Outgoing { what: What::Call(call), .. }) = batch.pop_front() {
                self.mark_sent(&call);
            }
        }
        assert_eq!(sent_bytes, 0, "no more was sent than there was");
    }

    /// Sends what callers could not send at once.
    pub(super) async fn write_loop(&self, socket: &Socket, epoch: u64) {
        loop {
            self.to_send.notified().await;
            loop {
                let sent = socket.when_writable(|| {
                    match self.send_outgoing(socket, epoch, Sender::Writer) {
                        Sent::Full => Err(io::ErrorKind::WouldBlock.into()),
                        sent => Ok(sent),
                    }
                });
                match sent.await {
                    Ok(Sent::All) => break,
                    Ok(_) => tokio::task::consume_budget().await,
                    Err(_) => return socket.shut_down(),
                }
            }
        }
    }
}

/// Collects the next pieces of the batch. Returns their number and their length in bytes.
fn gather<'a>(
    batch: &'a VecDeque<Outgoing>,
    pieces: &mut [IoSlice<'a>; PIECES_MAX],
) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0);
    for outgoing in batch {
        let mut skip = outgoing.sent_bytes;
        for piece in outgoing.message().as_slice() {
            if skip >= piece.len() {
                skip -= piece.len();
                continue;
            }
            let Some(slot) = pieces.get_mut(count) else { return (count, bytes) };
            *slot = IoSlice::new(&piece[skip..]);
            bytes += piece.len() - skip;
            count += 1;
            skip = 0;
        }
    }
    (count, bytes)
}

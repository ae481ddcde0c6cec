//! Calls from a server to its client, on the connection that the client made.
//!
//! Each direction of a connection has xids of its own: a message says whether it is a call or a
//! reply. The client serves such calls as a program of its own ([`crate::Callbacks`]). The server
//! never retransmits them: a client that has lost its connection makes another, and the program
//! decides what it must still be told.
//!
//! Invariants:
//! - A call ends with its reply, at its limit, or with the connection.
//! - At most [`CALLBACKS_MAX`] are in flight; one that is no longer waited for still counts until
//!   it is answered, because the client counts it too. Further calls wait.
//! - A reply that belongs to no call is dropped.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use larder_io::Clock;
use larder_wire::Procedure;
use larder_wire::rpc::{Credential, Outcome, ReplyHeader, Xid, encode_call};
use larder_wire::xdr::{Decode, Framing, XdrError};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::counters::CallbackCounts;
use super::outbox::Outbox;
use crate::random::random_u64;

/// Most calls to a client that wait for their replies, on one connection. A larder client ends the
/// connection if it gets more at a time.
pub const CALLBACKS_MAX: usize = 64;

/// Why a call to a client has no results.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CallbackError {
    /// No reply came in time. The client may still carry the call out.
    #[error("the client did not answer within {} s", .limit.as_secs_f32())]
    TimedOut {
        /// How long the server waited.
        limit: Duration,
    },
    /// The connection has ended. The client may have carried the call out.
    #[error("the client's connection has ended")]
    Closed,
    /// The RPC layer of the client refused the call.
    #[error("{0}")]
    Refused(Outcome),
    /// The reply cannot be decoded.
    #[error("the reply cannot be read: {0}")]
    Garbled(XdrError),
}

/// The backchannel to the client of one connection. Clones are the same one, and do not keep the
/// connection alive.
#[derive(Clone, Debug)]
pub struct Backchannel(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    outbox: Weak<Outbox>,
    clock: Arc<dyn Clock>,
    counts: Arc<CallbackCounts>,
    slots: Arc<Semaphore>,
    xid: AtomicU32,
    waiting: Mutex<HashMap<u32, Waiting>>,
    /// Set to true once, at the end.
    is_closed: watch::Sender<bool>,
}

/// A call that has no reply yet.
#[derive(Debug)]
struct Waiting {
    /// `None` if no caller waits for it any more.
    reply: Option<oneshot::Sender<Bytes>>,
    /// Its slot among [`CALLBACKS_MAX`].
    _slot: Arc<OwnedSemaphorePermit>,
}

impl Backchannel {
    pub(super) fn new(
        outbox: &Arc<Outbox>,
        clock: &Arc<dyn Clock>,
        counts: &Arc<CallbackCounts>,
    ) -> Backchannel {
        Backchannel(Arc::new(Inner {
            outbox: Arc::downgrade(outbox),
            clock: Arc::clone(clock),
            counts: Arc::clone(counts),
            slots: Arc::new(Semaphore::new(CALLBACKS_MAX)),
            xid: AtomicU32::new(random_u64() as u32),
            waiting: Mutex::default(),
            is_closed: watch::Sender::new(false),
        }))
    }

    /// Calls a procedure of the client and waits for its results, for `limit` at most. The future
    /// may be dropped.
    ///
    /// # Errors
    /// [`CallbackError`]
    pub async fn call<P: Procedure>(
        &self,
        args: &P,
        limit: Duration,
    ) -> Result<P::Res, CallbackError> {
        let exchanged = self.0.clock.timeout(limit, self.exchange(args)).await;
        let results = exchanged.unwrap_or(Err(CallbackError::TimedOut { limit }));
        self.0.counts.calls.fetch_add(1, Relaxed);
        self.0.counts.failed.fetch_add(u64::from(results.is_err()), Relaxed);
        results
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        *self.0.is_closed.borrow()
    }

    /// Resolves when the connection has ended.
    pub async fn closed(&self) {
        // The sender is ours, so waiting cannot fail.
        let _ = self.0.is_closed.subscribe().wait_for(|is_closed| *is_closed).await;
    }

    async fn exchange<P: Procedure>(&self, args: &P) -> Result<P::Res, CallbackError> {
        let slot = Arc::clone(&self.0.slots).acquire_owned().await;
        let slot = Arc::new(slot.map_err(|_closed| CallbackError::Closed)?);
        let xid = Xid(self.0.xid.fetch_add(1, Relaxed));
        let message = encode_call(xid, &Credential::None, args, Framing::Record);
        let reply = self.expect(xid, &slot)?;
        let mut nobody = Nobody { inner: &self.0, xid, answered: false };
        let outbox = self.0.outbox.upgrade().ok_or(CallbackError::Closed)?;
        outbox.put_callback(message, slot);
        // Flush in a task of its own: this future may be dropped in the middle of a message.
        tokio::spawn(async move { outbox.flush().await });
        let mut body = reply.await.map_err(|_sender_gone| CallbackError::Closed)?;
        nobody.answered = true;
        let header = ReplyHeader::decode(&mut body).map_err(CallbackError::Garbled)?;
        match header.outcome {
            Outcome::Success => P::Res::decode(&mut body).map_err(CallbackError::Garbled),
            refused => Err(CallbackError::Refused(refused)),
        }
    }

    /// A reply to `xid` will go to the receiver.
    fn expect(
        &self,
        xid: Xid,
        slot: &Arc<OwnedSemaphorePermit>,
    ) -> Result<oneshot::Receiver<Bytes>, CallbackError> {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.0.lock();
        // Checked under the lock: closing first sets the flag, then drops the waiting calls.
        if self.is_closed() {
            return Err(CallbackError::Closed);
        }
        let call = Waiting { reply: Some(sender), _slot: Arc::clone(slot) };
        let before = waiting.insert(xid.0, call);
        debug_assert!(before.is_none() && waiting.len() <= CALLBACKS_MAX);
        Ok(receiver)
    }

    /// A reply came.
    pub(super) fn deliver(&self, record: Bytes) {
        let xid = record.first_chunk().map(|xid| u32::from_be_bytes(*xid));
        let waiting = xid.and_then(|xid| self.0.lock().remove(&xid));
        match waiting {
            None => {
                self.0.counts.strays.fetch_add(1, Relaxed);
            }
            // No caller waits for it any more; its slot is free now.
            Some(Waiting { reply: None, .. }) => {}
            Some(Waiting { reply: Some(reply), .. }) => {
                // The caller may have given up just now.
                let _ = reply.send(record);
            }
        }
    }

    /// The connection has ended: calls fail from now on, also those that wait.
    pub(super) fn close(&self) {
        self.0.is_closed.send_replace(true);
        self.0.slots.close();
        self.0.lock().clear();
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records that a reply is no longer waited for.
struct Nobody<'a> {
    inner: &'a Inner,
    xid: Xid,
    answered: bool,
}

impl Drop for Nobody<'_> {
    fn drop(&mut self) {
        if !self.answered
            && let Some(waiting) = self.inner.lock().get_mut(&self.xid.0)
        {
            waiting.reply = None;
        }
    }
}

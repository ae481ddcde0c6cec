//! Calls of the server to us, on the connections that we made: by these a server recalls leases.
//!
//! A record on a connection is a reply to a call of ours, or a call of the server: the message says
//! which, so the xids of the two directions may be the same. A task of its own carries out each
//! call while the connection continues to read replies, so that carrying it out may need calls of
//! ours.
//!
//! Invariants:
//! - A server that has more calls in flight than agreed ([`CALLBACKS_MAX`]), or sends one of more
//!   than [`CALLBACK_BYTES_MAX`], loses the connection. A call is in flight until its reply is
//!   sent.
//! - A reply is sent on the connection on which its call came, or not at all.
//! - After [`RpcClient::shutdown`](crate::RpcClient::shutdown) no call is carried out any more.

use super::Connection;
use super::sending::{Outgoing, What};
use crate::client::callbacks::Callbacks;
use crate::server::{CALLBACKS_MAX, Peer};
use bytes::Bytes;
use larder_wire::xdr::Segments;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Longest call that is taken from a server, in bytes.
pub const CALLBACK_BYTES_MAX: usize = 64 << 10;

/// The server's calls in flight on one socket.
#[derive(Debug)]
pub(super) struct Slots(Arc<Semaphore>);

impl Slots {
    pub(super) fn new() -> Slots {
        Slots(Arc::new(Semaphore::new(CALLBACKS_MAX)))
    }
}

impl Connection {
    /// Accepts a call of the server on the socket of this epoch. Returns `false` if the call is too
    /// long, or if too many are in flight.
    pub(super) fn called(
        self: &Arc<Connection>,
        callbacks: &Callbacks,
        (epoch, slots): (u64, &Slots),
        record: Bytes,
    ) -> bool {
        let slot = Arc::clone(&slots.0).try_acquire_owned();
        let (Ok(slot), true) = (slot, record.len() <= CALLBACK_BYTES_MAX) else { return false };
        let peer = Peer::server(self.shared.config.address);
        let answer = callbacks.answer(peer, record);
        let connection = Arc::clone(self);
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = connection.shared.until_shutdown() => {}
                reply = answer => {
                    if let Some(message) = reply {
                        connection.send_reply(epoch, message, slot);
                    }
                }
            }
        });
        true
    }

    /// Sends a reply, unless the socket that the call came by is gone. Its slot among the calls in
    /// flight is freed once it is sent.
    fn send_reply(&self, epoch: u64, message: Segments, slot: OwnedSemaphorePermit) {
        let mut state = self.lock();
        let (true, Some(socket)) = (state.epoch == epoch, state.socket.clone()) else { return };
        let what = What::Reply { message, _slot: slot };
        state.outgoing.push_back(Outgoing { what, sent_bytes: 0 });
        self.send_as_caller(state, &socket);
    }
}

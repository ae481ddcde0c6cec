//! UDP: a datagram in, a datagram out.
//!
//! What the service answers at once is answered by the task that reads. At most [`CALLS_MAX`] calls
//! are in flight; further ones are dropped, since the client asks again
//! anyway. Replies leave by the address that the socket is bound to: on a machine with several
//! addresses, bind to the one that clients know.

use std::sync::Arc;

use bytes::Bytes;
use larder_wire::xdr::Segments;
use tokio::net::UdpSocket;
use tokio::sync::{Semaphore, watch};

use super::dispatch::{Dispatcher, Peer, Service, poll_once};
use crate::program::Transport;

/// Most calls in flight.
const CALLS_MAX: u32 = 256;
/// Largest datagram, in bytes.
const DATAGRAM_BYTES_MAX: usize = 65_536;

/// Serves datagrams until `shutdown` becomes true and all replies are out.
pub(crate) async fn serve<S: Service>(
    dispatcher: Arc<Dispatcher<S>>,
    socket: UdpSocket,
    mut shutdown: watch::Receiver<bool>,
) {
    let socket = Arc::new(socket);
    let calls = Arc::new(Semaphore::new(CALLS_MAX as usize));
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let received = tokio::select! {
            received = socket.recv_from(&mut buffer) => received,
            _ = shutdown.wait_for(|down| *down) => break,
        };
        let (len, address) = match received {
            Ok(received) => received,
            Err(cause) => {
                // An ICMP message about an earlier reply; the next call may come all the same.
                tracing::debug!(%cause, "cannot receive");
                continue;
            }
        };
        if !dispatcher.allows(address.ip()) {
            continue;
        }
        let Ok(permit) = Arc::clone(&calls).try_acquire_owned() else { continue };
        let peer = Peer::new(address, Transport::Udp, dispatcher.config.source_ports);
        let message = Bytes::copy_from_slice(&buffer[..len]);
        let mut call = Box::pin(Arc::clone(&dispatcher).serve(peer, message, None, || ()));
        if let Some(reply) = poll_once(call.as_mut()).await {
            send(&socket, peer, reply).await;
            continue;
        }
        let socket = Arc::clone(&socket);
        tokio::spawn(async move {
            send(&socket, peer, call.await).await;
            drop(permit);
        });
    }
    // Waits for every call in flight.
    let drained = calls.acquire_many(CALLS_MAX).await;
    debug_assert!(drained.is_ok());
}

async fn send(socket: &UdpSocket, peer: Peer, reply: Option<Segments>) {
    let Some(reply) = reply else { return };
    if let Err(cause) = socket.send_to(&reply.to_bytes(), peer.address).await {
        tracing::debug!(peer = %peer.address, %cause, "cannot send");
    }
}

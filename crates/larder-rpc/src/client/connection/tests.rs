//! Sending: one thread at a time.

use super::Sender;
use crate::client::tests::pair;

/// The writer task may be woken for a message that its predecessor sent on a socket that is gone.
/// If a caller is sending then, the caller must stay the only sender, or messages would be
/// interleaved.
#[tokio::test]
async fn a_writer_that_is_woken_for_nothing_sends_nothing() {
    let (client, _peer, _listener) = pair(|_| ()).await;
    let connection = &client.inner.connections[0];
    while connection.lock().socket.is_none() {
        tokio::task::yield_now().await;
    }
    // A caller has taken the queued messages and is sending them.
    connection.lock().sender = Sender::Caller;
    connection.to_send.notify_one();
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(connection.lock().sender, Sender::Caller, "its message may be cut");
}

//! Who sends: one at a time.

use super::Sender;
use crate::client::tests::pair;

/// The writer task may be woken by what was meant for the one before it, on a socket that is gone.
/// A caller who is just sending then goes on alone, or messages would be cut by each other.
#[tokio::test]
async fn a_writer_that_is_woken_for_nothing_sends_nothing() {
    let (client, _peer, _listener) = pair(|_| ()).await;
    let connection = &client.inner.connections[0];
    while connection.lock().socket.is_none() {
        tokio::task::yield_now().await;
    }
    // A caller has taken what was to be sent, and is sending it.
    connection.lock().sender = Sender::Caller;
    connection.to_send.notify_one();
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(connection.lock().sender, Sender::Caller, "its message may be cut");
}

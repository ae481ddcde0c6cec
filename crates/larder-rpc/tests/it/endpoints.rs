//! A server that may be at one of several places.

use std::net::TcpListener;
use std::time::Duration;

use larder_rpc::Endpoint;

use crate::toy::{Plain, Running, ask};

/// Where nothing listens, or nothing answers, the connection attempt takes no longer than the
/// timeout.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_is_gone_or_silent_is_left_for_the_next() {
    let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = listen().local_addr().unwrap();
    let silent = listen();
    let real = Running::begin(false, |_| ()).await;
    let endpoint = |address| Endpoint { address, tls: None };
    let (client, _callbacks) = real
        .client(|config| {
            config.address = gone;
            config.others = vec![endpoint(silent.local_addr().unwrap()), endpoint(real.address)];
            config.timeout = Duration::from_millis(100);
            config.retransmissions = 600;
        })
        .await;
    assert_eq!(ask(&client, Plain(7)).await, Ok(7));
    let (_, before) = (silent.accept().unwrap(), client.stats().connections[0].reconnects);
    assert!(before >= 1);
    // It stays there.
    assert_eq!(ask(&client, Plain(8)).await, Ok(8));
    assert_eq!(client.stats().connections[0].reconnects, before);
}

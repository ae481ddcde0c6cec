//! A server that is silent: when calls give up, and what the next ones know.

use std::future::poll_fn;
use std::task::Poll;

use super::*;

#[tokio::test]
async fn a_silent_server_fails_a_soft_call_within_its_limit_and_is_known_as_unreachable() {
    let change = |config: &mut Config| {
        brief(config);
        // Enough that a machine which stalls does not use them up.
        config.retransmissions = 20;
    };
    let (client, peer, listener) = pair(change).await;
    let limit = client.config().limit();
    let started = Instant::now();
    let error = ask(&client, 1).await.unwrap_err();
    assert_eq!(error, RpcError::TimedOut { limit });
    assert!((limit..PATIENCE).contains(&started.elapsed()), "{:?}", started.elapsed());
    assert!(account(&client).timeouts >= 2);

    let mut state = client.state();
    within(state.wait_for(|state| *state != ServerState::Reachable)).await.unwrap();
    let args = GETPORTargs { mapping: mapping::default() };
    let options = CallOptions { fail_fast: true, ..CallOptions::default() };
    let hurried = client.call(&Credential::None, &args, options).await;
    assert_eq!(hurried.unwrap_err(), RpcError::Unreachable);

    // The server is back: the probe finds out without any call.
    drop(peer);
    tokio::spawn(echo_all(listener));
    within(state.wait_for(|state| *state == ServerState::Reachable)).await.unwrap();
    assert_eq!(ask(&client, 3).await.unwrap().results, 3);
}

/// A caller that asks a server which has been silent for the limit does not wait again, and no call
/// is sent for it. That ends when the server returns.
#[tokio::test]
async fn a_server_that_was_waited_for_in_vain_is_not_waited_for_again() {
    let (client, peer, listener) = pair(brief).await;
    let limit = client.config().limit();
    assert_eq!(ask(&client, 1).await.unwrap_err(), RpcError::TimedOut { limit });
    let mut state = client.state();
    within(state.wait_for(|state| *state != ServerState::Reachable)).await.unwrap();
    let (calls, begun) = (account(&client).calls, Instant::now());
    for number in 2..100 {
        assert_eq!(ask(&client, number).await.unwrap_err(), RpcError::TimedOut { limit });
    }
    assert!(begun.elapsed() < 98 * limit / 4, "{:?}", begun.elapsed());
    assert_eq!(account(&client).calls, calls, "nothing was sent");
    drop(peer);
    tokio::spawn(echo_all(listener));
    within(state.wait_for(|state| *state == ServerState::Reachable)).await.unwrap();
    assert_eq!(ask(&client, 100).await.unwrap().results, 100);
}

/// Each wait to the millisecond, on a clock that the test moves.
#[tokio::test]
async fn a_silent_connection_is_made_again_and_a_soft_call_ends_at_its_limit() {
    let sim = Arc::new(SimClock::new());
    let (client, mut peer, listener) = pair(|config| {
        config.clock = Arc::clone(&sim) as Arc<dyn Clock>;
        (config.timeout, config.retransmissions) = (Duration::from_secs(15), 2);
    })
    .await;
    let asked = ask_later(&client, 1);
    let first = peer.call().await;
    within(sim.asleep(1)).await;
    sim.advance(Duration::from_secs(15));
    // The call waits on, and a pause comes before the next connection.
    within(sim.asleep(2)).await;
    sim.advance(ms(100));
    let mut again = Peer::accept(&listener).await;
    assert_eq!(again.call().await, first, "the same xid");
    sim.advance(ms(14_900));
    within(sim.asleep(1)).await;
    assert!(!asked.is_finished() && client.reachable());
    sim.advance(ms(14_999));
    assert!(!asked.is_finished());
    sim.advance(ms(1));
    let limit = Duration::from_secs(45);
    assert_eq!(within(asked).await.unwrap().unwrap_err(), RpcError::TimedOut { limit });
    assert!(!client.reachable());
    let connection = client.stats().connections[0];
    assert_eq!((connection.timeouts, connection.reconnects, connection.retransmits), (3, 1, 1));
}

/// The call's own timer has no chance to notice. The next call does not wait either.
#[tokio::test]
async fn a_call_that_its_caller_drops_at_the_limit_was_in_vain() {
    let sim = Arc::new(SimClock::new());
    let (client, mut peer, _listener) = pair(|config| {
        config.clock = Arc::clone(&sim) as Arc<dyn Clock>;
        (config.timeout, config.retransmissions) = (Duration::from_secs(60), 0);
    })
    .await;
    let begun = sim.instant();
    for (wait, proves) in [(ms(59_999), false), (ms(60_000), true)] {
        let mut asked = Box::pin(ask(&client, 1));
        let once = poll_fn(|context| Poll::Ready(asked.as_mut().poll(context).is_pending()));
        assert!(once.await);
        peer.call().await;
        sim.advance(wait);
        drop(asked);
        assert_eq!(!client.reachable(), proves, "{wait:?}");
    }
    let since = begun + ms(59_999);
    assert_eq!(*client.state().borrow(), ServerState::Unreachable { since });
    assert!(ask(&client, 2).await.is_err());
}

#[tokio::test]
async fn a_call_ends_when_its_caller_waits_no_longer() {
    let (client, _peer, _listener) = pair(|_| ()).await;
    let limit = client.config().limit();
    let args = GETPORTargs { mapping: mapping::default() };
    let begun = Instant::now();
    for wait in [ms(50), Duration::ZERO] {
        let deadline = Some(begun + wait);
        let options = CallOptions { deadline, ..CallOptions::default() };
        let asked = within(client.call(&Credential::None, &args, options)).await;
        assert_eq!(asked.unwrap_err(), RpcError::TimedOut { limit });
        assert!(begun.elapsed() >= wait);
    }
    assert_eq!(account(&client).calls, 1, "what is over is not sent");
    assert!(client.reachable(), "it was not asked for long");
}

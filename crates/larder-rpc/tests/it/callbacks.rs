//! Calls both ways on one connection.

use std::sync::Arc;
use std::time::Duration;

use larder_io::SimClock;
use larder_rpc::server::{CALLBACKS_MAX, CallbackError};
use larder_rpc::{CALLBACK_BYTES_MAX, Recovery, RpcError};
use larder_wire::rpc::{CallHeader, MessageKind, Outcome, ReplyHeader, Xid, encode_reply};
use larder_wire::xdr::{Decode, Framing};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::toy::{
    Back, Held, NOTHING, Plain, RECALL_LIMIT, Raw, Recall, Running, ask, clock, connect, gated,
    within,
};

#[tokio::test]
async fn both_sides_call_each_other_at_the_same_time_on_one_connection() {
    let server = Running::begin(false, |_| ()).await;
    let (client, callbacks) = server.client(|_| ()).await;
    let mut asked = JoinSet::new();
    for number in 0..300 {
        let client = client.clone();
        asked.spawn(async move {
            let (plain, recalled) =
                tokio::join!(ask(&client, Plain(number)), ask(&client, Recall(number)));
            assert_eq!((plain, recalled), (Ok(number), Ok(number + 1000)));
        });
    }
    while let Some(done) = asked.join_next().await {
        done.unwrap();
    }
    assert_eq!((client.stats().connections.len(), server.stats().connections), (1, 1));
    assert_eq!((server.stats().callbacks, server.stats().callbacks_failed), (300, 0));
    assert_eq!(callbacks.stats().programs[0][1].calls, 300);
    assert_eq!(client.stats().connections[0].orphans, 0);
    assert_eq!(server.stats().stray_replies, 0);
}

/// While the client carries out a call of the server, it may call the server.
#[tokio::test]
async fn a_call_of_the_server_may_need_calls_of_the_client() {
    let server = Running::begin(true, |_| ()).await;
    // One call in flight per connection is that which waits, so there are two connections.
    let (client, _callbacks) = server.client(|config| config.connections = 2).await;
    let asked = (0..100).map(|number| {
        let client = client.clone();
        tokio::spawn(async move { ask(&client, Recall(number)).await })
    });
    for (number, asked) in (0..).zip(asked.collect::<Vec<_>>()) {
        assert_eq!(within(asked).await.unwrap(), Ok(number + 2000));
    }
}

#[tokio::test]
async fn the_xids_of_the_two_directions_may_be_the_same() {
    let server = Running::begin(false, |_| ()).await;
    let mut raw = Raw::connect(server.address).await;
    raw.call(1, &Recall(5)).await;
    let (xid, number) = raw.called().await;
    assert_eq!(number, 5);
    // A call with the xid of the server's own, before the reply to that.
    raw.call(xid.0, &Plain(6)).await;
    assert_eq!(raw.replied().await, (xid, 6));
    raw.reply(xid, 77).await;
    assert_eq!(raw.replied().await, (Xid(1), 77));
}

#[tokio::test]
async fn a_client_that_does_not_answer_is_waited_for_as_long_as_was_said() {
    let sim = Arc::new(SimClock::new());
    let server = Running::begin(false, |config| config.clock = clock(&sim)).await;
    let mut raw = Raw::connect(server.address).await;
    raw.call(1, &Recall(5)).await;
    let (late, _) = raw.called().await;
    // The reader of the connection, and the call.
    within(sim.asleep(2)).await;
    sim.advance(RECALL_LIMIT - Duration::from_millis(1));
    raw.call(2, &Plain(7)).await;
    assert_eq!(raw.replied().await, (Xid(2), 7), "nothing else came before");
    sim.advance(Duration::from_millis(1));
    assert_eq!(raw.replied().await, (Xid(1), NOTHING));
    let limit = RECALL_LIMIT;
    assert_eq!(*server.errors.lock().unwrap(), [CallbackError::TimedOut { limit }]);
    // Its answer comes late and does no harm.
    raw.reply(late, 1).await;
    raw.call(3, &Plain(8)).await;
    assert_eq!(raw.replied().await, (Xid(3), 8));
    assert_eq!(server.stats().stray_replies, 0, "it was known");
}

#[tokio::test]
async fn a_call_ends_with_the_connection_that_it_was_made_on() {
    let server = Running::begin(false, |_| ()).await;
    let mut raw = Raw::connect(server.address).await;
    raw.call(1, &Recall(5)).await;
    raw.called().await;
    let way = server.ways.lock().unwrap()[0].clone();
    assert!(!way.is_closed());
    drop(raw);
    within(way.closed()).await;
    let lost = within(way.call(&Plain(1), RECALL_LIMIT)).await;
    assert_eq!(lost, Err(CallbackError::Closed));
    while server.errors.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(*server.errors.lock().unwrap(), [CallbackError::Closed]);
}

/// The connection breaks while each side waits for the other: the client's call is replayed on the
/// next one, and what was to be answered on the old one is not.
#[tokio::test]
async fn a_connection_that_is_lost_amid_calls_both_ways_is_made_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (callbacks, begun, gate) = gated();
    let hard = |config: &mut larder_rpc::Config| config.recovery = Recovery::Hard;
    let connecting = connect(listener.local_addr().unwrap(), &callbacks, hard);
    let (client, mut raw) = tokio::join!(connecting, Raw::accept(&listener));
    let asked = tokio::spawn({
        let client = client.clone();
        async move { ask(&client, Plain(5)).await }
    });
    let first = raw.called().await;
    raw.call(9, &Back(1)).await;
    within(begun.notified()).await;
    drop(raw);

    let mut raw = Raw::accept(&listener).await;
    assert_eq!(raw.called().await, first, "the same xid");
    gate.add_permits(2);
    raw.call(10, &Back(2)).await;
    assert_eq!(raw.replied().await, (Xid(10), 1002), "the reply to the first one is gone");
    raw.reply(first.0, 6).await;
    assert_eq!(within(asked).await.unwrap(), Ok(6));
    assert_eq!(callbacks.stats().programs[0][1].calls, 2);

    // A call of the server that is under way ends with the client.
    raw.call(11, &Back(3)).await;
    begun.notified().await;
    within(begun.notified()).await;
    client.shutdown();
    assert!(raw.message().await.is_none());
    assert_eq!(ask(&client, Plain(7)).await, Err(RpcError::Shutdown));
}

/// A server that calls more often, or with longer messages, than agreed loses the connection, and
/// the client continues.
#[tokio::test]
async fn a_server_that_calls_too_much_is_cut_off() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (callbacks, _begun, gate) = gated();
    let connecting = connect(listener.local_addr().unwrap(), &callbacks, |_| ());
    let (client, mut raw) = tokio::join!(connecting, Raw::accept(&listener));
    for number in 0..=u32::try_from(CALLBACKS_MAX).unwrap() {
        raw.call(number, &Back(number)).await;
    }
    assert!(raw.message().await.is_none());

    let mut raw = Raw::accept(&listener).await;
    raw.stream.write_all(&larder_wire::record::mark(CALLBACK_BYTES_MAX + 4)).await.unwrap();
    raw.stream.write_all(&vec![0; CALLBACK_BYTES_MAX + 4]).await.unwrap();
    assert!(raw.message().await.is_none());

    gate.add_permits(1000);
    let mut raw = Raw::accept(&listener).await;
    for number in 0..200 {
        raw.call(number, &Back(number)).await;
        assert_eq!(raw.replied().await, (Xid(number), number + 1000));
    }
    drop(client);
    assert!(raw.message().await.is_none());
}

#[tokio::test]
async fn no_more_calls_are_sent_to_a_client_than_agreed() {
    let server = Running::begin(false, |_| ()).await;
    let mut raw = Raw::connect(server.address).await;
    let count = u32::try_from(CALLBACKS_MAX).unwrap() + 10;
    for number in 0..count {
        raw.call(number, &Recall(number)).await;
    }
    let mut called = Vec::new();
    for _ in 0..CALLBACKS_MAX {
        called.push(raw.called().await);
    }
    raw.call(1000, &Plain(9)).await;
    assert_eq!(raw.replied().await, (Xid(1000), 9), "the rest waits");
    for (xid, number) in called {
        raw.reply(xid, number).await;
    }
    let mut answered = 0;
    while answered < count {
        let mut message = raw.message().await.unwrap();
        if MessageKind::of(&message) == Some(MessageKind::Call) {
            let header = CallHeader::decode(&mut message).unwrap();
            raw.reply(header.xid, u32::decode(&mut message).unwrap()).await;
        } else {
            answered += 1;
        }
    }
    assert_eq!(server.stats().callbacks, u64::from(count));
}

/// A client whose calls fill the window can still answer the server.
#[tokio::test]
async fn a_reply_comes_through_a_full_window() {
    let server = Running::begin(false, |_| ()).await;
    let mut raw = Raw::connect(server.address).await;
    raw.call(5000, &Recall(5)).await;
    let (xid, _) = raw.called().await;
    // More than the window takes.
    let count = 1000;
    for number in 0..count {
        raw.call(number, &Held(number)).await;
    }
    raw.reply(xid, 6).await;
    assert_eq!(raw.replied().await, (Xid(5000), 6));
    server.let_go.add_permits(count as usize);
    let mut answered = std::collections::HashSet::new();
    for _ in 0..count {
        let (xid, number) = raw.replied().await;
        assert!(xid.0 == number && answered.insert(number));
    }
}

#[tokio::test]
async fn a_reply_that_makes_no_sense_fails_its_call_only() {
    let server = Running::begin(false, |_| ()).await;
    let mut raw = Raw::connect(server.address).await;
    raw.call(1, &Recall(5)).await;
    let (xid, _) = raw.called().await;
    // A success without results.
    let header = ReplyHeader { xid, outcome: Outcome::Success };
    let framing = Framing::Record;
    let reply = encode_reply(header, &(), framing).to_bytes();
    raw.stream.write_all(&reply).await.unwrap();
    assert_eq!(raw.replied().await, (Xid(1), NOTHING));
    raw.call(2, &Recall(6)).await;
    let (xid, _) = raw.called().await;
    let header = ReplyHeader { xid, outcome: Outcome::ProcUnavail };
    let reply = encode_reply(header, &(), framing).to_bytes();
    raw.stream.write_all(&reply).await.unwrap();
    assert_eq!(raw.replied().await, (Xid(2), NOTHING));
    // To a call that there is not.
    raw.reply(Xid(xid.0.wrapping_add(5)), 1).await;
    raw.call(3, &Plain(8)).await;
    assert_eq!(raw.replied().await, (Xid(3), 8));
    let errors = server.errors.lock().unwrap();
    assert!(matches!(errors[0], CallbackError::Garbled(_)), "{errors:?}");
    assert_eq!(errors[1], CallbackError::Refused(Outcome::ProcUnavail));
    assert_eq!(server.stats().stray_replies, 1);
}

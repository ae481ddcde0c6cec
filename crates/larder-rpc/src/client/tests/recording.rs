//! Recordings of connections that work, stall and end.

use super::*;
use crate::series::{RECORDINGS_MAX, SLICE_WIDTHS, Series, Slice};

const WIDTH: Duration = Duration::from_millis(1);

/// Sums over all slices of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    offered: u64,
    completed: u64,
    retransmits: u64,
    timeouts: u64,
}

fn sums<'a>(slices: impl IntoIterator<Item = &'a Slice>) -> Sums {
    slices.into_iter().fold(Sums::default(), |sums, slice| Sums {
        offered: sums.offered + slice.offered,
        completed: sums.completed + slice.completed,
        retransmits: sums.retransmits + slice.retransmits,
        timeouts: sums.timeouts + slice.timeouts,
    })
}

#[tokio::test]
async fn a_recording_has_every_call_made_while_it_runs() {
    let (listener, mut config) = listen().await;
    config.connections = 2;
    let client = RpcClient::connect(config).await.unwrap();
    for _ in 0..2 {
        tokio::spawn(Peer::accept(&listener).await.echo());
    }
    ask(&client, 0).await.unwrap();
    let mut recording = client.record(WIDTH).unwrap();
    let mut told = vec![Vec::new(); 2];
    for round in 0..20 {
        let asked: Vec<_> = (0..10).map(|number| ask_later(&client, number)).collect();
        for asked in asked {
            asked.await.unwrap().unwrap();
        }
        let series = if round % 3 == 0 { recording.take() } else { Series::default() };
        told.iter_mut().zip(series.connections).for_each(|(all, new)| all.extend(new));
    }
    let end = recording.finish();
    told.iter_mut().zip(end.connections).for_each(|(all, new)| all.extend(new));

    let all = sums(told.iter().flatten());
    assert_eq!(all, Sums { offered: 200, completed: 200, ..Sums::default() });
    let connections = client.stats().connections;
    assert_eq!(connections.iter().map(|one| one.completed).sum::<u64>(), 201);
    for slices in &told {
        assert!(slices.windows(2).all(|pair| pair[0].number < pair[1].number));
        assert_eq!(slices.last().map(|last| (last.in_flight, last.backlog)), Some((0, 0)));
        assert!(slices.iter().all(|slice| slice.window == 256 && slice.dropped == 0));
    }
}

/// A server that drops what it gets: over UDP each call is sent again and again, in smaller
/// windows.
#[tokio::test]
async fn a_server_that_drops_calls_is_seen_as_it_happens() {
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut config = config(server.local_addr().unwrap(), Transport::Udp);
    (config.timeout, config.retransmissions) = (ms(150), 100);
    let client = RpcClient::connect(config).await.unwrap();
    let recording = client.record(WIDTH).unwrap();
    let asked: Vec<_> = (0..5).map(|number| ask_later(&client, number)).collect();
    while client.stats().connections[0].timeouts < 4 {
        within(server.recv(&mut [0; 2048])).await.unwrap();
    }
    asked.iter().for_each(tokio::task::JoinHandle::abort);
    for asked in asked {
        assert!(asked.await.unwrap_err().is_cancelled());
    }
    let stats = client.stats();
    let series = recording.finish();
    let slices = &series.connections[0];

    let offered = slices.iter().position(|slice| slice.offered > 0).unwrap();
    let begin = slices[offered].number;
    // Two fit the window that UDP begins with.
    let waits = slices.iter().find(|slice| slice.backlog == 3).unwrap();
    assert_eq!((waits.in_flight, waits.window), (2, 2));
    let losses: Vec<_> = slices.iter().filter(|slice| slice.timeouts > 0).collect();
    assert!(losses.iter().all(|slice| slice.window == 1), "halved: {losses:?}");
    // No retransmission comes before its time: 150 ms, and then twice that.
    assert!(losses[0].number >= begin + 149, "{losses:?}");
    assert!(losses.iter().any(|slice| slice.number >= begin + 449), "{losses:?}");
    let again = slices.iter().filter(|slice| slice.retransmits > 0);
    for slice in again {
        let lost = losses.iter().rev().find(|loss| loss.number <= slice.number);
        assert!(lost.is_some(), "sent again without a timeout: {slice:?}");
    }
    let last = slices.last().unwrap();
    assert_eq!((last.in_flight, last.backlog), (0, 0), "all were given up");
    let sums = sums(slices);
    let connection = stats.connections[0];
    assert_eq!((sums.offered, sums.completed), (5, 0));
    assert_eq!((sums.timeouts, sums.retransmits), (connection.timeouts, connection.retransmits));
    // Two calls, each sent once and again after each timeout.
    assert_eq!(sums.timeouts, sums.retransmits);
}

#[tokio::test]
async fn a_recording_ends_with_the_client_and_tells_the_rest() {
    let (client, mut peer, _listener) = pair(hard).await;
    let recording = client.record(WIDTH).unwrap();
    let asked = ask_later(&client, 1);
    peer.call().await;
    assert!(!recording.over());
    client.shutdown();
    assert_eq!(asked.await.unwrap().unwrap_err(), RpcError::Shutdown);
    assert!(recording.over());
    let Series { until, connections } = recording.finish();
    let last = connections[0].last().unwrap();
    assert!(last.number < until);
    assert_eq!((last.in_flight, sums(&connections[0]).offered), (0, 1));
}

#[tokio::test]
async fn recordings_are_few_and_their_slices_neither_long_nor_short() {
    let (client, _peer, _listener) = pair(|_| ()).await;
    for width in [Duration::ZERO, Duration::from_micros(99), Duration::from_millis(1001)] {
        assert_eq!(client.record(width).unwrap_err(), RecordError::Width);
    }
    let mut recordings: Vec<_> =
        (0..RECORDINGS_MAX).map(|_| client.record(WIDTH).unwrap()).collect();
    assert_eq!(client.record(WIDTH).unwrap_err(), RecordError::TooMany);
    recordings.pop();
    recordings.push(client.record(*SLICE_WIDTHS.end()).unwrap());
    assert_eq!(client.record(WIDTH).unwrap_err(), RecordError::TooMany);
}

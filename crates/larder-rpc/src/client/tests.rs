//! The transport against a scripted server on loopback.

mod recording;
mod silence;

use super::*;
use crate::program::Program;
use crate::stats::ProcedureSnapshot;
use larder_io::{Clock, SimClock};
use larder_wire::portmap::{self, GETPORTargs, mapping};
use larder_wire::record::{self, Heap, RecordAssembler};
use larder_wire::rpc::{CallHeader, Outcome, ReplyHeader, Xid, encode_reply};
use larder_wire::xdr::{Framing, XdrError};
use std::collections::VecDeque;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};

const PROGRAM: Program = Program {
    number: portmap::PROGRAM,
    version: portmap::VERSION,
    procedures: &["NULL", "SET", "UNSET", "GETPORT"],
};
const GETPORT: u32 = 3;

/// The longest that any step may take: a test that hangs fails with a message.
const PATIENCE: Duration = Duration::from_secs(60);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("the test hangs")
}

/// A server's end of a TCP connection.
pub(super) struct Peer {
    stream: TcpStream,
    records: RecordAssembler<Heap>,
    calls: VecDeque<(CallHeader, u32)>,
}

impl Peer {
    async fn accept(listener: &TcpListener) -> Peer {
        let (stream, _) = within(listener.accept()).await.unwrap();
        Peer { stream, records: RecordAssembler::new(Heap, 1 << 21), calls: VecDeque::new() }
    }

    /// The next call, and the number in its arguments.
    async fn call(&mut self) -> (Xid, u32) {
        loop {
            if let Some((header, number)) = self.calls.pop_front() {
                return (header.xid, number);
            }
            let mut bytes = [0; 4096];
            let length = within(self.stream.read(&mut bytes)).await.unwrap();
            assert_ne!(length, 0, "the client went away");
            let calls = &mut self.calls;
            let mut deliver = |record| calls.push_back(parse_call(record));
            self.records.push(&bytes[..length], &mut deliver).unwrap();
        }
    }

    async fn reply(&mut self, xid: Xid, number: u32) {
        let bytes = reply(xid, number, Framing::Record);
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// Answers every call with the number in its arguments, until the client is gone.
    async fn echo(mut self) {
        loop {
            let (xid, number) = self.call().await;
            self.reply(xid, number).await;
        }
    }
}

/// Answers the calls on all connections.
async fn echo_all(listener: TcpListener) {
    loop {
        tokio::spawn(Peer::accept(&listener).await.echo());
    }
}

/// A port that is bound but has no listener yet, so that no other program gets it.
fn silent_port(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

fn parse_call(mut record: Bytes) -> (CallHeader, u32) {
    let header = CallHeader::decode(&mut record).unwrap();
    let number = GETPORTargs::decode(&mut record).map_or(0, |args| args.mapping.port);
    (header, number)
}

fn reply(xid: Xid, number: u32, framing: Framing) -> Bytes {
    encode_reply(ReplyHeader { xid, outcome: Outcome::Success }, &number, framing).to_bytes()
}

fn config(address: SocketAddr, transport: Transport) -> Config {
    let mut config = Config::new(address, transport, PROGRAM);
    config.source_port = SourcePort::Any;
    // Nothing times out on a busy machine, except where a test wants it.
    config.timeout = PATIENCE;
    config
}

/// Makes waits short, for tests about them.
fn brief(config: &mut Config) {
    config.timeout = ms(150);
    config.retransmissions = 2;
}

async fn listen() -> (TcpListener, Config) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = config(listener.local_addr().unwrap(), Transport::Tcp);
    (listener, config)
}

/// A client, and the first connection that it makes.
pub(super) async fn pair(change: impl FnOnce(&mut Config)) -> (RpcClient, Peer, TcpListener) {
    let (listener, mut config) = listen().await;
    change(&mut config);
    let (client, peer) = tokio::join!(RpcClient::connect(config), Peer::accept(&listener));
    (client.unwrap(), peer, listener)
}

fn hard(config: &mut Config) {
    config.recovery = Recovery::Hard;
}

/// Asks the server for a number.
async fn ask(client: &RpcClient, number: u32) -> Result<Reply<u32>, RpcError> {
    let args = GETPORTargs { mapping: mapping { port: number, ..mapping::default() } };
    let credential = client.auth_sys(7, 8, &[9; 20]);
    within(client.call(&credential, &args, CallOptions::default())).await
}

fn ask_later(
    client: &RpcClient,
    number: u32,
) -> tokio::task::JoinHandle<Result<Reply<u32>, RpcError>> {
    let client = client.clone();
    tokio::spawn(async move { ask(&client, number).await })
}

fn account(client: &RpcClient) -> ProcedureSnapshot {
    let stats = client.stats();
    *stats.procedures.iter().find(|one| one.number == GETPORT).unwrap()
}

#[tokio::test]
async fn replies_may_come_in_any_order_and_in_any_pieces() {
    let (client, mut peer, _listener) = pair(|_| ()).await;
    let asked: Vec<_> = (0..20).map(|number| ask_later(&client, number)).collect();
    let mut replies = Vec::new();
    for _ in 0..20 {
        let (xid, number) = peer.call().await;
        let whole = reply(xid, number, Framing::Datagram);
        // Three fragments, the second of them empty.
        for (part, flag) in [(&whole[..6], 0), (&[][..], 0), (&whole[6..], 0x8000_0000)] {
            let mark = u32::try_from(part.len()).unwrap() | flag;
            replies.push([&mark.to_be_bytes()[..], part].concat());
        }
    }
    let fragments: Vec<_> = replies.chunks(3).rev().flatten().flatten().copied().collect();
    for piece in fragments.chunks(5) {
        peer.stream.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    for (number, asked) in (0..).zip(asked) {
        let reply = asked.await.unwrap().unwrap();
        assert_eq!((reply.results, reply.transmissions), (number, 1));
    }
    let account = account(&client);
    assert_eq!((account.name, account.calls, account.errors), ("GETPORT", 20, 0));
    assert_eq!((account.latency.count, account.retransmits), (20, 0));
    assert_eq!(account.bytes_received, 20 * 28);
}

#[tokio::test]
async fn calls_bear_the_credential() {
    let (client, mut peer, _listener) = pair(|config| config.machine_name = "box".into()).await;
    let asked = ask_later(&client, 1);
    let mut bytes = [0; 256];
    let length = peer.stream.read(&mut bytes).await.unwrap();
    let (header, _) = parse_call(Bytes::copy_from_slice(&bytes[4..length]));
    let Credential::Sys(sys) = header.credential else { panic!("{header:?}") };
    assert_eq!((&sys.machine_name[..], sys.uid, sys.gid), (&b"box"[..], 7, 8));
    assert_eq!(sys.groups.0, [9; GROUPS_MAX]);
    peer.reply(header.xid, 1).await;
    asked.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_connection_that_drops_amid_a_reply_is_made_again_and_calls_are_replayed() {
    let (client, mut peer, listener) = pair(hard).await;
    let asked = [5, 6].map(|number| ask_later(&client, number));
    let first = [peer.call().await, peer.call().await];
    let half = reply(first[0].0, 5, Framing::Record);
    peer.stream.write_all(&half[..half.len() / 2]).await.unwrap();
    drop(peer);

    let mut peer = Peer::accept(&listener).await;
    let mut again = [peer.call().await, peer.call().await];
    again.sort_by_key(|call| call.1);
    let mut first = first;
    first.sort_by_key(|call| call.1);
    assert_eq!(again, first, "the same xids for the same calls");
    for (xid, number) in again {
        peer.reply(xid, number).await;
    }
    for asked in asked {
        assert_eq!(asked.await.unwrap().unwrap().transmissions, 2);
    }
    assert_eq!(account(&client).retransmits, 2);
    assert_eq!(client.stats().connections[0].reconnects, 1);
    assert_eq!(client.stats().connections[0].orphans, 0);
}

#[tokio::test]
async fn a_hard_call_outlives_a_server_that_is_gone_and_comes_back() {
    let change = |config: &mut Config| {
        brief(config);
        hard(config);
    };
    let (client, peer, listener) = pair(change).await;
    let address = listener.local_addr().unwrap();
    drop((peer, listener));
    let port = silent_port(address);
    let asked = ask_later(&client, 4);
    let mut state = client.state();
    within(state.wait_for(|state| *state != ServerState::Reachable)).await.unwrap();
    // More waits than a soft call would have had.
    while client.stats().procedures.iter().all(|one| one.timeouts < 5) {
        tokio::task::yield_now().await;
    }
    assert!(!asked.is_finished());

    tokio::spawn(echo_all(port.listen(16).unwrap()));
    assert_eq!(asked.await.unwrap().unwrap().results, 4);
    within(state.wait_for(|state| *state == ServerState::Reachable)).await.unwrap();
}

#[tokio::test]
async fn shutdown_ends_calls_at_once_and_for_ever() {
    let (client, mut peer, _listener) = pair(|config| {
        hard(config);
        config.in_flight_max = 1;
    })
    .await;
    let asked = [1, 2].map(|number| ask_later(&client, number));
    peer.call().await;
    client.shutdown();
    for asked in asked {
        assert_eq!(asked.await.unwrap().unwrap_err(), RpcError::Shutdown);
    }
    assert_eq!(ask(&client, 3).await.unwrap_err(), RpcError::Shutdown);
    let mut rest = Vec::new();
    within(peer.stream.read_to_end(&mut rest)).await.unwrap();
}

#[tokio::test]
async fn the_last_client_closes_the_connection() {
    let (client, mut peer, _listener) = pair(hard).await;
    let clone = client.clone();
    drop(client);
    let asked = ask_later(&clone, 1);
    let (xid, number) = peer.call().await;
    peer.reply(xid, number).await;
    asked.await.unwrap().unwrap();
    drop(clone);
    assert_eq!(within(peer.stream.read(&mut [0; 1])).await.unwrap(), 0);
}

#[tokio::test]
async fn a_call_that_is_given_up_makes_room_for_the_next() {
    let (client, mut peer, _listener) = pair(|config| config.in_flight_max = 1).await;
    let given_up = ask_later(&client, 1);
    let (late, _) = peer.call().await;
    let waits_and_leaves = ask_later(&client, 2);
    let waits = ask_later(&client, 3);
    while client.stats().connections[0].backlog < 2 {
        tokio::task::yield_now().await;
    }
    waits_and_leaves.abort();
    given_up.abort();
    let (xid, number) = peer.call().await;
    assert_eq!(number, 3);
    peer.reply(late, 1).await;
    peer.reply(xid, number).await;
    assert_eq!(waits.await.unwrap().unwrap().results, 3);
    let connection = client.stats().connections[0];
    assert_eq!((connection.orphans, connection.in_flight, connection.backlog), (1, 0, 0));
}

#[tokio::test]
async fn a_reply_that_is_too_long_breaks_the_connection_and_takes_no_memory() {
    let (client, mut peer, listener) = pair(|_| ()).await;
    let asked = ask_later(&client, 8);
    peer.call().await;
    peer.stream.write_all(&[0xff, 0xff, 0xff, 0xff]).await.unwrap();
    assert_eq!(within(peer.stream.read(&mut [0; 1])).await.unwrap_or(0), 0);
    tokio::spawn(Peer::accept(&listener).await.echo());
    assert_eq!(asked.await.unwrap().unwrap().results, 8);
}

#[tokio::test]
async fn what_the_server_refuses_or_garbles_is_an_error_of_that_call_only() {
    let (client, mut peer, _listener) = pair(|_| ()).await;
    let asked = ask_later(&client, 1);
    let (xid, _) = peer.call().await;
    let outcome = Outcome::AuthError(larder_wire::rpc::AUTH_TOOWEAK);
    let refusal = encode_reply(ReplyHeader { xid, outcome }, &(), Framing::Record).to_bytes();
    // Data that belongs to no call comes first.
    peer.stream.write_all(&[record::mark(2), [1, 2, 3, 4]].concat()[..6]).await.unwrap();
    peer.stream.write_all(&refusal).await.unwrap();
    assert_eq!(asked.await.unwrap().unwrap_err(), RpcError::Refused(outcome));

    let asked = ask_later(&client, 2);
    let (xid, number) = peer.call().await;
    let whole = reply(xid, number, Framing::Datagram);
    let cut = whole.len() - 4;
    peer.stream.write_all(&record::mark(cut)).await.unwrap();
    peer.stream.write_all(&whole[..cut]).await.unwrap();
    assert_eq!(asked.await.unwrap().unwrap_err(), RpcError::Garbled(XdrError::Short));
    assert_eq!(account(&client).errors, 2);
    assert_eq!(client.stats().connections[0].orphans, 1);
}

#[tokio::test]
async fn large_calls_and_replies_pass_while_others_wait() {
    use larder_wire::nfs3::{self, Res3};
    const PAYLOAD: usize = 1 << 20;
    let (listener, mut config) = listen().await;
    config.program = Program { number: nfs3::PROGRAM, version: 3, procedures: &[] };
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut records = RecordAssembler::new(Heap, 1 << 21);
        let mut bytes = vec![0; 1 << 16];
        loop {
            let length = stream.read(&mut bytes).await.unwrap();
            if length == 0 {
                return;
            }
            let mut calls = Vec::new();
            records.push(&bytes[..length], &mut |record| calls.push(record)).unwrap();
            for mut call in calls {
                let xid = CallHeader::decode(&mut call).unwrap().xid;
                let args = nfs3::WRITE3args::decode(&mut call).unwrap();
                // Echoes what was written as if it had been read.
                let results: nfs3::READ3res = Res3::Ok(nfs3::READ3resok {
                    file_attributes: None,
                    count: args.count,
                    eof: true,
                    data: args.data,
                });
                let header = ReplyHeader { xid, outcome: Outcome::Success };
                let reply = encode_reply(header, &results, Framing::Record).to_bytes();
                stream.write_all(&reply).await.unwrap();
            }
        }
    };
    let client = async {
        let client = RpcClient::connect(config).await.unwrap();
        let calls = (0..24_u8).map(|byte| {
            let client = client.clone();
            tokio::spawn(async move {
                let data = Bytes::from(vec![byte; PAYLOAD - usize::from(byte)]);
                let args = nfs3::WRITE3args {
                    file: nfs3::nfs_fh3::new(&[byte]).unwrap(),
                    offset: 0,
                    count: byte.into(),
                    stable: nfs3::stable_how::UNSTABLE,
                    data: data.clone().into(),
                };
                let none = Credential::None;
                let reply = client.call_raw(&none, &args, CallOptions::default()).await.unwrap();
                let echoed = nfs3::READ3res::decode(&mut reply.results.clone()).unwrap().unwrap();
                assert_eq!((echoed.count, echoed.data.0), (byte.into(), data));
            })
        });
        for call in calls.collect::<Vec<_>>() {
            within(call).await.unwrap();
        }
        client.stats()
    };
    let stats = tokio::select! {
        () = server => panic!("the server ended first"),
        stats = client => stats,
    };
    assert_eq!(stats.connections[0].completed, 24);
}

#[tokio::test]
async fn a_lost_datagram_is_sent_again_with_the_same_xid() {
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut config = config(server.local_addr().unwrap(), Transport::Udp);
    config.timeout = ms(150);
    config.retransmissions = 100;
    let client = RpcClient::connect(config).await.unwrap();
    let asked = ask_later(&client, 6);
    let mut bytes = [0; 2048];
    let mut xids = Vec::new();
    for _ in 0..2 {
        let (length, from) = within(server.recv_from(&mut bytes)).await.unwrap();
        let (header, number) = parse_call(Bytes::copy_from_slice(&bytes[..length]));
        xids.push(header.xid);
        if xids.len() == 2 {
            // The reply is sent twice, as if both transmissions had arrived.
            for _ in 0..2 {
                let reply = reply(header.xid, number, Framing::Datagram);
                server.send_to(&reply, from).await.unwrap();
            }
        }
    }
    let reply = asked.await.unwrap().unwrap();
    assert_eq!(reply.results, 6);
    assert!(reply.transmissions >= 2);
    assert_eq!(xids[0], xids[1]);
    assert_eq!(client.stats().connections[0].window, 1, "halved by the loss");
}

#[tokio::test]
async fn over_udp_many_calls_share_the_window() {
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let config = config(server.local_addr().unwrap(), Transport::Udp);
    let client = RpcClient::connect(config).await.unwrap();
    let asked: Vec<_> = (0..50).map(|number| ask_later(&client, number)).collect();
    let mut bytes = [0; 2048];
    for _ in 0..50 {
        let (length, from) = within(server.recv_from(&mut bytes)).await.unwrap();
        let connection = client.stats().connections[0];
        assert!(connection.in_flight <= connection.window, "{connection:?}");
        let (header, number) = parse_call(Bytes::copy_from_slice(&bytes[..length]));
        server.send_to(&reply(header.xid, number, Framing::Datagram), from).await.unwrap();
    }
    for (number, asked) in (0..).zip(asked) {
        assert_eq!(asked.await.unwrap().unwrap().results, number);
    }
    assert!(client.stats().connections[0].window > 2);
}

#[tokio::test]
async fn a_port_without_a_listener_is_found_out_at_once() {
    let port = silent_port("127.0.0.1:0".parse().unwrap());
    let unused = port.local_addr().unwrap();
    let error = RpcClient::connect(config(unused, Transport::Tcp)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Failed { .. }), "{error}");

    let mut config = config(unused, Transport::Udp);
    brief(&mut config);
    let client = RpcClient::connect(config).await.unwrap();
    let limit = client.config().limit();
    assert_eq!(ask(&client, 1).await.unwrap_err(), RpcError::TimedOut { limit });
    assert!(!client.reachable());
}

#[tokio::test]
async fn the_least_loaded_connection_takes_the_call() {
    let (listener, mut config) = listen().await;
    config.connections = 3;
    let client = RpcClient::connect(config).await.unwrap();
    let mut peers = Vec::new();
    for _ in 0..3 {
        peers.push(Peer::accept(&listener).await);
    }
    while client.stats().connections.iter().any(|connection| !connection.connected) {
        tokio::task::yield_now().await;
    }
    let asked: Vec<_> = (0..9).map(|number| ask_later(&client, number)).collect();
    for peer in &mut peers {
        for _ in 0..3 {
            let (xid, number) = peer.call().await;
            peer.reply(xid, number).await;
        }
    }
    for (number, asked) in (0..).zip(asked) {
        assert_eq!(asked.await.unwrap().unwrap().results, number);
    }
}

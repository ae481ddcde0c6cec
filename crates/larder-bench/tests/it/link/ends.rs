//! How connections end over a link, and how the link itself does.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use larder_bench::link::Shape;
use larder_bench::link::proxy::{Options, Proxy};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::peers::{MEGABIT, PATIENCE, connect, count, echo, proxy, server};

/// A rate at which things take time, and a delay in which things are under way.
const SLOW: Shape =
    Shape { rate_bits_per_s: Some(10 * MEGABIT), delay: Duration::from_millis(20), loss: 0.0 };

/// Closes a connection with a reset.
fn abort(stream: TcpStream) {
    set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
}

/// A server that hands its connections to the test.
fn handing_over() -> (SocketAddr, mpsc::Receiver<TcpStream>) {
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    let address = server(move |stream| {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        sender.lock().unwrap().send(stream).unwrap();
    });
    (address, receiver)
}

/// All that comes, and how it ends.
fn drain(stream: &mut TcpStream) -> (usize, Option<ErrorKind>) {
    let mut received = Vec::new();
    let error = stream.read_to_end(&mut received).err().map(|error| error.kind());
    (received.len(), error)
}

#[test]
fn half_a_close_is_passed_on_and_the_other_half_lives() {
    for shape in [Shape::default(), SLOW] {
        let proxy = proxy(server(count), shape);
        let mut stream = connect(proxy.address());
        stream.write_all(&[7; 100_000]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        // It counts until the end of what we send, so it answers only if that end is forwarded.
        let mut counted = [0; 8];
        stream.read_exact(&mut counted).unwrap();
        assert_eq!(u64::from_be_bytes(counted), 100_000);
        assert_eq!(drain(&mut stream), (0, None));
    }
}

#[test]
fn the_server_may_close_its_half_first() {
    let (address, accepted) = handing_over();
    let proxy = proxy(address, SLOW);
    let mut client = connect(proxy.address());
    let mut server = accepted.recv_timeout(PATIENCE).unwrap();
    server.write_all(b"bye").unwrap();
    server.shutdown(Shutdown::Write).unwrap();
    assert_eq!(drain(&mut client), (3, None));
    client.write_all(&[7; 100_000]).unwrap();
    drop(client);
    assert_eq!(drain(&mut server), (100_000, None));
}

#[test]
fn a_reset_is_passed_on_either_way_after_what_was_sent_before() {
    for shape in [Shape::default(), SLOW] {
        let (address, accepted) = handing_over();
        let proxy = proxy(address, shape);
        for client_aborts in [true, false] {
            let client = connect(proxy.address());
            let server = accepted.recv_timeout(PATIENCE).unwrap();
            let (mut aborts, mut hears) =
                if client_aborts { (client, server) } else { (server, client) };
            aborts.write_all(b"bytes").unwrap();
            hears.read_exact(&mut [0; 5]).unwrap();
            abort(aborts);
            assert_eq!(drain(&mut hears), (0, Some(ErrorKind::ConnectionReset)));
        }
    }
}

#[test]
fn a_peer_that_is_found_dead_by_writing_resets_the_other() {
    let (address, accepted) = handing_over();
    let proxy = proxy(address, SLOW);
    let mut client = connect(proxy.address());
    let mut server = accepted.recv_timeout(PATIENCE).unwrap();
    client.write_all(b"last words").unwrap();
    // Closed with bytes still coming: those are answered with a reset.
    server.write_all(&[7; 1 << 20]).unwrap();
    client.read_exact(&mut [0; 1]).unwrap();
    drop(client);
    server.read_exact(&mut [0; 10]).unwrap();
    let (more, error) = drain(&mut server);
    assert_eq!((more, error), (0, Some(ErrorKind::ConnectionReset)));
}

#[test]
fn a_connection_without_a_server_is_reset() {
    // The port is taken, so that no other process gets it, and does not listen.
    let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
    let taken = rustix::net::socket_with(family, SocketType::STREAM, flags, None).unwrap();
    rustix::net::bind(&taken, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let nobody = rustix::net::getsockname(&taken).unwrap().try_into().unwrap();
    let proxy = proxy(nobody, SLOW);
    let begin = Instant::now();
    let ended = drain(&mut connect(proxy.address()));
    assert_eq!(ended, (0, Some(ErrorKind::ConnectionReset)));
    assert!(begin.elapsed() >= 2 * SLOW.delay, "sooner than the server could say so");
}

#[test]
fn a_dropped_proxy_closes_everything() {
    let (address, accepted) = handing_over();
    // So slow that what is written below, which takes 84 s, is certainly in transit when the proxy
    // is dropped.
    let proxy = proxy(address, Shape::of_rate(MEGABIT / 10));
    let place = proxy.address();
    let mut client = connect(place);
    let mut server = accepted.recv_timeout(PATIENCE).unwrap();
    let datagrams = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    datagrams.send_to(b"x", place).unwrap();
    client.write_all(&[7; 1 << 20]).unwrap();
    drop(proxy);
    // What was in transit is gone, and no task waits for it.
    assert!(drain(&mut server).0 < 1 << 20);
    drain(&mut client);
    assert!(client.write_all(&[7; 1 << 20]).is_err());
    assert_eq!(TcpStream::connect(place).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    TcpListener::bind(place).unwrap();
    UdpSocket::bind(place).unwrap();
}

#[test]
fn more_connections_than_it_has_places_for_wait_for_their_turn() {
    let proxy = proxy(server(echo), Shape::default());
    let mut streams: Vec<TcpStream> = (0..300).map(|_| connect(proxy.address())).collect();
    let mut last = streams.pop().unwrap();
    last.write_all(&[7]).unwrap();
    drop(streams);
    last.read_exact(&mut [0]).unwrap();
}

#[test]
fn what_cannot_be_is_refused() {
    let upstream = server(echo);
    let of = |shape| Options::to(upstream, shape);
    for shape in [Shape::of_rate(0), Shape { loss: 2.0, ..Shape::default() }] {
        assert!(Proxy::start(&of(shape)).is_err(), "{shape:?}");
    }
    let taken = Options { listen: upstream, ..of(Shape::default()) };
    let error = Proxy::start(&taken).unwrap_err().to_string();
    assert!(error.contains(&upstream.to_string()), "{error}");
}

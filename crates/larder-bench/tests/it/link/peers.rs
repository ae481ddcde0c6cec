//! The other ends: servers on loopback, and what clients do with them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use larder_bench::link::Shape;
use larder_bench::link::proxy::{Options, Proxy};

/// When a test gives up instead of hanging.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

pub(super) const MEGABIT: u64 = 1_000_000;

/// How often a link may do worse than asked, because the machine has something else to do.
pub(super) const TRIES: usize = 10;

/// A server that does `serve` with each connection, on a thread of its own, until the test ends.
pub(super) fn server(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    server_at(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), serve)
}

/// The same with a listener that is there.
pub(super) fn server_at(
    listener: TcpListener,
    serve: impl Fn(TcpStream) + Send + Sync + 'static,
) -> SocketAddr {
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, serve) = (stream.unwrap(), Arc::clone(&serve));
            stream.set_nodelay(true).unwrap();
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

/// A listener, and a socket for datagrams at the same port, as an NFS server has them.
pub(super) fn both_at_one_port() -> (TcpListener, UdpSocket) {
    // Others may have the port for the one or the other.
    let both = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = UdpSocket::bind(listener.local_addr().unwrap());
        socket.ok().map(|socket| (listener, socket))
    };
    std::iter::repeat_with(both).flatten().next().unwrap()
}

/// Sends back what comes, until the end of it.
pub(super) fn echo(mut stream: TcpStream) {
    let mut piece = vec![0; 64 << 10];
    while let Ok(bytes @ 1..) = stream.read(&mut piece) {
        if stream.write_all(&piece[..bytes]).is_err() {
            return;
        }
    }
}

/// Takes what comes, then says how much it was.
pub(super) fn count(mut stream: TcpStream) {
    let bytes = std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
    stream.write_all(&bytes.to_be_bytes()).unwrap();
}

/// A server of datagrams that sends back what comes.
pub(super) fn datagram_echo() -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut datagram = vec![0; 64 << 10];
        loop {
            let (bytes, client) = socket.recv_from(&mut datagram).unwrap();
            socket.send_to(&datagram[..bytes], client).unwrap();
        }
    });
    address
}

/// A proxy before a server.
pub(super) fn proxy(upstream: SocketAddr, shape: Shape) -> Proxy {
    Proxy::start(&Options::to(upstream, shape)).unwrap()
}

pub(super) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A socket that sends to `address` and gives up on replies some time.
pub(super) fn datagrams_to(address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Bytes that differ from place to place and from seed to seed.
pub(super) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

/// Sends all of it, then the end, and receives meanwhile all that comes.
pub(super) fn exchange(stream: &TcpStream, sent: &[u8]) -> Vec<u8> {
    let mut received = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = stream;
            stream.write_all(sent).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        });
        let mut stream = stream;
        stream.read_to_end(&mut received).unwrap();
    });
    received
}

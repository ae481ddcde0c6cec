//! A link as a program: it forwards TCP and UDP from a port of its own to a server, with a rate, a
//! delay and a loss of datagrams. It needs no rights.
//!
//! What it promises:
//! - Each direction is a wire of its own (full duplex) that all connections and datagrams share.
//!   The rate is of payload: headers, acknowledgements and handshakes cost nothing.
//! - The delay is added once per direction to everything, whatever is in transit already; a new
//!   connection takes one round trip before its first byte may leave, as the handshake would.
//! - The bytes of a connection arrive complete and in order, then its end: half a close is passed
//!   on as one, a reset as a reset. A reset of the sender does not overtake the bytes before it.
//! - Memory is bounded: per connection and direction by rate times delay and a little more (where
//!   that is taken, the sender is not read from), and by the number of connections and of clients
//!   over UDP.
//!
//! What it does not do: TCP ends at this side of the link, so there is no slow start, no congestion
//! control and no retransmission over it. Hence loss is of datagrams only; a connection loses
//! nothing and is never stalled by loss, however much is asked. A datagram is lost whole and with
//! the asked probability, though Ethernet would send a large one in fragments and lose it more
//! often.
//!
//! NFS servers want calls from ports below 1024, which the proxy does not use. On loopback
//! `larder export` takes calls of the superuser from any port, so a proxy run by root passes; run
//! by another user it needs `larder export --insecure` (with other servers the export option
//! `insecure`). An NFS client looks for TCP and UDP at the same port: the proxy listens on both.

mod tcp;
mod udp;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;

use anyhow::{Context, Result};
use rustix::net::sockopt;

use super::Shape;
use super::background::Background;
use super::timer::Timer;
use super::wire::Wire;

pub use super::wire::Passed;

/// How often a port is looked for that is free for both TCP and UDP.
const PORTS_TRIED_MAX: usize = 32;

/// Datagrams that wait in the kernel for their turn on the wire, in bytes; further ones are lost,
/// as in any queue. Enough for a client with 16 calls of 32 KiB in flight.
const WAITING_BYTES: usize = 1 << 20;

/// How a proxy is set up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Where it listens, on TCP and UDP. Port 0 takes one that is free.
    pub listen: SocketAddr,
    /// Where the server is.
    pub upstream: SocketAddr,
    /// The requested properties of the link.
    pub shape: Shape,
    /// Decides which datagrams are lost.
    pub seed: u64,
}

impl Options {
    /// On a free port of 127.0.0.1.
    pub fn to(upstream: SocketAddr, shape: Shape) -> Options {
        Options { listen: (Ipv4Addr::LOCALHOST, 0).into(), upstream, shape, seed: 1 }
    }
}

/// A running proxy. Dropped, it closes everything it has and ends its thread.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    link: Arc<Link>,
    _background: Background,
}

/// The two wires.
#[derive(Debug)]
struct Link {
    /// From clients to the server.
    up: Wire,
    /// From the server to clients.
    down: Wire,
    timer: Arc<Timer>,
}

/// What passed through a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From clients to the server.
    pub up: Passed,
    /// From the server to clients.
    pub down: Passed,
}

impl Proxy {
    /// Starts a proxy; it accepts connections on return. Whether there is a server shows when a
    /// client connects, which gets a reset if there is none.
    ///
    /// # Errors
    /// If the shape is invalid, or if the address is taken or not of this machine.
    pub fn start(options: &Options) -> Result<Proxy> {
        options.shape.check()?;
        let (tcp, udp) = listen(options.listen)
            .with_context(|| format!("cannot listen on {} (TCP and UDP)", options.listen))?;
        let address = tcp.local_addr()?;
        // Neither direction may repeat the other's losses.
        let seeds = (options.seed, !options.seed);
        let started = Background::start("link-proxy", || {
            let timer = Arc::new(Timer::start()?);
            let wire = |seed| Wire::new(options.shape, seed, Arc::clone(&timer));
            let link = Arc::new(Link { up: wire(seeds.0), down: wire(seeds.1), timer });
            let tcp = tokio::net::TcpListener::from_std(tcp)?;
            let udp = tokio::net::UdpSocket::from_std(udp)?;
            let streams = tcp::serve(tcp, options.upstream, Arc::clone(&link));
            let datagrams = udp::serve(udp, options.upstream, Arc::clone(&link));
            let both = async move {
                tokio::join!(streams, datagrams);
            };
            Ok((link, both))
        });
        let (link, background) = started.context("cannot start a proxy")?;
        Ok(Proxy { address, link, _background: background })
    }

    /// Where clients connect, over TCP and UDP.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Gives the link another shape while it exists. What is in transit arrives as it would have.
    ///
    /// # Errors
    /// If the shape is invalid.
    pub fn reshape(&self, shape: Shape) -> Result<()> {
        shape.check()?;
        self.link.up.reshape(shape);
        self.link.down.reshape(shape);
        Ok(())
    }

    /// What passed so far.
    pub fn traffic(&self) -> Traffic {
        Traffic { up: self.link.up.passed(), down: self.link.down.passed() }
    }
}

/// Listens on TCP and UDP at the same port.
fn listen(address: SocketAddr) -> std::io::Result<(TcpListener, UdpSocket)> {
    let mut tries = 0;
    loop {
        let tcp = TcpListener::bind(address)?;
        tries += 1;
        match UdpSocket::bind(tcp.local_addr()?) {
            Ok(udp) => {
                tcp.set_nonblocking(true)?;
                udp.set_nonblocking(true)?;
                sockopt::set_socket_recv_buffer_size(&udp, WAITING_BYTES)?;
                return Ok((tcp, udp));
            }
            // Another process has the port for UDP: the kernel picks a new one if we may choose.
            Err(_) if address.port() == 0 && tries < PORTS_TRIED_MAX => (),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_protocols_get_the_same_port() {
        let (tcp, udp) = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        assert_eq!(tcp.local_addr().unwrap(), udp.local_addr().unwrap());
    }

    #[test]
    fn a_port_that_is_taken_for_either_is_refused() {
        let taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let error = listen(taken.local_addr().unwrap()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let error = listen(taken.local_addr().unwrap()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    }
}

//! A non-blocking socket that sends and receives in several pieces at once.
//!
//! TCP and UDP alike: both are connected to the server, so that the kernel drops datagrams from
//! others. Callers send on their own thread by [`Socket::send`]; the tasks of a connection wait for
//! readiness here.

use super::SourcePort;
use crate::program::Transport;
use larder_io::sockets::grow_buffers;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recvmsg, sendmsg,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use tokio::io::Interest;
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

/// Source ports that servers take for a sign of a privileged client. Linux's NFS client uses the
/// same range: the ports below 665 belong to services that start later.
const RESERVED_PORTS: std::ops::RangeInclusive<u16> = 665..=1023;
/// Reserved ports that are tried before any port is taken.
const RESERVED_PORT_ATTEMPTS_MAX: u16 = 32;

/// What a reply takes of a receive buffer while it waits there, in bytes: 32 KiB of data with the kernel's
/// structures, however small the fragments that it came in.
const REPLY_COST_BYTES: usize = 64 << 10;

/// A connected socket.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Udp {
        socket: UdpSocket,
        /// What the kernel has set aside for what waits to be received, in bytes.
        receive_buffer_bytes: usize,
    },
}

impl Socket {
    /// Connects to `address`.
    ///
    /// The port of `previous`, if there was one, is tried first: servers know a client's
    /// retransmissions by their source.
    ///
    /// # Errors
    /// What the operating system says. Waits as long as it does: the caller sets the limit.
    pub(super) async fn connect(
        address: SocketAddr,
        transport: Transport,
        source: SourcePort,
        previous: Option<u16>,
    ) -> io::Result<Socket> {
        for port in source_ports(source, previous) {
            match Self::connect_from(address, transport, port).await {
                Err(error) if is_about_our_port(&error) => (),
                done => return done,
            }
        }
        Self::connect_from(address, transport, 0).await
    }

    /// Connects from `source_port`, or from any if that is 0.
    async fn connect_from(
        address: SocketAddr,
        transport: Transport,
        source_port: u16,
    ) -> io::Result<Socket> {
        let any = match address {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let source = SocketAddr::new(any, source_port);
        if transport == Transport::Udp {
            let socket = UdpSocket::bind(source).await?;
            socket.connect(address).await?;
            let receive_buffer_bytes = grow_buffers(&socket)?;
            return Ok(Socket::Udp { socket, receive_buffer_bytes });
        }
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.set_nodelay(true)?;
        socket.set_keepalive(true)?;
        if source_port != 0 {
            // The port of the connection that just broke may still be in TIME_WAIT.
            socket.set_reuseaddr(true)?;
            socket.bind(source)?;
        }
        socket.connect(address).await.map(Socket::Tcp)
    }

    /// The port that it speaks from.
    pub(super) fn source_port(&self) -> Option<u16> {
        let address = match self {
            Socket::Tcp(stream) => stream.local_addr(),
            Socket::Udp { socket, .. } => socket.local_addr(),
        };
        address.ok().map(|address| address.port())
    }

    /// What the kernel has set aside for datagrams that wait to be received, in bytes. None for a stream.
    pub(super) fn receive_buffer_bytes(&self) -> Option<usize> {
        match self {
            Socket::Tcp(_) => None,
            Socket::Udp { receive_buffer_bytes, .. } => Some(*receive_buffer_bytes),
        }
    }

    /// How many calls may be in flight so that no reply is lost here for want of room. None for a stream.
    pub(super) fn calls_max(&self) -> Option<u32> {
        let calls = self.receive_buffer_bytes()? / REPLY_COST_BYTES;
        Some(u32::try_from(calls).unwrap_or(u32::MAX).max(1))
    }

    /// Whether something came that nobody has received yet. Never waits.
    pub(super) fn has_unread(&self) -> bool {
        let mut poll = [PollFd::from_borrowed_fd(self.fd(), PollFlags::IN)];
        rustix::event::poll(&mut poll, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Udp { socket, .. } => socket.as_fd(),
        }
    }

    /// Sends what fits and says how much that was. Never waits.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if nothing fits now; else the connection is broken.
    pub(super) fn send(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let no_control = &mut SendAncillaryBuffer::default();
        Ok(sendmsg(self.fd(), pieces, no_control, SendFlags::NOSIGNAL)?)
    }

    /// Waits until something can be sent and lets `send` do so. It answers
    /// [`ErrorKind::WouldBlock`] when it found the socket full: then this waits on.
    pub(super) async fn when_writable<R>(
        &self,
        mut send: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            match self {
                Socket::Tcp(stream) => stream.writable().await?,
                Socket::Udp { socket, .. } => socket.writable().await?,
            }
            match self.try_io(Interest::WRITABLE, &mut send) {
                Err(error) if is_passing(&error) => (),
                done => return done,
            }
        }
    }

    /// Receives into the pieces, in order; waits for the first byte. 0 is the end of a stream.
    pub(super) async fn receive(&self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let room: usize = pieces.iter().map(|piece| piece.len()).sum();
        let fd = self.fd();
        loop {
            self.readable().await?;
            // A stream that gives less than was asked for is drained, so that the next wait need
            // not find that out by one more call: `WouldBlock` tells tokio so. Datagrams are always
            // "short", and more may be there.
            let mut short = None;
            let attempt = || {
                let no_control = &mut RecvAncillaryBuffer::default();
                let bytes = recvmsg(fd, pieces, no_control, RecvFlags::empty())?.bytes;
                if bytes < room && matches!(self, Socket::Tcp(_)) {
                    short = Some(bytes);
                    return Err(ErrorKind::WouldBlock.into());
                }
                Ok(bytes)
            };
            let outcome = self.try_io(Interest::READABLE, attempt);
            match (short, outcome) {
                (Some(bytes), _) => return Ok(bytes),
                (None, Err(error)) if is_passing(&error) => (),
                (None, done) => return done,
            }
        }
    }

    async fn readable(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.readable().await,
            Socket::Udp { socket, .. } => socket.readable().await,
        }
    }

    fn try_io<R>(
        &self,
        interest: Interest,
        attempt: impl FnOnce() -> io::Result<R>,
    ) -> io::Result<R> {
        match self {
            Socket::Tcp(stream) => stream.try_io(interest, attempt),
            Socket::Udp { socket, .. } => socket.try_io(interest, attempt),
        }
    }

    /// Ends the connection: whoever waits for it wakes with an error or the end of the stream.
    pub(super) fn shut_down(&self) {
        // It may be broken already, which is as good.
        let _ = rustix::net::shutdown(self.fd(), Shutdown::Both);
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn is_about_our_port(error: &io::Error) -> bool {
    use ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied};
    matches!(error.kind(), AddrInUse | AddrNotAvailable | PermissionDenied)
}

/// The ports to try before any port.
fn source_ports(source: SourcePort, previous: Option<u16>) -> Vec<u16> {
    let mut ports: Vec<u16> = previous.into_iter().collect();
    if source.possible() == SourcePort::Reserved {
        let count = RESERVED_PORTS.end() - RESERVED_PORTS.start() + 1;
        let first = u16::try_from(super::random_u64() % u64::from(count)).unwrap_or(0);
        let nth = |n| RESERVED_PORTS.start() + (first + n) % count;
        ports.extend((0..RESERVED_PORT_ATTEMPTS_MAX).map(nth));
    }
    ports
}

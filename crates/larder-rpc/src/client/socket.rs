//! A non-blocking socket that sends and receives in several pieces at once.
//!
//! TCP and UDP alike: both are connected to the server, so that the kernel drops datagrams from
//! others. Callers send on their own thread by [`Socket::send`]; the tasks of a connection wait for
//! readiness here.

use super::config::{Config, SourcePort};
use super::errors::ConnectError;
use super::tls_socket::TlsSocket;
use crate::program::{Program, Transport};
use crate::tls::ClientTls;
use larder_io::Elapsed;
use larder_io::sockets::grow_buffers;
use larder_wire::record::{Heap, RecordAssembler};
use larder_wire::rpc::{Xid, encode_tls_probe, is_starttls};
use larder_wire::xdr::Framing;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recvmsg, sendmsg,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

/// Longest wait for a connection to be made. A slower server counts as unreachable.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Source ports that servers accept as proof of a privileged client. Linux's NFS client uses the
/// same range: the ports below 665 belong to services that may start later.
const RESERVED_PORTS: std::ops::RangeInclusive<u16> = 665..=1023;
/// Reserved ports that are tried before any port is taken.
const RESERVED_PORT_ATTEMPTS_MAX: u16 = 32;

/// Longest reply to the request for TLS, in bytes.
const TLS_REPLY_BYTES_MAX: usize = 1024;

/// How much of a receive buffer a waiting reply takes, in bytes: 32 KiB of data with the kernel's
/// structures, however small the fragments in which it came.
const REPLY_COST_BYTES: usize = 64 << 10;

/// A connected socket.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Udp {
        socket: UdpSocket,
        /// Bytes that the kernel has reserved for received data.
        receive_buffer_bytes: usize,
    },
    Tls(Box<TlsSocket>),
}

impl Socket {
    /// The first connection, and the address that it leads to. Each address is tried once.
    pub(super) async fn first(config: &Config) -> Result<(Socket, usize), ConnectError> {
        let limit = config.limit().min(CONNECT_MAX);
        let mut endpoint = 0;
        loop {
            let server = config.server.clone();
            let connecting = Socket::connect(config, endpoint, None);
            let failed = match config.clock.timeout(limit, connecting).await {
                Ok(Ok(socket)) => return Ok((socket, endpoint)),
                Ok(Err(cause)) => ConnectError::Failed { server, cause },
                Err(Elapsed) => ConnectError::TimedOut { server, limit },
            };
            endpoint += 1;
            if endpoint > config.others.len() {
                return Err(failed);
            }
        }
    }

    /// Connects to a endpoint of the server.
    ///
    /// The port of `previous`, if there was one, is tried first: servers know a client's
    /// retransmissions by their source.
    ///
    /// # Errors
    /// The operating system's. The caller limits the wait.
    pub(super) async fn connect(
        config: &Config,
        endpoint: usize,
        previous: Option<u16>,
    ) -> io::Result<Socket> {
        let (address, tls) = config.endpoint(endpoint);
        let (transport, program) = (config.transport, config.program);
        for port in source_ports(config.source_port, previous) {
            match Self::connect_from(address, transport, port).await {
                Err(error) if is_about_our_port(&error) => (),
                done => return Self::secured(done?, tls, program).await,
            }
        }
        Self::secured(Self::connect_from(address, transport, 0).await?, tls, program).await
    }

    /// Like `connect`, under TLS if the configuration asks for it. Only the request for TLS is sent
    /// in the clear.
    async fn secured(
        socket: Socket,
        tls: Option<&ClientTls>,
        program: Program,
    ) -> io::Result<Socket> {
        match (tls, socket) {
            (Some(tls), Socket::Tcp(mut stream)) => {
                ask_for_tls(&mut stream, program).await?;
                Ok(Socket::Tls(Box::new(TlsSocket::new(tls.connect(stream).await?))))
            }
            (Some(_), _) => Err(io::Error::new(ErrorKind::Unsupported, "there is no TLS over UDP")),
            (None, socket) => Ok(socket),
        }
    }

    /// Connects from `source_port`; 0 means any port.
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
        // What was not sent when the connection ends is not sent later, when the network is back:
        // another process, or this one over another connection, has gone on by then.
        socket.set_zero_linger()?;
        if source_port != 0 {
            // The port of the connection that just broke may still be in TIME_WAIT.
            socket.set_reuseaddr(true)?;
            socket.bind(source)?;
        }
        socket.connect(address).await.map(Socket::Tcp)
    }

    /// The local port of the connection.
    pub(super) fn source_port(&self) -> Option<u16> {
        let address = match self {
            Socket::Tcp(stream) => stream.local_addr(),
            Socket::Tls(tls) => tls.stream.local_addr(),
            Socket::Udp { socket, .. } => socket.local_addr(),
        };
        address.ok().map(|address| address.port())
    }

    /// Bytes that the kernel has reserved for datagrams that wait to be received. `None` for a
    /// stream.
    pub(super) fn receive_buffer_bytes(&self) -> Option<usize> {
        match self {
            Socket::Tcp(_) | Socket::Tls(_) => None,
            Socket::Udp { receive_buffer_bytes, .. } => Some(*receive_buffer_bytes),
        }
    }

    /// How many calls may be in flight so that no reply is lost for lack of receive buffer. `None`
    /// for a stream.
    pub(super) fn calls_max(&self) -> Option<u32> {
        let calls = self.receive_buffer_bytes()? / REPLY_COST_BYTES;
        Some(u32::try_from(calls).unwrap_or(u32::MAX).max(1))
    }

    /// Whether received data is unread. Never waits.
    pub(super) fn has_unread(&self) -> bool {
        let mut poll = [PollFd::from_borrowed_fd(self.fd(), PollFlags::IN)];
        rustix::event::poll(&mut poll, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Tls(tls) => tls.stream.as_fd(),
            Socket::Udp { socket, .. } => socket.as_fd(),
        }
    }

    /// Sends what fits and returns the number of bytes. Never waits. Under TLS, see
    /// [`Socket::flush`].
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if nothing fits now; else the connection is broken.
    pub(super) fn send(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if let Socket::Tls(tls) = self {
            return tls.send(pieces);
        }
        let no_control = &mut SendAncillaryBuffer::default();
        Ok(sendmsg(self.fd(), pieces, no_control, SendFlags::NOSIGNAL)?)
    }

    /// Whether the kernel has all that was sent: under TLS some of it may be encrypted here, and
    /// wait for room. Never waits.
    ///
    /// # Errors
    /// If the connection is broken
    pub(super) fn flush(&self) -> io::Result<bool> {
        match self {
            Socket::Tls(tls) => tls.flush(),
            Socket::Tcp(_) | Socket::Udp { .. } => Ok(true),
        }
    }

    /// Waits until the socket is writable, then calls `send`. If `send` finds the socket full
    /// ([`ErrorKind::WouldBlock`]), waits again.
    pub(super) async fn when_writable<R>(
        &self,
        mut send: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            match self {
                Socket::Tcp(stream) => stream.writable().await?,
                Socket::Udp { socket, .. } => socket.writable().await?,
                Socket::Tls(tls) => tls.stream.writable().await?,
            }
            match self.try_io(Interest::WRITABLE, &mut send) {
                Err(error) if is_passing(&error) => (),
                done => return done,
            }
        }
    }

    /// Receives into the pieces, in order; waits for the first byte. 0 is the end of a stream.
    pub(super) async fn receive(&self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if let Socket::Tls(tls) = self {
            return tls.receive(pieces).await;
        }
        let room: usize = pieces.iter().map(|piece| piece.len()).sum();
        let fd = self.fd();
        loop {
            self.readable().await?;
            // If a stream returns less than was asked for, it is drained, and `WouldBlock` tells
            // tokio so, which saves one more call before the next wait. A datagram is always
            // "short", and more may be waiting.
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
            Socket::Tls(tls) => tls.stream.readable().await,
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
            Socket::Tls(tls) => tls.stream.try_io(interest, attempt),
        }
    }

    /// Ends the connection: tasks that wait for it wake with an error or the end of the stream.
    pub(super) fn shut_down(&self) {
        // If the connection is already broken, nothing is left to do.
        let _ = rustix::net::shutdown(self.fd(), Shutdown::Both);
    }
}

/// Asks the server whether it speaks TLS.
///
/// # Errors
/// If it does not answer yes, or sends more than the answer.
async fn ask_for_tls(stream: &mut TcpStream, program: Program) -> io::Result<()> {
    let xid = Xid(crate::random::random_u64() as u32);
    let probe = encode_tls_probe(xid, program.number, program.version, Framing::Record);
    stream.write_all(&probe.to_bytes()).await?;
    let mut records = RecordAssembler::new(Heap, TLS_REPLY_BYTES_MAX);
    let (mut replies, mut byte) = (Vec::new(), [0]);
    while replies.is_empty() {
        // Byte by byte: the bytes after the reply belong to the TLS handshake.
        if stream.read(&mut byte).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let pushed = records.push(&byte, &mut |record| replies.push(record));
        pushed.map_err(|cause| io::Error::new(ErrorKind::InvalidData, cause))?;
    }
    match replies.pop() {
        Some(reply) if is_starttls(xid, reply.clone()) => Ok(()),
        _ => Err(io::Error::new(ErrorKind::Unsupported, "the server does not speak TLS")),
    }
}

pub(super) fn is_passing(error: &io::Error) -> bool {
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
        let first = u16::try_from(crate::random::random_u64() % u64::from(count)).unwrap_or(0);
        let nth = |n| RESERVED_PORTS.start() + (first + n) % count;
        ports.extend((0..RESERVED_PORT_ATTEMPTS_MAX).map(nth));
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel sends nothing more for a process that died, nor after a connection was given up.
    #[tokio::test]
    async fn what_a_connection_has_not_sent_ends_with_it() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let socket = Socket::connect_from(address, Transport::Tcp, 0).await.unwrap();
        let Socket::Tcp(stream) = socket else { panic!("not TCP") };
        assert_eq!(stream.linger().unwrap(), Some(std::time::Duration::ZERO));
    }
}

//! A connection under TLS that is used as one in the clear: callers send on their own thread,
//! without waiting, and the tasks of a connection wait for readiness of the socket below.
//!
//! Bytes that were accepted and encrypted may not have found room in the socket yet
//! ([`TlsSocket::flush`]); they go before all others.

use super::socket::is_passing;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustls::{ClientConnection, IoState};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// A connection on which the handshake is done.
#[derive(Debug)]
pub(super) struct TlsSocket {
    pub(super) stream: TcpStream,
    /// Held while a message is encrypted, or what was received is decrypted; never over a wait.
    tls: Mutex<ClientConnection>,
}

impl TlsSocket {
    pub(super) fn new(stream: TlsStream<TcpStream>) -> TlsSocket {
        let (stream, tls) = stream.into_inner();
        TlsSocket { stream, tls: Mutex::new(tls) }
    }

    fn tls(&self) -> MutexGuard<'_, ClientConnection> {
        self.tls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Encrypts what the socket has room for, and a little more, and returns the number of bytes.
    /// Never waits.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if nothing fits now; else the connection is broken.
    pub(super) fn send(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut tls = self.tls();
        let mut rest = pieces.to_vec();
        let mut rest = &mut rest[..];
        let mut sent_bytes = 0;
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            if !self.flush_locked(&mut tls)? {
                break;
            }
            let accepted = tls.writer().write_vectored(rest)?;
            assert!(accepted > 0, "nothing waits to be written, so there is room");
            sent_bytes += accepted;
            IoSlice::advance_slices(&mut rest, accepted);
        }
        self.flush_locked(&mut tls)?;
        let is_empty = pieces.iter().all(|piece| piece.is_empty());
        if sent_bytes == 0 && !is_empty {
            Err(ErrorKind::WouldBlock.into())
        } else {
            Ok(sent_bytes)
        }
    }

    /// Whether all that was accepted is in the socket, as far as it has room. Never waits.
    ///
    /// # Errors
    /// If the connection is broken
    pub(super) fn flush(&self) -> io::Result<bool> {
        self.flush_locked(&mut self.tls())
    }

    fn flush_locked(&self, tls: &mut ClientConnection) -> io::Result<bool> {
        let mut socket = Plain::of(&self.stream);
        while tls.wants_write() {
            match tls.write_tls(&mut socket) {
                Ok(_) => (),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Receives into the first piece that has room; waits for the first byte. 0 is the end of the
    /// stream, which the server has announced.
    pub(super) async fn receive(&self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let Some(piece) = pieces.iter_mut().find(|piece| !piece.is_empty()) else { return Ok(0) };
        loop {
            match self.tls().reader().read(piece) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => (),
                done => return done,
            }
            self.stream.readable().await?;
            self.take_in()?;
        }
    }

    /// Takes in and decrypts what the socket has received.
    fn take_in(&self) -> io::Result<()> {
        let mut tls = self.tls();
        let mut socket = Plain::of(&self.stream);
        let mut taken = None;
        let attempt = || {
            taken = Some(tls.read_tls(&mut socket)?);
            // As for a socket in the clear: less than was asked for means that it is drained, which
            // saves tokio one more try.
            if socket.is_drained { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
        };
        match self.stream.try_io(Interest::READABLE, attempt) {
            Err(error) if taken.is_none() && is_passing(&error) => return Ok(()),
            Err(error) if taken.is_none() => return Err(error),
            _ => (),
        }
        let processed = tls.process_new_packets();
        let state: IoState =
            processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        if state.tls_bytes_to_write() > 0 {
            // The answer to a change of keys, for instance. What does not fit goes with the next
            // message.
            self.flush_locked(&mut tls)?;
        }
        Ok(())
    }
}

/// The socket in the clear, without waiting.
struct Plain<'a> {
    socket: BorrowedFd<'a>,
    /// The last read got less than it had room for.
    is_drained: bool,
}

impl<'a> Plain<'a> {
    fn of(stream: &'a TcpStream) -> Plain<'a> {
        Plain { socket: stream.as_fd(), is_drained: false }
    }
}

impl Read for Plain<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (count, _) = recv(self.socket, &mut *buffer, RecvFlags::DONTWAIT)?;
        self.is_drained = count > 0 && count < buffer.len();
        Ok(count)
    }
}

impl Write for Plain<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let no_control = &mut rustix::net::SendAncillaryBuffer::default();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(rustix::net::sendmsg(self.socket, pieces, no_control, flags)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rcgen::generate_simple_self_signed;
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore, ServerConfig};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::{TlsAcceptor, TlsConnector, server};

    use super::*;
    use crate::tls::provider;

    /// More than the buffers of both sockets hold.
    const BYTES: usize = 24 << 20;

    async fn pair() -> (TlsSocket, server::TlsStream<TcpStream>) {
        let made = generate_simple_self_signed(["server".to_owned()]).unwrap();
        let (certificate, key) = (made.cert.der().clone(), made.signing_key.serialize_der());
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let ours = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let theirs = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], PrivateKeyDer::try_from(key).unwrap())
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (far, _) = listener.accept().await.unwrap();
        let name = ServerName::try_from("server").unwrap();
        let (connector, acceptor) =
            (TlsConnector::from(Arc::new(ours)), TlsAcceptor::from(Arc::new(theirs)));
        let (near, far) = tokio::join!(connector.connect(name, near), acceptor.accept(far));
        (TlsSocket::new(near.unwrap()), far.unwrap())
    }

    fn pattern(at: usize) -> u8 {
        (at % 251) as u8
    }

    async fn writable(socket: &TlsSocket, mut attempt: impl FnMut() -> io::Result<usize>) -> usize {
        loop {
            socket.stream.writable().await.unwrap();
            match socket.stream.try_io(Interest::WRITABLE, &mut attempt) {
                Err(error) if is_passing(&error) => (),
                done => return done.unwrap(),
            }
        }
    }

    /// Whatever has room, all bytes arrive once and in order, both ways at the same time; and what
    /// was accepted needs no further message to arrive.
    #[tokio::test]
    async fn bytes_arrive_over_a_socket_that_is_full_most_of_the_time() {
        let (near, far) = pair().await;
        let bytes: Vec<u8> = (0..BYTES).map(pattern).collect();
        let (mut from_far, mut to_far) = tokio::io::split(far);
        let mut refused = 0;
        let sending = async {
            let (mut at, mut length) = (0, 1);
            while at < BYTES {
                let end = (at + length).min(BYTES);
                let middle = at + (end - at) / 3;
                let pieces = [
                    IoSlice::new(&[]),
                    IoSlice::new(&bytes[at..middle]),
                    IoSlice::new(&bytes[middle..end]),
                ];
                let sent = match near.send(&pieces) {
                    Err(error) if is_passing(&error) => {
                        refused += 1;
                        writable(&near, || near.send(&pieces)).await
                    }
                    sent => sent.unwrap(),
                };
                assert!(sent > 0 && sent <= end - at);
                at += sent;
                length = (length * 7 + 13) % (3 << 20) + 1;
            }
            let flush = || match near.flush() {
                Ok(false) => Err(ErrorKind::WouldBlock.into()),
                done => done.map(usize::from),
            };
            writable(&near, flush).await;
        };
        let receiving = async {
            let mut at = 0;
            let mut rooms = [vec![0; 70_000], vec![0; 10]];
            while at < BYTES {
                let [first, second] = &mut rooms;
                let first_room = at % 70_000;
                let pieces =
                    &mut [IoSliceMut::new(&mut first[..first_room]), IoSliceMut::new(second)];
                let count = near.receive(pieces).await.unwrap();
                assert!(count > 0, "the end of the stream");
                let got = if first_room > 0 { &rooms[0][..count] } else { &rooms[1][..count] };
                assert!(got.iter().enumerate().all(|(i, byte)| *byte == pattern(at + i)));
                at += count;
            }
        };
        let far_receives = async {
            let mut all = vec![0; BYTES];
            from_far.read_exact(&mut all).await.unwrap();
            assert!(all.iter().enumerate().all(|(at, byte)| *byte == pattern(at)));
        };
        let far_sends = async {
            to_far.write_all(&bytes).await.unwrap();
            to_far.flush().await.unwrap();
        };
        let all = async { tokio::join!(sending, receiving, far_receives, far_sends) };
        tokio::time::timeout(std::time::Duration::from_secs(60), all).await.unwrap();
        assert!(refused > 0, "the socket was never full");
    }

    #[tokio::test]
    async fn the_end_of_a_stream_is_told_from_a_lost_connection() {
        let (near, mut far) = pair().await;
        let mut room = [0; 8];
        far.write_all(b"last").await.unwrap();
        far.shutdown().await.unwrap();
        let count = near.receive(&mut [IoSliceMut::new(&mut room)]).await.unwrap();
        assert_eq!(&room[..count], b"last");
        assert_eq!(near.receive(&mut [IoSliceMut::new(&mut room)]).await.unwrap(), 0);

        let (near, far) = pair().await;
        drop(far.into_inner().0);
        let lost = near.receive(&mut [IoSliceMut::new(&mut room)]).await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn forged_bytes_break_the_connection() {
        let (near, far) = pair().await;
        let (mut raw, _) = far.into_inner();
        raw.write_all(&[23, 3, 3, 0, 32]).await.unwrap();
        raw.write_all(&[7; 32]).await.unwrap();
        let broken = near.receive(&mut [IoSliceMut::new(&mut [0; 8])]).await.unwrap_err();
        assert_eq!(broken.kind(), ErrorKind::InvalidData);
    }
}

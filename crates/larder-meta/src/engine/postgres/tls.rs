//! TLS to a database, as libpq's `sslmode=verify-full` has it: the server shows a certificate for
//! its name, below one that is trusted.
//!
//! Absent on purpose: certificates of ours, which a password or the server's rules stand in for.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use larder_rpc::{TlsError, tls_connector};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{InvalidDnsNameError, ServerName};

/// The name of the protocol among those above TLS. Servers before version 17 do not ask for it.
const PROTOCOL: &[u8] = b"postgresql";

/// How connections to a database are made.
#[derive(Clone)]
pub(super) struct Tls(TlsConnector);

/// The same for a server with this name.
pub(super) struct Named(TlsConnector, ServerName<'static>);

/// A connection.
pub(super) struct Stream(tokio_rustls::client::TlsStream<Socket>);

impl Tls {
    /// Servers have certificates below one of those in `authorities`.
    pub(super) fn new(authorities: &Path) -> Result<Tls, TlsError> {
        tls_connector(authorities, PROTOCOL).map(Tls)
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Stream;
    type TlsConnect = Named;
    type Error = InvalidDnsNameError;

    fn make_tls_connect(&mut self, name: &str) -> Result<Named, InvalidDnsNameError> {
        Ok(Named(self.0.clone(), ServerName::try_from(name.to_owned())?))
    }
}

impl TlsConnect<Socket> for Named {
    type Stream = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        let Named(connector, name) = self;
        Box::pin(async move { connector.connect(name, socket).await.map(Stream) })
    }
}

impl tokio_postgres::tls::TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

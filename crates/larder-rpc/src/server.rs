//! The server: sockets, admission of callers, and dispatch of calls to their program.
//!
//! [`Server`] listens over TCP and UDP on one port and brings calls to a [`Service`]: a set of
//! programs. The service decides which callers it admits and carries calls out; everything else is
//! here.
//!
//! Promises:
//! - **Hostile bytes do no harm.** Every message has a largest size, and is answered, refused or
//!   dropped; memory and calls in flight are bounded per connection; a client that does not read
//!   its replies is not read from, and is cut off after a while.
//! - **No client keeps others out.** Connections are bounded in total and for each source, and
//!   callers whose calls are not carried out get very few ([`admission`]); over UDP, a sender gets
//!   only short replies until it shows something that it can know only from an answer of ours.
//! - **A retransmission is not carried out twice.** Replies to calls that change something are kept
//!   for a while, over reconnects too ([`duplicates`]).
//!
//! Absent on purpose: the meaning of calls, and the rights of callers.

mod admission;
mod backchannel;
mod config;
mod counters;
mod dispatch;
mod duplicates;
mod outbox;
mod owner;
mod tcp;
mod udp;

pub use backchannel::{Backchannel, CALLBACKS_MAX, CallbackError};
pub use config::{Config, SourcePorts};
pub use counters::{ProcedureStats, Stats};
pub use dispatch::{Answer, Call, Dispatcher, Peer, Service};

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;

/// How often another port is tried if one is free for TCP but not for UDP.
const PORT_TRIES_MAX: u32 = 16;

/// A server with its sockets. It answers calls while [`Server::run`] is polled.
pub struct Server<S: Service> {
    dispatcher: Arc<Dispatcher<S>>,
    listener: TcpListener,
    datagrams: Option<UdpSocket>,
    address: SocketAddr,
    shutdown: watch::Sender<bool>,
}

/// The sockets of a server whose service does not exist yet. Until it does, the kernel keeps what
/// clients send, and they wait.
pub struct Sockets {
    config: Config,
    listener: TcpListener,
    datagrams: Option<UdpSocket>,
    address: SocketAddr,
}

/// Shuts a server down. Clones belong to the same server.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Sender<bool>);

impl Sockets {
    /// Binds the sockets.
    ///
    /// # Errors
    /// The operating system's error for the address.
    pub async fn bind(config: Config) -> io::Result<Sockets> {
        let (listener, datagrams, address) = listen(&config).await?;
        Ok(Sockets { config, listener, datagrams, address })
    }

    /// The server with these sockets. `service` answers calls.
    pub fn serve<S: Service>(self, service: S) -> Server<S> {
        let Sockets { config, listener, datagrams, address } = self;
        let dispatcher = Arc::new(Dispatcher::new(config, service));
        let shutdown = watch::Sender::new(false);
        Server { dispatcher, listener, datagrams, address, shutdown }
    }
}

impl<S: Service> Server<S> {
    /// Binds the sockets. `service` answers calls.
    ///
    /// # Errors
    /// The operating system's error for the address.
    pub async fn bind(config: Config, service: S) -> io::Result<Server<S>> {
        Ok(Sockets::bind(config).await?.serve(service))
    }

    /// The address on which it listens, over both transports.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// The handle that shuts the server down.
    pub fn shutdown(&self) -> Shutdown {
        Shutdown(self.shutdown.clone())
    }

    /// The server's dispatcher, for [`Dispatcher::stats`] during and after the run.
    pub fn dispatcher(&self) -> Arc<Dispatcher<S>> {
        Arc::clone(&self.dispatcher)
    }

    /// Serves until [`Shutdown::begin`]. Then it accepts no more calls, answers those in flight,
    /// and returns.
    pub async fn run(self) {
        let dispatcher = &self.dispatcher;
        let tcp = tcp::accept(Arc::clone(dispatcher), self.listener, self.shutdown.subscribe());
        let udp = async {
            if let Some(socket) = self.datagrams {
                udp::serve(Arc::clone(dispatcher), socket, self.shutdown.subscribe()).await;
            }
        };
        tokio::join!(tcp, udp);
    }
}

impl Shutdown {
    /// Starts the shutdown. Does not block; [`Server::run`] returns when it is complete.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }
}

/// Both sockets on one port, and the address.
async fn listen(config: &Config) -> io::Result<(TcpListener, Option<UdpSocket>, SocketAddr)> {
    for tried in 1.. {
        let listener = TcpListener::bind(config.listen).await?;
        let address = listener.local_addr()?;
        if !config.udp {
            return Ok((listener, None, address));
        }
        match UdpSocket::bind(address).await {
            Ok(socket) => {
                let bytes = larder_io::sockets::grow_buffers(&socket)?;
                if bytes < 2 * larder_io::sockets::DATAGRAM_BUFFER_BYTES {
                    tracing::warn!(
                        bytes,
                        "the system's limit for receive buffers is low (sysctl net.core.rmem_max): \
                         datagrams of busy clients are lost"
                    );
                }
                return Ok((listener, Some(socket), address));
            }
            // The port is free for TCP only: take another, unless the caller asked for this one.
            Err(cause)
                if cause.kind() == io::ErrorKind::AddrInUse
                    && config.listen.port() == 0
                    && tried < PORT_TRIES_MAX => {}
            Err(cause) => return Err(cause),
        }
    }
    unreachable!("the last try returns")
}

//! The server: sockets, and their end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use larder_vfs::FileSystem;
use thiserror::Error;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;

use crate::portmap::Registration;
use crate::service::{Peer, Service, Transport};
use crate::{Config, Stats, tcp, udp};

/// How often a port that is free for TCP and not for UDP is given back for another.
const PORT_TRIES_MAX: u32 = 16;

/// A server that has its sockets. It answers once [`Server::run`] is polled.
pub struct Server {
    service: Arc<Service>,
    listener: TcpListener,
    datagrams: Option<UdpSocket>,
    address: SocketAddr,
    registration: Option<Registration>,
    shutdown: watch::Sender<bool>,
}

/// Ends a server. Clones end the same.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Sender<bool>);

/// Reads a server's counters, also while it runs and after.
#[derive(Clone)]
pub struct StatsReader(Arc<Service>);

/// Why a server cannot serve.
#[derive(Debug, Error)]
pub enum BindError {
    /// The address cannot be listened at.
    #[error("cannot listen at {address}: {cause}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        cause: io::Error,
    },
    /// The port mapper does not take us.
    #[error("cannot register with the port mapper at {address}: {cause}")]
    Portmapper {
        /// The port mapper.
        address: SocketAddr,
        /// Why.
        cause: io::Error,
    },
}

/// NFS and MOUNT without sockets, for a caller that brings the messages itself: a fuzzer does.
#[derive(Clone)]
pub struct Programs(Arc<Service>);

impl Programs {
    /// Serves `fs` as [`Server`] does, but listens nowhere.
    pub fn new(config: Config, fs: Arc<dyn FileSystem>) -> Programs {
        Programs(Arc::new(Service::new(config, fs)))
    }

    /// Serves one message as if it were a datagram from `address`. `None` if it deserves no reply.
    pub async fn answer(&self, address: SocketAddr, message: Bytes) -> Option<Bytes> {
        let peer = Peer::new(address, Transport::Udp, self.0.config.source_ports);
        let reply = Arc::clone(&self.0).serve(peer, message, || ()).await?;
        Some(reply.to_bytes())
    }
}

impl Server {
    /// Listens, and registers with the port mapper if there is to be one.
    ///
    /// # Errors
    /// [`BindError`]
    pub async fn bind(config: Config, fs: Arc<dyn FileSystem>) -> Result<Server, BindError> {
        let listening = listen(&config).await;
        let (listener, datagrams, address) =
            listening.map_err(|cause| BindError::Listen { address: config.listen, cause })?;
        let registration = match config.portmapper {
            Some(mapper) => {
                let registered = Registration::new(mapper, address.port(), config.udp).await;
                let failed = |cause| BindError::Portmapper { address: mapper, cause };
                Some(registered.map_err(failed)?)
            }
            None => None,
        };
        Ok(Server {
            service: Arc::new(Service::new(config, fs)),
            listener,
            datagrams,
            address,
            registration,
            shutdown: watch::Sender::new(false),
        })
    }

    /// Where it listens, over both transports.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// What ends it.
    pub fn shutdown(&self) -> Shutdown {
        Shutdown(self.shutdown.clone())
    }

    /// What was served since the start.
    pub fn stats(&self) -> Stats {
        self.service.counters.snapshot()
    }

    /// Reads the same while the server runs.
    pub fn stats_reader(&self) -> StatsReader {
        StatsReader(Arc::clone(&self.service))
    }

    /// Serves until [`Shutdown::begin`]; then takes no more calls, answers those in flight, and
    /// returns.
    pub async fn run(mut self) {
        let service = &self.service;
        let tcp = tcp::accept(Arc::clone(service), self.listener, self.shutdown.subscribe());
        let udp = async {
            if let Some(socket) = self.datagrams {
                udp::serve(Arc::clone(service), socket, self.shutdown.subscribe()).await;
            }
        };
        tokio::join!(tcp, udp);
        if let Some(registration) = &mut self.registration {
            registration.withdraw().await;
        }
    }
}

impl Shutdown {
    /// Begins the end. Does not block; [`Server::run`] returns when it is over.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }
}

impl StatsReader {
    /// What was served since the start.
    pub fn snapshot(&self) -> Stats {
        self.0.counters.snapshot()
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
            // Free for TCP only: take another port, unless it was asked for.
            Err(cause)
                if cause.kind() == io::ErrorKind::AddrInUse
                    && config.listen.port() == 0
                    && tried < PORT_TRIES_MAX => {}
            Err(cause) => return Err(cause),
        }
    }
    unreachable!("the last try returns")
}

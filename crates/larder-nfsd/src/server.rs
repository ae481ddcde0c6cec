//! The server: NFS and MOUNT behind the sockets of `larder-rpc`, and their registration with the
//! port mapper.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use larder_rpc::server::{self, Dispatcher, Shutdown};
use larder_vfs::FileSystem;
use thiserror::Error;

use crate::portmap::Registration;
use crate::{Config, Stats, service};

/// A server with its sockets. It answers calls while [`Server::run`] is polled.
pub struct Server {
    server: server::Server<service::Programs>,
    registration: Option<Registration>,
}

/// The sockets of a server whose file system does not exist yet. Until it does, the kernel keeps
/// what clients send, and they wait.
pub struct Sockets {
    config: Config,
    sockets: server::Sockets,
}

/// Reads a server's counters, during the run and after it.
#[derive(Clone)]
pub struct StatsReader(Arc<Dispatcher<service::Programs>>);

/// Why a server cannot start.
#[derive(Debug, Error)]
pub enum BindError {
    /// The server cannot listen at the address.
    #[error("cannot listen at {address}: {cause}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        cause: io::Error,
    },
    /// The port mapper refuses the registration, or does not answer.
    #[error("cannot register with the port mapper at {address}: {cause}")]
    Portmapper {
        /// The port mapper.
        address: SocketAddr,
        /// Why.
        cause: io::Error,
    },
}

/// NFS and MOUNT without sockets, for a caller that brings the messages itself, such as a fuzzer.
#[derive(Clone)]
pub struct Programs(Arc<Dispatcher<service::Programs>>);

impl Programs {
    /// Serves `fs` like [`Server`], but does not listen.
    pub fn new(config: Config, fs: Arc<dyn FileSystem>) -> Programs {
        let programs = service::Programs::new(&config, fs);
        Programs(Arc::new(Dispatcher::new(config.rpc, programs)))
    }

    /// Serves one message as if it were a datagram from `address`. `None` if it gets no reply.
    pub async fn answer(&self, address: SocketAddr, message: Bytes) -> Option<Bytes> {
        Arc::clone(&self.0).answer(address, message).await
    }
}

impl Sockets {
    /// Binds the sockets.
    ///
    /// # Errors
    /// [`BindError::Listen`]
    pub async fn bind(config: Config) -> Result<Sockets, BindError> {
        let failed = |cause| BindError::Listen { address: config.rpc.listen, cause };
        let sockets = server::Sockets::bind(config.rpc.clone()).await.map_err(failed)?;
        Ok(Sockets { config, sockets })
    }

    /// The server of `fs` with these sockets. Registers with the port mapper if one is configured.
    ///
    /// # Errors
    /// [`BindError::Portmapper`]
    pub async fn serve(self, fs: Arc<dyn FileSystem>) -> Result<Server, BindError> {
        let Sockets { config, sockets } = self;
        let server = sockets.serve(service::Programs::new(&config, fs));
        let registration = match config.portmapper {
            Some(mapper) => {
                let registered = Registration::new(
                    mapper,
                    (server.addr().port(), config.rpc.udp),
                    &config.rpc.clock,
                )
                .await;
                let failed = |cause| BindError::Portmapper { address: mapper, cause };
                Some(registered.map_err(failed)?)
            }
            None => None,
        };
        Ok(Server { server, registration })
    }
}

impl Server {
    /// Binds the sockets, and registers with the port mapper if one is configured.
    ///
    /// # Errors
    /// [`BindError`]
    pub async fn bind(config: Config, fs: Arc<dyn FileSystem>) -> Result<Server, BindError> {
        Sockets::bind(config).await?.serve(fs).await
    }

    /// The address on which it listens, over both transports.
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// The handle that shuts the server down.
    pub fn shutdown(&self) -> Shutdown {
        self.server.shutdown()
    }

    /// Counts of served calls since the start.
    pub fn stats(&self) -> Stats {
        self.stats_reader().snapshot()
    }

    /// Reads the same counts while the server runs.
    pub fn stats_reader(&self) -> StatsReader {
        StatsReader(self.server.dispatcher())
    }

    /// Serves until [`Shutdown::begin`]. Then it accepts no more calls, answers those in flight,
    /// and returns.
    pub async fn run(self) {
        self.server.run().await;
        if let Some(mut registration) = self.registration {
            registration.withdraw().await;
        }
    }
}

impl StatsReader {
    /// Counts of served calls since the start.
    pub fn snapshot(&self) -> Stats {
        self.0.stats().into()
    }
}

//! The addresses of a server: the client uses one, and tries the next when it does not answer.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::tls::ClientTls;

/// An address of the program.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The address.
    pub address: SocketAddr,
    /// TLS for the server at that address, like [`Config::tls`].
    pub tls: Option<ClientTls>,
}

/// Which of the addresses is tried. The number grows without end; it is taken modulo their count.
#[derive(Debug)]
pub(super) struct Endpoints(AtomicUsize);

impl Endpoints {
    /// Starts with this address.
    pub(super) fn new(endpoint: usize) -> Endpoints {
        Endpoints(AtomicUsize::new(endpoint))
    }

    /// The address to try.
    pub(super) fn current(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// No server answers at this address: the next one is tried.
    pub(super) fn leave(&self, endpoint: usize) {
        // Not if another connection has already moved on.
        let next = endpoint.wrapping_add(1);
        let _ = self.0.compare_exchange(endpoint, next, Relaxed, Relaxed);
    }
}

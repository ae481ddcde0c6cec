//! The addresses of a server: the client uses one, and tries the next when it does not answer.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::tls::ClientTls;

/// An address of the program.
#[derive(Clone, Debug)]
pub struct Place {
    /// The address.
    pub address: SocketAddr,
    /// TLS for the server at that address, like [`Config::tls`].
    pub tls: Option<ClientTls>,
}

/// Which of the addresses is tried. The number grows without end; it is taken modulo their count.
#[derive(Debug)]
pub(super) struct Places(AtomicUsize);

impl Places {
    /// Starts with this address.
    pub(super) fn new(place: usize) -> Places {
        Places(AtomicUsize::new(place))
    }

    /// The address to try.
    pub(super) fn current(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// No server answers at this address: the next one is tried.
    pub(super) fn leave(&self, place: usize) {
        // Not if another connection has already moved on.
        let next = place.wrapping_add(1);
        let _ = self.0.compare_exchange(place, next, Relaxed, Relaxed);
    }
}

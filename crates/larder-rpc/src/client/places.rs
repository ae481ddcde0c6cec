//! The addresses of a server: the client uses one, and tries the next when it does not answer.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::tls::ClientTls;

/// Where a program listens.
#[derive(Clone, Debug)]
pub struct Place {
    /// The address.
    pub address: SocketAddr,
    /// As [`Config::tls`], for the server at that address.
    pub tls: Option<ClientTls>,
}

/// Which of them is tried. They are counted on and on.
#[derive(Debug)]
pub(super) struct Places(AtomicUsize);

impl Places {
    /// This one first.
    pub(super) fn new(place: usize) -> Places {
        Places(AtomicUsize::new(place))
    }

    /// The one to try.
    pub(super) fn current(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// No server answers at this address: the next one is tried.
    pub(super) fn leave(&self, place: usize) {
        // Unless another connection has found that out already.
        let next = place.wrapping_add(1);
        let _ = self.0.compare_exchange(place, next, Relaxed, Relaxed);
    }
}

//! Where a server may be: one of several places, left for the next when nobody answers there.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::tls::ClientTls;

/// Where a program listens.
#[derive(Clone, Debug)]
pub struct Place {
    /// The address.
    pub address: SocketAddr,
    /// As [`Config::tls`], to whoever has that address.
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

    /// There is nobody at this place: the next one is tried.
    pub(super) fn leave(&self, place: usize) {
        // Unless somebody else has found that out.
        let next = place.wrapping_add(1);
        let _ = self.0.compare_exchange(place, next, Relaxed, Relaxed);
    }
}

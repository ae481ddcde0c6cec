//! Answers calls that the server makes to us.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use larder_wire::xdr::Segments;

use crate::server::{Config, Dispatcher, Peer, Service, SourcePorts, Stats};

/// The service that answers a server's calls.
#[derive(Clone)]
pub struct Callbacks(Arc<dyn Answering>);

impl Callbacks {
    /// `service` answers the calls, on the tokio runtime of the client.
    pub fn new(service: impl Service) -> Callbacks {
        // The dispatcher does not listen: the limits on connections are those of the client.
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let config = Config { source_ports: SourcePorts::Any, ..Config::new(nowhere) };
        Callbacks(Arc::new(Arc::new(Dispatcher::new(config, service))))
    }

    /// Executes a call and returns the reply, if the call gets one.
    pub(super) fn answer(&self, peer: Peer, message: Bytes) -> Answered {
        self.0.answer(peer, message)
    }

    /// Counts of served calls since the start, by procedure.
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Callbacks")
    }
}

/// A [`Dispatcher`] as a trait object.
trait Answering: Send + Sync {
    fn answer(&self, peer: Peer, message: Bytes) -> Answered;
    fn stats(&self) -> Stats;
}

pub(super) type Answered = Pin<Box<dyn Future<Output = Option<Segments>> + Send>>;

impl<S: Service> Answering for Arc<Dispatcher<S>> {
    fn answer(&self, peer: Peer, message: Bytes) -> Answered {
        Box::pin(Arc::clone(self).serve(peer, message, None, || ()))
    }

    fn stats(&self) -> Stats {
        Dispatcher::stats(self)
    }
}

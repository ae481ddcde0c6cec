//! Where a server listens, for which clients, and the resources that callers may hold.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use larder_io::{Clock, RealClock};

use crate::network::Network;
use crate::program::RECORD_BYTES_MAX;
use crate::tls::ServerTls;

/// Which ports callers may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourcePorts {
    /// Ports below 1024, which only the superuser of the caller's machine may use. Otherwise any
    /// user of an allowed machine can claim to be any other, because AUTH_SYS believes the caller.
    /// On this machine, root may call from any port: the kernel reports which user owns the socket.
    Reserved,
    /// Any (exports(5): `insecure`).
    Any,
}

/// Where to listen, for which clients, and the resources that callers may hold.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen, over TCP and UDP. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Whether to listen over UDP as well.
    pub udp: bool,
    /// Machines that may call; others are not read from.
    pub allow: Vec<Network>,
    /// Which ports callers may use.
    pub source_ports: SourcePorts,
    /// Most connections at a time. At the limit, a connection that has made no good call yet is
    /// closed; if there is none, the new one is.
    pub connections_max: usize,
    /// Most connections at a time from one machine, with the same rule.
    pub source_connections_max: usize,
    /// How long a connection that has begun to send may take to complete its first good call.
    pub first_call_max: Duration,
    /// Largest call over TCP, in bytes.
    pub record_bytes_max: usize,
    /// TLS for clients that ask for it, over TCP. If it is required, calls in the clear are
    /// refused over UDP as well.
    pub tls: Option<ServerTls>,
    /// The clock for all waits.
    pub clock: Arc<dyn Clock>,
}

impl Config {
    /// A server at `listen` that only this machine may call.
    pub fn new(listen: SocketAddr) -> Config {
        Config {
            listen,
            udp: true,
            allow: Network::loopback().to_vec(),
            source_ports: SourcePorts::Reserved,
            connections_max: 256,
            source_connections_max: 64,
            first_call_max: Duration::from_secs(15),
            record_bytes_max: RECORD_BYTES_MAX,
            tls: None,
            clock: Arc::new(RealClock),
        }
    }
}

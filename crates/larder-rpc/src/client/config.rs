//! Configuration of a client: how it reaches its server, and how long it waits.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use larder_io::{Clock, RealClock};

use super::callbacks::Callbacks;
use super::endpoints::Endpoint;
use crate::program::{Program, RECORD_BYTES_MAX, Transport};
use crate::tls::ClientTls;

/// Which port calls come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourcePort {
    /// A port that only the superuser may bind: servers require one unless configured `insecure`.
    /// If none is free, any port.
    Reserved,
    /// Any port.
    Any,
}

impl SourcePort {
    /// What is possible in this process: only the superuser may bind a reserved port.
    pub fn possible(self) -> SourcePort {
        if rustix::process::geteuid().is_root() { self } else { SourcePort::Any }
    }
}

/// What happens to a call that gets no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// It fails after [`Config::limit`], or sooner.
    Soft,
    /// It waits for the server.
    Hard,
}

/// How to reach a server and how long to wait for it.
#[derive(Clone, Debug)]
pub struct Config {
    /// The server's name in messages, `HOST:PORT`.
    pub server: String,
    /// The address of the program.
    pub address: SocketAddr,
    /// Other addresses of the server, or of one that takes over from it. If an address cannot be
    /// reached, or is silent, the client tries the next, in turn.
    pub others: Vec<Endpoint>,
    /// How messages travel.
    pub transport: Transport,
    /// The program.
    pub program: Program,
    /// How many connections to use (`nconnect`), at least one.
    pub connections: usize,
    /// Calls in flight on one connection; others wait. UDP starts lower and adapts.
    pub in_flight_max: u32,
    /// How long to wait for a reply before doing something about it (`timeo`): UDP sends again,
    /// TCP connects again if nothing at all was heard meanwhile.
    pub timeout: Duration,
    /// How often that is done before the server counts as unreachable (`retrans`).
    pub retransmissions: u32,
    /// What happens after the limit.
    pub recovery: Recovery,
    /// Largest reply, in bytes.
    pub record_bytes_max: usize,
    /// This machine's name in AUTH_SYS.
    pub machine_name: String,
    /// Which port calls come from.
    pub source_port: SourcePort,
    /// TLS, over TCP. If it is set, nothing is sent in the clear: a server without TLS counts as
    /// unreachable.
    pub tls: Option<ClientTls>,
    /// Answers the server's calls on our connections, over TCP. Without it, such calls count as
    /// replies that belong to no call.
    pub callbacks: Option<Callbacks>,
    /// The clock for all waits.
    pub clock: Arc<dyn Clock>,
}

impl Config {
    /// The defaults of `mount.nfs`, except for a shorter timeout on TCP: larder reports earlier
    /// that a server is gone, and a slow reply costs nothing while the connection is alive.
    pub fn new(address: SocketAddr, transport: Transport, program: Program) -> Config {
        let (timeout, retransmissions) = match transport {
            Transport::Tcp => (Duration::from_secs(15), 2),
            Transport::Udp => (Duration::from_millis(1100), 5),
        };
        Config {
            server: address.to_string(),
            address,
            others: Vec::new(),
            transport,
            program,
            connections: 1,
            in_flight_max: 256,
            timeout,
            retransmissions,
            recovery: Recovery::Soft,
            record_bytes_max: RECORD_BYTES_MAX,
            machine_name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            source_port: SourcePort::Reserved,
            tls: None,
            callbacks: None,
            clock: Arc::new(RealClock),
        }
    }

    /// The address with this number; numbers wrap around.
    pub(super) fn endpoint(&self, number: usize) -> (SocketAddr, Option<&ClientTls>) {
        match number % (1 + self.others.len()) {
            0 => (self.address, self.tls.as_ref()),
            other => (self.others[other - 1].address, self.others[other - 1].tls.as_ref()),
        }
    }

    /// After how long a call without a reply means that the server is gone.
    pub fn limit(&self) -> Duration {
        self.timeout * (self.retransmissions + 1)
    }
}

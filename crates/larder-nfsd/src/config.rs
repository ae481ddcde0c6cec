//! What the operator decides.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use larder_io::{Clock, RealClock};
use larder_rpc::server::SourcePorts;
use larder_rpc::{Network, server};
use larder_vfs::Cred;
use larder_wire::nfs3::{DATA_BYTES_MAX, MESSAGE_OVERHEAD_BYTES_MAX};

/// How to serve.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen, over TCP and UDP. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Whether to listen over UDP, too.
    pub udp: bool,
    /// The path by which MOUNT knows the root of the file system, beside `/`.
    pub export_path: String,
    /// Who may call at all; others are not listened to.
    pub allow: Vec<Network>,
    /// Which ports callers may use.
    pub source_ports: SourcePorts,
    /// Who calls without a credential (AUTH_NONE).
    pub anonymous: Cred,
    /// Whether user 0 of a caller is [`Config::anonymous`] here, for file systems that do not see to it
    /// themselves.
    pub squash_root: bool,
    /// Whether every change of a directory goes through this server. If so, replies carry its
    /// attributes from before a change wherever no other call came between, by which clients keep
    /// their caches over their own changes (RFC 1813, 2.6). If not, they would tell lies about
    /// changes made elsewhere, and are left out. Those of a file are told as the file system tells them.
    pub sole_door: bool,
    /// A port mapper to register with, over UDP; usually port 111 of this machine.
    pub portmapper: Option<SocketAddr>,
    /// Most connections at a time. Beyond them, one that has made no good call yet gives way, or the
    /// new one is closed at once.
    pub connections_max: usize,
    /// Most connections at a time from one machine. The same.
    pub source_connections_max: usize,
    /// How long a connection that has begun to speak may take until its first good call is complete.
    pub first_call_max: Duration,
    /// By which it waits.
    pub clock: Arc<dyn Clock>,
}

impl Config {
    /// A server at `listen` for this machine alone.
    pub fn new(listen: SocketAddr) -> Config {
        Config {
            listen,
            udp: true,
            export_path: "/".to_owned(),
            allow: Network::loopback().to_vec(),
            source_ports: SourcePorts::Reserved,
            anonymous: Cred::new(65_534, 65_534, &[]),
            squash_root: false,
            sole_door: false,
            portmapper: None,
            connections_max: 256,
            source_connections_max: 64,
            first_call_max: Duration::from_secs(15),
            clock: Arc::new(RealClock),
        }
    }

    /// The part of it that is not about NFS.
    pub(crate) fn rpc(&self) -> server::Config {
        server::Config {
            listen: self.listen,
            udp: self.udp,
            allow: self.allow.clone(),
            source_ports: self.source_ports,
            connections_max: self.connections_max,
            source_connections_max: self.source_connections_max,
            first_call_max: self.first_call_max,
            clock: Arc::clone(&self.clock),
            // A WRITE of the largest size with its headers.
            record_bytes_max: DATA_BYTES_MAX + MESSAGE_OVERHEAD_BYTES_MAX,
            ..server::Config::new(self.listen)
        }
    }
}

//! Configuration of the NFS server.

use std::net::SocketAddr;

use larder_rpc::server;
use larder_vfs::Cred;
use larder_wire::nfs3::{DATA_BYTES_MAX, MESSAGE_OVERHEAD_BYTES_MAX};

/// How to serve.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen, which callers are allowed, and how many resources they may hold.
    pub rpc: server::Config,
    /// The path under which MOUNT offers the root of the file system, in addition to `/`.
    pub export_path: String,
    /// Identity of callers without a credential (AUTH_NONE).
    pub anonymous: Cred,
    /// Whether user 0 of a caller becomes [`Config::anonymous`], for file systems that do not map
    /// it themselves.
    pub squash_root: bool,
    /// Whether every change of a directory goes through this server. If so, replies carry its
    /// attributes from before a change, unless another call came in between; with them clients
    /// keep their caches valid over their own changes (RFC 1813, 2.6). If not, those
    /// attributes would misrepresent changes made elsewhere, and are left out. For a file the
    /// file system decides.
    pub sole_front_door: bool,
    /// A port mapper to register with, over UDP; usually port 111 of this machine.
    pub portmapper: Option<SocketAddr>,
}

impl Config {
    /// A server at `listen` that only this machine may call.
    pub fn new(listen: SocketAddr) -> Config {
        // A WRITE of the largest size with its headers.
        let record_bytes_max = DATA_BYTES_MAX + MESSAGE_OVERHEAD_BYTES_MAX;
        Config {
            rpc: server::Config { record_bytes_max, ..server::Config::new(listen) },
            export_path: "/".to_owned(),
            anonymous: Cred::new(65_534, 65_534, &[]),
            squash_root: false,
            sole_front_door: false,
            portmapper: None,
        }
    }
}

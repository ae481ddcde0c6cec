//! An NFS version 3 server (RFC 1813) in front of any [`larder_vfs::FileSystem`].
//!
//! It exports a directory, re-exports a cached mount, or serves larder's own servers to kernel
//! clients: it knows what it serves only by that interface. NFS and MOUNT are served on one port,
//! over TCP and UDP; clients name it with `port=` and `mountport=`, or ask a port mapper
//! ([`Config::portmapper`]).
//!
//! - [`Config`] says where to listen and for whom, [`Server`] does it, [`Shutdown`] ends it;
//!   [`Sockets`] are bound before there is a file system.
//! - [`Stats`] counts calls, errors and bytes by procedure.
//!
//! [`larder_rpc::server`] handles sockets, limits, and retransmitted calls, and makes its own
//! promises. NFS adds:
//! - **Handles outlive the server**, as far as those of the file system do.
//! - **Attributes are truthful.** Those from before a change are reported only if no other change
//!   can have come in between ([`Config::sole_front_door`]).
//!
//! Absent on purpose: mapping of users (squash) and checking of rights, which the file system does;
//! locks (NLM), RPCSEC_GSS, versions 2 and 4.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests wait for real sockets and threads")
)]
#![forbid(unsafe_code)]

mod config;
mod mount;
mod nfs;
mod overlaps;
mod portmap;
mod server;
mod service;
mod stats;
mod words;

pub use config::Config;
pub use larder_rpc::server::{ProcedureStats, Shutdown, SourcePorts};
pub use larder_rpc::{Network, ParseNetworkError};
pub use server::{BindError, Programs, Server, Sockets, StatsReader};
pub use stats::Stats;

//! An NFS version 3 server (RFC 1813) in front of any [`larder_vfs::FileSystem`].
//!
//! It exports a directory, re-exports a cached mount, or gives kernel clients a door to larder's
//! own servers: what it serves it knows by its seam only. NFS and MOUNT are served on one port,
//! over TCP and UDP; clients name it with `port=` and `mountport=`, or ask a port mapper
//! ([`Config::portmapper`]).
//!
//! - [`Config`] says where to listen and for whom, [`Server`] does it, [`Shutdown`] ends it.
//! - [`Stats`] counts calls, errors and bytes by procedure.
//!
//! Sockets, limits, and calls that come twice are the business of [`larder_rpc::server`], with its
//! promises. Here is what NFS adds:
//! - **Handles outlive the server**, as far as those of the file system do.
//! - **Attributes do not lie.** Those from before a change are told only where nobody can have come
//!   between ([`Config::sole_door`]).
//!
//! Absent on purpose: who maps to whom (squash) and the rights of users, which are the file
//! system's business; locks (NLM), RPCSEC_GSS, versions 2 and 4.

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
pub use server::{BindError, Programs, Server, StatsReader};
pub use stats::Stats;

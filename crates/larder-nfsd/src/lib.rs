//! An NFS version 3 server (RFC 1813) in front of any [`larder_vfs::FileSystem`].
//!
//! It exports a directory, re-exports a cached mount, or gives kernel clients a door to larder's own
//! servers: what it serves it knows by its seam only. NFS and MOUNT are served on one port, over TCP
//! and UDP; clients name it with `port=` and `mountport=`, or ask a port mapper
//! ([`Config::portmapper`]).
//!
//! - [`Config`] says where to listen and for whom, [`Server`] does it, [`Shutdown`] ends it.
//! - [`Stats`] counts calls, errors and bytes by procedure.
//!
//! Promises:
//! - **Hostile bytes do no harm.** Every message has a largest size, is decoded by `larder-wire` and
//!   answered, or refused; memory and calls in flight are bounded per connection; who takes no
//!   replies is not read from, and is cut off after a while.
//! - **Nobody keeps others out.** Connections are bounded in all, for each source, and hardly there for
//!   those whose calls are not carried out (`admission`); over UDP nobody is sent much who has
//!   shown nothing that only an answer of ours can have told him.
//! - **A retransmission is not carried out twice.** Replies to calls that change something are kept
//!   for a while, over reconnects too (the duplicate request cache).
//! - **Handles outlive the server**, as far as those of the file system do.
//! - **Attributes do not lie.** Those from before a change are told only where nobody can have come
//!   between ([`Config::sole_door`]).
//!
//! Absent on purpose: who maps to whom (squash) and the rights of users, which are the file system's
//! business; locks (NLM), RPCSEC_GSS, versions 2 and 4.

#![forbid(unsafe_code)]

mod admission;
mod config;
mod duplicates;
mod mount;
mod network;
mod nfs;
mod overlaps;
mod owner;
mod portmap;
mod server;
mod service;
mod stats;
mod tcp;
mod udp;
mod words;

pub use config::{Config, SourcePorts};
pub use network::{Network, ParseNetworkError};
pub use server::{BindError, Programs, Server, Shutdown, StatsReader};
pub use stats::{ProcedureStats, Stats};
